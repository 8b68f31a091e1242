//! Counters of one thread.

use std::marker::PhantomData;

use sinews_engine::Counter;
use sinews_session::Traffic;

use super::reasons::{ConnectionEnd, Dropped, Http2Fault, MetricReason, ReasonCounts, WebSocketEnd};
use super::snapshot::Metrics;
use crate::metrics::limit::Limit;
use crate::topics::TopicCounters;

/// Counters of one shard: written by its thread alone, read by any.
#[derive(Debug, Default)]
pub(crate) struct ShardCounters {
    pub(crate) accepted: Counter,
    pub(crate) closed: ReasonCounters<ConnectionEnd>,
    pub(crate) handshakes: Counter,
    handshakes_rejected: Statuses,
    pub(crate) websockets_closed: ReasonCounters<WebSocketEnd>,
    pub(crate) streaming: Counter,
    pub(crate) streaming_closed: ReasonCounters<WebSocketEnd>,
    responses: [Counter; 5],
    messages_received: Counter,
    message_bytes_received: Counter,
    messages_sent: Counter,
    message_bytes_sent: Counter,
    dropped: ReasonCounters<Dropped>,
    /// Sum of the dropped messages, by which a change is found.
    dropped_total: Counter,
    pub(crate) publications: Counter,
    pub(crate) deliveries: Counter,
    pub(crate) tls_handshakes: Counter,
    pub(crate) tls_failures: Counter,
    pub(crate) http2_connections: Counter,
    pub(crate) http2_websockets: Counter,
    pub(crate) http2_failed: ReasonCounters<Http2Fault>,
    pub(crate) http2_reset: ReasonCounters<Http2Fault>,
    pub(crate) http3_connections: Counter,
    pub(crate) http3_websockets: Counter,
    pub(crate) http3_failed: Counter,
    pub(crate) http3_reset: Counter,
    pub(crate) http3_refused: Counter,
    pub(crate) http3_datagrams_forwarded: Counter,
    pub(crate) http3_datagrams_dropped: Counter,
    pub(crate) webtransport_sessions: Counter,
    pub(crate) webtransport_streams: Counter,
    pub(crate) webtransport_datagrams_sent: Counter,
    pub(crate) webtransport_datagrams_received: Counter,
    pub(crate) webtransport_datagrams_dropped: Counter,
    pub(crate) webtransport_oversized: Counter,
    queued_bytes: Counter,
    incomplete_bytes: Counter,
    /// Memory class of the heaviest connection, for comparison.
    pub(crate) heaviest: Counter,
    pub(crate) limited: ReasonCounters<Limit>,
}

impl ShardCounters {
    /// Counts a received message; a message in pieces counts with its last piece.
    #[inline]
    pub(crate) fn received(&self, bytes: usize) {
        self.messages_received.add(1);
        self.message_bytes_received.add(bytes as u64);
    }

    /// Counts a received piece that is not the last of its message.
    pub(crate) fn received_piece(&self, bytes: usize) {
        self.message_bytes_received.add(bytes as u64);
    }

    /// Takes the counts of the sessions and of the topics.
    #[inline]
    pub(crate) fn sent(&self, traffic: &Traffic, topics: &TopicCounters) {
        self.messages_sent.set(traffic.messages_sent);
        self.message_bytes_sent.set(traffic.bytes_sent);
        // All of them only rise.
        let dropped = traffic.dropped_newest
            + traffic.dropped_oldest
            + topics.dropped_newest
            + topics.dropped_oldest
            + topics.conflated
            + topics.expired
            + topics.lost;
        if dropped != self.dropped_total.get() {
            self.dropped_total.set(dropped);
            self.count_dropped(traffic, topics);
        }
    }

    #[cold]
    fn count_dropped(&self, traffic: &Traffic, topics: &TopicCounters) {
        self.dropped.set(Dropped::Newest, traffic.dropped_newest + topics.dropped_newest);
        self.dropped.set(Dropped::Oldest, traffic.dropped_oldest + topics.dropped_oldest);
        self.dropped.set(Dropped::Conflated, topics.conflated);
        self.dropped.set(Dropped::Expired, topics.expired);
        self.dropped.set(Dropped::Mailbox, topics.lost);
    }

    /// Replaces the memory counted for a connection.
    #[inline]
    pub(crate) fn replace_memory(&self, before: ConnMemory, after: ConnMemory) {
        if before != after {
            self.queued_bytes.add(u64::from(after.queued).wrapping_sub(u64::from(before.queued)));
            self.incomplete_bytes.add(u64::from(after.incomplete).wrapping_sub(u64::from(before.incomplete)));
        }
    }

