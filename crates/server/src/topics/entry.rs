//! A topic or pattern as all threads see it, and the recipients of a publication.

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sinews_engine::Post;
use sinews_session::Prepared;

use super::history::log::TopicHistory;
use super::subscriber_id::SubscriberId;
use crate::topics::mail::Mail;

/// Topic, or topic pattern. There may be as many topics as connections, so few fields are in place.
#[derive(Debug)]
pub(crate) struct TopicEntry {
    pub(crate) name: Arc<str>,
    /// Subscriber counts on the first threads.
    first_counts: [AtomicU32; 4],
    more: Option<Box<EntryExtension>>,
}

/// The fields for a topic with history, or on a server with many threads.
#[derive(Debug)]
struct EntryExtension {
    history: Option<TopicHistory>,
    /// Subscriber counts on the further threads.
    counts: Box<[AtomicU32]>,
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
    /// Creates a topic's entry for this many threads, with its history if its rule has one.
    pub(super) fn new(name: &str, threads: usize, history: Option<TopicHistory>) -> Self {
        let first_counts: [AtomicU32; 4] = Default::default();
        let further = threads.saturating_sub(first_counts.len());
        let more = (history.is_some() || further > 0).then(|| {
            let counts = (0..further).map(|_| AtomicU32::new(0)).collect();
            Box::new(EntryExtension { history, counts })
        });
        Self { name: name.into(), first_counts, more }
    }

    /// Returns the history, if the topic's rule has one.
    #[inline]
    pub(crate) fn history(&self) -> Option<&TopicHistory> {
        self.more.as_ref()?.history.as_ref()
    }

    fn count_of(&self, thread: usize) -> Option<&AtomicU32> {
        match thread.checked_sub(self.first_counts.len()) {
            None => self.first_counts.get(thread),
            Some(further) => self.more.as_ref()?.counts.get(further),
        }
    }

    /// Returns the subscriber count on a thread.
    pub(crate) fn subscribers_on(&self, thread: usize) -> usize {
        self.count_of(thread).map_or(0, |count| count.load(Ordering::Relaxed) as usize)
    }

    /// Sets the subscriber count on a thread.
    pub(crate) fn set_subscribers(&self, thread: usize, count: usize) {
        if let Some(known) = self.count_of(thread) {
            known.store(u32::try_from(count).unwrap_or(u32::MAX), Ordering::Relaxed);
        }
    }

    /// Returns the subscriber count on all threads.
    pub(crate) fn subscribers(&self) -> usize {
        let further = self.more.iter().flat_map(|more| &more.counts);
        self.first_counts.iter().chain(further).map(|count| count.load(Ordering::Relaxed) as usize).sum()
    }

    /// Returns whether no connection is subscribed to it by name.
    pub(crate) fn has_no_subscribers(&self) -> bool {
        self.subscribers() == 0
    }
}

/// The subscriptions that a publication reaches, and those that it does not, since their thread's mailbox is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reach {
    pub(crate) reached: usize,
    pub(crate) lost: usize,
}

/// Recipients of a publication: the subscribers of a topic by name, and by matching patterns.
#[derive(Clone, Copy)]
pub(crate) struct Recipients<'a> {
    pub(crate) name: &'a Arc<str>,
    pub(crate) exact: Option<&'a TopicEntry>,
    pub(crate) patterns: &'a [Arc<TopicEntry>],
}

impl Recipients<'_> {
    /// Returns the subscription count on a thread.
    pub(crate) fn count_on(&self, shard: usize) -> usize {
        let entries = self.exact.into_iter().chain(self.patterns.iter().map(|entry| &**entry));
        entries.map(|entry| entry.subscribers_on(shard)).sum()
    }

    /// Posts to the threads with subscribers, except one thread, and except a connection.
    pub(crate) fn post(
        &self,
        message: &Prepared,
        version: u64,
        posts: &[Post<Mail>],
        except_thread: Option<usize>,
        except: Option<SubscriberId>,
    ) -> Reach {
        let mut counts = Reach::default();
        for (shard, post) in posts.iter().enumerate() {
            if Some(shard) == except_thread {
                continue;
            }
            let count = self.count_on(shard);
            if count == 0 {
                continue;
            }
            let except = except.and_then(|except| except.on_thread(shard));
            match post.send(Mail::publication(self.name, message, version, except)) {
                Ok(()) => counts.reached += count,
                Err(_) => counts.lost += count,
            }
        }
        counts
    }
}
