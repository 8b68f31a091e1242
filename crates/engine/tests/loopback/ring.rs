//! Behavior specific to rings, and to their absence. On a system that refuses rings these tests are
//! skipped.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, setrlimit};
use sinews_engine::{
    App, BackendChoice, CloseReason, ConnId, ConnectionOrigin, Engine, EngineConfig, Flow, Io, ListenOptions,
    Listener, raise_descriptor_limit,
};

use crate::accepting::in_a_process_of_its_own;
use crate::support::{Event, Host, Kind, Probe, client, read_exactly};

fn uring() -> EngineConfig {
    EngineConfig::default().with_backend(BackendChoice::Uring)
}

/// Whether the system refuses rings.
fn refused() -> bool {
    let refusal = Engine::<Probe>::new(uring(), Vec::new()).err();
    if let Some(error) = &refusal {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        println!("skipped: {error}");
    }
    refusal.is_some()
}

#[test]
fn connections_beyond_table_wait_until_others_close() {
    if refused() {
        return;
    }
    let mut host = Host::with(uring().with_ring_files(5).unwrap(), ListenOptions::default(), Probe::echo());
    let mut clients: Vec<TcpStream> = (0..20).map(|_| client(host.address)).collect();
    host.until(|app| app.open_connections() == 5);
    host.settle();
    assert_eq!((host.app.open_connections(), host.engine.stats().accept_stalls), (5, 1));
    clients[0].write_all(b"served").unwrap();
    host.until(|app| app.count(Kind::Finished) == 1);
    assert_eq!(read_exactly(&mut clients[0], 6), b"served");
    // Each close frees a slot. Backlogs are first in, first out.
    for gone in 1..=15 {
        drop(clients.remove(0));
        host.until(|app| app.count(Kind::Accepted) == 5 + gone);
    }
    host.settle();
    assert_eq!(host.engine.stats().accept_stalls, 1, "one shortage, one report");
    for client in &mut clients {
        client.write_all(b"x").unwrap();
    }
    host.until(|app| app.count(Kind::Finished) == 6);
    for client in &mut clients {
        client.read_exact(&mut [0]).unwrap();
    }
}

#[test]
fn connections_use_no_process_descriptors() {
    if refused() {
        return;
    }
    in_a_process_of_its_own("ring::child_counts_descriptors");
}

#[test]
#[ignore = "run by the test above in a process of its own"]
fn child_counts_descriptors() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut host = Host::with(uring(), ListenOptions::default(), Probe::echo());
    host.settle();
    let before = open();
    let clients: Vec<TcpStream> = (0..50).map(|_| client(host.address)).collect();
    host.until(|app| app.open_connections() == 50);
    assert_eq!(open() - before, clients.len(), "only the clients' descriptors");
}

/// Echoes, ignores its returned chains, and counts.
#[derive(Default)]
pub(crate) struct Echo {
    pending: Vec<Vec<u8>>,
    served: Arc<AtomicU64>,
}

impl App for Echo {
    type Chain = std::io::Cursor<Vec<u8>>;
    type Mail = ();

    fn accepted(&mut self, _: &mut Io, conn: ConnId, _: ConnectionOrigin) {
        self.pending.resize_with(self.pending.len().max(conn.index() + 1), Vec::new);
    }
    fn received(&mut self, io: &mut Io, conn: ConnId, chunk: &mut [u8]) -> Flow {
        self.pending[conn.index()].extend_from_slice(chunk);
        self.served.fetch_add(1, Ordering::Relaxed);
        io.send(conn);
        Flow::Continue
    }
    fn ended(&mut self, io: &mut Io, conn: ConnId) {
        io.shutdown(conn);
    }
    fn start_send(&mut self, conn: ConnId) -> Option<Self::Chain> {
        let pending = std::mem::take(&mut self.pending[conn.index()]);
        (!pending.is_empty()).then(|| std::io::Cursor::new(pending))
    }
    fn finish_may_wait(&self, _: ConnId) -> bool {
        true
    }
    fn closed(&mut self, io: &mut Io, _: ConnId, reason: CloseReason) {
        assert!(matches!(reason, CloseReason::Finished));
        if io.connections() == 0 {
            io.stop();
        }
    }
}

