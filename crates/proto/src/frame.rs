//! Parsing and writing of frame heads (RFC 6455 section 5.2).

use alloc::vec::Vec;

use crate::{PeerMisbehaved, Role};

/// A parsed frame head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHead {
    pub(crate) opcode: Opcode,
    pub(crate) fin: bool,
    /// RSV1: the first frame of a compressed message (RFC 7692 6).
    pub(crate) compressed: bool,
    pub(crate) len: u64,
    /// The mask key; zero for frames of a server, which does not mask.
    pub(crate) key: [u8; 4],
    /// Length of the head, 2 to 14 bytes.
    pub(crate) size: usize,
}

/// The six defined opcodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opcode {
    Continuation,
    Text,
    Binary,
    Close,
    Ping,
    Pong,
}

/// A complete head, or the minimum number of missing bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParsedHead {
    Head(FrameHead),
    NeedMore(usize),
}

impl Opcode {
    const fn parse(nibble: u8) -> Option<Self> {
        Some(match nibble {
            0 => Self::Continuation,
            1 => Self::Text,
            2 => Self::Binary,
            8 => Self::Close,
            9 => Self::Ping,
            10 => Self::Pong,
            _ => return None,
        })
    }

    const fn nibble(self) -> u8 {
        match self {
            Self::Continuation => 0,
            Self::Text => 1,
            Self::Binary => 2,
            Self::Close => 8,
            Self::Ping => 9,
            Self::Pong => 10,
        }
    }

    pub(crate) const fn is_control(self) -> bool {
        self.nibble() & 8 != 0
    }
}

/// Maximum payload in a ping, or in any control frame, in bytes (RFC 6455 section 5.5).
pub const CONTROL_MAX: usize = 125;

/// Parses the head at the start of `bytes`, as received by `role`. Errors in the first two bytes are
/// reported before the rest of the head arrives.
#[inline]
pub(crate) fn parse(bytes: &[u8], role: Role) -> Result<ParsedHead, PeerMisbehaved> {
    let &[first, second, ..] = bytes else {
        return Ok(ParsedHead::NeedMore(2 - bytes.len()));
    };
    if first & 0x30 != 0 {
        return Err(PeerMisbehaved::ReservedBits);
    }
    let Some(opcode) = Opcode::parse(first & 0x0f) else {
        return Err(PeerMisbehaved::UnknownOpcode(first & 0x0f));
    };
    let (fin, compressed) = (first & 0x80 != 0, first & 0x40 != 0);
    let (masked, short) = (second & 0x80 != 0, second & 0x7f);
    match (role, masked) {
        (Role::Server, false) => return Err(PeerMisbehaved::UnmaskedFrame),
        (Role::Client, true) => return Err(PeerMisbehaved::MaskedFrame),
        _ => {}
    }
    if opcode.is_control() {
        if short as usize > CONTROL_MAX {
            return Err(PeerMisbehaved::ControlTooLong);
        }
        if !fin {
            return Err(PeerMisbehaved::ControlFragmented);
        }
    }
    let (len, before_key) = match short {
        126 => match bytes.get(2..4) {
            Some(&[a, b]) => (u64::from(u16::from_be_bytes([a, b])), 4),
            _ => return Ok(ParsedHead::NeedMore(4 - bytes.len())),
        },
        127 => match bytes.get(2..10).and_then(|long| <[u8; 8]>::try_from(long).ok()) {
            Some(long) => (u64::from_be_bytes(long), 10),
            None => return Ok(ParsedHead::NeedMore(10 - bytes.len())),
        },
        short => (u64::from(short), 2),
    };
    check_length(len, before_key)?;
    if !masked {
        let head = FrameHead { opcode, fin, compressed, len, key: [0; 4], size: before_key };
        return Ok(ParsedHead::Head(head));
    }
    match bytes.get(before_key..before_key + 4) {
        Some(&[a, b, c, d]) => {
            let key = [a, b, c, d];
            Ok(ParsedHead::Head(FrameHead { opcode, fin, compressed, len, key, size: before_key + 4 }))
        }
        _ => Ok(ParsedHead::NeedMore(before_key + 4 - bytes.len())),
    }
}

/// Parses the length prefix at the start of `bytes`, as an unmasked binary frame's head.
#[inline]
pub(crate) fn parse_prefix(bytes: &[u8]) -> ParsedHead {
    let Some(len) = bytes.first_chunk() else { return ParsedHead::NeedMore(PREFIX - bytes.len()) };
    let len = u64::from(u32::from_le_bytes(*len));
    ParsedHead::Head(FrameHead {
        opcode: Opcode::Binary,
        fin: true,
        compressed: false,
        len,
        key: [0; 4],
        size: PREFIX,
    })
}

/// Appends the length prefix of a message. A length beyond four bytes is rejected.
#[inline]
pub(crate) fn write_prefix(len: u64, out: &mut Vec<u8>) -> bool {
    u32::try_from(len).is_ok_and(|len| {
        out.extend_from_slice(&len.to_le_bytes());
        true
    })
}

/// Bytes of the length prefix.
const PREFIX: usize = 4;

