//! The masking algorithm, once, for vectors of any width.
//!
//! Few bytes need no loop: one block from the start and one from the end, overlapping, where a block is
//! one, two or four vectors. More bytes use a loop, in pseudo-code:
//!
//! ```text
//! head = first vector of the source ^ key        computed, not yet stored
//! tail = last four vectors of the source ^ key   computed, not yet stored
//! every four vectors from the first aligned place of the destination until the tail reaches the end:
//!     store load(source) ^ key
//! store head, store tail
//! ```
//!
//! There is no byte loop: head and tail overlap the middle instead. In place this is correct only because
//! all three are computed from bytes that are not written yet. So head and tail are loaded before the loop
//! and stored after it; where they overlap the middle they write the same values again.
//!
//! The destination is aligned, not the source, since a store across two cache lines costs more than a load
//! across two. Payloads follow a frame head, so without alignment every 64-byte store would cross.
//!
//! This module names no CPU feature. All functions are `inline(always)`, so the function for an instruction
//! set (see `arch`) inlines the whole body and compiles it with its own features.

use crate::arch::NarrowVector;

/// Maximum length that is masked inline in the caller. No kernel has a wider vector.
pub(crate) const SHORT_MAX: usize = 64;

/// The masking key, rotated so that its lowest byte applies to the next byte of the payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key(u32);

impl Key {
    #[inline(always)]
    pub(crate) const fn new(key: [u8; 4], phase: usize) -> Self {
        Self(u32::from_le_bytes(key)).after(phase)
    }

    /// The key at an offset of `bytes` in the payload.
    #[inline(always)]
    const fn after(self, bytes: usize) -> Self {
        Self(self.0.rotate_right(8 * (bytes % 4) as u32))
    }

    /// The word whose bytes in memory are the key, for either byte order.
    #[inline(always)]
    const fn word(self) -> u32 {
        self.0.to_le()
    }
}

/// A group of bytes that a CPU loads, XORs and stores at once.
///
/// # Safety
///
/// `load` and `store` must touch exactly [`BYTES`](Self::BYTES) bytes and need no alignment.
pub(crate) unsafe trait Vector: Copy {
    /// Width, a power of two and a multiple of the key's 4 bytes.
    const BYTES: usize;

    /// Broadcasts a word to the vector.
    ///
    /// # Safety
    ///
    /// The CPU has the features of this vector.
    unsafe fn splat(word: u32) -> Self;

    /// # Safety
    ///
    /// The CPU has the features of this vector, and `BYTES` bytes can be read at `src`.
    unsafe fn load(src: *const u8) -> Self;

    /// # Safety
    ///
    /// The CPU has the features of this vector, and `BYTES` bytes can be written at `dst`.
    unsafe fn store(self, dst: *mut u8);

    /// # Safety
    ///
    /// The CPU has the features of this vector.
    unsafe fn xor(self, other: Self) -> Self;
}

/// A pair of vectors is a vector: this implements loop unrolling.
// SAFETY: each half touches its own `V::BYTES` bytes and needs no alignment, by `V`'s promise.
unsafe impl<V: Vector> Vector for [V; 2] {
    const BYTES: usize = 2 * V::BYTES;

    #[inline(always)]
    unsafe fn splat(word: u32) -> Self {
        // SAFETY: the caller vouches for the features.
        [unsafe { V::splat(word) }; 2]
    }

    #[inline(always)]
    unsafe fn load(src: *const u8) -> Self {
        // SAFETY: the caller vouches for the features and for both halves.
        unsafe { [V::load(src), V::load(src.add(V::BYTES))] }
    }

    #[inline(always)]
    unsafe fn store(self, dst: *mut u8) {
        // SAFETY: the caller vouches for the features and for both halves.
        unsafe {
            self[0].store(dst);
            self[1].store(dst.add(V::BYTES));
        }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the caller vouches for the features.
        unsafe { [self[0].xor(other[0]), self[1].xor(other[1])] }
    }
}

/// Plain integers are vectors on every machine.
macro_rules! word {
    ($($word:ty)*) => {$(
        // SAFETY: an unaligned read and an unaligned write of one integer.
        unsafe impl Vector for $word {
            const BYTES: usize = size_of::<Self>();

            #[inline(always)]
            unsafe fn splat(word: u32) -> Self {
                // All ones divided by a word of ones has a one at the bottom of each word.
                Self::from(word) * (Self::MAX / Self::from(u32::MAX))
            }

            #[inline(always)]
            unsafe fn load(src: *const u8) -> Self {
                // SAFETY: the caller vouches for the bytes.
                unsafe { src.cast::<Self>().read_unaligned() }
            }

            #[inline(always)]
            unsafe fn store(self, dst: *mut u8) {
                // SAFETY: the caller vouches for the bytes.
                unsafe { dst.cast::<Self>().write_unaligned(self) }
            }

            #[inline(always)]
            unsafe fn xor(self, other: Self) -> Self {
                self ^ other
            }
        }
    )*};
}

