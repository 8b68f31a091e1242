//! Errors, by responsible party.

use core::fmt;

use crate::CloseCode;

/// The peer violated the protocol or a local limit. The connection has failed; the state machine has
/// already prepared the Close frame with [`close_code`](Self::close_code).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PeerMisbehaved {
    /// RSV2 or RSV3 is set, or RSV1 without an extension that gives it a meaning (RFC 6455 5.2).
    ReservedBits,
    /// RSV1 on a control frame or on a continuation (RFC 7692 6).
    MisplacedCompressionBit,
    /// Opcodes 3–7 and 11–15 (RFC 6455 5.2).
    UnknownOpcode(u8),
    /// A client must mask each frame (RFC 6455 5.1).
    UnmaskedFrame,
    /// A server must not mask (RFC 6455 5.1).
    MaskedFrame,
    /// A control frame with more than 125 bytes (RFC 6455 5.5).
    ControlTooLong,
    /// A control frame in several fragments (RFC 6455 5.5).
    ControlFragmented,
    /// A length encoded with more bytes than required (RFC 6455 5.2).
    LengthNotMinimal,
    /// The most significant bit of a 64-bit length is set (RFC 6455 5.2).
    LengthTopBit,
    /// A continuation frame without a message to continue (RFC 6455 5.4).
    NothingToContinue,
    /// A new text or binary frame inside an unfinished message (RFC 6455 5.4).
    DataInsideMessage,
    /// A Close payload of one byte (RFC 6455 5.5.1).
    CloseTooShort,
    /// A Close code that may not be on the wire (RFC 6455 7.4).
    InvalidCloseCode(u16),
    /// A Close reason that is not UTF-8 (RFC 6455 5.5.1).
    CloseReasonNotUtf8,
    /// Text that is not UTF-8, detected at the first invalid byte (RFC 6455 8.1).
    InvalidUtf8,
    /// A compressed payload that is not deflate data or ends in mid-block (RFC 7692 7.2.2).
    BadDeflate,
    /// A frame declares more than [`Config::max_frame`](crate::Config::max_frame) bytes.
    FrameTooBig,
    /// A message is, or inflates to, more than [`Config::max_message`](crate::Config::max_message) bytes.
    MessageTooBig,
    /// More fragments in one message than [`Config::max_fragments`](crate::Config::max_fragments).
    TooManyFragments,
    /// More empty fragments in one message than
    /// [`Config::max_empty_fragments`](crate::Config::max_empty_fragments).
    TooManyEmptyFragments,
    /// Pings exceed [`Config::ping_rate`](crate::Config::ping_rate).
    PingFlood,
}

impl PeerMisbehaved {
    /// The code of the local Close frame (RFC 6455 7.4.1).
    #[must_use]
    pub const fn close_code(self) -> CloseCode {
        match self {
            Self::InvalidUtf8 | Self::BadDeflate => CloseCode::INVALID_DATA,
            Self::FrameTooBig | Self::MessageTooBig => CloseCode::TOO_BIG,
            Self::TooManyFragments | Self::TooManyEmptyFragments | Self::PingFlood => CloseCode::POLICY,
            _ => CloseCode::PROTOCOL,
        }
    }

    /// A short text, also the reason in the local Close frame (below 124 bytes).
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::ReservedBits => "reserved bit set",
            Self::MisplacedCompressionBit => "compression bit on a control frame or continuation",
            Self::UnknownOpcode(_) => "unknown opcode",
            Self::UnmaskedFrame => "client frame without mask",
            Self::MaskedFrame => "server frame with mask",
            Self::ControlTooLong => "control frame over 125 bytes",
            Self::ControlFragmented => "fragmented control frame",
            Self::LengthNotMinimal => "length not minimal",
            Self::LengthTopBit => "top bit of length set",
            Self::NothingToContinue => "continuation without start",
            Self::DataInsideMessage => "new message inside a message",
            Self::CloseTooShort => "close payload of one byte",
            Self::InvalidCloseCode(_) => "invalid close code",
            Self::CloseReasonNotUtf8 => "close reason is not UTF-8",
            Self::InvalidUtf8 => "text is not UTF-8",
            Self::BadDeflate => "broken deflate data",
            Self::FrameTooBig => "frame too big",
            Self::MessageTooBig => "message too big",
            Self::TooManyFragments => "too many fragments",
            Self::TooManyEmptyFragments => "too many empty fragments",
            Self::PingFlood => "too many pings",
        }
    }
}

impl fmt::Display for PeerMisbehaved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownOpcode(opcode) => write!(f, "{} {opcode:#x}", self.reason()),
            Self::InvalidCloseCode(code) => write!(f, "{} {code}", self.reason()),
            _ => f.write_str(self.reason()),
        }
    }
}

impl core::error::Error for PeerMisbehaved {}

/// The caller requested an operation that the protocol does not allow now. No bytes were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Misuse {
    /// The closing handshake has begun: no data may follow the local Close frame (RFC 6455 5.5.1).
    Closing,
    /// A ping payload over 125 bytes (RFC 6455 5.5).
    PingTooLong,
    /// A Close reason over 123 bytes (RFC 6455 5.5).
    ReasonTooLong,
    /// A whole message, or a fragment of the other kind, while a fragmented message is being sent
    /// (RFC 6455 5.4).
    MessageOpen,
    /// A client must mask its payload, so the payload cannot be sent by reference (RFC 6455 5.3).
    MustMask,
    /// The sending of data was split off this connection
    /// ([`Connection::split_data`](crate::Connection::split_data)).
    SplitOff,
    /// A plain stream ([`Negotiated::prefixed`](crate::Negotiated::prefixed)) or streaming response
    /// ([`Negotiated::response_body`](crate::Negotiated::response_body)) carries whole messages only, and no
    /// prepared WebSocket frames.
    Prefixed,
    /// The outbound queue is full, and the caller has to wait until it has capacity. A message was not queued.
    QueueFull,
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closing => "the connection is closing",
            Self::PingTooLong => "ping payload over 125 bytes",
            Self::ReasonTooLong => "close reason over 123 bytes",
            Self::MessageOpen => "a fragmented message is being sent",
            Self::MustMask => "a client cannot send by reference",
            Self::SplitOff => "sending was split off",
            Self::Prefixed => "a plain stream takes whole messages only",
            Self::QueueFull => "the outbound queue is full (max_outbound): wait until it has capacity",
        })
    }
}

impl core::error::Error for Misuse {}

/// A timeout expired. Each has its setting in [`Config`](crate::Config).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Expired {
    /// No bytes were received for [`idle_timeout`](crate::Config::idle_timeout).
    Idle,
    /// A ping was not answered within [`pong_timeout`](crate::Config::pong_timeout).
    Pong,
    /// The peer accepted none of the queued bytes for [`write_timeout`](crate::Config::write_timeout).
    Write,
    /// The peer did not finish the closing handshake within
    /// [`close_timeout`](crate::Config::close_timeout).
    Close,
}

impl Expired {
    /// A short text, also the reason in the local Close frame, if one is still sent.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Idle => "idle timeout",
            Self::Pong => "ping timeout",
            Self::Write => "write timeout",
            Self::Close => "close timeout",
        }
    }
}

impl fmt::Display for Expired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

impl core::error::Error for Expired {}
