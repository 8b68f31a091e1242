//! The deadline of an attempt, and the opening handshake within it.

use std::time::{Duration, Instant};

use sinews_proto::Negotiated;

use super::error::{ConnectError, ConnectPhase};
use super::exchange::{Exchange, ExchangeError, ExchangeIo, exchange};
use super::response::Response;
use super::target::ConnectTarget;
use super::upgrade::{HandshakeExchange, HandshakeResult};

/// The deadline of an attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectDeadline {
    /// `None`: never.
    pub(crate) at: Option<Instant>,
    timeout: Duration,
}

/// A completed opening handshake, and the bytes received behind it.
#[derive(Debug)]
pub(crate) struct CompletedHandshake {
    pub(crate) negotiated: Negotiated,
    pub(crate) response: Response,
    pub(crate) received: Vec<u8>,
}

impl ConnectDeadline {
    pub(crate) fn new(timeout: Option<Duration>, now: Instant) -> Self {
        // A time that the clock cannot represent is never reached.
        let at = timeout.and_then(|timeout| now.checked_add(timeout));
        Self { at, timeout: timeout.unwrap_or_default() }
    }

    pub(crate) fn timed_out(&self, phase: ConnectPhase, peer: &str) -> ConnectError {
        ConnectError::TimedOut { phase, peer: peer.to_owned(), timeout: self.timeout }
    }

    /// Executes an exchange. `received` keeps the bytes behind it.
    pub(crate) async fn exchange<I: ExchangeIo, E: Exchange>(
        &self,
        io: &mut I,
        received: &mut Vec<u8>,
        machine: E,
        phase: ConnectPhase,
        peer: &str,
        rejected: impl FnOnce(E::Error) -> ConnectError,
    ) -> Result<E::Output, ConnectError> {
        exchange(io, received, machine, self.at).await.map_err(|error| match error {
            ExchangeError::Rejected(error) => rejected(error),
            ExchangeError::Io(error) => ConnectError::Transport { phase, peer: peer.to_owned(), error },
            ExchangeError::TimedOut => self.timed_out(phase, peer),
        })
    }

    /// The opening handshake over a transport.
    pub(crate) async fn handshake<I: ExchangeIo>(
        &self,
        io: &mut I,
        upgrade: HandshakeExchange,
        target: &ConnectTarget,
    ) -> Result<CompletedHandshake, ConnectError> {
        let mut received = Vec::new();
        let peer = target.authority();
        let exchange =
            self.exchange(io, &mut received, upgrade, ConnectPhase::Handshake, &peer, |error| error);
        let HandshakeResult { negotiated, response } = exchange.await?;
        Ok(CompletedHandshake { negotiated, response, received })
    }
}
