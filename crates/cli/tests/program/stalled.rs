//! Descriptors and files of the operator that stall: no client waits for them, and signals take effect.

use std::fs::File;
use std::io::{BufRead, BufReader, PipeReader, Read, Write, pipe};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use sinews_testkit::{exchange, last_get, process};

use crate::directory::Directory;
use crate::support::{Running, TIMEOUT, program, until, unused_address};

/// The text between two markers of an answer.
fn get(address: SocketAddr, path: &str) -> String {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    exchange(stream, &last_get(path)).unwrap()
}

fn dropped_lines(address: SocketAddr) -> u64 {
    let metrics = get(address, "/metrics");
    let line = metrics.lines().find_map(|line| line.strip_prefix("sinews_log_lines_dropped_total "));
    line.expect("the counter").parse().unwrap()
}

/// Waits until the server answers, without its table of addresses.
fn wait_until_healthy(address: SocketAddr) {
    until("the server listens", || TcpStream::connect(address).is_ok());
    assert!(get(address, "/healthz").starts_with("HTTP/1.1 200 "));
}

/// Time that the program waits at its exit for a reader of its output that stalls.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The exit of the server, although nothing reads its output.
fn wait_for_exit(child: &mut Child) {
    until("the server stops", || child.try_wait().unwrap().is_some());
}

fn signal(child: &Child, name: &str) {
    assert!(process::signal(child.id(), name));
}

struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // A process that has exited needs no signal.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A pipe that accepts no more bytes.
fn full_pipe() -> (PipeReader, File) {
    let (reader, writer) = pipe().unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer));
    let mut filler = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(path).unwrap();
    while filler.write(&[b'.'; 4_096]).is_ok() {}
    (reader, File::from(std::os::fd::OwnedFd::from(writer)))
}

