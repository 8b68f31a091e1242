//! TLS, with rustls as the client.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use sinews_server::{
    Certificates, CloseCode, Config, Limit, Limits, Listen, Monitor, Response, Router, Sent, Server,
    TlsConfig, WebSocketEnd,
};
use sinews_testkit::{Frame, RawSocket, Reply, TestCertificate, read_head};

use crate::backend;
use crate::support::{
    HandlerEvent, LARGE, PATIENCE, Running, echo, get, handshake, patient, routes, scripted, wait_for,
};

/// A certificate for these names, in PEM, and its key.
fn made(names: &[&str]) -> (String, String) {
    let made = TestCertificate::for_names(names);
    (made.pem(), made.key_pem())
}

/// A certificate for `localhost` in PEM, and the settings of a server that has it.
fn localhost() -> (String, TlsConfig) {
    let pem = made(&["localhost"]);
    let tls = TlsConfig::new(certificates(&[&pem])).unwrap();
    (pem.0, tls)
}

fn certificates(pems: &[&(String, String)]) -> Certificates {
    pems.iter().fold(Certificates::new(), |certificates, (chain, key)| {
        certificates.with_pem(chain.as_bytes(), key.as_bytes()).unwrap()
    })
}

fn server(router: Router, listen: Listen) -> (Running, Monitor) {
    server_of(Server::new(router), listen)
}

fn server_of(server: Server, listen: Listen) -> (Running, Monitor) {
    let server = server.engine(backend::engine()).threads(1).listen_on(listen);
    let running = Running::bound(server.bind().unwrap());
    let monitor = running.monitor.clone();
    (running, monitor)
}

fn listen(tls: &TlsConfig) -> Listen {
    Listen::tcp(([127, 0, 0, 1], 0).into()).with_tls(tls.clone())
}

/// Creates a client configuration with this trusted certificate and these versions.
fn client(trusted: &str, versions: &[&'static rustls::SupportedProtocolVersion]) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
    builder.with_root_certificates(roots).with_no_client_auth()
}

const BOTH: &[&rustls::SupportedProtocolVersion] = rustls::ALL_VERSIONS;

/// A client with TLS.
struct Client {
    stream: StreamOwned<ClientConnection, TcpStream>,
}

impl Client {
    fn new(server: &Running, config: &ClientConfig, name: &str) -> Self {
        Self::over(TcpStream::connect(server.address).unwrap(), config, name)
    }

    fn over(stream: TcpStream, config: &ClientConfig, name: &str) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let connection = ClientConnection::new(Arc::new(config.clone()), name).unwrap();
        Self { stream: StreamOwned::new(connection, stream) }
    }

    fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.stream.write_all(bytes.as_ref()).unwrap();
        self
    }

    /// Reads the head of an answer.
    fn head(&mut self) -> String {
        read_head(&mut self.stream).unwrap()
    }

    fn body(&mut self, len: usize) -> Vec<u8> {
        let mut body = vec![0; len];
        self.stream.read_exact(&mut body).unwrap();
        body
    }

    fn upgrade(self, path: &str) -> RawSocket<StreamOwned<ClientConnection, TcpStream>> {
        RawSocket::open(self.stream, path, "localhost", "").unwrap().expect("an upgrade")
    }

    /// Requests a page, and asserts that it is found. The body remains to be read.
    fn found(&mut self, path: &str) {
        assert!(self.send(get(path)).head().starts_with("HTTP/1.1 200 "));
    }

    /// Asserts an orderly end: close_notify, then FIN. rustls reports an end without it as an error.
    fn assert_end(&mut self) {
        assert_eq!(self.stream.read(&mut [0; 100]).unwrap(), 0);
    }

    fn shown(&self) -> CertificateDer<'static> {
        self.stream.conn.peer_certificates().unwrap()[0].clone().into_owned()
    }
}

