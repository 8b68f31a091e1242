//! The list of topics with keys.

use std::ops::Bound;
use std::sync::Arc;

use super::{KeyedTable, KeyedTopic};
use crate::topics::publisher::Publisher;

/// A topic of a list ([`Publisher::keyed_topics`](crate::Publisher::topics_with_keys)).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedKeyedTopic {
    /// Name of the topic.
    pub name: Arc<str>,
    /// Number of its keys.
    pub keys: usize,
    /// Number of subscriptions to its keys, on all threads.
    pub subscribers: usize,
}

impl KeyedTable {
    /// Returns the first topics with a prefix, after a name. Some may have neither keys nor subscribers: removed keys
    /// are remembered for a while.
    pub(crate) fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<ListedKeyedTopic> {
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let found: Vec<Arc<KeyedTopic>> = {
            let topics = self.lock();
            let names = topics.names.range::<str, _>((start, Bound::Unbounded));
            let names = names.take_while(|name| name.starts_with(prefix)).take(limit);
            names.filter_map(|name| topics.by_name.get(name).cloned()).collect()
        };
        // The state of a topic is locked without the list.
        let listed = |topic: &Arc<KeyedTopic>| ListedKeyedTopic {
            name: topic.name.clone(),
            keys: topic.lock().len(),
            subscribers: topic.subscribers(),
        };
        found.iter().map(listed).collect()
    }
}

impl Publisher {
    /// Lists topics that have keys, had keys in the last minute, or have subscribers of their keys, in order of their
    /// names, as [`topics`](Self::topics) does.
    ///
    /// ```
    /// use sinews_server::{KeyWrite, Router, Server};
    ///
    /// let server = Server::new(Router::new()).listen("127.0.0.1:0".parse()?).threads(1).bind()?;
    /// let publisher = server.publisher();
    /// for (topic, key) in [("prices.b", "gold"), ("prices.a", "gold"), ("prices.a", "tin")] {
    ///     publisher.write_key(topic, &KeyWrite::set(key, "1"))?;
    /// }
    /// let listed = publisher.topics_with_keys("prices.", None, 1);
    /// assert_eq!((&*listed[0].name, listed[0].keys), ("prices.a", 2));
    /// assert_eq!(&*publisher.topics_with_keys("prices.", Some("prices.a"), 10)[0].name, "prices.b");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn topics_with_keys(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<ListedKeyedTopic> {
        self.directory().keyed.list(prefix, after, limit.min(Self::TOPICS_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topics::history::epochs::Epochs;
    use crate::topics::keyed::config::KeyedConfig;
    use crate::topics::keyed::table::Notifier;
    use crate::topics::keyed::write::KeyWrite;

    #[test]
    fn lists_of_topics_with_keys_are_in_order_and_omit_removed_topics() {
        let (table, epochs) = (KeyedTable::new(2, KeyedConfig::default(), None), Epochs::new());
        let notifier = Notifier { posts: &[], epochs: &epochs };
        let write = |topic: &str, write: KeyWrite| table.write(topic, &write, notifier);
        let listed = |prefix, after, limit| -> Vec<String> {
            let listed = table.list(prefix, after, limit).into_iter();
            listed.map(|topic| format!("{} {} {}", topic.name, topic.keys, topic.subscribers)).collect()
        };
        // With a time to live, a write asks a thread of the server.
        for (topic, key) in [("b.2", "k"), ("b.1", "k"), ("b.1", "l"), ("c", "k")] {
            write(topic, KeyWrite::set(key, "1")).unwrap();
        }
        let watched = table.find_or_create("a", &epochs);
        watched.threads[1].subscribers.fetch_add(3, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(listed("", None, 2), ["a 0 3", "b.1 2 0"]);
        assert_eq!(listed("b.", Some("b.1"), 9), ["b.2 1 0"]);
        assert_eq!(listed("b.", Some("a"), 1), ["b.1 2 0"]);
        watched.threads[1].subscribers.store(0, std::sync::atomic::Ordering::Relaxed);
        table.release(&watched, &epochs);
        assert_eq!(listed("", None, 1), ["b.1 2 0"]);
    }
}
