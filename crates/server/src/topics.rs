//! Topics by exact name: subscribers on this thread, counts for the others.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashMap;
use sinews_engine::{ConnId, Post};
use sinews_session::Prepared;
use slab::Slab;

use crate::mail::Mail;

/// A subscription that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidTopic {
    /// Empty, longer than [`Topics::NAME_MAX`] bytes, or with a control character.
    Name,
    /// More than [`Topics::SUBSCRIPTIONS_MAX`] on one connection.
    TooMany,
}

impl fmt::Display for InvalidTopic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => {
                write!(f, "a topic name has 1 to {} bytes and no control characters", Topics::NAME_MAX)
            }
            Self::TooMany => {
                write!(f, "a connection has at most {} subscriptions", Topics::SUBSCRIPTIONS_MAX)
            }
        }
    }
}

impl std::error::Error for InvalidTopic {}

/// How much a thread publishes at a time, and how much may wait. [`Server::bind`](crate::Server::bind) refuses
/// what makes no sense.
///
/// A publication is delivered in the turn of the loop in which it was published, to everybody at once, as long
/// as the turn's budget lasts; the rest follows in the next turns. As long as something waits, on any thread, a
/// connection that publishes is not received from: TCP holds the publisher.
#[derive(Clone, Copy, Debug)]
pub struct TopicConfig {
    pub(crate) deliveries_per_turn: usize,
    pub(crate) max_waiting_messages: usize,
    pub(crate) max_waiting_bytes: usize,
}

impl Default for TopicConfig {
    fn default() -> Self {
        Self { deliveries_per_turn: 131_072, max_waiting_messages: 65_536, max_waiting_bytes: 16 << 20 }
    }
}

impl TopicConfig {
    /// Deliveries, each of one message to one subscriber, in one turn of a loop; then everybody else has a
    /// turn. At least 1. Default 131,072, which takes about as long as a send to each of 1,000 subscribers, some
    /// milliseconds: fewer make others wait little less, and more sends of the same messages.
    #[must_use]
    pub fn with_deliveries_per_turn(mut self, deliveries: usize) -> Self {
        self.deliveries_per_turn = deliveries;
        self
    }

    /// Messages that may wait on one thread for turns to come. Default 65,536, as many as the mailbox takes.
    /// At this many, a connection that publishes stops in the middle of its input, and what other threads
    /// publish is delivered whatever the budget, so that nothing is lost and the loop is late instead.
    #[must_use]
    pub fn with_max_waiting_messages(mut self, messages: usize) -> Self {
        self.max_waiting_messages = messages;
        self
    }

    /// Bytes of payload that may wait on one thread for turns to come, with the same consequence as too many
    /// [messages](Self::with_max_waiting_messages). Default 16 MiB: one message of the default limit.
    #[must_use]
    pub fn with_max_waiting_bytes(mut self, bytes: usize) -> Self {
        self.max_waiting_bytes = bytes;
        self
    }

    /// Whether the settings make sense; otherwise what does not.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.deliveries_per_turn == 0 {
            return Err("deliveries_per_turn must be at least 1");
        }
        Ok(())
    }
}

/// The topics of one thread.
///
/// A publish is recorded and carried out when the running callback has returned, in order, as far as the
/// turn's budget goes ([`TopicConfig`]); other threads get it by mail. The names and the counts of subscribers of each thread are shared: the
/// counts without a lock, the names under one, when a thread's first subscriber comes or its last goes and when a
/// thread publishes to a topic that it has no subscriber of.
#[derive(Debug)]
pub struct Topics {
    shard: usize,
    /// Names come from strangers, so their hash is keyed.
    names: HashMap<Arc<str>, usize>,
    topics: Slab<Topic>,
    subscriptions: FxHashMap<ConnId, Vec<Subscription>>,
    config: TopicConfig,
    publications: VecDeque<Publication>,
    /// Their payloads.
    waiting_bytes: usize,
    /// Messages that got no further than a full mailbox, for each subscriber behind it.
    lost: u64,
    /// Something was published since [`take_published`](Self::take_published).
    published: bool,
    /// Most publications that ever waited.
    #[cfg(test)]
    pub(crate) most_waiting: usize,
    scratch: Vec<ConnId>,
    directory: Arc<Directory>,
    posts: Arc<[Post<Mail>]>,
}

