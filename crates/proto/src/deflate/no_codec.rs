//! What stands for the codec where it is not built in. Nothing reaches it: a codec is made for what was
//! negotiated, and without a `DeflateConfig`, which cannot be made either, nothing is.
#![allow(clippy::needless_pass_by_ref_mut, reason = "the shape of the codec")]

use alloc::vec::Vec;
use core::convert::Infallible;

#[derive(Debug)]
pub(crate) struct BadDeflate;

pub(crate) struct Inflated {
    pub(crate) consumed: usize,
    pub(crate) full: bool,
}

pub(crate) struct Inflater(Infallible);

impl Inflater {
    pub(crate) fn new(_window_bits: u8) -> Self {
        unreachable!("nothing was negotiated")
    }

    pub(crate) fn inflate(&mut self, _: &[u8], _: &mut Vec<u8>, _: usize) -> Result<Inflated, BadDeflate> {
        match self.0 {}
    }

    pub(crate) fn finish(&mut self, _: &mut Vec<u8>, _: usize) -> Result<Inflated, BadDeflate> {
        match self.0 {}
    }

    pub(crate) fn reset(&mut self) {
        match self.0 {}
    }
}

pub(crate) struct Deflater(Infallible);

impl Deflater {
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
