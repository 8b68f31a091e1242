//! Files and directories: the system's, and for tests some that fail and lose power.

mod handles;
mod real;
#[cfg(test)]
pub(crate) mod simulated;

use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use sinews_file::AppendFile;

pub(crate) use handles::Handles;
pub(crate) use real::RealDisk;

/// Directories. What is created, renamed or removed is durable after [`sync_dir`](Self::sync_dir) on its directory.
pub(crate) trait Disk: Send + Sync {
    /// Makes a directory, unless it is there.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// The names in a directory.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Creates a file, or opens one that is there.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Opens a file that is there.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>>;
    /// Gives a file the name of another one, which goes. Renames a directory to a name that is free.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// Whether this is a directory.
    fn is_dir(&self, path: &Path) -> bool;
    /// Writes the bytes of a file from a position on to their places again, and syncs the file. After a sync that failed,
    /// the system's memory may hold bytes that the disk lacks, and count them as written: the next sync covers them only
    /// after a second write.
    fn rewrite(&self, path: &Path, from: u64) -> io::Result<()>;
    /// Waits until the disk has the names in a directory.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Locks a file against other processes for as long as the answer lives; none if another one has it.
    fn lock(&self, path: &Path) -> io::Result<Option<Lock>>;
}

/// A lock on a directory; dropped, it is free.
pub(crate) type Lock = Arc<dyn HeldLock>;

/// The file that is locked.
pub(crate) trait HeldLock: Send + Sync {
    /// Whether the path of the lock leads to another file, or to none: then the lock keeps no process out any more.
    fn is_replaced(&self) -> bool;
}

/// A file that is appended to. See [`AppendFile`](sinews_file::AppendFile), which is the real one.
pub(crate) trait File: Send + Sync {
    /// Writes at the end, maybe less than all.
    fn append(&self, slices: &[IoSlice<'_>]) -> io::Result<usize>;
    /// Waits until the disk has what was written.
    fn sync(&self) -> io::Result<()>;
    /// Cuts off what is behind.
    fn truncate(&self, bytes: u64) -> io::Result<()>;
    /// The file's length.
    fn bytes(&self) -> io::Result<u64>;
    /// Shares what is there.
    fn lend(&self, range: Range<u64>) -> io::Result<Bytes>;
    /// As the system's, if it is one.
    fn real(self: Arc<Self>) -> Option<Arc<AppendFile>> {
        None
    }
}

/// Whether the disk, a quota or the table of open files is full: it may pass by itself.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    // ENFILE and EMFILE have no kind of their own; the numbers are the same on all Unix systems we know.
    matches!(error.kind(), StorageFull | QuotaExceeded) || matches!(error.raw_os_error(), Some(23 | 24))
}

/// Writes all of it; a short write goes on. Says how much was written before the error, if there was one.
pub(crate) fn append_all(file: &dyn File, pieces: &[Bytes]) -> (u64, io::Result<()>) {
    let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let mut rest = &mut slices[..];
    let mut written = 0;
    // Empty slices at the front go, too.
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

/// Writes a small file so that there is the old one or the new one, whatever happens.
pub(crate) fn replace(disk: &dyn Disk, dir: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    prepare(disk, dir, name, content)?;
    rename(disk, dir, name)?;
    disk.sync_dir(dir)
}

/// The first part of [`replace`], which changes nothing yet. Answers the new file.
pub(crate) fn prepare(disk: &dyn Disk, dir: &Path, name: &str, content: &[u8]) -> io::Result<Arc<dyn File>> {
    let file = disk.create(&dir.join(new_name(name)))?;
    // One that was left behind, if there is one.
    file.truncate(0)?;
    append_all(&*file, &[Bytes::copy_from_slice(content)]).1?;
    file.sync()?;
    Ok(file)
}

/// The second part of [`replace`], which is durable when the directory is synced.
pub(crate) fn rename(disk: &dyn Disk, dir: &Path, name: &str) -> io::Result<()> {
    disk.rename(&dir.join(new_name(name)), &dir.join(name))
}

fn new_name(name: &str) -> String {
    format!("{name}.new")
}
