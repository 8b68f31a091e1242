//! The server's side of the handshake on Tokio.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::time::Sleep;

use super::{Tokio, WebSocket};
use crate::resources;
use crate::server::{
    Accept, AcceptError, AcceptPhase, AcceptedHandshake, DROPPED_MAX, Decide, Handshake, Request,
};

/// Accepts a WebSocket on a stream that has not been read from: set options, then await. See
/// [`server`](crate::server).
///
/// The stream's options are the caller's: set `TCP_NODELAY` on a `TcpStream`, or small messages wait for the peer's
/// acknowledgement of earlier bytes (Nagle's algorithm). Coalescing works without it.
///
/// A dropped future drops the stream.
pub fn accept<S>(stream: S) -> Accept<S, Tokio>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    Accept::new(stream)
}

impl<S, D> Accept<S, Tokio, D>
where
    S: AsyncRead + AsyncWrite + Unpin,
    D: Decide,
{
    /// Completes the handshake. Returns the WebSocket and the client's request; awaiting the [`Accept`] itself
    /// returns only the WebSocket.
    ///
    /// # Errors
    /// See [`AcceptError`]. The client has then received a response, and the stream is closed.
    pub async fn open(self) -> Result<(WebSocket<S>, Request), AcceptError> {
        let mut accepting = self.into_future();
        poll_fn(|cx| accepting.0.poll_open(cx)).await
    }
}

impl<S, D> IntoFuture for Accept<S, Tokio, D>
where
    S: AsyncRead + AsyncWrite + Unpin,
    D: Decide,
{
    type Output = Result<WebSocket<S>, AcceptError>;
    type IntoFuture = Accepting<S, D>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { stream, decide, handshake, .. } = self;
        Accepting(Box::new(State {
            io: Some(stream),
            handshake,
            stage: AcceptStage::Head(Some(decide)),
            out: Vec::new(),
            written: 0,
            timer: None,
            rejected: None,
        }))
    }
}

/// A handshake in progress.
#[must_use = "futures do nothing unless polled"]
pub struct Accepting<S, D: Decide>(Box<State<S, D>>);

/// Boxed, since a task that awaits it reserves memory for it as long as the connection lives.
struct State<S, D: Decide> {
    /// Present until the handshake has ended.
    io: Option<S>,
    handshake: Handshake,
    stage: AcceptStage<D>,
    /// The response, and how much of it has left.
    out: Vec<u8>,
    written: usize,
    timer: Option<Pin<Box<Sleep>>>,
    rejected: Option<PendingRejection>,
}

/// Progress of the handshake.
enum AcceptStage<D: Decide> {
    Head(Option<D>),
    Decision(Request, Pin<Box<D::Deciding>>),
    Response(Option<(Request, AcceptedHandshake)>),
}

/// An orderly end: the response leaves, then our side ends, then the client's.
#[derive(Debug)]
struct PendingRejection {
    why: Option<AcceptError>,
    shut: bool,
    dropped: usize,
}

// The decision is pinned in a box of its own, and nothing else is pinned.
impl<S, D: Decide> Unpin for Accepting<S, D> {}

impl<S, D> Future for Accepting<S, D>
where
    S: AsyncRead + AsyncWrite + Unpin,
    D: Decide,
{
    type Output = Result<WebSocket<S>, AcceptError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_open(cx).map_ok(|(websocket, _)| websocket)
    }
}

