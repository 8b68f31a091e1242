//! An HTTP/1.1 client with keep-alive and pipelining.

use std::io::Write;

use sinews_proto::http::{HeadLimits, HeadScanner, HeaderSlots, ResponseHead};
use sinews_session::{Chain, Outbound, Resources};

use super::super::plan::ExpectedBody;
use super::super::tally::FailureKind;
use super::failure::ConnectionFailure;
use super::tracker::{MessageTracker, ThreadState};

#[derive(Debug)]
pub(super) struct HttpLoad {
    pub(super) out: Outbound,
    state: State,
    /// Incomplete head or chunk line.
    partial: Vec<u8>,
    scanner: HeadScanner,
    /// Received bytes in the current body.
    body_at: usize,
    /// Sent requests without a complete answer, and all sent requests.
    unanswered: u32,
    requests: u32,
    /// The connection closes after this answer.
    pub(super) last: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Body {
        left: u64,
    },
    /// The line with a chunk's length.
    ChunkLine,
    Chunk {
        left: u64,
    },
    /// The line end after a chunk.
    ChunkEnd,
    /// Trailer lines after the last chunk, up to an empty line.
    Trailer,
}

impl HttpLoad {
    pub(super) fn new() -> Self {
        Self {
            out: Outbound::default(),
            state: State::Head,
            partial: Vec::new(),
            scanner: HeadScanner::new(),
            body_at: 0,
            unanswered: 0,
            requests: 0,
            last: false,
        }
    }

    pub(super) fn send(
        &mut self,
        tracker: &mut MessageTracker,
        thread_state: &mut ThreadState,
        resources: &mut Resources,
    ) {
        let plan = thread_state.plan.clone();
        let last = plan.request.last.as_ref();
        while !self.last
            && last.is_none_or(|last| self.requests < last.number)
            && let Some(number) = tracker.take(thread_state)
        {
            self.requests = self.requests.saturating_add(1);
            self.unanswered += 1;
            let last = last.filter(|last| self.requests == last.number);
            let head = last.map_or(&plan.request.head, |last| &last.head);
            let mut len = head.len();
            self.out.pending_chain(resources).write(|out| {
                out.extend_from_slice(head);
                if plan.request.has_body {
                    let body = plan.corpus.message(number);
                    // Writing to memory does not fail.
                    let _ = write!(out, "{}\r\n\r\n", body.len());
                    out.extend_from_slice(body);
                    len += body.len();
                }
            });
            tracker.sent_bytes(thread_state, len);
        }
    }

    pub(super) fn receive(
        &mut self,
        mut chunk: &[u8],
        tracker: &mut MessageTracker,
        thread_state: &mut ThreadState,
    ) -> Result<(), ConnectionFailure> {
        while !chunk.is_empty() {
            let used = match self.state {
                State::Head => self.head(chunk, tracker, thread_state)?,
                State::Body { left } | State::Chunk { left } => {
                    self.body(chunk, left, tracker, thread_state)?
                }
                State::ChunkLine | State::ChunkEnd | State::Trailer => {
                    self.line(chunk, tracker, thread_state)?
                }
            };
            chunk = &chunk[used..];
        }
        Ok(())
    }

    /// Reads a head. Returns the consumed byte count.
    fn head(
        &mut self,
        chunk: &[u8],
        tracker: &mut MessageTracker,
        thread_state: &mut ThreadState,
    ) -> Result<usize, ConnectionFailure> {
        if tracker.expects().is_none() {
            return Err(ConnectionFailure::new(
                FailureKind::Protocol,
                "unexpected response without a request",
            ));
        }
        let before = self.partial.len();
        let input = if before == 0 {
            chunk
        } else {
            self.partial.extend_from_slice(chunk);
            &self.partial
        };
        let limits = HeadLimits::new();
        let wrong = |error: sinews_proto::http::HeadError| {
            ConnectionFailure::new(FailureKind::Protocol, &error.to_string())
        };
        let Some(len) = self.scanner.scan(input, &limits).map_err(wrong)? else {
            if before == 0 {
                self.partial.extend_from_slice(chunk);
            }
            return Ok(chunk.len());
        };
        let mut slots = HeaderSlots::new();
        let head = ResponseHead::parse(&input[..len], &limits, &mut slots).map_err(wrong)?;
        let status = head.status();
        let after = after_head(&head, thread_state.plan.request.is_head)?;
        self.last |= head.header("connection").any(|value| value.eq_ignore_ascii_case(b"close"));
        self.scanner = HeadScanner::new();
        self.partial = Vec::new();
        if (100..200).contains(&status) {
            return Ok(len - before);
        }
        if !(200..400).contains(&status) {
            thread_state.fail(FailureKind::Status, 1, || format!("unexpected status {status}"));
        }
        self.body_at = 0;
        match after {
            State::Body { left: 0 } => self.answered(tracker, thread_state)?,
            state => self.state = state,
        }
        Ok(len - before)
    }

