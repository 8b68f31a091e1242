//! Appends to files by a loop.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Cursor, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use sinews_engine::{App, Append, BackendChoice, ConnId, Engine, Flow, Io};
use sinews_file::AppendFile;

use crate::support::config;

/// Executes the given appends one after the other, and records the results.
struct Writer {
    next: VecDeque<Append>,
    refused: Vec<Append>,
    reported: Vec<(u64, u64, io::Result<()>)>,
    /// Stops the loop as soon as an append is in flight.
    stops: bool,
}

impl Writer {
    fn new(appends: impl IntoIterator<Item = Append>) -> Self {
        let next = appends.into_iter().collect();
        Self { next, refused: Vec::new(), reported: Vec::new(), stops: false }
    }

    fn next(&mut self, io: &mut Io) {
        let Some(append) = self.next.pop_front() else { return };
        self.refused.extend(io.append(append).err());
        if self.stops {
            io.stop();
        }
    }

    /// Runs until all appends are done. Returns whether its loop supports appends.
    fn run(&mut self) -> bool {
        let mut engine = Engine::new(config(), Vec::new()).unwrap();
        engine.run(self).unwrap();
        if engine.backend() == BackendChoice::Uring {
            assert!(self.refused.is_empty());
            return true;
        }
        let (tag, written) = self.refused.pop().map(|append| (append.tag(), append.written())).unwrap();
        assert_eq!((tag, written, self.reported.len()), (0, 0, 0), "returned unchanged");
        false
    }
}

impl App for Writer {
    type Chain = Cursor<Vec<u8>>;
    type Mail = ();

    fn started(&mut self, io: &mut Io) {
        self.next(io);
    }

    fn appended(&mut self, io: &mut Io, append: Append, result: io::Result<()>) {
        self.reported.push((append.tag(), append.written(), result));
        self.next(io);
    }

    fn received(&mut self, _: &mut Io, _: ConnId, _: &mut [u8]) -> Flow {
        Flow::Continue
    }

    fn ended(&mut self, _: &mut Io, _: ConnId) {}
}

#[test]
fn appends_are_written_in_order_and_reported() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let file = Arc::new(AppendFile::create(&path).unwrap());
    file.append(&[io::IoSlice::new(b"before ")]).unwrap();
    // More pieces than one operation takes, and more bytes than a pipe or a socket would take.
    let piece = |number: u8| Bytes::from(vec![number; 10_000]);
    let many: Vec<Bytes> = (0..200).map(piece).collect();
    let last = vec![Bytes::from_static(b"the"), Bytes::new(), Bytes::from_static(b" end")];
    let expected = [b"before ".to_vec(), many.concat(), b"the end".to_vec()].concat();
    let appends = [
        Append::new(file.clone(), many, false, 0),
        Append::new(file.clone(), last, true, 1),
        // A sync only; and an empty append.
        Append::new(file.clone(), Vec::new(), true, 2),
        Append::new(file, vec![Bytes::new()], false, 3),
    ];
    let mut writer = Writer::new(appends);
    if writer.run() {
        let reported = writer.reported.iter().map(|(tag, written, result)| (*tag, *written, result.is_ok()));
        let reported: Vec<_> = reported.collect();
        assert_eq!(reported, [(0, 2_000_000, true), (1, 7, true), (2, 0, true), (3, 0, true)]);
        assert!(fs::read(&path).unwrap() == expected);
    }
}

#[test]
fn append_errors_are_reported_and_the_loop_continues() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let full = Arc::new(AppendFile::open(Path::new("/dev/full")).unwrap());
    let whole = Arc::new(AppendFile::create(&path).unwrap());
    let mut writer = Writer::new([
        Append::new(full.clone(), vec![Bytes::from_static(b"lost")], true, 0),
        // A device that cannot be synced.
        Append::new(full, Vec::new(), true, 1),
        Append::new(whole, vec![Bytes::from_static(b"kept")], true, 2),
    ]);
    if writer.run() {
        let reported: Vec<_> = writer
            .reported
            .iter()
            .map(|(tag, written, result)| (*tag, *written, result.as_ref().err().map(io::Error::kind)))
            .collect();
        let expected =
            [(0, 0, Some(ErrorKind::StorageFull)), (1, 0, Some(ErrorKind::InvalidInput)), (2, 4, None)];
        assert_eq!(reported, expected);
        assert_eq!(fs::read(&path).unwrap(), b"kept");
    }
}

#[test]
fn stopped_loop_waits_for_appends() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let file = Arc::new(AppendFile::create(&path).unwrap());
    let mut writer = Writer::new([Append::new(file, vec![Bytes::from(vec![7; 1 << 20])], true, 0)]);
    writer.stops = true;
    if writer.run() {
        assert!(matches!(writer.reported[..], [(0, 1_048_576, Ok(()))]), "{:?}", writer.reported);
        assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 20);
    }
}
