//! Subscriptions of connections to topics and patterns.

use sinews_engine::ConnId;

use super::entry::SubscriberId;
use super::name::{self, InvalidTopic};
use super::registry::{SubscriberIndex, Topics};

impl Topics {
    pub(crate) fn subscriber_id(&self, conn: ConnId) -> SubscriberId {
        SubscriberId { shard: self.shard, conn }
    }

    pub(crate) fn subscribe(&mut self, name: &str, conn: ConnId) -> Result<(), InvalidTopic> {
        name::check_subscription(name)?;
        self.subscribe_unchecked(name, conn)
    }

    /// Subscribes to a valid name, or to an internal topic.
    pub(super) fn subscribe_unchecked(&mut self, name: &str, conn: ConnId) -> Result<(), InvalidTopic> {
        let known = self.names.get(name).copied();
        if known.is_some_and(|topic| self.is_subscribed_by_name(topic, conn)) {
            return Ok(());
        }
        if self.subscriptions.get(conn).len() >= Self::SUBSCRIPTIONS_MAX {
            return Err(InvalidTopic::TooManySubscriptions);
        }
        let topic = match known {
            Some(topic) => {
                if self.topics[topic].subscribers.is_empty() {
                    // Another thread may have removed the entry of a topic without subscribers.
                    self.replace_entry(topic, self.directory.subscribe(name, self.shard)?);
                }
                topic
            }
            None => self.insert(self.directory.subscribe(name, self.shard)?),
        };
        if self.has_history && self.topics[topic].subscribers.is_empty() {
            self.start_progress(topic);
        }
        let subscribers = &mut self.topics[topic].subscribers;
        let Some(index) = SubscriberIndex::new(topic, subscribers.len()) else {
            self.prune(topic);
            return Err(InvalidTopic::TooManySubscriptions);
        };
        subscribers.push(conn);
        self.subscriptions.push(conn, index);
        self.count(topic);
        Ok(())
    }

    pub(crate) fn unsubscribe(&mut self, name: &str, conn: ConnId) -> bool {
        let Some(&topic) = self.names.get(name) else { return false };
        let Some(subscriptions) = self.subscriptions.get_mut(conn) else { return false };
        let Some(index) = subscriptions.iter().position(|sub| sub.topic() == topic) else { return false };
        let subscription = subscriptions.swap_remove(index);
        if subscriptions.is_empty() {
            self.subscriptions.remove(conn);
        }
        self.remove_subscriber(subscription);
        true
    }

    /// Ends all subscriptions and the presence of a closed connection.
    pub(crate) fn unsubscribe_all(&mut self, conn: ConnId) {
        for subscription in self.subscriptions.remove(conn) {
            self.remove_subscriber(subscription);
        }
        self.leave_all(conn);
        self.unsubscribe_all_keys(conn);
    }

    /// Returns how many subscriptions, by name or by pattern and on all threads, a publication would match now; 0 for
    /// a name that cannot be published to. Threads count separately, so a concurrent change on another thread may be
    /// missing.
    #[must_use]
    pub fn subscribers(&self, name: &str) -> usize {
        let exact = self.directory.find(name);
        let patterns = self.directory.matching(name);
        exact.iter().chain(&patterns).map(|entry| entry.counts.total()).sum()
    }

    /// Removes a subscriber by moving the last one into its index.
    pub(super) fn remove_subscriber(&mut self, subscription: SubscriberIndex) {
        let (index, at) = (subscription.topic(), subscription.at());
        let topic = &mut self.topics[index];
        let removed = topic.subscribers.swap_remove(at);
        if let Some(progress) = &mut topic.progress {
            progress.joined.remove(&removed);
        }
        if topic.subscribers.is_empty() {
            topic.progress = None;
        }
        if let Some(&moved) = topic.subscribers.get(at) {
            let indices = self.subscriptions.get_mut(moved).into_iter().flatten();
            for moved in indices.filter(|moved| moved.topic() == index) {
                moved.move_to(&subscription);
            }
        }
        self.count(index);
        self.prune(index);
    }

    pub(super) fn count(&self, topic: usize) {
        let topic = &self.topics[topic];
        topic.entry.counts.set(self.shard, topic.subscribers.len());
    }

    pub(super) fn is_subscribed_by_name(&self, topic: usize, conn: ConnId) -> bool {
        self.subscriptions.get(conn).iter().any(|sub| sub.topic() == topic)
    }
}
