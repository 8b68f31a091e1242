//! Hot restart: SIGUSR2 starts the program again, and the successor process replaces this one.
//!
//! ```text
//!   predecessor                                successor, its standard input is the other end
//!    │ Hello, listeners ───────────────────────▶ reads its configuration, binds
//!    │ ◀──────────────────────────────── Bound  (or Failed: nothing changes)
//!    │ Topic, Kept … End ──────────────────────▶ restores histories
//!    │ Publish ────────────────────────────────▶ publishes ─┐ from here on it assigns positions
//!    │ ◀──────────────────────────── Published ◀────────────┘
//!    │ ◀────────────────────────────── Serving
//!    │ releases streams, closes clients with 1001; forwards their publications, delivers those of the successor
//!    │ Bye ────────────────────────────────────▶
//!    │ ◀────────────────────────────────── Bye
//! ```
//!
//! Until the successor has sent `Serving`, the predecessor continues to serve after any failure.

pub(crate) mod former;
pub(crate) mod wire;

use std::ffi::OsString;
use std::io::{self, BufReader, BufWriter};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use sinews_server::{KeptTopic, Position, Publisher, StopHandle};

use self::wire::{Address, Frame, Head, VERSION, Waiting, outbox, send_descriptor};
use crate::hub::{Content, Hub};
use crate::streams::Store;

/// Marks a process as a successor: the id of the process that started it. A process that inherits the variable by
/// accident has another parent.
pub(crate) const VARIABLE: &str = "SINEWS_HANDOVER";

/// Longest silence of the successor before it serves. Reading keys and restoring histories take less.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Time that this process waits at shutdown until the successor has all publications of this process.
const FINISH_MAX: Duration = Duration::from_secs(10);

/// Time that a process has to exit after its last frame.
const EXIT_MAX: Duration = Duration::from_secs(2);

/// Replaces this process by a successor on request.
#[derive(Clone)]
pub(crate) struct Handover(Arc<Shared>);

struct Shared {
    hub: Arc<Hub>,
    store: Option<Arc<Store>>,
    publisher: Publisher,
    stop: StopHandle,
    /// The program's path at start, before anything could change it.
    program: OsString,
    executable: Option<PathBuf>,
    stopping: AtomicBool,
    phase: Mutex<Phase>,
    ended: Condvar,
}

/// Progress of the handover.
enum Phase {
    Idle,
    /// The successor is starting; holds the socket to it, once it exists.
    Starting(Option<UnixStream>),
    /// The successor serves.
    Served,
    /// The successor serves and has received all frames.
    Over,
}

impl Handover {
    pub(crate) fn new(
        hub: Arc<Hub>,
        store: Option<Arc<Store>>,
        publisher: Publisher,
        stop: StopHandle,
    ) -> Self {
        let program = std::env::args_os().next().unwrap_or_else(|| "sinews".into());
        Self(Arc::new(Shared {
            hub,
            store,
            publisher,
            stop,
            program,
            executable: std::env::current_exe().ok(),
            stopping: AtomicBool::new(false),
            phase: Mutex::new(Phase::Idle),
            ended: Condvar::new(),
        }))
    }

    /// Starts a successor, unless one exists or this process is stopping.
    pub(crate) fn start(&self) {
        if std::process::id() == 1 {
            let why = "SIGUSR2: the first process of a container cannot be replaced, because the container ends with it: \
                       start another container";
            return tracing::error!("{why}");
        }
        if self.0.stopping.load(Ordering::SeqCst) {
            return tracing::warn!("SIGUSR2 ignored: the server is shutting down");
        }
        let mut phase = self.0.lock();
        if !matches!(*phase, Phase::Idle) {
            return tracing::warn!("SIGUSR2 ignored: a handover is in progress");
        }
        *phase = Phase::Starting(None);
        drop(phase);
        let shared = Arc::clone(&self.0);
        let spawned = thread::Builder::new().name("handover".to_owned()).spawn(move || shared.run());
        if let Err(error) = spawned {
            tracing::error!(%error, "SIGUSR2: cannot start the handover thread");
            self.0.set(Phase::Idle);
        }
    }

