//! The handshake as a state machine over bytes: input is received bytes, and the decision on the request; output is
//! the request, and the response.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sinews_proto::http::{HeadLimits, HeadScanner, HeaderSlots, RequestHead};
use sinews_proto::{Config, Negotiated};

use super::settings::AcceptSettings;
use super::{AcceptError, Reject, Reply, Request};

/// One handshake, from the first byte to the response.
#[derive(Clone, Debug)]
pub(crate) struct Handshake {
    pub(super) settings: AcceptSettings,
    pub(super) limits: HeadLimits,
    pub(super) timeout: Duration,
    pub(super) peer: Option<SocketAddr>,
    scanner: HeadScanner,
    /// Received bytes. It never holds more than a head of maximum length and one receive.
    received: Vec<u8>,
    head_len: usize,
}

/// The parts of an accepted WebSocket.
#[derive(Debug)]
pub(crate) struct AcceptedHandshake {
    pub(crate) negotiated: Negotiated,
    pub(crate) subprotocol: Option<String>,
    pub(crate) config: Arc<Config>,
    /// Bytes received behind the head: frames.
    pub(crate) received: Vec<u8>,
}

/// Default timeout of a handshake.
const TIMEOUT: Duration = Duration::from_secs(10);

impl Handshake {
    pub(super) fn new() -> Self {
        Self {
            settings: AcceptSettings::default(),
            limits: HeadLimits::new(),
            timeout: TIMEOUT,
            peer: None,
            scanner: HeadScanner::new(),
            received: Vec::new(),
            head_len: 0,
        }
    }

    /// The timeout of the whole handshake.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Timeout for a rejected client to read the response and to close.
    pub(crate) fn end_timeout(&self) -> Duration {
        self.settings.config().close_timeout()
    }

    /// Processes received bytes. Returns the request once its head is complete, if it is valid and of an allowed
    /// origin.
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> Result<Option<Request>, AcceptError> {
        self.received.extend_from_slice(bytes);
        let scanned = self.scanner.scan(&self.received, &self.limits);
        let Some(head_len) = scanned.map_err(AcceptError::Head)? else {
            return Ok(None);
        };
        self.head_len = head_len;
        let mut slots = HeaderSlots::new();
        let head = RequestHead::parse(&self.received[..head_len], &self.limits, &mut slots);
        let request = Request::new(&head.map_err(AcceptError::Head)?, self.peer);
        self.settings.accept(&request, None)?;
        Ok(Some(request))
    }

    /// The error for the end of the client's input.
    pub(crate) fn receive_end(&self) -> AcceptError {
        AcceptError::ClientLeft { received: self.received.len() }
    }

    /// Applies the decision on the request. Appends the response of an accepted connection; for an error use
    /// [`AcceptError::refusal`].
    pub(crate) fn decide(
        &mut self,
        request: &Request,
        decision: Result<Reply, Reject>,
        out: &mut Vec<u8>,
    ) -> Result<AcceptedHandshake, AcceptError> {
        let reply = match decision {
            Ok(reply) => reply,
            Err(Reject(Ok(refusal))) => return Err(AcceptError::Rejected(refusal)),
            Err(Reject(Err(misuse))) => return Err(AcceptError::Misuse(misuse)),
        };
        let accepted = self.settings.accept(request, reply.subprotocol.as_deref())?;
        let headers: Vec<(&str, &str)> =
            reply.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        accepted.write_response(&headers, out).map_err(AcceptError::Misuse)?;
        Ok(AcceptedHandshake {
            negotiated: accepted.negotiated(),
            subprotocol: accepted.subprotocol().map(str::to_owned),
            config: Arc::clone(self.settings.config()),
            received: std::mem::take(&mut self.received).split_off(self.head_len),
        })
    }
}
