//! Hot restart: SIGUSR2 starts the program again, and the successor process replaces this one.
//!
//! ```text
//!   predecessor                                successor, its standard input is the other end
//!    │ Hello, listeners ───────────────────────▶ reads its configuration, binds
//!    │ ◀──────────────────────────────── Bound  (or Failed: nothing changes; in a cluster, it receives publications by now)
//!    │ Revocations, Topic, Kept … End ─────────▶ restores histories
//!    │ Publish ────────────────────────────────▶ publishes ─┐ from here on it assigns positions
//!    │ ◀──────────────────────────── Published ◀────────────┘
//!    │ ◀────────────────────────────── Serving
//!    │ releases streams, closes clients with 1001; forwards their publications, delivers those of the successor
//!    │ Bye ────────────────────────────────────▶
//!    │ ◀────────────────────────────────── Bye
//! ```
//!
//! Until the successor has sent `Serving`, the predecessor continues to serve after any failure.

pub(crate) mod predecessor;

use std::ffi::OsString;
use std::io::{self, BufReader, BufWriter};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use sinews_server::{
    KeySnapshot, KeyedSnapshot, Position, PresenceSnapshot, Publisher, StopHandle, TopicSnapshot,
};

use crate::access::auth::{Revocation, Revocations};
use crate::model::MessageContent;
use crate::streams::service::StreamService;
use crate::topics::HubTopics;
use crate::wire::{
    FrameReceiver, HandoverAddress, HandoverFrame, HandoverHead, VERSION, frame_queue, send_descriptor,
};

/// Marks a successor process: the id of the process that started it. A process that inherits the variable by accident
/// has another parent.
pub(crate) const VARIABLE: &str = "SINEWS_HANDOVER";

/// Longest silence of the successor before it serves. Reading keys and restoring histories take less.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Time that this process waits for an answer from a cluster's broker.
const CATCH_UP_MAX: Duration = Duration::from_secs(2);

/// Time that this process waits at shutdown until it has passed all its publications to the successor.
const FINISH_MAX: Duration = Duration::from_secs(10);

/// Time that a process has to exit after its last frame.
const EXIT_MAX: Duration = Duration::from_secs(2);

/// Replaces this process by a successor on request. Clones control the same handover.
#[derive(Clone)]
pub struct Handover(Arc<HandoverState>);

struct HandoverState {
    hub: Arc<HubTopics>,
    revocations: Arc<Revocations>,
    store: Option<Arc<StreamService>>,
    publisher: Publisher,
    stop: StopHandle,
    on_successor: SuccessorCallback,
    /// The program's path at start, before anything could change it.
    program: OsString,
    executable: Option<PathBuf>,
    stopping: AtomicBool,
    phase: Mutex<HandoverPhase>,
    ended: Condvar,
}

/// Callback with the process id of a successor that serves.
pub(crate) type SuccessorCallback = Box<dyn Fn(u32) + Send + Sync>;

/// Progress of the handover.
enum HandoverPhase {
    Idle,
    /// The successor is starting; holds the socket to it, once it exists.
    Starting(Option<UnixStream>),
    /// The successor serves.
    SuccessorServes,
    /// The successor serves and has received all frames.
    Finished,
}

impl Handover {
    pub(crate) fn new(
        hub: Arc<HubTopics>,
        revocations: Arc<Revocations>,
        store: Option<Arc<StreamService>>,
        publisher: Publisher,
        stop: StopHandle,
        on_successor: SuccessorCallback,
    ) -> Self {
        let program = std::env::args_os().next().unwrap_or_else(|| "sinews".into());
        Self(Arc::new(HandoverState {
            hub,
            revocations,
            store,
            publisher,
            stop,
            on_successor,
            program,
            executable: std::env::current_exe().ok(),
            stopping: AtomicBool::new(false),
            phase: Mutex::new(HandoverPhase::Idle),
            ended: Condvar::new(),
        }))
    }

