//! State shared by the two halves of a connection.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Wake, Waker};

use sinews_proto::Expired;
use sinews_session::{Cause, Closed};

/// One of the halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HalfSide {
    Read,
    Write,
}

impl HalfSide {
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Read => Self::Write,
            Self::Write => Self::Read,
        }
    }
}

/// State shared by the halves. Waking it wakes both.
#[derive(Debug, Default)]
pub(crate) struct Pair {
    /// The half whose Close leaves. Decided once, before that Close is with the transport: nothing follows that
    /// Close.
    closer: OnceLock<HalfSide>,
    /// How the connection ended, as seen by the reading half.
    pub(super) closed: OnceLock<Closed>,
    /// The sending half ended the connection: its peer read nothing, or too little.
    pub(super) given_up: OnceLock<Closed>,
    /// The transport accepts no more bytes.
    pub(super) failed: OnceLock<io::ErrorKind>,
    /// Bytes that wait with the transport.
    pub(super) waiting: AtomicUsize,
    /// Bytes that have left, wrapping.
    pub(super) left: AtomicUsize,
    /// When the sending half last sent a message, in microseconds.
    pub(super) sent_at: AtomicU64,
    wakers: [Mutex<Option<Waker>>; 2],
}

impl Pair {
    /// Claims the closing handshake for a side; returns whether its Close leaves.
    pub(crate) fn claim_close(&self, side: HalfSide) -> bool {
        *self.closer.get_or_init(|| side) == side
    }

    pub(crate) fn closer(&self) -> Option<HalfSide> {
        self.closer.get().copied()
    }

    pub(crate) fn closed(&self) -> Option<&Closed> {
        self.closed.get().or_else(|| self.given_up.get())
    }

    /// Records that the transport accepts no more bytes.
    pub(crate) fn fail(&self, error: &io::Error) {
        let _ = self.failed.set(error.kind());
        self.wake_both();
    }

    pub(crate) fn failed(&self) -> Option<io::ErrorKind> {
        self.failed.get().copied()
    }

    /// Whether the sending half has closed without waiting for the peer.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.given_up.get().is_some_and(|closed| closed.cause() == Cause::Local)
    }

    /// Sets the number of bytes that wait with the transport.
    pub(crate) fn set_waiting(&self, count: usize) {
        self.waiting.store(count, Ordering::Release);
    }

    /// Adds to the bytes that have left.
    pub(crate) fn add_left(&self, count: usize) {
        self.left.fetch_add(count, Ordering::Release);
    }

    /// Whether the transport is to be dropped with its waiting bytes.
    pub(crate) fn is_dropped(&self) -> bool {
        self.closed().is_some_and(is_dropped)
    }

    /// Whether bytes of either half wait with the transport.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// The next waker of this side is woken by progress of the other.
    pub(crate) fn register(&self, side: HalfSide, waker: &Waker) {
        let mut slot = self.lock_waker(side);
        if !slot.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *slot = Some(waker.clone());
        }
    }

    pub(crate) fn wake_side(&self, side: HalfSide) {
        let waker = self.lock_waker(side).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn wake_both(&self) {
        self.wake_side(HalfSide::Read);
        self.wake_side(HalfSide::Write);
    }

    fn lock_waker(&self, side: HalfSide) -> std::sync::MutexGuard<'_, Option<Waker>> {
        self.wakers[side as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the connection ended by a timeout after which not even a Close is sent.
pub(super) fn is_dropped(closed: &Closed) -> bool {
    matches!(closed.cause(), Cause::Expired(Expired::Write | Expired::Close))
}

impl Wake for Pair {
    fn wake(self: Arc<Self>) {
        self.wake_both();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_both();
    }
}

/// State of a link that is one half.
#[derive(Debug)]
pub(super) struct HalfState {
    pub(super) side: HalfSide,
    pub(super) pair: Arc<Pair>,
    /// Values of [`Pair::waiting`] and [`Pair::left`] at the last check.
    pub(super) waiting: usize,
    pub(super) left: usize,
}

impl HalfState {
    pub(super) fn boxed(side: HalfSide, pair: &Arc<Pair>) -> Option<Box<Self>> {
        let left = pair.left.load(Ordering::Acquire);
        Some(Box::new(Self { side, pair: pair.clone(), waiting: 0, left }))
    }
}
