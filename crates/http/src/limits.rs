/// Head limits.
///
/// ```
/// use sinews_http::HeadLimits;
///
/// let limits = HeadLimits::new().with_max_bytes(4096).with_max_headers(30);
/// assert_eq!((limits.max_bytes(), limits.max_headers()), (4096, 30));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    max_bytes: u32,
    max_headers: u8,
}

impl HeadLimits {
    /// Maximum header lines of any head. Clients send a dozen, browsers behind proxies thirty.
    pub const HEADERS_MAX: usize = 100;

    /// Creates the default limits: 16 KiB, since cookies reach 8 KiB in practice, and
    /// [`HEADERS_MAX`](Self::HEADERS_MAX) lines.
    #[must_use]
    pub const fn new() -> Self {
        Self { max_bytes: 16 << 10, max_headers: Self::HEADERS_MAX as u8 }
    }

    /// Sets the maximum length of a head in bytes, including its empty line. A head of exactly this length is accepted.
    /// It bounds a connection's memory before its first request.
    #[must_use]
    pub const fn with_max_bytes(mut self, bytes: u32) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Sets the maximum header lines, clamped to [`HEADERS_MAX`](Self::HEADERS_MAX).
    #[must_use]
    pub const fn with_max_headers(mut self, lines: usize) -> Self {
        self.max_headers = if lines < Self::HEADERS_MAX { lines } else { Self::HEADERS_MAX } as u8;
        self
    }

    /// Maximum bytes of a head.
    #[must_use]
    pub const fn max_bytes(&self) -> usize {
        self.max_bytes as usize
    }

    /// Maximum header lines of a head.
    #[must_use]
    pub const fn max_headers(&self) -> usize {
        self.max_headers as usize
    }
}

impl Default for HeadLimits {
    fn default() -> Self {
        Self::new()
    }
}
