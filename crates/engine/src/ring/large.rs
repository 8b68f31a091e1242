//! Receiving into an application's own buffer, when the remaining bytes are so many that a copy costs more
//! than the switch: see `App::lend_large`.

#![allow(unsafe_code)]

use std::mem;

use super::kernel::{Completion, Kernel};
use super::receive::End;
use super::token::{Kind, Token};
use super::{Close, Receive, Ring};
use crate::{App, Chain, ConnId, Flow, Io};

impl<C: Chain, K: Kernel> Ring<C, K> {
    /// Receives into the buffer that the application lends. `false` if it lends none.
    pub(super) fn arm_large<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, conn: ConnId) -> bool {
        let Some(large) = app.lend_large(conn) else { return false };
        if large.room() == 0 {
            if app.received_large(io, conn, large.buffer, 0) == Flow::Pause {
                io.pause(conn);
            }
            return false;
        }
        let Some(Some(link)) = self.links.get_mut(conn.index()) else { return false };
        link.receive = Receive::Large;
        let berth = link.large.get_or_insert_default();
        **berth = large;
        // SAFETY: the buffer lies in a box that `link.large` holds. It is touched again only in
        // `received_large`, which is reached by this operation's completion, or when the connection is
        // closed, which comes after that. If the backend is dropped before, `Drop` waits for the kernel or
        // leaks the box.
        unsafe { self.kernel.receive_large(Token::of(Kind::Large, conn), link.file, berth) };
        true
    }

    pub(super) fn received_large<A: App<Chain = C>>(
        &mut self,
        app: &mut A,
        io: &mut Io,
        completion: &Completion,
    ) {
        let Some((conn, link)) = self.owner(io, completion.token) else { return };
        let Some(berth) = link.large.as_deref_mut().filter(|berth| berth.most > 0) else { return };
        let mut large = mem::take(berth);
        link.receive = Receive::Home;
        if link.close != Close::No {
            return self.close_step(conn);
        }
        let outcome = completion.outcome();
        let received = outcome.as_ref().map_or(0, |received| (*received).min(large.room()));
        // SAFETY: the kernel has written so many bytes, from the beginning of the spare capacity.
        unsafe { large.extend(received) };
        io.stats.receives.add(1);
        io.stats.received_bytes.add(received as u64);
        self.hand_over_large(app, io, conn, large.buffer, received);
        match outcome {
            Ok(0) => self.ended(app, io, conn, End::Peer),
            Err(error) if !super::receive::is_passing(&error) => {
                self.ended(app, io, conn, End::Failed(error.into()));
            }
            _ => self.unarmed.push(conn),
        }
    }

    /// Returns the buffer, now or when the application resumes reads.
    fn hand_over_large<A: App<Chain = C>>(
        &mut self,
        app: &mut A,
        io: &mut Io,
        conn: ConnId,
        buffer: Vec<u8>,
        received: usize,
    ) {
        if io.slots.live_mut(conn).is_none() {
            return;
        }
        if !io.receives(conn) {
            if let Some(link) = self.link(io, conn) {
                link.held.get_or_insert_default().large = Some((buffer, received));
            }
        } else if app.received_large(io, conn, buffer, received) == Flow::Pause {
            io.pause(conn);
        }
    }
}