/// Runs an echo on a thread while `talk` runs, and returns its counters.
fn calls_of(talk: impl FnOnce(std::net::SocketAddr) + Send + 'static) -> (u64, u64) {
    let listener = Listener::bind(([127, 0, 0, 1], 0).into(), &ListenOptions::default()).unwrap();
    let address = listener.local_addr().unwrap();
    let talking = std::thread::spawn(move || talk(address));
    let mut engine = Engine::<Echo>::new(uring(), vec![listener]).unwrap();
    let served = Arc::new(AtomicU64::new(0));
    engine.run(&mut Echo { served: Arc::clone(&served), ..Echo::default() }).unwrap();
    talking.join().unwrap();
    (engine.stats().enters, served.load(Ordering::Relaxed))
}

#[test]
fn one_message_in_flight_costs_one_system_call() {
    if refused() {
        return;
    }
    const MESSAGES: u64 = 1000;
    let (enters, served) = calls_of(|address| {
        let mut stream = client(address);
        for _ in 0..MESSAGES {
            stream.write_all(b"x").unwrap();
            assert_eq!(read_exactly(&mut stream, 1), b"x");
        }
    });
    // In addition: the first turn, accepting, the peer's end, closing, stopping.
    assert_eq!(served, MESSAGES);
    assert!((MESSAGES..MESSAGES + 20).contains(&enters), "{enters} calls for {MESSAGES} messages");
}

/// Answers each chunk. Its mail queues more bytes to send behind the answer.
#[derive(Default)]
struct AnsweringApp {
    answers: bool,
    follows: bool,
    finished: usize,
}

impl App for AnsweringApp {
    type Chain = std::io::Cursor<Vec<u8>>;
    type Mail = ();

    fn received(&mut self, io: &mut Io, conn: ConnId, _: &mut [u8]) -> Flow {
        self.answers = true;
        io.send(conn);
        Flow::Continue
    }
    fn ended(&mut self, _: &mut Io, _: ConnId) {}
    fn start_send(&mut self, _: ConnId) -> Option<Self::Chain> {
        std::mem::take(&mut self.answers).then(|| std::io::Cursor::new(b"answer".to_vec()))
    }
    fn finish_send(&mut self, _: &mut Io, _: ConnId, _: Self::Chain, _: bool) {
        self.finished += 1;
    }
    fn finish_may_wait(&self, _: ConnId) -> bool {
        !self.follows
    }
    fn mail(&mut self, _: &mut Io, _: &mut Vec<()>) {
        self.follows = self.finished == 0;
    }
}

#[test]
fn fired_chain_completes_at_once_when_more_is_queued_behind() {
    if refused() {
        return;
    }
    // A loop that sleeps on the chain wakes after a second. A busy machine is late for some.
    let times = [(); 5].map(|()| time_of_a_chain());
    assert!(
        times.iter().any(|time| *time < Duration::from_millis(500)),
        "the chains completed after {times:?}"
    );
}

fn time_of_a_chain() -> Duration {
    let listener = Listener::bind(([127, 0, 0, 1], 0).into(), &ListenOptions::default()).unwrap();
    let address = listener.local_addr().unwrap();
    let mut engine = Engine::<AnsweringApp>::new(uring(), vec![listener]).unwrap();
    let (mut app, post) = (AnsweringApp::default(), engine.post());
    let mut stream = client(address);
    // Accepting takes a few turns; the bytes and the mail are available when the next turn begins.
    (0..10).for_each(|_| assert!(engine.turn(&mut app, Some(Duration::ZERO)).unwrap()));
    stream.write_all(b"x").unwrap();
    post.send(()).unwrap();
    let begun = std::time::Instant::now();
    while app.finished == 0 {
        engine.turn(&mut app, Some(Duration::from_secs(60))).unwrap();
    }
    assert!(app.follows, "the mail was read before the chain completed");
    let took = begun.elapsed();
    assert_eq!(read_exactly(&mut stream, 6), b"answer");
    took
}

