//! Lexical elements of HTTP: tokens, lists, field values (RFC 9110 section 5.6).

use alloc::vec::Vec;

/// Whether the byte may appear in a token (RFC 9110 section 5.6.2).
pub(crate) const fn is_token_byte(byte: u8) -> bool {
    matches!(byte,
        b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
        | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z')
}

/// Whether this is a token: a method, a header name, a subprotocol.
pub(crate) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|&byte| is_token_byte(byte))
}

/// Whether the bytes are a valid header value: no control byte except the tab, so that no CR, LF or NUL of
/// a caller reaches the wire (RFC 9110 section 5.5).
pub(crate) fn is_field_value(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == b'\t' || !byte.is_ascii_control())
}

/// Whether the bytes are a valid authority of a request: host and optional port, without a user (RFC 9110
/// section 7.2, RFC 3986 section 3.2). The host may be empty.
pub(crate) fn is_authority(bytes: &[u8]) -> bool {
    let (is_host, rest) = match bytes {
        [b'[', address @ ..] => match address.iter().position(|&byte| byte == b']') {
            Some(end) => (is_literal(&address[..end]), &address[end + 1..]),
            None => return false,
        },
        _ => {
            let end = bytes.iter().position(|&byte| byte == b':').unwrap_or(bytes.len());
            (is_name(&bytes[..end]), &bytes[end..])
        }
    };
    let is_port = match rest {
        [] => true,
        [b':', port @ ..] => port.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    is_host && is_port
}

/// The content of brackets: an IPv6 address, possibly with a zone, or a future address format.
fn is_literal(address: &[u8]) -> bool {
    !address.is_empty() && address.iter().all(|&byte| byte == b':' || byte == b'%' || is_name_byte(byte))
}

/// A registered name or an IPv4 address. Names in a host file may be unusual.
fn is_name(mut name: &[u8]) -> bool {
    loop {
        name = match name {
            [] => return true,
            [b'%', high, low, rest @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => rest,
            [byte, rest @ ..] if is_name_byte(*byte) => rest,
            _ => return false,
        }
    }
}

/// Unreserved bytes and sub-delimiters.
const fn is_name_byte(byte: u8) -> bool {
    matches!(byte,
        b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'='
        | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z')
}

/// Whether the bytes are a valid request target: visible ASCII without a fragment, which is forbidden in a
/// request (RFC 9112 section 3.2) and in a WebSocket address (RFC 6455 section 3).
pub(crate) fn is_target(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|&byte| byte.is_ascii_graphic() && byte != b'#')
}

/// Trims spaces and tabs at both ends.
pub(crate) const fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

/// The elements of a comma-separated list without quoted strings; empty elements are skipped (RFC 9110
/// section 5.6.1.2).
pub(crate) fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(trim).filter(|element| !element.is_empty())
}

/// Whether one of the list-valued header lines contains the token, case-insensitive.
pub(crate) fn lists_token<'v>(values: impl IntoIterator<Item = &'v [u8]>, token: &str) -> bool {
    values.into_iter().flat_map(elements).any(|element| element.eq_ignore_ascii_case(token.as_bytes()))
}

/// Appends a header line. Callers have validated both parts.
pub(crate) fn push_header(out: &mut Vec<u8>, name: &str, value: &str) {
    for part in [name, ": ", value, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
}
