//! A file of batches, and what is known about it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::disk::{Disk, File, append_all};
use crate::index::{self, Index, Summary};
use crate::seal::{Framing, HEAD, Head};

/// A segment on disk. Its file is open, and its index in memory, while somebody reads it.
pub(crate) struct Segment {
    /// Its name: the offset behind the last record of the segment before, so that one that is missing is noticed.
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
    /// Since the last [`Segment::rest`].
    used: bool,
}

const LOG: &str = ".log";
const INDEX: &str = ".index";

impl Segment {
    pub(crate) fn new(dir: &Path, base: u64) -> Self {
        let path = |end: &str| dir.join(format!("{base:020}{end}"));
        Self { base, dir: dir.to_owned(), log: path(LOG), index: path(INDEX), opened: Mutex::default() }
    }

    /// The segment that a file's name names.
    pub(crate) fn base_of_log(name: &str) -> Option<u64> {
        parse(name.strip_suffix(LOG)?)
    }

    /// The segment that an index belongs to.
    pub(crate) fn base_of_index(name: &str) -> Option<u64> {
        parse(name.strip_suffix(INDEX)?)
    }

    /// The path of its file, for messages.
    pub(crate) fn path(&self) -> &Path {
        &self.log
    }

    /// Creates its file, with a head and no batch, and makes the name durable. The head is synced with what follows.
    pub(crate) fn create(&self, disk: &dyn Disk, head: &Head) -> io::Result<Arc<dyn File>> {
        let file = disk.create(&self.log)?;
        if file.bytes()? > HEAD as u64 {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "a segment of this offset is there"));
        }
        let begun = self.begin(&*file, head).and_then(|()| disk.sync_dir(&self.dir));
        if let Err(error) = begun {
            // The segment before goes on, past this one's name. If it cannot be removed, opening does that.
            let _ = disk.remove(&self.log);
            return Err(error);
        }
        let mut opened = self.opened();
        (opened.file, opened.framing) = (Some(file.clone()), Some(Framing::of(*head)));
        Ok(file)
    }

    /// Gives a segment without batches another head.
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

    /// Gives its file a name that is none of a segment, and makes that durable.
    pub(crate) fn put_aside(&self, disk: &dyn Disk) -> io::Result<()> {
        self.remove_index(disk)?;
        disk.rename(&self.log, &self.log.with_extension("damaged"))?;
        disk.sync_dir(&self.dir)?;
        *self.opened() = Opened::default();
        Ok(())
    }

    /// Whether no batch is in it.
    pub(crate) fn is_empty(&self, disk: &dyn Disk) -> io::Result<bool> {
        Ok(self.file(disk)?.bytes()? <= self.framing(disk)?.start)
    }

    /// How its batches lie in it.
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

    /// Its file, opened if need be.
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

    /// What its index file says, if it is right and of this file.
    pub(crate) fn summary(&self, disk: &dyn Disk) -> Option<Summary> {
        let head = disk.open(&self.index).ok()?.lend(0..index::HEAD as u64).ok()?;
        let summary = index::decode_head(&head)?;
        let bytes = self.file(disk).ok()?.bytes().ok()?;
        (summary.base == self.base && summary.bytes == bytes).then_some(summary)
    }

    /// Its index file, if it is right.
    pub(crate) fn stored_index(&self, disk: &dyn Disk) -> Option<Index> {
        let file = disk.open(&self.index).ok()?;
        index::decode(&file.lend(0..file.bytes().ok()?).ok()?)
    }

    /// Its index file, if it is right and says this.
    pub(crate) fn index_of(&self, disk: &dyn Disk, summary: &Summary) -> Option<Index> {
        self.summary(disk).filter(|found| found == summary).and_then(|_| self.stored_index(disk))
    }

    /// Its index, if it is in memory or its file is right.
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

    /// Stores what is known, so that opening need not read all of it. Not synced: a checksum and the file's length tell
    /// whether it is right.
    pub(crate) fn store(&self, disk: &dyn Disk, summary: &Summary, index: &Index) -> io::Result<()> {
        let file = disk.create(&self.index)?;
        file.truncate(0)?;
        append_all(&*file, &[index::encode(summary, index)]).1
    }

    /// Removes its files, and makes that durable.
    pub(crate) fn remove(&self, disk: &dyn Disk) -> io::Result<()> {
        disk.remove(&self.log)?;
        self.remove_index(disk)?;
        disk.sync_dir(&self.dir)
    }

    /// Removes its index file: what is appended from now on may make the file as long as that says, with other batches.
    pub(crate) fn remove_index(&self, disk: &dyn Disk) -> io::Result<()> {
        match disk.remove(&self.index) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Closes what nobody has used since the last time. What is lent stays.
    pub(crate) fn rest(&self) {
        let mut opened = self.opened();
        if !std::mem::take(&mut opened.used) {
            *opened = Opened::default();
        }
    }

    /// Nothing here panics while it is held.
    fn opened(&self) -> MutexGuard<'_, Opened> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn parse(digits: &str) -> Option<u64> {
    let right = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| right)
}
