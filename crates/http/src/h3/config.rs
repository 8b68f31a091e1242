//! Connection configuration.

use crate::budget::AbuseLimits;
use crate::limits::HeadLimits;

/// Settings and limits of a connection.
///
/// ```
/// use sinews_http::h3::Config;
///
/// let config = Config::new().with_max_streams(500).with_max_sessions(10);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub(super) head: HeadLimits,
    pub(super) max_streams: u32,
    pub(super) extended_connect: bool,
    pub(super) max_sessions: u32,
    pub(super) abuse: AbuseLimits,
}

impl Config {
    /// Bytes of field sections that have arrived in part, of all streams of a connection. Clients send a section in one
    /// piece; a lost packet delays some.
    pub const PARTIAL_SECTIONS_MAX: usize = 256 << 10;

    /// WebTransport streams that wait for their session, and its requests that wait for SETTINGS. Further streams are
    /// rejected.
    pub const HELD_STREAMS_MAX: usize = 16;

    /// WebTransport datagrams that wait for their session. Further ones are dropped.
    pub const EARLY_DATAGRAMS_MAX: usize = 16;

    /// Bytes of these datagrams: about as many as a client may send before the first answer.
    pub const EARLY_DATAGRAM_BYTES_MAX: usize = 16 << 10;

    /// SETTINGS length. Known implementations send less than a tenth of it.
    pub const SETTINGS_LEN_MAX: u64 = 1024;

    /// Creates the default configuration.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            head: HeadLimits::new(),
            max_streams: 100,
            extended_connect: false,
            max_sessions: 0,
            abuse: AbuseLimits::new(),
        }
    }

    /// Sets the field section limits. [`HeadLimits::max_bytes`] is announced as SETTINGS_MAX_FIELD_SECTION_SIZE and
    /// counts 32 bytes more for each field (RFC 9114 section 4.2.2). An encoded section may have
    /// [`EXCESS_MAX`](super::FieldBuffer::EXCESS_MAX) times as many bytes before the connection fails. Default: as in
    /// HTTP/1.1.
    #[must_use]
    pub const fn with_head(mut self, limits: HeadLimits) -> Self {
        self.head = limits;
        self
    }

    /// Sets the maximum of concurrent streams that the peer opens, of each direction. Give the same limits to QUIC. Default:
    /// 100, the least that RFC 9114 section 6.1 recommends: QUIC takes memory for each permitted stream.
    #[must_use]
    pub const fn with_max_streams(mut self, streams: u32) -> Self {
        self.max_streams = streams;
        self
    }

    /// Returns the stream limit and whether datagrams are used, which QUIC announces too.
    #[must_use]
    pub const fn for_transport(&self) -> (u32, bool) {
        (self.max_streams, self.webtransport())
    }

    /// Announces extended CONNECT (RFC 9220). Default: `false`.
    #[must_use]
    pub const fn with_extended_connect(mut self, enabled: bool) -> Self {
        self.extended_connect = enabled;
        self
    }

    /// Announces WebTransport with a number of concurrent sessions, in the settings of drafts 02, 07 and 14, with
    /// extended CONNECT and datagrams, which it requires. Draft 15 and later ones require QUIC's RESET_STREAM_AT, and
    /// are not announced. Sessions have no flow control: later drafts permit one session at a time without it. Default:
    /// 0, which announces no WebTransport.
    #[must_use]
    pub const fn with_max_sessions(mut self, sessions: u32) -> Self {
        self.max_sessions = sessions;
        if sessions > 0 {
            self.extended_connect = true;
        }
        self
    }

    /// Whether WebTransport is announced.
    pub(super) const fn webtransport(&self) -> bool {
        self.max_sessions > 0
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
