//! Spare buffers of one thread.

use crate::chain::Chain;

/// Buffers that connections borrow while they hold data, so that an idle connection owns none.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    spare: Stack<Vec<u8>>,
    chains: Stack<Box<Chain>>,
}

/// Spare objects of one kind, most recently used on top. The objects at the bottom are idle.
#[derive(Debug)]
struct Stack<T> {
    items: Vec<T>,
    /// Lowest number of spares since the last [`release_idle`](Self::release_idle): the number of unused
    /// objects.
    idle: usize,
}

impl<T> Default for Stack<T> {
    fn default() -> Self {
        Self { items: Vec::new(), idle: 0 }
    }
}

impl<T> Stack<T> {
    #[inline]
    fn take(&mut self) -> Option<T> {
        let item = self.items.pop()?;
        self.idle = self.idle.min(self.items.len());
        Some(item)
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.items.len() >= SPARE_MAX
    }

    /// Frees the objects that were not used since the last call. Returns whether some are left.
    fn release_idle(&mut self) -> bool {
        self.items.drain(..self.idle);
        self.items.shrink_to(2 * self.items.len());
        self.idle = self.items.len();
        self.idle > 0
    }
}

/// Limit for spare buffers, and for spare chains.
const SPARE_MAX: usize = 256;

/// A connection may keep this much for any content: shrinking by less at each segment costs more than it
/// saves.
const TIGHT_MIN: usize = 1 << 10;

impl Pool {
    /// Largest buffer in the pool, so that one large message does not raise the thread's memory
    /// permanently.
    pub(crate) const CAPACITY_MAX: usize = 64 << 10;

    /// Returns an empty chain, with a spare buffer if available.
    #[inline]
    pub(crate) fn take_chain(&mut self) -> Box<Chain> {
        self.chains.take().unwrap_or_default()
    }

    /// Takes a chain back with any content. The caller has taken out the payloads held by reference.
    #[inline]
    pub(crate) fn put_chain(&mut self, mut chain: Box<Chain>) {
        if !self.chains.is_full() && chain.clear(Self::CAPACITY_MAX) {
            self.chains.items.push(chain);
        }
    }

    /// Returns an empty buffer, with capacity if a spare is available.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.spare.take().unwrap_or_default()
    }

    /// Frees the memory that was not used since the last call. Returns whether some is left.
    pub(crate) fn release_idle(&mut self) -> bool {
        let buffers = self.spare.release_idle();
        self.chains.release_idle() || buffers
    }

    /// Number of spare buffers and chains.
    pub(crate) fn spares(&self) -> usize {
        self.spare.items.len() + self.chains.items.len()
    }

    /// Whether there is memory to free.
    #[inline]
    pub(crate) fn holds_spares(&self) -> bool {
        !(self.spare.items.is_empty() && self.chains.items.is_empty())
    }

    /// Shrinks a buffer that stays with a connection to little more than its content: memory follows the
    /// received bytes. A buffer larger than the pool's limit grew with the received bytes or is a spare of
    /// the thread; the spares are bounded.
    pub(crate) fn shrink_to_content(&mut self, buffer: Vec<u8>) -> Vec<u8> {
        let tight = (2 * buffer.len()).max(TIGHT_MIN);
        if buffer.capacity() <= tight || buffer.capacity() > Self::CAPACITY_MAX {
            return buffer;
        }
        let tight = Vec::from(&buffer[..]);
        self.put_back(buffer);
        tight
    }

    /// Takes a buffer back. It is freed if it is too large or the pool is full.
    pub(crate) fn put_back(&mut self, mut buffer: Vec<u8>) {
        let fits = (1..=Self::CAPACITY_MAX).contains(&buffer.capacity());
        if fits && !self.spare.is_full() {
            buffer.clear();
            self.spare.items.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_buffer_is_reused_empty_and_large_buffer_is_freed() {
        let mut pool = Pool::default();
        assert_eq!(pool.take().capacity(), 0);
        pool.put_back(vec![1; 100]);
        let again = pool.take();
        assert!(again.is_empty() && again.capacity() >= 100);
        pool.put_back(Vec::with_capacity(Pool::CAPACITY_MAX + 1));
        assert_eq!(pool.take().capacity(), 0);
    }

    #[test]
    fn the_number_of_spare_buffers_is_bounded() {
        let mut pool = Pool::default();
        for _ in 0..2 * SPARE_MAX {
            pool.put_back(vec![0; 1]);
        }
        assert_eq!(pool.spare.items.len(), SPARE_MAX);
    }

    #[test]
    fn release_idle_frees_buffers_unused_since_last_call() {
        let mut pool = Pool::default();
        for _ in 0..10 {
            pool.put_back(vec![0; 1]);
            pool.put_chain(Box::default());
        }
        assert!(pool.release_idle(), "all buffers are new");
        let taken: Vec<_> = (0..3).map(|_| pool.take()).collect();
        taken.into_iter().for_each(|buffer| pool.put_back(buffer));
        assert!(pool.holds_spares() && pool.release_idle(), "three buffers were used since");
        assert_eq!((pool.spare.items.len(), pool.chains.items.len()), (3, 0));
        assert!(!pool.release_idle());
        assert!(!pool.holds_spares());
        assert_eq!(pool.spare.items.capacity() + pool.chains.items.capacity(), 0);
    }
}
