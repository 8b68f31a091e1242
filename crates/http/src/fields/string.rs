//! String literals (RFC 7541 section 5.2, RFC 9204 section 4.1.2).

use alloc::vec::Vec;

use super::block::BlockError;
use super::huffman;
use super::integer::{self, CUT};

/// Appends a decoded literal. Its length has `prefix` bits in the first byte, below the Huffman bit.
pub(crate) fn decode(prefix: u32, block: &mut &[u8], out: &mut Vec<u8>) -> Result<(), BlockError> {
    let is_huffman = block.first().ok_or(CUT)? & 1 << prefix != 0;
    let len = integer::decode(prefix, block)?;
    let (string, rest) = block.split_at_checked(len).ok_or(CUT)?;
    *block = rest;
    if is_huffman {
        return huffman::decode(string, out);
    }
    out.extend_from_slice(string);
    Ok(())
}

/// Appends a literal in its shorter form; `pattern` is the part of the first byte above the Huffman bit.
pub(crate) fn encode(string: &[u8], prefix: u32, pattern: u8, out: &mut Vec<u8>) {
    let encoded = huffman::encoded_len(string);
    if encoded < string.len() {
        integer::encode(encoded, prefix, pattern | 1 << prefix, out);
        huffman::encode(string, out);
    } else {
        integer::encode(string.len(), prefix, pattern, out);
        out.extend_from_slice(string);
    }
}
