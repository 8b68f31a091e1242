//! State that the connections of one thread share.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::spares::SpareBuffers;
use crate::Role;
use crate::deflate::Contexts;

/// State shared by one thread's connections: deflate contexts, borrowed for one message each, and the mask key source.
/// Passed to each call that may need it.
pub struct PerThread {
    pub(super) contexts: Contexts,
    /// Buffer for the compressed payload of a frame.
    pub(super) scratch: Vec<u8>,
    pub(super) spares: SpareBuffers,
    pub(super) masks: Box<dyn FnMut() -> [u8; 4] + Send>,
}

impl PerThread {
    /// `masks` returns a fresh, unpredictable key for each client frame (RFC 6455 section 5.3: derive it from a strong
    /// source of entropy). Servers never call it.
    pub fn new(masks: impl FnMut() -> [u8; 4] + Send + 'static) -> Self {
        Self {
            contexts: Contexts::new(),
            scratch: Vec::new(),
            spares: SpareBuffers::default(),
            masks: Box::new(masks),
        }
    }

    /// Takes back the buffer of a large message ([`PayloadLocation::Assembly`](crate::PayloadLocation::Assembly)) for reuse: otherwise each message
    /// would pay for new pages. The retained memory is bounded, and freed by
    /// [`release_idle`](Self::release_idle). Small buffers are freed at once.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        self.spares.put_back(buffer);
    }

    /// Reserves capacity in `buffer` for a large message with `additional` bytes, reusing an earlier message's memory
    /// if available.
    pub fn reserve(&mut self, buffer: &mut Vec<u8>, additional: usize) {
        let needed = buffer.len().saturating_add(additional);
        self.spares.grow(buffer, additional, needed, usize::MAX);
    }

    /// Frees the spare memory that no message has used since the last call. A driver calls it every few
    /// seconds until it returns `false`.
    pub fn release_idle(&mut self) -> bool {
        self.spares.release_idle()
    }

    /// Whether [`release_idle`](Self::release_idle) has memory to free.
    #[must_use]
    pub fn holds_spares(&self) -> bool {
        !self.spares.is_empty()
    }

    /// Takes the scratch buffer back for the next message, unless a large message has grown it.
    pub(super) fn keep_scratch(&mut self, mut scratch: Vec<u8>) {
        if scratch.capacity() <= SCRATCH_MAX {
            scratch.clear();
            self.scratch = scratch;
        }
    }

    pub(super) fn mask_for(&mut self, role: Role) -> Option<[u8; 4]> {
        (role == Role::Client).then(|| (self.masks)())
    }
}

/// Largest scratch buffer that a thread keeps between messages.
const SCRATCH_MAX: usize = 256 << 10;

impl core::fmt::Debug for PerThread {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PerThread").finish_non_exhaustive()
    }
}
