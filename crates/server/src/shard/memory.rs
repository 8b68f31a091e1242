//! Which connections hold much memory, and which of them is closed while all together hold too much.

use rustc_hash::FxHashSet;
use sinews_engine::{ConnId, Io};

use super::{Protocol, Shard};
use crate::limits::Limit;
use crate::mail::Mail;
use crate::metrics::Held;

/// The connections of a thread that hold more than [`FREE_BYTES`], by how much: the number of bits.
#[derive(Debug, Default)]
pub(super) struct Holders {
    classes: [FxHashSet<usize>; CLASSES],
    /// Connections that are being closed: they are not chosen again.
    closing: FxHashSet<usize>,
    /// What the thread's connections held when memory was looked at last, or less since.
    checked_bytes: u64,
    /// Memory is looked at again when a connection is settled: more is counted than may be held, but the process did
    /// not hold as much, since memory that is allocated is used later; or more was lent.
    is_check_due: bool,
}

/// Bytes that one connection may hold whatever the others do.
const FREE_BYTES: u64 = 64 << 10;

/// Bytes that a thread's connections may come to hold before all of them are summed up again.
const CHECK_BYTES: u64 = 64 << 10;

/// [`Held::bytes`] has 33 bits at most, and those of [`FREE_BYTES`] are none.
const CLASSES: usize = 18;

/// Connections that are closed at a time, at most.
const CLOSES_MAX: usize = 16;

/// 0 for a connection that is not among them.
fn class(held: Held) -> usize {
    let bits = (u64::BITS - held.bytes().saturating_sub(1).leading_zeros()) as usize;
    bits.saturating_sub(FREE_BYTES.trailing_zeros() as usize)
}

impl Holders {
    /// What a connection holds has changed. Answers whether the heaviest class has.
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

    /// What of it counts: of a connection that is being closed, nothing.
    #[inline]
    pub(super) fn counted(&self, conn: ConnId, held: Held) -> Held {
        let closing = !self.closing.is_empty() && self.closing.contains(&conn.index());
        if closing { Held::default() } else { held }
    }

    /// The class of the connections that hold most; 0 if none holds much.
    fn heaviest(&self) -> usize {
        self.classes.iter().rposition(|class| !class.is_empty()).unwrap_or(0)
    }
}

impl Shard {
    /// A connection held so much and holds so much.
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

    /// The buffer of a connection's large message has grown, and the engine has it.
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

    /// A connection is over.
    pub(super) fn release(&mut self, conn: ConnId, held: Held) {
        self.counters.holds(held, Held::default());
        self.holders.change(conn.index(), held, Held::default());
        self.holders.closing.remove(&conn.index());
        self.counters.heaviest.set(self.holders.heaviest() as u64);
    }

    /// Closes the connections that hold most, while all together hold too much and that is what is to be done.
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

    /// It is not received from any more, so what it holds counts no more.
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
            "closed: of all connections this one held most, and all hold too much"
        );
        io.close(conn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_classed_by_what_they_hold() {
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