#[derive(Debug)]
struct Topic {
    entry: Arc<Entry>,
    subscribers: Vec<ConnId>,
    /// Publications that refer to it: its place must not be taken by another before.
    awaited: usize,
}

/// Where a connection stands among a topic's subscribers.
#[derive(Debug)]
struct Subscription {
    topic: usize,
    at: usize,
}

/// A message on its way to the subscribers of this thread.
#[derive(Debug)]
pub(crate) struct Publication {
    pub(crate) topic: usize,
    pub(crate) message: Prepared,
    pub(crate) except: Option<ConnId>,
}

/// The topics of all threads.
#[derive(Debug)]
pub(crate) struct Directory {
    shards: usize,
    entries: Mutex<HashMap<Arc<str>, Arc<Entry>>>,
    /// Threads on which publications wait.
    behind: Box<[AtomicBool]>,
}

#[derive(Debug)]
struct Entry {
    name: Arc<str>,
    /// Subscribers on each thread.
    counts: Box<[AtomicUsize]>,
}

impl Topics {
    /// Longest name in bytes: enough for any path, and it bounds what a stranger can make us keep.
    pub const NAME_MAX: usize = 256;

    /// Most subscriptions of one connection: bounds what closing it costs.
    pub const SUBSCRIPTIONS_MAX: usize = 1_024;

    /// A handle that publishes from any thread.
    #[must_use]
    pub fn publisher(&self) -> Publisher {
        Publisher::new(Arc::clone(&self.directory), Arc::clone(&self.posts))
    }

    pub(crate) fn new(
        shard: usize,
        config: TopicConfig,
        directory: Arc<Directory>,
        posts: Arc<[Post<Mail>]>,
    ) -> Self {
        Self {
            shard,
            names: HashMap::new(),
            topics: Slab::new(),
            subscriptions: FxHashMap::default(),
            config,
            publications: VecDeque::new(),
            waiting_bytes: 0,
            lost: 0,
            published: false,
            #[cfg(test)]
            most_waiting: 0,
            scratch: Vec::new(),
            directory,
            posts,
        }
    }

    /// Whether `name` may name a topic.
    #[must_use]
    pub fn is_valid(name: &str) -> bool {
        (1..=Self::NAME_MAX).contains(&name.len()) && !name.chars().any(char::is_control)
    }

    pub(crate) fn subscribe(&mut self, name: &str, conn: ConnId) -> Result<(), InvalidTopic> {
        if !Self::is_valid(name) {
            return Err(InvalidTopic::Name);
        }
        if self.is_subscribed(name, conn) {
            return Ok(());
        }
        let subscriptions = self.subscriptions.entry(conn).or_default();
        if subscriptions.len() >= Self::SUBSCRIPTIONS_MAX {
            return Err(InvalidTopic::TooMany);
        }
        let topic = match self.names.get(name) {
            Some(topic) => {
                let topic = *topic;
                if self.topics[topic].subscribers.is_empty() {
                    // Kept for a publication only: the other threads may have forgotten it.
                    self.topics[topic].entry = self.directory.enter(name, self.shard);
                }
                topic
            }
            None => {
                let entry = self.directory.enter(name, self.shard);
                let key = entry.name.clone();
                let topic = self.topics.insert(Topic { entry, subscribers: Vec::new(), awaited: 0 });
                self.names.insert(key, topic);
                topic
            }
        };
        let subscribers = &mut self.topics[topic].subscribers;
        subscriptions.push(Subscription { topic, at: subscribers.len() });
        subscribers.push(conn);
        self.count(topic);
        Ok(())
    }

    pub(crate) fn unsubscribe(&mut self, name: &str, conn: ConnId) -> bool {
        let Some(&topic) = self.names.get(name) else { return false };
        let Some(subscriptions) = self.subscriptions.get_mut(&conn) else { return false };
        let Some(place) = subscriptions.iter().position(|sub| sub.topic == topic) else { return false };
        let subscription = subscriptions.swap_remove(place);
        if subscriptions.is_empty() {
            self.subscriptions.remove(&conn);
        }
        self.leave(subscription);
        true
    }

    /// The connection is over.
    pub(crate) fn unsubscribe_all(&mut self, conn: ConnId) {
        for subscription in self.subscriptions.remove(&conn).unwrap_or_default() {
            self.leave(subscription);
        }
    }

