//! Limits and timeouts for HTTP, before an upgrade.

use std::num::NonZeroU16;
use std::time::Duration;

use sinews_http::HeadLimits;
use sinews_proto::Time;

use crate::http3::Http3Limits;

/// Limits and timeouts for plain HTTP. [`Server::bind`](crate::Server::bind) rejects zero timeouts.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    pub(crate) head: HeadLimits,
    pub(crate) max_body: usize,
    pub(crate) head_timeout: Duration,
    pub(crate) body_idle_timeout: Duration,
    pub(crate) body_timeout: Duration,
    /// Bytes per second, zero for no limit, and the grace period.
    pub(crate) min_upload: (u64, Duration),
    pub(crate) keep_alive_timeout: Duration,
    pub(crate) write_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) high_water: usize,
    pub(crate) max_queued_answers: usize,
    pub(crate) http2: bool,
    pub(crate) http2_clear_text: bool,
    pub(crate) http3: bool,
    pub(crate) http3_limits: Http3Limits,
    pub(crate) http3_announced_port: Option<NonZeroU16>,
    pub(crate) http2_max_streams: u32,
    pub(crate) http2_ping_interval: Option<Duration>,
    pub(crate) http2_ping_timeout: Duration,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            head: HeadLimits::new(),
            max_body: 1 << 20,
            head_timeout: Duration::from_secs(10),
            body_idle_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(300),
            min_upload: (500, Duration::from_secs(20)),
            keep_alive_timeout: Duration::from_secs(75),
            write_timeout: Duration::from_secs(30),
            response_timeout: Duration::from_secs(30),
            high_water: 256 << 10,
            max_queued_answers: 1 << 20,
            http2: true,
            http2_clear_text: false,
            http3: false,
            http3_limits: Http3Limits::default(),
            http3_announced_port: None,
            http2_max_streams: 128,
            http2_ping_interval: Some(Duration::from_secs(30)),
            http2_ping_timeout: Duration::from_secs(20),
        }
    }
}

impl HttpConfig {
    /// Request head limits. Default: [`HeadLimits::new`].
    #[must_use]
    pub fn with_head_limits(mut self, head: HeadLimits) -> Self {
        self.head = head;
        self
    }

