//! A broker in this process: the parts of NATS and Redis that a cluster uses.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

use sinews_testkit::TIMEOUT;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WireProtocol {
    Nats,
    Redis,
    /// Redis without `CLIENT REPLY`.
    RedisWithReplies,
}

/// Accepts nodes until it is dropped.
pub(crate) struct FakeBroker {
    kind: WireProtocol,
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Largest payload in bytes; only NATS has a limit.
    max_payload: usize,
}

#[derive(Default)]
struct State {
    is_down: bool,
    /// The next connection is accepted nevertheless.
    accepts_one: bool,
    is_over: bool,
    last: u64,
    /// Replies to publications of topics.
    replies: usize,
    /// Pings, which each node sends with its heartbeats.
    pings: usize,
    clients: BTreeMap<u64, Client>,
    /// Messages with this text are lost.
    lost: Option<&'static str>,
    lost_count: usize,
    /// The command that is rejected, and the beginning of the subjects for which it is.
    rejected: Option<(&'static str, &'static str)>,
    /// The address that it names as a sentinel of the service `main`; its own without one.
    primary: Option<SocketAddr>,
    /// It says that it is a replica.
    is_replica: bool,
    /// Connections whose logins wait, if they do.
    waiting_logins: Option<usize>,
}

struct Client {
    stream: TcpStream,
    /// Subject, whether it is a pattern, and the id.
    subscriptions: Vec<(String, bool, String)>,
}

impl FakeBroker {
    pub(crate) fn start(kind: WireProtocol) -> Self {
        Self::with_max_payload(kind, 1 << 20)
    }

    pub(crate) fn with_max_payload(kind: WireProtocol, max_payload: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared { max_payload, ..Shared::default() });
        let accepting = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, shared) = (stream.unwrap(), Arc::clone(&accepting));
                stream.set_nodelay(true).unwrap();
                let mut state = shared.lock();
                if state.is_over {
                    return;
                }
                if state.is_down && !std::mem::take(&mut state.accepts_one) {
                    continue;
                }
                state.last += 1;
                let id = state.last;
                let client = Client { stream: stream.try_clone().unwrap(), subscriptions: Vec::new() };
                state.clients.insert(id, client);
                drop(state);
                thread::spawn(move || {
                    // The node has closed the connection.
                    let _ = shared.serve(kind, id, stream);
                    shared.lock().clients.remove(&id);
                    shared.changed.notify_all();
                });
            }
        });
        Self { kind, address, shared, thread: Some(thread) }
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.kind == WireProtocol::Nats { "nats" } else { "redis" };
        format!("{scheme}://{}", self.address)
    }

    /// Its URL as a sentinel, and at first also as the primary of its service.
    pub(crate) fn sentinel_url(&self) -> String {
        format!("redis+sentinel://{}/main", self.address)
    }

    /// Names another primary as a sentinel.
    pub(crate) fn promote(&self, primary: &Self) {
        self.shared.lock().primary = Some(primary.address);
    }

    /// Becomes a replica, and keeps its connections.
    pub(crate) fn demote(&self) {
        self.shared.lock().is_replica = true;
    }

    /// Waits until this many nodes are subscribed to a subject.
    pub(crate) fn wait_for(&self, subject: &str, nodes: usize) {
        let is_subscribed = |client: &Client| client.subscriptions.iter().any(|(known, ..)| known == subject);
        self.wait(|state| state.clients.values().filter(|client| is_subscribed(client)).count() == nodes);
    }

    fn wait(&self, condition: impl Fn(&State) -> bool) {
        let state = self.shared.lock();
        let waited =
            self.shared.changed.wait_timeout_while(state, TIMEOUT, |state| !condition(state)).unwrap();
        assert!(!waited.1.timed_out(), "not within {TIMEOUT:?}");
    }

    /// Rejects a command for subjects with this beginning.
    pub(crate) fn reject(&self, rejected: Option<(&'static str, &'static str)>) {
        self.shared.lock().rejected = rejected;
    }

    /// Replies to publications of topics, which a node may decline.
    pub(crate) fn replies(&self) -> usize {
        self.shared.lock().replies
    }

    /// Pings, which each node sends with its heartbeats.
    pub(crate) fn pings(&self) -> usize {
        self.shared.lock().pings
    }

    /// Cuts all connections, and accepts none until it returns.
    pub(crate) fn go_down(&self) {
        let mut state = self.shared.lock();
        state.is_down = true;
        for client in state.clients.values() {
            let _ = client.stream.shutdown(Shutdown::Both);
        }
    }

    /// Cuts the oldest connection.
    pub(crate) fn cut_oldest(&self) {
        let state = self.shared.lock();
        let (_, oldest) = state.clients.first_key_value().expect("a node is connected");
        let _ = oldest.stream.shutdown(Shutdown::Both);
    }

    /// Loses the messages with a text from now on; `None` ends it.
    pub(crate) fn lose(&self, text: Option<&'static str>) {
        self.shared.lock().lost = text;
    }

    /// Waits until this many messages are lost.
    pub(crate) fn wait_for_losses(&self, count: usize) {
        self.wait(|state| state.lost_count >= count);
    }

    /// Answers no further login.
    pub(crate) fn hold_logins(&self) {
        self.shared.lock().waiting_logins = Some(0);
    }

    /// Waits until this many connections wait for their logins.
    pub(crate) fn wait_for_logins(&self, count: usize) {
        self.wait(|state| state.waiting_logins == Some(count));
    }

    /// Answers all logins again.
    pub(crate) fn release_logins(&self) {
        self.shared.lock().waiting_logins = None;
        self.shared.changed.notify_all();
    }

    /// Accepts one connection while it is down.
    pub(crate) fn accept_one(&self) {
        self.shared.lock().accepts_one = true;
    }

    pub(crate) fn come_up(&self) {
        self.shared.lock().is_down = false;
    }
}