    /// This process stops for good: a successor that does not serve yet must not take over.
    pub(crate) fn abandon(&self) {
        self.0.stopping.store(true, Ordering::SeqCst);
        if let Phase::Starting(Some(link)) = &*self.0.lock() {
            // The successor exits when its read fails.
            let _ = link.shutdown(Shutdown::Both);
        }
    }

    /// Whether a successor serves.
    pub(crate) fn is_served(&self) -> bool {
        matches!(*self.0.lock(), Phase::Served | Phase::Over)
    }

    /// The server has shut down: waits until the successor has all publications of this process.
    pub(crate) fn finish(&self) {
        self.0.hub.finish_handover();
        let phase = self.0.lock();
        let is_under_way = |phase: &mut Phase| matches!(phase, Phase::Served);
        let waited = self.0.ended.wait_timeout_while(phase, FINISH_MAX, is_under_way);
        let (phase, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() && matches!(*phase, Phase::Served) {
            tracing::error!("the successor process has not received all publications before the timeout");
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, phase: Phase) {
        *self.lock() = phase;
        self.ended.notify_all();
    }

    /// Runs the handover on a thread of its own.
    fn run(&self) {
        let mut child = None;
        let result = self.hand_over(&mut child);
        let is_served = matches!(*self.lock(), Phase::Served);
        if self.hub.end_handover(&mut self.publisher.clone()) && is_served {
            tracing::error!("the successor process exited before the last client of this process");
        }
        self.set(if is_served { Phase::Over } else { Phase::Idle });
        let Err(error) = result else { return };
        let end = child.map_or_else(String::new, |child| end_of(child, is_served));
        if is_served {
            tracing::error!("successor process: {error}{end}");
        } else {
            tracing::error!("handover failed, this process continues: {error}{end}");
        }
    }

    fn hand_over(&self, child: &mut Option<Child>) -> Result<(), String> {
        let said = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                "the successor exited during the handover".to_owned()
            }
            io::ErrorKind::WouldBlock => format!("no frame for {} s", SILENCE_MAX.as_secs()),
            _ => error.to_string(),
        };
        let link = self.spawn(child).map_err(|error| error.to_string())?;
        let mut input = BufReader::new(link.try_clone().map_err(said)?);
        self.greet(&link).map_err(said)?;
        let version = match Frame::read(&mut input).map_err(said)?.head {
            Head::Bound { version } => version,
            Head::Failed { why } => return Err(why),
            other => return Err(format!("unexpected frame {other:?}")),
        };
        if version == VERSION {
            let (outbox, waiting) = outbox();
            let kept = self.hub.begin_handover(outbox, &self.publisher);
            let output = link.try_clone().map_err(said)?;
            let writer = thread::Builder::new().name("handover-out".to_owned());
            writer.spawn(move || write(&output, kept, waiting)).map_err(said)?;
        } else {
            tracing::warn!(
                "handover version of the successor differs ({version}, here {VERSION}): histories are not transferred"
            );
        }
        self.listen(&link, &mut input, child.as_ref().map_or(0, Child::id)).map_err(said)
    }

