//! The binary messages' format; docs/book/src/server/streams.md has the tables.

use bytes::{BufMut, Bytes, BytesMut};
use sinews_stream::{Appended, StartPosition};

use crate::streams::replies::AssignedPartition;
use crate::streams::request::{AckLevel, PartitionChoice, SubscriptionStart};

/// A message's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BinaryHead {
    pub(super) op: u8,
    pub(super) flags: u8,
    pub(super) partition: u16,
    pub(super) id: u32,
}

/// Bytes of a head.
pub(super) const HEAD: usize = 8;

/// In place of a partition: any or all partitions.
pub(super) const ANY: u16 = u16::MAX;

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BinaryRequest<'a> {
    Hello {
        stream: &'a str,
        token: Option<&'a str>,
    },
    /// The records are the body.
    Publish(AckLevel),
    Subscribe(SubscriptionStart),
    Fetch {
        offset: u64,
        max: u32,
    },
    Commit {
        offset: u64,
        group: &'a str,
    },
    /// The subscription's id.
    Unsubscribe(u32),
    Ping,
    Delete,
    /// Replaces the token.
    Renew {
        token: &'a str,
    },
}

/// Operations: below 128 from the client.
pub(super) mod op {
    pub(crate) const PUBLISH: u8 = 1;
    pub(crate) const SUBSCRIBE: u8 = 2;
    pub(crate) const FETCH: u8 = 3;
    pub(crate) const COMMIT: u8 = 4;
    pub(crate) const WELCOME: u8 = 128;
    pub(crate) const PUBLISHED: u8 = 129;
    pub(crate) const SUBSCRIBED: u8 = 130;
    pub(crate) const BATCHES: u8 = 131;
    pub(crate) const COMMITTED: u8 = 132;
    pub(crate) const UNSUBSCRIBED: u8 = 133;
    pub(crate) const PONG: u8 = 134;
    pub(crate) const DELETED: u8 = 135;
    pub(crate) const RENEWED: u8 = 136;
    pub(crate) const ASSIGNED: u8 = 140;
    pub(crate) const GAP: u8 = 141;
    pub(crate) const ERROR: u8 = 255;
}

impl BinaryHead {
    /// Splits a message into its head and its body.
    pub(super) fn split(message: &[u8]) -> Option<(Self, &[u8])> {
        let (head, body) = message.split_first_chunk::<HEAD>()?;
        let [op, flags, p0, p1, id @ ..] = *head;
        let (partition, id) = (u16::from_le_bytes([p0, p1]), u32::from_le_bytes(id));
        Some((Self { op, flags, partition, id }, body))
    }

    pub(super) fn choice(self) -> PartitionChoice {
        if self.partition == ANY {
            PartitionChoice::Any
        } else {
            PartitionChoice::Number(self.partition.into())
        }
    }

    /// Decodes the request.
    ///
    /// # Errors
    /// The fault in the body; `None` for an unknown op.
    pub(super) fn read<'a>(&self, body: &'a [u8]) -> Result<BinaryRequest<'a>, Option<&'static str>> {
        let request = match self.op {
            0 => hello(body).ok_or("hello: version 1, bytes of the name, the name, a token")?,
            op::PUBLISH => BinaryRequest::Publish(
                ack(self.flags).ok_or("publish: flags 0 none, 1 memory, 2 disk, 3 broker")?,
            ),
            op::SUBSCRIBE => BinaryRequest::Subscribe(
                begin(body).ok_or("subscribe: 16 bytes, and the name of a group in UTF-8")?,
            ),
            op::FETCH => fetch(body).ok_or("fetch: u64 offset, u32 most bytes")?,
            op::COMMIT => commit(body).ok_or("commit: u64 offset, and the name of a group in UTF-8")?,
            5 => {
                let id = body.try_into().map(u32::from_le_bytes);
                BinaryRequest::Unsubscribe(id.map_err(|_| "unsubscribe: u32 id of the subscription")?)
            }
            6 => BinaryRequest::Ping,
            7 if body.is_empty() => BinaryRequest::Delete,
            7 => return Err(Some("delete: no body")),
            8 => BinaryRequest::Renew { token: text(body).ok_or("token: a token in UTF-8")? },
            _ => return Err(None),
        };
        if self.flags != 0 && !matches!(request, BinaryRequest::Publish(_)) {
            return Err(Some("flags must be 0"));
        }
        Ok(request)
    }
}

