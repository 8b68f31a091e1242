//! Checks the peer's mandatory reactions: failing the connection after a violation, answering pings and Close.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::violation::Violation;

/// Maximum tracked pings.
const PINGS_MAX: usize = 64;
/// A pong may answer the newest of several pings (RFC 6455 section 5.5.3); after this delay, it is unrelated to the
/// older pings.
const APART: Duration = Duration::from_millis(250);

/// Checks the peer's mandatory reactions.
#[derive(Default)]
pub(crate) struct ReactionChecker {
    /// The violation sent to the peer, which must end the connection.
    sent_violation: Option<SentViolation>,
    /// Unanswered pings, with their send times.
    pings: VecDeque<(Vec<u8>, Instant)>,
    /// The sent Close's code, if it was valid.
    closed: Option<Option<u16>>,
}

struct SentViolation {
    violation: Violation,
    /// Payload whose echo proves that the peer continues.
    payload: Option<Vec<u8>>,
    /// The violation was reported.
    reported: bool,
    /// Pings sent since then.
    pings: usize,
}

impl ReactionChecker {
    /// Records a sent violation that must end the connection.
    pub(crate) fn expect_failure(&mut self, violation: &Violation) {
        if !violation.codes.is_empty() && self.sent_violation.is_none() {
            self.sent_violation = Some(SentViolation {
                violation: violation.clone(),
                payload: None,
                reported: false,
                pings: 0,
            });
        }
    }

    /// Records a completely sent frame: the peer must not echo the invalid frame's payload.
    pub(crate) fn sent(&mut self, payload: &[u8]) {
        if let Some(sent_violation) = &mut self.sent_violation {
            sent_violation.payload.get_or_insert_with(|| payload.to_vec());
        }
    }

    pub(crate) fn has_sent_violation(&self) -> bool {
        self.sent_violation.is_some()
    }

    pub(crate) fn pinged(&mut self, payload: &[u8]) {
        if self.pings.len() == PINGS_MAX {
            self.pings.pop_front();
        }
        self.pings.push_back((payload.to_vec(), Instant::now()));
        if let Some(sent_violation) = &mut self.sent_violation {
            sent_violation.pings += 1;
        }
    }

    /// Records a sent Close; `sound` if it is valid.
    pub(crate) fn close_sent(&mut self, code: Option<u16>, sound: bool) {
        if sound && self.sent_violation.is_none() {
            self.closed = Some(code);
        }
    }

    /// Whether a valid Close was sent before the peer's.
    pub(crate) fn has_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Handles a pong: returns the time since its ping, and a violation.
    pub(crate) fn pong(&mut self, payload: &[u8]) -> (Option<Duration>, Option<Violation>) {
        let Some(at) = self.pings.iter().position(|(sent, _)| sent == payload) else { return (None, None) };
        let is_new = self
            .sent_violation
            .as_ref()
            .is_some_and(|sent_violation| at + sent_violation.pings >= self.pings.len());
        let (_, sent) = self.pings[at];
        let earlier = if self.sent_violation.is_none() { at } else { 0 };
        let lost =
            self.pings.iter().take(earlier).find(|(_, earlier)| sent.duration_since(*earlier) >= APART);
        let lost = lost.map(|(payload, _)| {
            let description = format!(
                "the ping {:?} was never answered: its frame was lost",
                String::from_utf8_lossy(payload)
            );
            Violation::new("RFC 6455 section 5.5.2", description)
        });
        self.pings.drain(..=at);
        if let Some(sent_violation) = &mut self.sent_violation {
            sent_violation.pings = sent_violation.pings.min(self.pings.len());
        }
        let check_failed = if is_new { self.check_failed() } else { self.check_echo(payload) };
        (Some(sent.elapsed()), lost.or(check_failed))
    }

    /// Handles a data frame with this payload.
    pub(crate) fn data(&mut self, payload: &[u8]) -> Option<Violation> {
        self.check_echo(payload)
    }

    fn check_echo(&mut self, payload: &[u8]) -> Option<Violation> {
        let sent = self.sent_violation.as_ref()?.payload.as_ref().filter(|sent| !sent.is_empty())?;
        let is_echo = payload.windows(sent.len()).any(|part| part == &sent[..]);
        if is_echo { self.check_failed() } else { None }
    }

    fn check_failed(&mut self) -> Option<Violation> {
        let sent_violation =
            self.sent_violation.as_mut().filter(|sent_violation| !sent_violation.reported)?;
        sent_violation.reported = true;
        let Violation { section, description, .. } = &sent_violation.violation;
        Some(Violation::new(section, format!("accepted, and the connection must be failed: {description}")))
    }