    /// Returns the memory that all connections of the thread hold.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.queued_bytes.get() + self.incomplete_bytes.get()
    }

    /// Counts a response with this status.
    pub(crate) fn responded(&self, status: u16) {
        let class = usize::from(status / 100).checked_sub(1);
        if let Some(count) = class.and_then(|class| self.responses.get(class)) {
            count.add(1);
        }
    }

    /// Counts a handshake that is rejected with this status.
    pub(crate) fn handshake_rejected(&self, status: u16) {
        self.handshakes_rejected.add(status);
    }

    pub(crate) fn add_to(&self, metrics: &mut Metrics) {
        metrics.accepted += self.accepted.get();
        self.closed.add_to(&mut metrics.closed);
        metrics.handshakes += self.handshakes.get();
        self.handshakes_rejected.add_to(&mut metrics.handshakes_rejected);
        self.websockets_closed.add_to(&mut metrics.websockets_closed);
        metrics.streaming_responses += self.streaming.get();
        self.streaming_closed.add_to(&mut metrics.streaming_responses_closed);
        for (sum, count) in metrics.responses.iter_mut().zip(&self.responses) {
            *sum += count.get();
        }
        metrics.messages_received += self.messages_received.get();
        metrics.message_bytes_received += self.message_bytes_received.get();
        metrics.messages_sent += self.messages_sent.get();
        metrics.message_bytes_sent += self.message_bytes_sent.get();
        self.dropped.add_to(&mut metrics.dropped);
        metrics.publications += self.publications.get();
        metrics.deliveries += self.deliveries.get();
        metrics.tls_handshakes += self.tls_handshakes.get();
        metrics.tls_failures += self.tls_failures.get();
        metrics.http2_connections += self.http2_connections.get();
        metrics.http2_websockets += self.http2_websockets.get();
        self.http2_failed.add_to(&mut metrics.http2_failed);
        self.http2_reset.add_to(&mut metrics.http2_reset);
        metrics.http3_connections += self.http3_connections.get();
        metrics.http3_websockets += self.http3_websockets.get();
        metrics.http3_failed += self.http3_failed.get();
        metrics.http3_reset += self.http3_reset.get();
        metrics.http3_refused += self.http3_refused.get();
        metrics.http3_datagrams_forwarded += self.http3_datagrams_forwarded.get();
        metrics.http3_datagrams_dropped += self.http3_datagrams_dropped.get();
        metrics.webtransport_sessions += self.webtransport_sessions.get();
        metrics.webtransport_streams += self.webtransport_streams.get();
        metrics.webtransport_datagrams_sent += self.webtransport_datagrams_sent.get();
        metrics.webtransport_datagrams_received += self.webtransport_datagrams_received.get();
        metrics.webtransport_datagrams_dropped += self.webtransport_datagrams_dropped.get();
        metrics.webtransport_oversized += self.webtransport_oversized.get();
        metrics.queued_bytes += self.queued_bytes.get();
        metrics.incomplete_bytes += self.incomplete_bytes.get();
        self.limited.add_to(&mut metrics.limited);
    }
}

/// Memory that one connection holds, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnMemory {
    /// Outbound queue.
    queued: u32,
    /// Incomplete input.
    incomplete: u32,
}

/// Minimum outbound queue that is reported to a handler: more than a burst of usual messages, and less than the queue
/// of a connection that its policy for slow consumers considers slow.
const REPORTED_QUEUE_MIN: u32 = 16 << 10;

impl ConnMemory {
    /// Values saturate at 4 GiB.
    #[inline]
    pub(crate) fn new(queued: usize, incomplete: usize) -> Self {
        let narrow = |bytes| u32::try_from(bytes).unwrap_or(u32::MAX);
        Self { queued: narrow(queued), incomplete: narrow(incomplete) }
    }

    /// Adds bytes of incomplete input.
    pub(crate) fn with_incomplete(self, bytes: usize) -> Self {
        let more = u32::try_from(bytes).unwrap_or(u32::MAX);
        Self { incomplete: self.incomplete.saturating_add(more), ..self }
    }

    /// Replaces the bytes of incomplete input.
    pub(crate) fn replace_incomplete(self, bytes: usize) -> Self {
        Self { incomplete: Self::new(0, bytes).incomplete, ..self }
    }

