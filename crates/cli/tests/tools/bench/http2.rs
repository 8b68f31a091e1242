//! WebSockets and requests over HTTP/2: several on each connection, against this project's server and against servers with faults.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use sinews_http::h2::{Config, ErrorCode, Event, FieldBuffer, H2Connection, StreamId};

use super::support::{
    Files, SHARED_LOAD, Served, WAYS, check_other_modes, check_shared_connections, json, run, server, sound,
};

#[test]
fn websockets_share_connections_in_clear_text() {
    let (own, url) = Served::with_url(&["--http-http2-clear-text"], "ws", "/echo");
    check_shared_connections(&[&url, "--http2"], &WAYS);
    let metrics = own.get("/metrics");
    assert!(metrics.contains("sinews_http2_websockets_total 24"), "no HTTP/1.1 instead: {metrics}");
    assert!(metrics.contains("sinews_http2_connections_total 8"), "{metrics}");
    let shown = run(&[&[&*url, "--http2"][..], &SHARED_LOAD, &["--quiet"]].concat()).stdout;
    assert!(shown.contains("2 HTTP/2 connections of 3 WebSockets"), "{shown}");
}

#[test]
fn websockets_share_connections_over_tls() {
    let files = Files::new();
    let load = |own: &Served, more: &[&str]| {
        let url = own.url("wss", "/echo");
        json(&[&[&*url, "--insecure", "--http2"][..], &SHARED_LOAD, more].concat()).0
    };
    let result = load(&files.serve(&[]), &[]);
    assert_eq!((&result["messages"], &result["errors"]), (&48.into(), &json!({})));
    let result = load(&files.serve(&["--http-http2=false"]), &["--timeout", "5s"]);
    assert_eq!(result["errors"]["tls"], 2, "{result:#}");
}

#[test]
fn other_modes_count_the_websockets_of_all_connections() {
    check_other_modes(&Served::start(&["--http-http2-clear-text"]), "ws", &["--http2"]);
}

#[test]
fn options_of_other_protocols_are_rejected() {
    for (arguments, expected) in [
        (&["tcp://localhost:1", "--http2"][..], "--http2 is not for tcp:// URLs"),
        (&["http://localhost:1/", "--http2", "--method", "post"], "--http2 sends requests without a body"),
        (&["ws://localhost:1/", "--sockets-per-connection", "2"], "--http2"),
        (
            &[
                "ws://localhost:1/",
                "--http2",
                "-m",
                "fan-out",
                "--sockets-per-connection",
                "2",
                "--publish-url",
                "ws://localhost:2/",
            ],
            "excludes --sockets-per-connection",
        ),
        (&["ws://localhost:1/", "--http2", "-H", "Keep-Alive: 1"], "--header"),
        (
            &["ws://localhost:1/", "--http2", "-c", "4", "--sockets-per-connection", "9223372036854775807"],
            "--connections 4 times --sockets-per-connection 9223372036854775807 exceeds",
        ),
    ] {
        let run = run(arguments);
        assert!(!run.success && run.stderr.contains(expected), "{arguments:?}: {}", run.stderr);
    }
}

#[test]
fn requests_share_connections() {
    let (files, clear_text) = (Files::new(), Served::start(&["--http-http2-clear-text"]));
    let secure = files.serve(&[]);
    let load = ["--http2", "-c", "2", "-n", "400", "--expect", "ok\n"];
    for (own, scheme, more) in [(&clear_text, "http", "--binary"), (&secure, "https", "--insecure")] {
        let url = own.url(scheme, "/healthz");
        // More requests than the server permits streams wait for earlier answers.
        for depth in ["1", "16", "150"] {
            let result = sound(&[&[&*url, "-i", depth, more][..], &load].concat());
            let counts =
                (&result["messages"], &result["latency_us"]["count"], &result["connect_us"]["count"]);
            assert_eq!(counts, (&400.into(), &400.into(), &2.into()), "{scheme}, {depth}");
        }
    }
    assert!(clear_text.get("/metrics").contains("sinews_http2_connections_total 6"), "no HTTP/1.1 instead");
}