/// Parses kind and length at the start of `bytes`, as an unmasked frame's head.
pub(crate) fn parse_tagged(bytes: &[u8]) -> Result<ParsedHead, PeerMisbehaved> {
    let Some(&tag) = bytes.first() else { return Ok(ParsedHead::NeedMore(TAGGED)) };
    let Some(opcode @ (Opcode::Text | Opcode::Binary | Opcode::Close)) = Opcode::parse(tag) else {
        return Err(PeerMisbehaved::UnknownOpcode(tag));
    };
    let &[_, a, b, c, d, ..] = bytes else { return Ok(ParsedHead::NeedMore(TAGGED - bytes.len())) };
    let len = u64::from(u32::from_be_bytes([a, b, c, d]));
    if opcode.is_control() && len > CONTROL_MAX as u64 {
        return Err(PeerMisbehaved::ControlTooLong);
    }
    Ok(ParsedHead::Head(FrameHead { opcode, fin: true, compressed: false, len, key: [0; 4], size: TAGGED }))
}

/// Appends kind and length of a message. A length beyond four bytes is rejected.
pub(crate) fn write_tagged(opcode: Opcode, len: u64, out: &mut Vec<u8>) -> bool {
    u32::try_from(len).is_ok_and(|len| {
        out.push(opcode.nibble());
        out.extend_from_slice(&len.to_be_bytes());
        true
    })
}

/// Bytes of kind and length.
const TAGGED: usize = 5;

/// The shortest form is required, and the longest form's top bit must be zero.
#[inline]
const fn check_length(len: u64, before_key: usize) -> Result<(), PeerMisbehaved> {
    if len >> 63 != 0 {
        return Err(PeerMisbehaved::LengthTopBit);
    }
    let least = match before_key {
        2 => 0,
        4 => 126,
        _ => 65_536,
    };
    if len < least { Err(PeerMisbehaved::LengthNotMinimal) } else { Ok(()) }
}

/// The fields of a frame head to write.
#[derive(Clone, Copy)]
pub(crate) struct FrameFields {
    pub(crate) opcode: Opcode,
    pub(crate) fin: bool,
    pub(crate) compressed: bool,
    /// The mask key: required for clients, forbidden for servers.
    pub(crate) key: Option<[u8; 4]>,
}

/// Longest head: two bytes, eight for the length, four for the mask key (RFC 6455 section 5.2).
pub(crate) const HEAD_MAX: usize = 14;

/// Appends a head for `len` bytes of payload.
#[inline]
pub(crate) fn write_head(frame: FrameFields, len: u64, out: &mut Vec<u8>) {
    let mut head = [0; HEAD_MAX];
    head[0] = u8::from(frame.fin) << 7 | u8::from(frame.compressed) << 6 | frame.opcode.nibble();
    let mut size = match len {
        0..=125 => {
            head[1] = len as u8;
            2
        }
        126..=65_535 => {
            head[1] = 126;
            head[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            4
        }
        _ => {
            head[1] = 127;
            head[2..10].copy_from_slice(&len.to_be_bytes());
            10
        }
    };
    if let Some(key) = frame.key {
        head[1] |= 0x80;
        head[size..size + 4].copy_from_slice(&key);
        size += 4;
    }
    out.extend_from_slice(&head[..size]);
}

/// Appends a complete frame; a client's payload is masked while it is copied.
#[inline]
pub(crate) fn write_frame(frame: FrameFields, payload: &[u8], out: &mut Vec<u8>) {
    out.reserve(HEAD_MAX + payload.len());
    write_head(frame, payload.len() as u64, out);
    match frame.key {
        Some(key) => sinews_simd::extend_masked(out, payload, key, 0),
        None => out.extend_from_slice(payload),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6455 section 5.2: the shortest form of each length, with and without a mask key.
    #[test]
    fn heads_have_the_shortest_length_and_no_other_form_is_accepted() {
        let forms: [(u64, &[u8]); 8] = [
            (0, &[0]),
            (125, &[125]),
            (126, &[126, 0, 126]),
            (127, &[126, 0, 127]),
            (65_535, &[126, 0xff, 0xff]),
            (65_536, &[127, 0, 0, 0, 0, 0, 1, 0, 0]),
            (u64::from(u32::MAX) + 1, &[127, 0, 0, 0, 1, 0, 0, 0, 0]),
            (i64::MAX as u64, &[127, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        ];
        for ((len, form), key) in
            forms.into_iter().flat_map(|form| [(form, None), (form, Some([1, 2, 3, 4]))])
        {
            let mut head = Vec::new();
            write_head(
                FrameFields { opcode: Opcode::Binary, fin: true, compressed: false, key },
                len,
                &mut head,
            );
            let mut expected =
                [&[0x82], form, &key.unwrap_or_default()[..key.map_or(0, |key| key.len())]].concat();
            expected[1] |= if key.is_some() { 0x80 } else { 0 };
            assert_eq!(head, expected, "{len}");
            let role = if key.is_some() { Role::Server } else { Role::Client };
            let Ok(ParsedHead::Head(parsed)) = parse(&head, role) else { panic!("{len}: no head") };
            assert_eq!((parsed.len, parsed.size, parsed.key), (len, head.len(), key.unwrap_or_default()));
        }
        for (form, fault) in [
            (&[126, 0, 125][..], PeerMisbehaved::LengthNotMinimal),
            (&[127, 0, 0, 0, 0, 0, 0, 0xff, 0xff], PeerMisbehaved::LengthNotMinimal),
            (&[127, 0x80, 0, 0, 0, 0, 0, 0, 0], PeerMisbehaved::LengthTopBit),
        ] {
            let head = [&[0x82], form].concat();
            assert!(matches!(parse(&head, Role::Client), Err(found) if found == fault), "{form:?}");
        }
    }
}
