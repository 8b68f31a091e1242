//! Connections that hold much memory, by size class.

use rustc_hash::FxHashSet;
use sinews_engine::ConnId;

use crate::metrics::ConnMemory;

/// Connections of a thread that hold more than [`FREE_BYTES`], by size class: the number of bits.
#[derive(Debug, Default)]
pub(super) struct LargeConns {
    pub(super) classes: [FxHashSet<usize>; CLASSES],
    /// Connections that are closing: they are not chosen again.
    pub(super) closing: FxHashSet<usize>,
    /// Memory of the thread's connections at the last check, or less since.
    pub(super) checked_bytes: u64,
    /// Memory is checked again when a connection is flushed, for two reasons. The counted memory exceeds the limit
    /// but the process's does not yet, since allocated memory is used later. Or a buffer has grown in the engine.
    pub(super) is_check_due: bool,
}

/// Bytes that each connection may hold regardless of the total.
const FREE_BYTES: u64 = 64 << 10;

/// Growth of a thread's memory in bytes that triggers a new sum of all threads.
pub(super) const CHECK_BYTES: u64 = 64 << 10;

/// [`ConnMemory::bytes`] has at most 33 bits, and sizes within [`FREE_BYTES`] have no class.
const CLASSES: usize = 18;

/// Returns the size class; 0 for a connection within the free size.
fn class(memory: ConnMemory) -> usize {
    let bits = (u64::BITS - memory.bytes().saturating_sub(1).leading_zeros()) as usize;
    bits.saturating_sub(FREE_BYTES.trailing_zeros() as usize)
}

impl LargeConns {
    /// Changes the size of a connection. Returns whether the heaviest class has changed.
    #[inline]
    pub(super) fn change(&mut self, index: usize, before: ConnMemory, after: ConnMemory) -> bool {
        // Most connections have no class.
        before.bytes().max(after.bytes()) > FREE_BYTES && self.change_class(index, before, after)
    }

    fn change_class(&mut self, index: usize, before: ConnMemory, after: ConnMemory) -> bool {
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
    pub(super) fn counted_memory(&self, conn: ConnId, memory: ConnMemory) -> ConnMemory {
        let closing = !self.closing.is_empty() && self.closing.contains(&conn.index());
        if closing { ConnMemory::default() } else { memory }
    }

    /// Returns the class of the heaviest connections; 0 if all are within the free size.
    pub(super) fn heaviest(&self) -> usize {
        self.classes.iter().rposition(|class| !class.is_empty()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_classed_by_held_memory() {
        let of = |bytes| class(ConnMemory::new(bytes, 0));
        assert_eq!((of(0), of(64 << 10), of((64 << 10) + 1), of(128 << 10)), (0, 0, 1, 1));
        assert_eq!((of((128 << 10) + 1), of(16 << 20)), (2, 8));
        assert!(class(ConnMemory::new(usize::MAX, usize::MAX)) < CLASSES);
        let mut large_conns = LargeConns::default();
        let (none, some, much) =
            (ConnMemory::default(), ConnMemory::new(1 << 20, 0), ConnMemory::new(0, 1 << 24));
        assert!(large_conns.change(3, none, some) && !large_conns.change(4, none, some));
        assert!(large_conns.change(5, none, much) && large_conns.heaviest() == 8);
        large_conns.closing.insert(5);
        assert!(!large_conns.change(5, much, none), "it is being closed");
        large_conns.closing.clear();
        assert!(large_conns.change(5, much, none) && large_conns.heaviest() == 4);
        assert!(
            !large_conns.change(3, some, none)
                && large_conns.change(4, some, none)
                && large_conns.heaviest() == 0
        );
    }
}
