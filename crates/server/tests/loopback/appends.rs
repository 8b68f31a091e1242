//! Appends to files on the threads of a server.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

use bytes::Bytes;
use sinews_engine::BackendChoice;
use sinews_file::AppendFile;
use sinews_server::{AppendJob, Appender, Router, Server};

use crate::backend;
use crate::support::{PATIENCE, Running};

/// Appends numbers in lines, in a number of writes of two buffers each, and reports each result.
struct Lines {
    file: Arc<AppendFile>,
    next: u64,
    end: u64,
    done: Sender<(u64, io::Result<()>)>,
}

impl AppendJob for Lines {
    fn next(&mut self) -> Option<(Arc<AppendFile>, Vec<Bytes>)> {
        (self.next < self.end).then(|| {
            let pieces = vec![Bytes::from(self.next.to_string()), Bytes::from_static(b"\n")];
            self.next += 1;
            (self.file.clone(), pieces)
        })
    }

    fn done(&mut self, written: u64, result: io::Result<()>) {
        let _ = self.done.send((written, result));
    }
}

struct File(PathBuf, Arc<AppendFile>);

impl File {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sinews-appends-{name}-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        let file = AppendFile::create(&path).unwrap();
        Self(path, Arc::new(file))
    }

    fn lines(&self, numbers: std::ops::Range<u64>) -> (Box<Lines>, Receiver<(u64, io::Result<()>)>) {
        let (done, reported) = channel();
        (Box::new(Lines { file: self.1.clone(), next: numbers.start, end: numbers.end, done }), reported)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Returns `None` on the readiness backend, which has no file I/O.
fn serve(threads: usize) -> Option<(Running, Appender)> {
    let server = Server::new(Router::new()).threads(threads).engine(backend::engine());
    let bound = server.listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
    let appender = bound.appender();
    assert_eq!(appender.is_some(), bound.backend() == BackendChoice::Uring);
    appender.map(|appender| (Running::bound(bound), appender))
}

#[test]
fn jobs_of_any_thread_run_in_their_order() {
    let Some((_server, appender)) = serve(3) else { return };
    let files: Vec<File> = (0..8).map(|at| File::new(&at.to_string())).collect();
    let reported: Vec<_> = files
        .iter()
        .map(|file| {
            let (job, reported) = file.lines(0..100);
            let appender = appender.clone();
            std::thread::spawn(move || appender.run(job)).join().unwrap();
            reported
        })
        .collect();
    let wanted: String = (0..100).map(|number| format!("{number}\n")).collect();
    for (file, reported) in files.iter().zip(reported) {
        for number in 0..100_u64 {
            let (written, result) = reported.recv_timeout(PATIENCE).unwrap();
            result.unwrap();
            assert_eq!(written, 1 + number.to_string().len() as u64);
        }
        assert_eq!(
            reported.recv_timeout(PATIENCE).unwrap_err(),
            RecvTimeoutError::Disconnected,
            "the job is over"
        );
        assert_eq!(fs::read_to_string(&file.0).unwrap(), wanted);
    }
}

#[test]
fn job_is_dropped_when_its_server_has_ended() {
    let Some((server, appender)) = serve(1) else { return };
    server.stop.stop_now();
    server.join();
    let file = File::new("ended");
    let (job, reported) = file.lines(0..1);
    appender.run(job);
    assert_eq!(reported.recv_timeout(PATIENCE).unwrap_err(), RecvTimeoutError::Disconnected);
    assert_eq!(fs::read(&file.0).unwrap(), b"");
}

#[test]
fn endless_job_does_not_delay_a_stop() {
    for is_graceful in [false, true] {
        let Some((server, appender)) = serve(2) else { return };
        let file = File::new("endless");
        let (job, reported) = file.lines(0..u64::MAX);
        appender.run(job);
        reported.recv_timeout(PATIENCE).unwrap().1.unwrap();
        if is_graceful {
            server.stop.stop();
        } else {
            server.stop.stop_now();
        }
        server.join();
        let lines = fs::read_to_string(&file.0).unwrap().lines().count();
        assert_eq!(1 + reported.iter().count(), lines, "each write was reported, and the job was dropped");
    }
}
