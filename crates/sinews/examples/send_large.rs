//! Measures the cost of a client's messages of 1 MB, which are masked, and the memory that is touched for the first
//! time: `cargo run --release -p sinews --example send_large -- [MESSAGES]`.

use std::error::Error;
use std::io::Read as _;
use std::net::TcpListener;
use std::time::Instant;
use std::{fs, thread};

use sinews::{Config, WebSocket};
use sinews_testkit::negotiate;
use tokio::net::TcpStream;

const SIZE: usize = 1 << 20;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let messages: u32 = std::env::args().nth(1).map_or(Ok(2_000), |messages| messages.parse())?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let stream = TcpStream::connect(listener.local_addr()?).await?;
    let mut peer = listener.accept()?.0;
    let reading = thread::spawn(move || {
        let mut memory = vec![0; SIZE];
        while peer.read(&mut memory).is_ok_and(|count| count > 0) {}
    });
    let mut ws =
        WebSocket::from_negotiated(stream, negotiate(None, None).client, Config::default().into(), &[]);
    let payload = vec![7; SIZE];
    for _ in 0..100 {
        ws.send_binary(&payload).await?;
    }
    let (faults, cpu, begun) = (faults()?, cpu()?, Instant::now());
    for _ in 0..messages {
        ws.send_binary(&payload).await?;
    }
    let (elapsed, messages) = (begun.elapsed(), f64::from(messages));
    println!(
        "{:.2} page faults, {:.0} us of CPU, {:.0} us a message",
        (self::faults()? - faults) as f64 / messages,
        (self::cpu()? - cpu) as f64 / 1e3 / messages,
        elapsed.as_secs_f64() * 1e6 / messages,
    );
    drop(ws);
    reading.join().map_err(|_| "the reader panicked")?;
    Ok(())
}

/// Page faults of this thread without disk access (proc_pid_stat(5), field 10).
fn faults() -> Result<u64, Box<dyn Error>> {
    let stat = fs::read_to_string("/proc/thread-self/stat")?;
    let behind_name = stat.rsplit(')').next().unwrap_or_default();
    Ok(behind_name.split_whitespace().nth(7).ok_or("no such field")?.parse()?)
}

/// Nanoseconds that this thread has run.
fn cpu() -> Result<u64, Box<dyn Error>> {
    let stat = fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(stat.split(' ').next().unwrap_or_default().parse()?)
}
