//! Append-only files whose bytes are lent from the page cache.
//!
//! The crate holds the unsafe code that mapped files need. `sinews-stream` keeps its logs in such files, and `sinews-engine` appends
//! to them through a ring.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Write};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use memmap2::{MmapOptions, MmapRaw};

/// An append-only file whose bytes are lent without a copy: they are the file's own pages in the system's page cache.
///
/// [`truncate`](Self::truncate) never cuts off lent bytes. The caller must make sure that no other handle
/// and no other process writes to the file or truncates it, usually by a lock on its directory. A foreign
/// write changes lent bytes under their reader; a foreign truncation ends the process with `SIGBUS`.
///
/// The pages are faulted in before they are lent, so that an unreadable disk is an error of
/// [`read_shared`](Self::read_shared). Where the system does not support that (before Linux 5.14, and on other systems),
/// the bytes are read into a buffer.
///
/// ```
/// use std::io::IoSlice;
/// use sinews_file::AppendFile;
///
/// # let path = std::env::temp_dir().join(format!("sinews-append-{}", std::process::id()));
/// let file = AppendFile::create(&path)?;
/// file.append(&[IoSlice::new(b"hello "), IoSlice::new(b"world")])?;
/// file.sync()?;
/// assert_eq!(file.read_shared(6..11)?, "world");
/// # std::fs::remove_file(path)?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct AppendFile {
    file: File,
    mapping: Mutex<Mapping>,
}

/// The current map, and where the lent bytes end.
#[derive(Debug, Default)]
struct Mapping {
    map: Option<Arc<MmapRaw>>,
    end: u64,
    /// Each lent range holds a clone, also a range of an earlier map.
    shares: Arc<()>,
}

