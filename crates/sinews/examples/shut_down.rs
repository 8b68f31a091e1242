//! Measures how long a server with silent clients takes to close them all:
//! `cargo run --release -p sinews --example shut_down -- [CLIENTS]`.
//!
//! The clients make the handshake and read nothing afterwards, so that no Close is answered.

use std::error::Error;
use std::time::Instant;

use sinews::tokio::WebSocket;
use sinews::{CloseCode, accept};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

#[derive(Clone, Copy, Debug)]
enum How {
    CloseNow,
    CloseNowOfAHalf,
    Close,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let clients = std::env::args().nth(1).map_or(Ok(550), |clients| clients.parse())?;
    for how in [How::CloseNow, How::CloseNowOfAHalf, How::Close] {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (mut silent, mut open) = (Vec::new(), Vec::new());
        for _ in 0..clients {
            let (client, server) = tokio::join!(shake_hands(listener.local_addr()?), async {
                accept(listener.accept().await.expect("a client").0).await
            });
            silent.push(client?);
            open.push(server?);
        }
        let begun = Instant::now();
        let mut closing = JoinSet::new();
        open.into_iter().for_each(|ws| drop(closing.spawn(close(ws, how))));
        closing.join_all().await;
        println!("{clients} silent clients, {how:?}: {:.3} s", begun.elapsed().as_secs_f64());
    }
    Ok(())
}

async fn close(mut ws: WebSocket<TcpStream>, how: How) {
    match how {
        How::CloseNow => ws.close_now(CloseCode::GOING_AWAY, "").await.expect("sent"),
        How::CloseNowOfAHalf => {
            let (mut write, mut read) = ws.split();
            let reading = tokio::spawn(async move { while read.next().await.is_some() {} });
            write.close_now(CloseCode::GOING_AWAY, "").await.expect("sent");
            reading.await.expect("no panic");
        }
        // Returns an error, since the client has not answered.
        How::Close => drop(ws.close(CloseCode::GOING_AWAY, "").await),
    }
}

async fn shake_hands(address: std::net::SocketAddr) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    let request = "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        stream.read_buf(&mut answer).await?;
    }
    Ok(stream)
}
