//! Requests over HTTP/3 during a hot restart.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sinews_http::h3::RequestTarget;

use super::*;
use crate::tls::TestCertificate;
use crate::versions::quic_client::QuicClient;

/// A client with a connection and a socket of its own.
struct Http3 {
    quic: QuicClient,
    socket: UdpSocket,
    server: SocketAddr,
}

impl Http3 {
    fn connect(server: SocketAddr, certificate: &TestCertificate) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(certificate.certificate.as_bytes()).unwrap()).unwrap();
        let quic = QuicClient::connect(server, roots, "h3", Instant::now());
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        let mut client = Self { quic, socket, server };
        client.run(|quic| quic.http.peer_settings().is_some());
        client
    }

    /// Exchanges datagrams until a condition holds.
    fn run(&mut self, done: impl Fn(&QuicClient) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        let mut buffer = vec![0; 1 << 16];
        loop {
            for datagram in self.quic.transmit(Instant::now()) {
                let _ = self.socket.send_to(&datagram, self.server);
            }
            if done(&self.quic) {
                return;
            }
            assert!(Instant::now() < deadline, "{:?} {:?}", self.quic.lost, self.quic.responses);
            if let Ok(len) = self.socket.recv(&mut buffer) {
                self.quic.receive(&buffer[..len], Instant::now());
            }
            if self.quic.quic.poll_timeout().is_some_and(|at| at <= Instant::now()) {
                self.quic.quic.handle_timeout(Instant::now());
                self.quic.drive(Instant::now());
            }
        }
    }

    fn ask(&mut self, path: &str) -> u64 {
        let target = RequestTarget::new("GET", "https", "localhost", path);
        self.quic.ask_with(&target, [("accept", "application/json")], b"", true)
    }

    /// Status and content of an answer.
    fn answer(&mut self, stream: u64) -> (u16, String) {
        self.run(|quic| quic.responses.get(&stream).is_some_and(|answer| answer.2));
        let (status, content, _) = self.quic.responses.remove(&stream).unwrap();
        (status, String::from_utf8(content).unwrap())
    }

    /// Publishes by the same version. Returns the status.
    fn publish(&mut self, topic: &str, text: &str) -> u16 {
        let path = format!("/topics/{topic}");
        let target = RequestTarget::new("POST", "https", "localhost", &path);
        let stream = self.quic.ask(&target, text.as_bytes(), true);
        self.answer(stream).0
    }
}

/// Long polls that the predecessor has accepted get the publication of a client of the successor.
#[test]
fn open_requests_over_http3_are_answered_after_a_restart_and_new_ones_by_the_successor() {
    let made = TestCertificate::new("localhost");
    let (certificate, key) = (made.certificate.clone(), made.key.clone());
    // The working directory of the program.
    let tls = "threads = 2\n[tls]\ncertificate = \"a.pem\"\nkey = \"a.key\"\n[http]\nhttp3 = true";
    let mut service = Service::start_with("http3", tls, |command, directory| {
        fs::write(directory.file("a.pem"), certificate).unwrap();
        fs::write(directory.file("a.key"), key).unwrap();
        command.current_dir(&directory.0);
    });
    let mut polls = Vec::new();
    for _ in 0..8 {
        let mut client = Http3::connect(service.address, &made);
        let health = client.ask("/healthz");
        assert_eq!(client.answer(health).0, 200);
        let poll = client.ask("/topics/polled?wait=20");
        // The server has the request once it has answered a later one.
        let health = client.ask("/healthz");
        assert_eq!(client.answer(health).0, 200);
        polls.push((client, poll));
    }
    service.restart();
    for (client, _) in &mut polls {
        client.run(|quic| quic.go_away.is_some());
    }
    for round in 0..4 {
        let mut next = Http3::connect(service.address, &made);
        let health = next.ask("/healthz");
        assert_eq!(next.answer(health).0, 200, "round {round}");
        if round == 0 {
            assert_eq!(next.publish("polled", "from the successor"), 200);
        }
    }
    for (client, poll) in &mut polls {
        let (status, content) = client.answer(*poll);
        assert!(status == 200 && content.contains("from the successor"), "{status} {content}");
        client.run(|quic| quic.lost.is_some());
    }
    service.old_one_ends();
    let mut last = Http3::connect(service.address, &made);
    let health = last.ask("/healthz");
    assert_eq!(last.answer(health).0, 200);
}
