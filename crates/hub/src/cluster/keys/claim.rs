//! Claims to own a topic's keys.
//!
//! If two nodes claim a topic, all nodes follow the same claim: the higher term, since its node has seen the earlier
//! owner's end; then the lower epoch, which is older; then the lower id.

use std::cmp::{Ordering, Reverse};

use crate::model::stable_hash::{fnv, mix};
use crate::topics::shared_keys::Claim;

impl Claim {
    /// Returns whether all nodes follow this claim rather than another one to the topic.
    pub(super) fn beats(&self, other: &Self) -> bool {
        let order = |claim: &Self| (claim.term, Reverse(claim.epoch), Reverse(claim.owner));
        order(self).cmp(&order(other)) == Ordering::Greater
    }
}

/// Returns the hash of a topic for [`weight`].
pub(super) fn topic_hash(topic: &str) -> u64 {
    fnv(topic.bytes())
}

/// Returns a node's weight for a topic: rendezvous hashing. The node with the highest one claims.
pub(super) fn weight(node: u128, topic_hash: u64) -> (u64, u128) {
    let halves = [node as u64, (node >> 64) as u64];
    (halves.into_iter().fold(topic_hash, |hash, half| mix(hash ^ half)), node)
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