word!(u32 u64 u128);

/// Masks `len` bytes from `src` to `dst`, without a call and without a loop of more than three iterations.
///
/// # Safety
///
/// * `len` is at most [`SHORT_MAX`].
/// * `len` bytes can be read at `src` and written at `dst`.
/// * `dst` equals `src`, or the two ranges do not overlap.
#[inline(always)]
pub(crate) unsafe fn xor_short(dst: *mut u8, src: *const u8, len: usize, key: Key) {
    // SAFETY: every arm asks for vectors no longer than the shortest length that reaches it, and `NarrowVector` needs
    // only features the target promises at compile time. The caller vouches for the pointers.
    unsafe {
        match len {
            32.. => xor_ends::<[NarrowVector; 2]>(dst, src, len, key),
            16.. => xor_ends::<NarrowVector>(dst, src, len, key),
            8.. => xor_ends::<u64>(dst, src, len, key),
            4.. => xor_ends::<u32>(dst, src, len, key),
            _ => {
                let key = key.word().to_ne_bytes();
                for (at, &key) in key.iter().enumerate().take(len) {
                    *dst.add(at) = *src.add(at) ^ key;
                }
            }
        }
    }
}

/// Masks one to two vectors of bytes: the first vector and the last, overlapping.
///
/// # Safety
///
/// As for [`xor_long`], with `len` at most twice `V::BYTES`.
#[inline(always)]
unsafe fn xor_ends<V: Vector>(dst: *mut u8, src: *const u8, len: usize, key: Key) {
    let tail_at = len - V::BYTES;
    // SAFETY: both vectors lie within `len` bytes, which the caller vouches for.
    unsafe {
        let head = V::load(src).xor(V::splat(key.word()));
        let tail = V::load(src.add(tail_at)).xor(V::splat(key.after(tail_at).word()));
        head.store(dst);
        tail.store(dst.add(tail_at));
    }
}

/// Masks `len` bytes from `src` to `dst` with the algorithm of this module.
///
/// # Safety
///
/// * The CPU has the features of `V`.
/// * `len` is at least `V::BYTES`.
/// * `len` bytes can be read at `src` and written at `dst`.
/// * `dst` equals `src`, or the two ranges do not overlap.
#[inline(always)]
pub(crate) unsafe fn xor_long<V: Vector>(dst: *mut u8, src: *const u8, len: usize, key: Key) {
    // SAFETY: each arm asks for blocks no longer than `len`, and no shorter than half of it where there is no
    // loop. The caller vouches for the rest.
    unsafe {
        if len <= 2 * V::BYTES {
            xor_ends::<V>(dst, src, len, key);
        } else if len <= 4 * V::BYTES {
            xor_ends::<[V; 2]>(dst, src, len, key);
        } else if len <= 8 * V::BYTES {
            xor_ends::<[[V; 2]; 2]>(dst, src, len, key);
        } else {
            xor_blocks::<V, [[V; 2]; 2]>(dst, src, len, key);
        }
    }
}

/// The loop: a head of one vector `V`, then blocks `B` from an aligned address on.
///
/// # Safety
///
/// As for [`xor_long`], with `len` at least `V::BYTES` and at least `B::BYTES`.
#[inline(always)]
unsafe fn xor_blocks<V: Vector, B: Vector>(dst: *mut u8, src: *const u8, len: usize, key: Key) {
    let tail_at = len - B::BYTES;
    // The first aligned destination address after the first byte: 1 to `V::BYTES` bytes on, so the head
    // covers the gap.
    let mut at = V::BYTES - dst.addr() % V::BYTES;
    // SAFETY: the caller vouches for the features and for `len` bytes. Head and tail lie within them, and a block
    // that begins before the tail also ends before the end.
    unsafe {
        let head = V::load(src).xor(V::splat(key.word()));
        let tail = B::load(src.add(tail_at)).xor(B::splat(key.after(tail_at).word()));
        let repeated = B::splat(key.after(at).word());
        while at < tail_at {
            B::load(src.add(at)).xor(repeated).store(dst.add(at));
            at += B::BYTES;
        }
        head.store(dst);
        tail.store(dst.add(tail_at));
    }
}
