//! Clients that take no bytes of their answers while the server stops.

use std::io::Read as _;
use std::time::Duration;

use sinews_server::{BodySource, Context, Handler, Payload, Response, Server, StreamingResponse};

use crate::support::{Client, Running, get, patient, routes};

const LONG: Duration = Duration::from_secs(3_600);

/// More than the buffers of the sockets.
const DOWNLOAD: usize = 64 << 20;

struct Download;

impl BodySource for Download {
    fn len(&self) -> Option<u64> {
        Some(DOWNLOAD as u64)
    }

    fn memory(&self) -> usize {
        0
    }

    fn write_piece(&self, _: usize, out: &mut Vec<u8>) {
        out.resize(out.len() + (16 << 10), b'x');
    }
}

/// Queues more than the buffers of the sockets.
pub(super) struct Flood;

impl Handler for Flood {
    fn open(&mut self, cx: &mut Context<'_>) {
        // The limit of the queue is larger.
        let _ = cx.send_text(&"x".repeat(12 << 20));
    }

    fn message(&mut self, _: Payload<'_>, _: &mut Context<'_>) {}
}

fn start() -> Running {
    let routes = routes()
        .get("/download", |_| Response::new(200).with_source(Download))
        .get("/events", |_| StreamingResponse::events(Flood));
    let server = Server::new(routes).threads(1).grace(LONG).drain_window(Duration::ZERO);
    Running::server(server.http(patient().with_http2_clear_text(true)))
}

/// Asks for a path over HTTP/2, with this window of each stream, and waits until the server has executed the request.
fn ask_http2(server: &Running, path: &str, window: u32) -> Client {
    let mut client = server.connect();
    client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    client.send([&b"\0\0\x06\x04\0\0\0\0\0\0\x04"[..], &window.to_be_bytes()].concat());
    // The window of the connection.
    client.send(b"\0\0\x04\x08\0\0\0\0\0\x3f\0\0\0");
    let len = path.len() as u8;
    let block = [&[0x82, 0x86, 0x04, len][..], path.as_bytes(), b"\x01\x01a"].concat();
    client.send([&[0, 0, block.len() as u8, 1, 5, 0, 0, 0, 1][..], &block].concat());
    client.send(b"\0\0\x08\x06\0\0\0\0\0pingpong").wait_for("pingpong");
    client
}

#[test]
fn stop_resets_clients_that_take_no_bytes_of_an_answer() {
    for path in ["/download", "/events"] {
        let server = start();
        let mut reading = server.connect();
        reading.send(get(path)).wait_for("200 OK");
        let mut half_closed = server.connect();
        half_closed.send(get(path)).wait_for("200 OK");
        half_closed.half_close();
        // A pipelined request waits behind it.
        let mut pipelined = server.connect();
        pipelined.send([get(path), get("/")].concat()).wait_for("200 OK");
        let closed_window = ask_http2(&server, path, 0);
        let open_window = ask_http2(&server, path, 0x3f00_0000);
        server.stop.stop();
        server.join();
        drop((reading, half_closed, pipelined, closed_window, open_window));
    }
}

#[test]
fn stop_waits_for_a_download_that_moves() {
    let server = start();
    let mut client = server.connect();
    client.send(get("/download"));
    let mut buffer = vec![0; 256 << 10];
    let mut received = client.stream.read(&mut buffer).unwrap();
    server.stop.stop();
    loop {
        match client.stream.read(&mut buffer).unwrap() {
            0 => break,
            count => received += count,
        }
    }
    assert!(received > DOWNLOAD, "{received} bytes");
    server.join();
}
