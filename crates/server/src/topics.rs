//! Topics: by exact name and by pattern, with local subscribers and counts of the other threads' subscribers.

pub(crate) mod backlog;
mod config;
mod counters;
mod directory;
mod epochs;
mod eviction;
mod history;
mod name;
mod presence;
mod publisher;
mod resume;
mod rule;
mod shelf;
mod trie;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustc_hash::FxHashMap;
use sinews_engine::{ConnId, Post};
use sinews_session::{Prepared, Tx};
use slab::Slab;

use self::backlog::Backlog;
pub use self::config::TopicConfig;
pub use self::counters::TopicCounters;
use self::directory::Audience;
pub(crate) use self::directory::Directory;
use self::directory::Entry;
pub use self::history::{History, Joined, KeptMessage, KeptTopic, Position, Start};
pub use self::name::InvalidTopic;
pub use self::presence::SubscriptionChange;
pub use self::publisher::{PublishError, Publisher, Unreached};
use self::resume::Heard;
pub(crate) use self::rule::{RuleId, Rules};
pub use self::rule::{SlowConsumer, TopicRule};
use crate::mail::{Mail, Published};

/// Topics of one thread.
///
/// A topic name consists of tokens separated by dots. A subscription may contain the wildcards of NATS: the token `*`
/// matches any one token, `>` at the end matches one or more. `prices.*.eur` matches `prices.gold.eur`, `prices.>`
/// matches that and `prices.gold`, but not `prices`. A wildcard is a whole token: `a*` is an ordinary name.
///
/// Publications are queued and delivered after the running callback has returned, in order, within the turn's budget
/// ([`TopicConfig`]); other threads receive them by mail. A connection with overlapping subscriptions gets a message
/// once. Threads share the names and the subscriber counts of each thread. Counts need no lock. Names are locked when
/// a thread's first subscriber joins or its last leaves, and when a thread publishes to a topic without a local
/// subscriber. Each thread caches the patterns that match a topic until a pattern is added or removed.
#[derive(Debug)]
pub struct Topics {
    shard: usize,
    /// Topics and patterns of this thread. Names are chosen by clients, so their hash is keyed.
    names: HashMap<Arc<str>, usize>,
    topics: Slab<Topic>,
    subscriptions: FxHashMap<ConnId, Vec<Subscription>>,
    config: TopicConfig,
    publications: VecDeque<Publication>,
    /// Payload bytes of the queued publications.
    waiting_bytes: usize,
    /// Messages that this thread has put into its own mailbox since it was last read.
    mailed: usize,
    /// Whether any topic has history.
    keeps: bool,
    /// Set by each publication, cleared by [`take_published`](Self::take_published).
    published: bool,
    /// Maximum length of the publication queue so far.
    #[cfg(test)]
    pub(crate) most_waiting: usize,
    scratch: Vec<ConnId>,
    /// By the index of a connection: the last subscriber list that contains it.
    listed: Vec<u32>,
    list: u32,
    pub(crate) counters: TopicCounters,
    /// Changes to report to handlers.
    changes: Vec<(ConnId, SubscriptionChange)>,
    directory: Arc<Directory>,
    posts: Arc<[Post<Mail>]>,
    /// Generation of the directory's patterns from which the routes were built.
    generation: u64,
    any_patterns: bool,
    /// Topics with a route.
    routed: Vec<usize>,
}

/// Topic or pattern.
#[derive(Debug)]
struct Topic {
    entry: Arc<Entry>,
    subscribers: Vec<ConnId>,
    /// References by publications and a route: its index must not be reused before they end.
    awaited: u32,
    rule: RuleId,
    /// Cached patterns that match it, if it was published to recently.
    route: Option<Box<Route>>,
    /// Progress of its history, if it has one and a local subscriber by name.
    heard: Option<Box<Heard>>,
}

/// Patterns that match a topic.
#[derive(Debug)]
struct Route {
    /// Patterns with subscribers on this thread, in order of their indices.
    local: Box<[usize]>,
    /// Patterns of all threads.
    all: Box<[Arc<Entry>]>,
}

/// Index of a connection among a topic's subscribers.
#[derive(Debug)]
struct Subscription {
    topic: usize,
    at: usize,
}

/// Message for the subscribers of this thread.
#[derive(Debug)]
pub(crate) struct Publication {
    pub(crate) topic: usize,
    pub(crate) message: Prepared,
    pub(crate) except: Option<ConnId>,
    /// Its sequence in a topic with history; otherwise 0.
    pub(crate) sequence: u64,
}

