//! The topic list.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use sinews_server::{Publisher, TopicName, TopicPattern};

use super::encodings::Encodings;
use crate::model::check_subscription;
use crate::model::encoding::{EncodedTopics, MESSAGES};
use crate::model::problem::{Problem, code, problem};

/// Maximum number of topics that one look at the list reads, so that the thread's other work is not delayed.
const SCAN_MAX: usize = Publisher::TOPICS_MAX;

/// A topic's use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TopicUse {
    /// Number of subscriptions by name; `None` without such subscriptions and without a history.
    pub(crate) subscribers: Option<usize>,
    pub(crate) keys: usize,
    /// Number of subscriptions to the keys.
    pub(crate) key_subscribers: usize,
}

/// Topics with their use, in name order.
pub(crate) type TopicsInUse = Vec<(String, TopicUse)>;

impl TopicUse {
    /// Whether there is any use.
    pub(crate) fn is_any(&self) -> bool {
        *self != Self::default()
    }

    /// Adds the use at the same node, in another encoding.
    fn add_encoding(&mut self, other: Self) {
        if let Some(subscribers) = other.subscribers {
            *self.subscribers.get_or_insert_default() += subscribers;
        }
        self.keys += other.keys;
        self.key_subscribers += other.key_subscribers;
    }

    /// Adds the use at another node: a cluster's nodes have the same keys.
    pub(crate) fn add_node(&mut self, other: Self) {
        let keys = self.keys.max(other.keys);
        self.add_encoding(other);
        self.keys = keys;
    }

    /// As a message between nodes, behind the topic's name.
    pub(crate) fn to_message(self, topic: &str) -> Value {
        json!([topic, self.subscribers, self.keys, self.key_subscribers])
    }

    /// Reads another node's message. Earlier versions omit keys.
    pub(crate) fn read(message: &Value) -> Option<(&str, Self)> {
        let number =
            |at: usize| message[at].as_u64().map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        let subscribers = number(1);
        let (keys, key_subscribers) = (number(2).unwrap_or(0), number(3).unwrap_or(0));
        Some((message[0].as_str()?, Self { subscribers, keys, key_subscribers }))
    }
}

/// A topic search by a pattern.
pub(crate) struct TopicScan {
    filter: TopicPattern<'static>,
    /// The beginning of all names that match.
    prefix: String,
    after: Option<String>,
    encodings: Arc<Encodings>,
}

impl TopicScan {
    /// Searches the topics that match a name or pattern.
    ///
    /// # Errors
    /// The pattern is invalid.
    pub(crate) fn new(filter: &str, encodings: &Arc<Encodings>) -> Result<Self, Problem> {
        check_subscription(filter).map_err(|text| problem(code::TOPIC, text))?;
        let parsed = TopicPattern::parse(filter.to_owned());
        let parsed = parsed.map_err(|error| problem(code::TOPIC, error.to_string()))?;
        let wildcard = filter.split('.').position(|token| matches!(token, "*" | ">"));
        let prefix = match wildcard {
            None => filter.to_owned(),
            Some(tokens) => filter.split_inclusive('.').take(tokens).collect(),
        };
        Ok(Self { filter: parsed, prefix, after: None, encodings: Arc::clone(encodings) })
    }

    /// Starts after a name.
    pub(crate) fn set_after(&mut self, after: Option<String>) {
        self.after = after;
    }

    /// Whether a topic matches.
    pub(crate) fn matches(&self, topic: &str) -> bool {
        TopicName::parse(topic).is_ok_and(|topic| self.filter.matches(&topic))
    }

