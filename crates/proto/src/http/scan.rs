use memchr::{memchr, memchr_iter};

use super::HeadError;

/// What a head may cost us.
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
    /// The most header lines that any head may have: it sizes [`HeaderSlots`](super::HeaderSlots), 3.2 kB
    /// on the stack while a head is looked at. Clients send a dozen, browsers behind proxies thirty.
    pub const HEADERS_MAX: usize = 100;

    /// The defaults: 16 KiB, since cookies reach 8 KiB in the wild, and
    /// [`HEADERS_MAX`](Self::HEADERS_MAX) lines.
    #[must_use]
    pub const fn new() -> Self {
        Self { max_bytes: 16 << 10, max_headers: Self::HEADERS_MAX as u8 }
    }

    /// Bytes from the first of the head to its empty line, that included. A head of exactly this length
    /// passes. This bounds the memory of a connection that has said nothing yet.
    #[must_use]
    pub const fn with_max_bytes(mut self, bytes: u32) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Header lines, at most [`HEADERS_MAX`](Self::HEADERS_MAX): a larger number means that one.
    #[must_use]
    pub const fn with_max_headers(mut self, lines: usize) -> Self {
        self.max_headers = if lines < Self::HEADERS_MAX { lines } else { Self::HEADERS_MAX } as u8;
        self
    }

    /// Bytes that a head may have.
    #[must_use]
    pub const fn max_bytes(&self) -> usize {
        self.max_bytes as usize
    }

    /// Header lines that a head may have.
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

/// Finds the end of a head that arrives in pieces, looking at each byte once.
///
/// Parsing again from the start whenever a byte arrives makes work quadratic in the length of the head,
/// at a cost to the sender of one byte a segment. The scanner remembers how far it has looked, four bytes
/// a connection, and parsing waits until the head is whole.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadScanner {
    looked: u32,
}

impl HeadScanner {
    /// A scanner that has seen nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { looked: 0 }
    }

    /// Looks at what was added to `received` since the last call; `received` begins with the first byte
    /// of the head at each call. Answers with the length of the head, its empty line included, once it
    /// is there, and is then ready for the next head.
    ///
    /// One empty line before the first line belongs to the head (RFC 9112 section 2.2).
    ///
    /// # Errors
    /// [`HeadError::BareLineFeed`], [`HeadError::TooLarge`], or [`HeadError::FirstLineTooLong`] if the limit
    /// is reached within the first line. What is reported does not depend on how the bytes were cut.
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

/// Runs once, when the connection is lost anyway.
fn too_large(head: &[u8]) -> HeadError {
    let head = head.strip_prefix(b"\r\n").unwrap_or(head);
    if memchr(b'\n', head).is_none() { HeadError::FirstLineTooLong } else { HeadError::TooLarge }
}
