//! FollowedEntry topics: a subscription to the announcements of each, and of each pattern.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use async_nats::{Message, Subscriber};
use futures_util::StreamExt;
use serde_json::Value;
use sinews_store::{LogEntry, PartKind, StoreError, TopicPart};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::connection::StoreConnection;
use super::engine::StoreEngine;
use super::wire::{LAST_SEQUENCE, SEQUENCE, number, stored_at};

/// Subscriptions that are confirmed together.
const BATCH: usize = 512;
/// Announcements for which an append may still wait, per topic.
const RECENT_MAX: usize = 256;
/// Time for which an append waits for its announcement.
const ANNOUNCEMENT_TIME: Duration = Duration::from_millis(100);

/// FollowedEntry topics and patterns.
#[derive(Default)]
pub(super) struct FollowedParts {
    parts: RefCell<BTreeMap<FollowedName, Rc<FollowedEntry>>>,
    /// Parts without a subscription.
    waiting: RefCell<VecDeque<FollowedName>>,
    added: Notify,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FollowedName {
    Part(TopicPart),
    Pattern(Box<str>),
}

#[derive(Default)]
struct FollowedEntry {
    subscription: RefCell<Option<JoinHandle<()>>>,
    state: Cell<FollowState>,
    /// Sequences that were announced, and those of their predecessors.
    recent: RefCell<VecDeque<(u64, u64)>>,
    announced: Notify,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FollowState {
    #[default]
    Waiting,
    Confirmed,
    Denied,
}

impl FollowedName {
    /// The topic or pattern.
    fn text(&self) -> &str {
        match self {
            Self::Part(part) => &part.topic,
            Self::Pattern(pattern) => pattern,
        }
    }

    fn is_keys(&self) -> bool {
        matches!(self, Self::Part(TopicPart { part: PartKind::Keys, .. }))
    }
}

impl Drop for FollowedEntry {
    fn drop(&mut self) {
        if let Some(task) = self.subscription.take() {
            task.abort();
        }
    }
}

impl StoreEngine {
    pub(super) fn follow(&self, name: FollowedName) {
        let mut parts = self.followed.parts.borrow_mut();
        if !parts.contains_key(&name) {
            parts.insert(name.clone(), Rc::default());
            self.followed.waiting.borrow_mut().push_back(name);
            self.followed.added.notify_one();
        }
    }

    pub(super) fn unfollow(&self, name: &FollowedName) {
        self.followed.parts.borrow_mut().remove(name);
    }

    pub(super) fn is_followed(&self, part: &TopicPart) -> bool {
        self.followed.parts.borrow().contains_key(&FollowedName::Part(part.clone()))
    }

    /// Subscribes to all parts, on a new connection.
    pub(super) async fn follow_all(
        self: &Rc<Self>,
        connection: &Rc<StoreConnection>,
    ) -> Result<(), StoreError> {
        let names: VecDeque<_> = self.followed.parts.borrow().keys().cloned().collect();
        self.followed.waiting.replace(names);
        while !self.followed.waiting.borrow().is_empty() {
            self.follow_batch(connection).await?;
        }
        Ok(())
    }

    /// Subscribes to parts as they are added.
    pub(super) async fn follow_parts(
        self: &Rc<Self>,
        connection: &Rc<StoreConnection>,
    ) -> Result<(), StoreError> {
        loop {
            if self.followed.waiting.borrow().is_empty() {
                self.followed.added.notified().await;
            }
            self.follow_batch(connection).await?;
        }
    }

    async fn follow_batch(self: &Rc<Self>, connection: &Rc<StoreConnection>) -> Result<(), StoreError> {
        let names: Vec<FollowedName> = {
            let mut waiting = self.followed.waiting.borrow_mut();
            let count = waiting.len().min(BATCH);
            waiting.drain(..count).collect()
        };
        let mut needs_barrier = false;
        for name in &names {
            let followed = self.followed.parts.borrow().get(name).cloned();
            let Some(followed) = followed else { continue };
            followed.state.set(FollowState::Waiting);
            if name.is_keys() {
                continue;
            }
            let subject = self.settings.subjects.followed(name.text());
            let subscribed = connection.client.subscribe(subject).await;
            let subscription = subscribed.map_err(|error| StoreError::Away(error.to_string().into()))?;
            let task = tokio::task::spawn_local(receive(
                Rc::downgrade(self),
                Rc::downgrade(&followed),
                subscription,
            ));
            if let Some(earlier) = followed.subscription.replace(Some(task)) {
                earlier.abort();
            }
            needs_barrier = true;
        }
        if needs_barrier {
            self.barrier(connection).await?;
        }
        for name in &names {
            self.confirm(name);
        }
        Ok(())
    }

