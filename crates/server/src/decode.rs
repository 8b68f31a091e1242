//! Decoding of request bodies by `Content-Encoding` (RFC 9110 section 8.4).

use std::borrow::Cow;
use std::io::{self, Read};

use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use sinews_http::RequestHead;
use sinews_http::text::{elements, is_token};

use crate::request::Response;

/// Returns the content of a request body, of at most `max` bytes.
///
/// # Errors
/// The answer: 415 for an unknown coding, with a list of the known codings (RFC 7694), 413 for content beyond the
/// limit, and 400 for content in another coding than the named coding.
pub(crate) fn decode_body<'b>(
    head: &RequestHead<'_>,
    body: &'b [u8],
    max: usize,
) -> Result<Cow<'b, [u8]>, Response> {
    let mut content = Cow::Borrowed(body);
    // Without content there is nothing to decode.
    if body.is_empty() {
        return Ok(content);
    }
    let codings = head.header("content-encoding").flat_map(elements);
    let codings: Vec<&[u8]> = codings.filter(|coding| !coding.eq_ignore_ascii_case(b"identity")).collect();
    if codings.len() > CODINGS_MAX {
        return Err(unsupported(format!("more than {CODINGS_MAX} content codings\n")));
    }
    // The client applied the last coding last.
    for coding in codings.into_iter().rev() {
        let decoded = match &*coding.to_ascii_lowercase() {
            b"gzip" | b"x-gzip" => read_content(MultiGzDecoder::new(&*content), max),
            // Some clients send it without the format of zlib (RFC 9110 section 8.4.1.2).
            b"deflate" if has_zlib_header(&content) => read_content(ZlibDecoder::new(&*content), max),
            b"deflate" => read_content(DeflateDecoder::new(&*content), max),
            _ => return Err(unsupported(format!("content coding{} is not supported\n", name(coding)))),
        };
        match decoded {
            Ok(Some(decoded)) => content = decoded.into(),
            Ok(None) => {
                let text = format!("decoded request body exceeds {max} bytes (max_body)\n");
                return Err(Response::text(text).with_status(413));
            }
            Err(_) => {
                let text = format!("request body is not valid{}\n", name(coding));
                return Err(Response::text(text).with_status(400));
            }
        }
    }
    Ok(content)
}

/// Reads all content; `None` if it exceeds the limit.
fn read_content(decoder: impl Read, max: usize) -> io::Result<Option<Vec<u8>>> {
    let mut content = Vec::new();
    decoder.take((max as u64).saturating_add(1)).read_to_end(&mut content)?;
    Ok((content.len() <= max).then_some(content))
}

/// Returns whether content begins as in the format of zlib (RFC 1950 section 2.2).
fn has_zlib_header(content: &[u8]) -> bool {
    matches!(content, [method, flags, ..] if method & 0xF == 8 && u16::from_be_bytes([*method, *flags]) % 31 == 0)
}

fn unsupported(text: String) -> Response {
    Response::text(text).with_status(415).with_header("Accept-Encoding", "gzip, deflate")
}

/// Returns the name of a coding with a space before it; nothing, if it cannot be shown.
fn name(coding: &[u8]) -> String {
    let text = std::str::from_utf8(coding)
        .ok()
        .filter(|text| is_token(text.as_bytes()) && text.len() <= NAME_SHOWN_MAX);
    text.map_or_else(String::new, |text| format!(" {text}"))
}

/// Maximum number of codings of a body. A longer list is a mistake of a client or a proxy.
const CODINGS_MAX: usize = 2;

/// Maximum length of a coding's name in an answer. The longest registered name has 15 bytes.
const NAME_SHOWN_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use sinews_http::{HeadLimits, HeaderSlots};

    use super::*;

    fn decode(lines: &str, body: &[u8], max: usize) -> Result<Vec<u8>, u16> {
        let request = format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let mut slots = HeaderSlots::new();
        let head = RequestHead::parse(request.as_bytes(), &HeadLimits::new(), &mut slots).unwrap();
        let decoded = decode_body(&head, body, max);
        decoded.map(Cow::into_owned).map_err(|response| {
            let codings: Vec<&str> = response.header("accept-encoding").collect();
            assert_eq!(codings == ["gzip, deflate"], response.status() == 415);
            response.status()
        })
    }

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    fn zlib(content: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    fn raw(content: &[u8]) -> Vec<u8> {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn body_is_decoded_by_its_codings() {
        let text = b"hello".repeat(20);
        for (lines, body) in [
            ("", text.clone()),
            ("Content-Encoding: identity\r\n", text.clone()),
            ("Content-Encoding:\r\n", text.clone()),
            ("Content-Encoding: gzip\r\n", gzip(&text)),
            ("Content-Encoding: X-GZIP, identity\r\n", gzip(&text)),
            ("Content-Encoding: gzip\r\n", [gzip(&text[..7]), gzip(&text[7..])].concat()),
            ("Content-Encoding: deflate\r\n", zlib(&text)),
            ("Content-Encoding: deflate\r\n", raw(&text)),
            ("Content-Encoding: deflate, gzip\r\n", gzip(&zlib(&text))),
            ("Content-Encoding: deflate\r\nContent-Encoding: gzip\r\n", gzip(&zlib(&text))),
        ] {
            assert_eq!(decode(lines, &body, text.len()), Ok(text.clone()), "{lines}");
        }
        assert_eq!(decode("Content-Encoding: gzip\r\n", b"", 9), Ok(Vec::new()));
        assert_eq!(decode("Content-Encoding: br\r\n", b"", 9), Ok(Vec::new()));
    }

    #[test]
    fn invalid_bodies_and_unknown_codings_are_rejected() {
        let (text, large) = (gzip(b"hello"), gzip(&vec![0; 1 << 20]));
        let damaged =
            [&text[..text.len() - 5], &[text[text.len() - 5] ^ 1], &text[text.len() - 4..]].concat();
        for (lines, body, status) in [
            ("Content-Encoding: br\r\n", &text[..], 415),
            ("Content-Encoding: gzip, br\r\n", &text, 415),
            ("Content-Encoding: gzip;q=1\r\n", &text, 415),
            ("Content-Encoding: gzip, gzip, gzip\r\n", &text, 415),
            ("Content-Encoding: \u{fe}\r\n", &text, 415),
            ("Content-Encoding: gzip\r\n", b"hello", 400),
            ("Content-Encoding: gzip\r\n", &text[..text.len() - 1], 400),
            ("Content-Encoding: gzip\r\n", &[&text[..], b"rest"].concat(), 400),
            ("Content-Encoding: gzip\r\n", &damaged, 400),
            ("Content-Encoding: deflate\r\n", b"hello", 400),
            ("Content-Encoding: gzip\r\n", &large, 413),
            ("Content-Encoding: gzip, gzip\r\n", &gzip(&vec![0; 4 << 20]), 413),
        ] {
            assert_eq!(decode(lines, body, 1_000), Err(status), "{lines}");
        }
        // Each of the codings has the limit.
        assert_eq!(decode("Content-Encoding: gzip, gzip\r\n", &gzip(&large), 1_000), Err(413));
        assert_eq!(decode("Content-Encoding: gzip\r\n", &gzip(&[0; 1_000]), 1_000), Ok(vec![0; 1_000]));
    }
}
