//! A connection without its transport, in two halves: one reads and answers, one sends.
//!
//! Each half is a [`Link`] of its own; a [`Pair`] is their shared state. The reading half queues control frames only.
//! The owner of the sending side of the transport interleaves the frames of both, whole.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sinews_proto::Time;
use sinews_session::Chain;

use super::pair::{HalfSide, HalfState, Pair, is_dropped};
use super::state::Link;
use crate::resources;

impl Link {
    /// Splits off the sending half: its link, and the send in flight, of which part may have left. `None` if this is
    /// a half already.
    pub(crate) fn split(&mut self) -> Option<(Self, Option<Box<Chain>>, Arc<Pair>)> {
        let mut write = Self::from_session(self.session.split_data(self.now)?, &[], self.now);
        let pair = Arc::new(Pair::default());
        if !write.session.is_open() {
            // Our Close has left, or is queued.
            let _ = pair.claim_close(HalfSide::Write);
        }
        if let Some(closed) = &self.lifecycle.closed {
            let _ = pair.closed.set((**closed).clone());
        }
        if self.lifecycle.send_ended {
            let kind = self.lifecycle.io_error.as_ref().map_or(io::ErrorKind::BrokenPipe, io::Error::kind);
            let _ = pair.failed.set(kind);
        }
        write.outbound.inbox = self.outbound.inbox.take();
        write.outbound.queued_at = self.outbound.queued_at.take();
        write.half = HalfState::boxed(HalfSide::Write, &pair);
        self.half = HalfState::boxed(HalfSide::Read, &pair);
        // The new driver of this half has set no timer.
        self.lifecycle.recheck = true;
        write.sync();
        self.debug_check();
        Some((write, self.outbound.sending.take(), pair))
    }

    /// Joins the halves of one connection. `sending` is the send with the transport.
    pub(crate) fn join(&mut self, mut write: Self, sending: Option<Box<Chain>>) {
        self.sync();
        write.now = self.now;
        write.sync();
        if let Some(own) = self.outbound.sending.take() {
            // Nothing of it has left, or the transport would have it.
            self.session.recall_send(own);
        }
        if let Some(chain) = &sending {
            write.session.adopt_send(chain);
        }
        let now = self.now;
        self.outbound.inbox = write.outbound.inbox.take();
        self.outbound.queued_at = write.outbound.queued_at;
        self.outbound.has_sent = true;
        self.outbound.sending = sending;
        self.half = None;
        self.lifecycle.recheck = true;
        resources::with(|shared| self.session.join_data(&mut write.session, shared, now));
        self.note_closed();
        self.debug_check();
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
            Some(half) if half.side == HalfSide::Read => self.sync_reading(),
            Some(_) => self.sync_sending(),
            None => return,
        }
        self.debug_check();
    }

    fn sync_reading(&mut self) {
        let Some(half) = &mut self.half else { return };
        let (pair, now) = (&half.pair, self.now);
        let (waiting, left) = (pair.waiting.load(Ordering::Acquire), pair.left.load(Ordering::Acquire));
        if waiting > 0 || half.waiting > 0 {
            self.session.note_elsewhere(waiting, left != half.left, now);
            self.lifecycle.recheck = true;
        }
        (half.waiting, half.left) = (waiting, left);
        self.session.note_sent(Time::from_micros(pair.sent_at.load(Ordering::Relaxed)));
        if pair.closer() == Some(HalfSide::Write) && self.session.is_open() {
            self.lifecycle.recheck = true;
            resources::with(|shared| self.session.note_other_half_closed(shared, now));
        }
        let given_up = pair.given_up.get().cloned();
        let failed = pair.failed();
        if let Some(closed) = given_up {
            resources::with(|shared| self.session.end_by(closed, shared));
            self.note_closed();
        }
        if let Some(kind) = failed.filter(|_| !self.lifecycle.send_ended) {
            self.send_failed(kind.into());
        }
    }

    fn sync_sending(&mut self) {
        let Some(half) = &self.half else { return };
        if std::mem::take(&mut self.outbound.has_sent) {
            half.pair.sent_at.fetch_max(self.now.as_micros(), Ordering::Relaxed);
        }
        let (closer, failed, now) = (half.pair.closer(), half.pair.failed(), self.now);
        if let Some(closed) = half.pair.closed().filter(|_| self.lifecycle.closed.is_none()) {
            let closed = closed.clone();
            if let Some(inbox) = &mut self.outbound.inbox {
                inbox.ended(&closed);
            }
            self.lifecycle.closed = Some(Box::new(closed));
        }
        if (closer == Some(HalfSide::Read) || self.lifecycle.closed.is_some()) && self.session.is_open() {
            // Waiting sends fail, since their bytes will not leave.
            self.lifecycle.send_ended |= self.session.buffered() > 0;
            resources::with(|shared| self.session.note_other_half_closed(shared, now));
        }
        self.lifecycle.send_ended |= self.lifecycle.closed.as_ref().is_some_and(|closed| is_dropped(closed));
        if let Some(kind) = failed.filter(|_| self.lifecycle.io_error.is_none()) {
            self.send_failed(kind.into());
        }
    }

    /// Reports to the other half how this half has ended.
    #[cold]
    pub(super) fn report_to_pair(&self) {
        let (Some(half), Some(closed)) = (&self.half, &self.lifecycle.closed) else { return };
        let reported = match half.side {
            HalfSide::Read => &half.pair.closed,
            HalfSide::Write => &half.pair.given_up,
        };
        let _ = reported.set((**closed).clone());
        half.pair.wake_side(half.side.other());
    }

    /// Whether queued bytes may go to the transport. After the other half's Close they are dropped instead.
    pub(super) fn may_send(&mut self) -> bool {
        let Some(half) = &self.half else { return true };
        if self.session.is_open() || half.pair.claim_close(half.side) {
            return true;
        }
        let now = self.now;
        while let Some(chain) = self.outbound.sending.take().or_else(|| self.session.start_send()) {
            resources::with(|shared| self.session.finish_send(chain, shared, now));
        }
        false
    }

    /// The next bytes of the sending half for the transport. Call it only with access to the transport, so that
    /// nothing follows a Close. Return the bytes through [`send_completed`](Self::send_completed).
    pub(crate) fn take_queued_send(&mut self) -> Option<Box<Chain>> {
        self.sync();
        if self.lifecycle.send_ended || !self.session.wants_send() || !self.may_send() {
            return None;
        }
        self.outbound.queued_at = None;
        self.session.start_send()
    }

    /// Accounts part of the bytes with the transport as sent.
    pub(crate) fn send_progressed(&mut self, count: usize) {
        if count > 0 {
            self.session.progressed(count, self.now);
        }
    }

    /// Takes back bytes that have left.
    pub(crate) fn send_completed(&mut self, chain: Box<Chain>) {
        let now = self.now;
        resources::with(|shared| self.session.finish_send(chain, shared, now));
    }
}
