//! Standard output and standard error of `sinews serve`. A thread writes each, so that a reader that stalls, such as a
//! full log disk, delays no other thread.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::panic::{self, PanicHookInfo};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

/// Maximum size of each of the queue and the batch that is being written: some 30,000 lines, which a thread writes
/// within a second if the reader does not stall.
const QUEUE_BYTES_MAX: usize = 4 << 20;

/// Memory that an empty queue keeps.
const SPARE_BYTES_MAX: usize = 64 << 10;

/// Maximum size for a write with several lines: up to this size, lines from two processes do not mix within a pipe
/// (`PIPE_BUF`).
const WRITE_MAX: usize = 4_096;

/// Maximum time for a flush, at the exit and after a panic.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Lines for a descriptor, which a thread writes. Lines that exceed the limit are dropped and counted.
pub(crate) struct OutputQueue {
    state: Mutex<QueuedLines>,
    /// There are bytes to write.
    queued: Condvar,
    /// All bytes have been written.
    written: Condvar,
    dropped: AtomicU64,
    max: usize,
}

#[derive(Default)]
struct QueuedLines {
    bytes: Vec<u8>,
    /// Lines that were dropped since the thread took a batch.
    dropped: u64,
    is_writing: bool,
}

static STDOUT: OnceLock<Arc<OutputQueue>> = OnceLock::new();
static STDERR: OnceLock<Arc<OutputQueue>> = OnceLock::new();

/// Starts both descriptors' threads, and prints panics through the queue.
///
/// # Errors
/// A thread cannot be started.
pub(crate) fn start() -> io::Result<()> {
    let stdout = OutputQueue::start("stdout", io::stdout(), QUEUE_BYTES_MAX, |_| {})?;
    let stderr = OutputQueue::start("log", io::stderr(), QUEUE_BYTES_MAX, report_dropped)?;
    if STDOUT.set(stdout).is_ok() && STDERR.set(stderr).is_ok() {
        panic::set_hook(Box::new(print_panic));
    }
    Ok(())
}

/// Queues text for standard output. Without the thread, it is dropped.
pub(crate) fn print(text: &str) {
    if let Some(stdout) = STDOUT.get() {
        stdout.push(text.as_bytes());
    }
}

/// Queues a line for standard error. Without the thread, the line is written at once.
#[allow(clippy::print_stderr, reason = "the threads are those of `sinews serve`")]
pub(crate) fn print_error(line: &str) {
    match STDERR.get() {
        Some(stderr) => stderr.push(format!("{line}\n").as_bytes()),
        None => eprintln!("{line}"),
    }
}

/// Whether standard output is a terminal that shows colors.
pub(crate) fn has_colors() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Waits until both descriptors have all lines, at most a second.
pub(crate) fn flush() {
    let deadline = Instant::now() + FLUSH_TIMEOUT;
    for queue in [STDERR.get(), STDOUT.get()].into_iter().flatten() {
        queue.flush(deadline);
    }
}

/// Returns how many standard-error lines were dropped.
pub(crate) fn dropped_lines() -> u64 {
    STDERR.get().map_or(0, |stderr| stderr.dropped.load(Ordering::Relaxed))
}

/// Logs that lines were dropped, at the level that every filter shows.
fn report_dropped(lines: u64) {
    tracing::error!(lines, "log lines were dropped, since the reader of standard error stalled");
}

fn print_panic(info: &PanicHookInfo<'_>) {
    let thread = thread::current();
    let name = thread.name().unwrap_or("<unnamed>");
    let trace = std::backtrace::Backtrace::capture();
    let trace = if trace.status() == std::backtrace::BacktraceStatus::Captured {
        format!("\n{trace}")
    } else {
        String::new()
    };
    print_error(&format!("thread '{name}' {info}{trace}"));
    flush();
}

/// Writes the log's lines to the standard-error queue.
pub(crate) struct LogWriter;

