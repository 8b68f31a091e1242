//! Publishing from threads that are none of the server's.

use std::fmt;
use std::sync::Arc;

use sinews_engine::Post;
use sinews_session::Prepared;

use super::directory::{Audience, Directory};
use super::history::{KeptTopic, Position};
use super::name::{self, InvalidTopic};
use super::shelf::Origin;
use crate::mail::Mail;

/// Publishes from any thread, for instance what comes from a database or a queue. Clones are cheap.
///
/// ```
/// use sinews_server::{Prepared, Router, Server};
///
/// let server = Server::new(Router::new()).listen("127.0.0.1:0".parse()?).threads(1).bind()?;
/// let publisher = server.publisher();
/// assert_eq!(publisher.publish("news", &Prepared::text("nobody hears this"))?, 0);
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

    /// Publishes to every subscriber of a topic; those of one thread of the caller's get its messages in order.
    /// Answers how many there are. Nothing holds this publisher back but this result.
    ///
    /// # Errors
    /// [`PublishError`]: the name, or the mailbox of a thread with subscribers is full, or the server has ended.
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

    /// Publishes what is made of where it will stand in its topic ([`Topics::publish_with`](crate::Topics::publish_with)).
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

    /// Publishes what another server has published in a topic that both keep, at the position that it has there
    /// ([`restore`](Self::restore)). What is there already is published to nobody; if others before it are missing, the
    /// history begins anew with it. A topic that is not kept here, or that something was published to in another epoch, has no such place:
    /// then whoever is subscribed gets the message, and it is not kept.
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

    /// The next message of a topic that is kept comes behind this position: for whoever has what was published before
    /// elsewhere, on a disk for instance. A history that goes as far or further in the same epoch stays as it is, any
    /// other is forgotten. Answers whether the topic is kept.
    ///
    /// # Errors
    /// [`InvalidTopic`]: a name that no topic has.
    pub fn go_on_behind(&self, topic: &str, position: Position) -> Result<bool, InvalidTopic> {
        name::check(topic)?;
        Ok(self.directory.go_on_behind(topic, position))
    }

    /// Whether threads have more to deliver than they get done in a turn, or more mail than half of what their mailboxes
    /// take: who publishes a lot, and can wait, waits until this is over.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.directory.is_any_behind() || self.posts.iter().any(Post::is_crowded)
    }

    /// Every topic that is kept, with its messages, for another server to go on with: in a process that takes this one's
    /// place. Messages are shared, not copied. Topics without messages are among them, if anybody is subscribed: what
    /// they were told of its position is to hold there, too. What is published while this runs may be in it or not.
    #[must_use]
    pub fn histories(&self) -> Vec<KeptTopic> {
        self.directory.export()
    }

    /// What the epochs of topics are made of, for [`restore_epochs`](Self::restore_epochs) of another server: 8 bytes, and 8
    /// more for each 16,384th of all names of which a topic was forgotten together with messages. To be asked for behind
    /// [`histories`](Self::histories), so that no epoch comes twice.
    #[must_use]
    pub fn epochs(&self) -> Vec<u8> {
        self.directory.epochs.export()
    }

    /// Gives topics the epochs that they have at another server, those without messages too: a client that resumes one of
    /// them here has missed nothing. For a server that does not run yet. Answers whether the bytes are those of
    /// [`epochs`](Self::epochs); otherwise nothing changes.
    #[must_use]
    pub fn restore_epochs(&self, epochs: &[u8]) -> bool {
        self.directory.epochs.restore(epochs)
    }

    /// Goes on with a topic of another server, in the same epoch, within the limits that hold here. For a server that
    /// does not run yet: answers `false`, and does nothing, if the topic is not kept here, or something was published to
    /// it. A topic without messages waits a minute for its subscribers.
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
    /// [`InvalidTopic`]: a name that no topic has.
    pub fn restore(&self, topic: KeptTopic) -> Result<bool, InvalidTopic> {
        name::check(&topic.name)?;
        Ok(self.directory.restore(topic))
    }
}

fn told((reached, lost): (usize, usize)) -> Result<usize, PublishError> {
    if lost == 0 { Ok(reached) } else { Err(Unreached { reached, lost }.into()) }
}

/// A publication did not get to every thread: a mailbox is full
/// ([`EngineConfig::mailbox`](crate::EngineConfig::mailbox)), or the server has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unreached {
    /// Subscribers that it will reach.
    pub reached: usize,
    /// Subscribers that it will not.
    pub lost: usize,
}

impl fmt::Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reached, lost } = self;
        write!(
            f,
            "{lost} of {} subscribers are on threads that are gone or whose `EngineConfig::mailbox` is full",
            reached + lost
        )
    }
}

impl std::error::Error for Unreached {}

/// Why a [`Publisher`] could not publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PublishError {
    /// The name may not be published to.
    Topic(InvalidTopic),
    /// Not every thread got it.
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
