//! Metrics in the OpenMetrics text format, for Prometheus.

use std::fmt;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use sinews_engine::Stats;
use sinews_http::text::elements;

use super::Metrics;
use super::reasons::{MetricReason, ReasonCounts};
use crate::request::Request;

impl Metrics {
    /// The content type of [`to_text`](Self::to_text).
    pub const CONTENT_TYPE: &'static str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

    /// Returns the content type of an answer with metrics to a request: that of Prometheus' older text format, which
    /// can be read from the same text, if `Accept` names that format and not OpenMetrics.
    #[must_use]
    pub fn content_type(request: &Request<'_>) -> &'static str {
        let ranges = || request.head().header("accept").flat_map(elements);
        let names = |media: &[u8]| {
            ranges().any(|range| {
                let named = range.split(|byte| *byte == b';').next().unwrap_or_default();
                named.trim_ascii().eq_ignore_ascii_case(media)
            })
        };
        let is_older = names(b"text/plain") && !names(b"application/openmetrics-text");
        if is_older { "text/plain; version=0.0.4; charset=utf-8" } else { Self::CONTENT_TYPE }
    }

    /// Encodes the metrics in the text format of OpenMetrics 1.0, which Prometheus reads. Names begin with `sinews_`,
    /// names of process metrics with `process_`, as in every Prometheus client.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.clone()));
        let mut out = String::new();
        // Writing to a string never fails.
        let _ = text::encode(&mut out, &registry);
        out
    }
}

impl Collector for Metrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = MetricsEncoder(encoder);
        self.connections_to(&mut out)?;
        self.traffic_to(&mut out)?;
        self.loops_to(&mut out)?;
        self.process_to(&mut out)
    }
}

impl Metrics {
    fn http3_to(&self, out: &mut MetricsEncoder<'_>) -> fmt::Result {
        let help = "Connections that spoke HTTP/3";
        out.counter("sinews_http3_connections", help, None, self.http3_connections)?;
        let help = "WebSockets opened on streams of HTTP/3";
        out.counter("sinews_http3_websockets", help, None, self.http3_websockets)?;
        let help = "HTTP/3 connections ended by an error of the client, or for a limit";
        out.counter("sinews_http3_connections_failed", help, None, self.http3_failed)?;
        let help = "HTTP/3 streams reset for an error of the client";
        out.counter("sinews_http3_streams_reset", help, None, self.http3_reset)?;
        let help = "QUIC connections refused for a limit of connections or of handshakes";
        out.counter("sinews_http3_connections_refused", help, None, self.http3_refused)?;
        let help = "QUIC datagrams that were passed to the thread of their connection";
        out.counter("sinews_http3_datagrams_forwarded", help, None, self.http3_datagrams_forwarded)?;
        let help = "QUIC datagrams that were dropped, since the mailbox of that thread was full";
        out.counter("sinews_http3_datagrams_dropped", help, None, self.http3_datagrams_dropped)?;
        self.webtransport_to(out)
    }

    fn webtransport_to(&self, out: &mut MetricsEncoder<'_>) -> fmt::Result {
        let help = "Sessions of WebTransport";
        out.counter("sinews_webtransport_sessions", help, None, self.webtransport_sessions)?;
        let help = "Message streams that clients have opened in sessions of WebTransport";
        out.counter("sinews_webtransport_streams", help, None, self.webtransport_streams)?;
        let help = "Datagrams with messages to sessions of WebTransport";
        out.counter("sinews_webtransport_datagrams_sent", help, None, self.webtransport_datagrams_sent)?;
        let (help, received) =
            ("Datagrams of sessions of WebTransport", self.webtransport_datagrams_received);
        out.counter("sinews_webtransport_datagrams_received", help, None, received)?;
        let help = "Datagrams of sessions of WebTransport that were dropped, since reads were paused";
        let dropped = self.webtransport_datagrams_dropped;
        out.counter("sinews_webtransport_datagrams_dropped", help, None, dropped)?;
        let help = "Publications that were longer than a datagram, and were sent by a stream";
        out.counter("sinews_webtransport_datagrams_oversized", help, None, self.webtransport_oversized)
    }

