//! The ways to publish to the server below: as a connection, on a worker, or from any thread.

use std::time::Instant;

use sinews_server::{Context, LogLimit, Position, Prepared, PublishError, Publisher, SubscriberId, Topics};

/// The subscriber that a publication does not reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exclusion {
    None,
    /// The connection that publishes.
    Publisher,
    Subscriber(SubscriberId),
}

impl From<Option<SubscriberId>> for Exclusion {
    fn from(except: Option<SubscriberId>) -> Self {
        except.map_or(Self::None, Self::Subscriber)
    }
}

/// The origin of a publication: a connection or a request. Names of topics were checked, and are no patterns. Each method
/// returns the number of subscribers that it reaches.
pub(crate) trait TopicPublisher {
    /// Publishes to all subscribers but one, if any.
    fn publish(&mut self, topic: &str, message: &Prepared, exclusion: Exclusion) -> usize;

    /// Publishes to all subscribers but one, if any; the message is made from its position if the topic has a history.
    fn publish_with(
        &mut self,
        topic: &str,
        make: impl FnOnce(Option<Position>) -> Prepared,
        except: Option<SubscriberId>,
    ) -> usize;

    /// Publishes a version, or with version 0 a message between two versions, to all subscribers but one.
    fn publish_version(
        &mut self,
        topic: &str,
        message: &Prepared,
        version: u64,
        except: Option<SubscriberId>,
    ) -> usize;

    /// The publisher as a subscriber, if it is a connection.
    fn subscriber_id(&self) -> Option<SubscriberId> {
        None
    }

    /// A publisher for messages with a known position.
    fn publisher(&self) -> Publisher;
}

impl TopicPublisher for Context<'_> {
    fn publish(&mut self, topic: &str, message: &Prepared, exclusion: Exclusion) -> usize {
        match exclusion {
            Exclusion::None => Context::publish(self, topic, message).unwrap_or(0),
            Exclusion::Publisher => self.publish_to_others(topic, message).unwrap_or(0),
            Exclusion::Subscriber(except) => reached(self.publisher().publish_except(topic, message, except)),
        }
    }

    fn publish_with(
        &mut self,
        topic: &str,
        make: impl FnOnce(Option<Position>) -> Prepared,
        except: Option<SubscriberId>,
    ) -> usize {
        match except {
            Some(_) => reached(self.publisher().publish_with_except(topic, make, except)),
            None => Context::publish_with(self, topic, make).unwrap_or(0),
        }
    }

    fn publish_version(
        &mut self,
        topic: &str,
        message: &Prepared,
        version: u64,
        except: Option<SubscriberId>,
    ) -> usize {
        Context::publish_version(self, topic, message, version, except).unwrap_or(0)
    }

    fn subscriber_id(&self) -> Option<SubscriberId> {
        Some(Context::subscriber_id(self))
    }

    fn publisher(&self) -> Publisher {
        self.topics().publisher()
    }
}

impl TopicPublisher for Topics {
    fn publish(&mut self, topic: &str, message: &Prepared, exclusion: Exclusion) -> usize {
        let sent = match exclusion {
            Exclusion::Subscriber(except) => self.publish_except(topic, message, except),
            Exclusion::None | Exclusion::Publisher => Self::publish(self, topic, message, None),
        };
        sent.unwrap_or(0)
    }

    fn publish_with(
        &mut self,
        topic: &str,
        make: impl FnOnce(Option<Position>) -> Prepared,
        except: Option<SubscriberId>,
    ) -> usize {
        Self::publish_with(self, topic, make, except).unwrap_or(0)
    }

    fn publish_version(
        &mut self,
        topic: &str,
        message: &Prepared,
        version: u64,
        except: Option<SubscriberId>,
    ) -> usize {
        Self::publish_version(self, topic, message, version, except).unwrap_or(0)
    }

    fn publisher(&self) -> Publisher {
        Self::publisher(self)
    }
}

impl TopicPublisher for Publisher {
    fn publish(&mut self, topic: &str, message: &Prepared, exclusion: Exclusion) -> usize {
        reached(match exclusion {
            Exclusion::Subscriber(except) => self.publish_except(topic, message, except),
            Exclusion::None | Exclusion::Publisher => Self::publish(self, topic, message),
        })
    }

    fn publish_with(
        &mut self,
        topic: &str,
        make: impl FnOnce(Option<Position>) -> Prepared,
        except: Option<SubscriberId>,
    ) -> usize {
        reached(Self::publish_with_except(self, topic, make, except))
    }

    fn publish_version(
        &mut self,
        topic: &str,
        message: &Prepared,
        version: u64,
        except: Option<SubscriberId>,
    ) -> usize {
        reached(Self::publish_version(self, topic, message, version, except))
    }

    fn publisher(&self) -> Publisher {
        self.clone()
    }
}

/// Limit of the lines about publications that did not reach all subscribers.
static UNDELIVERED_LINES: LogLimit = LogLimit::new();

/// The number of subscribers that a publication has reached; reports the others.
pub(super) fn reached(result: Result<usize, PublishError>) -> usize {
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
