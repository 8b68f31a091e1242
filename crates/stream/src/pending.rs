//! The outcome of an append.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::{AppendError, thread_waker};

/// The durability that records must reach before their producer is notified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// The records have their offsets and wait to be written.
    Memory,
    /// The records are as durable as [`Fsync`](crate::Fsync) says: synced, or written. Readers see them.
    #[default]
    Disk,
    /// The broker has acknowledged the records. For a stream without a broker, equal to [`Disk`](Durability::Disk).
    Broker,
}

/// Position of appended records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Appended {
    /// Offset of the first record.
    pub first: u64,
    /// Record count.
    pub count: u32,
    /// Whether the store had the record already, by its idempotency key: see
    /// [`Broker::publish_once`](crate::broker::Broker::publish_once).
    pub repeated: bool,
}

/// An append in progress. Dropping it does not affect the records.
pub struct Pending {
    shared: Arc<Shared>,
    count: u32,
}

/// The store's end of a [`Pending`]. Dropping it without a result fails the append.
pub struct Completer {
    shared: Arc<Shared>,
}

type Shared = Mutex<State>;

#[derive(Default)]
struct State {
    first: Option<u64>,
    reached: Option<Durability>,
    failed: Option<AppendError>,
    repeated: bool,
    /// The waker, and the durability that it waits for; `None` for a failure. A pending append has one owner, so there is
    /// only one.
    waker: Option<(Option<Durability>, Waker)>,
}

impl Pending {
    /// Creates both ends of an append with `count` records, for another kind of store.
    pub fn channel(count: u32) -> (Completer, Self) {
        let shared = Arc::new(Shared::default());
        (Completer { shared: shared.clone() }, Self { shared, count })
    }

    /// Creates both ends of an append whose offset is known.
    pub(crate) fn with_offset(first: u64, count: u32) -> (Completer, Self) {
        let state = State { first: Some(first), reached: Some(Durability::Memory), ..State::default() };
        let shared = Arc::new(Mutex::new(state));
        (Completer { shared: shared.clone() }, Self { shared, count })
    }

    /// Offset of the first record, once known. The embedded log knows it immediately.
    pub fn first(&self) -> Option<u64> {
        lock(&self.shared).first
    }

    /// Number of records of the append.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Polls until the records reach `durability` or the append fails. If pending, the last waker passed in is called
    /// on completion.
    ///
    /// # Errors
    ///
    /// [`AppendError`] if the append failed before that.
    pub fn poll(
        &mut self,
        durability: Durability,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Appended, AppendError>> {
        self.poll_and_wait(durability, Some(durability), cx)
    }

    /// Polls as [`poll`](Self::poll), but the waker is called only if the append fails: for a caller without interest in a
    /// success.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll).
    pub fn poll_failure(
        &mut self,
        durability: Durability,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Appended, AppendError>> {
        self.poll_and_wait(durability, None, cx)
    }

    fn poll_and_wait(
        &self,
        durability: Durability,
        awaited: Option<Durability>,
        cx: &Context<'_>,
    ) -> Poll<Result<Appended, AppendError>> {
        let mut state = lock(&self.shared);
        if let (Some(first), true) = (state.first, state.reached >= Some(durability)) {
            return Poll::Ready(Ok(Appended { first, count: self.count, repeated: state.repeated }));
        }
        if let Some(error) = &state.failed {
            return Poll::Ready(Err(error.clone()));
        }
        match &mut state.waker {
            Some((waits_for, waker)) if waker.will_wake(cx.waker()) => *waits_for = awaited,
            slot => *slot = Some((awaited, cx.waker().clone())),
        }
        Poll::Pending
    }

    /// Returns a future that resolves as [`poll`](Self::poll) does.
    pub fn wait(&mut self, durability: Durability) -> AppendFuture<'_> {
        AppendFuture { pending: self, durability }
    }

    /// Blocks the current thread until [`poll`](Self::poll) is ready.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll).
    pub fn block(&mut self, durability: Durability) -> Result<Appended, AppendError> {
        thread_waker::block_on(|cx| self.poll(durability, cx))
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("count", &self.count).finish_non_exhaustive()
    }
}

/// Future returned by [`Pending::wait`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct AppendFuture<'a> {
    pending: &'a mut Pending,
    durability: Durability,
}

impl Future for AppendFuture<'_> {
    type Output = Result<Appended, AppendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let durability = self.durability;
        self.pending.poll(durability, cx)
    }
}

impl Completer {
    /// Reports the offset and the durability reached. A durability below the current one changes nothing.
    pub fn reached(&self, durability: Durability, first: u64) {
        let mut state = lock(&self.shared);
        if state.failed.is_some() {
            return;
        }
        state.first = Some(first);
        state.reached = state.reached.max(Some(durability));
        let is_awaited =
            |(awaited, _): &(Option<Durability>, Waker)| awaited.is_some_and(|it| it <= durability);
        if state.waker.as_ref().is_some_and(is_awaited) {
            wake(state);
        }
    }

    /// Reports that the store had the record already, from this offset on.
    pub fn repeated(&self, first: u64) {
        lock(&self.shared).repeated = true;
        self.reached(Durability::Broker, first);
    }

    /// Fails the append: it reaches no higher durability.
    pub fn fail(self, error: AppendError) {
        self.end(|| error);
    }

    fn end(&self, error: impl FnOnce() -> AppendError) {
        let mut state = lock(&self.shared);
        if state.failed.is_none() && state.reached < Some(Durability::Broker) {
            state.failed = Some(error());
            wake(state);
        }
    }
}

impl fmt::Debug for Completer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completer").finish_non_exhaustive()
    }
}

impl Drop for Completer {
    fn drop(&mut self) {
        self.end(|| AppendError::Failed("the store dropped the append".into()));
    }
}

/// Calls the waker without holding the lock, since the waker may poll immediately.
fn wake(mut state: std::sync::MutexGuard<'_, State>) {
    let waker = state.waker.take();
    drop(state);
    if let Some((_, waker)) = waker {
        waker.wake();
    }
}

/// No code can panic while holding the lock with partial changes, so a poisoned lock is usable.
fn lock(shared: &Shared) -> std::sync::MutexGuard<'_, State> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