impl Drop for FakeBroker {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn serve(&self, kind: WireProtocol, id: u64, stream: TcpStream) -> io::Result<()> {
        match kind {
            WireProtocol::Nats => self.serve_nats(id, stream),
            WireProtocol::Redis => self.serve_redis(id, stream, true),
            WireProtocol::RedisWithReplies => self.serve_redis(id, stream, false),
        }
    }

    /// Waits while logins are held.
    fn wait_for_login(&self) {
        let mut state = self.lock();
        if let Some(count) = &mut state.waiting_logins {
            *count += 1;
            self.changed.notify_all();
        }
        let is_held = |state: &mut State| state.waiting_logins.is_some();
        drop(self.changed.wait_timeout_while(state, TIMEOUT, is_held).unwrap());
    }

    fn answer(&self, id: u64, answer: &[u8]) -> io::Result<()> {
        (&self.lock().clients[&id].stream).write_all(answer)
    }

    fn answer_ping(&self, id: u64, answer: &[u8]) -> io::Result<()> {
        self.lock().pings += 1;
        self.answer(id, answer)
    }

    fn serve_nats(&self, id: u64, stream: TcpStream) -> io::Result<()> {
        self.wait_for_login();
        self.answer(id, format!("INFO {{\"max_payload\":{}}}\r\n", self.max_payload).as_bytes())?;
        let mut reader = BufReader::new(stream);
        loop {
            let line = line(&mut reader)?;
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                [command @ ("CONNECT" | "PING" | "UNSUB"), ..] if self.rejects(command, "") => {
                    self.answer(id, format!("-ERR '{command} is rejected here'\r\n").as_bytes())?;
                }
                ["CONNECT", ..] => assert!(line.contains("\"echo\":false"), "{line}"),
                ["PING"] => self.answer_ping(id, b"PONG\r\n")?,
                ["SUB", subject, _] if self.rejects("SUBSCRIBE", subject) => {
                    let text = format!("-ERR 'Permissions Violation for Subscription to \"{subject}\"'\r\n");
                    self.answer(id, text.as_bytes())?;
                }
                ["SUB", subject, sid] => self.subscribe(id, subject, subject.contains(['*', '>']), sid),
                ["UNSUB", sid] => self.unsubscribe(id, |(_, _, known)| known == sid),
                ["PUB", subject, length] => {
                    let length: usize = length.parse().unwrap();
                    if length > self.max_payload {
                        self.answer(id, b"-ERR 'Maximum Payload Violation'\r\n")?;
                        return self.lock().clients[&id].stream.shutdown(Shutdown::Both);
                    }
                    let mut payload = vec![0; length + 2];
                    reader.read_exact(&mut payload)?;
                    payload.truncate(payload.len() - 2);
                    if self.rejects("PUBLISH", subject) {
                        let text = format!("-ERR 'Permissions Violation for Publish to \"{subject}\"'\r\n");
                        self.answer(id, text.as_bytes())?;
                        continue;
                    }
                    self.publish(WireProtocol::Nats, id, subject, &payload)?;
                }
                _ => panic!("{line}"),
            }
        }
    }

    fn serve_redis(&self, id: u64, stream: TcpStream, can_skip: bool) -> io::Result<()> {
        let mut reader = BufReader::new(stream);
        let mut skips_reply = false;
        loop {
            let count = line(&mut reader)?.trim_start_matches('*').parse().unwrap();
            let mut words = Vec::new();
            for _ in 0..count {
                let length: usize = line(&mut reader)?.trim_start_matches('$').parse().unwrap();
                let mut word = vec![0; length + 2];
                reader.read_exact(&mut word)?;
                word.truncate(length);
                words.push(word);
            }
            let text = |at: usize| String::from_utf8_lossy(&words[at]).into_owned();
            let subject = if words.len() > 1 { text(1) } else { String::new() };
            if self.rejects(&text(0), &subject) {
                if !std::mem::take(&mut skips_reply) {
                    let name = text(0).to_lowercase();
                    let text = format!("-NOPERM User app has no permissions to run the '{name}' command\r\n");
                    self.answer(id, text.as_bytes())?;
                }
                continue;
            }
            match &*text(0) {
                "HELLO" => self.answer(id, b"%1\r\n$5\r\nproto\r\n:3\r\n")?,
                "SENTINEL" => self.answer(id, self.sentinel_answer(id, &text(2)).as_bytes())?,
                "ROLE" if self.lock().is_replica => self.answer(id, b"*1\r\n$5\r\nslave\r\n")?,
                "ROLE" => self.answer(id, b"*3\r\n$6\r\nmaster\r\n:1\r\n*0\r\n")?,
                "PING" if words.len() > 1 => {
                    self.answer(id, format!("${}\r\n{}\r\n", words[1].len(), text(1)).as_bytes())?;
                }
                "PING" => self.answer_ping(id, b"+PONG\r\n")?,
                command @ ("SUBSCRIBE" | "PSUBSCRIBE") => {
                    self.subscribe(id, &text(1), command == "PSUBSCRIBE", "");
                    self.answer(id, b">3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n")?;
                }
                "UNSUBSCRIBE" | "PUNSUBSCRIBE" => {
                    let subject = text(1);
                    self.unsubscribe(id, |(known, ..)| *known == subject);
                    self.answer(id, b">3\r\n$11\r\nunsubscribe\r\n$1\r\nx\r\n:1\r\n")?;
                }
                "CLIENT" if !can_skip => self.answer(id, b"-ERR unknown command 'CLIENT'\r\n")?,
                "CLIENT" => {
                    assert_eq!([text(1), text(2)], ["REPLY", "SKIP"]);
                    skips_reply = true;
                    continue;
                }
                "PUBLISH" => {
                    self.publish(WireProtocol::Redis, id, &text(1), &words[2])?;
                    if !skips_reply {
                        self.lock().replies += usize::from(text(1).starts_with("sinews.t."));
                        self.answer(id, b":1\r\n")?;
                    }
                }
                command => panic!("{command}"),
            }
            skips_reply = false;
        }
    }

    /// The address of the primary of a service.
    fn sentinel_answer(&self, id: u64, service: &str) -> String {
        if service != "main" {
            return "*-1\r\n".to_owned();
        }
        let state = self.lock();
        let own = || state.clients[&id].stream.local_addr().unwrap();
        let (host, port) = {
            let primary = state.primary.unwrap_or_else(own);
            (primary.ip().to_string(), primary.port().to_string())
        };
        format!("*2\r\n${}\r\n{host}\r\n${}\r\n{port}\r\n", host.len(), port.len())
    }

    /// Whether a command for a subject is rejected.
    fn rejects(&self, command: &str, subject: &str) -> bool {
        let rejected = self.lock().rejected;
        // Redis has commands of their own for patterns.
        rejected.is_some_and(|(known, begin)| {
            let is_command = command == known || command.strip_prefix('P') == Some(known);
            is_command && subject.starts_with(begin)
        })
    }

    fn subscribe(&self, id: u64, subject: &str, is_pattern: bool, sid: &str) {
        let subscription = (subject.to_owned(), is_pattern, sid.to_owned());
        self.lock().clients.get_mut(&id).unwrap().subscriptions.push(subscription);
        self.changed.notify_all();
    }

    fn unsubscribe(&self, id: u64, is_removed: impl Fn(&(String, bool, String)) -> bool) {
        self.lock().clients.get_mut(&id).unwrap().subscriptions.retain(|known| !is_removed(known));
        self.changed.notify_all();
    }

    /// Sends a message to each matching subscription, as real brokers do.
    fn publish(&self, kind: WireProtocol, from: u64, subject: &str, payload: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        if state.lost.is_some_and(|text| payload.windows(text.len()).any(|part| part == text.as_bytes())) {
            state.lost_count += 1;
            self.changed.notify_all();
            return Ok(());
        }
        for (id, client) in &mut state.clients {
            if kind == WireProtocol::Nats && *id == from {
                continue;
            }
            for (known, is_pattern, sid) in &client.subscriptions {
                let head = match kind {
                    WireProtocol::Nats if nats_matches(known, subject) => {
                        format!("MSG {subject} {sid} {}\r\n", payload.len())
                    }
                    WireProtocol::Redis if *is_pattern && glob_matches(known, subject) => format!(
                        ">4\r\n$8\r\npmessage\r\n${}\r\n{known}\r\n${}\r\n{subject}\r\n${}\r\n",
                        known.len(),
                        subject.len(),
                        payload.len()
                    ),
                    WireProtocol::Redis if known == subject => {
                        let (subject_length, length) = (subject.len(), payload.len());
                        format!(">3\r\n$7\r\nmessage\r\n${subject_length}\r\n{subject}\r\n${length}\r\n")
                    }
                    WireProtocol::Nats | WireProtocol::Redis | WireProtocol::RedisWithReplies => continue,
                };
                // A node that has gone is removed by its own thread.
                let _ = client.stream.write_all(&[head.as_bytes(), payload, b"\r\n"].concat());
            }
        }
        Ok(())
    }
}

fn line(reader: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end_matches("\r\n").to_owned())
}

fn nats_matches(pattern: &str, subject: &str) -> bool {
    let mut tokens = subject.split('.');
    for token in pattern.split('.') {
        match (token, tokens.next()) {
            (">", Some(_)) => return true,
            ("*", Some(_)) => {}
            (token, found) if Some(token) == found => {}
            _ => return false,
        }
    }
    tokens.next().is_none()
}

/// `*` is the only wildcard that a node uses.
fn glob_matches(pattern: &str, subject: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == subject,
        Some((head, rest)) => subject.strip_prefix(head).is_some_and(|tail| {
            tail.char_indices().any(|(at, _)| glob_matches(rest, &tail[at..])) || rest.is_empty()
        }),
    }
}
