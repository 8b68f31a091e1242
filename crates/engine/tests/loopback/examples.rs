//! The examples, started as a new user starts them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Path of an example. `cargo test` builds the examples, in a folder beside the tests; for this test alone,
/// `cargo build --examples` does.
fn path(name: &str) -> PathBuf {
    let tests = std::env::current_exe().expect("a running program has a path");
    tests.ancestors().nth(2).expect("target/debug").join("examples").join(name)
}

fn backend() -> String {
    std::env::var("SINEWS_TEST_BACKEND").unwrap_or_else(|_| "auto".to_owned())
}

/// A running example; killed when dropped.
struct Example {
    child: Child,
    address: String,
}

impl Example {
    fn start(name: &str, threads: &str) -> Self {
        let path = path(name);
        let backend = backend();
        let mut command = Command::new(&path);
        let child = command.args(["0", &backend, threads]).stdout(Stdio::piped()).spawn();
        let mut child =
            child.unwrap_or_else(|error| panic!("{} (cargo build --examples): {error}", path.display()));
        let mut address = String::new();
        let output = child.stdout.as_mut().expect("stdout is piped");
        BufReader::new(output).read_line(&mut address).expect("it prints its listen address");
        Self { child, address: address.trim().to_owned() }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a wait");
        stream
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_to_end(mut stream: &TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).expect("the server closes in order");
    all
}

#[test]
fn discard_reads_all_bytes_and_sends_none() {
    let example = Example::start("discard", "2");
    let mut stream = example.connect();
    stream.write_all(&[7; 1 << 20]).expect("the server takes all bytes");
    stream.shutdown(Shutdown::Write).expect("the connection is open");
    assert_eq!(read_to_end(&stream), []);
}

#[test]
fn echo_returns_bytes_and_then_ends() {
    let example = Example::start("tcp_echo", "2");
    for _ in 0..4 {
        let mut stream = example.connect();
        stream.write_all(b"one").expect("the connection is open");
        let mut echo = [0; 3];
        stream.read_exact(&mut echo).expect("an echo");
        stream.write_all(b" two").expect("the connection is open");
        stream.shutdown(Shutdown::Write).expect("the connection is open");
        assert_eq!((&echo[..], read_to_end(&stream).as_slice()), (&b"one"[..], &b" two"[..]));
    }
}

#[test]
fn hello_answers_requests_at_any_segment_boundary() {
    const REQUESTS: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n";
    let example = Example::start("hello", "1");
    for cut in 0..REQUESTS.len() {
        let mut stream = example.connect();
        stream.write_all(&REQUESTS[..cut]).expect("the connection is open");
        // Two separate segments: an answer on this connection proves that the server has processed the
        // first part.
        let mut other = example.connect();
        other.write_all(REQUESTS).expect("the connection is open");
        other.shutdown(Shutdown::Write).expect("the connection is open");
        assert_eq!(read_to_end(&other).windows(5).filter(|word| word == b"Hello").count(), 2);
        stream.write_all(&REQUESTS[cut..]).expect("the connection is open");
        stream.shutdown(Shutdown::Write).expect("the connection is open");
        let answers = String::from_utf8(read_to_end(&stream)).expect("text");
        assert_eq!(answers.matches("HTTP/1.1 200 OK\r\n").count(), 2, "cut at {cut}: {answers}");
        assert!(answers.ends_with("\r\n\r\nHello\n"));
    }
}

#[test]
fn client_receives_its_echo() {
    let server = Example::start("tcp_echo", "1");
    let client = Command::new(path("client"))
        .args([&server.address, &backend(), "3"])
        .output()
        .expect("the example starts");
    assert!(client.status.success(), "{client:?}");
    assert_eq!(String::from_utf8_lossy(&client.stdout), "Hello Finished\n".repeat(3));
}