    /// Takes a subscriber out by putting the last one into its place.
    fn leave(&mut self, left: Subscription) {
        let topic = &mut self.topics[left.topic];
        topic.subscribers.swap_remove(left.at);
        if let Some(&moved) = topic.subscribers.get(left.at) {
            let places = self.subscriptions.get_mut(&moved).into_iter().flatten();
            for place in places.filter(|place| place.topic == left.topic) {
                place.at = left.at;
            }
        }
        self.count(left.topic);
        self.prune(left.topic);
    }

    /// Forgets a topic without subscribers, unless a publication still refers to it.
    fn prune(&mut self, topic: usize) {
        if self.topics.get(topic).is_some_and(|topic| topic.awaited == 0 && topic.subscribers.is_empty()) {
            let topic = self.topics.remove(topic);
            self.names.remove(&topic.entry.name);
            self.directory.forget(&topic.entry);
        }
    }

    fn count(&self, topic: usize) {
        let topic = &self.topics[topic];
        topic.entry.counts[self.shard].store(topic.subscribers.len(), Ordering::Relaxed);
    }

    pub(crate) fn is_subscribed(&self, name: &str, conn: ConnId) -> bool {
        self.names.get(name).is_some_and(|topic| self.subscribes(*topic, conn))
    }

    pub(crate) fn subscribes(&self, topic: usize, conn: ConnId) -> bool {
        self.subscriptions
            .get(&conn)
            .is_some_and(|subscriptions| subscriptions.iter().any(|sub| sub.topic == topic))
    }

    /// Publishes to every subscriber on every thread, except one of this thread. Answers how many there
    /// are.
    pub fn publish(&mut self, name: &str, message: &Prepared, except: Option<ConnId>) -> usize {
        let except = except.filter(|conn| self.is_subscribed(name, *conn));
        let local = self.names.get(name).copied();
        let entry = match local {
            Some(topic) => Some(self.topics[topic].entry.clone()),
            None => self.directory.find(name),
        };
        let Some(entry) = entry else { return 0 };
        self.published = true;
        let (mut reached, lost) = entry.post(message, &self.posts, Some(self.shard));
        if lost > 0 {
            self.lost += lost as u64;
            tracing::warn!(topic = name, subscribers = lost, "mailbox full: a publication is lost there");
        }
        if let Some(topic) = local {
            reached += self.topics[topic].subscribers.len() - usize::from(except.is_some());
            self.push(Publication { topic, message: message.clone(), except });
        }
        reached
    }

    /// A publication of another thread.
    pub(crate) fn publish_here(&mut self, name: &str, message: Prepared) {
        if let Some(&topic) = self.names.get(name) {
            self.push(Publication { topic, message, except: None });
        }
    }

    fn push(&mut self, publication: Publication) {
        self.topics[publication.topic].awaited += 1;
        self.waiting_bytes += publication.message.payload().len();
        self.publications.push_back(publication);
        #[cfg(test)]
        {
            self.most_waiting = self.most_waiting.max(self.publications.len());
        }
    }

    pub(crate) fn config(&self) -> &TopicConfig {
        &self.config
    }

    #[inline]
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Publications that wait, but for one that is under way.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.publications.len()
    }

    /// Whether as much waits as may.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.publications.len() >= self.config.max_waiting_messages
            || self.waiting_bytes >= self.config.max_waiting_bytes
    }

    /// Publications wait on this thread: its next turn comes at once.
    pub(crate) fn fall_behind(&self) {
        self.directory.behind[self.shard].store(true, Ordering::SeqCst);
        self.wake_own();
    }

    /// Nothing waits on this thread any more: who is held back on others may go on.
    #[inline]
    pub(crate) fn catch_up(&self) {
        let behind = &self.directory.behind[self.shard];
        // Written by this thread only.
        if behind.load(Ordering::Relaxed) {
            behind.store(false, Ordering::SeqCst);
            self.posts.iter().for_each(Post::wake);
        }
    }

    /// Whether publications wait on any thread. When none does any more, every thread is woken.
    pub(crate) fn is_any_behind(&self) -> bool {
        self.directory.behind.iter().any(|behind| behind.load(Ordering::SeqCst))
    }

    /// The loop of this thread does not sleep before its next turn.
    pub(crate) fn wake_own(&self) {
        self.posts[self.shard].wake();
    }

    #[inline]
    pub(crate) fn has_published(&self) -> bool {
        self.published
    }

    pub(crate) fn take_published(&mut self) -> bool {
        std::mem::take(&mut self.published)
    }

    /// The next publication, with its subscribers as they are now: copied, since delivering may change
    /// them. Hand the list back to [`delivered`](Self::delivered).
    pub(crate) fn next_publication(&mut self) -> Option<(Publication, Vec<ConnId>)> {
        let publication = self.publications.pop_front()?;
        self.waiting_bytes -= publication.message.payload().len();
        let mut subscribers = std::mem::take(&mut self.scratch);
        if let Some(topic) = self.topics.get(publication.topic) {
            subscribers.extend_from_slice(&topic.subscribers);
        }
        Some((publication, subscribers))
    }

    pub(crate) fn delivered(&mut self, publication: Publication, mut subscribers: Vec<ConnId>) {
        self.topics[publication.topic].awaited -= 1;
        self.prune(publication.topic);
        subscribers.clear();
        self.scratch = subscribers;
    }
}

