//! Connecting on compio: executes [`Connect`] with compio's sockets and clock.

use std::future::{Future, IntoFuture};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sinews_proto::Config;

use super::transport::Transport;
use super::websocket::WebSocket;
use super::wire::Wire;
use crate::client::exchange::{Broken, Exchange, RECEIVE_MAX, Step};
use crate::client::target::Target;
use crate::client::upgrade::{Upgrade, Upgraded};
use crate::client::{Connect, ConnectError, Over, Phase, Response, Runtime};

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

impl<S: Transport> Connect<Over<Compio, S>> {
    /// Completes the handshake, and also returns the server's response.
    ///
    /// A dropped future drops the transport.
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

impl<S: Transport> IntoFuture for Connect<Over<Compio, S>> {
    type Output = Result<WebSocket<S>, ConnectError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output>>>;

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
    async fn exchange<S: Transport, E: Exchange>(
        &self,
        wire: &mut Wire<S>,
        received: &mut Vec<u8>,
        machine: E,
        (phase, peer): (Phase, &str),
        refused: impl FnOnce(E::Error) -> ConnectError,
    ) -> Result<E::Output, ConnectError> {
        exchange(wire, received, machine, self.at).await.map_err(|broken| match broken {
            Broken::Refused(error) => refused(error),
            Broken::Io(error) => ConnectError::Transport { phase, peer: peer.to_owned(), error },
            Broken::TimedOut => self.over(phase, peer),
        })
    }
}

/// The WebSocket over a transport.
async fn handshake<S: Transport>(
    transport: S,
    upgrade: Upgrade,
    target: &Target,
    config: Arc<Config>,
    deadline: &Deadline,
) -> Result<(WebSocket<S>, Response), ConnectError> {
    let mut wire = Wire::open(transport);
    let mut received = Vec::new();
    let leg = (Phase::Handshake, &*target.authority());
    let upgraded = deadline.exchange(&mut wire, &mut received, upgrade, leg, |error| error).await?;
    let Upgraded { negotiated, response } = upgraded;
    let ws = WebSocket::on_wire(wire, negotiated, config, &received);
    Ok((ws.with_subprotocol(response.subprotocol()), response))
}

/// Sends the output of the state machine, and feeds it the input.
async fn exchange<S: Transport, E: Exchange>(
    wire: &mut Wire<S>,
    received: &mut Vec<u8>,
    mut machine: E,
    deadline: Option<Instant>,
) -> Result<E::Output, Broken<E::Error>> {
    let mut out = Vec::new();
    let mut until = deadline;
    loop {
        machine.write(&mut out);
        within(until, wire.send(&mut out)).await?;
        match machine.read(received).map_err(Broken::Refused)? {
            Step::Reply => continue,
            Step::More => {}
            Step::Rest(wait) => until = [deadline, Some(Instant::now() + wait)].into_iter().flatten().min(),
            Step::Done { output, consumed } => {
                received.drain(..consumed);
                return Ok(output);
            }
        }
        let came = match within(until, wire.receive(received, RECEIVE_MAX)).await {
            Ok(0) => Err(Broken::Io(io::ErrorKind::UnexpectedEof.into())),
            came => came,
        };
        if let Err(broken) = came {
            return Err(machine.cut_short().map_or(broken, Broken::Refused));
        }
    }
}

async fn within<T, E>(
    until: Option<Instant>,
    work: impl Future<Output = io::Result<T>>,
) -> Result<T, Broken<E>> {
    let done = match until {
        Some(until) => {
            let wait = until.saturating_duration_since(Instant::now());
            compio::time::timeout(wait, work).await.map_err(|_| Broken::TimedOut)?
        }
        None => work.await,
    };
    done.map_err(Broken::Io)
}
