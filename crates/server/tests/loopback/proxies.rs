//! Proxies: client addresses, and trust in proxies.

use std::time::Duration;

use sinews_server::{Limit, Limits, Listen, Response, Router, Server, TrustedProxies};
use sinews_testkit::{Frame, Reply};

use crate::backend;
use crate::support::{Running, echo, get, handshake, patient};

fn routes() -> Router {
    Router::new()
        .get("/", |request| Response::text(format!("{} {}", request.peer(), request.client())))
        .websocket("/echo", echo())
}

/// A server that expects a PROXY header.
fn server(server: Server) -> Running {
    let listen = Listen::tcp(([127, 0, 0, 1], 0).into()).with_proxy_protocol();
    Running::bound(server.engine(backend::engine()).threads(1).listen_on(listen).bind().unwrap())
}

const LINE: &str = "PROXY TCP4 192.0.2.7 198.51.100.1 4711 80\r\n";

#[test]
fn client_in_the_proxy_header_is_the_peer() {
    let server = server(Server::new(routes()));
    let mut client = server.connect();
    client.send(LINE.to_owned() + &get("/"));
    assert_eq!(client.answer().text(), "192.0.2.7:4711 192.0.2.7");
    assert_eq!(client.send(get("/")).answer().text(), "192.0.2.7:4711 192.0.2.7");
    // However it is split, and with the handshake or a frame after it in the same segment.
    for cut in [1, 6, LINE.len() - 1, LINE.len(), LINE.len() + 5] {
        let mut client = server.connect();
        let wire = LINE.to_owned() + &handshake("/echo", "");
        let mut wire = wire.into_bytes();
        wire.extend(Frame::text("early").encode(sinews_proto::Role::Client));
        client.send(&wire[..cut]);
        std::thread::yield_now();
        client.send(&wire[cut..]);
        client.upgraded().expect(&Reply::text("early"));
    }
}

#[test]
fn connection_without_a_proxy_header_is_closed() {
    let http = patient().with_head_timeout(Duration::from_millis(100));
    let server = server(Server::new(routes()).http(http));
    let mut plain = server.connect();
    plain.send(get("/"));
    assert!(plain.closes_without_response());
    // An incomplete header times out.
    for begun in ["", "PROXY TCP4 192.0.2.7"] {
        assert!(server.connect().send(begun).closes_without_response());
    }
}

#[test]
fn connections_count_for_the_client_in_the_proxy_header() {
    let limits = Limits::default().with_max_connections_per_address(1);
    let routes = routes();
    let monitor = routes.monitor();
    let server = server(Server::new(routes).limits(limits));
    let mut first = server.connect();
    assert_eq!(first.send(LINE.to_owned() + &get("/")).answer().status, 200);
    assert_eq!(server.connect().send(LINE.to_owned() + &get("/")).last_status(), 429);
    let other = LINE.replace("192.0.2.7", "192.0.2.8");
    assert_eq!(server.connect().send(other + &get("/")).answer().status, 200);
    assert_eq!(monitor.metrics().limited.get(Limit::Address), 1);
}

#[test]
fn forwarding_headers_are_trusted_from_trusted_networks() {
    let line = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.2.3.4, 192.0.2.1\r\n\r\n";
    let trusted = TrustedProxies::x_forwarded_for(["127.0.0.0/8".parse().unwrap()]);
    for (proxies, expected) in [(trusted, " 192.0.2.1"), (TrustedProxies::default(), " 127.0.0.1")] {
        let server = Running::server(Server::new(routes()).threads(1).trusted_proxies(proxies));
        let answer = server.connect().send(line).answer();
        assert!(answer.text().ends_with(expected), "{}", answer.text());
    }
}
