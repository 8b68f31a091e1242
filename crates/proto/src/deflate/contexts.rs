//! Contexts that connections without takeover borrow for one message.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::codec::{Deflater, Inflater};

/// What makes compressed frames interchangeable: the same message compressed in the same class without
/// takeover is the same frame.
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

/// The contexts of one thread. Those in here are reset: nothing of one connection's data reaches another.
#[derive(Default)]
#[expect(clippy::vec_box, reason = "they come and go boxed, as a connection holds them")]
pub(crate) struct Contexts {
    inflaters: Vec<Box<Inflater>>,
    deflaters: Vec<(DeflateClass, Box<Deflater>)>,
}

impl Contexts {
    /// Holds nothing until something is put back.
    pub(crate) const fn new() -> Self {
        Self { inflaters: Vec::new(), deflaters: Vec::new() }
    }

    /// An inflater for any window the peer may have agreed to.
    pub(crate) fn take_inflater(&mut self) -> Box<Inflater> {
        self.inflaters.pop().unwrap_or_else(|| Box::new(Inflater::new(super::params::WINDOW_BITS_MAX)))
    }

    /// Gives an inflater back, in whatever state a message left it.
    pub(crate) fn put_inflater(&mut self, mut inflater: Box<Inflater>) {
        if self.inflaters.len() < IDLE_INFLATERS_MAX {
            inflater.reset();
            self.inflaters.push(inflater);
        }
    }

    /// A deflater of this class.
    pub(crate) fn take_deflater(&mut self, class: DeflateClass) -> Box<Deflater> {
        match self.deflaters.iter().rposition(|(have, _)| *have == class) {
            Some(at) => self.deflaters.remove(at).1,
            None => Box::new(Deflater::new(class.level, class.window_bits)),
        }
    }

    /// Gives a deflater back, in whatever state a message left it; of too many the oldest goes.
    pub(crate) fn put_deflater(&mut self, class: DeflateClass, mut deflater: Box<Deflater>) {
        if self.deflaters.len() >= IDLE_DEFLATERS_MAX {
            self.deflaters.remove(0);
        }
        deflater.reset();
        self.deflaters.push((class, deflater));
    }

    /// How many inflaters and deflaters are kept.
    #[cfg(test)]
    pub(super) fn idle(&self) -> (usize, usize) {
        (self.inflaters.len(), self.deflaters.len())
    }
}

/// Inflaters a thread keeps for reuse. One serves all messages that arrive whole; a fragmented one
/// keeps its own while it lasts.
const IDLE_INFLATERS_MAX: usize = 8;

/// Deflaters a thread keeps for reuse: one for each class in use, of which peers choose the window.
const IDLE_DEFLATERS_MAX: usize = 8;
