//! The bytes that wait for the link's thread: any thread adds messages, in the order in which they leave.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use mio::Waker;
use parking_lot::{Mutex, MutexGuard};
use sinews_server::LogLimit;

use super::direct::{DirectWrite, DirectWriter};
use super::members::members_per_message;
use super::message::{EncodedPublication, HEAD, MessageKind, NodeId, NodeMessageHead, write_topic};
use super::options::BrokerKind;
use super::subject::Subjects;

/// Limit for publications that wait for the broker in bytes; further ones are dropped. 16 MiB: the largest message, or
/// some tens of milliseconds on a fast network.
const WAITING_MAX: usize = 16 << 20;

/// Bytes that the link's thread has not written, above which it takes no more: the limits for waiting bytes apply then.
const TAKEN_MAX: usize = 256 << 10;

/// Limit of all bytes that wait for the broker: commands and messages of nodes, which are not dropped. Four times
/// [`WAITING_MAX`], so that only a broker that does not read reaches it; then the connection is given up.
const UNSENT_MAX: usize = 4 * WAITING_MAX;

/// Unanswered pings: 4 MiB. Redis may reject each ping, by its rights; then the oldest are forgotten, and their
/// subscriptions' results are unknown.
const PINGS_MAX: usize = 1 << 18;

/// Limit for the publications in one message in bytes: the broker's work for a message is small beside its bytes then.
const BATCH_MAX: usize = 32 << 10;

/// Limit for lines about messages that exceed the broker's largest message.
static LARGE_LINES: LogLimit = LogLimit::new();

/// Messages for the broker.
#[derive(Debug)]
pub(super) struct Outbox {
    kind: BrokerKind,
    node: NodeId,
    pub(super) subjects: Subjects,
    /// The broker is connected. Read without the lock by publishers.
    is_open: AtomicBool,
    state: Mutex<OutboxState>,
    waker: OnceLock<Waker>,
    /// The thread has been woken, and has not taken the bytes yet.
    is_woken: AtomicBool,
    pub(super) counters: LinkCounters,
}

/// What the answer to a ping confirms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PingPurpose {
    /// All commands before it are executed.
    Heartbeat,
    /// The subscription with this id, just before it, has begun or is rejected.
    Subscription(u64),
}

/// The nodes that receive a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Audience {
    /// The nodes with subscribers to the topic.
    Subscribers,
    AllNodes,
}

/// What a link has done.
#[derive(Debug, Default)]
pub(crate) struct LinkCounters {
    /// Publications passed to the broker.
    pub(crate) sent: AtomicU64,
    /// Other nodes' publications delivered here.
    pub(crate) received: AtomicU64,
    /// Publications not passed to the broker: it is unreachable, too many wait, or the message exceeds its limit.
    pub(crate) dropped_away: AtomicU64,
    pub(crate) dropped_full: AtomicU64,
    pub(crate) dropped_large: AtomicU64,
    pub(crate) connects: AtomicU64,
    /// Commands that the broker has rejected.
    pub(crate) rejected: AtomicU64,
}

#[derive(Debug)]
struct OutboxState {
    /// Commands for the broker.
    bytes: Vec<u8>,
    /// The subject and the message for the publications that the next one may join.
    subject: String,
    topic: String,
    audience: Audience,
    batch: Vec<u8>,
    /// Number of the last message.
    number: u64,
    max_payload: usize,
    /// Pings without an answer, in order.
    pings: VecDeque<PingPurpose>,
    /// Writes past the link's thread; none before the login, and with TLS.
    direct: Option<DirectWriter>,
    /// The broker omits replies to publications on request.
    skips_replies: bool,
    /// The first bytes complete a command that the broker has in part.
    is_partial: bool,
}

