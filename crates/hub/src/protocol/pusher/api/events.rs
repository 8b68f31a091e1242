//! Events: one for many channels, and batches.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, try_join_all};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use sinews_server::{Answer, Request, Response, Topics};
use sinews_stream::Durability;

use super::super::activity::observe_event;
use super::super::services::PusherServices;
use super::channels::info_of;
use super::{ApiAnswer, ApiError, AppApi, ChannelInfo, accepted, success};
use crate::access::auth::{Action, Rights};
use crate::apps::channel::{
    ChannelAccess, ChannelKind, USER_CHANNEL, USER_RULE, check_channel, is_user_id, topic_of, topic_of_user,
};
use crate::apps::encode::INTERNAL_EVENT;
use crate::apps::live::LiveApp;
use crate::http::error_response;
use crate::model::MessageContent;
use crate::model::brief::brief_error;
use crate::model::json::{TOO_DEEP, borrowed, exceeds_depth_in_text, read_object};
use crate::model::problem::Problem;
use crate::model::publication::{Publication, PublishedContent};
use crate::model::socket_id::parse_socket_id;
use crate::streams::service::StreamService;
use crate::topics::TopicPublisher;

/// An event in a request.
#[derive(Deserialize)]
struct EventBody<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    data: &'a RawValue,
    #[serde(borrow, default, deserialize_with = "borrowed")]
    channel: Option<Cow<'a, str>>,
    #[serde(borrow)]
    channels: Option<Vec<ChannelName<'a>>>,
    #[serde(borrow, default, deserialize_with = "borrowed")]
    socket_id: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "borrowed")]
    info: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct ChannelName<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
struct PusherBatch<'a> {
    #[serde(borrow)]
    batch: Vec<&'a RawValue>,
}

/// A checked event: nothing is published before all events in a request are checked.
struct CheckedEvent<'a> {
    event: &'a EventBody<'a>,
    channels: Vec<&'a str>,
    info: ChannelInfo,
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    read_object(body).map_err(|error| ApiError::bad(format!("body: {}", brief_error(&error))))
}

/// `POST /apps/{id}/events`.
pub(super) fn trigger(context: &Arc<AppApi>, app: &Arc<LiveApp>, request: &mut Request<'_>) -> ApiAnswer {
    let of_query;
    let body = match request.body() {
        b"" => {
            of_query = body_of_query(request)?;
            of_query.as_bytes()
        }
        body => body,
    };
    let event: EventBody<'_> = read(body)?;
    let checked = check(app, &event)?;
    let waiting = publish(context, app, std::slice::from_ref(&checked), request.topics());
    if checked.info == ChannelInfo::default() {
        return Ok(answer(context, app, request, accepted(), waiting));
    }
    let publisher = request.publisher();
    let mut channels = Map::new();
    for channel in checked.channels {
        channels.insert(channel.to_owned(), info_of(app, channel, checked.info, &publisher));
    }
    Ok(answer(context, app, request, success(&json!({ "channels": channels })), waiting))
}

/// The parameters in a request without a body.
fn body_of_query(request: &Request<'_>) -> Result<String, ApiError> {
    let value = |name: &str| request.query_values(name).next();
    let channels: Vec<Cow<'_, str>> = ["channels[]", "channels%5B%5D", "channels%5b%5d", "channels"]
        .into_iter()
        .flat_map(|name| request.query_values(name).collect::<Vec<_>>())
        .collect();
    let name = value("name").ok_or_else(|| ApiError::bad("the request has neither a body nor a name"))?;
    let mut body = json!({ "name": name, "data": value("data").unwrap_or_default() });
    for field in ["channel", "socket_id", "info"] {
        if let Some(value) = value(field) {
            body[field] = json!(value);
        }
    }
    if !channels.is_empty() {
        body["channels"] = json!(channels);
    }
    Ok(body.to_string())
}

/// `POST /apps/{id}/batch_events`.
pub(super) fn batch(context: &Arc<AppApi>, app: &Arc<LiveApp>, request: &mut Request<'_>) -> ApiAnswer {
    let PusherBatch { batch } = read(request.body())?;
    let batch = batch.into_iter().map(|event| read(event.get().as_bytes()));
    let batch: Vec<EventBody<'_>> = batch.collect::<Result<_, _>>()?;
    let most = app.options.limits.batch;
    if batch.len() > most {
        return Err(ApiError::bad(format!("batch of {} events exceeds the limit of {most}", batch.len())));
    }
    if batch.iter().any(|event| event.channels.is_some()) {
        return Err(ApiError::bad("an event of a batch has one channel"));
    }
    let checked: Vec<CheckedEvent<'_>> =
        batch.iter().map(|event| check(app, event)).collect::<Result<_, _>>()?;
    let waiting = publish(context, app, &checked, request.topics());
    if checked.iter().all(|event| event.info == ChannelInfo::default()) {
        return Ok(answer(context, app, request, accepted(), waiting));
    }
    let publisher = request.publisher();
    let info = |event: &CheckedEvent<'_>| {
        event.channels.first().map_or_else(
            || json!({}),
            |channel| match event.info == ChannelInfo::default() {
                true => json!({}),
                false => info_of(app, channel, event.info, &publisher),
            },
        )
    };
    let infos: Vec<Value> = checked.iter().map(info).collect();
    Ok(answer(context, app, request, success(&json!({ "batch": infos })), waiting))
}

