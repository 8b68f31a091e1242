//! Echoes messages: `echo-server [ADDRESS]`, by default on `127.0.0.1:8080`.
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
            // Probably too many open files: some will close.
            Err(error) => {
                println!("accept: {error}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn echo(stream: TcpStream) -> Result<(), Box<dyn Error + Send + Sync>> {
    stream.set_nodelay(true)?;
    // Each connection keeps its compression context: the smallest messages, at the cost of memory.
    let deflate = DeflateConfig::new().with_mode(DeflateMode::Dedicated);
    let mut ws = sinews::accept(stream).deflate(deflate).await?;
    while let Some(message) = ws.next().await {
        let message = message?;
        // The library has handled pings, pongs and Close; it returns them for information.
        if message.is_data() {
            ws.send(message).await?;
        }
    }
    Ok(())
}
