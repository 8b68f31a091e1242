//! Opening and creating streams.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use super::maintenance::find_renamed_segment;
use super::slot::{SlotState, StreamSlot};
use super::{Inner, State, StreamsOwner};
use crate::catalog::StreamMetadata;
use crate::disk::is_shortage;
use crate::stream::OpenedStream;
use crate::{Loss, OpenError, Stream, StreamConfig, StreamError, groups, meta, name};

/// Future for a stream that is being opened or created: see [`Streams::opening`](crate::Streams::opening).
pub struct OpenFuture {
    inner: Arc<StreamsOwner>,
    name: Arc<str>,
    /// Configuration with which a missing stream is created.
    create: Option<StreamConfig>,
    /// Error of this future's job, if it has failed.
    failed: Arc<Mutex<Option<StreamError>>>,
}

impl OpenFuture {
    pub(super) fn new(inner: Arc<StreamsOwner>, name: &str, create: Option<StreamConfig>) -> Self {
        Self { inner, name: name.into(), create, failed: Arc::default() }
    }
}

impl std::fmt::Debug for OpenFuture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenFuture").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Future for OpenFuture {
    type Output = Result<Option<Stream>, StreamError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(error) = failed {
            return Poll::Ready(Err(error));
        }
        let mut state = self.inner.state();
        let claim = match self.inner.claim(&mut state, &self.name, self.create.as_ref()) {
            Ok(claim) => claim,
            Err(error) => return Poll::Ready(Err(error)),
        };
        if let ClaimResult::Ready(stream) = claim {
            return Poll::Ready(Ok(stream));
        }
        if let Some(slot) = state.slots.get_mut(&*self.name)
            && !slot.waiting.iter().any(|waker| waker.will_wake(cx.waker()))
        {
            slot.waiting.push(cx.waker().clone());
        }
        drop(state);
        if let ClaimResult::Task(task) = claim {
            let (inner, name, failed) = (self.inner.0.clone(), self.name.clone(), self.failed.clone());
            self.inner.openers.push(Box::new(move || {
                let done = |error| *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                // The error of an existing stream is in its slot.
                let _ = inner.run(&name, task, done);
            }));
        }
        Poll::Pending
    }
}

/// Result of claiming a stream for use.
pub(super) enum ClaimResult {
    /// The stream is open, or does not exist.
    Ready(Option<Stream>),
    /// Another thread operates on the stream; wait for it.
    Wait,
    /// The caller must do this task; the slot is reserved for it.
    Task(OpenTask),
}

/// Result of [`Inner::find`].
pub(super) struct FoundStream {
    pub(super) stream: Option<Stream>,
    /// Damage found while opening.
    pub(super) losses: Vec<Loss>,
    /// Whether the stream was created by this call.
    pub(super) is_created: bool,
}

pub(super) enum OpenTask {
    Open,
    Create(StreamConfig, u64),
}

impl Inner {
    /// Looks up a stream, and reserves the task that must come first.
    pub(super) fn claim(
        &self,
        state: &mut State,
        name: &Arc<str>,
        create: Option<&StreamConfig>,
    ) -> Result<ClaimResult, StreamError> {
        let now = (self.pool.clock)();
        if let Some(slot) = state.slots.get_mut(name) {
            return match &slot.state {
                SlotState::Open(stream) => Ok(ClaimResult::Ready(Some(stream.clone()))),
                _ if state.lock.is_none() => Err(StreamError::Closed),
                SlotState::Busy => Ok(ClaimResult::Wait),
                _ if slot.may_open(now) => {
                    slot.state = SlotState::Busy;
                    Ok(ClaimResult::Task(OpenTask::Open))
                }
                SlotState::Damaged(reason, _) => Err(StreamError::Damaged(reason.clone())),
                SlotState::Closed => Ok(ClaimResult::Wait),
            };
        }
        let Some(config) = create else { return Ok(ClaimResult::Ready(None)) };
        if state.lock.is_none() {
            return Err(StreamError::Closed);
        }
        if name::encode(name).is_none() {
            return Err(StreamError::Name);
        }
        if !(1..=StreamConfig::PARTITIONS_MAX).contains(&config.partitions) {
            return Err(StreamError::Partitions { has: 1 });
        }
        if state.slots.len() >= self.pool.limits.max_streams {
            return Err(StreamError::TooMany { max: self.pool.limits.max_streams });
        }
        state.created_last = now.max(state.created_last + 1);
        let created = state.created_last;
        let metadata = StreamMetadata { created, config: config.clone(), ..StreamMetadata::default() };
        state.slots.insert(name.clone(), StreamSlot::new(metadata, SlotState::Busy));
        Ok(ClaimResult::Task(OpenTask::Create(config.clone(), created)))
    }

