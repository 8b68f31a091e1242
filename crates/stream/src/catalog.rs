//! The catalog: a file that lists the streams of a directory, so that starting opens none of them.
//!
//! It is an append-only log of entries, each with a length and a checksum, and is rewritten at a clean stop. It holds
//! no information that the directories lack: missing entries are added from them, and opening a stream reads the
//! stream's own files. So a damaged, stale or missing catalog costs time and no records.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};

use crate::disk::{self, Disk, DiskFile, append_all};
use crate::index::{self, Index, Summary};
use crate::{Fsync, StreamConfig};

/// A closed stream's metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamMetadata {
    pub(crate) created: u64,
    pub(crate) config: StreamConfig,
    pub(crate) last_append: Option<u64>,
    pub(crate) last_read: Option<u64>,
    /// As of its last clean close; none if the stream was open when a process ended.
    pub(crate) extents: Option<Vec<PartitionExtent>>,
    pub(crate) groups: Vec<GroupOffsets>,
    /// As of its last clean close, like `extents`. Removed by the first open.
    pub(crate) clean: Option<CleanClose>,
}

/// Synced state of the files after a clean close: the next open need neither read nor sync them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CleanClose {
    /// Length of the committed-offset file.
    pub(crate) groups_bytes: u64,
    /// Each partition's last segment; none if its head was never synced.
    pub(crate) tails: Vec<Option<LastSegment>>,
}

/// A closed partition's last segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LastSegment {
    /// [`SegmentHeader::checksum`](crate::seal::SegmentHeader::checksum) of the segment.
    pub(crate) head: u32,
    pub(crate) summary: Summary,
    /// None: the index has more than [`INDEX_ENTRIES_MAX`] entries, and its own file.
    pub(crate) index: Option<Index>,
}

/// Maximum index entries stored in the catalog: 20 bytes each, one for 64 KiB of a segment. A larger index has a file.
pub(crate) const INDEX_ENTRIES_MAX: usize = 32;

/// A group and its offset in each partition.
pub(crate) type GroupOffsets = (Box<str>, Vec<(u32, u64)>);

/// A partition's sizes and offsets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartitionExtent {
    pub(crate) earliest: u64,
    pub(crate) readable: u64,
    pub(crate) bytes: u64,
    pub(crate) segments: u64,
    /// Time of the last batch in the first segment.
    pub(crate) first_time: u64,
    /// Name and length of the last segment.
    pub(crate) last_base: u64,
    pub(crate) last_bytes: u64,
}

/// The streams that a catalog lists, by name.
pub(crate) type StreamMap = HashMap<Arc<str>, StreamMetadata>;

pub(crate) struct Catalog {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    /// None after a failed write: the next start reads the directories.
    file: Option<Arc<dyn DiskFile>>,
    /// Entries appended since the file was rewritten.
    appended: usize,
}

const NAME: &str = "catalog";

/// First bytes of the file, and its version.
const MAGIC: &[u8; 8] = b"sinewsC1";

/// Bytes before the body of an entry: its length and its checksum.
const HEAD: usize = 8;

const STREAM: u8 = 1;
const OPENED: u8 = 2;
const DELETED: u8 = 3;
/// As [`STREAM`], with the tombstone retention behind the name.
const COMPACTED_STREAM: u8 = 4;

/// Minimum appended entries before the file is rewritten.
const COMPACT_MIN: usize = 16_384;

impl Catalog {
    /// Reads a directory's catalog. The list is empty if there is no readable catalog.
    pub(crate) fn open(disk: Arc<dyn Disk>, dir: &Path) -> (Self, StreamMap) {
        let mut catalog = Self { disk, dir: dir.to_owned(), file: None, appended: 0 };
        let mut list = StreamMap::new();
        if let Err(error) = catalog.load(&mut list) {
            tracing::warn!(path = %dir.join(NAME).display(), %error, "the catalog cannot be read");
        }
        (catalog, list)
    }

