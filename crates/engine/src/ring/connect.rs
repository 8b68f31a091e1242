//! Connecting: a socket is created, moved into the ring's file table, and connected there. It needs a
//! descriptor only briefly, so the descriptor limit does not limit connections.

#![allow(unsafe_code)]

use std::io;

use super::accept::TABLE_FULL;
use super::kernel::{Completion, RingKernel};
use super::outgoing::OutgoingSocket;
use super::state::{CloseProgress, ReceiveProgress, Ring, RingLink};
use super::token::{OpKind, Token};
use crate::connect::{CONNECTS_PER_TURN, ConnectRequest};
use crate::{App, ConnId, Io, SendChain};

impl<C: SendChain, K: RingKernel> Ring<C, K> {
    /// Starts requested connections, up to the limit of a turn.
    pub(super) fn connect_listed(&mut self, io: &mut Io) {
        for _ in 0..CONNECTS_PER_TURN {
            let Some(connect) = io.connects.pop_front() else { return };
            let conn = connect.conn;
            if io.slots.live_mut(conn).is_none() {
                continue;
            }
            if let Err(error) = self.install(&connect) {
                io.close_for(conn, || error.into());
            }
        }
    }

    /// Creates a socket and submits its move into the table.
    fn install(&mut self, connect: &ConnectRequest) -> io::Result<()> {
        let mut outgoing = Box::new(OutgoingSocket::new(connect)?);
        if !self.acceptors.take_file() {
            return Err(explain_full_table(io::Error::from_raw_os_error(libc::ENFILE)));
        }
        let mut link = RingLink::new(u32::MAX);
        link.receive = ReceiveProgress::Installing;
        if !self.insert_link(connect.conn, link) {
            self.acceptors.file_closed();
            return Err(io::Error::other(
                "an operation of the slot's previous connection is still in flight",
            ));
        }
        // SAFETY: it lies in a box that `outgoing` holds. It is touched again only in `installed`, which is
        // reached by this operation's completion. If the backend is dropped before, `Drop` waits for the
        // kernel or leaks the box.
        unsafe { self.kernel.install(Token::new(OpKind::Install, connect.conn), &mut outgoing) };
        self.outgoing.insert(connect.conn.index(), outgoing);
        Ok(())
    }

    /// Completes the move: the socket is in the table, or the table is full.
    pub(super) fn installed<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, completion: &Completion) {
        let Some((conn, link)) = self.owner(io, completion.token) else { return };
        if link.receive != ReceiveProgress::Installing {
            return;
        }
        link.receive = ReceiveProgress::Idle;
        let Some(mut outgoing) = self.outgoing.remove(&conn.index()) else { return };
        outgoing.close_descriptor();
        if let Err(error) = completion.outcome() {
            return self.not_installed(app, io, conn, error);
        }
        let Some(Some(link)) = self.links.get_mut(conn.index()) else { return };
        link.file = outgoing.slot();
        if link.close != CloseProgress::No {
            return self.close_step(conn);
        }
        link.receive = ReceiveProgress::Connecting;
        // SAFETY: as in `connect_listed`; the completion reaches `connected`.
        unsafe { self.kernel.connect(Token::new(OpKind::Connect, conn), link.file, &outgoing) };
        self.outgoing.insert(conn.index(), outgoing);
    }

    /// Fails a connection whose socket is not in the table, so the kernel has none to close.
    fn not_installed<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, conn: ConnId, error: io::Error) {
        self.acceptors.file_closed();
        self.links.get_mut(conn.index()).and_then(Option::take);
        match self.reasons.remove(&conn.index()) {
            Some(reason) => {
                io.remove(conn);
                app.closed(io, conn, reason);
            }
            None => io.close_for(conn, || explain_full_table(error).into()),
        }
    }

    pub(super) fn connected<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, completion: &Completion) {
        let Some((conn, link)) = self.owner(io, completion.token) else { return };
        if !matches!(link.receive, ReceiveProgress::Connecting | ReceiveProgress::Cancelled) {
            return;
        }
        link.receive = ReceiveProgress::Idle;
        let closing = link.close != CloseProgress::No;
        if self.outgoing.remove(&conn.index()).is_none() {
            return;
        }
        match completion.outcome() {
            _ if closing => self.close_step(conn),
            Err(error) => io.close_for(conn, || error.into()),
            Ok(_) if io.slots.live_mut(conn).is_none() => {}
            Ok(_) => {
                io.connected(conn);
                self.unarmed.push(conn);
                app.connected(io, conn);
            }
        }
    }
}

/// The kernel reports a full table as a system-wide shortage.
fn explain_full_table(error: io::Error) -> io::Error {
    if error.raw_os_error() == Some(libc::ENFILE) {
        return io::Error::other(format!("the ring's file table is full: {TABLE_FULL}"));
    }
    error
}
