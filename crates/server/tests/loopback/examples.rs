//! The examples, started as programs.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use sinews_testkit::{Frame, Reply, until};
use socket2::{Domain, Socket, Type};

use crate::support::{Client, Peer, get, handshake};

/// A running example; killed when dropped.
struct Example {
    child: Child,
    address: SocketAddr,
}

impl Example {
    fn start(name: &str, arguments: &[&str]) -> Self {
        let tests = std::env::current_exe().expect("a running program has a path");
        // `cargo test` builds them, in a directory beside the tests'; for this test alone, `cargo build
        // --examples` does.
        let path: PathBuf = tests.ancestors().nth(2).expect("target/debug").join("examples").join(name);
        let backend = std::env::var("SINEWS_TEST_BACKEND").unwrap_or_else(|_| "auto".to_owned());
        let mut command = Command::new(&path);
        let child = command.args(["0", &backend]).args(arguments).stdout(Stdio::piped()).spawn();
        let mut child =
            child.unwrap_or_else(|error| panic!("{} (cargo build --examples): {error}", path.display()));
        let mut line = String::new();
        let output = child.stdout.as_mut().expect("it is piped");
        BufReader::new(output).read_line(&mut line).expect("it says where it listens");
        let address = line.split('/').nth(2).and_then(|address| address.parse().ok());
        Self { address: address.unwrap_or_else(|| panic!("an address in {line:?}")), child }
    }

    fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// Connects with a small receive buffer, so that messages queue in the server.
    fn connect_narrow(&self) -> Client {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_recv_buffer_size(32 << 10).expect("a buffer may be small");
        socket.connect(&self.address.into()).expect("it listens");
        Client::over(socket.into())
    }

