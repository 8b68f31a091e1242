//! Responses that are encoded once.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::write::write_response_head;
use crate::headers::HeaderMap;

/// HTTP/1.1 response that is encoded once and sent many times: a copy of its bytes with the current date.
///
/// ```
/// use sinews_http::{EncodedResponse, HeaderMap};
///
/// let response = EncodedResponse::new(200, &HeaderMap::new(), Some(2), b"ok");
/// let mut out = Vec::new();
/// response.write("Sun, 06 Nov 1994 08:49:37 GMT", true, &mut out);
/// assert!(out.starts_with(b"HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n"));
/// assert!(out.ends_with(b"\r\n\r\nok"));
/// ```
#[derive(Clone, Debug)]
pub struct EncodedResponse {
    wire: Box<[u8]>,
    /// Position of the date in `wire`.
    date: usize,
    head_len: usize,
}

/// A fixed-length date, IMF-fixdate (RFC 9110 section 5.6.7).
const DATE: &[u8; 29] = b"Thu, 01 Jan 1970 00:00:00 GMT";

impl EncodedResponse {
    /// Encodes a response after which the connection stays open, as
    /// [`write_response_head`](crate::write_response_head) does, and its body.
    #[must_use]
    pub fn new(status: u16, headers: &HeaderMap, content_length: Option<u64>, body: &[u8]) -> Self {
        let mut wire = Vec::new();
        write_response_head(status, "", headers, content_length, None, &mut wire);
        // `Date` is the first header line.
        let date = wire.windows(2).position(|two| two == b"\r\n").map_or(0, |end| end + b"\r\nDate: ".len());
        wire.splice(date..date, *DATE);
        let head_len = wire.len();
        wire.extend_from_slice(body);
        Self { wire: wire.into(), date, head_len }
    }

    /// Appends the response to `out`: the head, and with `has_body` the body. `date` is an IMF-fixdate, which has 29
    /// bytes; a text with another length is ignored.
    pub fn write(&self, date: &str, has_body: bool, out: &mut Vec<u8>) {
        let wire = if has_body { &self.wire[..] } else { &self.wire[..self.head_len] };
        let start = out.len() + self.date;
        out.extend_from_slice(wire);
        let slot = out.get_mut(start..).and_then(|rest| rest.first_chunk_mut::<{ DATE.len() }>());
        if let (Some(slot), Ok(date)) = (slot, date.as_bytes().try_into()) {
            *slot = date;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_response_equals_the_response_written_anew() {
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        let headers: HeaderMap = [("Location", "/a"), ("date", "x")].into_iter().collect();
        for (status, length, body) in [(200, Some(5), &b"hello"[..]), (301, Some(0), b""), (204, None, b"")] {
            let encoded = EncodedResponse::new(status, &headers, length, body);
            let mut expected = b"earlier".to_vec();
            let mut out = expected.clone();
            write_response_head(status, date, &headers, length, None, &mut expected);
            encoded.write(date, false, &mut out);
            assert_eq!(out, expected, "{status}");
            expected.extend_from_slice(body);
            out.truncate(b"earlier".len());
            encoded.write(date, true, &mut out);
            assert_eq!(out, expected, "{status}");
        }
    }
}