/// Checks an event against the app's limits.
fn check<'a>(app: &LiveApp, event: &'a EventBody<'a>) -> Result<CheckedEvent<'a>, ApiError> {
    let limits = &app.options.limits;
    if event.name.is_empty() || event.name.len() > limits.event_name {
        return Err(ApiError::bad(format!("an event's name has 1 to {} bytes", limits.event_name)));
    }
    if event.name.starts_with(INTERNAL_EVENT) {
        return Err(ApiError::bad(format!("names that begin with {INTERNAL_EVENT} are reserved")));
    }
    if !event.data.get().starts_with('"') {
        return Err(ApiError::bad("data is not a string"));
    }
    let size = size_of(event.data.get(), limits.event_data);
    if size > limits.event_data {
        let text = format!("event data of {size} bytes exceeds the limit of {}", limits.event_data);
        return Err(ApiError::new(413, text));
    }
    if exceeds_depth_in_text(event.data.get()) {
        return Err(ApiError::bad(format!("event data: {TOO_DEEP}")));
    }
    if event.socket_id.as_deref().is_some_and(|id| parse_socket_id(id).is_none()) {
        return Err(ApiError::bad("socket_id is not digits, a dot and digits"));
    }
    let mut channels: Vec<&str> = match (&event.channel, &event.channels) {
        (Some(channel), None) => vec![channel],
        (None, Some(channels)) => channels.iter().map(|ChannelName(channel)| &**channel).collect(),
        _ => return Err(ApiError::bad("either channel or channels is required")),
    };
    if channels.is_empty() || channels.len() > limits.event_channels {
        let text = format!("an event has 1 to {} channels, not {}", limits.event_channels, channels.len());
        return Err(ApiError::bad(text));
    }
    for channel in &channels {
        check_target(channel, limits.channel_name)?;
    }
    let is_encrypted = |channel: &&str| ChannelKind::from_name(channel).access == ChannelAccess::Encrypted;
    if channels.len() > 1 && channels.iter().any(is_encrypted) {
        return Err(ApiError::bad("an event for an encrypted channel has no other channel"));
    }
    channels.sort_unstable();
    channels.dedup();
    let info = ChannelInfo::parse(event.info.as_deref().unwrap_or_default())?;
    if info != ChannelInfo::default() {
        for channel in &channels {
            super::channels::check_info(app, channel, ChannelInfo { cache: false, ..info })?;
        }
    }
    if info.cache {
        return Err(ApiError::bad("info: cache is an attribute of one channel"));
    }
    Ok(CheckedEvent { event, channels, info })
}

/// The size of a JSON string, without its quotes. Escapes count as the characters that they stand for, unless one
/// stands for no character, such as half of a surrogate pair; they are decoded if the size exceeds a limit with them
/// only.
fn size_of(string: &str, limit: usize) -> usize {
    let escaped = string.len() - 2;
    match escaped > limit {
        true => serde_json::from_str::<Cow<'_, str>>(string).map_or(escaped, |data| data.len()),
        false => escaped,
    }
}

/// Checks the channel of an event: also that of a user.
fn check_target(channel: &str, length_max: usize) -> Result<(), ApiError> {
    match channel.strip_prefix(USER_CHANNEL) {
        Some(user) if is_user_id(user) => Ok(()),
        Some(_) => Err(ApiError::bad(USER_RULE)),
        None => check_channel(channel, length_max).map_err(ApiError::bad),
    }
}

/// An event for one of its channels, and the channel's topic.
type EventForTopic = (String, MessageContent);

/// An event for a topic's stream, with the app's [seal](crate::apps::app::PusherApp::seal).
type SealedEvent = (String, MessageContent, String);

/// A request's events that wait for the streams of durable topics: nothing is published if one of them is not stored.
#[derive(Default)]
struct WaitingEvents {
    /// Durable-topic events, in order: subscribers receive them from the streams.
    stored: Vec<SealedEvent>,
    /// Events on the other channels.
    others: Vec<EventForTopic>,
    /// Events that a topic store has received.
    appends: Vec<BoxFuture<'static, Result<(), Problem>>>,
}

impl WaitingEvents {
    /// Publishes an event that needs no stream.
    fn publish(
        &mut self,
        services: &PusherServices,
        out: &mut impl TopicPublisher,
        event: &Publication<'_, '_>,
    ) {
        match services.hub.stored(event.topic) {
            Some(stored) => {
                let appended = stored.append_for_client(event, None);
                self.appends.push(async move { appended.await.map(drop) }.boxed());
            }
            None => _ = services.hub.publish(out, event),
        }
    }
}

