//! Limits for HTTP/3.

use std::time::Duration;

use sinews_quic::QuicLimits;

/// Limits and timeouts for HTTP/3, for [`HttpConfig::with_http3_limits`](crate::HttpConfig::with_http3_limits).
///
/// ```
/// use sinews_server::{Http3Limits, HttpConfig};
///
/// let limits = Http3Limits::default().with_max_streams(500);
/// let http = HttpConfig::default().with_http3(true).with_http3_limits(limits);
/// # drop(http);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Http3Limits {
    pub(crate) max_streams: u32,
    pub(crate) max_sessions: u32,
    pub(crate) stream_window: u32,
    pub(crate) receive_window: u32,
    pub(crate) send_window: u32,
    pub(crate) idle_timeout: Duration,
    pub(crate) ping_interval: Option<Duration>,
    pub(crate) max_handshakes: usize,
    pub(crate) max_handshakes_per_address: usize,
    pub(crate) retry_handshakes: usize,
}

impl Default for Http3Limits {
    fn default() -> Self {
        Self {
            max_streams: 100,
            max_sessions: 4,
            stream_window: 64 << 10,
            receive_window: 1 << 20,
            send_window: 1 << 20,
            idle_timeout: Duration::from_secs(60),
            ping_interval: Some(Duration::from_secs(20)),
            max_handshakes: 1000,
            max_handshakes_per_address: 100,
            retry_handshakes: 100,
        }
    }
}

impl Http3Limits {
    /// Largest stream count.
    pub const STREAMS_MAX: u32 = 1 << 16;

    /// Largest window.
    pub const WINDOW_MAX: u32 = 1 << 30;

    /// Maximum concurrent requests, WebSockets and streaming responses on a connection; its client waits with further
    /// ones. 1 to [`STREAMS_MAX`](Self::STREAMS_MAX). Default 100, the least that RFC 9114 section 6.1 recommends: QUIC
    /// takes memory for each permitted stream.
    #[must_use]
    pub const fn with_max_streams(mut self, streams: u32) -> Self {
        self.max_streams = streams;
        self
    }

    /// Maximum concurrent WebTransport sessions on a connection; further ones are rejected. Each takes a stream
    /// ([`with_max_streams`](Self::with_max_streams)). Default 4: browsers open a connection for each session, other
    /// clients may share one. Clients on drafts 13 and 14 are told 1, since more would promise flow control for
    /// sessions.
    #[must_use]
    pub const fn with_max_sessions(mut self, sessions: u32) -> Self {
        self.max_sessions = sessions;
        self
    }

    /// Bytes that a client may send ahead on a stream: the memory of a stream whose handler is slow, and with the round
    /// trip time an upload's rate. Default 64 KiB. At most [`WINDOW_MAX`](Self::WINDOW_MAX).
    #[must_use]
    pub const fn with_stream_window(mut self, bytes: u32) -> Self {
        self.stream_window = bytes;
        self
    }

    /// Bytes that a client may send ahead on all streams of a connection. Streams whose handlers are slow take at most
    /// half: the window grows beyond by what they hold. At least the [stream window](Self::with_stream_window). Default
    /// 1 MiB.
    #[must_use]
    pub const fn with_receive_window(mut self, bytes: u32) -> Self {
        self.receive_window = bytes;
        self
    }

    /// Bytes on a connection that are sent ahead of its client's acknowledgements, and retained until then. A
    /// connection begins with 128 KiB. With the round trip time it limits the download rate. Default 1 MiB.
    #[must_use]
    pub const fn with_send_window(mut self, bytes: u32) -> Self {
        self.send_window = bytes;
        self
    }

    /// Time without a packet from the client after which its connection is lost. The client may ask for less. Default
    /// 60 s: three [pings](Self::with_ping_interval).
    #[must_use]
    pub const fn with_idle_timeout(mut self, wait: Duration) -> Self {
        self.idle_timeout = wait;
        self
    }

    /// Ping interval on a quiet connection, shorter than the [idle timeout](Self::with_idle_timeout); `None` sends
    /// none, so that a quiet WebSocket is lost after that timeout. Default 20 s: address translators forget a UDP flow
    /// after 30 s.
    #[must_use]
    pub const fn with_ping_interval(mut self, wait: Option<Duration>) -> Self {
        self.ping_interval = wait;
        self
    }

    /// Maximum unfinished handshakes on a thread, on each listen address; further clients are refused. Each takes up to
    /// 40 KiB. Default 1,000.
    #[must_use]
    pub const fn with_max_handshakes(mut self, handshakes: usize) -> Self {
        self.max_handshakes = handshakes;
        self
    }

    /// Maximum unfinished handshakes at a thread from a client that has proved its address (for IPv6: from its /64).
    /// Default 100.
    #[must_use]
    pub const fn with_max_handshakes_per_address(mut self, handshakes: usize) -> Self {
        self.max_handshakes_per_address = handshakes;
        self
    }

