//! Routes to the server: replaced addresses, proxies, Unix sockets, TLS.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::thread;

use sinews_testkit::TestCertificate;

use super::support::{Scripted, Server, TIMEOUT, Wire, echoed, run};
use crate::directory::Directory;

#[test]
fn resolve_and_connect_to_replace_the_address() {
    for options in [
        |port: u16| ["--resolve".to_owned(), format!("chat.example:{port}:127.0.0.1")],
        |port: u16| ["--connect-to".to_owned(), format!("chat.example:{port}:127.0.0.1:{port}")],
        |port: u16| ["--connect-to".to_owned(), format!("::127.0.0.1:{port}")],
    ] {
        let server = Scripted::serve(|wire| {
            assert!(
                wire.header("host").is_some_and(|host| host.starts_with("chat.example:")),
                "{}",
                wire.head
            );
            wire.switch("", b"");
            wire.echo();
        });
        let [option, place] = options(server.port);
        let url = format!("ws://chat.example:{}/", server.port);
        assert_eq!(echoed(&[&option, &place, &url]).fine(), "hi\n");
        server.join();
    }
}

/// A proxy for one tunnel.
fn proxy() -> Scripted {
    Scripted::serve(|wire| {
        let target = wire.head.split(' ').nth(1).unwrap().to_owned();
        assert!(wire.head.starts_with("CONNECT "), "{}", wire.head);
        let server = TcpStream::connect(target).unwrap();
        wire.write("HTTP/1.1 200 OK\r\n\r\n");
        tunnel(wire.stream.try_clone().unwrap(), server);
    })
}

/// Forwards data in both directions until both ends have closed.
fn tunnel(mut client: TcpStream, mut server: TcpStream) {
    let (mut back, mut answers) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    let thread = thread::spawn(move || {
        relay(&mut back, &mut answers);
        let _ = answers.shutdown(std::net::Shutdown::Write);
    });
    relay(&mut client, &mut server);
    let _ = server.shutdown(std::net::Shutdown::Write);
    thread.join().unwrap();
}

#[test]
fn http_proxy_tunnels_the_connection() {
    let server = Server::echo();
    let proxy_url = |proxy: &Scripted| format!("http://127.0.0.1:{}", proxy.port);
    let tunnel = proxy();
    assert_eq!(echoed(&["--proxy", &proxy_url(&tunnel), &server.url]).fine(), "hi\n");
    tunnel.join();
    let tunnel = proxy();
    let inspected = echoed(&["--inspect", "--proxy", &proxy_url(&tunnel), &server.url]);
    assert!(inspected.fine().contains("< frame 1  81 02"), "{inspected:?}");
    tunnel.join();
    assert_eq!(echoed(&["--no-proxy", &server.url]).fine(), "hi\n");
    let ran = run(&["--proxy", "gopher://127.0.0.1:1", &server.url], "hi\n");
    assert!(ran.code == 1 && ran.stderr.contains("proxy"), "{ran:?}");
}

/// A client's request to a SOCKS5 proxy (RFC 1928): the address type and the address.
type SocksRequest = (u8, Vec<u8>);

