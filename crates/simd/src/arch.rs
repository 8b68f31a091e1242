//! Binds the algorithm to instruction sets, without any decision: one macro implements [`Vector`] for a
//! CPU's register type, another compiles [`generic::xor_long`] with its target features enabled.
//!
//! A target of the right architecture may lack vector registers (`x86_64-unknown-none`), so the modules
//! also require the feature that the architecture normally implies.

#[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
pub(crate) use core::arch::aarch64::uint8x16_t as NarrowVector;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
pub(crate) use core::arch::x86_64::__m128i as NarrowVector;

use crate::generic::{self, Key, SHORT_MAX, Vector};

/// The 16-byte vector of targets without a wider baseline.
#[cfg(not(any(
    all(target_arch = "aarch64", target_feature = "neon"),
    all(target_arch = "x86_64", target_feature = "sse2"),
)))]
pub(crate) type NarrowVector = u128;

/// Implements [`Vector`] for a CPU's register type with its four instructions.
#[cfg_attr(
    not(any(
        all(target_arch = "aarch64", target_feature = "neon"),
        all(target_arch = "x86_64", target_feature = "sse2"),
    )),
    allow(unused_macros)
)]
macro_rules! vector {
    (
        $register:ty,
        splat: |$word:ident| $splat:expr,
        load: |$src:ident| $load:expr,
        store: |$dst:ident, $value:ident| $store:expr,
        xor: |$a:ident, $b:ident| $xor:expr $(,)?
    ) => {
        // SAFETY: the load and the store named here move one whole register and need no alignment.
        unsafe impl Vector for $register {
            const BYTES: usize = size_of::<Self>();

            #[inline(always)]
            unsafe fn splat($word: u32) -> Self {
                // SAFETY: the caller vouches for the features.
                unsafe { $splat }
            }

            #[inline(always)]
            unsafe fn load($src: *const u8) -> Self {
                // SAFETY: the caller vouches for the features and the bytes.
                unsafe { $load }
            }

            #[inline(always)]
            unsafe fn store(self, $dst: *mut u8) {
                let $value = self;
                // SAFETY: the caller vouches for the features and the bytes.
                unsafe { $store }
            }

            #[inline(always)]
            unsafe fn xor(self, $b: Self) -> Self {
                let $a = self;
                // SAFETY: the caller vouches for the features.
                unsafe { $xor }
            }
        }
    };
}

/// Compiles the long kernel for one vector type.
macro_rules! kernel {
    ($name:ident, $vector:ty $(, $feature:literal)?) => {
        /// # Safety
        ///
        /// As for [`generic::xor_long`], with `len` above [`SHORT_MAX`].
        $(#[target_feature(enable = $feature)])?
        pub(crate) unsafe fn $name(dst: *mut u8, src: *const u8, len: usize, key: Key) {
            const { assert!(<$vector>::BYTES <= SHORT_MAX) };
            // SAFETY: `SHORT_MAX` bytes hold a vector (asserted above); the caller vouches for the rest.
            unsafe { generic::xor_long::<$vector>(dst, src, len, key) }
        }
    };
}

kernel!(scalar, u64);

#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
pub(crate) mod x86_64 {
    use core::arch::x86_64::*;

    use super::*;

    vector! {
        __m128i,
        splat: |word| _mm_set1_epi32(word.cast_signed()),
        load: |src| _mm_loadu_si128(src.cast()),
        store: |dst, value| _mm_storeu_si128(dst.cast(), value),
        xor: |a, b| _mm_xor_si128(a, b),
    }
    vector! {
        __m256i,
        splat: |word| _mm256_set1_epi32(word.cast_signed()),
        load: |src| _mm256_loadu_si256(src.cast()),
        store: |dst, value| _mm256_storeu_si256(dst.cast(), value),
        xor: |a, b| _mm256_xor_si256(a, b),
    }
    vector! {
        __m512i,
        splat: |word| _mm512_set1_epi32(word.cast_signed()),
        load: |src| _mm512_loadu_si512(src.cast()),
        store: |dst, value| _mm512_storeu_si512(dst.cast(), value),
        xor: |a, b| _mm512_xor_si512(a, b),
    }

    kernel!(sse2, __m128i, "sse2");
    kernel!(avx2, __m256i, "avx2");
    kernel!(avx512, __m512i, "avx512f");
}

#[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
pub(crate) mod aarch64 {
    use core::arch::aarch64::*;

    use super::*;

    vector! {
        uint8x16_t,
        splat: |word| vreinterpretq_u8_u32(vdupq_n_u32(word)),
        load: |src| vld1q_u8(src),
        store: |dst, value| vst1q_u8(dst, value),
        xor: |a, b| veorq_u8(a, b),
    }

    kernel!(neon, uint8x16_t, "neon");
}
