//! Libraries on compio: io_uring where the kernel has it.

use std::future::Future;
use std::net::SocketAddr;

use compio::net::{TcpListener, TcpStream};
use compio::runtime::Runtime;
use compio_ws::tungstenite::protocol::WebSocketConfig;

use crate::{Error, MESSAGE_MAX, announce};

/// Accepts for ever; each connection is a task.
pub(crate) fn run<F>(address: SocketAddr, serve: fn(TcpStream) -> F) -> Result<(), Error>
where
    F: Future<Output = Result<(), Error>> + 'static,
{
    Runtime::new()?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        announce(listener.local_addr()?)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            compio::runtime::spawn(serve(stream)).detach();
        }
    })
}

pub(crate) async fn compio_ws(stream: TcpStream) -> Result<(), Error> {
    let config =
        WebSocketConfig::default().max_message_size(Some(MESSAGE_MAX)).max_frame_size(Some(MESSAGE_MAX));
    let mut socket = compio_ws::accept_async_with_config(stream, config).await?;
    loop {
        let message = socket.read().await?;
        if message.is_text() || message.is_binary() {
            socket.send(message).await?;
        }
    }
}

pub(crate) async fn sockudo(stream: TcpStream) -> Result<(), Error> {
    use sockudo_ws::{Config, Message};

    let config = Config::builder().max_payload_length(MESSAGE_MAX).build();
    let (mut socket, _) = sockudo_ws::compio::accept_async(stream, config).await?;
    while let Some(message) = socket.next().await {
        let message = message?;
        if matches!(message, Message::Text(_) | Message::Binary(_)) {
            socket.send(message).await?;
        }
    }
    Ok(())
}
