//! Receiving: one operation for each connection that stays until the peer ends, the application pauses, or
//! the kernel runs out of buffers.

use super::kernel::{Completion, Kernel};
use super::token::{Kind, Token};
use super::{Close, Receive, Ring};
use crate::{App, Chain, Closed, ConnId, Flow, Io};

/// What came after the application asked for a pause and before the kernel heard of it. It is copied, for a
/// buffer that a paused connection kept would be missing to all others.
#[derive(Debug, Default)]
pub(super) struct Held {
    bytes: Vec<u8>,
    /// Bytes at the front that the application has had.
    handled: usize,
    end: Option<End>,
}

#[derive(Debug)]
enum End {
    Peer,
    Failed(Closed),
}

impl<C: Chain, K: Kernel> Ring<C, K> {
    pub(super) fn received<A: App<Chain = C>>(
        &mut self,
        app: &mut A,
        io: &mut Io,
        completion: &Completion,
    ) {
        if let Some((conn, link)) = self.owner(io, completion.token) {
            if !completion.more {
                link.receive = Receive::Home;
            }
            if matches!(link.close, Close::No) {
                self.take_in(app, io, conn, completion);
            } else {
                self.close_step(conn);
            }
        }
        self.kernel.release(completion);
    }

    fn take_in<A: App<Chain = C>>(
        &mut self,
        app: &mut A,
        io: &mut Io,
        conn: ConnId,
        completion: &Completion,
    ) {
        match completion.outcome() {
            Ok(0) => self.ended(app, io, conn, End::Peer),
            Ok(bytes) => {
                io.stats.receives += 1;
                io.stats.received_bytes += bytes as u64;
                self.hand_over(app, io, conn, completion);
                if !completion.more {
                    self.unarmed.push(conn);
                }
            }
            // No buffer was free, or the kernel lost patience: by the end of the turn there are some.
            Err(error) if is_passing(&error) => self.unarmed.push(conn),
            Err(error) => self.ended(app, io, conn, End::Failed(error.into())),
        }
    }

    /// Lends the chunk, or keeps it for later.
    fn hand_over<A: App<Chain = C>>(
        &mut self,
        app: &mut A,
        io: &mut Io,
        conn: ConnId,
        completion: &Completion,
    ) {
        let Some(Some(link)) = self.links.get_mut(conn.index()) else { return };
        let chunk = self.kernel.chunk(completion);
        if io.slots.live_mut(conn).is_none() || chunk.is_empty() {
            return;
        }
        if !io.receives(conn) || link.held.is_some() {
            link.held.get_or_insert_default().bytes.extend_from_slice(chunk);
        } else if app.received(io, conn, chunk) == Flow::Pause {
            io.pause(conn);
        }
        if !io.receives(conn) && link.receive == Receive::Armed {
            link.receive = Receive::Cancelled;
            self.kernel.cancel(completion.token);
        }
    }

    fn ended<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, conn: ConnId, end: End) {
        io.stats.receives += 1;
        let paused = io.slots.live_mut(conn).is_some() && !io.receives(conn);
        match self.link(io, conn) {
            Some(link) if paused || link.held.is_some() => link.held.get_or_insert_default().end = Some(end),
            _ => Self::tell_end(app, io, conn, end),
        }
    }

    fn tell_end<A: App<Chain = C>>(app: &mut A, io: &mut Io, conn: ConnId, end: End) {
        match end {
            End::Peer if io.receives(conn) => {
                io.receive_ended(conn);
                app.ended(io, conn);
                io.close_if_finished(conn);
            }
            End::Peer => {}
            End::Failed(why) => io.close_for(conn, || why),
        }
    }

    pub(super) fn resume(&mut self, io: &mut Io, conn: ConnId) {
        let Some(slot) = io.slots.live_mut(conn) else { return };
        slot.resume_listed = false;
        match self.link(io, conn) {
            Some(link) if link.held.is_some() => self.readable.push(conn),
            _ => self.arm(io, conn),
        }
    }

    /// Receives again, unless there is a reason not to.
    pub(super) fn arm(&mut self, io: &Io, conn: ConnId) {
        if !io.receives(conn) {
            return;
        }
        let Some(link) = self.link(io, conn) else { return };
        if link.receive == Receive::Home && link.held.is_none() {
            link.receive = Receive::Armed;
            let file = link.file;
            self.kernel.receive(Token::of(Kind::Receive, conn), file);
        }
    }

    /// Hands over what was held for those that receive again.
    pub(super) fn deliver_held<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io) {
        for place in 0..self.readable.len() {
            let conn = self.readable[place];
            let Some(mut held) = self.link(io, conn).and_then(|link| link.held.take()) else { continue };
            while io.receives(conn) && held.handled < held.bytes.len() {
                let to = held.bytes.len().min(held.handled + HELD_PIECE);
                let piece = &mut held.bytes[held.handled..to];
                held.handled = to;
                if app.received(io, conn, piece) == Flow::Pause {
                    io.pause(conn);
                }
            }
            match held.end.take_if(|_| io.receives(conn)) {
                Some(end) => Self::tell_end(app, io, conn, end),
                None if io.receives(conn) => self.unarmed.push(conn),
                None => {
                    if let Some(link) = self.link(io, conn) {
                        link.held = Some(held);
                    }
                }
            }
        }
        self.readable.clear();
    }
}

/// Whether receiving goes on after this error.
fn is_passing(error: &std::io::Error) -> bool {
    let passing = [libc::ENOBUFS, libc::ECANCELED, libc::EINTR, libc::EAGAIN];
    error.raw_os_error().is_some_and(|code| passing.contains(&code))
}

/// Bytes handed over at once of what was held: as a receive brings them.
const HELD_PIECE: usize = 64 * 1024;
