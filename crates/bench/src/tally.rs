//! Counters: latencies, messages, bytes, errors by kind.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use sinews_engine::Counter;

/// Failure category.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FailureKind {
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

impl FailureKind {
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

/// The figures of one thread, or of all threads.
#[derive(Clone, Debug)]
pub(crate) struct LoadFigures {
    /// Nanoseconds from a message's due or send time to its answer.
    pub(crate) latency: Histogram<u64>,
    /// Nanoseconds from the connection request to the open connection.
    pub(crate) connect: Histogram<u64>,
    /// Nanoseconds by which the load generator sent messages late.
    pub(crate) late: Histogram<u64>,
    pub(crate) messages: u64,
    /// The last answer's time.
    pub(crate) last: Option<Instant>,
    pub(crate) published: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    pub(crate) errors: BTreeMap<FailureKind, u64>,
    /// Description of the first error of each kind.
    pub(crate) examples: BTreeMap<FailureKind, String>,
}

impl LoadFigures {
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

    pub(crate) fn fail(&mut self, failure: FailureKind, count: u64, example: impl FnOnce() -> String) {
        *self.errors.entry(failure).or_default() += count;
        self.examples.entry(failure).or_insert_with(example);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (to, from) in [
            (&mut self.latency, &other.latency),
            (&mut self.connect, &other.connect),
            (&mut self.late, &other.late),
        ] {
            to.add(from).expect("histograms have the same bounds");
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

/// Creates a histogram with three significant digits, up to an hour.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST, 3).expect("the bounds are in order")
}

pub(crate) fn record(histogram: &mut Histogram<u64>, time: Duration) {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    // Saturates at the longest value.
    histogram.saturating_record(nanos.max(1));
}

const LONGEST: u64 = 3_600_000_000_000;

/// A time interval.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunWindow {
    pub(crate) begin: Instant,
    /// The measurement's start.
    pub(crate) from: Instant,
    /// The measurement's end; `None` without a time limit.
    pub(crate) until: Option<Instant>,
}

/// A thread's live counters, written only by this thread, and its window.
#[derive(Debug, Default)]
pub(crate) struct LiveCounters {
    /// Open connections.
    pub(crate) open: Counter,
    /// Connections that have opened or finally failed.
    pub(crate) settled: Counter,
    /// Answers or deliveries so far.
    pub(crate) messages: Counter,
    /// Deliveries expected from publications so far.
    pub(crate) expected: Counter,
    pub(crate) errors: Counter,
    /// The window has ended: its messages are answered, and sending has stopped.
    pub(crate) done: AtomicBool,
    /// Set before any thread begins to send.
    pub(crate) window: OnceLock<RunWindow>,
}

impl LiveCounters {
    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }
}