impl io::Write for LogWriter {
    /// The log writes each line at once.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Some(stderr) = STDERR.get() {
            stderr.push(line);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl OutputQueue {
    /// Starts the thread. It calls `on_resume` with the dropped-line count, once the reader accepts lines again.
    fn start(
        name: &str,
        descriptor: impl AsFd + Send + 'static,
        max: usize,
        on_resume: impl Fn(u64) + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let queue = Arc::new(Self {
            state: Mutex::default(),
            queued: Condvar::new(),
            written: Condvar::new(),
            dropped: AtomicU64::new(0),
            max,
        });
        let of_thread = Arc::clone(&queue);
        let run = move || of_thread.run(&descriptor, &on_resume);
        thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(queue)
    }

    fn push(&self, line: &[u8]) {
        let mut state = self.lock();
        if state.bytes.len() + line.len() > self.max {
            state.dropped += 1;
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // While the thread writes, it looks at the queue by itself.
        let wakes = state.bytes.is_empty() && !state.is_writing;
        state.bytes.extend_from_slice(line);
        drop(state);
        if wakes {
            self.queued.notify_one();
        }
    }

    /// Waits until all lines are written, or the deadline has passed.
    fn flush(&self, deadline: Instant) {
        let timeout = deadline.saturating_duration_since(Instant::now());
        let is_pending = |state: &mut QueuedLines| state.is_writing || !state.bytes.is_empty();
        let _ = self.written.wait_timeout_while(self.lock(), timeout, is_pending);
    }

    fn lock(&self) -> MutexGuard<'_, QueuedLines> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, descriptor: &impl AsFd, on_resume: &impl Fn(u64)) {
        let (mut batch, mut rejected, mut is_cut) = (Vec::new(), 0, false);
        loop {
            batch.clear();
            batch.shrink_to(SPARE_BYTES_MAX);
            let mut state = self.lock();
            state.is_writing = false;
            if state.bytes.is_empty() {
                self.written.notify_all();
            }
            let is_empty = |state: &mut QueuedLines| state.bytes.is_empty();
            let mut state = self.queued.wait_while(state, is_empty).unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut state.bytes, &mut batch);
            state.is_writing = true;
            let dropped = std::mem::take(&mut state.dropped);
            drop(state);
            if dropped > 0 {
                // The report stands behind this batch, in place of the dropped lines.
                on_resume(dropped);
            }
            match write_lines(descriptor, &batch, &mut is_cut) {
                // A disk has space again, for example.
                Ok(()) if rejected > 0 => on_resume(std::mem::take(&mut rejected)),
                Ok(()) => {}
                Err(lines) => {
                    rejected += lines;
                    self.dropped.fetch_add(lines, Ordering::Relaxed);
                }
            }
        }
    }
}

