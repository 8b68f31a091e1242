//! What became of an append.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use crate::AppendError;

/// How safe records must be before their producer is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// They have their place in the order, and wait to be written.
    Memory,
    /// They are as safe as [`Fsync`](crate::Fsync) says: synced, or written. Readers see them.
    #[default]
    Disk,
    /// The broker has acknowledged them. Where no broker keeps the stream, this is the disk.
    Broker,
}

/// Where records are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Appended {
    /// Offset of the first record.
    pub first: u64,
    /// Records.
    pub count: u32,
}

/// An append that is under way. Dropping it changes nothing about the records.
pub struct Pending {
    place: Arc<Place>,
    count: u32,
}

/// The other end of a [`Pending`]: the store's. Dropped before its end, the append has failed.
pub struct Completer {
    place: Arc<Place>,
}

type Place = Mutex<State>;

#[derive(Default)]
struct State {
    first: Option<u64>,
    reached: Option<Durability>,
    failed: Option<AppendError>,
    /// Who waits, and for what: a pending append has one owner.
    waker: Option<(Durability, Waker)>,
}

impl Pending {
    /// Both ends of an append of so many records, for a store of another kind.
    pub fn channel(count: u32) -> (Completer, Self) {
        let place = Arc::new(Place::default());
        (Completer { place: place.clone() }, Self { place, count })
    }

    /// Both ends of an append that has its place already.
    pub(crate) fn placed(first: u64, count: u32) -> (Completer, Self) {
        let state = State { first: Some(first), reached: Some(Durability::Memory), ..State::default() };
        let place = Arc::new(Mutex::new(state));
        (Completer { place: place.clone() }, Self { place, count })
    }

    /// Offset of the first record, once it is known: at once in the embedded log.
    pub fn first(&self) -> Option<u64> {
        lock(&self.place).first
    }

    /// Records of the append.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether the records are as safe as asked for, or never will be. Otherwise the waker is called, the last one
    /// that was given.
    ///
    /// # Errors
    ///
    /// [`AppendError`] if the append failed before that.
    pub fn poll(
        &mut self,
        durability: Durability,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Appended, AppendError>> {
        let mut state = lock(&self.place);
        if let (Some(first), true) = (state.first, state.reached >= Some(durability)) {
            return Poll::Ready(Ok(Appended { first, count: self.count }));
        }
        if let Some(error) = &state.failed {
            return Poll::Ready(Err(error.clone()));
        }
        match &mut state.waker {
            Some((least, waker)) if waker.will_wake(cx.waker()) => *least = durability,
            place => *place = Some((durability, cx.waker().clone())),
        }
        Poll::Pending
    }

    /// The same as a future.
    pub fn wait(&mut self, durability: Durability) -> Wait<'_> {
        Wait { pending: self, durability }
    }

    /// The same for a thread of one's own, which sleeps.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll).
    pub fn block(&mut self, durability: Durability) -> Result<Appended, AppendError> {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut cx = Context::from_waker(&waker);
        loop {
            match self.poll(durability, &mut cx) {
                Poll::Ready(result) => return result,
                Poll::Pending => std::thread::park(),
            }
        }
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("count", &self.count).finish_non_exhaustive()
    }
}

/// See [`Pending::wait`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Wait<'a> {
    pending: &'a mut Pending,
    durability: Durability,
}

impl Future for Wait<'_> {
    type Output = Result<Appended, AppendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let durability = self.durability;
        self.pending.poll(durability, cx)
    }
}

impl Completer {
    /// The records are where they are, and so safe. Less than before changes nothing.
    pub fn reached(&self, durability: Durability, first: u64) {
        let mut state = lock(&self.place);
        if state.failed.is_some() {
            return;
        }
        state.first = Some(first);
        state.reached = state.reached.max(Some(durability));
        if state.waker.as_ref().is_some_and(|(least, _)| *least <= durability) {
            wake(state);
        }
    }

    /// It will not become safer than it is.
    pub fn fail(self, error: AppendError) {
        self.end(|| error);
    }

    fn end(&self, error: impl FnOnce() -> AppendError) {
        let mut state = lock(&self.place);
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
        self.end(|| AppendError::Failed("the store has gone".into()));
    }
}

/// Calls the waker without the lock, since it may come back at once.
fn wake(mut state: std::sync::MutexGuard<'_, State>) {
    let waker = state.waker.take();
    drop(state);
    if let Some((_, waker)) = waker {
        waker.wake();
    }
}

/// Nothing in here can panic halfway, so a poisoned lock guards whole values.
fn lock(place: &Place) -> std::sync::MutexGuard<'_, State> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
