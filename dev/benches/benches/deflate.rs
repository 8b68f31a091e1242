//! Cost and savings of compression, beside libdeflate on the same messages; `docs/book/src/internals/deflate.md` draws the
//! conclusions.
//!
//! ```text
//! cargo bench -p sinews-benches --bench deflate
//! cargo bench -p sinews-benches --bench deflate -- fresh/1024
//! ```
//!
//! The codec is private to the crate, so its source is included here.

extern crate alloc;

#[path = "../../../crates/proto/src/deflate/outcome.rs"]
mod outcome;

#[path = "../../../crates/proto/src/deflate/codec.rs"]
#[allow(dead_code, reason = "the bench takes whole messages only")]
mod codec;

use std::hint::black_box;
use std::time::Duration;

use codec::{Deflater, Inflater};
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, measurement::WallTime};
use libdeflater::{CompressionLvl, Compressor, Decompressor};

const SIZES: [usize; 6] = [64, 100, 512, 1 << 10, 16 << 10, 128 << 10];
const LEVELS: [u8; 3] = [1, 2, 6];
const WINDOW_BITS: u8 = 15;

/// Exceeds the window, so that with takeover no message repeats within it.
const CORPUS: usize = 512 << 10;

type Group<'a> = BenchmarkGroup<'a, WallTime>;

