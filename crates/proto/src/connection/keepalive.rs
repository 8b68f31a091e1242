//! The timeouts of a connection: one deadline, one action when it is reached.

use alloc::boxed::Box;
use core::time::Duration;

use crate::config::PingRate;
use crate::{Config, Expired, Time};

/// Times at which the timeouts start.
#[derive(Debug)]
pub(crate) struct Keepalive {
    /// Time of the last received bytes.
    received_at: Time,
    /// Time of the application's last message.
    sent: Time,
    /// Time of the unanswered keepalive ping.
    ping_sent: Option<Time>,
    /// Counter of keepalive pings: their payload, which distinguishes an answer from an older one.
    ping_number: u32,
    /// Time since which bytes are queued without progress.
    stalled: Option<Time>,
    /// Boxed, since most connections have none.
    rare: Option<Box<RareTimes>>,
    /// This half receives no bytes, so silence has no meaning.
    only_sends: bool,
    /// The peer has nothing to send: only pings and the write timeout find one that is gone.
    peer_is_silent: bool,
}

/// State of a connection that closes, or whose peer sends pings.
#[derive(Debug, Default)]
struct RareTimes {
    /// Time at which the local Close became pending.
    closing: Option<Time>,
    /// The close timeout has been restarted once.
    close_restarted: bool,
    /// `None`: the peer has not sent a ping yet.
    ping_budget: Option<PingBudget>,
}

/// The action for an expired deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeadlineAction {
    Ping,
    /// Close with a frame, since the peer may still read it.
    Close(Expired),
    /// Drop the transport: the peer reads no bytes.
    Drop(Expired),
}

impl Keepalive {
    pub(crate) const fn new(now: Time) -> Self {
        Self {
            received_at: now,
            sent: now,
            ping_sent: None,
            ping_number: 0,
            stalled: None,
            rare: None,
            only_sends: false,
            peer_is_silent: false,
        }
    }

    /// The timeouts of a streaming response.
    pub(crate) const fn for_body(now: Time) -> Self {
        let mut keepalive = Self::new(now);
        keepalive.peer_is_silent = true;
        keepalive
    }

    /// The timeouts of a half that only sends.
    pub(crate) const fn for_sending(now: Time) -> Self {
        let mut keepalive = Self::new(now);
        keepalive.only_sends = true;
        keepalive
    }

    #[inline]
    pub(crate) const fn received_at(&mut self, now: Time) {
        self.received_at = now;
    }

    /// Records a message of the application: a peer has [`Config::idle_timeout`] to answer it.
    #[inline]
    pub(crate) fn sent(&mut self, now: Time) {
        self.sent = self.sent.max(now);
    }

    /// Records that no input was read until now, so that the peer's silence starts now.
    pub(crate) fn unread(&mut self, now: Time) {
        self.received_at = self.received_at.max(now);
    }

    /// Records that the connection is driven from `since` on. A timeout that expired well before restarts,
    /// since the peer could not prevent it. A ping without any byte after it is the peer's fault, however
    /// late it is noticed.
    pub(crate) fn driven(&mut self, config: &Config, since: Time) {
        let Some((at, DeadlineAction::Close(wait) | DeadlineAction::Drop(wait))) = self.next(config) else {
            return;
        };
        match wait {
            Expired::Idle if is_late(at, since, config.idle_timeout) => {
                self.received_at = self.received_at.max(since)
            }
            // Bytes have arrived since the ping, and the pong may follow behind further bytes.
            Expired::Pong
                if self.ping_sent < Some(self.received_at)
                    && is_late(at, since, Some(config.pong_timeout)) =>
            {
                self.received_at = self.received_at.max(since);
            }
            // Only once, or a peer that sends continuously to a slow application would keep the connection
            // open forever.
            Expired::Close if is_late(at, since, Some(config.close_timeout)) => {
                let rare = self.rare.get_or_insert_default();
                if !rare.close_restarted {
                    rare.close_restarted = true;
                    rare.closing = Some(since);
                }
            }
            _ => {}
        }
    }

    /// The round-trip time of the ping, if `payload` answers the newest.
    pub(crate) fn pong(&mut self, payload: &[u8], now: Time) -> Option<Duration> {
        if payload != self.ping_payload() {
            return None;
        }
        self.ping_sent.take().map(|sent| now.since(sent))
    }

