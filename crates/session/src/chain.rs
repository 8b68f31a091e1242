//! One send's bytes: small pieces in an arena, large payloads by reference between them.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::Bytes;

use crate::pool::Pool;

/// Queued bytes in transmission order. A driver takes the chain by value for the duration of a send, reports the
/// kernel's progress with [`advance`](Self::advance), and returns the chain to its session.
#[derive(Debug, Default)]
pub struct Chain {
    /// Frame heads and small payloads, contiguous.
    arena: Vec<u8>,
    /// Large payloads that are interleaved with the arena.
    large: VecDeque<LargePayload>,
    /// Sent arena bytes.
    arena_sent: usize,
    /// Sent entries in `large`.
    large_sent: usize,
    /// Bytes that are not sent yet.
    len: usize,
}

#[derive(Debug)]
struct LargePayload {
    /// Arena bytes before this offset are sent before this payload.
    at: usize,
    bytes: Bytes,
    /// A whole published message, which the overflow policy may drop.
    droppable: bool,
}

impl Chain {
    /// Bytes that are not sent yet.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether all bytes are sent.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The remaining bytes, if they are contiguous: the rest of the arena without large payloads.
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> Option<&[u8]> {
        (self.large_sent == self.large.len()).then(|| &self.arena[self.arena_sent..])
    }

