//! Checking and repairing streams, used by the command-line tool.

use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use super::maintenance::find_renamed_segment;
use super::opening::FoundStream;
use super::slot::SlotState;
use super::{Inner, Streams, read_config};
use crate::catalog::StreamMetadata;
use crate::disk::{self, Disk};
use crate::record;
use crate::segment::SegmentName;
use crate::stream::OpenedStream;
use crate::{Loss, OpenError, ReadError, Stream, StreamConfig, StreamError, meta};

/// Maximum files in a stream that a repair sets aside.
const SET_ASIDE_MAX: usize = 1024;

/// Suffix for files that a repair sets aside.
const DAMAGED: &str = ".damaged";

/// Bytes that a check reads at a time.
const READ_BYTES: usize = 1 << 20;

/// Result of [`Streams::check`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckReport {
    /// Readable records.
    pub records: u64,
    /// Damage descriptions, by partition and file.
    pub damage: Vec<String>,
}

impl Streams {
    /// Opens a stream and reads all its records. None if it does not exist. Waits for the disk.
    ///
    /// # Errors
    ///
    /// [`StreamError`]: the stream cannot be opened.
    pub fn check(&self, name: &str) -> Result<Option<CheckReport>, StreamError> {
        let FoundStream { stream: Some(stream), losses, .. } = self.inner.find(name, None)? else {
            return Ok(None);
        };
        let mut check = CheckReport { records: 0, damage: losses.iter().map(Loss::to_string).collect() };
        for number in 0..stream.partitions() {
            check_partition(&stream, number, &mut check);
        }
        Ok(Some(check))
    }

    /// Repairs a stream that cannot be opened: rewrites its configuration, from the catalog if listed there, restores a
    /// renamed segment's name, and sets aside unusable files with the suffix `.damaged`. Returns the changes made; none
    /// if the stream can be opened. Waits for the disk.
    ///
    /// # Errors
    ///
    /// [`StreamError`]: the stream does not exist or still cannot be opened.
    pub fn repair(&self, name: &str) -> Result<Vec<String>, StreamError> {
        let inner = &*self.inner;
        let path = inner.path(name).ok_or(StreamError::Name)?;
        let mut done = Vec::new();
        if inner.find(name, None).is_ok_and(|found| found.stream.is_some()) {
            return Ok(done);
        }
        let _gate = inner.gate.write().unwrap_or_else(PoisonError::into_inner);
        let metadata = inner.state().slots.get(name).map(|slot| slot.metadata.clone());
        inner.catalog().opened(name, (inner.pool.clock)());
        inner.catalog().sync();
        let metadata =
            metadata.ok_or_else(|| StreamError::Damaged(format!("there is no stream {name}").into()))?;
        inner.repair_config(&path, &metadata, &mut done)?;
        while let Some((from, to)) = find_renamed_segment(&*inner.pool.disk, &path, &metadata) {
            inner.pool.disk.rename(&from, &to)?;
            done.push(format!("{}: renamed to {}", from.display(), to.display()));
        }
        for _ in 0..SET_ASIDE_MAX {
            let (config, created) =
                read_config(&*inner.pool.disk, &path).ok().flatten().ok_or_else(|| {
                    StreamError::Damaged("the configuration of the stream cannot be written".into())
                })?;
            match Stream::open(name, created, path.clone(), &inner.pool, &config, None) {
                Ok(OpenedStream { stream, losses, .. }) => {
                    done.extend(losses.iter().map(Loss::to_string));
                    stream.stop();
                    stream.close();
                    inner.reset(name);
                    return Ok(done);
                }
                Err(OpenError::Unknown(file, reason)) => {
                    inner.repair_file(&path, &file, &reason, &mut done)?
                }
                Err(OpenError::Io(file, reason)) => {
                    inner.repair_file(&path, &file, &reason.to_string(), &mut done)?;
                }
                Err(error) => return Err(StreamError::Damaged(error.to_string().into())),
            }
        }
        Err(StreamError::Damaged("too many files of the stream are damaged".into()))
    }
}

