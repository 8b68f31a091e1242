//! The connection for subscriptions.

use std::collections::{BTreeMap, HashSet};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use redis::aio::PubSubSink;
use redis::{Msg, ProtocolVersion, RedisError, Value, cmd};
use sinews_store::{PartKind, TopicPart};

use super::connection::{SILENCE_MAX, StoreThread};
use super::decode;
use super::names::{Names, matches};
use super::settings::CONNECT_TIMEOUT;
use crate::lock::lock;
use crate::reconnect::ReconnectDelay;
use crate::redis::error::rejection;

/// Maximum channels in a command.
const CHANNELS_MAX: usize = 512;
/// Interval of probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// What a node follows.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum FollowedChannel {
    Part(TopicPart),
    /// The logs in all topics that match a pattern.
    Pattern(Box<str>),
}

/// Parts and patterns that this node follows, and those for which that has changed.
#[derive(Default)]
pub(super) struct FollowSet {
    wanted: HashSet<FollowedChannel>,
    changed: HashSet<FollowedChannel>,
}

impl FollowSet {
    /// Adds or removes; returns whether anything has changed.
    pub(super) fn set(&mut self, followed: FollowedChannel, is_wanted: bool) -> bool {
        let has_changed =
            if is_wanted { self.wanted.insert(followed.clone()) } else { self.wanted.remove(&followed) };
        has_changed && self.changed.insert(followed)
    }
}

/// One connection's state.
struct ChannelSubscriptions {
    sink: PubSubSink,
    subscribed: HashSet<FollowedChannel>,
    /// Patterns by their glob.
    patterns: BTreeMap<String, Vec<Box<str>>>,
}

impl StoreThread {
    /// Subscribes, and reconnects, until the store is closed.
    pub(super) async fn subscribe(self: Rc<Self>) {
        let mut delay = ReconnectDelay::default();
        loop {
            while self.server.borrow().is_none() {
                self.server_changed.notified().await;
            }
            let reason = self.listen().await;
            self.set_following(false, &format!("subscriptions: {reason}"));
            delay.wait().await;
        }
    }

    /// Subscribes and passes messages on, until the connection fails. Returns the reason.
    async fn listen(&self) -> String {
        match self.listen_until_error().await {
            Ok(reason) => reason.to_owned(),
            Err(error) => error,
        }
    }

    async fn listen_until_error(&self) -> Result<&'static str, String> {
        let Some(server) = self.server.borrow().clone() else { return Ok("the server is unknown") };
        let client = self.settings.client(&server, ProtocolVersion::RESP2)?;
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, client.get_async_pubsub()).await;
        let connected = connected.map_err(|_| "no answer to the login".to_owned())?;
        let (sink, mut messages) = connected.map_err(|error| error.to_string())?.split();
        let probing = sink.clone();
        let mut all = ChannelSubscriptions { sink, subscribed: HashSet::new(), patterns: BTreeMap::new() };
        let wanted: HashSet<FollowedChannel> = {
            let mut set = lock(&self.shared.followed);
            set.changed.clear();
            set.wanted.clone()
        };
        self.apply(&mut all, wanted.into_iter().map(|followed| (followed, true)).collect()).await?;
        self.set_following(true, "");
        let mut probe = pin!(probe(probing));
        loop {
            let changed = pin!(self.shared.followed_changed.notified());
            let moved = pin!(self.server_changed.notified());
            let requests = select(select(changed, moved), probe.as_mut());
            match select(messages.next(), requests).await {
                Either::Left((Some(message), _)) => self.pass_on(&all, &message),
                // Redis closes the connection of a subscriber that is too slow.
                Either::Left((None, _)) => return Ok("Redis has closed the connection"),
                Either::Right((Either::Left((Either::Left(_), _)), _)) => {
                    let changes = self.changes();
                    self.apply(&mut all, changes).await?;
                }
                Either::Right((Either::Left((Either::Right(_), _)), _)) => {
                    if self.server.borrow().as_ref() != Some(&server) {
                        return Ok("another server is the primary");
                    }
                }
                Either::Right((Either::Right((reason, _)), _)) => return Err(reason),
            }
        }
    }

    fn changes(&self) -> Vec<(FollowedChannel, bool)> {
        let mut set = lock(&self.shared.followed);
        let changed = std::mem::take(&mut set.changed);
        changed
            .into_iter()
            .map(|followed| {
                let is_wanted = set.wanted.contains(&followed);
                (followed, is_wanted)
            })
            .collect()
    }

    /// Subscribes to the wanted ones, and ends the subscriptions of the others.
    async fn apply(
        &self,
        all: &mut ChannelSubscriptions,
        changes: Vec<(FollowedChannel, bool)>,
    ) -> Result<(), String> {
        let names = &self.settings.names;
        let (wanted, unwanted): (Vec<_>, Vec<_>) = changes.into_iter().partition(|(_, is_wanted)| *is_wanted);
        for (followed, _) in unwanted {
            if all.subscribed.remove(&followed) {
                all.unsubscribe(names, &followed).await?;
            }
        }
        let (mut parts, mut patterns) = (Vec::new(), Vec::new());
        for (followed, _) in wanted {
            match followed {
                // It was unfollowed and followed again meanwhile.
                ref known if all.subscribed.contains(known) => self.confirm(&followed),
                FollowedChannel::Part(_) => parts.push(followed),
                FollowedChannel::Pattern(_) => patterns.push(followed),
            }
        }
        for followed in [parts, patterns] {
            let mut batches: Vec<Vec<FollowedChannel>> =
                followed.chunks(CHANNELS_MAX).map(<[_]>::to_vec).collect();
            while let Some(mut batch) = batches.pop() {
                match all.subscribe(names, &batch).await? {
                    Ok(()) => batch.iter().for_each(|followed| self.confirm(followed)),
                    // Redis subscribes to none if it rejects one.
                    Err(_) if batch.len() > 1 => {
                        let rest = batch.split_off(batch.len() / 2);
                        batches.extend([batch, rest]);
                    }
                    Err(reason) => self.sink.not_following(&part(&batch[0]), &reason),
                }
            }
        }
        Ok(())
    }

    fn confirm(&self, followed: &FollowedChannel) {
        self.sink.following(&part(followed));
    }

    fn pass_on(&self, all: &ChannelSubscriptions, message: &Msg) {
        let Some(TopicPart { topic, part }) = self.settings.names.part(message.get_channel_name()) else {
            return;
        };
        if let Ok(Some(glob)) = message.get_pattern::<Option<String>>() {
            let patterns = all.patterns.get(&glob).map(Vec::as_slice).unwrap_or_default();
            if !patterns.iter().any(|pattern| matches(pattern, &topic)) {
                return;
            }
        }
        let payload = Bytes::copy_from_slice(message.get_payload_bytes());
        match part {
            PartKind::Log => {
                if let Some((epoch, entry)) = decode::appended(payload) {
                    return self.sink.appended(&topic, epoch, entry);
                }
            }
            PartKind::Keys => {
                if let Some(update) = decode::keys_changed(payload) {
                    return self.sink.keys_changed(&topic, update);
                }
            }
        }
        tracing::warn!(
            "{}: {} has a message of another program",
            self.settings.name,
            message.get_channel_name()
        );
    }
}

