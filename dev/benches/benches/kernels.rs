//! Bandwidth of the kernels, of `memcpy`, and of the loops of other libraries, written from their
//! description: `xor_u32` uses aligned 32-bit words, `xor_byte` is `buf[i] ^= key[i & 3]`.
//!
//! ```text
//! cargo bench -p sinews-benches --bench kernels
//! cargo bench -p sinews-benches --bench kernels -- mask/16777216
//! ```

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, measurement::WallTime};
use sinews_simd::kernels::{Isa, Kernel};
use sinews_simd::{Utf8Stream, copy_mask, isa, mask, validate_utf8};

const SIZES: [usize; 6] = [16, 64, 125, 1 << 10, 64 << 10, 16 << 20];
const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// Payloads follow a frame head, so they begin at any address.
const HEAD: usize = 6;

type Group<'a> = BenchmarkGroup<'a, WallTime>;

fn main() {
    println!("mask uses {}", isa());
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(300))
        .configure_from_args();
    for (name, bench) in
        [("mask", in_place as fn(&mut Group<'_>, usize)), ("copy_mask", copying), ("utf8", utf8)]
    {
        let mut group = criterion.benchmark_group(name);
        for size in SIZES {
            group.throughput(Throughput::Bytes(size as u64));
            bench(&mut group, size);
        }
        group.finish();
    }
    criterion.final_summary();
}

/// Contiguous payloads, each after its frame head, visited in turn. Short payloads fill a third of the
/// first-level cache: on a single buffer, a kernel would wait for its own stores of the previous iteration,
/// unlike real payloads.
struct Payloads {
    arena: Vec<u8>,
    stride: usize,
    next: usize,
}

impl Payloads {
    fn new(size: usize) -> Self {
        let stride = HEAD + size;
        Self { arena: vec![0x55; stride * (16 << 10).max(stride).div_euclid(stride)], stride, next: 0 }
    }

    #[inline(always)]
    fn turn(&mut self) -> &mut [u8] {
        let at = self.next;
        self.next = if at + 2 * self.stride > self.arena.len() { 0 } else { at + self.stride };
        black_box(&mut self.arena[at..at + self.stride][HEAD..])
    }
}

fn in_place(group: &mut Group<'_>, size: usize) {
    memcpy(group, size);
    let mut buf = Payloads::new(size);
    group.bench_function(BenchmarkId::new("sinews", size), |b| b.iter(|| mask(buf.turn(), KEY, 0)));
    for kernel in Isa::ALL.into_iter().filter_map(Kernel::new) {
        group.bench_function(BenchmarkId::new(kernel.isa().name(), size), |b| {
            b.iter(|| kernel.mask(buf.turn(), KEY, 0));
        });
    }
    group.bench_function(BenchmarkId::new("xor_u32", size), |b| b.iter(|| xor_u32(buf.turn(), KEY)));
    group.bench_function(BenchmarkId::new("xor_byte", size), |b| b.iter(|| xor_byte(buf.turn(), KEY)));
}

fn copying(group: &mut Group<'_>, size: usize) {
    memcpy(group, size);
    let (mut src, mut dst) = (Payloads::new(size), Payloads::new(size));
    group.bench_function(BenchmarkId::new("sinews", size), |b| {
        b.iter(|| copy_mask(dst.turn(), src.turn(), KEY, 0));
    });
    for kernel in Isa::ALL.into_iter().filter_map(Kernel::new) {
        group.bench_function(BenchmarkId::new(kernel.isa().name(), size), |b| {
            b.iter(|| kernel.copy_mask(dst.turn(), src.turn(), KEY, 0));
        });
    }
    group.bench_function(BenchmarkId::new("memcpy_then_mask", size), |b| {
        b.iter(|| {
            let dst = dst.turn();
            dst.copy_from_slice(src.turn());
            mask(black_box(dst), KEY, 0);
        });
    });
}

fn utf8(group: &mut Group<'_>, size: usize) {
    let ascii = vec![b'a'; size];
    let mut mixed = "Grüße aus Zürich, 世界 and 🌍! ".repeat(size / 38 + 1).into_bytes();
    mixed.truncate(size);
    while std::str::from_utf8(&mixed).is_err() {
        mixed.pop();
    }
    mixed.resize(size, b'.');
    for (name, text) in [("ascii", &ascii), ("mixed", &mixed)] {
        group.bench_function(BenchmarkId::new(format!("whole_{name}"), size), |b| {
            b.iter(|| validate_utf8(black_box(text)).is_ok());
        });
        group.bench_function(BenchmarkId::new(format!("stream_{name}"), size), |b| {
            b.iter(|| {
                let mut stream = Utf8Stream::new();
                black_box(text).chunks(64 << 10).all(|chunk| stream.push(chunk).is_ok())
                    && stream.finish().is_ok()
            });
        });
        group.bench_function(BenchmarkId::new(format!("std_{name}"), size), |b| {
            b.iter(|| std::str::from_utf8(black_box(text)).is_ok());
        });
    }
}

fn memcpy(group: &mut Group<'_>, size: usize) {
    let (mut src, mut dst) = (Payloads::new(size), Payloads::new(size));
    group.bench_function(BenchmarkId::new("memcpy", size), |b| {
        b.iter(|| dst.turn().copy_from_slice(src.turn()));
    });
}

#[inline(never)]
fn xor_u32(buf: &mut [u8], key: [u8; 4]) {
    let before = buf.as_ptr().align_offset(4).min(buf.len());
    let (head, rest) = buf.split_at_mut(before);
    xor_byte(head, key);
    let mut turned = key;
    turned.rotate_left(before % 4);
    let word = u32::from_ne_bytes(turned);
    let (words, tail) = rest.as_chunks_mut::<4>();
    for bytes in words {
        *bytes = (u32::from_ne_bytes(*bytes) ^ word).to_ne_bytes();
    }
    xor_byte(tail, turned);
}

#[inline(never)]
fn xor_byte(buf: &mut [u8], key: [u8; 4]) {
    for (i, byte) in buf.iter_mut().enumerate() {
        *byte ^= key[i & 3];
    }
}
