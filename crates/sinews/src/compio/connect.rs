//! Connecting on compio: executes [`Connect`] with compio's sockets and clock.

use std::future::{Future, IntoFuture};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use sinews_proto::Config;

use super::transport::Transport;
use super::transport_io::TransportIo;
use super::websocket::WebSocket;
use crate::client::deadline::{CompletedHandshake, ConnectDeadline};
use crate::client::exchange::{ExchangeIo, RECEIVE_MAX, WaitError};
use crate::client::{Connect, ConnectError, OverStream, Response, Runtime};

#[cfg(feature = "url-connect")]
mod dial;

/// The sockets of compio.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Compio;

impl Runtime for Compio {}

/// Connects to a server when awaited: to its URL with the feature `url-connect`, or [over](Connect::over) your own
/// transport. See [`client`](crate::client).
///
/// ```
/// # let Ok(runtime) = compio::runtime::Runtime::new() else { return Ok(()) };
/// # runtime.block_on(async {
/// # let (one, other) = std::os::unix::net::UnixStream::pair()?;
/// # let stream = compio::net::UnixStream::from_std(one)?;
/// # drop(other);
/// let error = sinews::compio::connect("ws://example.com/").over(stream).await.expect_err("no server");
/// assert!(error.to_string().starts_with("WebSocket handshake with example.com:80: "));
/// # std::io::Result::Ok(())
/// # })?;
/// # std::io::Result::Ok(())
/// ```
pub fn connect(url: impl Into<String>) -> Connect<Compio> {
    Connect::new(url.into(), Compio)
}

impl<S: Transport> Connect<OverStream<Compio, S>> {
    /// Completes the handshake, and also returns the server's response.
    ///
    /// A dropped future drops the transport.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn open(self) -> Result<(WebSocket<S>, Response), ConnectError> {
        let deadline = ConnectDeadline::new(self.settings.timeout, Instant::now());
        let target = self.settings.target()?;
        let upgrade = self.settings.upgrade(&target)?;
        let mut io = TransportIo::open(self.runtime.stream);
        let handshake = deadline.handshake(&mut io, upgrade, &target).await?;
        Ok(websocket(io, handshake, self.settings.config))
    }
}

impl<S: Transport> IntoFuture for Connect<OverStream<Compio, S>> {
    type Output = Result<WebSocket<S>, ConnectError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.open().await.map(|(ws, _)| ws) })
    }
}

impl<S: Transport> ExchangeIo for TransportIo<S> {
    fn now() -> Instant {
        Instant::now()
    }

    async fn send(&mut self, out: &mut Vec<u8>, until: Option<Instant>) -> Result<(), WaitError> {
        within(until, self.send_all(out)).await
    }

    async fn receive(&mut self, received: &mut Vec<u8>, until: Option<Instant>) -> Result<usize, WaitError> {
        within(until, self.receive_some(received, RECEIVE_MAX)).await
    }
}

fn websocket<S: Transport>(
    io: TransportIo<S>,
    handshake: CompletedHandshake,
    config: Arc<Config>,
) -> (WebSocket<S>, Response) {
    let CompletedHandshake { negotiated, response, received } = handshake;
    let ws = WebSocket::on_wire(io, negotiated, config, &received);
    (ws.with_subprotocol(response.subprotocol()), response)
}

async fn within<T>(
    until: Option<Instant>,
    work: impl Future<Output = io::Result<T>>,
) -> Result<T, WaitError> {
    let done = match until {
        Some(until) => {
            let wait = until.saturating_duration_since(Instant::now());
            compio::time::timeout(wait, work).await.map_err(|_| WaitError::TimedOut)?
        }
        None => work.await,
    };
    done.map_err(WaitError::Io)
}
