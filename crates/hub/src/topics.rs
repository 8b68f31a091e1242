//! The topics of the hub. Each has four forms: the payload itself (`/topics/{name}`), a message of the protocol (`/ws`),
//! and an event of the Pusher protocol, for channels of an app, with its position in the history or without. Topics report
//! the number of their subscribers.
//!
//! For the server below, each form is a topic of its own, so a message is framed once for all subscribers of a form. A
//! publication goes to all forms; a form without subscribers is not encoded.

pub(crate) mod authority;
mod channels;
pub(crate) mod key_faults;
pub(crate) mod keys;
pub(crate) mod list;
mod node_publications;
mod publisher;
mod recoverable;
pub(crate) mod shared_keys;
pub(crate) mod subscribed;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use sinews_server::{Context, InvalidTopic, Position, Prepared, Publisher, SubscriberId, Topics};

use self::authority::{Authority, PublicationOrigin, PublicationSource, published};
use self::channels::{PublishedChannel, TopicLocks};

use self::node_publications::NodePublications;
use self::publisher::reached;
pub(crate) use self::publisher::{Exclusion, TopicPublisher};
use self::shared_keys::SharedKeys;
use self::subscribed::SubscribedTopics;
use crate::access::namespaces::order::PatternSwitch;
use crate::apps::encode::ChannelPublication;
use crate::apps::live::{EventTarget, LiveApps};
use crate::connections::ConnectionRegistry;
use crate::model::connection_id::ConnectionId;
use crate::model::events::EventSink;
use crate::model::nodes::OtherNodes;
use crate::model::{MessageContent, is_pattern, is_reserved};

/// State that publishers and subscribers share.
#[derive(Debug, Default)]
pub(crate) struct HubTopics {
    /// Subscriptions to payloads, on all workers.
    plain: AtomicUsize,
    /// Subscriptions to messages of the protocol.
    framed: AtomicUsize,
    /// Subscriptions to events of channels, with positions or without.
    channel_events: AtomicUsize,
    /// The apps whose channels are topics.
    apps: Arc<LiveApps>,
    /// Open dashboards.
    dashboards: AtomicUsize,
    /// Publications of each topic since the last request; counted while a dashboard is open.
    rates: Mutex<HashMap<String, u64>>,
    /// The topics that have a history.
    histories: PatternSwitch,
    /// The topics that are stored in streams.
    durable: PatternSwitch,
    /// Orders the publications of channels with a history in both of their forms with positions.
    recoverable_channels: TopicLocks,
    /// Orders the publications and the new subscriptions of cache channels.
    cache_channels: TopicLocks,
    connections: Arc<ConnectionRegistry>,
    /// Topics with subscribers, without a cluster.
    subscribed: Arc<SubscribedTopics>,
    /// The other nodes, if there is a cluster.
    other_nodes: OnceLock<Arc<dyn OtherNodes>>,
    /// The keys that all nodes share.
    shared_keys: OnceLock<Arc<dyn SharedKeys>>,
    /// The sink of events.
    events: OnceLock<Arc<dyn EventSink>>,
    /// Write-locked during a change of authority, so that no publication happens in between.
    authority: RwLock<Authority>,
    /// Publications of other nodes during a handover.
    node_publications: NodePublications,
}

/// Topics that are counted between two reports; further topics are not counted.
const RATES_MAX: usize = 1_024;

/// The form in which a subscriber receives a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TopicForm {
    /// The payload itself.
    Plain,
    /// A message of the protocol, with its position in the history.
    Framed,
    /// An event of the Pusher protocol.
    Event,
    /// An event with its position in the history, for clients that recover.
    RecoverableEvent,
}

