//! Connecting on Tokio: executes [`Connect`] with Tokio's sockets and clock.

use std::future::{Future, IntoFuture};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use bytes::BufMut as _;
use sinews_proto::Config;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout_at;

use super::websocket::WebSocket;
use crate::client::deadline::{CompletedHandshake, ConnectDeadline};
use crate::client::exchange::{ExchangeIo, RECEIVE_MAX, WaitError};
use crate::client::{Connect, ConnectError, OverStream, Response, Runtime};

#[cfg(feature = "url-connect")]
mod dial;

/// The sockets of Tokio.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Tokio;

impl Runtime for Tokio {}

/// Connects to a server when awaited: to its URL with the feature `url-connect`, or [over](Connect::over) your own
/// stream.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let (stream, server) = tokio::io::duplex(4096);
/// drop(server);
/// let error = sinews::connect("ws://example.com/").over(stream).await.expect_err("no server");
/// assert!(error.to_string().starts_with("WebSocket handshake with example.com:80: "));
/// # }
/// ```
pub fn connect(url: impl Into<String>) -> Connect<Tokio> {
    Connect::new(url.into(), Tokio)
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connect<OverStream<Tokio, S>> {
    /// Completes the handshake, and also returns the server's response.
    ///
    /// A dropped future drops the stream.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn open(self) -> Result<(WebSocket<S>, Response), ConnectError> {
        let deadline = ConnectDeadline::new(self.settings.timeout, TokioIo::<S>::now());
        let target = self.settings.target()?;
        let upgrade = self.settings.upgrade(&target)?;
        let mut io = TokioIo(self.runtime.stream);
        let handshake = deadline.handshake(&mut io, upgrade, &target).await?;
        Ok(websocket(io, handshake, self.settings.config))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> IntoFuture for Connect<OverStream<Tokio, S>> {
    type Output = Result<WebSocket<S>, ConnectError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.open().await.map(|(ws, _)| ws) })
    }
}

/// A stream before it is a WebSocket.
pub(crate) struct TokioIo<S>(S);

impl<S: AsyncRead + AsyncWrite + Unpin> ExchangeIo for TokioIo<S> {
    /// Tokio's clock, which a test can pause.
    fn now() -> Instant {
        tokio::time::Instant::now().into_std()
    }

    async fn send(&mut self, out: &mut Vec<u8>, until: Option<Instant>) -> Result<(), WaitError> {
        let Self(io) = self;
        let sending = async {
            if !out.is_empty() {
                io.write_all(out).await?;
                io.flush().await?;
                out.clear();
            }
            Ok(())
        };
        within(until, sending).await
    }

    async fn receive(&mut self, received: &mut Vec<u8>, until: Option<Instant>) -> Result<usize, WaitError> {
        received.reserve(RECEIVE_MAX);
        within(until, self.0.read_buf(&mut received.limit(RECEIVE_MAX))).await
    }
}

fn websocket<S: AsyncRead + AsyncWrite + Unpin>(
    TokioIo(stream): TokioIo<S>,
    handshake: CompletedHandshake,
    config: Arc<Config>,
) -> (WebSocket<S>, Response) {
    let CompletedHandshake { negotiated, response, received } = handshake;
    let ws = WebSocket::from_negotiated(stream, negotiated, config, &received);
    (ws.with_subprotocol(response.subprotocol()), response)
}

async fn within<T>(
    until: Option<Instant>,
    work: impl Future<Output = io::Result<T>>,
) -> Result<T, WaitError> {
    let done = match until {
        Some(until) => timeout_at(until.into(), work).await.map_err(|_| WaitError::TimedOut)?,
        None => work.await,
    };
    done.map_err(WaitError::Io)
}
