//! One thread's topics: their names, and what the thread stores for each.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use sinews_engine::{ConnId, Post};
use sinews_session::Prepared;
use slab::Slab;
use smallvec::SmallVec;

use super::config::TopicConfig;
use super::conn_lists::ConnLists;
use super::counters::TopicCounters;
use super::directory::Directory;
use super::entry::TopicEntry;
use super::history::progress::TopicProgress;
use super::keyed::local::LocalKeyed;
use super::local_names::LocalNames;
use super::name::{self, InvalidTopic};
use super::presence::local::LocalPresence;
use super::presence::member::{CHANGES_MAX, MEMBERS_MAX, PRESENCE_INTERVAL};
use super::publisher::Publisher;
use super::rule::{RuleId, TopicRules};
use crate::topics::mail::Mail;

/// One thread's topics.
///
/// A topic name consists of parts separated by dots. A subscription may contain the NATS wildcards: the part `*`
/// matches any one part, `>` at the end matches one or more. `prices.*.eur` matches `prices.gold.eur`, `prices.>`
/// matches that and `prices.gold`, but not `prices`. A wildcard is a whole part: `a*` is an ordinary name.
///
/// Publications are queued and delivered after the running callback has returned, in order, within the turn's budget
/// ([`TopicConfig`]); other threads receive them by mail. A connection with overlapping subscriptions gets a message
/// once. Threads share the names and each thread's subscriber counts. Counts need no lock. Names are locked when a
/// thread's first subscriber joins or its last leaves, and when a thread publishes to a topic without a local
/// subscriber. Each thread caches the patterns that match a topic until a pattern is added or removed.
#[derive(Debug)]
pub struct Topics {
    pub(super) shard: usize,
    /// This thread's topics and patterns, by name.
    names: LocalNames,
    pub(super) topics: Slab<Topic>,
    /// A connection's first three are stored in place: many have two topics, and watch one topic's members.
    pub(super) subscriptions: ConnLists<[SubscriberIndex; 3]>,
    pub(super) config: TopicConfig,
    pub(super) publications: VecDeque<QueuedPublication>,
    /// Queued payload bytes.
    pub(super) queued_bytes: usize,
    /// Messages that this thread has put into its own mailbox since it was last read.
    pub(super) mailed: usize,
    /// Whether any topic has history.
    pub(super) has_history: bool,
    /// Set by each publication, cleared by [`take_published`](Self::take_published).
    pub(super) published: bool,
    /// Maximum publication queue length so far.
    #[cfg(test)]
    pub(crate) max_queued: usize,
    pub(super) scratch: Vec<ConnId>,
    /// By connection index: the last subscriber list that contains it.
    pub(super) listed: Vec<u32>,
    /// The same by slot, for sockets on streams.
    pub(super) listed_streams: Vec<u32>,
    pub(super) list: u32,
    pub(crate) counters: TopicCounters,
    pub(super) presence: LocalPresence,
    pub(super) keyed: LocalKeyed,
    pub(super) directory: Arc<Directory>,
    pub(super) posts: Arc<[Post<Mail>]>,
    /// Generation that the directory's patterns had when the routes were built.
    pub(super) generation: u64,
    pub(super) any_patterns: bool,
    /// Topics with a route.
    pub(super) routed: Vec<usize>,
}

/// Topic or pattern.
#[derive(Debug)]
pub(super) struct Topic {
    pub(super) entry: Arc<TopicEntry>,
    /// Two are stored in place: there may be a topic for each connection.
    pub(super) subscribers: SmallVec<[ConnId; 2]>,
    /// References by publications and a route: its index must not be reused before they end.
    pub(super) references: u32,
    pub(super) rule: RuleId,
    pub(super) is_pattern: bool,
    /// One pointer, since there may be a topic for each connection.
    extension: Option<Box<TopicExtension>>,
}

/// What topics with publications or with a history have.
#[derive(Debug, Default)]
struct TopicExtension {
    /// Cached patterns that match it, if it was published to recently.
    route: Option<Route>,
    /// Its history's progress, if it has one and a local subscriber by name.
    progress: Option<TopicProgress>,
}

