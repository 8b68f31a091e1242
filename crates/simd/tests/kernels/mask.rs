//! Every kernel of this machine against the byte loop that defines masking: every length through all code
//! paths, every alignment, every phase, with guards on both sides.

use sinews_simd::kernels::{Isa, Kernel, reference};
use sinews_simd::{copy_mask, extend_masked, isa, mask};

const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// The widest vector, and so the number of different alignments.
const ALIGN: usize = 64;

/// The loop starts above eight vectors and processes four per iteration; this length covers two iterations
/// at the widest vector.
const LEN_MAX: usize = if cfg!(miri) { 3 * ALIGN + 7 } else { (8 + 2 * 4) * ALIGN + 7 };

/// Miri is about a thousand times slower.
const ALIGN_STEP: usize = if cfg!(miri) { 13 } else { 1 };

const GUARD: usize = ALIGN;
const GUARD_BYTE: u8 = 0xa5;

type Mask<'a> = &'a dyn Fn(&mut [u8], [u8; 4], usize);
type CopyMask<'a> = &'a dyn Fn(&mut [u8], &[u8], [u8; 4], usize);

/// Bytes in which neighbors differ, without a period that could hide an error.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Memory that contains a range of known alignment between guards.
struct Arena {
    bytes: Vec<u8>,
    origin: usize,
}

impl Arena {
    fn new() -> Self {
        let bytes = vec![GUARD_BYTE; ALIGN + GUARD + ALIGN + LEN_MAX + GUARD];
        let origin = bytes.as_ptr().align_offset(ALIGN) + GUARD;
        Self { bytes, origin }
    }

    fn at(&mut self, align: usize, len: usize) -> &mut [u8] {
        &mut self.bytes[self.origin + align..][..len]
    }

    /// Checks that no byte outside of the range was written, and resets the range.
    #[track_caller]
    fn check_guards(&mut self, align: usize, len: usize) {
        self.at(align, len).fill(GUARD_BYTE);
        let from = self.origin + align - GUARD;
        let around = &self.bytes[from..(from + GUARD + len + GUARD).min(self.bytes.len())];
        assert!(around.iter().all(|&byte| byte == GUARD_BYTE), "wrote outside: align {align}, len {len}");
    }
}

/// The expected result for each phase, from the definition.
fn expected(data: &[u8]) -> [Vec<u8>; 4] {
    [0, 1, 2, 3].map(|phase| {
        let mut masked = data.to_vec();
        reference(&mut masked, KEY, phase);
        masked
    })
}

fn lengths_and_alignments() -> impl Iterator<Item = (usize, usize)> {
    (0..=LEN_MAX).flat_map(|len| (0..ALIGN).step_by(ALIGN_STEP).map(move |align| (len, align)))
}

fn check_mask(name: &str, mask: Mask<'_>) {
    let data = noise(LEN_MAX);
    let expected = expected(&data);
    let mut arena = Arena::new();
    for (len, align) in lengths_and_alignments() {
        for (phase, expected) in expected.iter().enumerate() {
            let buf = arena.at(align, len);
            buf.copy_from_slice(&data[..len]);
            mask(buf, KEY, phase);
            assert!(*buf == expected[..len], "{name}: len {len}, align {align}, phase {phase}");
        }
        arena.check_guards(align, len);
    }
}

fn check_copy_mask(name: &str, copy_mask: CopyMask<'_>) {
    let data = noise(LEN_MAX);
    let expected = expected(&data);
    let (mut source, mut arena) = (Arena::new(), Arena::new());
    for (len, align) in lengths_and_alignments() {
        for (phase, expected) in expected.iter().enumerate() {
            // The source offset varies relative to the destination, to cover all pairs of alignments.
            let src = source.at((align + 17 * len + phase) % ALIGN, len);
            src.copy_from_slice(&data[..len]);
            let dst = arena.at(align, len);
            copy_mask(dst, src, KEY, phase);
            assert!(*dst == expected[..len], "{name}: len {len}, align {align}, phase {phase}");
            assert!(*src == data[..len], "{name} wrote its source: len {len}, align {align}, phase {phase}");
        }
        arena.check_guards(align, len);
    }
}

