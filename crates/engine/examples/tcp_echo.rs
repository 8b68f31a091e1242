//! Plain TCP echo on the engine: the reference that protocols on top of it are measured against.
//!
//! `cargo run --release -p sinews-engine --example tcp_echo -- 9000 poll` prints the address it listens on and
//! serves until its standard input is closed. The backend is `auto`, `poll` or `uring`.

use std::io::{Cursor, Read, Write};
use std::mem;

use sinews_engine::{
    Accepted, App, BackendChoice, Closed, Config, ConnId, Engine, Flow, Io, ListenOptions, Listener,
};

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let port = std::env::args().nth(1).map_or(Ok(0), |port| port.parse::<u16>())?;
    let backend = match std::env::args().nth(2).as_deref() {
        None | Some("auto") => BackendChoice::Auto,
        Some("poll") => BackendChoice::Poll,
        Some("uring") => BackendChoice::Uring,
        Some(other) => return Err(format!("{other}: the backend is auto, poll or uring").into()),
    };
    let listener = Listener::bind(([127, 0, 0, 1], port).into(), &ListenOptions::default())?;
    let address = listener.local_addr()?;
    let mut engine = Engine::<Echo>::new(Config::default().backend(backend), vec![listener])?;
    let post = engine.post();
    std::thread::spawn(move || {
        let ended = std::io::stdin().read_to_end(&mut Vec::new());
        post.send(ended.is_ok())
    });
    println!("{address}");
    std::io::stdout().flush()?;
    Ok(engine.run(&mut Echo::default())?)
}

/// What waits to be sent, by slot, and vectors to be used again.
#[derive(Default)]
struct Echo {
    pending: Vec<Vec<u8>>,
    pool: Vec<Vec<u8>>,
}

impl App for Echo {
    type Chain = Cursor<Vec<u8>>;
    type Mail = bool;

    fn accepted(&mut self, _: &mut Io, conn: ConnId, _: Accepted) {
        if self.pending.len() <= conn.index() {
            self.pending.resize_with(conn.index() + 1, Vec::new);
        }
    }

    fn received(&mut self, io: &mut Io, conn: ConnId, chunk: &mut [u8]) -> Flow {
        let pending = &mut self.pending[conn.index()];
        if pending.capacity() == 0 {
            *pending = self.pool.pop().unwrap_or_default();
        }
        pending.extend_from_slice(chunk);
        io.send(conn);
        if pending.len() < PENDING_MAX { Flow::Continue } else { Flow::Pause }
    }

    fn ended(&mut self, io: &mut Io, conn: ConnId) {
        io.shutdown(conn);
    }

    fn start_send(&mut self, conn: ConnId) -> Option<Self::Chain> {
        let pending = mem::take(&mut self.pending[conn.index()]);
        (!pending.is_empty()).then(|| Cursor::new(pending))
    }

    fn finish_send(&mut self, io: &mut Io, conn: ConnId, chain: Self::Chain, _: bool) {
        io.resume(conn);
        let mut spare = chain.into_inner();
        if self.pool.len() < POOLED_MAX && spare.capacity() <= POOLED_BYTES_MAX {
            spare.clear();
            self.pool.push(spare);
        }
    }

    fn finish_may_wait(&self, _: ConnId) -> bool {
        true
    }

    fn closed(&mut self, _: &mut Io, conn: ConnId, _: Closed) {
        self.pending[conn.index()] = Vec::new();
    }

    fn mail(&mut self, io: &mut Io, _: &mut Vec<bool>) {
        io.stop();
    }
}

/// A peer that does not read its echo is not received from beyond this.
const PENDING_MAX: usize = 32 << 20;
const POOLED_MAX: usize = 1024;
const POOLED_BYTES_MAX: usize = 1 << 20;
