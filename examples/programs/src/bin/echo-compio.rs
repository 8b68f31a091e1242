//! Echoes messages, on compio: `echo-compio [ADDRESS]`, by default on `127.0.0.1:8080`.
#![forbid(unsafe_code)]

use std::env;
use std::error::Error;
use std::time::Duration;

use compio::net::{TcpListener, TcpStream};
use sinews::{DeflateConfig, DeflateMode};

#[compio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let listener = TcpListener::bind(&address).await?;
    println!("listening on {}", listener.local_addr()?);
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let connection = async move {
                    if let Err(error) = echo(stream).await {
                        println!("{peer}: {error}");
                    }
                };
                compio::runtime::spawn(connection).detach();
            }
            // Probably too many open files: some will close.
            Err(error) => {
                println!("accept: {error}");
                compio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn echo(stream: TcpStream) -> Result<(), Box<dyn Error>> {
    stream.set_nodelay(true)?;
    // Each connection keeps its compression context: the smallest messages, at the cost of memory.
    let deflate = DeflateConfig::new().with_mode(DeflateMode::Dedicated);
    let mut ws = sinews::compio::accept(stream).deflate(deflate).await?;
    while let Some(message) = ws.next().await {
        let message = message?;
        if message.is_data() {
            ws.send(message).await?;
        }
    }
    Ok(())
}