fn kernels() -> impl Iterator<Item = Kernel> {
    Isa::ALL.into_iter().filter_map(Kernel::new)
}

#[test]
fn the_reference_is_the_definition() {
    let mut buf = [0; 6];
    reference(&mut buf, KEY, 3);
    assert_eq!(buf, [0x3d, 0x37, 0xfa, 0x21, 0x3d, 0x37]);
}

#[test]
fn kernels_mask_like_the_reference() {
    for kernel in kernels() {
        check_mask(kernel.isa().name(), &|buf, key, phase| kernel.mask(buf, key, phase));
    }
}

#[test]
fn kernels_copy_like_the_reference() {
    for kernel in kernels() {
        check_copy_mask(kernel.isa().name(), &|dst, src, key, phase| kernel.copy_mask(dst, src, key, phase));
    }
}

#[test]
fn the_public_functions_match_the_reference() {
    check_mask("mask", &mask);
    check_copy_mask("copy_mask", &copy_mask);
}

#[test]
fn large_buffers_match_the_reference() {
    let data = noise(if cfg!(miri) { 2_000 } else { 300_001 });
    let mut expected = data.clone();
    reference(&mut expected, KEY, 2);
    for kernel in kernels() {
        let mut buf = data.clone();
        kernel.mask(&mut buf, KEY, 2);
        assert!(buf == expected, "{}", kernel.isa());
    }
}

#[test]
fn only_the_phase_modulo_four_counts() {
    for phase in [4, 7, usize::MAX - 1, usize::MAX] {
        for len in [3, 40, 200] {
            let (mut one, mut other) = (noise(len), noise(len));
            mask(&mut one, KEY, phase);
            mask(&mut other, KEY, phase % 4);
            assert_eq!(one, other, "phase {phase}");
            let mut third = noise(len);
            reference(&mut third, KEY, phase);
            assert_eq!(one, third, "phase {phase}");
        }
    }
}

#[test]
fn masking_in_pieces_equals_masking_at_once() {
    let data = noise(1_000);
    let mut whole = data.clone();
    mask(&mut whole, KEY, 0);
    for piece in 1..200 {
        let mut buf = data.clone();
        let mut done = 0;
        for chunk in buf.chunks_mut(piece) {
            mask(chunk, KEY, done);
            done += chunk.len();
        }
        assert!(buf == whole, "pieces of {piece}");
    }
}

#[test]
fn copy_mask_stops_at_shorter_slice() {
    let data = noise(300);
    for (to, from) in [(0, 5), (5, 0), (3, 9), (9, 3), (70, 300), (300, 70)] {
        let mut dst = vec![GUARD_BYTE; to];
        copy_mask(&mut dst, &data[..from], KEY, 1);
        let len = to.min(from);
        let mut expected = data[..len].to_vec();
        reference(&mut expected, KEY, 1);
        expected.resize(to, GUARD_BYTE);
        assert_eq!(dst, expected, "{from} bytes to {to}");
    }
}

#[test]
fn extend_masked_keeps_existing_bytes() {
    let data = noise(300);
    for len in 0..=data.len() {
        for (before, spare) in [(0, 0), (2, 0), (7, 1000)] {
            let mut dst = noise(before);
            dst.reserve_exact(spare);
            extend_masked(&mut dst, &data[..len], KEY, 3);
            let mut expected = data[..len].to_vec();
            reference(&mut expected, KEY, 3);
            assert_eq!(dst[..before], noise(before), "len {len}");
            assert_eq!(dst[before..], expected, "len {len}");
        }
    }
}

#[test]
fn best_available_kernel_is_selected() {
    assert_eq!(Some(isa()), kernels().map(|kernel| kernel.isa()).next());
    assert_eq!(Kernel::new(isa()).map(|kernel| kernel.isa()), Some(isa()));
    assert!(Kernel::new(Isa::Scalar).is_some());
    assert_eq!(Kernel::new(Isa::Neon).is_some(), cfg!(all(target_arch = "aarch64", target_feature = "neon")));
    assert_eq!(isa().to_string(), isa().name());
}