impl Topic {
    pub(super) fn route(&self) -> Option<&Route> {
        self.extension.as_ref()?.route.as_ref()
    }

    pub(super) fn set_route(&mut self, route: Option<Route>) {
        self.extend(|extension| extension.route = route);
    }

    pub(super) fn progress(&self) -> Option<&TopicProgress> {
        self.extension.as_ref()?.progress.as_ref()
    }

    pub(super) fn progress_mut(&mut self) -> Option<&mut TopicProgress> {
        self.extension.as_mut()?.progress.as_mut()
    }

    /// The progress and the entry, which are used together.
    pub(super) fn entry_and_progress(&mut self) -> (&Arc<TopicEntry>, Option<&mut TopicProgress>) {
        (&self.entry, self.extension.as_mut().and_then(|extension| extension.progress.as_mut()))
    }

    pub(super) fn progress_or_default(&mut self) -> &mut TopicProgress {
        self.extension.get_or_insert_default().progress.get_or_insert_default()
    }

    pub(super) fn set_progress(&mut self, progress: Option<TopicProgress>) {
        self.extend(|extension| extension.progress = progress);
    }

    /// Changes the extension, and frees an empty one.
    fn extend(&mut self, change: impl FnOnce(&mut TopicExtension)) {
        let mut extension = self.extension.take().unwrap_or_default();
        change(&mut extension);
        let is_empty = extension.route.is_none() && extension.progress.is_none();
        self.extension = Some(extension).filter(|_| !is_empty);
    }
}

/// Patterns that match a topic.
#[derive(Debug)]
pub(super) struct Route {
    /// Patterns with subscribers on this thread, ordered by index.
    pub(super) local: Box<[usize]>,
    /// All threads' patterns.
    pub(super) all: Box<[Arc<TopicEntry>]>,
}

/// A connection's index among a topic's subscribers. Topic numbers do not exceed 31 bits, connection numbers 32.
#[derive(Debug)]
pub(super) struct SubscriberIndex {
    /// With [`PRESENT`] in its first bit.
    topic: u32,
    at: u32,
}

/// Marks a subscription whose connection is present in its topic without a member: such a presence needs no entry of
/// its own.
const PRESENT: u32 = 1 << 31;

impl SubscriberIndex {
    /// Returns the index, unless a number exceeds 32 bits.
    pub(super) fn new(topic: usize, at: usize) -> Option<Self> {
        let topic = u32::try_from(topic).ok().filter(|topic| topic & PRESENT == 0)?;
        Some(Self { topic, at: at.try_into().ok()? })
    }

    pub(super) fn topic(&self) -> usize {
        (self.topic & !PRESENT) as usize
    }

    pub(super) fn is_present(&self) -> bool {
        self.topic & PRESENT != 0
    }

    /// Sets whether the connection is present in the topic without a member. Returns whether it was.
    pub(super) fn set_present(&mut self, is_present: bool) -> bool {
        let was_present = self.is_present();
        self.topic = if is_present { self.topic | PRESENT } else { self.topic & !PRESENT };
        was_present
    }

    pub(super) fn at(&self) -> usize {
        self.at as usize
    }

    /// Takes a removed subscriber's index in the topic.
    pub(super) fn move_to(&mut self, removed: &Self) {
        self.at = removed.at;
    }
}

/// Message for this thread's subscribers.
#[derive(Debug)]
pub(crate) struct QueuedPublication {
    pub(crate) topic: usize,
    pub(crate) message: Prepared,
    pub(crate) except: Option<ConnId>,
    /// Its sequence in a topic with history; otherwise 0.
    pub(crate) sequence: u64,
}

/// Returns the topic names by index.
#[inline]
fn name_in<'a>(topics: &'a Slab<Topic>) -> impl Fn(usize) -> &'a str {
    move |index| topics.get(index).map_or("", |topic| &topic.entry.name)
}

impl Topics {
    /// Maximum name length in bytes: enough for any path, and a bound on memory that clients can use.
    pub const NAME_MAX: usize = name::NAME_MAX;

    /// Maximum subscriptions for one connection: bounds the cost when it closes.
    pub const SUBSCRIPTIONS_MAX: usize = name::SUBSCRIPTIONS_MAX;