#[test]
fn http_and_websockets_work_over_tls() {
    let (pem, tls) = localhost();
    let (server, monitor) = server(routes(), listen(&tls));
    for version in BOTH {
        let mut config = client(&pem, &[version]);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let mut plain = Client::new(&server, &config, "localhost");
        plain.found("/");
        assert_eq!(plain.body(6), b"hello\n");
        assert_eq!(plain.stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
        plain.found("/large");
        assert!(plain.body(LARGE).iter().all(|byte| *byte == b'x'));

        let mut peer = Client::new(&server, &config, "localhost").upgrade("/echo");
        for size in [0, 1, 125, 16_384, 16_385, 300_000, 3 << 20] {
            let payload: Vec<u8> = (0..size).map(|at| at as u8).collect();
            peer.send(&Frame::binary(payload.clone())).unwrap();
            peer.expect(&Reply::Message(sinews_server::Kind::Binary, payload));
        }
        peer.send(&Frame::close(1000, "")).unwrap();
        peer.expect(&Reply::Close(Some(1000), String::new()));
        peer.assert_end();
    }
    let metrics = monitor.metrics();
    assert_eq!((metrics.tls_handshakes, metrics.tls_failures), (4, 0));
    assert_eq!(metrics.websockets_closed.get(WebSocketEnd::Client), 2);
}

#[test]
fn last_answer_is_followed_by_close_notify() {
    let (pem, tls) = localhost();
    let (server, _) = server(routes(), listen(&tls));
    let mut plain = Client::new(&server, &client(&pem, BOTH), "localhost");
    plain.send("GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    plain.head();
    plain.body(LARGE);
    plain.assert_end();
    // And a client that ends with close_notify alone gets one back.
    let mut peer = Client::new(&server, &client(&pem, BOTH), "localhost");
    peer.found("/");
    peer.body(6);
    peer.stream.conn.send_close_notify();
    peer.stream.flush().unwrap();
    peer.assert_end();
}

#[test]
fn records_may_be_split_anywhere() {
    let (pem, tls) = localhost();
    let (server, _) = server(routes(), listen(&tls));
    // A relay that sends byte by byte.
    let relay = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let (address, target) = (relay.local_addr().unwrap(), server.address);
    std::thread::spawn(move || {
        let (mut client, _) = relay.accept().unwrap();
        let mut server = TcpStream::connect(target).unwrap();
        server.set_nodelay(true).unwrap();
        let (mut back, mut from) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut from, &mut back));
        let mut byte = [0];
        while client.read(&mut byte).is_ok_and(|count| count > 0) && server.write_all(&byte).is_ok() {}
    });
    let stream = TcpStream::connect(address).unwrap();
    let mut peer = Client::over(stream, &client(&pem, BOTH), "localhost").upgrade("/echo");
    for text in ["a", "in single bytes", &"long ".repeat(300)] {
        peer.send(&Frame::text(text)).unwrap();
        peer.expect(&Reply::text(text));
    }
}

#[test]
fn certificate_is_selected_by_name_and_can_be_renewed() {
    let (one, other) = (made(&["one.example"]), made(&["other.example", "*.wild.example"]));
    let tls = TlsConfig::new(certificates(&[&one, &other])).unwrap();
    let (server, _) = server(routes(), listen(&tls));
    let ask = |pem: &(String, String), name: &str| {
        let mut client = Client::new(&server, &client(&pem.0, BOTH), name);
        client.found("/");
        client
    };
    for (pem, name) in [(&one, "one.example"), (&other, "other.example"), (&other, "a.wild.example")] {
        let shown = ask(pem, name).shown();
        assert_eq!(shown, CertificateDer::from_pem_slice(pem.0.as_bytes()).unwrap());
    }
    let mut open = ask(&one, "one.example");
    open.body(6);
    let renewed = made(&["one.example"]);
    tls.replace(certificates(&[&renewed])).unwrap();
    ask(&renewed, "one.example");
    // Open connections stay.
    open.found("/");
}

