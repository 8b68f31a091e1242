//! QPACK: header field compression (RFC 9204), both directions, with the static table only.
//!
//! SETTINGS_QPACK_MAX_TABLE_CAPACITY is 0: no field section refers to another stream, so that none is blocked, and no
//! peer's table takes memory.

mod static_table;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use crate::fields::{BlockError, FieldBuffer, integer, is_secret, string};

/// Decodes a whole field section (RFC 9204 section 4.5). Fields beyond the limits of `fields` are not stored.
pub(super) fn decode(mut section: &[u8], fields: &mut FieldBuffer) -> Result<(), BlockError> {
    fields.clear();
    if integer::decode(8, &mut section)? != 0 {
        return Err(DYNAMIC);
    }
    // Without dynamic entries any Base is valid, except a negative one (RFC 9204 section 4.5.1.2).
    if section.first().is_some_and(|first| first & 0x80 != 0) {
        return Err(BlockError::Invalid("Base of a field section is negative"));
    }
    integer::decode(7, &mut section)?;
    while let Some(&first) = section.first() {
        fields.begin();
        match first {
            0xc0.. => {
                let (name, value) = lookup(integer::decode(6, &mut section)?)?;
                fields.bytes_mut().extend_from_slice(name);
                fields.end_name();
                fields.bytes_mut().extend_from_slice(value);
            }
            0x50..=0x5f | 0x70..=0x7f => {
                let (name, _) = lookup(integer::decode(4, &mut section)?)?;
                fields.bytes_mut().extend_from_slice(name);
                fields.end_name();
                string::decode(7, &mut section, fields.bytes_mut())?;
            }
            0x20..=0x3f => {
                string::decode(3, &mut section, fields.bytes_mut())?;
                fields.end_name();
                string::decode(7, &mut section, fields.bytes_mut())?;
            }
            _ => return Err(DYNAMIC),
        }
        fields.commit()?;
    }
    Ok(())
}

const DYNAMIC: BlockError =
    BlockError::Invalid("field section refers to the dynamic table, whose capacity is 0");

fn lookup(index: usize) -> Result<(&'static [u8], &'static [u8]), BlockError> {
    static_table::get(index).ok_or(BlockError::Invalid("index of no static table entry"))
}

/// Appends the prefix of a field section without dynamic entries.
pub(super) fn begin(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0, 0]);
}

/// Appends a field whose name is in lower case.
pub(super) fn encode(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    // No intermediary may index a secret (RFC 9204 section 7.1.3).
    let is_secret = is_secret(name);
    match static_table::find(name, value) {
        Some((index, true)) if !is_secret => return integer::encode(index, 6, 0xc0, out),
        Some((index, _)) => integer::encode(index, 4, if is_secret { 0x70 } else { 0x50 }, out),
        None => string::encode(name, 3, if is_secret { 0x30 } else { 0x20 }, out),
    }
    string::encode(value, 7, 0, out);
}

/// The peer decoder's instructions that can arrive, although our sections have no dynamic entries.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DecoderInstructions {
    /// Bytes of the integer of a stream cancellation that have arrived; 0 between instructions.
    bytes: u8,
}

impl DecoderInstructions {
    /// Checks bytes on the peer's decoder stream. Returns the number of stream cancellations, which are ignored: each
    /// acknowledgement would refer to an entry that does not exist (RFC 9204 section 4.4).
    pub(super) fn receive(&mut self, input: &[u8]) -> Result<u32, &'static str> {
        let mut cancellations = 0;
        for &byte in input {
            if self.bytes == 0 {
                if byte & 0xc0 != 0x40 {
                    return Err("acknowledgement of an entry that was not inserted");
                }
                cancellations += 1;
                self.bytes = u8::from(byte & 0x3f == 0x3f);
            } else if byte & 0x80 == 0 {
                self.bytes = 0;
            } else if self.bytes == STREAM_ID_BYTES_MAX {
                return Err("stream identifier beyond 62 bits");
            } else {
                self.bytes += 1;
            }
        }
        Ok(cancellations)
    }

    /// Whether bytes on the peer's encoder stream are valid: it may set the capacity to 0 again, and no more (RFC 9204
    /// section 4.3).
    pub(super) fn is_valid_for_encoder(input: &[u8]) -> bool {
        input.iter().all(|byte| *byte == 0x20)
    }
}

/// Bytes of a 62-bit stream identifier behind its prefix.
const STREAM_ID_BYTES_MAX: u8 = 9;
