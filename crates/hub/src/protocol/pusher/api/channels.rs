//! Channels: their list, their attributes and their users.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

use serde_json::value::RawValue;
use serde_json::{Value, json};
use sinews_server::{Member, PresenceCount, Publisher, Request, Response};

use super::{ApiAnswer, ApiError, AppApi, ChannelInfo, success};
use crate::json_list::{JsonList, JsonListItem};
use crate::protocol::pusher::channel::{
    ChannelKind, PusherTopic, channel_of_topic, check_channel, dotless, presence_of, presence_prefix,
};
use crate::protocol::pusher::live::LiveApp;

/// Checks that a channel has the attributes.
pub(super) fn check_info(app: &LiveApp, channel: &str, info: ChannelInfo) -> Result<(), ApiError> {
    let kind = ChannelKind::of(channel);
    if info.user_count && !kind.is_presence() {
        return Err(ApiError::bad("info: user_count is an attribute of presence channels"));
    }
    if info.subscription_count && kind.is_presence() {
        return Err(ApiError::bad("info: subscription_count is not an attribute of presence channels"));
    }
    if info.subscription_count && !app.options.subscription_counts {
        return Err(ApiError::bad("info: subscription_count is not enabled for this app"));
    }
    if info.cache && !kind.is_cache {
        return Err(ApiError::bad("info: cache is an attribute of cache channels"));
    }
    Ok(())
}

/// The attributes of a channel.
pub(super) fn info_of(app: &LiveApp, channel: &str, info: ChannelInfo, publisher: &Publisher) -> Value {
    let count = publisher.presence_count(&presence_of(&app.options.id, channel));
    let mut attributes = json!({});
    if info.user_count {
        attributes["user_count"] = json!(count.members);
    }
    if info.subscription_count {
        attributes["subscription_count"] = json!(count.connections);
    }
    attributes
}

/// A query parameter, decoded; empty without it.
fn query(request: &Request<'_>, name: &str) -> String {
    request.query_values(name).next().unwrap_or_default().into_owned()
}

/// `GET /apps/{id}/channels`.
pub(super) fn list(_: &Arc<AppApi>, app: &Arc<LiveApp>, request: &mut Request<'_>) -> ApiAnswer {
    let (prefix, info) = (query(request, "filter_by_prefix"), ChannelInfo::parse(&query(request, "info"))?);
    if info.user_count && !prefix.starts_with("presence-") {
        return Err(ApiError::bad("info: user_count needs filter_by_prefix with presence-"));
    }
    if info.cache {
        return Err(ApiError::bad("info: cache is an attribute of one channel"));
    }
    if info.subscription_count && !app.options.subscription_counts {
        return Err(ApiError::bad("info: subscription_count is not enabled for this app"));
    }
    let topics = [presence_prefix(&app.options.id), dotless(&prefix).into_owned()].concat();
    let listed = |(topic, count): (Arc<str>, PresenceCount)| {
        let PusherTopic::Channel { channel, .. } = channel_of_topic(&topic)? else { return None };
        let is_presence = ChannelKind::of(&channel).is_presence();
        let is_found = channel.starts_with(&*prefix);
        let attribute = if info.user_count {
            ListedAttribute::Users(counted(count.members))
        } else if info.subscription_count && !is_presence {
            ListedAttribute::Subscriptions(counted(count.connections))
        } else {
            ListedAttribute::None
        };
        drop(channel);
        is_found.then_some(ListedChannel { topic, attribute })
    };
    let channels = request.publisher().presence_counts(&topics).into_iter().filter_map(listed).collect();
    let list = JsonList::<ListedChannel>::new("{\"channels\":{".to_owned(), channels, "}}");
    Ok(Response::json("").with_source(list).into())
}

/// An occupied channel of a list.
struct ListedChannel {
    /// The topic of its presence.
    topic: Arc<str>,
    attribute: ListedAttribute,
}

