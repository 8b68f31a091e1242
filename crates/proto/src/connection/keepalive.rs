//! The waits of a connection: one deadline, one answer when it comes.

use crate::config::PingRate;
use crate::{Config, Expired, Time};

/// Instants that the waits are counted from.
#[derive(Debug)]
pub(crate) struct Keepalive {
    /// When bytes last came.
    heard: Time,
    /// When our unanswered ping left.
    ping_sent: Option<Time>,
    /// Counts our pings: their payload, so that an answer can be told from an older one.
    ping_number: u32,
    /// When bytes began to wait without the peer taking any.
    stalled: Option<Time>,
    /// When our Close was decided.
    closing: Option<Time>,
    ping_budget: Budget,
    /// Nothing is received here, so that silence means nothing.
    only_sends: bool,
}

/// What a deadline that has come asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Ping,
    /// Close with a frame, since the peer may still read it.
    Close(Expired),
    /// Drop the transport: the peer reads nothing.
    Drop(Expired),
}

impl Keepalive {
    pub(crate) const fn new(config: &Config, now: Time) -> Self {
        Self {
            heard: now,
            ping_sent: None,
            ping_number: 0,
            stalled: None,
            closing: None,
            ping_budget: Budget { left: config.ping_rate.burst, since: now },
            only_sends: false,
        }
    }

    /// The waits of a part that only sends.
    pub(crate) const fn for_sending(config: &Config, now: Time) -> Self {
        Self { only_sends: true, ..Self::new(config, now) }
    }

    #[inline]
    pub(crate) const fn heard(&mut self, now: Time) {
        self.heard = now;
    }

    /// How long our ping took, if `payload` answers the newest.
    pub(crate) fn pong(&mut self, payload: &[u8], now: Time) -> Option<core::time::Duration> {
        if payload != self.ping_payload() {
            return None;
        }
        self.ping_sent.take().map(|sent| now.since(sent))
    }

    /// The payload of the newest ping.
    pub(crate) const fn ping_payload(&self) -> [u8; 4] {
        self.ping_number.to_be_bytes()
    }

    /// Whether the peer may send this ping.
    pub(crate) fn admit_ping(&mut self, rate: PingRate, now: Time) -> bool {
        self.ping_budget.admit(rate, now)
    }

    /// `waiting` bytes are queued or in flight; `moved`: the peer has taken some since.
    #[inline]
    pub(crate) fn outbound(&mut self, waiting: usize, moved: bool, now: Time) {
        // Bytes that waited since an earlier turn and move now prove life: the kernel was full. What leaves
        // in the turn that queued it proves nothing, since the kernel takes it whoever is there.
        if moved && self.stalled.is_some_and(|since| since < now) {
            self.heard = now;
        }
        if waiting == 0 {
            if self.stalled.take().is_some() && self.closing.is_some() {
                // Our Close has left only now.
                self.closing = Some(now);
            }
        } else if moved || self.stalled.is_none() {
            self.stalled = Some(now);
        }
    }

    /// Bytes that wait begin to do so now.
    pub(crate) fn stalled(&mut self, now: Time) {
        if let Some(since) = &mut self.stalled {
            *since = now;
        }
    }

    pub(crate) fn start_closing(&mut self, now: Time) {
        self.closing.get_or_insert(now);
    }

