//! The numbers of a server at one moment.

use sinews_engine::Stats;

use super::process::ProcessMetrics;
use super::reasons::{ConnectionEnd, Dropped, Http2Fault, ReasonCounts, WebSocketEnd};
use crate::metrics::limit::Limit;

/// Metrics of a server, over all its threads. Totals count since bind.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Metrics {
    /// Connections accepted: of TCP, and of QUIC once their handshake is complete.
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
    /// Answers to plain requests, by the first digit of the status, from 1 to 5.
    pub responses: [u64; 5],
    /// Data messages received. A message that is delivered in fragments counts with its last fragment.
    pub messages_received: u64,
    /// Payload bytes of received messages, after decompression.
    pub message_bytes_received: u64,
    /// Data messages queued to be sent.
    pub messages_sent: u64,
    /// Payload bytes of sent messages, before compression.
    pub message_bytes_sent: u64,
    /// Messages that were not sent, by reason.
    pub dropped: ReasonCounts<Dropped>,
    /// Publications delivered to subscribers, counted on each thread that has subscribers.
    pub publications: u64,
    /// Messages of publications passed to a subscriber's queue, or to its overflow policy.
    pub deliveries: u64,
    /// Completed TLS handshakes.
    pub tls_handshakes: u64,
    /// Connections on which TLS failed, during the handshake or later: by an error of the client, or a certificate
    /// that it rejects.
    pub tls_failures: u64,
    /// Connections that spoke HTTP/2.
    pub http2_connections: u64,
    /// WebSockets opened on streams of HTTP/2. `handshakes` has them, too.
    pub http2_websockets: u64,
    /// HTTP/2 connections ended by an error of the client.
    pub http2_failed: ReasonCounts<Http2Fault>,
    /// HTTP/2 streams reset for an error of the client.
    pub http2_reset: ReasonCounts<Http2Fault>,
    /// Connections that spoke HTTP/3. `accepted` and `tls_handshakes` have them, too.
    pub http3_connections: u64,
    /// WebSockets opened on streams of HTTP/3. `handshakes` has them, too.
    pub http3_websockets: u64,
    /// HTTP/3 connections ended by an error of the client, or for a limit.
    pub http3_failed: u64,
    /// HTTP/3 streams reset for an error of the client.
    pub http3_reset: u64,
    /// QUIC connections refused before their handshake, for a limit of connections or of handshakes.
    pub http3_refused: u64,
    /// QUIC datagrams that arrived at a thread without their connection, and were passed to its thread.
    pub http3_datagrams_forwarded: u64,
    /// Such datagrams that were dropped, since the mailbox of the thread was full.
    pub http3_datagrams_dropped: u64,
    /// Sessions of WebTransport. `handshakes` has them, too.
    pub webtransport_sessions: u64,
    /// Message streams that clients have opened in sessions. `handshakes` has them, too.
    pub webtransport_streams: u64,
    /// Datagrams with messages to sessions. `messages_sent` has them, too.
    pub webtransport_datagrams_sent: u64,
    /// Datagrams with messages of sessions. `messages_received` has those that were not dropped, too.
    pub webtransport_datagrams_received: u64,
    /// Received datagrams that were dropped, since reads of their session were paused.
    pub webtransport_datagrams_dropped: u64,
    /// Publications that were longer than a datagram, and were sent by the stream of their session.
    pub webtransport_oversized: u64,
    /// Bytes in outbound queues of WebSockets and answers. A message counts once for each recipient, although it is
    /// in memory once.
    pub queued_bytes: u64,
    /// Bytes of buffers with incomplete messages and requests.
    pub incomplete_bytes: u64,
    /// Limit of `queued_bytes` and `incomplete_bytes` together; `None` without a limit
    /// ([`Limits::with_max_memory`](crate::Limits::with_max_memory)).
    pub max_memory_bytes: Option<u64>,
    /// Approximate bytes of all topic histories.
    pub history_bytes: u64,
    /// Topic histories evicted, since all histories together exceeded their limit
    /// ([`TopicConfig::with_max_history_bytes`](crate::TopicConfig::with_max_history_bytes)).
    pub histories_evicted: u64,
    /// Evicted histories of topics with subscribers.
    pub subscribed_histories_evicted: u64,
    /// Topics with keys, or with subscribers of keys ([`Context::write_key`](crate::Context::write_key)).
    pub keyed_topics: u64,
    /// Keys with a value, of all topics.
    pub keys: u64,
    /// Approximate bytes of the keys of all topics.
    pub keyed_bytes: u64,
    /// Approximate bytes of the snapshots of keys for subscribers
    /// ([`KeyedConfig::with_max_total_bytes`](crate::KeyedConfig::with_max_total_bytes)).
    pub keyed_snapshot_bytes: u64,
    /// Writes that changed a key.
    pub key_changes: u64,
    /// Times that a subscriber of keys fell behind its topic.
    pub keyed_lags: u64,
    /// Members of all topics ([`Context::join`](crate::Context::join)). A member of two topics counts twice.
    pub presence_members: u64,
    /// Approximate bytes of all members: ids, infos and their administration.
    pub presence_bytes: u64,
    /// Rejections and closes by an exceeded limit of the server ([`Limits`](crate::Limits)).
    pub limited: ReasonCounts<Limit>,
    /// Statistics of the event loops, one for each thread: turns, socket bytes, load.
    pub loops: Vec<Stats>,
    /// The process.
    pub process: ProcessMetrics,
}

impl Metrics {
    /// Returns the number of open TCP connections.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.accepted.saturating_sub(self.closed.total())
    }

    /// Returns the number of open streaming responses.
    #[must_use]
    pub fn open_streaming_responses(&self) -> u64 {
        self.streaming_responses.saturating_sub(self.streaming_responses_closed.total())
    }

    /// Returns the number of open WebSockets.
    #[must_use]
    pub fn websockets(&self) -> u64 {
        self.handshakes.saturating_sub(self.websockets_closed.total())
    }
}
