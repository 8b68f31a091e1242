//! Variable-length integers (RFC 9000 section 16), and the prefixes that they form.

use alloc::vec::Vec;

/// The largest integer.
pub(super) const VARINT_MAX: u64 = (1 << 62) - 1;

/// An integer that arrives in pieces.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct VarintReader {
    bytes: [u8; 8],
    have: u8,
}

impl VarintReader {
    /// Reads up to the end of the integer.
    pub(super) fn read(&mut self, input: &mut &[u8]) -> Option<u64> {
        while let Some((&byte, rest)) = input.split_first() {
            *input = rest;
            if self.have == 0 {
                self.bytes = [0; 8];
            }
            self.bytes[usize::from(self.have)] = byte;
            self.have += 1;
            let bits = self.bytes[0] >> 6;
            if self.have == 1 << bits {
                self.have = 0;
                self.bytes[0] &= 0x3f;
                return Some(u64::from_be_bytes(self.bytes) >> (64 - (8 << bits)));
            }
        }
        None
    }

    /// Whether a part of an integer has arrived.
    pub(super) const fn is_partial(self) -> bool {
        self.have > 0
    }
}

/// Bytes of one or two integers: a DATA frame's header, the beginning of a stream or datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramePrefix {
    bytes: [u8; 16],
    len: u8,
}

impl FramePrefix {
    pub(super) const fn new() -> Self {
        Self { bytes: [0; 16], len: 0 }
    }

    /// Appends an integer in its shortest form. A prefix has at most two.
    pub(super) fn with(mut self, value: u64) -> Self {
        let (bytes, len) = encoded(value);
        let at = usize::from(self.len);
        self.bytes[at..at + len].copy_from_slice(&bytes[..len]);
        self.len += len as u8;
        self
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl AsRef<[u8]> for FramePrefix {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

/// Appends an integer in its shortest form.
pub(super) fn write_varint(value: u64, out: &mut Vec<u8>) {
    let (bytes, len) = encoded(value);
    out.extend_from_slice(&bytes[..len]);
}

/// Values above [`VARINT_MAX`] are clamped.
fn encoded(value: u64) -> ([u8; 8], usize) {
    let value = value.min(VARINT_MAX);
    let bits = match value {
        0..=0x3f => 0,
        0x40..=0x3fff => 1,
        0x4000..=0x3fff_ffff => 2,
        _ => 3,
    };
    let mut bytes = (value << (64 - (8 << bits))).to_be_bytes();
    bytes[0] |= bits << 6;
    (bytes, 1 << bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9000 appendix A.1.
    #[test]
    fn integers_of_the_rfc_are_read_and_written() {
        for (wire, value) in [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
        ] {
            let mut out = Vec::new();
            write_varint(value, &mut out);
            assert_eq!(out, wire);
            let mut reader = VarintReader::default();
            for byte in &wire[..wire.len() - 1] {
                assert_eq!(reader.read(&mut &[*byte][..]), None);
                assert!(reader.is_partial());
            }
            assert_eq!(reader.read(&mut &wire[wire.len() - 1..]), Some(value));
            assert!(!reader.is_partial());
        }
        // Longer forms are valid.
        assert_eq!(VarintReader::default().read(&mut &[0x40, 0x25][..]), Some(37));
        assert_eq!(VarintReader::default().read(&mut &[0xff; 8][..]), Some(VARINT_MAX));
        let prefix = FramePrefix::new().with(u64::MAX).with(VARINT_MAX);
        assert_eq!(prefix.as_bytes(), [0xff; 16]);
    }
}
