//! Publishing from threads outside the server.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sinews_engine::Post;
use sinews_session::Prepared;

use super::directory::Directory;
use super::entry::{Reach, Recipients, TopicEntry};
use super::history::append::{EpochMismatch, HistoryPlace, PublishOrigin};
use super::history::policy::{
    HistoryPage, HistoryPolicy, HistoryQuery, Position, ReplayFrom, StoredHistory, TopicSnapshot,
};
use super::keyed::page::page as keyed_page;
use super::keyed::table::Notifier;
use super::keyed::update::{KeyChange, KeyPage, KeyedSnapshot};
use super::keyed::write::{KeyError, KeyWrite, KeyWritten};
use super::name::{self, InvalidTopic};
use super::observer::SubscriptionObserver;
use super::presence::member::PresenceSnapshot;
use super::publish_options::{Placement, PublishOptions};
use super::subscriber_id::SubscriberId;
use crate::topics::mail::Mail;

/// Publishes from any thread, for example messages from a database or a queue. Clones are cheap.
///
/// ```
/// use sinews_server::{Prepared, PublishOptions, Router, Server};
///
/// let server = Server::new(Router::new()).listen("127.0.0.1:0".parse()?).threads(1).bind()?;
/// let publisher = server.publisher();
/// assert_eq!(publisher.publish("news", &Prepared::text("no subscriber yet"), PublishOptions::new())?, 0);
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

    pub(super) fn posts(&self) -> &[Post<Mail>] {
        &self.posts
    }

    pub(super) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Publishes a message to a topic's subscribers. A subscriber gets one calling thread's messages in order. Returns
    /// how many subscriptions the message reaches. No backpressure applies except this result.
    ///
    /// # Errors
    /// [`PublishError`]: the name is invalid, the mailbox of a thread with subscribers is full, or the server has
    /// ended.
    pub fn publish(
        &self,
        topic: &str,
        message: &Prepared,
        options: PublishOptions,
    ) -> Result<usize, PublishError> {
        self.publish_with(topic, |_| message.clone(), options)
    }

    /// Publishes a message built from its position in the topic
    /// ([`Topics::publish_with`](crate::Topics::publish_with)). Otherwise as [`publish`](Self::publish).
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub fn publish_with(
        &self,
        topic: &str,
        make: impl FnOnce(Option<Position>) -> Prepared,
        options: PublishOptions,
    ) -> Result<usize, PublishError> {
        name::check(topic)?;
        let PublishOptions { except, placement } = options;
        let directory = &*self.directory;
        let patterns = directory.matching(topic);
        let has_history = || directory.rules.any_history() && directory.rules.history(topic).is_some();
        let from = PublishOrigin { posts: &self.posts, except };
        match placement {
            Placement::Append | Placement::Version(_) if has_history() => {
                let make = |position| make(Some(position));
                into_result(directory.append(topic, &patterns, make, from).unwrap_or_default())
            }
            Placement::At(position, prev) => {
                let message = make(Some(position));
                let placed = HistoryPlace { position, prev };
                let appended =
                    has_history().then(|| directory.append_at(topic, &patterns, placed, &message, from));
                match appended {
                    Some(Ok(counts)) => into_result(counts),
                    Some(Err(EpochMismatch)) | None => self.post(topic, &patterns, || message, 0, except),
                }
            }
            Placement::Version(version) => self.post(topic, &patterns, || make(None), version, except),
            Placement::Append | Placement::Unretained => {
                self.post(topic, &patterns, || make(None), 0, except)
            }
        }
    }

    /// Posts a message to all threads with subscribers, past the history.
    fn post(
        &self,
        topic: &str,
        patterns: &[Arc<TopicEntry>],
        make: impl FnOnce() -> Prepared,
        version: u64,
        except: Option<SubscriberId>,
    ) -> Result<usize, PublishError> {
        let exact = self.directory.find(topic);
        if exact.is_none() && patterns.is_empty() {
            return Ok(0);
        }
        let name = exact.as_ref().map_or_else(|| topic.into(), |entry| entry.name.clone());
        let recipients = Recipients { name: &name, exact: exact.as_deref(), patterns };
        into_result(recipients.post(&make(), version, &self.posts, None, except))
    }

    /// Sets the last message's position in a topic with history, for callers that store earlier messages elsewhere,
    /// such as on disk. A history that is at or beyond the position in the same epoch is unchanged; any other history
    /// is cleared. Returns whether the topic has history.
    ///
    /// # Errors
    /// [`InvalidTopic`]: the name is no valid topic name.
    pub fn advance_to(&self, topic: &str, position: Position) -> Result<bool, InvalidTopic> {
        name::check(topic)?;
        Ok(self.directory.advance_to(topic, position))
    }

    /// Sets the last message's position in a topic with history, for a message that no history retains. Retained
    /// messages stay, and a subscriber that resumes from before the position misses a message. Returns whether the topic
    /// has history.
    ///
    /// # Errors
    /// [`InvalidTopic`]: the name is no valid topic name.
    pub fn pass_message(&self, topic: &str, position: Position) -> Result<bool, InvalidTopic> {
        name::check(topic)?;
        Ok(self.directory.pass_message(topic, position))
    }

    /// Replaces the history of a topic by the messages in a store that several servers share. They are not published:
    /// later subscribers receive them. Returns whether the topic has history.
    ///
    /// # Errors
    /// [`InvalidTopic`]: the name is no valid topic name.
    pub fn install_history(&self, topic: &str, stored: StoredHistory) -> Result<bool, InvalidTopic> {
        name::check(topic)?;
        Ok(self.directory.install_history(topic, stored))
    }

    /// Returns the history policy of a topic; `None` if it has no history.
    #[must_use]
    pub fn history_policy(&self, topic: &str) -> Option<HistoryPolicy> {
        self.directory.rules.history(topic).copied()
    }

    /// Returns the number of subscribers to a topic's keys, on all threads.
    #[must_use]
    pub fn key_subscribers(&self, topic: &str) -> usize {
        self.directory.keyed.find(topic).map_or(0, |topic| topic.subscribers())
    }

    /// Returns whether a thread cannot deliver its publications within a turn, or its mailbox is more than half full. A
    /// publisher with many messages that can wait should wait until this is false.
    #[must_use]
    pub fn is_backlogged(&self) -> bool {
        self.directory.is_any_backlogged() || self.posts.iter().any(Post::is_over_half_full)
    }

    /// Exports every topic with history and its messages, for a successor server in another process. Messages are
    /// shared, not copied. Subscribed topics without messages are included: their position stays valid at the
    /// successor. A publication during the call may be included or not.
    #[must_use]
    pub fn histories(&self) -> Vec<TopicSnapshot> {
        self.directory.export()
    }

    /// Returns a part of the retained messages of a topic ([`Topics::history_page`](crate::Topics::history_page)).
    #[must_use]
    pub fn history_page(&self, name: &str, query: &HistoryQuery) -> HistoryPage {
        self.directory.history_page(name, query)
    }

    /// Returns the retained messages of a topic from a start on ([`Topics::history`](crate::Topics::history)).
    #[must_use]
    pub fn history(&self, name: &str, start: ReplayFrom) -> Vec<(u64, Prepared)> {
        self.directory.history(name, start)
    }

    /// Sets or removes a key in a topic ([`Topics::write_key`](crate::Topics::write_key)).
    ///
    /// ```
    /// use sinews_server::{KeyWrite, Router, Server};
    ///
    /// let server = Server::new(Router::new()).listen("127.0.0.1:0".parse()?).threads(1).bind()?;
    /// let publisher = server.publisher();
    /// let written = publisher.write_key("prices", &KeyWrite::set("gold", "2412.5"))?;
    /// assert!(written.changed && written.position.sequence == 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As there.
    pub fn write_key(&self, topic: &str, write: &KeyWrite) -> Result<KeyWritten, KeyError> {
        name::check(topic)?;
        self.directory.keyed.write(topic, write, self.keyed_notifier())
    }

    /// Returns a key, as [`Topics::key`](crate::Topics::key) does.
    #[must_use]
    pub fn key(&self, topic: &str, key: &str) -> Option<(KeyChange, Position)> {
        self.directory.keyed.get(topic, key, self.keyed_notifier())
    }

    /// Returns a topic's keys, as [`Topics::keys`](crate::Topics::keys) does.
    ///
    /// # Errors
    /// [`KeyError::Filter`].
    pub fn keys(
        &self,
        topic: &str,
        after: Option<&str>,
        filter: Option<&str>,
        limit: usize,
    ) -> Result<KeyPage, KeyError> {
        keyed_page(&self.directory.keyed, topic, after, filter, limit, self.keyed_notifier())
    }

    /// Applies a key change that a [`KeyLog`](crate::KeyLog) has stored; without effect if the ticket is unknown.
    pub fn commit_key(&self, topic: &str, ticket: u64) {
        self.directory.keyed.complete(topic, ticket, true, self.keyed_notifier());
    }

    /// Drops a key change that a [`KeyLog`](crate::KeyLog) has not stored.
    pub fn abort_key(&self, topic: &str, ticket: u64) {
        self.directory.keyed.complete(topic, ticket, false, self.keyed_notifier());
    }

    /// Exports the keys in all topics that no [`KeyLog`](crate::KeyLog) stores, for a successor server in another
    /// process. From here on, writes are rejected with [`KeyError::HandedOver`], and keys do not expire, until
    /// [`resume_keyed_topics`](Self::resume_keyed_topics).
    #[must_use]
    pub fn keyed_topics(&self) -> Vec<KeyedSnapshot> {
        self.directory.keyed.export()
    }

    /// Accepts key writes again after [`keyed_topics`](Self::keyed_topics), for a successor that has failed.
    pub fn resume_keyed_topics(&self) {
        self.directory.keyed.resume(&self.posts);
    }

    /// Restores a topic's keys from another server, in the same epoch. For a server that does not run yet. Returns how
    /// many keys exceed this server's limits and are left out; `None`, without effect, if the topic has changes here
    /// already.
    ///
    /// # Errors
    /// [`InvalidTopic`]: the name is no valid topic name.
    pub fn restore_keyed_topic(&self, topic: KeyedSnapshot) -> Result<Option<usize>, InvalidTopic> {
        name::check(&topic.topic)?;
        let (is_restored, left_out) = self.directory.keyed.restore(topic, self.keyed_notifier());
        Ok(is_restored.then_some(left_out))
    }

    /// Sets the observer for topics and patterns with subscribers, for a server that does not run yet. Returns whether
    /// it is set: a server has one observer, and keeps its first one.
    pub fn observe_subscriptions(&self, observer: Arc<dyn SubscriptionObserver>) -> bool {
        self.directory.observer.set(observer)
    }

    fn keyed_notifier(&self) -> Notifier<'_> {
        Notifier { posts: &self.posts, epochs: &self.directory.epochs }
    }

    /// Exports the seed and counters for topic epochs, for another server's [`restore_epochs`](Self::restore_epochs): 8
    /// bytes, and 8 more for each of 16,384 hash slots in which a topic was removed together with messages. Call it
    /// after [`histories`](Self::histories), so that no epoch is used twice.
    #[must_use]
    pub fn epochs(&self) -> Vec<u8> {
        self.directory.epochs.export()
    }

    /// Restores another server's epochs, including topics without messages: a client that resumes such a topic here has
    /// missed no message. For a server that does not run yet. Returns whether the bytes are a valid export from
    /// [`epochs`](Self::epochs); otherwise nothing changes.
    #[must_use]
    pub fn restore_epochs(&self, epochs: &[u8]) -> bool {
        self.directory.epochs.restore(epochs)
    }

    /// Restores a topic from another server, in the same epoch, within this server's limits. For a server that does not
    /// run yet. Returns `false`, without effect, if the topic has no history here, or has publications already. A topic
    /// without messages waits a minute for its subscribers.
    ///
    /// ```
    /// use sinews_server::{HistoryPolicy, Prepared, PublishOptions, Router, Server, TopicRule};
    ///
    /// let server = || {
    ///     let rule = TopicRule::new("news").with_history(HistoryPolicy::new(100));
    ///     Server::new(Router::new()).listen(([127, 0, 0, 1], 0).into()).threads(1).topic_rule(rule).bind()
    /// };
    /// let (first, second) = (server()?.publisher(), server()?.publisher());
    /// first.publish("news", &Prepared::text("something has happened"), PublishOptions::new())?;
    /// for topic in first.histories() {
    ///     assert!(second.restore(topic)?);
    /// }
    /// assert_eq!(second.histories()[0].position, first.histories()[0].position);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidTopic`]: the name is no valid topic name.
    pub fn restore(&self, topic: TopicSnapshot) -> Result<bool, InvalidTopic> {
        name::check(&topic.name)?;
        Ok(self.directory.restore(topic))
    }

    /// Exports all topics' presence for a successor server in another process.
    #[must_use]
    pub fn presence(&self) -> Vec<PresenceSnapshot> {
        self.directory.presence.export()
    }

    /// Publishes no more presence updates: this server's clients are about to leave it for a successor that has their
    /// [presence](Self::presence), so these leaves are not published.
    pub fn pause_presence(&self) {
        self.directory.presence.pause();
    }

    /// Publishes presence updates again after [`pause_presence`](Self::pause_presence), for a successor that has
    /// failed. Each topic's next update has the numbers only.
    pub fn resume_presence(&self) {
        self.directory.presence.resume();
    }

    /// Restores another server's presence, for a server that does not run yet. The restored members are present at
    /// once. A connection that joins replaces a restored one, without a change for others. Members whose connections
    /// have not returned within `grace` leave together.
    pub fn restore_presence(&self, topics: Vec<PresenceSnapshot>, grace: Duration) {
        let now = Instant::now();
        self.directory.presence.restore(topics, now.checked_add(grace).unwrap_or(now));
    }
}