    /// Fills `out` with the next slices to send and returns the number of filled entries.
    pub fn slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        let mut filled = 0;
        let mut arena_at = self.arena_sent;
        let mut put = |bytes: &'a [u8]| match out.get_mut(filled) {
            Some(slot) if !bytes.is_empty() => {
                *slot = IoSlice::new(bytes);
                filled += 1;
                true
            }
            slot => slot.is_some(),
        };
        for large in self.large.range(self.large_sent..) {
            if !put(&self.arena[arena_at..large.at]) || !put(&large.bytes) {
                return filled;
            }
            arena_at = large.at;
        }
        put(&self.arena[arena_at..]);
        filled
    }

    /// The remaining bytes, slice by slice. No slice is empty.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let large = self.large.range(self.large_sent..);
        let tail = large.clone().next_back().map_or(self.arena_sent, |large| large.at);
        let mut at = self.arena_sent;
        let pairs = large.flat_map(move |large| {
            let before = &self.arena[std::mem::replace(&mut at, large.at)..large.at];
            [before, &large.bytes]
        });
        pairs.chain([&self.arena[tail..]]).filter(|piece| !piece.is_empty())
    }

    /// Marks the next `count` bytes as sent.
    pub fn advance(&mut self, count: usize) {
        debug_assert!(count <= self.len, "advance past the end of the chain");
        let mut count = count.min(self.len);
        self.len -= count;
        while count > 0 {
            let until = self.large.get(self.large_sent).map_or(self.arena.len(), |large| large.at);
            let step = count.min(until - self.arena_sent);
            self.arena_sent += step;
            count -= step;
            if count == 0 {
                break;
            }
            let Some(large) = self.large.get_mut(self.large_sent) else { break };
            let step = count.min(large.bytes.len());
            bytes::Buf::advance(&mut large.bytes, step);
            count -= step;
            if large.bytes.is_empty() {
                self.large_sent += 1;
            }
        }
    }

    /// Moves the next `count` bytes to the end of another chain: small pieces are copied, and larger payload parts are
    /// shared.
    pub fn move_to(&mut self, count: usize, out: &mut Self) {
        debug_assert!(count <= self.len, "move past the end of the chain");
        let mut count = count.min(self.len);
        self.len -= count;
        while count > 0 {
            let until = self.large.get(self.large_sent).map_or(self.arena.len(), |large| large.at);
            let step = count.min(until - self.arena_sent);
            let piece = &self.arena[self.arena_sent..][..step];
            out.write(|arena| arena.extend_from_slice(piece));
            self.arena_sent += step;
            count -= step;
            if count == 0 {
                break;
            }
            let Some(large) = self.large.get_mut(self.large_sent) else { break };
            let step = count.min(large.bytes.len());
            let piece = large.bytes.split_to(step);
            if step <= PIECE_COPY_MAX {
                out.write(|arena| arena.extend_from_slice(&piece));
            } else {
                out.push_bytes(piece);
            }
            count -= step;
            if large.bytes.is_empty() {
                self.large_sent += 1;
            }
        }
    }

    /// Appends the bytes that `write` adds to the end of a buffer.
    #[inline]
    pub fn write<R>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        let before = self.arena.len();
        let result = write(&mut self.arena);
        self.len += self.arena.len() - before;
        result
    }

    /// Moves another chain's unsent bytes to the end of this chain.
    pub(crate) fn append(&mut self, other: &mut Self) {
        let (start, sent) = (self.arena.len(), other.arena_sent);
        self.arena.extend_from_slice(&other.arena[sent..]);
        let moved = other.large.drain(other.large_sent..);
        self.large.extend(moved.map(|large| LargePayload { at: large.at - sent + start, ..large }));
        self.len += other.len;
        other.clear(0);
    }

    /// Appends a payload by reference.
    pub fn push_bytes(&mut self, bytes: Bytes) {
        self.push(bytes, false);
    }

    pub(crate) fn push(&mut self, bytes: Bytes, droppable: bool) {
        self.len += bytes.len();
        self.large.push_back(LargePayload { at: self.arena.len(), bytes, droppable });
    }

    /// Drops the oldest droppable messages until `count` bytes are freed or no droppable message is left. Droppable
    /// messages are at the front, except for messages sent to this connection alone, so the cost does not depend on the
    /// queue's length. Returns the dropped byte and message counts.
    pub(crate) fn drop_oldest(&mut self, count: usize) -> (usize, usize) {
        let (mut dropped, mut messages, mut at) = (0, 0, self.large_sent);
        while dropped < count && at < self.large.len() {
            match self.large.get(at) {
                Some(large) if large.droppable => {
                    dropped += large.bytes.len();
                    messages += 1;
                    self.large.remove(at);
                }
                _ => at += 1,
            }
        }
        self.len -= dropped;
        (dropped, messages)
    }

    /// Takes the memory of a payload that was sent by reference and has no other owner.
    pub(crate) fn take_memory(&mut self) -> Option<Vec<u8>> {
        while let Some(mut large) = self.large.pop_back() {
            if !large.droppable && large.bytes.is_unique() {
                // The rest of the payload is sent already or is never sent.
                let left = large.bytes.len();
                bytes::Buf::advance(&mut large.bytes, left);
                return Some(Vec::from(large.bytes));
            }
        }
        None
    }

    /// Whether memory of large messages can be reclaimed once the chain is sent.
    #[must_use]
    pub fn holds_large(&self) -> bool {
        !self.large.is_empty() || self.arena.capacity() > Pool::CAPACITY_MAX
    }

    /// Takes the arena if it is larger than the pool's limit. No byte of the arena may be unsent.
    pub(crate) fn take_large_arena(&mut self) -> Option<Vec<u8>> {
        (self.arena.capacity() > Pool::CAPACITY_MAX).then(|| {
            self.arena_sent = 0;
            std::mem::take(&mut self.arena)
        })
    }

    /// Empties the chain. Returns whether it is worth keeping: its buffers hold at most `max` bytes.
    pub(crate) fn clear(&mut self, max: usize) -> bool {
        self.arena.clear();
        self.large.clear();
        (self.arena_sent, self.large_sent, self.len) = (0, 0, 0);
        self.arena.capacity() <= max && self.large.capacity() * size_of::<LargePayload>() <= max
    }
}