    fn body(
        &mut self,
        chunk: &[u8],
        left: u64,
        tracker: &mut MessageTracker,
        thread_state: &mut ThreadState,
    ) -> Result<usize, ConnectionFailure> {
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(chunk.len());
        let plan = thread_state.plan.clone();
        let wanted = match &plan.request.expect {
            ExpectedBody::Any => None,
            ExpectedBody::Echo => Some(plan.corpus.message(tracker.expects().unwrap_or_default())),
            ExpectedBody::Exact(body) => Some(&body[..]),
        };
        if wanted.is_some_and(|wanted| wanted.get(self.body_at..self.body_at + len) != Some(&chunk[..len])) {
            return Err(ConnectionFailure::new(
                FailureKind::WrongBytes,
                "body differs from the expected body",
            ));
        }
        self.body_at += len;
        let left = left - len as u64;
        match &mut self.state {
            State::Body { .. } if left == 0 => self.answered(tracker, thread_state)?,
            State::Chunk { .. } if left == 0 => self.state = State::ChunkEnd,
            State::Body { left: to } | State::Chunk { left: to } => *to = left,
            _ => {}
        }
        Ok(len)
    }

    /// Reads the lines between chunks (RFC 9112 section 7.1).
    fn line(
        &mut self,
        chunk: &[u8],
        tracker: &mut MessageTracker,
        thread_state: &mut ThreadState,
    ) -> Result<usize, ConnectionFailure> {
        let Some(end) = memchr::memchr(b'\n', chunk) else {
            self.partial.extend_from_slice(chunk);
            if self.partial.len() > LINE_MAX {
                return Err(ConnectionFailure::new(FailureKind::Protocol, "chunk line is too long"));
            }
            return Ok(chunk.len());
        };
        let mut line = std::mem::take(&mut self.partial);
        line.extend_from_slice(&chunk[..end]);
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        self.state = match self.state {
            State::ChunkEnd if line.is_empty() => State::ChunkLine,
            State::ChunkEnd => {
                return Err(ConnectionFailure::new(
                    FailureKind::Protocol,
                    "chunk is longer than its declared length",
                ));
            }
            State::Trailer if line.is_empty() => {
                self.answered(tracker, thread_state)?;
                State::Head
            }
            State::Trailer => State::Trailer,
            _ => {
                let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
                let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.len() <= 15);
                match digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
                    Some(0) => State::Trailer,
                    Some(left) => State::Chunk { left },
                    None => {
                        return Err(ConnectionFailure::new(
                            FailureKind::Protocol,
                            "chunk has no valid length",
                        ));
                    }
                }
            }
        };
        Ok(end + 1)
    }

    fn answered(
        &mut self,
        tracker: &mut MessageTracker,
        thread_state: &mut ThreadState,
    ) -> Result<(), ConnectionFailure> {
        self.state = State::Head;
        let wanted = match &thread_state.plan.request.expect {
            ExpectedBody::Any => None,
            ExpectedBody::Echo => {
                tracker.expects().map(|number| thread_state.plan.corpus.message(number).len())
            }
            ExpectedBody::Exact(body) => Some(body.len()),
        };
        if wanted.is_some_and(|wanted| wanted != self.body_at) {
            return Err(ConnectionFailure::new(
                FailureKind::WrongBytes,
                "body is shorter than the expected body",
            ));
        }
        self.unanswered -= 1;
        let last = &thread_state.plan.request.last;
        self.last |= self.unanswered == 0 && last.as_ref().is_some_and(|last| self.requests == last.number);
        tracker.answered(thread_state, self.body_at);
        Ok(())
    }

    pub(super) fn start_send(&mut self) -> Option<Box<Chain>> {
        self.out.start()
    }
}

/// How the body is framed (RFC 9112 section 6.3).
fn after_head(head: &ResponseHead<'_>, is_head: bool) -> Result<State, ConnectionFailure> {
    let none = is_head || matches!(head.status(), 100..=199 | 204 | 304);
    if none {
        return Ok(State::Body { left: 0 });
    }
    if head.header("transfer-encoding").any(|value| value.to_ascii_lowercase().ends_with(b"chunked")) {
        return Ok(State::ChunkLine);
    }
    let length = head.header("content-length").next().and_then(|value| std::str::from_utf8(value).ok());
    match length.and_then(|length| length.trim().parse().ok()) {
        Some(left) => Ok(State::Body { left }),
        None => Err(ConnectionFailure::new(
            FailureKind::Protocol,
            "response has no length, which prevents keep-alive",
        )),
    }
}

const LINE_MAX: usize = 8 << 10;
