//! Whether a peer does what it must: fail the connection for what was wrong, answer pings and Close.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::fault::Fault;

/// Pings that are waited for.
const PINGS_MAX: usize = 64;
/// A pong may answer the newest of several pings (RFC 6455 section 5.5.3); one that came so much later was not meant.
const APART: Duration = Duration::from_millis(250);

/// Whether a peer does what it must.
#[derive(Default)]
pub(crate) struct Judge {
    /// What was wrong on our side, and is to end the connection.
    broken: Option<Broken>,
    /// Pings without an answer, and when they were sent.
    pings: VecDeque<(Vec<u8>, Instant)>,
    /// The code of our Close, if it was sound.
    closed: Option<Option<u16>>,
}

struct Broken {
    fault: Fault,
    /// What would prove that the peer goes on, if it came back.
    payload: Option<Vec<u8>>,
    /// Told once that it does.
    told: bool,
    /// Pings sent since.
    pings: usize,
}

impl Judge {
    /// We have sent what must end the connection.
    pub(crate) fn break_rule(&mut self, fault: &Fault) {
        if !fault.codes.is_empty() && self.broken.is_none() {
            self.broken = Some(Broken { fault: fault.clone(), payload: None, told: false, pings: 0 });
        }
    }

    /// The end of a frame of ours: the payload of the one at fault is what must not come back.
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

    /// We have sent a Close; `sound` if it breaks no rule.
    pub(crate) fn close_sent(&mut self, code: Option<u16>, sound: bool) {
        if sound && self.broken.is_none() {
            self.closed = Some(code);
        }
    }

    /// Whether our Close, a sound one, was the first.
    pub(crate) fn has_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// A pong has come: since its ping, and what is wrong.
    pub(crate) fn pong(&mut self, payload: &[u8]) -> (Option<Duration>, Option<Fault>) {
        let Some(at) = self.pings.iter().position(|(sent, _)| sent == payload) else { return (None, None) };
        let is_new = self.broken.as_ref().is_some_and(|broken| at + broken.pings >= self.pings.len());
        let (_, sent) = self.pings[at];
        let earlier = if self.broken.is_none() { at } else { 0 };
        let lost =
            self.pings.iter().take(earlier).find(|(_, earlier)| sent.duration_since(*earlier) >= APART);
        let lost = lost.map(|(payload, _)| {
            let words = format!(
                "the ping {:?} was never answered: its frame is lost",
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

    /// A data frame has come with this payload.
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

    /// A Close has come with this payload.
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
                "the Close has {got}, and not {}, behind this: {}",
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
                    format!("our Close with {sent} is answered with {got}: it was not understood"),
                ))
            }
            _ => None,
        }
    }

    /// The transport has ended without a Close.
    pub(crate) fn dropped(&self) -> Option<Fault> {
        let broken = self.broken.as_ref()?;
        let codes: Vec<String> = broken.fault.codes.iter().map(ToString::to_string).collect();
        let words = format!(
            "dropped without a Close with {}, behind this: {}",
            codes.join(" or "),
            broken.fault.words
        );
        Some(Fault::new("RFC 6455 section 7.1.7", words))
    }

    /// Nothing came in time.
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
    fn who_fails_the_connection_with_the_right_code_is_right() {
        assert_eq!(broken().close(&[0x03, 0xea]), None);
        assert_eq!(broken().close(&[0x03, 0xe8]).unwrap().section, "RFC 6455 section 7.4.1");
        assert_eq!(broken().close(&[]).unwrap().section, "RFC 6455 section 7.4.1");
        assert_eq!(broken().dropped().unwrap().section, "RFC 6455 section 7.1.7");
        assert_eq!(broken().silent().unwrap().section, "RFC 6455 section 5.1");
        assert!(Judge::default().dropped().is_none() && Judge::default().silent().is_none());
    }

    #[test]
    fn who_goes_on_is_told_once() {
        let mut judge = broken();
        assert_eq!(judge.data(b"news"), None, "it may have been on its way");
        assert_eq!(judge.data(b"echo: hi").unwrap().section, "RFC 6455 section 5.1");
        assert_eq!(judge.data(b"hi"), None);
        assert_eq!(judge.silent(), None);
        let mut judge = broken();
        judge.pinged(b"x");
        assert!(judge.pong(b"x").1.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_ping_that_is_lost_is_named() {
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
    fn a_close_is_echoed() {
        let mut judge = Judge::default();
        judge.close_sent(Some(1012), true);
        assert_eq!(judge.close(&[0x03, 0xf4]), None);
        assert_eq!(judge.close(&[]).unwrap().section, "RFC 6455 section 5.5.1");
        let mut judge = Judge::default();
        judge.close_sent(Some(1005), false);
        assert_eq!(judge.close(&[]), None);
    }
}
