//! Append-only files, and views of their pages without a copy.
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

/// A file that is appended to, and whose bytes are lent without a copy: they are the system's own pages of it.
///
/// What has been lent is never cut off by [`truncate`](Self::truncate). That no other handle, and no other process, writes
/// to the file or shortens it is up to who opens it: with a lock on its directory, as a rule. What another one
/// overwrites changes under whoever reads; what it cuts off ends the process with `SIGBUS`.
///
/// The pages are brought in before they are lent, so that a disk that cannot be read is an error of [`lend`](Self::lend).
/// Where the system cannot do that (before Linux 5.14, and elsewhere), the bytes are read into memory of their own.
///
/// ```
/// use std::io::IoSlice;
/// use sinews_file::AppendFile;
///
/// # let path = std::env::temp_dir().join(format!("sinews-append-{}", std::process::id()));
/// let file = AppendFile::create(&path)?;
/// file.append(&[IoSlice::new(b"hello "), IoSlice::new(b"world")])?;
/// file.sync()?;
/// assert_eq!(file.lend(6..11)?, "world");
/// # std::fs::remove_file(path)?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct AppendFile {
    file: File,
    lent: Mutex<Lent>,
}

/// What is mapped, and how far it has been lent.
#[derive(Debug, Default)]
struct Lent {
    map: Option<Arc<MmapRaw>>,
    end: u64,
    /// Whoever is lent something has a count of it, be it of an earlier map.
    holders: Arc<()>,
}

impl AppendFile {
    /// Creates the file, or opens one that is there.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::open_with(path, true)
    }

    /// Opens a file that is there.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_with(path, false)
    }

    fn open_with(path: &Path, create: bool) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).append(true).create(create).open(path)?;
        Ok(Self { file, lent: Mutex::default() })
    }

    /// Writes at the end of the file, in one call, and says how much: it may be less than all.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn append(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        (&self.file).write_vectored(slices)
    }

    /// Waits until the disk has what was written.
    ///
    /// # Errors
    ///
    /// The system's. What was written since the last sync may then be lost, though it can be read, and a further sync
    /// may say nothing of it.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Cuts off what is behind so many bytes.
    ///
    /// # Errors
    ///
    /// `ResourceBusy` if some of it was lent and anything still is; the system's.
    pub fn truncate(&self, bytes: u64) -> io::Result<()> {
        let mut lent = self.lent();
        if lent.end > bytes {
            // The lock is held, so there can be no new holder.
            if Arc::strong_count(&lent.holders) > 1 {
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, "the end of the file is lent"));
            }
            *lent = Lent::default();
        }
        self.file.set_len(bytes)
    }

    /// How many bytes the file has.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Lends bytes of the file, which stay as long as they are held, whatever becomes of the file's name.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` if the file is shorter; the system's, if they cannot be read.
    pub fn lend(&self, range: Range<u64>) -> io::Result<Bytes> {
        let (start, end) = (to_usize(range.start)?, to_usize(range.end)?);
        if start >= end {
            return Ok(Bytes::new());
        }
        let mut lent = self.lent();
        if range.end > self.bytes()? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let map = match &lent.map {
            Some(map) if map.len() >= end => map.clone(),
            _ => {
                // Of a growing file more than there is, so that it is mapped a few times and not with each append.
                let reach = end.max(MAPPED_LEAST).checked_next_power_of_two().unwrap_or(end);
                let map = Arc::new(MmapOptions::new().len(reach).map_raw_read_only(&self.file)?);
                lent.map = Some(map.clone());
                map
            }
        };
        if !populate(&map, start..end)? {
            drop(lent);
            return self.read(start, end);
        }
        lent.end = lent.end.max(range.end);
        Ok(Bytes::from_owner(Part { map, start, end, _holder: lent.holders.clone() }))
    }

    /// Bytes of the file, copied.
    fn read(&self, start: usize, end: usize) -> io::Result<Bytes> {
        use std::os::unix::fs::FileExt;
        let mut bytes = vec![0; end - start];
        self.file.read_exact_at(&mut bytes, start as u64)?;
        Ok(bytes.into())
    }

    /// Nothing here panics while it is held.
    fn lent(&self) -> MutexGuard<'_, Lent> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For a ring, which appends and syncs by the file's number. The caller appends only: it does not shorten the file.
impl AsFd for AppendFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The least that is mapped at once: 1 MiB of addresses costs nothing.
const MAPPED_LEAST: usize = 1 << 20;

fn to_usize(place: u64) -> io::Result<usize> {
    usize::try_from(place).map_err(|_| io::ErrorKind::FileTooLarge.into())
}

/// A range of a map, whose pages were there when it was made.
struct Part {
    map: Arc<MmapRaw>,
    start: usize,
    end: usize,
    _holder: Arc<()>,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `lend` made the range within the map, which is held here, and within the file, whose pages it has
        // brought in. `truncate` leaves them, appending does not touch what is there, and who opened the file keeps
        // others from it.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(self.start), self.end - self.start) }
    }
}

/// Brings pages in; false: this system cannot.
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
    fn what_is_lent_stays_when_the_file_grows_and_goes() {
        let (path, file) = file("stays");
        assert_eq!(file.append(&[IoSlice::new(b"one"), IoSlice::new(b"two")]).unwrap(), 6);
        let lent = file.lend(3..6).unwrap();
        let large = vec![7; 3 << 20];
        let mut rest = &large[..];
        while !rest.is_empty() {
            rest = &rest[file.append(&[IoSlice::new(rest)]).unwrap()..];
        }
        assert_eq!(file.lend(6..6 + large.len() as u64).unwrap(), large);
        std::fs::remove_file(path).unwrap();
        drop(file);
        assert_eq!(lent, "two");
    }

    #[test]
    fn what_is_lent_is_not_cut_off() {
        let (path, file) = file("cut");
        file.append(&[IoSlice::new(b"abcdef")]).unwrap();
        let lent = file.lend(0..4).unwrap();
        file.truncate(5).unwrap();
        assert_eq!(file.truncate(3).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        // A longer file is mapped anew; what was lent of the first map counts on.
        file.append(&[IoSlice::new(&vec![0; MAPPED_LEAST])]).unwrap();
        file.lend(4..MAPPED_LEAST as u64 + 5).unwrap();
        assert_eq!(file.truncate(3).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        assert_eq!(lent, "abcd");
        drop(lent);
        file.truncate(1).unwrap();
        assert_eq!(file.lend(0..2).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        file.append(&[IoSlice::new(b"x")]).unwrap();
        assert_eq!(file.lend(0..2).unwrap(), "ax");
        std::fs::remove_file(path).unwrap();
    }
}