fn ack(flags: u8) -> Option<AckLevel> {
    [AckLevel::None, AckLevel::Memory, AckLevel::Disk, AckLevel::Broker].get(usize::from(flags)).copied()
}

fn hello(body: &[u8]) -> Option<BinaryRequest<'_>> {
    let [VERSION, len, rest @ ..] = body else { return None };
    let (stream, token) = rest.split_at_checked(usize::from(*len))?;
    let (stream, token) = (text(stream)?, text(token)?);
    Some(BinaryRequest::Hello { stream, token: (!token.is_empty()).then_some(token) })
}

/// The messages' version.
const VERSION: u8 = 1;

fn begin(body: &[u8]) -> Option<SubscriptionStart> {
    let (head, group) = body.split_first_chunk::<16>()?;
    let [kind, 0, 0, 0, 0, 0, 0, 0, value @ ..] = *head else { return None };
    let value = u64::from_le_bytes(value);
    let start = match kind {
        // A group without a committed offset starts at the earliest record.
        0 | 4 => StartPosition::Earliest,
        1 => StartPosition::Latest,
        2 => StartPosition::Offset(value),
        3 => StartPosition::Time(value),
        _ => return None,
    };
    let group = text(group)?;
    let group = (!group.is_empty()).then(|| group.to_owned());
    (kind != 4 || group.is_some()).then_some(SubscriptionStart { start, group })
}

fn fetch(body: &[u8]) -> Option<BinaryRequest<'_>> {
    let (offset, max) = body.split_first_chunk()?;
    let max = u32::from_le_bytes(max.try_into().ok()?);
    Some(BinaryRequest::Fetch { offset: u64::from_le_bytes(*offset), max })
}

fn commit(body: &[u8]) -> Option<BinaryRequest<'_>> {
    let (offset, group) = body.split_first_chunk()?;
    Some(BinaryRequest::Commit { offset: u64::from_le_bytes(*offset), group: text(group)? })
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// Encodes a message without batches.
pub(super) fn message(op: u8, partition: u16, id: u32, body: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut message = BytesMut::with_capacity(64);
    message.put_slice(&[op, 0]);
    message.put_u16_le(partition);
    message.put_u32_le(id);
    body(&mut message);
    message.freeze()
}

pub(super) fn appended(partition: u16, id: u32, appended: Appended) -> Bytes {
    message(op::PUBLISHED, partition, id, |body| {
        body.put_u64_le(appended.first);
        body.put_u32_le(appended.count);
    })
}

/// Encodes the header of batches: the first offset that counts, the next offset to read, the end.
pub(super) fn batches(partition: u16, id: u32, from: u64, next: u64, end: u64) -> Bytes {
    message(op::BATCHES, partition, id, |body| {
        body.put_u64_le(from);
        body.put_u64_le(next);
        body.put_u64_le(end);
    })
}

pub(super) fn gap(partition: u16, id: u32, from: u64, to: u64) -> Bytes {
    message(op::GAP, partition, id, |body| {
        body.put_u64_le(from);
        body.put_u64_le(to);
    })
}

/// Flag of a partition whose committed offset may be lost, or cannot be read from.
const RESET: u32 = 1;

/// Encodes each partition's start offset.
pub(super) fn assignments(op: u8, id: u32, assignments: &[AssignedPartition]) -> Bytes {
    message(op, ANY, id, |body| {
        for at in assignments {
            body.put_u32_le(at.partition);
            body.put_u32_le(if at.is_reset { RESET } else { 0 });
            body.put_u64_le(at.offset);
        }
    })
}

