//! Tests of an executor, which writes in place of the threads. The test executes the writes when it wants to.

use std::io::{self, IoSlice};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use sinews_stream::{
    AppendError, Durability, ExternalWrite, Fsync, Pending, StreamConfig, Streams, StreamsConfig,
    WriteExecutor, WriteTask,
};
use tempfile::TempDir;

use super::{follow, records};

/// An executor that passes its tasks to the test.
struct TestExecutor(Mutex<Sender<WriteTask>>);

impl WriteExecutor for TestExecutor {
    fn execute(&self, task: WriteTask) {
        // Dropped if the test has ended.
        let _ = self.0.lock().unwrap().send(task);
    }
}

fn open(directory: &TempDir, writers: usize, fsync: Fsync) -> (Streams, Receiver<WriteTask>) {
    let (streams, losses) = Streams::open(directory.path(), StreamsConfig::default().with_writers(writers))
        .expect("an empty directory");
    assert_eq!(losses, []);
    let (sender, tasks) = channel();
    streams.set_write_executor(Arc::new(TestExecutor(Mutex::new(sender))));
    streams.create("s", &StreamConfig::default().with_fsync(fsync)).expect("a new stream");
    (streams, tasks)
}

fn append(streams: &Streams, number: u64) -> Pending {
    let partition = streams.stream("s").and_then(|stream| stream.partition(0)).expect("it was made");
    partition.append(records(number..number + 1, 100)).expect("there is room")
}

fn poll(pending: &mut Pending) -> Poll<Result<u64, AppendError>> {
    let mut cx = Context::from_waker(Waker::noop());
    pending.poll(Durability::Disk, &mut cx).map(|result| result.map(|appended| appended.first))
}

/// Executes a write as an event loop does.
fn write(external: ExternalWrite) -> Option<WriteTask> {
    let mut written = 0;
    for piece in external.buffers() {
        assert_eq!(external.file().append(&[IoSlice::new(piece)]).expect("a disk"), piece.len());
        written += piece.len() as u64;
    }
    external.finish(written, Ok(()))
}

#[test]
fn appends_during_an_external_write_form_the_next_write() {
    let directory = tempfile::tempdir().unwrap();
    let (streams, tasks) = open(&directory, 0, Fsync::Never);
    let mut first = append(&streams, 0);
    let external = tasks.try_recv().expect("a task").begin().expect("a write");
    let mut others = [append(&streams, 1), append(&streams, 2)];
    assert!(tasks.try_recv().is_err(), "one task at a time");
    assert!(poll(&mut first).is_pending());
    let task = write(external).expect("there is more");
    assert_eq!(poll(&mut first), Poll::Ready(Ok(0)));
    assert!(poll(&mut others[0]).is_pending());
    let task = write(task.begin().expect("two more")).expect("perhaps there is more");
    assert_eq!(others.each_mut().map(poll), [Poll::Ready(Ok(1)), Poll::Ready(Ok(2))]);
    assert!(task.begin().is_none(), "that was all");
    assert!(!streams.work(), "the threads have no work");
    let partition = streams.stream("s").unwrap().partition(0).unwrap();
    assert_eq!(follow(&partition, 0, 3), [0, 1, 2]);
    append(&streams, 3);
    assert!(tasks.try_recv().is_ok(), "a new append creates a task");
}

#[test]
fn synced_writes_are_not_delegated() {
    let directory = tempfile::tempdir().unwrap();
    let (streams, tasks) = open(&directory, 0, Fsync::Batch);
    let mut pending = append(&streams, 0);
    assert!(tasks.try_recv().is_err(), "every write is synced");
    while streams.work() {}
    assert_eq!(poll(&mut pending), Poll::Ready(Ok(0)));
}

#[test]
fn dropped_task_is_written_by_the_threads() {
    let directory = tempfile::tempdir().unwrap();
    let (streams, tasks) = open(&directory, 1, Fsync::Never);
    let pending = append(&streams, 0);
    drop(tasks.recv().expect("a task"));
    assert_eq!(pending_block(pending), Ok(0), "a thread has it");
    // The receiver of the tasks is gone.
    drop(tasks);
    assert_eq!(pending_block(append(&streams, 1)), Ok(1));
}

