//! Possibly invalid frame heads (RFC 6455 section 5.2), parsed and written.

use super::violation::{PROTOCOL, Violation};

/// A frame head as received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawFrameHead {
    /// All bytes of the head.
    pub(crate) bytes: Vec<u8>,
    pub(crate) len: u64,
    pub(crate) key: Option<[u8; 4]>,
}

impl RawFrameHead {
    /// Parses the head at the start, once it is complete.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let &[_, second, ..] = bytes else { return None };
        let (len, at) = match second & 0x7f {
            126 => (u64::from(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?)), 4),
            127 => (u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?), 10),
            len => (u64::from(len), 2),
        };
        let masked = second & 0x80 != 0;
        let end = if masked { at + 4 } else { at };
        let key = if masked { Some(bytes.get(at..end)?.try_into().ok()?) } else { None };
        Some(Self { bytes: bytes.get(..end)?.to_vec(), len, key })
    }

    fn first(&self) -> u8 {
        self.bytes.first().copied().unwrap_or_default()
    }

    pub(crate) fn fin(&self) -> bool {
        self.first() & 0x80 != 0
    }

    pub(crate) fn rsv1(&self) -> bool {
        self.first() & 0x40 != 0
    }

    pub(crate) fn opcode(&self) -> u8 {
        self.first() & 0x0f
    }

    pub(crate) fn is_control(&self) -> bool {
        self.opcode() & 8 != 0
    }

    /// Describes the bits, opcode and length.
    pub(crate) fn describe(&self) -> String {
        let mut description = String::new();
        for (bit, name) in [(0x80, "fin "), (0x40, "rsv1 "), (0x20, "rsv2 "), (0x10, "rsv3 ")] {
            description += if self.first() & bit != 0 { name } else { "" };
        }
        description += &match self.opcode() {
            0 => "continuation".to_owned(),
            1 => "text".to_owned(),
            2 => "binary".to_owned(),
            8 => "close".to_owned(),
            9 => "ping".to_owned(),
            10 => "pong".to_owned(),
            other => format!("opcode {other:#x}"),
        };
        if let Some([a, b, c, d]) = self.key {
            description += &format!(", mask {a:02x}{b:02x}{c:02x}{d:02x}");
        }
        description + &format!(", {} bytes", self.len)
    }

    /// Returns violations visible in the head alone; `from_client` names the sender.
    pub(crate) fn violations(&self, from_client: bool) -> Vec<Violation> {
        let mut violations = Vec::new();
        let mut add =
            |section, description: &str| violations.push(Violation::fatal(section, description, PROTOCOL));
        if self.first() & 0x30 != 0 {
            add("RFC 6455 section 5.2", "RSV2 or RSV3 is set, and no extension has given them a meaning");
        }
        if matches!(self.opcode(), 3..=7 | 11..=15) {
            add("RFC 6455 section 5.2", "the opcode is reserved");
        }
        match (from_client, self.key) {
            (true, None) => add("RFC 6455 section 5.1", "a client's frame is not masked"),
            (false, Some(_)) => add("RFC 6455 section 5.1", "a server's frame is masked"),
            _ => {}
        }
        match self.bytes.get(1).map(|second| second & 0x7f) {
            Some(126) if self.len < 126 => {
                add(
                    "RFC 6455 section 5.2",
                    "the length is not written in the fewest bytes: 7 bits would do, and it takes 16",
                );
            }
            Some(127) if self.len < 65_536 => {
                add(
                    "RFC 6455 section 5.2",
                    "the length is not written in the fewest bytes: it takes 64 bits",
                );
            }
            Some(127) if self.len >> 63 != 0 => {
                add("RFC 6455 section 5.2", "the most significant bit of a 64-bit length is set");
            }
            _ => {}
        }
        if self.is_control() && !self.fin() {
            add("RFC 6455 section 5.5", "a control frame is fragmented");
        }
        if self.is_control() && self.len > 125 {
            add("RFC 6455 section 5.5", "a control frame has more than 125 bytes");
        }
        violations
    }
}

/// Writes a frame; `length_bytes` forces the length's encoding.
pub(crate) fn write(first: u8, key: Option<[u8; 4]>, length_bytes: Option<u8>, payload: &[u8]) -> Vec<u8> {
    let mask = if key.is_some() { 0x80 } else { 0 };
    let least = match payload.len() {
        0..=125 => 0,
        126..=65_535 => 2,
        _ => 8,
    };
    let mut frame = vec![first];
    match length_bytes.unwrap_or(least).max(least) {
        0 => frame.push(mask | payload.len() as u8),
        2 => {
            frame.push(mask | 126);
            frame.extend_from_slice(&(payload.len() as u16).to_be_bytes());
        }
        _ => {
            frame.push(mask | 127);
            frame.extend_from_slice(&(payload.len() as u64).to_be_bytes());
        }
    }
    frame.extend(key.iter().flatten());
    let start = frame.len();
    frame.extend_from_slice(payload);
    if let Some(key) = key {
        unmask(&mut frame[start..], key, 0);
    }
    frame
}

/// Masks or unmasks bytes at an offset within a payload.
pub(crate) fn unmask(payload: &mut [u8], key: [u8; 4], at: u64) {
    for (byte, at) in payload.iter_mut().zip(at..) {
        *byte ^= key[(at % 4) as usize];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_head_round_trips() {
        for len in [0, 125, 126, 65_535, 65_536] {
            for key in [None, Some([1, 2, 3, 4])] {
                let frame = write(0x82, key, None, &vec![7; len]);
                let head = RawFrameHead::read(&frame).unwrap();
                assert_eq!((head.len, head.key, head.bytes.len() + len), (len as u64, key, frame.len()));
                assert!(head.violations(key.is_some()).is_empty());
                for cut in 0..head.bytes.len() {
                    assert!(RawFrameHead::read(&frame[..cut]).is_none());
                }
            }
        }
    }

    #[test]
    fn every_head_violation_is_named() {
        let sections = |bytes: &[u8], from_client| {
            let violations = RawFrameHead::read(bytes).unwrap().violations(from_client);
            violations
                .iter()
                .map(|violation| violation.section.trim_start_matches("RFC 6455 section ").to_owned())
                .collect::<Vec<_>>()
        };
        let none: [&str; 0] = [];
        assert_eq!(sections(b"\x81\x00", false), none);
        assert_eq!(sections(b"\x91\x00", false), ["5.2"]);
        assert_eq!(sections(b"\x83\x00", false), ["5.2"]);
        assert_eq!(sections(b"\x81\x00", true), ["5.1"]);
        assert_eq!(sections(b"\x81\x80abcd", false), ["5.1"]);
        assert_eq!(sections(b"\x81\x7e\x00\x7d", false), ["5.2"]);
        assert_eq!(sections(b"\x81\x7f\0\0\0\0\0\0\xff\xff", false), ["5.2"]);
        assert_eq!(sections(b"\x81\x7f\x80\0\0\0\0\0\0\0", false), ["5.2"]);
        assert_eq!(sections(b"\x09\x00", false), ["5.5"]);
        assert_eq!(sections(b"\x89\x7e\x00\x7e", false), ["5.5"]);
        // All violations at once.
        assert_eq!(sections(b"\x7b\xfe\x00\x7eabcd", false), ["5.2", "5.2", "5.1", "5.5", "5.5"]);
    }
}
