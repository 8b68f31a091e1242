//! Recovery of pattern subscriptions: a client that returns sends its positions of the pattern's topics.
//!
//! The connection subscribes to the pattern first, so that all later publications reach it. Of each topic with missed
//! messages, it then subscribes by name from the client's position: the server below replays the messages, and delivers
//! each message of a connection with both subscriptions once and in order.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use sinews_server::{Context, Position, ReplayFrom};

use super::JsonClient;
use super::keys::position_fields;
use super::requests::{PatternRecovery, RecoveredTopic, TOPICS_MAX};
use crate::model::encoding::MESSAGES;
use crate::topics::HubTopics;
use crate::topics::list::TopicScan;

/// Names of the topic list that one request looks at.
const NAMES_MAX: usize = 16_384;

/// Topics of one connection whose messages are replayed: they count as subscriptions of the server below.
const REPLAYS_MAX: usize = 256;

/// Topics with lost messages that an answer names: all of them, or none.
const INCOMPLETE_MAX: usize = 64;

/// The pattern's topics with a history.
struct MatchingTopics {
    topics: Vec<(String, Position)>,
    is_complete: bool,
}

/// A resumption's result.
struct Resumed {
    replayed: u64,
    /// Whether no other topics than `lost` have lost messages.
    knows_lost: bool,
    lost: Vec<String>,
}

impl JsonClient {
    /// Resumes a pattern, to which the connection is subscribed, and adds the acknowledgement's fields.
    pub(super) fn recover(
        &mut self,
        pattern: &str,
        recovery: PatternRecovery,
        ack: &mut Value,
        cx: &mut Context<'_>,
    ) {
        let found = match self.knows_topics_of(pattern) {
            true => matching_topics(self.session.hub(), pattern, cx),
            false => MatchingTopics { topics: Vec::new(), is_complete: false },
        };
        if recovery.wants_positions {
            let position =
                |(topic, position): &(String, Position)| (topic.clone(), position_fields(*position));
            ack["positions"] = Value::Object(found.topics.iter().map(position).collect::<Map<_, _>>());
            if !found.is_complete {
                ack["positions_complete"] = json!(false);
            }
        }
        if let Some(from) = recovery.from {
            let Resumed { replayed, knows_lost, lost } = self.resume(pattern, from, found, cx);
            (ack["replayed"], ack["complete"]) = (json!(replayed), json!(knows_lost && lost.is_empty()));
            if knows_lost && (1..=INCOMPLETE_MAX).contains(&lost.len()) {
                ack["incomplete"] = json!(lost);
            }
        }
    }

    /// Whether this node knows all topics with a history that a pattern matches: a topic store, and a broker, may have
    /// others.
    fn knows_topics_of(&self, pattern: &str) -> bool {
        let is_durable = |pattern| self.streams.store().is_some_and(|store| store.has_topics_of(pattern));
        self.session.hub().all_stored().is_none() && !is_durable(pattern)
    }

    fn resume(
        &mut self,
        pattern: &str,
        mut from: BTreeMap<String, Position>,
        found: MatchingTopics,
        cx: &mut Context<'_>,
    ) -> Resumed {
        // Topics without a history have perhaps missed messages.
        let knows_lost = found.is_complete && self.session.hub().all_have_history(pattern);
        let mut resumed = Resumed { replayed: 0, knows_lost, lost: Vec::new() };
        for (topic, position) in found.topics {
            let known = from.remove(&topic).unwrap_or_default();
            let has_none = known == Position::default() && position.sequence == 0;
            // A subscription by name has its own start.
            if known == position || has_none || self.has_subscription(&topic) {
                continue;
            }
            if self.recovered.as_ref().is_some_and(|recovered| recovered.topics.len() >= REPLAYS_MAX) {
                resumed.lost.push(topic);
                continue;
            }
            match cx.subscribe_from(&MESSAGES.topic(&topic), ReplayFrom::After(known)) {
                Ok(joined) => {
                    resumed.replayed += joined.replayed;
                    if !joined.complete {
                        resumed.lost.push(topic.clone());
                    }
                    let recovered = RecoveredTopic { pattern: pattern.to_owned(), topic };
                    self.recovered.get_or_insert_default().topics.push(recovered);
                }
                Err(_) => resumed.lost.push(topic),
            }
        }
        for (topic, position) in from {
            if position.sequence > 0 && !self.has_subscription(&topic) {
                resumed.lost.push(topic);
            }
        }
        resumed
    }

    fn has_subscription(&self, topic: &str) -> bool {
        self.subscriptions.iter().any(|known| known.topic == topic)
    }

    /// Whether a topic's messages were replayed for a pattern that the connection is still subscribed to.
    pub(super) fn is_recovered(&self, topic: &str) -> bool {
        self.recovered.as_ref().is_some_and(|list| list.topics.iter().any(|known| known.topic == topic))
    }

    /// Ends the replays of a pattern whose subscription has ended.
    pub(super) fn end_recovered(&mut self, pattern: &str, cx: &mut Context<'_>) {
        let Some(mut recovered) = self.recovered.take() else { return };
        recovered.topics.retain(|known| {
            let is_other = known.pattern != pattern;
            if !is_other && !self.has_subscription(&known.topic) {
                cx.unsubscribe(&MESSAGES.topic(&known.topic));
            }
            is_other
        });
        self.recovered = Some(recovered).filter(|recovered| !recovered.topics.is_empty());
    }
}

/// The topics with a history that match a pattern, with their positions, as far as one request may look for them.
fn matching_topics(hub: &HubTopics, pattern: &str, cx: &Context<'_>) -> MatchingTopics {
    let mut found = MatchingTopics { topics: Vec::new(), is_complete: true };
    // The pattern was checked.
    let Ok(scan) = TopicScan::new(pattern, hub.encodings()) else { return found };
    let (publisher, mut names, mut after) = (cx.topics().publisher(), 0, None::<String>);
    loop {
        let listed = scan.messages_after(after.as_deref(), &publisher);
        let Some(last) = listed.last() else { return found };
        names += listed.len();
        after = Some(last.clone());
        for topic in listed.into_iter().filter(|topic| scan.matches(topic) && hub.has_history(topic)) {
            let Some(position) = cx.topics().position(&MESSAGES.topic(&topic)) else { continue };
            if found.topics.len() >= TOPICS_MAX {
                found.is_complete = false;
                return found;
            }
            found.topics.push((topic, position));
        }
        if names >= NAMES_MAX {
            found.is_complete = false;
            return found;
        }
    }
}
