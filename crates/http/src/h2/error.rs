//! Error codes, and connection errors.

use core::fmt;

use super::frame::StreamId;
use crate::protocol_error::ProtocolError;

/// Error code in RST_STREAM and GOAWAY (RFC 9113 section 7).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorCode(u32);

impl ErrorCode {
    /// No error.
    pub const NO_ERROR: Self = Self(0);
    /// The peer violated the protocol.
    pub const PROTOCOL_ERROR: Self = Self(1);
    /// The endpoint failed.
    pub const INTERNAL_ERROR: Self = Self(2);
    /// The peer sent more than a window permits.
    pub const FLOW_CONTROL_ERROR: Self = Self(3);
    /// SETTINGS were not acknowledged in time.
    pub const SETTINGS_TIMEOUT: Self = Self(4);
    /// A frame arrived on a closed stream.
    pub const STREAM_CLOSED: Self = Self(5);
    /// A frame has an invalid size.
    pub const FRAME_SIZE_ERROR: Self = Self(6);
    /// The stream was not processed, and may be repeated.
    pub const REFUSED_STREAM: Self = Self(7);
    /// The stream is no longer needed.
    pub const CANCEL: Self = Self(8);
    /// A header block cannot be decoded.
    pub const COMPRESSION_ERROR: Self = Self(9);
    /// The connection of a CONNECT request was reset.
    pub const CONNECT_ERROR: Self = Self(10);
    /// The peer exceeds a limit.
    pub const ENHANCE_YOUR_CALM: Self = Self(11);
    /// TLS does not meet the requirements of RFC 9113 section 9.2.
    pub const INADEQUATE_SECURITY: Self = Self(12);
    /// The endpoint requires HTTP/1.1.
    pub const HTTP_1_1_REQUIRED: Self = Self(13);

    /// Creates a code from any number: unknown codes have no special meaning (RFC 9113 section 7).
    #[must_use]
    pub const fn new(code: u32) -> Self {
        Self(code)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The name in RFC 9113, or `UNKNOWN`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        const NAMES: [&str; 14] = [
            "NO_ERROR",
            "PROTOCOL_ERROR",
            "INTERNAL_ERROR",
            "FLOW_CONTROL_ERROR",
            "SETTINGS_TIMEOUT",
            "STREAM_CLOSED",
            "FRAME_SIZE_ERROR",
            "REFUSED_STREAM",
            "CANCEL",
            "COMPRESSION_ERROR",
            "CONNECT_ERROR",
            "ENHANCE_YOUR_CALM",
            "INADEQUATE_SECURITY",
            "HTTP_1_1_REQUIRED",
        ];
        if (self.0 as usize) < NAMES.len() { NAMES[self.0 as usize] } else { "UNKNOWN" }
    }
}

impl fmt::Debug for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A connection error (RFC 9113 section 5.4.1). GOAWAY with its code is queued.
pub type Error = ProtocolError<ErrorCode>;

impl Error {
    pub(super) const fn protocol(reason: &'static str) -> Self {
        Self::new(ErrorCode::PROTOCOL_ERROR, reason)
    }

    pub(super) const fn frame_size(reason: &'static str) -> Self {
        Self::new(ErrorCode::FRAME_SIZE_ERROR, reason)
    }

    pub(super) const fn calm(reason: &'static str) -> Self {
        Self::new(ErrorCode::ENHANCE_YOUR_CALM, reason)
    }
}

/// The reason for rejecting a call by the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendMisuse {
    /// The stream is closed or was reset, or the connection failed. This may happen at any time, since the peer resets
    /// streams.
    Closed(StreamId),
    /// Content before the head of the final response, a second final head, or anything after the end of the response.
    OutOfOrder(StreamId),
    /// An interim response with the end of the stream, or a status below 100 or above 999, or 101.
    Status(u16),
    /// The server has not announced extended CONNECT (RFC 8441 section 3), has as many streams as it permits, or has
    /// announced by GOAWAY that it takes no more; or a request on the side of the server.
    NotPermitted,
}

impl fmt::Display for SendMisuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(stream) => write!(f, "stream {} is closed", stream.get()),
            Self::OutOfOrder(stream) => {
                write!(f, "stream {}: head, content and trailers are out of order", stream.get())
            }
            Self::Status(status) => write!(f, "status {status} is invalid here"),
            Self::NotPermitted => f.write_str("the server does not permit this request"),
        }
    }
}

impl core::error::Error for SendMisuse {}
