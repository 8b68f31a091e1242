//! Publications with an idempotency key, or with a result that follows.

use std::sync::Arc;

use crate::access::auth::Rights;
use crate::model::publication::{Publication, WaitingPublication};
use crate::streams::service::StreamService;
use crate::streams::topic_append::append_to_topic;
use crate::topics::recent::{KeyedPublication, Published, StoredPublication};
use crate::topics::{HubTopics, TopicPublisher};

/// Publishes to a topic, which is durable if it has a store. With an idempotency key of an earlier publication, returns
/// that one and `true`.
pub(crate) fn publish_once(
    hub: &Arc<HubTopics>,
    store: Option<&Arc<StreamService>>,
    out: &mut impl TopicPublisher,
    publication: &Publication<'_, '_>,
    key: Option<&str>,
    rights: &Rights,
) -> (KeyedPublication, bool) {
    let topic = publication.topic;
    let mut publish = || {
        if let Some(store) = store {
            let content = publication.content.message().clone();
            let append = append_to_topic(store, topic, content, key, rights.clone());
            return KeyedPublication::appending(async move { append.await.map(Published::Stored) });
        }
        if let Some(stored) = hub.stored(topic) {
            let appended = stored.append_for_client(publication, key);
            return KeyedPublication::appending(async move {
                let stored = StoredPublication::acknowledged(appended.await?);
                Ok(stored.map_or(Published::Unstored, Published::Stored))
            });
        }
        if let Some(key) = key
            && let Some(publication) = publish_first(hub, publication, key)
        {
            return publication;
        }
        KeyedPublication::Done(deliver(hub, out, publication))
    };
    match key {
        None => (publish(), false),
        Some(key) => hub.recent().publish_once(topic, key, epoch_of(store, topic), publish),
    }
}

/// Publishes to a topic without a history.
fn deliver(hub: &HubTopics, out: &mut impl TopicPublisher, publication: &Publication<'_, '_>) -> Published {
    let subscribers = hub.publish(out, publication);
    Published::Delivered { subscribers, cluster: hub.reaches_nodes() }
}

/// Publishes to a topic without a history, unless a node has published with the same idempotency key: the topic store
/// knows. `None` without one.
fn publish_first(
    hub: &Arc<HubTopics>,
    publication: &Publication<'_, '_>,
    key: &str,
) -> Option<KeyedPublication> {
    let stored = hub.all_stored()?;
    let mut out = stored.publisher()?;
    let is_first = stored.is_first(publication.topic, key);
    let (hub, waiting) = (Arc::clone(hub), WaitingPublication::from(publication));
    Some(KeyedPublication::appending(async move {
        if !is_first.await {
            return Ok(Published::Elsewhere);
        }
        let content = (&waiting.content).into();
        Ok(deliver(&hub, &mut out, &waiting.publication(&content)))
    }))
}

/// Returns the epoch of a durable topic's stream: publications to a deleted stream do not count.
pub(crate) fn epoch_of(store: Option<&Arc<StreamService>>, topic: &str) -> Option<u64> {
    store.and_then(|store| store.topic_relay(topic).ok().flatten()).map(|relay| relay.epoch())
}