    /// Maximum request body size in bytes; the whole body is buffered. Default 1 MiB. Larger bodies are rejected with
    /// 413.
    #[must_use]
    pub fn with_max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }

    /// Timeout for a request head, from its first byte or from the connect on. Default 10 s, independent of progress: a
    /// head is a few packets. On timeout: 408. Bounds the opening handshake too.
    #[must_use]
    pub fn with_head_timeout(mut self, wait: Duration) -> Self {
        self.head_timeout = wait;
        self
    }

    /// Timeout between request body bytes. Default 10 s, which outlasts a few lost packets. On timeout: 408.
    #[must_use]
    pub fn with_body_idle_timeout(mut self, wait: Duration) -> Self {
        self.body_idle_timeout = wait;
        self
    }

    /// Timeout for a whole request body, counted from its head. Default 5 min: for the default
    /// [`max_body`](Self::with_max_body) 28 kbit/s, for 16 MiB half a megabit. Progress does not extend it. On timeout:
    /// 408.
    #[must_use]
    pub fn with_body_timeout(mut self, wait: Duration) -> Self {
        self.body_timeout = wait;
        self
    }

    /// Minimum request body rate, in bytes per second on average since its head, after `grace`. Each byte extends the
    /// deadline by its share of a second. Zero: no minimum. Default 500 bytes per second after 20 s, as in Apache's
    /// `mod_reqtimeout`: slower than any usable network, faster than a client that only occupies a connection. On
    /// timeout: 408. In a chunked body, only chunk data counts.
    #[must_use]
    pub fn with_min_upload_rate(mut self, bytes_per_second: u64, grace: Duration) -> Self {
        self.min_upload = (bytes_per_second, grace);
        self
    }

    /// High-water mark for queued answers in bytes, above which pipelined requests wait. Default 256 KiB: a socket's
    /// send buffer and as much again, so that pipelining keeps it full.
    #[must_use]
    pub fn with_high_water(mut self, bytes: usize) -> Self {
        self.high_water = bytes;
        self
    }

    /// Maximum answer bytes that an HTTP/2 or HTTP/3 connection has queued for its client's windows. Above it, the
    /// connection's further requests wait in order, opening handshakes excepted, until the client takes answers or
    /// resets their streams, or until [`write_timeout`](Self::with_write_timeout) ends them. Each answer counts with
    /// its unsent bytes, a streaming response with its queue, a file with none, and [blocking
    /// work](crate::Answer::blocking) with 128 KiB until its answer is queued. If the requests that wait have as many
    /// bytes, further ones are refused with REFUSED_STREAM or H3_REQUEST_REJECTED. Default 1 MiB: a fast download stays
    /// busy, and a client that opens no window holds about one answer. Pipelined HTTP/1.1 requests wait for
    /// [`high_water`](Self::with_high_water).
    #[must_use]
    pub fn with_max_queued_answers(mut self, bytes: usize) -> Self {
        self.max_queued_answers = bytes;
        self
    }

    /// Serves HTTP/2 too on listeners with TLS, to clients that choose it by ALPN. Requests meet the same routes,
    /// hooks, limits and timeouts. WebSockets by extended CONNECT (RFC 8441) and [streaming
    /// responses](crate::StreamingResponse) share the connection with requests; each counts as a connection in
    /// [`Limits`](crate::Limits). Default: `true`, as browsers open six connections to a server over HTTP/1.1, and one
    /// over HTTP/2.
    #[must_use]
    pub fn with_http2(mut self, enabled: bool) -> Self {
        self.http2 = enabled;
        self
    }

    /// Serves HTTP/2 too on listeners without TLS, to clients that begin with its preface (prior knowledge, RFC 9113
    /// section 3.3). Default: `false`: browsers have no HTTP/2 without TLS, and a proxy in front may not expect it.
    #[must_use]
    pub fn with_http2_clear_text(mut self, enabled: bool) -> Self {
        self.http2_clear_text = enabled;
        self
    }

    /// Serves HTTP/3 too, experimentally: over QUIC, for each TLS listener on the UDP port with its TCP port's number,
    /// unless the listener expects a PROXY header. Earlier versions' answers over TLS announce it by `Alt-Svc`.
    /// Requests meet the same routes, hooks, limits and timeouts. WebSockets by extended CONNECT (RFC 9220) and
    /// [streaming responses](crate::StreamingResponse) share the connection with requests; each counts as a connection
    /// in [`Limits`](crate::Limits). After [`StopHandle::hand_over`](crate::StopHandle::hand_over), HTTP/3 connections
    /// are closed at once. Needs this crate's feature `http3`: without it, listeners with TLS fail to bind. Default:
    /// `false`.
    #[must_use]
    pub fn with_http3(mut self, enabled: bool) -> Self {
        self.http3 = enabled;
        self
    }

    /// Limits and timeouts for HTTP/3. Default: [`Http3Limits::default`].
    #[must_use]
    pub fn with_http3_limits(mut self, limits: Http3Limits) -> Self {
        self.http3_limits = limits;
        self
    }

    /// Port that earlier versions' answers announce for HTTP/3, where it is another for clients: behind a port
    /// translation, such as a container's. Default: `None`, the listen address's port.
    #[must_use]
    pub fn with_http3_announced_port(mut self, port: Option<NonZeroU16>) -> Self {
        self.http3_announced_port = port;
        self
    }

    /// Maximum concurrent streams on an HTTP/2 connection, each a request, a streaming response or a WebSocket; further
    /// ones are refused. At least 1. Default 128; RFC 9113 section 6.5.2 recommends no less than 100. A proxy that
    /// carries many clients' WebSockets on few connections needs more.
    #[must_use]
    pub fn with_http2_max_streams(mut self, streams: u32) -> Self {
        self.http2_max_streams = streams;
        self
    }

    /// Time without received bytes after which an HTTP/2 connection with open streams is pinged; `None` sends no pings.
    /// It finds peers that are lost while a streaming response or a pending answer is silent. Default 30 s: longer than
    /// the WebSocket ping interval, whose pongs count, and shorter than most proxies' timeouts. A connection without
    /// streams ends after [`keep_alive_timeout`](Self::with_keep_alive_timeout).
    #[must_use]
    pub fn with_http2_ping_interval(mut self, wait: Option<Duration>) -> Self {
        self.http2_ping_interval = wait;
        self
    }

    /// Timeout for the answer to such a ping: any received byte counts. It begins when output ahead of the ping has
    /// left to the system, or makes no progress: a slow download is no lost peer, if the client takes what the socket
    /// buffers within this time. With a WebSocket or a streaming response, the system buffers at most 16 KiB beyond
    /// what is on its way. Then the connection ends with all its streams. Default 20 s, as for a WebSocket.
    #[must_use]
    pub fn with_http2_ping_timeout(mut self, wait: Duration) -> Self {
        self.http2_ping_timeout = wait;
        self
    }

    /// Idle timeout for a connection after its last answer. Default 75 s: more than the 60 s after which most proxies
    /// close, so that no proxy sends a request into a closing connection.
    #[must_use]
    pub fn with_keep_alive_timeout(mut self, wait: Duration) -> Self {
        self.keep_alive_timeout = wait;
        self
    }

    /// Timeout for a peer that takes no answer bytes. Default 30 s.
    #[must_use]
    pub fn with_write_timeout(mut self, wait: Duration) -> Self {
        self.write_timeout = wait;
        self
    }

    /// Timeout for an [`Answer`](crate::Answer) that is a future or blocking work, including its time in the pool's
    /// queue. Default 30 s, before most clients and proxies give up. On timeout the client is answered with 503 and the
    /// future is dropped; blocking work runs to its end, and its result is discarded.
    #[must_use]
    pub fn with_response_timeout(mut self, wait: Duration) -> Self {
        self.response_timeout = wait;
        self
    }
}

