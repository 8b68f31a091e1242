//! The available instruction sets, and each masking kernel by itself, for tests, benchmarks and logs.
//!
//! Programs call [`mask`](crate::mask) and [`copy_mask`](crate::copy_mask), which use the best kernel.

use core::fmt;

use crate::arch;
use crate::generic::{self, Key, SHORT_MAX};

/// The instruction set that [`mask`](crate::mask) and [`copy_mask`](crate::copy_mask) use above 64 bytes.
///
/// It depends on the CPU and the operating system, and does not change while the program runs.
pub fn isa() -> Isa {
    Kernel::best().isa
}

/// An instruction set with a masking kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// 8-byte words, on every machine.
    Scalar,
    /// 16-byte vectors, on every x86-64 machine.
    Sse2,
    /// 16-byte vectors, on every aarch64 machine.
    Neon,
    /// 32-byte vectors, on x86-64.
    Avx2,
    /// 64-byte vectors, on x86-64. The kernel uses AVX-512 F but also requires VBMI, as a sign of a recent
    /// CPU: older CPUs lower their clock for 64-byte vectors, which costs the rest of the program more than
    /// it gains.
    Avx512,
}

impl Isa {
    /// All instruction sets, available on this machine or not, best first.
    pub const ALL: [Self; 5] = [Self::Avx512, Self::Avx2, Self::Sse2, Self::Neon, Self::Scalar];

    /// The name in lower case, such as `avx512`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Sse2 => "sse2",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether this machine has CPU features. The standard library queries the CPU once and caches the result;
/// without it only compile-time features of the target count.
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
macro_rules! has {
    ($($feature:tt),+) => {{
        #[cfg(feature = "std")]
        let has = $(std::arch::is_x86_feature_detected!($feature))&&+;
        #[cfg(not(feature = "std"))]
        let has = cfg!(all($(target_feature = $feature),+));
        has
    }};
}

/// One masking kernel. Its existence proves that this machine can run it.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    isa: Isa,
    xor_long: XorLong,
}

/// See [`generic::xor_long`].
type XorLong = unsafe fn(*mut u8, *const u8, usize, Key);

impl Kernel {
    const SCALAR: Self = Self { isa: Isa::Scalar, xor_long: arch::scalar };

    /// The kernel for an instruction set, or `None` if this machine lacks it.
    pub fn new(isa: Isa) -> Option<Self> {
        let xor_long: XorLong = match isa {
            Isa::Scalar => arch::scalar,
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Isa::Sse2 => arch::x86_64::sse2,
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Isa::Avx2 if has!("avx2") => arch::x86_64::avx2,
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Isa::Avx512 if has!("avx512f", "avx512vbmi") => arch::x86_64::avx512,
            #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
            Isa::Neon => arch::aarch64::neon,
            _ => return None,
        };
        Some(Self { isa, xor_long })
    }

    /// The best kernel this machine can run.
    fn best() -> Self {
        Self::new(Isa::Avx512)
            .or_else(|| Self::new(Isa::Avx2))
            .or_else(|| Self::new(Isa::Sse2))
            .or_else(|| Self::new(Isa::Neon))
            .unwrap_or(Self::SCALAR)
    }

    /// The instruction set of this kernel.
    pub const fn isa(&self) -> Isa {
        self.isa
    }

    /// As [`mask`](crate::mask), with this kernel above 64 bytes.
    pub fn mask(&self, buf: &mut [u8], key: [u8; 4], phase: usize) {
        let bytes = buf.as_mut_ptr();
        // SAFETY: source and destination are the same `buf.len()` bytes, borrowed mutably for this call.
        unsafe { self.xor(bytes, bytes, buf.len(), Key::new(key, phase)) }
    }

    /// As [`copy_mask`](crate::copy_mask), with this kernel above 64 bytes.
    pub fn copy_mask(&self, dst: &mut [u8], src: &[u8], key: [u8; 4], phase: usize) {
        let len = src.len().min(dst.len());
        // SAFETY: both slices hold at least `len` bytes, and a mutable slice overlaps no other.
        unsafe { self.xor(dst.as_mut_ptr(), src.as_ptr(), len, Key::new(key, phase)) }
    }

    /// # Safety
    ///
    /// As for [`generic::xor_short`], for any `len`.
    unsafe fn xor(&self, dst: *mut u8, src: *const u8, len: usize, key: Key) {
        if len <= SHORT_MAX {
            // SAFETY: `len` was just checked; the caller vouches for the pointers.
            unsafe { generic::xor_short(dst, src, len, key) }
        } else {
            // SAFETY: `len` was just checked, `new` checked the CPU; the caller vouches for the pointers.
            unsafe { (self.xor_long)(dst, src, len, key) }
        }
    }
}

/// Masks with the best kernel of this machine: the only selection of an instruction set in production.
///
/// Only x86-64 selects at run time. On other architectures this is a direct call.
///
/// # Safety
///
/// As for [`generic::xor_long`], with `len` above [`SHORT_MAX`].
#[inline(always)]
pub(crate) unsafe fn xor_long(dst: *mut u8, src: *const u8, len: usize, key: Key) {
    #[cfg(all(feature = "std", target_arch = "x86_64"))]
    let kernel = chosen::kernel();
    #[cfg(not(all(feature = "std", target_arch = "x86_64")))]
    let kernel = Kernel::best().xor_long;
    // SAFETY: this CPU can run the kernel, since `best` chose it; the caller vouches for the rest.
    unsafe { kernel(dst, src, len, key) }
}

/// The selection, made by the first call and kept in a function pointer.
#[cfg(all(feature = "std", target_arch = "x86_64"))]
mod chosen {
    use core::mem;
    use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

    use super::{Kernel, Key, XorLong};

    /// An [`XorLong`]. Threads may race to set it; all set the same value, and no other state depends on
    /// it.
    static CHOSEN: AtomicPtr<()> = AtomicPtr::new(choose as XorLong as *mut ());

    #[inline(always)]
    pub(super) fn kernel() -> XorLong {
        // SAFETY: the pointer was made from an `XorLong`, here above or in `choose`.
        unsafe { mem::transmute::<*mut (), XorLong>(CHOSEN.load(Relaxed)) }
    }

    /// # Safety
    ///
    /// As for [`super::xor_long`].
    unsafe fn choose(dst: *mut u8, src: *const u8, len: usize, key: Key) {
        let kernel = Kernel::best().xor_long;
        CHOSEN.store(kernel as *mut (), Relaxed);
        // SAFETY: this CPU can run the kernel, since `best` chose it; the caller vouches for the rest.
        unsafe { kernel(dst, src, len, key) }
    }
}

/// The definition of masking in RFC 6455 section 5.3, for all kernels: octet `i` of the transformed data is
/// octet `i` of the original XOR octet `i` modulo 4 of the key.
pub fn reference(buf: &mut [u8], key: [u8; 4], phase: usize) {
    for (at, byte) in buf.iter_mut().enumerate() {
        *byte ^= key[(at % 4 + phase % 4) % 4];
    }
}