    /// Executes a claimed task, and wakes all waiters. Waits for the disk.
    pub(super) fn run(
        &self,
        name: &Arc<str>,
        task: OpenTask,
        failed: impl FnOnce(StreamError),
    ) -> Option<(Stream, Vec<Loss>)> {
        let busy = BusySlot { inner: self, name };
        // Held until the slot is marked open: a close in between would miss the stream.
        let _gate = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        let failure = self.check_lock();
        let result = if self.state().lock.is_none() {
            Err(StreamError::Closed)
        } else if let Some(reason) = failure {
            Err(StreamError::Io(Arc::new(std::io::Error::other(&*reason))))
        } else {
            match &task {
                OpenTask::Open => self.open_files(name),
                OpenTask::Create(config, created) => self.create_files(name, config, *created),
            }
        };
        let is_new = matches!(task, OpenTask::Create(..));
        match result {
            Ok((stream, metadata, losses)) => {
                busy.finish(|state| {
                    if let Some(slot) = state.slots.get_mut(&**name) {
                        (slot.metadata, slot.state) = (metadata, SlotState::Open(stream.clone()));
                    }
                });
                losses.iter().for_each(|loss| tracing::warn!("{loss}"));
                if let Some(reason) = self.state().failure.clone() {
                    stream.fail_permanently(&reason);
                }
                Some((stream, losses))
            }
            Err(error) => {
                let is_damage = matches!(error, StreamError::Damaged(_));
                let reason = match &error {
                    StreamError::Damaged(reason) => reason.clone(),
                    other => other.to_string().into(),
                };
                if is_damage {
                    tracing::error!(stream = %name, %reason, "a stream is damaged and cannot be opened");
                }
                failed(error);
                busy.finish(|state| {
                    if is_new {
                        state.slots.remove(&**name);
                    } else if let Some(slot) = state.slots.get_mut(&**name) {
                        let damaged = SlotState::Damaged(reason, (self.pool.clock)());
                        slot.state = if is_damage { damaged } else { SlotState::Closed };
                    }
                });
                None
            }
        }
    }

    fn open_files(&self, name: &Arc<str>) -> Result<(Stream, StreamMetadata, Vec<Loss>), StreamError> {
        let path = self.path(name).ok_or(StreamError::Name)?;
        let found = super::read_config(&*self.pool.disk, &path);
        let found = found.and_then(|found| {
            found.ok_or_else(|| OpenError::Unknown(path.join(meta::NAME), "is missing".into()))
        });
        let (config, created) = found.map_err(into_stream_error)?;
        let mut metadata =
            self.state().slots.get(&**name).map(|slot| slot.metadata.clone()).unwrap_or_default();
        if metadata.created != created {
            metadata = StreamMetadata { created, ..StreamMetadata::default() };
        }
        if let Some((found, expected)) = find_renamed_segment(&*self.pool.disk, &path, &metadata) {
            let reason =
                format!("{}: was renamed; its right name is {}", found.display(), expected.display());
            return Err(StreamError::Damaged(reason.into()));
        }
        let now = (self.pool.clock)();
        if metadata.extents.is_none() {
            // The stream was open when a process ended; its last read is unknown.
            metadata.last_read = Some(now);
        }
        metadata.config = config.clone();
        // Before the first byte changes. If opening fails, the next attempt does not trust the old extents either.
        self.catalog().opened(name, now);
        let clean = metadata.clean.take();
        if let Some(slot) = self.state().slots.get_mut(&**name) {
            slot.metadata.clean = None;
        }
        let opened = Stream::open(name, created, path.clone(), &self.pool, &config, clean.as_ref());
        let OpenedStream { stream, losses, is_clean } = opened.map_err(into_stream_error)?;
        if clean.is_some() && !is_clean {
            // Appends could give the files the lengths recorded in the catalog, with different content.
            self.catalog().sync();
        }
        stream.register(&self.pool);
        // Closed until a group commits.
        self.file_cache.close_idle(&path.join(groups::NAME));
        Ok((stream, metadata, losses))
    }

    /// Finds a stream, and opens or creates it on this thread if need be. Waits for the disk.
    pub(super) fn find(&self, name: &str, create: Option<&StreamConfig>) -> Result<FoundStream, StreamError> {
        let name: Arc<str> = name.into();
        let mut failed = None;
        loop {
            let mut state = self.state();
            match self.claim(&mut state, &name, create)? {
                ClaimResult::Ready(stream) => {
                    return Ok(FoundStream { stream, losses: Vec::new(), is_created: false });
                }
                ClaimResult::Wait => self.wait(state),
                ClaimResult::Task(task) => {
                    drop(state);
                    let is_created = matches!(task, OpenTask::Create(..));
                    if let Some((stream, losses)) = self.run(&name, task, |error| failed = Some(error)) {
                        return Ok(FoundStream { stream: Some(stream), losses, is_created });
                    }
                    if let Some(error) = failed.take() {
                        return Err(error);
                    }
                }
            }
        }
    }
}

/// A slot marked busy. If dropped without [`finish`](Self::finish), by a panic, the stream is damaged.
pub(super) struct BusySlot<'a> {
    pub(super) inner: &'a Inner,
    pub(super) name: &'a Arc<str>,
}

impl BusySlot<'_> {
    pub(super) fn finish(self, change: impl FnOnce(&mut State)) {
        self.end(change);
        std::mem::forget(self);
    }

    fn end(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.inner.state();
        let waiting = state.slots.get_mut(&**self.name).map(|slot| std::mem::take(&mut slot.waiting));
        change(&mut state);
        drop(state);
        self.inner.changed.notify_all();
        waiting.into_iter().flatten().for_each(std::task::Waker::wake);
    }
}

impl Drop for BusySlot<'_> {
    fn drop(&mut self) {
        let now = (self.inner.pool.clock)();
        self.end(|state| {
            if let Some(slot) = state.slots.get_mut(&**self.name) {
                slot.state = SlotState::Damaged("opening the stream panicked; see the log".into(), now);
            }
        });
    }
}

/// Too many open files is a transient error; all other errors are damage.
fn into_stream_error(error: OpenError) -> StreamError {
    match error {
        OpenError::Io(_, error) if is_shortage(&error) => StreamError::Io(Arc::new(error)),
        error => StreamError::Damaged(error.to_string().into()),
    }
}
