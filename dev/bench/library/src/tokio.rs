//! On Tokio.

use std::net::SocketAddr;
use std::sync::Arc;

use sinews::WebSocket;
use sinews_proto::handshake::{ServerOptions, accept};
use sinews_proto::http::{HeadLimits, HeaderSlots, RequestHead};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;

use crate::{Error, announce, config};

pub(crate) enum Threads {
    One,
    Many,
}

/// Accepts for ever; each connection is a task.
pub(crate) fn run(address: SocketAddr, threads: Threads) -> Result<(), Error> {
    let mut runtime = match threads {
        Threads::One => Builder::new_current_thread(),
        Threads::Many => Builder::new_multi_thread(),
    };
    runtime.enable_all().build()?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        announce(listener.local_addr()?)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(echo(stream));
        }
    })
}

async fn open(mut stream: TcpStream) -> Result<WebSocket<TcpStream>, Error> {
    let mut received = Vec::new();
    let end = loop {
        stream.read_buf(&mut received).await?;
        if let Some(at) = received.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
    };
    let mut slots = HeaderSlots::new();
    let head = RequestHead::parse(&received[..end], &HeadLimits::new(), &mut slots)?;
    let accepted = accept(&head, &ServerOptions::new())?;
    let mut answer = Vec::new();
    accepted.write_response(&[], &mut answer)?;
    stream.write_all(&answer).await?;
    Ok(WebSocket::from_negotiated(stream, accepted.negotiated(), Arc::new(config()), &received[end..]))
}

async fn echo(stream: TcpStream) -> Result<(), Error> {
    let mut socket = open(stream).await?;
    while let Some(message) = socket.next().await {
        let message = message?;
        if message.is_data() {
            socket.send(message).await?;
        }
    }
    Ok(())
}
