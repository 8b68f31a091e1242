//! Libraries on compio: io_uring where the kernel has it.

use std::future::Future;
use std::net::SocketAddr;

use compio::driver::ProactorBuilder;
use compio::net::{TcpListener, TcpStream};
use compio::runtime::RuntimeBuilder;
use compio_ws::tungstenite::protocol::WebSocketConfig;

use crate::{Error, MESSAGE_MAX, announce, feed};

/// io_uring setup.
#[derive(Clone, Copy)]
pub(crate) enum Ring {
    /// compio's default setup.
    Default,
    /// With compio's flags for a single-threaded ring.
    Tuned,
}

/// Accepts forever; each connection is a task.
pub(crate) fn run<F>(address: SocketAddr, ring: Ring, serve: fn(TcpStream) -> F) -> Result<(), Error>
where
    F: Future<Output = Result<(), Error>> + 'static,
{
    let mut proactor = ProactorBuilder::new();
    if matches!(ring, Ring::Tuned) {
        proactor.single_issuer(true).defer_taskrun(true);
    }
    RuntimeBuilder::new().with_proactor(proactor).build()?.block_on(async {
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
    let mut socket = compio_ws::accept_async_with_config(stream, limits()).await?;
    loop {
        let message = socket.read().await?;
        if message.is_text() || message.is_binary() {
            socket.send(message).await?;
        }
    }
}

/// Echoes with `feed` and `flush`. Its `next` flushes, so all messages are taken first.
pub(crate) async fn compio_ws_feed<const READ_BUFFER: usize>(stream: TcpStream) -> Result<(), Error> {
    let config = limits().read_buffer_size(READ_BUFFER);
    let socket = compio_ws::accept_async_with_config(stream, config).await?;
    Ok(feed::together(socket, |message| message.is_text() || message.is_binary()).await?)
}

fn limits() -> WebSocketConfig {
    WebSocketConfig::default().max_message_size(Some(MESSAGE_MAX)).max_frame_size(Some(MESSAGE_MAX))
}

/// tungstenite, which is synchronous, over our bridge. It has no faster form, since it demonstrates the
/// bridge.
pub(crate) async fn tungstenite(stream: TcpStream) -> Result<(), Error> {
    use compio_ws::tungstenite::handshake::HandshakeError;
    use compio_ws::tungstenite::{Error as Fault, accept_with_config};
    use sinews::compio::SyncBridge;

    let bridge = SyncBridge::with_limit(stream, MESSAGE_MAX);
    let mut accepted = accept_with_config(bridge, Some(limits()));
    let mut socket = loop {
        match accepted {
            Ok(socket) => break socket,
            Err(HandshakeError::Interrupted(mut handshake)) => {
                handshake.get_mut().get_mut().fill_or_flush().await?;
                accepted = handshake.handshake();
            }
            Err(HandshakeError::Failure(fault)) => return Err(fault.into()),
        }
    };
    let waits =
        |fault: &Fault| matches!(fault, Fault::Io(error) if error.kind() == std::io::ErrorKind::WouldBlock);
    loop {
        let message = match socket.read() {
            Err(fault) if waits(&fault) => {
                socket.get_mut().fill_or_flush().await?;
                continue;
            }
            message => message?,
        };
        if message.is_text() || message.is_binary() {
            let mut sent = socket.send(message);
            while let Err(fault) = &sent
                && waits(fault)
            {
                socket.get_mut().flush().await?;
                sent = socket.flush();
            }
            sent?;
            socket.get_mut().flush().await?;
        }
    }
}

/// The ring is its only faster form: on compio it has no `feed`, and `send` flushes.
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
