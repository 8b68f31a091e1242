//! HTTP's lexical elements: tokens, lists, field values (RFC 9110 section 5.6).

use alloc::vec::Vec;

/// Bytes that may appear in an element.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum ByteClass {
    /// A token.
    Token = 1,
    /// A registered name or an IPv4 address: unreserved bytes and sub-delimiters.
    Name = 2,
    /// A request target.
    Target = 4,
    /// A header value.
    Value = 8,
}

/// The classes of each byte. A lookup takes one load where a match takes a chain of comparisons.
static CLASSES: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < classes.len() {
        classes[byte] = classes_of(byte as u8);
        byte += 1;
    }
    classes
}

const fn classes_of(byte: u8) -> u8 {
    let token = matches!(byte,
        b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
        | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z');
    let name = matches!(byte,
        b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'='
        | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z');
    let target = byte.is_ascii_graphic() && byte != b'#';
    let value = byte == b'\t' || !byte.is_ascii_control();
    flag(token, ByteClass::Token)
        | flag(name, ByteClass::Name)
        | flag(target, ByteClass::Target)
        | flag(value, ByteClass::Value)
}

const fn flag(is_member: bool, class: ByteClass) -> u8 {
    if is_member { class as u8 } else { 0 }
}

const fn is(byte: u8, class: ByteClass) -> bool {
    CLASSES[byte as usize] & class as u8 != 0
}

/// Returns the end of the bytes of a class from `at` on.
pub(crate) fn skip(bytes: &[u8], at: usize, class: ByteClass) -> usize {
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().position(|&byte| !is(byte, class)).unwrap_or(rest.len())
}

fn all(bytes: &[u8], class: ByteClass) -> bool {
    bytes.iter().all(|&byte| is(byte, class))
}

/// Whether the byte may appear in a token (RFC 9110 section 5.6.2).
#[must_use]
pub const fn is_token_byte(byte: u8) -> bool {
    is(byte, ByteClass::Token)
}

/// Whether this is a token: a method, a header name, a subprotocol.
#[must_use]
pub fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && all(bytes, ByteClass::Token)
}

const ONES: u64 = u64::MAX / 255;

/// Returns the high bit of each byte of a word that is below the limit, up to the first one: a borrow affects later bytes only.
/// The limit is at most 0x80.
const fn below(word: u64, limit: u8) -> u64 {
    word.wrapping_sub(ONES * limit as u64) & !word
}

/// Returns the high bit of each byte that has the value, as [`below`] does.
const fn equal(word: u64, value: u8) -> u64 {
    below(word ^ (ONES * value as u64), 1)
}

/// Returns the number of bytes before the first one that no header value contains: a control byte except the tab.
/// Examines eight bytes at a time.
pub(crate) fn value_len(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(eight) = bytes[at..].first_chunk::<8>() {
        let word = u64::from_le_bytes(*eight);
        let found = (below(word, b' ') | equal(word, 0x7f)) & (ONES << 7);
        if found == 0 {
            at += 8;
            continue;
        }
        at += found.trailing_zeros() as usize / 8;
        if bytes[at] != b'\t' {
            return at;
        }
        at += 1;
    }
    skip(bytes, at, ByteClass::Value)
}

/// Returns the number of bytes before the first one that no request target contains. Examines eight bytes at a time.
pub(crate) fn target_len(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(eight) = bytes[at..].first_chunk::<8>() {
        let word = u64::from_le_bytes(*eight);
        let found = (below(word, b'!') | equal(word, 0x7f) | equal(word, b'#') | word) & (ONES << 7);
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    skip(bytes, at, ByteClass::Target)
}

/// Whether the bytes are a valid header value: no control byte except the tab, so that no CR, LF or NUL from a caller
/// reaches the wire (RFC 9110 section 5.5).
#[must_use]
pub fn is_field_value(bytes: &[u8]) -> bool {
    value_len(bytes) == bytes.len()
}

/// Whether the bytes are a valid request authority: host and optional port, without a user (RFC 9110 section 7.2, RFC
/// 3986 section 3.2). The host may be empty.
#[must_use]
pub fn is_authority(bytes: &[u8]) -> bool {
    let rest = match bytes {
        [b'[', address @ ..] => match address.iter().position(|&byte| byte == b']') {
            Some(end) if is_literal(&address[..end]) => &address[end + 1..],
            _ => return false,
        },
        _ => skip_name(bytes),
    };
    match rest {
        [] => true,
        [b':', port @ ..] => port.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

/// The content of brackets: an IPv6 address, possibly with a zone, or a future address format.
fn is_literal(address: &[u8]) -> bool {
    !address.is_empty()
        && address.iter().all(|&byte| byte == b':' || byte == b'%' || is(byte, ByteClass::Name))
}

/// Skips a registered name or an IPv4 address. Names in a host file may be unusual.
fn skip_name(bytes: &[u8]) -> &[u8] {
    let mut rest = &bytes[skip(bytes, 0, ByteClass::Name)..];
    while let [b'%', high, low, behind @ ..] = rest
        && high.is_ascii_hexdigit()
        && low.is_ascii_hexdigit()
    {
        rest = &behind[skip(behind, 0, ByteClass::Name)..];
    }
    rest
}

/// Whether the bytes are a valid request target: visible ASCII without a fragment, which is forbidden in a
/// request (RFC 9112 section 3.2) and in a WebSocket address (RFC 6455 section 3).
#[must_use]
pub fn is_target(bytes: &[u8]) -> bool {
    !bytes.is_empty() && all(bytes, ByteClass::Target)
}

/// Trims spaces and tabs at both ends.
#[must_use]
pub const fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

/// The elements in a comma-separated list without quoted strings; empty elements are skipped (RFC 9110 section
/// 5.6.1.2).
pub fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(trim).filter(|element| !element.is_empty())
}

/// Whether a list-valued header line contains the token, case-insensitive.
#[must_use]
pub fn lists_token<'v>(values: impl IntoIterator<Item = &'v [u8]>, token: &str) -> bool {
    values.into_iter().flat_map(elements).any(|element| element.eq_ignore_ascii_case(token.as_bytes()))
}

/// Appends a header line. Callers have validated both parts.
pub fn push_header(out: &mut Vec<u8>, name: &str, value: &str) {
    for part in [name, ": ", value, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_ends_at_the_first_control_byte_at_any_position() {
        for byte in 0..=255 {
            for at in 0..40 {
                let mut bytes = [b'\t', b'a', 0xff, b' '].repeat(10);
                bytes[at] = byte;
                bytes[39] = 1;
                let is_valid = byte == b'\t' || !byte.is_ascii_control();
                let expected = if is_valid && at < 39 { 39 } else { at };
                assert_eq!(value_len(&bytes), expected, "{byte:#x} at {at}");
            }
        }
        assert_eq!(value_len(b""), 0);
    }

    #[test]
    fn target_ends_at_the_first_byte_of_another_class_at_any_position() {
        for byte in 0..=255 {
            for at in 0..40 {
                let mut bytes = [b'/', b'!', b'~', b'$'].repeat(10);
                bytes[at] = byte;
                bytes[39] = b' ';
                let is_valid = byte.is_ascii_graphic() && byte != b'#';
                let expected = if is_valid && at < 39 { 39 } else { at };
                assert_eq!(target_len(&bytes), expected, "{byte:#x} at {at}");
            }
        }
        assert_eq!(target_len(b""), 0);
    }
}
