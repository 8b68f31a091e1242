//! Topics that retain their last event.
//!
//! Publications and new subscriptions of such a topic exclude each other: a new subscriber receives the last event as
//! such, and all later events as they are published. An event on its way to the subscriber's worker has a version: the
//! subscriber does not receive it again.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use sinews_server::{Prepared, PublishOptions, Publisher};

use super::encodings::RegisteredEncoding;
use super::{HubTopics, TopicPublisher};
use crate::model::encoding::{EventOrigin, LastEvents, RetainedEvent};
use crate::model::events::{EventDetail, WebhookEventKind};
use crate::model::nodes::NodePublicationId;

/// Topic locks. A topic takes one during a publication.
#[derive(Debug, Default)]
pub(super) struct TopicLocks([Mutex<()>; TOPIC_LOCKS]);

/// Lock count for all topics.
const TOPIC_LOCKS: usize = 16;

impl TopicLocks {
    pub(super) fn lock(&self, topic: &str) -> MutexGuard<'_, ()> {
        self.lock_for(topic).lock()
    }

    fn lock_for(&self, topic: &str) -> &Mutex<()> {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(topic);
        &self.0[hash as usize % TOPIC_LOCKS]
    }
}

impl HubTopics {
    /// Locks a topic that retains its last event, for a publication or a new subscription; `None` for another topic.
    /// Lock it before any encoding is published.
    pub(crate) fn lock_last_event(&self, topic: &str) -> Option<MutexGuard<'_, ()>> {
        self.retaining(topic).map(|_| self.last_events_order.lock(topic))
    }

    /// Whether a publication or a new subscription has locked a topic's last event.
    #[cfg(test)]
    pub(crate) fn is_last_event_locked(&self, topic: &str) -> bool {
        self.last_events_order.lock_for(topic).try_lock().is_none()
    }

    /// The encoding in which a topic retains its last event.
    fn retaining(&self, topic: &str) -> Option<(&RegisteredEncoding, &dyn LastEvents)> {
        self.encodings.iter().find_map(|registered| Some((registered, registered.last_events(topic)?)))
    }

    /// A topic's last event. The other nodes were sent the event before; another node's event may arrive there later
    /// than from here.
    pub(crate) fn last_event(&self, topic: &str) -> Option<RetainedEvent> {
        let (_, events) = self.retaining(topic)?;
        let _order = self.last_events_order.lock(topic);
        events.last_event(topic)
    }

    /// The topics whose last event this node has published, not longer ago than this: the youngest event first.
    pub(crate) fn own_last_events(&self, age_max: Duration) -> Vec<String> {
        let retaining = self.encodings.iter().filter_map(|registered| registered.encoding.last_events());
        retaining.flat_map(|events| events.own_topics(age_max)).collect()
    }

    /// Sends a topic's last event with its age, if this node has published it. Publications to the topic precede or
    /// follow, so that the other nodes receive its events in the order in which this node retains them.
    pub(crate) fn send_own_last_event(&self, topic: &str, send: impl FnOnce(&Prepared, Duration)) {
        let Some((_, events)) = self.retaining(topic) else { return };
        let _order = self.last_events_order.lock(topic);
        if let Some(RetainedEvent { message, origin: EventOrigin::ThisNode, age }) = events.last_event(topic)
        {
            send(&message, age);
        }
    }

    /// Retains a topic's last event that another node has retained, unless there is a later one, and delivers it.
    pub(crate) fn restore_last_event(
        &self,
        out: &Publisher,
        topic: &str,
        message: &Prepared,
        origin: Option<NodePublicationId>,
        age: Duration,
    ) {
        let Some((registered, events)) = self.retaining(topic) else { return };
        let _order = self.last_events_order.lock(topic);
        if let Some(version) = events.restore(topic, message, origin, age) {
            let (encoded, options) = (registered.topics.topic(topic), PublishOptions::new().version(version));
            TopicPublisher::publish(&mut out.clone(), &encoded, |_| message.clone(), options);
        }
    }

    /// Reports a topic without a last event to the application, if a webhook wants it: once for clients that come at
    /// the same time. The client's node may have requested the event from the other nodes.
    pub(crate) fn report_missing_event(&self, topic: &str, is_of_other_node: bool, is_requested: bool) {
        let kind = WebhookEventKind::CacheMiss;
        let Some(events) = self.events().filter(|events| events.wants(kind)) else { return };
        let Some((_, last_events)) = self.retaining(topic) else { return };
        // The other node receives this node's event now, or this node has received the requested event meanwhile.
        let is_known = is_requested && last_events.last_event(topic).is_some();
        if is_known || !last_events.note_miss(topic) {
            return;
        }
        let is_passed = !is_of_other_node
            && self.other_nodes().is_some_and(|nodes| nodes.pass_cache_miss(topic, is_requested));
        if !is_passed {
            events.emit(EventDetail::CacheMiss { topic: topic.into() });
        }
    }

    /// Notifies a topic's subscribers why publications from other nodes do not arrive, in the encodings that have a
    /// message for it. Their subscriptions stay.
    pub(crate) fn report_rejected(&self, out: &Publisher, topic: &str, reason: &str) {
        for registered in self.encodings.iter().filter(|registered| registered.has_subscribers()) {
            if let Some(message) = registered.encoding.rejection(topic, reason, out) {
                let (encoded, options) = (registered.topics.topic(topic), PublishOptions::new().unretained());
                TopicPublisher::publish(&mut out.clone(), &encoded, |_| message, options);
            }
        }
    }
}
