//! The server's side of the handshake on compio.

use std::cell::Cell;
use std::future::{Future, IntoFuture};
use std::io;
use std::pin::Pin;

use compio::time::timeout;

use super::Compio;
use super::transport::Transport;
use super::transport_io::TransportIo;
use super::websocket::WebSocket;
use crate::resources::{self, BLOCK};
use crate::server::{
    Accept, AcceptError, AcceptPhase, AcceptedHandshake, DROPPED_MAX, Decide, Handshake, Request,
};

/// Accepts a WebSocket on a transport that has not been read from: set options, then await. See
/// [`server`](crate::server).
///
/// A dropped future drops the transport.
pub fn accept<S: Transport>(stream: S) -> Accept<S, Compio> {
    Accept::new(stream)
}

impl<S: Transport, D: Decide> Accept<S, Compio, D> {
    /// Completes the handshake. Returns the WebSocket and the client's request; awaiting the [`Accept`] itself
    /// returns only the WebSocket.
    ///
    /// # Errors
    /// See [`AcceptError`]. The client has then received a response, and the transport is closed.
    pub async fn open(self) -> Result<(WebSocket<S>, Request), AcceptError> {
        let Self { stream, decide, mut handshake, .. } = self;
        let mut wire = TransportIo::open(stream);
        let (wait, end_wait) = (handshake.timeout(), handshake.end_timeout());
        let phase = Cell::new(AcceptPhase::Head);
        let done = timeout(wait, answer(&mut wire, &mut handshake, decide, &phase)).await;
        let why = match done.unwrap_or_else(|_| Err(AcceptError::TimedOut(phase.get()))) {
            Ok((request, opened)) => {
                let AcceptedHandshake { negotiated, subprotocol, config, received } = opened;
                let websocket = WebSocket::on_wire(wire, negotiated, config, &received);
                return Ok((websocket.with_subprotocol(subprotocol.as_deref()), request));
            }
            Err(why) => why,
        };
        if let Some(refusal) = why.refusal() {
            let mut out = Vec::new();
            refusal.write_response(&mut out);
            // An error now changes nothing: the client is gone, or does not read the response.
            let _ = timeout(end_wait, reject(&mut wire, out)).await;
        }
        Err(why)
    }
}

impl<S: Transport, D: Decide + 'static> IntoFuture for Accept<S, Compio, D> {
    type Output = Result<WebSocket<S>, AcceptError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.open().await.map(|(websocket, _)| websocket) })
    }
}

/// The request, the decision on it, the response.
async fn answer<S: Transport, D: Decide>(
    wire: &mut TransportIo<S>,
    handshake: &mut Handshake,
    decide: D,
    phase: &Cell<AcceptPhase>,
) -> Result<(Request, AcceptedHandshake), AcceptError> {
    let request = loop {
        let mut block = resources::take_block();
        let step = match wire.receive_some(&mut block, BLOCK).await {
            Ok(0) => Err(handshake.receive_end()),
            Ok(_) => handshake.receive(&block),
            Err(error) => Err(AcceptError::Io(AcceptPhase::Head, error)),
        };
        resources::give_block(block);
        if let Some(request) = step? {
            break request;
        }
    };
    phase.set(AcceptPhase::Decision);
    let decision = decide.decide(&request).await;
    let mut out = Vec::new();
    let opened = handshake.decide(&request, decision, &mut out)?;
    phase.set(AcceptPhase::Response);
    wire.send_all(&mut out).await.map_err(|error| AcceptError::Io(AcceptPhase::Response, error))?;
    Ok((request, opened))
}

/// Ends the transport so that the client can read the response: a reset would overtake it.
async fn reject<S: Transport>(wire: &mut TransportIo<S>, mut out: Vec<u8>) -> io::Result<()> {
    wire.send_all(&mut out).await?;
    wire.shut().await?;
    let mut dropped = 0;
    let mut block = Vec::new();
    while dropped <= DROPPED_MAX {
        block.clear();
        match wire.receive_some(&mut block, BLOCK).await? {
            0 => break,
            count => dropped += count,
        }
    }
    Ok(())
}