    fn load(&mut self, list: &mut StreamMap) -> io::Result<()> {
        let file = match self.disk.open(&self.dir.join(NAME)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        let content = file.read_shared(0..file.bytes()?)?;
        let Some(mut rest) = content.strip_prefix(MAGIC) else { return Ok(()) };
        while let Some(body) = next_body(rest) {
            rest = &rest[HEAD + body.len()..];
            self.appended += 1;
            apply(body, list);
        }
        let right = (content.len() - rest.len()) as u64;
        if !rest.is_empty() {
            drop(content);
            file.truncate(right)?;
        }
        self.file = Some(file);
        Ok(())
    }

    /// Records that a stream was created, configured or closed.
    pub(crate) fn put(&mut self, name: &str, metadata: &StreamMetadata) {
        self.append(&stream_body(name, metadata));
    }

    /// Records that a stream is open: its recorded extents are no longer valid.
    pub(crate) fn opened(&mut self, name: &str, now: u64) {
        let mut body = vec![OPENED];
        encode_name(&mut body, name);
        body.put_u64_le(now);
        self.append(&body);
    }

    pub(crate) fn deleted(&mut self, name: &str) {
        let mut body = vec![DELETED];
        encode_name(&mut body, name);
        self.append(&body);
    }

    /// Not synced: a lost entry is restored from the directories.
    fn append(&mut self, body: &[u8]) {
        let Some(file) = &self.file else { return };
        let mut entry = Vec::with_capacity(HEAD + body.len());
        encode_entry(&mut entry, body);
        self.appended += 1;
        if let Err(error) = append_all(&**file, &[Bytes::from(entry)]).1 {
            self.disable(&error);
        }
    }

    /// Syncs the recorded entries.
    pub(crate) fn sync(&mut self) {
        if let Some(file) = &self.file
            && let Err(error) = file.sync()
        {
            self.disable(&error);
        }
    }

    /// Removes the catalog, whose entries may become stale.
    fn disable(&mut self, error: &io::Error) {
        tracing::warn!(%error, "the catalog cannot be written; the next start takes longer");
        self.file = None;
        if let Err(error) = self.disk.remove(&self.dir.join(NAME)) {
            tracing::warn!(%error, "the catalog cannot be removed");
        }
    }

    /// Whether most entries are obsolete.
    pub(crate) fn is_long(&self, streams: usize) -> bool {
        self.file.is_some() && self.appended > COMPACT_MIN + 4 * streams
    }

    /// Rewrites the file. If that fails, further entries are appended to the old file, or there is no file: an old file
    /// without them would confirm closes that are outdated.
    pub(crate) fn replace<'a>(
        &mut self,
        list: impl Iterator<Item = (&'a str, &'a StreamMetadata)>,
    ) -> io::Result<()> {
        let mut content = MAGIC.to_vec();
        let mut count = 0;
        for (name, metadata) in list {
            encode_entry(&mut content, &stream_body(name, metadata));
            count += 1;
        }
        let disk = self.disk.clone();
        disk::prepare(&*disk, &self.dir, NAME, &content)?;
        let replaced = disk::rename(&*disk, &self.dir, NAME)
            .and_then(|()| disk.sync_dir(&self.dir))
            .and_then(|()| disk.open(&self.dir.join(NAME)));
        match replaced {
            Ok(file) => {
                (self.file, self.appended) = (Some(file), count);
                Ok(())
            }
            // Either file may have the name.
            Err(error) => {
                self.disable(&error);
                Err(error)
            }
        }
    }
}

fn encode_entry(out: &mut Vec<u8>, body: &[u8]) {
    // A body is smaller than a stream's configuration and its groups: far below 4 GiB.
    out.put_u32_le(body.len() as u32);
    out.put_u32_le(crc32c::crc32c(body));
    out.extend_from_slice(body);
}

