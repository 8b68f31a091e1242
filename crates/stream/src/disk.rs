//! File system access: the real one, and for tests a simulated one that fails and loses power.

mod file_cache;
mod real;
#[cfg(test)]
pub(crate) mod simulated;

use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use sinews_file::AppendFile;

pub(crate) use file_cache::DescriptorCache;
pub(crate) use real::RealDisk;

/// Directory operations. A creation, rename or removal is durable after [`sync_dir`](Self::sync_dir) on its directory.
pub(crate) trait Disk: Send + Sync {
    /// Creates a directory, unless it exists.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Lists the names in a directory.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Creates a file, or opens an existing one.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens an existing file.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Renames a file and replaces an existing target. Renames a directory to an unused name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// Whether the path is a directory.
    fn is_dir(&self, path: &Path) -> bool;
    /// Rewrites the bytes of a file from a position on in place, and syncs the file. After a failed sync, the system's
    /// memory may hold bytes that the disk lacks and count them as written: the next sync covers them only after a
    /// second write.
    fn rewrite(&self, path: &Path, from: u64) -> io::Result<()>;
    /// Syncs the names in a directory.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Locks a file against other processes until the returned lock is dropped. None: another process has the lock.
    fn lock(&self, path: &Path) -> io::Result<Option<Lock>>;
}

/// A lock on a directory, released when dropped.
pub(crate) type Lock = Arc<dyn DirectoryLock>;

/// The locked file.
pub(crate) trait DirectoryLock: Send + Sync {
    /// Whether the lock's path now leads to another file or to none: then the lock no longer excludes other processes.
    fn is_replaced(&self) -> bool;
}

/// An append-only file. The real implementation is [`AppendFile`](sinews_file::AppendFile).
pub(crate) trait DiskFile: Send + Sync {
    /// Appends to the file. The write may be short.
    fn append(&self, slices: &[IoSlice<'_>]) -> io::Result<usize>;
    /// Syncs the written bytes.
    fn sync(&self) -> io::Result<()>;
    /// Truncates the file to this length.
    fn truncate(&self, bytes: u64) -> io::Result<()>;
    /// Length of the file.
    fn bytes(&self) -> io::Result<u64>;
    /// Shares a range of the file's bytes.
    fn read_shared(&self, range: Range<u64>) -> io::Result<Bytes>;
    /// The [`AppendFile`], if this is a real file.
    fn real(self: Arc<Self>) -> Option<Arc<AppendFile>> {
        None
    }
}

/// Whether the error is a full disk, a full quota or too many open files: such errors may pass without intervention.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    // ENFILE and EMFILE have no `ErrorKind`; the numbers are the same on all supported Unix systems.
    matches!(error.kind(), StorageFull | QuotaExceeded) || matches!(error.raw_os_error(), Some(23 | 24))
}

/// Writes all pieces and continues after short writes. Returns the number of bytes written before the error, if any.
pub(crate) fn append_all(file: &dyn DiskFile, pieces: &[Bytes]) -> (u64, io::Result<()>) {
    let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let mut rest = &mut slices[..];
    let mut written = 0;
    // Also skips empty slices at the front.
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match file.append(rest) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(count) => {
                written += count as u64;
                IoSlice::advance_slices(&mut rest, count);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    (written, Ok(()))
}

/// Removes a directory and everything below it. Missing entries are skipped.
pub(crate) fn remove_tree(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    let missing_is_ok = |result: io::Result<()>| match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    };
    let names = match disk.list(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        names => names?,
    };
    for name in names {
        let path = path.join(name);
        if disk.is_dir(&path) {
            remove_tree(disk, &path)?;
        } else {
            missing_is_ok(disk.remove(&path))?;
        }
    }
    missing_is_ok(disk.remove_dir(path))
}

/// Replaces a small file atomically: after a crash either the old or the new content exists.
pub(crate) fn replace(disk: &dyn Disk, dir: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    prepare(disk, dir, name, content)?;
    rename(disk, dir, name)?;
    disk.sync_dir(dir)
}

/// First part of [`replace`]: writes the new file, returns it, and leaves the old one unchanged.
pub(crate) fn prepare(
    disk: &dyn Disk,
    dir: &Path,
    name: &str,
    content: &[u8],
) -> io::Result<Arc<dyn DiskFile>> {
    let file = disk.create(&dir.join(new_name(name)))?;
    // Left behind by an earlier attempt, if the file exists.
    file.truncate(0)?;
    append_all(&*file, &[Bytes::copy_from_slice(content)]).1?;
    file.sync()?;
    Ok(file)
}

/// Second part of [`replace`]; durable once the directory is synced.
pub(crate) fn rename(disk: &dyn Disk, dir: &Path, name: &str) -> io::Result<()> {
    disk.rename(&dir.join(new_name(name)), &dir.join(name))
}

fn new_name(name: &str) -> String {
    format!("{name}.new")
}