    fn connections_to(&self, out: &mut MetricsEncoder<'_>) -> fmt::Result {
        out.gauge("sinews_connections", "Open connections", None, self.connections())?;
        out.counter("sinews_connections_accepted", "Connections accepted", None, self.accepted)?;
        out.tally("sinews_connections_closed", "Connections that have ended", &self.closed)?;
        out.gauge("sinews_websockets", "Open WebSockets", None, self.websockets())?;
        out.counter("sinews_tls_handshakes", "Completed TLS handshakes", None, self.tls_handshakes)?;
        let help = "Connections on which TLS failed";
        out.counter("sinews_tls_failures", help, None, self.tls_failures)?;
        let help = "Connections that spoke HTTP/2";
        out.counter("sinews_http2_connections", help, None, self.http2_connections)?;
        let help = "WebSockets opened on streams of HTTP/2";
        out.counter("sinews_http2_websockets", help, None, self.http2_websockets)?;
        let help = "HTTP/2 connections ended by an error of the client";
        out.tally("sinews_http2_connections_failed", help, &self.http2_failed)?;
        let help = "HTTP/2 streams reset for an error of the client";
        out.tally("sinews_http2_streams_reset", help, &self.http2_reset)?;
        self.http3_to(out)?;
        out.counter("sinews_handshakes", "Requests that became WebSockets", None, self.handshakes)?;
        let limited = self.limited.iter().map(|(limit, count)| (limit.name().to_owned(), count));
        let help = "Rejections and closes by exceeded limits of the server";
        out.family("sinews_limited", help, None, "limit", limited)?;
        let rejected = self.handshakes_rejected.iter().map(|(status, count)| (status.to_string(), *count));
        out.family("sinews_handshakes_refused", "Rejected handshakes", None, "status", rejected)?;
        out.tally("sinews_websockets_closed", "WebSockets that have ended", &self.websockets_closed)?;
        let help = "Open streaming responses, such as Server-Sent Events";
        out.gauge("sinews_streaming_responses", help, None, self.open_streaming_responses())?;
        let help = "Streaming responses that have begun";
        out.counter("sinews_streaming_responses_started", help, None, self.streaming_responses)?;
        let help = "Streaming responses that have ended";
        out.tally("sinews_streaming_responses_closed", help, &self.streaming_responses_closed)?;
        let classes = (1..).zip(self.responses).map(|(class, count)| (format!("{class}xx"), count));
        out.family("sinews_http_responses", "Answers to plain requests", None, "class", classes)
    }

    fn traffic_to(&self, out: &mut MetricsEncoder<'_>) -> fmt::Result {
        let bytes = Some(Unit::Bytes);
        out.counter("sinews_messages_received", "Data messages received", None, self.messages_received)?;
        let help = "Payload of data messages received";
        out.counter("sinews_messages_received", help, bytes.as_ref(), self.message_bytes_received)?;
        out.counter("sinews_messages_sent", "Data messages queued to be sent", None, self.messages_sent)?;
        let help = "Payload of data messages queued to be sent";
        out.counter("sinews_messages_sent", help, bytes.as_ref(), self.message_bytes_sent)?;
        out.tally("sinews_messages_dropped", "Messages that were not sent", &self.dropped)?;
        out.counter("sinews_publications", "Publications, on each thread", None, self.publications)?;
        out.counter("sinews_deliveries", "Publications handed to subscribers", None, self.deliveries)?;
        out.gauge("sinews_queued", "Outbound queues", bytes.as_ref(), self.queued_bytes)?;
        let help = "Incomplete messages and requests";
        out.gauge("sinews_incomplete", help, bytes.as_ref(), self.incomplete_bytes)?;
        if let Some(max) = self.max_memory_bytes {
            let help = "Limit of outbound queues and incomplete messages and requests together";
            out.gauge("sinews_memory_limit", help, bytes.as_ref(), max)?;
        }
        let help = "Approximate memory of all topic histories";
        out.gauge("sinews_history", help, bytes.as_ref(), self.history_bytes)?;
        let without = self.histories_evicted.saturating_sub(self.subscribed_histories_evicted);
        let evicted = [("no", without), ("yes", self.subscribed_histories_evicted)];
        let help = "Topic histories evicted by the memory limit, of topics with and without subscribers";
        let evicted = evicted.map(|(subscribers, count)| (subscribers.to_owned(), count));
        out.family("sinews_histories_evicted", help, None, "subscribers", evicted)?;
        self.keyed_to(out)?;
        let help = "Members of all topics; a member of two topics counts twice";
        out.gauge("sinews_presence_members", help, None, self.presence_members)?;
        let help = "Approximate memory of all members of topics";
        out.gauge("sinews_presence", help, bytes.as_ref(), self.presence_bytes)?;
        let received: u64 = self.loops.iter().map(|stats| stats.received_bytes).sum();
        out.counter("sinews_network_received", "Received through sockets", bytes.as_ref(), received)?;
        let sent: u64 = self.loops.iter().map(|stats| stats.sent_bytes).sum();
        out.counter("sinews_network_sent", "Sent through sockets", bytes.as_ref(), sent)
    }

    fn keyed_to(&self, out: &mut MetricsEncoder<'_>) -> fmt::Result {
        out.gauge("sinews_keyed_topics", "Topics with keys or subscribers of keys", None, self.keyed_topics)?;
        out.gauge("sinews_keys", "Keys with a value, of all topics", None, self.keys)?;
        let help = "Approximate memory of the keys of all topics";
        out.gauge("sinews_keyed", help, Some(&Unit::Bytes), self.keyed_bytes)?;
        let help = "Approximate memory of the snapshots of keys for subscribers";
        out.gauge("sinews_keyed_snapshot", help, Some(&Unit::Bytes), self.keyed_snapshot_bytes)?;
        out.counter("sinews_key_changes", "Writes that changed a key", None, self.key_changes)?;
        let help = "Times that a subscriber of keys fell behind its topic";
        out.counter("sinews_keyed_lags", help, None, self.keyed_lags)
    }