#[test]
fn burst_is_answered_by_one_send() {
    if refused() {
        return;
    }
    let mut host = Host::with(uring(), ListenOptions::default(), Probe::echo());
    let (mut client, _) = host.connect();
    let before = host.engine.stats();
    client.write_all(&[7; 50 * 100]).unwrap();
    host.until(|app| app.count(Kind::Finished) == 1);
    let stats = host.engine.stats();
    assert_eq!((stats.sends - before.sends, stats.sent_bytes - before.sent_bytes), (1, 5000));
    assert_eq!(read_exactly(&mut client, 5000), [7; 5000]);
}

#[test]
fn many_connections_share_a_system_call() {
    if refused() {
        return;
    }
    const CONNECTIONS: usize = 64;
    let mut host = Host::with(uring(), ListenOptions::default(), Probe::echo());
    let mut clients: Vec<TcpStream> = (0..CONNECTIONS).map(|_| host.connect().0).collect();
    for round in 1..=50 {
        host.settle();
        let before = host.engine.stats();
        // All clients have written before the loop runs; the system determines how many messages have
        // arrived by then.
        for client in &mut clients {
            client.write_all(b"x").unwrap();
        }
        host.until(|app| app.count(Kind::Finished) == round * CONNECTIONS);
        let enters = host.engine.stats().enters - before.enters;
        assert!(enters < CONNECTIONS as u64, "{enters} calls for {CONNECTIONS} messages");
        for client in &mut clients {
            assert_eq!(read_exactly(client, 1), b"x");
        }
    }
}

#[test]
fn ring_loop_is_woken_through_its_ring() {
    if refused() {
        return;
    }
    let mut host = Host::with(uring(), ListenOptions::default(), Probe::echo());
    let post = host.engine.post();
    host.settle();
    let posting = std::thread::spawn(move || {
        for number in 0..100 {
            post.send(number).unwrap();
        }
        post
    });
    let letters = |event: &Event| if let Event::Mail(mail) = event { mail.len() } else { 0 };
    host.until(|app| app.events.iter().map(letters).sum::<usize>() == 100);
    let post = posting.join().unwrap();
    assert!(host.engine.stats().wakes <= 100);
    drop(host);
    assert!(post.is_closed() && post.send(1).is_err(), "the engine is gone, and no other ring is woken");
}

#[test]
fn dropped_engine_releases_sockets_and_memory() {
    if refused() {
        return;
    }
    // Unread sends, armed receives, a paused connection with pending bytes.
    let app = Probe::new(|io, queues, event| {
        if let Event::Received(conn, _) = event {
            queues.push(*conn, vec![1; 8 << 20]);
            io.send(*conn);
        }
        Flow::Pause
    });
    let mut host = Host::with(uring(), ListenOptions::default(), app);
    let mut clients: Vec<TcpStream> = (0..10).map(|_| client(host.address)).collect();
    host.until(|app| app.open_connections() == 10);
    for client in &mut clients[..5] {
        client.write_all(b"send me a lot").unwrap();
    }
    host.until(|app| app.count(Kind::Progressed) >= 5);
    drop(host);
    for mut client in clients {
        // Every socket is closed: clients read an end or a reset.
        let mut rest = Vec::new();
        let _ = client.read_to_end(&mut rest);
    }
}

#[test]
fn refused_ring_falls_back_to_readiness() {
    for errno in ["EPERM", "ENOSYS"] {
        let program = std::env::current_exe().unwrap();
        let output = std::process::Command::new(program)
            .args(["--exact", "ring::child_is_refused", "--ignored", "--test-threads=1", "--nocapture"])
            .env("SINEWS_TEST_REFUSE", errno)
            .output()
            .unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && stdout.contains("1 passed"), "{errno}: {stdout}");
    }
}

