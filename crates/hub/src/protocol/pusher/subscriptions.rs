//! A client's subscriptions.

use std::future::ready;
use std::task::Poll;

use futures_util::FutureExt as _;
use serde_json::json;
use sinews_server::{Context, InvalidTopic, Member, PresenceError};

use super::client::{PusherClient, PusherConnection, send};
use super::durable::PendingRecovery;
use super::incoming::{SignedMember, SubscribeData, read_member};
use super::recovery::{ChannelRecovery, RecoverRequest};
use crate::activity::{Activity, ActivityKind};
use crate::apps::app::PusherFeatures;
use crate::apps::cache::CachedEvent;
use crate::apps::channel::{
    ChannelAccess, ChannelKind, USER_CHANNEL, check_channel, is_user_id, presence_of, topic_of,
};
use crate::apps::encode;
use crate::apps::encoding::{EVENTS, RECOVERABLE_EVENTS};
use crate::apps::live::{LiveApp, nanoseconds};
use crate::apps::metrics::PusherRejection;
use crate::apps::signature::verifies_auth;
use crate::model::json::{TOO_DEEP, exceeds_depth};
use crate::model::socket_id::socket_id_text;

/// The topic of a channel to which a client subscribed before a reload has changed the app's topics.
pub(super) struct FormerTopic {
    pub(super) channel: Box<str>,
    pub(super) topic: Box<str>,
}

/// Why a subscription is rejected: the connection stays.
struct SubscriptionError {
    kind: &'static str,
    text: String,
    status: u16,
}

/// What a client requests with its subscription to a channel.
struct ChannelRequest {
    member: Option<SignedMember>,
    recover: Option<RecoverRequest>,
}

impl SubscriptionError {
    fn unauthorized(text: impl Into<String>) -> Self {
        Self { kind: "AuthError", text: text.into(), status: 401 }
    }

    /// Rejects a channel's name. As at Soketi, a name that is too long exceeds a limit.
    fn name(text: String, is_too_long: bool) -> Self {
        Self { kind: if is_too_long { "LimitReached" } else { "InvalidChannel" }, text, status: 4009 }
    }

    fn feature(text: impl Into<String>) -> Self {
        Self { kind: "FeatureDisabled", text: text.into(), status: 403 }
    }

    fn recover(text: impl Into<String>) -> Self {
        Self { kind: "InvalidRecover", text: text.into(), status: 400 }
    }

    fn limit(text: impl Into<String>, status: u16) -> Self {
        Self { kind: "LimitReached", text: text.into(), status }
    }

    fn message(&self, channel: &str) -> String {
        encode::subscription_error(channel, self.kind, &self.text, self.status)
    }
}

/// A channel's last event, as a subscription needs it.
enum LastEvent {
    /// The channel retains none, or the client receives the event in another way.
    Unneeded,
    /// The cache channel has no event.
    Missing,
    Retained(CachedEvent),
}

impl From<Option<CachedEvent>> for LastEvent {
    fn from(event: Option<CachedEvent>) -> Self {
        event.map_or(Self::Missing, Self::Retained)
    }
}

/// Maximum number of channels of a connection whose events are read at a time: it bounds the memory for their events.
const READS_AT_ONCE: usize = 4;

/// Status of a channel or a connection that is full.
const FULL: u16 = 4100;

/// Status of a member that is too large.
const TOO_LARGE: u16 = 4301;

/// Reports a limit of the server below.
fn limit_of(error: PresenceError) -> SubscriptionError {
    let status = if matches!(error, PresenceError::MemberInfo(_)) { TOO_LARGE } else { FULL };
    SubscriptionError::limit(error.to_string(), status)
}

