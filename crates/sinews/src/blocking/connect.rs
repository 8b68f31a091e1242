//! Connecting: executes [`Connect`] on blocking streams.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sinews_proto::Config;

use super::WebSocket;
use super::wait::{Halt, read_into, unbounded, within};
use crate::client::exchange::{Broken, Exchange, RECEIVE_MAX, Step};
use crate::client::target::Target;
use crate::client::upgrade::{Upgrade, Upgraded};
use crate::client::{Connect, ConnectError, Over, Phase, Response};

#[cfg(feature = "url-connect")]
mod dial;

/// Blocking streams: the sockets of the standard library, or your own.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Blocking;

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
    pub fn over<S: Read + Write>(self, stream: S) -> Connect<Over<Blocking, S>> {
        Connect {
            settings: self.settings,
            #[cfg(feature = "url-connect")]
            network: self.network,
            runtime: Over { stream, runtime: self.runtime },
        }
    }
}

impl<S: Read + Write> Connect<Over<Blocking, S>> {
    /// Completes the handshake; returns the WebSocket and the server's response.
    ///
    /// [`Connect::timeout`] is checked between reads and writes: a call that blocks ignores it, so set a timeout on
    /// the stream. A read or write that times out is retried.
    ///
    /// # Errors
    /// See [`ConnectError`]. The stream is then dropped.
    pub fn open(self) -> Result<(WebSocket<S>, Response), ConnectError> {
        let deadline = Deadline::new(self.settings.timeout);
        let target = self.settings.target()?;
        let upgrade = self.settings.upgrade(&target)?;
        let mut io = self.runtime.stream;
        let opened = deadline.handshake(&mut io, upgrade, &target, unbounded)?;
        Ok(opened.into_websocket(io, self.settings.config))
    }
}

/// The deadline of an attempt.
struct Deadline {
    /// `None`: never.
    at: Option<Instant>,
    timeout: Duration,
}

/// A completed handshake, and the bytes received behind it.
struct Opened {
    upgraded: Upgraded,
    received: Vec<u8>,
}

impl Opened {
    fn into_websocket<S>(self, io: S, config: Arc<Config>) -> (WebSocket<S>, Response) {
        let Upgraded { negotiated, response } = self.upgraded;
        let ws = WebSocket::from_negotiated(io, negotiated, config, &self.received);
        (ws.with_subprotocol(response.subprotocol()), response)
    }
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

    /// The opening handshake over a transport.
    fn handshake<S: Read + Write>(
        &self,
        io: &mut S,
        upgrade: Upgrade,
        target: &Target,
        bound: fn(&mut S, Option<Duration>) -> io::Result<()>,
    ) -> Result<Opened, ConnectError> {
        let mut received = Vec::new();
        let peer = target.authority();
        match exchange(io, &mut received, upgrade, self.at, bound) {
            Ok(upgraded) => Ok(Opened { upgraded, received }),
            Err(Broken::Refused(error)) => Err(error),
            Err(Broken::Io(error)) => Err(ConnectError::Transport { phase: Phase::Handshake, peer, error }),
            Err(Broken::TimedOut) => Err(self.over(Phase::Handshake, &peer)),
        }
    }
}

/// Sends the output of the state machine, and feeds it the input.
fn exchange<S: Read + Write, E: Exchange>(
    io: &mut S,
    received: &mut Vec<u8>,
    mut machine: E,
    deadline: Option<Instant>,
    bound: fn(&mut S, Option<Duration>) -> io::Result<()>,
) -> Result<E::Output, Broken<E::Error>> {
    let mut out = Vec::new();
    let mut until = deadline;
    loop {
        machine.write(&mut out);
        send(io, &mut out, until, bound)?;
        match machine.read(received).map_err(Broken::Refused)? {
            Step::Reply => continue,
            Step::More => {}
            Step::Rest(wait) => until = [deadline, Some(Instant::now() + wait)].into_iter().flatten().min(),
            Step::Done { output, consumed } => {
                received.drain(..consumed);
                return Ok(output);
            }
        }
        let came = match within(io, until, bound, |io| read_into(io, received, RECEIVE_MAX)) {
            Ok(0) => Err(Halt::Io(io::ErrorKind::UnexpectedEof.into())),
            came => came,
        };
        if let Err(halt) = came {
            return Err(machine.cut_short().map_or_else(|| halt.into(), Broken::Refused));
        }
    }
}

/// Sends all bytes, and flushes.
pub(super) fn send<S: Write>(
    io: &mut S,
    out: &mut Vec<u8>,
    until: Option<Instant>,
    bound: fn(&mut S, Option<Duration>) -> io::Result<()>,
) -> Result<(), Halt> {
    if out.is_empty() {
        return Ok(());
    }
    let mut rest = &out[..];
    while !rest.is_empty() {
        match within(io, until, bound, |io| io.write(rest))? {
            0 => return Err(Halt::Io(io::ErrorKind::WriteZero.into())),
            count => rest = &rest[count.min(rest.len())..],
        }
    }
    out.clear();
    within(io, until, bound, Write::flush)
}

impl<E> From<Halt> for Broken<E> {
    fn from(halt: Halt) -> Self {
        match halt {
            Halt::TimedOut => Self::TimedOut,
            Halt::Io(error) => Self::Io(error),
        }
    }
}
