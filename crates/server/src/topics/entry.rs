//! A topic or pattern as all threads see it, and the recipients of a publication.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sinews_engine::{ConnId, Post};
use sinews_session::Prepared;

use super::history::log::TopicHistory;
use super::rule::RuleId;
use crate::mail::Mail;

/// A connection as a subscriber, on any thread of its server: [`Context::subscriber_id`](crate::Context::subscriber_id).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SubscriberId {
    pub(crate) shard: usize,
    pub(crate) conn: ConnId,
}

/// Topic, or pattern of topics.
#[derive(Debug)]
pub(crate) struct TopicEntry {
    pub(crate) name: Arc<str>,
    pub(crate) is_pattern: bool,
    /// Its rule for slow subscribers.
    pub(crate) rule: RuleId,
    /// Its history, if its rule has one.
    pub(crate) history: Option<Box<TopicHistory>>,
    /// Number of subscribers on each thread.
    pub(crate) counts: ThreadCounts,
}

/// A number of each thread.
#[derive(Debug)]
pub(crate) enum ThreadCounts {
    /// Of at most four threads. There may be as many topics as connections, and a number in place takes less memory.
    Few([AtomicU32; 4]),
    Many(Box<[AtomicU32]>),
}

impl ThreadCounts {
    pub(crate) fn new(threads: usize) -> Self {
        let few = Self::Few(Default::default());
        match threads <= few.numbers().len() {
            true => few,
            false => Self::Many((0..threads).map(|_| AtomicU32::new(0)).collect()),
        }
    }

    fn numbers(&self) -> &[AtomicU32] {
        match self {
            Self::Few(numbers) => numbers,
            Self::Many(numbers) => numbers,
        }
    }

    pub(crate) fn get(&self, thread: usize) -> usize {
        self.numbers()[thread].load(Ordering::Relaxed) as usize
    }

    pub(crate) fn set(&self, thread: usize, count: usize) {
        self.numbers()[thread].store(u32::try_from(count).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Returns the sum of all threads.
    pub(crate) fn total(&self) -> usize {
        self.numbers().iter().map(|count| count.load(Ordering::Relaxed) as usize).sum()
    }
}

/// An entry in a table by its name.
#[derive(Clone, Debug)]
pub(super) struct NamedEntry(pub(super) Arc<TopicEntry>);

impl Borrow<str> for NamedEntry {
    fn borrow(&self) -> &str {
        &self.0.name
    }
}

impl Hash for NamedEntry {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
    }
}

impl PartialEq for NamedEntry {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for NamedEntry {}

impl PartialOrd for NamedEntry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for NamedEntry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.name.cmp(&other.0.name)
    }
}

impl TopicEntry {
    /// Returns whether no connection is subscribed to it by name.
    pub(crate) fn has_no_subscribers(&self) -> bool {
        self.counts.total() == 0
    }
}

/// Recipients of a publication: the subscribers of a topic by name, and by matching patterns.
#[derive(Clone, Copy)]
pub(crate) struct Recipients<'a> {
    pub(crate) name: &'a Arc<str>,
    pub(crate) exact: Option<&'a TopicEntry>,
    pub(crate) patterns: &'a [Arc<TopicEntry>],
}

impl Recipients<'_> {
    /// Returns the number of subscriptions on a thread.
    pub(crate) fn count_on(&self, shard: usize) -> usize {
        let entries = self.exact.into_iter().chain(self.patterns.iter().map(|entry| &**entry));
        entries.map(|entry| entry.counts.get(shard)).sum()
    }

    /// Publishes to the threads with subscribers, except one thread, and except a connection. Returns how many
    /// subscriptions are reached, and how many are not, since their thread's mailbox is full.
    pub(crate) fn post(
        &self,
        message: &Prepared,
        posts: &[Post<Mail>],
        except_thread: Option<usize>,
        except: Option<SubscriberId>,
    ) -> (usize, usize) {
        let (mut reached, mut lost) = (0, 0);
        for (shard, post) in posts.iter().enumerate() {
            if Some(shard) == except_thread {
                continue;
            }
            let count = self.count_on(shard);
            if count == 0 {
                continue;
            }
            let except = except.filter(|except| except.shard == shard).map(|except| except.conn);
            match post.send(Mail::publish(self.name, message, except)) {
                Ok(()) => reached += count,
                Err(_) => lost += count,
            }
        }
        (reached, lost)
    }
}
