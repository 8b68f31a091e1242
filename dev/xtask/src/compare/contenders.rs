//! The servers to compare, by load.

use super::Load;

/// Capabilities of a server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Serves {
    Echo,
    /// The bytes that it gets, over plain TCP.
    Bytes,
    /// Echo and topics.
    Messages,
    Requests,
    /// Echo, topics and requests.
    All,
    /// The load with TLS.
    Only(Load),
}

/// The program of a server. A later one may be the same program with more features.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Program {
    /// `sinews serve`.
    Serve,
    /// The same with HTTP/3.
    ServeHttp3,
    /// The example of the server as a library.
    Hello,
    /// The library, in `dev/bench/library`.
    Library,
    /// The plain echo, in `dev/bench`.
    Plain,
    /// The plain echo on the engine, an example of it.
    TcpEcho,
    /// A library of another project, in `dev/bench/peers`.
    Peer,
    /// The same with HTTP/3.
    PeerHttp3,
    /// nginx, as installed.
    Nginx,
    /// aioquic, by `dev/bench/peers/http3_aioquic.py`.
    Aioquic,
}

/// When a server is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Listed {
    Always,
    /// With `--fastest`: the fast form in the documentation of its library.
    Fastest,
    /// With `--only` alone.
    Named,
}

pub(crate) struct Contender {
    pub(super) name: &'static str,
    pub(super) program: Program,
    /// A backend, or the name of the server on the program's command line.
    pub(super) what: &'static str,
    pub(super) serves: Serves,
    pub(super) listed: Listed,
    /// Options of `sinews bench` for this server, beside those of the load.
    pub(super) options: &'static str,
}

const fn ours(name: &'static str, program: Program, what: &'static str, serves: Serves) -> Contender {
    Contender { name, program, what, serves, listed: Listed::Always, options: "" }
}

const fn peer(name: &'static str, serves: Serves) -> Contender {
    ours(name, Program::Peer, name, serves)
}

const fn fast(name: &'static str, serves: Serves) -> Contender {
    Contender { listed: Listed::Fastest, ..peer(name, serves) }
}

const fn named(name: &'static str, program: Program, what: &'static str, serves: Serves) -> Contender {
    Contender { listed: Listed::Named, ..ours(name, program, what, serves) }
}

/// A server of a load with TLS.
const fn secure(
    name: &'static str,
    program: Program,
    what: &'static str,
    load: Load,
    options: &'static str,
) -> Contender {
    Contender { options, ..ours(name, program, what, Serves::Only(load)) }
}

/// The least work of a server: the figures of echoes are relative to it.
pub(crate) const PLAIN_NAME: &str = "plain-echo";

const HTTP1: &str = "-c 64";
const HTTP2: &str = "-c 64 --http2";
const HTTP2_ONE: &str = "-c 1 --http2 --sockets-per-connection 64";
const HTTP3: &str = "-c 64 --http3";
const HTTP3_ONE: &str = "-c 1 --http3 --sockets-per-connection 64";
/// sockudo-ws follows the crate h3, which rejects `websocket`.
const SOCKUDO: &str = "-c 64 --http3 --http3-protocol webtransport";
const SOCKUDO_ONE: &str = "-c 1 --http3 --http3-protocol webtransport --sockets-per-connection 64";
const WEBTRANSPORT: &str = "--webtransport";

