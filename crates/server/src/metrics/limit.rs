//! The limits that can be exceeded, and the response to the client.

use sinews_proto::handshake::Refusal;

use crate::metrics::reason_enum;
use crate::request::Response;

reason_enum! {
    /// Exceeded limit.
    Limit {
        /// [`Limits::with_max_connections`](crate::Limits::with_max_connections): a connection was rejected with 503.
        Connections = "connections",
        /// [`Limits::with_max_connections_per_address`](crate::Limits::with_max_connections_per_address): a connection
        /// was rejected with 429.
        Address = "address",
        /// [`Limits::with_handshakes_per_second`](crate::Limits::with_handshakes_per_second): a handshake was rejected
        /// with 503.
        Handshakes = "handshakes",
        /// [`WebSocketRoute::with_message_rate`](crate::WebSocketRoute::with_message_rate): a WebSocket was closed
        /// with 1008.
        Messages = "messages",
        /// [`Limits::with_max_memory`](crate::Limits::with_max_memory): a connection or a handshake was rejected with
        /// 503, or a connection was closed.
        Memory = "memory",
    }
}

impl Limit {
    const fn status(self) -> u16 {
        match self {
            Self::Address | Self::Messages => 429,
            Self::Connections | Self::Handshakes | Self::Memory => 503,
        }
    }

    /// Returns `Retry-After` in whole seconds: one second for a rate, else an estimate until capacity is free.
    const fn retry_after(self) -> &'static str {
        match self {
            Self::Handshakes => "1",
            _ => "10",
        }
    }

    pub(crate) const fn setting(self) -> &'static str {
        match self {
            Self::Connections => "Limits::with_max_connections",
            Self::Address => "Limits::with_max_connections_per_address",
            Self::Handshakes => "Limits::with_handshakes_per_second",
            Self::Messages => "WebSocketRoute::with_message_rate",
            Self::Memory => "Limits::with_max_memory",
        }
    }

    /// Returns the response to a request on a connection that stays open.
    pub(crate) fn response(self) -> Response {
        Response::refused(&self.refusal())
    }

    /// Returns the response to the client.
    pub(crate) fn refusal(self) -> Refusal {
        let body = match self {
            Self::Address => "too many connections from this address\n",
            _ => "the server is at its limit\n",
        };
        let refusal = Refusal::new(self.status()).and_then(|refusal| {
            refusal.with_header("Retry-After", self.retry_after())?.with_header("Content-Type", "text/plain")
        });
        refusal.expect("static status and headers are valid").with_body(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::MetricReason;

    #[test]
    fn every_limit_has_a_response() {
        for limit in Limit::ALL {
            let mut out = Vec::new();
            limit.refusal().write_response(&mut out);
            let text = String::from_utf8(out).unwrap();
            assert!(text.starts_with("HTTP/1.1 503 ") || text.starts_with("HTTP/1.1 429 "), "{text}");
            assert_eq!(limit.response().status(), limit.status());
            assert!(limit.response().header("retry-after").eq([limit.retry_after()]));
            assert!(text.contains("\r\nRetry-After: ") && limit.setting().contains("::with_"), "{text}");
        }
    }
}
