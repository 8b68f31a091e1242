//! HTTP CONNECT (RFC 9110 section 9.3.6).

use sinews_proto::http::{HeadLimits, HeadScanner, HeaderSlots, ResponseHead};

use super::body::RejectionBody;
use super::exchange::{Exchange, ExchangeStep};
use super::proxy_error::ProxyError;
use super::response::Response;

/// Requests a tunnel from an HTTP proxy.
#[derive(Debug)]
pub(crate) struct Tunnel {
    request: Option<String>,
    scanner: HeadScanner,
    limits: HeadLimits,
    body_max: usize,
    /// Bytes of interim responses before the final response.
    interim: usize,
    rejection: Option<RejectionBody>,
}

impl Tunnel {
    /// To host and port, with the value of `Proxy-Authorization`. Neither contains a line break: both come from URLs, or
    /// from an [`AddressOverride`](super::settings::AddressOverride) that was checked.
    pub(crate) fn new(
        authority: &str,
        authorization: Option<&str>,
        limits: HeadLimits,
        body_max: usize,
    ) -> Self {
        let mut request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n");
        if let Some(value) = authorization {
            request.push_str("Proxy-Authorization: ");
            request.push_str(value);
            request.push_str("\r\n");
        }
        request.push_str("\r\n");
        let scanner = HeadScanner::new();
        Self { request: Some(request), scanner, limits, body_max, interim: 0, rejection: None }
    }

    fn rest(&mut self, received: &[u8]) -> Result<ExchangeStep<()>, ProxyError> {
        let whole = self.rejection.as_mut().is_none_or(|rejection| rejection.read(received));
        let rejected = if whole { self.cut_short() } else { None };
        rejected.map_or(Ok(ExchangeStep::Rest(RejectionBody::WAIT)), Err)
    }
}

impl Exchange for Tunnel {
    type Output = ();
    type Error = ProxyError;

    fn write(&mut self, out: &mut Vec<u8>) {
        if let Some(request) = self.request.take() {
            out.extend_from_slice(request.as_bytes());
        }
    }

    fn read(&mut self, received: &[u8]) -> Result<ExchangeStep<()>, ProxyError> {
        if self.rejection.is_some() {
            return self.rest(received);
        }
        loop {
            // Interim responses count towards the limit, so that their number is bounded.
            let left = self.limits.max_bytes().saturating_sub(self.interim);
            let left = self.limits.with_max_bytes(u32::try_from(left).unwrap_or(u32::MAX));
            let response = received.get(self.interim..).unwrap_or_default();
            let Some(len) = self.scanner.scan(response, &left)? else { return Ok(ExchangeStep::More) };
            let mut slots = HeaderSlots::new();
            let head = ResponseHead::parse(&response[..len], &self.limits, &mut slots)?;
            let consumed = self.interim + len;
            match head.status() {
                100..=199 => self.interim = consumed,
                // A response to CONNECT has no body, regardless of its headers.
                200..=299 => return Ok(ExchangeStep::Done { output: (), consumed }),
                _ => {
                    self.rejection =
                        Some(RejectionBody::new(Response::from_head(&head), consumed, self.body_max));
                    return self.rest(received);
                }
            }
        }
    }

    fn cut_short(&mut self) -> Option<ProxyError> {
        let rejection = self.rejection.take()?;
        Some(ProxyError::Rejected(Box::new(rejection.into_response())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::exchange::tests::run;

    fn tunnel() -> Tunnel {
        Tunnel::new("example.com:443", Some("Basic abc"), HeadLimits::new(), 100)
    }

    #[test]
    fn tunnel_begins_behind_the_response_head() {
        for (before, head) in [
            ("", "HTTP/1.1 200 Connection established\r\n\r\n"),
            ("", "HTTP/1.0 200 OK\r\nContent-Length: 10\r\n\r\n"),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n", "HTTP/1.1 204 \r\n\r\n"),
        ] {
            let input = format!("{before}{head}what follows");
            for piece in 1..=input.len() {
                let (out, outcome, consumed) = run(tunnel(), input.as_bytes(), piece);
                assert_eq!(
                    out,
                    b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\
                      Proxy-Authorization: Basic abc\r\n\r\n"
                );
                assert!(matches!(outcome, Some(Ok(()))), "{input} in pieces of {piece}");
                assert_eq!(consumed, before.len() + head.len());
            }
        }
    }

    #[test]
    fn rejection_includes_its_body() {
        let input = "HTTP/1.1 407 Proxy Authentication Required\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nwho?\r\n0\r\n\r\n";
        for piece in 1..=input.len() {
            let (_, outcome, _) = run(tunnel(), input.as_bytes(), piece);
            let Some(Err(error)) = outcome else { panic!("{outcome:?}") };
            assert!(
                matches!(&error, ProxyError::Rejected(response) if response.body() == b"who?"),
                "{error:?}"
            );
            assert!(error.to_string().contains("407 Proxy Authentication Required: who?"), "{error}");
        }
    }

    #[test]
    fn endless_response_head_is_rejected() {
        let (_, outcome, len) = run(tunnel(), &[b'a'; 100_000], 100);
        assert!(matches!(outcome, Some(Err(ProxyError::Head(_)))));
        assert!(len <= HeadLimits::new().max_bytes() + 100);
        let interim = "HTTP/1.1 100 Continue\r\n\r\n".repeat(10_000);
        let (_, outcome, _) = run(tunnel(), interim.as_bytes(), 1000);
        assert!(matches!(outcome, Some(Err(ProxyError::Head(_)))));
    }
}
