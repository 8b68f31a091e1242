//! The ways to publish to the server below: as a connection, on a worker, or from any thread.

use std::time::Instant;

use sinews_server::{
    Context, LogLimit, Position, Prepared, PublishError, PublishOptions, Publisher, SubscriberId, Topics,
};

/// A publication's origin: a connection, a request on a worker, or any thread.
pub(crate) trait TopicPublisher {
    /// Publishes a message, which is made from its position if the topic has a history. The topic's name was checked,
    /// and is no pattern. Returns how many subscribers it reaches.
    fn publish(
        &mut self,
        topic: &str,
        make: impl FnOnce(Option<Position>) -> Prepared,
        options: PublishOptions,
    ) -> usize;

    /// The publisher as a subscriber, if it is a connection.
    fn subscriber_id(&self) -> Option<SubscriberId> {
        None
    }

    /// Sets the position of a topic's last message ([`Publisher::advance_to`]).
    fn advance_to(&self, topic: &str, position: Position);
}

impl TopicPublisher for Context<'_> {
    fn publish(
        &mut self,
        topic: &str,
        make: impl FnOnce(Option<Position>) -> Prepared,
        options: PublishOptions,
    ) -> usize {
        self.publish_with(topic, make, options).unwrap_or(0)
    }

    fn subscriber_id(&self) -> Option<SubscriberId> {
        Some(Context::subscriber_id(self))
    }

    fn advance_to(&self, topic: &str, position: Position) {
        let _ = self.topics().publisher().advance_to(topic, position);
    }
}

impl TopicPublisher for Topics {
    fn publish(
        &mut self,
        topic: &str,
        make: impl FnOnce(Option<Position>) -> Prepared,
        options: PublishOptions,
    ) -> usize {
        self.publish_with(topic, make, options).unwrap_or(0)
    }

    fn advance_to(&self, topic: &str, position: Position) {
        let _ = self.publisher().advance_to(topic, position);
    }
}

impl TopicPublisher for Publisher {
    fn publish(
        &mut self,
        topic: &str,
        make: impl FnOnce(Option<Position>) -> Prepared,
        options: PublishOptions,
    ) -> usize {
        reached(self.publish_with(topic, make, options))
    }

    fn advance_to(&self, topic: &str, position: Position) {
        let _ = Self::advance_to(self, topic, position);
    }
}

/// Limit for the log lines about publications that did not reach all subscribers.
static UNDELIVERED_LINES: LogLimit = LogLimit::new();

/// How many subscribers a publication has reached; reports the others.
fn reached(result: Result<usize, PublishError>) -> usize {
    result.unwrap_or_else(|error| match error {
        PublishError::Undelivered(undelivered) => {
            if let Some(omitted) = UNDELIVERED_LINES.permit(Instant::now()) {
                tracing::warn!(omitted, "{undelivered}");
            }
            undelivered.reached
        }
        _ => 0,
    })
}
