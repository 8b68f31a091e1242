//! Claims of the ownership of a topic's keys.
//!
//! Of two claims to a topic, all nodes follow the same: the higher term, since its node has seen the end of the earlier
//! owner; then the lower epoch, which is older; then the lower id.

use std::cmp::{Ordering, Reverse};

use crate::topics::shared_keys::Claim;

impl Claim {
    /// Whether all nodes follow this claim rather than another one of the topic.
    pub(super) fn beats(&self, other: &Self) -> bool {
        let order = |claim: &Self| (claim.term, Reverse(claim.epoch), Reverse(claim.owner));
        order(self).cmp(&order(other)) == Ordering::Greater
    }
}

/// Hash of a topic for [`weight`]: FNV-1a. All versions of the program must compute the same.
pub(super) fn topic_hash(topic: &str) -> u64 {
    topic.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Weight of a node for a topic: rendezvous hashing by the finalizer of SplitMix64. The node with the highest one claims.
pub(super) fn weight(node: u128, topic_hash: u64) -> (u64, u128) {
    let mut hash = topic_hash;
    for half in [node as u64, (node >> 64) as u64] {
        hash ^= half;
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        hash ^= hash >> 31;
    }
    (hash, node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_claims_have_one_order() {
        let claim = |term, epoch, owner| Claim { term, epoch, owner };
        // From the strongest to the weakest.
        let all = [claim(2, 9, 2), claim(2, 10, 1), claim(1, 5, 1), claim(1, 5, 2), claim(1, 6, 1)];
        for (at, one) in all.iter().enumerate() {
            for (other_at, other) in all.iter().enumerate() {
                assert_eq!(one.beats(other), at < other_at, "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn topics_are_spread_over_the_nodes() {
        let mut counts = [0; 3];
        for topic in (0..300).map(|number| topic_hash(&format!("prices.{number}"))) {
            let first = (0..3_u128).max_by_key(|node| weight(node << 64 | 7, topic)).unwrap();
            counts[first as usize] += 1;
        }
        assert!(counts.iter().all(|count| *count > 60), "{counts:?}");
    }
}