    /// Maximum steps to match a name against all subscribers' patterns, each a look at one part: some tens of
    /// microseconds. A pattern that could lead to more is rejected ([`InvalidTopic::TooAmbiguous`]).
    pub const MATCH_STEPS_MAX: usize = name::MATCH_STEPS_MAX;

    /// A pattern with at most this many parts is never rejected for [`MATCH_STEPS_MAX`](Self::MATCH_STEPS_MAX): all
    /// such patterns together take half its steps.
    pub const FREE_PARTS: usize = name::FREE_PARTS;

    /// Default minimum interval between a topic's presence updates ([`PresenceInterval`](crate::PresenceInterval)): 100
    /// ms. At most ten messages a second for each watcher, however many members join and leave.
    pub const PRESENCE_INTERVAL: Duration = PRESENCE_INTERVAL;

    /// Maximum members that one presence update lists; with more changes it has the numbers only. 16,384: the members
    /// that change within some seconds in a large topic. Their ids and infos are limited to 512 KiB, which fits into a
    /// watcher's queue.
    pub const PRESENCE_CHANGES_MAX: usize = CHANGES_MAX;

    /// Maximum members that [`members`](Self::members) returns at once: 1,000, since the lock for all presence is held
    /// meanwhile.
    pub const MEMBERS_MAX: usize = MEMBERS_MAX;

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
            names: LocalNames::default(),
            topics: Slab::new(),
            subscriptions: ConnLists::default(),
            config,
            publications: VecDeque::new(),
            queued_bytes: 0,
            mailed: 0,
            has_history: directory.rules.any_history(),
            published: false,
            #[cfg(test)]
            max_queued: 0,
            scratch: Vec::new(),
            listed: Vec::new(),
            listed_streams: Vec::new(),
            list: 0,
            counters: TopicCounters::default(),
            presence: LocalPresence::default(),
            keyed: LocalKeyed::default(),
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

    /// Returns the index for a topic or pattern on this thread.
    #[inline]
    pub(super) fn index_of(&self, name: &str) -> Option<usize> {
        self.names.get(name, name_in(&self.topics))
    }

    pub(super) fn insert(&mut self, entry: Arc<TopicEntry>) -> usize {
        let is_pattern = name::is_pattern(&entry.name);
        if is_pattern {
            // Other threads may have the pattern already, so the directory reports no change.
            self.clear_routes();
        }
        let rule = self.directory.rule_of(&entry.name);
        let subscribers = SmallVec::new();
        let topic = self.topics.insert(Topic {
            entry,
            subscribers,
            references: 0,
            rule,
            is_pattern,
            extension: None,
        });
        self.names.insert(topic, name_in(&self.topics));
        topic
    }

    /// Replaces a topic's entry by another one with its name.
    pub(super) fn replace_entry(&mut self, topic: usize, entry: Arc<TopicEntry>) {
        self.topics[topic].entry = entry;
    }

    /// Removes a topic without subscribers, unless it is still referenced.
    pub(super) fn prune(&mut self, topic: usize) {
        if self.topics.get(topic).is_some_and(|topic| topic.references == 0 && topic.subscribers.is_empty()) {
            let index = topic;
            let topic = self.topics.remove(index);
            self.names.remove(index, &topic.entry.name);
            self.directory.release(&topic.entry);
            if topic.is_pattern {
                self.clear_routes();
            }
        }
    }

    /// Sends mail to a thread. Returns whether its mailbox had capacity.
    pub(crate) fn send_mail(&self, thread: usize, mail: Mail) -> bool {
        self.posts[thread].send(mail).is_ok()
    }

    pub(crate) fn rules(&self) -> &TopicRules {
        &self.directory.rules
    }

    /// Returns this thread's topic counters.
    #[must_use]
    pub fn counters(&self) -> TopicCounters {
        self.counters
    }

    pub(crate) fn config(&self) -> &TopicConfig {
        &self.config
    }

    #[inline]
    pub(crate) fn counters_ref(&self) -> &TopicCounters {
        &self.counters
    }
}