    /// Returns the outbound queue in bytes if it is large and has changed since `before`, and 0 if it was large.
    #[inline]
    pub(crate) fn changed_queue(self, before: Self) -> Option<usize> {
        if self.queued == before.queued || self.queued.max(before.queued) < REPORTED_QUEUE_MIN {
            return None;
        }
        Some(if self.queued < REPORTED_QUEUE_MIN { 0 } else { self.queued as usize })
    }

    #[inline]
    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.queued) + u64::from(self.incomplete)
    }
}

/// Counters by reason.
#[derive(Debug)]
pub(crate) struct ReasonCounters<R> {
    counts: Box<[Counter]>,
    reason: PhantomData<R>,
}

impl<R: MetricReason> ReasonCounters<R> {
    pub(crate) fn add(&self, reason: R) {
        self.counts[reason.index()].add(1);
    }

    fn set(&self, reason: R, count: u64) {
        self.counts[reason.index()].set(count);
    }

    fn add_to(&self, tally: &mut ReasonCounts<R>) {
        for (reason, count) in R::ALL.iter().zip(&self.counts) {
            tally.add(*reason, count.get());
        }
    }
}

impl<R: MetricReason> Default for ReasonCounters<R> {
    fn default() -> Self {
        Self { counts: R::ALL.iter().map(|_| Counter::default()).collect(), reason: PhantomData }
    }
}

/// Counters by status that can end an exchange.
#[derive(Debug)]
struct Statuses(Box<[Counter]>);

const STATUS_MIN: u16 = 200;
const STATUS_MAX: u16 = 599;

impl Statuses {
    fn add(&self, status: u16) {
        let index = status.checked_sub(STATUS_MIN).map(usize::from);
        if let Some(count) = index.and_then(|index| self.0.get(index)) {
            count.add(1);
        }
    }

    /// Adds to sums, which are sorted by status.
    fn add_to(&self, sums: &mut Vec<(u16, u64)>) {
        let counts = (STATUS_MIN..).zip(self.0.iter().map(Counter::get));
        for (status, count) in counts.filter(|(_, count)| *count > 0) {
            match sums.binary_search_by_key(&status, |(status, _)| *status) {
                Ok(index) => sums[index].1 += count,
                Err(index) => sums.insert(index, (status, count)),
            }
        }
    }
}

impl Default for Statuses {
    fn default() -> Self {
        Self((STATUS_MIN..=STATUS_MAX).map(|_| Counter::default()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_reported_while_they_are_large_and_when_they_shrink() {
        let of = |queued| ConnMemory::new(queued, 9);
        assert_eq!(of(16_383).changed_queue(of(0)), None);
        assert_eq!(of(16_384).changed_queue(of(16_383)), Some(16_384));
        assert_eq!(of(16_384).changed_queue(of(16_384).replace_incomplete(1)), None);
        assert_eq!(of(16_383).changed_queue(of(16_384)), Some(0));
        assert_eq!(of(0).changed_queue(of(16_383)), None);
    }

    #[test]
    fn counts_of_threads_are_summed() {
        let threads = [ShardCounters::default(), ShardCounters::default()];
        for (counters, at) in threads.iter().zip(1..) {
            counters.accepted.add(at);
            counters.closed.add(ConnectionEnd::Reset);
            counters.received_piece(3);
            counters.received(7);
            for status in [101, 200, 204, 404, 599, 600, 0] {
                counters.responded(status);
                counters.handshake_rejected(status);
            }
            counters.replace_memory(ConnMemory::default(), ConnMemory::new(100, 5));
            counters.replace_memory(ConnMemory::new(100, 5), ConnMemory::new(40, 7));
        }
        threads[1].handshake_rejected(403);
        let mut metrics = Metrics::default();
        threads.iter().for_each(|counters| counters.add_to(&mut metrics));
        assert_eq!((metrics.accepted, metrics.closed.get(ConnectionEnd::Reset)), (3, 2));
        assert_eq!(metrics.connections(), 1);
        assert_eq!((metrics.messages_received, metrics.message_bytes_received), (2, 20));
        assert_eq!(metrics.responses, [2, 4, 0, 2, 2]);
        assert_eq!(metrics.handshakes_rejected, [(200, 2), (204, 2), (403, 1), (404, 2), (599, 2)]);
        assert_eq!((metrics.queued_bytes, metrics.incomplete_bytes), (80, 14));
        assert_eq!(threads[0].memory_bytes(), 47);
    }
}
