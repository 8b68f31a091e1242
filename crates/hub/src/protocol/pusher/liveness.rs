//! Silent and unauthorized connections.

use super::code;
use super::handshake::ConnectionRejection;
use crate::apps::app::PusherApp;
use crate::apps::live::nanoseconds;

/// Whether a client is alive, and authorized in time. Times are those of [`LiveApps::now`](super::live::LiveApps::now).
#[derive(Debug)]
pub(super) struct Liveness {
    opened: u64,
    /// The last message or pong.
    active: u64,
    /// A ping from the server waits for an answer.
    is_pinged: bool,
    /// The client has signed in, or has subscribed to a channel that needs a signature.
    pub(super) is_authorized: bool,
}

impl Liveness {
    pub(super) fn new(now: u64) -> Self {
        Self { opened: now, active: now, is_pinged: false, is_authorized: false }
    }

    /// Notes a message or a pong.
    pub(super) fn note_input(&mut self, now: u64) {
        (self.active, self.is_pinged) = (now, false);
    }

    /// When to [check](Self::check) next.
    pub(super) fn deadline(&self, app: &PusherApp) -> u64 {
        // The server's ping waits beyond the time after which the client sends one itself.
        let pong_time = app.limits.pong_time;
        let silence = app.activity_timeout + pong_time;
        let silence = if self.is_pinged { silence + pong_time } else { silence };
        let active = self.active.saturating_add(nanoseconds(silence));
        match app.authorization_timeout.filter(|_| !self.is_authorized) {
            Some(timeout) => active.min(self.opened.saturating_add(nanoseconds(timeout))),
            None => active,
        }
    }

    /// Returns whether to send a ping, or why to close the connection.
    pub(super) fn check(&mut self, app: &PusherApp, now: u64) -> Result<bool, ConnectionRejection> {
        if now < self.deadline(app) {
            return Ok(false);
        }
        let authorization = app.authorization_timeout.filter(|_| !self.is_authorized);
        if authorization.is_some_and(|timeout| now >= self.opened.saturating_add(nanoseconds(timeout))) {
            return Err(ConnectionRejection::new(
                code::UNAUTHORIZED,
                "the connection has not been authorized in time",
            ));
        }
        if std::mem::replace(&mut self.is_pinged, true) {
            return Err(ConnectionRejection::new(
                code::NO_PONG,
                "the client has not answered a ping in time",
            ));
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn seconds(begin: u64, seconds: u64) -> u64 {
        begin + nanoseconds(Duration::from_secs(seconds))
    }

    #[test]
    fn pusher_2_4_silent_clients_are_pinged_and_then_closed_with_4201() {
        let (app, begin) = (PusherApp::new("1", "k", "s"), 7);
        let mut liveness = Liveness::new(begin);
        assert_eq!(liveness.check(&app, seconds(begin, 149)), Ok(false));
        assert_eq!(liveness.check(&app, seconds(begin, 150)), Ok(true));
        assert_eq!(liveness.deadline(&app), seconds(begin, 180));
        liveness.note_input(seconds(begin, 170));
        assert_eq!(liveness.deadline(&app), seconds(begin, 320), "any input is a sign of life");
        assert_eq!(liveness.check(&app, seconds(begin, 320)), Ok(true));
        assert_eq!(liveness.check(&app, seconds(begin, 349)), Ok(false));
        let rejection = liveness.check(&app, seconds(begin, 350)).unwrap_err();
        assert_eq!(rejection.code, 4201);
    }

    /// 4202 is for clients that were silent for a day and cannot ping.
    #[test]
    fn pusher_2_5_clients_that_never_ping_are_closed_with_4201_before_a_day() {
        let hour = 3_600;
        let slow = PusherApp::new("1", "k", "s").with_activity_timeout(Duration::from_secs(23 * hour));
        for app in [PusherApp::new("1", "k", "s"), slow] {
            let mut liveness = Liveness::new(0);
            let rejection = loop {
                let now = liveness.deadline(&app);
                if let Err(rejection) = liveness.check(&app, now) {
                    assert!(now < seconds(0, 24 * hour), "{now}");
                    break rejection;
                }
            };
            assert_eq!(rejection.code, 4201);
        }
    }

    #[test]
    fn pusher_5_11_authorization_has_a_time() {
        let begin = 7;
        let app = PusherApp::new("1", "k", "s").with_authorization_timeout(Some(Duration::from_secs(5)));
        let mut liveness = Liveness::new(begin);
        liveness.note_input(seconds(begin, 4));
        assert_eq!(liveness.deadline(&app), seconds(begin, 5));
        assert_eq!(liveness.check(&app, seconds(begin, 5)).unwrap_err().code, 4009);
        liveness.is_authorized = true;
        assert_eq!(liveness.deadline(&app), seconds(begin, 154));
    }
}
