//! The protocol's counters.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::apps::live::LiveApps;

/// A rejection's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PusherRejection {
    /// A connection, with a close code.
    Connection,
    /// A subscription.
    Subscription,
    /// A client event.
    ClientEvent,
    /// A sign-in.
    SignIn,
    /// A malformed or unknown message.
    Message,
    /// A request to the HTTP API.
    Request,
}

impl PusherRejection {
    const ALL: [(Self, &'static str); 6] = [
        (Self::Connection, "connection"),
        (Self::Subscription, "subscription"),
        (Self::ClientEvent, "client_event"),
        (Self::SignIn, "sign_in"),
        (Self::Message, "message"),
        (Self::Request, "request"),
    ];
}

/// Counters of all apps of this node.
#[derive(Debug, Default)]
pub(crate) struct PusherCounters {
    /// Connections so far.
    pub(crate) connections: AtomicU64,
    pub(crate) open: AtomicU64,
    pub(crate) requests: AtomicU64,
    /// Recoveries whose missed events were not read in time.
    pub(crate) late_recoveries: AtomicU64,
    rejected: [AtomicU64; PusherRejection::ALL.len()],
}

impl PusherCounters {
    pub(crate) fn reject(&self, what: PusherRejection) {
        self.rejected[what as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// The protocol's metrics.
#[derive(Debug)]
pub(crate) struct PusherMetrics(pub(crate) Arc<LiveApps>);

impl Collector for PusherMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counters = &self.0.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let open = i64::try_from(read(&counters.open)).unwrap_or(i64::MAX);
        let help = "Open connections of the Pusher protocol";
        let gauge = encoder.encode_descriptor("sinews_pusher_connections", help, None, MetricType::Gauge)?;
        ConstGauge::new(open).encode(gauge)?;
        let help = "Requests to the HTTP API of the Pusher protocol";
        let counter = encoder.encode_descriptor("sinews_pusher_requests", help, None, MetricType::Counter)?;
        ConstCounter::new(read(&counters.requests)).encode(counter)?;
        let help = "Memory reserved for recoveries that read missed events of durable topics";
        let name = "sinews_pusher_recovery_bytes";
        let gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::try_from(self.0.recoveries.reserved()).unwrap_or(i64::MAX)).encode(gauge)?;
        let help = "Recoveries of durable topics whose missed events were not read in time";
        let name = "sinews_pusher_recovery_timeouts";
        let counter = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(read(&counters.late_recoveries)).encode(counter)?;
        let help = "Rejected connections, subscriptions, events and requests of the Pusher protocol";
        let mut family =
            encoder.encode_descriptor("sinews_pusher_rejections", help, None, MetricType::Counter)?;
        PusherRejection::ALL.iter().try_for_each(|(what, name)| {
            let count = read(&counters.rejected[*what as usize]);
            ConstCounter::new(count).encode(family.encode_family(&[("kind", *name)])?)
        })
    }
}
