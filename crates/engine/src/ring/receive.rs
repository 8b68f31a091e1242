//! Receiving: one persistent operation per connection, until the peer ends, the application pauses, or the
//! kernel runs out of buffers.

use super::kernel::{Completion, RingKernel};
use super::state::{CloseProgress, ReceiveEnd, ReceiveProgress, Ring};
use super::token::{OpKind, Token};
use crate::slots::{ReadState, WriteState};
use crate::{App, CloseReason, ConnId, Flow, Io, SendChain};

impl<C: SendChain, K: RingKernel> Ring<C, K> {
    pub(super) fn received<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, completion: &Completion) {
        if let Some((conn, link)) = self.owner(io, completion.token) {
            if !completion.more {
                link.receive = ReceiveProgress::Idle;
            }
            if link.close == CloseProgress::No {
                self.handle_receive(app, io, conn, completion);
            } else {
                self.close_step(conn);
            }
        }
        self.kernel.release(completion);
    }

    fn handle_receive<A: App<Chain = C>>(
        &mut self,
        app: &mut A,
        io: &mut Io,
        conn: ConnId,
        completion: &Completion,
    ) {
        match completion.outcome() {
            Ok(0) => self.ended(app, io, conn, ReceiveEnd::Peer),
            Ok(bytes) => {
                io.stats.receives.add(1);
                io.stats.received_bytes.add(bytes as u64);
                self.deliver_or_defer(app, io, conn, completion);
                if !completion.more {
                    self.unarmed.push(conn);
                }
            }
            // By the end of the turn buffers are free again. Connections that found none are armed first,
            // or one peer that sends at full speed would take the buffers every time.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                let turn = io.stats.turns.get() as u32;
                let has_received = self.link(io, conn).is_some_and(|link| link.last_receive_turn == turn);
                if has_received { self.unarmed.push(conn) } else { self.starved.push(conn) }
            }
            Err(error) if is_transient_error(&error) => self.unarmed.push(conn),
            Err(error) => self.ended(app, io, conn, ReceiveEnd::Failed(error.into())),
        }
    }

    /// Delivers the chunk, or defers it.
    fn deliver_or_defer<A: App<Chain = C>>(
        &mut self,
        app: &mut A,
        io: &mut Io,
        conn: ConnId,
        completion: &Completion,
    ) {
        let Some(Some(link)) = self.links.get_mut(conn.index()) else { return };
        link.last_receive_turn = io.stats.turns.get() as u32;
        let chunk = self.kernel.chunk(completion);
        let chunk_len = chunk.len();
        if io.slots.live_mut(conn).is_none() || chunk.is_empty() {
            return;
        }
        if !io.receives(conn) || link.deferred.is_some() {
            link.deferred.get_or_insert_default().bytes.extend_from_slice(chunk);
        } else if app.received(io, conn, chunk) == Flow::Pause {
            io.pause(conn);
        }
        // Large messages arrive chunk by chunk, so that the rest can be received into the application's
        // buffer.
        link.bulk = chunk_len >= BULK_MIN && (link.bulk || app.awaits_large(conn));
        if (!io.receives(conn) || link.bulk) && link.receive == ReceiveProgress::Armed {
            link.receive = ReceiveProgress::Cancelled;
            self.kernel.cancel(completion.token);
        }
    }

    pub(super) fn ended<A: App<Chain = C>>(
        &mut self,
        app: &mut A,
        io: &mut Io,
        conn: ConnId,
        end: ReceiveEnd,
    ) {
        io.stats.receives.add(1);
        let paused = io.slots.live_mut(conn).is_some() && !io.receives(conn);
        match self.link(io, conn) {
            Some(link) if paused || link.deferred.is_some() => {
                link.deferred.get_or_insert_default().end = Some(end)
            }
            _ => self.report_end(app, io, conn, end),
        }
    }

    fn report_end<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, conn: ConnId, end: ReceiveEnd) {
        match end {
            ReceiveEnd::Peer if io.receives(conn) => {
                io.receive_ended(conn);
                app.ended(io, conn);
                io.close_if_finished(conn);
                self.unarmed.push(conn);
            }
            ReceiveEnd::Peer => {}
            ReceiveEnd::Failed(reason) => io.close_for(conn, || reason),
        }
    }

    pub(super) fn resume<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, conn: ConnId) {
        let Some(slot) = io.slots.live_mut(conn) else { return };
        slot.resume_listed = false;
        match self.link(io, conn) {
            Some(link) if link.deferred.is_some() => self.readable.push(conn),
            _ => self.arm(app, io, conn),
        }
    }

    /// Arms the receive unless the connection is paused or closing. If no receive and no send is in flight,
    /// a reset would go unnoticed, so a poll for it is submitted.
    fn arm<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, conn: ConnId) {
        let ended = io.slots.get(conn).is_some_and(|slot| {
            slot.receiving == ReadState::Ended && slot.sending == WriteState::Open && !slot.closing
        });
        if !ended && !io.receives(conn) {
            return;
        }
        let Some(Some(link)) = self.links.get_mut(conn.index()) else { return };
        if link.receive != ReceiveProgress::Idle || link.deferred.is_some() {
            return;
        }
        if ended {
            link.receive = ReceiveProgress::Watching;
            self.kernel.watch(Token::new(OpKind::Watch, conn), link.file);
        } else if link.bulk && self.arm_large(app, io, conn) {
            // It is in flight.
        } else if io.receives(conn)
            && let Some(link) = self.link(io, conn)
        {
            link.large = None;
            link.receive = ReceiveProgress::Armed;
            let (file, multishot) = (link.file, !link.bulk);
            self.kernel.receive(Token::new(OpKind::Receive, conn), file, multishot);
        }
    }

    /// Handles an event of a socket after its peer's end.
    pub(super) fn handle_watch_event(&mut self, io: &mut Io, completion: &Completion) {
        let Some((conn, link)) = self.owner(io, completion.token) else { return };
        if !completion.more {
            link.receive = ReceiveProgress::Idle;
        }
        if link.close != CloseProgress::No {
            return self.close_step(conn);
        }
        match completion.outcome() {
            Ok(events) if events & FAILED != 0 => io.close_for(conn, || CloseReason::Reset),
            Err(error) if !is_transient_error(&error) => io.close_for(conn, || error.into()),
            _ if !completion.more => self.unarmed.push(conn),
            _ => {}
        }
    }

    pub(super) fn arm_listed<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io) {
        for index in 0..self.starved.len() {
            self.arm(app, io, self.starved[index]);
        }
        self.starved.clear();
        for index in 0..self.unarmed.len() {
            self.arm(app, io, self.unarmed[index]);
        }
        self.unarmed.clear();
    }

    /// Delivers deferred input to resumed connections.
    pub(super) fn deliver_deferred<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io) {
        for index in 0..self.readable.len() {
            let conn = self.readable[index];
            let Some(mut deferred) = self.link(io, conn).and_then(|link| link.deferred.take()) else {
                continue;
            };
            while io.receives(conn) && deferred.handled < deferred.bytes.len() {
                let to = deferred.bytes.len().min(deferred.handled + self.piece);
                let piece = &mut deferred.bytes[deferred.handled..to];
                deferred.handled = to;
                if app.received(io, conn, piece) == Flow::Pause {
                    io.pause(conn);
                }
            }
            if let Some((buffer, received)) = deferred.large.take_if(|_| io.receives(conn))
                && app.received_large(io, conn, buffer, received) == Flow::Pause
            {
                io.pause(conn);
            }
            match deferred.end.take_if(|_| io.receives(conn)) {
                Some(end) => self.report_end(app, io, conn, end),
                None if io.receives(conn) => self.unarmed.push(conn),
                None => {
                    if let Some(link) = self.link(io, conn) {
                        link.deferred = Some(deferred);
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
pub(super) fn is_transient_error(error: &std::io::Error) -> bool {
    let passing = [libc::ECANCELED, libc::EINTR, libc::EAGAIN];
    error.raw_os_error().is_some_and(|code| passing.contains(&code))
}