impl TopicForm {
    /// The name of the topic in the server below. Of a topic that only apps reach, the name of the events is that of the
    /// presence: the server below stores it once.
    pub(crate) fn topic(self, name: &str) -> Cow<'_, str> {
        if self == Self::Event && is_reserved(name) {
            return name.into();
        }
        [self.prefix(), name].concat().into()
    }

    /// The public name of a topic of the server below.
    pub(crate) fn name(topic: &str) -> Option<&str> {
        let forms = [Self::Plain, Self::Framed, Self::Event, Self::RecoverableEvent];
        let prefixed = forms.iter().find_map(|form| topic.strip_prefix(form.prefix()));
        prefixed.or_else(|| is_reserved(topic).then_some(topic))
    }

    const fn prefix(self) -> &'static str {
        match self {
            Self::Plain => "r.",
            Self::Framed => "j.",
            Self::Event => "p.",
            Self::RecoverableEvent => "q.",
        }
    }
}

/// Parts of a pattern that is never rejected for its matching steps; the form is one more part.
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
    pub(crate) fn new(histories: PatternSwitch) -> Self {
        Self { histories, ..Self::default() }
    }

    /// Sets the topics that are stored in streams.
    pub(crate) fn with_durable(self, durable: PatternSwitch) -> Self {
        Self { durable, ..self }
    }

    /// Sets the apps whose channels are topics.
    pub(crate) fn with_apps(self, apps: Arc<LiveApps>) -> Self {
        Self { apps, ..self }
    }

    /// The apps whose channels are topics.
    pub(crate) fn apps(&self) -> &LiveApps {
        &self.apps
    }

    /// The connections of clients.
    pub(crate) fn connections(&self) -> &Arc<ConnectionRegistry> {
        &self.connections
    }

    /// The topics with subscribers, for a hub without a cluster.
    pub(crate) fn subscribed(&self) -> &Arc<SubscribedTopics> {
        &self.subscribed
    }

    /// Sets the sink of the events of topics and connections. The first call sets it.
    pub(crate) fn set_events(&self, events: Arc<dyn EventSink>) {
        self.connections.set_events(Arc::clone(&events));
        let _ = self.events.set(events);
    }

    /// The sink of events.
    pub(crate) fn events(&self) -> Option<&Arc<dyn EventSink>> {
        self.events.get()
    }

    /// Whether a topic has a history.
    pub(crate) fn has_history(&self, topic: &str) -> bool {
        !is_reserved(topic) && self.histories.is_on(topic)
    }

    /// Whether a topic is stored in a stream.
    pub(crate) fn is_durable(&self, topic: &str) -> bool {
        !is_reserved(topic) && self.durable.is_on(topic)
    }

    /// Whether a form with positions may have subscribers, or the topic has a history.
    fn is_framed(&self, topic: &str) -> bool {
        let is_framed = || self.framed.load(Ordering::Acquire) > 0 || self.has_history(topic);
        !is_reserved(topic) && (is_framed() || self.is_durable(topic))
    }

    /// Makes this server a node of a cluster. The first call sets it.
    pub(crate) fn set_other_nodes(&self, other_nodes: Arc<dyn OtherNodes>) {
        let _ = self.other_nodes.set(other_nodes);
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

    /// A topic has a new subscriber, who is notified if the broker of the cluster rejects its subscription.
    pub(crate) fn retry_rejected(&self, topic: &str) {
        if let Some(nodes) = self.other_nodes() {
            nodes.retry_rejected(topic);
        }
    }

    /// Whether this server is a node of a cluster, and cannot reach the other nodes.
    pub(crate) fn is_isolated(&self) -> bool {
        self.reaches_nodes() == Some(false)
    }

    /// Publishes to all forms, and to other nodes; returns the number of subscriptions of this process that it reaches.
    pub(crate) fn publish(
        &self,
        out: &mut impl TopicPublisher,
        topic: &str,
        content: &MessageContent,
        include_self: bool,
    ) -> usize {
        let source = PublicationOrigin::Local.into();
        let channel = self.channel(topic);
        self.publish_local(out, (topic, channel), &ChannelPublication::new(content), (include_self, source))
    }

    /// Publishes an event of a client of an app, which has a socket, to the other clients.
    pub(crate) fn publish_client_event(
        &self,
        out: &mut impl TopicPublisher,
        topic: &str,
        content: &MessageContent,
        socket: u128,
    ) {
        let source = PublicationSource { socket: Some(socket), ..PublicationOrigin::Local.into() };
        let channel = self.channel(topic);
        self.publish_local(out, (topic, channel), &ChannelPublication::new(content), (false, source));
    }

    /// Publishes as [`publish`](Self::publish) does, except to a connection of this node or of another one. A replay of the
    /// history includes the message for every subscriber.
    pub(crate) fn publish_except(
        &self,
        out: &mut impl TopicPublisher,
        topic: &str,
        content: &MessageContent,
        exclude: Option<ConnectionId>,
    ) -> usize {
        let source = PublicationSource { exclude, ..PublicationOrigin::Local.into() };
        let channel = self.channel(topic);
        self.publish_local(out, (topic, channel), &ChannelPublication::new(content), (true, source))
    }

    /// Publishes as [`publish`](Self::publish) does, to the topic of a channel: an event that is made once for all of its
    /// channels.
    pub(crate) fn publish_to_channel(
        &self,
        out: &mut impl TopicPublisher,
        (topic, target): (&str, EventTarget<'_>),
        publication: &ChannelPublication<'_>,
    ) -> usize {
        let channel = self.channel_at(target, topic);
        let source = PublicationOrigin::Local.into();
        self.publish_local(out, (topic, Some(channel)), publication, (true, source))
    }

    fn publish_local(
        &self,
        out: &mut impl TopicPublisher,
        (topic, channel): (&str, Option<PublishedChannel<'_>>),
        publication: &ChannelPublication<'_>,
        (include_self, source): (bool, PublicationSource),
    ) -> usize {
        self.count(topic);
        let is_cached = channel.as_ref().is_some_and(PublishedChannel::is_cache);
        let authority = self.read_authority();
        let reached = self.publish_framed(&authority, out, topic, publication, source);
        drop(authority);
        let exclusion = match self.subscriber(source.exclude) {
            None if !include_self => Exclusion::Publisher,
            except => except.into(),
        };
        let reached = reached + self.publish_plain(out, (topic, channel.as_ref()), publication, exclusion);
        // The other nodes receive the events of a cache channel in the order in which this node retains them.
        if let Some(nodes) = self.other_nodes() {
            let content = publication.content();
            match is_cached {
                // A node that has its first subscriber later answers with the last event.
                true => nodes.publish_to_all(topic, content, source.exclude),
                false => nodes.publish(topic, content, source.exclude),
            }
        }
        reached
    }

    /// Publishes a record of a durable topic's stream here and in the predecessor process.
    pub(crate) fn relay(
        &self,
        out: &mut Publisher,
        topic: &str,
        content: &MessageContent,
        position: Position,
    ) {
        self.count(topic);
        let channel = self.channel(topic);
        if let Some(predecessor) = self.read_authority().predecessor_for(PublicationOrigin::Local) {
            let source = PublicationOrigin::Local.into();
            predecessor.send_or_cut(published(topic, content, Some(position), source));
        }
        // A later subscriber starts in the stream.
        if self.framed.load(Ordering::Acquire) > 0 {
            let message = content.framed(topic, Some(position));
            reached(out.publish_at(&TopicForm::Framed.topic(topic), position, &message));
        }
        let publication = ChannelPublication::new(content);
        self.relay_recoverable(out, topic, &publication, position);
        self.publish_plain(out, (topic, channel.as_ref()), &publication, Exclusion::None);
    }

    /// A connection as a subscriber, if this process has it.
    fn subscriber(&self, connection: Option<ConnectionId>) -> Option<SubscriberId> {
        connection.and_then(|id| self.connections.subscriber(id))
    }

    /// Notifies subscribers that the stream of a topic was deleted: the topic starts again with a new epoch.
    pub(crate) fn notify_reset(&self, out: &mut Publisher, topic: &str) {
        if self.framed.load(Ordering::Acquire) > 0 {
            let message = serde_json::json!({ "op": "reset", "topic": topic }).to_string();
            out.publish(&TopicForm::Framed.topic(topic), &Prepared::text(&message), Exclusion::None);
        }
    }

    fn publish_plain(
        &self,
        out: &mut impl TopicPublisher,
        (topic, channel): (&str, Option<&PublishedChannel<'_>>),
        publication: &ChannelPublication<'_>,
        exclusion: Exclusion,
    ) -> usize {
        let reached = self.publish_event(out, (topic, channel), publication, exclusion);
        if self.plain.load(Ordering::Acquire) == 0 || is_reserved(topic) {
            return reached;
        }
        let (topic, message) = (TopicForm::Plain.topic(topic), publication.content().plain());
        reached + out.publish(&topic, &message, exclusion)
    }

    /// Publishes a message of the protocol here, or forwards it to the successor process.
    fn publish_framed(
        &self,
        authority: &Authority,
        out: &mut impl TopicPublisher,
        topic: &str,
        publication: &ChannelPublication<'_>,
        source: PublicationSource,
    ) -> usize {
        let predecessor = authority.predecessor_for(source.origin);
        let pass_to_predecessor = |position| {
            if let Some(predecessor) = predecessor {
                predecessor.send_or_cut(published(topic, publication.content(), position, source));
            }
        };
        if let Some(successor) = &authority.successor {
            let has_history = self.has_history(topic);
            let is_forwarded = successor.forward(topic, publication.content(), has_history, source);
            if has_history {
                if !is_forwarded {
                    pass_to_predecessor(None);
                }
                return 0;
            }
        }
        if predecessor.is_none() && !self.is_framed(topic) {
            return 0;
        }
        if is_reserved(topic) {
            pass_to_predecessor(None);
            return 0;
        }
        if self.is_durable(topic) {
            pass_to_predecessor(None);
            return self.publish_unstored(&out.publisher(), topic, publication, source.socket);
        }
        let channel = self.recoverable_channel(topic);
        let (mut assigned, except) = (None, self.subscriber(source.exclude));
        let make = |position| {
            // The topic is locked, so the predecessor receives messages in order.
            pass_to_predecessor(position);
            assigned = position;
            publication.content().framed(topic, position)
        };
        let reached = out.publish_with(&TopicForm::Framed.topic(topic), make, except);
        match channel {
            None => reached,
            recoverable => {
                let (out, publication) = (out.publisher(), (topic, publication));
                reached + self.publish_recoverable(&out, recoverable, publication, assigned, source)
            }
        }
    }

    /// Counts a new subscription.
    pub(crate) fn count_subscriber(&self, form: TopicForm) {
        self.subscriptions(form).fetch_add(1, Ordering::AcqRel);
    }

    /// Counts the end of a subscription.
    pub(crate) fn uncount_subscriber(&self, form: TopicForm) {
        self.subscriptions(form).fetch_sub(1, Ordering::AcqRel);
    }

    /// Counts a new subscription, and makes its connection present in the topic.
    pub(crate) fn add_subscriber(&self, cx: &mut Context<'_>, form: TopicForm, topic: &str) {
        self.count_subscriber(form);
        // Pattern subscriptions do not count as members of a topic. The name was checked, and a connection has no more
        // topics than subscriptions.
        if !is_pattern(topic) {
            let _ = cx.join_anonymous(topic);
        }
    }

    /// Counts the end of a subscription. The end of a connection is the end of its presence, too.
    pub(crate) fn remove_subscriber(&self, cx: &mut Context<'_>, form: TopicForm, topic: &str) {
        self.uncount_subscriber(form);
        cx.leave(topic);
    }

    fn subscriptions(&self, form: TopicForm) -> &AtomicUsize {
        match form {
            TopicForm::Plain => &self.plain,
            TopicForm::Framed => &self.framed,
            TopicForm::Event | TopicForm::RecoverableEvent => &self.channel_events,
        }
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
        let rates = std::mem::take(&mut *self.rates.lock().unwrap_or_else(PoisonError::into_inner));
        let mut rates: Vec<_> = rates.into_iter().collect();
        rates.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        rates.truncate(most);
        rates
    }

    fn count(&self, topic: &str) {
        if !self.has_dashboards() {
            return;
        }
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = rates.get_mut(topic) {
            *count += 1;
        } else if rates.len() < RATES_MAX {
            rates.insert(topic.to_owned(), 1);
        }
    }
}