impl Entry {
    /// Posts a message to every thread with subscribers, but for one. Answers how many of them it will reach,
    /// and how many it will not, since their thread's mailbox is full.
    fn post(&self, message: &Prepared, posts: &[Post<Mail>], except: Option<usize>) -> (usize, usize) {
        let (mut reached, mut lost) = (0, 0);
        for (shard, count) in self.counts.iter().enumerate() {
            let count = count.load(Ordering::Relaxed);
            if count == 0 || Some(shard) == except {
                continue;
            }
            let mail = Mail::Publish { topic: self.name.clone(), message: message.clone() };
            match posts[shard].send(mail) {
                Ok(()) => reached += count,
                Err(_) => lost += count,
            }
        }
        (reached, lost)
    }
}

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
    /// [`Unreached`] if the mailbox of a thread with subscribers is full, or the server has ended.
    pub fn publish(&self, topic: &str, message: &Prepared) -> Result<usize, Unreached> {
        let Some(entry) = self.directory.find(topic) else { return Ok(0) };
        match entry.post(message, &self.posts, None) {
            (reached, 0) => Ok(reached),
            (reached, lost) => Err(Unreached { reached, lost }),
        }
    }
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

impl Directory {
    pub(crate) fn new(shards: usize) -> Arc<Self> {
        let behind = (0..shards).map(|_| AtomicBool::new(false)).collect();
        Arc::new(Self { shards, entries: Mutex::default(), behind })
    }

    /// The entry of a topic that gets its first subscriber on a thread.
    fn enter(&self, name: &str, shard: usize) -> Arc<Entry> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.get(name) {
            // Marked while the lock is held, so that nobody forgets it meanwhile.
            entry.counts[shard].store(1, Ordering::Relaxed);
            return entry.clone();
        }
        let name: Arc<str> = name.into();
        let counts: Box<[AtomicUsize]> = (0..self.shards).map(|_| AtomicUsize::new(0)).collect();
        counts[shard].store(1, Ordering::Relaxed);
        let entry = Arc::new(Entry { name: name.clone(), counts });
        entries.insert(name, entry.clone());
        entry
    }

    fn find(&self, name: &str) -> Option<Arc<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Drops a topic that nobody is subscribed to any more.
    fn forget(&self, entry: &Arc<Entry>) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have forgotten it first, and a third begun it anew.
        let is_listed = entries.get(&entry.name).is_some_and(|listed| Arc::ptr_eq(listed, entry));
        if is_listed && entry.counts.iter().all(|count| count.load(Ordering::Relaxed) == 0) {
            entries.remove(&entry.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads forget a topic, and a third begins it anew in between.
    #[test]
    fn forgetting_late_leaves_a_new_topic_alone() {
        let directory = Directory::new(3);
        let old = directory.enter("t", 0);
        assert!(Arc::ptr_eq(&old, &directory.enter("t", 1)));
        for count in &old.counts {
            count.store(0, Ordering::Relaxed);
        }
        directory.forget(&old);
        assert!(directory.find("t").is_none());
        let new = directory.enter("t", 2);
        directory.forget(&old);
        assert!(directory.find("t").is_some_and(|found| Arc::ptr_eq(&found, &new)));
    }

    #[test]
    fn a_topic_with_subscribers_anywhere_is_kept() {
        let directory = Directory::new(2);
        let entry = directory.enter("t", 0);
        directory.enter("t", 1);
        entry.counts[0].store(0, Ordering::Relaxed);
        directory.forget(&entry);
        assert!(directory.find("t").is_some());
    }
}
