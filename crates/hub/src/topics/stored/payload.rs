//! A publication as the store's payload.
//!
//! ```text
//!   version 1 B · kind 1 B · excluded connection (process 4 B, number 8 B; present if the kind has bit 7)
//!   · sender's socket (16 B; present if the kind has bit 6) · user (length 2 B), info (length 2 B; empty without one;
//!   both present if the kind has bit 5) · content
//! ```
//!
//! Integers are little endian. The content is the last field, so that a client can write no other one. A mark for
//! publications that the store does not have is kind 4 without a content.

use std::sync::Arc;

use bytes::Bytes;

use crate::model::MessageContent;
use crate::model::connection_id::ConnectionId;
use crate::model::publication::PublicationSender;
use crate::model::stamp::VerifiedSender;
use crate::wire::ContentKind;

const VERSION: u8 = 1;

/// Bit in the kind for a publication that excludes a connection.
const EXCLUDES: u8 = 1 << 7;

/// Bit in the kind for a publication by a client of an app.
const HAS_SOCKET: u8 = 1 << 6;

/// Bit in the kind for a publication by a client whose token names it.
const HAS_USER: u8 = 1 << 5;

/// A publication as the store has it.
pub(super) struct StoredPayload {
    pub(super) content: MessageContent,
    pub(super) sender: PublicationSender,
    pub(super) verified: Option<Arc<VerifiedSender>>,
}

/// Encodes a publication. A publisher that does not receive it is excluded by its connection or its socket.
pub(super) fn encode(
    content: &MessageContent,
    sender: PublicationSender,
    verified: Option<&VerifiedSender>,
) -> Bytes {
    let (kind, payload) = content.parts();
    let PublicationSender { socket, exclude, .. } = sender;
    let excludes = if exclude.is_some() { EXCLUDES } else { 0 };
    let has_socket = if socket.is_some() { HAS_SOCKET } else { 0 };
    let has_user = if verified.is_some() { HAS_USER } else { 0 };
    let info = verified.and_then(|sender| sender.info.as_deref()).unwrap_or_default();
    let named = verified.map_or(0, |sender| 4 + sender.user.len() + info.len());
    let mut out = Vec::with_capacity(payload.len() + 30 + named);
    out.extend_from_slice(&[VERSION, kind.code() | excludes | has_socket | has_user]);
    if let Some(exclude) = exclude {
        exclude.write(&mut out);
    }
    if let Some(socket) = socket {
        out.extend_from_slice(&socket.to_le_bytes());
    }
    if let Some(sender) = verified {
        for field in [&*sender.user, info] {
            // Both are much shorter.
            out.extend_from_slice(&u16::try_from(field.len()).unwrap_or(u16::MAX).to_le_bytes());
            out.extend_from_slice(field.as_bytes());
        }
    }
    out.extend_from_slice(&payload);
    out.into()
}

/// Kind of a [mark](mark).
const MARK: u8 = 4;

/// The payload that marks publications before it which were delivered without the store.
pub(super) fn mark() -> Bytes {
    Bytes::from_static(&[VERSION, MARK])
}

/// Whether a payload is a [`mark`].
pub(super) fn is_mark(payload: &Bytes) -> bool {
    **payload == [VERSION, MARK]
}

/// Reads a field with its length; returns the bytes behind it.
fn read_field(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))
}

/// Reads a payload; `None` for a [`mark`], or if another version has written it.
pub(super) fn decode(payload: &Bytes) -> Option<StoredPayload> {
    let (&[VERSION, kind], mut rest) = payload.split_first_chunk::<2>()? else { return None };
    let mut sender = PublicationSender::default();
    if kind & EXCLUDES != 0 {
        let (exclude, after) = ConnectionId::read(rest)?;
        (sender.exclude, rest) = (Some(exclude), after);
    }
    if kind & HAS_SOCKET != 0 {
        let (socket, after) = rest.split_first_chunk::<16>()?;
        (sender.socket, rest) = (Some(u128::from_le_bytes(*socket)), after);
    }
    let mut verified = None;
    if kind & HAS_USER != 0 {
        let (user, after) = read_field(rest)?;
        let (info, after) = read_field(after)?;
        let info = (!info.is_empty()).then_some(info);
        (verified, rest) = (Some(Arc::new(VerifiedSender::from_parts(user, info)?)), after);
    }
    let content = payload.slice(payload.len() - rest.len()..);
    let kind = ContentKind::from_code(kind & !(EXCLUDES | HAS_SOCKET | HAS_USER))?;
    let is_valid = kind == ContentKind::Binary || std::str::from_utf8(&content).is_ok();
    is_valid.then(|| StoredPayload { content: MessageContent::from_wire(kind, content), sender, verified })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_cannot_forge_a_field() {
        let exclude = Some(ConnectionId { process: 7, number: 1 << 40 });
        for (exclude, socket) in [(None, None), (exclude, None), (None, Some(1 << 100)), (exclude, Some(9))] {
            // A content that begins as a payload that excludes a connection.
            let content = MessageContent::Binary(vec![VERSION, 2 | EXCLUDES, 1, 2, 3].into());
            let sender = PublicationSender { socket, exclude, excludes_publisher: false };
            let named =
                |info: Option<&str>| VerifiedSender { user: "anna".into(), info: info.map(Into::into) };
            for verified in [None, Some(named(None)), Some(named(Some("[1]")))] {
                let payload = encode(&content, sender, verified.as_ref());
                let read = decode(&payload).unwrap();
                assert_eq!((read.content.parts(), read.sender), (content.parts(), sender));
                assert_eq!(read.verified.as_deref(), verified.as_ref());
                assert!(decode(&payload.slice(..1)).is_none());
            }
        }
        let empty = encode(&MessageContent::Binary(Bytes::new()), Default::default(), None);
        assert!(is_mark(&mark()) && !is_mark(&empty));
        for bad in [
            &[2, 0][..],
            &[1, 4],
            &[1, 5],
            &[1, 0, 0xFF],
            &[1, EXCLUDES, 1],
            &[1, HAS_SOCKET, 1],
            &[1, HAS_USER, 1, 0],
        ] {
            assert!(decode(&Bytes::copy_from_slice(bad)).is_none(), "{bad:?}");
        }
    }
}
