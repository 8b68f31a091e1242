//! The server's side of the handshake on blocking streams.

use std::future::Ready;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use super::WebSocket;
use super::connect::{Blocking, send};
use super::wait::{read_into, unbounded, within};
use crate::client::exchange::WaitError;
use crate::resources;
use crate::server::{
    Accept, AcceptError, AcceptPhase, AcceptedHandshake, DROPPED_MAX, Decide, Handshake, Reject, Reply,
    Request,
};

/// Accepts a WebSocket on a stream that has not been read from, when it is [opened](Accept::open). See
/// [`server`](crate::server) for the settings; the decision on the request must be synchronous
/// ([`on_request`](Accept::on_request)).
///
/// [`Accept::timeout`] is checked between reads and writes: a call that blocks ignores it. Set a timeout on the
/// stream first, or a silent client blocks the thread. A read or write that times out is retried.
///
/// ```
/// use std::io::{Read as _, Write as _};
/// use std::net::{TcpListener, TcpStream};
///
/// use sinews::blocking;
/// use sinews::server::{Reject, Reply};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let mut client = TcpStream::connect(listener.local_addr()?)?;
/// client.write_all(
///     b"GET /cellar HTTP/1.1\r\nHost: example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
///       Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
/// )?;
///
/// let (stream, peer) = listener.accept()?;
/// let accept = blocking::accept(stream).peer(peer).subprotocols(["v1.chat"]);
/// let accept = accept.on_request(|request| match request.path() {
///     "/chat" => Ok(Reply::new()),
///     _ => Err(Reject::new(404)),
/// });
/// assert_eq!(accept.open().expect_err("no such room").status(), Some(404));
///
/// let mut answer = String::new();
/// client.read_to_string(&mut answer)?;
/// assert!(answer.starts_with("HTTP/1.1 404 "));
/// # Ok(())
/// # }
/// ```
pub fn accept<S: Read + Write>(stream: S) -> Accept<S, Blocking> {
    Accept::new(stream)
}

impl<S: Read + Write, D: Decide<Deciding = Ready<Result<Reply, Reject>>>> Accept<S, Blocking, D> {
    /// Completes the handshake. Returns the WebSocket and the client's request.
    ///
    /// # Errors
    /// See [`AcceptError`]. The client has then received a response, and the stream is dropped.
    pub fn open(self) -> Result<(WebSocket<S>, Request), AcceptError> {
        self.open_inner(None)
    }

    /// As [`open`](Self::open), on a stream whose sending side can be ended alone, see [`WebSocket::with_shutdown`].
    /// A rejected client can then read the response even if it continues to send: input is read and dropped until the
    /// client ends its side, at most 256 KiB, and for [`Config::close_timeout`](crate::Config::close_timeout).
    ///
    /// ```
    /// # use std::net::{Shutdown, TcpStream};
    /// # use sinews::{AcceptError, blocking::{self, WebSocket}};
    /// # fn serve(stream: TcpStream) -> Result<WebSocket<TcpStream>, AcceptError> {
    /// let accept = blocking::accept(stream);
    /// let (ws, _) = accept.open_with_shutdown(|tcp| tcp.shutdown(Shutdown::Write))?;
    /// # Ok(ws)
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`AcceptError`].
    pub fn open_with_shutdown(
        self,
        shutdown: fn(&mut S) -> io::Result<()>,
    ) -> Result<(WebSocket<S>, Request), AcceptError> {
        self.open_inner(Some(shutdown))
    }

    fn open_inner(
        self,
        shutdown: Option<fn(&mut S) -> io::Result<()>>,
    ) -> Result<(WebSocket<S>, Request), AcceptError> {
        let Self { stream: mut io, decide, mut handshake, .. } = self;
        match make(&mut io, decide, &mut handshake) {
            Ok((request, AcceptedHandshake { negotiated, subprotocol, config, received })) => {
                let ws = WebSocket::from_negotiated(io, negotiated, config, &received);
                let ws = ws.with_subprotocol(subprotocol.as_deref());
                Ok((shutdown.into_iter().fold(ws, WebSocket::with_shutdown), request))
            }
            Err(why) => {
                // An error now changes nothing: the client is gone, or does not read the response.
                let _ = reject(&mut io, &why, handshake.end_timeout(), shutdown);
                Err(why)
            }
        }
    }
}

fn make<S: Read + Write, D: Decide<Deciding = Ready<Result<Reply, Reject>>>>(
    io: &mut S,
    decide: D,
    handshake: &mut Handshake,
) -> Result<(Request, AcceptedHandshake), AcceptError> {
    let until = Instant::now().checked_add(handshake.timeout());
    let request = read_head(io, handshake, until).map_err(|error| match error {
        ReadHeadError::Wait(halt) => accept_error(AcceptPhase::Head, halt),
        ReadHeadError::Rejected(why) => why,
    })?;
    let mut out = Vec::new();
    let opened = handshake.decide(&request, decide.decide(&request).into_inner(), &mut out)?;
    send(io, &mut out, until, unbounded).map_err(|halt| accept_error(AcceptPhase::Response, halt))?;
    Ok((request, opened))
}

/// Reason for a missing request.
enum ReadHeadError {
    Wait(WaitError),
    Rejected(AcceptError),
}

/// Receives until the request head is complete.
fn read_head<S: Read>(
    io: &mut S,
    handshake: &mut Handshake,
    until: Option<Instant>,
) -> Result<Request, ReadHeadError> {
    loop {
        let mut block = resources::take_block();
        let most = block.capacity();
        let result = within(io, until, unbounded, |io| read_into(io, &mut block, most));
        let request = match result {
            Ok(0) => Err(ReadHeadError::Rejected(handshake.receive_end())),
            Ok(_) => handshake.receive(&block).map_err(ReadHeadError::Rejected),
            Err(halt) => Err(ReadHeadError::Wait(halt)),
        };
        resources::give_block(block);
        if let Some(request) = request? {
            return Ok(request);
        }
    }
}

fn accept_error(phase: AcceptPhase, halt: WaitError) -> AcceptError {
    match halt {
        WaitError::TimedOut => AcceptError::TimedOut(phase),
        WaitError::Io(error) => AcceptError::Io(phase, error),
    }
}

/// Sends the rejection to the client, and, where the sending side can be ended alone, waits until the client has read
/// it: a reset would overtake it.
fn reject<S: Read + Write>(
    io: &mut S,
    why: &AcceptError,
    timeout: Duration,
    shutdown: Option<fn(&mut S) -> io::Result<()>>,
) -> Result<(), WaitError> {
    let Some(refusal) = why.refusal() else { return Ok(()) };
    let until = Instant::now().checked_add(timeout);
    let mut out = Vec::new();
    refusal.write_response(&mut out);
    send(io, &mut out, until, unbounded)?;
    let Some(shutdown) = shutdown else { return Ok(()) };
    within(io, until, unbounded, shutdown)?;
    let mut dropped = 0;
    while dropped <= DROPPED_MAX {
        match within(io, until, unbounded, |io| read_into(io, &mut out, DROPPED_MAX))? {
            0 => break,
            count => dropped += count,
        }
        out.clear();
    }
    Ok(())
}
