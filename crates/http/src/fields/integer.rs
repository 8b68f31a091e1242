//! Integers with a prefix (RFC 7541 section 5.1).

use alloc::vec::Vec;

use super::block::BlockError;

/// Bytes after the prefix: values below 2^28. No length, index or table size of a valid block is larger.
const EXTENSION_MAX: usize = 4;

/// Decodes an integer whose first byte contributes `prefix` bits.
pub(crate) fn decode(prefix: u32, input: &mut &[u8]) -> Result<usize, BlockError> {
    let Some((&first, mut rest)) = input.split_first() else { return Err(CUT) };
    let max = (1 << prefix) - 1;
    let mut value = usize::from(first) & max;
    if value == max {
        let mut shift = 0;
        loop {
            let Some((&byte, behind)) = rest.split_first() else { return Err(CUT) };
            if shift == 7 * EXTENSION_MAX {
                return Err(BlockError::Invalid("integer beyond 2^28"));
            }
            rest = behind;
            value += (usize::from(byte) & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *input = rest;
    Ok(value)
}

pub(crate) const CUT: BlockError = BlockError::Invalid("header block ends inside of a field");

/// Appends an integer; `pattern` is the part of the first byte above the prefix.
pub(crate) fn encode(mut value: usize, prefix: u32, pattern: u8, out: &mut Vec<u8>) {
    let max = (1 << prefix) - 1;
    if value < max {
        out.push(pattern | value as u8);
        return;
    }
    out.push(pattern | max as u8);
    value -= max;
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
