//! Libraries on Tokio that take a stream.

use std::future::Future;
use std::net::SocketAddr;

use futures_util::{SinkExt, StreamExt};
use sockudo_ws::handshake::server_handshake;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_websockets::{Limits, ServerBuilder};

use crate::{Error, MESSAGE_MAX, announce};

/// Accepts for ever; each connection is a task.
pub(crate) fn run<F>(address: SocketAddr, serve: fn(TcpStream) -> F) -> Result<(), Error>
where
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
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
    let config =
        WebSocketConfig::default().max_message_size(Some(MESSAGE_MAX)).max_frame_size(Some(MESSAGE_MAX));
    let mut socket = tokio_tungstenite::accept_async_with_config(stream, Some(config)).await?;
    while let Some(message) = socket.next().await {
        let message = message?;
        if message.is_text() || message.is_binary() {
            socket.send(message).await?;
        }
    }
    Ok(())
}

pub(crate) async fn websockets(stream: TcpStream) -> Result<(), Error> {
    // A message is to leave in one frame, as it came; by default it is cut every 4 MiB.
    let config = tokio_websockets::Config::default().frame_size(MESSAGE_MAX);
    let limits = Limits::default().max_payload_len(Some(MESSAGE_MAX));
    let (_, mut socket) = ServerBuilder::new().config(config).limits(limits).accept(stream).await?;
    while let Some(message) = socket.next().await {
        let message = message?;
        if message.is_text() || message.is_binary() {
            socket.send(message).await?;
        }
    }
    Ok(())
}

pub(crate) async fn sockudo(mut stream: TcpStream) -> Result<(), Error> {
    use sockudo_ws::{Config, Message, Role, WebSocketStream};

    let config = Config::builder().max_payload_length(MESSAGE_MAX).build();
    let leftover = server_handshake(&mut stream).await?.leftover;
    let mut socket = WebSocketStream::from_raw_with_leftover(stream, Role::Server, config, leftover);
    while let Some(message) = socket.next().await {
        let message = message?;
        if matches!(message, Message::Text(_) | Message::Binary(_)) {
            socket.send(message).await?;
        }
    }
    Ok(())
}
