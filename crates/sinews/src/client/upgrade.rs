//! The opening handshake as an exchange.

use sinews_proto::Negotiated;
use sinews_proto::handshake::{ClientError, ClientHandshake, ClientStep, Established};
use sinews_proto::http::{HeadLimits, HeadScanner, HeaderSlots, ResponseHead};

use super::body::RejectionBody;
use super::error::ConnectError;
use super::exchange::{Exchange, ExchangeStep};
use super::response::Response;

/// Requests a WebSocket and reads the response; the body too if the response is a rejection.
#[derive(Debug)]
pub(crate) struct HandshakeExchange {
    handshake: ClientHandshake,
    limits: HeadLimits,
    body_max: usize,
    is_requested: bool,
    rejection: Option<RejectionBody>,
}

/// A handshake that succeeded.
#[derive(Debug)]
pub(crate) struct HandshakeResult {
    pub(crate) negotiated: Negotiated,
    pub(crate) response: Response,
}

impl HandshakeExchange {
    pub(crate) const fn new(handshake: ClientHandshake, limits: HeadLimits, body_max: usize) -> Self {
        Self { handshake, limits, body_max, is_requested: false, rejection: None }
    }

    fn rest(&mut self, received: &[u8]) -> Result<ExchangeStep<HandshakeResult>, ConnectError> {
        let whole = self.rejection.as_mut().is_none_or(|rejection| rejection.read(received));
        let rejected = if whole { self.cut_short() } else { None };
        rejected.map_or(Ok(ExchangeStep::Rest(RejectionBody::WAIT)), Err)
    }
}

impl Exchange for HandshakeExchange {
    type Output = HandshakeResult;
    type Error = ConnectError;

    fn write(&mut self, out: &mut Vec<u8>) {
        if !self.is_requested {
            self.is_requested = true;
            self.handshake.write_request(out);
        }
    }

    fn read(&mut self, received: &[u8]) -> Result<ExchangeStep<HandshakeResult>, ConnectError> {
        if self.rejection.is_some() {
            return self.rest(received);
        }
        match self.handshake.read_response(received) {
            Ok(ClientStep::NeedMore) => Ok(ExchangeStep::More),
            Ok(ClientStep::Done(established)) => {
                let consumed = established.consumed();
                let output = upgraded(&established, &received[..consumed], &self.limits);
                Ok(ExchangeStep::Done { output, consumed })
            }
            Err(ClientError::Status(rejection)) => {
                let start = received.len() - rejection.body_start().len();
                let response = Response::from_rejection(&rejection);
                self.rejection = Some(RejectionBody::new(response, start, self.body_max));
                self.rest(received)
            }
            Err(error) => Err(ConnectError::Handshake(error)),
        }
    }

    fn cut_short(&mut self) -> Option<ConnectError> {
        let rejection = self.rejection.take()?;
        Some(ConnectError::Rejected(Box::new(rejection.into_response())))
    }
}

fn upgraded(established: &Established, heads: &[u8], limits: &HeadLimits) -> HandshakeResult {
    let mut slots = HeaderSlots::new();
    let head = ResponseHead::parse(last_head(heads, limits), limits, &mut slots);
    let head = head.expect("the handshake has parsed the same bytes with the same limits");
    let response = Response::from_head(&head).with_subprotocol(established.subprotocol());
    HandshakeResult { negotiated: established.negotiated(), response }
}

/// The final response, behind interim responses.
fn last_head<'h>(mut heads: &'h [u8], limits: &HeadLimits) -> &'h [u8] {
    while let Ok(Some(len)) = HeadScanner::new().scan(heads, limits) {
        if len == heads.len() {
            break;
        }
        heads = &heads[len..];
    }
    heads
}

#[cfg(test)]
mod tests {
    use sinews_proto::handshake::ClientRequest;

    use super::*;
    use crate::client::exchange::tests::run;

    /// With the key of RFC 6455 section 1.3.
    fn upgrade() -> HandshakeExchange {
        let request = ClientRequest::new("example.com", "/chat").expect("sound").with_subprotocol("v1");
        HandshakeExchange::new(request.expect("sound").start(*b"the sample nonce"), HeadLimits::new(), 64)
    }

    const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: v1\r\nSet-Cookie: a=b\r\n\r\n";

    #[test]
    fn bytes_behind_the_response_are_not_consumed() {
        let early = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
        for before in ["", early] {
            let answer = format!("{before}{SWITCH}");
            let input = format!("{answer}\u{2}frames");
            for piece in 1..=input.len() {
                let (out, outcome, consumed) = run(upgrade(), input.as_bytes(), piece);
                assert!(out.starts_with(b"GET /chat HTTP/1.1\r\nHost: example.com\r\n"));
                assert_eq!(out.windows(4).filter(|end| end == b"\r\n\r\n").count(), 1, "asked once");
                let upgraded = outcome.expect("an outcome").expect("a connection");
                assert_eq!(consumed, answer.len(), "in pieces of {piece}");
                assert_eq!(upgraded.response.status(), 101);
                assert_eq!(upgraded.response.subprotocol(), Some("v1"));
                assert_eq!(upgraded.response.headers()["set-cookie"], "a=b");
                assert!(!upgraded.response.headers().contains_key("link"));
            }
        }
    }

    #[test]
    fn rejection_includes_its_body() {
        let whole = "HTTP/1.1 403 Forbidden\r\nContent-Length: 9\r\nX-Why: a\r\n\r\nnot today";
        let open = "HTTP/1.1 403 Forbidden\r\nX-Why: a\r\n\r\nnot today";
        for input in [whole, open] {
            for piece in 1..=input.len() {
                let (_, outcome, _) = run(upgrade(), input.as_bytes(), piece);
                let Some(Err(ConnectError::Rejected(response))) = outcome else { panic!("{outcome:?}") };
                assert_eq!(response.status(), 403);
                assert_eq!(response.headers()["x-why"], "a");
                assert_eq!(response.body(), b"not today");
            }
        }
    }

    #[test]
    fn malformed_response_is_an_error() {
        let (_, outcome, _) = run(upgrade(), b"SSH-2.0-OpenSSH\r\n\r\n", 3);
        assert!(matches!(outcome, Some(Err(ConnectError::Handshake(ClientError::Head(_))))));
        let (_, outcome, _) = run(upgrade(), b"HTTP/1.1 101 ", 3);
        assert!(outcome.is_none());
    }
}