impl AppendFile {
    /// Creates the file, or opens an existing one.
    ///
    /// # Errors
    ///
    /// System errors.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::open_with(path, true)
    }

    /// Opens an existing file.
    ///
    /// # Errors
    ///
    /// System errors.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_with(path, false)
    }

    fn open_with(path: &Path, create: bool) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).append(true).create(create).open(path)?;
        Ok(Self { file, mapping: Mutex::default() })
    }

    /// Writes at the end of the file, in one call, and returns the number of written bytes, which may be
    /// less than all.
    ///
    /// # Errors
    ///
    /// System errors.
    pub fn append(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        (&self.file).write_vectored(slices)
    }

    /// Waits until all written bytes are on disk.
    ///
    /// # Errors
    ///
    /// System errors. The bytes written since the last sync may then be lost, although they are readable, and a further
    /// sync may not report the error again.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Truncates the file to `bytes` bytes.
    ///
    /// # Errors
    ///
    /// `ResourceBusy` if bytes behind the new end were lent and any lent range is still alive; system errors.
    pub fn truncate(&self, bytes: u64) -> io::Result<()> {
        let mut mapping = self.mapping();
        if mapping.end > bytes {
            // The lock is held, so no holder can be added.
            if Arc::strong_count(&mapping.shares) > 1 {
                return Err(io::Error::new(
                    io::ErrorKind::ResourceBusy,
                    "cannot truncate: bytes behind the new end are lent",
                ));
            }
            *mapping = Mapping::default();
        }
        self.file.set_len(bytes)
    }

    /// Returns the file's length in bytes.
    ///
    /// # Errors
    ///
    /// System errors.
    pub fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Lends bytes from the file. They stay valid as long as they are held, even if the file is unlinked.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` if the file is shorter; system errors if the bytes cannot be read.
    pub fn read_shared(&self, range: Range<u64>) -> io::Result<Bytes> {
        let (start, end) = (to_usize(range.start)?, to_usize(range.end)?);
        if start >= end {
            return Ok(Bytes::new());
        }
        let mut mapping = self.mapping();
        if range.end > self.bytes()? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let map = match &mapping.map {
            Some(map) if map.len() >= end => map.clone(),
            _ => {
                // The map of a growing file extends beyond its end, so that few appends remap it.
                let reach = end.max(MAPPED_LEAST).checked_next_power_of_two().unwrap_or(end);
                let map = Arc::new(MmapOptions::new().len(reach).map_raw_read_only(&self.file)?);
                mapping.map = Some(map.clone());
                map
            }
        };
        if !populate(&map, start..end)? {
            drop(mapping);
            return self.read(start, end);
        }
        mapping.end = mapping.end.max(range.end);
        Ok(Bytes::from_owner(MappedRange { map, start, end, _share: mapping.shares.clone() }))
    }

    /// Reads a copy of the bytes.
    fn read(&self, start: usize, end: usize) -> io::Result<Bytes> {
        use std::os::unix::fs::FileExt;
        let mut bytes = vec![0; end - start];
        self.file.read_exact_at(&mut bytes, start as u64)?;
        Ok(bytes.into())
    }

    /// No code panics while it holds the lock.
    fn mapping(&self) -> MutexGuard<'_, Mapping> {
        self.mapping.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For a ring, which appends and syncs by the file's descriptor. A caller never shortens the file.
impl AsFd for AppendFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Smallest map: 1 MiB of address space costs no memory.
const MAPPED_LEAST: usize = 1 << 20;

fn to_usize(position: u64) -> io::Result<usize> {
    usize::try_from(position).map_err(|_| io::ErrorKind::FileTooLarge.into())
}

/// A range of a map, whose pages existed at its creation.
struct MappedRange {
    map: Arc<MmapRaw>,
    start: usize,
    end: usize,
    _share: Arc<()>,
}

impl AsRef<[u8]> for MappedRange {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `read_shared` made the range within the map, which is held here, and within the file, and has brought in its
        // pages. `truncate` leaves these pages, appending does not touch existing bytes, and the opener of the file
        // keeps other processes from it.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(self.start), self.end - self.start) }
    }
}

/// Faults pages in. `false`: the system does not support it.
#[cfg(target_os = "linux")]
fn populate(map: &MmapRaw, range: Range<usize>) -> io::Result<bool> {
    loop {
        match map.advise_range(memmap2::Advice::PopulateRead, range.start, range.len()) {
            Ok(()) => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn populate(_: &MmapRaw, _: Range<usize>) -> io::Result<bool> {
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> (std::path::PathBuf, AppendFile) {
        let path = std::env::temp_dir().join(format!("sinews-append-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let file = AppendFile::create(&path).unwrap();
        (path, file)
    }

    #[test]
    fn lent_bytes_survive_growth_and_unlink() {
        let (path, file) = file("stays");
        assert_eq!(file.append(&[IoSlice::new(b"one"), IoSlice::new(b"two")]).unwrap(), 6);
        let mapping = file.read_shared(3..6).unwrap();
        let large = vec![7; 3 << 20];
        let mut rest = &large[..];
        while !rest.is_empty() {
            rest = &rest[file.append(&[IoSlice::new(rest)]).unwrap()..];
        }
        assert_eq!(file.read_shared(6..6 + large.len() as u64).unwrap(), large);
        std::fs::remove_file(path).unwrap();
        drop(file);
        assert_eq!(mapping, "two");
    }

    #[test]
    fn truncate_fails_while_cut_bytes_are_lent() {
        let (path, file) = file("cut");
        file.append(&[IoSlice::new(b"abcdef")]).unwrap();
        let mapping = file.read_shared(0..4).unwrap();
        file.truncate(5).unwrap();
        assert_eq!(file.truncate(3).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        // A longer file is remapped; lent ranges of the first map still count.
        file.append(&[IoSlice::new(&vec![0; MAPPED_LEAST])]).unwrap();
        file.read_shared(4..MAPPED_LEAST as u64 + 5).unwrap();
        assert_eq!(file.truncate(3).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        assert_eq!(mapping, "abcd");
        drop(mapping);
        file.truncate(1).unwrap();
        assert_eq!(file.read_shared(0..2).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        file.append(&[IoSlice::new(b"x")]).unwrap();
        assert_eq!(file.read_shared(0..2).unwrap(), "ax");
        std::fs::remove_file(path).unwrap();
    }
}
