//! Capsules in a WebTransport session (RFC 9297 section 3.2).

use alloc::vec::Vec;

use super::varint::{VarintReader, write_varint};

const CLOSE_SESSION: u64 = 0x2843;
const DRAIN_SESSION: u64 = 0x78ae;

/// The longest reason for the end of a session.
pub(super) const REASON_MAX: usize = 1024;

/// Meaning of a complete capsule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Capsule {
    /// Its reason is in [`CapsuleReader::reason`].
    Close {
        code: u32,
    },
    Drain,
    /// Another capsule, which is skipped. A DATAGRAM capsule is one: datagrams may be lost.
    Other,
}

/// Capsules that arrive.
#[derive(Debug, Default)]
pub(super) struct CapsuleReader {
    number: VarintReader,
    stage: CapsuleStage,
    /// CLOSE_WEBTRANSPORT_SESSION payload.
    payload: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CapsuleStage {
    #[default]
    Type,
    Length(u64),
    Payload {
        capsule_type: u64,
        left: u64,
    },
}

impl CapsuleReader {
    /// Reads up to the end of a capsule.
    pub(super) fn receive(&mut self, input: &mut &[u8]) -> Result<Option<Capsule>, &'static str> {
        loop {
            match self.stage {
                CapsuleStage::Type => {
                    let Some(number) = self.number.read(input) else { return Ok(None) };
                    self.stage = CapsuleStage::Length(number);
                }
                CapsuleStage::Length(capsule_type) => {
                    let Some(left) = self.number.read(input) else { return Ok(None) };
                    let is_valid = match capsule_type {
                        CLOSE_SESSION => (4..=4 + REASON_MAX as u64).contains(&left),
                        DRAIN_SESSION => left == 0,
                        _ => true,
                    };
                    if !is_valid {
                        return Err("capsule has an invalid length");
                    }
                    self.stage = CapsuleStage::Payload { capsule_type, left };
                }
                CapsuleStage::Payload { capsule_type, left } => {
                    let len = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
                    let (piece, rest) = input.split_at(len);
                    *input = rest;
                    if capsule_type == CLOSE_SESSION {
                        self.payload.extend_from_slice(piece);
                    }
                    let left = left - len as u64;
                    if left > 0 {
                        self.stage = CapsuleStage::Payload { capsule_type, left };
                        return Ok(None);
                    }
                    self.stage = CapsuleStage::Type;
                    return self.complete(capsule_type).map(Some);
                }
            }
        }
    }

    fn complete(&self, capsule_type: u64) -> Result<Capsule, &'static str> {
        match (capsule_type, self.payload.first_chunk::<4>()) {
            (CLOSE_SESSION, Some(code)) if core::str::from_utf8(&self.payload[4..]).is_ok() => {
                Ok(Capsule::Close { code: u32::from_be_bytes(*code) })
            }
            (CLOSE_SESSION, _) => Err("reason for the end of a session is no UTF-8"),
            (DRAIN_SESSION, _) => Ok(Capsule::Drain),
            _ => Ok(Capsule::Other),
        }
    }

    /// Whether the stream may end here.
    pub(super) fn is_complete(&self) -> bool {
        self.stage == CapsuleStage::Type && !self.number.is_partial()
    }

    /// The reason in [`Capsule::Close`].
    pub(super) fn reason(&self) -> &[u8] {
        self.payload.get(4..).unwrap_or_default()
    }
}

/// Appends CLOSE_WEBTRANSPORT_SESSION, with the beginning of a longer reason.
pub(super) fn write_close(code: u32, reason: &str, out: &mut Vec<u8>) {
    let end = (0..=reason.len().min(REASON_MAX)).rfind(|end| reason.is_char_boundary(*end));
    let reason = &reason[..end.unwrap_or(0)];
    write_varint(CLOSE_SESSION, out);
    write_varint(4 + reason.len() as u64, out);
    out.extend_from_slice(&code.to_be_bytes());
    out.extend_from_slice(reason.as_bytes());
}

/// Appends DRAIN_WEBTRANSPORT_SESSION.
pub(super) fn write_drain(out: &mut Vec<u8>) {
    write_varint(DRAIN_SESSION, out);
    write_varint(0, out);
}