    /// Starts a successor, unless one exists or this process is stopping.
    pub fn start(&self) {
        if std::process::id() == 1 {
            let why = "SIGUSR2: the first process of a container cannot be replaced, because the container ends with it: \
                       start another container";
            return tracing::error!("{why}");
        }
        if self.0.stopping.load(Ordering::SeqCst) {
            return tracing::warn!("SIGUSR2 ignored: the server is shutting down");
        }
        let mut phase = self.0.lock();
        if !matches!(*phase, HandoverPhase::Idle) {
            return tracing::warn!("SIGUSR2 ignored: a handover is in progress");
        }
        *phase = HandoverPhase::Starting(None);
        drop(phase);
        let shared = Arc::clone(&self.0);
        let spawned = thread::Builder::new().name("handover".to_owned()).spawn(move || shared.run());
        if let Err(error) = spawned {
            tracing::error!(%error, "SIGUSR2: cannot start the handover thread");
            self.0.set(HandoverPhase::Idle);
        }
    }

    /// This process stops for good: a successor that does not serve yet must not take over.
    pub fn abandon(&self) {
        self.0.stopping.store(true, Ordering::SeqCst);
        if let HandoverPhase::Starting(Some(link)) = &*self.0.lock() {
            // The successor exits when its read fails.
            let _ = link.shutdown(Shutdown::Both);
        }
    }

    /// Whether a successor serves.
    #[must_use]
    pub fn has_successor(&self) -> bool {
        matches!(*self.0.lock(), HandoverPhase::SuccessorServes | HandoverPhase::Finished)
    }

    /// Waits, once the server has shut down, until the successor has all publications from this process.
    pub(crate) fn finish(&self) {
        self.0.hub.finish_handover();
        let mut phase = self.0.lock();
        let is_under_way = |phase: &mut HandoverPhase| matches!(phase, HandoverPhase::SuccessorServes);
        let timeout = self.0.ended.wait_while_for(&mut phase, is_under_way, FINISH_MAX);
        if timeout.timed_out() && matches!(*phase, HandoverPhase::SuccessorServes) {
            tracing::error!("the successor process has not received all publications before the timeout");
        }
    }
}

