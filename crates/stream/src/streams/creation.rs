//! Creating streams.
//!
//! A stream is created under a temporary name and renamed when it is complete. So its directory exists with all its
//! parts or not at all, and each part is synced once.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Inner;
use crate::catalog::{CleanClose, LastSegment, StreamMetadata};
use crate::disk::{self, Disk, append_all};
use crate::index::{Index, Summary};
use crate::seal::{HEAD, Seal, SegmentHeader};
use crate::segment::{Segment, SegmentName};
use crate::{Fsync, Loss, Stream, StreamConfig, StreamError, groups, meta, name};

impl Inner {
    pub(super) fn create_files(
        &self,
        name: &Arc<str>,
        config: &StreamConfig,
        created: u64,
    ) -> Result<(Stream, StreamMetadata, Vec<Loss>), StreamError> {
        let path = self.path(name).ok_or(StreamError::Name)?;
        let disk = &*self.pool.disk;
        // The creation time is unique among streams.
        let temporary = self.dir.join(format!("{}{created}", name::CREATED));
        let created_files = create_all(disk, &temporary, config, created);
        let created_files = created_files.and_then(|clean| {
            remove_unfinished(disk, &path).and_then(|()| disk.rename(&temporary, &path)).map(|()| clean)
        });
        let clean = created_files.inspect_err(|_| remove_failed(disk, &temporary))?;
        let stream = disk
            .sync_dir(&self.dir)
            .and_then(|()| Stream::open_new(name, created, path.clone(), &self.pool, config, &clean))
            .inspect_err(|_| remove_failed(disk, &path))?;
        stream.register(&self.pool);
        self.file_cache.close_idle(&path.join(groups::NAME));
        let metadata = StreamMetadata { created, config: config.clone(), ..StreamMetadata::default() };
        self.catalog().put(name, &metadata);
        Ok((stream, metadata, Vec::new()))
    }
}

/// Creates a stream's files. They are durable except for the directory's own name and the segment heads, which are
/// synced with the first write.
fn create_all(disk: &dyn Disk, dir: &Path, config: &StreamConfig, created: u64) -> io::Result<CleanClose> {
    disk.create_dir(dir)?;
    disk.create(&dir.join(groups::NAME))?;
    let descriptor = disk.create(&dir.join(meta::NAME))?;
    append_all(&*descriptor, &[meta::encode(config, created).into()]).1?;
    descriptor.sync()?;
    let tail = |number: u32| create_partition(disk, dir.join(number.to_string()), config, created);
    let tails: io::Result<Vec<_>> = (0..config.partitions).map(|number| tail(number).map(Some)).collect();
    let clean = CleanClose { groups_bytes: 0, tails: tails? };
    disk.sync_dir(dir)?;
    Ok(clean)
}

fn create_partition(
    disk: &dyn Disk,
    dir: PathBuf,
    config: &StreamConfig,
    created: u64,
) -> io::Result<LastSegment> {
    disk.create_dir(&dir)?;
    let synced = config.fsync == Fsync::Batch;
    let head = SegmentHeader { seal: Seal::random(0)?, created, synced, replaces: false, compacted: None };
    Segment::new(&dir, 0).create(disk, &head)?;
    let summary = Summary::empty(0, HEAD as u64, 0);
    Ok(LastSegment { head: head.checksum(), summary, index: Some(Index::default()) })
}

/// Removes a failed creation's files. Remaining files are removed when the log is next opened, or the name is next
/// used.
fn remove_failed(disk: &dyn Disk, dir: &Path) {
    if let Err(error) = disk::remove_tree(disk, dir) {
        tracing::warn!(path = %dir.display(), %error, "files of a failed stream creation could not be removed");
    }
}

/// Clears a new stream's path: removes a stream that an earlier version did not finish and that has no record.
fn remove_unfinished(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    if !disk.is_dir(path) {
        return Ok(());
    }
    for partition in disk.list(path)?.iter().map(|name| path.join(name)).filter(|path| disk.is_dir(path)) {
        for name in disk.list(&partition)?.iter().filter_map(|name| SegmentName::from_log_name(name)) {
            if !Segment::named(&partition, name).is_empty(disk)? {
                let what = format!("{} has records but no file `{}`", path.display(), meta::NAME);
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
            }
        }
    }
    disk::remove_tree(disk, path)
}
