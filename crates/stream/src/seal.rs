//! Segment seals: a secret key per segment and the tags computed with it.
//!
//! A payload may hold any bytes, including a batch with valid checksums. So a batch behind damage is accepted only if
//! its header carries the tag of its position: SipHash-2-4 under a key that is random for each segment and never leaves
//! the file's head. `docs/book/src/reference/streams-format.md` has the argument.

use std::io;

use crate::record::{BATCH_HEADER, PLAIN_HEADER, u32_at, u64_at};

/// Bytes before the first batch of a segment: two copies of [`COPY`] bytes.
pub(crate) const HEAD: usize = 2 * COPY;

/// Bytes in one head copy.
const COPY: usize = 64;

/// At the position of a batch's flags, so that version 1 takes the file for a newer version's.
const MAGIC: u32 = 0x32_53_4e_53;

/// Maximum bits in which the first copy may differ from the second if the second is to be used: one byte.
const FLIPPED_MOST: u32 = 8;

/// Attribute: readers see only synced records in the segment.
const SYNCED: u32 = 1;

/// Attribute: the segment replaces the records of the previous segment from this segment's base on.
const REPLACES: u32 = 2;

/// Attribute: compaction has written the segment.
const COMPACTED: u32 = 4;

/// A segment's head content, before its batches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) seal: Seal,
    /// When the segment was created, in microseconds since 1970.
    pub(crate) created: u64,
    /// Readers see only batches that were synced.
    pub(crate) synced: bool,
    /// Batches in the previous segment, from this segment's base on, could not be synced and do not count.
    pub(crate) replaces: bool,
    /// Compaction has written the segment, and removed the records before this offset that have a newer record with
    /// their key before this offset.
    pub(crate) compacted: Option<u64>,
}

/// A segment's key and base.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seal {
    base: u64,
    key: (u64, u64),
}

/// A segment file's layout.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentLayout {
    /// Position of the first batch.
    pub(crate) start: u64,
    /// None: version 1, which has no tags, or both head copies are damaged.
    pub(crate) head: Option<SegmentHeader>,
}

impl Seal {
    /// Creates a new segment's seal.
    pub(crate) fn random(base: u64) -> io::Result<Self> {
        let mut key = [0; 16];
        getrandom::fill(&mut key).map_err(io::Error::other)?;
        Ok(Self { base, key: (u64_at(&key, 0), u64_at(&key, 8)) })
    }

    #[cfg(test)]
    pub(crate) fn new(base: u64, key: (u64, u64)) -> Self {
        Self { base, key }
    }

    /// Computes the tag for a header at a file position, from the fields that describe the batch.
    pub(crate) fn tag(&self, position: u64, header: &[u8; BATCH_HEADER]) -> u64 {
        let word = |at| u64_at(header, at);
        let length_and_count = u64::from(u32_at(header, 4)) | u64::from(u32_at(header, 24)) << 32;
        let flags = u64::from(u32_at(header, 28));
        siphash(self.key.0, self.key.1, [self.base, position, length_and_count, word(8), word(16), flags])
    }
}

impl std::fmt::Debug for Seal {
    /// Omits the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seal").field("base", &self.base).finish_non_exhaustive()
    }
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; HEAD] {
        let mut copy = [0; COPY];
        copy[4..8].copy_from_slice(&(HEAD as u32).to_le_bytes());
        copy[8..16].copy_from_slice(&self.seal.base.to_le_bytes());
        copy[16..24].copy_from_slice(&self.created.to_le_bytes());
        copy[24..28].copy_from_slice(&1u32.to_le_bytes());
        copy[28..32].copy_from_slice(&MAGIC.to_le_bytes());
        let attributes = if self.synced { SYNCED } else { 0 }
            | if self.replaces { REPLACES } else { 0 }
            | if self.compacted.is_some() { COMPACTED } else { 0 };
        copy[36..40].copy_from_slice(&attributes.to_le_bytes());
        copy[40..48].copy_from_slice(&self.seal.key.0.to_le_bytes());
        copy[48..56].copy_from_slice(&self.seal.key.1.to_le_bytes());
        copy[56..64].copy_from_slice(&self.compacted.unwrap_or(0).to_le_bytes());
        for (at, end) in [(0, 32), (32, COPY)] {
            let crc = crc32c::crc32c(&copy[at + 4..end]);
            copy[at..at + 4].copy_from_slice(&crc.to_le_bytes());
        }
        let mut head = [0; HEAD];
        head[..COPY].copy_from_slice(&copy);
        head[COPY..].copy_from_slice(&copy);
        head
    }

    /// Identifies the segment, since the key is random.
    pub(crate) fn checksum(&self) -> u32 {
        crc32c::crc32c(&self.encode())
    }

    /// Decodes one copy, if it is valid and belongs to the segment with this base.
    fn decode(copy: &[u8], base: u64) -> Option<Self> {
        let is_intact = |at: usize, end: usize| u32_at(copy, at) == crc32c::crc32c(&copy[at + 4..end]);
        let is_head = is_intact(0, 32) && is_intact(32, COPY) && u32_at(copy, 28) == MAGIC;
        let attributes = u32_at(copy, 36);
        (is_head && u64_at(copy, 8) == base).then(|| Self {
            seal: Seal { base, key: (u64_at(copy, 40), u64_at(copy, 48)) },
            created: u64_at(copy, 16),
            synced: attributes & SYNCED != 0,
            replaces: attributes & REPLACES != 0,
            compacted: (attributes & COMPACTED != 0).then(|| u64_at(copy, 56)),
        })
    }
}

impl SegmentLayout {
    /// Framing for a segment created with this head.
    pub(crate) fn from_header(head: SegmentHeader) -> Self {
        Self { start: HEAD as u64, head: Some(head) }
    }

