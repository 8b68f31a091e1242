//! Bytes of aioquic and pylsqpack, which `dev/interop/python/http3.py` writes; and bytes for them to read.

use std::fmt::Write as _;

use sinews_http::h3::{Config, H3Connection, RequestTarget};

use super::support::*;

/// `case stream fin bytes` a line.
const RECORDED: &str = include_str!("aioquic.txt");

struct PeerBytes {
    case: &'static str,
    stream: u64,
    ends: bool,
    bytes: Vec<u8>,
}

fn recorded() -> impl Iterator<Item = PeerBytes> {
    RECORDED.lines().map(|line| {
        let [case, stream, ends, bytes] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let bytes = sinews_testkit::corpora::hex(if bytes == "-" { "" } else { bytes }).concat();
        PeerBytes { case, stream: stream.parse().expect("a number"), ends: ends == "1", bytes }
    })
}

/// Passes a recorded conversation. Accepts sessions.
fn run(case: &str, side: &mut Side) -> Vec<SeenEvent> {
    let mut seen = Vec::new();
    for step in recorded().filter(|step| step.case == case) {
        let left = side.receive_into(step.stream, &step.bytes, step.ends, &mut seen);
        assert_eq!(left, Ok(0));
        if matches!(seen.last(), Some(SeenEvent::Request(0, method, _)) if method == "CONNECT")
            && step.stream == 0
        {
            side.head(0, 200, false);
        }
    }
    assert_eq!(side.connection.next_signal(), None);
    seen
}

fn content(seen: &[SeenEvent], of: u64) -> Vec<u8> {
    let data = seen.iter().filter_map(|seen| match seen {
        SeenEvent::Data(stream, data) if *stream == of => Some(&data[..]),
        _ => None,
    });
    data.collect::<Vec<_>>().concat()
}

fn body() -> Vec<u8> {
    (0..=255).collect::<Vec<u8>>().repeat(3)
}

fn trailers(stream: u64) -> SeenEvent {
    SeenEvent::Trailers(stream, vec![("x-trailer".to_owned(), "end".to_owned())])
}

#[test]
fn streams_of_aioquic_are_read() {
    let mut server = Side::fresh(Config::new());
    let seen = run("request", &mut server);
    let request = SeenEvent::Request(0, "POST".into(), "/chat?room=7".into());
    assert_eq!(seen[..2], [SeenEvent::Settings, request]);
    assert_eq!(seen[seen.len() - 2..], [trailers(0), SeenEvent::End(0)]);
    assert!(content(&seen, 0) == body());
    assert!(server.connection.peer_settings().is_some_and(|peer| peer.webtransport && peer.datagrams));

    let seen = run("session", &mut Side::fresh(Config::new().with_max_sessions(1)));
    assert_eq!(seen[1], SeenEvent::Request(0, "CONNECT".into(), "/session".into()));
    for stream in [4, 14] {
        assert_eq!(content(&seen, stream), b"bytes of a session");
        assert!(
            seen.contains(&SeenEvent::SessionStream(stream, 0)) && seen.contains(&SeenEvent::End(stream))
        );
    }

    let mut client = Side::of(H3Connection::client(Config::new()));
    let target = RequestTarget::new("GET", "https", "example.com", "/");
    client.connection.send_request(id(0), &target, [], true, &mut client.out).expect("a new stream");
    let seen = run("response", &mut client);
    assert_eq!(seen[1..3], [SeenEvent::Response(0, 103), SeenEvent::Response(0, 200)]);
    assert!(content(&seen, 0) == body());
    assert_eq!(seen.last(), Some(&SeenEvent::End(0)));
}

