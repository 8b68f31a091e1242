//! Memory of the whole process, counted by the allocator, and the latency of an idle server. A program of its own whose tests run
//! one after the other: other tests would be counted, and would delay the server.

#[path = "../shared/backend.rs"]
mod backend;
mod first_byte;
mod http2_memory;
#[path = "../../../quic/tests/endpoints/http3_client.rs"]
#[expect(dead_code, reason = "other tests use more of the client")]
mod http3_client;
mod http3_memory;
mod keyed_memory;
#[path = "../../../quic/tests/endpoints/quic_client.rs"]
#[expect(dead_code, reason = "other tests use more of the client")]
mod quic_client;
mod tls_memory;
mod websocket_memory;

use std::net::SocketAddr;
use std::thread::JoinHandle;

use sinews_server::{BoundServer, Context, Handler, Payload, StopHandle};
use sinews_testkit::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const HANDSHAKE: &[u8] =
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

/// Sends each message back.
struct Echo;

impl Handler for Echo {
    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        let _ = cx.send_payload(payload);
    }
}

/// A server that runs in its own threads. Ends when it is dropped, by a failure too: its memory would be counted in the next test.
struct Serving {
    address: SocketAddr,
    stop: StopHandle,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl Serving {
    fn new(server: BoundServer) -> Self {
        let (address, stop) = (server.addresses()[0], server.stop_handle());
        Self { address, stop, thread: Some(std::thread::spawn(|| server.run())) }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.stop_now();
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended
                .expect("one end")
                .expect("no thread of the server panics")
                .expect("each loop ends in order");
        }
    }
}
