//! Connection ids. An id is the connection itself, sealed with this process's key: clients cannot guess it, and no
//! table leads from an id to its connection. An id repeats when a worker has a connection with equal slot and
//! generation: a generation is a 32-bit count, so this takes 2^32 connections on one worker.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;

use ring::hmac;
use ring::rand::SystemRandom;
use sinews_server::SubscriberId;

/// Seals and opens the ids of this process's connections.
#[derive(Debug)]
pub(crate) struct SocketIds {
    /// `None` without random numbers.
    key: Option<hmac::Key>,
    /// Hides the connection count from clients; the tag protects the id.
    mask: RandomState,
}

/// Bits of an id below the hidden connection: its tag.
const TAG_BITS: u32 = u128::BITS - SubscriberId::BITS;

const TAG_MASK: u128 = (1 << TAG_BITS) - 1;

impl Default for SocketIds {
    fn default() -> Self {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok();
        Self { key, mask: RandomState::new() }
    }
}

impl SocketIds {
    /// A connection's id; `None` without random numbers.
    pub(crate) fn seal(&self, subscriber: SubscriberId) -> Option<u128> {
        let connection = subscriber.to_bits();
        let tag = self.tag(connection)?;
        Some((connection ^ self.hidden_by(tag)) << TAG_BITS | tag)
    }

    /// The connection with an id, if it belongs to this process. It may have closed.
    pub(crate) fn open(&self, id: u128) -> Option<SubscriberId> {
        let tag = id & TAG_MASK;
        let connection = id >> TAG_BITS ^ self.hidden_by(tag);
        (self.tag(connection)? == tag).then(|| SubscriberId::from_bits(connection))
    }

    fn tag(&self, connection: u128) -> Option<u128> {
        let signature = hmac::sign(self.key.as_ref()?, &connection.to_le_bytes());
        let bytes = signature.as_ref().first_chunk()?;
        Some(u128::from_le_bytes(*bytes) & TAG_MASK)
    }

    fn hidden_by(&self, tag: u128) -> u128 {
        let [high, low] = [0, 1].map(|half: u8| u128::from(self.mask.hash_one((half, tag))));
        (high << u64::BITS | low) >> TAG_BITS
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn pusher_1_5_socket_ids_are_opened_by_their_process_only() {
        let (ids, other) = (SocketIds::default(), SocketIds::default());
        let mut known = HashSet::new();
        for number in 0..1_000_u128 {
            // Neighbors in each part of the number.
            for connection in [number, number << 32, number << 64] {
                let subscriber = SubscriberId::from_bits(connection);
                let id = ids.seal(subscriber).unwrap();
                assert_eq!(ids.open(id), Some(subscriber));
                assert_eq!(other.open(id), None);
                assert_eq!(ids.open(id ^ 1 << (number % 128)), None, "a changed id");
                known.insert(id);
            }
        }
        assert_eq!(known.len(), 2_998, "0 is the same connection three times");
        assert_eq!(ids.open(0), None);
    }
}
