//! Messages between nodes.
//!
//! A message is a fixed-length head and a body. Nodes take no part of a client's payload for a head: a payload is the
//! last field of its publication, behind its length.
//!
//! ```text
//!   head          version 1 B · kind 1 B · node 16 B · start of the node 8 B · number of the message 8 B
//!   publications  topic (length 2 B) · publications: kind 1 B, length of the payload 4 B, excluded connection (process 4 B,
//!                 number 8 B; present if the kind has bit 7), fields (length 2 B; present if the kind has bit 6), payload
//!   field         id 1 B · value (length 2 B)
//!   others        JSON, and members.rs
//! ```
//!
//! Integers are little endian. Nodes ignore messages with another version, or an unknown kind. The version, the node and
//! its start are at the same place in all versions, so that a node can name a node with another version.
//!
//! A later version may add to a publication what this one does not know: a field, which is ignored, or with an id from
//! 128 on a field without which the publication must not be delivered; and another content kind. This version skips
//! such a publication, and delivers the message's other publications. In JSON, further fields are ignored.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::model::MessageContent;
use crate::model::connection_id::ConnectionId;
use crate::model::publication::Publication;
use crate::model::stamp::VerifiedSender;
use crate::wire::ContentKind;

/// Version of all messages.
pub(super) const VERSION: u8 = 2;

/// Head length in bytes.
pub(super) const HEAD: usize = 34;

/// A cluster process: its random id, and when it started in microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeId {
    pub(crate) id: u128,
    pub(crate) start: u64,
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.id)
    }
}

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum MessageKind {
    Publications = 0,
    Heartbeat = 1,
    /// The node leaves.
    Leave = 2,
    /// Presence changes of the node's own connections.
    PresenceChanges = 3,
    /// The whole presence of the node's own connections, in parts.
    PresenceSnapshot = 4,
    /// The sender requests the whole presence.
    PresenceRequest = 5,
    /// An HTTP API command.
    Command = 6,
    /// A command's result.
    Result = 7,
}

impl MessageKind {
    fn from_byte(byte: u8) -> Option<Self> {
        let kinds = [
            Self::Publications,
            Self::Heartbeat,
            Self::Leave,
            Self::PresenceChanges,
            Self::PresenceSnapshot,
            Self::PresenceRequest,
            Self::Command,
            Self::Result,
        ];
        kinds.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Head of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeMessageHead {
    pub(super) kind: MessageKind,
    pub(super) node: NodeId,
    /// Counts the node's messages, so that a receiver with overlapping subscriptions finds duplicates.
    pub(super) number: u64,
}

impl NodeMessageHead {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[VERSION, self.kind as u8]);
        out.extend_from_slice(&self.node.id.to_le_bytes());
        out.extend_from_slice(&self.node.start.to_le_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
    }

    /// Returns a message's head and body; `None` if it is no message with this version.
    pub(super) fn read(message: &[u8]) -> Option<(Self, &[u8])> {
        let (head, body) = message.split_first_chunk::<HEAD>()?;
        let [version, kind, rest @ ..] = head;
        let (id, rest) = rest.split_first_chunk::<16>()?;
        let (start, number) = rest.split_first_chunk::<8>()?;
        let node = NodeId { id: u128::from_le_bytes(*id), start: u64::from_le_bytes(*start) };
        let number = u64::from_le_bytes(*number.first_chunk()?);
        let kind = MessageKind::from_byte(*kind).filter(|_| *version == VERSION)?;
        Some((Self { kind, node, number }, body))
    }

    /// Returns a message's node and version if the version is not this node's.
    pub(super) fn other_version(message: &[u8]) -> Option<(NodeId, u8)> {
        let ([version, _kind], rest) = message.split_first_chunk::<2>()?;
        let (id, rest) = rest.split_first_chunk::<16>()?;
        let start = rest.first_chunk::<8>()?;
        let node = NodeId { id: u128::from_le_bytes(*id), start: u64::from_le_bytes(*start) };
        (*version != VERSION).then_some((node, *version))
    }
}

/// Starts the body of publications.
pub(super) fn write_topic(out: &mut Vec<u8>, topic: &str) {
    // A topic has at most 250 bytes.
    out.extend_from_slice(&u16::try_from(topic.len()).unwrap_or(u16::MAX).to_le_bytes());
    out.extend_from_slice(topic.as_bytes());
}

/// Length of a publication besides its payload.
pub(super) const PUBLICATION_HEAD: usize = 5;

/// Bit in the kind for a publication that excludes a connection.
const EXCLUDES: u8 = 1 << 7;

/// Length of an excluded connection.
pub(super) const EXCLUDED: usize = 12;

/// Bit in the kind for a publication with fields.
const HAS_FIELDS: u8 = 1 << 6;

/// Lowest id for a field that a receiver has to know.
const REQUIRED_FIELD: u8 = 128;

/// Fields: the time in milliseconds since 1970 (8 B), the user and the info (JSON) of the client that has published.
/// Earlier versions deliver the publication without them.
const TIME: u8 = 1;
const USER: u8 = 2;
const INFO: u8 = 3;

/// A publication for other nodes.
pub(super) struct EncodedPublication {
    pub(super) kind: ContentKind,
    pub(super) payload: Bytes,
    pub(super) exclude: Option<ConnectionId>,
    /// Empty without any.
    pub(super) fields: Vec<u8>,
}

impl EncodedPublication {
    pub(super) fn new(publication: &Publication<'_, '_>) -> Self {
        let (kind, payload) = publication.content.message().parts();
        let mut fields = Vec::new();
        if let Some(time) = publication.time {
            write_field(&mut fields, TIME, &time.to_le_bytes());
        }
        if let Some(sender) = publication.verified {
            write_field(&mut fields, USER, sender.user.as_bytes());
            if let Some(info) = &sender.info {
                write_field(&mut fields, INFO, info.as_bytes());
            }
        }
        Self { kind, payload, exclude: publication.sender.exclude, fields }
    }

