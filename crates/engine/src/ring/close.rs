//! Closing, in order: cancel operations in flight, wait for their completion, close the socket, report.

use super::kernel::{Completion, Kernel};
use super::token::{Kind, Token};
use super::{Close, Receive, Ring, Send, Shutdown};
use crate::{App, Chain, ConnId, Io};

impl<C: Chain, K: Kernel> Ring<C, K> {
    /// Starts to close all listed connections.
    pub(super) fn close_listed<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io) {
        while let Some((conn, why)) = io.closes.pop_front() {
            let Some(Some(link)) = self.links.get_mut(conn.index()) else {
                // An outgoing connection without a socket.
                io.remove(conn);
                app.closed(io, conn, why);
                continue;
            };
            link.close = Close::Wanted;
            link.why = Some(Box::new(why));
            link.held = None;
            let receive = match link.receive {
                Receive::Armed => Some(Kind::Receive),
                Receive::Large => Some(Kind::Large),
                Receive::Watching => Some(Kind::Watch),
                Receive::Connecting => Some(Kind::Connect),
                // An installation completes at once.
                Receive::Home | Receive::Cancelled | Receive::Installing => None,
            };
            if let Some(kind) = receive {
                link.receive = Receive::Cancelled;
                self.kernel.cancel(Token::of(kind, conn));
            }
            if link.send == Send::Waiting {
                self.kernel.cancel(Token::of(Kind::Send, conn));
            }
            self.close_step(conn);
        }
    }

    /// Closes the socket of a closing connection, if all operations have completed.
    pub(super) fn close_step(&mut self, conn: ConnId) {
        let Some(Some(link)) = self.links.get_mut(conn.index()) else { return };
        let home =
            link.receive == Receive::Home && link.send == Send::Home && link.shutdown == Shutdown::Home;
        if !home {
            return;
        }
        if link.close == Close::Wanted {
            link.close = Close::InFlight;
            self.kernel.close(Token::of(Kind::Close, conn), link.file);
        }
    }

    pub(super) fn closed<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, completion: &Completion) {
        let Some((conn, link)) = self.owner(io, completion.token) else { return };
        let Some(why) = link.why.take_if(|_| link.close == Close::InFlight) else { return };
        if let Err(error) = completion.outcome() {
            tracing::error!(%error, "cannot close a socket");
        }
        self.chain_home(app, io, conn, false);
        self.links[conn.index()] = None;
        self.acceptors.file_closed();
        io.remove(conn);
        app.closed(io, conn, *why);
    }
}