/// Maximum number of topics per thread with cached patterns; for further topics, patterns are matched again.
const ROUTES_MAX: usize = 4_096;

impl Topics {
    /// Maximum length of a name in bytes: enough for any path, and a bound on memory that clients can use.
    pub const NAME_MAX: usize = 256;

    /// Maximum number of subscriptions of one connection: bounds the cost of its close.
    pub const SUBSCRIPTIONS_MAX: usize = 1_024;

    /// Maximum number of steps to match a name against the patterns of all subscribers, each a look at one token:
    /// some tens of microseconds. A pattern that could lead to more is rejected ([`InvalidTopic::TooAmbiguous`]).
    pub const MATCH_STEPS_MAX: usize = 2_048;

    /// A pattern of at most this many tokens is never rejected for [`MATCH_STEPS_MAX`](Self::MATCH_STEPS_MAX): all
    /// such patterns together take half of its steps.
    pub const FREE_TOKENS: usize = 9;

    /// Returns a handle that publishes from any thread.
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
            mailed: 0,
            keeps: directory.rules.keep(),
            published: false,
            #[cfg(test)]
            most_waiting: 0,
            scratch: Vec::new(),
            listed: Vec::new(),
            list: 0,
            counters: TopicCounters::default(),
            changes: Vec::new(),
            directory,
            posts,
            generation: 0,
            any_patterns: false,
            routed: Vec::new(),
        }
    }

    /// Checks whether `name` may be published to.
    ///
    /// # Errors
    /// [`InvalidTopic::Name`] and [`InvalidTopic::Wildcard`].
    pub fn check(name: &str) -> Result<(), InvalidTopic> {
        name::check(name)
    }

    /// Checks whether `name`, which may be a pattern, may be subscribed to.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn check_subscription(name: &str) -> Result<(), InvalidTopic> {
        name::check_subscription(name)
    }

    pub(crate) fn subscribe(&mut self, name: &str, conn: ConnId) -> Result<(), InvalidTopic> {
        name::check_subscription(name)?;
        let known = self.names.get(name).copied();
        if known.is_some_and(|topic| self.stands_at(topic, conn)) {
            return Ok(());
        }
        if self.subscriptions.get(&conn).is_some_and(|list| list.len() >= Self::SUBSCRIPTIONS_MAX) {
            return Err(InvalidTopic::TooMany);
        }
        let topic = match known {
            Some(topic) => {
                if self.topics[topic].subscribers.is_empty() {
                    // Another thread may have removed the entry of a topic without subscribers.
                    self.topics[topic].entry = self.directory.enter(name, self.shard)?;
                }
                topic
            }
            None => self.insert(self.directory.enter(name, self.shard)?),
        };
        if self.keeps && self.topics[topic].subscribers.is_empty() {
            self.begin_hearing(topic);
        }
        let topic_entry = &mut self.topics[topic];
        let subscriptions = self.subscriptions.entry(conn).or_default();
        subscriptions.push(Subscription { topic, at: topic_entry.subscribers.len() });
        topic_entry.subscribers.push(conn);
        self.count(topic);
        self.note_change(topic, conn, true);
        Ok(())
    }

    fn insert(&mut self, entry: Arc<Entry>) -> usize {
        if entry.is_pattern {
            // Other threads may have the pattern already, so the directory reports no change.
            self.forget_routes();
        }
        let (name, rule) = (entry.name.clone(), entry.rule);
        let subscribers = Vec::new();
        let topic =
            self.topics.insert(Topic { entry, subscribers, awaited: 0, rule, route: None, heard: None });
        self.names.insert(name, topic);
        topic
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

    /// Ends all subscriptions of a closed connection.
    pub(crate) fn unsubscribe_all(&mut self, conn: ConnId) {
        for subscription in self.subscriptions.remove(&conn).unwrap_or_default() {
            self.leave(subscription);
        }
    }

    /// Removes a subscriber by moving the last one into its index.
    fn leave(&mut self, left: Subscription) {
        let topic = &mut self.topics[left.topic];
        let gone = topic.subscribers.swap_remove(left.at);
        if let Some(heard) = &mut topic.heard {
            heard.joined.remove(&gone);
        }
        if topic.subscribers.is_empty() {
            topic.heard = None;
        }
        if let Some(&moved) = topic.subscribers.get(left.at) {
            let places = self.subscriptions.get_mut(&moved).into_iter().flatten();
            for place in places.filter(|place| place.topic == left.topic) {
                place.at = left.at;
            }
        }
        self.count(left.topic);
        self.note_change(left.topic, gone, false);
        self.prune(left.topic);
    }

    /// Removes a topic without subscribers, unless it is still referenced.
    fn prune(&mut self, topic: usize) {
        if self.topics.get(topic).is_some_and(|topic| topic.awaited == 0 && topic.subscribers.is_empty()) {
            let topic = self.topics.remove(topic);
            self.names.remove(&topic.entry.name);
            self.directory.forget(&topic.entry);
            if topic.entry.is_pattern {
                self.forget_routes();
            }
        }
    }

    fn count(&self, topic: usize) {
        let topic = &self.topics[topic];
        topic.entry.counts[self.shard].store(topic.subscribers.len(), Ordering::Relaxed);
    }

    fn stands_at(&self, topic: usize, conn: ConnId) -> bool {
        let subscriptions = self.subscriptions.get(&conn).into_iter().flatten();
        subscriptions.into_iter().any(|sub| sub.topic == topic)
    }

    /// Returns the index of a topic to publish to; `None` if no connection on this thread is subscribed to it by
    /// name, and no pattern of any thread matches it.
    pub(crate) fn resolve(&mut self, name: &str) -> Result<Option<usize>, InvalidTopic> {
        self.renew_routes();
        if let Some(&topic) = self.names.get(name) {
            if self.topics[topic].entry.is_pattern {
                return Err(InvalidTopic::Wildcard);
            }
            self.route(topic);
            return Ok(Some(topic));
        }
        name::check(name)?;
        let all = if self.any_patterns { self.directory.matching(name) } else { Box::default() };
        if all.is_empty() {
            return Ok(None);
        }
        let topic = self.insert(self.directory.unlisted(name));
        self.set_route(topic, all);
        Ok(Some(topic))
    }

    /// Clears the routes if patterns have changed.
    #[inline]
    fn renew_routes(&mut self) {
        let generation = self.directory.generation();
        if generation != self.generation {
            self.generation = generation;
            self.any_patterns = self.directory.has_patterns();
            self.forget_routes();
        }
    }

    /// Computes the patterns that match a topic, unless cached or without patterns.
    #[inline]
    fn route(&mut self, topic: usize) {
        if self.any_patterns && self.topics.get(topic).is_some_and(|topic| topic.route.is_none()) {
            let all = self.directory.matching(&self.topics[topic].entry.name);
            self.set_route(topic, all);
        }
    }

    #[cold]
    fn set_route(&mut self, topic: usize, all: Box<[Arc<Entry>]>) {
        // The reference keeps its index while other routes are removed.
        self.topics[topic].awaited += 1;
        if self.routed.len() >= ROUTES_MAX {
            self.forget_routes();
        }
        let mut local: Box<[usize]> =
            all.iter().filter_map(|pattern| self.names.get(&pattern.name)).copied().collect();
        local.sort_unstable();
        self.topics[topic].route = Some(Box::new(Route { local, all }));
        self.routed.push(topic);
    }

    fn forget_routes(&mut self) {
        for topic in std::mem::take(&mut self.routed) {
            self.topics[topic].route = None;
            self.topics[topic].awaited -= 1;
            self.prune(topic);
        }
    }

    /// Returns how many of a connection's subscriptions match a topic that was just resolved.
    pub(crate) fn reaches(&self, topic: usize, conn: ConnId) -> usize {
        let local = self.local(topic);
        let subscriptions = self.subscriptions.get(&conn).into_iter().flatten();
        let hears = |sub: &&Subscription| sub.topic == topic || local.binary_search(&sub.topic).is_ok();
        subscriptions.filter(hears).count()
    }

    /// Returns the patterns of this thread that match a topic.
    fn local(&self, topic: usize) -> &[usize] {
        let route = self.topics.get(topic).and_then(|topic| topic.route.as_ref());
        route.map_or(&[], |route| &*route.local)
    }

    /// Returns whether a connection is subscribed to a topic now.
    pub(crate) fn hears(&mut self, topic: usize, conn: ConnId) -> bool {
        self.renew_routes();
        self.route(topic);
        self.reaches(topic, conn) > 0
    }

    /// Publishes a message built from its position in the topic, if the topic has history ([`History`]), so that the
    /// message can contain the position. Otherwise as [`publish`](Self::publish). The topic is locked while the
    /// message is built: the callback must not publish.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub fn publish_with(
        &mut self,
        name: &str,
        make: impl FnOnce(Option<Position>) -> Prepared,
        except: Option<ConnId>,
    ) -> Result<usize, InvalidTopic> {
        let topic = self.resolve(name)?;
        Ok(self.publish_made(topic, name, make, except))
    }

    pub(crate) fn publish_made(
        &mut self,
        topic: Option<usize>,
        name: &str,
        make: impl FnOnce(Option<Position>) -> Prepared,
        except: Option<ConnId>,
    ) -> usize {
        if self.keeps(topic, name) {
            return self.publish_kept(topic, name, |position| make(Some(position)), except).unwrap_or(0);
        }
        self.publish_to(topic, name, &make(None), except)
    }

    /// Returns whether a topic has history.
    #[inline]
    pub(crate) fn keeps(&self, topic: Option<usize>, name: &str) -> bool {
        self.keeps
            && match topic.and_then(|topic| self.topics.get(topic)) {
                Some(topic) => topic.entry.keep.is_some(),
                None => self.directory.rules.history(name).is_some(),
            }
    }

    /// Returns the rule of a topic for slow subscribers.
    #[inline]
    pub(crate) fn rule(&self, topic: usize) -> RuleId {
        self.topics.get(topic).map_or(RuleId::NONE, |topic| topic.rule)
    }

    /// Returns the name of a topic, the rules, and the counters of drops.
    pub(crate) fn policy(&mut self, topic: usize) -> Option<(&Arc<str>, &Rules, &mut TopicCounters)> {
        let topic = self.topics.get(topic)?;
        Some((&topic.entry.name, &self.directory.rules, &mut self.counters))
    }

    /// Runs [`Backlog::make_way`].
    pub(crate) fn make_way(&mut self, backlog: &mut Backlog, tx: &mut Tx<'_>) {
        backlog.make_way(tx, &self.directory.rules, &mut self.counters);
    }

    /// Sends mail to a thread. Returns whether its mailbox had capacity.
    pub(crate) fn tell(&self, thread: usize, mail: Mail) -> bool {
        self.posts[thread].send(mail).is_ok()
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.directory.rules
    }

    /// Returns the counters of topics on this thread.
    #[must_use]
    pub fn counters(&self) -> TopicCounters {
        self.counters
    }

    /// Publishes to every subscriber on every thread, except one of this thread. Returns the number of matching
    /// subscriptions. A connection with overlapping subscriptions counts once for each, and gets the message once.
    ///
    /// # Errors
    /// [`InvalidTopic`]: the name cannot be published to.
    pub fn publish(
        &mut self,
        name: &str,
        message: &Prepared,
        except: Option<ConnId>,
    ) -> Result<usize, InvalidTopic> {
        let topic = self.resolve(name)?;
        Ok(self.publish_to(topic, name, message, except))
    }

    /// Publishes to a topic that was just resolved.
    pub(crate) fn publish_to(
        &mut self,
        topic: Option<usize>,
        name: &str,
        message: &Prepared,
        except: Option<ConnId>,
    ) -> usize {
        if self.keeps(topic, name)
            && let Some(reached) = self.publish_kept(topic, name, |_| message.clone(), except)
        {
            return reached;
        }
        self.counters.published += 1;
        let Some(local) = topic else {
            let Some(entry) = self.directory.find(name) else { return 0 };
            self.published = true;
            let audience = Audience { name: &entry.name, exact: Some(&entry), patterns: &[] };
            let (reached, lost) = self.post(audience, message);
            self.counters.lost += lost as u64;
            return reached;
        };
        self.published = true;
        let found = &self.topics[local];
        let elsewhere;
        let exact = if found.subscribers.is_empty() {
            // The local entry may differ from the entry of the other threads.
            elsewhere = self.directory.find(name);
            elsewhere.as_deref()
        } else {
            Some(&*found.entry)
        };
        let patterns = found.route.as_ref().map_or(&[][..], |route| &route.all);
        let (mut reached, lost) = self.post(Audience { name: &found.entry.name, exact, patterns }, message);
        reached += found.subscribers.len();
        reached +=
            self.local(local).iter().map(|pattern| self.topics[*pattern].subscribers.len()).sum::<usize>();
        reached -= except.map_or(0, |conn| self.reaches(local, conn));
        self.counters.lost += lost as u64;
        self.push(Publication { topic: local, message: message.clone(), except, sequence: 0 });
        reached
    }

    /// Sends a publication to the other threads.
    fn post(&self, audience: Audience<'_>, message: &Prepared) -> (usize, usize) {
        let (reached, lost) = audience.post(message, &self.posts, Some(self.shard));
        if lost > 0 {
            tracing::warn!(
                topic = &**audience.name,
                subscribers = lost,
                "mailbox full: publication dropped for its subscribers"
            );
        }
        (reached, lost)
    }

    /// Queues a publication of another thread.
    pub(crate) fn publish_here(&mut self, published: Published) {
        let Published { topic, message, position, except } = published;
        // The publishing thread has checked the name.
        let Ok(Some(topic)) = self.resolve(&topic) else { return };
        if position.is_none_or(|position| self.hear(topic, position)) {
            let sequence = position.map_or(0, |position| position.sequence);
            self.push(Publication { topic, message, except, sequence });
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
    pub(crate) fn counted(&self) -> &TopicCounters {
        &self.counters
    }

    /// Returns the number of queued publications, without the current one.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.publications.len()
    }

    /// Returns whether the publication queue is full.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.publications.len() + self.mailed >= self.config.max_waiting_messages
            || self.waiting_bytes >= self.config.max_waiting_bytes
    }

    /// Marks this thread as behind: its next turn follows at once.
    pub(crate) fn fall_behind(&self) {
        self.directory.behind[self.shard].store(true, Ordering::SeqCst);
        self.wake_own();
    }

    /// Marks this thread as caught up: publishers on other threads may resume.
    #[inline]
    pub(crate) fn catch_up(&self) {
        let behind = &self.directory.behind[self.shard];
        // Only this thread writes it.
        if behind.load(Ordering::Relaxed) {
            behind.store(false, Ordering::SeqCst);
            self.posts.iter().for_each(Post::wake);
        }
    }

    /// Returns whether any thread has queued publications. When the last has caught up, every thread is woken.
    pub(crate) fn is_any_behind(&self) -> bool {
        self.directory.behind.iter().any(|behind| behind.load(Ordering::SeqCst))
    }

    /// Makes the loop of this thread start its next turn without sleep.
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

    /// Returns the next publication and its current subscribers: a copy, since delivery may change them. Return the
    /// list to [`delivered`](Self::delivered).
    pub(crate) fn next_publication(&mut self) -> Option<(Publication, Vec<ConnId>)> {
        let publication = self.publications.pop_front()?;
        self.waiting_bytes -= publication.message.payload().len();
        self.renew_routes();
        self.route(publication.topic);
        let mut subscribers = std::mem::take(&mut self.scratch);
        if let Some(topic) = self.topics.get(publication.topic) {
            subscribers.extend_from_slice(&topic.subscribers);
        }
        if !self.local(publication.topic).is_empty() {
            self.add_by_pattern(publication.topic, &mut subscribers);
        }
        if publication.sequence > 0 {
            self.leave_to_history(publication.topic, publication.sequence, &mut subscribers);
        }
        Some((publication, subscribers))
    }

    /// Adds the subscribers of matching patterns, and removes duplicates from the list.
    #[cold]
    fn add_by_pattern(&mut self, topic: usize, subscribers: &mut Vec<ConnId>) {
        let exact = subscribers.len();
        for &pattern in self.local(topic) {
            subscribers.extend_from_slice(&self.topics[pattern].subscribers);
        }
        if exact == 0 && self.local(topic).len() == 1 {
            return;
        }
        self.list = self.list.checked_add(1).unwrap_or_else(|| {
            self.listed.fill(0);
            1
        });
        let (listed, list) = (&mut self.listed, self.list);
        subscribers.retain(|conn| {
            if listed.len() <= conn.index() {
                listed.resize(conn.index() + 1, 0);
            }
            std::mem::replace(&mut listed[conn.index()], list) != list
        });
    }

    /// Releases a delivered publication.
    pub(crate) fn delivered(&mut self, publication: Publication, mut subscribers: Vec<ConnId>) {
        self.topics[publication.topic].awaited -= 1;
        self.prune(publication.topic);
        subscribers.clear();
        self.scratch = subscribers;
    }
}