    /// Handles a Close with this payload.
    pub(crate) fn close(&self, payload: &[u8]) -> Option<Violation> {
        let code = payload.first_chunk().map(|code| u16::from_be_bytes(*code));
        if let Some(sent_violation) = &self.sent_violation {
            let wanted = sent_violation.violation.codes;
            if code.is_some_and(|code| wanted.contains(&code)) {
                return None;
            }
            let wanted: Vec<String> = wanted.iter().map(ToString::to_string).collect();
            let got = code.map_or_else(|| "no code".to_owned(), |code| code.to_string());
            let description = format!(
                "the Close has {got}, and not {}, after: {}",
                wanted.join(" or "),
                sent_violation.violation.description
            );
            return Some(Violation::new("RFC 6455 section 7.4.1", description));
        }
        match self.closed {
            Some(Some(sent)) if code != Some(sent) => {
                let got = code.map_or_else(|| "no code".to_owned(), |code| code.to_string());
                Some(Violation::new(
                    "RFC 6455 section 5.5.1",
                    format!("our Close with {sent} is answered with {got}"),
                ))
            }
            _ => None,
        }
    }

    /// Handles a transport that ends without a Close.
    pub(crate) fn dropped(&self) -> Option<Violation> {
        let sent_violation = self.sent_violation.as_ref()?;
        let codes: Vec<String> = sent_violation.violation.codes.iter().map(ToString::to_string).collect();
        let description = format!(
            "dropped without a Close with {}, after: {}",
            codes.join(" or "),
            sent_violation.violation.description
        );
        Some(Violation::new("RFC 6455 section 7.1.7", description))
    }

    /// Handles the expired timeout.
    pub(crate) fn expired(&self) -> Option<Violation> {
        let Violation { section, description, .. } =
            &self.sent_violation.as_ref().filter(|sent_violation| !sent_violation.reported)?.violation;
        Some(Violation::new(section, format!("the connection lives on, and must be failed: {description}")))
    }
}

#[cfg(test)]
mod tests {
    use super::super::violation::PROTOCOL;
    use super::*;

    fn sent_violation() -> ReactionChecker {
        let mut reactions = ReactionChecker::default();
        reactions.expect_failure(&Violation::fatal("RFC 6455 section 5.1", "not masked", PROTOCOL));
        reactions.sent(b"hi");
        reactions.sent(b"news");
        reactions
    }

    #[test]
    fn failing_with_the_right_code_is_valid() {
        assert_eq!(sent_violation().close(&[0x03, 0xea]), None);
        assert_eq!(sent_violation().close(&[0x03, 0xe8]).unwrap().section, "RFC 6455 section 7.4.1");
        assert_eq!(sent_violation().close(&[]).unwrap().section, "RFC 6455 section 7.4.1");
        assert_eq!(sent_violation().dropped().unwrap().section, "RFC 6455 section 7.1.7");
        assert_eq!(sent_violation().expired().unwrap().section, "RFC 6455 section 5.1");
        assert!(
            ReactionChecker::default().dropped().is_none() && ReactionChecker::default().expired().is_none()
        );
    }

    #[test]
    fn continuing_after_a_violation_is_reported_once() {
        let mut reactions = sent_violation();
        assert_eq!(reactions.data(b"news"), None, "the frame may have been in flight");
        assert_eq!(reactions.data(b"echo: hi").unwrap().section, "RFC 6455 section 5.1");
        assert_eq!(reactions.data(b"hi"), None);
        assert_eq!(reactions.expired(), None);
        let mut reactions = sent_violation();
        reactions.pinged(b"x");
        assert!(reactions.pong(b"x").1.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn lost_ping_is_named() {
        let mut reactions = ReactionChecker::default();
        reactions.pinged(b"1");
        reactions.pinged(b"2");
        assert_eq!(reactions.pong(b"2").1, None, "one pong may answer both");
        reactions.pinged(b"3");
        tokio::time::advance(APART).await;
        reactions.pinged(b"4");
        assert_eq!(reactions.pong(b"4").1.unwrap().section, "RFC 6455 section 5.5.2");
        assert_eq!(reactions.pong(b"4"), (None, None));
    }

    #[test]
    fn close_code_is_echoed() {
        let mut reactions = ReactionChecker::default();
        reactions.close_sent(Some(1012), true);
        assert_eq!(reactions.close(&[0x03, 0xf4]), None);
        assert_eq!(reactions.close(&[]).unwrap().section, "RFC 6455 section 5.5.1");
        let mut reactions = ReactionChecker::default();
        reactions.close_sent(Some(1005), false);
        assert_eq!(reactions.close(&[]), None);
    }
}
