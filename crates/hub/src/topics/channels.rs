//! Publications to the channel of an app that a topic is.
//!
//! A cache channel retains its last event. Publications and new subscriptions of a cache channel exclude each other: a new
//! subscriber receives the last event as such, and all later events as they are published. An event on its way to the
//! worker of the subscriber has a version: the subscriber does not receive it again.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sinews_server::{Prepared, Publisher};

use super::{HubTopics, TopicForm, TopicPublisher, reached};
use crate::protocol::pusher::EventTarget;
use crate::protocol::pusher::encode::ChannelPublication;

/// Locks of topics. A topic takes one during a publication.
#[derive(Debug, Default)]
pub(super) struct TopicLocks([Mutex<()>; TOPIC_LOCKS]);

/// Number of locks for all topics.
const TOPIC_LOCKS: usize = 16;

impl TopicLocks {
    pub(super) fn lock(&self, topic: &str) -> MutexGuard<'_, ()> {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(topic);
        self.0[hash as usize % TOPIC_LOCKS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A channel during a publication.
pub(super) struct PublishedChannel<'a> {
    target: EventTarget<'a>,
    /// Of a cache channel.
    _order: Option<MutexGuard<'a, ()>>,
}

impl PublishedChannel<'_> {
    pub(super) fn is_cache(&self) -> bool {
        self.target.is_cache
    }
}

impl HubTopics {
    /// Locks a cache channel for a new subscription.
    pub(crate) fn lock_cache_channel(&self, topic: &str) -> MutexGuard<'_, ()> {
        self.cache_channels.lock(topic)
    }

    /// The channel that a topic is, if it is one. Call it before any form is published.
    pub(super) fn channel<'a>(&'a self, topic: &'a str) -> Option<PublishedChannel<'a>> {
        let target = self.apps.target(topic)?;
        let order = target.is_cache.then(|| self.cache_channels.lock(topic));
        Some(PublishedChannel { target, _order: order })
    }

    /// Publishes to the subscribers of the channel that the topic is, if it is one, and retains the event of a cache
    /// channel.
    pub(super) fn publish_event(
        &self,
        out: &mut impl TopicPublisher,
        (topic, channel): (&str, Option<&PublishedChannel<'_>>),
        publication: &ChannelPublication<'_>,
        include_self: bool,
    ) -> usize {
        let Some(PublishedChannel { target, .. }) = channel else { return 0 };
        let has_subscribers = self.channel_events.load(Ordering::Acquire) > 0;
        if !has_subscribers && !target.is_cache {
            return 0;
        }
        let event = publication.encode(&target.channel);
        let is_retained = target.is_cache && !event.is_of_client;
        let version = is_retained.then(|| self.apps.retain(target, &event.message));
        let topic = TopicForm::Event.topic(topic);
        let except = event.socket_id.and_then(|id| self.apps.socket(id));
        match (version, except) {
            _ if !has_subscribers => 0,
            (Some(version), _) => {
                reached(out.publisher().publish_version(&topic, &event.message, version, except))
            }
            (None, Some(except)) => out.publish_except(&topic, &event.message, except),
            (None, None) if include_self => out.publish(&topic, &event.message),
            (None, None) => out.publish_to_others(&topic, &event.message),
        }
    }

    /// The last event of a cache channel, and its age.
    pub(crate) fn cached_event(&self, topic: &str) -> Option<(Prepared, Duration)> {
        self.apps.target(topic)?.retained()
    }

    /// Retains the last event of a cache channel that another node has retained, unless there is a later one, and delivers
    /// it.
    pub(crate) fn restore_cached_event(
        &self,
        out: &Publisher,
        topic: &str,
        message: &Prepared,
        age: Duration,
    ) {
        let channel = self.channel(topic).filter(|channel| channel.target.is_cache);
        let Some(PublishedChannel { target, _order }) = channel else { return };
        if let Some(version) = self.apps.restore(&target, message, age) {
            reached(out.publish_version(&TopicForm::Event.topic(topic), message, version, None));
        }
    }
}
