//! WebSockets over HTTP/2: several on each connection, against this project's server and against servers with faults.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::json;
use sinews_http::h2::{Config, ErrorCode, Event, FieldBuffer, H2Connection, StreamId};

use super::support::{ServeProcess, json, run, server, sound};

/// A load of eight messages on each of the six WebSockets of two connections.
const LOAD: [&str; 7] = ["--http2", "-c", "2", "--sockets-per-connection", "3", "-n", "48"];

#[test]
fn websockets_share_connections_in_clear_text() {
    let own = ServeProcess::start(&["--http-http2"]);
    let url = own.url("ws", "/echo");
    for more in [
        &["-i", "4"][..],
        &["--deflate", "--size", "2k"],
        &["--size", "300k", "-i", "2"],
        &["--burst", "-i", "4"],
    ] {
        let result = sound(&[&[&*url][..], &LOAD, more].concat());
        assert_eq!(
            (&result["messages"], &result["latency_us"]["count"]),
            (&48.into(), &48.into()),
            "{more:?}"
        );
        assert_eq!((&result["connections_open"], &result["sockets_per_connection"]), (&2.into(), &3.into()));
        assert_eq!(result["bytes_received"], result["bytes_sent"]);
    }
    let metrics = own.get("/metrics");
    assert!(metrics.contains("sinews_http2_websockets_total 24"), "no HTTP/1.1 instead: {metrics}");
    assert!(metrics.contains("sinews_http2_connections_total 8"), "{metrics}");
    let shown = run(&[&[&*url][..], &LOAD, &["--quiet"]].concat()).stdout;
    assert!(shown.contains("2 HTTP/2 connections of 3 WebSockets"), "{shown}");
}

#[test]
fn websockets_share_connections_over_tls() {
    let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    let certificate_file = file("a.pem", &certificate.cert.pem());
    let key_file = file("a.key", &certificate.signing_key.serialize_pem());
    let tls = ["--tls-certificate", &certificate_file, "--tls-key", &key_file];
    let own = ServeProcess::start(&[&tls[..], &["--http-http2"]].concat());
    let result = sound(&[&[&*own.url("wss", "/echo"), "--insecure"][..], &LOAD].concat());
    assert_eq!(result["messages"], 48);
    let without = ServeProcess::start(&tls);
    let (result, _) =
        json(&[&[&*without.url("wss", "/echo"), "--insecure"][..], &LOAD, &["--timeout", "5s"]].concat());
    assert_eq!(result["errors"]["tls"], 2, "{result:#}");
}

#[test]
fn other_modes_count_the_websockets_of_all_connections() {
    let own = ServeProcess::start(&["--http-http2"]);
    let two_of = |sockets| ["--http2", "-c", "2", "--sockets-per-connection", sockets];
    let url = own.url("ws", "");
    let fan_out = ["-m", "fan-out", "--publishers", "1", "--rate", "100", "-d", "300ms", "--warm-up", "0s"];
    let result = sound(&[&[&*url][..], &two_of("4"), &fan_out].concat());
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    assert!(number(&result["published"]) > 0, "{result:#}");
    assert_eq!(number(&result["latency_us"]["count"]), 7 * number(&result["published"]), "seven subscribers");
    let url = own.url("ws", "/echo");
    let storm = ["-m", "storm", "-n", "20"];
    assert_eq!(sound(&[&[&*url][..], &two_of("3"), &storm].concat())["messages"], 20);
    let rate = ["--rate", "200", "-d", "300ms", "--warm-up", "0s"];
    assert_eq!(sound(&[&[&*url][..], &two_of("3"), &rate].concat())["latency_us"]["count"], 60);
}

#[test]
fn options_of_other_protocols_are_rejected() {
    for (arguments, expected) in [
        (&["http://localhost:1/", "--http2"][..], "--http2 is for ws:// and wss:// URLs"),
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
    ] {
        let run = run(arguments);
        assert!(!run.success && run.stderr.contains(expected), "{arguments:?}: {}", run.stderr);
    }
}

/// A server of one fault. It accepts each handshake, and passes the content of streams to `answer`.
fn faulty(
    config: Config,
    answer: impl Fn(&mut H2Connection, StreamId, &[u8], &mut Vec<u8>) + Clone + Send + 'static,
) -> SocketAddr {
    server(move |stream| drop(serve(stream, config, &answer)))
}

fn serve(
    mut stream: TcpStream,
    config: Config,
    answer: &impl Fn(&mut H2Connection, StreamId, &[u8], &mut Vec<u8>),
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
                Event::Data { stream, data, .. } => answer(&mut machine, stream, data, &mut out),
                _ => {}
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
    let status = ServeProcess::start(&["--http-http2"]);
    let url = status.url("ws", "/nowhere");
    let (result, _) = json(&[&url, "--http2", "-c", "1", "-n", "1", "--timeout", "5s"]);
    assert_eq!(result["errors"], json!({"handshake_refused": 1}), "{result:#}");
}
