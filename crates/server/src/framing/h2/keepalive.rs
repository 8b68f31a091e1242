//! Pings that find lost peers.

use sinews_proto::Time;

use crate::http::HttpConfig;
use crate::timer::NEVER;

/// State of the keepalive of one connection: its last input, and its last ping.
#[derive(Debug)]
pub(super) struct PingState {
    /// Time of the last received bytes, or when reads resumed.
    last_input: Time,
    /// The ping that the peer has not answered.
    ping: Option<UnansweredPing>,
}

#[derive(Debug)]
struct UnansweredPing {
    /// When the ping was queued, or output ahead of the ping last left.
    since: Time,
    /// The ping waits behind queued output.
    is_queued: bool,
}

impl PingState {
    pub(super) const fn new(now: Time) -> Self {
        Self { last_input: now, ping: None }
    }

    /// Notes received bytes, or that reads have resumed: any input is an answer.
    pub(super) fn note_input(&mut self, now: Time) {
        *self = Self::new(now);
    }

    /// Notes that bytes of output have left. `is_queued`: output is left. A peer cannot answer a ping behind it.
    pub(super) fn note_progress(&mut self, now: Time, is_queued: bool) {
        if let Some(ping) = self.ping.as_mut().filter(|ping| ping.is_queued) {
            *ping = UnansweredPing { since: now, is_queued };
        }
    }

    /// Returns when a silent peer is pinged, or given up.
    pub(super) fn deadline(&self, config: &HttpConfig) -> Time {
        let Some(interval) = config.http2_ping_interval else { return NEVER };
        match &self.ping {
            None => self.last_input + interval,
            Some(ping) => ping.since + config.http2_ping_timeout,
        }
    }

    /// Notes that a ping is queued. Returns whether to send it: otherwise the peer has not answered the last one.
    pub(super) fn start_ping(&mut self, now: Time) -> bool {
        let starts = self.ping.is_none();
        if starts {
            self.ping = Some(UnansweredPing { since: now, is_queued: true });
        }
        starts
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(30);
    const TIMEOUT: Duration = Duration::from_secs(20);

    fn config() -> HttpConfig {
        HttpConfig::default().with_http2_ping_interval(Some(INTERVAL)).with_http2_ping_timeout(TIMEOUT)
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn pong_timeout_begins_when_the_ping_is_sent() {
        let (config, mut keepalive) = (config(), PingState::new(at(0)));
        assert_eq!(keepalive.deadline(&config), at(30));
        // The process stalled beyond interval and timeout: the ping still gets a round trip.
        assert!(keepalive.start_ping(at(100)));
        assert_eq!(keepalive.deadline(&config), at(120));
        keepalive.note_progress(at(101), false);
        assert_eq!(keepalive.deadline(&config), at(121));
        assert!(!keepalive.start_ping(at(121)), "the peer has not answered");
        keepalive.note_input(at(122));
        assert_eq!(keepalive.deadline(&config), at(152));
        assert!(keepalive.start_ping(at(152)));
    }

    #[test]
    fn progress_of_output_ahead_of_the_ping_extends_its_timeout() {
        let (config, mut keepalive) = (config(), PingState::new(at(0)));
        assert!(keepalive.start_ping(at(30)));
        for now in [45, 60, 75] {
            keepalive.note_progress(at(now), true);
            assert_eq!(keepalive.deadline(&config), at(now + 20));
        }
        keepalive.note_progress(at(80), false);
        // Later output does not vouch for a peer that was pinged.
        keepalive.note_progress(at(90), true);
        assert_eq!(keepalive.deadline(&config), at(100));
    }

    #[test]
    fn connections_without_an_interval_are_never_pinged() {
        let config = config().with_http2_ping_interval(None);
        assert_eq!(PingState::new(at(0)).deadline(&config), NEVER);
    }
}
