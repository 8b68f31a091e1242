//! Subscriptions of connections to topics and patterns.

use sinews_engine::ConnId;

use super::name::{self, InvalidTopic};
use super::registry::{SubscriberIndex, Topics};
use super::subscriber_id::SubscriberId;

/// Number of subscribers of a topic from which on the capacity of their list doubles.
const FEW_SUBSCRIBERS: usize = 8;

/// Capacity that such a list gains. An allocator rounds sizes up, and each move to a larger list would leave a gap.
const SUBSCRIBERS_STEP: usize = 3;

impl Topics {
    pub(crate) fn subscriber_id(&self, conn: ConnId) -> SubscriberId {
        SubscriberId { shard: self.shard, conn }
    }

    pub(crate) fn subscribe(&mut self, name: &str, conn: ConnId) -> Result<(), InvalidTopic> {
        name::check_subscription(name)?;
        self.subscribe_unchecked(name, conn)
    }

    /// Subscribes to a topic without history, to publications of later versions and to those without a version.
    pub(crate) fn subscribe_after(
        &mut self,
        name: &str,
        version: u64,
        conn: ConnId,
    ) -> Result<(), InvalidTopic> {
        name::check(name)?;
        let is_subscribed =
            |topics: &Self| topics.index_of(name).filter(|topic| topics.is_subscribed_by_name(*topic, conn));
        if is_subscribed(self).is_some() {
            return Ok(());
        }
        self.subscribe_unchecked(name, conn)?;
        if let Some(topic) = is_subscribed(self).filter(|topic| self.topics[*topic].entry.history().is_none())
        {
            let progress = self.topics[topic].progress_or_default();
            progress.joined.insert(conn, version.saturating_add(1));
        }
        Ok(())
    }

    /// Subscribes to a valid name, or to an internal topic.
    pub(super) fn subscribe_unchecked(&mut self, name: &str, conn: ConnId) -> Result<(), InvalidTopic> {
        let known = self.index_of(name);
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
        if subscribers.len() == subscribers.capacity() && subscribers.len() < FEW_SUBSCRIBERS {
            // Most topics have few subscribers: two in place, then five, and so on.
            subscribers.reserve_exact(SUBSCRIBERS_STEP);
        }
        subscribers.push(conn);
        self.subscriptions.push(conn, index);
        self.count(topic);
        Ok(())
    }

    pub(crate) fn unsubscribe(&mut self, name: &str, conn: ConnId) -> bool {
        let Some(topic) = self.index_of(name) else { return false };
        let Some(subscriptions) = self.subscriptions.get_mut(conn) else { return false };
        let Some(index) = subscriptions.iter().position(|sub| sub.topic() == topic) else { return false };
        let subscription = subscriptions.swap_remove(index);
        if subscriptions.is_empty() {
            self.subscriptions.remove(conn);
        }
        if subscription.is_present() {
            self.keep_presence(topic, conn);
        }
        self.remove_subscriber(subscription);
        true
    }

