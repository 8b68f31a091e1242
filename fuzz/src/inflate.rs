//! An inflater written from RFC 1951 and RFC 7692 section 7.2.2. It works bit by bit, and reads a truncated
//! block again from its start when more input has arrived.

use std::collections::BTreeMap;

/// The sender's LZ77 window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// Base-2 logarithm of its size.
    pub(crate) bits: u8,
    /// Preserved from message to message.
    pub(crate) takeover: bool,
}

/// Result of a message so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inflated {
    /// At most one byte more than the limit.
    pub(crate) content: Vec<u8>,
    /// The data are not deflate, or the message ends inside a block.
    pub(crate) bad: bool,
    /// The RFCs do not specify whether a decoder accepts this.
    pub(crate) unspecified: bool,
}

/// Inflates the messages of one direction.
#[derive(Debug)]
pub(crate) struct Inflater {
    window: Window,
    max: usize,
    /// Content of earlier messages in the window.
    history: Vec<u8>,
    /// Compressed bytes of this message.
    input: Vec<u8>,
    /// Offset of the next block, in bits.
    at: usize,
    /// Output of the earlier blocks.
    done: Vec<u8>,
    last_block: Block,
    restarts: u32,
    inflated: Inflated,
}

/// Properties of a block that determine its valid successors.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    is_final: bool,
    is_empty_stored: bool,
}

/// Reason why a block could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Short,
    Bad,
    TooLong,
    Unspecified,
}

/// Blocks marked final that the decoder accepts within one message.
const FINAL_BLOCKS_MAX: u32 = 1024;

impl Inflater {
    pub(crate) fn new(window: Window, max: usize) -> Self {
        Self {
            window,
            max,
            history: Vec::new(),
            input: Vec::new(),
            at: 0,
            done: Vec::new(),
            last_block: Block::default(),
            restarts: 0,
            inflated: Inflated::default(),
        }
    }

    /// Takes more of a message; `last`: the payload completes the message.
    pub(crate) fn feed(&mut self, payload: &[u8], last: bool) -> Inflated {
        self.input.extend_from_slice(payload);
        let had_input = !self.input.is_empty();
        let mut stop = self.blocks();
        if last && stop == Stop::Short {
            let whole = self.at == self.input.len() * 8;
            if !(self.last_block.is_final && whole && had_input) {
                self.input.extend_from_slice(&[0x00, 0x00, 0xff, 0xff]);
                stop = self.blocks();
                let whole = self.at == self.input.len() * 8;
                if stop == Stop::Short && !(had_input && whole) {
                    stop = Stop::Bad;
                } else if stop == Stop::Short && !self.last_block.is_empty_stored {
                    // The tail is not a tail, yet happens to end a block.
                    stop = Stop::Unspecified;
                }
            }
        }
        self.inflated.bad = stop == Stop::Bad;
        self.inflated.unspecified = stop == Stop::Unspecified;
        let inflated = self.inflated.clone();
        if last {
            self.finish();
        }
        inflated
    }

    fn finish(&mut self) {
        if self.window.takeover {
            self.history.append(&mut self.done);
            let excess = self.history.len().saturating_sub(1 << 15);
            self.history.drain(..excess);
        } else {
            self.last_block = Block::default();
        }
        self.input.clear();
        self.done.clear();
        self.at = 0;
        self.restarts = 0;
        self.inflated = Inflated::default();
    }

    /// Reads blocks until one fails; [`Stop::Short`] between two blocks is the regular end.
    fn blocks(&mut self) -> Stop {
        loop {
            let behind_final = self.last_block.is_final;
            if behind_final {
                // Data behind a final block starts at the next byte.
                self.at = self.at.next_multiple_of(8);
                if self.at == self.input.len() * 8 {
                    self.inflated.content.clone_from(&self.done);
                    return Stop::Short;
                }
                self.restarts += 1;
                if self.restarts > FINAL_BLOCKS_MAX {
                    return Stop::Bad;
                }
                self.last_block.is_final = false;
            }
            let mut reader = Reader {
                input: &self.input,
                at: self.at,
                history: &self.history,
                out: self.done.clone(),
                window: 1 << self.window.bits,
                max: self.max,
            };
            let block = reader.block();
            let at = reader.at;
            let out = reader.out;
            self.inflated.content.clone_from(&out);
            match block {
                Ok(block) => (self.at, self.done, self.last_block) = (at, out, block),
                Err(stop) => return stop,
            }
        }
    }
}

