//! Conditions for the end of a conversation, and its result.

use std::collections::VecDeque;
use std::time::Duration;

use sinews::CloseCode;
use tokio::time::Instant;

use super::super::end::{End, Kind};
use super::super::entry::Entry;
use super::{Talk, close};

/// Conditions for the end of a conversation.
pub(crate) struct Rules {
    /// The console user decides.
    pub(crate) in_console: bool,
    pub(crate) wait: Option<Duration>,
    pub(crate) count: Option<u64>,
    pub(crate) timeout: Option<Duration>,
    /// Answers of a recording, in order.
    pub(crate) expected: Option<VecDeque<Entry>>,
    /// In server mode: the first disconnect ends the conversation.
    pub(crate) once: bool,
    pub(crate) echo: bool,
    /// Server mode: clients connect and disconnect.
    pub(crate) listening: bool,
    /// Maximum time of closing.
    pub(crate) leaving: Duration,
}
/// Time without messages after the end of the input.
const WAIT: Duration = Duration::from_secs(1);
/// The same time with recorded answers.
pub(crate) const ANSWER_WAIT: Duration = Duration::from_secs(5);

impl Talk {
    /// The first reason counts, but a fault of the peer takes precedence.
    pub(super) fn decide(&mut self, end: End) {
        let is_better =
            self.end.as_ref().is_none_or(|known| known.kind == Kind::Fine && end.kind != Kind::Fine);
        if is_better {
            self.end = Some(end);
        }
    }

    /// Time of the next check without events.
    pub(super) fn due(&self) -> Option<Instant> {
        if let Some(leaving) = self.leaving {
            return Some(leaving + self.rules.leaving);
        }
        let timeout = self.rules.timeout.map(|timeout| self.started + timeout);
        let quiet = self.is_spoken().then(|| self.heard + self.quiet());
        [timeout, quiet].into_iter().flatten().min()
    }

    fn quiet(&self) -> Duration {
        let default = if self.rules.expected.is_some() { ANSWER_WAIT } else { WAIT };
        self.rules.wait.unwrap_or(default)
    }

    /// Whether all input has been sent.
    pub(super) fn is_spoken(&self) -> bool {
        self.input_ended && self.stuck.is_empty()
    }

    pub(super) fn handle_time(&mut self) -> Result<(), End> {
        let now = Instant::now();
        if self.leaving.is_some_and(|leaving| now >= leaving + self.rules.leaving) {
            self.peers.clear();
            return Ok(());
        }
        if let Some(timeout) = self.rules.timeout.filter(|timeout| now >= self.started + *timeout) {
            let words = format!("run exceeds {timeout:?} (--timeout)");
            return self.leave(CloseCode::NORMAL, Some(End::new(Kind::TimedOut, words)));
        }
        if self.is_spoken() && now >= self.heard + self.quiet() {
            return self.leave(CloseCode::NORMAL, self.missing());
        }
        Ok(())
    }

    /// Returns an error if expected messages are missing.
    pub(super) fn missing(&self) -> Option<End> {
        let received = *self.received.borrow();
        if let Some(expected) = self.rules.expected.as_ref().filter(|expected| !expected.is_empty()) {
            let all = received + expected.len() as u64;
            return Some(End::new(Kind::Differs, format!("received {received} of {all} recorded answers")));
        }
        let wanted = self.rules.count.filter(|wanted| received < *wanted)?;
        Some(End::new(Kind::TimedOut, format!("received {received} of {wanted} messages (--count)")))
    }

    pub(super) fn look_whether_done(&mut self) -> Result<(), End> {
        if self.leaving.is_some() {
            return Ok(());
        }
        let received = *self.received.borrow();
        let is_done = match (self.rules.count, &self.rules.expected, self.rules.wait) {
            _ if self.rules.in_console => self.input_ended,
            (Some(wanted), _, _) => received >= wanted,
            (None, Some(expected), _) => self.is_spoken() && expected.is_empty(),
            (None, None, Some(_)) => false,
            (None, None, None) => self.is_spoken() && received >= self.sent && !self.rules.listening,
        };
        let is_left = self.rules.listening
            && !self.rules.in_console
            && !self.rules.echo
            && self.is_spoken()
            && self.peers.is_empty();
        if is_done || is_left { self.leave(CloseCode::NORMAL, None) } else { Ok(()) }
    }

    /// Closes all connections; messages that still arrive are shown.
    pub(super) fn leave(&mut self, code: CloseCode, end: Option<End>) -> Result<(), End> {
        if let Some(end) = end {
            self.decide(end);
        }
        if self.leaving.is_some() {
            return Ok(());
        }
        self.leaving = Some(Instant::now());
        let all: Vec<u32> = self.peers.keys().copied().collect();
        all.into_iter().try_for_each(|id| self.send(id, close(code)))
    }
}