    /// Framing for the segment with this base whose file begins with `bytes`: [`HEAD`] bytes, or fewer if the file is
    /// shorter.
    pub(crate) fn decode(bytes: &[u8], base: u64) -> Self {
        let is_begun = |bytes: &[u8]| u32_at(bytes, 28) == MAGIC;
        let Some(bytes) = bytes.first_chunk::<HEAD>() else {
            // An unfinished head, or a version 1 file that may hold a batch.
            let is_torn = bytes.len() < PLAIN_HEADER || is_begun(bytes);
            return Self { start: if is_torn { bytes.len() as u64 } else { 0 }, head: None };
        };
        let (first, second) = bytes.split_at(COPY);
        // In a version 1 file a payload occupies the position of the second copy. So the first copy must be nearly the
        // same.
        let flipped = || first.iter().zip(second).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
        let head = SegmentHeader::decode(first, base)
            .or_else(|| SegmentHeader::decode(second, base).filter(|_| flipped() <= FLIPPED_MOST));
        let has_head = head.is_some() || is_begun(first);
        Self { start: if has_head { HEAD as u64 } else { 0 }, head }
    }

    /// Framing for the segment with this base whose file has this length and begins with `bytes`.
    pub(crate) fn from_file(bytes: &[u8], length: u64, base: u64) -> Self {
        let layout = Self::decode(bytes, base);
        let is_whole = bytes.len() as u64 == length;
        if layout.head.is_none() && is_whole && is_unfinished(bytes, base) {
            return Self { start: length, head: None };
        }
        layout
    }

    pub(crate) fn seal(&self) -> Option<&Seal> {
        self.head.as_ref().map(|head| &head.seal)
    }
}

/// Whether a file holds only a head torn by a power loss: each byte has the head's value, or is zero.
fn is_unfinished(file: &[u8], base: u64) -> bool {
    let is_batch = |header: &[u8]| u32_at(header, 0) == crc32c::crc32c(&header[4..]);
    if file.len() > HEAD || file.get(..PLAIN_HEADER).is_some_and(is_batch) {
        return false;
    }
    let seal = Seal { base, key: (0, 0) };
    let known = SegmentHeader { seal, created: 0, synced: false, replaces: false, compacted: None };
    let known = known.encode();
    file.iter().zip(known).enumerate().all(|(at, (&byte, known))| {
        // Checksums, creation time, attributes and key.
        let is_any = matches!(at % COPY, 0..4 | 16..24 | 32..37 | 40..56);
        is_any || byte == 0 || byte == known
    })
}

/// SipHash-2-4 (Aumasson and Bernstein, 2012) over whole words.
fn siphash(k0: u64, k1: u64, words: [u64; 6]) -> u64 {
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    let length = (words.len() as u64 * 8) << 56;
    for word in words.into_iter().chain([length]) {
        v[3] ^= word;
        round(&mut v);
        round(&mut v);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    (0..4).for_each(|_| round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[2] = v[2].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[1]);
    v[0] = v[0].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> SegmentHeader {
        SegmentHeader {
            seal: Seal::new(7, (0x0706_0504_0302_0100, 99)),
            created: 5,
            synced: true,
            replaces: false,
            compacted: None,
        }
    }

    #[test]
    #[allow(deprecated)]
    fn tag_is_siphash_2_4() {
        // The standard library has the same function, deprecated because its name is that of its algorithm.
        use std::hash::{Hasher, SipHasher};
        let k0 = 0x0706_0504_0302_0100;
        let k1 = 0x0f0e_0d0c_0b0a_0908;
        for seed in 0..100u64 {
            let words = [0, 1, 2, 3, 4, 5].map(|n: u64| (n + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mut hasher = SipHasher::new_with_keys(k0, k1);
            words.iter().for_each(|word| hasher.write(&word.to_le_bytes()));
            assert_eq!(siphash(k0, k1, words), hasher.finish());
        }
    }

    #[test]
    fn key_survives_flipped_byte_in_head() {
        let good = head().encode();
        assert!(SegmentLayout::decode(&good, 7) == SegmentLayout::from_header(head()));
        for at in 0..HEAD {
            for flip in [1, 0x80, 0xff] {
                let mut bad = good;
                bad[at] ^= flip;
                assert!(SegmentLayout::decode(&bad, 7) == SegmentLayout::from_header(head()), "{at}");
            }
        }
        // The head is invalid for another segment.
        assert!(SegmentLayout::decode(&good, 8).head.is_none());
    }

    #[test]
    fn head_with_both_copies_damaged_has_no_key() {
        let mut bad = head().encode();
        bad[40] ^= 1;
        bad[COPY + 41] ^= 1;
        let layout = SegmentLayout::decode(&bad, 7);
        assert_eq!((layout.start, layout.head.is_none()), (HEAD as u64, true));
    }

    #[test]
    fn second_copy_in_the_payload_of_a_version_1_file_is_ignored() {
        let mut file = [0; HEAD];
        file[COPY..].copy_from_slice(&head().encode()[COPY..]);
        assert_eq!(SegmentLayout::decode(&file, 7).start, 0);
        assert_eq!(SegmentLayout::decode(&[], 7).start, 0);
        assert_eq!(SegmentLayout::decode(&file[..HEAD - 1], 7).start, 0);
    }

    #[test]
    fn unfinished_head_is_followed_by_no_batches() {
        let good = head().encode();
        for end in 0..HEAD {
            let layout = SegmentLayout::decode(&good[..end], 7);
            assert_eq!((layout.start, layout.head.is_none()), (end as u64, true));
        }
    }
}
