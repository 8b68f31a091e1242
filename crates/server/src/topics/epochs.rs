//! The epochs of topics: made from a topic's name, so that a topic which nothing was published to needs no memory.
//!
//! A topic that is forgotten together with messages begins another epoch. How often that has happened is counted in a
//! table of a fixed size by the hash of the name. Names that share a place begin another epoch together: a client that
//! resumes an empty topic is told of a gap that is none, and never misses one.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Places of the table: 64 KiB.
const PLACES: usize = 16_384;

/// The epochs of all topics of a server.
#[derive(Debug)]
pub(super) struct Epochs {
    /// Another one for each server, but for one that goes on with the topics of another.
    seed: AtomicU64,
    /// How many topics of each place were forgotten together with messages.
    runs: Box<[AtomicU32]>,
}

impl Epochs {
    pub(super) fn new() -> Self {
        // Keyed anew each time: as good as random.
        let seed = AtomicU64::new(RandomState::new().build_hasher().finish());
        Self { seed, runs: (0..PLACES).map(|_| AtomicU32::new(0)).collect() }
    }

    /// The epoch of a topic that begins now. Below 2^53, so that it survives JSON.
    pub(super) fn of(&self, name: &str) -> u64 {
        let hash = self.hash(name);
        let run = self.runs[place(hash)].load(Ordering::Relaxed);
        mix(hash ^ mix(u64::from(run) + 1)) >> 11
    }

    /// A topic is forgotten that something was published to: the next of its name is another.
    pub(super) fn begin_anew(&self, name: &str) {
        self.runs[place(self.hash(name))].fetch_add(1, Ordering::Relaxed);
    }

    /// The seed, and each place that is not zero.
    pub(super) fn export(&self) -> Vec<u8> {
        let mut bytes = self.seed.load(Ordering::Relaxed).to_be_bytes().to_vec();
        for (place, run) in (0_u32..).zip(&self.runs) {
            let run = run.load(Ordering::Relaxed);
            if run > 0 {
                bytes.extend_from_slice(&place.to_be_bytes());
                bytes.extend_from_slice(&run.to_be_bytes());
            }
        }
        bytes
    }

    /// Goes on with what another server has exported. Answers whether it could be read; if not, nothing changes.
    pub(super) fn restore(&self, bytes: &[u8]) -> bool {
        let Some((seed, places)) = bytes.split_first_chunk::<8>() else { return false };
        let (places, rest) = places.as_chunks::<8>();
        let read = |bytes: &[u8; 8]| {
            let [a, b, c, d, e, f, g, h] = *bytes;
            (u32::from_be_bytes([a, b, c, d]) as usize, u32::from_be_bytes([e, f, g, h]))
        };
        if !rest.is_empty() || places.iter().any(|bytes| read(bytes).0 >= PLACES) {
            return false;
        }
        self.seed.store(u64::from_be_bytes(*seed), Ordering::Relaxed);
        for (place, run) in places.iter().map(read) {
            self.runs[place].store(run, Ordering::Relaxed);
        }
        true
    }

    /// The same in every version of the program, since two of them may go on with the same topics. The seed is secret.
    fn hash(&self, name: &str) -> u64 {
        let seed = self.seed.load(Ordering::Relaxed);
        // FNV-1a's prime.
        let add = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        mix(name.bytes().fold(mix(seed), add))
    }
}

fn place(hash: u64) -> usize {
    hash as usize % PLACES
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
    fn epoch_changes_when_a_topic_begins_anew_and_with_the_server() {
        let (one, other) = (Epochs::new(), Epochs::new());
        let mut seen = HashSet::from([one.of("a"), one.of("b"), other.of("a")]);
        assert!(seen.len() == 3 && one.of("a") == one.of("a"));
        for _ in 0..1_000 {
            one.begin_anew("a");
            assert!(seen.insert(one.of("a")) && one.of("a") < 1 << 53);
        }
    }

    #[test]
    fn epochs_are_the_same_after_a_restore() {
        let (one, other) = (Epochs::new(), Epochs::new());
        let names: Vec<String> = (0..1_000).map(|number| format!("kept.{number}")).collect();
        names.iter().step_by(3).for_each(|name| one.begin_anew(name));
        other.begin_anew("kept.1");
        let exported = one.export();
        for broken in [&exported[..7], &exported[..exported.len() - 1], &[0xff; 16]] {
            let before = other.of("kept.0");
            assert!(!other.restore(broken) && other.of("kept.0") == before);
        }
        let other = Epochs::new();
        assert!(other.restore(&exported) && other.export() == exported);
        assert!(names.iter().all(|name| one.of(name) == other.of(name)));
    }
}