impl HandoverState {
    fn lock(&self) -> MutexGuard<'_, HandoverPhase> {
        self.phase.lock()
    }

    fn set(&self, phase: HandoverPhase) {
        *self.lock() = phase;
        self.ended.notify_all();
    }

    /// Runs the handover on its own thread.
    fn run(&self) {
        let mut child = None;
        let result = self.hand_over(&mut child);
        let has_successor = matches!(*self.lock(), HandoverPhase::SuccessorServes);
        if self.hub.end_handover(&mut self.publisher.clone()) && has_successor {
            tracing::error!("the successor process exited before the last client of this process");
        }
        self.publisher.resume_presence();
        self.publisher.resume_keyed_topics();
        self.revocations.set_file_shared(has_successor);
        self.set(if has_successor { HandoverPhase::Finished } else { HandoverPhase::Idle });
        let Err(error) = result else { return };
        let end = child.map_or_else(String::new, |child| exit_status_of(child, has_successor));
        if has_successor {
            tracing::error!("successor process: {error}{end}");
        } else {
            tracing::error!("handover failed, this process continues: {error}{end}");
        }
    }

    fn hand_over(&self, child: &mut Option<Child>) -> Result<(), String> {
        let describe = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                "the successor exited during the handover".to_owned()
            }
            io::ErrorKind::WouldBlock => format!("no frame for {} s", SILENCE_MAX.as_secs()),
            _ => error.to_string(),
        };
        let link = self.spawn(child).map_err(|error| error.to_string())?;
        let mut input = BufReader::new(link.try_clone().map_err(describe)?);
        self.send_hello(&link).map_err(describe)?;
        let version = match HandoverFrame::read(&mut input).map_err(describe)?.head {
            HandoverHead::Bound { version } => version,
            HandoverHead::Failed { why } => return Err(why),
            other => return Err(format!("unexpected frame {other:?}")),
        };
        if version == VERSION {
            self.catch_up();
            let (sender, receiver) = frame_queue();
            // Before the epochs are read: a keyed topic that is removed has another epoch.
            let mut keyed = self.publisher.keyed_topics();
            if self.hub.all_stored().is_some() {
                // The successor reads them from the store.
                keyed.clear();
            }
            let (histories, epochs) = self.hub.begin_handover(sender, &self.publisher);
            let end = HandoverHead::End { delivered: self.hub.last_publications() };
            let end = HandoverFrame { head: end, body: bytes::Bytes::from(epochs) };
            // After the queue to the successor exists, which gets later revocations.
            self.revocations.set_file_shared(true);
            let revocations = self.revocations.all();
            let presence = self.publisher.presence();
            let states = TransferredTopics { histories, presence, keyed };
            let output = link.try_clone().map_err(describe)?;
            let writer = thread::Builder::new().name("handover-out".to_owned());
            writer.spawn(move || write(&output, states, &end, &revocations, receiver)).map_err(describe)?;
        } else {
            tracing::warn!(
                "handover version of the successor differs ({version}, here {VERSION}): histories are not transferred"
            );
        }
        self.handle_frames(&link, &mut input, child.as_ref().map_or(0, Child::id)).map_err(describe)
    }

    /// Waits for other nodes' publications that the broker has sent before the successor logged in: the successor does
    /// not receive these.
    fn catch_up(&self) {
        if let Some(nodes) = self.hub.other_nodes()
            && !nodes.catch_up(CATCH_UP_MAX)
        {
            let limit = CATCH_UP_MAX.as_secs();
            tracing::warn!(
                "the broker has not answered within {limit} s: publications of other nodes may be lost"
            );
        }
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
        *phase = HandoverPhase::Starting(Some(ours.try_clone()?));
        // A stop before this line found no successor to cancel.
        if self.stopping.load(Ordering::SeqCst) {
            ours.shutdown(Shutdown::Both)?;
        }
        Ok(ours)
    }

    fn send_hello(&self, mut link: &UnixStream) -> io::Result<()> {
        let listeners = self.stop.listeners()?;
        let addresses = listeners.iter().map(|(address, _)| HandoverAddress::from(address)).collect();
        let cluster_node = self.hub.other_nodes().map(|nodes| nodes.id());
        HandoverFrame::new(HandoverHead::Hello { version: VERSION, listeners: addresses, cluster_node })
            .write(&mut link)?;
        listeners.iter().try_for_each(|(_, socket)| send_descriptor(link, socket))
    }

    /// Returns whether to deliver the successor's publication here; this process may relay durable topics itself.
    fn follows_directly(&self, topic: &str, position: Option<Position>) -> bool {
        let (Some(store), Some(position)) = (&self.store, position) else { return true };
        store.topics().follows_directly(topic, position)
    }

    /// Executes the successor's frames until the last one.
    fn handle_frames(
        &self,
        link: &UnixStream,
        input: &mut BufReader<UnixStream>,
        process: u32,
    ) -> io::Result<()> {
        let mut publisher = self.publisher.clone();
        loop {
            let HandoverFrame { head, body } = HandoverFrame::read(input)?;
            match head {
                HandoverHead::Serving => {
                    link.set_read_timeout(None)?;
                    let mut phase = self.lock();
                    if self.stopping.load(Ordering::SeqCst) {
                        return Err(io::Error::other("this process is shutting down"));
                    }
                    *phase = HandoverPhase::SuccessorServes;
                    drop(phase);
                    self.hub.discard_queued();
                    (self.on_successor)(process);
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
                    // The successor has the members; their connections end here and return there.
                    if let Some(events) = self.hub.events() {
                        events.hand_over();
                    }
                    publisher.pause_presence();
                    self.stop.hand_over();
                }
                HandoverHead::Published { topic, kind, position, answers, sender } => {
                    let position = position.map(Into::into);
                    if !self.follows_directly(&topic, position) {
                        continue;
                    }
                    let (out, content) = (&mut publisher, MessageContent::from_wire(kind, body));
                    self.hub.deliver_from_successor(out, &topic, &content, position, answers, &sender);
                }
                HandoverHead::Revocations => {
                    let all: Vec<Revocation> = serde_json::from_slice(&body)?;
                    self.hub.connections().revoke(&self.revocations, &all);
                }
                HandoverHead::Cut => self.hub.stop_awaiting_successor(),
                HandoverHead::Bye => return Ok(()),
                HandoverHead::Failed { why } => return Err(io::Error::other(why)),
                other => {
                    return Err(io::Error::other(format!("unexpected frame {other:?}")));
                }
            }
        }
    }
}

