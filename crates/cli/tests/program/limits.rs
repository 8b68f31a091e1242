//! Limits of the program, and its shutdown.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use sinews_proto::Role;
use sinews_testkit::{Frame, Reply};

use crate::config::Directory;
use crate::support::{Running, Socket, TIMEOUT, status, until};

#[test]
fn connections_beyond_the_limit_are_rejected() {
    let directory = Directory::new();
    let file = directory.write("sinews.toml", "[limits]\nmax_connections_per_address = 2\n");
    for (arguments, status) in [
        (["--limits-max-connections", "2"], "HTTP/1.1 503 "),
        (["--limits-max-connections-per-address", "2"], "HTTP/1.1 429 "),
        (["--config", &file], "HTTP/1.1 429 "),
    ] {
        let server = Running::serve(&arguments);
        let within = [server.websocket("/echo"), server.websocket("/echo")];
        let refused = server.get("/healthz");
        assert!(refused.starts_with(status) && refused.contains("\r\nRetry-After: "), "{refused}");
        drop(within);
    }
}

#[test]
fn handshakes_and_messages_are_rate_limited() {
    let server = Running::serve(&["--limits-handshakes-per-second", "1"]);
    let refused =
        (0..1_000).find_map(|_| server.try_websocket("/echo", "").err()).expect("a rejected handshake");
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");

    let server = Running::serve(&["--limits-messages-per-second", "2"]);
    for path in ["/echo", "/topics/a", "/ws"] {
        let mut socket = server.websocket(path);
        let burst: Vec<u8> = (0..50).flat_map(|_| Frame::text("{}").encode(Role::Client)).collect();
        socket.stream.write_all(&burst).unwrap();
        let close = std::iter::from_fn(|| socket.next()).find_map(|reply| reply.close_code());
        assert_eq!(close, Some(1008), "{path}");
    }
}

#[test]
fn memory_beyond_the_limit_is_rejected_or_reclaimed() {
    let begins_message = |server: &Running| -> Socket {
        let mut socket = server.websocket("/echo");
        let frame = Frame::binary(vec![0; 4 << 20]).encode(Role::Client);
        // A connection that is closed meanwhile does not accept all bytes.
        let _ = socket.stream.write_all(&frame[..2 << 20]);
        socket
    };
    let server = Running::serve(&["--limits-max-memory", "64k", "--limits-when-full", "reject"]);
    let holding = begins_message(&server);
    until("requests are rejected", || status(&server.get("/healthz")) == 503);
    drop(holding);

    let server = Running::serve(&["--limits-max-memory", "64k", "--limits-when-full", "close"]);
    let mut holding = begins_message(&server);
    // It ends without a Close: by a reset if bytes were in flight.
    let ended = holding.stream.read_to_end(&mut Vec::new());
    assert!(
        ended.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset) || {
            server.get("/metrics").contains("sinews_limited_total{limit=\"memory\"} 1")
        }
    );
}

#[test]
fn memory_has_a_default_limit_that_can_be_disabled() {
    assert!(Running::serve(&[]).get("/metrics").contains("\nsinews_memory_limit_bytes "));
    let server = Running::serve(&["--limits-max-memory", "4g"]);
    assert!(server.get("/metrics").contains("\nsinews_memory_limit_bytes 4294967296\n"));
    let server = Running::serve(&["--limits-max-memory", "off"]);
    assert!(!server.get("/metrics").contains("sinews_memory_limit_bytes"));
}

#[test]
fn topics_with_subscribers_are_evicted_last_and_evictions_are_logged() {
    let server = Running::serve(&["--history", ">=10", "--limits-max-history-memory", "64k"]);
    let post = |topic: &str| {
        let answer = server.request(&format!("POST /topics/{topic} HTTP/1.1"), "text");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    };
    let mut socket = server.websocket("/ws");
    let mut ask = |message: &str, answer: &str| {
        socket.send(&Frame::text(message));
        while let Some(reply) = socket.next() {
            let Reply::Message(_, text) = reply else { panic!("{reply:?}") };
            let text = String::from_utf8(text).unwrap();
            if text.contains(answer) {
                return text;
            }
        }
        panic!("no {answer}");
    };
    ask("{\"op\":\"subscribe\",\"id\":1,\"topic\":\"mine\"}", "\"ack\"");
    post("mine");
    (0..200).for_each(|number| post(&format!("foreign.{number}")));
    let history = ask("{\"op\":\"history\",\"id\":2,\"topic\":\"mine\",\"last\":5}", "\"history\"");
    assert!(history.contains("\"seq\":1"), "{history}");
    let metrics = server.get("/metrics");
    assert!(metrics.contains("sinews_histories_evicted_total{subscribers=\"yes\"} 0"), "{metrics}");
    assert!(!metrics.contains("sinews_histories_evicted_total{subscribers=\"no\"} 0"), "{metrics}");
    server.signal("TERM");
    let (_, log) = server.wait();
    // One line in ten seconds; the machine may be busy.
    let lines = log.matches("topic histories exceed their memory limit").count();
    assert!((1..20).contains(&lines), "{log}");
}

