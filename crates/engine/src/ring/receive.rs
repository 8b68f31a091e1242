//! Receiving: one persistent operation per connection, until the peer ends, the application pauses, or the
//! kernel runs out of buffers.

use super::kernel::{Completion, Kernel};
use super::token::{Kind, Token};
use super::{Close, Receive, Ring};
use crate::slots::{Receiving, Sending};
use crate::{App, Chain, Closed, ConnId, Flow, Io};

/// Input received between the application's pause and its effect in the kernel. It is copied, since a
/// buffer retained by a paused connection would be unavailable to all other connections.
#[derive(Debug, Default)]
pub(super) struct Held {
    bytes: Vec<u8>,
    /// Bytes at the front that the application has handled.
    handled: usize,
    /// A buffer of the application, and the number of bytes received into it.
    pub(super) large: Option<(Vec<u8>, usize)>,
    end: Option<End>,
}

#[derive(Debug)]
pub(super) enum End {
    Peer,
    Failed(Closed),
}

impl<C: Chain, K: Kernel> Ring<C, K> {
    pub(super) fn received<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, completion: &Completion) {
        if let Some((conn, link)) = self.owner(io, completion.token) {
            if !completion.more {
                link.receive = Receive::Home;
            }
            if link.close == Close::No {
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
                io.stats.receives.add(1);
                io.stats.received_bytes.add(bytes as u64);
                self.hand_over(app, io, conn, completion);
                if !completion.more {
                    self.unarmed.push(conn);
                }
            }
            // By the end of the turn buffers are free again. Connections that found none are armed first,
            // or one peer that sends at full speed would take the buffers every time.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                let turn = io.stats.turns.get() as u32;
                let fed = self.link(io, conn).is_some_and(|link| link.fed == turn);
                if fed { self.unarmed.push(conn) } else { self.starved.push(conn) }
            }
            Err(error) if is_passing(&error) => self.unarmed.push(conn),
            Err(error) => self.ended(app, io, conn, End::Failed(error.into())),
        }
    }

    /// Delivers the chunk, or defers it.
    fn hand_over<A: App<Chain = C>>(
        &mut self,
        app: &mut A,
        io: &mut Io,
        conn: ConnId,
        completion: &Completion,
    ) {
        let Some(Some(link)) = self.links.get_mut(conn.index()) else { return };
        link.fed = io.stats.turns.get() as u32;
        let chunk = self.kernel.chunk(completion);
        let chunk_len = chunk.len();
        if io.slots.live_mut(conn).is_none() || chunk.is_empty() {
            return;
        }
        if !io.receives(conn) || link.held.is_some() {
            link.held.get_or_insert_default().bytes.extend_from_slice(chunk);
        } else if app.received(io, conn, chunk) == Flow::Pause {
            io.pause(conn);
        }
        // Large messages arrive chunk by chunk, so that the rest can be received into the application's
        // buffer.
        link.bulk = chunk_len >= BULK_MIN && (link.bulk || app.awaits_large(conn));
        if (!io.receives(conn) || link.bulk) && link.receive == Receive::Armed {
            link.receive = Receive::Cancelled;
            self.kernel.cancel(completion.token);
        }
    }

    pub(super) fn ended<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, conn: ConnId, end: End) {
        io.stats.receives.add(1);
        let paused = io.slots.live_mut(conn).is_some() && !io.receives(conn);
        match self.link(io, conn) {
            Some(link) if paused || link.held.is_some() => link.held.get_or_insert_default().end = Some(end),
            _ => self.tell_end(app, io, conn, end),
        }
    }

    fn tell_end<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, conn: ConnId, end: End) {
        match end {
            End::Peer if io.receives(conn) => {
                io.receive_ended(conn);
                app.ended(io, conn);
                io.close_if_finished(conn);
                self.unarmed.push(conn);
            }
            End::Peer => {}
            End::Failed(why) => io.close_for(conn, || why),
        }
    }

    pub(super) fn resume<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, conn: ConnId) {
        let Some(slot) = io.slots.live_mut(conn) else { return };
        slot.resume_listed = false;
        match self.link(io, conn) {
            Some(link) if link.held.is_some() => self.readable.push(conn),
            _ => self.arm(app, io, conn),
        }
    }

    /// Arms the receive unless the connection is paused or closing. If no receive and no send is in flight,
    /// a reset would go unnoticed, so a poll for it is submitted.
    fn arm<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, conn: ConnId) {
        let ended = io.slots.get(conn).is_some_and(|slot| {
            slot.receiving == Receiving::Ended && slot.sending == Sending::Open && !slot.closing
        });
        if !ended && !io.receives(conn) {
            return;
        }
        let Some(Some(link)) = self.links.get_mut(conn.index()) else { return };
        if link.receive != Receive::Home || link.held.is_some() {
            return;
        }
        if ended {
            link.receive = Receive::Watching;
            self.kernel.watch(Token::of(Kind::Watch, conn), link.file);
        } else if link.bulk && self.arm_large(app, io, conn) {
            // It is in flight.
        } else if io.receives(conn)
            && let Some(link) = self.link(io, conn)
        {
            link.large = None;
            link.receive = Receive::Armed;
            let (file, multishot) = (link.file, !link.bulk);
            self.kernel.receive(Token::of(Kind::Receive, conn), file, multishot);
        }
    }

    /// Handles an event of a socket after its peer's end.
    pub(super) fn watched(&mut self, io: &mut Io, completion: &Completion) {
        let Some((conn, link)) = self.owner(io, completion.token) else { return };
        if !completion.more {
            link.receive = Receive::Home;
        }
        if link.close != Close::No {
            return self.close_step(conn);
        }
        match completion.outcome() {
            Ok(events) if events & FAILED != 0 => io.close_for(conn, || Closed::Reset),
            Err(error) if !is_passing(&error) => io.close_for(conn, || error.into()),
            _ if !completion.more => self.unarmed.push(conn),
            _ => {}
        }
    }

    pub(super) fn arm_listed<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io) {
        for place in 0..self.starved.len() {
            self.arm(app, io, self.starved[place]);
        }
        self.starved.clear();
        for place in 0..self.unarmed.len() {
            self.arm(app, io, self.unarmed[place]);
        }
        self.unarmed.clear();
    }

    /// Delivers deferred input to resumed connections.
    pub(super) fn deliver_held<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io) {
        for place in 0..self.readable.len() {
            let conn = self.readable[place];
            let Some(mut held) = self.link(io, conn).and_then(|link| link.held.take()) else { continue };
            while io.receives(conn) && held.handled < held.bytes.len() {
                let to = held.bytes.len().min(held.handled + self.piece);
                let piece = &mut held.bytes[held.handled..to];
                held.handled = to;
                if app.received(io, conn, piece) == Flow::Pause {
                    io.pause(conn);
                }
            }
            if let Some((buffer, received)) = held.large.take_if(|_| io.receives(conn))
                && app.received_large(io, conn, buffer, received) == Flow::Pause
            {
                io.pause(conn);
            }
            match held.end.take_if(|_| io.receives(conn)) {
                Some(end) => self.tell_end(app, io, conn, end),
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

/// poll(2) events of a failed socket.
const FAILED: usize = (libc::POLLERR | libc::POLLHUP) as usize;

/// Smallest chunk after which `awaits_large` is called.
const BULK_MIN: usize = 16 << 10;

/// Whether receiving continues after this error.
pub(super) fn is_passing(error: &std::io::Error) -> bool {
    let passing = [libc::ECANCELED, libc::EINTR, libc::EAGAIN];
    error.raw_os_error().is_some_and(|code| passing.contains(&code))
}
