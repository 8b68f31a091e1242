//! The same bytes for several connections: one operation each, and no chain. The kernel reports only failures.
//!
//! A batch is submitted at once, so its connections need no mark: nothing else is sent on them meanwhile. If
//! the kernel takes less than the batch, no connection sends until it has taken the rest.

use std::collections::VecDeque;
use std::mem;

use bytes::Bytes;

use super::kernel::{Completion, RingKernel};
use super::memory::OFFERED_MAX;
use super::send::is_full;
use super::state::Ring;
use super::token::OpKind;
use crate::backend::take_unsent;
use crate::io::Broadcast;
use crate::slots::WriteState;
use crate::{App, ConnId, Io, SendChain};

/// Sends of a batch that the kernel has not taken, and their bytes.
#[derive(Debug, Default)]
pub(super) struct SharedSends {
    /// In the order of submission.
    sends: VecDeque<SharedSend>,
    bytes: Bytes,
    /// A submission did not take all of them.
    is_late: bool,
}

/// A send that is complete once the kernel has taken this many operations without a completion.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedSend {
    number: u64,
    pub(super) conn: ConnId,
    pub(super) file: u32,
}

impl SharedSends {
    pub(super) fn is_empty(&self) -> bool {
        self.sends.is_empty()
    }

    pub(super) fn contains(&self, conn: ConnId) -> bool {
        self.sends.iter().any(|send| send.conn == conn)
    }

    /// The bytes of the batch, and its sends.
    pub(super) fn batch(&self) -> (&[u8], impl Iterator<Item = &SharedSend>) {
        (&self.bytes, self.sends.iter())
    }

    /// Removes the send of a connection. Returns its bytes.
    fn take(&mut self, conn: ConnId) -> Option<Bytes> {
        let index = self.sends.iter().position(|send| send.conn == conn)?;
        self.sends.remove(index).map(|_| self.bytes.clone())
    }
}

impl<C: SendChain, K: RingKernel> Ring<C, K> {
    /// Sends listed broadcasts. Those behind a submission that the kernel did not take wait for the next
    /// turn.
    pub(super) fn broadcast_listed<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io) {
        if io.broadcasts.is_empty() {
            return;
        }
        let mut broadcasts = mem::take(&mut io.broadcasts).into_iter();
        while self.shared.is_empty()
            && let Some(Broadcast { bytes, mut conns }) = broadcasts.next()
        {
            let mut done = 0;
            while self.shared.is_empty() && done < conns.len() {
                let batch = &conns[done..conns.len().min(done + BATCH)];
                self.broadcast(app, io, &bytes, batch);
                done += batch.len();
            }
            conns.drain(..done);
            if !conns.is_empty() {
                io.broadcasts.push(Broadcast { bytes, conns });
            }
        }
        io.broadcasts.extend(broadcasts);
    }

    /// Sends a batch. No sends of an earlier batch are left.
    fn broadcast<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, bytes: &Bytes, batch: &[ConnId]) {
        let fits = (1..=OFFERED_MAX).contains(&(bytes.len() as u64));
        self.shared.bytes = bytes.clone();
        let mut unready = Vec::new();
        let mut number = self.kernel.queued();
        for &conn in batch {
            let Some(slot) = io.slots.live_mut(conn) else { continue };
            let is_ready = !slot.in_flight && !slot.connecting && slot.sending != WriteState::Shut;
            let Some(Some(link)) = self.links.get(conn.index()) else { continue };
            if !is_ready || !fits {
                unready.push(conn);
                continue;
            }
            number += 1;
            self.shared.sends.push_back(SharedSend { number, conn, file: link.file });
        }
        self.offer_shared();
        let sends = self.shared.sends.len() as u64;
        io.stats.sends.add(sends);
        io.stats.sent_bytes.add(sends * bytes.len() as u64);
        self.submit_early(app, io);
        self.shared.is_late = !self.shared.sends.is_empty();
        for conn in unready {
            self.continue_unsent(app, io, conn, bytes.clone());
        }
    }

    /// Ends the shared sends that the kernel has taken without a completion.
    pub(super) fn finish_shared(&mut self) {
        if self.shared.bytes.is_empty() {
            return;
        }
        let consumed = self.kernel.consumed();
        let done = self.shared.sends.partition_point(|send| send.number <= consumed);
        let late = if self.shared.is_late { done } else { 0 };
        let late: Vec<ConnId> = self.shared.sends.range(..late).map(|send| send.conn).collect();
        self.shared.sends.drain(..done);
        if self.shared.sends.is_empty() {
            self.shared.bytes = Bytes::new();
        }
        // A connection that closes meanwhile has waited for it.
        late.into_iter().for_each(|conn| self.close_step(conn));
    }

    /// Handles the completion of a shared send: it was short, or failed.
    #[cold]
    pub(super) fn shared_sent<A: App<Chain = C>>(
        &mut self,
        app: &mut A,
        io: &mut Io,
        completion: &Completion,
    ) {
        let Some((conn, _)) = self.owner(io, completion.token) else { return };
        let Some(bytes) = self.shared.take(conn) else { return };
        let sent = completion.outcome().as_ref().map_or(0, |sent| bytes.len().min(*sent));
        io.stats.sent_bytes.add(((bytes.len() - sent) as u64).wrapping_neg());
        if let Err(error) = completion.outcome()
            && !is_full(&error)
        {
            io.close_for(conn, || error.into());
        }
        self.close_step(conn);
        if sent < bytes.len() {
            self.continue_unsent(app, io, conn, bytes.slice(sent..));
        }
    }

    /// Sends the rest of a broadcast as a chain.
    fn continue_unsent<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, conn: ConnId, rest: Bytes) {
        let Some(chain) = take_unsent(app, io, conn, rest) else { return };
        let mut spare_box = self.spare_boxes.pop().unwrap_or_default();
        *spare_box = Some(chain);
        if let Some(link) = self.link(io, conn) {
            link.chain = Some(spare_box);
            self.send(io, conn, OpKind::Send);
        }
    }
}

/// Sends per submission: the kernel runs them while their operations are in the cache.
const BATCH: usize = if cfg!(test) { 3 } else { 128 };