struct Reader<'a> {
    input: &'a [u8],
    at: usize,
    history: &'a [u8],
    out: Vec<u8>,
    window: usize,
    max: usize,
}

impl Reader<'_> {
    fn bits(&mut self, count: usize) -> Result<usize, Stop> {
        let mut number = 0;
        for place in 0..count {
            let byte = *self.input.get(self.at / 8).ok_or(Stop::Short)?;
            number |= usize::from(byte >> (self.at % 8) & 1) << place;
            self.at += 1;
        }
        Ok(number)
    }

    fn put(&mut self, byte: u8) -> Result<(), Stop> {
        self.out.push(byte);
        if self.out.len() > self.max { Err(Stop::TooLong) } else { Ok(()) }
    }

    /// RFC 1951 section 3.2.3.
    fn block(&mut self) -> Result<Block, Stop> {
        let is_final = self.bits(1)? == 1;
        let mut is_empty_stored = false;
        match self.bits(2)? {
            0 => is_empty_stored = self.stored()? == 0,
            1 => self.coded(&fixed_literals(), &Code::new(&[5; 30]))?,
            2 => {
                let (literals, distances) = self.dynamic()?;
                self.coded(&literals, &distances)?;
            }
            _ => return Err(Stop::Bad),
        }
        Ok(Block { is_final, is_empty_stored })
    }

    /// Section 3.2.4.
    fn stored(&mut self) -> Result<usize, Stop> {
        self.at = self.at.next_multiple_of(8);
        let len = self.bits(16)?;
        let complement = self.bits(16)?;
        if len != complement ^ 0xffff {
            return Err(Stop::Bad);
        }
        for _ in 0..len {
            let byte = self.bits(8)?;
            self.put(byte as u8)?;
        }
        Ok(len)
    }

    /// Section 3.2.5.
    fn coded(&mut self, literals: &Code, distances: &Code) -> Result<(), Stop> {
        loop {
            match self.symbol(literals)? {
                literal @ 0..=255 => self.put(literal as u8)?,
                256 => return Ok(()),
                symbol @ 257..=285 => {
                    let (base, extra) = LENGTHS[symbol - 257];
                    let len = base + self.bits(extra)?;
                    let symbol = self.symbol(distances)?;
                    let &(base, extra) = DISTANCES.get(symbol).ok_or(Stop::Bad)?;
                    let distance = base + self.bits(extra)?;
                    self.copy(len, distance)?;
                }
                _ => return Err(Stop::Bad),
            }
        }
    }

    fn copy(&mut self, len: usize, distance: usize) -> Result<(), Stop> {
        if distance > self.history.len() + self.out.len() {
            return Err(Stop::Bad);
        }
        // The sender violates its window. A decoder with a larger window need not notice.
        if distance > self.window {
            return Err(Stop::Unspecified);
        }
        for _ in 0..len {
            let byte = match self.out.len().checked_sub(distance) {
                Some(at) => self.out[at],
                None => self.history[self.history.len() + self.out.len() - distance],
            };
            self.put(byte)?;
        }
        Ok(())
    }

    /// Section 3.2.7.
    fn dynamic(&mut self) -> Result<(Code, Code), Stop> {
        let literals = self.bits(5)? + 257;
        let distances = self.bits(5)? + 1;
        let count = self.bits(4)? + 4;
        if literals > 286 || distances > 30 {
            return Err(Stop::Bad);
        }
        let mut lengths = [0; 19];
        for &place in &ORDER[..count] {
            lengths[place] = self.bits(3)?;
        }
        let code = Code::new(&lengths);
        if code.longest == 0 {
            // Invalid in any case, but decoders may detect it at different points.
            return Err(Stop::Unspecified);
        }
        if code.left != 0 {
            return Err(Stop::Bad);
        }
        let mut lengths = Vec::new();
        while lengths.len() < literals + distances {
            let (length, times) = match self.symbol(&code)? {
                16 => {
                    let times = 3 + self.bits(2)?;
                    (*lengths.last().ok_or(Stop::Bad)?, times)
                }
                17 => (0, 3 + self.bits(3)?),
                18 => (0, 11 + self.bits(7)?),
                length => (length, 1),
            };
            lengths.extend(std::iter::repeat_n(length, times));
        }
        if lengths.len() > literals + distances || lengths[256] == 0 {
            return Err(Stop::Bad);
        }
        let (literals, distances) = lengths.split_at(literals);
        let (literals, distances) = (Code::new(literals), Code::new(distances));
        for code in [&literals, &distances] {
            // A single code of one bit may leave its complement unused.
            if code.left < 0 || code.left > 0 && code.longest > 1 {
                return Err(Stop::Bad);
            }
        }
        Ok((literals, distances))
    }

    /// Decodes a symbol bit by bit (section 3.2.2).
    fn symbol(&mut self, code: &Code) -> Result<usize, Stop> {
        let mut bits = 0;
        for len in 1..=code.longest.max(1) {
            bits = bits << 1 | self.bits(1)?;
            if let Some(symbol) = code.symbols.get(&(len, bits)) {
                return Ok(*symbol);
            }
        }
        Err(Stop::Bad)
    }
}

