//! Publishing from threads outside the server.

use std::fmt;
use std::sync::Arc;

use sinews_engine::Post;
use sinews_session::Prepared;

use super::directory::{Audience, Directory};
use super::history::{KeptTopic, Position};
use super::name::{self, InvalidTopic};
use super::shelf::Origin;
use crate::mail::Mail;

/// Publishes from any thread, for example messages of a database or a queue. Clones are cheap.
///
/// ```
/// use sinews_server::{Prepared, Router, Server};
///
/// let server = Server::new(Router::new()).listen("127.0.0.1:0".parse()?).threads(1).bind()?;
/// let publisher = server.publisher();
/// assert_eq!(publisher.publish("news", &Prepared::text("no subscriber yet"))?, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Publisher {
    directory: Arc<Directory>,
    posts: Arc<[Post<Mail>]>,
}

impl Publisher {
    pub(crate) fn new(directory: Arc<Directory>, posts: Arc<[Post<Mail>]>) -> Self {
        Self { directory, posts }
    }

    /// Publishes to every subscriber of a topic. A subscriber gets the messages of one calling thread in order.
    /// Returns the number of subscribers. No backpressure applies except this result.
    ///
    /// # Errors
    /// [`PublishError`]: the name is invalid, the mailbox of a thread with subscribers is full, or the server has
    /// ended.
    pub fn publish(&self, topic: &str, message: &Prepared) -> Result<usize, PublishError> {
        if self.directory.rules.keep() && self.directory.rules.history(topic).is_some() {
            return self.publish_with(topic, |_| message.clone());
        }
        name::check(topic)?;
        self.publish_unkept(topic, message)
    }

    fn publish_unkept(&self, topic: &str, message: &Prepared) -> Result<usize, PublishError> {
        let exact = self.directory.find(topic);
        let patterns = self.directory.matching(topic);
        if exact.is_none() && patterns.is_empty() {
            return Ok(0);
        }
        let name = exact.as_ref().map_or_else(|| topic.into(), |entry| entry.name.clone());
        let audience = Audience { name: &name, exact: exact.as_deref(), patterns: &patterns };
        told(audience.post(message, &self.posts, None))
    }

    /// Publishes a message built from its position in the topic
    /// ([`Topics::publish_with`](crate::Topics::publish_with)).
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub fn publish_with(
        &self,
        topic: &str,
        make: impl FnOnce(Option<Position>) -> Prepared,
    ) -> Result<usize, PublishError> {
        name::check(topic)?;
        if self.directory.rules.history(topic).is_none() {
            return self.publish(topic, &make(None));
        }
        let patterns = self.directory.matching(topic);
        let from = Origin { posts: &self.posts, except: None };
        let make = |position| make(Some(position));
        told(self.directory.publish_kept(topic, &patterns, make, from).unwrap_or_default())
    }

