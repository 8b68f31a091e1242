//! A server's numbers at one moment.

use sinews_engine::Stats;

use super::process::ProcessMetrics;
use super::reasons::{ConnectionEnd, Dropped, Http2Fault, ReasonCounts, WebSocketEnd};
use crate::metrics::limit::Limit;

/// A server's metrics, over all its threads. Totals count since bind.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Metrics {
    /// Connections accepted: over TCP, and over QUIC once their handshake is complete.
    pub accepted: u64,
    /// Connections that have ended, by reason.
    pub closed: ReasonCounts<ConnectionEnd>,
    /// Requests that became WebSockets.
    pub handshakes: u64,
    /// Rejected handshakes by response status; statuses with a count only.
    pub handshakes_rejected: Vec<(u16, u64)>,
    /// WebSockets that have ended, by reason.
    pub websockets_closed: ReasonCounts<WebSocketEnd>,
    /// Streaming responses ([`StreamingResponse`](crate::StreamingResponse)) that have begun.
    pub streaming_responses: u64,
    /// Streaming responses that have ended, by reason.
    pub streaming_responses_closed: ReasonCounts<WebSocketEnd>,
    /// Answers to plain requests, by the status's first digit, from 1 to 5.
    pub responses: [u64; 5],
    /// Data messages received. A message that is delivered in fragments counts with its last fragment.
    pub messages_received: u64,
    /// Payload bytes in received messages, after decompression.
    pub message_bytes_received: u64,
    /// Data messages queued to be sent.
    pub messages_sent: u64,
    /// Payload bytes in sent messages, before compression.
    pub message_bytes_sent: u64,
    /// Messages that were not sent, by reason.
    pub dropped: ReasonCounts<Dropped>,
    /// Publications delivered to subscribers, counted on each thread that has subscribers.
    pub publications: u64,
    /// Published messages passed to a subscriber's queue, or to its overflow policy.
    pub deliveries: u64,
    /// Completed TLS handshakes.
    pub tls_handshakes: u64,
    /// Connections on which TLS failed, during the handshake or later: by a client error, or a certificate that the
    /// client rejects.
    pub tls_failures: u64,
    /// Connections that spoke HTTP/2.
    pub http2_connections: u64,
    /// WebSockets opened on HTTP/2 streams. `handshakes` has them, too.
    pub http2_websockets: u64,
    /// HTTP/2 connections ended by a client error.
    pub http2_failed: ReasonCounts<Http2Fault>,
    /// HTTP/2 streams reset for a client error.
    pub http2_reset: ReasonCounts<Http2Fault>,
    /// Connections that spoke HTTP/3. `accepted` and `tls_handshakes` have them, too.
    pub http3_connections: u64,
    /// WebSockets opened on HTTP/3 streams. `handshakes` has them, too.
    pub http3_websockets: u64,
    /// HTTP/3 connections ended by a client error, or for a limit.
    pub http3_failed: u64,
    /// HTTP/3 streams reset for a client error.
    pub http3_reset: u64,
    /// QUIC connections refused before their handshake, for a connection or handshake limit.
    pub http3_refused: u64,
    /// QUIC datagrams that arrived at a thread without their connection, and were passed to its thread.
    pub http3_datagrams_forwarded: u64,
    /// Such datagrams that were dropped, since the thread's mailbox was full.
    pub http3_datagrams_dropped: u64,
    /// WebTransport sessions. `handshakes` has them, too.
    pub webtransport_sessions: u64,
    /// Message streams that clients have opened in sessions. `handshakes` has them, too.
    pub webtransport_streams: u64,
    /// Datagrams with messages to sessions. `messages_sent` has them, too.
    pub webtransport_datagrams_sent: u64,
    /// Datagrams with session messages. `messages_received` has those that were not dropped, too.
    pub webtransport_datagrams_received: u64,
    /// Received datagrams that were dropped, since their session's reads were paused.
    pub webtransport_datagrams_dropped: u64,
    /// Publications that were longer than a datagram, and were sent by their session's stream.
    pub webtransport_oversized: u64,
    /// Bytes in outbound queues for WebSockets and answers. A message counts once for each recipient, although it is in
    /// memory once.
    pub queued_bytes: u64,
    /// Bytes in buffers with incomplete messages and requests.
    pub incomplete_bytes: u64,
    /// Limit for `queued_bytes` and `incomplete_bytes` together; `None` without a limit
    /// ([`Limits::with_max_memory`](crate::Limits::with_max_memory)).
    pub max_memory_bytes: Option<u64>,
    /// Approximate bytes in all topic histories.
    pub history_bytes: u64,
    /// Topic histories evicted, since all histories together exceeded their limit
    /// ([`TopicConfig::with_max_history_bytes`](crate::TopicConfig::with_max_history_bytes)).
    pub histories_evicted: u64,
    /// Evicted histories whose topics had subscribers.
    pub subscribed_histories_evicted: u64,
    /// Topics with keys, or with key subscribers ([`Context::write_key`](crate::Context::write_key)).
    pub keyed_topics: u64,
    /// Keys with a value, in all topics.
    pub keys: u64,
    /// Approximate bytes of all topics' keys.
    pub keyed_bytes: u64,
    /// Approximate bytes of the key snapshots for subscribers
    /// ([`KeyedConfig::with_max_total_bytes`](crate::KeyedConfig::with_max_total_bytes)).
    pub keyed_snapshot_bytes: u64,
    /// Writes that changed a key.
    pub key_changes: u64,
    /// Times that a key subscriber fell behind its topic.
    pub keyed_lags: u64,
    /// Members in all topics ([`Context::join`](crate::Context::join)). A member in two topics counts twice.
    pub presence_members: u64,
    /// Approximate bytes of all members: ids, infos and their administration.
    pub presence_bytes: u64,
    /// Rejections and closes by an exceeded server limit ([`Limits`](crate::Limits)).
    pub limited: ReasonCounts<Limit>,
    /// Event loop statistics, one for each thread: turns, socket bytes, load.
    pub loops: Vec<Stats>,
    /// The process.
    pub process: ProcessMetrics,
}

impl Metrics {
    /// Returns the open TCP connection count.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.accepted.saturating_sub(self.closed.total())
    }

    /// Returns the open streaming response count.
    #[must_use]
    pub fn open_streaming_responses(&self) -> u64 {
        self.streaming_responses.saturating_sub(self.streaming_responses_closed.total())
    }

    /// Returns the open WebSocket count.
    #[must_use]
    pub fn websockets(&self) -> u64 {
        self.handshakes.saturating_sub(self.websockets_closed.total())
    }
}