    /// Ends all subscriptions and the presence of a closed connection.
    pub(crate) fn unsubscribe_all(&mut self, conn: ConnId) {
        for subscription in self.subscriptions.remove(conn) {
            if subscription.is_present() {
                self.end_presence(subscription.topic());
            }
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
        exact.iter().chain(&patterns).map(|entry| entry.subscribers()).sum()
    }

    /// Removes a subscriber by moving the last one into its index.
    pub(super) fn remove_subscriber(&mut self, subscription: SubscriberIndex) {
        let (index, at) = (subscription.topic(), subscription.at());
        let topic = &mut self.topics[index];
        let removed = topic.subscribers.swap_remove(at);
        if let Some(progress) = topic.progress_mut() {
            progress.joined.remove(&removed);
        }
        if topic.subscribers.is_empty() {
            topic.set_progress(None);
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
        topic.entry.set_subscribers(self.shard, topic.subscribers.len());
    }

    pub(super) fn is_subscribed_by_name(&self, topic: usize, conn: ConnId) -> bool {
        self.subscriptions.get(conn).iter().any(|sub| sub.topic() == topic)
    }

    /// Returns the subscription of a connection to a topic by its name.
    pub(super) fn subscription_mut(&mut self, name: &str, conn: ConnId) -> Option<&mut SubscriberIndex> {
        let topic = self.index_of(name)?;
        self.subscriptions.get_mut(conn)?.iter_mut().find(|sub| sub.topic() == topic)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sinews_engine::{Engine, EngineConfig};
    use sinews_session::Prepared;

    use super::*;
    use crate::TopicConfig;
    use crate::topics::mail::MailedPublication;
    use crate::topics::{Directory, Member, PresenceError, TopicRules};
    use crate::worker::Worker;

    /// The topics of the only thread.
    fn topics() -> Topics {
        let engine = Engine::<Worker>::new(EngineConfig::default(), Vec::new()).unwrap();
        let directory = Directory::new(1, TopicRules::default());
        Topics::new(0, TopicConfig::default(), directory, Arc::from([engine.post()]))
    }

    #[test]
    fn subscriber_receives_later_versions_and_publications_without_a_version() {
        let mut topics = topics();
        let [early, late, later] = [1, 2, 3].map(ConnId::from_bits);
        let receivers = |topics: &mut Topics, version| {
            let (topic, message) = ("t".into(), Prepared::text("m"));
            let published =
                MailedPublication { topic, message, position: None, prev: 0, except: None, version };
            topics.queue_mailed(published);
            let (publication, subscribers) = topics.next_publication().unwrap();
            topics.finish_delivery(&publication);
            let receivers = subscribers.clone();
            topics.recycle_subscribers(subscribers);
            receivers
        };
        topics.subscribe("t", early).unwrap();
        topics.subscribe_after("t", 5, late).unwrap();
        assert_eq!(receivers(&mut topics, 4), [early]);
        assert_eq!(receivers(&mut topics, 0), [early, late], "without a version");
        topics.subscribe_after("t", 7, later).unwrap();
        topics.subscribe_after("t", 9, early).unwrap();
        assert_eq!(receivers(&mut topics, 5), [early], "the subscription of `early` is unchanged");
        assert_eq!(receivers(&mut topics, 7), [early, late]);
        assert_eq!(receivers(&mut topics, 9), [early, late, later]);
        let index = topics.index_of("t").unwrap();
        assert!(topics.topics[index].progress().is_none(), "all receive all versions, so none is stored");
        topics.unsubscribe_all(late);
        topics.subscribe("t", late).unwrap();
        assert_eq!(receivers(&mut topics, 10), [early, later, late]);
        assert_eq!(topics.subscribe_after("a.*", 1, late), Err(InvalidTopic::Wildcard));
    }

    #[test]
    fn connection_is_present_in_a_limited_number_of_topics_whether_or_not_subscriptions_last() {
        for lasts in [false, true] {
            let (mut topics, conn) = (topics(), ConnId::from_bits(1));
            for number in 0..Topics::SUBSCRIPTIONS_MAX {
                let topic = format!("t.{number}");
                topics.subscribe(&topic, conn).unwrap();
                topics.join(&topic, None, conn).unwrap();
                assert!(lasts || topics.unsubscribe(&topic, conn));
            }
            topics.unsubscribe("t.0", conn);
            topics.subscribe("more", conn).unwrap();
            for (topic, member) in [("more", None), ("more", Some("m")), ("other", None)] {
                let joined = topics.join(topic, member.map(Member::new), conn);
                assert_eq!(joined, Err(PresenceError::TooManyTopics), "subscriptions last: {lasts}");
            }
            assert_eq!(topics.joined(conn).count(), Topics::SUBSCRIPTIONS_MAX);
            topics.join("t.0", Some(Member::new("m")), conn).unwrap();
            topics.join("t.1", None, conn).unwrap();
            assert!(topics.leave("t.1", conn));
            topics.join("more", None, conn).unwrap();
        }
    }

    #[test]
    fn presence_without_a_member_outlives_its_subscription() {
        let (mut topics, conn) = (topics(), ConnId::from_bits(1));
        let joined = |topics: &Topics| -> Vec<(String, Option<String>)> {
            topics.joined(conn).map(|(topic, id)| (topic.to_owned(), id.map(str::to_owned))).collect()
        };
        let entry = |id: Option<&str>| [("a".to_owned(), id.map(str::to_owned))];
        let member = || Some(Member::new("m"));
        for subscribes in [true, false, true] {
            if subscribes {
                topics.subscribe("a", conn).unwrap();
            }
            (0..2).for_each(|_| assert_eq!(topics.join("a", None, conn).unwrap().connections, 1));
            assert_eq!(topics.unsubscribe("a", conn), subscribes);
            assert_eq!((topics.join("a", None, conn).unwrap().connections, joined(&topics).len()), (1, 1));
            assert_eq!(joined(&topics), entry(None));
            if subscribes {
                topics.subscribe("a", conn).unwrap();
            }
            assert!(topics.leave("a", conn) && !topics.leave("a", conn));
            assert_eq!((topics.presence("a").connections, joined(&topics)), (0, Vec::new()));
            topics.join("a", None, conn).unwrap();
            let count = topics.join("a", member(), conn).unwrap();
            assert_eq!(
                (count.connections, count.members, joined(&topics)),
                (1, 1, entry(Some("m")).to_vec())
            );
            let count = topics.join("a", None, conn).unwrap();
            assert_eq!((count.connections, count.members, joined(&topics)), (1, 0, entry(None).to_vec()));
            topics.leave("a", conn);
            topics.join("a", None, conn).unwrap();
            topics.unsubscribe_all(conn);
            assert_eq!((topics.presence("a").connections, joined(&topics)), (0, Vec::new()));
        }
    }
}