fn main() {
    print_sizes();
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_millis(150))
        .configure_from_args();
    for (name, bench) in
        [("fresh", fresh as fn(&mut Group<'_>, &[Vec<u8>])), ("takeover", takeover), ("inflate", inflate)]
    {
        let mut group = criterion.benchmark_group(name);
        for size in SIZES {
            group.throughput(Throughput::Bytes(size as u64));
            bench(&mut group, &messages(size));
        }
        group.finish();
    }
    criterion.final_summary();
}

/// Prints the compressed size as a part of the original size; timings do not show it.
fn print_sizes() {
    println!("compressed size in percent, by level; libdeflate with the octet that RFC 7692 adds");
    println!(
        "{:>8}  {:>20}  {:>20}  {:>13}",
        "bytes", "fresh 1, 2, 6", "takeover 1, 2, 6", "libdeflate 1, 6"
    );
    for size in SIZES {
        let messages = messages(size);
        let percent = |total: usize| 100.0 * total as f64 / (size * messages.len()) as f64;
        let ours = |level: u8, fresh: bool| {
            let mut deflater = Deflater::new(level, WINDOW_BITS);
            let mut out = Vec::new();
            for message in &messages {
                if fresh {
                    deflater.reset();
                }
                deflater.deflate(message, &mut out, true);
            }
            percent(out.len())
        };
        let theirs = |level: i32| {
            let mut compressor = libdeflate(level);
            let mut out = vec![0; compressor.deflate_compress_bound(size)];
            percent(messages.iter().map(|message| final_block(&mut compressor, message, &mut out) + 1).sum())
        };
        print!("{size:>8}");
        for fresh in [true, false] {
            let [a, b, c] = LEVELS.map(|level| ours(level, fresh));
            print!("  {a:>6.1} {b:>6.1} {c:>6.1}");
        }
        println!("  {:>6.1} {:>6.1}", theirs(1), theirs(6));
    }
}

/// Compresses every message in a fresh context.
fn fresh(group: &mut Group<'_>, messages: &[Vec<u8>]) {
    let size = messages[0].len();
    for level in LEVELS {
        let mut deflater = Deflater::new(level, WINDOW_BITS);
        let mut out = Vec::with_capacity(2 * size);
        let mut turn = messages.iter().cycle();
        group.bench_function(BenchmarkId::new(format!("sinews-{level}"), size), |b| {
            b.iter(|| {
                out.clear();
                deflater.reset();
                deflater.deflate(black_box(turn.next().unwrap()), &mut out, true);
                out.len()
            });
        });
    }
    for level in [1, 6] {
        let mut compressor = libdeflate(level);
        let mut out = vec![0; compressor.deflate_compress_bound(size)];
        let mut turn = messages.iter().cycle();
        group.bench_function(BenchmarkId::new(format!("libdeflate-{level}"), size), |b| {
            b.iter(|| final_block(&mut compressor, black_box(turn.next().unwrap()), &mut out));
        });
    }
}

/// Compresses every message over the window of its predecessors; libdeflate has no equivalent.
fn takeover(group: &mut Group<'_>, messages: &[Vec<u8>]) {
    let size = messages[0].len();
    for level in LEVELS {
        let mut deflater = Deflater::new(level, WINDOW_BITS);
        let mut out = Vec::with_capacity(2 * size);
        let mut turn = messages.iter().cycle();
        group.bench_function(BenchmarkId::new(format!("sinews-{level}"), size), |b| {
            b.iter(|| {
                out.clear();
                deflater.deflate(black_box(turn.next().unwrap()), &mut out, true);
                out.len()
            });
        });
    }
}

/// Decompresses without takeover. libdeflate gets the size beforehand; a WebSocket peer never does.
fn inflate(group: &mut Group<'_>, messages: &[Vec<u8>]) {
    let size = messages[0].len();
    let mut deflater = Deflater::new(6, WINDOW_BITS);
    let payloads = messages.iter().map(|message| {
        let mut out = Vec::new();
        deflater.reset();
        deflater.deflate(message, &mut out, true);
        out
    });
    let payloads: Vec<Vec<u8>> = payloads.collect();
    let mut inflater = Inflater::new(WINDOW_BITS);
    let mut turn = payloads.iter().cycle();
    group.bench_function(BenchmarkId::new("sinews", size), |b| {
        b.iter(|| {
            // The measurement includes the growth of the message buffer.
            let mut out = Vec::new();
            inflater.reset();
            inflater.inflate(black_box(turn.next().unwrap()), &mut out, size).unwrap();
            inflater.finish(&mut out, 0).unwrap();
            out
        });
    });

    let mut compressor = libdeflate(6);
    let mut out = vec![0; compressor.deflate_compress_bound(size)];
    let finals = messages.iter().map(|message| {
        let len = final_block(&mut compressor, message, &mut out);
        out[..len].to_vec()
    });
    let finals: Vec<Vec<u8>> = finals.collect();
    let mut decompressor = Decompressor::new();
    let mut turn = finals.iter().cycle();
    group.bench_function(BenchmarkId::new("libdeflate", size), |b| {
        b.iter(|| {
            let mut out = vec![0; size];
            decompressor.deflate_decompress(black_box(turn.next().unwrap()), &mut out).unwrap();
            out
        });
    });
}

fn libdeflate(level: i32) -> Compressor {
    Compressor::new(CompressionLvl::new(level).unwrap())
}

fn final_block(compressor: &mut Compressor, message: &[u8], out: &mut [u8]) -> usize {
    compressor.deflate_compress(message, out).unwrap()
}

/// Chat-like records, cut to size at any byte.
fn messages(size: usize) -> Vec<Vec<u8>> {
    let mut random = Random(size as u32 | 1);
    (0..(CORPUS / size).max(4)).map(|_| json(&mut random, size)).collect()
}

fn json(random: &mut Random, size: usize) -> Vec<u8> {
    const NAMES: [&str; 8] = ["ada", "grace", "edsger", "barbara", "donald", "leslie", "tony", "frances"];
    const WORDS: &str =
        "the message was sent to every reader and none of them waited long for an answer today";
    let words: Vec<&str> = WORDS.split(' ').collect();
    let mut text = String::new();
    while text.len() < size {
        let line: Vec<&str> =
            (0..4 + random.below(9)).map(|_| words[random.below(words.len() as u32) as usize]).collect();
        text += &format!(
            r#"{{"id":{},"user":"{}","time":17{:08},"room":"r{}","text":"{}","likes":{},"score":{}.{:02}}},"#,
            random.below(1_000_000),
            NAMES[random.below(8) as usize],
            random.below(100_000_000),
            random.below(100),
            line.join(" "),
            random.below(500),
            random.below(1000),
            random.below(100),
        );
    }
    text.truncate(size);
    text.into_bytes()
}

/// Generates the same numbers in every run.
struct Random(u32);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        self.0 % end
    }
}