/// Body of the first entry, if that is complete and valid.
fn next_body(bytes: &[u8]) -> Option<&[u8]> {
    let (mut head, rest) = bytes.split_at_checked(HEAD)?;
    let (length, crc) = (head.get_u32_le(), head.get_u32_le());
    let body = rest.get(..length as usize)?;
    (crc32c::crc32c(body) == crc).then_some(body)
}

fn apply(mut body: &[u8], list: &mut StreamMap) -> Option<()> {
    let tag = body.try_get_u8().ok()?;
    let name = decode_name(&mut body)?;
    match tag {
        STREAM => {
            list.insert(name.into(), decode_stream_metadata(None, &mut body)?);
        }
        COMPACTED_STREAM => {
            let retention = Duration::from_micros(body.try_get_u64_le().ok()?);
            list.insert(name.into(), decode_stream_metadata(Some(retention), &mut body)?);
        }
        OPENED => {
            let metadata = list.get_mut(name)?;
            (metadata.extents, metadata.clean) = (None, None);
            metadata.last_read = metadata.last_read.max(body.try_get_u64_le().ok());
        }
        DELETED => {
            list.remove(name);
        }
        _ => {}
    }
    Some(())
}

fn encode_name(out: &mut Vec<u8>, name: &str) {
    // A stream's name has at most 240 bytes, a group's 255.
    out.put_u16_le(name.len() as u16);
    out.extend_from_slice(name.as_bytes());
}

fn decode_name<'a>(body: &mut &'a [u8]) -> Option<&'a str> {
    let length = body.try_get_u16_le().ok()?.into();
    let (name, rest) = body.split_at_checked(length)?;
    *body = rest;
    std::str::from_utf8(name).ok()
}

fn encode_option(out: &mut Vec<u8>, value: Option<u64>) {
    out.put_u8(value.is_some().into());
    out.put_u64_le(value.unwrap_or(0));
}

