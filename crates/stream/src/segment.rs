//! A segment: a file of batches with an index.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::disk::{Disk, DiskFile, append_all};
use crate::index::{self, Index, Summary};
use crate::seal::{HEAD, SegmentHeader, SegmentLayout};

/// A segment's identity, and its files' names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SegmentName {
    pub(crate) base: u64,
    pub(crate) compacted: Option<CompactedRange>,
}

/// Range in a segment that compaction has written in place of other segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CompactedRange {
    /// The segment replaces all segments with a lower generation that begin before this offset, from its own base on.
    pub(crate) end: u64,
    /// 1 and higher: one more than the highest generation of the replaced segments.
    pub(crate) generation: u32,
}

impl SegmentName {
    /// Name for a segment that is appended to.
    pub(crate) fn new(base: u64) -> Self {
        Self { base, compacted: None }
    }

    /// The segment with this file name.
    pub(crate) fn from_log_name(name: &str) -> Option<Self> {
        Self::parse(name.strip_suffix(LOG)?)
    }

    /// The segment with this index file name.
    pub(crate) fn from_index_name(name: &str) -> Option<Self> {
        Self::parse(name.strip_suffix(INDEX)?)
    }

    fn parse(stem: &str) -> Option<Self> {
        let Some((base, compacted)) = stem.split_once('-') else {
            return Some(Self::new(parse(stem)?));
        };
        let (end, generation) = compacted.split_once('.')?;
        let (base, end) = (parse(base)?, parse(end)?);
        let is_plain = generation.bytes().all(|byte| byte.is_ascii_digit()) && !generation.starts_with('0');
        let generation = generation.parse().ok().filter(|_| is_plain)?;
        (end > base).then_some(Self { base, compacted: Some(CompactedRange { end, generation }) })
    }

    pub(crate) fn generation(&self) -> u32 {
        self.compacted.map_or(0, |range| range.generation)
    }

    /// Whether this segment replaces another one.
    pub(crate) fn replaces(&self, other: &Self) -> bool {
        self.compacted.is_some_and(|range| {
            range.generation > other.generation() && (self.base..range.end).contains(&other.base)
        })
    }
}

impl std::fmt::Display for SegmentName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.compacted {
            None => write!(f, "{:020}", self.base),
            Some(CompactedRange { end, generation }) => write!(f, "{:020}-{end:020}.{generation}", self.base),
        }
    }
}

/// A segment on disk. Its file is open and its index is in memory while readers use it.
pub(crate) struct Segment {
    /// Name of the segment: the offset behind the last record of the previous segment. So a missing segment is
    /// detected.
    pub(crate) base: u64,
    /// Set if compaction has written the segment.
    pub(crate) compacted: Option<CompactedRange>,
    dir: PathBuf,
    log: PathBuf,
    index: PathBuf,
    cached: Mutex<CachedFiles>,
}

#[derive(Default)]
struct CachedFiles {
    file: Option<Arc<dyn DiskFile>>,
    index: Option<Arc<Index>>,
    layout: Option<SegmentLayout>,
    /// Used since the last [`Segment::release_unused`].
    used: bool,
}

const LOG: &str = ".log";
const INDEX: &str = ".index";

/// End of the name of a file that compaction has not finished.
const UNFINISHED: &str = ".new";

impl Segment {
    pub(crate) fn new(dir: &Path, base: u64) -> Self {
        Self::named(dir, SegmentName::new(base))
    }

    pub(crate) fn named(dir: &Path, name: SegmentName) -> Self {
        let path = |end: &str| dir.join(format!("{name}{end}"));
        let SegmentName { base, compacted } = name;
        let (log, index) = (path(LOG), path(INDEX));
        Self { base, compacted, dir: dir.to_owned(), log, index, cached: Mutex::default() }
    }

    pub(crate) fn name(&self) -> SegmentName {
        SegmentName { base: self.base, compacted: self.compacted }
    }

    /// Whether a file is a compaction's unfinished output.
    pub(crate) fn is_unfinished_output(name: &str) -> bool {
        name.strip_suffix(UNFINISHED).is_some_and(|name| SegmentName::from_log_name(name).is_some())
    }

    /// Path of the file while compaction writes it.
    pub(crate) fn unfinished_path(&self) -> PathBuf {
        let mut path = self.log.clone().into_os_string();
        path.push(UNFINISHED);
        path.into()
    }

    /// Makes a compaction's written and synced output the segment, durably.
    pub(crate) fn finish_output(&self, disk: &dyn Disk) -> io::Result<()> {
        disk.rename(&self.unfinished_path(), &self.log)?;
        disk.sync_dir(&self.dir)
    }

    /// Path of the file, for messages.
    pub(crate) fn path(&self) -> &Path {
        &self.log
    }