#[test]
#[ignore = "run by the test above in a process of its own"]
fn child_is_refused() {
    let (errno, words) = match std::env::var("SINEWS_TEST_REFUSE").as_deref() {
        Ok("EPERM") => (libc::EPERM, "seccomp"),
        _ => (libc::ENOSYS, "no io_uring"),
    };
    forbid_io_uring(errno);
    let error = Engine::<Probe>::new(uring(), Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let message = error.to_string();
    assert!(
        message.contains("io_uring_setup") && message.contains(words) && message.contains("Remedy"),
        "{message}"
    );
    let auto = EngineConfig::default().with_backend(BackendChoice::Auto);
    let mut host = Host::with(auto, ListenOptions::default(), Probe::echo());
    assert_eq!(host.engine.backend(), BackendChoice::Poll);
    let (mut client, _) = host.connect();
    client.write_all(b"by readiness").unwrap();
    host.until(|app| app.count(Kind::Finished) == 1);
    assert_eq!(read_exactly(&mut client, 12), b"by readiness");
    host.engine.turn(&mut host.app, Some(Duration::ZERO)).unwrap();
}

/// Like the default profile of container runtimes.
fn forbid_io_uring(errno: i32) {
    use seccompiler::{SeccompAction, SeccompFilter};
    let rules = [(libc::SYS_io_uring_setup, Vec::new())].into_iter().collect();
    let (otherwise, then) = (SeccompAction::Allow, SeccompAction::Errno(errno as u32));
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, otherwise, then, arch).unwrap();
    let program: seccompiler::BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter_all_threads(&program).unwrap();
}

#[test]
fn small_memlock_limit_yields_smaller_ring_or_fallback() {
    use std::os::unix::process::CommandExt;
    if refused() {
        return;
    }
    // The limit does not apply to root, so the child runs as user nobody, from a readable path.
    let here = std::env::current_exe().unwrap();
    let there = std::env::temp_dir().join(format!("sinews-ring-test-{}", std::process::id()));
    if std::fs::copy(&here, &there).is_err() {
        return println!("skipped: cannot copy the test to a world-executable path");
    }
    for (limit, served) in [("65536", "Uring"), ("4096", "Poll")] {
        let output = std::process::Command::new(&there)
            .args(["--exact", "ring::child_has_little_locked_memory", "--ignored", "--nocapture"])
            .env("SINEWS_TEST_MEMLOCK", limit)
            .current_dir("/")
            .uid(NOBODY)
            .output();
        let Ok(output) = output else {
            println!("skipped: only root can change the user");
            break;
        };
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{limit}: {stdout}{}", String::from_utf8_lossy(&output.stderr));
        assert!(stdout.contains(&format!("served by {served}")), "{limit}: {stdout}");
    }
    std::fs::remove_file(there).unwrap();
}

#[test]
#[ignore = "run by the test above in a process of its own"]
fn child_has_little_locked_memory() {
    let limit = Some(std::env::var("SINEWS_TEST_MEMLOCK").unwrap().parse().unwrap());
    setrlimit(Resource::Memlock, Rlimit { current: limit, maximum: limit }).unwrap();
    let auto = EngineConfig::default().with_backend(BackendChoice::Auto);
    let mut host = Host::with(auto, ListenOptions::default(), Probe::echo());
    println!("served by {:?}", host.engine.backend());
    if host.engine.backend() == BackendChoice::Poll {
        let message = Engine::<Probe>::new(uring(), Vec::new()).unwrap_err().to_string();
        assert!(message.contains("locked memory") && message.contains("ulimit -l"), "{message}");
    }
    let (mut client, _) = host.connect();
    client.write_all(b"little").unwrap();
    host.until(|app| app.count(Kind::Finished) == 1);
    assert_eq!(read_exactly(&mut client, 6), b"little");
}

const NOBODY: u32 = 65_534;

#[test]
fn bursts_beyond_queue_capacity_are_served() {
    if refused() {
        return;
    }
    // More than 1024 operations in one turn, and more than 4096 completions.
    const CONNECTIONS: usize = 4500;
    let limit = raise_descriptor_limit().unwrap();
    if limit < 2 * CONNECTIONS as u64 {
        return println!("skipped: {limit} descriptors are too few for the clients (ulimit -Hn)");
    }
    let mut host = Host::with(uring(), ListenOptions::default(), Probe::echo());
    let mut clients = Vec::with_capacity(CONNECTIONS);
    while clients.len() < CONNECTIONS {
        clients.extend((0..500).map(|_| client(host.address)));
        host.until(|app| app.open_connections() == clients.len());
    }
    for client in &mut clients {
        client.write_all(b"all at once").unwrap();
    }
    host.until(|app| app.count(Kind::Finished) == CONNECTIONS);
    for client in &mut clients {
        assert_eq!(read_exactly(client, 11), b"all at once");
    }
    drop(clients);
    host.until(|app| app.count(Kind::Closed) == CONNECTIONS);
}
