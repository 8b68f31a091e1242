//! Plain TCP echo (RFC 862): the performance reference for protocols on top of the engine.
//!
//! `cargo run --release -p sinews-engine --example tcp_echo -- [PORT] [auto|poll|uring] [THREADS]`

use std::{io::Cursor, mem, thread};

use sinews_engine::{
    App, CloseReason, ConnId, ConnectionOrigin, Engine, EngineConfig, Flow, Io, ListenOptions, Listener,
};

/// Queued bytes, by slot.
#[derive(Default)]
struct Echo(Vec<Vec<u8>>);

/// Reads from a peer that does not read its echo are paused beyond this.
const PENDING_MAX: usize = 32 << 20;

impl App for Echo {
    type Chain = Cursor<Vec<u8>>;
    type Mail = ();

    fn accepted(&mut self, _: &mut Io, conn: ConnId, _: ConnectionOrigin) {
        self.0.resize_with(self.0.len().max(conn.index() + 1), Vec::new);
    }
    fn received(&mut self, io: &mut Io, conn: ConnId, chunk: &mut [u8]) -> Flow {
        self.0[conn.index()].extend_from_slice(chunk);
        io.send(conn);
        if self.0[conn.index()].len() < PENDING_MAX { Flow::Continue } else { Flow::Pause }
    }
    fn ended(&mut self, io: &mut Io, conn: ConnId) {
        io.shutdown(conn);
    }
    fn start_send(&mut self, conn: ConnId) -> Option<Self::Chain> {
        let pending = mem::take(&mut self.0[conn.index()]);
        (!pending.is_empty()).then(|| Cursor::new(pending))
    }
    fn finish_send(&mut self, io: &mut Io, conn: ConnId, chain: Self::Chain, _: bool) {
        io.resume(conn);
        let mut spare = chain.into_inner();
        if self.0[conn.index()].capacity() == 0 && spare.capacity() <= 1 << 20 {
            spare.clear();
            self.0[conn.index()] = spare;
        }
    }
    fn finish_may_wait(&self, _: ConnId) -> bool {
        true
    }
    fn closed(&mut self, _: &mut Io, conn: ConnId, _: CloseReason) {
        self.0[conn.index()] = Vec::new();
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let argument = |at, default: &str| std::env::args().nth(at).unwrap_or_else(|| default.to_owned());
    let address = format!("127.0.0.1:{}", argument(1, "9000")).parse()?;
    let config = &EngineConfig::default().with_backend(argument(2, "auto").parse()?);
    let listeners = Listener::bind_all(address, argument(3, "1").parse()?, &ListenOptions::default())?;
    println!("{}", listeners[0].local_addr()?);
    thread::scope(|scope| {
        let run =
            |one| scope.spawn(move || Engine::new(config.clone(), vec![one])?.run(&mut Echo::default()));
        let loops: Vec<_> = listeners.into_iter().map(run).collect();
        loops.into_iter().try_for_each(|one| one.join().expect("a loop panicked"))
    })?;
    Ok(())
}
