//! WebSockets and requests over HTTP/3, against this project's server, and servers without it.

use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;

use super::support::{
    Files, SHARED_LOAD, WAYS, check_other_modes, check_shared_connections, json, run, sound,
};

#[test]
fn websockets_share_connections() {
    let files = Files::new();
    let own = files.serve(&["--http-http3"]);
    let url = own.url("wss", "/echo");
    let of = [&*url, "--insecure", "--http3"];
    check_shared_connections(&of, &WAYS);
    check_shared_connections(&of, &[&["--busy-poll"]]);
    let shown = run(&[&of[..], &SHARED_LOAD, &["--quiet"]].concat()).stdout;
    assert!(shown.contains("2 HTTP/3 connections of 3 WebSockets"), "{shown}");
}

#[test]
fn requests_run_at_once_on_a_connection() {
    let files = Files::new();
    let own = files.serve(&["--http-http3"]);
    // More than the streams that the server permits: the rest waits.
    let url = own.url("https", "/healthz");
    let load = ["--insecure", "--http3", "-c", "2", "-i", "300", "-n", "2000", "--expect", "ok\n"];
    let result = sound(&[&[&*url][..], &load].concat());
    assert_eq!((&result["messages"], &result["connections_open"]), (&2000.into(), &2.into()));
    let post = ["--method", "POST", "--size", "20k", "-n", "40", "-i", "4", "-H", "X-Name: a"];
    let url = own.url("https", "/topics/a");
    let result = sound(&[&[&*url, "--insecure", "--http3", "-c", "2"][..], &post].concat());
    assert_eq!(result["messages"], 40);
    let wrong = ["--insecure", "--http3", "-c", "1", "-n", "1", "--expect", "other", "--timeout", "5s"];
    let (result, _) = json(&[&[&*own.url("https", "/healthz")][..], &wrong].concat());
    assert_eq!(result["errors"]["wrong_bytes"], 1, "{result:#}");
    let missing = ["--insecure", "--http3", "-c", "1", "-n", "3"];
    let (result, _) = json(&[&[&*own.url("https", "/nowhere")][..], &missing].concat());
    assert_eq!(result["errors"]["http_status"], 3, "{result:#}");
}

#[test]
fn other_modes_count_the_websockets_of_all_connections() {
    let files = Files::new();
    let own = files.serve(&["--http-http3"]);
    check_other_modes(&own, "wss", &["--insecure", "--http3"]);
}

/// Messages of a session use its stream, and publications its datagrams.
#[test]
fn sessions_of_webtransport_share_connections() {
    let files = Files::new();
    // Without TLS, for its metrics.
    let clear = files.path("clear.sock");
    let own = files.serve(&["--http-http3", "--listen", &format!("unix:{clear}")]);
    let url = own.url("wss", "/echo");
    let load = ["--insecure", "--webtransport", "-c", "2", "--sockets-per-connection", "3", "-n", "48"];
    for more in [&["-i", "4"][..], &["--size", "300k", "-i", "2", "--binary"], &["--burst", "-i", "4"]] {
        let result = sound(&[&[&*url][..], &load, more].concat());
        let count = &result["latency_us"]["count"];
        assert_eq!((&result["messages"], count), (&48.into(), &48.into()), "{more:?}");
        assert_eq!((&result["webtransport"], &result["http3"]), (&true.into(), &true.into()));
        assert_eq!(result["bytes_received"], result["bytes_sent"]);
    }
    let shown = run(&[&[&*url][..], &load, &["--quiet"]].concat()).stdout;
    assert!(shown.contains("2 HTTP/3 connections of 3 sessions"), "{shown}");
    let metric = |name: &str| {
        let mut socket = UnixStream::connect(&clear).unwrap();
        socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut metrics = String::new();
        socket.read_to_string(&mut metrics).unwrap();
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        line.and_then(|value| value.parse::<u64>().ok()).unwrap_or_else(|| panic!("{name}: {metrics}"))
    };
    assert_eq!(metric("sinews_webtransport_sessions_total"), 4 * 6);
    let before = metric("sinews_webtransport_datagrams_sent_total");
    let url = own.url("wss", "/topics/{topic}?datagrams=true&self=false");
    let fan_out = ["-m", "fan-out", "--burst", "-d", "300ms", "--warm-up", "0s"];
    let result = sound(&[&[&*url, "--insecure", "--webtransport", "-c", "5"][..], &fan_out].concat());
    let (published, received) = (&result["published"], &result["latency_us"]["count"]);
    let [published, received] = [published, received].map(|value| value.as_u64().unwrap());
    assert!(published > 0 && received == 4 * published, "{result:#}");
    assert_eq!(metric("sinews_webtransport_datagrams_sent_total") - before, received);
    // Beyond the limit of sessions, and no session at all.
    for (path, sessions) in [("/echo", "5"), ("/nowhere", "1")] {
        let one = ["--insecure", "--webtransport", "-c", "1", "-n", "1", "--timeout", "5s"];
        let url = own.url("wss", path);
        let (result, _) = json(&[&[&*url, "--sockets-per-connection", sessions][..], &one].concat());
        assert_eq!(result["errors"]["handshake_refused"], 1, "{path}: {result:#}");
    }
}

#[test]
fn servers_that_do_not_offer_it_are_reported() {
    let files = Files::new();
    let own = files.serve(&["--http-http3"]);
    let url = own.url("wss", "/echo");
    let one = ["--http3", "-c", "1", "-n", "1", "--timeout", "5s"];
    // An unknown certificate.
    let (result, _) = json(&[&[&*url][..], &one].concat());
    assert_eq!(result["errors"]["tls"], 1, "{result:#}");
    let (result, _) = json(&[&[&*own.url("wss", "/nowhere"), "--insecure"][..], &one].concat());
    assert_eq!(result["errors"]["handshake_refused"], 1, "{result:#}");
    let many = ["--sockets-per-connection", "200", "--insecure"];
    let (result, _) = json(&[&[&*url][..], &one, &many].concat());
    assert_eq!(result["errors"]["handshake_refused"], 1, "{result:#}");
    // Nobody answers.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let url = format!("wss://{}/", silent.local_addr().unwrap());
    let quick = ["--http3", "-c", "1", "-n", "1", "--timeout", "300ms"];
    let (result, _) = json(&[&[&*url][..], &quick].concat());
    assert_eq!(result["errors"]["connect_timeout"], 1, "{result:#}");
}

#[test]
fn options_of_other_protocols_are_rejected() {
    for (arguments, expected) in [
        (&["ws://localhost:1/", "--http3"][..], "--http3 is for wss:// and https:// URLs"),
        (&["tcp://localhost:1", "--http3"], "--http3 is for wss:// and https:// URLs"),
        (&["wss://localhost:1/", "--http3", "--http2"], "--http2"),
        (&["https://localhost:1/", "--webtransport"], "--webtransport is for wss:// URLs"),
        (&["wss://localhost:1/", "--webtransport", "--deflate"], "--deflate"),
        (
            &["https://localhost:1/", "--http3", "--sockets-per-connection", "2"],
            "--sockets-per-connection is for WebSocket",
        ),
    ] {
        let run = run(arguments);
        assert!(!run.success && run.stderr.contains(expected), "{arguments:?}: {}", run.stderr);
    }
}