    /// Publishes a message of another server at its position in a topic that both servers retain
    /// ([`restore`](Self::restore)). A message that is already retained is not published again; if earlier messages
    /// are missing, the history restarts with this message. If the topic has no history here, or has messages of
    /// another epoch, the position does not apply: subscribers get the message, and it is not retained.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub fn publish_at(
        &self,
        topic: &str,
        position: Position,
        message: &Prepared,
    ) -> Result<usize, PublishError> {
        name::check(topic)?;
        let patterns = self.directory.matching(topic);
        if self.directory.rules.history(topic).is_some() {
            let from = Origin { posts: &self.posts, except: None };
            if let Ok(done) = self.directory.publish_at(topic, &patterns, (position, message), from) {
                return told(done);
            }
        }
        self.publish_unkept(topic, message)
    }

    /// Sets the position of the last message of a topic with history, for callers that store earlier messages
    /// elsewhere, such as on disk. A history that is at or beyond the position in the same epoch is unchanged; any
    /// other history is cleared. Returns whether the topic has history.
    ///
    /// # Errors
    /// [`InvalidTopic`]: the name is no valid topic name.
    pub fn go_on_behind(&self, topic: &str, position: Position) -> Result<bool, InvalidTopic> {
        name::check(topic)?;
        Ok(self.directory.go_on_behind(topic, position))
    }

    /// Returns whether a thread cannot deliver its publications within a turn, or its mailbox is more than half full.
    /// A publisher of many messages that can wait should wait until this is false.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.directory.is_any_behind() || self.posts.iter().any(Post::is_crowded)
    }

    /// Exports every topic with history and its messages, for a successor server in another process. Messages are
    /// shared, not copied. Subscribed topics without messages are included: their position stays valid at the
    /// successor. A publication during the call may be included or not.
    #[must_use]
    pub fn histories(&self) -> Vec<KeptTopic> {
        self.directory.export()
    }

    /// Exports the seed and counters of topic epochs, for [`restore_epochs`](Self::restore_epochs) of another server:
    /// 8 bytes, and 8 more for each of 16,384 hash slots in which a topic was removed together with messages. Call it
    /// after [`histories`](Self::histories), so that no epoch is used twice.
    #[must_use]
    pub fn epochs(&self) -> Vec<u8> {
        self.directory.epochs.export()
    }

    /// Restores the epochs of another server, including topics without messages: a client that resumes such a topic
    /// here has missed no message. For a server that does not run yet. Returns whether the bytes are a valid export
    /// of [`epochs`](Self::epochs); otherwise nothing changes.
    #[must_use]
    pub fn restore_epochs(&self, epochs: &[u8]) -> bool {
        self.directory.epochs.restore(epochs)
    }

    /// Restores a topic of another server, in the same epoch, within the limits of this server. For a server that
    /// does not run yet. Returns `false`, without effect, if the topic has no history here, or has publications
    /// already. A topic without messages waits a minute for its subscribers.
    ///
    /// ```
    /// use sinews_server::{History, Prepared, Router, Server, TopicRule};
    ///
    /// let server = || {
    ///     let rule = TopicRule::new("news").with_history(History::new(100));
    ///     Server::new(Router::new()).listen(([127, 0, 0, 1], 0).into()).threads(1).topic_rule(rule).bind()
    /// };
    /// let (first, second) = (server()?.publisher(), server()?.publisher());
    /// first.publish("news", &Prepared::text("something has happened"))?;
    /// for topic in first.histories() {
    ///     assert!(second.restore(topic)?);
    /// }
    /// assert_eq!(second.histories()[0].position, first.histories()[0].position);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidTopic`]: the name is no valid topic name.
    pub fn restore(&self, topic: KeptTopic) -> Result<bool, InvalidTopic> {
        name::check(&topic.name)?;
        Ok(self.directory.restore(topic))
    }
}

fn told((reached, lost): (usize, usize)) -> Result<usize, PublishError> {
    if lost == 0 { Ok(reached) } else { Err(Unreached { reached, lost }.into()) }
}

/// Error of a publication that did not reach every thread: a mailbox is full
/// ([`EngineConfig::mailbox`](crate::EngineConfig::mailbox)), or the server has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unreached {
    /// Number of subscribers that are reached.
    pub reached: usize,
    /// Number of subscribers that are not reached.
    pub lost: usize,
}

impl fmt::Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reached, lost } = self;
        write!(
            f,
            "publication not delivered to {lost} of {} subscribers: mailbox is full \
             (`EngineConfig::mailbox`) or the server has ended",
            reached + lost
        )
    }
}

impl std::error::Error for Unreached {}

/// Error of a [`Publisher`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PublishError {
    /// The name cannot be published to.
    Topic(InvalidTopic),
    /// The publication did not reach every thread.
    Unreached(Unreached),
}

impl From<InvalidTopic> for PublishError {
    fn from(invalid: InvalidTopic) -> Self {
        Self::Topic(invalid)
    }
}

impl From<Unreached> for PublishError {
    fn from(unreached: Unreached) -> Self {
        Self::Unreached(unreached)
    }
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topic(invalid) => invalid.fmt(f),
            Self::Unreached(unreached) => unreached.fmt(f),
        }
    }
}

impl std::error::Error for PublishError {}
