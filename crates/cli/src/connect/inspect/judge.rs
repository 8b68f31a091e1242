//! Checks the peer's mandatory reactions: failing the connection after a violation, answering pings and Close.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::fault::Fault;

/// Maximum number of tracked pings.
const PINGS_MAX: usize = 64;
/// A pong may answer the newest of several pings (RFC 6455 section 5.5.3); after this delay, it is unrelated to the
/// older pings.
const APART: Duration = Duration::from_millis(250);

/// Checks the peer's mandatory reactions.
#[derive(Default)]
pub(crate) struct Judge {
    /// The violation sent to the peer, which must end the connection.
    broken: Option<Broken>,
    /// Unanswered pings, with their send times.
    pings: VecDeque<(Vec<u8>, Instant)>,
    /// Code of the sent Close, if it was valid.
    closed: Option<Option<u16>>,
}

struct Broken {
    fault: Fault,
    /// Payload whose echo proves that the peer continues.
    payload: Option<Vec<u8>>,
    /// The violation was reported.
    told: bool,
    /// Pings sent since then.
    pings: usize,
}

impl Judge {
    /// Records a sent violation that must end the connection.
    pub(crate) fn break_rule(&mut self, fault: &Fault) {
        if !fault.codes.is_empty() && self.broken.is_none() {
            self.broken = Some(Broken { fault: fault.clone(), payload: None, told: false, pings: 0 });
        }
    }

    /// Records a completely sent frame: the peer must not echo the payload of the invalid frame.
    pub(crate) fn sent(&mut self, payload: &[u8]) {
        if let Some(broken) = &mut self.broken {
            broken.payload.get_or_insert_with(|| payload.to_vec());
        }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    pub(crate) fn pinged(&mut self, payload: &[u8]) {
        if self.pings.len() == PINGS_MAX {
            self.pings.pop_front();
        }
        self.pings.push_back((payload.to_vec(), Instant::now()));
        if let Some(broken) = &mut self.broken {
            broken.pings += 1;
        }
    }

    /// Records a sent Close; `sound` if it is valid.
    pub(crate) fn close_sent(&mut self, code: Option<u16>, sound: bool) {
        if sound && self.broken.is_none() {
            self.closed = Some(code);
        }
    }

    /// Whether a valid Close was sent before the peer's.
    pub(crate) fn has_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Handles a pong: returns the time since its ping, and a violation.
    pub(crate) fn pong(&mut self, payload: &[u8]) -> (Option<Duration>, Option<Fault>) {
        let Some(at) = self.pings.iter().position(|(sent, _)| sent == payload) else { return (None, None) };
        let is_new = self.broken.as_ref().is_some_and(|broken| at + broken.pings >= self.pings.len());
        let (_, sent) = self.pings[at];
        let earlier = if self.broken.is_none() { at } else { 0 };
        let lost =
            self.pings.iter().take(earlier).find(|(_, earlier)| sent.duration_since(*earlier) >= APART);
        let lost = lost.map(|(payload, _)| {
            let words = format!(
                "the ping {:?} was never answered: its frame was lost",
                String::from_utf8_lossy(payload)
            );
            Fault::new("RFC 6455 section 5.5.2", words)
        });
        self.pings.drain(..=at);
        if let Some(broken) = &mut self.broken {
            broken.pings = broken.pings.min(self.pings.len());
        }
        let goes_on = if is_new { self.goes_on() } else { self.came_back(payload) };
        (Some(sent.elapsed()), lost.or(goes_on))
    }

    /// Handles a data frame with this payload.
    pub(crate) fn data(&mut self, payload: &[u8]) -> Option<Fault> {
        self.came_back(payload)
    }

    fn came_back(&mut self, payload: &[u8]) -> Option<Fault> {
        let sent = self.broken.as_ref()?.payload.as_ref().filter(|sent| !sent.is_empty())?;
        let is_it = payload.windows(sent.len()).any(|part| part == &sent[..]);
        if is_it { self.goes_on() } else { None }
    }

    fn goes_on(&mut self) -> Option<Fault> {
        let broken = self.broken.as_mut().filter(|broken| !broken.told)?;
        broken.told = true;
        let Fault { section, words, .. } = &broken.fault;
        Some(Fault::new(section, format!("accepted, and the connection must be failed: {words}")))
    }

    /// Handles a Close with this payload.
    pub(crate) fn close(&self, payload: &[u8]) -> Option<Fault> {
        let code = payload.first_chunk().map(|code| u16::from_be_bytes(*code));
        if let Some(broken) = &self.broken {
            let wanted = broken.fault.codes;
            if code.is_some_and(|code| wanted.contains(&code)) {
                return None;
            }
            let wanted: Vec<String> = wanted.iter().map(ToString::to_string).collect();
            let got = code.map_or_else(|| "no code".to_owned(), |code| code.to_string());
            let words = format!(
                "the Close has {got}, and not {}, after: {}",
                wanted.join(" or "),
                broken.fault.words
            );
            return Some(Fault::new("RFC 6455 section 7.4.1", words));
        }
        match self.closed {
            Some(Some(sent)) if code != Some(sent) => {
                let got = code.map_or_else(|| "no code".to_owned(), |code| code.to_string());
                Some(Fault::new(
                    "RFC 6455 section 5.5.1",
                    format!("our Close with {sent} is answered with {got}"),
                ))
            }
            _ => None,
        }
    }

    /// Handles the end of the transport without a Close.
    pub(crate) fn dropped(&self) -> Option<Fault> {
        let broken = self.broken.as_ref()?;
        let codes: Vec<String> = broken.fault.codes.iter().map(ToString::to_string).collect();
        let words =
            format!("dropped without a Close with {}, after: {}", codes.join(" or "), broken.fault.words);
        Some(Fault::new("RFC 6455 section 7.1.7", words))
    }

    /// Handles the expired timeout.
    pub(crate) fn silent(&self) -> Option<Fault> {
        let Fault { section, words, .. } = &self.broken.as_ref().filter(|broken| !broken.told)?.fault;
        Some(Fault::new(section, format!("the connection lives on, and must be failed: {words}")))
    }
}

#[cfg(test)]
mod tests {
    use super::super::fault::PROTOCOL;
    use super::*;