impl PusherClient {
    /// Subscribes to a channel, and answers.
    pub(super) fn subscribe(
        &self,
        connection: &mut PusherConnection,
        data: &SubscribeData,
        cx: &mut Context<'_>,
    ) {
        let channel = &*data.channel;
        let subscribed = match channel.strip_prefix(USER_CHANNEL) {
            Some(user) => self.subscribe_to_user(connection, user, cx).then_some(()).ok_or_else(|| {
                SubscriptionError::unauthorized(
                    "only a user that has signed in may subscribe to its own events",
                )
            }),
            None => self.try_subscribe(connection, data, cx),
        };
        if let Err(error) = subscribed {
            self.reject_subscription(connection, channel, &error, cx);
        }
    }

    fn try_subscribe(
        &self,
        connection: &mut PusherConnection,
        data: &SubscribeData,
        cx: &mut Context<'_>,
    ) -> Result<(), SubscriptionError> {
        let channel = &*data.channel;
        let limits = &connection.app.options.limits;
        let is_too_long = channel.len() > limits.channel_name;
        check_channel(channel, limits.channel_name)
            .map_err(|text| SubscriptionError::name(text, is_too_long))?;
        let kind = ChannelKind::from_name(channel);
        check_features(&connection.app.options.features, kind)?;
        let recover = RecoverRequest::read(data.recover.as_ref()).map_err(SubscriptionError::recover)?;
        let member = match kind.access {
            ChannelAccess::Public => None,
            _ => authorize(connection, self.socket_id(cx), kind, data)?,
        };
        let presence = presence_of(&connection.app.options.id, channel);
        if connection.recovers(channel) {
            // The answer to the first subscription follows.
            return Ok(());
        }
        if connection.subscribed(channel, cx).is_some() {
            // The client has received the last event, or receives it as it is published.
            let (recovers, recovery) = (recover.is_some(), ChannelRecovery::default());
            return self.acknowledge(connection, channel, recovers, recovery, LastEvent::Unneeded, cx);
        }
        if usize::from(connection.channels) >= limits.channels {
            let text = format!("a connection has at most {} channels", limits.channels);
            return Err(SubscriptionError::limit(text, FULL));
        }
        let topic = topic_of(connection.app.options.topic_space(), channel);
        // No event is published between the last one and the subscription.
        let order = kind.is_cache.then(|| self.hub().lock_last_event(&topic)).flatten();
        let last = kind.is_cache.then(|| connection.app.cached(channel)).flatten();
        let after = last.as_ref().map(|event| event.version);
        let added = self.add_subscription(
            connection,
            &presence,
            &topic,
            after,
            ChannelRequest { member, recover },
            cx,
        )?;
        self.observe_channel(connection, channel, cx, || Activity {
            kind: ActivityKind::Subscribe,
            ..Activity::default()
        });
        connection.liveness.is_authorized |= kind.access != ChannelAccess::Public;
        let recovery = match (added, recover) {
            (Some(added), _) => added,
            (None, Some(request)) => {
                drop(order);
                let pending = self.pending_recovery(channel, &topic, request);
                connection.rare.get_or_insert_default().recoveries.push(pending);
                self.continue_recoveries(connection, cx);
                return Ok(());
            }
            (None, None) => ChannelRecovery::default(),
        };
        // A last event without a position follows with it.
        let is_needed = kind.is_cache && (recovery.position.is_none() || !self.hub().awaits_position(&topic));
        drop(order);
        let last = if is_needed { last.into() } else { LastEvent::Unneeded };
        self.acknowledge(connection, channel, recover.is_some(), recovery, last, cx)
    }

    /// A recovery from a durable topic's stream, or from a topic store.
    fn pending_recovery(&self, channel: &str, topic: &str, request: RecoverRequest) -> PendingRecovery {
        match self.services.durable_store(topic) {
            Some(store) => PendingRecovery::new(channel, topic, request, store, &self.services),
            None => {
                let opening = self.hub().opening_of_history(topic, request.start());
                // It has perhaps come meanwhile.
                let opening = opening.unwrap_or_else(|| ready(Ok(())).boxed().shared());
                PendingRecovery::stored(channel, topic, request, opening)
            }
        }
    }