#[test]
fn non_tls_input_gets_an_alert_and_is_counted() {
    let (pem, tls) = localhost();
    let (server, monitor) = server_of(Server::new(routes()), listen(&tls));
    let mut plain = server.connect();
    plain.send(get("/"));
    let mut alert = Vec::new();
    let read = plain.stream.read_to_end(&mut alert);
    assert!(read.is_ok() || read.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
    assert!(alert.starts_with(&[21, 3]), "a record with an alert: {alert:?}");
    assert_eq!(monitor.metrics().tls_failures, 1);
    // A client of another protocol, and a client that does not trust the certificate.
    let mut config = client(&pem, BOTH);
    config.alpn_protocols = vec![b"smtp".to_vec()];
    let mut other = Client::new(&server, &config, "localhost");
    assert!(other.stream.write_all(b"x").and_then(|()| other.stream.flush()).is_err());
    let mut distrusting = Client::new(&server, &client(&made(&["localhost"]).0, BOTH), "localhost");
    assert!(distrusting.stream.write_all(b"x").is_err());
    // An incomplete handshake times out.
    let http = patient().with_head_timeout(Duration::from_millis(200));
    let (server, _) = server_of(Server::new(routes()).http(http), listen(&tls));
    let mut silent = server.connect();
    assert!(silent.closes_without_response());
}

/// Reads frames until one of this type, and returns its payload.
fn http2_frame(client: &mut Client, kind: u8) -> Vec<u8> {
    loop {
        let head = client.body(9);
        let payload = client.body(u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize);
        if head[3] == kind {
            return payload;
        }
    }
}

#[test]
fn alpn_chooses_http2_where_it_is_enabled() {
    let (pem, tls) = localhost();
    let (server, monitor) = server_of(Server::new(routes()), listen(&tls));
    let mut config = client(&pem, BOTH);
    config.alpn_protocols = vec![b"http/1.1".to_vec(), b"h2".to_vec()];
    let mut http2 = Client::new(&server, &config, "localhost");
    http2.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    assert_eq!(http2.stream.conn.alpn_protocol(), Some(&b"h2"[..]));
    // GET / of `https`, and of `http`: in the static table, 0x87 and 0x86.
    http2.send(b"\0\0\x06\x01\x05\0\0\0\x01\x82\x87\x84\x01\x01a");
    assert_eq!(http2_frame(&mut http2, 1)[0], 0x88, "200");
    assert_eq!(http2_frame(&mut http2, 0), b"hello\n");
    http2.send(b"\0\0\x06\x01\x05\0\0\0\x03\x82\x86\x84\x01\x01a");
    assert_ne!(http2_frame(&mut http2, 1)[0], 0x88);
    assert_eq!(http2_frame(&mut http2, 0), b"the scheme is not that of the connection\n");
    assert_eq!(monitor.metrics().http2_connections, 1);
    // Clients that offer HTTP/1.1 alone, or nothing.
    for offered in [vec![b"http/1.1".to_vec()], Vec::new()] {
        config.alpn_protocols = offered;
        let mut http1 = Client::new(&server, &config, "localhost");
        http1.found("/");
    }
    assert_eq!(monitor.metrics().http2_connections, 1);
}

#[test]
fn broken_record_ends_a_websocket() {
    let (pem, tls) = localhost();
    let (server, monitor) = server(routes(), listen(&tls));
    let mut peer = Client::new(&server, &client(&pem, BOTH), "localhost").upgrade("/echo");
    peer.send(&Frame::text("fine")).unwrap();
    peer.expect(&Reply::text("fine"));
    peer.stream
        .sock
        .write_all(&[23, 3, 3, 0, 20, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20])
        .unwrap();
    let error = peer.stream.read(&mut [0; 10]).unwrap_err();
    assert!(error.to_string().contains("BadRecordMac"), "{error}");
    drop(peer);
    wait_for(&monitor, |metrics| metrics.websockets_closed.get(WebSocketEnd::Lost) > 0);
    assert_eq!(monitor.metrics().tls_failures, 1);
}

#[test]
fn proxy_header_comes_before_the_tls_handshake() {
    let (pem, tls) = localhost();
    let routes = Router::new().get("/", |request| Response::text(request.peer().to_string()));
    let limits = Limits::default().with_max_connections_per_address(1);
    let (server, monitor) = server_of(Server::new(routes).limits(limits), listen(&tls).with_proxy_protocol());
    let connect = || {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n").unwrap();
        Client::over(stream, &client(&pem, BOTH), "localhost")
    };
    let mut first = connect();
    first.found("/");
    assert_eq!(first.body(14), b"192.0.2.7:4711");
    let mut second = connect();
    second.send(get("/"));
    assert!(second.head().starts_with("HTTP/1.1 429 "), "the limit is that of the client's address");
    assert_eq!(monitor.metrics().limited.get(Limit::Address), 1);
    // Its socket is closed when the client has ended its side, too.
    drop(second);
    wait_for(&monitor, |metrics| metrics.connections() <= 1);
}

#[test]
fn clients_beyond_the_limit_of_connections_get_an_answer_over_tls() {
    let (pem, tls) = localhost();
    let code = CloseCode::new(4100).unwrap();
    let routes = routes().websocket("/closing", echo().with_overload_close("full", code, "later"));
    let server = Server::new(routes).limits(Limits::default().with_max_connections(1));
    let (server, monitor) = server_of(server, listen(&tls));
    let mut open = Client::new(&server, &client(&pem, BOTH), "localhost").upgrade("/echo");
    for versions in [&[&rustls::version::TLS13][..], &[&rustls::version::TLS12]] {
        let mut config = client(&pem, versions);
        // The answers are those of HTTP/1.1.
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let connect = || Client::new(&server, &config, "localhost");
        let mut socket = connect().upgrade("/closing");
        socket.expect(&Reply::text("full"));
        socket.expect(&Reply::Close(Some(4100), "later".into()));
        socket.assert_end();
        for request in [get("/"), handshake("/echo", "")] {
            let mut rejected = connect();
            let head = rejected.send(request).head();
            assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("Retry-After: 10"), "{head}");
        }
    }
    open.send(&Frame::text("still here")).unwrap();
    open.expect(&Reply::text("still here"));
    let metrics = monitor.metrics();
    assert_eq!((metrics.limited.get(Limit::Connections), metrics.tls_handshakes), (6, 7));
}

