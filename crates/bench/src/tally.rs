//! What is counted: latencies, messages, bytes, errors by kind.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use sinews_engine::Counter;

/// Why something failed, as a person would count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Failure {
    Refused,
    ConnectTimeout,
    Unreachable,
    Handshake,
    Tls,
    Status,
    WrongBytes,
    Protocol,
    Closed,
    Reset,
    NoAnswer,
    NotDelivered,
    Io,
}

impl Failure {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Refused => "connection_refused",
            Self::ConnectTimeout => "connect_timeout",
            Self::Unreachable => "cannot_connect",
            Self::Handshake => "handshake_refused",
            Self::Tls => "tls",
            Self::Status => "http_status",
            Self::WrongBytes => "wrong_bytes",
            Self::Protocol => "protocol_violation",
            Self::Closed => "closed_by_server",
            Self::Reset => "reset_by_server",
            Self::NoAnswer => "no_answer",
            Self::NotDelivered => "not_delivered",
            Self::Io => "io",
        }
    }
}

/// The figures of one thread, or of all.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    /// Nanoseconds from when a message was due, or sent, to its answer.
    pub(crate) latency: Histogram<u64>,
    /// Nanoseconds from asking for a connection until it is open.
    pub(crate) connect: Histogram<u64>,
    /// Nanoseconds by which messages left later than they were due, by our own doing.
    pub(crate) late: Histogram<u64>,
    pub(crate) messages: u64,
    /// When the last of them was answered.
    pub(crate) last: Option<Instant>,
    pub(crate) published: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    pub(crate) errors: BTreeMap<Failure, u64>,
    /// The first error of each kind, in words.
    pub(crate) examples: BTreeMap<Failure, String>,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            latency: histogram(),
            connect: histogram(),
            late: histogram(),
            messages: 0,
            last: None,
            published: 0,
            bytes_sent: 0,
            bytes_received: 0,
            errors: BTreeMap::new(),
            examples: BTreeMap::new(),
        }
    }

    pub(crate) fn fail(&mut self, failure: Failure, count: u64, example: impl FnOnce() -> String) {
        *self.errors.entry(failure).or_default() += count;
        self.examples.entry(failure).or_insert_with(example);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (to, from) in [
            (&mut self.latency, &other.latency),
            (&mut self.connect, &other.connect),
            (&mut self.late, &other.late),
        ] {
            to.add(from).expect("all have the same bounds");
        }
        self.messages += other.messages;
        self.last = self.last.max(other.last);
        self.published += other.published;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        for (failure, count) in &other.errors {
            *self.errors.entry(*failure).or_default() += count;
        }
        for (failure, example) in &other.examples {
            self.examples.entry(*failure).or_insert_with(|| example.clone());
        }
    }

    pub(crate) fn failures(&self) -> u64 {
        self.errors.values().sum()
    }
}

/// Three digits, up to an hour: what a person can wait.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST, 3).expect("the bounds are in order")
}

pub(crate) fn record(histogram: &mut Histogram<u64>, time: Duration) {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    // Saturates at the longest.
    histogram.saturating_record(nanos.max(1));
}

const LONGEST: u64 = 3_600_000_000_000;

/// What a thread tells while it runs. It alone writes.
#[derive(Debug, Default)]
pub(crate) struct Live {
    /// Connections that are open now.
    pub(crate) open: Counter,
    /// Connections that have opened, or failed to for good.
    pub(crate) settled: Counter,
    /// Answers or deliveries so far.
    pub(crate) messages: Counter,
    /// Deliveries that publications so far must come to.
    pub(crate) expected: Counter,
    pub(crate) errors: Counter,
    /// Everything that was sent is answered, and nothing more is sent.
    pub(crate) done: AtomicU64,
}

impl Live {
    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire) != 0
    }
}
