//! Names of topics in order, for lists.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::directory::Directory;
use super::entry::{NamedEntry, TopicEntry};
use super::publisher::Publisher;

/// Maximum number of topics in one list.
const LISTED_MAX: usize = 1_000;

/// A topic of a list ([`Publisher::topics`]).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedTopic {
    /// Name of the topic.
    pub name: Arc<str>,
    /// Number of its subscriptions by name, on all threads.
    pub subscribers: usize,
}

/// Topics in order of their names, without patterns. A list holds no lock that publications take.
#[derive(Debug, Default)]
pub(crate) struct NameIndex(Mutex<BTreeSet<NamedEntry>>);

impl NameIndex {
    pub(super) fn insert(&self, entry: NamedEntry) {
        self.lock().insert(entry);
    }

    pub(super) fn remove(&self, name: &str) {
        self.lock().remove(name);
    }

    /// Returns the first topics with a prefix, after a name.
    fn page(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<ListedTopic> {
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let entries = self.lock();
        let found = entries.range::<str, _>((start, Bound::Unbounded)).map(|NamedEntry(entry)| entry);
        let found = found.take_while(|entry| entry.name.starts_with(prefix)).take(limit);
        let listed = |entry: &Arc<TopicEntry>| ListedTopic {
            name: entry.name.clone(),
            subscribers: entry.subscribers(),
        };
        found.map(listed).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<NamedEntry>> {
        self.0.lock()
    }
}

impl Directory {
    /// Lists topics with a prefix, after a name.
    fn topics(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<ListedTopic> {
        self.index.page(prefix, after, limit.min(LISTED_MAX))
    }
}

impl Publisher {
    /// Maximum number of topics that [`topics`](Self::topics) returns at once: 1,000, since the list of names is locked
    /// meanwhile.
    pub const TOPICS_MAX: usize = LISTED_MAX;

    /// Lists topics that have subscribers by name or retained messages, in order of their names: with this prefix, and
    /// after the name `after` or from the first. At most `limit` and [`TOPICS_MAX`](Self::TOPICS_MAX); the last name of
    /// one list is `after` of the next. Takes time in proportion to the list, whatever the number of topics.
    ///
    /// ```
    /// use sinews_server::{HistoryPolicy, Prepared, PublishOptions, Router, Server, TopicRule};
    ///
    /// let rule = TopicRule::new("news.>").with_history(HistoryPolicy::new(10));
    /// let server = Server::new(Router::new()).listen("127.0.0.1:0".parse()?).threads(1).topic_rule(rule).bind()?;
    /// let publisher = server.publisher();
    /// for topic in ["news.b", "news.a"] {
    ///     publisher.publish(topic, &Prepared::text("retained"), PublishOptions::new())?;
    /// }
    /// assert_eq!(&*publisher.topics("news.", None, 1)[0].name, "news.a");
    /// assert_eq!(&*publisher.topics("news.", Some("news.a"), 10)[0].name, "news.b");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn topics(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<ListedTopic> {
        self.directory().topics(prefix, after, limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topics::TopicRules;

    #[test]
    fn lists_continue_after_a_name_and_omit_removed_topics() {
        let directory = Directory::new(2, TopicRules::default());
        let entries: Vec<_> = ["b.3", "a", "b.1", "b.2", "c"]
            .iter()
            .map(|name| directory.subscribe(name, 0).unwrap())
            .collect();
        directory.subscribe("b.1", 1).unwrap();
        directory.subscribe("b.*", 1).unwrap();
        let names = |prefix, after, limit| -> Vec<(String, usize)> {
            let listed = directory.topics(prefix, after, limit);
            listed.into_iter().map(|topic| (topic.name.to_string(), topic.subscribers)).collect()
        };
        let listed = |names: &[(&str, usize)]| -> Vec<(String, usize)> {
            names.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
        };
        assert_eq!(names("b.", None, 2), listed(&[("b.1", 2), ("b.2", 1)]));
        assert_eq!(names("b.", Some("b.2"), 2), listed(&[("b.3", 1)]));
        assert_eq!(names("b.", Some("a"), 1), listed(&[("b.1", 2)]));
        assert_eq!(names("", Some("b.3"), 9), listed(&[("c", 1)]));
        entries[0].set_subscribers(0, 0);
        directory.release(&entries[0]);
        assert_eq!(names("b.", Some("b.2"), 2), listed(&[]));
    }
}