    /// Answers the subscriptions whose missed events are read, in request order as far as the streams permit it. While
    /// the client's queue is long, the others wait until it has drained, without memory that other clients need.
    pub(super) fn continue_recoveries(&self, connection: &mut PusherConnection, cx: &mut Context<'_>) {
        let Some(rare) = &mut connection.rare else { return };
        let mut recoveries = std::mem::take(&mut rare.recoveries);
        let now = self.apps().now();
        let deadline = now.saturating_add(nanoseconds(connection.app.options.limits.recovery_time));
        let mut at = 0;
        while at < recoveries.len().min(READS_AT_ONCE) {
            if cx.buffered() > cx.config().high_water() {
                recoveries.iter_mut().for_each(PendingRecovery::pause);
                break;
            }
            match recoveries[at].poll_at(now, deadline, self.apps(), cx) {
                Poll::Pending => at += 1,
                Poll::Ready(recovery) => {
                    let pending = recoveries.remove(at);
                    self.finish_recovery(connection, &pending.channel, recovery, cx);
                }
            }
        }
        connection.rare.get_or_insert_default().recoveries = recoveries;
        connection.prune_rare();
    }

    /// Answers a subscription that has waited for the events that the client has missed.
    fn finish_recovery(
        &self,
        connection: &mut PusherConnection,
        channel: &str,
        recovery: Result<ChannelRecovery, InvalidTopic>,
        cx: &mut Context<'_>,
    ) {
        let recovery = recovery.map_err(|error| SubscriptionError::limit(error.to_string(), FULL));
        let answered = match recovery {
            Ok(recovery) => {
                self.hub().retry_rejected(&topic_of(connection.app.options.topic_space(), channel));
                let last = match ChannelKind::from_name(channel).is_cache {
                    true => connection.app.cached(channel).into(),
                    false => LastEvent::Unneeded,
                };
                self.acknowledge(connection, channel, true, recovery, last, cx)
            }
            Err(error) => {
                self.unsubscribe(connection, channel, cx);
                Err(error)
            }
        };
        if let Err(error) = answered {
            self.reject_subscription(connection, channel, &error, cx);
        }
    }

    fn reject_subscription(
        &self,
        connection: &PusherConnection,
        channel: &str,
        error: &SubscriptionError,
        cx: &mut Context<'_>,
    ) {
        self.apps().counters.reject(PusherRejection::Subscription);
        connection.app.count_rejection();
        self.observe_rejection(connection, "subscribe", Some(channel), error.status, &error.text, cx);
        send(cx, &error.message(channel));
    }

    /// Acknowledges a subscription, and sends the events that the client has missed, or the last event.
    fn acknowledge(
        &self,
        connection: &PusherConnection,
        channel: &str,
        recovers: bool,
        recovery: ChannelRecovery,
        last: LastEvent,
        cx: &mut Context<'_>,
    ) -> Result<(), SubscriptionError> {
        let (kind, presence) =
            (ChannelKind::from_name(channel), presence_of(&connection.app.options.id, channel));
        let members = match kind.is_presence() {
            true => Some(cx.watch_members(&presence).map_err(limit_of)?.1),
            false => None,
        };
        let ack = encode::subscription_succeeded(channel, members.as_deref());
        match recovers {
            true => send(cx, &recovery.acknowledge(ack)),
            false => send(cx, &ack),
        }
        if let Some(missed) = &recovery.missed {
            for event in missed {
                // After a Close, the message is dropped.
                let _ = cx.queue_prepared(event, true);
            }
        } else {
            let topic = topic_of(connection.app.options.topic_space(), channel);
            self.send_last_event(&connection.app, channel, &topic, last, cx);
        }
        Ok(())
    }

