//! The Huffman code in RFC 7541 appendix B. The code is canonical, so that its lengths determine it.

use alloc::vec::Vec;

use super::block::BlockError;

/// Symbols: all bytes, and the end of a string.
const SYMBOLS: usize = 257;
const EOS: u16 = 256;
const LONGEST: usize = 30;

#[rustfmt::skip]
static LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28,
    28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8,
    15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7,
    8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7,
    7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23,
    24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27,
    27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23,
    22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

/// The code in the forms that encoding and decoding use.
struct Code {
    codes: [u32; SYMBOLS],
    /// Symbols in the order of their codes.
    sorted: [u16; SYMBOLS],
    /// By length: the first code, the position of its symbol in `sorted`, the number of codes.
    first: [u32; LONGEST + 1],
    start: [u16; LONGEST + 1],
    count: [u16; LONGEST + 1],
    /// By the next eight bits: a symbol with a code of at most eight bits, and the length; 0 for longer codes.
    short: [[u8; 2]; 256],
}

static CODE: Code = build();

const fn build() -> Code {
    let mut code = Code {
        codes: [0; SYMBOLS],
        sorted: [0; SYMBOLS],
        first: [0; LONGEST + 1],
        start: [0; LONGEST + 1],
        count: [0; LONGEST + 1],
        short: [[0; 2]; 256],
    };
    let (mut next, mut position, mut length) = (0_u32, 0, 1);
    while length <= LONGEST {
        next <<= 1;
        code.first[length] = next;
        code.start[length] = position as u16;
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] as usize == length {
                code.codes[symbol] = next;
                code.sorted[position] = symbol as u16;
                code.count[length] += 1;
                let mut byte = if length <= 8 { (next << (8 - length)) as usize } else { 256 };
                let end = if length <= 8 { byte + (1 << (8 - length)) } else { 256 };
                while byte < end {
                    code.short[byte] = [symbol as u8, length as u8];
                    byte += 1;
                }
                next += 1;
                position += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    code
}

/// Appends the decoded string (RFC 7541 section 5.2).
pub(crate) fn decode(mut input: &[u8], out: &mut Vec<u8>) -> Result<(), BlockError> {
    // The lowest `len` bits of `bits` are next.
    let (mut bits, mut len) = (0_u64, 0_u32);
    loop {
        while len <= 56
            && let Some((&byte, rest)) = input.split_first()
        {
            (bits, len, input) = (bits << 8 | u64::from(byte), len + 8, rest);
        }
        if len == 0 {
            return Ok(());
        }
        let window = ((bits << (64 - len)) >> 32) as u32;
        let [symbol, length] = CODE.short[(window >> 24) as usize];
        let (symbol, length) =
            if length > 0 { (u16::from(symbol), u32::from(length)) } else { long_symbol(window) };
        if length > len {
            return if is_padding(bits, len) { Ok(()) } else { Err(BAD_PADDING) };
        }
        if symbol == EOS {
            return Err(BlockError::Invalid("end of string inside of a Huffman-encoded string"));
        }
        out.push(symbol as u8);
        len -= length;
    }
}

const BAD_PADDING: BlockError = BlockError::Invalid("Huffman-encoded string has invalid padding");

/// Whether the last bits are the beginning of the end-of-string code, and shorter than a byte.
fn is_padding(bits: u64, len: u32) -> bool {
    let mask = (1 << len) - 1;
    len < 8 && bits & mask == mask
}

/// Returns the symbol at the start of `window` and its length, which is above eight.
fn long_symbol(window: u32) -> (u16, u32) {
    for length in 9..=LONGEST {
        let offset = (window >> (32 - length)).wrapping_sub(CODE.first[length]);
        if offset < u32::from(CODE.count[length]) {
            return (CODE.sorted[usize::from(CODE.start[length]) + offset as usize], length as u32);
        }
    }
    // The code is complete: each 30 bits begin with a symbol.
    (EOS, LONGEST as u32)
}

/// Returns the length of the encoded string in bytes.
pub(crate) fn encoded_len(string: &[u8]) -> usize {
    let bits: usize = string.iter().map(|&byte| usize::from(LENGTHS[usize::from(byte)])).sum();
    bits.div_ceil(8)
}

/// Appends the encoded string.
pub(crate) fn encode(string: &[u8], out: &mut Vec<u8>) {
    let (mut bits, mut len) = (0_u64, 0_u32);
    for &byte in string {
        let length = u32::from(LENGTHS[usize::from(byte)]);
        bits = bits << length | u64::from(CODE.codes[usize::from(byte)]);
        len += length;
        while len >= 8 {
            len -= 8;
            out.push((bits >> len) as u8);
        }
    }
    if len > 0 {
        out.push((bits << (8 - len)) as u8 | (0xff >> len) as u8);
    }
}
