//! A connection without its transport, in two halves: one reads and answers, one sends.
//!
//! Each half is a [`Link`] of its own; a [`Pair`] is their shared state. The reading half queues control frames only.
//! The owner of the sending side of the transport interleaves the frames of both, whole.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Wake, Waker};

use sinews_proto::{Expired, Time};
use sinews_session::{Cause, Chain, Closed};

use super::Link;
use crate::resources;

/// One of the halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Read,
    Write,
}

impl Side {
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
    closer: OnceLock<Side>,
    /// How the connection ended, as seen by the reading half.
    closed: OnceLock<Closed>,
    /// The sending half ended the connection: its peer read nothing, or too little.
    given_up: OnceLock<Closed>,
    /// The transport accepts no more bytes.
    failed: OnceLock<io::ErrorKind>,
    /// Bytes that wait with the transport.
    waiting: AtomicUsize,
    /// Bytes that have left, wrapping.
    left: AtomicUsize,
    /// When the sending half last sent a message, in microseconds.
    sent_at: AtomicU64,
    wakers: [Mutex<Option<Waker>>; 2],
}

impl Pair {
    /// Claims the closing handshake for a side; returns whether its Close leaves.
    pub(crate) fn claim_close(&self, side: Side) -> bool {
        *self.closer.get_or_init(|| side) == side
    }

    pub(crate) fn closer(&self) -> Option<Side> {
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
    pub(crate) fn register(&self, side: Side, waker: &Waker) {
        let mut place = self.lock_waker(side);
        if !place.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *place = Some(waker.clone());
        }
    }

    pub(crate) fn waker(&self, side: Side) -> Option<Waker> {
        self.lock_waker(side).clone()
    }

