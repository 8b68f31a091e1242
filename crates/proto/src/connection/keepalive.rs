//! The waits of a connection: one deadline, one answer when it comes.

use core::time::Duration;

use crate::config::PingRate;
use crate::{Config, Expired, Time};

/// Instants that the waits are counted from.
#[derive(Debug)]
pub(crate) struct Keepalive {
    /// When bytes last came.
    heard: Time,
    /// When the application last sent a message.
    sent: Time,
    /// When our unanswered ping left.
    ping_sent: Option<Time>,
    /// Counts our pings: their payload, so that an answer can be told from an older one.
    ping_number: u32,
    /// When bytes began to wait without the peer taking any.
    stalled: Option<Time>,
    /// When our Close was decided.
    closing: Option<Time>,
    /// The wait for the peer's Close has begun anew once.
    closing_anew: bool,
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
            sent: now,
            ping_sent: None,
            ping_number: 0,
            stalled: None,
            closing: None,
            closing_anew: false,
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

    /// The application has sent a message: a peer may take [`Config::idle_timeout`] to answer it.
    #[inline]
    pub(crate) fn sent(&mut self, now: Time) {
        self.sent = self.sent.max(now);
    }

    /// Nothing that the peer sent was read until now, so that its silence begins now.
    pub(crate) fn unread(&mut self, now: Time) {
        self.heard = self.heard.max(now);
    }

    /// The connection is driven from `since` on. A wait for the peer that ended well before begins anew: the peer
    /// could not end it. A ping behind which nothing came is the peer's fault however late that is noticed.
    pub(crate) fn driven(&mut self, config: &Config, since: Time) {
        let Some((at, Due::Close(wait) | Due::Drop(wait))) = self.next(config) else { return };
        match wait {
            Expired::Idle if is_late(at, since, config.idle_timeout) => self.heard = self.heard.max(since),
            // Bytes have come since the ping, and the pong may stand behind more of them.
            Expired::Pong
                if self.ping_sent < Some(self.heard) && is_late(at, since, Some(config.pong_timeout)) =>
            {
                self.heard = self.heard.max(since);
            }
            // Only once, or a peer that never stops talking to a slow application would keep it for ever.
            Expired::Close if is_late(at, since, Some(config.close_timeout)) && !self.closing_anew => {
                self.closing_anew = true;
                self.closing = Some(since);
            }
            _ => {}
        }
    }

    /// How long our ping took, if `payload` answers the newest.
    pub(crate) fn pong(&mut self, payload: &[u8], now: Time) -> Option<Duration> {
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
        let active = self.heard.max(self.sent);
        let idle = config.idle_timeout.map(|wait| (active + wait, Due::Close(Expired::Idle)));
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

    /// What ends the connection at the [`deadline`](Self::deadline); `None`: a ping is due then.
    pub(crate) fn awaits(&self, config: &Config) -> Option<Expired> {
        match self.next(config)?.1 {
            Due::Ping => None,
            Due::Close(wait) | Due::Drop(wait) => Some(wait),
        }
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

/// Whether a caller that came at `since` was away when a wait of this length ended. A timer that fires a little late is
/// no absence.
fn is_late(ended: Time, since: Time, wait: Option<Duration>) -> bool {
    let tolerance = (wait.unwrap_or_default() / 4).clamp(TOLERANCE_MIN, TOLERANCE_MAX);
    since > ended + tolerance
}

/// How late a timer may fire.
const TOLERANCE_MIN: Duration = Duration::from_millis(1);
const TOLERANCE_MAX: Duration = Duration::from_millis(100);

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

    #[test]
    fn sent_message_restarts_idle_timeout_and_no_other_wait() {
        let config = Config::default();
        let mut keepalive = Keepalive::new(&config, Time::ZERO);
        keepalive.sent(Time::ZERO + SECOND * 20);
        assert_eq!(keepalive.deadline(&config), Some(Time::ZERO + SECOND * 25), "a ping");
        let config = config.with_ping_interval(None);
        assert_eq!(keepalive.deadline(&config), Some(Time::ZERO + SECOND * 140));
        assert_eq!(keepalive.awaits(&config), Some(Expired::Idle));
        keepalive.sent(Time::ZERO);
        assert_eq!(keepalive.deadline(&config), Some(Time::ZERO + SECOND * 140), "an old clock");
    }

    #[test]
    fn absence_during_idle_timeout_restarts_it() {
        let config = Config::default().with_ping_interval(None);
        let mut keepalive = Keepalive::new(&config, Time::ZERO);
        keepalive.driven(&config, Time::from_millis(120_100));
        assert_eq!(keepalive.deadline(&config), Some(Time::from_millis(120_000)), "a late timer");
        keepalive.driven(&config, Time::from_millis(120_101));
        assert_eq!(keepalive.deadline(&config), Some(Time::from_millis(240_101)));
    }

    #[test]
    fn absence_during_close_timeout_restarts_it_once() {
        let config = Config::default();
        let mut keepalive = Keepalive::new(&config, Time::ZERO);
        keepalive.start_closing(Time::ZERO);
        keepalive.driven(&config, Time::ZERO + SECOND * 60);
        assert_eq!(keepalive.deadline(&config), Some(Time::ZERO + SECOND * 65));
        keepalive.driven(&config, Time::ZERO + SECOND * 120);
        assert_eq!(keepalive.deadline(&config), Some(Time::ZERO + SECOND * 65));
    }

    #[test]
    fn absence_does_not_excuse_an_unanswered_ping() {
        let config = Config::default();
        let mut keepalive = Keepalive::new(&config, Time::ZERO);
        keepalive.due(&config, Time::ZERO + SECOND * 25);
        keepalive.driven(&config, Time::ZERO + SECOND * 90);
        assert_eq!(keepalive.due(&config, Time::ZERO + SECOND * 90), Some(Due::Close(Expired::Pong)));
    }

    #[test]
    fn absence_excuses_a_missing_pong_if_the_peer_sent_bytes_after_the_ping() {
        let config = Config::default();
        let mut keepalive = Keepalive::new(&config, Time::ZERO);
        keepalive.due(&config, Time::ZERO + SECOND * 25);
        keepalive.heard(Time::ZERO + SECOND * 26);
        keepalive.driven(&config, Time::ZERO + SECOND * 90);
        assert_eq!(keepalive.deadline(&config), Some(Time::ZERO + SECOND * 110));
    }

    #[test]
    fn unread_input_restarts_pong_timeout() {
        let config = Config::default();
        let mut keepalive = Keepalive::new(&config, Time::ZERO);
        keepalive.due(&config, Time::ZERO + SECOND * 25);
        keepalive.unread(Time::ZERO + SECOND * 44);
        assert_eq!(keepalive.deadline(&config), Some(Time::ZERO + SECOND * 64));
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