/// Publishes a request's events at once, unless some of their channels are durable topics.
fn publish(
    context: &AppApi,
    app: &Arc<LiveApp>,
    checked: &[CheckedEvent<'_>],
    out: &mut Topics,
) -> WaitingEvents {
    let services = &context.services;
    let is_durable = |topic: &str| services.durable_store(topic).is_some();
    let waits = services.store.is_some()
        && checked.iter().flat_map(|event| topics_of(app, event)).any(|(topic, _)| is_durable(&topic));
    let mut waiting = WaitingEvents::default();
    for checked @ CheckedEvent { event, .. } in checked {
        let socket_id = event.socket_id.as_deref();
        let for_user = |user| PublishedContent::from_server(&event.name, event.data.get(), socket_id, user);
        let for_channels = for_user(None);
        for (topic, recipients) in topics_of(app, checked) {
            let users_own = recipients.user().map(|user| for_user(Some(user)));
            let published = users_own.as_ref().unwrap_or(&for_channels);
            if let EventRecipients::Channel(channel) = recipients {
                observe_event(&services.hub, app, channel, published);
            }
            match (waits, waits && is_durable(&topic)) {
                (false, _) => waiting.publish(services, out, &Publication::new(&topic, published)),
                (true, true) => {
                    let content = published.message().clone();
                    let seal = app.options.seal(&topic, content.bytes());
                    waiting.stored.push((topic, content, seal));
                }
                (true, false) => waiting.others.push((topic, published.message().clone())),
            }
        }
    }
    waiting
}

/// An event's recipients.
#[derive(Clone, Copy)]
enum EventRecipients<'a> {
    /// A channel's subscribers.
    Channel(&'a str),
    /// A user's connections.
    User(&'a str),
}

impl<'a> EventRecipients<'a> {
    fn for_channel(channel: &'a str) -> Self {
        channel.strip_prefix(USER_CHANNEL).map_or(Self::Channel(channel), Self::User)
    }

    fn user(self) -> Option<&'a str> {
        match self {
            Self::Channel(_) => None,
            Self::User(user) => Some(user),
        }
    }

    fn topic(self, app: &LiveApp) -> String {
        match self {
            Self::Channel(channel) => topic_of(app.options.topic_space(), channel),
            Self::User(user) => topic_of_user(&app.options.id, user),
        }
    }
}

/// The topics of an event's channels, each with its recipients.
fn topics_of<'a>(
    app: &LiveApp,
    event: &'a CheckedEvent<'_>,
) -> impl Iterator<Item = (String, EventRecipients<'a>)> {
    event.channels.iter().map(|channel| {
        let recipients = EventRecipients::for_channel(channel);
        (recipients.topic(app), recipients)
    })
}

/// Answers when the durable-topic events are stored, and the others are published; if one is not stored, with its
/// problem.
fn answer(
    context: &AppApi,
    app: &LiveApp,
    request: &Request<'_>,
    response: Response,
    waiting: WaitingEvents,
) -> Answer {
    let WaitingEvents { stored, others, appends } = waiting;
    match &context.services.store {
        _ if !appends.is_empty() => Answer::later(async move {
            match try_join_all(appends).await {
                Ok(_) => response,
                Err(problem) => error_response(&problem),
            }
        }),
        Some(store) if !stored.is_empty() => {
            let stored = store_events(Arc::clone(store), stored, Rights::for_app(&app.options.id));
            let (services, mut publisher) = (Arc::clone(&context.services), request.publisher());
            Answer::later(async move {
                if let Err(problem) = stored.await {
                    return error_response(&problem);
                }
                let mut rest = WaitingEvents::default();
                for (topic, content) in &others {
                    rest.publish(&services, &mut publisher, &Publication::new(topic, &content.into()));
                }
                match try_join_all(rest.appends).await {
                    Ok(_) => response,
                    Err(problem) => error_response(&problem),
                }
            })
        }
        _ => response.into(),
    }
}

/// Appends events to the streams of their topics, in order, and waits until they are stored.
async fn store_events(
    store: Arc<StreamService>,
    events: Vec<SealedEvent>,
    rights: Rights,
) -> Result<(), Problem> {
    // Checks come before the first append, and all streams are opened first: a later event of an open stream would be
    // appended before an event of a stream that is being opened.
    let topics: BTreeSet<&str> = events.iter().map(|(topic, ..)| &**topic).collect();
    let opening = |topic| store.opening(topic, Action::Publish, &rights);
    try_join_all(topics.into_iter().filter_map(opening)).await?;
    let prepare = |(topic, content, seal): &SealedEvent| store.prepare_event(topic, content, seal, &rights);
    let prepared: Vec<_> = events.iter().map(prepare).collect::<Result<_, _>>()?;
    let appends: Vec<_> = prepared.iter().map(|(relay, records)| (relay.stream(), records)).collect();
    let appended = store.append_all(&appends).await?;
    let stored =
        appended.into_iter().map(|mut pending| async move { pending.wait(Durability::Broker).await });
    Ok(try_join_all(stored).await.map(drop)?)
}

#[cfg(test)]
mod tests;
