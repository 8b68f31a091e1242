//! Closing, in order: cancel operations in flight, wait for their completion, close the socket, report.

use super::kernel::{Completion, RingKernel};
use super::state::{CloseProgress, ReceiveProgress, Ring, SendProgress, ShutdownProgress};
use super::token::{OpKind, Token};
use crate::{App, ConnId, Io, SendChain};

impl<C: SendChain, K: RingKernel> Ring<C, K> {
    /// Starts to close all listed connections.
    pub(super) fn close_listed<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io) {
        while let Some((conn, reason)) = io.closes.pop_front() {
            let Some(Some(link)) = self.links.get_mut(conn.index()) else {
                // An outgoing connection without a socket.
                io.remove(conn);
                app.closed(io, conn, reason);
                continue;
            };
            link.close = CloseProgress::Wanted;
            link.deferred = None;
            self.reasons.insert(conn.index(), reason);
            let receive = match link.receive {
                ReceiveProgress::Armed => Some(OpKind::Receive),
                ReceiveProgress::Large => Some(OpKind::Large),
                ReceiveProgress::Watching => Some(OpKind::Watch),
                ReceiveProgress::Connecting => Some(OpKind::Connect),
                // An installation completes at once.
                ReceiveProgress::Idle | ReceiveProgress::Cancelled | ReceiveProgress::Installing => None,
            };
            if let Some(kind) = receive {
                link.receive = ReceiveProgress::Cancelled;
                self.kernel.cancel(Token::new(kind, conn));
            }
            if link.send == SendProgress::Waiting {
                self.kernel.cancel(Token::new(OpKind::Send, conn));
            }
            self.close_step(conn);
        }
    }

    /// Closes the socket of a closing connection, if all operations have completed.
    pub(super) fn close_step(&mut self, conn: ConnId) {
        let Some(Some(link)) = self.links.get_mut(conn.index()) else { return };
        let is_idle = link.receive == ReceiveProgress::Idle
            && link.send == SendProgress::Idle
            && link.shutdown == ShutdownProgress::Idle;
        if !is_idle || self.shared.contains(conn) {
            return;
        }
        if link.close == CloseProgress::Wanted {
            link.close = CloseProgress::InFlight;
            self.kernel.close(Token::new(OpKind::Close, conn), link.file);
        }
    }

    pub(super) fn closed<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, completion: &Completion) {
        let Some((conn, link)) = self.owner(io, completion.token) else { return };
        if link.close != CloseProgress::InFlight {
            return;
        }
        let Some(reason) = self.reasons.remove(&conn.index()) else { return };
        if let Err(error) = completion.outcome() {
            tracing::error!(%error, "cannot close a socket");
        }
        self.return_chain(app, io, conn, false);
        self.links[conn.index()] = None;
        self.acceptors.file_closed();
        io.remove(conn);
        app.closed(io, conn, reason);
    }
}
