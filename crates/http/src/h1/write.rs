//! Encodes the head of a response, and chunks of its body.

use alloc::vec::Vec;

use crate::headers::HeaderMap;
use crate::status::reason_phrase;
use crate::text::{is_field_value, is_token};

/// Appends an HTTP/1.1 response head to `out`: status line, `Date`, the headers, `Content-Length` unless `None`, and
/// `Connection` unless `None`.
///
/// Headers that are invalid are omitted: a name that is no token, or a value with control characters. So are the
/// headers that the caller passes apart or that concern framing: `Connection`, `Content-Length`, `Date` and
/// `Transfer-Encoding`.
pub fn write_response_head(
    status: u16,
    date: &str,
    headers: &HeaderMap,
    content_length: Option<u64>,
    connection: Option<&str>,
    out: &mut Vec<u8>,
) {
    if status == 200 {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\nDate: ");
    } else {
        out.extend_from_slice(b"HTTP/1.1 ");
        write_decimal(u64::from(status), out);
        for part in [" ", reason_phrase(status), "\r\nDate: "] {
            out.extend_from_slice(part.as_bytes());
        }
    }
    out.extend_from_slice(date.as_bytes());
    out.extend_from_slice(b"\r\n");
    for (name, value) in headers.iter().filter(|(name, value)| may_be_written(name, value)) {
        for part in [name, ": ", value, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
    }
    if let Some(length) = content_length {
        out.extend_from_slice(b"Content-Length: ");
        write_decimal(length, out);
        out.extend_from_slice(b"\r\n");
    }
    if let Some(connection) = connection {
        for part in ["Connection: ", connection, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends the head for a response whose body is sent in [chunks](write_chunk), as [`write_response_head`] does.
pub fn write_chunked_head(
    status: u16,
    date: &str,
    headers: &HeaderMap,
    connection: Option<&str>,
    out: &mut Vec<u8>,
) {
    write_response_head(status, date, headers, None, connection, out);
    // Before the empty line.
    out.truncate(out.len() - 2);
    out.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
}

/// Appends one body chunk (RFC 9112 section 7.1). Empty data has no chunk, since that would end the body.
pub fn write_chunk(data: &[u8], out: &mut Vec<u8>) {
    if data.is_empty() {
        return;
    }
    let digits = (usize::BITS - data.len().leading_zeros()).div_ceil(4);
    for place in (0..digits).rev() {
        out.push(b"0123456789abcdef"[data.len() >> (4 * place) & 15]);
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// The end of a body that is sent in chunks, without trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Appends a number without an allocation.
fn write_decimal(mut number: u64, out: &mut Vec<u8>) {
    // The largest 64-bit number has 20 digits.
    let mut digits = [0; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

fn may_be_written(name: &str, value: &str) -> bool {
    const RESERVED: [&str; 4] = ["Connection", "Content-Length", "Date", "Transfer-Encoding"];
    is_token(name.as_bytes())
        && is_field_value(value.as_bytes())
        && !RESERVED.iter().any(|reserved| reserved.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_head_has_only_valid_headers() {
        let headers: HeaderMap = [
            ("ETag", "\"1\""),
            ("date", "other"),
            ("Transfer-Encoding", "chunked"),
            ("Bad Name", "x"),
            ("X-Split", "a\r\nSet-Cookie: b"),
            ("X-Tab", "a\tb"),
        ]
        .into_iter()
        .collect();
        let mut out = b"earlier".to_vec();
        write_response_head(206, "now", &headers, Some(u64::MAX), Some("close"), &mut out);
        let expected = "earlierHTTP/1.1 206 Partial Content\r\nDate: now\r\nETag: \"1\"\r\nX-Tab: a\tb\r\n\
                        Content-Length: 18446744073709551615\r\nConnection: close\r\n\r\n";
        assert_eq!(String::from_utf8_lossy(&out), expected);
        out.clear();
        write_response_head(299, "now", &HeaderMap::new(), Some(0), None, &mut out);
        assert_eq!(out, b"HTTP/1.1 299 \r\nDate: now\r\nContent-Length: 0\r\n\r\n");
    }
    #[test]
    fn chunks_are_read_back_and_empty_data_does_not_end_the_body() {
        let mut out = Vec::new();
        write_chunked_head(200, "now", &HeaderMap::new(), Some("close"), &mut out);
        assert_eq!(
            String::from_utf8_lossy(&out),
            "HTTP/1.1 200 OK\r\nDate: now\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        );
        out.clear();
        let sizes = [1, 0, 9, 15, 16, 255, 256, 4_095, 4_096, 70_000];
        sizes.iter().for_each(|size| write_chunk(&alloc::vec![b'x'; *size], &mut out));
        assert!(out.starts_with(b"1\r\nx\r\n9\r\nxxxxxxxxx\r\nf\r\n"));
        out.extend_from_slice(LAST_CHUNK);
        let mut body = crate::ChunkedBody::new(1 << 20);
        assert_eq!(body.receive(&out), Ok(out.len()));
        assert!(body.is_done());
        assert_eq!(body.bytes().len(), sizes.iter().sum::<usize>());
    }
}
