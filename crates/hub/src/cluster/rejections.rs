//! Commands that the broker rejects. Each error belongs to one command: the connection, and the other subscriptions,
//! continue.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use sinews_server::Publisher;

use super::Cluster;
use super::interest::{ALL_NODES, THIS_NODE};
use crate::model::brief::brief;
use crate::topics::HubTopics;

/// Maximum rejected topics that clients are notified about at once, once a second. Further ones are in the metric only.
const REPORTED_MAX: usize = 1_024;

/// Rejected commands on one broker connection.
#[derive(Debug, Default)]
pub(super) struct Rejections {
    /// The last error since the answer to a ping.
    error: Option<String>,
    /// A subscription has begun since then.
    is_subscribed: bool,
    /// Topics with subscribers here that do not get other nodes' publications, and why.
    topics: BTreeMap<Arc<str>, Arc<str>>,
}

impl Rejections {
    /// The broker has confirmed a subscription.
    pub(super) fn note_subscribed(&mut self) {
        self.is_subscribed = true;
    }

    /// Notes an error.
    pub(super) fn note(&mut self, cluster: &Cluster, text: String, now: Instant) {
        cluster.outbox.counters.rejected.fetch_add(1, Ordering::Relaxed);
        if let Some(omitted) = cluster.log_limits.rejected.permit(now) {
            tracing::warn!(broker = %cluster.options, reason = text, omitted,
                "the broker of the cluster rejects a command");
        }
        if !cluster.outbox.kind().is_publication_error(&text) {
            self.error = Some(text);
        }
    }

    /// Ends a subscription command: the broker has answered the ping behind it.
    ///
    /// # Errors
    /// The node cannot be in the cluster without the subscription.
    pub(super) fn end_subscription(
        &mut self,
        id: u64,
        cluster: &Cluster,
        now: Instant,
    ) -> Result<(), String> {
        let (error, is_subscribed) = (self.error.take(), std::mem::take(&mut self.is_subscribed));
        let is_rejected = match cluster.outbox.kind().confirms_subscriptions() {
            true => !is_subscribed,
            false => error.is_some(),
        };
        if !is_rejected {
            return Ok(());
        }
        let error = error.unwrap_or_else(|| "the broker does not confirm it".to_owned());
        if matches!(id, ALL_NODES | THIS_NODE) {
            let subjects = &cluster.outbox.subjects;
            let subject = if id == ALL_NODES { subjects.all() } else { subjects.node(cluster.node) };
            return Err(format!(
                "the subscription to {subject}, which each node needs, is rejected: {error}"
            ));
        }
        let Some(rejected) = cluster.interest.reject(id) else { return Ok(()) };
        if let Some(omitted) = cluster.log_limits.rejected.permit(now) {
            let (topic, is_permanent) = (brief(&rejected.name), rejected.is_permanent);
            tracing::error!(
                topic,
                reason = error,
                retains_history = is_permanent,
                omitted,
                "the broker of the cluster rejects the subscription to a topic: publications of other nodes do not arrive"
            );
        }
        if self.topics.len() < REPORTED_MAX {
            let text = format!(
                "the broker of the cluster rejects the subscription, so publications of other nodes do not arrive: {error}"
            );
            self.topics.insert(rejected.name, text.into());
        }
        Ok(())
    }

    /// Notifies the subscribers of rejected topics.
    pub(super) fn report(&mut self, hub: &HubTopics, publisher: &Publisher) {
        if self.topics.is_empty() {
            return;
        }
        let topics = Arc::new(std::mem::take(&mut self.topics));
        for (topic, reason) in &*topics {
            hub.report_rejected(publisher, topic, reason);
        }
        hub.connections().report_rejected(&topics);
    }
}
