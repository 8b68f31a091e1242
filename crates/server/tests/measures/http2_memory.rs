//! Memory of a WebSocket on a stream of HTTP/2.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use sinews_server::{HttpConfig, Router, Server, WebSocketRoute};
use sinews_testkit::{idle_live_bytes, measure_alone};

use crate::{Echo, Serving, backend};

/// Extended CONNECT to `/`.
const BLOCK: &[u8] = b"\x02\x07CONNECT\x86\x84\x01\x01a\x00\x09:protocol\x09websocket\
    \x00\x15sec-websocket-version\x0213";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;

/// A client without heap memory.
struct Client {
    stream: TcpStream,
    next: u32,
}

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut client = Self { stream, next: 1 };
        client.stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        client.frame(SETTINGS, 0, 0, &[]);
        // The window of the connection must not limit the test.
        client.frame(WINDOW_UPDATE, 0, 0, &[0x3f, 0, 0, 0]);
        client
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let mut frame = [0; 9 + 256];
        frame[2] = payload.len() as u8;
        (frame[3], frame[4]) = (kind, flags);
        frame[5..9].copy_from_slice(&stream.to_be_bytes());
        frame[9..9 + payload.len()].copy_from_slice(payload);
        self.stream.write_all(&frame[..9 + payload.len()]).unwrap();
    }

    /// Reads frames up to one of this kind and stream.
    fn until(&mut self, kind: u8, stream: u32) {
        loop {
            let mut head = [0; 9];
            self.stream.read_exact(&mut head).unwrap();
            let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let mut payload = [0; 1 << 14];
            self.stream.read_exact(&mut payload[..len]).unwrap();
            if head[3] == SETTINGS && head[4] == 0 {
                self.frame(SETTINGS, 1, 0, &[]);
            }
            if head[3] == kind && head[5..9] == stream.to_be_bytes() {
                return;
            }
        }
    }

    /// Opens a WebSocket, which echoes a message.
    fn open(&mut self) -> u32 {
        let stream = self.next;
        self.next += 2;
        self.frame(HEADERS, 4, stream, BLOCK);
        self.until(HEADERS, stream);
        self.echo(stream);
        stream
    }

    /// Sends a message of 200 bytes with a mask of zero.
    fn echo(&mut self, stream: u32) {
        let mut message = [0; 208];
        message[..4].copy_from_slice(&[0x82, 0xfe, 0, 200]);
        self.frame(DATA, 0, stream, &message);
        self.until(DATA, stream);
    }
}

#[test]
fn idle_websocket_on_a_stream_takes_at_most_768_bytes() {
    let _alone = measure_alone();
    let router = Router::new().websocket("/", WebSocketRoute::new(|_| Ok(Echo)));
    let http = HttpConfig::default().with_http2_clear_text(true);
    let server = Server::new(router).engine(backend::engine()).threads(1).http(http);
    let server = server.listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
    let serving = Serving::new(server);
    let address = serving.address;

    let mut clients: Vec<Client> = (0..CONNECTIONS).map(|_| Client::connect(address)).collect();
    for client in &mut clients {
        (0..FEW).for_each(|_| {
            client.open();
        });
    }
    let few = idle_live_bytes();
    for client in &mut clients {
        (FEW..MANY).for_each(|_| {
            client.open();
        });
    }
    let many = idle_live_bytes();
    let each = (many - few) / (CONNECTIONS * (MANY - FEW)) as isize;
    println!("{each} bytes for an idle WebSocket on a stream");
    assert!(each <= 768, "{each} bytes for a socket");
    assert!(each >= 100, "{each} bytes: too few, the measurement is broken");

    // Sockets that open and end leave no memory behind.
    let mut base = None;
    for round in 0..20 {
        for client in &mut clients {
            let stream = client.open();
            client.frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]);
            client.echo(1);
        }
        // In the first round tables double.
        let remains = idle_live_bytes() - *base.get_or_insert_with(idle_live_bytes);
        assert!(remains <= REMAINS, "round {round}: {remains} bytes remain");
    }
}

const CONNECTIONS: usize = 4;
const FEW: usize = 16;
const MANY: usize = 64;

/// Allowed difference by spare buffers, tables and remembered streams.
const REMAINS: isize = 16 << 10;