    /// The next names with their use, matching or not; advances to the last of them. Empty at the end. Topics whose
    /// keys were removed a moment ago may be among them: without any use.
    pub(crate) fn next(&mut self, publisher: &Publisher) -> TopicsInUse {
        let encoded = self.encodings.shared().map(|encoded| self.next_encoded(encoded, publisher));
        let listed: Vec<_> = encoded.chain([self.next_with_keys(publisher)]).collect();
        // Beyond a full page's end, the others may have names that are not compared yet.
        let full = listed.iter().filter(|names| names.len() == SCAN_MAX);
        let end = full.filter_map(|names| Some(names.last()?.0.clone())).min();
        let mut merged: BTreeMap<String, TopicUse> = BTreeMap::new();
        for (name, found) in listed.into_iter().flatten() {
            if end.as_ref().is_none_or(|end| name <= *end) {
                merged.entry(name).or_default().add_encoding(found);
            }
        }
        if let Some((last, _)) = merged.last_key_value() {
            self.after = Some(last.clone());
        }
        merged.into_iter().collect()
    }

    /// The next names with subscribers or retained messages behind a name, matching or not; empty at the end.
    pub(crate) fn messages_after(&self, after: Option<&str>, publisher: &Publisher) -> Vec<String> {
        let after = after.map(|after| MESSAGES.topic(after));
        let listed = publisher.topics(&MESSAGES.topic(&self.prefix), after.as_deref(), SCAN_MAX);
        listed.iter().filter_map(|topic| MESSAGES.name(&topic.name)).map(str::to_owned).collect()
    }

    fn next_encoded(&self, encoded: EncodedTopics, publisher: &Publisher) -> TopicsInUse {
        let after = self.after.as_ref().map(|after| encoded.topic(after));
        let topics = publisher.topics(&encoded.topic(&self.prefix), after.as_deref(), SCAN_MAX);
        let named = topics.into_iter().filter_map(|topic| {
            let subscribers = Some(topic.subscribers);
            Some((encoded.name(&topic.name)?.to_owned(), TopicUse { subscribers, ..TopicUse::default() }))
        });
        named.collect()
    }

    fn next_with_keys(&self, publisher: &Publisher) -> TopicsInUse {
        let topics = publisher.topics_with_keys(&self.prefix, self.after.as_deref(), SCAN_MAX);
        let named = topics.into_iter().map(|topic| {
            let (keys, key_subscribers) = (topic.keys, topic.subscribers);
            (topic.name.as_ref().to_owned(), TopicUse { subscribers: None, keys, key_subscribers })
        });
        named.collect()
    }
}

#[cfg(test)]
mod tests {
    use sinews_server::{KeyWrite, Router, Server};

    use super::*;

    #[test]
    fn use_of_several_nodes_is_read_and_summed() {
        let written = TopicUse { subscribers: Some(2), keys: 5, key_subscribers: 1 }.to_message("a");
        let (topic, mut sum) = TopicUse::read(&written).unwrap();
        assert_eq!(topic, "a");
        let without = TopicUse { subscribers: None, keys: 4, key_subscribers: 2 }.to_message("a");
        for message in [without, json!(["a", 3])] {
            sum.add_node(TopicUse::read(&message).unwrap().1);
        }
        assert_eq!(sum, TopicUse { subscribers: Some(5), keys: 5, key_subscribers: 3 });
        assert_eq!(TopicUse::read(&json!([7])), None);
    }

    #[test]
    fn searches_find_topics_that_have_only_keys() {
        let server = Server::new(Router::new()).listen(([127, 0, 0, 1], 0).into()).threads(1).bind().unwrap();
        let publisher = server.publisher();
        // More than one look reads.
        let names: Vec<String> = (0..SCAN_MAX + 5).map(|number| format!("t.{number:05}")).collect();
        for name in &names {
            publisher.write_key(name, &KeyWrite::set("k", "1")).unwrap();
        }
        let mut scan = TopicScan::new("t.*", &Arc::default()).unwrap();
        let (first, second) = (scan.next(&publisher), scan.next(&publisher));
        assert_eq!((first.len(), second.len(), scan.next(&publisher).len()), (SCAN_MAX, 5, 0));
        let only_keys = TopicUse { subscribers: None, keys: 1, key_subscribers: 0 };
        assert_eq!(second[0], (names[SCAN_MAX].clone(), only_keys));
    }
}
