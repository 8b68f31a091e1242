//! Memory of connections, and which to close when the limit is exceeded.

use rustc_hash::FxHashSet;
use sinews_engine::{ConnId, Io};

use super::{Protocol, Shard};
use crate::limits::Limit;
use crate::mail::Mail;
use crate::metrics::Held;

/// Connections of a thread that hold more than [`FREE_BYTES`], by size class: the number of bits.
#[derive(Debug, Default)]
pub(super) struct Holders {
    classes: [FxHashSet<usize>; CLASSES],
    /// Connections that are closing: they are not chosen again.
    closing: FxHashSet<usize>,
    /// Memory of the thread's connections at the last check, or less since.
    checked_bytes: u64,
    /// Memory is checked again when a connection is settled, for two reasons. The counted memory exceeds the limit
    /// but the process's does not yet, since allocated memory is used later. Or a buffer has grown in the engine.
    is_check_due: bool,
}

/// Bytes that each connection may hold regardless of the total.
const FREE_BYTES: u64 = 64 << 10;

/// Growth of a thread's memory in bytes that triggers a new sum of all threads.
const CHECK_BYTES: u64 = 64 << 10;

/// [`Held::bytes`] has at most 33 bits, and sizes within [`FREE_BYTES`] have no class.
const CLASSES: usize = 18;

/// Maximum number of connections that close at the same time.
const CLOSES_MAX: usize = 16;

/// Returns the size class; 0 for a connection within the free size.
fn class(held: Held) -> usize {
    let bits = (u64::BITS - held.bytes().saturating_sub(1).leading_zeros()) as usize;
    bits.saturating_sub(FREE_BYTES.trailing_zeros() as usize)
}

impl Holders {
    /// Changes the size of a connection. Returns whether the heaviest class has changed.
    fn change(&mut self, index: usize, before: Held, after: Held) -> bool {
        let (before, after) = (class(before), class(after));
        if before == after || self.closing.contains(&index) {
            return false;
        }
        let heaviest = self.heaviest();
        if before > 0 {
            self.classes[before].remove(&index);
        }
        if after > 0 {
            self.classes[after].insert(index);
        }
        self.heaviest() != heaviest
    }

    /// Returns the counted part; zero for a closing connection.
    #[inline]
    pub(super) fn counted(&self, conn: ConnId, held: Held) -> Held {
        let closing = !self.closing.is_empty() && self.closing.contains(&conn.index());
        if closing { Held::default() } else { held }
    }

    /// Returns the class of the heaviest connections; 0 if all are within the free size.
    fn heaviest(&self) -> usize {
        self.classes.iter().rposition(|class| !class.is_empty()).unwrap_or(0)
    }
}

impl Shard {
    /// Changes the size of a connection and checks the limit.
    #[inline]
    pub(super) fn hold(&mut self, io: &mut Io, conn: ConnId, before: Held, after: Held) {
        if before == after && !self.holders.is_check_due {
            return;
        }
        self.count(conn, before, after);
        let bytes = self.counters.held_bytes();
        if self.holders.is_check_due {
            self.shed(io);
        } else if bytes <= self.holders.checked_bytes {
            self.holders.checked_bytes = bytes;
        } else if bytes - self.holders.checked_bytes > CHECK_BYTES {
            self.holders.checked_bytes = bytes;
            self.shed(io);
        }
    }

    fn count(&mut self, conn: ConnId, before: Held, after: Held) {
        self.counters.holds(before, after);
        if self.holders.change(conn.index(), before, after) {
            self.counters.heaviest.set(self.holders.heaviest() as u64);
        }
    }

    /// Updates the size of a connection whose large buffer has grown in the engine.
    pub(super) fn hold_lent(&mut self, conn: ConnId) {
        let Some(found) = self.conns.get_mut(conn.index()).and_then(Option::as_mut) else { return };
        let Protocol::WebSocket(websocket) = &found.protocol else { return };
        let before = found.holds;
        let held = before.holding_incomplete(websocket.session.incomplete());
        found.holds = self.holders.counted(conn, held);
        let after = found.holds;
        if before != after {
            self.count(conn, before, after);
            self.holders.is_check_due = true;
        }
    }

    /// Removes a closed connection.
    pub(super) fn release(&mut self, conn: ConnId, held: Held) {
        self.counters.holds(held, Held::default());
        self.holders.change(conn.index(), held, Held::default());
        self.holders.closing.remove(&conn.index());
        self.counters.heaviest.set(self.holders.heaviest() as u64);
    }

    /// Closes the heaviest connections while the limit is exceeded, if that is the configured action.
    #[cold]
    pub(super) fn shed(&mut self, io: &mut Io) {
        self.holders.is_check_due = self.gate.counts_too_much();
        for _ in 0..CLOSES_MAX {
            if !self.gate.closes() {
                return;
            }
            let heaviest = self.holders.heaviest();
            if let Some(other) = self.gate.heavier_thread(heaviest as u64)
                && self.topics.tell(other, Mail::Shed)
            {
                return;
            }
            let held = |index: &usize| {
                let found = self.conns.get(*index).and_then(Option::as_ref);
                found.map_or(0, |found| found.holds.bytes())
            };
            let members = self.holders.classes[heaviest].iter().copied();
            let Some(largest) = members.max_by_key(held) else { return };
            self.close_holder(io, largest);
        }
    }

    /// Closes a connection. Reads stop, so its memory counts no more.
    fn close_holder(&mut self, io: &mut Io, index: usize) {
        let Some(found) = self.conns.get_mut(index).and_then(Option::as_mut) else { return };
        let held = std::mem::take(&mut found.holds);
        let conn = found.id;
        self.counters.holds(held, Held::default());
        self.holders.change(index, held, Held::default());
        self.holders.closing.insert(index);
        self.counters.heaviest.set(self.holders.heaviest() as u64);
        self.limited(Limit::Memory);
        tracing::debug!(
            bytes = held.bytes(),
            "closed: largest outbound and input buffers of all connections, and max_memory is exceeded"
        );
        io.close(conn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_classed_by_held_memory() {
        let of = |bytes| class(Held::new(bytes, 0));
        assert_eq!((of(0), of(64 << 10), of((64 << 10) + 1), of(128 << 10)), (0, 0, 1, 1));
        assert_eq!((of((128 << 10) + 1), of(16 << 20)), (2, 8));
        assert!(class(Held::new(usize::MAX, usize::MAX)) < CLASSES);
        let mut holders = Holders::default();
        let (none, some, much) = (Held::default(), Held::new(1 << 20, 0), Held::new(0, 1 << 24));
        assert!(holders.change(3, none, some) && !holders.change(4, none, some));
        assert!(holders.change(5, none, much) && holders.heaviest() == 8);
        holders.closing.insert(5);
        assert!(!holders.change(5, much, none), "it is being closed");
        holders.closing.clear();
        assert!(holders.change(5, much, none) && holders.heaviest() == 4);
        assert!(!holders.change(3, some, none) && holders.change(4, some, none) && holders.heaviest() == 0);
    }
}
