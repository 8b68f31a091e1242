//! Connecting, which completes when the socket is writable.

use std::io;

use mio::net::TcpStream;

use super::{Poll, PollLink};
use crate::connect::{CONNECTS_PER_TURN, ConnectRequest};
use crate::{App, ConnId, Io, SendChain};

impl<C: SendChain> Poll<C> {
    /// Starts requested connections, up to the limit of a turn.
    pub(super) fn connect_listed(&mut self, io: &mut Io) {
        for _ in 0..CONNECTS_PER_TURN {
            let Some(connect) = io.connects.pop_front() else { return };
            if io.slots.live_mut(connect.conn).is_some()
                && let Err(error) = self.connect(&connect)
            {
                io.close_for(connect.conn, || error.into());
            }
        }
    }

    fn connect(&mut self, connect: &ConnectRequest) -> io::Result<()> {
        let (socket, address) = connect.socket()?;
        socket.set_nonblocking(true)?;
        match socket.connect(&address) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            result => result?,
        }
        let mut link = PollLink::new(TcpStream::from_std(socket.into()));
        link.connecting = true;
        self.register(connect.conn, link)
    }

    pub(super) fn report_connected<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io) {
        for index in 0..self.connected.len() {
            self.connected(app, io, self.connected[index]);
        }
        self.connected.clear();
    }

    fn connected<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, conn: ConnId) {
        if io.slots.live_mut(conn).is_none() {
            return;
        }
        let Some(link) = self.link(io, conn).filter(|link| link.connecting) else { return };
        match link.stream.take_error() {
            Ok(None) => {}
            Ok(Some(error)) | Err(error) => return io.close_for(conn, || error.into()),
        }
        // An event may be spurious. (A connection by path has no such address.)
        if link.stream.peer_addr().is_err_and(|error| error.kind() == io::ErrorKind::NotConnected) {
            return;
        }
        link.connecting = false;
        io.connected(conn);
        app.connected(io, conn);
        self.queue_if_readable(io, conn);
    }
}
