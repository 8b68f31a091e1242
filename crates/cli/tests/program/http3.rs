//! `sinews connect --http3` with `sinews serve`.

use sinews_testkit::TestCertificate;
use std::io::Write as _;
use std::net::UdpSocket;
use std::process::Stdio;

use crate::config::Directory;
use crate::http2::connect_over;
use crate::support::{Running, program};

fn connect(arguments: &[&str], input: &str) -> (i32, String, String) {
    connect_over("--http3", arguments, input)
}

#[test]
fn connect_speaks_http3() {
    let (made, directory) = (TestCertificate::new(), Directory::new());
    let (certificate, key) = directory.write_tls(&made);
    let tls = ["--tls-certificate", &certificate, "--tls-key", &key];
    let server = Running::serve(&[&tls[..], &["--http-http3"]].concat());
    let url = format!("wss://localhost:{}/echo", server.address.port());
    let resolve = format!("localhost:{}:127.0.0.1", server.address.port());
    let trusted = ["--ca", &certificate, "--resolve", &resolve];
    let with = |more: &[&str], input: &str| connect(&[&trusted[..], more].concat(), input);
    let (code, out, log) = with(&["--verbose", "--deflate", &url], "one\ntwo\n");
    assert_eq!((code, &*out), (0, "one\ntwo\n"), "{log}");
    assert!(log.contains(&format!("connected to {url} over HTTP/3, permessage-deflate")), "{log}");
    // Of several windows of a stream.
    let long = "x".repeat(3 << 20);
    let (code, out, log) = with(&[&url], &format!("{long}\n"));
    assert_eq!(code, 0, "{log}");
    assert!(out.trim_end() == long, "{} bytes", out.len());
    let (code, out, _) = with(&["--jsonl", &url], "one\n");
    assert!(code == 0 && out.contains("\"status\":200"), "{out}");

    let nowhere = url.replace("/echo", "/nowhere");
    let (code, _, log) = with(&[&nowhere], "");
    assert_eq!(code, 3, "{log}");
    assert!(log.contains("404"), "{log}");
    let (code, _, log) = connect(&["--resolve", &resolve, &url], "");
    assert_eq!(code, 1, "{log}");
    assert!(log.contains("certificate"), "{log}");

    // The server stops: Close with 1001.
    let mut command = program();
    command.args(["connect", "--http3"]).args(trusted).args(["--verbose", &url]).stdin(Stdio::piped());
    let mut waiting = command.stderr(Stdio::piped()).spawn().unwrap();
    waiting.stdin.as_mut().unwrap().write_all(b"one\n").unwrap();
    let mut received = std::io::BufReader::new(waiting.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut received, &mut line).unwrap();
    assert_eq!(line, "one\n");
    server.signal("TERM");
    assert!(server.wait().0.success());
    assert_eq!(waiting.wait().unwrap().code(), Some(0));
}

#[test]
fn connect_over_http3_reports_servers_without_it() {
    let (code, _, log) = connect(&["ws://localhost:1/"], "");
    assert_eq!(code, 1, "{log}");
    assert!(log.contains("--http3 needs a wss:// or https:// URL"), "{log}");
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let url = format!("wss://{}/", silent.local_addr().unwrap());
    let (code, _, log) = connect(&["--insecure", "--connect-timeout", "200ms", &url], "");
    assert_eq!(code, 6, "{log}");
    assert!(log.contains("no WebSocket over HTTP/3 within 200ms"), "{log}");
    for other in [["--inspect", "wss://localhost/"], ["--http2", "wss://localhost/"]] {
        assert_eq!(connect(&other, "").0, 2);
    }
}
