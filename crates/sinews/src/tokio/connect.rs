//! Connecting on Tokio: executes [`Connect`] with Tokio's sockets and clock.

use std::future::{Future, IntoFuture};
use std::io;
use std::pin::Pin;
use std::time::Duration;

use bytes::BufMut as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, timeout_at};

use super::WebSocket;
use crate::client::exchange::{Broken, Exchange, RECEIVE_MAX, Step};
use crate::client::target::Target;
use crate::client::upgrade::{Upgrade, Upgraded};
use crate::client::{Connect, ConnectError, Over, Phase, Response, Runtime};

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

impl<S: AsyncRead + AsyncWrite + Unpin> Connect<Over<Tokio, S>> {
    /// Completes the handshake, and also returns the server's response.
    ///
    /// A dropped future drops the stream.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn open(self) -> Result<(WebSocket<S>, Response), ConnectError> {
        let deadline = Deadline::new(self.settings.timeout);
        let target = self.settings.target()?;
        let upgrade = self.settings.upgrade(&target)?;
        handshake(self.runtime.stream, upgrade, &target, self.settings.config, &deadline).await
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> IntoFuture for Connect<Over<Tokio, S>> {
    type Output = Result<WebSocket<S>, ConnectError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.open().await.map(|(ws, _)| ws) })
    }
}

/// The deadline of an attempt.
struct Deadline {
    /// `None`: never.
    at: Option<Instant>,
    timeout: Duration,
}

impl Deadline {
    fn new(timeout: Option<Duration>) -> Self {
        // A time that the clock cannot represent is never reached.
        let at = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        Self { at, timeout: timeout.unwrap_or_default() }
    }

    fn over(&self, phase: Phase, peer: &str) -> ConnectError {
        ConnectError::TimedOut { phase, peer: peer.to_owned(), timeout: self.timeout }
    }

    /// Executes an exchange. `received` keeps the bytes behind it.
    async fn exchange<S, E>(
        &self,
        io: &mut S,
        received: &mut Vec<u8>,
        machine: E,
        (phase, peer): (Phase, &str),
        refused: impl FnOnce(E::Error) -> ConnectError,
    ) -> Result<E::Output, ConnectError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
        E: Exchange,
    {
        exchange(io, received, machine, self.at).await.map_err(|broken| match broken {
            Broken::Refused(error) => refused(error),
            Broken::Io(error) => ConnectError::Transport { phase, peer: peer.to_owned(), error },
            Broken::TimedOut => self.over(phase, peer),
        })
    }
}

/// The WebSocket over a transport.
async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
    mut io: S,
    upgrade: Upgrade,
    target: &Target,
    config: std::sync::Arc<sinews_proto::Config>,
    deadline: &Deadline,
) -> Result<(WebSocket<S>, Response), ConnectError> {
    let mut received = Vec::new();
    let leg = (Phase::Handshake, &*target.authority());
    let upgraded = deadline.exchange(&mut io, &mut received, upgrade, leg, |error| error).await?;
    let Upgraded { negotiated, response } = upgraded;
    let ws = WebSocket::from_negotiated(io, negotiated, config, &received);
    Ok((ws.with_subprotocol(response.subprotocol()), response))
}

/// Sends the output of the state machine, and feeds it the input.
async fn exchange<S, E>(
    io: &mut S,
    received: &mut Vec<u8>,
    mut machine: E,
    deadline: Option<Instant>,
) -> Result<E::Output, Broken<E::Error>>
where
    S: AsyncRead + AsyncWrite + Unpin,
    E: Exchange,
{
    let mut out = Vec::new();
    let mut until = deadline;
    loop {
        machine.write(&mut out);
        let step = match within(until, send(io, &mut out)).await {
            Ok(()) => machine.read(received).map_err(Broken::Refused)?,
            Err(broken) => return Err(broken),
        };
        match step {
            Step::Reply => continue,
            Step::More => {}
            Step::Rest(wait) => until = [deadline, Some(Instant::now() + wait)].into_iter().flatten().min(),
            Step::Done { output, consumed } => {
                received.drain(..consumed);
                return Ok(output);
            }
        }
        if let Err(broken) = within(until, receive(io, received)).await {
            return Err(machine.cut_short().map_or(broken, Broken::Refused));
        }
    }
}

async fn send<S: AsyncWrite + Unpin>(io: &mut S, out: &mut Vec<u8>) -> io::Result<()> {
    if !out.is_empty() {
        io.write_all(out).await?;
        io.flush().await?;
        out.clear();
    }
    Ok(())
}

async fn receive<S: AsyncRead + Unpin>(io: &mut S, received: &mut Vec<u8>) -> io::Result<()> {
    received.reserve(RECEIVE_MAX);
    match io.read_buf(&mut received.limit(RECEIVE_MAX)).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

async fn within<T, E>(
    until: Option<Instant>,
    work: impl Future<Output = io::Result<T>>,
) -> Result<T, Broken<E>> {
    let done = match until {
        Some(until) => timeout_at(until, work).await.map_err(|_| Broken::TimedOut)?,
        None => work.await,
    };
    done.map_err(Broken::Io)
}