#[test]
fn tls_handshakes_with_rejected_clients_have_a_rate() {
    let (pem, tls) = localhost();
    let server = Server::new(routes()).limits(Limits::default().with_max_connections(1));
    let (server, monitor) = server_of(server, listen(&tls));
    let config = client(&pem, BOTH);
    let mut open = Client::new(&server, &config, "localhost").upgrade("/echo");
    let (begin, mut answered) = (Instant::now(), 0);
    for _ in 0..150 {
        let mut rejected = Client::new(&server, &config, "localhost");
        if rejected.stream.write_all(get("/").as_bytes()).is_ok() {
            assert!(rejected.head().starts_with("HTTP/1.1 503 "));
            answered += 1;
        }
    }
    // A burst, and as many each second.
    let most = 50 + begin.elapsed().as_millis() as u64 / 20 + 1;
    assert!((50..=most).contains(&answered), "{answered} of at most {most}");
    let metrics = monitor.metrics();
    assert_eq!((metrics.limited.get(Limit::Connections), metrics.tls_handshakes), (150, 1 + answered));
    // A client without a handshake is closed in time.
    for _ in 0..2 {
        let mut silent = TcpStream::connect(server.address).unwrap();
        silent.set_read_timeout(Some(PATIENCE)).unwrap();
        assert!(!matches!(silent.read(&mut [0; 1]), Ok(1..)));
    }
    open.send(&Frame::text("still here")).unwrap();
    open.expect(&Reply::text("still here"));
}

