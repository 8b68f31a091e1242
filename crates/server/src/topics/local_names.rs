//! The topics of a thread by their names.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;

use hashbrown::HashTable;

/// The indices of a thread's topics by their names, which the topics have: there may be a topic for each connection.
/// Names are chosen by clients, so their hash is keyed.
#[derive(Debug, Default)]
pub(super) struct LocalNames {
    indices: HashTable<u32>,
    hasher: RandomState,
}

impl LocalNames {
    /// Returns the index of a topic.
    #[inline]
    pub(super) fn get<'a>(&self, name: &str, name_of: impl Fn(usize) -> &'a str) -> Option<usize> {
        let hash = self.hasher.hash_one(name);
        self.indices.find(hash, |index| name_of(*index as usize) == name).map(|index| *index as usize)
    }

    /// Adds a topic whose name is absent. A topic whose index exceeds 32 bits cannot have subscribers
    /// ([`SubscriberIndex`](super::registry::SubscriberIndex)), and is not found.
    pub(super) fn insert<'a>(&mut self, index: usize, name_of: impl Fn(usize) -> &'a str) {
        let Ok(index) = u32::try_from(index) else { return };
        let hash = |index: &u32| self.hasher.hash_one(name_of(*index as usize));
        self.indices.insert_unique(hash(&index), index, hash);
    }

    /// Removes the name of a topic.
    pub(super) fn remove(&mut self, index: usize, name: &str) {
        let hash = self.hasher.hash_one(name);
        if let Ok(found) = self.indices.find_entry(hash, |known| *known as usize == index) {
            found.remove();
        }
    }
}
