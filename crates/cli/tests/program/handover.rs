//! A successor process takes over from a serving process without rejected connections and lost messages.

mod cluster;
mod event_stream;
mod http2;
mod http3;
mod keys;
mod many_streams;
mod pusher;
mod revocations;
#[cfg(any(feature = "nats", feature = "redis"))]
mod stored;
mod webhooks;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sinews_proto::Role;
use sinews_testkit::{Frame, Reply, assert_fields, exchange, process, read_head};
use tempfile::TempDir;

#[cfg(feature = "kafka")]
use crate::streams::store::kafka::Cluster;
use crate::support::{self, PROGRAM, TIMEOUT, program, program_at, until, unused_address};

/// Time in which a keep-alive connection may send one more request.
const DRAIN_WINDOW: Duration = Duration::from_secs(1);

/// A temporary directory, removed after the test.
struct Directory(TempDir);

impl Directory {
    fn new(name: &str) -> Self {
        Self(tempfile::Builder::new().prefix(&format!("sinews-handover-{name}-")).tempdir().unwrap())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// The program and its successors; the test kills them at its end.
struct Service {
    child: Child,
    directory: Directory,
    address: SocketAddr,
    /// The log of all processes.
    log: Receiver<String>,
    processes: Vec<u32>,
    /// Since the last restart: the successor has all, and the predecessor has stopped.
    handed_over: Cell<bool>,
    stopped: Cell<bool>,
}

impl Service {
    fn config(directory: &Directory, address: SocketAddr, more: &str) {
        let stop = format!("[stop]\ndrain_window = \"{DRAIN_WINDOW:?}\"\ngrace = \"30s\"\n");
        let lines = format!("listen = \"{address}\"\nhistory = \"kept.>=100000\"\n{more}\n{stop}");
        fs::write(directory.file("sinews.toml"), lines).unwrap();
    }

    fn start(name: &str, more: &str) -> Self {
        Self::start_with(name, more, |_, _| {})
    }

    fn start_with(name: &str, more: &str, change: impl FnOnce(&mut Command, &Directory)) -> Self {
        let directory = Directory::new(name);
        // The successor has to bind the same port.
        let address = unused_address();
        Self::config(&directory, address, more);
        let mut command = program();
        command.args(["serve", "--config"]).arg(directory.file("sinews.toml"));
        change(&mut command, &directory);
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (sender, log) = channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let processes = vec![child.id()];
        let (handed_over, stopped) = Default::default();
        let service = Self { child, directory, address, log, processes, handed_over, stopped };
        until("the service listens", || TcpStream::connect(address).is_ok());
        // An answer implies that the signal handlers are installed, too. A test with TLS awaits one itself.
        if more.contains("[tls]") {
            return service;
        }
        assert!(is_healthy(address));
        service
    }

    fn configure(&self, more: &str) {
        Self::config(&self.directory, self.address, more);
    }

    fn signal(&self, id: u32, name: &str) {
        assert!(process::signal(id, name));
    }

    fn current(&self) -> u32 {
        *self.processes.last().unwrap()
    }

    /// The next line of the log that contains the text.
    fn logged(&self, request_text: &str) -> String {
        loop {
            let line =
                self.log.recv_timeout(TIMEOUT).unwrap_or_else(|_| panic!("not logged: {request_text:?}"));
            // Shown if the test fails.
            println!("{line}");
            self.note_end(&line);
            if line.contains(request_text) {
                return line;
            }
        }
    }

    /// Notes what [`old_one_ends`](Self::old_one_ends) waits for. Lines of two processes come in any order.
    fn note_end(&self, line: &str) {
        self.handed_over.set(self.handed_over.get() || line.contains("handover completed"));
        self.stopped.set(self.stopped.get() || line.contains("stopped"));
    }

    /// Starts a successor and waits until it serves.
    fn restart(&mut self) {
        self.handed_over.set(false);
        self.stopped.set(false);
        self.signal(self.current(), "USR2");
        self.successor_serves();
    }

    /// Waits until the successor serves.
    fn successor_serves(&mut self) {
        let line = self.logged("the successor process serves");
        self.note_successor(&line);
    }

    /// Whether the successor has logged that it serves.
    fn has_successor(&mut self) -> bool {
        let mut lines = self.log.try_iter().inspect(|line| self.note_end(line));
        let line = lines.find(|line| line.contains("the successor process serves"));
        line.is_some_and(|line| {
            self.note_successor(&line);
            true
        })
    }

    fn note_successor(&mut self, line: &str) {
        let process = line.split("process=").nth(1).unwrap().trim().parse().unwrap();
        self.processes.push(process);
    }

    /// Waits until the predecessor of the current process has exited.
    fn old_one_ends(&self) {
        while !(self.handed_over.get() && self.stopped.get()) {
            self.logged("");
        }
        self.handed_over.set(false);
        self.stopped.set(false);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for id in &self.processes[1..] {
            process::signal(*id, "KILL");
        }
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the connection is accepted");
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Reads an answer with its body on a connection that stays open. `None` if the connection ends instead.
///
/// # Errors
/// The connection is reset.
fn answer(stream: &mut impl Read) -> std::io::Result<Option<String>> {
    let mut text = read_head(stream)?;
    if text.is_empty() {
        return Ok(None);
    }
    assert!(text.ends_with("\r\n\r\n"), "incomplete answer");
    let len = text.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let mut body = vec![0; len.map_or(0, |len| len.parse().unwrap())];
    stream.read_exact(&mut body).unwrap();
    text.push_str(&String::from_utf8(body).unwrap());
    Ok(Some(text))
}

/// Sends a request on a connection of its own. Returns the answer; it is empty if the connection ends instead.
fn request(address: SocketAddr, head: &str, body: &str) -> String {
    request_on(connect(address), head, body)
}

fn request_on(stream: impl Read + Write, head: &str, body: &str) -> String {
    let lines = format!("Host: localhost\r\nConnection: close\r\nContent-Length: {}", body.len());
    exchange(stream, &format!("{head}\r\n{lines}\r\n\r\n{body}")).expect("the connection is not reset")
}

fn is_healthy(address: SocketAddr) -> bool {
    request(address, "GET /healthz HTTP/1.1", "").starts_with("HTTP/1.1 200 ")
}

/// Publishes; retries until the topic's store is ready.
fn post(address: SocketAddr, topic: &str, body: &str) {
    until("the topic's store is ready", || {
        let answer = request(address, &format!("POST /topics/{topic} HTTP/1.1"), body);
        let is_done = answer.starts_with("HTTP/1.1 200 ");
        let retries = answer.starts_with("HTTP/1.1 503 ") && answer.contains("Retry-After: 1");
        assert!(is_done || retries, "{answer}");
        is_done
    });
}

/// A WebSocket that the server may close with 1001.
struct Socket(support::Socket);

impl Socket {
    fn open(address: SocketAddr, path: &str) -> Self {
        let upgraded = support::Socket::upgrade(connect(address), path, "localhost", "");
        Self(upgraded.unwrap_or_else(|head| panic!("{head}")))
    }

    /// A closed socket may not deliver the frame any more.
    fn send(&mut self, frame: &Frame) {
        let _ = self.0.stream.write_all(&frame.encode(Role::Client));
    }

    /// The next reply; `None` when the server closes with 1001, or has closed.
    fn next(&mut self) -> Option<Reply> {
        let next = self.0.receive().expect("the connection is not reset");
        let reply = next.expect("connection ended without a Close");
        match reply.close_code() {
            Some(code) => {
                assert_eq!(code, 1001, "the server closes with 1001");
                self.send(&Frame::close(1001, ""));
                None
            }
            None => Some(reply),
        }
    }

    fn send_message(&mut self, request_text: &Value) {
        self.send(&Frame::text(request_text.to_string()));
    }

    fn receive_message(&mut self) -> Option<Value> {
        match self.next()? {
            Reply::Message(_, text) => Some(serde_json::from_slice(&text).unwrap()),
            other => panic!("{other:?}"),
        }
    }

    /// The answer to a request; other messages before it are skipped.
    fn request(&mut self, request_text: &Value) -> Option<Value> {
        self.send_message(request_text);
        loop {
            let received = self.receive_message()?;
            if received["id"] == request_text["id"] {
                return Some(received);
            }
        }
    }
}

/// Threads that send requests until they are stopped, and the number of completed requests.
fn load(address: SocketAddr, end: &AtomicBool, done: &AtomicUsize) {
    let again = || {
        done.fetch_add(1, Ordering::Relaxed);
        !end.load(Ordering::Relaxed)
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(move || {
                loop {
                    assert!(is_healthy(address));
                    if !again() {
                        return;
                    }
                }
            });
            scope.spawn(move || {
                let (mut stream, mut idle_since) = (connect(address), Instant::now());
                loop {
                    let sent = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
                    let idle = idle_since.elapsed();
                    let answer = match sent.and_then(|()| answer(&mut stream)) {
                        Ok(Some(answer)) => answer,
                        // The server closes idle connections: this thread did not run for that time.
                        _ if idle >= DRAIN_WINDOW => {
                            (stream, idle_since) = (connect(address), Instant::now());
                            continue;
                        }
                        end => panic!("no answer on a keep-alive connection after {idle:?}: {end:?}"),
                    };
                    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
                    if !again() {
                        return;
                    }
                    if answer.contains("Connection: close") {
                        stream = connect(address);
                    }
                    idle_since = Instant::now();
                }
            });
            scope.spawn(move || {
                loop {
                    let mut socket = Socket::open(address, "/echo");
                    for _ in 0..5 {
                        socket.send(&Frame::text("hello"));
                        match socket.next() {
                            Some(reply) => assert_eq!(reply, Reply::text("hello")),
                            None => break,
                        }
                    }
                    if !again() {
                        return;
                    }
                }
            });
        }
    });
}

#[test]
fn two_restarts_under_load_reject_and_reset_no_connection() {
    let mut service = Service::start("load", "threads = 2");
    let (end, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    let address = service.address;
    std::thread::scope(|scope| {
        let loading = scope.spawn(|| load(address, &end, &done));
        let more = || {
            let enough = done.load(Ordering::Relaxed) + 100;
            until("more requests", || done.load(Ordering::Relaxed) >= enough || loading.is_finished());
        };
        more();
        for _ in 0..2 {
            service.restart();
            more();
            service.old_one_ends();
            more();
        }
        end.store(true, Ordering::Relaxed);
        loading.join().expect("no request failed");
    });
    assert!(service.child.wait().unwrap().success(), "the first process exited with success");
}

/// Follows a topic from its first message on, through several connections, until it has received `total` messages.
fn follow(address: SocketAddr, topic: &str, total: usize, ready: &AtomicUsize) -> Vec<String> {
    let (mut received, mut from) = (Vec::new(), None::<Value>);
    let mut seq = 0;
    while received.len() < total {
        let mut socket = Socket::open(address, "/ws");
        let mut request_text = json!({ "op": "subscribe", "id": 1, "topic": topic });
        match &from {
            Some(from) => request_text["from"] = from.clone(),
            None => request_text["last"] = json!(0),
        }
        let Some(ack) = socket.request(&request_text) else { continue };
        assert_eq!(ack["complete"], json!(true), "{ack}, behind {from:?}");
        if from.is_none() {
            from = Some(json!({ "epoch": ack["epoch"], "seq": ack["seq"] }));
            seq = ack["seq"].as_u64().unwrap();
            ready.fetch_add(1, Ordering::SeqCst);
        }
        while received.len() < total
            && let Some(message) = socket.receive_message()
        {
            assert_eq!(message["op"], "message", "{message}");
            seq += 1;
            assert_eq!(message["seq"], json!(seq), "each message once, in order: {message}");
            from = Some(json!({ "epoch": message["epoch"], "seq": message["seq"] }));
            received.push(message["data"].as_str().unwrap().to_owned());
        }
    }
    received
}

/// Publishes `count` messages by a WebSocket, and repeats each until it is acknowledged. Returns the number of
/// publications with an unknown result.
fn publish(address: SocketAddr, topic: &str, name: &str, count: usize, published: &AtomicUsize) -> usize {
    let (mut at, mut unknown) = (0, 0);
    while at < count {
        let mut socket = Socket::open(address, "/ws");
        while at < count {
            let request_text =
                json!({ "op": "publish", "id": at, "topic": topic, "data": format!("{name} {at}") });
            at += 1;
            match socket.request(&request_text) {
                // The topic's store is changing hands: the message was not appended, or its state is unknown.
                Some(error) if error["code"] == 503 => {
                    at -= 1;
                    unknown += 1;
                }
                Some(ack) => {
                    assert_eq!(ack["op"], "ack", "{ack}");
                    published.fetch_add(1, Ordering::SeqCst);
                }
                // The server may have closed before it read the message.
                None => {
                    at -= 1;
                    unknown += 1;
                    break;
                }
            }
        }
    }
    unknown
}

#[test]
fn resuming_subscribers_receive_each_message_once_during_handovers() {
    resume(Service::start("resume", "threads = 2"), "kept.news");
}

#[test]
fn resuming_subscribers_of_durable_topics_receive_each_message_once_during_handovers() {
    let service = Service::start_with("topics", "threads = 2", |command, directory| {
        command.arg("--streams").arg(directory.file("streams")).args(["--streams-durable-topics", "disk.*"]);
    });
    resume(service, "disk.news");
}

/// With a directory, which the successor takes over, and without one, so that both processes follow the broker for a
/// while.
#[cfg(feature = "kafka")]
#[test]
fn resuming_subscribers_of_broker_topics_receive_each_message_once_during_handovers() {
    for keeps in [true, false] {
        let cluster = Cluster::new("disk.news", 1);
        let service = Service::start_with("broker", "threads = 2", |command, directory| {
            command.args(["--store", &cluster.url(""), "--streams-durable-topics", "disk.*"]);
            if keeps {
                command.arg("--streams").arg(directory.file("streams"));
            }
        });
        resume(service, "disk.news");
    }
}

fn resume(mut service: Service, topic: &str) {
    const EACH: usize = 400;
    let address = service.address;
    let (published, ready) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let subscribers = [(); 3].map(|()| scope.spawn(|| follow(address, topic, 4 * EACH, &ready)));
        let await_count = |counter: &AtomicUsize, count: usize| {
            until("subscribers and messages", || {
                assert!(!subscribers.iter().any(|subscriber| subscriber.is_finished()));
                counter.load(Ordering::SeqCst) >= count
            });
        };
        await_count(&ready, 3);
        let sockets = ["one", "two"].map(|name| {
            scope.spawn({
                let published = &published;
                move || publish(address, topic, name, EACH, published)
            })
        });
        let posts = ["three", "four"].map(|name| {
            let published = &published;
            scope.spawn(move || {
                for number in 0..EACH {
                    post(address, topic, &format!("{name} {number}"));
                    published.fetch_add(1, Ordering::SeqCst);
                }
            })
        });
        for part in [1, 2] {
            await_count(&published, part * EACH);
            service.restart();
            service.old_one_ends();
        }
        posts.into_iter().for_each(|thread| thread.join().unwrap());
        // A message in flight at the close is sent again, and may be a duplicate.
        let unknown: usize = sockets.into_iter().map(|thread| thread.join().unwrap()).sum();
        let received = subscribers.map(|thread| thread.join().unwrap());
        assert!(received.iter().all(|one| *one == received[0]), "all subscribers received the same messages");
        let distinct: BTreeSet<&String> = received[0].iter().collect();
        assert!(distinct.len() + unknown >= 4 * EACH, "{} of {}, {unknown} twice", distinct.len(), 4 * EACH);
    });
}

/// Without a subscriber or a message during the handover, no process has the topic in memory.
#[test]
fn position_of_an_empty_topic_survives_a_handover() {
    let mut service = Service::start("empty", "threads = 2");
    let address = service.address;
    let subscribe = |from: Option<&Value>| {
        let mut socket = Socket::open(address, "/ws");
        let mut request_text = json!({ "op": "subscribe", "id": 1, "topic": "kept.empty" });
        request_text["from"] = from.cloned().unwrap_or_else(|| json!({ "epoch": 0, "seq": 0 }));
        // The predecessor may accept a little longer, and closes.
        std::iter::repeat_with(|| {
            let ack = socket.request(&request_text);
            socket = Socket::open(address, "/ws");
            ack
        })
        .find_map(|ack| ack)
        .unwrap()
    };
    let ack = subscribe(None);
    let epoch = &ack["epoch"];
    for round in 1..=2 {
        service.restart();
        service.old_one_ends();
        let ack = subscribe(Some(&json!({ "epoch": epoch, "seq": 0 })));
        assert_eq!((&ack["epoch"], &ack["complete"]), (epoch, &json!(true)), "{ack}, restart {round}");
    }
    for number in 0..10 {
        post(address, "kept.empty", &number.to_string());
    }
    let ack = subscribe(Some(&json!({ "epoch": epoch, "seq": 0 })));
    assert_fields(&ack, json!({"epoch": epoch, "replayed": 10, "complete": true}));
    let ack = subscribe(Some(&json!({ "epoch": epoch, "seq": 10 })));
    assert_fields(&ack, json!({"replayed": 0, "complete": true}));
}

/// Returning subscribers take the places that the new process has taken over.
#[test]
fn number_of_subscribers_survives_a_handover() {
    let mut service = Service::start("presence", "threads = 2");
    let address = service.address;
    let subscribe = || {
        let request_text = json!({ "op": "subscribe", "id": 1, "topic": "hall", "presence": true });
        // The predecessor may accept a little longer, and closes.
        std::iter::repeat_with(|| {
            let mut socket = Socket::open(address, "/ws");
            socket.request(&request_text).map(|ack| (socket, ack["subscribers"].clone()))
        })
        .find_map(|subscribed| subscribed)
        .unwrap()
    };
    let old: Vec<_> = (0..3).map(|_| subscribe()).collect();
    assert_eq!(old[2].1, 3);
    service.restart();
    for (mut socket, _) in old {
        while socket.next().is_some() {}
    }
    service.old_one_ends();
    let mut returned: Vec<_> = (0..3).map(|_| subscribe()).collect();
    assert!(returned.iter().all(|(_, subscribers)| *subscribers == 3), "their return is no change");
    returned.push(subscribe());
    assert_eq!(returned[3].1, 4);
    let (watcher, _) = &mut returned[0];
    while watcher.receive_message().unwrap()["subscribers"] != 4 {}
}

#[test]
fn topics_without_history_are_delivered_by_both_processes() {
    let mut service = Service::start("both", "");
    let address = service.address;
    let mut old = Socket::open(address, "/topics/plain");
    let mut framed = Socket::open(address, "/ws");
    assert!(framed.request(&json!({ "op": "subscribe", "id": 1, "topic": "plain" })).is_some());
    post(address, "plain", "before");
    assert_eq!(old.next(), Some(Reply::text("before")));
    service.restart();
    // The predecessor may accept a little longer, and then closes new clients, too.
    loop {
        let mut new = Socket::open(address, "/topics/plain");
        new.send(&Frame::text("after"));
        if let Some(reply) = new.next() {
            assert_eq!(reply, Reply::text("after"));
            break;
        }
    }
    while let Some(reply) = old.next() {
        assert_eq!(reply, Reply::text("after"));
    }
}

#[test]
fn failed_successor_leaves_the_predecessor_serving() {
    let mut service = Service::start("broken", "");
    let mut socket = Socket::open(service.address, "/echo");
    service.configure("threads = \"many\"");
    service.signal(service.current(), "USR2");
    let line = service.logged("handover failed");
    assert!(line.contains("sinews.toml") && line.contains("threads"), "{line}");
    socket.send(&Frame::text("still here"));
    assert_eq!(socket.next(), Some(Reply::text("still here")));
    post(service.address, "kept.a", "published here");
    // An address in use is detected later and has the same effect.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    service.configure("");
    let with = format!("listen = [\"{}\", \"{}\"]\n", service.address, taken.local_addr().unwrap());
    fs::write(service.directory.file("sinews.toml"), with).unwrap();
    service.signal(service.current(), "USR2");
    assert!(service.logged("handover failed").contains("cannot listen on"));
    socket.send(&Frame::text("still here"));
    assert_eq!(socket.next(), Some(Reply::text("still here")));
    // The next successor that can serve takes over.
    service.configure("");
    service.restart();
    assert_eq!(socket.next(), None);
}

/// The program at the original path is started, even if it is another one now.
#[test]
fn handover_starts_the_program_at_the_installed_path() {
    let installed = Directory::new("installed");
    let path = installed.file("sinews");
    std::os::unix::fs::symlink(PROGRAM, &path).unwrap();
    let mut service = Service::start_with("program", "", |command, directory| {
        let mut installed = program_at(&path, None);
        installed.args(["serve", "--config"]).arg(directory.file("sinews.toml"));
        *command = installed;
    });
    let mut socket = Socket::open(service.address, "/echo");
    fs::remove_file(&path).unwrap();
    fs::write(&path, "#!/bin/sh\nexit 3\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    service.signal(service.current(), "USR2");
    let line = service.logged("handover failed");
    assert!(line.contains("exited during the handover (exit status: 3)"), "{line}");
    socket.send(&Frame::text("still here"));
    assert_eq!(socket.next(), Some(Reply::text("still here")));
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(PROGRAM, &path).unwrap();
    service.restart();
    assert_eq!(socket.next(), None);
}

#[test]
fn handover_changes_threads_and_addresses_and_retains_a_unix_socket() {
    let directory = Directory::new("paths");
    let (path, gone) = (directory.file("socket"), directory.file("gone"));
    let mut service = Service::start("threads", "threads = 1");
    let address = service.address;
    let other = unused_address();
    let config = |service: &Service, threads: usize, places: &[String]| {
        let places: Vec<String> = places.iter().map(|place| format!("\"{place}\"")).collect();
        let stop = "[stop]\ndrain_window = \"1s\"\n";
        let lines = format!("listen = [{}]\nthreads = {threads}\n{stop}", places.join(", "));
        fs::write(service.directory.file("sinews.toml"), lines).unwrap();
    };
    let at = |path: &PathBuf| format!("unix:{}", path.display());
    let through = |path: &PathBuf| {
        let stream = UnixStream::connect(path).expect("the connection is accepted");
        request_on(stream, "GET /healthz HTTP/1.1", "")
    };
    // Many, so that each listener of the address accepts some.
    let get = |address| (0..40).for_each(|_| assert!(is_healthy(address)));
    config(&service, 3, &[address.to_string(), at(&path), at(&gone)]);
    service.restart();
    service.old_one_ends();
    get(address);
    assert!(through(&path).starts_with("HTTP/1.1 200 ") && gone.exists());
    config(&service, 1, &[address.to_string(), at(&path), other.to_string()]);
    service.restart();
    service.old_one_ends();
    get(address);
    get(other);
    assert!(through(&path).starts_with("HTTP/1.1 200 "));
    assert!(!gone.exists(), "the socket was removed");
    config(&service, 2, &[other.to_string(), at(&path)]);
    service.restart();
    service.old_one_ends();
    get(other);
    assert!(through(&path).starts_with("HTTP/1.1 200 "));
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    service.signal(service.current(), "TERM");
    service.logged("stopped");
    assert!(!path.exists(), "removed by the last process");
}

#[test]
fn resuming_subscribers_receive_a_gap_after_the_server_was_killed() {
    let service = Service::start("killed", "");
    let subscribe = |from: Value| {
        let mut socket = Socket::open(service.address, "/ws");
        let mut request_text = json!({ "op": "subscribe", "id": 1, "topic": "kept.a" });
        request_text["from"] = from;
        let ack = socket.request(&request_text).unwrap();
        (socket, ack)
    };
    post(service.address, "kept.a", "one");
    let (_socket, ack) = subscribe(json!({ "epoch": 0, "seq": 0 }));
    let position = json!({ "epoch": ack["epoch"], "seq": ack["seq"] });
    assert_eq!(subscribe(position.clone()).1["complete"], json!(true));
    service.signal(service.current(), "KILL");
    let config = service.directory.file("sinews.toml");
    let mut again = loop {
        let mut child = program().args(["serve", "--config"]).arg(&config).spawn().unwrap();
        let mut table = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        while !table.contains("Ctrl-C stops.") && output.read_line(&mut table).unwrap() > 0 {}
        if table.contains("Ctrl-C stops.") {
            break child;
        }
        // The previous process may not have exited yet.
        child.wait().unwrap();
    };
    let (mut socket, ack) = subscribe(position.clone());
    assert_eq!(ack["complete"], json!(false), "{ack}");
    assert_ne!(ack["epoch"], position["epoch"]);
    post(service.address, "kept.a", "two");
    let received = socket.receive_message().unwrap();
    assert_fields(&received, json!({"data": "two", "seq": 1}));
    again.kill().unwrap();
    again.wait().unwrap();
}

#[test]
fn service_manager_is_notified() {
    let directory = Directory::new("manager");
    let manager = UnixDatagram::bind(directory.file("notify")).unwrap();
    manager.set_read_timeout(Some(TIMEOUT)).unwrap();
    let await_notification = |request_text: &str| {
        let mut buffer = [0; 256];
        loop {
            let len = manager.recv(&mut buffer).unwrap_or_else(|_| panic!("no notification {request_text}"));
            let notification = String::from_utf8_lossy(&buffer[..len]).into_owned();
            assert!(!notification.contains("STOPPING=1") || request_text == "STOPPING=1", "{notification}");
            if notification.contains(request_text) {
                return notification;
            }
        }
    };
    let mut service = Service::start_with("manager-config", "", |command, _| {
        command.env("NOTIFY_SOCKET", directory.file("notify"));
    });
    await_notification("READY=1");
    service.signal(service.current(), "HUP");
    assert!(await_notification("RELOADING=1").contains("MONOTONIC_USEC="));
    await_notification("READY=1");
    service.restart();
    await_notification(&format!("MAINPID={}", service.current()));
    service.old_one_ends();
    service.signal(service.current(), "TERM");
    await_notification("STOPPING=1");
}

/// Clients with error 503 retry, and the stream has each acknowledged record once.
#[test]
fn successor_takes_over_streams_and_clients_retry() {
    let mut service = Service::start_with("streams", "", |command, directory| {
        command.arg("--streams").arg(directory.file("streams"));
    });
    let address = service.address;
    let (done, acknowledged) = (AtomicBool::new(false), AtomicUsize::new(0));
    let offsets = std::thread::scope(|scope| {
        let publisher = scope.spawn(|| {
            let mut offsets = BTreeSet::new();
            while !done.load(Ordering::SeqCst) {
                let body = offsets.len().to_string();
                let answer = request(address, "POST /streams/s HTTP/1.1", &body);
                let (head, request_text) = answer.split_once("\r\n\r\n").expect("an answer");
                if head.starts_with("HTTP/1.1 503 ") {
                    assert!(head.contains("Retry-After: 1"), "{head}");
                    std::thread::park_timeout(Duration::from_millis(5));
                    continue;
                }
                assert!(head.starts_with("HTTP/1.1 200 "), "{head}{request_text}");
                let request_text: Value = serde_json::from_str(request_text).unwrap();
                assert!(offsets.insert(request_text["offset"].as_u64().unwrap()), "duplicate offset");
                acknowledged.store(offsets.len(), Ordering::SeqCst);
            }
            offsets
        });
        let more = || {
            let enough = acknowledged.load(Ordering::SeqCst) + 50;
            until("acknowledged appends", || {
                acknowledged.load(Ordering::SeqCst) >= enough || publisher.is_finished()
            });
        };
        for _ in 0..2 {
            more();
            service.restart();
        }
        more();
        done.store(true, Ordering::SeqCst);
        publisher.join().unwrap()
    });
    let all = request(address, "GET /streams/s?max=10000 HTTP/1.1", "");
    let lines = all.split_once("\r\n\r\n").unwrap().1.lines();
    let there: BTreeSet<u64> =
        lines.map(|line| serde_json::from_str::<Value>(line).unwrap()["offset"].as_u64().unwrap()).collect();
    assert!(offsets.is_subset(&there), "{} of {}", there.len(), offsets.len());
}