impl HttpConfig {
    /// Returns the deadline for a body with `bytes` received so far: complete, or more bytes by then.
    pub(crate) fn upload_deadline(&self, started: Time, bytes: usize) -> Time {
        let most = started + self.body_timeout;
        let (rate, grace) = self.min_upload;
        let earned = (bytes as u64).saturating_mul(1_000_000).checked_div(rate);
        earned.map_or(most, |earned| most.min(started + grace + Duration::from_micros(earned)))
    }

    /// Checks the settings; names the invalid one.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let waits = [
            (self.head_timeout, "head_timeout must be longer than zero"),
            (self.body_idle_timeout, "body_idle_timeout must be longer than zero"),
            (self.body_timeout, "body_timeout must be longer than zero"),
            (self.keep_alive_timeout, "keep_alive_timeout must be longer than zero"),
            (self.write_timeout, "write_timeout must be longer than zero"),
            (self.response_timeout, "response_timeout must be longer than zero"),
            (self.http2_ping_timeout, "http2_ping_timeout must be longer than zero"),
        ];
        if self.http2_max_streams == 0 {
            return Err("http2_max_streams must be at least 1");
        }
        let pings =
            self.http2_ping_interval.map(|wait| (wait, "http2_ping_interval must be longer than zero"));
        let zero = waits.into_iter().chain(pings).find(|(wait, _)| wait.is_zero());
        zero.map_or(Ok(()), |(_, fault)| Err(fault))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_deadline_grows_with_received_bytes() {
        let config = HttpConfig::default().with_body_timeout(Duration::from_secs(100));
        let slowest = config.clone().with_min_upload_rate(1_000, Duration::from_secs(5));
        let after = |config: &HttpConfig, bytes| config.upload_deadline(Time::from_millis(500), bytes);
        for (bytes, millis) in
            [(0, 5_500), (1, 5_501), (999, 6_499), (10_000, 15_500), (95_000, 100_500), (usize::MAX, 100_500)]
        {
            assert_eq!(after(&slowest, bytes), Time::from_millis(millis), "{bytes}");
        }
        let any = config.with_min_upload_rate(0, Duration::ZERO);
        assert_eq!(
            (after(&any, 0), after(&any, 1)),
            (Time::from_millis(100_500), Time::from_millis(100_500))
        );
    }
}
