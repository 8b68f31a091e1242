//! Deflate contexts that connections without takeover borrow for one message.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{Deflater, Inflater};

/// The class of interchangeable compressed frames: without takeover, the same message compressed in the
/// same class yields the same frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeflateClass {
    pub(crate) level: u8,
    pub(crate) window_bits: u8,
}

impl DeflateClass {
    /// The compression level, 1 to 9.
    #[must_use]
    pub const fn level(&self) -> u8 {
        self.level
    }

    /// Base-2 logarithm of the compressor's window, 9 to 15.
    #[must_use]
    pub const fn window_bits(&self) -> u8 {
        self.window_bits
    }
}

/// One thread's contexts. Pooled contexts are reset: no data from a connection reaches another connection.
#[derive(Default)]
#[expect(clippy::vec_box, reason = "they come and go boxed, as a connection holds them")]
pub(crate) struct Contexts {
    inflaters: Vec<Box<Inflater>>,
    deflaters: Vec<(DeflateClass, Box<Deflater>)>,
}

impl Contexts {
    /// Creates an empty pool.
    pub(crate) const fn new() -> Self {
        Self { inflaters: Vec::new(), deflaters: Vec::new() }
    }

    /// Takes an inflater for any negotiated window of a peer.
    pub(crate) fn take_inflater(&mut self) -> Box<Inflater> {
        self.inflaters.pop().unwrap_or_else(|| Box::new(Inflater::new(super::params::WINDOW_BITS_MAX)))
    }

    /// Returns an inflater, in any state.
    pub(crate) fn put_inflater(&mut self, mut inflater: Box<Inflater>) {
        if self.inflaters.len() < IDLE_INFLATERS_MAX {
            inflater.reset();
            self.inflaters.push(inflater);
        }
    }

    /// Takes a deflater of this class.
    pub(crate) fn take_deflater(&mut self, class: DeflateClass) -> Box<Deflater> {
        match self.deflaters.iter().rposition(|(have, _)| *have == class) {
            Some(at) => self.deflaters.remove(at).1,
            None => Box::new(Deflater::new(class.level, class.window_bits)),
        }
    }

    /// Returns a deflater, in any state; if the pool is full, the oldest is freed.
    pub(crate) fn put_deflater(&mut self, class: DeflateClass, mut deflater: Box<Deflater>) {
        if self.deflaters.len() >= IDLE_DEFLATERS_MAX {
            self.deflaters.remove(0);
        }
        deflater.reset();
        self.deflaters.push((class, deflater));
    }

    /// Number of pooled inflaters and deflaters.
    #[cfg(test)]
    pub(super) fn idle(&self) -> (usize, usize) {
        (self.inflaters.len(), self.deflaters.len())
    }
}

/// Maximum pooled inflaters of a thread. One serves all messages that arrive whole; a fragmented message
/// keeps its own until its end.
const IDLE_INFLATERS_MAX: usize = 8;

/// Maximum pooled deflaters for a thread: one per class in use; peers choose the class's window.
const IDLE_DEFLATERS_MAX: usize = 8;