    /// Sends a cache channel's last event, and requests it from the other nodes if this node may lack it.
    fn send_last_event(
        &self,
        app: &LiveApp,
        channel: &str,
        topic: &str,
        last: LastEvent,
        cx: &mut Context<'_>,
    ) {
        let last = match last {
            LastEvent::Unneeded => return,
            LastEvent::Missing => None,
            LastEvent::Retained(event) => Some(event),
        };
        let is_requested = self.hub().other_nodes().is_some_and(|nodes| {
            let retained = last.as_ref().map(|event| event.at);
            nodes.request_cached_event(topic, retained, app.options.limits.cache_time)
        });
        match last {
            Some(event) => drop(cx.send_prepared(&event.message)),
            None => {
                send(cx, &json!({ "event": "pusher:cache_miss", "channel": channel }).to_string());
                self.hub().report_missing_event(&presence_of(&app.options.id, channel), false, is_requested);
            }
        }
    }

    /// Registers a subscription; `None` if the events that the client has missed must be read from a stream. On a cache
    /// channel, it begins after the version of the last event.
    fn add_subscription(
        &self,
        connection: &mut PusherConnection,
        presence: &str,
        topic: &str,
        last: Option<u64>,
        request: ChannelRequest,
        cx: &mut Context<'_>,
    ) -> Result<Option<ChannelRecovery>, SubscriptionError> {
        let ChannelRequest { member, recover } = request;
        let options = &connection.app.options;
        let is_durable = self.services.durable_store(topic).is_some();
        let recover = recover.filter(|_| is_durable || self.hub().has_history(topic));
        let (encoded, subscribed) = match recover {
            Some(request)
                if is_durable || self.hub().opening_of_history(topic, request.start()).is_some() =>
            {
                (RECOVERABLE_EVENTS, Ok(None))
            }
            Some(request) => (RECOVERABLE_EVENTS, ChannelRecovery::subscribe(cx, topic, request).map(Some)),
            None => {
                let encoded = EVENTS.topic(topic);
                let subscribed = match last {
                    Some(version) => cx.subscribe_after(&encoded, version),
                    None => cx.subscribe(&encoded),
                };
                (EVENTS, subscribed.map(|()| Some(ChannelRecovery::default())))
            }
        };
        let recovery = subscribed.map_err(|error| SubscriptionError::limit(error.to_string(), FULL))?;
        let joined = match member {
            Some(member) => join(cx, presence, member, options.limits.members),
            None => {
                // First, so that the client receives the number with itself.
                let watched = match options.subscription_counts {
                    true => cx.watch_presence(presence).map(drop),
                    false => Ok(()),
                };
                watched.and_then(|()| cx.join_anonymous(presence).map(drop)).map_err(limit_of)
            }
        };
        if let Err(error) = joined {
            cx.unwatch_presence(presence);
            cx.unsubscribe(&encoded.topic(topic));
            return Err(error);
        }
        self.hub().count_subscriber(encoded);
        self.hub().retry_rejected(topic);
        connection.channels += 1;
        Ok(recovery)
    }

    /// Ends a subscription. Unknown channels are ignored.
    pub(super) fn unsubscribe(&self, connection: &mut PusherConnection, channel: &str, cx: &mut Context<'_>) {
        let Some((presence, _)) = connection.subscribed(channel, cx) else { return };
        // First: a client does not receive its own leave.
        cx.unwatch_presence(&presence);
        if let Some(rare) = &mut connection.rare {
            rare.recoveries.retain(|pending| *pending.channel != *channel);
        }
        // Before the end of the subscription, which stores the presence.
        cx.leave(&presence);
        let topic = connection.take_topic(channel);
        for encoded in [EVENTS, RECOVERABLE_EVENTS] {
            cx.unsubscribe(&encoded.topic(&topic));
        }
        connection.channels -= 1;
        self.hub().uncount_subscriber(EVENTS);
        self.observe_channel(connection, channel, cx, || Activity {
            kind: ActivityKind::Unsubscribe,
            ..Activity::default()
        });
    }

    /// Ends the counts of a closed connection, whose subscriptions and presence end by themselves.
    pub(super) fn end_subscriptions(&self, connection: &PusherConnection, of_user: bool) {
        for _ in 0..connection.channels + u16::from(of_user) {
            self.hub().uncount_subscriber(EVENTS);
        }
    }
}

