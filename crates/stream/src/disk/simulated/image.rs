//! Files and directories of the simulated disk: as a process sees them, and as the disk has them.

use std::collections::BTreeMap;

/// Pseudo-random numbers, determined by the seed.
#[derive(Clone)]
pub(crate) struct SimRng(u64);

impl SimRng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bf0_3635)
    }

    /// SplitMix64.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end.max(1)
    }

    pub(crate) fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}

#[derive(Clone, Default)]
pub(super) struct FileNode {
    pub(super) seen: Vec<u8>,
    pub(super) durable: Vec<u8>,
    /// Changes since the last sync.
    pub(super) changes: Vec<FileChange>,
}

#[derive(Clone)]
pub(super) enum FileChange {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DirEntry {
    File(usize),
    Directory,
}

pub(super) type DirEntries = BTreeMap<String, DirEntry>;

#[derive(Clone, Default)]
pub(super) struct DirNode {
    pub(super) seen: DirEntries,
    pub(super) durable: DirEntries,
    /// Changes since the last sync: each is applied as a whole or not at all.
    pub(super) changes: Vec<Vec<(String, Option<DirEntry>)>>,
}

pub(super) enum ImageKind {
    Seen,
    Durable,
}

impl FileNode {
    pub(super) fn image(&mut self, image: ImageKind) -> &mut Vec<u8> {
        match image {
            ImageKind::Seen => &mut self.seen,
            ImageKind::Durable => &mut self.durable,
        }
    }

    pub(super) fn change(&mut self, change: FileChange) {
        change.apply(&mut self.seen);
        self.changes.push(change);
    }

    /// Applies a random part of the changes since the last sync, in random order.
    pub(super) fn lose_power(&mut self, chance: &mut SimRng) {
        let most = chance.below(3);
        for change in std::mem::take(&mut self.changes) {
            match (most, change) {
                (0, _) => break,
                (1, change) => change.apply(&mut self.durable),
                (_, FileChange::Truncate(bytes)) if chance.one_in(2) => {
                    FileChange::Truncate(bytes).apply(&mut self.durable)
                }
                (_, FileChange::Truncate(_)) => {}
                (_, FileChange::Write(at, bytes)) => {
                    // In pieces, like pages.
                    let mut start = 0;
                    while start < bytes.len() {
                        let end = bytes.len().min(start + 1 + chance.below(200) as usize);
                        if !chance.one_in(3) {
                            FileChange::Write(at + start, bytes[start..end].to_vec())
                                .apply(&mut self.durable);
                        }
                        start = end;
                    }
                }
            }
            if chance.one_in(8) {
                break;
            }
        }
        self.changes.clear();
        self.seen = self.durable.clone();
    }
}

impl FileChange {
    pub(super) fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write(at, written) => {
                let end = at + written.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[*at..end].copy_from_slice(written);
            }
            Self::Truncate(length) => bytes.truncate(*length),
        }
    }
}

impl DirNode {
    pub(super) fn change(&mut self, change: Vec<(String, Option<DirEntry>)>) {
        apply(&mut self.seen, &change);
        self.changes.push(change);
    }

    pub(super) fn lose_power(&mut self, chance: &mut SimRng) {
        for change in std::mem::take(&mut self.changes) {
            if chance.one_in(2) {
                apply(&mut self.durable, &change);
            }
        }
        self.seen = self.durable.clone();
    }
}

pub(super) fn apply(names: &mut DirEntries, change: &[(String, Option<DirEntry>)]) {
    for (name, entry) in change {
        match entry {
            Some(entry) => names.insert(name.clone(), *entry),
            None => names.remove(name),
        };
    }
}
