//! Builds deflate blocks from decisions: mostly valid blocks, of kinds that compressors rarely produce.

use crate::inflate::{DISTANCES, LENGTHS};
use crate::input::Input;

/// Builds a payload of up to eight blocks, without its tail.
pub(crate) fn build(input: &mut Input<'_>) -> Vec<u8> {
    let mut writer = Writer::default();
    for _ in 0..=input.below(8) {
        let what = input.byte();
        let is_final = what >> 4 & 3 == 0;
        match what & 3 {
            0 => writer.stored(input, is_final),
            1 => writer.dynamic(input, is_final),
            _ => writer.fixed(input, is_final),
        }
        if is_final {
            writer.align();
        }
    }
    match input.below(4) {
        // The regular end: the header of an empty stored block, with the tail as its rest.
        0 | 1 => {
            writer.bits(0, 3);
            writer.align();
        }
        // The regular end, marked final.
        2 => {
            writer.bits(1, 3);
            writer.align();
        }
        _ => {}
    }
    writer.bytes
}

#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
    /// Used bits of the last byte; zero: all bits.
    used: usize,
}

impl Writer {
    fn bits(&mut self, number: usize, count: usize) {
        for place in 0..count {
            if self.used == 0 {
                self.bytes.push(0);
            }
            if let Some(last) = self.bytes.last_mut() {
                *last |= ((number >> place & 1) as u8) << self.used;
            }
            self.used = (self.used + 1) % 8;
        }
    }

    /// A code is written from its highest bit (RFC 1951 section 3.1.1).
    fn code(&mut self, code: usize, count: usize) {
        for place in (0..count).rev() {
            self.bits(code >> place & 1, 1);
        }
    }

    fn align(&mut self) {
        self.used = 0;
    }

    fn stored(&mut self, input: &mut Input<'_>, is_final: bool) {
        let len = input.below(40);
        let content = input.take(len);
        self.bits(usize::from(is_final), 3);
        self.align();
        let len = content.len() as u16;
        self.bytes.extend_from_slice(&len.to_le_bytes());
        self.bytes.extend_from_slice(&(!len).to_le_bytes());
        self.bytes.extend_from_slice(content);
    }

    fn fixed(&mut self, input: &mut Input<'_>, is_final: bool) {
        self.bits(usize::from(is_final) | 2, 3);
        for _ in 0..input.below(16) {
            let what = input.byte();
            if what & 1 == 0 {
                self.fixed_symbol(usize::from(what >> 1));
                continue;
            }
            let (symbol, distance) = (usize::from(what >> 1) % 30, input.below(31));
            self.fixed_symbol(257 + symbol);
            let extra = |table: &[(usize, usize)], at: usize| table.get(at).map_or(0, |entry| entry.1);
            let more = usize::from(input.byte());
            self.bits(more, extra(&LENGTHS, symbol));
            self.code(distance, 5);
            self.bits(more * 37, extra(&DISTANCES, distance));
        }
        self.fixed_symbol(256);
    }

    /// RFC 1951 section 3.2.6.
    fn fixed_symbol(&mut self, symbol: usize) {
        match symbol {
            0..=143 => self.code(0x30 + symbol, 8),
            144..=255 => self.code(0x190 + symbol - 144, 9),
            256..=279 => self.code(symbol - 256, 7),
            _ => self.code(0xc0 + symbol - 280, 8),
        }
    }

    /// Writes a block with its own codes: two or four symbols, one or no distances.
    fn dynamic(&mut self, input: &mut Input<'_>, is_final: bool) {
        self.bits(usize::from(is_final) | 4, 3);
        let letters = [input.below(256), input.below(256)];
        let distances = input.below(3);
        let mut lengths = [0; 260];
        let depth = if distances == 0 { 1 } else { 2 };
        for symbol in [letters[0], letters[1], 256, 257] {
            if depth == 2 || symbol == letters[0] || symbol == 256 {
                lengths[symbol] = depth;
            }
        }
        // 258 literal and length codes; one or two distances.
        self.bits(1, 5);
        self.bits(distances / 2, 5);
        self.bits(15, 4);
        // All nineteen lengths: thirteen of four bits and six of five form a complete code.
        for &symbol in &[16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15_usize] {
            self.bits(if symbol < 13 { 4 } else { 5 }, 3);
        }
        for &length in &lengths[..258] {
            self.code(length, 4);
        }
        for _ in 0..=distances / 2 {
            self.code(usize::from(distances > 0), 4);
        }
        for _ in 0..input.below(12) {
            let code = input.below(4);
            self.code(code, depth);
            // The highest code is a match: its distance follows, if distances have a code.
            if depth == 2 && code == 3 {
                self.code(input.below(2), 1);
            }
        }
        let mut sorted: Vec<usize> = (0..258).filter(|symbol| lengths[*symbol] > 0).collect();
        sorted.sort_unstable();
        let end = sorted.iter().position(|symbol| *symbol == 256).unwrap_or(0);
        self.code(end, depth);
    }
}
