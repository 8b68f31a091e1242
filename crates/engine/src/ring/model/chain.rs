//! Chains that detect access while the kernel reads from them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use super::dice::Dice;
use crate::SendChain;

thread_local! {
    /// Addresses that the kernel reads from. The kernel does not know the type of a chain, so both use this
    /// list.
    static KERNEL_RANGES: RefCell<Vec<Range<usize>>> = const { RefCell::new(Vec::new()) };
}

/// The kernel reads these addresses from now on.
pub(super) fn begin_kernel_access(range: Range<usize>) {
    KERNEL_RANGES.with_borrow_mut(|ranges| ranges.push(range));
}

/// The kernel no longer reads these addresses.
pub(super) fn end_kernel_access(range: &Range<usize>) {
    KERNEL_RANGES.with_borrow_mut(|ranges| {
        let index = ranges.iter().position(|one| one == range).expect("returned once");
        ranges.swap_remove(index);
    });
}

pub(super) fn end_all_kernel_access() {
    KERNEL_RANGES.with_borrow_mut(Vec::clear);
}

/// Asserts that no part of `own` is in flight.
pub(super) fn assert_free(own: &Range<usize>) {
    let touched = |range: &Range<usize>| range.start < own.end && own.start < range.end;
    let touched = KERNEL_RANGES.with_borrow(|ranges| ranges.iter().any(touched));
    assert!(!touched, "bytes in flight are accessed");
}

/// Bytes in pieces, each in its own allocation.
#[derive(Debug)]
pub(super) struct PieceChain {
    pieces: VecDeque<Vec<u8>>,
    /// Sent bytes of the first piece.
    gone: usize,
}

impl PieceChain {
    /// Splits `bytes` at random positions.
    pub(super) fn cut(mut bytes: &[u8], dice: &Dice) -> Self {
        let mut pieces = VecDeque::new();
        while !bytes.is_empty() {
            let most = if dice.percent(30) { bytes.len() } else { 40 };
            let (piece, rest) = bytes.split_at((1 + dice.below(most)).min(bytes.len()));
            pieces.push_back(piece.to_vec());
            bytes = rest;
        }
        Self { pieces, gone: 0 }
    }

    pub(super) fn assert_free(&self) {
        for piece in &self.pieces {
            let own = piece.as_ptr_range();
            assert_free(&(own.start as usize..own.end as usize));
        }
    }
}

impl SendChain for PieceChain {
    fn len(&self) -> usize {
        self.pieces.iter().map(Vec::len).sum::<usize>() - self.gone
    }

    fn slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        let mut skip = self.gone;
        for (slot, piece) in out.iter_mut().zip(&self.pieces) {
            *slot = IoSlice::new(&piece[skip..]);
            skip = 0;
        }
        out.len().min(self.pieces.len())
    }

    fn advance(&mut self, bytes: usize) {
        self.assert_free();
        assert!(bytes <= self.len(), "advance past the end of the chain");
        self.gone += bytes;
        while self.pieces.front().is_some_and(|piece| piece.len() <= self.gone) {
            self.gone -= self.pieces.pop_front().map_or(0, |piece| piece.len());
        }
    }
}

impl Drop for PieceChain {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.assert_free();
        }
    }
}

/// Bytes of a broadcast.
pub(super) struct SharedBytes(pub(super) Vec<u8>);

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for SharedBytes {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let own = self.0.as_ptr_range();
            assert_free(&(own.start as usize..own.end as usize));
        }
    }
}
