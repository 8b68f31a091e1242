//! File appends that a loop executes alongside its connections.

use std::io::{self, IoSlice};
use std::sync::Arc;

use bytes::Bytes;
use sinews_file::AppendFile;

/// A pending append to a file, see [`Io::append`](crate::Io::append).
#[derive(Debug)]
pub struct Append {
    file: Arc<AppendFile>,
    pieces: Vec<Bytes>,
    sync: bool,
    tag: u64,
    /// Number of written pieces, and written bytes of the next piece.
    done: (usize, usize),
    written: u64,
}

impl Append {
    /// Creates an append for `pieces`, in order, at the end of `file`. With `sync` it also waits until the bytes are on
    /// disk; without pieces it only syncs. The `tag` identifies the append to the application.
    #[must_use]
    pub fn new(file: Arc<AppendFile>, pieces: Vec<Bytes>, sync: bool, tag: u64) -> Self {
        let mut append = Self { file, pieces, sync, tag, done: (0, 0), written: 0 };
        append.skip_empty();
        append
    }

    /// The application's tag.
    #[must_use]
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// Number of bytes that are in the file.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    pub(crate) fn file(&self) -> &AppendFile {
        &self.file
    }

    pub(crate) fn syncs(&self) -> bool {
        self.sync
    }

    /// Whether all bytes are written.
    pub(crate) fn is_whole(&self) -> bool {
        self.done.0 == self.pieces.len()
    }

    /// Fills `out` with the first unwritten slices, none of them empty, and returns their number.
    pub(crate) fn slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        let (first, within) = self.done;
        let rest = self.pieces.iter().skip(first).filter(|piece| !piece.is_empty());
        let mut count = 0;
        for (to, piece) in out.iter_mut().zip(rest) {
            *to = IoSlice::new(if count == 0 { &piece[within..] } else { piece });
            count += 1;
        }
        count
    }

    /// Marks `bytes` more bytes as written.
    pub(crate) fn advance(&mut self, mut bytes: usize) {
        self.written += bytes as u64;
        while let Some(piece) = self.pieces.get(self.done.0) {
            let left = piece.len() - self.done.1;
            if bytes < left {
                self.done.1 += bytes;
                return;
            }
            bytes -= left;
            self.done = (self.done.0 + 1, 0);
        }
        self.skip_empty();
    }

    fn skip_empty(&mut self) {
        while self.pieces.get(self.done.0).is_some_and(Bytes::is_empty) {
            self.done.0 += 1;
        }
    }
}

/// Whether the system's error for a write or sync without effect permits a retry.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_return_unwritten_bytes() {
        let path = std::env::temp_dir().join(format!("sinews-appending-{}", std::process::id()));
        let file = Arc::new(AppendFile::create(&path).unwrap());
        std::fs::remove_file(path).unwrap();
        let of = |pieces: &[&'static str]| {
            let pieces = pieces.iter().map(|piece| Bytes::from_static(piece.as_bytes())).collect();
            Append::new(file.clone(), pieces, true, 7)
        };
        let left = |append: &Append, most: usize| {
            let mut slices = vec![IoSlice::new(&[]); most];
            let count = append.slices(&mut slices);
            slices[..count].iter().map(|slice| String::from_utf8(slice.to_vec()).unwrap()).collect::<Vec<_>>()
        };
        let mut append = of(&["", "ab", "", "cde", "f", ""]);
        assert_eq!(left(&append, 2), ["ab", "cde"]);
        append.advance(3);
        assert_eq!((left(&append, 9), append.written()), (vec!["de".to_owned(), "f".to_owned()], 3));
        append.advance(2);
        assert_eq!(left(&append, 9), ["f"]);
        append.advance(1);
        assert!(append.is_whole() && left(&append, 9).is_empty() && append.written() == 6);
        assert!(of(&[]).is_whole() && of(&["", ""]).is_whole());
    }
}
