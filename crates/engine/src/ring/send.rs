//! Sending: fired first; a waiting send follows only if the kernel's buffer was full.

#![allow(unsafe_code)]

use std::io;
use std::time::Duration;

use super::kernel::{Completion, RingKernel, SendMode};
use super::state::{CloseProgress, FiredSend, Ring, SendProgress, ShutdownProgress};
use super::token::{OpKind, Token};
use crate::slots::{ConnectionSlot, ReadState, WriteState};
use crate::{App, ConnId, Io, SendChain};

impl<C: SendChain, K: RingKernel> Ring<C, K> {
    /// Asks the application for all queued bytes, and sends them.
    pub(super) fn start_send<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, conn: ConnId) {
        let Some(slot) = io.slots.live_mut(conn) else { return };
        slot.send_listed = false;
        if slot.in_flight {
            // The rest of a broadcast; its end lists the connection again.
            return;
        }
        slot.send_wanted = false;
        // The kernel reads from the chain in flight, regardless of the slot.
        let Some(Some(link)) = self.links.get(conn.index()) else { return };
        if link.send != SendProgress::Idle || link.chain.is_some() {
            return;
        }
        let Some(chain) = app.start_send(conn) else { return self.shutdown_if_requested(io, conn) };
        slot.in_flight = true;
        let mut spare_box = self.spare_boxes.pop().unwrap_or_default();
        *spare_box = Some(chain);
        if let Some(link) = self.link(io, conn) {
            link.chain = Some(spare_box);
            self.fire(app, io, conn);
        }
        let operations = self.kernel.queued() - self.kernel.consumed();
        if self.unsubmitted > UNSUBMITTED_MAX || operations > OPERATIONS_MAX {
            self.submit_early(app, io);
        }
    }

    /// Submits queued sends, and completes the taken ones. At the end of the turn their data would have
    /// left the cache, and so would the memory that could be reused.
    pub(super) fn submit_early<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io) {
        self.unsubmitted = 0;
        let before = self.completed.len();
        // The next wait reports an error again; until then a missing completion proves no success.
        let submitted = self.kernel.submit(&mut self.completed).is_ok();
        for completion in self.completed.split_off(before) {
            match completion.token.kind() {
                Some(OpKind::Fire | OpKind::Send) => self.sent(app, io, &completion),
                Some(OpKind::Share) => self.shared_sent(app, io, &completion),
                _ => self.completed.push(completion),
            }
        }
        if submitted {
            self.finish_fired(app, io);
            self.finish_shared();
        }
    }

    /// Offers the chain in flight to the kernel, which reports only if it does not take all bytes.
    fn fire<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, conn: ConnId) {
        match self.send(io, conn, OpKind::Fire) {
            OfferResult::Submitted { whole } => {
                self.fired.push(FiredSend { number: self.kernel.queued(), conn });
                // Bytes that were not offered cannot be sent before the rest completes.
                self.must_complete_fired |= !whole;
            }
            OfferResult::Empty => self.return_chain(app, io, conn, true),
            OfferResult::NotSubmitted => {}
        }
    }

    /// Whether a fired chain must complete before the loop sleeps. Commands that depend on it may have
    /// arrived after the send: from a woken handler, from mail, or from another connection. So all fired
    /// chains are checked here, once a turn, instead of tracking them.
    pub(super) fn must_not_sleep<A: App<Chain = C>>(&self, app: &A, io: &Io) -> bool {
        let depends_on = |fired: &FiredSend| {
            io.slots.get(fired.conn).is_none_or(ConnectionSlot::waits_for_send)
                || !app.finish_may_wait(fired.conn)
        };
        match self.fired.len() {
            _ if !self.shared.is_empty() => true,
            0 => false,
            out => self.must_complete_fired || out > FIRED_MAX || self.fired.iter().any(depends_on),
        }
    }

    /// Offers the rest of the chain in flight.
    pub(super) fn send(&mut self, io: &mut Io, conn: ConnId, kind: OpKind) -> OfferResult {
        let Some(Some(link)) = self.links.get_mut(conn.index()) else { return OfferResult::NotSubmitted };
        let Some(chain) = link.chain.as_deref().and_then(Option::as_ref) else {
            return OfferResult::NotSubmitted;
        };
        if chain.is_empty() {
            return OfferResult::Empty;
        }
        let (token, wait) =
            (Token::new(kind, conn), if kind == OpKind::Fire { SendMode::DontWait } else { SendMode::Wait });
        // SAFETY: the chain lies in a box of its own, which `link.chain` holds. It is touched again only in
        // `advance` and `return_chain`, which are reached by a completion of this operation, by
        // `finish_fired` after the kernel has taken it in silence, or by `closed`, which comes after that.
        // If the backend is dropped before, `Drop` waits for the kernel or leaks the box.
        let offered = unsafe { self.kernel.send(token, link.file, chain, wait) };
        if offered == 0 {
            // A chain that has a length and yields no bytes would wait forever.
            io.close_for(conn, || {
                io::Error::new(io::ErrorKind::WriteZero, "chain with unsent bytes returned no slices").into()
            });
            return OfferResult::NotSubmitted;
        }
        io.stats.sends.add(1);
        self.unsubmitted += offered as usize;
        link.offered = offered;
        link.send = if wait == SendMode::DontWait { SendProgress::Fired } else { SendProgress::Waiting };
        OfferResult::Submitted { whole: offered as usize == chain.len() }
    }

    /// Offers the sends of a batch to the kernel, which reports only those that it does not take completely.
    pub(super) fn offer_shared(&mut self) {
        let (bytes, sends) = self.shared.batch();
        let sends = sends.map(|send| (Token::new(OpKind::Share, send.conn), send.file));
        // SAFETY: `shared` holds the bytes until `finish_shared` finds that the kernel has taken all
        // sends, or until `Drop`, which waits for the kernel or leaks them.
        unsafe { self.kernel.send_shared(sends, bytes) };
    }

    /// Handles the completion of a send: it was short, it failed, or it waited and completed.
    pub(super) fn sent<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, completion: &Completion) {
        let Some((conn, link)) = self.owner(io, completion.token) else { return };
        let expected = match link.send {
            SendProgress::Idle => return,
            SendProgress::Fired => OpKind::Fire,
            SendProgress::Waiting => OpKind::Send,
        };
        if completion.token.kind() != Some(expected) {
            return;
        }
        link.send = SendProgress::Idle;
        match completion.outcome() {
            Ok(bytes) => {
                if self.advance(app, io, conn, bytes) {
                    return self.close_step(conn);
                }
            }
            Err(error) if is_full(&error) => {}
            Err(error) => io.close_for(conn, || error.into()),
        }
        let Some(Some(link)) = self.links.get_mut(conn.index()) else { return };
        if link.close != CloseProgress::No {
            self.close_step(conn);
        } else if io.slots.live_mut(conn).is_some() {
            self.send(io, conn, OpKind::Send);
        }
    }

    /// Completes the fired sends that the kernel has taken without a completion.
    pub(super) fn finish_fired<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io) {
        let consumed = self.kernel.consumed();
        let count = self.fired.partition_point(|fired| fired.number <= consumed);
        // Connections may wait for the remaining fired sends; they are not tracked.
        self.must_complete_fired = count < self.fired.len();
        if count == 0 {
            return;
        }
        let mut fired = std::mem::take(&mut self.fired);
        for FiredSend { conn, .. } in fired.drain(..count) {
            let Some(link) = self.link(io, conn).filter(|link| link.send == SendProgress::Fired) else {
                continue;
            };
            link.send = SendProgress::Idle;
            let offered = link.offered as usize;
            if self.advance(app, io, conn, offered) || io.slots.live_mut(conn).is_none() {
                self.close_step(conn);
            } else {
                self.fire(app, io, conn);
            }
        }
        fired.append(&mut self.fired);
        self.fired = fired;
    }

    /// Marks bytes as sent. Returns whether that was all, in which case the chain is returned.
    fn advance<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, conn: ConnId, bytes: usize) -> bool {
        let Some(Some(link)) = self.links.get_mut(conn.index()) else { return true };
        let bytes = bytes.min(link.offered as usize);
        let Some(chain) = link.chain.as_deref_mut().and_then(Option::as_mut) else { return true };
        chain.advance(bytes);
        io.stats.sent_bytes.add(bytes as u64);
        if chain.is_empty() {
            self.return_chain(app, io, conn, true);
            return true;
        }
        if bytes > 0 {
            app.progressed(io, conn, bytes);
        }
        false
    }

    pub(super) fn return_chain<A: App<Chain = C>>(
        &mut self,
        app: &mut A,
        io: &mut Io,
        conn: ConnId,
        complete: bool,
    ) {
        let Some(Some(link)) = self.links.get_mut(conn.index()) else { return };
        let Some(mut spare_box) = link.chain.take() else { return };
        if let Some(chain) = spare_box.take() {
            app.finish_send(io, conn, chain, complete);
        }
        if self.spare_boxes.len() < SPARE_BOXES_MAX {
            self.spare_boxes.push(spare_box);
        }
        if complete {
            io.send_finished(conn);
        }
    }

    /// Shuts down the sending side if requested, after all bytes are sent.
    fn shutdown_if_requested(&mut self, io: &mut Io, conn: ConnId) {
        let Some(slot) = io.slots.live_mut(conn) else { return };
        if slot.sending != WriteState::Closing {
            return;
        }
        slot.sending = WriteState::Shut;
        if slot.receiving == ReadState::Ended {
            // Closing informs the peer as well.
            return io.close_if_finished(conn);
        }
        if let Some(link) = self.link(io, conn) {
            link.shutdown = ShutdownProgress::InFlight;
            let file = link.file;
            self.kernel.shutdown(Token::new(OpKind::Shutdown, conn), file);
        }
    }

    pub(super) fn shut_down(&mut self, io: &mut Io, completion: &Completion) {
        let Some((conn, link)) = self.owner(io, completion.token) else { return };
        link.shutdown = ShutdownProgress::Idle;
        match completion.outcome() {
            Ok(_) => io.close_if_finished(conn),
            Err(error) => io.close_for(conn, || error.into()),
        }
        self.close_step(conn);
    }
}

