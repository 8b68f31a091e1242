//! The way to the server: places, proxies, Unix sockets, TLS.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use std::thread;

use crate::support::{Directory, Scripted, Server, Wire, run};

#[test]
fn a_server_may_be_somewhere_else() {
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
        assert_eq!(run(&[&option, &place, &url], "hi\n").fine(), "hi\n");
        server.join();
    }
}

/// A proxy for one tunnel.
fn proxy() -> Scripted {
    Scripted::serve(|wire| {
        let target = wire.head.split(' ').nth(1).unwrap().to_owned();
        assert!(wire.head.starts_with("CONNECT "), "{}", wire.head);
        let mut server = TcpStream::connect(target).unwrap();
        wire.write("HTTP/1.1 200 OK\r\n\r\n");
        let (mut back, mut client) = (server.try_clone().unwrap(), wire.stream.try_clone().unwrap());
        let answers = thread::spawn(move || {
            let _ = std::io::copy(&mut back, &mut client);
            let _ = client.shutdown(std::net::Shutdown::Write);
        });
        let _ = std::io::copy(&mut wire.stream, &mut server);
        let _ = server.shutdown(std::net::Shutdown::Write);
        answers.join().unwrap();
    })
}

#[test]
fn a_proxy_makes_a_tunnel() {
    let server = Server::echo();
    let proxy_url = |proxy: &Scripted| format!("http://127.0.0.1:{}", proxy.port);
    let tunnel = proxy();
    assert_eq!(run(&["--proxy", &proxy_url(&tunnel), &server.url], "hi\n").fine(), "hi\n");
    tunnel.join();
    let tunnel = proxy();
    let inspected = run(&["--inspect", "--proxy", &proxy_url(&tunnel), &server.url], "hi\n");
    assert!(inspected.fine().contains("< frame 1  81 02"), "{inspected:?}");
    tunnel.join();
    assert_eq!(run(&["--no-proxy", &server.url], "hi\n").fine(), "hi\n");
    let ran = run(&["--proxy", "gopher://127.0.0.1:1", &server.url], "hi\n");
    assert!(ran.code == 1 && ran.stderr.contains("proxy"), "{ran:?}");
}

#[test]
fn a_unix_socket_is_a_way_too() {
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
    assert_eq!(run(&["--unix", &path, "ws://chat.example/"], "hi\n").fine(), "hi\n");
    let inspected = run(&["--inspect", "--unix", &path, "ws://chat.example/"], "hi\n");
    assert!(inspected.fine().contains("> Host: chat.example"), "{inspected:?}");
    served.join().unwrap();
    let ran = run(&["--unix", "/no-such-socket", "ws://chat.example/"], "");
    assert!(ran.code == 1 && ran.stderr.contains("/no-such-socket"), "{ran:?}");
}

#[test]
fn certificates_are_checked() {
    let made = rcgen::generate_simple_self_signed(["chat.example".to_owned()]).unwrap();
    let directory = Directory::new();
    let certificate = directory.write("certificate.pem", &made.cert.pem());
    let key = directory.write("key.pem", &made.signing_key.serialize_pem());
    let server = Server::start(&["--echo", "--cert", &certificate, "--key", &key]);
    assert!(server.url.starts_with("wss://"), "{}", server.url);

    let ran = run(&[&server.url], "hi\n");
    assert!(ran.code == 1 && ran.stderr.contains("TLS"), "{ran:?}");
    for further in [&[][..], &["--inspect"]] {
        let ran = run(&[&["--insecure", &server.url], further].concat(), "hi\n");
        assert!(ran.fine().contains("hi\n") || ran.text().contains("\"hi\""), "{ran:?}");
        assert!(ran.stderr.contains("WARNING: --insecure") && ran.stderr.contains("NOT checked"), "{ran:?}");
    }
    // Trusted, but not for this name.
    let ran = run(&["--ca", &certificate, &server.url], "hi\n");
    assert!(ran.code == 1 && ran.stderr.contains("not valid for name"), "{ran:?}");
    let ran = run(&["--ca", &certificate, "--server-name", "chat.example", &server.url], "hi\n");
    assert_eq!((ran.fine(), &*ran.stderr), ("hi\n", ""));
    let place = server.url.trim_start_matches("wss://").trim_end_matches('/');
    let by_name = format!("wss://chat.example:{}/", place.rsplit_once(':').unwrap().1);
    let ran = run(&["--ca", &certificate, "--connect-to", &format!("::{place}"), &by_name], "hi\n");
    assert_eq!(ran.fine(), "hi\n");
}

#[test]
fn tls_runs_over_a_unix_socket() {
    let made = rcgen::generate_simple_self_signed(["chat.example".to_owned()]).unwrap();
    let directory = Directory::new();
    let certificate = directory.write("certificate.pem", &made.cert.pem());
    let key = directory.write("key.pem", &made.signing_key.serialize_pem());
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
    let ran = run(&["--ca", &certificate, "--unix", &path, "wss://chat.example/"], "hi\n");
    assert_eq!(ran.fine(), "hi\n");
    relay.join().unwrap();
}

fn relay(from: &mut impl Read, to: &mut impl Write) {
    let _ = std::io::copy(from, to);
}
