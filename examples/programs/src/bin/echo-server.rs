//! Sends back whatever comes: `echo-server [ADDRESS]`, by default on `127.0.0.1:8080`.
#![forbid(unsafe_code)]

use std::env;
use std::error::Error;
use std::time::Duration;

use sinews::{DeflateConfig, DeflateMode};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let listener = TcpListener::bind(&address).await?;
    println!("listening on {}", listener.local_addr()?);
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                tokio::spawn(async move {
                    if let Err(error) = echo(stream).await {
                        println!("{peer}: {error}");
                    }
                });
            }
            // Too many open files, most likely: some will be closed.
            Err(error) => {
                println!("accept: {error}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn echo(stream: TcpStream) -> Result<(), Box<dyn Error + Send + Sync>> {
    stream.set_nodelay(true)?;
    // Each connection remembers what it has compressed: the smallest messages, for some memory.
    let deflate = DeflateConfig::new().with_mode(DeflateMode::Dedicated);
    let mut ws = sinews::accept(stream).deflate(deflate).await?;
    while let Some(message) = ws.next().await {
        let message = message?;
        // Pings, pongs and Close have been taken care of; they come along to be seen.
        if message.is_data() {
            ws.send(message).await?;
        }
    }
    Ok(())
}
