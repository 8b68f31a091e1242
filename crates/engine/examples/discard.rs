//! Discards received bytes (RFC 863): the smallest application.
//!
//! `cargo run --release -p sinews-engine --example discard -- [PORT] [auto|poll|uring] [THREADS]`

use std::io::Cursor;
use std::thread;

use sinews_engine::{App, ConnId, Engine, EngineConfig, Flow, Io, ListenOptions, Listener};

struct Discard;

impl App for Discard {
    type Chain = Cursor<Vec<u8>>;
    type Mail = ();

    fn received(&mut self, _: &mut Io, _: ConnId, _: &mut [u8]) -> Flow {
        Flow::Continue
    }

    fn ended(&mut self, io: &mut Io, conn: ConnId) {
        io.shutdown(conn);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let argument = |at, default: &str| std::env::args().nth(at).unwrap_or_else(|| default.to_owned());
    let address = format!("127.0.0.1:{}", argument(1, "9000")).parse()?;
    let config = &EngineConfig::default().with_backend(argument(2, "auto").parse()?);
    let listeners = Listener::bind_all(address, argument(3, "1").parse()?, &ListenOptions::default())?;
    println!("{}", listeners[0].local_addr()?);
    thread::scope(|scope| {
        let run = |one| scope.spawn(move || Engine::new(config.clone(), vec![one])?.run(&mut Discard));
        let loops: Vec<_> = listeners.into_iter().map(run).collect();
        loops.into_iter().try_for_each(|one| one.join().expect("a loop panicked"))
    })?;
    Ok(())
}