    /// Starts the program from its original path, which may name a new version.
    fn spawn(&self, child: &mut Option<Child>) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(SILENCE_MAX))?;
        ours.set_write_timeout(Some(SILENCE_MAX))?;
        let theirs = OwnedFd::from(theirs);
        let start = |program: &OsString, end: OwnedFd| {
            let mut command = Command::new(program);
            command.args(std::env::args_os().skip(1)).env(VARIABLE, std::process::id().to_string());
            command.stdin(end).spawn()
        };
        let started = match (start(&self.program, theirs.try_clone()?), &self.executable) {
            (Err(error), Some(executable)) if error.kind() == io::ErrorKind::NotFound => {
                start(&executable.clone().into_os_string(), theirs)
            }
            (result, _) => result,
        };
        let started = started.map_err(|error| {
            io::Error::new(error.kind(), format!("cannot start {}: {error}", self.program.display()))
        })?;
        tracing::info!(process = started.id(), "SIGUSR2: successor process started");
        *child = Some(started);
        let mut phase = self.lock();
        *phase = Phase::Starting(Some(ours.try_clone()?));
        // A stop before this line found no successor to cancel.
        if self.stopping.load(Ordering::SeqCst) {
            ours.shutdown(Shutdown::Both)?;
        }
        Ok(ours)
    }

    fn greet(&self, mut link: &UnixStream) -> io::Result<()> {
        let listeners = self.stop.listeners()?;
        let addresses = listeners.iter().map(|(address, _)| Address::from(address)).collect();
        Frame::new(Head::Hello { version: VERSION, listeners: addresses }).write(&mut link)?;
        listeners.iter().try_for_each(|(_, socket)| send_descriptor(link, socket))
    }

    /// Whether to deliver a publication of the successor here; this process may relay durable topics itself.
    fn goes_on(&self, topic: &str, position: Option<Position>) -> bool {
        let (Some(store), Some(position)) = (&self.store, position) else { return true };
        store.topics().goes_on(topic, position)
    }

    /// Executes the successor's frames until the last one.
    fn listen(&self, link: &UnixStream, input: &mut BufReader<UnixStream>, process: u32) -> io::Result<()> {
        let mut publisher = self.publisher.clone();
        loop {
            let Frame { head, body } = Frame::read(input)?;
            match head {
                Head::Serving => {
                    link.set_read_timeout(None)?;
                    let mut phase = self.lock();
                    if self.stopping.load(Ordering::SeqCst) {
                        return Err(io::Error::other("this process is shutting down"));
                    }
                    *phase = Phase::Served;
                    drop(phase);
                    notify(&[NotifyState::MainPid(process)]);
                    tracing::info!(
                        process,
                        "the successor process serves; this process exits after its last client"
                    );
                    // The successor waits for the streams that this process owns, and clients connect to it now.
                    if let Some(store) = self.store.as_ref().filter(|store| !store.has_own_directory()) {
                        store.close();
                        // The successor publishes all later records.
                        store.topics().finish();
                    }
                    self.stop.hand_over();
                }
                Head::Published { topic, kind, position, answers } => {
                    let position = position.map(Into::into);
                    if !self.goes_on(&topic, position) {
                        continue;
                    }
                    let published = (position, answers);
                    let content = Content::of(kind, body);
                    self.hub.published_by_successor(&mut publisher, &topic, &content, published);
                }
                Head::Cut => self.hub.successor_is_silent(),
                Head::Bye => return Ok(()),
                Head::Failed { why } => return Err(io::Error::other(why)),
                other => {
                    return Err(io::Error::other(format!("unexpected frame {other:?}")));
                }
            }
        }
    }
}

/// Writes histories, then publications, then the end mark.
fn write(link: &UnixStream, kept: (Vec<KeptTopic>, Vec<u8>), waiting: Waiting) {
    let mut output = BufWriter::with_capacity(64 << 10, link);
    let written = write_topics(kept, &mut output).and_then(|()| waiting.write_all(&mut output));
    if let Err(error) = written {
        // The reading thread reports the failure if it matters.
        tracing::debug!(%error, "cannot write to the successor process");
        let _ = link.shutdown(Shutdown::Both);
    }
}

fn write_topics((kept, epochs): (Vec<KeptTopic>, Vec<u8>), output: &mut impl io::Write) -> io::Result<()> {
    for KeptTopic { name, position, messages } in kept {
        Frame::new(Head::Topic { name, position: position.into(), messages: messages.len() })
            .write(output)?;
        for kept in messages {
            let age_ms = u64::try_from(kept.age.as_millis()).unwrap_or(u64::MAX);
            let body = bytes::Bytes::copy_from_slice(kept.message.payload());
            Frame { head: Head::Kept { age_ms }, body }.write(output)?;
        }
    }
    Frame { head: Head::End, body: bytes::Bytes::from(epochs) }.write(output)?;
    output.flush()
}

/// The exit status of a successor that failed. A successor that serves keeps running.
fn end_of(mut child: Child, is_served: bool) -> String {
    let until = Instant::now() + EXIT_MAX;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return format!(" ({status})"),
            Ok(None) if is_served => return String::new(),
            Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(10)),
            _ => break,
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    " (killed after the timeout)".to_owned()
}

/// Notifies the service manager, if there is one.
pub(crate) fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}