    /// The earliest wait that ends, and what it ends with.
    fn next(&self, config: &Config) -> Option<(Time, Due)> {
        // While bytes wait, whether the peer takes them is all that counts: reading may have paused, and a
        // ping or a Close would stand behind them.
        if let Some(at) = self.stalled {
            return Some((at + config.write_timeout, Due::Drop(Expired::Write)));
        }
        if self.only_sends {
            return None;
        }
        if let Some(at) = self.closing {
            return Some((at + config.close_timeout, Due::Drop(Expired::Close)));
        }
        let idle = config.idle_timeout.map(|wait| (self.heard + wait, Due::Close(Expired::Idle)));
        let live = match self.ping_sent {
            // Any byte proves life: a peer in the middle of a long message cannot answer at once.
            Some(sent) => Some((self.heard.max(sent) + config.pong_timeout, Due::Close(Expired::Pong))),
            None => config.ping_interval.map(|wait| (self.heard + wait, Due::Ping)),
        };
        [idle, live].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    #[inline]
    pub(crate) fn deadline(&self, config: &Config) -> Option<Time> {
        self.next(config).map(|(at, _)| at)
    }

    /// What is due now, if anything is. A ping counts as sent.
    pub(crate) fn due(&mut self, config: &Config, now: Time) -> Option<Due> {
        let (at, due) = self.next(config)?;
        if at > now {
            return None;
        }
        if due == Due::Ping {
            self.ping_sent = Some(now);
            self.ping_number = self.ping_number.wrapping_add(1);
        }
        Some(due)
    }
}

/// A token bucket.
#[derive(Debug)]
struct Budget {
    left: u32,
    since: Time,
}

impl Budget {
    fn admit(&mut self, rate: PingRate, now: Time) -> bool {
        let passed = now.since(self.since).as_micros().saturating_mul(u128::from(rate.per_second));
        let earned = u32::try_from(passed / 1_000_000).unwrap_or(u32::MAX);
        if earned > 0 {
            self.left = self.left.saturating_add(earned).min(rate.burst);
            self.since = now;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_ping_is_due_after_silence_and_overdue_after_more() {
        let config = Config::default();
        let mut keepalive = Keepalive::new(&config, Time::ZERO);
        let ping_at = Time::ZERO + Duration::from_secs(25);
        assert_eq!(keepalive.deadline(&config), Some(ping_at));
        assert_eq!(keepalive.due(&config, Time::from_millis(24_999)), None);
        assert_eq!(keepalive.due(&config, ping_at), Some(Due::Ping));
        assert_eq!(keepalive.deadline(&config), Some(ping_at + Duration::from_secs(20)));
        assert_eq!(
            keepalive.due(&config, ping_at + Duration::from_secs(20)),
            Some(Due::Close(Expired::Pong))
        );
    }

    #[test]
    fn any_byte_puts_the_pong_deadline_off_and_the_pong_ends_it() {
        let config = Config::default();
        let mut keepalive = Keepalive::new(&config, Time::ZERO);
        let ping_at = Time::ZERO + Duration::from_secs(25);
        keepalive.due(&config, ping_at);
        keepalive.heard(ping_at + SECOND);
        assert_eq!(keepalive.deadline(&config), Some(ping_at + SECOND * 21));
        assert_eq!(keepalive.pong(&[9, 9, 9, 9], ping_at + SECOND), None);
        let payload = keepalive.ping_payload();
        assert_eq!(keepalive.pong(&payload, ping_at + SECOND), Some(SECOND));
        assert_eq!(keepalive.pong(&payload, ping_at + SECOND), None, "answered once");
    }

    #[test]
    fn a_stalled_peer_is_dropped_and_progress_puts_it_off() {
        let config = Config::default().with_idle_timeout(None).with_ping_interval(None);
        let mut keepalive = Keepalive::new(&config, Time::ZERO);
        assert_eq!(keepalive.deadline(&config), None);
        keepalive.outbound(10, false, Time::ZERO + SECOND);
        keepalive.outbound(20, false, Time::ZERO + SECOND * 5);
        assert_eq!(keepalive.deadline(&config), Some(Time::ZERO + SECOND * 31));
        keepalive.outbound(5, true, Time::ZERO + SECOND * 6);
        assert_eq!(keepalive.deadline(&config), Some(Time::ZERO + SECOND * 36));
        assert_eq!(keepalive.due(&config, Time::ZERO + SECOND * 36), Some(Due::Drop(Expired::Write)));
        keepalive.outbound(0, true, Time::ZERO + SECOND * 7);
        assert_eq!(keepalive.deadline(&config), None);
    }

    #[test]
    fn closing_waits_for_nothing_but_the_close() {
        let config = Config::default();
        let mut keepalive = Keepalive::new(&config, Time::ZERO);
        keepalive.start_closing(Time::ZERO + SECOND);
        keepalive.start_closing(Time::ZERO + SECOND * 3);
        assert_eq!(keepalive.deadline(&config), Some(Time::ZERO + SECOND * 6));
        assert_eq!(keepalive.due(&config, Time::ZERO + SECOND * 6), Some(Due::Drop(Expired::Close)));
    }

    /// A slow reader is alive as long as it reads: neither silence nor a ping that waits behind the rest
    /// ends it.
    #[test]
    fn a_peer_that_takes_bytes_is_alive_however_long_it_takes() {
        let config = Config::default();
        let mut keepalive = Keepalive::new(&config, Time::ZERO);
        keepalive.outbound(1000, false, Time::ZERO);
        for second in 1..600 {
            let now = Time::ZERO + SECOND * second;
            keepalive.outbound(1000, true, now);
            assert_eq!(keepalive.due(&config, now + SECOND), None, "after {second} s");
        }
        let end = Time::ZERO + SECOND * 600;
        keepalive.outbound(0, true, end);
        assert_eq!(keepalive.deadline(&config), Some(end + Duration::from_secs(25)), "then a ping");
    }

    #[test]
    fn what_the_kernel_takes_at_once_proves_no_life() {
        let config = Config::default();
        let mut keepalive = Keepalive::new(&config, Time::ZERO);
        for second in 1..=25 {
            let now = Time::ZERO + SECOND * second;
            keepalive.outbound(10, false, now);
            keepalive.outbound(0, true, now);
        }
        assert_eq!(keepalive.due(&config, Time::ZERO + SECOND * 25), Some(Due::Ping));
    }

    #[test]
    fn the_close_is_waited_for_from_when_it_has_left() {
        let config = Config::default();
        let mut keepalive = Keepalive::new(&config, Time::ZERO);
        keepalive.outbound(1000, false, Time::ZERO);
        keepalive.start_closing(Time::ZERO);
        for second in 1..60 {
            keepalive.outbound(1000, true, Time::ZERO + SECOND * second);
            assert_eq!(keepalive.due(&config, Time::ZERO + SECOND * (second + 6)), None);
        }
        let left = Time::ZERO + SECOND * 60;
        keepalive.outbound(0, true, left);
        keepalive.outbound(0, false, left + SECOND);
        assert_eq!(keepalive.deadline(&config), Some(left + SECOND * 5));
    }

    #[test]
    fn pings_are_admitted_in_bursts_and_at_a_rate() {
        let rate = PingRate { per_second: 2, burst: 3 };
        let mut budget = Budget { left: rate.burst, since: Time::ZERO };
        let burst: Vec<bool> = (0..4).map(|_| budget.admit(rate, Time::ZERO)).collect();
        assert_eq!(burst, [true, true, true, false]);
        assert!(!budget.admit(rate, Time::from_millis(499)));
        assert!(budget.admit(rate, Time::from_millis(500)));
        assert!(!budget.admit(rate, Time::from_millis(501)));
    }
}