/// The state of all topics.
struct TransferredTopics {
    histories: Vec<TopicSnapshot>,
    presence: Vec<PresenceSnapshot>,
    keyed: Vec<KeyedSnapshot>,
}

/// Writes the state of topics, then publications, then the end mark.
fn write(
    link: &UnixStream,
    states: TransferredTopics,
    end: &HandoverFrame,
    revocations: &[Revocation],
    receiver: FrameReceiver,
) {
    let mut output = BufWriter::with_capacity(64 << 10, link);
    let written = HandoverFrame::from_revocations(revocations)
        .try_for_each(|frame| frame.write(&mut output))
        .and_then(|()| write_topics(states, end, &mut output))
        .and_then(|()| receiver.write_all(&mut output));
    if let Err(error) = written {
        // The reading thread reports the failure if it matters.
        tracing::debug!(%error, "cannot write to the successor process");
        let _ = link.shutdown(Shutdown::Both);
    }
}

fn write_topics(
    TransferredTopics { histories, presence, keyed }: TransferredTopics,
    end: &HandoverFrame,
    output: &mut impl io::Write,
) -> io::Result<()> {
    for TopicSnapshot { name, position, messages } in histories {
        HandoverFrame::new(HandoverHead::Topic { name, position: position.into(), messages: messages.len() })
            .write(output)?;
        for retained in messages {
            let age_ms = u64::try_from(retained.age.as_millis()).unwrap_or(u64::MAX);
            let body = bytes::Bytes::copy_from_slice(retained.message.payload());
            HandoverFrame { head: HandoverHead::Kept { age_ms }, body }.write(output)?;
        }
    }
    for PresenceSnapshot { topic, members, anonymous } in presence {
        HandoverFrame::new(HandoverHead::Presence { topic, anonymous, members: members.len() })
            .write(output)?;
        for (member, connections) in members {
            let body = bytes::Bytes::copy_from_slice(member.info());
            let head = HandoverHead::Member { id: member.id().to_owned(), connections };
            HandoverFrame { head, body }.write(output)?;
        }
    }
    // A successor reads durable keys, and their idempotency keys, from their stream; other idempotency keys stay
    // behind.
    for KeyedSnapshot { topic, position, forgotten, keys, recent: _ } in keyed {
        let (position, keys_count) = (position.into(), keys.len());
        HandoverFrame::new(HandoverHead::Keyed { topic, position, forgotten, keys: keys_count })
            .write(output)?;
        for KeySnapshot { key, version, value, ttl, client } in keys {
            let ttl_ms = ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
            let head = HandoverHead::Key { key, version, is_set: value.is_some(), ttl_ms, client };
            HandoverFrame { head, body: value.unwrap_or_default() }.write(output)?;
        }
    }
    end.write(output)?;
    output.flush()
}

/// Returns a failed successor's exit status. A successor that serves keeps running.
fn exit_status_of(mut child: Child, has_successor: bool) -> String {
    let until = Instant::now() + EXIT_MAX;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return format!(" ({status})"),
            Ok(None) if has_successor => return String::new(),
            Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(10)),
            _ => break,
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    " (killed after the timeout)".to_owned()
}
