//! Sending: fired first; a waiting send follows only if the kernel's buffer was full.

#![allow(unsafe_code)]

use std::io;
use std::time::Duration;

use super::kernel::{Completion, Kernel, Wait};
use super::token::{Kind, Token};
use super::{Close, Ring, Send, Shutdown};
use crate::slots::{Receiving, Sending, Slot};
use crate::{App, Chain, ConnId, Io};

/// A send that completes as soon as the kernel has taken this many operations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fired {
    number: u64,
    conn: ConnId,
}

impl<C: Chain, K: Kernel> Ring<C, K> {
    /// Asks the application for all queued bytes, and sends them.
    pub(super) fn start_send<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, conn: ConnId) {
        let Some(slot) = io.slots.live_mut(conn) else { return };
        slot.send_listed = false;
        slot.send_wanted = false;
        // The kernel reads from the chain in flight, regardless of the slot.
        let Some(Some(link)) = self.links.get(conn.index()) else { return };
        if link.send != Send::Home || link.chain.is_some() {
            return;
        }
        let Some(chain) = app.start_send(conn) else { return self.shutdown_if_asked(io, conn) };
        slot.in_flight = true;
        let mut berth = self.berths.pop().unwrap_or_default();
        *berth = Some(chain);
        if let Some(link) = self.link(io, conn) {
            link.chain = Some(berth);
            self.fire(app, io, conn);
        }
        if self.unsubmitted > UNSUBMITTED_MAX {
            self.submit_early(app, io);
        }
    }

    /// Submits queued sends, and completes the taken ones. At the end of the turn their data would have
    /// left the cache, and so would the memory that could be reused.
    fn submit_early<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io) {
        self.unsubmitted = 0;
        let before = self.completed.len();
        // The next wait reports an error again; until then a missing completion proves no success.
        let submitted = self.kernel.submit(&mut self.completed).is_ok();
        for completion in self.completed.split_off(before) {
            match completion.token.kind() {
                Some(Kind::Fire | Kind::Send) => self.sent(app, io, &completion),
                _ => self.completed.push(completion),
            }
        }
        if submitted {
            self.finish_fired(app, io);
        }
    }

    /// Offers the chain in flight to the kernel, which reports only if it does not take all bytes.
    fn fire<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, conn: ConnId) {
        match self.send(io, conn, Kind::Fire) {
            Offer::Made { whole } => {
                self.fired.push(Fired { number: self.kernel.queued(), conn });
                // Bytes that were not offered cannot be sent before the rest completes.
                self.hurried |= !whole;
            }
            Offer::Empty => self.chain_home(app, io, conn, true),
            Offer::Refused => {}
        }
    }

    /// Whether a fired chain must complete before the loop sleeps. Commands that depend on it may have
    /// arrived after the send: from a woken handler, from mail, or from another connection. So all fired
    /// chains are checked here, once a turn, instead of tracking them.
    pub(super) fn calls_home<A: App<Chain = C>>(&self, app: &A, io: &Io) -> bool {
        let hangs_on = |fired: &Fired| {
            io.slots.get(fired.conn).is_none_or(Slot::waits_for_send) || !app.finish_may_wait(fired.conn)
        };
        match self.fired.len() {
            0 => false,
            out => self.hurried || out > FIRED_MAX || self.fired.iter().any(hangs_on),
        }
    }

    /// Offers the rest of the chain in flight.
    fn send(&mut self, io: &mut Io, conn: ConnId, kind: Kind) -> Offer {
        let Some(Some(link)) = self.links.get_mut(conn.index()) else { return Offer::Refused };
        let Some(chain) = link.chain.as_deref().and_then(Option::as_ref) else { return Offer::Refused };
        if chain.is_empty() {
            return Offer::Empty;
        }
        let (token, wait) = (Token::of(kind, conn), if kind == Kind::Fire { Wait::No } else { Wait::Yes });
        // SAFETY: the chain lies in a box of its own, which `link.chain` holds. It is touched again only in
        // `advance` and `chain_home`, which are reached by a completion of this operation, by
        // `finish_fired` after the kernel has taken it in silence, or by `closed`, which comes after that.
        // If the backend is dropped before, `Drop` waits for the kernel or leaks the box.
        let offered = unsafe { self.kernel.send(token, link.file, chain, wait) };
        if offered == 0 {
            // A chain that has a length and yields no bytes would wait forever.
            io.close_for(conn, || {
                io::Error::new(io::ErrorKind::WriteZero, "chain with unsent bytes returned no slices").into()
            });
            return Offer::Refused;
        }
        io.stats.sends.add(1);
        self.unsubmitted += offered as usize;
        link.offered = offered;
        link.send = if wait == Wait::No { Send::Fired } else { Send::Waiting };
        Offer::Made { whole: offered as usize == chain.len() }
    }

    /// Handles the completion of a send: it was short, it failed, or it waited and completed.
    pub(super) fn sent<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, completion: &Completion) {
        let Some((conn, link)) = self.owner(io, completion.token) else { return };
        let expected = match link.send {
            Send::Home => return,
            Send::Fired => Kind::Fire,
            Send::Waiting => Kind::Send,
        };
        if completion.token.kind() != Some(expected) {
            return;
        }
        link.send = Send::Home;
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
        if link.close != Close::No {
            self.close_step(conn);
        } else if io.slots.live_mut(conn).is_some() {
            self.send(io, conn, Kind::Send);
        }
    }

    /// Completes the fired sends that the kernel has taken without a completion.
    pub(super) fn finish_fired<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io) {
        let consumed = self.kernel.consumed();
        let count = self.fired.partition_point(|fired| fired.number <= consumed);
        // Connections may wait for the remaining fired sends; they are not tracked.
        self.hurried = count < self.fired.len();
        if count == 0 {
            return;
        }
        let mut fired = std::mem::take(&mut self.fired);
        for Fired { conn, .. } in fired.drain(..count) {
            let Some(link) = self.link(io, conn).filter(|link| link.send == Send::Fired) else { continue };
            link.send = Send::Home;
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
            self.chain_home(app, io, conn, true);
            return true;
        }
        if bytes > 0 {
            app.progressed(io, conn, bytes);
        }
        false
    }

    pub(super) fn chain_home<A: App<Chain = C>>(
        &mut self,
        app: &mut A,
        io: &mut Io,
        conn: ConnId,
        complete: bool,
    ) {
        let Some(Some(link)) = self.links.get_mut(conn.index()) else { return };
        let Some(mut berth) = link.chain.take() else { return };
        if let Some(chain) = berth.take() {
            app.finish_send(io, conn, chain, complete);
        }
        if self.berths.len() < BERTHS_MAX {
            self.berths.push(berth);
        }
        if complete {
            io.send_finished(conn);
        }
    }

    /// Shuts down the sending side if requested, after all bytes are sent.
    fn shutdown_if_asked(&mut self, io: &mut Io, conn: ConnId) {
        let Some(slot) = io.slots.live_mut(conn) else { return };
        if slot.sending != Sending::Closing {
            return;
        }
        slot.sending = Sending::Shut;
        if slot.receiving == Receiving::Ended {
            // Closing informs the peer as well.
            return io.close_if_finished(conn);
        }
        if let Some(link) = self.link(io, conn) {
            link.shutdown = Shutdown::InFlight;
            let file = link.file;
            self.kernel.shutdown(Token::of(Kind::Shutdown, conn), file);
        }
    }

    pub(super) fn shut_down(&mut self, io: &mut Io, completion: &Completion) {
        let Some((conn, link)) = self.owner(io, completion.token) else { return };
        link.shutdown = Shutdown::Home;
        match completion.outcome() {
            Ok(_) => io.close_if_finished(conn),
            Err(error) => io.close_for(conn, || error.into()),
        }
        self.close_step(conn);
    }
}

/// The result of offering a chain.
enum Offer {
    Made {
        /// Whether the rest of the chain was offered.
        whole: bool,
    },
    /// No byte is left.
    Empty,
    Refused,
}

/// Whether the kernel's buffer was full, or the call was interrupted.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        || error.raw_os_error() == Some(libc::ECANCELED)
}

/// Maximum bytes whose submission waits for the end of the turn. Small in the model tests, whose chains are
/// short.
const UNSUBMITTED_MAX: usize = if cfg!(test) { 200 } else { 64 << 10 };

/// Maximum fired chains that may wait for the next event. It bounds the memory that an idle loop retains
/// for the last burst. Beyond it a turn makes one more system call, which costs little compared to so many
/// sends.
const FIRED_MAX: usize = 256;

/// Maximum wait of fired chains: an idle loop returns the memory of its last burst after that.
pub(super) const FIRED_WAIT: Duration = Duration::from_secs(1);

/// Maximum spare boxes for chains: enough for a turn.
const BERTHS_MAX: usize = 1024;
