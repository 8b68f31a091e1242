use sinews_proto::Role;

/// A hand-made frame, valid or not.
#[derive(Clone, Debug)]
pub struct Frame {
    fin: bool,
    rsv: u8,
    opcode: u8,
    payload: Vec<u8>,
    mask: Mask,
    length: Length,
    declared: Option<u64>,
}

/// Encoding of the payload length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// In the shortest form.
    Minimal,
    /// In 7 bits; the length must fit.
    Bits7,
    /// In 16 bits; the length must fit.
    Bits16,
    /// In 64 bits.
    Bits64,
}

#[derive(Clone, Copy, Debug)]
enum Mask {
    /// As required for the sender's role.
    ByRole,
    With([u8; 4]),
    Without,
}

/// Mask key for frames without an explicit key.
const KEY: [u8; 4] = [0x9d, 0x05, 0xe1, 0x7a];

impl Frame {
    /// A frame with any opcode, including undefined opcodes; only the lower four bits are used.
    pub fn new(opcode: u8, payload: impl AsRef<[u8]>) -> Self {
        Self {
            fin: true,
            rsv: 0,
            opcode,
            payload: payload.as_ref().to_vec(),
            mask: Mask::ByRole,
            length: Length::Minimal,
            declared: None,
        }
    }

    /// A text frame with any payload.
    pub fn text(payload: impl AsRef<[u8]>) -> Self {
        Self::new(1, payload)
    }

    /// A binary frame.
    pub fn binary(payload: impl AsRef<[u8]>) -> Self {
        Self::new(2, payload)
    }

    /// A continuation; the last frame unless [`fin`](Self::fin) clears FIN.
    pub fn continuation(payload: impl AsRef<[u8]>) -> Self {
        Self::new(0, payload)
    }

    /// A ping.
    pub fn ping(payload: impl AsRef<[u8]>) -> Self {
        Self::new(9, payload)
    }

    /// A pong.
    pub fn pong(payload: impl AsRef<[u8]>) -> Self {
        Self::new(10, payload)
    }

    /// A Close with a code, valid or not, and a reason.
    pub fn close(code: u16, reason: impl AsRef<[u8]>) -> Self {
        Self::new(8, [&code.to_be_bytes(), reason.as_ref()].concat())
    }

    /// A Close with this payload.
    pub fn close_raw(payload: impl AsRef<[u8]>) -> Self {
        Self::new(8, payload)
    }

    /// Sets FIN. Default: set.
    #[must_use]
    pub const fn fin(mut self, fin: bool) -> Self {
        self.fin = fin;
        self
    }

    /// Sets the three reserved bits as a number: 4 is RSV1. Default: 0.
    #[must_use]
    pub const fn rsv(mut self, bits: u8) -> Self {
        self.rsv = bits & 7;
        self
    }

    /// Masks with this key, in either role. Default: a client masks.
    #[must_use]
    pub const fn key(mut self, key: [u8; 4]) -> Self {
        self.mask = Mask::With(key);
        self
    }

    /// Leaves the payload unmasked, independent of the role.
    #[must_use]
    pub const fn unmasked(mut self) -> Self {
        self.mask = Mask::Without;
        self
    }

    /// Sets the length's encoding. Default: the shortest.
    #[must_use]
    pub const fn length(mut self, length: Length) -> Self {
        self.length = length;
        self
    }

    /// Declares this length, not the payload's length.
    #[must_use]
    pub const fn declares(mut self, len: u64) -> Self {
        self.declared = Some(len);
        self
    }

    /// Returns the payload.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Returns the bytes that an end with this role sends.
    #[must_use]
    pub fn encode(&self, from: Role) -> Vec<u8> {
        let key = match (self.mask, from) {
            (Mask::With(key), _) => Some(key),
            (Mask::ByRole, Role::Client) => Some(KEY),
            (Mask::Without, _) | (Mask::ByRole, Role::Server) => None,
        };
        let len = self.declared.unwrap_or(self.payload.len() as u64);
        let mut out = Vec::with_capacity(self.payload.len() + 14);
        out.push(u8::from(self.fin) << 7 | self.rsv << 4 | self.opcode & 15);
        let masked = u8::from(key.is_some()) << 7;
        let length = match (self.length, len) {
            (Length::Minimal, 0..=125) => Length::Bits7,
            (Length::Minimal, 126..=65_535) => Length::Bits16,
            (Length::Minimal, _) => Length::Bits64,
            (length, _) => length,
        };
        match length {
            Length::Bits16 => {
                out.push(masked | 126);
                out.extend_from_slice(&(len as u16).to_be_bytes());
            }
            Length::Bits64 => {
                out.push(masked | 127);
                out.extend_from_slice(&len.to_be_bytes());
            }
            Length::Bits7 | Length::Minimal => out.push(masked | len as u8 & 0x7f),
        }
        match key {
            Some(key) => {
                out.extend_from_slice(&key);
                out.extend(self.payload.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key));
            }
            None => out.extend_from_slice(&self.payload),
        }
        out
    }
}

/// Returns the bytes of a client's frames.
#[must_use]
pub fn wire(frames: &[Frame]) -> Vec<u8> {
    frames.iter().flat_map(|frame| frame.encode(Role::Client)).collect()
}
