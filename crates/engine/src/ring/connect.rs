//! Connecting: a socket is created, moved into the ring's file table, and connected there. It needs a
//! descriptor only briefly, so the descriptor limit does not limit connections.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use socket2::{SockAddr, Socket};

use super::accept::TABLE_FULL;
use super::kernel::{Completion, Kernel};
use super::token::{Kind, Token};
use super::{Close, Link, Receive, Ring};
use crate::connect::{CONNECTS_PER_TURN, Connect};
use crate::{App, Chain, ConnId, Io};

/// A socket to be connected.
pub(crate) struct Outgoing {
    /// The descriptor to install; after completion its slot in the table, written by the kernel.
    descriptor: RawFd,
    /// Closed when it is in the table.
    socket: Option<Socket>,
    address: SockAddr,
}

impl Outgoing {
    fn new(connect: &Connect) -> io::Result<Self> {
        let (socket, address) = connect.socket()?;
        Ok(Self { descriptor: socket.as_raw_fd(), socket: Some(socket), address })
    }

    /// The address from which the kernel reads the descriptor and to which it writes the slot.
    pub(super) fn descriptor(&mut self) -> *mut RawFd {
        &raw mut self.descriptor
    }

    pub(super) fn address(&self) -> &SockAddr {
        &self.address
    }
}

impl<C: Chain, K: Kernel> Ring<C, K> {
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
    fn install(&mut self, connect: &Connect) -> io::Result<()> {
        let mut outgoing = Box::new(Outgoing::new(connect)?);
        if !self.acceptors.take_file() {
            return Err(explained(io::Error::from_raw_os_error(libc::ENFILE)));
        }
        let mut link = Link::new(u32::MAX);
        link.receive = Receive::Installing;
        if !self.place(connect.conn, link) {
            self.acceptors.file_closed();
            return Err(io::Error::other(
                "an operation of the slot's previous connection is still in flight",
            ));
        }
        // SAFETY: it lies in a box that `outgoing` holds. It is touched again only in `installed`, which is
        // reached by this operation's completion. If the backend is dropped before, `Drop` waits for the
        // kernel or leaks the box.
        unsafe { self.kernel.install(Token::of(Kind::Install, connect.conn), &mut outgoing) };
        self.outgoing.insert(connect.conn.index(), outgoing);
        Ok(())
    }

    /// Completes the move: the socket is in the table, or the table is full.
    pub(super) fn installed<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, completion: &Completion) {
        let Some((conn, link)) = self.owner(io, completion.token) else { return };
        if link.receive != Receive::Installing {
            return;
        }
        link.receive = Receive::Home;
        let Some(mut outgoing) = self.outgoing.remove(&conn.index()) else { return };
        outgoing.socket = None;
        if let Err(error) = completion.outcome() {
            return self.not_installed(app, io, conn, error);
        }
        let Some(Some(link)) = self.links.get_mut(conn.index()) else { return };
        link.file = outgoing.descriptor.cast_unsigned();
        if link.close != Close::No {
            return self.close_step(conn);
        }
        link.receive = Receive::Connecting;
        // SAFETY: as in `connect_listed`; the completion reaches `connected`.
        unsafe { self.kernel.connect(Token::of(Kind::Connect, conn), link.file, &outgoing) };
        self.outgoing.insert(conn.index(), outgoing);
    }

    /// Fails a connection whose socket is not in the table, so the kernel has none to close.
    fn not_installed<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, conn: ConnId, error: io::Error) {
        self.acceptors.file_closed();
        let link = self.links.get_mut(conn.index()).and_then(Option::take);
        match link.and_then(|link| link.why) {
            Some(why) => {
                io.remove(conn);
                app.closed(io, conn, *why);
            }
            None => io.close_for(conn, || explained(error).into()),
        }
    }

    pub(super) fn connected<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, completion: &Completion) {
        let Some((conn, link)) = self.owner(io, completion.token) else { return };
        if !matches!(link.receive, Receive::Connecting | Receive::Cancelled) {
            return;
        }
        link.receive = Receive::Home;
        let closing = link.close != Close::No;
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
fn explained(error: io::Error) -> io::Error {
    if error.raw_os_error() == Some(libc::ENFILE) {
        return io::Error::other(format!("the ring's file table is full: {TABLE_FULL}"));
    }
    error
}
