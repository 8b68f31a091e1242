//! The operating system's disk.

use std::fs::{self, TryLockError};
use std::io::{self, IoSlice, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use sinews_file::AppendFile;

use super::{DirectoryLock, Disk, DiskFile, Lock};

pub(crate) struct RealDisk;

/// Maximum bytes that [`Disk::rewrite`] holds in memory.
const REWRITTEN_AT_ONCE: u64 = 1 << 20;

impl Disk for RealDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        match fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            result => result,
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        // Names that are not UTF-8 do not belong to the log.
        fs::read_dir(dir)?
            .filter_map(|entry| entry.map(|entry| entry.file_name().into_string().ok()).transpose())
            .collect()
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(AppendFile::create(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(AppendFile::open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn is_dir(&self, path: &Path) -> bool {
        // A symbolic link is removed, but not its target.
        path.symlink_metadata().is_ok_and(|data| data.is_dir())
    }

    fn rewrite(&self, path: &Path, from: u64) -> io::Result<()> {
        // Opened before the first write, so that the sync reports errors from all writes.
        let file = fs::OpenOptions::new().read(true).write(true).open(path)?;
        let mut buffer = Vec::new();
        let mut at = from;
        loop {
            buffer.clear();
            (&file).seek(SeekFrom::Start(at))?;
            if (&file).take(REWRITTEN_AT_ONCE).read_to_end(&mut buffer)? == 0 {
                return file.sync_data();
            }
            file.write_all_at(&buffer, at)?;
            at += buffer.len() as u64;
        }
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir)?.sync_all()
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Lock>> {
        let file = fs::OpenOptions::new().create(true).append(true).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Arc::new(LockFile { file, path: path.to_owned() }))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

struct LockFile {
    file: fs::File,
    path: PathBuf,
}

impl Drop for LockFile {
    /// A process that is being started beside has a copy of the descriptor for a moment, and would keep the lock.
    fn drop(&mut self) {
        // Closing unlocks, too.
        let _ = self.file.unlock();
    }
}

impl DirectoryLock for LockFile {
    fn is_replaced(&self) -> bool {
        let held = self.file.metadata().map(|data| (data.dev(), data.ino()));
        let found = fs::metadata(&self.path).map(|data| (data.dev(), data.ino()));
        match (held, found) {
            (Ok(held), Ok(found)) => held != found,
            // Any other error may be transient.
            (_, Err(error)) => {
                matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
            }
            (Err(_), _) => false,
        }
    }
}

impl DiskFile for AppendFile {
    fn append(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.append(slices)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync()
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.truncate(bytes)
    }

    fn bytes(&self) -> io::Result<u64> {
        self.bytes()
    }

    fn read_shared(&self, range: Range<u64>) -> io::Result<Bytes> {
        self.read_shared(range)
    }

    fn real(self: Arc<Self>) -> Option<Arc<AppendFile>> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewrite_leaves_each_byte_as_it_was() {
        let path = std::env::temp_dir().join(format!("sinews-rewrite-{}", std::process::id()));
        let content: Vec<u8> = (0..REWRITTEN_AT_ONCE * 2 + 77).map(|byte| (byte % 251) as u8).collect();
        fs::write(&path, &content).unwrap();
        let length = content.len() as u64;
        for from in [0, 5, REWRITTEN_AT_ONCE, length - 1, length, length + 1] {
            RealDisk.rewrite(&path, from).unwrap();
            assert!(fs::read(&path).unwrap() == content, "from byte {from}");
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(RealDisk.rewrite(&path, 0).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
