use memchr::{memchr, memchr_iter};

use super::HeadError;

/// Limits of a head.
///
/// ```
/// use sinews_proto::http::HeadLimits;
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
    /// Maximum header lines of any head: the size of [`HeaderSlots`](super::HeaderSlots), 3.2 kB on the
    /// stack during parsing. Clients send a dozen, browsers behind proxies thirty.
    pub const HEADERS_MAX: usize = 100;

    /// Creates the default limits: 16 KiB, since cookies reach 8 KiB in practice, and
    /// [`HEADERS_MAX`](Self::HEADERS_MAX) lines.
    #[must_use]
    pub const fn new() -> Self {
        Self { max_bytes: 16 << 10, max_headers: Self::HEADERS_MAX as u8 }
    }

    /// Sets the maximum length of a head in bytes, including its empty line. A head of exactly this length
    /// is accepted. It bounds the memory of a connection before its first request.
    #[must_use]
    pub const fn with_max_bytes(mut self, bytes: u32) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Sets the maximum number of header lines, clamped to [`HEADERS_MAX`](Self::HEADERS_MAX).
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

/// Finds the end of a head that arrives in segments, examining each byte once.
///
/// Restarting the parser for each segment makes work quadratic in the length of the head, at a cost to the
/// sender of one byte per segment. The scanner stores its position, four bytes per connection, and parsing
/// starts when the head is complete.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadScanner {
    looked: u32,
}

impl HeadScanner {
    /// Creates a scanner at the start of a head.
    #[must_use]
    pub const fn new() -> Self {
        Self { looked: 0 }
    }

    /// Examines the bytes added to `received` since the last call; `received` begins with the first byte of
    /// the head at each call. Returns the length of the complete head, including its empty line, and is
    /// then ready for the next head.
    ///
    /// One empty line before the first line belongs to the head (RFC 9112 section 2.2).
    ///
    /// # Errors
    /// [`HeadError::BareLineFeed`], [`HeadError::TooLarge`], or [`HeadError::FirstLineTooLong`] if the
    /// limit is reached within the first line. The error does not depend on the segmentation.
    pub fn scan(&mut self, received: &[u8], limits: &HeadLimits) -> Result<Option<usize>, HeadError> {
        let window = &received[..received.len().min(limits.max_bytes())];
        let start = window.len().min(self.looked as usize);
        for found in memchr_iter(b'\n', &window[start..]) {
            let at = start + found;
            let line = &window[..at];
            if line.last() != Some(&b'\r') {
                return Err(HeadError::BareLineFeed);
            }
            if line.ends_with(b"\r\n\r") {
                self.looked = 0;
                return Ok(Some(at + 1));
            }
        }
        if window.len() == limits.max_bytes() {
            return Err(too_large(window));
        }
        // The window is shorter than `max_bytes`, which is a u32.
        self.looked = window.len() as u32;
        Ok(None)
    }
}

/// Runs once, for a connection that fails anyway.
fn too_large(head: &[u8]) -> HeadError {
    let head = head.strip_prefix(b"\r\n").unwrap_or(head);
    if memchr(b'\n', head).is_none() { HeadError::FirstLineTooLong } else { HeadError::TooLarge }
}
