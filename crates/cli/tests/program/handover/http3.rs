//! Requests over HTTP/3 during a hot restart.

use quinn_proto::VarInt;
use sinews_http::h3::{QuicStreamId, RequestTarget};
use sinews_testkit::TestCertificate;
use std::net::UdpSocket;

use super::*;
use crate::versions::quic_client::QuicClient;

/// A client with a connection and a socket of its own.
struct Http3 {
    quic: QuicClient,
    socket: UdpSocket,
    server: SocketAddr,
}

impl Http3 {
    fn connect(server: SocketAddr, certificate: &TestCertificate) -> Self {
        let quic = QuicClient::connect(server, certificate.roots(), "h3", Instant::now());
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

    /// Sends a request; further content follows unless the request ends.
    fn ask(&mut self, method: &str, path: &str, content: &[u8], ends: bool) -> u64 {
        self.quic.ask(&RequestTarget::new(method, "https", "localhost", path), content, ends)
    }

    /// Sends the last content of a request.
    fn finish(&mut self, stream: u64, content: &[u8]) {
        let mut out = Vec::new();
        self.quic.http.send_data(QuicStreamId::new(stream), content, true, &mut out).unwrap();
        self.quic.send(VarInt::from_u64(stream).unwrap().into(), out.into(), true);
    }

    /// Status and content of an answer.
    fn answer(&mut self, stream: u64) -> (u16, String) {
        self.run(|quic| quic.responses.get(&stream).is_some_and(|answer| answer.2));
        let (status, content, _) = self.quic.responses.remove(&stream).unwrap();
        (status, String::from_utf8(content).unwrap())
    }

    /// The server has answered a request, and so has what the client sent before.
    fn check_health(&mut self) {
        let stream = self.ask("GET", "/healthz", b"", true);
        assert_eq!(self.answer(stream).0, 200);
    }
}

#[test]
fn open_requests_over_http3_are_finished_after_a_restart_and_new_ones_answered_by_the_successor() {
    let made = TestCertificate::new();
    let (certificate, key) = (made.pem(), made.key_pem());
    // Relative to the working directory of the program.
    let tls = "threads = 2\n[tls]\ncertificate = \"a.pem\"\nkey = \"a.key\"\n[http]\nhttp3 = true\n\
               http3_idle_timeout = \"10m\"\nmin_upload_rate = 0";
    let mut service = Service::start_with("http3", tls, |command, directory| {
        fs::write(directory.file("a.pem"), certificate).unwrap();
        fs::write(directory.file("a.key"), key).unwrap();
        command.current_dir(&directory.0);
    });
    // The kernel spreads the clients over the sockets of both processes.
    let uploads: Vec<(Http3, u64)> = (0..8)
        .map(|_| {
            let mut client = Http3::connect(service.address, &made);
            let upload = client.ask("POST", "/topics/uploads", b"begun, ", false);
            client.check_health();
            (client, upload)
        })
        .collect();
    let mut poll = Http3::connect(service.address, &made);
    let target = RequestTarget::new("GET", "https", "localhost", "/topics/polled?wait=20");
    let polled = poll.quic.ask_with(&target, [("accept", "application/json")], b"", true);
    poll.check_health();
    service.restart();
    // A long poll ends at a restart, with an answer.
    let (status, content) = poll.answer(polled);
    assert_eq!(status, 200, "{content}");
    poll.run(|quic| quic.lost.is_some());
    for _ in 0..4 {
        Http3::connect(service.address, &made).check_health();
    }
    for (mut client, upload) in uploads {
        client.run(|quic| quic.go_away.is_some());
        client.finish(upload, b"finished");
        let (status, content) = client.answer(upload);
        assert!(status == 200 && content.contains("subscribers"), "{status} {content}");
        client.run(|quic| quic.lost.is_some());
    }
    service.old_one_ends();
    Http3::connect(service.address, &made).check_health();
}
