//! Runs each target on its seeds, and on inputs derived from them: a short version of `cargo fuzz`.
//!
//! `SINEWS_FUZZ_RUNS` sets the number of inputs for each target.

use std::fs;
use std::panic::{self, UnwindSafe};
use std::path::Path;

use sinews_testkit::Rng;

sinews_testkit::tests! {
    frames => brief("frames", sinews_fuzz::frames, 20_000);
    handshake => brief("handshake", sinews_fuzz::handshake, 20_000);
    deflate => brief("deflate", sinews_fuzz::deflate, 2_000);
    session => brief("session", sinews_fuzz::session, 1_500);
    records => brief("records", sinews_fuzz::records, 20_000);
    pusher => brief("pusher", sinews_fuzz::pusher, 3_000);
    http2 => brief("http2", sinews_fuzz::http2, 1_000);
    http3 => brief("http3", sinews_fuzz::http3, 5_000);
}

/// Runs the seeds, then `runs` inputs derived from a fixed seed.
fn brief(name: &str, target: fn(&[u8]), runs: usize) {
    let runs = std::env::var("SINEWS_FUZZ_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(runs);
    let seeds = seeds(name);
    for seed in &seeds {
        try_one(name, target, seed);
    }
    let mut random = Random(Rng::new(0x5eed));
    for _ in 0..runs {
        let input = random.input(&seeds);
        try_one(name, target, &input);
    }
}

/// Converts a panic of the target into a panic with the input.
fn try_one(name: &str, target: fn(&[u8]), input: &[u8]) {
    let run: Box<dyn FnOnce() + UnwindSafe> = {
        let input = input.to_vec();
        Box::new(move || target(&input))
    };
    if let Err(panic) = panic::catch_unwind(run) {
        let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
        let what = panic.downcast_ref::<String>().map(String::as_str);
        let what = what.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
        panic!("{name} fails on {hex}\n{what}");
    }
}

/// The files of `seeds/<name>`, by name.
fn seeds(name: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name);
    let entries = fs::read_dir(&directory).expect("each target has seeds");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a readable entry").path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("a readable seed")).collect()
}

/// The same inputs in each run.
struct Random(Rng);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0.below(end.max(1))
    }

    /// Creates every fourth input from nothing, the other inputs from one or two seeds.
    fn input(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        if seeds.is_empty() || self.below(4) == 0 {
            let len = self.below(400);
            return (0..len).map(|_| self.0.next_u64() as u8).collect();
        }
        let mut input = seeds[self.below(seeds.len())].clone();
        if self.below(8) == 0 {
            let other = &seeds[self.below(seeds.len())];
            input.truncate(self.below(input.len() + 1));
            input.extend_from_slice(&other[self.below(other.len() + 1)..]);
        }
        for _ in 0..self.below(6) {
            self.mutate(&mut input);
        }
        input
    }

    fn mutate(&mut self, input: &mut Vec<u8>) {
        let at = self.below(input.len() + 1);
        let end = (at + 1 + self.below(16)).min(input.len());
        match self.below(6) {
            0 if at < input.len() => input[at] ^= 1 << self.below(8),
            1 if at < input.len() => input[at] = self.0.next_u64() as u8,
            2 if at < input.len() => input[at] = [0, 1, 0x7f, 0x80, 0xff, b'"', b',', b';'][self.below(8)],
            3 => drop(input.drain(at.min(end)..end)),
            4 => {
                let piece: Vec<u8> = input[at.min(end)..end].to_vec();
                let to = self.below(input.len() + 1);
                input.splice(to..to, piece);
            }
            _ => {
                let byte = self.0.next_u64() as u8;
                let times = 1 + self.below(4);
                input.splice(at..at, std::iter::repeat_n(byte, times));
            }
        }
    }
}