    /// Creates the file with a head and no batch, and makes its name durable. The head is synced with the first write.
    pub(crate) fn create(&self, disk: &dyn Disk, head: &SegmentHeader) -> io::Result<Arc<dyn DiskFile>> {
        let file = disk.create(&self.log)?;
        if file.bytes()? > HEAD as u64 {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "a segment with this base offset exists",
            ));
        }
        let created = self.write_header(&*file, head).and_then(|()| disk.sync_dir(&self.dir));
        if let Err(error) = created {
            // The previous segment continues past this one's base. If this file cannot be removed now, opening the log
            // removes it.
            let _ = disk.remove(&self.log);
            return Err(error);
        }
        let mut cached = self.cached();
        (cached.file, cached.layout) = (Some(file.clone()), Some(SegmentLayout::from_header(*head)));
        Ok(file)
    }

    /// Writes a new head to a segment without batches.
    pub(crate) fn replace_header(&self, disk: &dyn Disk, head: &SegmentHeader) -> io::Result<()> {
        self.remove_index(disk)?;
        self.write_header(&*self.file(disk)?, head)?;
        self.cached().layout = Some(SegmentLayout::from_header(*head));
        Ok(())
    }

    fn write_header(&self, file: &dyn DiskFile, head: &SegmentHeader) -> io::Result<()> {
        file.truncate(0)?;
        append_all(file, &[Bytes::copy_from_slice(&head.encode())]).1
    }

    /// Renames the file so that it no longer counts as a segment, and makes the name durable.
    pub(crate) fn set_aside(&self, disk: &dyn Disk) -> io::Result<()> {
        self.remove_index(disk)?;
        disk.rename(&self.log, &self.log.with_extension("damaged"))?;
        disk.sync_dir(&self.dir)?;
        *self.cached() = CachedFiles::default();
        Ok(())
    }

    /// Whether the segment has no batch.
    pub(crate) fn is_empty(&self, disk: &dyn Disk) -> io::Result<bool> {
        Ok(self.file(disk)?.bytes()? <= self.layout(disk)?.start)
    }

    /// Layout of the file.
    pub(crate) fn layout(&self, disk: &dyn Disk) -> io::Result<SegmentLayout> {
        let file = self.file(disk)?;
        if let Some(layout) = self.cached().layout {
            return Ok(layout);
        }
        let length = file.bytes()?;
        let bytes = file.read_shared(0..length.min(HEAD as u64))?;
        let layout = SegmentLayout::from_file(&bytes, length, self.base);
        self.cached().layout = Some(layout);
        Ok(layout)
    }

    /// The file, opened on demand.
    pub(crate) fn file(&self, disk: &dyn Disk) -> io::Result<Arc<dyn DiskFile>> {
        let mut cached = self.cached();
        cached.used = true;
        if let Some(file) = &cached.file {
            return Ok(file.clone());
        }
        let file = disk.open(&self.log)?;
        cached.file = Some(file.clone());
        Ok(file)
    }

    /// Summary in the index file, if that is valid and matches this file.
    pub(crate) fn summary(&self, disk: &dyn Disk) -> Option<Summary> {
        let head = disk.open(&self.index).ok()?.read_shared(0..index::HEAD as u64).ok()?;
        let summary = index::decode_head(&head)?;
        let bytes = self.file(disk).ok()?.bytes().ok()?;
        (summary.base == self.base && summary.bytes == bytes).then_some(summary)
    }

    /// Content of the index file, if that is valid.
    pub(crate) fn stored_index(&self, disk: &dyn Disk) -> Option<Index> {
        let file = disk.open(&self.index).ok()?;
        index::decode(&file.read_shared(0..file.bytes().ok()?).ok()?)
    }

    /// Content of the index file, if that is valid and has this summary.
    pub(crate) fn index_of(&self, disk: &dyn Disk, summary: &Summary) -> Option<Index> {
        self.summary(disk).filter(|found| found == summary).and_then(|_| self.stored_index(disk))
    }

    /// The index, if it is in memory or its file is valid.
    pub(crate) fn index(&self, disk: &dyn Disk) -> Option<Arc<Index>> {
        if let Some(index) = &self.cached().index {
            return Some(index.clone());
        }
        let index = Arc::new(self.stored_index(disk)?);
        self.set_index(index.clone());
        Some(index)
    }

    pub(crate) fn set_index(&self, index: Arc<Index>) {
        let mut cached = self.cached();
        cached.used = true;
        cached.index = Some(index);
    }

    /// Stores the summary and the index, so that opening need not read the whole segment. Not synced: a checksum and
    /// the file's length show whether the file is valid.
    pub(crate) fn store(&self, disk: &dyn Disk, summary: &Summary, index: &Index) -> io::Result<()> {
        let file = disk.create(&self.index)?;
        file.truncate(0)?;
        append_all(&*file, &[index::encode(summary, index)]).1
    }

    /// Removes the segment's files durably.
    pub(crate) fn remove(&self, disk: &dyn Disk) -> io::Result<()> {
        disk.remove(&self.log)?;
        self.remove_index(disk)?;
        disk.sync_dir(&self.dir)
    }

    /// Removes the index file: later appends could give the segment the length recorded in the index, with other
    /// batches.
    pub(crate) fn remove_index(&self, disk: &dyn Disk) -> io::Result<()> {
        match disk.remove(&self.index) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Closes the file and drops the index if they were not used since the last call. Shared buffers remain valid.
    pub(crate) fn release_unused(&self) {
        let mut cached = self.cached();
        if !std::mem::take(&mut cached.used) {
            *cached = CachedFiles::default();
        }
    }

    /// No code panics while holding the lock.
    fn cached(&self) -> MutexGuard<'_, CachedFiles> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn parse(digits: &str) -> Option<u64> {
    let is_valid = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_valid)
}
