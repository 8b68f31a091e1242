//! A publication as the store's payload.
//!
//! ```text
//!   version 1 B · kind 1 B · excluded connection (process 4 B, number 8 B; present if the kind has bit 7) · content
//! ```
//!
//! Integers are little endian. The content is the last field, so that a client can write no other one.

use bytes::Bytes;

use crate::model::MessageContent;
use crate::model::connection_id::ConnectionId;
use crate::wire::ContentKind;

const VERSION: u8 = 1;

/// Bit in the kind for a publication that excludes a connection.
const EXCLUDES: u8 = 1 << 7;

pub(super) fn encode(content: &MessageContent, exclude: Option<ConnectionId>) -> Bytes {
    let (kind, payload) = content.parts();
    let kind = match kind {
        ContentKind::Text => 0,
        ContentKind::Json => 1,
        ContentKind::Binary => 2,
        ContentKind::Event => 3,
    };
    let mut out = Vec::with_capacity(payload.len() + 14);
    out.extend_from_slice(&[VERSION, if exclude.is_some() { kind | EXCLUDES } else { kind }]);
    if let Some(ConnectionId { process, number }) = exclude {
        out.extend_from_slice(&process.to_le_bytes());
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&payload);
    out.into()
}

/// Reads a payload; `None` if another version has written it.
pub(super) fn decode(payload: &Bytes) -> Option<(MessageContent, Option<ConnectionId>)> {
    let (&[VERSION, kind], _) = payload.split_first_chunk::<2>()? else { return None };
    let (exclude, at) = if kind & EXCLUDES == 0 {
        (None, 2)
    } else {
        let (process, rest) = payload[2..].split_first_chunk::<4>()?;
        let number = rest.first_chunk::<8>()?;
        let (process, number) = (u32::from_le_bytes(*process), u64::from_le_bytes(*number));
        (Some(ConnectionId { process, number }), 14)
    };
    let content = payload.slice(at..);
    let kind = match kind & !EXCLUDES {
        0 => ContentKind::Text,
        1 => ContentKind::Json,
        2 => ContentKind::Binary,
        3 => ContentKind::Event,
        _ => return None,
    };
    let is_valid = kind == ContentKind::Binary || std::str::from_utf8(&content).is_ok();
    is_valid.then(|| (MessageContent::from_wire(kind, content), exclude))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_cannot_forge_a_field() {
        let exclude = Some(ConnectionId { process: 7, number: 1 << 40 });
        for exclude in [None, exclude] {
            // A content that begins as a payload that excludes a connection.
            let content = MessageContent::Binary(vec![VERSION, 2 | EXCLUDES, 1, 2, 3].into());
            let payload = encode(&content, exclude);
            let (read, excluded) = decode(&payload).unwrap();
            assert_eq!((read.parts(), excluded), (content.parts(), exclude));
            assert!(decode(&payload.slice(..1)).is_none());
        }
        for bad in [&[2, 0][..], &[1, 4], &[1, 0, 0xFF], &[1, EXCLUDES, 1]] {
            assert!(decode(&Bytes::copy_from_slice(bad)).is_none(), "{bad:?}");
        }
    }
}
