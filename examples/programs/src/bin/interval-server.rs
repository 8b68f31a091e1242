//! Sends `tick` every second, and echoes messages: `interval-server [ADDRESS]`, by default on
//! `127.0.0.1:9002`.
#![forbid(unsafe_code)]

use std::env;
use std::error::Error;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::{MissedTickBehavior, interval};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9002".to_owned());
    let listener = TcpListener::bind(&address).await?;
    println!("listening on {}", listener.local_addr()?);
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                tokio::spawn(async move {
                    if let Err(error) = serve(stream).await {
                        println!("{peer}: {error}");
                    }
                });
            }
            // Probably too many open files: some will close.
            Err(error) => {
                println!("accept: {error}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn serve(stream: TcpStream) -> Result<(), Box<dyn Error + Send + Sync>> {
    stream.set_nodelay(true)?;
    let mut ws = sinews::accept(stream).await?;
    let mut seconds = interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(MissedTickBehavior::Skip);
    // No split is needed: `next` is cancel-safe in `select`.
    loop {
        tokio::select! {
            message = ws.next() => match message {
                Some(Ok(message)) if message.is_data() => ws.send(message).await?,
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error.into()),
                None => return Ok(()),
            },
            _ = seconds.tick() => ws.send("tick").await?,
        }
    }
}