fn into_result(counts: Reach) -> Result<usize, PublishError> {
    let Reach { reached, lost } = counts;
    if lost == 0 { Ok(reached) } else { Err(Undelivered { reached, lost }.into()) }
}

/// Error for a publication that did not reach every thread: a mailbox is full
/// ([`EngineConfig::with_mailbox`](crate::EngineConfig::with_mailbox)), or the server has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Undelivered {
    /// Subscribers that the message has reached.
    pub reached: usize,
    /// Subscribers that the message has not reached.
    pub lost: usize,
}

impl fmt::Display for Undelivered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reached, lost } = self;
        write!(
            f,
            "publication not delivered to {lost} of {} subscribers: mailbox is full \
             (`EngineConfig::with_mailbox`) or the server has ended",
            reached + lost
        )
    }
}

impl std::error::Error for Undelivered {}

/// Error from a [`Publisher`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PublishError {
    /// The name cannot be published to.
    Topic(InvalidTopic),
    /// The publication did not reach every thread.
    Undelivered(Undelivered),
}

impl From<InvalidTopic> for PublishError {
    fn from(invalid: InvalidTopic) -> Self {
        Self::Topic(invalid)
    }
}

impl From<Undelivered> for PublishError {
    fn from(undelivered: Undelivered) -> Self {
        Self::Undelivered(undelivered)
    }
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topic(invalid) => invalid.fmt(f),
            Self::Undelivered(undelivered) => undelivered.fmt(f),
        }
    }
}

impl std::error::Error for PublishError {}
