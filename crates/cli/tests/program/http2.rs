//! `sinews connect --http2` with `sinews serve`.

use sinews_testkit::TestCertificate;
use std::io::Write as _;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use crate::config::Directory;
use crate::support::{Running, program};

fn connect(arguments: &[&str], input: &str) -> (i32, String, String) {
    connect_over("--http2", &[&["--no-proxy"], arguments].concat(), input)
}

/// Exit code, standard output and standard error of `sinews connect` with this option and these messages.
pub(crate) fn connect_over(protocol: &str, arguments: &[&str], input: &str) -> (i32, String, String) {
    let mut command = program();
    command.args(["connect", protocol]).args(arguments).stdin(Stdio::piped());
    // The default ends a second after the input.
    if !input.is_empty() {
        command.args(["--wait", "60s", "--count", &input.lines().count().to_string()]);
    }
    let mut child = command.spawn().unwrap();
    // A program that exits early does not read its input.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// The library's client with the server: the windows, limits and the shutdown of both.
#[test]
fn library_opens_many_websockets_on_one_connection() {
    let server = Running::serve(&["--http-http2-clear-text"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let url = format!("ws://{}", server.address);
        let connection = sinews::http2::connect(url).no_proxy().stream_window(32 << 10).await.unwrap();
        let most = connection.max_websockets();
        assert_eq!(most, 128, "as the book says");
        let mut sockets = Vec::new();
        for _ in 0..most {
            sockets.push(connection.open("/echo").await.unwrap());
        }
        let beyond = connection.open("/echo").timeout(Duration::from_millis(50)).await;
        assert!(beyond.unwrap_err().is_timeout());
        // The first is not read, and its echo exceeds its window.
        let large = "large ".repeat(20_000);
        sockets[0].send(large.clone()).await.unwrap();
        for (number, ws) in sockets.iter_mut().enumerate().skip(1) {
            // Few are large: the first must be read within 30 seconds.
            let text = if number % 16 == 1 { format!("{number} {large}") } else { number.to_string() };
            ws.send(text.clone()).await.unwrap();
            assert_eq!(ws.next().await.unwrap().unwrap().as_text(), Some(&*text));
        }
        assert_eq!(sockets[0].next().await.unwrap().unwrap().as_text(), Some(&*large));
        server.signal("TERM");
        for mut ws in sockets {
            while ws.next().await.is_some_and(|message| message.is_ok()) {}
            let closed = ws.closed().unwrap();
            assert_eq!(closed.code(), Some(sinews::CloseCode::GOING_AWAY), "{closed}");
        }
    });
    assert!(server.wait().0.success());
}

#[test]
fn connect_speaks_http2_in_clear_text() {
    let server = Running::serve(&["--http-http2-clear-text"]);
    let url = format!("ws://{}/echo", server.address);
    let (code, out, log) = connect(&["--verbose", "--deflate", &url], "one\ntwo\n");
    assert_eq!((code, &*out), (0, "one\ntwo\n"), "{log}");
    assert!(log.contains(&format!("connected to {url} over HTTP/2")), "{log}");
    // Of several windows of a stream.
    let long = "x".repeat(3 << 20);
    let (code, out, log) = connect(&[&url], &format!("{long}\n"));
    assert_eq!(code, 0, "{log}");
    assert!(out.trim_end() == long, "{} bytes", out.len());
    let (code, out, _) = connect(&["--jsonl", &url], "one\n");
    assert!(code == 0 && out.contains("\"status\":200"), "{out}");
    assert!(server.get("/metrics").contains("sinews_http2_websockets_total 3"), "no HTTP/1.1 instead");
}

#[test]
fn connect_speaks_http2_over_tls_and_unix_sockets() {
    let (made, directory) = (TestCertificate::new(), Directory::new());
    let (certificate, key) = directory.write_tls(&made);
    let socket = directory.path("socket");
    let listen = format!("unix:{socket}");
    let tls = [
        "--tls-certificate",
        &certificate,
        "--tls-key",
        &key,
        "--http-http2-clear-text",
        "--listen",
        &listen,
    ];
    let server = Running::serve(&tls);
    let url = format!("wss://localhost:{}/echo", server.address.port());
    let resolve = format!("localhost:{}:127.0.0.1", server.address.port());
    let (code, out, log) = connect(&["--ca", &certificate, "--resolve", &resolve, &url], "hi\n");
    assert_eq!((code, &*out), (0, "hi\n"), "{log}");
    // A Unix socket has no TLS.
    let (code, out, log) = connect(&["--unix", &socket, "ws://localhost/echo"], "hi\n");
    assert_eq!((code, &*out), (0, "hi\n"), "{log}");
    // A proxy on a Unix socket passes TLS on.
    let proxy = directory.path("proxy");
    pass_to(&proxy, server.address);
    let (code, out, log) = connect(&["--ca", &certificate, "--unix", &proxy, "wss://localhost/echo"], "hi\n");
    assert_eq!((code, &*out), (0, "hi\n"), "{log}");
    let (code, _, log) = connect(&["--unix", &proxy, "wss://localhost/echo"], "");
    assert_eq!(code, 1, "{log}");
    assert!(log.contains("--ca FILE trusts its issuer"), "{log}");
}

/// Passes connections to a Unix socket on to an address, until the test ends.
fn pass_to(path: &str, address: SocketAddr) {
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let server = TcpStream::connect(address).unwrap();
            let (mut from_client, mut to_client) = (client.try_clone().unwrap(), client);
            let (mut from_server, mut to_server) = (server.try_clone().unwrap(), server);
            thread::spawn(move || {
                let _ = std::io::copy(&mut from_client, &mut to_server);
                let _ = to_server.shutdown(Shutdown::Write);
            });
            thread::spawn(move || {
                let _ = std::io::copy(&mut from_server, &mut to_client);
                let _ = to_client.shutdown(Shutdown::Write);
            });
        }
    });
}

#[test]
fn connect_over_http2_reports_rejections_and_servers_without_it() {
    let server = Running::serve(&["--http-http2-clear-text"]);
    let (code, _, log) = connect(&[&format!("ws://{}/nowhere", server.address)], "");
    assert_eq!(code, 3, "{log}");
    assert!(log.contains("the server answered 404 Not Found instead of 200"), "{log}");

    let without = Running::serve(&[]);
    let (code, _, log) = connect(&[&format!("ws://{}/echo", without.address)], "");
    assert_eq!(code, 1, "{log}");
    assert!(log.contains("the server does not speak HTTP/2 on this port"), "{log}");

    for other in ["--inspect", "--probe"] {
        assert_eq!(connect(&[other, "ws://localhost/"], "").0, 2);
    }
}
