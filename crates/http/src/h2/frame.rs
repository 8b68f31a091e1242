//! Frame headers (RFC 9113 section 4.1).

use alloc::vec::Vec;

/// A client's first bytes (RFC 9113 section 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes in a frame header.
pub const FRAME_HEADER_LEN: usize = 9;

/// Frame size without settings, and the smallest maximum (RFC 9113 section 4.2).
pub(super) const FRAME_SIZE_MIN: u32 = 1 << 14;
pub(super) const FRAME_SIZE_MAX: u32 = (1 << 24) - 1;

pub(super) const END_STREAM: u8 = 1;
pub(super) const ACK: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;
pub(super) const PADDED: u8 = 8;
pub(super) const PRIORITY_FLAG: u8 = 0x20;

/// A stream's identifier: 31 bits, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(u32);

impl StreamId {
    pub(super) const fn new(id: u32) -> Self {
        Self(id)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Frame types of RFC 9113 section 6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameType {
    Data = 0,
    Headers = 1,
    Priority = 2,
    RstStream = 3,
    Settings = 4,
    PushPromise = 5,
    Ping = 6,
    GoAway = 7,
    WindowUpdate = 8,
    Continuation = 9,
    Unknown = 0xff,
}

impl FrameType {
    const fn new(byte: u8) -> Self {
        match byte {
            0 => Self::Data,
            1 => Self::Headers,
            2 => Self::Priority,
            3 => Self::RstStream,
            4 => Self::Settings,
            5 => Self::PushPromise,
            6 => Self::Ping,
            7 => Self::GoAway,
            8 => Self::WindowUpdate,
            9 => Self::Continuation,
            _ => Self::Unknown,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) len: u32,
    pub(super) frame_type: FrameType,
    pub(super) flags: u8,
    /// 0 for the connection.
    pub(super) stream: u32,
}

impl FrameHeader {
    pub(super) const EMPTY: Self = Self::new(FrameType::Unknown, 0, 0, 0);

    pub(super) const fn new(frame_type: FrameType, len: u32, flags: u8, stream: u32) -> Self {
        Self { len, frame_type, flags, stream }
    }

    pub(super) const fn parse(bytes: [u8; FRAME_HEADER_LEN]) -> Self {
        let [a, b, c, frame_type, flags, d, e, f, g] = bytes;
        Self {
            len: u32::from_be_bytes([0, a, b, c]),
            frame_type: FrameType::new(frame_type),
            flags,
            stream: number([d, e, f, g]),
        }
    }

    pub(super) const fn bytes(self) -> [u8; FRAME_HEADER_LEN] {
        let [_, a, b, c] = self.len.to_be_bytes();
        let [d, e, f, g] = self.stream.to_be_bytes();
        [a, b, c, self.frame_type as u8, self.flags, d, e, f, g]
    }

    pub(super) const fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(super) fn write(self, payload: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes());
        out.extend_from_slice(payload);
    }
}

/// A 31-bit number behind a reserved bit, which is ignored.
pub(super) const fn number(bytes: [u8; 4]) -> u32 {
    u32::from_be_bytes(bytes) & 0x7fff_ffff
}