impl Outbox {
    pub(super) fn new(kind: BrokerKind, node: NodeId, subjects: Subjects) -> Self {
        let state = OutboxState {
            bytes: Vec::new(),
            subject: String::new(),
            topic: String::new(),
            audience: Audience::Subscribers,
            batch: Vec::new(),
            number: 0,
            max_payload: usize::MAX,
            pings: VecDeque::new(),
            direct: None,
            skips_replies: false,
            is_partial: false,
        };
        Self {
            kind,
            node,
            subjects,
            is_open: AtomicBool::new(false),
            state: Mutex::new(state),
            waker: OnceLock::new(),
            is_woken: AtomicBool::new(false),
            counters: LinkCounters::default(),
        }
    }

    /// Sets the waker for the link's thread. The first call sets it.
    pub(super) fn set_waker(&self, waker: Waker) {
        let _ = self.waker.set(waker);
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Wakes the thread, unless it is awake.
    pub(super) fn wake(&self) {
        if !self.is_woken.swap(true, Ordering::AcqRel)
            && let Some(waker) = self.waker.get()
        {
            // Without a wakeup, the bytes leave with the next heartbeat.
            let _ = waker.wake();
        }
    }

    /// The thread is awake: from here on, it has to be woken again.
    pub(super) fn note_awake(&self) {
        self.is_woken.store(false, Ordering::Release);
    }

    /// Sets the socket on which publishers may write while nothing waits, and whether the broker omits replies to
    /// publications on request.
    pub(super) fn attach(&self, socket: Option<TcpStream>, skips_replies: bool) {
        let mut state = self.lock();
        state.direct = socket.map(DirectWriter::new);
        state.skips_replies = skips_replies;
    }

    /// Opens for publications after a login, with the broker's payload limit.
    pub(super) fn open(&self, max_payload: usize) {
        let mut state = self.lock();
        state.max_payload = max_payload;
        // A process that was restored from a snapshot of its machine must not repeat the numbers of its messages.
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        state.number = state.number.max(u64::try_from(time.as_micros()).unwrap_or(0));
        drop(state);
        self.is_open.store(true, Ordering::Release);
        self.counters.connects.fetch_add(1, Ordering::Relaxed);
    }

    /// Discards everything after the connection is lost.
    pub(super) fn close(&self) {
        self.is_open.store(false, Ordering::Release);
        let mut state = self.lock();
        state.bytes = Vec::new();
        state.batch.clear();
        state.pings.clear();
        state.direct = None;
        state.is_partial = false;
    }

    /// Moves the waiting bytes behind the link thread's output, unless the broker is slow: then they wait here, up to
    /// their limit, and the method returns `false`. `unwritten` is the number of output bytes that the thread has not
    /// written yet.
    pub(super) fn take(&self, out: &mut Vec<u8>, unwritten: usize) -> bool {
        self.note_awake();
        let mut state = self.lock();
        // The rest of a command cannot wait: no other bytes may come before it.
        if unwritten > TAKEN_MAX && !state.is_partial {
            return false;
        }
        state.end_batch(self.kind);
        if std::mem::take(&mut state.is_partial) {
            // The thread was idle when this command began, so the other commands are later.
            state.bytes.append(out);
        }
        if out.is_empty() {
            std::mem::swap(out, &mut state.bytes);
        } else {
            out.append(&mut state.bytes);
        }
        let is_idle = out.is_empty();
        if let Some(direct) = &mut state.direct {
            direct.note_link(is_idle);
        }
        true
    }

    /// Bytes that wait.
    pub(super) fn waiting(&self) -> usize {
        self.lock().bytes.len()
    }

    /// Why the connection cannot continue: the broker reads nothing.
    ///
    /// # Errors
    /// The reason.
    pub(super) fn check_waiting(&self) -> Result<(), String> {
        let waiting = self.waiting();
        if waiting > UNSENT_MAX {
            return Err(format!(
                "the broker does not read: {waiting} bytes wait for it (limit {UNSENT_MAX})"
            ));
        }
        Ok(())
    }

    /// Pings the broker.
    pub(super) fn ping(&self) {
        self.command(|kind, out| kind.ping(out), PingPurpose::Heartbeat);
    }

    /// Subscribes, and pings the broker for the result.
    pub(super) fn subscribe(&self, subject: &str, is_pattern: bool, id: u64) {
        let write = |kind: BrokerKind, out: &mut Vec<u8>| {
            kind.subscribe(out, subject, is_pattern, id);
            kind.ping_for(out, id);
        };
        self.command(write, PingPurpose::Subscription(id));
    }

    pub(super) fn unsubscribe(&self, subject: &str, is_pattern: bool, id: u64) {
        self.command(|kind, out| kind.unsubscribe(out, subject, is_pattern, id), None);
    }

    /// Takes the purposes of the pings up to the one that the broker has answered; `id` is the one that it repeats. The
    /// earlier ones were rejected.
    pub(super) fn take_pings(&self, id: Option<u64>) -> Vec<PingPurpose> {
        let mut state = self.lock();
        let purpose = id.map_or(PingPurpose::Heartbeat, PingPurpose::Subscription);
        let at = match self.kind {
            // It rejects no ping, and repeats no id.
            BrokerKind::Nats => 0,
            BrokerKind::Redis => match state.pings.iter().position(|known| *known == purpose) {
                Some(at) => at,
                None => return Vec::new(),
            },
        };
        let end = state.pings.len().min(at + 1);
        state.pings.drain(..end).collect()
    }

    pub(super) fn kind(&self) -> BrokerKind {
        self.kind
    }

    /// Returns the broker's maximum message size in bytes.
    pub(super) fn max_payload(&self) -> usize {
        self.lock().max_payload.saturating_sub(HEAD)
    }

    /// Returns the maximum members in one message.
    pub(super) fn members_max(&self) -> usize {
        members_per_message(self.max_payload())
    }

    /// Adds a publication. At most once: it is dropped, and counted, while the broker is unreachable.
    pub(super) fn push(&self, topic: &str, audience: Audience, publication: &EncodedPublication) {
        if !self.is_open() {
            self.counters.dropped_away.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut state = self.lock();
        let size = HEAD + 2 + topic.len() + publication.len();
        if size > state.max_payload {
            let limit = state.max_payload;
            drop(state);
            self.counters.dropped_large.fetch_add(1, Ordering::Relaxed);
            if let Some(omitted) = LARGE_LINES.permit(Instant::now()) {
                tracing::warn!(
                    topic,
                    size,
                    limit,
                    omitted,
                    "publication exceeds the largest message of the cluster's broker: other nodes do not receive it"
                );
            }
            return;
        }
        if state.bytes.len() + state.batch.len() + size > WAITING_MAX {
            drop(state);
            self.counters.dropped_full.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let is_first = state.bytes.is_empty() && state.batch.is_empty();
        let fits = state.batch.len() + size <= BATCH_MAX.min(state.max_payload);
        if state.batch.is_empty() || !fits || state.topic != topic || state.audience != audience {
            state.end_batch(self.kind);
            state.begin_batch(self.node, &self.subjects, topic, audience);
        }
        publication.write(&mut state.batch);
        let is_written = is_first && state.write_batch(self.kind);
        drop(state);
        self.counters.sent.fetch_add(1, Ordering::Relaxed);
        if !is_written {
            self.wake();
        }
    }

    /// Sends a message to a subject; nothing while the broker is unreachable, and no message that the broker would
    /// reject, since it would close the connection.
    pub(super) fn send(&self, subject: &str, kind: MessageKind, body: &[u8]) {
        if !self.is_open() {
            return;
        }
        let mut state = self.lock();
        let (size, limit) = (HEAD + body.len(), state.max_payload);
        if size > limit {
            drop(state);
            self.counters.dropped_large.fetch_add(1, Ordering::Relaxed);
            if let Some(omitted) = LARGE_LINES.permit(Instant::now()) {
                tracing::error!(
                    ?kind,
                    size,
                    limit,
                    omitted,
                    "message to other nodes exceeds the largest message of the cluster's broker (max_payload): it is not sent"
                );
            }
            return;
        }
        state.end_batch(self.kind);
        let mut message = Vec::with_capacity(size);
        state.head(self.node, kind).write(&mut message);
        message.extend_from_slice(body);
        self.kind.encode_publication(&mut state.bytes, subject, &message);
        drop(state);
        self.wake();
    }

    /// Adds a command, and its ping's purpose, if it has one.
    fn command(&self, write: impl FnOnce(BrokerKind, &mut Vec<u8>), ping: impl Into<Option<PingPurpose>>) {
        let mut state = self.lock();
        // Publications before the command stay before it.
        state.end_batch(self.kind);
        write(self.kind, &mut state.bytes);
        state.pings.extend(ping.into());
        if state.pings.len() > PINGS_MAX {
            state.pings.pop_front();
        }
        drop(state);
        self.wake();
    }

    fn lock(&self) -> MutexGuard<'_, OutboxState> {
        self.state.lock()
    }
}

impl OutboxState {
    fn head(&mut self, node: NodeId, kind: MessageKind) -> NodeMessageHead {
        self.number += 1;
        NodeMessageHead { kind, node, number: self.number }
    }

    fn begin_batch(&mut self, node: NodeId, subjects: &Subjects, topic: &str, audience: Audience) {
        if self.topic != topic || self.audience != audience {
            self.audience = audience;
            self.topic.clear();
            self.topic.push_str(topic);
            self.subject.clear();
            match audience {
                Audience::Subscribers => subjects.write_topic(&mut self.subject, topic),
                Audience::AllNodes => self.subject.push_str(&subjects.all()),
            }
        }
        let head = self.head(node, MessageKind::Publications);
        head.write(&mut self.batch);
        write_topic(&mut self.batch, topic);
    }

    /// Writes the batch, which nothing precedes, past the link's thread. Returns `false` if the thread has to write it
    /// or its rest.
    fn write_batch(&mut self, kind: BrokerKind) -> bool {
        if !self.direct.as_mut().is_some_and(|direct| direct.is_free(Instant::now())) {
            return false;
        }
        self.end_batch(kind);
        let Some(direct) = &mut self.direct else { return false };
        match direct.write(&self.bytes) {
            DirectWrite::Complete => self.bytes.clear(),
            DirectWrite::Partial(written) => {
                self.bytes.drain(..written);
                self.is_partial = written > 0;
            }
            DirectWrite::Failed => self.direct = None,
        }
        self.bytes.is_empty()
    }

    fn end_batch(&mut self, kind: BrokerKind) {
        if !self.batch.is_empty() {
            if self.skips_replies {
                kind.skip_reply(&mut self.bytes);
            }
            kind.encode_publication(&mut self.bytes, &self.subject, &self.batch);
            self.batch.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;
    use crate::cluster::message::{EXCLUDED, PUBLICATION_HEAD, read_publications};
    use crate::model::connection_id::ConnectionId;
    use crate::wire::ContentKind;

    fn outbox() -> Outbox {
        let node = NodeId { id: 1, start: 1 };
        Outbox::new(BrokerKind::Nats, node, Subjects::new(BrokerKind::Nats, "p"))
    }

    fn taken(outbox: &Outbox) -> Vec<u8> {
        let mut out = Vec::new();
        outbox.take(&mut out, 0);
        out
    }

    #[test]
    fn consecutive_publications_to_a_topic_are_one_message() {
        let outbox = outbox();
        outbox.push("a", Audience::Subscribers, &EncodedPublication::plain(ContentKind::Text, b"away", None));
        assert!(taken(&outbox).is_empty());
        outbox.open(1 << 20);
        for (topic, payload) in [("a", "1"), ("a", "2"), ("b", "3"), ("a", "4")] {
            outbox.push(
                topic,
                Audience::Subscribers,
                &EncodedPublication::plain(ContentKind::Text, payload.as_bytes(), None),
            );
        }
        let bytes = taken(&outbox);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let subjects: Vec<&str> =
            text.split("PUB ").skip(1).filter_map(|part| part.split(' ').next()).collect();
        assert_eq!(subjects, ["p.t.a", "p.t.b", "p.t.a"]);
        let start = text.find("\r\n").unwrap() + 2;
        let message = &bytes[start..start + HEAD + 3 + 2 * (PUBLICATION_HEAD + 1)];
        let (head, body) = NodeMessageHead::read(message).unwrap();
        let (topic, publications) = read_publications(body).unwrap();
        assert_eq!((topic, publications.len()), ("a", 2));
        assert!(head.number > 1 << 50, "it increases from one process to the next");
        assert!(taken(&outbox).is_empty());
        assert_eq!(outbox.counters.sent.load(Ordering::Relaxed), 4);
        assert_eq!(outbox.counters.dropped_away.load(Ordering::Relaxed), 1);
    }

    /// Returns the lengths of the messages that wait.
    fn message_lengths(outbox: &Outbox) -> Vec<usize> {
        let bytes = taken(outbox);
        let (mut rest, mut lengths) = (&bytes[..], Vec::new());
        while let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") {
            let command = std::str::from_utf8(&rest[..end]).unwrap();
            let length = command.strip_prefix("PUB p.t.a ").unwrap().parse().unwrap();
            lengths.push(length);
            rest = &rest[end + 2 + length + 2..];
        }
        lengths
    }

    #[test]
    fn publications_join_a_message_up_to_its_limit() {
        let exclude = Some(ConnectionId { process: 1, number: 1 });
        for (max_payload, limit) in [(1 << 20, BATCH_MAX), (10_000, 10_000)] {
            let outbox = outbox();
            outbox.open(max_payload);
            for _ in 0..100 {
                outbox.push(
                    "a",
                    Audience::Subscribers,
                    &EncodedPublication::plain(ContentKind::Binary, &[0; 1000], exclude),
                );
            }
            let lengths = message_lengths(&outbox);
            let (last, full) = lengths.split_last().unwrap();
            let next = HEAD + 3 + PUBLICATION_HEAD + EXCLUDED + 1000;
            assert!(full.iter().all(|length| (limit - next + 1..=limit).contains(length)), "{lengths:?}");
            assert!(*last <= limit, "{lengths:?}");
        }
    }

    #[test]
    fn largest_publication_fills_a_message_of_the_broker() {
        for exclude in [None, Some(ConnectionId { process: 1, number: 1 })] {
            let outbox = outbox();
            outbox.open(10_000);
            let largest = 10_000 - HEAD - 3 - PUBLICATION_HEAD - exclude.map_or(0, |_| EXCLUDED);
            for length in [largest, largest + 1] {
                outbox.push(
                    "a",
                    Audience::Subscribers,
                    &EncodedPublication::plain(ContentKind::Binary, &vec![0; length], exclude),
                );
            }
            assert_eq!(message_lengths(&outbox), [10_000]);
            assert_eq!(outbox.counters.dropped_large.load(Ordering::Relaxed), 1);
        }
    }

    /// An outbox that may write directly, and the broker's end of the connection.
    fn attached(skips_replies: bool) -> (Outbox, TcpStream) {
        let outbox =
            Outbox { kind: if skips_replies { BrokerKind::Redis } else { BrokerKind::Nats }, ..outbox() };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (broker, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        outbox.attach(Some(socket), skips_replies);
        outbox.open(1 << 20);
        (outbox, broker)
    }

    /// Publishes and returns whether the publication was written past the link's thread.
    fn is_written(outbox: &Outbox, payload: &[u8]) -> bool {
        outbox.is_woken.store(false, Ordering::SeqCst);
        outbox.push("a", Audience::Subscribers, &EncodedPublication::plain(ContentKind::Text, payload, None));
        !outbox.is_woken.load(Ordering::SeqCst)
    }

    /// Lets the time pass in which publications are collected.
    fn pass_interval(outbox: &Outbox) {
        if let Some(direct) = &mut outbox.lock().direct {
            direct.forget_last();
        }
    }

    #[test]
    fn publication_is_written_at_once_while_nothing_waits() {
        let (outbox, mut broker) = attached(false);
        assert!(!is_written(&outbox, b"1"), "the thread has something to write");
        let mut link = Vec::new();
        outbox.take(&mut link, 0);
        pass_interval(&outbox);
        assert!(!is_written(&outbox, b"2"), "the thread has not written what it took");
        outbox.take(&mut link, 0);
        link.clear();
        outbox.take(&mut link, 0);
        pass_interval(&outbox);
        assert!(is_written(&outbox, b"3"));
        assert!(!is_written(&outbox, b"4"), "too soon: collected");
        pass_interval(&outbox);
        assert!(!is_written(&outbox, b"5"), "behind a publication that waits");
        let mut direct = [0; 256];
        let length = broker.read(&mut direct).unwrap();
        assert!(direct[..length].starts_with(b"PUB p.t.a ") && direct[..length].ends_with(b"3\r\n"));
        outbox.take(&mut link, 0);
        assert!(link.starts_with(b"PUB p.t.a ") && link.ends_with(b"5\r\n"));
        outbox.close();
        outbox.open(1 << 20);
        assert!(!is_written(&outbox, b"6"), "the socket of the earlier connection");
    }

    #[test]
    fn rest_of_a_publication_that_the_socket_accepts_in_part_is_next() {
        let (outbox, mut broker) = attached(false);
        let mut link = Vec::new();
        outbox.take(&mut link, 0);
        let payload = vec![b'x'; 1_000_000];
        let mut count = 0;
        loop {
            pass_interval(&outbox);
            count += 1;
            if !is_written(&outbox, &payload) {
                break;
            }
        }
        assert!(outbox.lock().is_partial);
        // The thread has an answer to a ping meanwhile, and later publications follow.
        link.extend_from_slice(b"PONG\r\n");
        outbox.push("a", Audience::Subscribers, &EncodedPublication::plain(ContentKind::Text, b"last", None));
        assert!(outbox.take(&mut link, TAKEN_MAX + 1), "the rest of a command cannot wait");
        let reader = std::thread::spawn(move || {
            let mut received = Vec::new();
            broker.read_to_end(&mut received).unwrap();
            received
        });
        let socket = outbox.lock().direct.take().unwrap().into_socket();
        socket.set_nonblocking(false).unwrap();
        (&socket).write_all(&link).unwrap();
        drop(socket);
        let received = reader.join().unwrap();
        let mut commands = &received[..];
        for payload in std::iter::repeat_n(&payload[..], count).chain([&b"last"[..]]) {
            let size = HEAD + 3 + PUBLICATION_HEAD + payload.len();
            let head = format!("PUB p.t.a {size}\r\n");
            let (command, rest) = commands.split_at(head.len() + size + 2);
            assert!(command.starts_with(head.as_bytes()) && command.ends_with(b"\r\n"));
            assert!(command.get(..command.len() - 2).unwrap().ends_with(payload));
            commands = rest;
        }
        assert_eq!(commands, b"PONG\r\n");
    }

    #[test]
    fn pings_without_answers_are_bounded() {
        let (outbox, _broker) = attached(true);
        for _ in 0..PINGS_MAX + 2 {
            outbox.ping();
            outbox.lock().bytes.clear();
        }
        assert_eq!(outbox.lock().pings.len(), PINGS_MAX);
    }

    #[test]
    fn replies_to_publications_are_skipped_if_the_broker_can() {
        for skips_replies in [true, false] {
            let (outbox, _broker) = attached(true);
            outbox.attach(None, skips_replies);
            outbox.push(
                "a",
                Audience::Subscribers,
                &EncodedPublication::plain(ContentKind::Text, b"1", None),
            );
            outbox.send("p.all", MessageKind::Heartbeat, b"{}");
            let text = String::from_utf8_lossy(&taken(&outbox)).into_owned();
            let commands: Vec<&str> =
                text.split("\r\n*").filter_map(|one| one.split("\r\n").nth(2)).collect();
            let expected: &[_] =
                if skips_replies { &["CLIENT", "PUBLISH", "PUBLISH"] } else { &["PUBLISH", "PUBLISH"] };
            assert_eq!(commands, expected, "{text}");
        }
    }

    #[test]
    fn bytes_wait_up_to_their_limit_while_the_broker_is_slow() {
        let outbox = outbox();
        outbox.open(1 << 20);
        let payload = vec![0; 1 << 19];
        for _ in 0..100 {
            outbox.push(
                "a",
                Audience::Subscribers,
                &EncodedPublication::plain(ContentKind::Binary, &payload, None),
            );
            let mut output = vec![0; TAKEN_MAX + 1];
            assert!(!outbox.take(&mut output, TAKEN_MAX + 1) && output.len() == TAKEN_MAX + 1);
        }
        assert_eq!(outbox.counters.dropped_full.load(Ordering::Relaxed), 69);
        let mut output = vec![0; TAKEN_MAX];
        assert!(outbox.take(&mut output, TAKEN_MAX) && output.len() > 15 << 20);
    }

    #[test]
    fn publications_to_all_nodes_have_their_subject() {
        let outbox = outbox();
        outbox.open(1 << 20);
        for audience in [Audience::Subscribers, Audience::AllNodes, Audience::AllNodes, Audience::Subscribers]
        {
            outbox.push("a", audience, &EncodedPublication::plain(ContentKind::Text, b"1", None));
        }
        let text = String::from_utf8_lossy(&taken(&outbox)).into_owned();
        let subjects: Vec<&str> =
            text.split("PUB ").skip(1).filter_map(|part| part.split(' ').next()).collect();
        assert_eq!(subjects, ["p.t.a", "p.all", "p.t.a"]);
    }

    #[test]
    fn message_that_the_broker_would_reject_is_not_sent() {
        let outbox = outbox();
        outbox.open(10_000);
        outbox.send("p.all", MessageKind::PresenceChanges, &vec![0; outbox.max_payload()]);
        assert!(taken(&outbox).starts_with(b"PUB p.all 10000\r\n"));
        outbox.send("p.all", MessageKind::PresenceChanges, &vec![0; outbox.max_payload() + 1]);
        assert!(taken(&outbox).is_empty());
        assert_eq!(outbox.counters.dropped_large.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn waiting_publications_are_bounded() {
        let outbox = outbox();
        outbox.open(1 << 20);
        let payload = vec![0; 1 << 19];
        for _ in 0..40 {
            outbox.push(
                "a",
                Audience::Subscribers,
                &EncodedPublication::plain(ContentKind::Binary, &payload, None),
            );
        }
        outbox.push(
            "a",
            Audience::Subscribers,
            &EncodedPublication::plain(ContentKind::Binary, &vec![0; 1 << 20], None),
        );
        assert!(taken(&outbox).len() <= WAITING_MAX + 1024);
        assert_eq!(outbox.counters.sent.load(Ordering::Relaxed), 31);
        assert_eq!(outbox.counters.dropped_full.load(Ordering::Relaxed), 9);
        assert_eq!(outbox.counters.dropped_large.load(Ordering::Relaxed), 1);
        for topic in ["a", "b"] {
            outbox.push(
                topic,
                Audience::Subscribers,
                &EncodedPublication::plain(ContentKind::Binary, &payload, None),
            );
        }
        outbox.close();
        assert!(taken(&outbox).is_empty());
    }
}