    /// Creates a publication without fields.
    #[cfg(test)]
    pub(super) fn plain(kind: ContentKind, payload: &[u8], exclude: Option<ConnectionId>) -> Self {
        Self { kind, payload: Bytes::copy_from_slice(payload), exclude, fields: Vec::new() }
    }

    /// Length in bytes.
    pub(super) fn len(&self) -> usize {
        let fields = if self.fields.is_empty() { 0 } else { 2 + self.fields.len() };
        PUBLICATION_HEAD + self.exclude.map_or(0, |_| EXCLUDED) + fields + self.payload.len()
    }

    /// Adds it to a body.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let kind = self.kind.code();
        let excludes = if self.exclude.is_some() { EXCLUDES } else { 0 };
        let has_fields = if self.fields.is_empty() { 0 } else { HAS_FIELDS };
        out.push(kind | excludes | has_fields);
        // The caller has checked the length.
        out.extend_from_slice(&u32::try_from(self.payload.len()).unwrap_or(u32::MAX).to_le_bytes());
        if let Some(exclude) = self.exclude {
            exclude.write(out);
        }
        if !self.fields.is_empty() {
            out.extend_from_slice(&length_of(&self.fields));
            out.extend_from_slice(&self.fields);
        }
        out.extend_from_slice(&self.payload);
    }
}

/// Adds a publication without fields.
#[cfg(test)]
pub(super) fn write_publication(
    out: &mut Vec<u8>,
    kind: ContentKind,
    payload: &[u8],
    exclude: Option<ConnectionId>,
) {
    EncodedPublication::plain(kind, payload, exclude).write(out);
}

fn write_field(fields: &mut Vec<u8>, id: u8, value: &[u8]) {
    fields.push(id);
    fields.extend_from_slice(&length_of(value));
    fields.extend_from_slice(value);
}

/// A length in 2 bytes: a user and an info are much shorter.
fn length_of(value: &[u8]) -> [u8; 2] {
    u16::try_from(value.len()).unwrap_or(u16::MAX).to_le_bytes()
}

/// Another node's publication.
pub(super) struct NodePublication {
    /// Index in its message.
    pub(super) index: u64,
    pub(super) content: MessageContent,
    /// The connection that does not receive it.
    pub(super) exclude: Option<ConnectionId>,
    /// When it was published, in milliseconds since 1970.
    pub(super) time: Option<u64>,
    /// The client that has published.
    pub(super) verified: Option<Arc<VerifiedSender>>,
}

/// A publication's fields that this version knows.
#[derive(Default)]
struct KnownFields<'a> {
    time: Option<u64>,
    user: Option<&'a [u8]>,
    info: Option<&'a [u8]>,
}