#[test]
fn stop_closes_clients_over_tls() {
    let (pem, tls) = localhost();
    let listen = listen(&tls);
    let long = Duration::from_secs(3_600);
    let server = Server::new(routes()).grace(long).http(patient().with_write_timeout(long));
    let (server, _) = server_of(server, listen);
    let mut kept = Client::new(&server, &client(&pem, BOTH), "localhost");
    kept.found("/");
    assert_eq!(kept.body(6), b"hello\n");
    let mut peer = Client::new(&server, &client(&pem, BOTH), "localhost").upgrade("/echo");
    server.stop.stop();
    peer.expect(&Reply::Close(Some(1001), "server stops".into()));
    peer.send(&Frame::close(1001, "")).unwrap();
    peer.assert_end();
    kept.assert_end();
    drop(peer);
    server.join();
    // The end of an idle connection does not depend on its client.
    drop(kept);
}

/// A client that keeps its side open occupies its connection for the time of the head, or of an alert.
#[test]
fn connections_whose_handshake_stalls_or_fails_end() {
    let (_, tls) = localhost();
    // The beginning of a record of a handshake; a record of no version; a hello without content; a request in clear text.
    let inputs: [(&[u8], bool); 5] = [
        (b"", false),
        (b"\x16\x03\x01\x02\x00\x01", false),
        (b"\x16\x09\x09\x00\x01\x01", true),
        (b"\x16\x03\x01\x00\x04\x01\x00\x00\x00", true),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", true),
    ];
    for (input, fails) in inputs {
        // A failed handshake does not wait for the time of the head.
        let head = if fails { Duration::from_secs(3_600) } else { Duration::from_millis(300) };
        let http = patient().with_head_timeout(head);
        let (server, monitor) = server_of(Server::new(routes()).http(http), listen(&tls));
        let mut client = TcpStream::connect(server.address).unwrap();
        client.write_all(input).unwrap();
        wait_for(&monitor, |metrics| metrics.accepted > 0 && metrics.connections() == 0);
        assert_eq!(monitor.metrics().tls_failures, u64::from(fails), "{input:?}");
        drop(client);
    }
}

/// Its buffers of the socket are full, and the client does not read.
#[test]
fn stop_resets_a_client_that_takes_no_bytes_of_a_download_over_tls() {
    let (pem, tls) = localhost();
    let long = Duration::from_secs(3_600);
    let routes = routes().get("/large", |_| Response::text(vec![b'x'; 32 << 20]));
    let server = Server::new(routes).grace(long).http(patient());
    let (server, _) = server_of(server, listen(&tls));
    let mut stalled = Client::new(&server, &client(&pem, BOTH), "localhost");
    stalled.found("/large");
    server.stop.stop();
    server.join();
    drop(stalled);
}

#[test]
fn queued_output_arrives_in_order_over_tls() {
    const MESSAGES: u8 = 40;
    const SIZE: usize = 300_000;
    let (route, events) = scripted(|event, cx| {
        if matches!(event, HandlerEvent::Message(..)) {
            for number in 0..MESSAGES {
                assert_ne!(cx.send_binary(&vec![number; SIZE]), Ok(Sent::Dropped));
            }
        }
    });
    let (pem, tls) = localhost();
    let config = Config::default().with_max_outbound(usize::from(MESSAGES) * SIZE * 2);
    let routes = Router::new().websocket("/flood", route.with_config(config));
    let (server, monitor) = server(routes, listen(&tls));
    let mut peer = Client::new(&server, &client(&pem, BOTH), "localhost").upgrade("/flood");
    peer.send(&Frame::text("go")).unwrap();
    wait_for(&monitor, |metrics| metrics.messages_sent >= u64::from(MESSAGES));
    assert!(monitor.metrics().queued_bytes > SIZE as u64, "more than a socket takes");
    for number in 0..MESSAGES {
        let mut frame = vec![0; 10 + SIZE];
        peer.stream.read_exact(&mut frame).unwrap();
        assert_eq!((frame[0], frame[1]), (0x82, 127));
        assert!(frame[10..].iter().all(|byte| *byte == number), "message {number}");
    }
    assert_eq!(events.next(), HandlerEvent::Open);
    assert!(matches!(events.next(), HandlerEvent::Message(..)));
    assert_eq!(events.next(), HandlerEvent::Drain);
    wait_for(&monitor, |metrics| metrics.queued_bytes == 0);
}
