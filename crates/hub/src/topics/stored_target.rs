//! The hub's topics as the target of copies.

use sinews_server::{Position, Publisher, StoredHistory, StoredMessage};

use super::HubTopics;
use super::stored::{StoredEntries, StoredTarget};
use crate::model::publication::{Publication, PublishedContent};

impl StoredTarget for HubTopics {
    fn has_stored_history(&self, topic: &str) -> bool {
        self.stored(topic).is_some()
    }

    fn deliver_stored(&self, publisher: &Publisher, publication: &Publication<'_, '_>) {
        self.publish(&mut publisher.clone(), publication);
    }

    fn install_stored(
        &self,
        publisher: &Publisher,
        topic: &str,
        position: Position,
        StoredEntries { floor, passed, entries }: StoredEntries,
    ) {
        let positioned = self.encodings().assigning().into_iter().chain(self.encodings().following());
        let has_timestamps = self.has_timestamps(topic);
        for registered in positioned {
            let Some(name) = registered.encoding.name(topic) else { continue };
            let messages = entries.iter().map(|entry| {
                let content = PublishedContent::from(&entry.content);
                let publication = Publication::new(topic, &content).with_sender(entry.sender);
                let publication =
                    publication.by(entry.verified.as_ref()).with_time(has_timestamps.then_some(entry.time));
                let position = Position { sequence: entry.sequence, ..position };
                let message = registered.encoding.encode(&publication, &name, Some(position));
                StoredMessage { sequence: entry.sequence, message, age: entry.age }
            });
            let stored = StoredHistory { position, floor, passed, messages: messages.collect() };
            // The topic's name was checked when it was published.
            let _ = publisher.install_history(&registered.topics.topic(topic), stored);
        }
    }

    fn deliver_unstored(&self, publisher: &Publisher, publication: &Publication<'_, '_>) {
        self.publish_unstored(&mut publisher.clone(), publication);
    }

    fn pass_message(&self, publisher: &Publisher, topic: &str, position: Position) {
        let positioned = self.encodings().assigning().into_iter().chain(self.encodings().following());
        for registered in positioned {
            // The topic's name was checked when it was published.
            let _ = publisher.pass_message(&registered.topics.topic(topic), position);
        }
    }

    fn notify_lost(&self, publisher: &Publisher, topic: &str) {
        self.notify_reset(&mut publisher.clone(), topic);
    }

    fn notify_rejected(&self, publisher: &Publisher, topic: &str, reason: &str) {
        self.report_rejected(publisher, topic, reason);
    }
}
