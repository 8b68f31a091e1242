//! Connecting: executes [`Connect`] on blocking streams.

use std::io::{self, Read, Write};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use sinews_proto::Config;

use super::wait::{read_into, unbounded, within};
use super::websocket::WebSocket;
use crate::client::deadline::{CompletedHandshake, ConnectDeadline};
use crate::client::exchange::{ExchangeIo, RECEIVE_MAX, WaitError};
use crate::client::{Connect, ConnectError, OverStream, Response, UsesTls};

#[cfg(feature = "url-connect")]
mod dial;

/// Blocking streams: the sockets of the standard library, or your own.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Blocking;

impl UsesTls for Blocking {}

/// Connects to a server when opened: to its URL with the feature `url-connect`, or over your own stream.
///
/// ```
/// use sinews::{ConnectError, blocking};
///
/// // A stream without input that accepts all output.
/// let stream = std::io::Cursor::new(Vec::new());
/// let opened = blocking::connect("ws://example.com/").subprotocol("v1").over(stream).open();
/// assert!(matches!(opened, Err(ConnectError::Transport { .. })));
/// ```
pub fn connect(url: impl Into<String>) -> Connect<Blocking> {
    Connect::new(url.into(), Blocking)
}

impl Connect<Blocking> {
    /// Makes the handshake on a stream that is connected already, TLS included: the URL only sets the contents of the
    /// request.
    pub fn over<S: Read + Write>(self, stream: S) -> Connect<OverStream<Blocking, S>> {
        Connect {
            settings: self.settings,
            #[cfg(feature = "url-connect")]
            network: self.network,
            runtime: OverStream { stream, runtime: self.runtime },
        }
    }
}

impl<S: Read + Write> Connect<OverStream<Blocking, S>> {
    /// Completes the handshake; returns the WebSocket and the server's response.
    ///
    /// [`Connect::timeout`] is checked between reads and writes: a call that blocks ignores it, so set a timeout on
    /// the stream. A read or write that times out is retried.
    ///
    /// # Errors
    /// See [`ConnectError`]. The stream is then dropped.
    pub fn open(self) -> Result<(WebSocket<S>, Response), ConnectError> {
        let deadline = ConnectDeadline::new(self.settings.timeout, Instant::now());
        let target = self.settings.target()?;
        let upgrade = self.settings.upgrade(&target)?;
        let mut io = BlockingIo { io: self.runtime.stream, bound: unbounded };
        let handshake = run_ready(deadline.handshake(&mut io, upgrade, &target))?;
        Ok(websocket(io.io, handshake, self.settings.config))
    }
}

/// A stream before it is a WebSocket. Its futures are ready at once.
pub(crate) struct BlockingIo<S> {
    io: S,
    /// Sets the time for which the stream may block, if it can be set.
    bound: fn(&mut S, Option<Duration>) -> io::Result<()>,
}

impl<S: Read + Write> ExchangeIo for BlockingIo<S> {
    fn now() -> Instant {
        Instant::now()
    }

    async fn send(&mut self, out: &mut Vec<u8>, until: Option<Instant>) -> Result<(), WaitError> {
        send(&mut self.io, out, until, self.bound)
    }

    async fn receive(&mut self, received: &mut Vec<u8>, until: Option<Instant>) -> Result<usize, WaitError> {
        within(&mut self.io, until, self.bound, |io| read_into(io, received, RECEIVE_MAX))
    }
}

/// The output of a future of blocking calls.
fn run_ready<T>(work: impl Future<Output = T>) -> T {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("blocking calls wait for no waker"),
    }
}

fn websocket<S>(io: S, handshake: CompletedHandshake, config: Arc<Config>) -> (WebSocket<S>, Response) {
    let CompletedHandshake { negotiated, response, received } = handshake;
    let ws = WebSocket::from_negotiated(io, negotiated, config, &received);
    (ws.with_subprotocol(response.subprotocol()), response)
}

/// Sends all bytes, and flushes.
pub(super) fn send<S: Write>(
    io: &mut S,
    out: &mut Vec<u8>,
    until: Option<Instant>,
    bound: fn(&mut S, Option<Duration>) -> io::Result<()>,
) -> Result<(), WaitError> {
    if out.is_empty() {
        return Ok(());
    }
    let mut rest = &out[..];
    while !rest.is_empty() {
        match within(io, until, bound, |io| io.write(rest))? {
            0 => return Err(WaitError::Io(io::ErrorKind::WriteZero.into())),
            count => rest = &rest[count.min(rest.len())..],
        }
    }
    out.clear();
    within(io, until, bound, Write::flush)
}
