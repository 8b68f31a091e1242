//! A topic or pattern as all threads see it, and the recipients of a publication.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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
    pub(crate) counts: Box<[AtomicUsize]>,
}

impl TopicEntry {
    /// Returns whether no connection is subscribed to it by name.
    pub(crate) fn has_no_subscribers(&self) -> bool {
        self.counts.iter().all(|count| count.load(Ordering::Relaxed) == 0)
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
        entries.map(|entry| entry.counts[shard].load(Ordering::Relaxed)).sum()
    }

    /// Publishes to the threads with subscribers, except one thread. Returns how many subscriptions are reached, and
    /// how many are not, since their thread's mailbox is full.
    pub(crate) fn post(
        &self,
        message: &Prepared,
        posts: &[Post<Mail>],
        except: Option<usize>,
    ) -> (usize, usize) {
        self.post_each(posts, except, |_| Mail::publish(self.name, message))
    }

    /// As [`post`](Self::post), with a mail of its own for each thread.
    pub(crate) fn post_each(
        &self,
        posts: &[Post<Mail>],
        except: Option<usize>,
        mail: impl Fn(usize) -> Mail,
    ) -> (usize, usize) {
        let (mut reached, mut lost) = (0, 0);
        for (shard, post) in posts.iter().enumerate() {
            if Some(shard) == except {
                continue;
            }
            let count = self.count_on(shard);
            if count == 0 {
                continue;
            }
            match post.send(mail(shard)) {
                Ok(()) => reached += count,
                Err(_) => lost += count,
            }
        }
        (reached, lost)
    }
}
