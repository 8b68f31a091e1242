//! The public masking functions: safe slices in, pointers down to the kernels.

use alloc::vec::Vec;

use crate::generic::{self, Key, SHORT_MAX};
use crate::kernels;

/// XORs `buf` with the repeated 4-byte `key`, in place (RFC 6455 section 5.3).
///
/// The first byte meets `key[phase % 4]`. For a payload that arrives in pieces, `phase` is the number of payload
/// bytes before this piece; only its value modulo 4 matters. Masking twice restores the bytes.
///
/// ```
/// let mut buf = *b"Hello";
/// sinews_simd::mask(&mut buf, [0x37, 0xfa, 0x21, 0x3d], 0);
/// assert_eq!(buf, [0x7f, 0x9f, 0x4d, 0x51, 0x58]); // RFC 6455 section 5.7
/// ```
#[inline]
pub fn mask(buf: &mut [u8], key: [u8; 4], phase: usize) {
    let bytes = buf.as_mut_ptr();
    // SAFETY: source and destination are the same `buf.len()` bytes, borrowed mutably for this call.
    unsafe { xor(bytes, bytes, buf.len(), Key::new(key, phase)) }
}

/// Writes `src` XORed with the repeated 4-byte `key` to the start of `dst`.
///
/// The first byte meets `key[phase % 4]`, as in [`mask`]. The slices should be equally long. If they are not, the
/// shorter length counts and the rest of `dst` stays as it is; this never panics.
///
/// ```
/// let mut dst = [0; 5];
/// sinews_simd::copy_mask(&mut dst, b"Hello", [0x37, 0xfa, 0x21, 0x3d], 0);
/// assert_eq!(dst, [0x7f, 0x9f, 0x4d, 0x51, 0x58]);
/// ```
#[inline]
pub fn copy_mask(dst: &mut [u8], src: &[u8], key: [u8; 4], phase: usize) {
    let len = src.len().min(dst.len());
    // SAFETY: both slices hold at least `len` bytes, and a mutable slice overlaps no other.
    unsafe { xor(dst.as_mut_ptr(), src.as_ptr(), len, Key::new(key, phase)) }
}

/// Appends `src`, XORed with the repeated 4-byte `key`, to `dst`.
///
/// The first byte meets `key[phase % 4]`, as in [`mask`]. The bytes go straight into the spare capacity, which is
/// not zeroed first. Grows `dst` as [`Vec::reserve`] does if it is too small, and panics only where that does.
///
/// ```
/// let mut frame = vec![0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d];
/// sinews_simd::extend_masked(&mut frame, b"Hello", [0x37, 0xfa, 0x21, 0x3d], 0);
/// assert_eq!(frame[6..], [0x7f, 0x9f, 0x4d, 0x51, 0x58]);
/// ```
#[inline]
pub fn extend_masked(dst: &mut Vec<u8>, src: &[u8], key: [u8; 4], phase: usize) {
    dst.reserve(src.len());
    let spare = dst.spare_capacity_mut().as_mut_ptr().cast::<u8>();
    // SAFETY: `reserve` made room for `src.len()` bytes, and `src` cannot overlap a vector borrowed mutably.
    unsafe { xor(spare, src.as_ptr(), src.len(), Key::new(key, phase)) }
    // SAFETY: the capacity is there (`reserve`), and the line above has written each of the new bytes.
    unsafe { dst.set_len(dst.len() + src.len()) }
}

/// Most messages are short. They are masked inline, because a kernel cannot be inlined into a caller that
/// is compiled for fewer CPU features, and a call costs more than masking 60 bytes.
///
/// # Safety
///
/// As for [`generic::xor_short`], for any `len`.
#[inline(always)]
unsafe fn xor(dst: *mut u8, src: *const u8, len: usize, key: Key) {
    if len <= SHORT_MAX {
        // SAFETY: `len` was just checked; the caller vouches for the pointers.
        unsafe { generic::xor_short(dst, src, len, key) }
    } else {
        // SAFETY: `len` was just checked; the caller vouches for the pointers.
        unsafe { kernels::xor_long(dst, src, len, key) }
    }
}
