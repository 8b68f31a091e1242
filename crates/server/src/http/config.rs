//! Limits and waits before the upgrade.

use std::time::Duration;

use sinews_proto::Time;
use sinews_proto::http::HeadLimits;

/// Limits and waits of plain HTTP. [`Server::bind`](crate::Server::bind) refuses waits of zero.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    pub(crate) head: HeadLimits,
    pub(crate) max_body: usize,
    pub(crate) head_timeout: Duration,
    pub(crate) body_idle_timeout: Duration,
    pub(crate) body_timeout: Duration,
    /// Bytes a second, zero for none, and from when on.
    pub(crate) min_upload: (u64, Duration),
    pub(crate) keep_alive_timeout: Duration,
    pub(crate) write_timeout: Duration,
    pub(crate) handler_timeout: Duration,
    pub(crate) high_water: usize,
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
            handler_timeout: Duration::from_secs(30),
            high_water: 256 << 10,
        }
    }
}

impl HttpConfig {
    /// Limits of a request head. Default: [`HeadLimits::new`].
    #[must_use]
    pub fn with_head_limits(mut self, head: HeadLimits) -> Self {
        self.head = head;
        self
    }

    /// Bytes in a request body, which is held whole. Default 1 MiB; more is answered with 413.
    #[must_use]
    pub fn with_max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }

    /// How long the head of a request, from its first byte or from the connect on, may take to arrive.
    /// Default 10 s, however it drips: a head is a few packets. Then 408. It bounds the opening handshake too.
    #[must_use]
    pub fn with_head_timeout(mut self, wait: Duration) -> Self {
        self.head_timeout = wait;
        self
    }

    /// How long nothing of a request's body may come. Default 10 s, which outlasts a few lost packets. Then
    /// 408.
    #[must_use]
    pub fn with_body_idle_timeout(mut self, wait: Duration) -> Self {
        self.body_idle_timeout = wait;
        self
    }

    /// How long the whole body of a request may take, counted from its head. Default 5 min: for the default
    /// [`max_body`](Self::with_max_body) 28 kbit/s, for 16 MiB half a megabit; a drip of bytes gains no more.
    /// Then 408.
    #[must_use]
    pub fn with_body_timeout(mut self, wait: Duration) -> Self {
        self.body_timeout = wait;
        self
    }

    /// How fast a request's body has to come, in bytes a second on average since its head, once `grace` has passed: each
    /// byte earns its share of a second behind that. Zero: as slowly as the other waits allow. Default 500 bytes
    /// a second after 20 s, as in Apache's `mod_reqtimeout`: slower than any network that carries a body at all, faster
    /// than who only means to hold a place. Then 408. In chunks, what they carry counts.
    #[must_use]
    pub fn with_min_upload_rate(mut self, bytes_per_second: u64, grace: Duration) -> Self {
        self.min_upload = (bytes_per_second, grace);
        self
    }

    /// Bytes of answers waiting to be sent above which further requests on the connection wait. Default 256 KiB:
    /// a socket's send buffer and as much again, so that pipelining keeps it full.
    #[must_use]
    pub fn with_high_water(mut self, bytes: usize) -> Self {
        self.high_water = bytes;
        self
    }

    /// How long a connection may stay without a request after the last answer. Default 75 s:
    /// more than the 60 s after which most proxies close, so that none sends a request into a connection that ends.
    #[must_use]
    pub fn with_keep_alive_timeout(mut self, wait: Duration) -> Self {
        self.keep_alive_timeout = wait;
        self
    }

    /// How long the peer may take nothing of an answer. Default 30 s.
    #[must_use]
    pub fn with_write_timeout(mut self, wait: Duration) -> Self {
        self.write_timeout = wait;
        self
    }

    /// How long an [`Answer`](crate::Answer) may be awaited that comes later or blocks, the wait for a place in the pool
    /// included. Default 30 s, before most clients and proxies give up. Then the client is answered with 503, and the
    /// future dropped; work that blocks goes on to its end, for nobody.
    #[must_use]
    pub fn with_handler_timeout(mut self, wait: Duration) -> Self {
        self.handler_timeout = wait;
        self
    }
}

impl HttpConfig {
    /// By when a body that began then has to be whole, or more of it has to have come than these bytes.
    pub(crate) fn upload_deadline(&self, started: Time, bytes: usize) -> Time {
        let most = started + self.body_timeout;
        let (rate, grace) = self.min_upload;
        let earned = (bytes as u64).saturating_mul(1_000_000).checked_div(rate);
        earned.map_or(most, |earned| most.min(started + grace + Duration::from_micros(earned)))
    }

    /// Whether the settings make sense; otherwise what does not.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let waits = [
            (self.head_timeout, "head_timeout must be longer than zero"),
            (self.body_idle_timeout, "body_idle_timeout must be longer than zero"),
            (self.body_timeout, "body_timeout must be longer than zero"),
            (self.keep_alive_timeout, "keep_alive_timeout must be longer than zero"),
            (self.write_timeout, "write_timeout must be longer than zero"),
            (self.handler_timeout, "handler_timeout must be longer than zero"),
        ];
        let zero = waits.into_iter().find(|(wait, _)| wait.is_zero());
        zero.map_or(Ok(()), |(_, fault)| Err(fault))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_earns_its_time() {
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