#[test]
fn stalled_reader_of_the_log_stops_no_client_and_learns_the_number_of_dropped_lines() {
    let mut server = Running::serve(&["--access-log", "--log-format", "json"]);
    let (address, path) = (server.address, "x".repeat(6_000));
    let mut stream = server.connect();
    let requests = format!("GET /{path} HTTP/1.1\r\nHost: localhost\r\n\r\n").repeat(10);
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    until("lines are dropped", || {
        for _ in 0..20 {
            stream.write_all(requests.as_bytes()).unwrap();
            for _ in 0..10 {
                let mut line = String::new();
                while !line.starts_with("HTTP/1.1 404 ") {
                    line.clear();
                    answers.read_line(&mut line).unwrap();
                }
            }
        }
        dropped_lines(address) >= 50
    });
    assert!(get(address, "/healthz").starts_with("HTTP/1.1 200 "));
    let dropped = dropped_lines(address);
    let lines = BufReader::new(server.child.stderr.take().unwrap()).lines();
    let (sender, log) = mpsc::channel();
    let reader = thread::spawn(move || lines.for_each(|line| sender.send(line.unwrap()).unwrap()));
    let report = std::iter::from_fn(|| log.recv_timeout(TIMEOUT).ok()).find_map(|line| {
        let line: serde_json::Value = serde_json::from_str(&line).expect("whole lines");
        line["lines"].as_u64()
    });
    let report = report.expect("a line with the number");
    assert!((50..=dropped_lines(address)).contains(&report) && report >= dropped, "{report}, {dropped}");
    server.signal("TERM");
    reader.join().unwrap();
    let rest: Vec<String> = log.try_iter().collect();
    assert!(rest.last().unwrap().contains("stopped"), "{rest:?}");
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn server_stops_although_the_reader_of_its_log_stalls() {
    let mut server = Running::serve(&["--access-log"]);
    let path = "x".repeat(6_000);
    let mut stream = server.connect();
    // More than a pipe holds.
    for _ in 0..100 {
        write!(stream, "GET /{path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answers = Vec::new();
    stream.read_to_end(&mut answers).unwrap();
    let begun = Instant::now();
    server.signal("TERM");
    wait_for_exit(&mut server.child);
    assert!(begun.elapsed() >= FLUSH_TIMEOUT, "the log is not flushed at the exit");
}

#[test]
fn full_standard_output_and_service_manager_delay_neither_start_nor_stop() {
    let directory = Directory::new();
    let manager = directory.path("manager");
    let _manager = UnixDatagram::bind(&manager).unwrap();
    let filler = UnixDatagram::unbound().unwrap();
    filler.connect(&manager).unwrap();
    filler.set_nonblocking(true).unwrap();
    while filler.send(b"STATUS=full").is_ok() {}
    let ((_stdout, stdout), (_stderr, stderr), address) = (full_pipe(), full_pipe(), unused_address());
    let mut command = program();
    command.args(["serve", "--listen", &address.to_string()]).env("NOTIFY_SOCKET", &manager);
    command.stdout(Stdio::from(stdout)).stderr(Stdio::from(stderr));
    let mut server = KillOnDrop(command.spawn().unwrap());
    wait_until_healthy(address);
    signal(&server.0, "HUP");
    assert!(get(address, "/healthz").starts_with("HTTP/1.1 200 "));
    signal(&server.0, "TERM");
    wait_for_exit(&mut server.0);
}

#[test]
fn start_that_fails_ends_although_nothing_reads_standard_error() {
    let ((_stdout, stdout), (_stderr, stderr)) = (full_pipe(), full_pipe());
    let mut command = program();
    command.args(["serve", "--auth-secret-file", "/nowhere/secret"]);
    command.stdout(Stdio::from(stdout)).stderr(Stdio::from(stderr));
    let begun = Instant::now();
    let mut server = KillOnDrop(command.spawn().unwrap());
    wait_for_exit(&mut server.0);
    assert!(!server.0.wait().unwrap().success());
    assert!(begun.elapsed() >= FLUSH_TIMEOUT, "the error is not flushed at the exit");
}

#[test]
fn file_that_stalls_a_reload_delays_no_signal() {
    let directory = Directory::new();
    let secret = directory.write("secret", &"s".repeat(32));
    let mut server = Running::serve(&["--auth-secret-file", &secret]);
    std::fs::remove_file(&secret).unwrap();
    assert!(Command::new("mkfifo").arg(&secret).status().unwrap().success());
    // One is being read, one waits, and one is too many.
    let mut log = BufReader::new(server.child.stderr.take().unwrap()).lines();
    until("the stalled reload is reported", || {
        for _ in 0..3 {
            server.signal("HUP");
            thread::sleep(Duration::from_millis(50));
        }
        log.next().unwrap().unwrap().contains("still reads files")
    });
    assert!(server.get("/healthz").starts_with("HTTP/1.1 200 "));
    server.signal("TERM");
    wait_for_exit(&mut server.child);
}

/// The tests above stall standard output, standard error and the service manager. Another pipe or file would need one, too: streams are
/// written by threads of their own.
#[cfg(target_os = "linux")]
#[test]
fn server_writes_to_no_pipe_or_file_but_its_outputs_and_streams() {
    let server =
        Running::serve(&["--streams", "$DIR/streams", "--streams-durable-topics", "a", "--access-log"]);
    let streams = server.directory.path("streams");
    assert!(server.request("POST /topics/a HTTP/1.1", "1").starts_with("HTTP/1.1 200 "));
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        // A descriptor may be closed meanwhile.
        let target = std::fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned();
        Some((entry.file_name().to_string_lossy().into_owned(), target))
    };
    let list = |process: &str| -> Vec<(String, String)> {
        std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().filter_map(read).collect()
    };
    // The program that runs the tests may leave descriptors open for all its children.
    let inherited = list("self");
    let mut descriptors = list(&server.child.id().to_string());
    descriptors.retain(|descriptor| !inherited.contains(descriptor));
    let is_known = |(descriptor, target): &(String, String)| {
        // The server has both ends of its own pipes.
        let ends = descriptors.iter().filter(|(_, other)| other == target).count();
        ["0", "1", "2"].contains(&&**descriptor)
            || ["anon_inode:", "socket:", &streams].iter().any(|known| target.starts_with(known))
            || target.starts_with("pipe:") && ends > 1
    };
    let others: Vec<_> = descriptors.iter().filter(|descriptor| !is_known(descriptor)).collect();
    assert!(others.is_empty() && descriptors.len() > 3, "{others:?}");
}