    fn loops_to(&self, out: &mut MetricsEncoder<'_>) -> fmt::Result {
        let seconds = Some(Unit::Seconds);
        let stalls: u64 = self.loops.iter().map(|stats| stats.accept_stalls).sum();
        let help = "Times that accepting paused for lack of descriptors or memory";
        out.counter("sinews_accept_stalls", help, None, stalls)?;
        let turns = self.by_thread(|stats| stats.turns);
        out.family("sinews_loop_turns", "Turns of the event loop", None, "thread", turns)?;
        let help = "Processor time of the loop's thread, including the kernel; its rate is the load of the loop, at most 1";
        let cpu = self.loops.iter().enumerate();
        let cpu = cpu.filter_map(|(thread, stats)| Some((thread.to_string(), stats.cpu?.as_secs_f64())));
        out.family("sinews_loop_cpu", help, seconds.as_ref(), "thread", cpu)?;
        let help = "Time of sampled turns, one in sixteen, and of the kernel work right after them";
        let busy = self.by_thread(|stats| stats.timed_busy.as_secs_f64());
        out.family("sinews_loop_timed_busy", help, seconds.as_ref(), "thread", busy)?;
        let help = "Time the loop slept after sampled turns; busy / (busy + waiting) is the utilization";
        let waiting = self.by_thread(|stats| stats.timed_waiting.as_secs_f64());
        out.family("sinews_loop_timed_waiting", help, seconds.as_ref(), "thread", waiting)?;
        self.turns_to(out)
    }

    /// Encodes the histogram of turns, over all threads.
    fn turns_to(&self, out: &mut MetricsEncoder<'_>) -> fmt::Result {
        let sum = self.loops.iter().map(|stats| stats.timed_took.as_secs_f64()).sum();
        let bounds = Stats::TURN_BOUNDS.iter().map(Duration::as_secs_f64).chain([f64::INFINITY]);
        let count = |bucket: usize| self.loops.iter().map(|stats| stats.timed_turns[bucket]).sum::<u64>();
        let buckets: Vec<(f64, u64)> =
            bounds.enumerate().map(|(bucket, bound)| (bound, count(bucket))).collect();
        let total = buckets.iter().map(|(_, count)| count).sum();
        let help = "Duration of sampled turns of an event loop, during which other connections wait";
        let unit = Unit::Seconds;
        let mut encoder =
            out.0.encode_descriptor("sinews_loop_turn", help, Some(&unit), MetricType::Histogram)?;
        encoder.encode_histogram::<NoLabelSet>(sum, total, &buckets, None)
    }

    fn by_thread<T>(&self, of: impl Fn(&Stats) -> T) -> impl Iterator<Item = (String, T)> {
        self.loops.iter().enumerate().map(move |(thread, stats)| (thread.to_string(), of(stats)))
    }

    fn process_to(&self, out: &mut MetricsEncoder<'_>) -> fmt::Result {
        let bytes = Unit::Bytes;
        if let Some(resident) = self.process.resident_bytes {
            out.gauge("process_resident_memory", "Resident memory", Some(&bytes), resident)?;
        }
        if let Some(cpu) = self.process.cpu {
            let (help, unit) = ("Time spent on a processor", Unit::Seconds);
            out.counter("process_cpu", help, Some(&unit), cpu.as_secs_f64())?;
        }
        if let Some(open) = self.process.open_descriptors {
            out.gauge("process_open_fds", "Open descriptors", None, open)?;
        }
        Ok(())
    }
}

/// Encoder of one metric after the other.
struct MetricsEncoder<'a>(DescriptorEncoder<'a>);

impl MetricsEncoder<'_> {
    fn counter<T>(&mut self, name: &str, help: &str, unit: Option<&Unit>, count: T) -> fmt::Result
    where
        ConstCounter<T>: EncodeMetric,
    {
        let encoder = self.0.encode_descriptor(name, help, unit, MetricType::Counter)?;
        ConstCounter::new(count).encode(encoder)
    }

    fn gauge(&mut self, name: &str, help: &str, unit: Option<&Unit>, value: u64) -> fmt::Result {
        let encoder = self.0.encode_descriptor(name, help, unit, MetricType::Gauge)?;
        ConstGauge::new(value).encode(encoder)
    }

    /// A counter for each value of one label.
    fn family<T>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        label: &str,
        counts: impl IntoIterator<Item = (String, T)>,
    ) -> fmt::Result
    where
        ConstCounter<T>: EncodeMetric,
    {
        let mut encoder = self.0.encode_descriptor(name, help, unit, MetricType::Counter)?;
        for (value, count) in counts {
            let labels = [(label, value)];
            ConstCounter::new(count).encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn tally<R: MetricReason>(&mut self, name: &str, help: &str, tally: &ReasonCounts<R>) -> fmt::Result {
        let counts = tally.iter().map(|(reason, count)| (reason.name().to_owned(), count));
        self.family(name, help, None, "reason", counts)
    }
}
