//! Answers each HTTP request with `Hello`, by counting the empty lines that end their heads.
//!
//! `cargo run --release -p sinews-engine --example hello -- [PORT] [auto|poll|uring] [THREADS]`

use std::{io::Cursor, thread};

use sinews_engine::{App, ConnId, ConnectionOrigin, Engine, EngineConfig, Flow, Io, ListenOptions, Listener};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 6\r\n\r\nHello\n";

/// By slot: the received part of an empty line, and pending answers. A slow reader costs a counter, not
/// memory.
#[derive(Default)]
struct Hello(Vec<(usize, usize)>);

impl App for Hello {
    type Chain = Cursor<Vec<u8>>;
    type Mail = ();

    fn accepted(&mut self, _: &mut Io, conn: ConnId, _: ConnectionOrigin) {
        self.0.resize(self.0.len().max(conn.index() + 1), (0, 0));
        self.0[conn.index()] = (0, 0);
    }
    fn received(&mut self, io: &mut Io, conn: ConnId, chunk: &mut [u8]) -> Flow {
        let (matched, owed) = &mut self.0[conn.index()];
        for byte in chunk {
            *matched =
                if *byte == b"\r\n\r\n"[*matched] { *matched + 1 } else { usize::from(*byte == b'\r') };
            *owed += *matched / 4;
            *matched %= 4;
        }
        io.send(conn);
        Flow::Continue
    }
    fn ended(&mut self, io: &mut Io, conn: ConnId) {
        io.shutdown(conn);
    }
    fn start_send(&mut self, conn: ConnId) -> Option<Self::Chain> {
        let (_, owed) = &mut self.0[conn.index()];
        let now = (*owed).min(1000);
        *owed -= now;
        (now > 0).then(|| Cursor::new(ANSWER.repeat(now)))
    }
    fn finish_send(&mut self, io: &mut Io, conn: ConnId, _: Self::Chain, _: bool) {
        io.send(conn);
    }
    fn finish_may_wait(&self, conn: ConnId) -> bool {
        self.0[conn.index()].1 == 0
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
            |one| scope.spawn(move || Engine::new(config.clone(), vec![one])?.run(&mut Hello::default()));
        let loops: Vec<_> = listeners.into_iter().map(run).collect();
        loops.into_iter().try_for_each(|one| one.join().expect("a loop panicked"))
    })?;
    Ok(())
}