    pub(crate) fn wake_side(&self, side: Side) {
        let waker = self.lock_waker(side).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn wake_both(&self) {
        self.wake_side(Side::Read);
        self.wake_side(Side::Write);
    }

    fn lock_waker(&self, side: Side) -> std::sync::MutexGuard<'_, Option<Waker>> {
        self.wakers[side as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the connection ended by a timeout after which not even a Close is sent.
fn is_dropped(closed: &Closed) -> bool {
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
pub(super) struct Half {
    side: Side,
    pair: Arc<Pair>,
    /// Values of [`Pair::waiting`] and [`Pair::left`] at the last check.
    waiting: usize,
    left: usize,
}

impl Half {
    fn boxed(side: Side, pair: &Arc<Pair>) -> Option<Box<Self>> {
        let left = pair.left.load(Ordering::Acquire);
        Some(Box::new(Self { side, pair: pair.clone(), waiting: 0, left }))
    }
}

impl Link {
    /// Splits off the sending half: its link, and the send in flight, of which part may have left. `None` if this is
    /// a half already.
    pub(crate) fn split(&mut self) -> Option<(Self, Option<Box<Chain>>, Arc<Pair>)> {
        let mut write = Self::of(self.session.split_data(self.now)?, &[], self.now);
        let pair = Arc::new(Pair::default());
        if !write.session.is_open() {
            // Our Close has left, or is queued.
            let _ = pair.claim_close(Side::Write);
        }
        if let Some(closed) = &self.end.closed {
            let _ = pair.closed.set((**closed).clone());
        }
        if self.end.sending {
            let kind = self.end.io.as_ref().map_or(io::ErrorKind::BrokenPipe, io::Error::kind);
            let _ = pair.failed.set(kind);
        }
        write.inbox = self.inbox.take();
        write.queued_at = self.queued_at.take();
        write.half = Half::boxed(Side::Write, &pair);
        self.half = Half::boxed(Side::Read, &pair);
        // The new driver of this half has set no timer.
        self.recheck = true;
        write.sync();
        Some((write, self.sending.take(), pair))
    }

    /// Joins the halves of one connection. `sending` is the send with the transport.
    pub(crate) fn join(&mut self, mut write: Self, sending: Option<Box<Chain>>) {
        self.sync();
        write.now = self.now;
        write.sync();
        if let Some(own) = self.sending.take() {
            // Nothing of it has left, or the transport would have it.
            self.session.recall_send(own);
        }
        if let Some(chain) = &sending {
            write.session.adopt_send(chain);
        }
        let now = self.now;
        self.inbox = write.inbox.take();
        self.queued_at = write.queued_at;
        self.has_sent = true;
        self.sending = sending;
        self.half = None;
        self.recheck = true;
        resources::with(|shared| self.session.join_data(&mut write.session, shared, now));
        self.note_closed();
    }

    /// Whether [`sync`](Self::sync) needs the clock: bytes of the other half wait, or did.
    #[inline]
    pub(crate) fn is_beside_sends(&self) -> bool {
        self.half.as_ref().is_some_and(|half| half.waiting > 0 || half.pair.is_waiting())
    }

    /// Updates this half with the progress of the other.
    #[inline]
    pub(crate) fn sync(&mut self) {
        match &self.half {
            Some(half) if half.side == Side::Read => self.sync_reading(),
            Some(_) => self.sync_sending(),
            None => {}
        }
    }

    fn sync_reading(&mut self) {
        let Some(half) = &mut self.half else { return };
        let (pair, now) = (&half.pair, self.now);
        let (waiting, left) = (pair.waiting.load(Ordering::Acquire), pair.left.load(Ordering::Acquire));
        if waiting > 0 || half.waiting > 0 {
            self.session.note_elsewhere(waiting, left != half.left, now);
            self.recheck = true;
        }
        (half.waiting, half.left) = (waiting, left);
        self.session.note_sent(Time::from_micros(pair.sent_at.load(Ordering::Relaxed)));
        if pair.closer() == Some(Side::Write) && self.session.is_open() {
            self.recheck = true;
            resources::with(|shared| self.session.note_close_left(shared, now));
        }
        let given_up = pair.given_up.get().cloned();
        let failed = pair.failed();
        if let Some(closed) = given_up {
            resources::with(|shared| self.session.end_by(closed, shared));
            self.note_closed();
        }
        if let Some(kind) = failed.filter(|_| !self.end.sending) {
            self.send_failed(kind.into());
        }
    }

    fn sync_sending(&mut self) {
        let Some(half) = &self.half else { return };
        if std::mem::take(&mut self.has_sent) {
            half.pair.sent_at.fetch_max(self.now.as_micros(), Ordering::Relaxed);
        }
        let (closer, failed, now) = (half.pair.closer(), half.pair.failed(), self.now);
        if let Some(closed) = half.pair.closed().filter(|_| self.end.closed.is_none()) {
            let closed = closed.clone();
            if let Some(inbox) = &mut self.inbox {
                inbox.ended(&closed);
            }
            self.end.closed = Some(Box::new(closed));
        }
        if (closer == Some(Side::Read) || self.end.closed.is_some()) && self.session.is_open() {
            // Waiting sends fail, since their bytes will not leave.
            self.end.sending |= self.session.buffered() > 0;
            resources::with(|shared| self.session.note_close_left(shared, now));
        }
        self.end.sending |= self.end.closed.as_ref().is_some_and(|closed| is_dropped(closed));
        if let Some(kind) = failed.filter(|_| self.end.io.is_none()) {
            self.send_failed(kind.into());
        }
    }

    /// Reports to the other half how this half has ended.
    #[cold]
    pub(super) fn tell_pair(&self) {
        let (Some(half), Some(closed)) = (&self.half, &self.end.closed) else { return };
        let told = match half.side {
            Side::Read => &half.pair.closed,
            Side::Write => &half.pair.given_up,
        };
        let _ = told.set((**closed).clone());
        half.pair.wake_side(half.side.other());
    }

    /// Whether queued bytes may go to the transport. After the other half's Close they are dropped instead.
    pub(super) fn may_send(&mut self) -> bool {
        let Some(half) = &self.half else { return true };
        if self.session.is_open() || half.pair.claim_close(half.side) {
            return true;
        }
        let now = self.now;
        while let Some(chain) = self.sending.take().or_else(|| self.session.start_send()) {
            resources::with(|shared| self.session.finish_send(chain, shared, now));
        }
        false
    }

    /// The next bytes of the sending half for the transport. Call it only with access to the transport, so that
    /// nothing follows a Close. Return the bytes through [`send_home`](Self::send_home).
    pub(crate) fn lend_send(&mut self) -> Option<Box<Chain>> {
        self.sync();
        if self.end.sending || !self.session.wants_send() || !self.may_send() {
            return None;
        }
        self.queued_at = None;
        self.session.start_send()
    }

    /// Accounts part of the bytes with the transport as sent.
    pub(crate) fn send_went_on(&mut self, count: usize) {
        if count > 0 {
            self.session.progressed(count, self.now);
        }
    }

    /// Takes back bytes that have left.
    pub(crate) fn send_home(&mut self, chain: Box<Chain>) {
        let now = self.now;
        resources::with(|shared| self.session.finish_send(chain, shared, now));
    }
}