    fn broken() -> Judge {
        let mut judge = Judge::default();
        judge.break_rule(&Fault::fatal("RFC 6455 section 5.1", "not masked", PROTOCOL));
        judge.sent(b"hi");
        judge.sent(b"news");
        judge
    }

    #[test]
    fn failing_with_the_right_code_is_valid() {
        assert_eq!(broken().close(&[0x03, 0xea]), None);
        assert_eq!(broken().close(&[0x03, 0xe8]).unwrap().section, "RFC 6455 section 7.4.1");
        assert_eq!(broken().close(&[]).unwrap().section, "RFC 6455 section 7.4.1");
        assert_eq!(broken().dropped().unwrap().section, "RFC 6455 section 7.1.7");
        assert_eq!(broken().silent().unwrap().section, "RFC 6455 section 5.1");
        assert!(Judge::default().dropped().is_none() && Judge::default().silent().is_none());
    }

    #[test]
    fn continuing_after_a_violation_is_reported_once() {
        let mut judge = broken();
        assert_eq!(judge.data(b"news"), None, "the frame may have been in flight");
        assert_eq!(judge.data(b"echo: hi").unwrap().section, "RFC 6455 section 5.1");
        assert_eq!(judge.data(b"hi"), None);
        assert_eq!(judge.silent(), None);
        let mut judge = broken();
        judge.pinged(b"x");
        assert!(judge.pong(b"x").1.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn lost_ping_is_named() {
        let mut judge = Judge::default();
        judge.pinged(b"1");
        judge.pinged(b"2");
        assert_eq!(judge.pong(b"2").1, None, "one pong may answer both");
        judge.pinged(b"3");
        tokio::time::advance(APART).await;
        judge.pinged(b"4");
        assert_eq!(judge.pong(b"4").1.unwrap().section, "RFC 6455 section 5.5.2");
        assert_eq!(judge.pong(b"4"), (None, None));
    }

    #[test]
    fn close_code_is_echoed() {
        let mut judge = Judge::default();
        judge.close_sent(Some(1012), true);
        assert_eq!(judge.close(&[0x03, 0xf4]), None);
        assert_eq!(judge.close(&[]).unwrap().section, "RFC 6455 section 5.5.1");
        let mut judge = Judge::default();
        judge.close_sent(Some(1005), false);
        assert_eq!(judge.close(&[]), None);
    }
}