    /// Waits until all streams' leaders know the subscriptions: their answer takes the way on which
    /// announcements come.
    async fn barrier(&self, connection: &StoreConnection) -> Result<(), StoreError> {
        // Answers whether there is a stream or not.
        connection.api::<Value>("INFO", &Value::Null).await?.map_err(|error| error.store_error())?;
        let classes = self.all_classes();
        let answers = classes.iter().map(|class| async move {
            connection.api::<Value>(&format!("STREAM.INFO.{}", class.stream), &Value::Null).await
        });
        for answer in futures_util::future::join_all(answers).await {
            // A stream that was deleted announces nothing.
            let _ = answer?;
        }
        Ok(())
    }

    fn confirm(&self, name: &FollowedName) {
        let followed = self.followed.parts.borrow().get(name).cloned();
        let Some(followed) = followed.filter(|followed| followed.state.get() == FollowState::Waiting) else {
            return;
        };
        followed.state.set(FollowState::Confirmed);
        if let (Some(sink), FollowedName::Part(part)) = (self.sink(), name) {
            sink.following(part);
        }
    }

    /// The server denies one subscription; the others continue.
    pub(super) fn subscription_denied(&self, subject: &str, reason: &str) {
        let found = {
            let parts = self.followed.parts.borrow();
            let mut parts = parts.iter().filter(|(name, _)| !name.is_keys());
            let found = parts.find(|(name, _)| self.settings.subjects.followed(name.text()) == subject);
            found.map(|(name, followed)| (name.clone(), followed.clone()))
        };
        let Some((name, followed)) = found else { return };
        followed.state.set(FollowState::Denied);
        if let Some(task) = followed.subscription.take() {
            task.abort();
        }
        let part = match name {
            FollowedName::Part(part) => part,
            FollowedName::Pattern(pattern) => TopicPart::log(&pattern),
        };
        if let Some(sink) = self.sink() {
            sink.not_following(&part, reason);
        }
    }

    /// Ends all subscriptions on a lost connection.
    pub(super) fn end_subscriptions(&self) {
        for followed in self.followed.parts.borrow().values() {
            followed.state.set(FollowState::Waiting);
            if let Some(task) = followed.subscription.take() {
                task.abort();
            }
        }
    }

    /// The predecessor of a message that this node has appended, as its announcement names it. `None`: the topic is not
    /// followed, or the announcement is late.
    pub(super) async fn announced_prev(&self, topic: &str, sequence: u64) -> Option<u64> {
        let name = FollowedName::Part(TopicPart::log(topic));
        let followed = self.followed.parts.borrow().get(&name).cloned();
        let followed = followed.filter(|followed| followed.state.get() == FollowState::Confirmed)?;
        let announced = async {
            loop {
                let changed = followed.announced.notified();
                let found =
                    followed.recent.borrow().iter().rev().find(|(known, _)| *known == sequence).copied();
                if let Some((_, prev)) = found {
                    return prev;
                }
                changed.await;
            }
        };
        tokio::time::timeout(ANNOUNCEMENT_TIME, announced).await.ok()
    }

    fn announce(&self, followed: &FollowedEntry, message: &Message) {
        let parsed = self.settings.subjects.parse_announced(&message.subject);
        let Some(((epoch, topic), sequence)) = parsed.zip(number(message, SEQUENCE)) else { return };
        let prev = number(message, LAST_SEQUENCE).unwrap_or(0);
        self.note_top(&topic, epoch, sequence);
        {
            let mut recent = followed.recent.borrow_mut();
            if recent.len() >= RECENT_MAX {
                recent.pop_front();
            }
            recent.push_back((sequence, prev));
        }
        let time = stored_at(message).unwrap_or(0) / 1_000;
        if let Some(sink) = self.sink() {
            sink.appended(&topic, epoch, LogEntry { sequence, prev, time, payload: message.payload.clone() });
        }
        followed.announced.notify_waiters();
    }
}

async fn receive(
    engine: std::rc::Weak<StoreEngine>,
    followed: std::rc::Weak<FollowedEntry>,
    mut subscription: Subscriber,
) {
    while let Some(message) = subscription.next().await {
        let (Some(engine), Some(followed)) = (engine.upgrade(), followed.upgrade()) else { return };
        engine.announce(&followed, &message);
    }
}
