//! Behind proxies: Unix sockets, the PROXY protocol, headers that name the client.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use sinews_testkit::{exchange, last_get};

use crate::config::Directory;
use crate::support::{Running, fails, program};

/// The answer to a request that follows these bytes.
fn get_behind(server: &Running, first: &str) -> String {
    exchange(server.connect(), &format!("{first}{}", last_get("/healthz"))).unwrap()
}

#[test]
fn unix_socket_has_its_permissions_and_is_removed() {
    let directory = Directory::new();
    let path = directory.write("gone", "").replace("gone", "socket");
    let listen = format!("127.0.0.1:0,unix:{path}");
    let mut command = program();
    command.args(["--listen", &listen, "--unix-mode", "0600", "--threads", "2"]);
    let server = Running::start(&mut command);
    assert!(server.table.contains(&format!("\n  socket    {path}\n")), "{}", server.table);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let answer = exchange(UnixStream::connect(&path).unwrap(), &last_get("/healthz")).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    server.signal("TERM");
    assert!(server.wait().0.success());
    assert!(!fs::exists(&path).unwrap());

    let message = fails(program().args(["--listen", "unix:/nowhere/socket"]));
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.contains("/nowhere/socket: ") && message.contains("directory must exist"), "{message}");
    let message = fails(program().args(["--listen", "unix:"]));
    assert!(message.starts_with("error: ") && message.contains("expected a path after unix:"), "{message}");
}

#[test]
fn proxy_header_identifies_the_client_of_connection_limits() {
    let server = Running::serve(&["--proxy-protocol", "--limits-max-connections-per-address", "1"]);
    let header = |client: u8| format!("PROXY TCP4 192.0.2.{client} 198.51.100.1 4660 80\r\n");
    let mut one = server.connect();
    write!(one, "{}GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", header(1)).unwrap();
    one.read_exact(&mut [0; 12]).unwrap();
    assert!(get_behind(&server, &header(1)).starts_with("HTTP/1.1 429 "));
    assert!(get_behind(&server, &header(2)).starts_with("HTTP/1.1 200 "));
    let mut without = server.connect();
    without.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // The connection ends, or is reset because its request is not read.
    let _ = without.read_to_end(&mut answer);
    assert!(answer.is_empty());
}

#[test]
fn trusted_proxy_header_identifies_the_clients() {
    let per_address = ["--limits-max-connections-per-address", "1"];
    let server = Running::serve(&per_address);
    let only = server.websocket("/echo");
    assert!(server.get("/healthz").starts_with("HTTP/1.1 429 "));
    drop(only);

    let asked = "GET /healthz HTTP/1.1\r\nX-Forwarded-For: 192.0.2.1\r\nForwarded: for=192.0.2.2";
    for (header, client) in [("x-forwarded-for", "192.0.2.1"), ("forwarded", "192.0.2.2")] {
        let arguments = ["--trusted-proxies", "127.0.0.0/8", "--trusted-header", header, "--access-log"];
        let server = Running::serve(&[&per_address[..], &arguments].concat());
        let first = server.websocket("/echo");
        assert!(server.request(asked, "").starts_with("HTTP/1.1 200 "));
        server.signal("TERM");
        drop(first);
        let log = server.wait().1;
        assert!(log.contains(&format!("client={client} ")), "{client} in {log}");
    }
}