/// Writes whole lines. `is_cut`: the descriptor has rejected the rest of a line, which ends before the next one.
///
/// # Errors
/// The number of lines that the descriptor has rejected, for example since a pipe's reader has ended.
fn write_lines(descriptor: &impl AsFd, lines: &[u8], is_cut: &mut bool) -> Result<(), u64> {
    let mut bytes = lines;
    while !bytes.is_empty() {
        let line = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1);
        let several = bytes.iter().take(WRITE_MAX).rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let next = if *is_cut { b"\n" } else { &bytes[..line.max(several)] };
        match rustix::io::write(descriptor, next) {
            Ok(1..) if *is_cut => *is_cut = false,
            Ok(written) if written > 0 => bytes = &bytes[written..],
            Err(rustix::io::Errno::INTR) => {}
            // Another process has made the descriptor non-blocking.
            Err(rustix::io::Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::new(descriptor, PollFlags::OUT)], None);
            }
            Ok(_) | Err(_) => {
                *is_cut |= lines[..lines.len() - bytes.len()].last().is_some_and(|byte| *byte != b'\n');
                return Err(bytes.split_inclusive(|byte| *byte == b'\n').count() as u64);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, pipe};
    use std::os::fd::BorrowedFd;
    use std::process::{Command, Stdio};
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::channel;

    use super::*;

    /// A pipe that accepts no more bytes, and their number.
    fn full_pipe() -> (PipeReader, PipeWriter, usize) {
        let (reader, writer) = pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        let mut filled = 0;
        while let Ok(written) = rustix::io::write(&writer, &[b'.'; WRITE_MAX]) {
            filled += written;
        }
        rustix::io::ioctl_fionbio(&writer, false).unwrap();
        (reader, writer, filled)
    }

    #[test]
    fn stalled_reader_delays_no_writer_and_learns_the_number_of_dropped_lines() {
        let (mut reader, writer, filled) = full_pipe();
        let (resumed, reports) = channel();
        let queue = OutputQueue::start("test", writer, 64 << 10, move |lines| resumed.send(lines).unwrap());
        let queue = queue.unwrap();
        queue.push(b"line 0\n");
        let deadline = Instant::now() + Duration::from_secs(60);
        while !queue.lock().bytes.is_empty() {
            assert!(Instant::now() < deadline, "the thread takes the first line");
            thread::sleep(Duration::from_millis(1));
        }
        let mut pushed = 1_u64;
        while queue.dropped.load(Ordering::Relaxed) < 100 {
            queue.push(format!("line {pushed}\n").as_bytes());
            pushed += 1;
        }
        let start = Instant::now();
        queue.flush(start + Duration::from_millis(50));
        assert!(start.elapsed() >= Duration::from_millis(50), "the flush has a deadline");
        let kept = pushed - 100;
        reader.read_exact(&mut vec![0; filled]).unwrap();
        let mut lines = BufReader::new(&mut reader).lines();
        for line in 0..kept {
            assert_eq!(lines.next().unwrap().unwrap(), format!("line {line}"));
        }
        assert_eq!(reports.recv().unwrap(), 100);
        drop(lines);
        queue.push(b"again\n");
        queue.flush(Instant::now() + Duration::from_secs(60));
        let mut rest = [0; 6];
        reader.read_exact(&mut rest).unwrap();
        assert_eq!((&rest, queue.dropped.load(Ordering::Relaxed)), (b"again\n", 100));
        assert!(reports.try_recv().is_err(), "one report");
        drop(reader);
        queue.push(b"lost\n");
        queue.flush(Instant::now() + Duration::from_secs(60));
        assert_eq!(queue.dropped.load(Ordering::Relaxed), 101, "a line that nobody can read is counted");
    }

    /// A disk that is full at first.
    struct FullDisk(Arc<AtomicBool>, File, PipeWriter);

    impl AsFd for FullDisk {
        fn as_fd(&self) -> BorrowedFd<'_> {
            if self.0.load(Ordering::SeqCst) { self.1.as_fd() } else { self.2.as_fd() }
        }
    }

    #[test]
    fn lines_that_a_full_disk_rejects_are_counted_and_reported() {
        let Ok(full) = File::options().write(true).open("/dev/full") else { return };
        let ((mut reader, writer), is_full) = (pipe().unwrap(), Arc::new(AtomicBool::new(true)));
        let (resumed, reports) = channel();
        let disk = FullDisk(Arc::clone(&is_full), full, writer);
        let queue = OutputQueue::start("test", disk, 64 << 10, move |lines| resumed.send(lines).unwrap());
        let queue = queue.unwrap();
        for _ in 0..3 {
            queue.push(b"lost\n");
            queue.flush(Instant::now() + Duration::from_secs(60));
        }
        assert_eq!(queue.dropped.load(Ordering::Relaxed), 3);
        is_full.store(false, Ordering::SeqCst);
        queue.push(b"again\n");
        assert_eq!(reports.recv().unwrap(), 3);
        let mut line = [0; 6];
        reader.read_exact(&mut line).unwrap();
        assert_eq!((&line, queue.dropped.load(Ordering::Relaxed)), (b"again\n", 3));
    }

    #[test]
    fn lines_are_written_in_whole_to_a_descriptor_that_does_not_block() {
        let (reader, writer) = pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        let queue = OutputQueue::start("test", writer, 8 << 20, |_| {}).unwrap();
        let line = format!("{}\n", "x".repeat(9_999));
        let read = thread::spawn(move || {
            let mut bytes = vec![0; 4_000_000];
            BufReader::new(reader).read_exact(&mut bytes).unwrap();
            bytes
        });
        for _ in 0..400 {
            queue.push(line.as_bytes());
        }
        queue.flush(Instant::now() + Duration::from_secs(60));
        assert!(read.join().unwrap() == line.repeat(400).into_bytes());
        assert_eq!(queue.dropped.load(Ordering::Relaxed), 0);
        let null = File::open("/dev/null").unwrap();
        assert_eq!(write_lines(&null, b"a\nb\n", &mut false), Err(2), "opened for reads");
    }

    /// A disk that is full after the first write, and has space again after the second one.
    struct CutDisk(AtomicU64, File, PipeWriter);

    impl AsFd for CutDisk {
        fn as_fd(&self) -> BorrowedFd<'_> {
            if self.0.fetch_add(1, Ordering::SeqCst) == 1 { self.1.as_fd() } else { self.2.as_fd() }
        }
    }

    #[test]
    fn line_that_a_full_disk_has_cut_ends_before_the_next_line() {
        let Ok(full) = File::options().write(true).open("/dev/full") else { return };
        let (mut reader, writer) = pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        let disk = CutDisk(AtomicU64::new(0), full, writer);
        let queue = OutputQueue::start("test", disk, 4 << 20, |_| {}).unwrap();
        queue.push(format!("{}\n", "x".repeat(2 << 20)).as_bytes());
        queue.flush(Instant::now() + Duration::from_secs(60));
        assert_eq!(queue.dropped.load(Ordering::Relaxed), 1);
        queue.push(b"again\n");
        queue.push(b"and again\n");
        let mut lines = BufReader::new(&mut reader).lines();
        assert!(lines.next().unwrap().unwrap().bytes().all(|byte| byte == b'x'));
        assert_eq!([(); 2].map(|()| lines.next().unwrap().unwrap()), ["again", "and again"]);
    }

    /// Makes a test the process that panics.
    const PANICS: &str = "SINEWS_TEST_PANICS";

    /// A process that logs lines, and ends after a thread's panic. Its status says whether the panic has taken a
    /// flush's whole time. The next test runs it.
    #[test]
    fn process_that_panics() {
        if std::env::var_os(PANICS).is_none() {
            return;
        }
        start().unwrap();
        (0..1_000).for_each(|line| print_error(&format!("line {line} {}", "x".repeat(100))));
        let begun = Instant::now();
        let thread = thread::Builder::new().name("worker".to_owned()).spawn(|| panic!("of a test"));
        assert!(thread.unwrap().join().is_err());
        std::process::exit(if begun.elapsed() < FLUSH_TIMEOUT { 7 } else { 8 });
    }

    #[test]
    fn panic_flushes_the_log_and_waits_for_no_stalled_reader() {
        let process = || {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "output::tests::process_that_panics", "--nocapture"]).env(PANICS, "1");
            command.stdin(Stdio::null()).stdout(Stdio::null());
            command
        };
        let output = process().stderr(Stdio::piped()).output().unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
        assert!(matches!(output.status.code(), Some(7 | 8)), "{log}");
        for line in ["line 0 ", "line 999 ", "thread 'worker' panicked at ", "of a test"] {
            assert!(log.contains(line), "{line}");
        }
        let (_reader, writer, _) = full_pipe();
        let mut stalled = process().stderr(Stdio::from(writer)).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while stalled.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                stalled.kill().unwrap();
            }
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(
            stalled.wait().unwrap().code(),
            Some(8),
            "the panic waits for the reader as long as a flush may"
        );
    }
}