/// Reads a body's topic and publications, but not publications from a later version that must not be delivered; `None`
/// if it is malformed.
pub(super) fn read_publications(body: &[u8]) -> Option<(&str, Vec<NodePublication>)> {
    let (length, rest) = body.split_first_chunk::<2>()?;
    let (topic, mut rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    let topic = std::str::from_utf8(topic).ok()?;
    let mut publications = Vec::new();
    for index in 0.. {
        let Some((head, after)) = rest.split_first_chunk::<PUBLICATION_HEAD>() else { break };
        let [kind, a, b, c, d] = *head;
        let (exclude, after) = match kind & EXCLUDES {
            0 => (None, after),
            _ => {
                let (exclude, after) = ConnectionId::read(after)?;
                (Some(exclude), after)
            }
        };
        let mut fields = KnownFields::default();
        let (may_deliver, after) = match kind & HAS_FIELDS {
            0 => (true, after),
            _ => read_fields(after, &mut fields)?,
        };
        let (payload, after) = after.split_at_checked(u32::from_le_bytes([a, b, c, d]) as usize)?;
        rest = after;
        // Of a later version.
        let Some(kind) = ContentKind::from_code(kind & !(EXCLUDES | HAS_FIELDS)) else { continue };
        if kind != ContentKind::Binary && std::str::from_utf8(payload).is_err() {
            return None;
        }
        if may_deliver {
            let content = MessageContent::from_wire(kind, Bytes::copy_from_slice(payload));
            let KnownFields { time, user, info } = fields;
            let verified = user.and_then(|user| VerifiedSender::from_parts(user, info)).map(Arc::new);
            publications.push(NodePublication { index, content, exclude, time, verified });
        }
    }
    rest.is_empty().then_some((topic, publications))
}

/// Reads fields. Returns whether the publication may be delivered although this version does not know all of them, and
/// the bytes behind the fields.
fn read_fields<'a>(bytes: &'a [u8], known: &mut KnownFields<'a>) -> Option<(bool, &'a [u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    let (mut fields, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    let mut may_deliver = true;
    while let Some(([id, a, b], after)) = fields.split_first_chunk::<3>() {
        let (value, after) = after.split_at_checked(usize::from(u16::from_le_bytes([*a, *b])))?;
        match *id {
            TIME => known.time = Some(u64::from_le_bytes(*value.first_chunk()?)),
            USER => known.user = Some(value),
            INFO => known.info = Some(value),
            other => may_deliver &= other < REQUIRED_FIELD,
        }
        fields = after;
    }
    fields.is_empty().then_some((may_deliver, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId { id: 7 << 64 | 9, start: 1_000 };

    const EXCLUDED_CONNECTION: ConnectionId = ConnectionId { process: 0xABCDEF, number: 1 << 40 };

    fn message() -> Vec<u8> {
        let mut out = Vec::new();
        NodeMessageHead { kind: MessageKind::Publications, node: NODE, number: 3 }.write(&mut out);
        assert_eq!(out.len(), HEAD);
        write_topic(&mut out, "chat.1");
        write_publication(&mut out, ContentKind::Text, "grün".as_bytes(), None);
        write_publication(&mut out, ContentKind::Binary, &[0xFF; 300], Some(EXCLUDED_CONNECTION));
        write_publication(&mut out, ContentKind::Json, b"{}", None);
        out
    }

    #[test]
    fn publications_are_read_as_written() {
        let message = message();
        let (head, body) = NodeMessageHead::read(&message).unwrap();
        assert_eq!(head, NodeMessageHead { kind: MessageKind::Publications, node: NODE, number: 3 });
        let (topic, publications) = read_publications(body).unwrap();
        assert_eq!((topic, publications.len()), ("chat.1", 3));
        let excluded: Vec<_> = publications.iter().map(|publication| publication.exclude).collect();
        assert_eq!(excluded, [None, Some(EXCLUDED_CONNECTION), None]);
        let framed = publications.iter().map(|it| it.content.framed_text("t", None)).collect::<String>();
        assert!(framed.contains("\"data\":\"grün\"") && framed.contains("\"b64\":\"//"), "{framed}");
        assert!(framed.contains("\"data\":{}"), "{framed}");
    }

    /// Returns the payloads of the publications that are delivered, with their indexes.
    fn delivered(body: &[u8]) -> Option<Vec<(u64, String)>> {
        let (_, publications) = read_publications(body)?;
        let text = |it: NodePublication| (it.index, it.content.framed_text("t", None));
        Some(publications.into_iter().map(text).collect())
    }

    #[test]
    fn what_a_later_version_adds_is_skipped_and_its_neighbors_are_delivered() {
        let field = |id: u8, value: &[u8]| {
            let length = u16::try_from(value.len()).unwrap().to_le_bytes();
            [&[id][..], &length, value].concat()
        };
        let added = |kind: u8, fields: Vec<u8>| {
            let mut out = Vec::new();
            write_topic(&mut out, "chat");
            write_publication(&mut out, ContentKind::Text, b"before", None);
            out.extend_from_slice(&[kind, 5, 0, 0, 0]);
            if kind & EXCLUDES != 0 {
                out.extend_from_slice(&[1; EXCLUDED]);
            }
            if kind & HAS_FIELDS != 0 {
                out.extend_from_slice(&u16::try_from(fields.len()).unwrap().to_le_bytes());
                out.extend_from_slice(&fields);
            }
            out.extend_from_slice(b"added");
            write_publication(&mut out, ContentKind::Text, b"after", Some(EXCLUDED_CONNECTION));
            out
        };
        let known = [field(0, b""), field(127, &[7; 300])].concat();
        for (kind, fields, is_delivered) in [
            (HAS_FIELDS, Vec::new(), true),
            (HAS_FIELDS | EXCLUDES, known.clone(), true),
            (HAS_FIELDS, [known.clone(), field(128, b"x")].concat(), false),
            (HAS_FIELDS, field(255, b""), false),
            (4, Vec::new(), false),
            (0x3F | EXCLUDES | HAS_FIELDS, known.clone(), false),
        ] {
            let texts = delivered(&added(kind, fields)).unwrap();
            let expected: &[(u64, &str)] = match is_delivered {
                true => &[(0, "before"), (1, "added"), (2, "after")],
                false => &[(0, "before"), (2, "after")],
            };
            let is_expected = |((index, text), (at, payload)): (&(u64, String), &(u64, &str))| {
                index == at && text.contains(payload)
            };
            assert_eq!(texts.len(), expected.len(), "{kind:x}");
            assert!(texts.iter().zip(expected).all(is_expected), "{kind:x}: {texts:?}");
        }
        for fields in [vec![0], vec![0, 1, 0], vec![0, 0, 0, 0]] {
            assert_eq!(delivered(&added(HAS_FIELDS, fields)), None, "a field is cut off");
        }
        // A later version may send other kinds of messages: their heads alone are read.
        let mut message = message();
        message[1] = MessageKind::Result as u8 + 1;
        assert_eq!(NodeMessageHead::read(&message), None);
    }

    #[test]
    fn sender_and_time_are_read_as_written_and_no_payload_forges_them() {
        let info = r#"{"name":"A"}"#;
        // A payload that looks like a publication with a user.
        let forged = [&[HAS_FIELDS, 1, 0, 0, 0, 6, 0, USER, 1, 0, b'x'][..], b"payload"].concat();
        for (user, info, time) in
            [("anna", Some(info), Some(7)), ("b", None, None), ("", None, Some(u64::MAX))]
        {
            let sender = Arc::new(VerifiedSender { user: user.into(), info: info.map(Into::into) });
            let content = MessageContent::Binary(forged.clone().into());
            let published = (&content).into();
            let publication = Publication::new("chat.1", &published).by(Some(&sender)).with_time(time);
            let encoded = EncodedPublication::new(&publication);
            let mut body = Vec::new();
            write_topic(&mut body, "chat.1");
            let head = body.len();
            encoded.write(&mut body);
            assert_eq!(body.len() - head, encoded.len());
            let (_, mut read) = read_publications(&body).unwrap();
            let read = read.pop().unwrap();
            assert_eq!((read.time, read.verified.as_ref()), (time, Some(&sender)));
            assert_eq!(read.content.bytes(), &forged);
        }
        let content = MessageContent::Binary(forged.into());
        let published = (&content).into();
        let mut body = Vec::new();
        write_topic(&mut body, "chat.1");
        EncodedPublication::new(&Publication::new("chat.1", &published)).write(&mut body);
        let (_, read) = read_publications(&body).unwrap();
        assert!(read.len() == 1 && read[0].verified.is_none() && read[0].time.is_none());
    }

    #[test]
    fn truncated_and_foreign_messages_are_rejected() {
        let message = message();
        for end in 0..message.len() {
            let read = NodeMessageHead::read(&message[..end]).and_then(|(_, body)| read_publications(body));
            // An end between two publications is the end of a shorter message.
            assert!(read.is_none_or(|(_, publications)| publications.len() < 3), "{end}");
        }
        for (at, byte) in [(0, VERSION + 1), (1, 99), (HEAD, 200), (HEAD + 8, 1 << 6), (HEAD + 15, 0xFF)] {
            let mut changed = message.clone();
            changed[at] = byte;
            let read =
                NodeMessageHead::read(&changed).and_then(|(_, body)| read_publications(body).map(drop));
            assert!(read.is_none(), "{at}");
        }
    }
}