    /// Records that the ping of now needs no answer.
    pub(crate) fn assume_pong(&mut self, now: Time) {
        self.ping_sent = None;
        self.received_at = now;
    }

    /// The payload of the newest ping.
    pub(crate) const fn ping_payload(&self) -> [u8; 4] {
        self.ping_number.to_be_bytes()
    }

    /// Whether the rate limit admits this ping of the peer.
    pub(crate) fn admit_ping(&mut self, rate: PingRate, now: Time) -> bool {
        let full = PingBudget { left: rate.burst, since: now };
        self.rare.get_or_insert_default().ping_budget.get_or_insert(full).admit(rate, now)
    }

    /// Records `waiting` queued bytes, including those in flight; `moved`: the peer has accepted some
    /// since.
    #[inline]
    pub(crate) fn outbound(&mut self, waiting: usize, moved: bool, now: Time) {
        // Progress on bytes from an earlier turn proves life: the kernel's buffer was full. Bytes sent in
        // the turn that queued them prove no life, since the kernel takes them in any case.
        if moved && self.stalled.is_some_and(|since| since < now) {
            self.received_at = now;
        }
        if waiting == 0 {
            if self.stalled.take().is_some()
                && let Some(closing) = self.rare.as_mut().and_then(|rare| rare.closing.as_mut())
            {
                // The Close was sent just now.
                *closing = now;
            }
        } else if moved || self.stalled.is_none() {
            self.stalled = Some(now);
        }
    }

    /// Starts the write timeout for the queued bytes now.
    pub(crate) fn stalled(&mut self, now: Time) {
        if let Some(since) = &mut self.stalled {
            *since = now;
        }
    }

    pub(crate) fn start_closing(&mut self, now: Time) {
        self.rare.get_or_insert_default().closing.get_or_insert(now);
    }

    /// The earliest timeout, and its action.
    fn next(&self, config: &Config) -> Option<(Time, DeadlineAction)> {
        // While bytes are queued, only the write timeout counts: reads may be paused, and a ping or a Close
        // would wait behind them.
        if let Some(at) = self.stalled {
            return Some((at + config.write_timeout, DeadlineAction::Drop(Expired::Write)));
        }
        if self.only_sends {
            return None;
        }
        if let Some(at) = self.rare.as_ref().and_then(|rare| rare.closing) {
            return Some((at + config.close_timeout, DeadlineAction::Drop(Expired::Close)));
        }
        let active = self.received_at.max(self.sent);
        let idle_timeout = if self.peer_is_silent { None } else { config.idle_timeout };
        let idle = idle_timeout.map(|wait| (active + wait, DeadlineAction::Close(Expired::Idle)));
        let live = match self.ping_sent {
            // Any byte proves life: a peer in the middle of a long message cannot answer at once.
            Some(sent) => {
                Some((self.received_at.max(sent) + config.pong_timeout, DeadlineAction::Close(Expired::Pong)))
            }
            None => config.ping_interval.map(|wait| (self.received_at + wait, DeadlineAction::Ping)),
        };
        [idle, live].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    #[inline]
    pub(crate) fn deadline(&self, config: &Config) -> Option<Time> {
        self.next(config).map(|(at, _)| at)
    }

    /// The timeout that expires at the [`deadline`](Self::deadline); `None`: a ping is due then.
    pub(crate) fn expiring_timeout(&self, config: &Config) -> Option<Expired> {
        match self.next(config)?.1 {
            DeadlineAction::Ping => None,
            DeadlineAction::Close(wait) | DeadlineAction::Drop(wait) => Some(wait),
        }
    }

    /// Returns the action that is due now, if any. A ping counts as sent.
    pub(crate) fn due(&mut self, config: &Config, now: Time) -> Option<DeadlineAction> {
        let (at, due) = self.next(config)?;
        if at > now {
            return None;
        }
        if due == DeadlineAction::Ping {
            self.ping_sent = Some(now);
            self.ping_number = self.ping_number.wrapping_add(1);
        }
        Some(due)
    }
}

/// Whether a caller that returned at `since` was absent when a timeout of this length expired. A timer that
/// fires slightly late is no absence.
fn is_late(ended: Time, since: Time, wait: Option<Duration>) -> bool {
    let tolerance = (wait.unwrap_or_default() / 4).clamp(TOLERANCE_MIN, TOLERANCE_MAX);
    since > ended + tolerance
}

/// Tolerated delay of a timer.
const TOLERANCE_MIN: Duration = Duration::from_millis(1);
const TOLERANCE_MAX: Duration = Duration::from_millis(100);

/// A token bucket.
#[derive(Debug)]
struct PingBudget {
    left: u32,
    since: Time,
}

impl PingBudget {
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
        let mut keepalive = Keepalive::new(Time::ZERO);
        let ping_at = Time::ZERO + Duration::from_secs(25);
        assert_eq!(keepalive.deadline(&config), Some(ping_at));
        assert_eq!(keepalive.due(&config, Time::from_millis(24_999)), None);
        assert_eq!(keepalive.due(&config, ping_at), Some(DeadlineAction::Ping));
        assert_eq!(keepalive.deadline(&config), Some(ping_at + Duration::from_secs(20)));
        assert_eq!(
            keepalive.due(&config, ping_at + Duration::from_secs(20)),
            Some(DeadlineAction::Close(Expired::Pong))
        );
    }