pub(super) fn error(id: u32, code: u16, text: &str) -> Bytes {
    message(op::ERROR, ANY, id, |body| {
        body.put_u16_le(code);
        body.put_slice(text.as_bytes());
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(message: &[u8]) -> Result<BinaryRequest<'_>, Option<&'static str>> {
        let (head, body) = BinaryHead::split(message).expect("a head");
        assert_eq!((head.partition, head.id), (0x0201, 0x0605_0403));
        head.read(body)
    }

    /// A message with the partition and the id that `read` expects.
    fn with(op: u8, flags: u8, body: &[u8]) -> Vec<u8> {
        [&[op, flags, 1, 2, 3, 4, 5, 6], body].concat()
    }

    #[test]
    fn client_messages_are_decoded_as_documented() {
        let hello = with(0, 0, b"\x01\x06orderssecret");
        assert_eq!(read(&hello), Ok(BinaryRequest::Hello { stream: "orders", token: Some("secret") }));
        assert_eq!(read(&with(0, 0, b"\x01\x01a")), Ok(BinaryRequest::Hello { stream: "a", token: None }));
        for (flags, ack) in
            [(0, AckLevel::None), (1, AckLevel::Memory), (2, AckLevel::Disk), (3, AckLevel::Broker)]
        {
            assert_eq!(read(&with(1, flags, b"records")), Ok(BinaryRequest::Publish(ack)));
        }
        let subscribe = |kind: u8, group: &str| {
            with(2, 0, &[&[kind, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0], group.as_bytes()].concat())
        };
        for (kind, start) in [
            (0, StartPosition::Earliest),
            (1, StartPosition::Latest),
            (2, StartPosition::Offset(9)),
            (3, StartPosition::Time(9)),
        ] {
            assert_eq!(
                read(&subscribe(kind, "")),
                Ok(BinaryRequest::Subscribe(SubscriptionStart { start, group: None }))
            );
            let group = Some("g".to_owned());
            assert_eq!(
                read(&subscribe(kind, "g")),
                Ok(BinaryRequest::Subscribe(SubscriptionStart { start, group }))
            );
        }
        let group = SubscriptionStart { start: StartPosition::Earliest, group: Some("g".to_owned()) };
        assert_eq!(read(&subscribe(4, "g")), Ok(BinaryRequest::Subscribe(group)));
        assert!(read(&subscribe(4, "")).is_err() && read(&subscribe(5, "g")).is_err());
        let fetch = with(3, 0, &[7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(read(&fetch), Ok(BinaryRequest::Fetch { offset: 7, max: 256 }));
        let commit = with(4, 0, b"\x07\0\0\0\0\0\0\0g");
        assert_eq!(read(&commit), Ok(BinaryRequest::Commit { offset: 7, group: "g" }));
        assert_eq!(read(&with(5, 0, &[1, 0, 0, 0])), Ok(BinaryRequest::Unsubscribe(1)));
        assert_eq!(read(&with(6, 0, b"")), Ok(BinaryRequest::Ping));
        assert_eq!(read(&with(7, 0, b"")), Ok(BinaryRequest::Delete));
        assert_eq!(read(&with(8, 0, b"a.b.c")), Ok(BinaryRequest::Renew { token: "a.b.c" }));
    }

    #[test]
    fn malformed_messages_are_reported() {
        assert_eq!(BinaryHead::split(&[0; 7]), None);
        assert_eq!(read(&with(9, 0, b"")), Err(None));
        for bad in [
            with(0, 0, b""),
            with(0, 0, b"\x02\x01a"),
            with(0, 0, b"\x01\x02a"),
            with(0, 0, b"\x01\x01\xff"),
            with(1, 4, b""),
            with(2, 0, &[0; 15]),
            with(2, 0, &[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            with(3, 0, &[0; 11]),
            with(3, 0, &[0; 13]),
            with(4, 0, &[0; 7]),
            with(5, 0, &[0; 3]),
            with(6, 1, b""),
            with(7, 0, b"s"),
            with(8, 0, b"\xff"),
        ] {
            assert!(matches!(read(&bad), Err(Some(_))), "{bad:?}");
        }
    }

    #[test]
    fn server_messages_are_encoded_as_documented() {
        let appended = appended(1, 2, test_appended());
        assert_eq!(&appended[..], [129, 0, 1, 0, 2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0]);
        let head = batches(0, 1, 2, 3, 4);
        assert_eq!((head.len(), head[0], head[8], head[16], head[24]), (32, 131, 2, 3, 4));
        assert_eq!(error(1, 429, "x")[..], [255, 0, 255, 255, 1, 0, 0, 0, 0xad, 1, b'x']);
        let at = |partition, offset, is_reset| AssignedPartition { partition, offset, is_reset };
        let assignments = assignments(op::ASSIGNED, 1, &[at(2, 3, false), at(4, 5, true)]);
        assert_eq!(assignments[8..24], [2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(assignments[24..], [4, 0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
    }

    /// A result as the log returns it.
    fn test_appended() -> Appended {
        let (completer, mut pending) = sinews_stream::Pending::channel(3);
        completer.reached(sinews_stream::Durability::Broker, 5);
        pending.block(sinews_stream::Durability::Disk).expect("it is written")
    }
}
