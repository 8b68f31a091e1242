//! The timer wheel: constant time to set, move and clear, and no allocation, since the list nodes live in
//! the connections' slots.
//!
//! Eleven levels of 64 slots cover every 64-bit tick. A timer is on the level of the highest 6-bit digit in which its
//! tick differs from the current tick. When the wheel reaches its slot, it moves down, so a timer is touched at most
//! once per level. Most timers are never reached: they are cleared, or moved later. Moving later is a single store,
//! because the node keeps its early slot and is reinserted when the wheel reaches it.

/// List nodes by index, stored by the owner of the connections.
pub(crate) trait TimerNodes {
    fn node(&mut self, index: u32) -> &mut TimerNode;
}

/// One timer: unset, or linked into the list of a slot.
///
/// Packed to a multiple of 4 bytes, since each connection has one.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed(4))]
pub(crate) struct TimerNode {
    due: u64,
    previous: u32,
    next: u32,
    slot: u16,
}

impl Default for TimerNode {
    fn default() -> Self {
        Self { due: 0, previous: NIL, next: NIL, slot: UNSET }
    }
}

#[derive(Debug)]
pub(crate) struct Wheel {
    /// Every timer due at or before this tick is on the due list.
    current: u64,
    /// Head of each slot's list, level by level, and of the due list at the end.
    heads: Box<[u32]>,
    /// Per level a bit for each slot that contains a timer.
    occupied: [u64; LEVELS],
}

impl Wheel {
    pub(crate) fn new() -> Self {
        Self { current: 0, heads: vec![NIL; HEADS].into_boxed_slice(), occupied: [0; LEVELS] }
    }

    /// Sets or moves a timer. A past tick means the next tick: a timer set while due timers are taken never
    /// joins them, or a callback that sets its timer again could block the loop.
    pub(crate) fn set(&mut self, nodes: &mut impl TimerNodes, index: u32, due: u64) {
        let due = due.max(self.current + 1);
        let node = nodes.node(index);
        if node.slot < DUE && node.due <= due {
            node.due = due;
            return;
        }
        self.clear(nodes, index);
        nodes.node(index).due = due;
        self.link(nodes, index, self.slot_of(due));
    }

    pub(crate) fn clear(&mut self, nodes: &mut impl TimerNodes, index: u32) {
        let TimerNode { previous, next, slot, .. } = *nodes.node(index);
        if slot == UNSET {
            return;
        }
        if next != NIL {
            nodes.node(next).previous = previous;
        }
        if previous == NIL {
            self.heads[slot as usize] = next;
            if next == NIL && slot < DUE {
                self.occupied[slot as usize / SLOTS] &= !(1 << (slot as usize % SLOTS));
            }
        } else {
            nodes.node(previous).next = next;
        }
        *nodes.node(index) = TimerNode::default();
    }

    /// Moves the wheel to `now` (backwards is ignored) and every timer due by then to the due list.
    pub(crate) fn advance(&mut self, nodes: &mut impl TimerNodes, now: u64) {
        while let Some((level, slot)) = self.earliest() {
            let start = self.start_of(level, slot);
            if start > now {
                break;
            }
            self.current = start;
            self.scatter(nodes, level * SLOTS + slot);
        }
        self.current = self.current.max(now);
    }

    /// Takes one of the due timers and unsets it. Their order is not specified.
    pub(crate) fn pop_due(&mut self, nodes: &mut impl TimerNodes) -> Option<u32> {
        let index = self.heads[DUE as usize];
        if index == NIL {
            return None;
        }
        self.clear(nodes, index);
        Some(index)
    }

    /// The next tick at which the wheel must be advanced. No timer is due before it. On the upper levels it
    /// is the start of a slot, so an advance may find no due timer.
    pub(crate) fn next_tick(&self) -> Option<u64> {
        if self.heads[DUE as usize] != NIL {
            return Some(self.current);
        }
        self.earliest().map(|(level, slot)| self.start_of(level, slot))
    }

    /// Reinserts the timers of one slot, the due timers into the due list.
    fn scatter(&mut self, nodes: &mut impl TimerNodes, from: usize) {
        let mut index = self.heads[from];
        self.heads[from] = NIL;
        self.occupied[from / SLOTS] &= !(1 << (from % SLOTS));
        while index != NIL {
            let TimerNode { due, next, .. } = *nodes.node(index);
            let slot = if due <= self.current { DUE } else { self.slot_of(due) };
            self.link(nodes, index, slot);
            index = next;
        }
    }

    fn link(&mut self, nodes: &mut impl TimerNodes, index: u32, slot: u16) {
        let head = std::mem::replace(&mut self.heads[slot as usize], index);
        if head != NIL {
            nodes.node(head).previous = index;
        }
        if slot < DUE {
            self.occupied[slot as usize / SLOTS] |= 1 << (slot as usize % SLOTS);
        }
        let node = nodes.node(index);
        (node.previous, node.next, node.slot) = (NIL, head, slot);
    }

    /// The slot of a tick after the current one.
    fn slot_of(&self, due: u64) -> u16 {
        debug_assert!(due > self.current);
        let level = (due ^ self.current).ilog2() / BITS;
        let slot = (due >> (level * BITS)) % SLOTS as u64;
        (level as usize * SLOTS) as u16 + slot as u16
    }

    /// The first slot to be reached. All slots on a level are behind those on the levels below, and none is behind the
    /// current tick, so this is the lowest bit of the lowest used level.
    fn earliest(&self) -> Option<(usize, usize)> {
        let level = self.occupied.iter().position(|&bits| bits != 0)?;
        Some((level, self.occupied[level].trailing_zeros() as usize))
    }

