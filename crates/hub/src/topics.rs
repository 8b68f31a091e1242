//! The hub's topics: publications, subscriptions, histories. Client protocols receive a topic's publications in their
//! [encodings](encodings).

pub(crate) mod encodings;
pub(crate) mod handover_role;
pub(crate) mod key_faults;
pub(crate) mod keys;
mod last_events;
pub(crate) mod list;
#[cfg(all(test, feature = "pusher"))]
mod model_tests;
mod node_publications;
mod publish;
mod publisher;
pub(crate) mod recent;
pub(crate) mod shared_keys;
pub(crate) mod stored;
mod stored_target;
pub(crate) mod subscribed;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use serde_json::{Map, Value};
use sinews_server::{Context, InvalidTopic, ReplayFrom, SubscriptionObserver, Topics};

use self::encodings::Encodings;
use self::handover_role::HandoverRole;
use self::last_events::TopicLocks;
use self::node_publications::NodePublications;
pub(crate) use self::publisher::TopicPublisher;
use self::recent::RecentPublications;
use self::shared_keys::SharedKeys;
use self::stored::StoredTopics;
use self::subscribed::{PublicNames, SubscribedTopics, TopicObserver};
use crate::access::namespaces::Namespace;
use crate::access::namespaces::order::PatternSet;
use crate::access::topic_description::describe_storage;
use crate::activity::ActivityMonitor;
use crate::connections::ConnectionRegistry;
use crate::model::encoding::EncodedTopics;
use crate::model::events::EventSink;
use crate::model::nodes::OtherNodes;
use crate::model::opening::SharedOpening;
use crate::model::{is_pattern, is_reserved};

/// State that publishers and subscribers share.
#[derive(Debug, Default)]
pub(crate) struct HubTopics {
    /// All client protocols' encodings.
    encodings: Arc<Encodings>,
    /// Open dashboards.
    dashboards: AtomicUsize,
    /// Publications of each topic since the last request; counted while a dashboard is open.
    rates: Mutex<HashMap<String, u64>>,
    /// The topics that have a history.
    histories: PatternSet,
    /// The topics that are stored in streams.
    durable: PatternSet,
    /// The namespaces at the start, with all histories and durable topics.
    namespaces: Vec<Namespace>,
    /// Topics whose messages have a time, or have none; the others have it if they have a history.
    timestamps: PatternSet,
    /// Orders the publications to topics with a history in all encodings with positions.
    histories_order: TopicLocks,
    /// Orders the publications and the new subscriptions of topics that retain their last event.
    last_events_order: TopicLocks,
    connections: Arc<ConnectionRegistry>,
    /// Topics with subscribers, without a cluster.
    subscribed: Arc<SubscribedTopics>,
    /// The other nodes, if there is a cluster.
    other_nodes: OnceLock<Arc<dyn OtherNodes>>,
    /// The keys that all nodes share, or that a topic store has.
    shared_keys: OnceLock<Arc<dyn SharedKeys>>,
    /// The topics whose histories and keys a store has.
    stored: OnceLock<Arc<StoredTopics>>,
    /// Observes actions of clients.
    activity: Arc<ActivityMonitor>,
    /// The event sink.
    events: OnceLock<Arc<dyn EventSink>>,
    /// Write-locked during a role change, so that no publication happens in between.
    role: RwLock<HandoverRole>,
    /// Other nodes' publications during a handover.
    node_publications: NodePublications,
    /// Publications with an idempotency key.
    recent: Arc<RecentPublications>,
}

/// Topics that are counted between two reports; further topics are not counted.
const RATES_MAX: usize = 1_024;

/// Parts of a pattern that is never rejected for its matching steps; the encoding is one more part.
const FREE_PARTS: usize = Topics::FREE_PARTS - 1;

/// Why a subscription was rejected, short enough for a Close reason.
pub(crate) fn subscription_fault(error: InvalidTopic) -> String {
    match error {
        InvalidTopic::TooAmbiguous => format!(
            "too many matching steps a message (limit {}): use a pattern of at most {FREE_PARTS} parts",
            Topics::MATCH_STEPS_MAX
        ),
        _ => error.to_string(),
    }
}

impl HubTopics {
    /// Creates a hub with the topics that have a history.
    pub(crate) fn new(histories: PatternSet) -> Self {
        Self { histories, ..Self::default() }
    }

    /// Sets the topics that are stored in streams.
    pub(crate) fn with_durable(self, durable: PatternSet) -> Self {
        Self { durable, ..self }
    }

