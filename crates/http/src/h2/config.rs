//! Connection configuration.

use super::frame::{FRAME_SIZE_MAX, FRAME_SIZE_MIN};
use super::hpack::TABLE_SIZE;
use super::window::{WINDOW_DEFAULT, WINDOW_MAX};
use crate::budget::AbuseLimits;
use crate::limits::HeadLimits;

/// Settings and limits of a connection.
///
/// ```
/// use sinews_http::h2::Config;
///
/// let config = Config::new().with_max_streams(500).with_extended_connect(true);
/// assert_eq!(config.max_streams(), 500);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub(super) head: HeadLimits,
    pub(super) max_streams: u32,
    pub(super) stream_window: u32,
    pub(super) connection_window: u32,
    pub(super) max_frame_size: u32,
    pub(super) header_table_size: u32,
    pub(super) extended_connect: bool,
    pub(super) abuse: AbuseLimits,
}

impl Config {
    /// CONTINUATION frames of one header block. Blocks within the limit of their bytes need at most four.
    pub const CONTINUATIONS_MAX: u32 = 16;

    /// Queued bytes of control frames for a peer that does not receive them: more than a thousand acknowledgements.
    /// Beyond 1,024 streams the limit grows by 32 bytes a stream, a WINDOW_UPDATE and an RST_STREAM for each.
    pub const CONTROL_QUEUE_MAX: usize = 32 << 10;

    /// Remembered identifiers of streams that we reset, and as many identifiers of streams that ended otherwise. Late
    /// frames on the former are ignored. Once further resets evict an identifier, late frames on any stream up to it
    /// are ignored.
    pub const CLOSED_STREAMS_MAX: usize = 128;

    /// Creates the default configuration.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            head: HeadLimits::new(),
            max_streams: 128,
            stream_window: WINDOW_DEFAULT,
            connection_window: 1 << 20,
            max_frame_size: FRAME_SIZE_MIN,
            header_table_size: TABLE_SIZE as u32,
            extended_connect: false,
            abuse: AbuseLimits::new(),
        }
    }

    /// Sets the header list limits. [`HeadLimits::max_bytes`] is announced as SETTINGS_MAX_HEADER_LIST_SIZE and counts
    /// 32 bytes more for each field (RFC 9113 section 6.5.2). A header block may have
    /// [`EXCESS_MAX`](super::FieldBuffer::EXCESS_MAX) times as many bytes before the connection fails. Default: as in
    /// HTTP/1.1.
    #[must_use]
    pub const fn with_head(mut self, limits: HeadLimits) -> Self {
        self.head = limits;
        self
    }

    /// Sets the maximum of concurrent streams of the client. Default: 128; RFC 9113 section 6.5.2 recommends no less than
    /// 100. No effect on a client.
    #[must_use]
    pub const fn with_max_streams(mut self, streams: u32) -> Self {
        self.max_streams = streams;
        self
    }

    /// Maximum concurrent streams.
    #[must_use]
    pub const fn max_streams(&self) -> u32 {
        self.max_streams
    }

    pub(super) fn max_control_queue(&self) -> usize {
        Self::CONTROL_QUEUE_MAX.max((self.max_streams as usize).saturating_mul(32))
    }

    /// Sets the bytes that the peer may send on a stream before the application consumes them, clamped to 2^31-1.
    /// Default: 65,535. Together with the maximum of streams it bounds the memory of a connection's content.
    #[must_use]
    pub const fn with_stream_window(mut self, bytes: u32) -> Self {
        self.stream_window = if bytes > WINDOW_MAX { WINDOW_MAX } else { bytes };
        self
    }

    /// Sets the connection's window, clamped to 65,535 up to 2^31-1. It limits bytes in flight and no memory: it is
    /// returned as bytes arrive, so that a stream that is not read never stops its neighbors. Default: 1 MiB.
    #[must_use]
    pub const fn with_connection_window(mut self, bytes: u32) -> Self {
        let bytes = if bytes > WINDOW_MAX { WINDOW_MAX } else { bytes };
        // Nothing can reduce a connection's window.
        self.connection_window = if bytes < WINDOW_DEFAULT { WINDOW_DEFAULT } else { bytes };
        self
    }

    /// Sets the maximum received frame size, clamped to 16,384 up to 2^24-1 (RFC 9113 section 4.2). Default: 16,384.
    #[must_use]
    pub const fn with_max_frame_size(mut self, bytes: u32) -> Self {
        let bytes = if bytes > FRAME_SIZE_MAX { FRAME_SIZE_MAX } else { bytes };
        self.max_frame_size = if bytes < FRAME_SIZE_MIN { FRAME_SIZE_MIN } else { bytes };
        self
    }

    /// Sets the decoder's dynamic table size, clamped to 64 KiB. Default: 4096 bytes.
    #[must_use]
    pub const fn with_header_table_size(mut self, bytes: u32) -> Self {
        self.header_table_size = if bytes > 1 << 16 { 1 << 16 } else { bytes };
        self
    }

    /// Announces extended CONNECT (RFC 8441). Browsers take it as a promise that there are WebSockets on each path.
    /// Default: `false`. No effect on a client.
    #[must_use]
    pub const fn with_extended_connect(mut self, enabled: bool) -> Self {
        self.extended_connect = enabled;
        self
    }

    /// Sets the flood limits.
    #[must_use]
    pub const fn with_abuse_limits(mut self, limits: AbuseLimits) -> Self {
        self.abuse = limits;
        self
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::new()
    }
}
