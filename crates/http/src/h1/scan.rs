use memchr::{memchr, memchr_iter};

use super::parse::parse_request;
use crate::error::HeadError;
use crate::head::RequestHead;
use crate::limits::HeadLimits;
use crate::lines::HeaderSlots;

/// Finds the end of a head that arrives in segments, examining each byte once.
///
/// Restarting the parser for each segment makes work quadratic in the head's length, and costs the sender one byte per
/// segment. The scanner stores its position, four bytes per connection, and parsing starts when the head is complete.
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

    /// Examines the bytes added to `received` since the last call; `received` begins with the head's first byte at each
    /// call. Returns the complete head's length, including its empty line, and is then ready for the next head.
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

    /// Parses a request head that may be incomplete, like [`scan`](Self::scan) and then [`RequestHead::parse`]. A head
    /// that arrives in one segment is examined once.
    ///
    /// ```
    /// use sinews_http::{HeadLimits, HeadScanner, HeaderSlots};
    ///
    /// let (limits, mut scanner) = (HeadLimits::new(), HeadScanner::new());
    /// let received = b"GET /chat HTTP/1.1\r\nHost: example.com\r\n\r\nnext";
    /// assert!(scanner.parse_request(&received[..20], &limits, &mut HeaderSlots::new())?.is_none());
    /// let mut slots = HeaderSlots::new();
    /// let head = scanner.parse_request(received, &limits, &mut slots)?;
    /// assert_eq!(head.map(|head| (head.path(), head.wire_len())), Some(("/chat", 41)));
    /// # Ok::<(), sinews_http::HeadError>(())
    /// ```
    ///
    /// # Errors
    /// As both.
    pub fn parse_request<'h>(
        &mut self,
        received: &'h [u8],
        limits: &HeadLimits,
        slots: &'h mut HeaderSlots,
    ) -> Result<Option<RequestHead<'h>>, HeadError> {
        let first = (self.looked == 0).then(|| parse_request(received, limits, slots));
        let parts = match first {
            Some(Ok(parts)) if parts.wire_len <= limits.max_bytes() => parts,
            // The error must not depend on the segmentation.
            _ => match self.scan(received, limits)? {
                Some(len) => parse_request(&received[..len], limits, slots)?,
                None => return Ok(None),
            },
        };
        RequestHead::new(received, parts, slots.lines()).map(Some)
    }
}

/// Runs once, for a connection that fails anyway.
fn too_large(head: &[u8]) -> HeadError {
    let head = head.strip_prefix(b"\r\n").unwrap_or(head);
    if memchr(b'\n', head).is_none() { HeadError::FirstLineTooLong } else { HeadError::TooLarge }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h1::parse::tests::mutated;

    #[test]
    fn result_of_a_request_head_does_not_depend_on_the_segmentation() {
        let limits = HeadLimits::new().with_max_bytes(60).with_max_headers(2);
        for number in 0..2_000 {
            let head = mutated(number);
            let scanned = HeadScanner::new().scan(&head, &limits);
            let expected = scanned.and_then(|end| match end {
                Some(end) => RequestHead::parse(&head[..end], &limits, &mut HeaderSlots::new())
                    .map(|head| Some(head.wire_len())),
                None => Ok(None),
            });
            for at in 0..=head.len() {
                let mut scanner = HeadScanner::new();
                let mut receive = |received| {
                    let mut slots = HeaderSlots::new();
                    let parsed = scanner.parse_request(received, &limits, &mut slots);
                    parsed.map(|head| head.map(|head| head.wire_len()))
                };
                let result = receive(&head[..at]).and_then(|len| match len {
                    Some(len) => Ok(Some(len)),
                    None => receive(&head),
                });
                assert_eq!(result, expected, "{:?} cut at {at}", String::from_utf8_lossy(&head));
            }
        }
    }
}