impl PusherConnection {
    /// Whether a subscription to the channel waits for the events that the client has missed.
    fn recovers(&self, channel: &str) -> bool {
        let mut recoveries = self.rare.iter().flat_map(|rare| &rare.recoveries);
        recoveries.any(|pending| *pending.channel == *channel)
    }

    /// The topic of a channel whose subscription ends.
    fn take_topic(&mut self, channel: &str) -> String {
        let former = self.rare.as_mut().and_then(|former| {
            let at = former.topics.iter().position(|former| *former.channel == *channel)?;
            Some(former.topics.swap_remove(at).topic.into())
        });
        former.unwrap_or_else(|| topic_of(self.app.options.topic_space(), channel))
    }
}

/// Checks that the app has channels of this kind.
fn check_features(features: &PusherFeatures, kind: ChannelKind) -> Result<(), SubscriptionError> {
    if kind.is_presence() && !features.presence_channels {
        return Err(SubscriptionError::feature("the app has no presence channels"));
    }
    if kind.is_cache && !features.cache_channels {
        return Err(SubscriptionError::feature("the app has no cache channels"));
    }
    Ok(())
}

/// Joins a presence channel.
fn join(
    cx: &mut Context<'_>,
    presence: &str,
    member: SignedMember,
    members_max: usize,
) -> Result<(), SubscriptionError> {
    let full = || {
        let text = format!("the channel has its maximum of {members_max} members");
        Err(SubscriptionError::limit(text, FULL))
    };
    // Cheap, so that a full channel has no joins and leaves of rejected members.
    let before = cx.topics().presence(presence).members;
    if before >= members_max && cx.topics().member(presence, &member.id).is_none() {
        return full();
    }
    let member = Member::new(member.id).with_info(member.info);
    let count = cx.join(presence, member).map_err(limit_of)?;
    if count.members > members_max {
        cx.leave(presence);
        return full();
    }
    Ok(())
}

/// Checks the signature of a subscription to a channel that is not public. Returns a presence channel's member.
fn authorize(
    connection: &PusherConnection,
    socket_id: u128,
    kind: ChannelKind,
    data: &SubscribeData,
) -> Result<Option<SignedMember>, SubscriptionError> {
    let socket_id = socket_id_text(socket_id);
    let channel = &data.channel;
    let member_data = data.channel_data.as_deref();
    let with_data = member_data.map(|member| format!("{socket_id}:{channel}:{member}"));
    // Some applications sign channel_data also for channels that have no members.
    let is_optional = !kind.is_presence() || with_data.is_none();
    let plain = is_optional.then(|| format!("{socket_id}:{channel}"));
    let auth = data.auth.as_deref().unwrap_or_default();
    let is_signed = |key| plain.iter().chain(&with_data).any(|text| verifies_auth(key, auth, text));
    if !connection.key().is_some_and(is_signed) {
        return Err(SubscriptionError::unauthorized("the signature of the subscription is invalid"));
    }
    if !kind.is_presence() {
        return Ok(None);
    }
    if member_data.is_some_and(|data| exceeds_depth(data.as_bytes())) {
        return Err(SubscriptionError::limit(format!("channel_data: {TOO_DEEP}"), TOO_LARGE));
    }
    let member = match (member_data, connection.user()) {
        (Some(data), _) => read_member(data),
        (None, Some(user)) => Some(SignedMember { id: user.id.clone(), info: user.info.clone() }),
        (None, None) => {
            let text = "a presence channel needs channel_data, or a user that has signed in";
            return Err(SubscriptionError::unauthorized(text));
        }
    };
    match member {
        Some(member) if is_user_id(&member.id) => Ok(Some(member)),
        _ => Err(SubscriptionError::unauthorized(
            "channel_data is not an object with a user_id of 1 to 128 characters",
        )),
    }
}
