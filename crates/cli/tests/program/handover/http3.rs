//! Requests over HTTP/3 during a hot restart.

use quinn_proto::VarInt;
use sinews_http::h3::{QuicStreamId, RequestTarget};
use sinews_testkit::TestCertificate;

use super::*;
use crate::versions::http3_client::Http3Client;

fn connect(server: SocketAddr, certificate: &TestCertificate) -> Http3Client {
    Http3Client::connect(server, certificate.roots())
}

/// Sends the last content of a request.
fn finish(client: &mut Http3Client, stream: u64, content: &[u8]) {
    let mut out = Vec::new();
    client.quic.http.send_data(QuicStreamId::new(stream), content, true, &mut out).unwrap();
    client.quic.send(VarInt::from_u64(stream).unwrap().into(), out.into(), true);
}

/// Returns the status and the content of an answer.
fn answer(client: &mut Http3Client, stream: u64) -> (u16, String) {
    let (status, content) = client.answer(stream);
    (status, String::from_utf8(content).unwrap())
}

/// The server has answered a request, and so has what the client sent before.
fn check_health(client: &mut Http3Client) {
    let stream = client.ask("GET", "/healthz", b"");
    assert_eq!(client.answer(stream).0, 200);
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
    let target = RequestTarget::new("POST", "https", "localhost", "/topics/uploads");
    let uploads: Vec<(Http3Client, u64)> = (0..8)
        .map(|_| {
            let mut client = connect(service.address, &made);
            let upload = client.quic.ask(&target, b"begun, ", false);
            check_health(&mut client);
            (client, upload)
        })
        .collect();
    let mut poll = connect(service.address, &made);
    let target = RequestTarget::new("GET", "https", "localhost", "/topics/polled?wait=20");
    let polled = poll.quic.ask_with(&target, [("accept", "application/json")], b"", true);
    check_health(&mut poll);
    service.restart();
    // A long poll ends at a restart, with an answer.
    let (status, content) = answer(&mut poll, polled);
    assert_eq!(status, 200, "{content}");
    poll.run("the end of the connection", |quic| quic.lost.is_some());
    for _ in 0..4 {
        check_health(&mut connect(service.address, &made));
    }
    for (mut client, upload) in uploads {
        client.run("GOAWAY", |quic| quic.go_away.is_some());
        finish(&mut client, upload, b"finished");
        let (status, content) = answer(&mut client, upload);
        assert!(status == 200 && content.contains("subscribers"), "{status} {content}");
        client.run("the end of the connection", |quic| quic.lost.is_some());
    }
    service.old_one_ends();
    check_health(&mut connect(service.address, &made));
}
