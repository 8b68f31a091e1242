//! Error codes, and connection errors.

use core::fmt;

use super::stream::QuicStreamId;
use crate::protocol_error::ProtocolError;

/// QUIC application error code (RFC 9114 section 8.1, RFC 9204 section 6, RFC 9297 section 5.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct H3Code(u64);

macro_rules! codes {
    ($($(#[doc = $doc:literal])* $name:ident = $code:literal,)*) => {
        impl H3Code {
            $($(#[doc = $doc])* pub const $name: Self = Self($code);)*

            /// The name in its standard, or `UNKNOWN`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($code => stringify!($name),)*
                    _ => "UNKNOWN",
                }
            }
        }
    };
}

codes! {
    /// A datagram is invalid.
    H3_DATAGRAM_ERROR = 0x33,
    /// No error.
    H3_NO_ERROR = 0x100,
    /// The peer violated the protocol.
    H3_GENERAL_PROTOCOL_ERROR = 0x101,
    /// The endpoint failed.
    H3_INTERNAL_ERROR = 0x102,
    /// The peer opened a stream that it may not open.
    H3_STREAM_CREATION_ERROR = 0x103,
    /// A stream that the connection needs was closed.
    H3_CLOSED_CRITICAL_STREAM = 0x104,
    /// A frame arrived in a state or on a stream that does not permit it.
    H3_FRAME_UNEXPECTED = 0x105,
    /// A frame has an invalid layout or length.
    H3_FRAME_ERROR = 0x106,
    /// The peer exceeds a limit.
    H3_EXCESSIVE_LOAD = 0x107,
    /// An identifier is invalid.
    H3_ID_ERROR = 0x108,
    /// SETTINGS are invalid.
    H3_SETTINGS_ERROR = 0x109,
    /// The control stream does not begin with SETTINGS.
    H3_MISSING_SETTINGS = 0x10a,
    /// The request was not processed, and may be repeated.
    H3_REQUEST_REJECTED = 0x10b,
    /// The request or its response is no longer needed.
    H3_REQUEST_CANCELLED = 0x10c,
    /// The stream ended before the request did.
    H3_REQUEST_INCOMPLETE = 0x10d,
    /// A message is malformed.
    H3_MESSAGE_ERROR = 0x10e,
    /// The connection of a CONNECT request was reset.
    H3_CONNECT_ERROR = 0x10f,
    /// The endpoint requires HTTP/1.1.
    H3_VERSION_FALLBACK = 0x110,
    /// A field section cannot be decoded.
    QPACK_DECOMPRESSION_FAILED = 0x200,
    /// An instruction on the encoder stream is invalid.
    QPACK_ENCODER_STREAM_ERROR = 0x201,
    /// An instruction on the decoder stream is invalid.
    QPACK_DECODER_STREAM_ERROR = 0x202,
    /// More streams wait for a WebTransport session than the limit.
    WEBTRANSPORT_BUFFERED_STREAM_REJECTED = 0x3994_bd84,
    /// The WebTransport session has ended.
    WEBTRANSPORT_SESSION_GONE = 0x170d_7b68,
}

/// The first code for a WebTransport application.
const SESSION_CODES: u64 = 0x52e4_a40f_a8db;

impl H3Code {
    /// Creates a code from any number: unknown codes have no special meaning (RFC 9114 section 8).
    #[must_use]
    pub const fn new(code: u64) -> Self {
        Self(code)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Maps a WebTransport application's code for a stream reset. The mapping skips codes that are reserved.
    #[must_use]
    pub const fn from_session_code(code: u32) -> Self {
        Self(SESSION_CODES + code as u64 + code as u64 / 0x1e)
    }

    /// Returns the WebTransport application's code; `None` for other codes.
    #[must_use]
    pub const fn session_code(self) -> Option<u32> {
        let Some(shifted) = self.0.checked_sub(SESSION_CODES) else { return None };
        // A reserved code is 0x1f * N + 0x21.
        if self.0 < 0x21 || (self.0 - 0x21).is_multiple_of(0x1f) {
            return None;
        }
        let code = shifted - shifted / 0x1f;
        if code <= u32::MAX as u64 { Some(code as u32) } else { None }
    }
}

impl fmt::Debug for H3Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({:#x})", self.name(), self.0)
    }
}

impl fmt::Display for H3Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A connection error (RFC 9114 section 8). Close QUIC with its code.
pub type Error = ProtocolError<H3Code>;

impl Error {
    pub(super) const fn unexpected(reason: &'static str) -> Self {
        Self::new(H3Code::H3_FRAME_UNEXPECTED, reason)
    }

    pub(super) const fn frame(reason: &'static str) -> Self {
        Self::new(H3Code::H3_FRAME_ERROR, reason)
    }

    pub(super) const fn id(reason: &'static str) -> Self {
        Self::new(H3Code::H3_ID_ERROR, reason)
    }

    pub(super) const fn load(reason: &'static str) -> Self {
        Self::new(H3Code::H3_EXCESSIVE_LOAD, reason)
    }
}

/// The reason for rejecting a call by the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum H3SendError {
    /// The stream is closed or was reset, or the connection failed. This may happen at any time, since the peer resets
    /// streams.
    Closed(QuicStreamId),
    /// Content before the final head, a second final head, or anything after the end of the message.
    OutOfOrder(QuicStreamId),
    /// An interim response with the end of the stream, or a status below 100 or above 999, or 101.
    Status(u16),
    /// The stream is no open WebTransport session.
    NoSession(QuicStreamId),
    /// The peer has not announced extended CONNECT (RFC 9220 section 3), or has announced by GOAWAY that it takes no more
    /// requests.
    NotPermitted,
}

impl fmt::Display for H3SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (stream, what) = match *self {
            Self::Closed(stream) => (stream, "is closed"),
            Self::OutOfOrder(stream) => (stream, "has sent its head, or sends content before it"),
            Self::NoSession(stream) => (stream, "is no open session"),
            Self::Status(status) => return write!(f, "no response begins with status {status} here"),
            Self::NotPermitted => return f.write_str("the peer does not permit this request"),
        };
        write!(f, "stream {} {what}", stream.get())
    }
}

impl core::error::Error for H3SendError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// draft-ietf-webtrans-http3 section 4.4.
    #[test]
    fn codes_of_sessions_are_mapped_around_reserved_codes() {
        for code in (0..5000).chain(u32::MAX - 100..=u32::MAX) {
            let mapped = H3Code::from_session_code(code);
            assert_ne!((mapped.get() - 0x21) % 0x1f, 0, "{code}");
            assert_eq!(mapped.session_code(), Some(code));
        }
        assert_eq!(H3Code::from_session_code(0).get(), 0x52e4_a40f_a8db);
        assert_eq!(H3Code::from_session_code(u32::MAX).get(), 0x52e5_ac98_3162);
        for other in [0x10c, 0x52e4_a40f_a8da, 0x52e5_ac98_3163, 0x52e4_a40f_a8f9, u64::MAX] {
            assert_eq!(H3Code::new(other).session_code(), None, "{other:#x}");
        }
    }
}
