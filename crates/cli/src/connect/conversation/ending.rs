//! Conditions that end a conversation, and its result.

use std::collections::VecDeque;
use std::time::Duration;

use sinews::CloseCode;
use tokio::time::Instant;

use super::super::end::{EndKind, RunEnd};
use super::super::entry::RecordEntry;
use super::{Conversation, close};

/// Conditions that end a conversation.
pub(crate) struct EndRules {
    /// The console user decides.
    pub(crate) in_console: bool,
    pub(crate) wait: Option<Duration>,
    pub(crate) count: Option<u64>,
    pub(crate) timeout: Option<Duration>,
    /// Answers from a recording, in order.
    pub(crate) expected: Option<VecDeque<RecordEntry>>,
    /// In server mode: the first disconnect ends the conversation.
    pub(crate) once: bool,
    pub(crate) echo: bool,
    /// Server mode: clients connect and disconnect.
    pub(crate) listening: bool,
    /// Maximum time for closing.
    pub(crate) close_timeout: Duration,
}
/// Time without messages after the input has ended.
const WAIT: Duration = Duration::from_secs(1);
/// The same time with recorded answers.
pub(crate) const ANSWER_WAIT: Duration = Duration::from_secs(5);

impl Conversation {
    /// The first reason counts, but a peer fault takes precedence.
    pub(super) fn decide(&mut self, end: RunEnd) {
        let is_better = self
            .end
            .as_ref()
            .is_none_or(|known| known.kind == EndKind::Success && end.kind != EndKind::Success);
        if is_better {
            self.end = Some(end);
        }
    }

    /// Returns when the next check without events is due.
    pub(super) fn due(&self) -> Option<Instant> {
        if let Some(closing_since) = self.closing_since {
            return Some(closing_since + self.rules.close_timeout);
        }
        let timeout = self.rules.timeout.map(|timeout| self.started + timeout);
        let quiet_time = self.has_sent_input().then(|| self.last_event + self.quiet_time());
        [timeout, quiet_time].into_iter().flatten().min()
    }

    fn quiet_time(&self) -> Duration {
        let default = if self.rules.expected.is_some() { ANSWER_WAIT } else { WAIT };
        self.rules.wait.unwrap_or(default)
    }

    /// Whether all input has been sent.
    fn has_sent_input(&self) -> bool {
        self.input_ended && self.unsent.is_empty()
    }

    pub(super) fn handle_time(&mut self) -> Result<(), RunEnd> {
        let now = Instant::now();
        if self.closing_since.is_some_and(|closing_since| now >= closing_since + self.rules.close_timeout) {
            self.peers.clear();
            return Ok(());
        }
        if let Some(timeout) = self.rules.timeout.filter(|timeout| now >= self.started + *timeout) {
            let message = format!("run exceeds {timeout:?} (--timeout)");
            return self.start_closing(CloseCode::NORMAL, Some(RunEnd::new(EndKind::TimedOut, message)));
        }
        if self.has_sent_input() && now >= self.last_event + self.quiet_time() {
            return self.start_closing(CloseCode::NORMAL, self.missing());
        }
        Ok(())
    }

    /// Returns an error if expected messages are missing.
    pub(super) fn missing(&self) -> Option<RunEnd> {
        let received = *self.received.borrow();
        if let Some(expected) = self.rules.expected.as_ref().filter(|expected| !expected.is_empty()) {
            let all = received + expected.len() as u64;
            return Some(RunEnd::new(
                EndKind::Mismatch,
                format!("received {received} of {all} recorded answers"),
            ));
        }
        let wanted = self.rules.count.filter(|wanted| received < *wanted)?;
        Some(RunEnd::new(EndKind::TimedOut, format!("received {received} of {wanted} messages (--count)")))
    }

    pub(super) fn check_done(&mut self) -> Result<(), RunEnd> {
        if self.closing_since.is_some() {
            return Ok(());
        }
        let received = *self.received.borrow();
        let is_done = match (self.rules.count, &self.rules.expected, self.rules.wait) {
            _ if self.rules.in_console => self.input_ended,
            (Some(wanted), _, _) => received >= wanted,
            (None, Some(expected), _) => self.has_sent_input() && expected.is_empty(),
            (None, None, Some(_)) => false,
            (None, None, None) => self.has_sent_input() && received >= self.sent && !self.rules.listening,
        };
        let clients_left = self.rules.listening
            && !self.rules.in_console
            && !self.rules.echo
            && self.has_sent_input()
            && self.peers.is_empty();
        if is_done || clients_left { self.start_closing(CloseCode::NORMAL, None) } else { Ok(()) }
    }

    /// Closes all connections; messages that still arrive are shown.
    pub(super) fn start_closing(&mut self, code: CloseCode, end: Option<RunEnd>) -> Result<(), RunEnd> {
        if let Some(end) = end {
            self.decide(end);
        }
        if self.closing_since.is_some() {
            return Ok(());
        }
        self.closing_since = Some(Instant::now());
        let all: Vec<u32> = self.peers.keys().copied().collect();
        all.into_iter().try_for_each(|id| self.send(id, close(code)))
    }
}