#[test]
fn faults_of_answers_are_counted_by_name() {
    let errors = |address: SocketAddr, more: &[&str]| {
        let url = format!("http://{address}/");
        json(&[&[&*url, "--http2", "-c", "1", "-n", "1", "--timeout", "5s"], more].concat()).0["errors"]
            .clone()
    };
    let own = Served::start(&["--http-http2-clear-text"]);
    assert_eq!(errors(own.address, &["--expect", "other"]), json!({ "wrong_bytes": 1 }));
    let url = own.url("http", "/nowhere");
    let (result, run) = json(&[&*url, "--http2", "-c", "1", "-n", "3"]);
    assert_eq!((&result["errors"], run.success), (&json!({ "http_status": 3 }), false));
    let goes_away = server(|mut stream| {
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let go_away = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        stream.write_all(&[&settings[..], &go_away].concat()).unwrap();
        drop(stream.read_to_end(&mut Vec::new()));
    });
    assert!(errors(goes_away, &[])["closed_by_server"].is_number());
}

/// A server of one fault. It accepts each handshake, and passes the content of streams to `answer`.
fn faulty(
    config: Config,
    answer: impl Fn(&mut H2Connection, StreamId, &[u8], &mut Vec<u8>) + Clone + Send + 'static,
) -> SocketAddr {
    scripted(config, move |machine, event, out| {
        if let Event::Data { stream, data, .. } = event {
            answer(machine, stream, data, out);
        }
    })
}

