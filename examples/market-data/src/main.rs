//! # market-data
//!
//! Prices for any number of clients, on compio (io_uring, Linux).
//!
//! ```sh
//! cargo run -p market-data                     # ws://127.0.0.1:4001/
//! cargo run -p market-data -- 0.0.0.0:9000
//! ```
//!
//! Any WebSocket client can follow it:
//!
//! ```text
//! > {"subscribe": ["AAA", "BBB"]}
//! < {"quotes":[{"price":10000,"round":0,"symbol":"AAA"},{"price":10000,"round":0,"symbol":"BBB"}]}
//! < {"quotes":[{"price":10027,"round":1,"symbol":"BBB"}]}
//! ```
//!
//! Prices are in cents and change 100 times a second. `round` counts these changes: a client that reads slowly sees
//! numbers missing, and always the newest price. Ctrl-C closes all connections with 1001.
#![forbid(unsafe_code)]

use std::error::Error;
use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use market_data::{Market, Server};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

const ROUND: Duration = Duration::from_millis(10);

fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_target(false).init();
    let address: SocketAddr = std::env::args().nth(1).as_deref().unwrap_or("127.0.0.1:4001").parse()?;
    let market = Arc::new(Market::new(["AAA", "BBB", "CCC", "DDD", "EEE", "FFF", "GGG", "HHH"], 1));
    let threads = thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
    let server = Server::start(address, threads, &market)?;
    tracing::info!("ws://{}/ on {threads} threads", server.address());

    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let (stop, stopped) = channel();
    thread::spawn(move || {
        signals.forever().next();
        let _ = stop.send(());
    });
    while stopped.recv_timeout(ROUND) == Err(RecvTimeoutError::Timeout) {
        market.tick();
    }
    tracing::info!("stopping");
    Ok(server.stop()?)
}