    /// Sets the topics whose messages have a time, or have none although they have a history.
    pub(crate) fn with_timestamps(self, timestamps: PatternSet) -> Self {
        Self { timestamps, ..self }
    }

    /// Sets all client protocols' encodings.
    pub(crate) fn with_encodings(self, encodings: Encodings) -> Self {
        Self { encodings: encodings.into(), ..self }
    }

    /// Sets the namespaces at the start, with all histories and durable topics.
    pub(crate) fn with_namespaces(self, namespaces: Vec<Namespace>) -> Self {
        Self { namespaces, ..self }
    }

    /// What is retained and stored of a topic, for the HTTP API.
    pub(crate) fn describe_topic(&self, topic: &str) -> Map<String, Value> {
        describe_storage(&self.namespaces, topic)
    }

    /// Sets the monitor of clients' actions.
    pub(crate) fn with_activity(self, activity: &Arc<ActivityMonitor>) -> Self {
        Self { activity: Arc::clone(activity), ..self }
    }

    /// Observes actions of clients.
    pub(crate) fn activity(&self) -> &Arc<ActivityMonitor> {
        &self.activity
    }

    /// All client protocols' encodings.
    pub(crate) fn encodings(&self) -> &Arc<Encodings> {
        &self.encodings
    }

    /// Whether a publisher has sealed an event that a topic's stream has stored.
    pub(crate) fn has_sealed(&self, topic: &str, event: &[u8], seal: &str) -> bool {
        self.encodings.iter().any(|registered| registered.encoding.has_sealed(topic, event, seal))
    }

    /// The last publications with an idempotency key.
    pub(crate) fn recent(&self) -> &Arc<RecentPublications> {
        &self.recent
    }

    /// The client connections.
    pub(crate) fn connections(&self) -> &Arc<ConnectionRegistry> {
        &self.connections
    }

    /// The topics with subscribers, for a hub without a cluster.
    pub(crate) fn subscribed(&self) -> &Arc<SubscribedTopics> {
        &self.subscribed
    }

    /// Creates an observer of the server below that reports topics by their public names.
    pub(crate) fn observer(&self, observer: Arc<dyn TopicObserver>) -> Arc<dyn SubscriptionObserver> {
        Arc::new(PublicNames { encodings: Arc::clone(&self.encodings), observer })
    }

    /// Sets the sink for topic and connection events. The first call sets it.
    pub(crate) fn set_events(&self, events: Arc<dyn EventSink>) {
        self.connections.set_events(Arc::clone(&events));
        let _ = self.events.set(events);
    }

    /// The event sink.
    pub(crate) fn events(&self) -> Option<&Arc<dyn EventSink>> {
        self.events.get()
    }

    /// Whether a topic has a history.
    pub(crate) fn has_history(&self, topic: &str) -> bool {
        !is_reserved(topic) && self.histories.is_on(topic)
    }

    /// Whether all topics of a pattern have a history.
    pub(crate) fn all_have_history(&self, pattern: &str) -> bool {
        self.histories.is_on_throughout(pattern)
    }

    /// Whether a topic is stored in a stream.
    pub(crate) fn is_durable(&self, topic: &str) -> bool {
        !is_reserved(topic) && self.durable.is_on(topic)
    }

    /// Whether a topic's messages have the time of their publication.
    pub(crate) fn has_timestamps(&self, topic: &str) -> bool {
        match self.timestamps.get(topic) {
            Some(is_on) => is_on && !is_reserved(topic),
            None => self.has_history(topic) || self.is_durable(topic),
        }
    }

    /// Makes this server a cluster node. The first call sets it.
    pub(crate) fn set_other_nodes(&self, other_nodes: Arc<dyn OtherNodes>) {
        let _ = self.other_nodes.set(other_nodes);
    }

    /// Sets the topics whose histories and keys a store has. The first call sets them.
    pub(crate) fn set_stored(&self, stored: Arc<StoredTopics>) {
        let _ = self.stored.set(stored);
    }

    /// The topics whose histories and keys a store has.
    pub(crate) fn all_stored(&self) -> Option<&Arc<StoredTopics>> {
        self.stored.get()
    }

    /// The topics whose histories a store has, if this topic is one of them.
    pub(crate) fn stored(&self, topic: &str) -> Option<&Arc<StoredTopics>> {
        self.stored.get().filter(|_| self.has_history(topic) && !self.is_durable(topic))
    }

    /// The topic store and its promises, and whether it is away; empty without one.
    pub(crate) fn store_report(&self) -> (String, bool) {
        self.stored.get().map_or_else(Default::default, |stored| stored.report())
    }