impl<S, D> State<S, D>
where
    S: AsyncRead + AsyncWrite + Unpin,
    D: Decide,
{
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<Result<(WebSocket<S>, Request), AcceptError>> {
        if self.rejected.is_none() {
            let why = match ready!(self.poll_timed(cx)) {
                Ok(opened) => return Poll::Ready(Ok(opened)),
                Err(why) => why,
            };
            let Some(refusal) = why.refusal() else {
                self.io = None;
                return Poll::Ready(Err(why));
            };
            self.out.clear();
            refusal.write_response(&mut self.out);
            self.timer = None;
            self.rejected = Some(PendingRejection { why: Some(why), shut: false, dropped: 0 });
        }
        let timed_out = self.poll_timer(cx, self.handshake.end_timeout()).is_ready();
        // An error now changes nothing: the client is gone, or does not read the response.
        if self.poll_end(cx).is_pending() && !timed_out {
            return Poll::Pending;
        }
        self.io = None;
        match self.rejected.as_mut().and_then(|rejected| rejected.why.take()) {
            Some(why) => Poll::Ready(Err(why)),
            None => Poll::Pending,
        }
    }

    /// The handshake, or its timeout.
    fn poll_timed(&mut self, cx: &mut Context<'_>) -> Poll<Result<(WebSocket<S>, Request), AcceptError>> {
        if let Poll::Ready(done) = self.poll_handshake(cx) {
            return Poll::Ready(done);
        }
        ready!(self.poll_timer(cx, self.handshake.timeout()));
        Poll::Ready(Err(AcceptError::TimedOut(match self.stage {
            AcceptStage::Head(_) => AcceptPhase::Head,
            AcceptStage::Decision(..) => AcceptPhase::Decision,
            AcceptStage::Response(_) => AcceptPhase::Response,
        })))
    }

    /// Ready: so much time has passed since the first poll.
    fn poll_timer(&mut self, cx: &mut Context<'_>, wait: Duration) -> Poll<()> {
        self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(wait))).as_mut().poll(cx)
    }

    fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<Result<(WebSocket<S>, Request), AcceptError>> {
        loop {
            match &mut self.stage {
                AcceptStage::Head(_) => {
                    let request = ready!(self.poll_head(cx))?;
                    let AcceptStage::Head(decide) = &mut self.stage else { return Poll::Pending };
                    let Some(decide) = decide.take() else { return Poll::Pending };
                    let deciding = Box::pin(decide.decide(&request));
                    self.stage = AcceptStage::Decision(request, deciding);
                }
                AcceptStage::Decision(request, deciding) => {
                    let decision = ready!(deciding.as_mut().poll(cx));
                    let opened = self.handshake.decide(request, decision, &mut self.out)?;
                    self.stage = AcceptStage::Response(Some((request.clone(), opened)));
                }
                AcceptStage::Response(_) => {
                    let left = ready!(self.poll_response(cx));
                    left.map_err(|error| AcceptError::Io(AcceptPhase::Response, error))?;
                    let AcceptStage::Response(opened) = &mut self.stage else { return Poll::Pending };
                    return match (opened.take(), self.io.take()) {
                        (Some((request, opened)), Some(io)) => {
                            Poll::Ready(Ok((websocket(io, opened), request)))
                        }
                        _ => Poll::Pending,
                    };
                }
            }
        }
    }

    /// Receives until the request head is complete.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Request, AcceptError>> {
        loop {
            let mut block = resources::take_block();
            let step = match self.poll_receive(cx, &mut block) {
                Poll::Ready(Ok(0)) => Poll::Ready(Err(self.handshake.receive_end())),
                Poll::Ready(Ok(_)) => Poll::Ready(self.handshake.receive(&block)),
                Poll::Ready(Err(error)) => Poll::Ready(Err(AcceptError::Io(AcceptPhase::Head, error))),
                Poll::Pending => Poll::Pending,
            };
            resources::give_block(block);
            if let Some(request) = ready!(step)? {
                return Poll::Ready(Ok(request));
            }
        }
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>, block: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        match &mut self.io {
            Some(io) => pin!(io.read_buf(block)).poll(cx),
            None => Poll::Ready(Ok(0)),
        }
    }

    /// Sends the rest of the response.
    fn poll_response(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(io) = &mut self.io else { return Poll::Ready(Ok(())) };
        while self.written < self.out.len() {
            match ready!(Pin::new(&mut *io).poll_write(cx, &self.out[self.written..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.written += count,
            }
        }
        Pin::new(io).poll_flush(cx)
    }

    /// Ends the stream so that the client can read the response: a reset would overtake it.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_response(cx))?;
        let (Some(io), Some(rejected)) = (&mut self.io, &mut self.rejected) else {
            return Poll::Ready(Ok(()));
        };
        if !rejected.shut {
            ready!(Pin::new(io).poll_shutdown(cx))?;
            rejected.shut = true;
        }
        loop {
            let mut block = resources::take_block();
            let received = self.poll_receive(cx, &mut block);
            resources::give_block(block);
            let count = ready!(received)?;
            let Some(rejected) = &mut self.rejected else { return Poll::Ready(Ok(())) };
            rejected.dropped += count;
            if count == 0 || rejected.dropped > DROPPED_MAX {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

fn websocket<S>(io: S, opened: AcceptedHandshake) -> WebSocket<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let AcceptedHandshake { negotiated, subprotocol, config, received } = opened;
    WebSocket::from_negotiated(io, negotiated, config, &received).with_subprotocol(subprotocol.as_deref())
}

impl<S, D: Decide> fmt::Debug for Accepting<S, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accepting").field("rejected", &self.0.rejected).finish_non_exhaustive()
    }
}