fn decode_option(body: &mut &[u8]) -> Option<Option<u64>> {
    let is_some = body.try_get_u8().ok()? != 0;
    let value = body.try_get_u64_le().ok()?;
    Some(is_some.then_some(value))
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn stream_body(name: &str, metadata: &StreamMetadata) -> Vec<u8> {
    let config = &metadata.config;
    let mut out = vec![if config.compact.is_some() { COMPACTED_STREAM } else { STREAM }];
    encode_name(&mut out, name);
    if let Some(retention) = config.compact {
        out.put_u64_le(micros(retention));
    }
    out.put_u64_le(metadata.created);
    out.put_u32_le(config.partitions);
    let (fsync, interval) = match config.fsync {
        Fsync::Batch => (0, 0),
        Fsync::Never => (1, 0),
        Fsync::Interval(interval) => (2, micros(interval)),
    };
    out.put_u8(fsync);
    out.put_u64_le(interval);
    out.put_u64_le(config.segment_bytes);
    encode_option(&mut out, config.retain_bytes);
    encode_option(&mut out, config.retain_age.map(micros));
    out.put_u8(config.automatic.into());
    encode_option(&mut out, metadata.last_append);
    encode_option(&mut out, metadata.last_read);
    let extents = metadata.extents.as_deref().unwrap_or_default();
    out.put_u8(metadata.extents.is_some().into());
    // At most `StreamConfig::PARTITIONS_MAX`.
    out.put_u32_le(extents.len() as u32);
    for extent in extents {
        extent.numbers().into_iter().for_each(|number| out.put_u64_le(number));
    }
    // At most `StreamsConfig::with_max_groups`.
    out.put_u32_le(metadata.groups.len() as u32);
    for (group, offsets) in &metadata.groups {
        encode_name(&mut out, group);
        out.put_u32_le(offsets.len() as u32);
        for &(partition, offset) in offsets {
            out.put_u32_le(partition);
            out.put_u64_le(offset);
        }
    }
    encode_clean_close(&mut out, metadata.clean.as_ref());
    out
}

fn encode_clean_close(out: &mut Vec<u8>, clean: Option<&CleanClose>) {
    let Some(clean) = clean else { return };
    out.put_u64_le(clean.groups_bytes);
    // At most `StreamConfig::PARTITIONS_MAX`.
    out.put_u32_le(clean.tails.len() as u32);
    let none = Index::default();
    for tail in &clean.tails {
        out.put_u8(tail.is_some().into());
        let Some(tail) = tail else { continue };
        let index = index::encode(&tail.summary, tail.index.as_ref().unwrap_or(&none));
        out.put_u32_le(tail.head);
        out.put_u8(tail.index.is_some().into());
        // At most `INDEX_ENTRIES_MAX` entries.
        out.put_u32_le(index.len() as u32);
        out.extend_from_slice(&index);
    }
}

/// Also none if an earlier version has written the entry.
fn decode_clean_close(body: &mut &[u8]) -> Option<CleanClose> {
    let groups_bytes = body.try_get_u64_le().ok()?;
    let count = body.try_get_u32_le().ok()?;
    let mut tails = Vec::new();
    for _ in 0..count {
        if body.try_get_u8().ok()? == 0 {
            tails.push(None);
            continue;
        }
        let (head, has_index) = (body.try_get_u32_le().ok()?, body.try_get_u8().ok()? != 0);
        let length = body.try_get_u32_le().ok()? as usize;
        let (index, rest) = body.split_at_checked(length)?;
        *body = rest;
        let summary = index::decode_head(index)?;
        let index = if has_index { Some(index::decode(index)?) } else { None };
        tails.push(Some(LastSegment { head, summary, index }));
    }
    Some(CleanClose { groups_bytes, tails })
}

fn decode_stream_metadata(compact: Option<Duration>, body: &mut &[u8]) -> Option<StreamMetadata> {
    let created = body.try_get_u64_le().ok()?;
    let partitions = body.try_get_u32_le().ok()?;
    let (fsync, interval) = (body.try_get_u8().ok()?, body.try_get_u64_le().ok()?);
    let fsync = match fsync {
        0 => Fsync::Batch,
        1 => Fsync::Never,
        _ => Fsync::Interval(Duration::from_micros(interval)),
    };
    let segment_bytes = body.try_get_u64_le().ok()?;
    let retain_bytes = decode_option(body)?;
    let retain_age = decode_option(body)?.map(Duration::from_micros);
    let automatic = body.try_get_u8().ok()? != 0;
    let config =
        StreamConfig { partitions, fsync, segment_bytes, retain_bytes, retain_age, automatic, compact };
    let (last_append, last_read) = (decode_option(body)?, decode_option(body)?);
    let has_extents = body.try_get_u8().ok()? != 0;
    let count = body.try_get_u32_le().ok()?;
    let extents: Option<Vec<PartitionExtent>> = (0..count).map(|_| PartitionExtent::take(body)).collect();
    let count = body.try_get_u32_le().ok()?;
    let mut groups = Vec::new();
    for _ in 0..count {
        let group = decode_name(body)?.into();
        let count = body.try_get_u32_le().ok()?;
        let offsets: Option<_> =
            (0..count).map(|_| Some((body.try_get_u32_le().ok()?, body.try_get_u64_le().ok()?))).collect();
        groups.push((group, offsets?));
    }
    let extents = extents.map(|extents| has_extents.then_some(extents))?;
    let clean = decode_clean_close(body).filter(|_| extents.is_some());
    Some(StreamMetadata { created, config, last_append, last_read, extents, groups, clean })
}

impl PartitionExtent {
    fn numbers(&self) -> [u64; 7] {
        let Self { earliest, readable, bytes, segments, first_time, last_base, last_bytes } = *self;
        [earliest, readable, bytes, segments, first_time, last_base, last_bytes]
    }

    fn take(body: &mut &[u8]) -> Option<Self> {
        let mut next = || body.try_get_u64_le().ok();
        Some(Self {
            earliest: next()?,
            readable: next()?,
            bytes: next()?,
            segments: next()?,
            first_time: next()?,
            last_base: next()?,
            last_bytes: next()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::simulated::{CrashKind, DiskFault, SimulatedDisk};

    fn metadata(created: u64) -> StreamMetadata {
        let extent = PartitionExtent {
            earliest: 1,
            readable: 2,
            bytes: 3,
            segments: 4,
            first_time: 5,
            last_base: 6,
            last_bytes: 7,
        };
        let config = StreamConfig::default()
            .with_fsync(Fsync::Interval(Duration::from_millis(3)))
            .with_retain_bytes(Some(9))
            .with_compaction(Some(Duration::from_secs(2)));
        StreamMetadata {
            created,
            config: config.with_retain_age(Some(Duration::from_secs(1))).with_automatic(true),
            last_append: Some(8),
            last_read: None,
            extents: Some(vec![extent; 2]),
            groups: vec![("g".into(), vec![(0, 1), (1, 2)])],
            clean: Some(CleanClose {
                groups_bytes: 9,
                tails: vec![Some(tail(Some(Index::default()))), Some(tail(None)), None],
            }),
        }
    }

    fn tail(index: Option<Index>) -> LastSegment {
        LastSegment { head: 10, summary: Summary::empty(11, 12, 13), index }
    }

    #[test]
    fn failed_rewrite_leaves_no_outdated_close() {
        // The new file is created, written, synced and renamed, and then the directory is synced.
        for call in 1..=5 {
            let disk = SimulatedDisk::new(1);
            let open = |disk: &SimulatedDisk| Catalog::open(Arc::new(disk.clone()), Path::new("/"));
            let (mut catalog, _) = open(&disk);
            let closed = metadata(1);
            catalog.replace([("a", &closed)].into_iter()).unwrap();
            disk.plan(call, DiskFault::Shortage);
            catalog.replace([("a", &closed)].into_iter()).unwrap_err();
            catalog.opened("a", 30);
            let (_, list) = open(&disk.after(CrashKind::Kill));
            assert!(list.get("a").is_none_or(|found| found.extents.is_none()), "call {call}");
            catalog.replace([("a", &closed)].into_iter()).unwrap();
            assert_eq!(open(&disk.after(CrashKind::Kill)).1.get("a"), Some(&closed), "call {call}");
        }
    }

    #[test]
    fn entries_are_read_up_to_the_first_damage() {
        let disk = SimulatedDisk::new(1);
        let open = |disk: &SimulatedDisk| Catalog::open(Arc::new(disk.clone()), Path::new("/"));
        let (mut catalog, list) = open(&disk);
        assert!(list.is_empty());
        let (a, b) = (metadata(1), metadata(2));
        catalog.replace([("a", &a), ("b", &b)].into_iter()).unwrap();
        let (mut catalog, list) = open(&disk);
        assert_eq!((list.len(), list.get("a"), list.get("b")), (2, Some(&a), Some(&b)));
        catalog.opened("a", 30);
        catalog.deleted("b");
        catalog.put("c", &metadata(3));
        let bytes = disk.files("/").iter().find(|file| file.0 == NAME).unwrap().1;

        let (_, list) = open(&disk);
        assert_eq!(list.len(), 2);
        assert_eq!(
            (list["a"].extents.clone(), list["a"].clean.clone(), list["a"].last_read),
            (None, None, Some(30))
        );
        assert_eq!(list["c"], metadata(3));
        for at in 0..bytes {
            let disk = disk.after(CrashKind::Kill);
            disk.damage("/catalog", at);
            let (_, list) = open(&disk);
            assert!(list.iter().all(|(name, found)| {
                let created = match &**name {
                    "a" => 1,
                    "b" => 2,
                    _ => 3,
                };
                found.created == created && found.config == metadata(1).config
            }));
            assert!(!list.contains_key("c"), "an entry behind damage is ignored: {at}");
        }
    }
}