/// The result of offering a chain.
pub(super) enum OfferResult {
    Submitted {
        /// Whether the rest of the chain was offered.
        whole: bool,
    },
    /// No byte is left.
    Empty,
    NotSubmitted,
}

/// Whether the kernel's buffer was full, or the call was interrupted.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        || error.raw_os_error() == Some(libc::ECANCELED)
}

/// Maximum bytes whose submission waits for the end of the turn: more than a turn's chunks of 16 KiB have, since
/// further system calls cost more than the memory of all replies. Small in the model tests, whose chains are
/// short.
const UNSUBMITTED_MAX: usize = if cfg!(test) { 200 } else { 1 << 20 };

/// Maximum operations whose submission waits for the end of the turn: half the submission queue.
const OPERATIONS_MAX: u64 = 512;

/// Maximum fired chains that may wait for the next event. It bounds the memory that an idle loop retains
/// for the last burst. Beyond it a turn makes one more system call, which costs little compared to so many
/// sends.
const FIRED_MAX: usize = 256;

/// Maximum wait for fired chains: an idle loop returns the memory of its last burst after that.
pub(super) const FIRED_WAIT: Duration = Duration::from_secs(1);

/// Maximum spare boxes for chains: enough for a turn.
const SPARE_BOXES_MAX: usize = 1024;