#[test]
fn field_sections_of_pylsqpack_are_read() {
    let fields = |case: &str| {
        let section = recorded().find(|step| step.case == case).expect("a recorded section").bytes;
        let mut client = Side::asking("GET");
        client.receive(0, &headers(&[(":status", "200")])).expect("a head");
        // A section of trailers shows its fields.
        let seen = client.receive(0, &frame(HEADERS, &section)).expect("a valid section");
        match seen.into_iter().next() {
            Some(SeenEvent::Trailers(_, fields)) => fields,
            other => panic!("{other:?}"),
        }
    };
    let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(fields("section2"), [field("a", ""), field("authorization", "secret")]);
    for (case, path) in [("section0", "/chat?room=7"), ("section1", "/session")] {
        let section = recorded().find(|step| step.case == case).expect("a recorded section").bytes;
        let config = Config::new().with_extended_connect(true);
        let seen = Side::with(config).receive(0, &frame(HEADERS, &section)).expect("a valid section");
        assert!(matches!(&seen[..], [SeenEvent::Request(0, _, target)] if target == path), "{seen:?}");
    }
}

/// Writes what this side sends, for `http3.py read`.
fn sent() -> String {
    let mut lines = String::new();
    let mut line = |case: &str, stream: u64, ends: bool, bytes: &[u8]| {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(lines, "{case} {stream} {} {hex}", u8::from(ends)).expect("a string");
    };
    let greeting = |side: &mut Side| {
        let mut bytes = Vec::new();
        side.connection.write_control(&mut bytes);
        bytes
    };
    let config = Config::new().with_max_sessions(1);
    let long = "~".repeat(300);
    let fields = [("x-value", &long[..]), ("Accept", "*/*"), ("authorization", "secret")];

    let mut client = Side::of(H3Connection::client(config));
    line("request", 2, false, &greeting(&mut client));
    let target = RequestTarget::new("POST", "https", "example.com", "/chat");
    client.connection.send_request(id(0), &target, fields, false, &mut client.out).expect("a new stream");
    client.connection.send_data(id(0), &body(), false, &mut client.out).expect("an open stream");
    let end = [("X-Trailer", "end")];
    client.connection.send_trailers(id(0), end, &mut client.out).expect("an open stream");
    line("request", 0, true, &client.sent());

    let mut client = Side::of(H3Connection::client(config));
    line("session", 2, false, &greeting(&mut client));
    client.receive(3, &control(&[(8, 1), (0x33, 1)])).expect("SETTINGS");
    let target = RequestTarget::connect("webtransport", "example.com", "/session");
    client.connection.send_request(id(0), &target, [], false, &mut client.out).expect("a new stream");
    line("session", 0, false, &client.sent());
    client.receive(0, &headers(&[(":status", "200")])).expect("a response");
    for stream in [4, 6] {
        let prefix = client.connection.open_session_stream(id(stream), id(0)).expect("an open session");
        line("session", stream, true, &[prefix.as_bytes(), b"bytes of a session"].concat());
    }

    let mut server = Side::fresh(config);
    line("response", 3, false, &greeting(&mut server));
    server.ask(0);
    server.connection.send_head(id(0), 200, fields, false, &mut server.out).expect("an open stream");
    server.connection.send_data(id(0), &body(), false, &mut server.out).expect("an open stream");
    server.connection.send_trailers(id(0), end, &mut server.out).expect("an open stream");
    line("response", 0, true, &server.sent());

    for index in 0..99_u8 {
        let index = if index < 63 { vec![0xc0 | index] } else { vec![0xff, index - 63] };
        line("section", 0, false, &[&[0, 0][..], &index].concat());
    }
    let mut server = Side::new();
    server.ask(0);
    server.connection.send_head(id(0), 200, fields, true, &mut server.out).expect("an open stream");
    let head = server.sent();
    line("section", 0, false, &head[3..]);
    lines
}

#[test]
fn streams_for_aioquic_are_complete() {
    let lines = sent();
    assert_eq!(lines.lines().count(), 2 + 4 + 2 + 100);
    if let Ok(path) = std::env::var("SINEWS_H3_WRITE") {
        std::fs::write(&path, &lines).expect("the file can be written");
    }
}
