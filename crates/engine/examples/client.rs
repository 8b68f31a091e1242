//! A client on the loop: connects, sends, and prints the answers. A server for it is `tcp_echo`.
//!
//! `cargo run --release -p sinews-engine --example client -- ADDRESS [auto|poll|uring] [CONNECTIONS]`

use std::io::Cursor;
use std::net::SocketAddr;

use sinews_engine::{App, CloseReason, ConnId, ConnectOptions, Engine, EngineConfig, Flow, Io};

struct Client {
    address: SocketAddr,
    connections: usize,
    /// Received bytes of each connection, by slot.
    received: Vec<Vec<u8>>,
}

const GREETING: &[u8] = b"Hello";

impl App for Client {
    type Chain = Cursor<Vec<u8>>;
    type Mail = ();

    fn started(&mut self, io: &mut Io) {
        for _ in 0..self.connections {
            let conn = io.connect(self.address, &ConnectOptions::default());
            // Commands are executed when the connection is established.
            io.send(conn);
        }
        self.received.resize_with(self.connections, Vec::new);
    }
    fn received(&mut self, io: &mut Io, conn: ConnId, chunk: &mut [u8]) -> Flow {
        let received = &mut self.received[conn.index()];
        received.extend_from_slice(chunk);
        if received.len() >= GREETING.len() {
            io.shutdown(conn);
        }
        Flow::Continue
    }
    fn ended(&mut self, io: &mut Io, conn: ConnId) {
        io.shutdown(conn);
    }
    fn start_send(&mut self, conn: ConnId) -> Option<Self::Chain> {
        self.received[conn.index()].is_empty().then(|| Cursor::new(GREETING.to_vec()))
    }
    fn closed(&mut self, _: &mut Io, conn: ConnId, reason: CloseReason) {
        println!("{} {reason:?}", String::from_utf8_lossy(&self.received[conn.index()]));
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let argument = |at, default: &str| std::env::args().nth(at).unwrap_or_else(|| default.to_owned());
    let address = argument(1, "127.0.0.1:9000").parse()?;
    let config = EngineConfig::default().with_backend(argument(2, "auto").parse()?);
    let mut client = Client { address, connections: argument(3, "1").parse()?, received: Vec::new() };
    // Without listeners it runs until the last connection has closed.
    Engine::new(config, Vec::new())?.run(&mut client)?;
    Ok(())
}