/// A prefix code.
struct Code {
    /// Symbols by length and bits of the code.
    symbols: BTreeMap<(usize, usize), usize>,
    longest: usize,
    /// Unused part of the code space, in units of the longest code; below zero: oversubscribed.
    left: i32,
}

impl Code {
    fn new(lengths: &[usize]) -> Self {
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let mut symbols = BTreeMap::new();
        let mut bits = 0;
        let mut left = 1 << longest;
        for len in 1..=longest {
            bits <<= 1;
            for (symbol, _) in lengths.iter().enumerate().filter(|(_, length)| **length == len) {
                symbols.insert((len, bits), symbol);
                bits += 1;
                left -= 1 << (longest - len);
            }
        }
        Self { symbols, longest, left }
    }
}

/// Section 3.2.6.
fn fixed_literals() -> Code {
    let mut lengths = [8; 288];
    lengths[144..256].fill(9);
    lengths[256..280].fill(7);
    Code::new(&lengths)
}

/// The order of the code length codes (section 3.2.7).
const ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/// Base and extra bits of each length symbol from 257 (section 3.2.5).
pub(crate) const LENGTHS: [(usize, usize); 29] = {
    let mut table = [(0, 0); 29];
    let mut base = 3;
    let mut at = 0;
    while at < 28 {
        let extra = if at < 8 { 0 } else { at / 4 - 1 };
        table[at] = (base, extra);
        base += 1 << extra;
        at += 1;
    }
    table[28] = (258, 0);
    table
};

/// Base and extra bits of each distance symbol (section 3.2.5).
pub(crate) const DISTANCES: [(usize, usize); 30] = {
    let mut table = [(0, 0); 30];
    let mut base = 1;
    let mut at = 0;
    while at < 30 {
        let extra = if at < 4 { 0 } else { at / 2 - 1 };
        table[at] = (base, extra);
        base += 1 << extra;
        at += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Window = Window { bits: 15, takeover: true };

    /// The examples of RFC 7692 section 7.2.3.
    #[test]
    fn the_examples_of_the_rfc() {
        let mut inflater = Inflater::new(WINDOW, 100);
        for payload in [
            &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00][..],
            &[0xf2, 0x00, 0x11, 0x00, 0x00],
            &[0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00],
            &[0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00],
            &[0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00],
        ] {
            for split in 0..=payload.len() {
                let mut inflater = Inflater::new(WINDOW, 100);
                inflater.feed(&payload[..split], false);
                let inflated = inflater.feed(&payload[split..], true);
                if payload[..2] != [0xf2, 0x00] {
                    assert!(!inflated.bad && inflated.content == b"Hello", "{payload:x?} at {split}");
                }
            }
            let inflated = inflater.feed(payload, true);
            assert!(!inflated.bad && inflated.content == b"Hello", "{payload:x?}");
        }
        assert!(inflater.feed(&[0x00], true).content.is_empty());
        assert!(inflater.feed(&[], true).bad);
        assert_eq!((LENGTHS[27], DISTANCES[29]), ((227, 5), (24577, 13)));
    }
}
