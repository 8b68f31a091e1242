//! Unix sockets.

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use sinews_server::{Limits, Listen, Response, Router, Server, TrustedProxies};
use sinews_testkit::{Frame, Reply};

use crate::backend;
use crate::support::{Client, Running, echo, get};

fn routes() -> Router {
    Router::new()
        .get("/", |request| Response::text(format!("{} {}", request.peer(), request.client())))
        .websocket("/echo", echo())
}

#[test]
fn http_and_websockets_work_over_a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let connect = || Client::over(TcpStream::from(OwnedFd::from(UnixStream::connect(&path).unwrap())));
    let proxies = TrustedProxies::x_forwarded_for(["0.0.0.0/32".parse().unwrap()]);
    let server = Server::new(routes())
        .engine(backend::engine())
        .threads(2)
        .limits(Limits::default().with_max_connections_per_address(1))
        .trusted_proxies(proxies)
        .listen_unix(&path, 0o600)
        .listen(([127, 0, 0, 1], 0).into());
    let bound = server.bind().unwrap();
    assert_eq!(bound.addresses().len(), 1);
    let server = Running::bound(bound);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let line = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n";
    assert_eq!(connect().send(line).answer().text(), "0.0.0.0:0 192.0.2.1");
    let mut peers: Vec<_> = (0..20).map(|_| connect().upgrade("/echo")).collect();
    for peer in &mut peers {
        peer.send(&Frame::text("through a path")).expect(&Reply::text("through a path"));
    }
    assert_eq!(server.connect().send(get("/")).answer().status, 200, "and by TCP");
    let mut last = peers.pop().unwrap();
    last.send(&Frame::close(1000, "")).expect_close(1000);
    drop(server);
    assert!(!path.exists(), "the file goes with the server");
}

#[test]
fn path_in_use_is_named_in_the_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let server = || Server::new(routes()).engine(backend::engine()).threads(1);
    let first = server().listen_unix(&path, 0o600).bind().unwrap();
    let error = server().listen_unix(&path, 0o600).bind().unwrap_err();
    assert_eq!((error.path(), error.address()), (Some(&*path), None));
    assert!(error.to_string().contains("socket"), "{error}");
    assert!(path.exists(), "it is the other's");
    drop(first);
    assert!(!path.exists());
    drop(server().listen_on(Listen::unix(&path, 0o660)).bind().unwrap());
}