#[test]
fn readiness_delay_keeps_serving_after_readyz_fails() {
    let server = Running::serve(&["--stop-readiness-delay", "1h"]);
    assert!(server.get("/readyz").starts_with("HTTP/1.1 200 "));
    server.signal("TERM");
    until("the server is not ready", || status(&server.get("/readyz")) == 503);
    let mut socket = server.websocket("/echo");
    socket.send(&Frame::text("still here"));
    assert_eq!(socket.next(), Some(Reply::text("still here")));
    server.signal("TERM");
    assert_eq!(socket.next(), None, "a second signal stops at once");
    assert!(server.wait().0.success());
}

/// Resident memory of the server, in KiB; `None` where the system does not report it.
fn resident(server: &Running) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}

/// Connects `count` clients of the protocol and reads their welcome.
fn clients(server: &Running, count: usize) -> Vec<Socket> {
    let mut clients: Vec<Socket> = (0..count).map(|_| server.websocket("/ws")).collect();
    clients.iter_mut().for_each(|client| drop(client.next().unwrap()));
    clients
}

/// Sends a request for all clients, and reads the acknowledgements and this many messages of each.
fn ask(clients: &mut [Socket], request: &str, messages: usize) {
    let request = Frame::text(request);
    clients.iter_mut().for_each(|client| client.send(&request));
    for client in clients {
        (0..=messages).for_each(|_| drop(client.next().unwrap()));
    }
}

#[test]
fn memory_of_a_replay_to_many_clients_is_released_while_they_stay_connected() {
    const CLIENTS: usize = 4_000;
    const REPLAY: &str = r#"{"op":"subscribe","id":1,"topic":"kept.a","last":100}"#;
    // The server is a separate process, so each process has one descriptor per connection.
    let limit = sinews_engine::raise_descriptor_limit().unwrap();
    if limit < CLIENTS as u64 + 500 {
        return println!("skipped: {limit} descriptors are too few for the clients (ulimit -Hn)");
    }
    let server = Running::serve(&["--threads", "1", "--history", "kept.>=100"]);
    for _ in 0..100 {
        assert!(
            server.request("POST /topics/kept.a HTTP/1.1", &"x".repeat(200)).starts_with("HTTP/1.1 200 ")
        );
    }
    // Warm up: tables grow and code is paged in.
    ask(&mut clients(&server, CLIENTS), REPLAY, 100);
    let mut clients = clients(&server, CLIENTS);
    // A subscription has memory of its own, with a replay or without.
    ask(&mut clients, r#"{"op":"subscribe","id":1,"topic":"kept.a"}"#, 0);
    let Some(before) = resident(&server) else { return println!("skipped: there is no /proc") };
    ask(&mut clients, r#"{"op":"unsubscribe","id":2,"topic":"kept.a"}"#, 0);
    ask(&mut clients, REPLAY, 100);
    // Unused memory is checked twice, two seconds apart, and then released.
    let (started, most) = (Instant::now(), before + (3 << 9));
    let mut after = u64::MAX;
    while after > most && started.elapsed() < TIMEOUT {
        std::thread::sleep(Duration::from_millis(100));
        after = resident(&server).unwrap();
    }
    assert!(after <= most, "{before} KiB before the replay, and {after} KiB after it");
    // Clients that do not answer pings are closed in time, which would release the memory, too.
    let metrics = server.get("/metrics");
    assert!(metrics.contains(&format!("\nsinews_connections {}\n", CLIENTS + 1)), "{metrics}");
}
