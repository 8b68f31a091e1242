//! Vector kernels for WebSocket: masking, masking while copying, and UTF-8 validation of a text that
//! arrives in pieces.
//!
//! These are the only three operations of a WebSocket engine on every byte of a payload. This crate
//! implements each of them once, is independent of frames, allocates only in [`extend_masked`], and is the
//! only crate of the protocol stack with unsafe code. It is `no_std`.
//!
//! # Example
//!
//! A client masks a text while copying it behind the frame head. The server unmasks the received segments,
//! with any boundaries, and validates the text while it is still in the cache.
//!
//! ```
//! use sinews_simd::{Utf8Stream, extend_masked, mask};
//!
//! let key = [0x37, 0xfa, 0x21, 0x3d];
//! let text = "Grüße, 世界";
//! let mut wire = vec![0x81, 0x80 | text.len() as u8];
//! wire.extend_from_slice(&key);
//! extend_masked(&mut wire, text.as_bytes(), key, 0);
//!
//! let payload = &mut wire[6..];
//! let mut utf8 = Utf8Stream::new();
//! let mut done = 0;
//! for piece in payload.chunks_mut(3) {
//!     mask(piece, key, done);
//!     utf8.push(piece)?;
//!     done += piece.len();
//! }
//! utf8.finish()?;
//! assert_eq!(payload, text.as_bytes());
//! # Ok::<(), sinews_simd::Utf8Error>(())
//! ```
//!
//! # Kernels
//!
//! | length | kernel | selection |
//! |---|---|---|
//! | up to 64 bytes | overlapping words and 16-byte vectors, inlined into the caller | at compile time |
//! | above 64 bytes | [`Isa::Avx512`], 64-byte vectors | run time, x86-64 |
//! | | [`Isa::Avx2`], 32-byte vectors | run time, x86-64 |
//! | | [`Isa::Sse2`], 16-byte vectors | always, on x86-64 with vector registers |
//! | | [`Isa::Neon`], 16-byte vectors | always, on aarch64 with vector registers |
//! | | [`Isa::Scalar`], 8-byte words | everywhere else |
//!
//! Masking in place and masking while copying are one algorithm, written once over a small vector trait and
//! compiled for each instruction set. The byte loop in `kernels::reference` defines its result, and the
//! tests compare every kernel of the machine with it for every short length, alignment and phase. The
//! `simdutf8` crate validates the bulk of UTF-8; this crate adds the state between pieces and the exact
//! position of an error.
//!
//! # Features
//!
//! * `std` (default): select the instruction set at run time. Without it the crate uses the compile-time features of
//!   the target, for example with `-C target-feature=+avx2`. The results are the same.
//! * `bytes`: `Utf8Bytes`, text that is validated once and shared by reference count.

#![no_std]
#![deny(clippy::undocumented_unsafe_blocks)]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

mod arch;
mod generic;
pub mod kernels;
mod mask;
#[cfg(feature = "bytes")]
mod text;
mod utf8;

pub use kernels::{Isa, isa};
pub use mask::{copy_mask, extend_masked, mask};
#[cfg(feature = "bytes")]
pub use text::Utf8Bytes;
pub use utf8::{Utf8Error, Utf8Stream, from_utf8, validate_utf8};