/// The part that notifications name; that of a pattern is its log.
fn part(followed: &FollowedChannel) -> TopicPart {
    match followed {
        FollowedChannel::Part(part) => part.clone(),
        FollowedChannel::Pattern(pattern) => TopicPart::log(pattern),
    }
}

impl ChannelSubscriptions {
    /// Subscribes to parts only, or to patterns only. Returns an error of the connection, or the server's rejection.
    async fn subscribe(
        &mut self,
        names: &Names,
        batch: &[FollowedChannel],
    ) -> Result<Result<(), String>, String> {
        let channels: Vec<String> = batch.iter().map(|followed| channel(names, followed)).collect();
        let is_pattern = matches!(batch.first(), Some(FollowedChannel::Pattern(_)));
        let answer = if is_pattern {
            tokio::time::timeout(SILENCE_MAX, self.sink.psubscribe(&channels)).await
        } else {
            tokio::time::timeout(SILENCE_MAX, self.sink.subscribe(&channels)).await
        };
        let command = cmd(if is_pattern { "PSUBSCRIBE" } else { "SUBSCRIBE" });
        if let Err(reason) = outcome(answer)? {
            return Ok(Err(rejection(&command, &reason)));
        }
        for (followed, channel) in batch.iter().zip(channels) {
            if let FollowedChannel::Pattern(pattern) = followed {
                self.patterns.entry(channel).or_default().push(pattern.clone());
            }
            self.subscribed.insert(followed.clone());
        }
        Ok(Ok(()))
    }

    async fn unsubscribe(&mut self, names: &Names, followed: &FollowedChannel) -> Result<(), String> {
        let channel = channel(names, followed);
        let FollowedChannel::Pattern(pattern) = followed else {
            let answer = tokio::time::timeout(SILENCE_MAX, self.sink.unsubscribe(channel)).await;
            return outcome(answer).map(|_| ());
        };
        // Another pattern may have the same glob.
        let patterns = self.patterns.entry(channel.clone()).or_default();
        patterns.retain(|other| other != pattern);
        if !patterns.is_empty() {
            return Ok(());
        }
        self.patterns.remove(&channel);
        let answer = tokio::time::timeout(SILENCE_MAX, self.sink.punsubscribe(channel)).await;
        outcome(answer).map(|_| ())
    }
}

fn channel(names: &Names, followed: &FollowedChannel) -> String {
    match followed {
        FollowedChannel::Part(part) => names.channel(part),
        FollowedChannel::Pattern(pattern) => names.glob(pattern),
    }
}

type Timed<T> = Result<T, tokio::time::error::Elapsed>;

/// Returns an error of the connection, or the server's answer.
fn outcome(answer: Timed<Result<(), RedisError>>) -> Result<Result<(), RedisError>, String> {
    match answer {
        Err(_) => Err("no answer to a subscription".to_owned()),
        Ok(Err(error)) if error.code().is_none() => Err(error.to_string()),
        Ok(answer) => Ok(answer),
    }
}

/// Probes a connection until it is silent. Returns the reason.
async fn probe(mut sink: PubSubSink) -> String {
    loop {
        tokio::time::sleep(PROBE_INTERVAL).await;
        match tokio::time::timeout(SILENCE_MAX, sink.ping::<Value>()).await {
            Err(_) => return format!("no answer for {} s", SILENCE_MAX.as_secs()),
            Ok(Err(error)) if error.code().is_none() => return error.to_string(),
            Ok(_) => {}
        }
    }
}
