//! Receiving into an application's own buffer, when the remaining bytes are so many that a copy costs more
//! than the switch: see `App::lend_large`.

#![allow(unsafe_code)]

use std::mem;

use super::kernel::{Completion, RingKernel};
use super::state::{CloseProgress, ReceiveEnd, ReceiveProgress, Ring};
use super::token::{OpKind, Token};
use crate::{App, ConnId, Flow, Io, SendChain};

impl<C: SendChain, K: RingKernel> Ring<C, K> {
    /// Receives into the buffer that the application lends. `false` if it lends none.
    pub(super) fn arm_large<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, conn: ConnId) -> bool {
        let Some(large) = app.lend_large(conn) else { return false };
        if large.spare_capacity() == 0 {
            if app.received_large(io, conn, large.buffer, 0) == Flow::Pause {
                io.pause(conn);
            }
            return false;
        }
        let Some(Some(link)) = self.links.get_mut(conn.index()) else { return false };
        link.receive = ReceiveProgress::Large;
        let large_box = link.large.get_or_insert_default();
        **large_box = large;
        // SAFETY: the buffer lies in a box that `link.large` holds. It is touched again only in
        // `received_large`, which is reached by this operation's completion, or when the connection is
        // closed, which comes after that. If the backend is dropped before, `Drop` waits for the kernel or
        // leaks the box.
        unsafe { self.kernel.receive_large(Token::new(OpKind::Large, conn), link.file, large_box) };
        true
    }

    pub(super) fn received_large<A: App<Chain = C>>(
        &mut self,
        app: &mut A,
        io: &mut Io,
        completion: &Completion,
    ) {
        let Some((conn, link)) = self.owner(io, completion.token) else { return };
        let Some(large_box) = link.large.as_deref_mut().filter(|large_box| large_box.limit > 0) else {
            return;
        };
        let mut large = mem::take(large_box);
        link.receive = ReceiveProgress::Idle;
        if link.close != CloseProgress::No {
            return self.close_step(conn);
        }
        let outcome = completion.outcome();
        let received = outcome.as_ref().map_or(0, |received| (*received).min(large.spare_capacity()));
        // SAFETY: the kernel has written so many bytes, from the beginning of the spare capacity.
        unsafe { large.extend(received) };
        io.stats.receives.add(1);
        io.stats.received_bytes.add(received as u64);
        self.deliver_or_defer_large(app, io, conn, large.buffer, received);
        match outcome {
            Ok(0) => self.ended(app, io, conn, ReceiveEnd::Peer),
            Err(error) if !super::receive::is_transient_error(&error) => {
                self.ended(app, io, conn, ReceiveEnd::Failed(error.into()));
            }
            _ => self.unarmed.push(conn),
        }
    }

    /// Returns the buffer, now or when the application resumes reads.
    fn deliver_or_defer_large<A: App<Chain = C>>(
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
                link.deferred.get_or_insert_default().large = Some((buffer, received));
            }
        } else if app.received_large(io, conn, buffer, received) == Flow::Pause {
            io.pause(conn);
        }
    }
}
