//! `Sec-WebSocket-Key` and `Sec-WebSocket-Accept` (RFC 6455 sections 4.1 and 4.2.2).

use alloc::string::String;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1_smol::Sha1;

/// A key as text: 16 bytes in base64.
pub(super) type KeyText = [u8; 24];
/// An accept value as text: 20 bytes in base64.
pub(super) type AcceptText = [u8; 28];

/// The fixed identifier that a server appends to the key.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The text of a key.
pub(super) fn key_text(key: [u8; 16]) -> KeyText {
    let mut text = [0; 24];
    // 16 bytes become 24 characters, including padding: the slice cannot be too short.
    STANDARD.encode_slice(key, &mut text).expect("24 characters hold 16 bytes");
    text
}

/// The received key, if it encodes 16 bytes in canonical base64: valid alphabet, padded, no trailing bits.
pub(super) fn valid_key(value: &[u8]) -> Option<&KeyText> {
    let text: &KeyText = value.try_into().ok()?;
    // Decoding requires capacity for whole groups of three.
    let mut key = [0; 18];
    let len = STANDARD.decode_slice(text, &mut key).ok()?;
    (len == 16).then_some(text)
}

/// Returns the `Sec-WebSocket-Accept` value for a `Sec-WebSocket-Key` value (RFC 6455 section 4.2.2), for a server
/// whose own HTTP stack writes the response. [`Negotiated::websocket`](crate::Negotiated::websocket) then makes the
/// connection. `None`: the key does not encode 16 bytes, and the request is to be rejected with 400.
///
/// ```
/// use sinews_proto::handshake::accept_key;
///
/// let accept = accept_key(b"dGhlIHNhbXBsZSBub25jZQ==");
/// assert_eq!(accept.as_deref(), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
/// assert_eq!(accept_key(b"short"), None);
/// ```
#[must_use]
pub fn accept_key(key: &[u8]) -> Option<String> {
    let text = accept_text(valid_key(key)?);
    Some(str::from_utf8(&text).expect("base64 is ASCII").into())
}

/// The proof that the key was read: base64 of SHA-1 over key and GUID.
pub(super) fn accept_text(key: &KeyText) -> AcceptText {
    let mut hash = Sha1::from(key);
    hash.update(GUID);
    let mut text = [0; 28];
    // 20 bytes become 28 characters, including padding: the slice cannot be too short.
    STANDARD.encode_slice(hash.digest().bytes(), &mut text).expect("28 characters hold 20 bytes");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_6455_section_1_3() {
        assert_eq!(accept_text(b"dGhlIHNhbXBsZSBub25jZQ=="), *b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(key_text(*b"the sample nonce"), *b"dGhlIHNhbXBsZSBub25jZQ==");
    }

    #[test]
    fn a_key_is_sixteen_bytes_in_canonical_base64() {
        let valid: [&[u8]; 2] = [b"dGhlIHNhbXBsZSBub25jZQ==", b"AAAAAAAAAAAAAAAAAAAAAA=="];
        for key in valid {
            assert!(valid_key(key).is_some());
        }
        let invalid: [&[u8]; 10] = [
            b"",
            b"dGhlIHNhbXBsZSBub25jZQ",   // no padding
            b"dGhlIHNhbXBsZSBub25jZR==", // bits left over
            b"dGhlIHNhbXBsZSBub25jZQ= ", // half the padding
            b"dGhlIHNhbXBsZSBub25jZWFi", // 18 bytes in the same length
            b"dGhlIHNhbXBsZSBub25jZWE=", // 17 bytes in the same length
            b"dGhlIHNhbXBsZSBub25j",     // 15 bytes
            b"dGhlIHNhbXBsZSBub25-_Q==", // the URL alphabet
            b"not base64 but 24 bytes!",
            b"dGhlIHNhbXBsZSBub25jZQ==\r\n",
        ];
        for key in invalid {
            assert!(valid_key(key).is_none(), "{}", key.escape_ascii());
        }
    }
}