    #[test]
    fn any_byte_extends_pong_timeout_and_pong_clears_it() {
        let config = Config::default();
        let mut keepalive = Keepalive::new(Time::ZERO);
        let ping_at = Time::ZERO + Duration::from_secs(25);
        keepalive.due(&config, ping_at);
        keepalive.received_at(ping_at + SECOND);
        assert_eq!(keepalive.deadline(&config), Some(ping_at + SECOND * 21));
        assert_eq!(keepalive.pong(&[9, 9, 9, 9], ping_at + SECOND), None);
        let payload = keepalive.ping_payload();
        assert_eq!(keepalive.pong(&payload, ping_at + SECOND), Some(SECOND));
        assert_eq!(keepalive.pong(&payload, ping_at + SECOND), None, "answered once");
    }

    #[test]
    fn stalled_peer_is_dropped_and_progress_extends_write_timeout() {
        let config = Config::default().with_idle_timeout(None).with_ping_interval(None);
        let mut keepalive = Keepalive::new(Time::ZERO);
        assert_eq!(keepalive.deadline(&config), None);
        keepalive.outbound(10, false, Time::ZERO + SECOND);
        keepalive.outbound(20, false, Time::ZERO + SECOND * 5);
        assert_eq!(keepalive.deadline(&config), Some(Time::ZERO + SECOND * 31));
        keepalive.outbound(5, true, Time::ZERO + SECOND * 6);
        assert_eq!(keepalive.deadline(&config), Some(Time::ZERO + SECOND * 36));
        assert_eq!(
            keepalive.due(&config, Time::ZERO + SECOND * 36),
            Some(DeadlineAction::Drop(Expired::Write))
        );
        keepalive.outbound(0, true, Time::ZERO + SECOND * 7);
        assert_eq!(keepalive.deadline(&config), None);
    }

    #[test]
    fn only_close_timeout_applies_while_closing() {
        let config = Config::default();
        let mut keepalive = Keepalive::new(Time::ZERO);
        keepalive.start_closing(Time::ZERO + SECOND);
        keepalive.start_closing(Time::ZERO + SECOND * 3);
        assert_eq!(keepalive.deadline(&config), Some(Time::ZERO + SECOND * 6));
        assert_eq!(
            keepalive.due(&config, Time::ZERO + SECOND * 6),
            Some(DeadlineAction::Drop(Expired::Close))
        );
    }

    #[test]
    fn sent_message_restarts_only_idle_timeout() {
        let config = Config::default();
        let mut keepalive = Keepalive::new(Time::ZERO);
        keepalive.sent(Time::ZERO + SECOND * 20);
        assert_eq!(keepalive.deadline(&config), Some(Time::ZERO + SECOND * 25), "a ping");
        let config = config.with_ping_interval(None);
        assert_eq!(keepalive.deadline(&config), Some(Time::ZERO + SECOND * 140));
        assert_eq!(keepalive.expiring_timeout(&config), Some(Expired::Idle));
        keepalive.sent(Time::ZERO);
        assert_eq!(keepalive.deadline(&config), Some(Time::ZERO + SECOND * 140), "an old clock");
    }

