//! The message with which an append announces its records to followers.
//!
//! ```text
//!   announcement  id of the first entry · ';' · entries
//!   entry         number of fields and values · these
//! ```
//!
//! The numbers, fields and values of entries are netstrings (`5:hello`), whose lengths are counted by Redis: no value can
//! be taken for another field. A message that is empty, or that has another form, announces unknown records.

use std::cell::RefCell;
use std::collections::VecDeque;

use redis::streams::StreamId;
use redis::{Cmd, Value};
use sinews_stream::record::{Record, ValueKind};

use super::offset;
use crate::remote::WakeSignal;

/// Maximum bytes in an announcement with records. A larger one is empty: Redis drops connections of subscribers with
/// too many bytes in their queue, and a large append is read at once.
pub(super) const SIZE_MAX: usize = 16 << 10;

/// Maximum bytes in the announcements that wait for one follower. A slower follower reads the stream.
const WAITING_MAX: usize = 1 << 20;

/// A waiting announcement's memory in addition to its bytes, also if it is empty.
const ANNOUNCEMENT_OVERHEAD: usize = 64;

/// The names of an entry's fields.
pub(super) const VALUE: &str = "v";
const KEY: &str = "k";
const TIME: &str = "t";
const KIND: &str = "c";
/// Kind of a record without a value, which removes its key.
const TOMBSTONE: &[u8] = b"tombstone";

/// A message, by default with unknown records.
#[derive(Debug, Default)]
pub(super) struct Announcement(Vec<u8>);

impl Announcement {
    pub(super) fn read(message: &[u8]) -> Self {
        Self(message.to_vec())
    }

    fn size(&self) -> usize {
        self.0.len() + ANNOUNCEMENT_OVERHEAD
    }

    /// Offset of the first entry, and the entries; `None` if they are unknown.
    pub(super) fn entries(&self) -> Option<(u64, Vec<EntryFields<'_>>)> {
        let at = self.0.iter().position(|byte| *byte == b';')?;
        let first = offset(std::str::from_utf8(self.0.get(..at)?).ok()?)?;
        let mut rest = self.0.get(at + 1..)?;
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let count = number(netstring(&mut rest)?)?;
            let mut fields = EntryFields::default();
            for _ in 0..count / 2 {
                let name = netstring(&mut rest)?;
                fields.set(name, netstring(&mut rest)?);
            }
            entries.push(fields);
        }
        (!entries.is_empty()).then_some((first, entries))
    }
}

/// Takes a netstring without the comma behind it.
fn netstring<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let at = rest.iter().position(|byte| *byte == b':')?;
    let length = usize::try_from(number(rest.get(..at)?)?).ok()?;
    let (value, after) = rest.get(at + 1..)?.split_at_checked(length)?;
    *rest = after;
    Some(value)
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Announcements that wait for a follower.
#[derive(Default)]
pub(super) struct Announcements {
    waiting: RefCell<(VecDeque<Announcement>, usize)>,
    signal: WakeSignal,
}

impl Announcements {
    pub(super) fn push(&self, announcement: Announcement) {
        let (queue, bytes) = &mut *self.waiting.borrow_mut();
        *bytes += announcement.size();
        queue.push_back(announcement);
        if *bytes > WAITING_MAX {
            queue.clear();
            *bytes = ANNOUNCEMENT_OVERHEAD;
            queue.push_back(Announcement::default());
        }
        self.signal.notify();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.borrow().0.is_empty()
    }

    /// The next announcement. A canceled call takes none.
    pub(super) async fn next(&self) -> Announcement {
        loop {
            {
                let (queue, bytes) = &mut *self.waiting.borrow_mut();
                if let Some(announcement) = queue.pop_front() {
                    *bytes -= announcement.size();
                    return announcement;
                }
            }
            self.signal.notified().await;
        }
    }
}

/// An entry's fields. Redis stores numbers as text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EntryFields<'a> {
    value: &'a [u8],
    key: &'a [u8],
    time: &'a [u8],
    kind: &'a [u8],
}

impl<'a> EntryFields<'a> {
    pub(super) fn from_entry(entry: &'a StreamId) -> Self {
        let mut fields = Self::default();
        for (name, value) in &entry.map {
            if let Value::BulkString(bytes) = value {
                fields.set(name.as_bytes(), bytes);
            }
        }
        fields
    }

    /// A record's fields, with its time as text.
    pub(super) fn from_record(record: &Record<'a>, time: &'a [u8]) -> Self {
        let kind: &[u8] = match record.kind {
            ValueKind::Text => b"text",
            ValueKind::Json => b"json",
            ValueKind::Tombstone => TOMBSTONE,
            // Bytes have no field.
            _ => b"",
        };
        Self { value: record.value, key: record.key, time, kind }
    }

