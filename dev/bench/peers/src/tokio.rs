//! Libraries on Tokio over a stream.

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use futures_util::{SinkExt, StreamExt};
use sockudo_ws::handshake::server_handshake;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_websockets::{Limits, ServerBuilder, WebSocketStream};

use crate::{Error, MESSAGE_MAX, Threads, announce, feed};

pub(crate) fn runtime(threads: Threads) -> io::Result<Runtime> {
    match threads {
        Threads::One => Builder::new_current_thread().enable_all().build(),
        Threads::Multi => Builder::new_multi_thread().worker_threads(2).enable_all().build(),
    }
}

/// Accepts forever; each connection is a task.
pub(crate) fn run<F>(address: SocketAddr, threads: Threads, serve: fn(TcpStream) -> F) -> Result<(), Error>
where
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    runtime(threads)?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        announce(listener.local_addr()?)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(serve(stream));
        }
    })
}

pub(crate) async fn tungstenite(stream: TcpStream) -> Result<(), Error> {
    let mut socket = tokio_tungstenite::accept_async_with_config(stream, Some(limits())).await?;
    while let Some(message) = socket.next().await {
        let message = message?;
        if message.is_text() || message.is_binary() {
            socket.send(message).await?;
        }
    }
    Ok(())
}

/// Follows its documentation of `write_buffer_size`: `feed` fills the buffer, which is 128 KiB by default,
/// and `flush` writes it.
pub(crate) async fn tungstenite_feed<const READ_BUFFER: usize>(stream: TcpStream) -> Result<(), Error> {
    let config = limits().read_buffer_size(READ_BUFFER);
    let socket = tokio_tungstenite::accept_async_with_config(stream, Some(config)).await?;
    Ok(feed::at_once(socket, |message| message.is_text() || message.is_binary()).await?)
}

fn limits() -> WebSocketConfig {
    WebSocketConfig::default().max_message_size(Some(MESSAGE_MAX)).max_frame_size(Some(MESSAGE_MAX))
}

pub(crate) async fn websockets(stream: TcpStream) -> Result<(), Error> {
    let mut socket = accept_websockets(stream, tokio_websockets::Config::default()).await?;
    while let Some(message) = socket.next().await {
        let message = message?;
        if message.is_text() || message.is_binary() {
            socket.send(message).await?;
        }
    }
    Ok(())
}

/// Echoes with `feed` and `flush`, with a flush threshold that no burst of small messages reaches. Its `next` flushes,
/// so all messages are taken first.
pub(crate) async fn websockets_feed(stream: TcpStream) -> Result<(), Error> {
    let config = tokio_websockets::Config::default().flush_threshold(128 << 10);
    let socket = accept_websockets(stream, config).await?;
    Ok(feed::together(socket, |message| message.is_text() || message.is_binary()).await?)
}

async fn accept_websockets(
    stream: TcpStream,
    config: tokio_websockets::Config,
) -> Result<WebSocketStream<TcpStream>, Error> {
    // Sends a message in one frame, as it arrived; by default the library splits it every 4 MiB.
    let config = config.frame_size(MESSAGE_MAX);
    let limits = Limits::default().max_payload_len(Some(MESSAGE_MAX));
    Ok(ServerBuilder::new().config(config).limits(limits).accept(stream).await?.1)
}

pub(crate) async fn sockudo(stream: TcpStream) -> Result<(), Error> {
    use sockudo_ws::Message;

    let mut socket = accept_sockudo(stream).await?;
    while let Some(message) = socket.next().await {
        let message = message?;
        if matches!(message, Message::Text(_) | Message::Binary(_)) {
            socket.send(message).await?;
        }
    }
    Ok(())
}

/// The echo loop in its documentation ("Queued-write backpressure"): `next` flushes before it waits.
pub(crate) async fn sockudo_feed(stream: TcpStream) -> Result<(), Error> {
    use sockudo_ws::Message;

    let mut socket = accept_sockudo(stream).await?;
    while let Some(message) = socket.next().await {
        match message? {
            message @ (Message::Text(_) | Message::Binary(_)) => socket.feed(message).await?,
            Message::Close(_) => return Ok(()),
            _ => {}
        }
    }
    Ok(())
}

async fn accept_sockudo(mut stream: TcpStream) -> Result<sockudo_ws::WebSocketStream<TcpStream>, Error> {
    use sockudo_ws::{Config, Role};

    let config = Config::builder().max_payload_length(MESSAGE_MAX).build();
    let leftover = server_handshake(&mut stream).await?.leftover;
    Ok(sockudo_ws::WebSocketStream::from_raw_with_leftover(stream, Role::Server, config, leftover))
}
