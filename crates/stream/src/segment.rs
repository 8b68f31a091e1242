//! A segment: a file of batches with an index.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::disk::{Disk, File, append_all};
use crate::index::{self, Index, Summary};
use crate::seal::{Framing, HEAD, Head};

/// A segment on disk. Its file is open and its index is in memory while readers use it.
pub(crate) struct Segment {
    /// Name of the segment: the offset behind the last record of the previous segment. So a missing segment is
    /// detected.
    pub(crate) base: u64,
    dir: PathBuf,
    log: PathBuf,
    index: PathBuf,
    opened: Mutex<Opened>,
}

#[derive(Default)]
struct Opened {
    file: Option<Arc<dyn File>>,
    index: Option<Arc<Index>>,
    framing: Option<Framing>,
    /// Used since the last [`Segment::rest`].
    used: bool,
}

const LOG: &str = ".log";
const INDEX: &str = ".index";

impl Segment {
    pub(crate) fn new(dir: &Path, base: u64) -> Self {
        let path = |end: &str| dir.join(format!("{base:020}{end}"));
        Self { base, dir: dir.to_owned(), log: path(LOG), index: path(INDEX), opened: Mutex::default() }
    }

    /// Base of the segment with this file name.
    pub(crate) fn base_of_log(name: &str) -> Option<u64> {
        parse(name.strip_suffix(LOG)?)
    }

    /// Base of the segment with an index of this file name.
    pub(crate) fn base_of_index(name: &str) -> Option<u64> {
        parse(name.strip_suffix(INDEX)?)
    }

    /// Path of the file, for messages.
    pub(crate) fn path(&self) -> &Path {
        &self.log
    }

    /// Creates the file with a head and no batch, and makes its name durable. The head is synced with the first write.
    pub(crate) fn create(&self, disk: &dyn Disk, head: &Head) -> io::Result<Arc<dyn File>> {
        let file = disk.create(&self.log)?;
        if file.bytes()? > HEAD as u64 {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "a segment with this base offset exists",
            ));
        }
        let begun = self.begin(&*file, head).and_then(|()| disk.sync_dir(&self.dir));
        if let Err(error) = begun {
            // The previous segment continues past this one's base. If this file cannot be removed now, opening the log
            // removes it.
            let _ = disk.remove(&self.log);
            return Err(error);
        }
        let mut opened = self.opened();
        (opened.file, opened.framing) = (Some(file.clone()), Some(Framing::of(*head)));
        Ok(file)
    }

    /// Writes a new head to a segment without batches.
    pub(crate) fn renew(&self, disk: &dyn Disk, head: &Head) -> io::Result<()> {
        self.remove_index(disk)?;
        self.begin(&*self.file(disk)?, head)?;
        self.opened().framing = Some(Framing::of(*head));
        Ok(())
    }

    fn begin(&self, file: &dyn File, head: &Head) -> io::Result<()> {
        file.truncate(0)?;
        append_all(file, &[Bytes::copy_from_slice(&head.encode())]).1
    }

    /// Renames the file so that it no longer counts as a segment, and makes the name durable.
    pub(crate) fn put_aside(&self, disk: &dyn Disk) -> io::Result<()> {
        self.remove_index(disk)?;
        disk.rename(&self.log, &self.log.with_extension("damaged"))?;
        disk.sync_dir(&self.dir)?;
        *self.opened() = Opened::default();
        Ok(())
    }

    /// Whether the segment has no batch.
    pub(crate) fn is_empty(&self, disk: &dyn Disk) -> io::Result<bool> {
        Ok(self.file(disk)?.bytes()? <= self.framing(disk)?.start)
    }

    /// Layout of the file.
    pub(crate) fn framing(&self, disk: &dyn Disk) -> io::Result<Framing> {
        let file = self.file(disk)?;
        if let Some(framing) = self.opened().framing {
            return Ok(framing);
        }
        let length = file.bytes()?;
        let bytes = file.lend(0..length.min(HEAD as u64))?;
        let framing = Framing::of_file(&bytes, length, self.base);
        self.opened().framing = Some(framing);
        Ok(framing)
    }

    /// The file, opened on demand.
    pub(crate) fn file(&self, disk: &dyn Disk) -> io::Result<Arc<dyn File>> {
        let mut opened = self.opened();
        opened.used = true;
        if let Some(file) = &opened.file {
            return Ok(file.clone());
        }
        let file = disk.open(&self.log)?;
        opened.file = Some(file.clone());
        Ok(file)
    }

    /// Summary in the index file, if that is valid and matches this file.
    pub(crate) fn summary(&self, disk: &dyn Disk) -> Option<Summary> {
        let head = disk.open(&self.index).ok()?.lend(0..index::HEAD as u64).ok()?;
        let summary = index::decode_head(&head)?;
        let bytes = self.file(disk).ok()?.bytes().ok()?;
        (summary.base == self.base && summary.bytes == bytes).then_some(summary)
    }

    /// Content of the index file, if that is valid.
    pub(crate) fn stored_index(&self, disk: &dyn Disk) -> Option<Index> {
        let file = disk.open(&self.index).ok()?;
        index::decode(&file.lend(0..file.bytes().ok()?).ok()?)
    }

    /// Content of the index file, if that is valid and has this summary.
    pub(crate) fn index_of(&self, disk: &dyn Disk, summary: &Summary) -> Option<Index> {
        self.summary(disk).filter(|found| found == summary).and_then(|_| self.stored_index(disk))
    }

    /// The index, if it is in memory or its file is valid.
    pub(crate) fn index(&self, disk: &dyn Disk) -> Option<Arc<Index>> {
        if let Some(index) = &self.opened().index {
            return Some(index.clone());
        }
        let index = Arc::new(self.stored_index(disk)?);
        self.set_index(index.clone());
        Some(index)
    }

    pub(crate) fn set_index(&self, index: Arc<Index>) {
        let mut opened = self.opened();
        opened.used = true;
        opened.index = Some(index);
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
    pub(crate) fn rest(&self) {
        let mut opened = self.opened();
        if !std::mem::take(&mut opened.used) {
            *opened = Opened::default();
        }
    }

    /// No code panics while holding the lock.
    fn opened(&self) -> MutexGuard<'_, Opened> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn parse(digits: &str) -> Option<u64> {
    let right = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| right)
}
