//! Creating streams.
//!
//! A stream is created under a temporary name and renamed when it is complete. So its directory exists with all its
//! parts or not at all, and each part is synced once.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Inner;
use crate::catalog::{Clean, Known, Tail};
use crate::disk::{self, Disk, append_all};
use crate::index::{Index, Summary};
use crate::seal::{HEAD, Head, Seal};
use crate::segment::Segment;
use crate::{Fsync, Loss, Stream, StreamConfig, StreamError, groups, meta, name};

impl Inner {
    pub(super) fn create_files(
        &self,
        name: &Arc<str>,
        config: &StreamConfig,
        created: u64,
    ) -> Result<(Stream, Known, Vec<Loss>), StreamError> {
        let path = self.path(name).ok_or(StreamError::Name)?;
        let disk = &*self.pool.disk;
        // The creation time is unique among streams.
        let begun = self.dir.join(format!("{}{created}", name::CREATED));
        let made = make(disk, &begun, config, created);
        let made = made
            .and_then(|clean| clear(disk, &path).and_then(|()| disk.rename(&begun, &path)).map(|()| clean));
        let clean = made.inspect_err(|_| discard(disk, &begun))?;
        let stream = disk
            .sync_dir(&self.dir)
            .and_then(|()| Stream::open_new((name, created), path.clone(), &self.pool, config, &clean))
            .inspect_err(|_| discard(disk, &path))?;
        stream.begin(&self.pool);
        self.handles.release(&path.join(groups::NAME));
        let known = Known { created, config: config.clone(), ..Known::default() };
        self.catalog().put(name, &known);
        Ok((stream, known, Vec::new()))
    }
}

/// Creates the files of a stream. They are durable except for the directory's own name and the heads of the segments,
/// which are synced with the first write.
fn make(disk: &dyn Disk, dir: &Path, config: &StreamConfig, created: u64) -> io::Result<Clean> {
    disk.create_dir(dir)?;
    disk.create(&dir.join(groups::NAME))?;
    let descriptor = disk.create(&dir.join(meta::NAME))?;
    append_all(&*descriptor, &[meta::encode(config, created).into()]).1?;
    descriptor.sync()?;
    let tail = |number: u32| make_partition(disk, dir.join(number.to_string()), config, created);
    let tails: io::Result<Vec<_>> = (0..config.partitions).map(|number| tail(number).map(Some)).collect();
    let clean = Clean { groups_bytes: 0, tails: tails? };
    disk.sync_dir(dir)?;
    Ok(clean)
}

fn make_partition(disk: &dyn Disk, dir: PathBuf, config: &StreamConfig, created: u64) -> io::Result<Tail> {
    disk.create_dir(&dir)?;
    let synced = config.fsync == Fsync::Batch;
    let head = Head { seal: Seal::random(0)?, created, synced, replaces: false };
    Segment::new(&dir, 0).create(disk, &head)?;
    let summary = Summary::empty(0, HEAD as u64, 0);
    Ok(Tail { head: head.checksum(), summary, index: Some(Index::default()) })
}

/// Removes the files of a failed creation. Remaining files are removed when the log is next opened, or the name is next
/// used.
fn discard(disk: &dyn Disk, dir: &Path) {
    if let Err(error) = disk::remove_tree(disk, dir) {
        tracing::warn!(path = %dir.display(), %error, "files of a failed stream creation could not be removed");
    }
}

/// Clears the path of a new stream: removes a stream that an earlier version did not finish and that has no record.
fn clear(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    if !disk.is_dir(path) {
        return Ok(());
    }
    for partition in disk.list(path)?.iter().map(|name| path.join(name)).filter(|path| disk.is_dir(path)) {
        for base in disk.list(&partition)?.iter().filter_map(|name| Segment::base_of_log(name)) {
            if !Segment::new(&partition, base).is_empty(disk)? {
                let what = format!("{} has records but no file `{}`", path.display(), meta::NAME);
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
            }
        }
    }
    disk::remove_tree(disk, path)
}