    fn set(&mut self, name: &[u8], value: &'a [u8]) {
        let all =
            [(VALUE, &mut self.value), (KEY, &mut self.key), (TIME, &mut self.time), (KIND, &mut self.kind)];
        if let Some((_, field)) = all.into_iter().find(|(known, _)| known.as_bytes() == name) {
            *field = value;
        }
    }

    /// Writes the number of fields and values, and these. Empty fields are omitted, except for the value.
    pub(super) fn write(&self, command: &mut Cmd) {
        let rest = [(KEY, self.key), (KIND, self.kind)].into_iter().filter(|(_, value)| !value.is_empty());
        command.arg(4 + 2 * rest.clone().count()).arg(VALUE).arg(self.value).arg(TIME).arg(self.time);
        for (name, value) in rest {
            command.arg(name).arg(value);
        }
    }

    pub(super) fn time(&self) -> u64 {
        number(self.time).unwrap_or_default()
    }

    pub(super) fn record(&self, offset: u64) -> Record<'a> {
        let kind = match self.kind {
            b"text" => ValueKind::Text,
            b"json" => ValueKind::Json,
            TOMBSTONE if self.value.is_empty() => ValueKind::Tombstone,
            _ => ValueKind::Bytes,
        };
        Record { offset, timestamp: self.time(), key: self.key, value: self.value, kind }
    }

    /// Distinguishes the entry from the entry at the same offset in another stream.
    pub(super) fn fingerprint(&self) -> u32 {
        fingerprint(self.time(), self.key, self.value)
    }
}

/// The fingerprint of a record.
pub(super) fn fingerprint(time: u64, key: &[u8], value: &[u8]) -> u32 {
    let of_key = crc32c::crc32c_append(crc32c::crc32c(&time.to_le_bytes()), key);
    crc32c::crc32c_append(of_key, value)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn next(announcements: &Announcements) -> Announcement {
        announcements.next().now_or_never().unwrap()
    }

    fn read(message: &str) -> Option<(u64, Vec<(String, u64)>)> {
        let announcement = Announcement::read(message.as_bytes());
        let (first, entries) = announcement.entries()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Some((first, entries.iter().map(|fields| (text(fields.value), fields.time())).collect()))
    }

    #[test]
    fn announced_records_are_read_whatever_their_values_contain() {
        let message = "0-7;1:41:v9:1:4;5:a:b1:t2:121:81:v0:1:t2:131:k3:key1:c4:json";
        let read = |message: &str| read(message).unwrap();
        assert_eq!(read(message).0, 7);
        assert_eq!(read(message).1, [("1:4;5:a:b".to_owned(), 12), (String::new(), 13)]);
        let announcement = Announcement::read(message.as_bytes());
        let last = announcement.entries().unwrap().1[1].record(8);
        assert_eq!((last.offset, last.key, last.kind), (8, &b"key"[..], ValueKind::Json));
    }

    #[test]
    fn other_messages_announce_unknown_records() {
        let whole = "0-7;1:41:v2:ab1:t2:12";
        assert!(read(whole).is_some());
        for end in 0..whole.len() {
            assert!(read(&whole[..end]).is_none(), "{end}");
        }
        for message in
            ["7;1:21:v1:a", "1-7;1:21:v1:a", "0-7;1:x", "0-7;99999999999999999999:", "0-7;1:91:v1:a", ";"]
        {
            assert!(read(message).is_none(), "{message}");
        }
    }

    #[test]
    fn waiting_announcements_are_bounded() {
        let announcements = Announcements::default();
        let message = vec![b'x'; SIZE_MAX];
        for _ in 0..WAITING_MAX / (SIZE_MAX + ANNOUNCEMENT_OVERHEAD) {
            announcements.push(Announcement::read(&message));
        }
        assert_eq!(next(&announcements).0.len(), SIZE_MAX);
        announcements.push(Announcement::read(&message));
        announcements.push(Announcement::read(&message));
        assert!(next(&announcements).entries().is_none());
        assert!(announcements.is_empty());
        announcements.push(Announcement::read(b"0-1;1:21:v1:a"));
        assert!(next(&announcements).entries().is_some());
        assert!(announcements.is_empty());
        // Announcements for appends above SIZE_MAX are empty.
        for _ in 0..2 * WAITING_MAX / ANNOUNCEMENT_OVERHEAD {
            announcements.push(Announcement::read(b""));
        }
        assert!(announcements.waiting.borrow().0.len() <= WAITING_MAX / ANNOUNCEMENT_OVERHEAD);
    }
}
