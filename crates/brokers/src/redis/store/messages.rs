//! Messages of subscriptions, which the connection passes on as they come.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;
use redis::{PushInfo, PushKind};
use sinews_store::{PartKind, StoreSink, TopicPart};
use tokio::sync::Notify;

use super::channel::FollowedChannel;
use super::decode;
use super::names::{Names, matches};
use super::servers::ServerState;
use crate::lock::lock;

/// Receives the messages of one connection.
#[derive(Clone)]
pub(super) struct PushedMessages(Arc<PushedMessagesState>);

struct PushedMessagesState {
    names: Names,
    sink: Arc<dyn StoreSink>,
    server: Arc<ServerState>,
    /// The server's name, for logs.
    name: String,
    interest: Mutex<PushInterest>,
    ended: Notify,
}

#[derive(Default)]
struct PushInterest {
    /// Patterns by their glob.
    patterns: BTreeMap<String, BTreeSet<Box<str>>>,
    /// Sharded channels that are subscribed.
    sharded: HashSet<String>,
    /// Why the connection has to end.
    reason: &'static str,
}

impl PushedMessages {
    pub(super) fn new(names: Names, sink: Arc<dyn StoreSink>, server: Arc<ServerState>, name: &str) -> Self {
        let (interest, ended) = (Mutex::default(), Notify::new());
        Self(Arc::new(PushedMessagesState { names, sink, server, name: name.to_owned(), interest, ended }))
    }

    /// Notes a pattern; returns whether it is the first or the last one with its channels.
    pub(super) fn set_pattern(&self, followed: &FollowedChannel, is_wanted: bool) -> bool {
        let FollowedChannel::Pattern(pattern) = followed else { return false };
        let glob = self.0.names.glob(pattern);
        let mut interest = lock(&self.0.interest);
        let count =
            |interest: &PushInterest| (interest.patterns.len(), interest.patterns.contains_key(&glob));
        let before = count(&interest);
        if is_wanted {
            interest.patterns.entry(glob.clone()).or_default().insert(pattern.clone());
        } else if let Some(patterns) = interest.patterns.get_mut(&glob) {
            patterns.remove(pattern);
            if patterns.is_empty() {
                interest.patterns.remove(&glob);
            }
        }
        before != count(&interest)
    }

    /// Notes sharded channels that are subscribed.
    pub(super) fn set_sharded(&self, channels: &BTreeSet<String>, is_wanted: bool) {
        let mut interest = lock(&self.0.interest);
        for channel in channels {
            if is_wanted {
                interest.sharded.insert(channel.clone());
            } else {
                interest.sharded.remove(channel);
            }
        }
    }

    /// Completes when the connection has to end, with the reason.
    pub(super) async fn ended(&self) -> &'static str {
        self.0.ended.notified().await;
        lock(&self.0.interest).reason
    }

    fn end(&self, reason: &'static str) {
        lock(&self.0.interest).reason = reason;
        self.0.ended.notify_one();
    }

    /// Handles what the server sends without a request.
    pub(super) fn handle(&self, push: PushInfo) {
        let mut texts = push.data.into_iter().filter_map(decode::bytes);
        match push.kind {
            // Redis closes the connection of a subscriber that is too slow.
            PushKind::Disconnection => self.end("Redis has closed the connection"),
            PushKind::SUnsubscribe => {
                let channel = texts.next().and_then(|channel| String::from_utf8(channel).ok());
                if channel.is_some_and(|channel| lock(&self.0.interest).sharded.contains(&channel)) {
                    self.end("a slot has moved to another server");
                }
            }
            PushKind::Message | PushKind::SMessage => {
                if let (Some(channel), Some(payload)) = (texts.next(), texts.next()) {
                    self.pass_on(&channel, payload.into(), None);
                }
            }
            PushKind::PMessage => {
                if let (Some(glob), Some(channel), Some(payload)) = (texts.next(), texts.next(), texts.next())
                {
                    self.pass_on(&channel, payload.into(), std::str::from_utf8(&glob).ok());
                }
            }
            _ => {}
        }
    }

    fn pass_on(&self, channel: &[u8], payload: Bytes, glob: Option<&str>) {
        let Ok(channel) = std::str::from_utf8(channel) else { return };
        let passed = match self.0.names.part(channel) {
            Some(TopicPart { topic, part: PartKind::Keys }) => {
                decode::keys_changed(payload, self.0.server.clock.milliseconds(Instant::now()))
                    .map(|update| self.0.sink.keys_changed(&topic, update))
            }
            Some(TopicPart { topic, part: PartKind::Log }) => {
                if glob.is_some_and(|glob| !self.matches(Some(glob), &topic)) {
                    return;
                }
                decode::appended(payload).map(|(epoch, entry)| self.0.sink.appended(&topic, epoch, entry))
            }
            None => self.pass_on_append(payload),
        };
        if passed.is_none() {
            tracing::warn!("{}: {channel} has a message of another program", self.0.name);
        }
    }

    /// Passes on a message for all logs of a partition.
    fn pass_on_append(&self, payload: Bytes) -> Option<()> {
        let (log, epoch, entry) = decode::appended_to(payload)?;
        let topic = self.0.names.part(&log)?.topic;
        if self.matches(None, &topic) {
            self.0.sink.appended(&topic, epoch, entry);
        }
        Some(())
    }

    /// Whether a pattern with this glob, or any pattern, matches.
    fn matches(&self, glob: Option<&str>, topic: &str) -> bool {
        let interest = lock(&self.0.interest);
        let all = interest.patterns.iter().filter(|(other, _)| glob.is_none_or(|glob| glob == **other));
        all.flat_map(|(_, patterns)| patterns).any(|pattern| matches(pattern, topic))
    }
}
