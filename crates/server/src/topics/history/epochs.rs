//! Epochs of topics: computed from a topic's name, so that a topic without publications needs no memory.
//!
//! A topic that is removed together with messages gets another epoch. A table of a fixed size counts removals by the
//! hash of the name. Names with the same slot get another epoch together: a client that resumes an empty topic may
//! get a false report of a gap, but a real gap is never missed.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Number of slots of the table: 64 KiB.
const SLOTS: usize = 16_384;

/// Epochs of all topics of a server.
#[derive(Debug)]
pub(crate) struct Epochs {
    /// Differs for each server, except for a successor that takes over topics.
    seed: AtomicU64,
    /// Number of topics removed together with messages, by slot.
    runs: Box<[AtomicU32]>,
}

impl Epochs {
    pub(crate) fn new() -> Self {
        // A new random key for each server.
        let seed = AtomicU64::new(RandomState::new().build_hasher().finish());
        Self { seed, runs: (0..SLOTS).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Returns the epoch of a new topic. Below 2^53, so that JSON represents it exactly.
    pub(crate) fn epoch(&self, name: &str) -> u64 {
        let hash = self.hash(name);
        let run = self.runs[slot(hash)].load(Ordering::Relaxed);
        mix(hash ^ mix(u64::from(run) + 1)) >> 11
    }

    /// Changes the epoch for the next topic of this name, after the removal of a topic with publications.
    pub(crate) fn advance(&self, name: &str) {
        self.runs[slot(self.hash(name))].fetch_add(1, Ordering::Relaxed);
    }

    /// Exports the seed, and each slot that is not zero.
    pub(crate) fn export(&self) -> Vec<u8> {
        let mut bytes = self.seed.load(Ordering::Relaxed).to_be_bytes().to_vec();
        for (slot, run) in (0_u32..).zip(&self.runs) {
            let run = run.load(Ordering::Relaxed);
            if run > 0 {
                bytes.extend_from_slice(&slot.to_be_bytes());
                bytes.extend_from_slice(&run.to_be_bytes());
            }
        }
        bytes
    }

    /// Restores the export of another server. Returns whether it is valid; otherwise nothing changes.
    pub(crate) fn restore(&self, bytes: &[u8]) -> bool {
        let Some((seed, slots)) = bytes.split_first_chunk::<8>() else { return false };
        let (slots, rest) = slots.as_chunks::<8>();
        let read = |bytes: &[u8; 8]| {
            let [a, b, c, d, e, f, g, h] = *bytes;
            (u32::from_be_bytes([a, b, c, d]) as usize, u32::from_be_bytes([e, f, g, h]))
        };
        if !rest.is_empty() || slots.iter().any(|bytes| read(bytes).0 >= SLOTS) {
            return false;
        }
        self.seed.store(u64::from_be_bytes(*seed), Ordering::Relaxed);
        for (slot, run) in slots.iter().map(read) {
            self.runs[slot].store(run, Ordering::Relaxed);
        }
        true
    }

    /// Hashes a name. The same in every version of the program, since a successor may have another version. The seed
    /// is secret.
    fn hash(&self, name: &str) -> u64 {
        let seed = self.seed.load(Ordering::Relaxed);
        // FNV-1a's prime.
        let add = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        mix(name.bytes().fold(mix(seed), add))
    }
}

fn slot(hash: u64) -> usize {
    hash as usize % SLOTS
}

/// The finalizer of SplitMix64.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn epoch_changes_when_a_topic_is_created_anew_and_with_the_server() {
        let (one, other) = (Epochs::new(), Epochs::new());
        let mut seen = HashSet::from([one.epoch("a"), one.epoch("b"), other.epoch("a")]);
        assert!(seen.len() == 3 && one.epoch("a") == one.epoch("a"));
        for _ in 0..1_000 {
            one.advance("a");
            assert!(seen.insert(one.epoch("a")) && one.epoch("a") < 1 << 53);
        }
    }

    #[test]
    fn epochs_are_the_same_after_a_restore() {
        let (one, other) = (Epochs::new(), Epochs::new());
        let names: Vec<String> = (0..1_000).map(|number| format!("kept.{number}")).collect();
        names.iter().step_by(3).for_each(|name| one.advance(name));
        other.advance("kept.1");
        let exported = one.export();
        for broken in [&exported[..7], &exported[..exported.len() - 1], &[0xff; 16]] {
            let before = other.epoch("kept.0");
            assert!(!other.restore(broken) && other.epoch("kept.0") == before);
        }
        let other = Epochs::new();
        assert!(other.restore(&exported) && other.export() == exported);
        assert!(names.iter().all(|name| one.epoch(name) == other.epoch(name)));
    }
}