/// Without `--base`, the other servers are compared with the first that supports the load.
pub(super) const CONTENDERS: [Contender; 69] = [
    ours("sinews", Program::Serve, "uring", Serves::Messages),
    ours("sinews-poll", Program::Serve, "poll", Serves::Messages),
    ours("sinews-http", Program::Hello, "uring", Serves::Requests),
    ours("sinews-http-poll", Program::Hello, "poll", Serves::Requests),
    ours("sinews-tokio", Program::Library, "sinews-tokio", Serves::Echo),
    named("sinews-tokio-multi", Program::Library, "sinews-tokio-multi", Serves::Echo),
    ours("sinews-axum", Program::Library, "sinews-axum", Serves::Echo),
    ours("sinews-compio", Program::Library, "sinews-compio", Serves::Echo),
    named(PLAIN_NAME, Program::Plain, "plain-ring", Serves::Bytes),
    named("plain-mio", Program::Plain, "plain-mio", Serves::Bytes),
    named("plain-compio", Program::Library, "plain-compio", Serves::Bytes),
    named("tcp-echo", Program::TcpEcho, "uring", Serves::Bytes),
    named("tcp-echo-poll", Program::TcpEcho, "poll", Serves::Bytes),
    peer("tokio-tungstenite", Serves::Echo),
    fast("tokio-tungstenite-feed", Serves::Echo),
    fast("tokio-tungstenite-feed-4k", Serves::Echo),
    peer("fastwebsockets", Serves::Echo),
    fast("fastwebsockets-buffered", Serves::Echo),
    peer("tokio-websockets", Serves::Echo),
    fast("tokio-websockets-feed", Serves::Echo),
    peer("sockudo", Serves::Echo),
    fast("sockudo-feed", Serves::Echo),
    peer("sockudo-compio", Serves::Echo),
    fast("sockudo-compio-tuned", Serves::Echo),
    peer("compio-ws", Serves::Echo),
    fast("compio-ws-feed", Serves::Echo),
    fast("compio-ws-feed-4k", Serves::Echo),
    named("tungstenite-bridge", Program::Peer, "tungstenite-bridge", Serves::Echo),
    peer("axum", Serves::All),
    fast("axum-feed", Serves::Echo),
    fast("axum-feed-4k", Serves::Echo),
    peer("hyper", Serves::Requests),
    peer("actix-web", Serves::Requests),
    named("nginx", Program::Nginx, "", Serves::Requests),
    secure("sinews-tls", Program::Serve, "uring", Load::Http2, HTTP1),
    secure("sinews-http2", Program::Serve, "uring", Load::Http2, HTTP2),
    secure("sinews-http2-one", Program::Serve, "uring", Load::Http2, HTTP2_ONE),
    secure("sinews-tls-poll", Program::Serve, "poll", Load::Http2, HTTP1),
    secure("sinews-http2-poll", Program::Serve, "poll", Load::Http2, HTTP2),
    secure("sinews-http2-one-poll", Program::Serve, "poll", Load::Http2, HTTP2_ONE),
    secure("axum-http2", Program::Peer, "axum-http2", Load::Http2, HTTP2),
    secure("axum-http2-one", Program::Peer, "axum-http2", Load::Http2, HTTP2_ONE),
    secure("sinews-http2-requests", Program::Hello, "uring", Load::Http2Requests, ""),
    secure("sinews-http2-requests-poll", Program::Hello, "poll", Load::Http2Requests, ""),
    secure("hyper-http2", Program::Peer, "hyper-http2", Load::Http2Requests, ""),
    secure("nginx-http2", Program::Nginx, "", Load::Http2Requests, ""),
    secure("sinews-http1", Program::Hello, "uring", Load::Http3, HTTP1),
    secure("sinews-http3", Program::Hello, "uring", Load::Http3, HTTP3),
    secure("sinews-http3-one", Program::Hello, "uring", Load::Http3, HTTP3_ONE),
    secure("sinews-http1-poll", Program::Hello, "poll", Load::Http3, HTTP1),
    secure("sinews-http3-poll", Program::Hello, "poll", Load::Http3, HTTP3),
    secure("sinews-http3-one-poll", Program::Hello, "poll", Load::Http3, HTTP3_ONE),
    secure("sockudo-http3", Program::PeerHttp3, "sockudo", Load::Http3, SOCKUDO),
    secure("sockudo-http3-one", Program::PeerHttp3, "sockudo", Load::Http3, SOCKUDO_ONE),
    secure("aioquic", Program::Aioquic, "", Load::Http3, HTTP3),
    secure("aioquic-one", Program::Aioquic, "", Load::Http3, HTTP3_ONE),
    secure("sinews-http3-requests", Program::Hello, "uring", Load::Http3Requests, ""),
    secure("sinews-http3-requests-poll", Program::Hello, "poll", Load::Http3Requests, ""),
    secure("h3-quinn", Program::PeerHttp3, "h3-quinn", Load::Http3Requests, ""),
    secure("aioquic-requests", Program::Aioquic, "", Load::Http3Requests, ""),
    secure("sinews-websockets", Program::Hello, "uring", Load::Sessions, "--http3"),
    secure("sinews-sessions", Program::Hello, "uring", Load::Sessions, WEBTRANSPORT),
    secure("sinews-sessions-poll", Program::Hello, "poll", Load::Sessions, WEBTRANSPORT),
    secure("web-transport-quinn", Program::PeerHttp3, "web-transport-quinn", Load::Sessions, WEBTRANSPORT),
    secure("deliveries", Program::ServeHttp3, "uring", Load::Deliveries, "--http3"),
    secure("deliveries-sessions", Program::ServeHttp3, "uring", Load::Deliveries, WEBTRANSPORT),
    secure(DATAGRAMS, Program::ServeHttp3, "uring", Load::Deliveries, WEBTRANSPORT),
    secure("deliveries-poll", Program::ServeHttp3, "poll", Load::Deliveries, "--http3"),
    secure("deliveries-sessions-poll", Program::ServeHttp3, "poll", Load::Deliveries, WEBTRANSPORT),
];

/// Its subscribers take datagrams.
pub(super) const DATAGRAMS: &str = "deliveries-datagrams";