/// A SOCKS5 proxy for one client. It connects to the server regardless of the requested address, or answers with an
/// error code. With credentials, it requires a name and a password (RFC 1929).
fn socks(
    server: u16,
    credentials: Option<&'static str>,
    refusal: Option<u8>,
) -> (u16, thread::JoinHandle<SocksRequest>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = move || {
        let (mut client, _) = listener.accept().unwrap();
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
        let take = |client: &mut TcpStream, count: usize| {
            let mut bytes = vec![0; count];
            client.read_exact(&mut bytes).unwrap();
            bytes
        };
        let counted = |client: &mut TcpStream| {
            let count = take(client, 1)[0];
            take(client, usize::from(count))
        };
        assert_eq!(take(&mut client, 1), [5]);
        let methods = counted(&mut client);
        let method = if credentials.is_some() { 2 } else { 0 };
        assert!(methods.contains(&method), "{methods:?}");
        client.write_all(&[5, method]).unwrap();
        if let Some(credentials) = credentials {
            assert_eq!(take(&mut client, 1), [1]);
            let (name, password) = (counted(&mut client), counted(&mut client));
            assert_eq!([name, password].join(&b':'), credentials.as_bytes());
            client.write_all(&[1, 0]).unwrap();
        }
        let request = take(&mut client, 4);
        assert_eq!(request[..3], [5, 1, 0], "CONNECT");
        let address = match request[3] {
            1 => take(&mut client, 4),
            4 => take(&mut client, 16),
            _ => counted(&mut client),
        };
        take(&mut client, 2);
        client.write_all(&[5, refusal.unwrap_or(0), 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
        if refusal.is_none() {
            tunnel(client, TcpStream::connect(("127.0.0.1", server)).unwrap());
        }
        (request[3], address)
    };
    (port, thread::spawn(serve))
}

#[test]
fn socks_proxy_tunnels_the_connection() {
    let server = Server::echo();
    let place = server.url.trim_start_matches("ws://").trim_end_matches('/');
    let port: u16 = place.rsplit_once(':').unwrap().1.parse().unwrap();
    let by_name = format!("ws://chat.example:{port}/");
    let known = format!("chat.example:{port}:192.0.2.1");
    // The proxy receives a name, or the locally resolved address.
    for (scheme, options, credentials, expected) in [
        ("socks5h", &[][..], None, (3, b"chat.example".to_vec())),
        ("socks5h", &["--inspect"], Some("me:secret"), (3, b"chat.example".to_vec())),
        ("socks5", &["--resolve", &known], None, (1, vec![192, 0, 2, 1])),
        ("socks5", &["--resolve", &known, "--inspect"], Some("me:secret"), (1, vec![192, 0, 2, 1])),
    ] {
        let (proxy, served) = socks(port, credentials, None);
        let user = credentials.map_or_else(String::new, |credentials| format!("{credentials}@"));
        let through = format!("{scheme}://{user}127.0.0.1:{proxy}");
        let ran = echoed(&[&["--proxy", &through, &by_name][..], options].concat());
        assert!(ran.fine().contains("hi"), "{scheme}, {options:?}: {ran:?}");
        assert_eq!(served.join().unwrap(), expected, "{scheme}, {options:?}");
    }
    // Connection refused (RFC 1928 section 6).
    let (proxy, served) = socks(port, None, Some(5));
    let ran = run(&["--proxy", &format!("socks5h://127.0.0.1:{proxy}"), &by_name], "hi\n");
    assert!(ran.code == 1 && ran.stderr.contains("refused"), "{ran:?}");
    served.join().unwrap();
}

#[test]
fn unix_socket_replaces_the_address() {
    let directory = Directory::new();
    let path = directory.path("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let served = thread::spawn(move || {
        for _ in 0..2 {
            let mut wire = Wire::new(listener.accept().unwrap().0);
            assert_eq!(wire.header("host"), Some("chat.example"));
            wire.switch("", b"");
            wire.echo();
        }
    });
    assert_eq!(echoed(&["--unix", &path, "ws://chat.example/"]).fine(), "hi\n");
    let inspected = echoed(&["--inspect", "--unix", &path, "ws://chat.example/"]);
    assert!(inspected.fine().contains("> Host: chat.example"), "{inspected:?}");
    served.join().unwrap();
    let ran = run(&["--unix", "/no-such-socket", "ws://chat.example/"], "");
    assert!(ran.code == 1 && ran.stderr.contains("/no-such-socket"), "{ran:?}");
}

#[test]
fn server_certificate_is_verified() {
    let made = TestCertificate::for_names(&["chat.example"]);
    let directory = Directory::new();
    let (certificate, key) = directory.write_tls(&made);
    let server = Server::start(&["--echo", "--cert", &certificate, "--key", &key]);
    assert!(server.url.starts_with("wss://"), "{}", server.url);

    let ran = run(&[&server.url], "hi\n");
    assert!(ran.code == 1 && ran.stderr.contains("TLS"), "{ran:?}");
    for further in [&[][..], &["--inspect"]] {
        let ran = echoed(&[&["--insecure", &server.url], further].concat());
        assert!(ran.fine().contains("hi\n") || ran.text().contains("\"hi\""), "{ran:?}");
        assert!(ran.stderr.contains("WARNING: --insecure") && ran.stderr.contains("NOT checked"), "{ran:?}");
    }
    // Trusted, but for another name.
    let ran = run(&["--ca", &certificate, &server.url], "hi\n");
    assert!(ran.code == 1 && ran.stderr.contains("not valid for name"), "{ran:?}");
    let ran = echoed(&["--ca", &certificate, "--server-name", "chat.example", &server.url]);
    assert_eq!((ran.fine(), &*ran.stderr), ("hi\n", ""));
    let place = server.url.trim_start_matches("wss://").trim_end_matches('/');
    let by_name = format!("wss://chat.example:{}/", place.rsplit_once(':').unwrap().1);
    let ran = echoed(&["--ca", &certificate, "--connect-to", &format!("::{place}"), &by_name]);
    assert_eq!(ran.fine(), "hi\n");
}

#[test]
fn tls_works_over_a_unix_socket() {
    let made = TestCertificate::for_names(&["chat.example"]);
    let directory = Directory::new();
    let (certificate, key) = directory.write_tls(&made);
    let server = Server::start(&["--echo", "--cert", &certificate, "--key", &key]);
    let path = directory.path("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let place = server.url.trim_start_matches("wss://").trim_end_matches('/').to_owned();
    let relay = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(place).unwrap();
        let (mut back, mut answers) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        let thread = thread::spawn(move || relay(&mut back, &mut answers));
        relay(&mut client, &mut server);
        let _ = server.shutdown(std::net::Shutdown::Write);
        thread.join().unwrap();
    });
    let ran = echoed(&["--ca", &certificate, "--unix", &path, "wss://chat.example/"]);
    assert_eq!(ran.fine(), "hi\n");
    relay.join().unwrap();
}

fn relay(from: &mut impl Read, to: &mut impl Write) {
    let _ = std::io::copy(from, to);
}
