//! Memory and counters that the sessions of one thread share.

use sinews_proto::PerThread;

use crate::chain::Chain;
use crate::pool::Pool;
use crate::traffic::Traffic;

/// State shared by the connections of one thread: spare buffers, deflate contexts, mask keys.
#[derive(Debug)]
pub struct Resources {
    pub(crate) shared: PerThread,
    pub(crate) pool: Pool,
    pub(crate) traffic: Traffic,
}

impl Resources {
    /// Creates resources with mask keys from the operating system's random source.
    #[must_use]
    pub fn new() -> Self {
        Self::with_masks(crate::masks::from_os())
    }

    /// Creates resources with the caller's mask keys. Tests pass seeded keys.
    pub fn with_masks(masks: impl FnMut() -> [u8; 4] + Send + 'static) -> Self {
        Self { shared: PerThread::new(masks), pool: Pool::default(), traffic: Traffic::default() }
    }
}

impl Resources {
    /// Frees the spare memory that no message has used since the last call. Returns whether some is left. A
    /// driver calls it every few seconds until it returns `false`.
    pub fn release_idle(&mut self) -> bool {
        let large = self.shared.release_idle();
        self.pool.release_idle() || large
    }

    /// Counts messages that were sent past the queues of sessions, and their payload
    /// ([`Session::take_run`](crate::Session::take_run)).
    pub fn count_sent(&mut self, messages: u64, bytes: u64) {
        self.traffic.messages_sent += messages;
        self.traffic.bytes_sent += bytes;
    }

    /// Traffic counters of the thread's sessions.
    #[must_use]
    #[inline]
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Pool of spare buffers with at most 64 KiB, for inbound and outbound messages.
    #[must_use]
    pub fn spares(&self) -> usize {
        self.pool.spares()
    }

    /// Whether [`release_idle`](Self::release_idle) has memory to free.
    #[must_use]
    pub fn holds_spares(&self) -> bool {
        self.shared.holds_spares() || self.pool.holds_spares()
    }

    /// Reserves capacity for a large payload and its head behind a chain's content, in an earlier message's memory.
    #[inline]
    pub(crate) fn reserve(&mut self, chain: &mut Chain, len: usize) {
        if len > Pool::CAPACITY_MAX {
            chain.write(|arena| self.shared.reserve(arena, len + HEAD_MAX));
        }
    }

    /// Takes the buffer of a delivered message for reuse.
    pub(crate) fn recycle_assembly(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() > Pool::CAPACITY_MAX {
            self.shared.recycle(buffer);
        } else {
            self.pool.put_back(buffer);
        }
    }

    /// Takes back a chain that is sent, and the memory of its large payloads.
    #[inline]
    pub(crate) fn recycle_chain(&mut self, mut chain: Box<Chain>) {
        while let Some(buffer) = chain.take_memory() {
            self.shared.recycle(buffer);
        }
        if let Some(arena) = chain.take_large_arena() {
            self.shared.recycle(arena);
        }
        self.pool.put_chain(chain);
    }
}

impl Default for Resources {
    fn default() -> Self {
        Self::new()
    }
}

/// Longest head of a frame (RFC 6455 section 5.2).
const HEAD_MAX: usize = 14;