/// Payload parts up to this length are copied: an entry of a vectored send costs about as much.
const PIECE_COPY_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Chain, Vec<u8>) {
        let mut chain = Chain::default();
        chain.write(|arena| arena.extend_from_slice(b"ab"));
        chain.push(Bytes::from_static(b"CDE"), false);
        chain.push(Bytes::from_static(b"FG"), true);
        chain.write(|arena| arena.extend_from_slice(b"hij"));
        (chain, b"abCDEFGhij".to_vec())
    }

    fn content(chain: &Chain) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 8];
        let filled = chain.slices(&mut slices);
        let content: Vec<u8> = slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect();
        assert_eq!(chain.pieces().count(), filled);
        assert_eq!(chain.pieces().collect::<Vec<_>>().concat(), content);
        content
    }

    #[test]
    fn bytes_are_sent_in_order_for_every_slice_size() {
        let (whole, expected) = sample();
        assert_eq!(content(&whole), expected);
        for first in 0..=expected.len() {
            for second in 0..=expected.len() - first {
                let (mut chain, _) = sample();
                chain.advance(first);
                assert_eq!(content(&chain), expected[first..]);
                chain.advance(second);
                assert_eq!(content(&chain), expected[first + second..], "{first} then {second}");
                assert_eq!(chain.len(), expected.len() - first - second);
            }
        }
    }

    #[test]
    fn moved_bytes_keep_their_order_and_large_payloads_are_shared() {
        for (first, second) in (0..=10).flat_map(|a| (0..=10 - a).map(move |b| (a, b))) {
            let ((mut chain, expected), mut out) = (sample(), Chain::default());
            chain.move_to(first, &mut out);
            chain.move_to(second, &mut out);
            assert_eq!(content(&out), expected[..first + second]);
            assert_eq!(content(&chain), expected[first + second..]);
            assert_eq!((out.len(), chain.len()), (first + second, expected.len() - first - second));
        }
        let (mut chain, mut out) = (Chain::default(), Chain::default());
        let payload = Bytes::from(vec![7; 10_000]);
        chain.push_bytes(payload.clone());
        chain.move_to(6_000, &mut out);
        assert_eq!(out.pieces().next().map(<[u8]>::as_ptr), Some(payload.as_ptr()), "not copied");
        assert_eq!((out.len(), chain.len()), (6_000, 4_000));
    }

    #[test]
    fn append_keeps_order_of_partly_sent_chains() {
        let (_, expected) = sample();
        for (first, second) in (0..=expected.len()).flat_map(|a| (0..=expected.len()).map(move |b| (a, b))) {
            let ((mut chain, _), (mut other, _)) = (sample(), sample());
            chain.advance(first);
            other.advance(second);
            chain.append(&mut other);
            assert!(other.is_empty());
            let mut sent = Vec::new();
            while !chain.is_empty() {
                sent.push(content(&chain)[0]);
                chain.advance(1);
            }
            assert_eq!(sent, [&expected[first..], &expected[second..]].concat());
        }
    }

    #[test]
    fn short_slice_array_gets_a_prefix() {
        let (chain, expected) = sample();
        for entries in 0..4 {
            let mut slices = vec![IoSlice::new(&[]); entries];
            let filled = chain.slices(&mut slices);
            let prefix: Vec<u8> = slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect();
            assert!(expected.starts_with(&prefix));
            assert_eq!(filled, entries);
        }
    }

    #[test]
    fn take_memory_returns_uniquely_owned_payload() {
        let mut chain = Chain::default();
        let mut payload = Vec::with_capacity(1 << 20);
        payload.extend_from_slice(&[7; 1000]);
        let elsewhere = Bytes::from(vec![1; 1000]);
        chain.push_bytes(Bytes::from(payload));
        chain.push_bytes(elsewhere.clone());
        chain.push_bytes(Bytes::from_static(b"static"));
        chain.push(Bytes::from(vec![2; 1000]), true);
        chain.advance(2500);
        let memory = chain.take_memory().expect("the first payload has one owner");
        assert_eq!((memory.len(), memory.capacity()), (0, 1 << 20));
        assert_eq!(chain.take_memory(), None);
        assert_eq!(elsewhere[..], [1; 1000]);
    }

    #[test]
    fn drop_oldest_drops_only_published_messages_in_order() {
        let mut chain = Chain::default();
        chain.push(Bytes::from_static(b"own"), false);
        chain.push(Bytes::from_static(b"old"), true);
        chain.push(Bytes::from_static(b"new"), true);
        assert_eq!(chain.drop_oldest(1), (3, 1));
        assert_eq!(content(&chain), b"ownnew");
        assert_eq!(chain.drop_oldest(100), (3, 1));
        assert_eq!(content(&chain), b"own");
        assert_eq!(chain.len(), 3);
    }
}