    #[test]
    fn absence_during_idle_timeout_restarts_it() {
        let config = Config::default().with_ping_interval(None);
        let mut keepalive = Keepalive::new(Time::ZERO);
        keepalive.driven(&config, Time::from_millis(120_100));
        assert_eq!(keepalive.deadline(&config), Some(Time::from_millis(120_000)), "a late timer");
        keepalive.driven(&config, Time::from_millis(120_101));
        assert_eq!(keepalive.deadline(&config), Some(Time::from_millis(240_101)));
    }

    #[test]
    fn absence_during_close_timeout_restarts_it_once() {
        let config = Config::default();
        let mut keepalive = Keepalive::new(Time::ZERO);
        keepalive.start_closing(Time::ZERO);
        keepalive.driven(&config, Time::ZERO + SECOND * 60);
        assert_eq!(keepalive.deadline(&config), Some(Time::ZERO + SECOND * 65));
        keepalive.driven(&config, Time::ZERO + SECOND * 120);
        assert_eq!(keepalive.deadline(&config), Some(Time::ZERO + SECOND * 65));
    }

    #[test]
    fn absence_does_not_excuse_an_unanswered_ping() {
        let config = Config::default();
        let mut keepalive = Keepalive::new(Time::ZERO);
        keepalive.due(&config, Time::ZERO + SECOND * 25);
        keepalive.driven(&config, Time::ZERO + SECOND * 90);
        assert_eq!(
            keepalive.due(&config, Time::ZERO + SECOND * 90),
            Some(DeadlineAction::Close(Expired::Pong))
        );
    }

    #[test]
    fn absence_excuses_a_missing_pong_if_the_peer_sent_bytes_after_the_ping() {
        let config = Config::default();
        let mut keepalive = Keepalive::new(Time::ZERO);
        keepalive.due(&config, Time::ZERO + SECOND * 25);
        keepalive.received_at(Time::ZERO + SECOND * 26);
        keepalive.driven(&config, Time::ZERO + SECOND * 90);
        assert_eq!(keepalive.deadline(&config), Some(Time::ZERO + SECOND * 110));
    }

    #[test]
    fn unread_input_restarts_pong_timeout() {
        let config = Config::default();
        let mut keepalive = Keepalive::new(Time::ZERO);
        keepalive.due(&config, Time::ZERO + SECOND * 25);
        keepalive.unread(Time::ZERO + SECOND * 44);
        assert_eq!(keepalive.deadline(&config), Some(Time::ZERO + SECOND * 64));
    }

    /// A slow reader is alive as long as it reads: neither silence nor a ping queued behind other bytes
    /// ends the connection.
    #[test]
    fn slow_reader_is_alive_while_it_reads() {
        let config = Config::default();
        let mut keepalive = Keepalive::new(Time::ZERO);
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
    fn bytes_taken_at_once_do_not_extend_write_timeout() {
        let config = Config::default();
        let mut keepalive = Keepalive::new(Time::ZERO);
        for second in 1..=25 {
            let now = Time::ZERO + SECOND * second;
            keepalive.outbound(10, false, now);
            keepalive.outbound(0, true, now);
        }
        assert_eq!(keepalive.due(&config, Time::ZERO + SECOND * 25), Some(DeadlineAction::Ping));
    }

    #[test]
    fn close_timeout_starts_when_close_is_sent() {
        let config = Config::default();
        let mut keepalive = Keepalive::new(Time::ZERO);
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
        let mut budget = PingBudget { left: rate.burst, since: Time::ZERO };
        let burst: Vec<bool> = (0..4).map(|_| budget.admit(rate, Time::ZERO)).collect();
        assert_eq!(burst, [true, true, true, false]);
        assert!(!budget.admit(rate, Time::from_millis(499)));
        assert!(budget.admit(rate, Time::from_millis(500)));
        assert!(!budget.admit(rate, Time::from_millis(501)));
    }
}