impl Inner {
    /// Writes the stream's configuration file, if it cannot be read.
    fn repair_config(
        &self,
        path: &Path,
        metadata: &StreamMetadata,
        done: &mut Vec<String>,
    ) -> Result<(), StreamError> {
        let disk = &*self.pool.disk;
        if matches!(read_config(disk, path), Ok(Some(_))) {
            return Ok(());
        }
        let (config, created, from) = if metadata.created > 0 {
            (metadata.config.clone(), metadata.created, "from the catalog")
        } else {
            let names = disk.list(path)?;
            let last = names.iter().filter_map(|name| name.parse::<u32>().ok()).max();
            let partitions = last.map_or(1, |last| last.saturating_add(1)).min(StreamConfig::PARTITIONS_MAX);
            let config = StreamConfig::default().with_partitions(partitions);
            (config, (self.pool.clock)(), "with the defaults, since it is not in the catalog")
        };
        let file = path.join(meta::NAME);
        if disk.is_dir(&file) {
            set_aside(disk, &file, "is a directory", done)?;
        }
        disk::replace(disk, path, meta::NAME, &meta::encode(&config, created))?;
        done.push(format!("{}: rewritten {from}", file.display()));
        Ok(())
    }

    /// Sets aside an unusable file.
    fn repair_file(
        &self,
        stream: &Path,
        file: &Path,
        reason: &str,
        done: &mut Vec<String>,
    ) -> Result<(), StreamError> {
        let disk = &*self.pool.disk;
        let is_within = file.starts_with(stream) && file != stream;
        let dir = file.parent().filter(|_| is_within);
        let dir = dir.ok_or_else(|| StreamError::Damaged(reason.into()))?;
        // For a partition entry that cannot be opened, the error names the partition.
        if disk.is_dir(file) && dir == stream {
            let names = disk.list(file)?;
            let wrong = names
                .iter()
                .find(|name| SegmentName::from_log_name(name).is_some() && disk.is_dir(&file.join(name)));
            let wrong = wrong.ok_or_else(|| StreamError::Damaged(reason.into()))?;
            return set_aside(disk, &file.join(wrong), "is a directory", done);
        }
        set_aside(disk, file, reason, done)
    }

    /// Resets the slot so that the next use opens the stream.
    fn reset(&self, name: &str) {
        if let Some(slot) = self.state().slots.get_mut(name) {
            (slot.metadata.extents, slot.metadata.clean) = (None, None);
            slot.state = SlotState::Closed;
        }
    }
}

fn set_aside(disk: &dyn Disk, file: &Path, reason: &str, done: &mut Vec<String>) -> Result<(), StreamError> {
    let mut name = file.as_os_str().to_owned();
    name.push(DAMAGED);
    let aside = PathBuf::from(name);
    disk.rename(file, &aside)?;
    if let Some(dir) = file.parent() {
        disk.sync_dir(dir)?;
    }
    done.push(format!("{}: {reason}; set aside as {}", file.display(), aside.display()));
    Ok(())
}

fn check_partition(stream: &Stream, number: u32, check: &mut CheckReport) {
    let Some(partition) = stream.partition(number) else { return };
    let mut wrong = |what: String| check.damage.push(format!("partition {number}: {what}"));
    let mut from = partition.offsets().earliest;
    loop {
        match partition.read(from, READ_BYTES) {
            Ok(read) if read.batches.is_empty() => return,
            Ok(read) => {
                for batch in record::iter(&read.batches).flatten() {
                    for record in batch.records() {
                        match record {
                            Ok(_) => check.records += 1,
                            Err(error) => {
                                wrong(format!("in the batch of offset {}: {error}", batch.header().base))
                            }
                        }
                    }
                }
                from = read.next;
            }
            Err(ReadError::Damaged { resume, reason }) if resume > from => {
                wrong(reason.to_string());
                from = resume;
            }
            Err(error) => return wrong(error.to_string()),
        }
    }
}
