//! Received events: message kinds, and where their bytes are.

use core::ops::Range;
use core::time::Duration;

use crate::CloseCode;
use crate::frame::Opcode;

/// Text or binary (RFC 6455 section 5.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "the RFC knows two")]
pub enum Kind {
    /// UTF-8, validated on receipt.
    Text,
    /// Any bytes.
    Binary,
}

/// The location of an event's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a reader must handle both")]
pub enum PayloadLocation {
    /// In the input of this call, unmasked in place.
    Input(Range<usize>),
    /// The whole assembly buffer of this call. The caller may take the buffer; otherwise the next message
    /// reuses it.
    Assembly,
}

/// The result of one call of [`Connection::receive`](crate::Connection::receive).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// Consumed input bytes. The rest must be passed again, in front of the next bytes.
    pub consumed: usize,
    /// The event that they encode.
    pub event: Event,
}

/// A received event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a driver must handle each")]
pub enum Event {
    /// At least this many further bytes are required. The unconsumed input, at most 130 bytes, is part of a head or
    /// control frame.
    NeedMore(usize),
    /// A whole message.
    Message {
        /// Text (which is valid UTF-8) or binary.
        kind: Kind,
        /// The payload.
        at: PayloadLocation,
    },
    /// In fragment delivery, a message piece. Its boundaries have no meaning. In text, a boundary may split a code
    /// point, but all pieces so far are a valid UTF-8 prefix, and complete with the last piece.
    Fragment {
        /// Text or binary.
        kind: Kind,
        /// The piece; may be empty.
        at: PayloadLocation,
        /// Whether this is the first piece of the message.
        first: bool,
        /// Whether the message ends with this piece.
        last: bool,
    },
    /// A ping. The answer is already pending.
    Ping(Range<usize>),
    /// A pong; `answers` is the round-trip time of the newest ping, if this pong answers it.
    Pong {
        /// The payload.
        at: Range<usize>,
        /// The round-trip time of the keepalive ping.
        answers: Option<Duration>,
    },
    /// The peer's Close frame. The answer is already pending; later bytes are ignored.
    Close {
        /// `None`: the frame had no code (an application sees 1005).
        code: Option<CloseCode>,
        /// The reason, UTF-8.
        reason: Range<usize>,
        /// Whether it answers a local Close.
        answers: bool,
    },
}

impl Kind {
    pub(super) const fn opcode(self) -> Opcode {
        match self {
            Self::Text => Opcode::Text,
            Self::Binary => Opcode::Binary,
        }
    }
}