    /// The first tick of a slot: the digits above from the current tick, zeros below.
    fn start_of(&self, level: usize, slot: usize) -> u64 {
        let shift = level as u32 * BITS;
        let above = self.current.checked_shr(shift + BITS).map_or(0, |digits| digits << (shift + BITS));
        above | (slot as u64) << shift
    }
}

/// Bits of a digit.
const BITS: u32 = 6;
/// Slots per level: one bit each in a word.
const SLOTS: usize = 1 << BITS;
/// The number of digits of a 64-bit tick, so that no deadline needs clamping.
const LEVELS: usize = u64::BITS.div_ceil(BITS) as usize;
/// The due list follows the slots.
const DUE: u16 = (LEVELS * SLOTS) as u16;
const HEADS: usize = DUE as usize + 1;
const UNSET: u16 = DUE + 1;
/// The end of a list.
const NIL: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    impl TimerNodes for Vec<TimerNode> {
        fn node(&mut self, index: u32) -> &mut TimerNode {
            &mut self[index as usize]
        }
    }

    /// xorshift64*: a seed determines the whole test.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
        }

        fn below(&mut self, bound: u64) -> u64 {
            self.next() % bound
        }
    }

    fn drain(wheel: &mut Wheel, nodes: &mut Vec<TimerNode>) -> BTreeSet<u32> {
        let mut due = BTreeSet::new();
        while let Some(index) = wheel.pop_due(nodes) {
            assert!(due.insert(index), "a timer fires once");
        }
        due
    }

    /// Random operations, each compared with a map from timer to tick.
    fn model(seed: u64, operations: usize) {
        const TIMERS: u64 = 40;
        let mut random = Random(seed);
        let mut nodes = vec![TimerNode::default(); TIMERS as usize];
        let (mut wheel, mut map, mut now) = (Wheel::new(), BTreeMap::new(), 0_u64);
        for _ in 0..operations {
            let index = random.below(TIMERS) as u32;
            // Distances of every magnitude use all levels, including the past (distance 0).
            let bits = random.below(40) as u32;
            let distance = random.below(1 << bits);
            match random.below(8) {
                0..=3 => {
                    wheel.set(&mut nodes, index, now + distance);
                    map.insert(index, (now + distance).max(now + 1));
                }
                4 => {
                    wheel.clear(&mut nodes, index);
                    map.remove(&index);
                }
                step => {
                    // Either a random distance, or exactly to the next timer or just before it.
                    let next = map.values().min().copied().unwrap_or(now);
                    now = if step == 5 { now + distance } else { now.max(next - (step - 6).min(next)) };
                    wheel.advance(&mut nodes, now);
                    let expected =
                        map.iter().filter(|(_, due)| **due <= now).map(|(index, _)| *index).collect();
                    assert_eq!(drain(&mut wheel, &mut nodes), expected, "seed {seed}, tick {now}");
                    map.retain(|_, due| *due > now);
                }
            }
            let earliest = map.values().min().copied();
            assert_eq!(wheel.next_tick().is_some(), earliest.is_some(), "seed {seed}");
            assert!(wheel.next_tick() <= earliest, "never late: seed {seed}");
            assert!(wheel.next_tick().is_none_or(|tick| tick > now), "waiting makes progress: seed {seed}");
        }
    }

    #[test]
    fn agrees_with_a_map_over_random_operations() {
        for seed in 1..=200 {
            model(seed, 500);
        }
    }

    #[test]
    fn timer_set_while_taking_due_timers_waits_for_next_tick() {
        let mut nodes = vec![TimerNode::default(); 2];
        let mut wheel = Wheel::new();
        wheel.set(&mut nodes, 0, 5);
        wheel.set(&mut nodes, 1, 5);
        wheel.advance(&mut nodes, 9);
        let first = wheel.pop_due(&mut nodes).unwrap();
        wheel.set(&mut nodes, first, 5);
        let second = 1 - first;
        wheel.clear(&mut nodes, second);
        assert_eq!(wheel.pop_due(&mut nodes), None, "one timer was set again, the other cleared");
        wheel.advance(&mut nodes, 10);
        assert_eq!(wheel.pop_due(&mut nodes), Some(first));
    }

    #[test]
    fn extreme_ticks_are_supported() {
        let mut nodes = vec![TimerNode::default(); 2];
        let mut wheel = Wheel::new();
        wheel.set(&mut nodes, 0, u64::MAX);
        wheel.advance(&mut nodes, u64::MAX - 1);
        assert_eq!(wheel.pop_due(&mut nodes), None);
        wheel.advance(&mut nodes, u64::MAX);
        assert_eq!(wheel.pop_due(&mut nodes), Some(0));
        assert_eq!(wheel.next_tick(), None);
    }

    #[test]
    fn moving_later_does_not_relink_node() {
        let mut nodes = vec![TimerNode::default(); 1];
        let mut wheel = Wheel::new();
        wheel.set(&mut nodes, 0, 10);
        let slot = nodes[0].slot;
        wheel.set(&mut nodes, 0, 1_000_000);
        assert_eq!(nodes[0].slot, slot);
        wheel.advance(&mut nodes, 999_999);
        assert_eq!(wheel.pop_due(&mut nodes), None);
        wheel.advance(&mut nodes, 1_000_000);
        assert_eq!(wheel.pop_due(&mut nodes), Some(0));
    }
}
