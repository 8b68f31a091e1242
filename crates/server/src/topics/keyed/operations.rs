//! Key writes, reads and subscriptions on one thread.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use sinews_engine::ConnId;

use super::local::KeyedGroup;
use super::page::{PAGE_MAX, page};
use super::reader::KeyedReader;
use super::table::Notifier;
use super::topic::KeyedTopic;
use super::update::{KeyChange, KeyPage, KeySubscription, KeysSubscribed};
use super::write::{KEY_MAX, KeyError, KeyWrite, KeyWritten};
use crate::topics::history::policy::Position;
use crate::topics::name::{self, SUBSCRIPTIONS_MAX};
use crate::topics::registry::Topics;
use crate::topics::throttle::backlog::Backlog;

impl Topics {
    /// Maximum key length in bytes.
    pub const KEY_MAX: usize = KEY_MAX;

    /// Maximum keys that [`keys`](Self::keys) returns at once: 1,000, since the topic is locked meanwhile.
    pub const KEYS_MAX: usize = PAGE_MAX;

    fn keyed_notifier(&self) -> Notifier<'_> {
        Notifier { posts: &self.posts, epochs: &self.directory.epochs }
    }

    /// Sets or removes a key in a topic. A topic's keys are independent of its messages: [`publish`](Self::publish)
    /// does not change them, and subscribers receive them with
    /// [`Context::subscribe_keys`](crate::Context::subscribe_keys) only.
    ///
    /// The write is applied when the call returns. Subscribers receive it in their next loop turns.
    ///
    /// # Errors
    /// [`KeyError`]: a name is invalid, the condition is not met, or a limit is reached. Then nothing has changed.
    pub fn write_key(&self, topic: &str, write: &KeyWrite) -> Result<KeyWritten, KeyError> {
        name::check(topic)?;
        self.directory.keyed.write(topic, write, self.keyed_notifier())
    }

    /// Returns a key with a value in a topic, and the position at the topic's last change.
    #[must_use]
    pub fn key(&self, topic: &str, key: &str) -> Option<(KeyChange, Position)> {
        self.directory.keyed.get(topic, key, self.keyed_notifier())
    }

    /// Returns a topic's keys in their order: after the key `after`, or from the first; those that match a pattern, or
    /// all. At most `limit` and [`KEYS_MAX`](Self::KEYS_MAX); a page's last key is `after` for the next.
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
        page(&self.directory.keyed, topic, after, filter, limit, self.keyed_notifier())
    }

    pub(crate) fn subscribe_keys(
        &mut self,
        name: &str,
        options: &KeySubscription,
        conn: ConnId,
        backlog: &mut Option<Box<Backlog>>,
    ) -> Result<KeysSubscribed, KeyError> {
        name::check(name)?;
        options.check()?;
        if self.directory.keyed.encode.is_none() {
            return Err(KeyError::NoEncoder);
        }
        let known = self.keyed.find(conn, name);
        let subscriptions = self.keyed.conns.get(&conn).map_or(0, Vec::len);
        if known.is_none() && subscriptions >= SUBSCRIPTIONS_MAX {
            return Err(KeyError::TooManySubscriptions);
        }
        if subscriptions == 0 {
            self.keyed.joined.push(conn);
        }
        self.unsubscribe_keys(name, conn, backlog);
        let (topic, position, cursor) = self.join_keyed(name);
        let group = self.find_or_add_group(&topic, options, cursor);
        self.keyed.add(group, conn, cursor);
        let from = options.from.and_then(|from| {
            let state = topic.lock();
            state.continues(from).then(|| state.cursor_of(from.sequence))
        });
        let reader = KeyedReader::new(from);
        backlog.get_or_insert_default().keyed.push((group, reader));
        Ok(KeysSubscribed { position, recovered: from.is_some() })
    }

    /// Counts one more topic subscriber, so that this thread is notified about all later changes.
    fn join_keyed(&self, name: &str) -> (Arc<KeyedTopic>, Position, u64) {
        loop {
            let topic = self.directory.keyed.find_or_create(name, &self.directory.epochs);
            let subscribers = &topic.threads[self.shard].subscribers;
            subscribers.fetch_add(1, Ordering::SeqCst);
            let state = topic.lock();
            if !state.is_removed() {
                let (position, cursor) = (state.position(), state.cursor());
                drop(state);
                return (topic, position, cursor);
            }
            drop(state);
            subscribers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn find_or_add_group(
        &mut self,
        topic: &Arc<KeyedTopic>,
        options: &KeySubscription,
        cursor: u64,
    ) -> usize {
        let KeySubscription { filter, interval, .. } = options;
        let known = self.keyed.groups_of(&topic.name).iter().copied().find(|group| {
            let known = &self.keyed.groups[*group];
            known.filter.as_deref() == filter.as_deref() && known.interval == *interval
        });
        known.unwrap_or_else(|| {
            let group = self.keyed.groups.insert(KeyedGroup {
                topic: Arc::clone(topic),
                filter: filter.as_deref().map(Into::into),
                interval: *interval,
                cursor,
                target: cursor,
                next: Instant::now(),
                is_scheduled: false,
                subscribers: Vec::new(),
            });
            self.keyed.by_topic.entry(topic.name.clone()).or_default().push(group);
            group
        })
    }

    pub(crate) fn unsubscribe_keys(
        &mut self,
        name: &str,
        conn: ConnId,
        backlog: &mut Option<Box<Backlog>>,
    ) -> bool {
        let Some(index) = self.keyed.find(conn, name) else { return false };
        if let (Some(backlog), Some(list)) = (backlog, self.keyed.conns.get(&conn)) {
            let group = list[index].group;
            backlog.keyed.retain(|(known, _)| *known != group);
        }
        self.end_keyed(conn, index);
        true
    }

    fn end_keyed(&mut self, conn: ConnId, index: usize) {
        if let Some(topic) = self.keyed.remove(conn, index) {
            topic.threads[self.shard].subscribers.fetch_sub(1, Ordering::SeqCst);
            self.directory.keyed.release(&topic, &self.directory.epochs);
        }
    }

    /// Ends a closed connection's subscriptions.
    pub(crate) fn unsubscribe_all_keys(&mut self, conn: ConnId) {
        while let Some(last) = self.keyed.conns.get(&conn).map(|list| list.len() - 1) {
            self.end_keyed(conn, last);
        }
    }

    /// Returns how many subscribers a topic's keys have, on all threads.
    #[must_use]
    pub fn key_subscribers(&self, topic: &str) -> usize {
        self.directory.keyed.find(topic).map_or(0, |topic| topic.subscribers())
    }
}