    /// For how many milliseconds this node's copies of a topic in a store have perhaps been old; `None`: they are not.
    pub(crate) fn stale_for(&self, topic: &str) -> Option<u64> {
        self.stored.get()?.stale_for(topic)
    }

    /// What a reader of a topic's keys waits for; `None` if there is nothing to wait for.
    pub(crate) fn opening_of_keys(&self, topic: &str) -> Option<SharedOpening> {
        self.stored.get()?.opening_of_keys(topic)
    }

    /// Whether a store has the history of a topic of the server below.
    fn is_stored_encoded(&self, name: &str) -> bool {
        self.stored.get().is_some()
            && self.encodings.split(name).is_some_and(|(topic, _)| self.stored(topic).is_some())
    }

    /// What a client waits for that uses a topic's history, perhaps from a position on; `None` if there is nothing to
    /// wait for.
    pub(crate) fn opening_of_history(&self, topic: &str, from: Option<ReplayFrom>) -> Option<SharedOpening> {
        self.stored(topic)?.opening_of_log(topic, from)
    }

    /// Sets the keys that all nodes share. The first call sets them.
    pub(crate) fn set_shared_keys(&self, keys: Arc<dyn SharedKeys>) {
        let _ = self.shared_keys.set(keys);
    }

    /// The keys that all nodes share, if there is a cluster.
    pub(crate) fn shared_keys(&self) -> Option<&dyn SharedKeys> {
        self.shared_keys.get().map(|keys| &**keys)
    }

    /// The other nodes, if there is a cluster.
    pub(crate) fn other_nodes(&self) -> Option<&Arc<dyn OtherNodes>> {
        self.other_nodes.get()
    }

    /// Whether publications reach the other nodes; `None` without a cluster.
    pub(crate) fn reaches_nodes(&self) -> Option<bool> {
        self.other_nodes().map(|nodes| nodes.is_connected())
    }

    /// A topic has a new subscriber, who is notified if the cluster's broker rejects its subscription.
    pub(crate) fn retry_rejected(&self, topic: &str) {
        if let Some(nodes) = self.other_nodes() {
            nodes.retry_rejected(topic);
        }
    }

    /// Whether this server is a cluster node, and cannot reach the other nodes.
    pub(crate) fn is_isolated(&self) -> bool {
        self.reaches_nodes() == Some(false)
    }

    /// Counts a new subscription.
    pub(crate) fn count_subscriber(&self, encoded: EncodedTopics) {
        if let Some(subscriptions) = self.encodings.subscriptions(encoded) {
            subscriptions.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Counts a subscription's end.
    pub(crate) fn uncount_subscriber(&self, encoded: EncodedTopics) {
        if let Some(subscriptions) = self.encodings.subscriptions(encoded) {
            subscriptions.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Counts a new subscription, and makes its connection present in the topic. Nothing is delivered in an encoding
    /// without counted subscriptions.
    pub(crate) fn add_subscriber(&self, cx: &mut Context<'_>, encoded: EncodedTopics, topic: &str) {
        self.count_subscriber(encoded);
        // Pattern subscriptions do not count as members of a topic. The name was checked, and a connection has no more
        // topics than subscriptions.
        if !is_pattern(topic) {
            let _ = cx.join_anonymous(topic);
        }
    }

    /// Counts a subscription's end. When a connection ends, so does its presence.
    pub(crate) fn remove_subscriber(&self, cx: &mut Context<'_>, encoded: EncodedTopics, topic: &str) {
        self.uncount_subscriber(encoded);
        cx.leave(topic);
    }

    /// Counts a dashboard that opens or closes.
    pub(crate) fn count_dashboard(&self, begins: bool) {
        if begins {
            self.dashboards.fetch_add(1, Ordering::AcqRel);
        } else if self.dashboards.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.take_rates(0);
        }
    }

    pub(crate) fn has_dashboards(&self) -> bool {
        self.dashboards.load(Ordering::Acquire) > 0
    }

    /// The busiest topics, and their publications since the last call.
    pub(crate) fn take_rates(&self, most: usize) -> Vec<(String, u64)> {
        let rates = std::mem::take(&mut *self.rates.lock());
        let mut rates: Vec<_> = rates.into_iter().collect();
        rates.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        rates.truncate(most);
        rates
    }

    fn count(&self, topic: &str) {
        if !self.has_dashboards() {
            return;
        }
        let mut rates = self.rates.lock();
        if let Some(count) = rates.get_mut(topic) {
            *count += 1;
        } else if rates.len() < RATES_MAX {
            rates.insert(topic.to_owned(), 1);
        }
    }
}
