//! Placeholder for the codec without the feature `deflate`. It is unreachable: a codec requires a
//! negotiated extension, and without a `DeflateConfig`, which cannot be created either, none is negotiated.
#![allow(clippy::needless_pass_by_ref_mut, reason = "same signatures as the codec")]

use alloc::vec::Vec;
use core::convert::Infallible;

use super::outcome::{BadDeflate, Inflated};

pub(crate) struct NoInflater(Infallible);

impl NoInflater {
    pub(crate) fn new(_window_bits: u8) -> Self {
        unreachable!("nothing was negotiated")
    }

    pub(crate) fn inflate(&mut self, _: &[u8], _: &mut Vec<u8>, _: usize) -> Result<Inflated, BadDeflate> {
        match self.0 {}
    }

    pub(crate) fn finish(&mut self, _: &mut Vec<u8>, _: usize) -> Result<Inflated, BadDeflate> {
        match self.0 {}
    }

    pub(crate) fn window(&self) -> Vec<u8> {
        match self.0 {}
    }

    pub(crate) fn resume(&mut self, _: &[u8]) {
        match self.0 {}
    }

    pub(crate) fn reset(&mut self) {
        match self.0 {}
    }
}

pub(crate) struct NoDeflater(Infallible);

impl NoDeflater {
    pub(crate) fn new(_level: u8, _window_bits: u8) -> Self {
        unreachable!("nothing was negotiated")
    }

    pub(crate) fn deflate(&mut self, _: &[u8], _: &mut Vec<u8>, _last: bool) {
        match self.0 {}
    }

    pub(crate) fn reset(&mut self) {
        match self.0 {}
    }
}