/// A server that accepts each handshake, and passes other events to `answer`.
fn scripted(
    config: Config,
    answer: impl Fn(&mut H2Connection, Event<'_>, &mut Vec<u8>) + Clone + Send + 'static,
) -> SocketAddr {
    server(move |stream| drop(serve(stream, config, &answer)))
}

fn serve(
    mut stream: TcpStream,
    config: Config,
    answer: &impl Fn(&mut H2Connection, Event<'_>, &mut Vec<u8>),
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let (mut machine, mut fields, mut out) = (H2Connection::server(config), FieldBuffer::new(), Vec::new());
    let mut chunk = [0; 4096];
    loop {
        machine.write_control(&mut out);
        stream.write_all(&std::mem::take(&mut out))?;
        let count = stream.read(&mut chunk)?;
        if count == 0 {
            return Ok(());
        }
        let mut input = &chunk[..count];
        while let Ok(Some(event)) = machine.receive(&mut input, &mut fields, Duration::ZERO) {
            match event {
                Event::Request { stream, .. } => drop(machine.send_head(stream, 200, [], false, &mut out)),
                event => answer(&mut machine, event, &mut out),
            }
        }
    }
}

#[track_caller]
fn fails(address: SocketAddr, more: &[&str], kind: &str, text: &str) {
    let url = format!("ws://{address}/");
    let arguments = ["--http2", "-c", "1", "-n", "1", "--timeout", "5s"];
    let arguments = [&[&*url][..], &arguments, more].concat();
    let (result, run) = json(&arguments);
    assert_eq!(result["errors"][kind], 1, "{result:#}");
    assert!(run.stderr.contains(text), "{}", run.stderr);
}

#[test]
fn faults_of_servers_are_counted_by_name() {
    let websockets = Config::new().with_extended_connect(true);
    let none = |_: &mut H2Connection, _: StreamId, _: &[u8], _: &mut Vec<u8>| ();
    let refuses = "the server offers no WebSockets over HTTP/2";
    fails(faulty(Config::new(), none), &[], "handshake_refused", refuses);
    let few = faulty(websockets.with_max_streams(2), none);
    fails(
        few,
        &["--sockets-per-connection", "3"],
        "handshake_refused",
        "exceeds the streams that the server permits (2)",
    );
    let echoes = faulty(websockets, |machine, stream, _, out| {
        let _ = machine.send_data(stream, b"\x81\x01x", false, out);
    });
    fails(echoes, &[], "wrong_bytes", "echo differs");
    let resets = faulty(websockets, |machine, stream, _, _| machine.reset(stream, ErrorCode::INTERNAL_ERROR));
    fails(resets, &[], "reset_by_server", "stream was reset with INTERNAL_ERROR");
    let ends = faulty(websockets, |machine, stream, _, out| {
        let _ = machine.send_data(stream, b"\x81\x01", true, out);
    });
    fails(ends, &[], "closed_by_server", "the server ended a stream");
    let calms = faulty(websockets, |machine, _, _, _| machine.shut_down_now(ErrorCode::ENHANCE_YOUR_CALM));
    fails(calms, &[], "closed_by_server", "ENHANCE_YOUR_CALM");
    let other = server(|mut stream| drop(stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")));
    fails(other, &[], "protocol_violation", "HTTP/2");
    let status = Served::start(&["--http-http2-clear-text"]);
    let url = status.url("ws", "/nowhere");
    let (result, _) = json(&[&url, "--http2", "-c", "1", "-n", "1", "--timeout", "5s"]);
    assert_eq!(result["errors"], json!({"handshake_refused": 1}), "{result:#}");
}

/// The payload of a short masked frame.
fn unmask(frame: &[u8]) -> Vec<u8> {
    frame[6..].iter().zip(frame[2..6].iter().cycle()).map(|(byte, mask)| byte ^ mask).collect()
}

const CLOSE: u8 = 0x88;

#[test]
fn each_websocket_of_a_connection_completes_its_close() {
    let closes = Arc::new(Mutex::new(Vec::new()));
    let seen = closes.clone();
    let answer = |machine: &mut H2Connection, stream, payload: &[u8], out: &mut Vec<u8>| {
        let frame = [&[CLOSE, payload.len() as u8], payload].concat();
        machine.send_data(stream, &frame, true, out).unwrap();
    };
    let address = scripted(Config::new().with_extended_connect(true), move |machine, event, out| {
        let mut closes = seen.lock().unwrap();
        match event {
            Event::Data { stream, data, .. } if data.first() == Some(&CLOSE) => {
                let payload = unmask(data);
                let is_first = closes.is_empty();
                if is_first {
                    // The other answers follow the client's answer to the ping.
                    answer(machine, stream, &payload, out);
                    machine.ping([7; 8]);
                }
                closes.push((stream, payload, is_first));
            }
            Event::Data { stream, data, .. } => {
                let payload = unmask(data);
                let frame = [&[data[0], payload.len() as u8], &*payload].concat();
                machine.send_data(stream, &frame, false, out).unwrap();
            }
            Event::Pong { .. } => {
                for (stream, payload, is_answered) in &mut closes[1..] {
                    answer(machine, *stream, payload, out);
                    *is_answered = true;
                }
            }
            _ => {}
        }
    });
    let url = format!("ws://{address}/");
    let result =
        sound(&[&url, "--http2", "-c", "1", "--sockets-per-connection", "3", "-n", "3", "--size", "5"]);
    assert_eq!(result["messages"], 3, "{result:#}");
    let closes = closes.lock().unwrap();
    assert_eq!(closes.len(), 3, "{closes:?}");
    assert!(closes.iter().all(|(_, code, is_answered)| code == &[3, 232] && *is_answered), "{closes:?}");
}

#[test]
fn streams_that_end_instead_of_a_close_end_their_connection() {
    // Each content is a Close of the client. The server keeps its connections.
    let ends = faulty(Config::new().with_extended_connect(true), |machine, stream, _, out| {
        machine.send_data(stream, b"", true, out).unwrap();
    });
    let url = format!("ws://{ends}/");
    assert_eq!(sound(&[&url, "--http2", "-c", "1", "-m", "storm", "-n", "3"])["messages"], 3);
}

#[test]
fn goaway_before_the_requests_fails_the_handshake() {
    for last_stream in [[0; 4], [0x7f, 0xff, 0xff, 0xff]] {
        let goes_away = server(move |mut stream| {
            let settings = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 1];
            let go_away = [&[0, 0, 8, 7, 0, 0, 0, 0, 0][..], &last_stream, &[0; 4]].concat();
            stream.write_all(&[&settings[..], &go_away].concat()).unwrap();
            drop(stream.read_to_end(&mut Vec::new()));
        });
        fails(goes_away, &[], "handshake_refused", "the server accepts no further streams");
    }
}