    fn websocket(&self, path: &str) -> Peer {
        self.connect().upgrade(path)
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn hello_is_answered() {
    let example = Example::start("hello_http", &[]);
    let answer = example.connect().send(get("/hello")).answer();
    assert_eq!((answer.status, answer.text()), (200, "Hello, world!"));
    assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(example.connect().send(get("/")).answer().status, 404);
}

#[test]
fn message_is_echoed() {
    let example = Example::start("echo", &[]);
    let mut peer = example.websocket("/");
    peer.send(&Frame::text("one")).expect(&Reply::text("one"));
    peer.send(&Frame::binary([0, 255])).expect(&Reply::binary([0, 255]));
    peer.send(&Frame::close(1000, "")).expect_close(1000);
}

#[test]
fn chat_room_gets_joins_messages_and_leaves() {
    let example = Example::start("chat", &[]);
    let mut ada = example.websocket("/garden/Ada");
    ada.expect(&Reply::text("Ada is here"));
    let mut elsewhere = example.websocket("/kitchen/Ada");
    elsewhere.expect(&Reply::text("Ada is here"));
    let mut grace = example.websocket("/garden/Grace%20H");
    for peer in [&mut ada, &mut grace] {
        peer.expect(&Reply::text("Grace H is here"));
    }
    ada.send(&Frame::text("hello"));
    for peer in [&mut ada, &mut grace] {
        peer.expect(&Reply::text("Ada says: hello"));
    }
    grace.send(&Frame::binary("?")).expect_close(1003);
    ada.expect(&Reply::text("Grace H has left"));
    elsewhere.send(&Frame::text("alone")).expect(&Reply::text("Ada says: alone"));
}

#[test]
fn name_of_two_lines_and_room_with_wildcard_are_rejected() {
    let example = Example::start("chat", &[]);
    for path in ["/garden/a%0Ab", "/%3E/Ada", "/*/Ada"] {
        let mut client = example.connect();
        client.send(handshake(path, ""));
        assert_eq!(client.status_line(), 400, "{path}");
    }
}

#[test]
fn viewer_gets_the_last_price_and_later_prices() {
    let example = Example::start("ticker", &["1"]);
    let mut peer = example.websocket("/INITECH");
    let first = tick(&mut peer, "INITECH");
    let ticks: Vec<u64> = (0..20).map(|_| tick(&mut peer, "INITECH")).collect();
    assert!(ticks.is_sorted(), "{ticks:?}");
    assert!(ticks[19] > first, "{ticks:?} after {first}");
    let mut client = example.connect();
    client.send(handshake("/NOBODY", ""));
    assert_eq!(client.status_line(), 404);
}

#[test]
fn slow_viewer_misses_prices_and_gets_the_last() {
    let example = Example::start("ticker", &["0"]);
    let mut slow = example.connect_narrow().upgrade("/ACME");
    let mut before = tick(&mut slow, "ACME");
    let mut client = example.connect();
    // It is the only viewer: replaced prices were queued for it.
    until("a price is replaced", || client.send(get("/metrics")).answer().text().lines().any(is_conflated));
    let mut watcher = example.websocket("/ACME");
    let last = tick(&mut watcher, "ACME");
    let mut missed = false;
    while before < last {
        let next = tick(&mut slow, "ACME");
        missed |= next > before + 1;
        before = next;
    }
    assert!(missed, "replaced prices leave a gap");
}

/// Returns whether a metrics line counts prices replaced by later prices.
fn is_conflated(line: &str) -> bool {
    line.starts_with("sinews_messages_dropped_total{reason=\"conflated\"}") && !line.ends_with(" 0")
}

fn tick(peer: &mut Peer, symbol: &str) -> u64 {
    let price = read(peer);
    assert_eq!(price["symbol"], symbol);
    assert!(price["price"].as_f64().is_some_and(|price| (90.0..=110.0).contains(&price)), "{price}");
    price["tick"].as_u64().expect("ticks are counted")
}

fn read(peer: &mut Peer) -> Value {
    match peer.next() {
        Some(Reply::Message(_, payload)) => serde_json::from_slice(&payload).expect("it speaks JSON"),
        other => panic!("{other:?} in place of a message"),
    }
}

#[test]
fn directory_is_served_and_requests_are_counted() {
    let example = Example::start("files", &[env!("CARGO_MANIFEST_DIR")]);
    let mut client = example.connect();
    let file = client.send(get("/Cargo.toml")).answer();
    assert_eq!((file.status, file.header("cache-control")), (200, Some("public, max-age=60")));
    assert_eq!(file.text(), include_str!("../../Cargo.toml"));
    assert_eq!(client.send(get("/nothing")).answer().status, 404);
    assert_eq!(client.send(get("/count")).answer().text(), "3\n");
}

/// The examples of the specification, section 7: the request, and the response, or `""`.
const CALLS: &[(&str, &str)] = &[
    (
        r#"{"jsonrpc": "2.0", "method": "subtract", "params": [42, 23], "id": 1}"#,
        r#"{"jsonrpc": "2.0", "result": 19, "id": 1}"#,
    ),
    (
        r#"{"jsonrpc": "2.0", "method": "subtract", "params": {"subtrahend": 23, "minuend": 42}, "id": 3}"#,
        r#"{"jsonrpc": "2.0", "result": 19, "id": 3}"#,
    ),
    (r#"{"jsonrpc": "2.0", "method": "update", "params": [1,2,3,4,5]}"#, ""),
    (r#"{"jsonrpc": "2.0", "method": "foobar"}"#, ""),
    (
        r#"{"jsonrpc": "2.0", "method": "foobar", "id": "1"}"#,
        r#"{"jsonrpc": "2.0", "error": {"code": -32601, "message": "Method not found"}, "id": "1"}"#,
    ),
    (
        r#"{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]"#,
        r#"{"jsonrpc": "2.0", "error": {"code": -32700, "message": "Parse error"}, "id": null}"#,
    ),
    (
        r#"{"jsonrpc": "2.0", "method": 1, "params": "bar"}"#,
        r#"{"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null}"#,
    ),
    (
        r#"[{"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"}, {"jsonrpc": "2.0", "method"]"#,
        r#"{"jsonrpc": "2.0", "error": {"code": -32700, "message": "Parse error"}, "id": null}"#,
    ),
    ("[]", r#"{"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null}"#),
    (
        "[1,2]",
        r#"[{"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null},
            {"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null}]"#,
    ),
    (
        r#"[{"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"},
            {"jsonrpc": "2.0", "method": "notify_hello", "params": [7]},
            {"jsonrpc": "2.0", "method": "subtract", "params": [42,23], "id": "2"},
            {"foo": "boo"},
            {"jsonrpc": "2.0", "method": "foo.get", "params": {"name": "myself"}, "id": "5"},
            {"jsonrpc": "2.0", "method": "get_data", "id": "9"}]"#,
        r#"[{"jsonrpc": "2.0", "result": 7, "id": "1"},
            {"jsonrpc": "2.0", "result": 19, "id": "2"},
            {"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null},
            {"jsonrpc": "2.0", "error": {"code": -32601, "message": "Method not found"}, "id": "5"},
            {"jsonrpc": "2.0", "result": ["hello", 5], "id": "9"}]"#,
    ),
    (
        r#"[{"jsonrpc": "2.0", "method": "notify_sum", "params": [1,2,4]},
            {"jsonrpc": "2.0", "method": "notify_hello", "params": [7]}]"#,
        "",
    ),
    // Not in the specification's examples.
    (
        r#"{"jsonrpc": "2.0", "method": "sum", "params": ["one"], "id": null}"#,
        r#"{"jsonrpc": "2.0", "error": {"code": -32602, "message": "Invalid params"}, "id": null}"#,
    ),
    (
        r#"{"jsonrpc": "2.0", "method": "sum", "params": [9223372036854775807, 1], "id": 4}"#,
        r#"{"jsonrpc": "2.0", "error": {"code": -32602, "message": "Invalid params"}, "id": 4}"#,
    ),
];

#[test]
fn calls_are_answered_as_in_the_specification() {
    let example = Example::start("json_rpc", &[]);
    let mut peer = example.websocket("/");
    for (call, answer) in CALLS {
        peer.send(&Frame::text(call));
        if answer.is_empty() {
            // A response would come first.
            peer.sync();
        } else {
            let answer: Value = serde_json::from_str(answer).expect("the specification speaks JSON");
            assert_eq!(read(&mut peer), answer, "{call}");
        }
    }
    peer.send(&Frame::binary("{}")).expect_close(1003);
}
