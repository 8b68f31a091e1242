//! The body of a rejection, which explains it to people.

use std::time::Duration;

use http::HeaderMap;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};

use super::response::Response;

/// Reads the body of a response up to a limit. A truncated or malformed body ends without an error: the status is
/// sufficient.
#[derive(Debug)]
struct BodyReader {
    framing: ResponseFraming,
    /// Start of the body in the received bytes, and the number of bytes processed.
    start: usize,
    at: usize,
    /// Maximum of body bytes, as received.
    max: usize,
    data: Vec<u8>,
}

/// How the end of the body is found (RFC 9112 section 6.3).
#[derive(Debug)]
enum ResponseFraming {
    /// This many bytes remain.
    Length(u64),
    /// Chunked (section 7.1), before the size of a chunk.
    Size,
    /// This many bytes of a chunk remain, then the empty line behind it.
    Chunk(u64),
    /// Until the end of the transport.
    End,
}

/// Longest line with the size of a chunk; longer lines have extensions, which are not in use.
const SIZE_LINE_MAX: usize = 256;

impl BodyReader {
    fn new(response: &Response, start: usize, max: usize) -> Self {
        let framing = framing(response.status().as_u16(), response.headers());
        Self { framing, start, at: start, max, data: Vec::new() }
    }

    /// Processes added bytes; returns whether the body is complete.
    fn read(&mut self, received: &[u8]) -> bool {
        let end = received.len().min(self.start.saturating_add(self.max));
        while let Some(rest) = received.get(self.at..end).filter(|rest| !rest.is_empty()) {
            match &mut self.framing {
                ResponseFraming::Length(left) | ResponseFraming::Chunk(left) if *left > 0 => {
                    let count = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= count as u64;
                    self.data.extend_from_slice(&rest[..count]);
                    self.at += count;
                }
                ResponseFraming::Length(_) => return true,
                ResponseFraming::Chunk(_) => match rest {
                    [b'\r', b'\n', ..] => {
                        self.at += 2;
                        self.framing = ResponseFraming::Size;
                    }
                    [b'\r'] => break,
                    _ => return true,
                },
                ResponseFraming::Size => match httparse::parse_chunk_size(rest) {
                    Ok(httparse::Status::Complete((_, 0))) | Err(_) => return true,
                    Ok(httparse::Status::Complete((len, size))) => {
                        self.at += len;
                        self.framing = ResponseFraming::Chunk(size);
                    }
                    Ok(httparse::Status::Partial) if rest.len() > SIZE_LINE_MAX => return true,
                    Ok(httparse::Status::Partial) => break,
                },
                ResponseFraming::End => {
                    self.data.extend_from_slice(rest);
                    self.at = end;
                }
            }
        }
        matches!(self.framing, ResponseFraming::Length(0)) || end == self.start.saturating_add(self.max)
    }
}

fn framing(status: u16, headers: &HeaderMap) -> ResponseFraming {
    if matches!(status, 204 | 304) {
        return ResponseFraming::Length(0);
    }
    if let Some(coding) = headers.get(TRANSFER_ENCODING) {
        let chunked = coding.as_bytes().eq_ignore_ascii_case(b"chunked");
        return if chunked { ResponseFraming::Size } else { ResponseFraming::End };
    }
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    length.map_or(ResponseFraming::End, ResponseFraming::Length)
}

/// A rejection while its body is received.
#[derive(Debug)]
pub(crate) struct RejectionBody {
    response: Response,
    body: BodyReader,
}

impl RejectionBody {
    /// How long a server may be silent within the body of its rejection. Most servers send it at once; some leave the
    /// connection open behind a body without a length.
    pub(crate) const WAIT: Duration = Duration::from_secs(1);

    /// The body begins at `start` in the received bytes.
    pub(crate) fn new(response: Response, start: usize, max: usize) -> Self {
        let body = BodyReader::new(&response, start, max);
        Self { response, body }
    }

    /// Processes received bytes; returns whether the response is complete.
    pub(crate) fn read(&mut self, received: &[u8]) -> bool {
        self.body.read(received)
    }

    pub(crate) fn into_response(self) -> Response {
        self.response.with_body(self.body.data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The body for chunks of each size, and whether its end was found.
    fn body(headers: &[(&str, &str)], input: &[u8], max: usize) -> (Vec<u8>, bool) {
        let mut found: Option<(Vec<u8>, bool)> = None;
        for piece in 1..=input.len().max(1) {
            let headers = headers.iter().map(|&(name, value)| (name, value.as_bytes()));
            let received = [b"HEAD", input].concat();
            let mut rejection = RejectionBody::new(Response::new(404, headers), 4, max);
            let mut len = 4;
            let mut ended = rejection.read(&received[..len]);
            while !ended && len < received.len() {
                len = received.len().min(len + piece);
                ended = rejection.read(&received[..len]);
            }
            let body = (rejection.into_response().body().to_vec(), ended);
            assert_eq!(found.get_or_insert_with(|| body.clone()), &body, "in pieces of {piece}");
        }
        found.expect("one piece at least")
    }

    #[test]
    fn body_ends_at_its_content_length() {
        assert_eq!(body(&[("Content-Length", "5")], b"helloHTTP/1.1", 100), (b"hello".to_vec(), true));
        assert_eq!(body(&[("Content-Length", "5")], b"hel", 100), (b"hel".to_vec(), false));
        assert_eq!(body(&[("Content-Length", "0")], b"", 100), (Vec::new(), true));
        assert_eq!(body(&[], b"until the end", 100), (b"until the end".to_vec(), false));
    }

    #[test]
    fn chunked_body_is_joined() {
        let chunked = [("Transfer-Encoding", "chunked")];
        assert_eq!(
            body(&chunked, b"5\r\nhello\r\n6;a=b\r\n world\r\n0\r\n\r\n", 100),
            (b"hello world".to_vec(), true)
        );
        assert_eq!(body(&chunked, b"5\r\nhello!!", 100), (b"hello".to_vec(), true));
        assert_eq!(body(&chunked, b"ffffffffffffffffff\r\n", 100), (Vec::new(), true));
        assert_eq!(body(&chunked, &[b'1'; 15], 100), (Vec::new(), false));
    }

    #[test]
    fn body_is_truncated_at_its_limit() {
        assert_eq!(body(&[], b"0123456789", 4), (b"0123".to_vec(), true));
        assert_eq!(body(&[("Content-Length", "10")], b"0123456789", 4), (b"0123".to_vec(), true));
        assert_eq!(body(&[], b"0123456789", 0), (Vec::new(), true));
    }
}