    /// Unfinished handshakes on a thread from which on clients must prove their address first (Retry, RFC 9000 section
    /// 8.1.2), which takes a round trip; 0 for all clients. Default 100: forged addresses occupy no more.
    #[must_use]
    pub const fn with_retry_handshakes(mut self, handshakes: usize) -> Self {
        self.retry_handshakes = handshakes;
        self
    }

    /// Checks the limits; names the invalid one.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let Self { stream_window, receive_window, send_window, idle_timeout, .. } = *self;
        let is_window = |bytes| (1..=Self::WINDOW_MAX).contains(&bytes);
        let rules = [
            ((1..=Self::STREAMS_MAX).contains(&self.max_streams), "max_streams must be 1 to 65536"),
            (self.max_sessions > 0, "max_sessions must be at least 1"),
            (is_window(stream_window), "stream_window must be 1 byte to 1 GiB"),
            (is_window(receive_window), "receive_window must be 1 byte to 1 GiB"),
            (is_window(send_window), "send_window must be 1 byte to 1 GiB"),
            (receive_window >= stream_window, "receive_window must not be less than stream_window"),
            (!idle_timeout.is_zero(), "idle_timeout must be longer than zero"),
            (
                self.ping_interval.is_none_or(|wait| !wait.is_zero() && wait < idle_timeout),
                "ping_interval must be longer than zero, and shorter than idle_timeout",
            ),
            (self.max_handshakes > 0, "max_handshakes must be at least 1"),
            (self.max_handshakes_per_address > 0, "max_handshakes_per_address must be at least 1"),
        ];
        rules.into_iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, fault)| Err(fault))
    }

    /// Returns an endpoint's limits.
    pub(crate) fn quic(&self) -> QuicLimits {
        let limits = QuicLimits::new()
            // The server's limits apply once a handshake is complete.
            .with_max_connections(usize::MAX)
            .with_max_queued((self.max_streams as usize).saturating_mul(QUEUED_MAX).max(QUEUED_MIN))
            .with_stream_window(self.stream_window)
            .with_connection_window(self.receive_window)
            .with_send_window(self.send_window)
            .with_idle_timeout(self.idle_timeout.min(IDLE_MAX))
            .with_max_handshakes(self.max_handshakes)
            .with_max_handshakes_per_address(self.max_handshakes_per_address)
            .with_retry_at(self.retry_handshakes);
        self.ping_interval.map_or(limits, |wait| limits.with_keep_alive(wait))
    }
}

/// Bytes that a connection queues for a stream's closed window: a head and a piece. A client does not exceed it.
const QUEUED_MAX: usize = 64 << 10;

/// Bytes that a connection may queue, however few its streams are.
const QUEUED_MIN: usize = 1 << 20;

/// QUIC closes an absent client's connection no later.
const IDLE_MAX: Duration = Duration::from_secs(365 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_limits_are_rejected() {
        let limits = Http3Limits::default();
        assert_eq!(limits.check(), Ok(()));
        let second = Duration::from_secs(1);
        for (limits, fault) in [
            (limits.with_max_streams(0), "max_streams"),
            (limits.with_max_streams((1 << 16) + 1), "max_streams"),
            (limits.with_max_sessions(0), "max_sessions"),
            (limits.with_stream_window(0), "stream_window"),
            (limits.with_receive_window(u32::MAX), "receive_window"),
            (limits.with_receive_window(60_000), "receive_window"),
            (limits.with_send_window(0), "send_window"),
            (limits.with_idle_timeout(Duration::ZERO), "idle_timeout"),
            (limits.with_idle_timeout(second).with_ping_interval(Some(second)), "ping_interval"),
            (limits.with_ping_interval(Some(Duration::ZERO)), "ping_interval"),
            (limits.with_max_handshakes(0), "max_handshakes"),
            (limits.with_max_handshakes_per_address(0), "max_handshakes_per_address"),
        ] {
            assert!(limits.check().is_err_and(|found| found.starts_with(fault)), "{limits:?}");
        }
        assert_eq!(limits.with_ping_interval(None).with_retry_handshakes(0).check(), Ok(()));
    }

    #[test]
    fn limits_reach_the_endpoint() {
        let limits = Http3Limits::default()
            .with_stream_window(1001)
            .with_receive_window(1002)
            .with_send_window(1003)
            .with_idle_timeout(Duration::from_secs(1004))
            .with_ping_interval(Some(Duration::from_secs(1005)))
            .with_max_handshakes(1006)
            .with_max_handshakes_per_address(1007)
            .with_retry_handshakes(1008);
        let quic = format!("{:?}", limits.quic());
        for field in [
            "stream_window: 1001",
            "connection_window: 1002",
            "max_send_window: 1003",
            "idle_timeout: 1004s",
            "keep_alive: Some(1005s)",
            "max_handshakes: 1006",
            "max_handshakes_per_address: 1007",
            "retry_at: 1008",
        ] {
            assert!(quic.contains(field), "{field}: {quic}");
        }
        assert!(format!("{:?}", limits.with_ping_interval(None).quic()).contains("keep_alive: None"));
    }
}
