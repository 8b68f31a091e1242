//! Certificates by server name, and errors of certificates.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use sinews_testkit::TestCertificate;
use sinews_testkit::tls::trusting;

use crate::config::Directory;
use crate::support::{Running, fails, program};

/// A client that requests a server name and trusts these certificates.
fn client(
    server: &Running,
    name: &str,
    trusted: &[&TestCertificate],
) -> StreamOwned<ClientConnection, TcpStream> {
    let config = Arc::new(trusting(trusted.iter().map(|made| made.der())));
    let name = ServerName::try_from(name.to_owned()).unwrap();
    StreamOwned::new(ClientConnection::new(config, name).unwrap(), server.connect())
}

/// The answer to a request of the start page.
pub(crate) fn get(server: &Running, name: &str, trusted: &[&TestCertificate]) -> std::io::Result<String> {
    let mut stream = client(server, name, trusted);
    write!(stream, "GET /healthz HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn all_routes_are_served_over_tls() {
    let (made, directory) = (TestCertificate::new(), Directory::new());
    let (certificate, key) = directory.write_tls(&made);
    let mut command = program();
    command.args(["--listen", "0.0.0.0:0", "--tls-certificate", &certificate, "--tls-key", &key]);
    let server = Running::start(&mut command);
    for line in [" https://localhost:", " wss://localhost:"] {
        assert!(server.table.contains(line), "{line} in {}", server.table);
    }
    assert!(get(&server, "localhost", &[&made]).unwrap().ends_with("\r\n\r\nok\n"));
    let mut socket = client(&server, "localhost", &[&made]);
    // With the origin of a page of this server.
    write!(
        socket,
        "GET /echo HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Origin: https://localhost\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Version: 13\r\n\r\n"
    )
    .unwrap();
    let mut status = [0; 12];
    socket.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 101");
    drop(socket);
    let mut plain = server.connect();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // An alert, or a reset after it.
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    // The server would wait for this end of the connection.
    drop(plain);
    server.signal("TERM");
    let log = server.wait().1;
    assert!(log.contains("can publish and subscribe to every topic"), "{log}");
    assert!(!log.contains("does not use TLS"), "{log}");
}

#[test]
fn certificates_are_chosen_by_name_and_renewed_by_a_signal() {
    let directory = Directory::new();
    let (one, two) =
        (TestCertificate::for_names(&["one.example"]), TestCertificate::for_names(&["two.example"]));
    let mut lists = [Vec::new(), Vec::new()];
    for (name, made) in [("one", &one), ("two", &two)] {
        lists[0].push(directory.write(&format!("{name}.pem"), &made.pem()));
        lists[1].push(directory.write(&format!("{name}.key"), &made.key_pem()));
    }
    let text = format!("[tls]\ncertificate = {:?}\nkey = {:?}\n", lists[0], lists[1]);
    let file = directory.write("sinews.toml", &text);
    let mut server = Running::serve(&["--config", &file]);
    let mut log = BufReader::new(server.child.stderr.take().unwrap()).lines();
    let mut until = |message: &str| {
        log.find(|line| line.as_ref().is_ok_and(|line| line.contains(message))).expect("the words").unwrap()
    };
    for (name, made) in [("one.example", &one), ("two.example", &two)] {
        assert!(get(&server, name, &[made]).unwrap().starts_with("HTTP/1.1 200 "));
    }

    let renewed = TestCertificate::for_names(&["two.example"]);
    directory.write("two.pem", &renewed.pem());
    server.signal("HUP");
    let line = until("was not applied");
    assert!(line.contains("tls.key") && line.contains("two.key"), "half of it is renewed: {line}");
    assert!(get(&server, "two.example", &[&two]).is_ok());

    directory.write("two.key", &renewed.key_pem());
    server.signal("HUP");
    until("has been read again");
    assert!(
        get(&server, "two.example", &[&renewed]).is_ok() && get(&server, "two.example", &[&two]).is_err()
    );
    assert!(get(&server, "one.example", &[&one]).is_ok());

    directory.write("sinews.toml", "");
    server.signal("HUP");
    assert!(until("has been read again").ends_with("needs a restart: tls"));
    assert!(get(&server, "one.example", &[&one]).is_ok());
}

#[test]
fn certificate_errors_name_file_and_setting() {
    let directory = Directory::new();
    let (made, other) = (TestCertificate::new(), TestCertificate::new());
    let certificate = directory.write("a.pem", &made.pem());
    let (key, wrong) =
        (directory.write("a.key", &made.key_pem()), directory.write("b.key", &other.key_pem()));
    for (certificate, key, parts) in [
        ("/nowhere.pem", &*key, &["tls.certificate: /nowhere.pem: "][..]),
        (&*certificate, "/nowhere.key", &["tls.key: /nowhere.key: "]),
        (&*certificate, &*wrong, &["a.pem", "b.key", "certificate and key: "]),
        (&*key, &*key, &["tls.certificate ", "a.key", "no certificate"]),
        (&*certificate, &*certificate, &["tls.key ", "a.pem", "the key: "]),
    ] {
        let text = format!("[tls]\ncertificate = {certificate:?}\nkey = {key:?}\n");
        let file = directory.write("sinews.toml", &text);
        let message = fails(program().args(["config", "check", &file]));
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.starts_with(&format!("sinews: {file}:")), "{message}");
        assert!(parts.iter().all(|part| message.contains(part)), "{parts:?} in {message}");
        assert_eq!(fails(program().args(["serve", "--config", &file])), message);
    }
    let message = fails(program().args(["--tls-certificate", &certificate]));
    assert!(
        message.starts_with("sinews: --tls-certificate names 1 files and tls.key names 0: "),
        "{message}"
    );
}
