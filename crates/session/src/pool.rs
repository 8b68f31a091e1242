//! Spare buffers of one thread.

use crate::chain::Chain;

/// Buffers that connections borrow while they have something to hold, so that an idle one owns none.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    spare: Vec<Vec<u8>>,
    #[expect(clippy::vec_box, reason = "they come and go boxed: a connection holds one word for each")]
    chains: Vec<Box<Chain>>,
}

/// Most buffers kept, and most chains.
const SPARE_MAX: usize = 256;

/// What a connection may keep whatever it holds: shrinking less than this at each segment costs more than it
/// saves.
const TIGHT_MIN: usize = 1 << 10;

impl Pool {
    /// Largest buffer kept: one large message must not raise the thread's memory for good.
    pub(crate) const CAPACITY_MAX: usize = 64 << 10;

    /// An empty chain, with a buffer if one was spare.
    #[inline]
    pub(crate) fn take_chain(&mut self) -> Box<Chain> {
        self.chains.pop().unwrap_or_default()
    }

    /// Takes a chain back, whatever is left in it; what it held by reference was taken out before.
    #[inline]
    pub(crate) fn give_chain(&mut self, mut chain: Box<Chain>) {
        if self.chains.len() < SPARE_MAX && chain.clear(Self::CAPACITY_MAX) {
            self.chains.push(chain);
        }
    }

    /// An empty buffer, with capacity if one was spare.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// A buffer that stays with a connection, with hardly more capacity than it needs: memory follows
    /// the bytes received. One that is larger than any of the pool grew by as much as came, or is a spare
    /// of the thread's, which are bounded.
    pub(crate) fn keep_tight(&mut self, buffer: Vec<u8>) -> Vec<u8> {
        let tight = (2 * buffer.len()).max(TIGHT_MIN);
        if buffer.capacity() <= tight || buffer.capacity() > Self::CAPACITY_MAX {
            return buffer;
        }
        let tight = Vec::from(&buffer[..]);
        self.give(buffer);
        tight
    }

    /// Takes a buffer back; it is freed if it is too large or enough are there.
    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        let fits = (1..=Self::CAPACITY_MAX).contains(&buffer.capacity());
        if fits && self.spare.len() < SPARE_MAX {
            buffer.clear();
            self.spare.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_empty_and_a_large_one_does_not() {
        let mut pool = Pool::default();
        assert_eq!(pool.take().capacity(), 0);
        pool.give(vec![1; 100]);
        let again = pool.take();
        assert!(again.is_empty() && again.capacity() >= 100);
        pool.give(Vec::with_capacity(Pool::CAPACITY_MAX + 1));
        assert_eq!(pool.take().capacity(), 0);
    }

    #[test]
    fn the_number_of_spare_buffers_is_bounded() {
        let mut pool = Pool::default();
        for _ in 0..2 * SPARE_MAX {
            pool.give(vec![0; 1]);
        }
        assert_eq!(pool.spare.len(), SPARE_MAX);
    }
}