/// The attribute of a channel that the request asks for. No channel has both.
#[derive(Clone, Copy)]
enum ListedAttribute {
    None,
    Users(u32),
    Subscriptions(u32),
}

/// A smaller number takes less memory in a list.
fn counted(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

impl JsonListItem for ListedChannel {
    fn write(&self, out: &mut impl Write) {
        let channel = match channel_of_topic(&self.topic) {
            Some(PusherTopic::Channel { channel, .. }) => channel,
            _ => Cow::Borrowed(&*self.topic),
        };
        // Writing to a buffer cannot fail.
        let _ = match self.attribute {
            ListedAttribute::None => write!(out, "{}:{{}}", json!(channel)),
            ListedAttribute::Users(count) => write!(out, "{}:{{\"user_count\":{count}}}", json!(channel)),
            ListedAttribute::Subscriptions(count) => {
                write!(out, "{}:{{\"subscription_count\":{count}}}", json!(channel))
            }
        };
    }

    fn memory(&self) -> usize {
        ARC_BYTES + self.topic.len()
    }
}

/// The counts in front of the text of an `Arc`.
const ARC_BYTES: usize = 16;

/// The channel that the path names.
fn channel_of(app: &LiveApp, request: &Request<'_>) -> Result<String, ApiError> {
    let channel = request.param("name").ok_or_else(|| ApiError::bad("the channel's name is not UTF-8"))?;
    check_channel(&channel, app.options.limits.channel_name).map_err(ApiError::bad)?;
    Ok(channel.into_owned())
}

/// `GET /apps/{id}/channels/{name}`.
pub(super) fn get(_: &Arc<AppApi>, app: &Arc<LiveApp>, request: &mut Request<'_>) -> ApiAnswer {
    let channel = channel_of(app, request)?;
    let info = ChannelInfo::parse(&query(request, "info"))?;
    check_info(app, &channel, info)?;
    let publisher = request.publisher();
    let mut answer = info_of(app, &channel, info, &publisher);
    let count = publisher.presence_count(&presence_of(&app.options.id, &channel));
    answer["occupied"] = json!(count.connections > 0);
    if info.cache {
        answer["cache"] = app.cached(&channel).map_or(Value::Null, |event| {
            let ttl = event.expires.saturating_duration_since(Instant::now()).as_secs();
            let message = serde_json::from_slice::<Value>(event.message.payload()).unwrap_or_default();
            json!({ "data": message["data"], "ttl": ttl })
        });
    }
    Ok(success(&answer).into())
}

/// `GET /apps/{id}/channels/{name}/users`.
pub(super) fn users(_: &Arc<AppApi>, app: &Arc<LiveApp>, request: &mut Request<'_>) -> ApiAnswer {
    let channel = channel_of(app, request)?;
    if !ChannelKind::of(&channel).is_presence() {
        return Err(ApiError::bad("only presence channels have users"));
    }
    let members = request.publisher().roster(&presence_of(&app.options.id, &channel));
    // As at Soketi.
    let has_info = query(request, "with_user_info") == "1";
    let users = members.into_iter().map(|member| ListedUser { member, has_info }).collect();
    let list = JsonList::<ListedUser>::new("{\"users\":[".to_owned(), users, "]}");
    Ok(Response::json("").with_source(list).into())
}

/// A user of a list.
struct ListedUser {
    member: Member,
    has_info: bool,
}

impl JsonListItem for ListedUser {
    fn write(&self, out: &mut impl Write) {
        // Writing to a buffer cannot fail.
        let _ = write!(out, "{{\"id\":{}", json!(self.member.id()));
        // It is JSON, or empty.
        if self.has_info
            && let Ok(info) = serde_json::from_slice::<&RawValue>(self.member.info())
        {
            let _ = write!(out, ",\"user_info\":{info}");
        }
        let _ = out.write_char('}');
    }

    fn memory(&self) -> usize {
        2 * ARC_BYTES + self.member.id().len() + self.member.info().len()
    }
}