#[test]
fn failed_external_write_fails_its_append() {
    let directory = tempfile::tempdir().unwrap();
    let (streams, tasks) = open(&directory, 0, Fsync::Never);
    let mut full = append(&streams, 0);
    let external = tasks.try_recv().expect("a task").begin().expect("a write");
    let half = &external.buffers()[0][..7];
    assert_eq!(external.file().append(&[IoSlice::new(half)]).expect("a disk"), 7);
    let task = external.finish(7, Err(io::Error::from(io::ErrorKind::StorageFull))).expect("it goes on");
    assert_eq!(poll(&mut full), Poll::Ready(Err(AppendError::NoSpace)));
    assert!(task.begin().is_none());
    // The partial write is cut off, so that the next one begins at the right position.
    let again = follow_up(&streams, &tasks);
    let mut never = append(&streams, 9);
    drop(tasks.try_recv().expect("a task").begin().expect("a write"));
    assert!(
        matches!(poll(&mut never), Poll::Ready(Err(AppendError::Failed(_)))),
        "the content of the file is unknown"
    );
    let partition = streams.stream("s").unwrap().partition(0).unwrap();
    assert!(partition.failure().is_some());
    assert_eq!(follow(&partition, 0, 1), [again]);
}

/// Appends once there is space again. A partition that was full rejects appends for a moment.
fn follow_up(streams: &Streams, tasks: &Receiver<WriteTask>) -> u64 {
    let partition = streams.stream("s").unwrap().partition(0).unwrap();
    let mut pending = loop {
        match partition.append(records(5..6, 100)) {
            Err(AppendError::NoSpace) => thread::yield_now(),
            other => break other.expect("there is room"),
        }
    };
    let task = write(tasks.try_recv().expect("a task").begin().expect("a write")).expect("it goes on");
    assert!(task.begin().is_none());
    assert_eq!(poll(&mut pending), Poll::Ready(Ok(0)));
    5
}

#[test]
fn close_waits_for_an_external_write() {
    let directory = tempfile::tempdir().unwrap();
    let (streams, tasks) = open(&directory, 1, Fsync::Never);
    let mut first = append(&streams, 0);
    let external = tasks.recv().expect("a task").begin().expect("a write");
    let mut second = append(&streams, 1);
    let (closed, is_closed) = channel();
    let closing = streams.clone();
    let closer = thread::spawn(move || {
        closing.close();
        closed.send(()).expect("the test waits for it");
    });
    let partition = streams.stream("s").unwrap().partition(0).unwrap();
    while !matches!(partition.append(records(7..8, 100)), Err(AppendError::Closed)) {
        thread::yield_now();
    }
    assert!(is_closed.try_recv().is_err());
    assert!(write(external).is_none(), "the rest is for the threads");
    closer.join().expect("it is closed");
    assert_eq!((poll(&mut first), poll(&mut second)), (Poll::Ready(Ok(0)), Poll::Ready(Ok(1))));
    drop((partition, streams));
    let (streams, losses) =
        Streams::open(directory.path(), StreamsConfig::default()).expect("it was unlocked");
    assert_eq!(losses, []);
    let partition = streams.stream("s").unwrap().partition(0).unwrap();
    assert_eq!(follow(&partition, 0, 2)[..2], [0, 1]);
}

fn pending_block(mut pending: Pending) -> Result<u64, AppendError> {
    pending.block(Durability::Disk).map(|appended| appended.first)
}

#[test]
fn due_sync_is_done_by_the_threads_which_return_the_partition() {
    let directory = tempfile::tempdir().unwrap();
    let (streams, tasks) = open(&directory, 0, Fsync::Interval(Duration::ZERO));
    let mut pending = append(&streams, 0);
    let task = tasks.try_recv().expect("a task");
    if let Some(external) = task.begin() {
        // No record had to be synced yet; now one has.
        assert!(write(external).expect("a sync").begin().is_none());
    }
    while streams.work() {}
    assert_eq!(poll(&mut pending), Poll::Ready(Ok(0)));
    assert_eq!(streams.stream("s").unwrap().partition(0).unwrap().statistics().syncs, 1);
    // A thread returns the partition after its work.
    while let Ok(task) = tasks.try_recv() {
        assert!(task.begin().is_none());
    }
    append(&streams, 1);
    assert!(tasks.try_recv().is_ok());
}
