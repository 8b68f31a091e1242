//! Channels: their list, their attributes and their users.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

use serde_json::value::RawValue;
use serde_json::{Value, json};
use sinews_server::{Publisher, Request, Response};

use super::{ApiAnswer, ApiError, AppApi, ChannelInfo, success};
use crate::apps::channel::{
    ChannelKind, PusherTopic, channel_of_topic, check_channel, dotless, presence_of, presence_prefix,
};
use crate::apps::live::LiveApp;
use crate::model::json_list::{JsonPages, PAGE_ITEMS, PageItems, PagedList};

/// Checks that a channel has the attributes.
pub(super) fn check_info(app: &LiveApp, channel: &str, info: ChannelInfo) -> Result<(), ApiError> {
    let kind = ChannelKind::from_name(channel);
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

/// A channel's attributes.
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
    let attribute = match info {
        ChannelInfo { user_count: true, .. } => ListedAttribute::Users,
        ChannelInfo { subscription_count: true, .. } => ListedAttribute::Subscriptions,
        _ => ListedAttribute::None,
    };
    let topics = [presence_prefix(&app.options.id), dotless(&prefix).into_owned()].concat();
    let channels = OccupiedChannels { publisher: request.publisher(), topics, prefix, attribute };
    Ok(Response::json("").with_source(PagedList::new("{\"channels\":{", channels, "}}")).into())
}

/// The occupied channels with a prefix.
struct OccupiedChannels {
    publisher: Publisher,
    /// The prefix for their presence topics.
    topics: String,
    prefix: String,
    attribute: ListedAttribute,
}

/// The channel attribute that the request asks for. No channel has both.
#[derive(Clone, Copy)]
enum ListedAttribute {
    None,
    Users,
    Subscriptions,
}

impl JsonPages for OccupiedChannels {
    fn write_page(&self, after: Option<&str>, page: &mut PageItems<'_>) -> Option<Arc<str>> {
        let counts = self.publisher.presence_counts(&self.topics, after, PAGE_ITEMS);
        for (topic, count) in counts.iter().filter(|(_, count)| count.connections > 0) {
            let Some(PusherTopic::Channel { channel, .. }) = channel_of_topic(topic) else { continue };
            if !channel.starts_with(&*self.prefix) {
                continue;
            }
            let mut item = page.begin_item();
            // Writing to a buffer cannot fail.
            let _ = match self.attribute {
                ListedAttribute::Users => {
                    write!(item, "{}:{{\"user_count\":{}}}", json!(channel), count.members)
                }
                ListedAttribute::Subscriptions if !ChannelKind::from_name(&channel).is_presence() => {
                    write!(item, "{}:{{\"subscription_count\":{}}}", json!(channel), count.connections)
                }
                _ => write!(item, "{}:{{}}", json!(channel)),
            };
        }
        let last = counts.into_iter().nth(PAGE_ITEMS - 1);
        last.map(|(topic, _)| topic)
    }
}

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
    if !ChannelKind::from_name(&channel).is_presence() {
        return Err(ApiError::bad("only presence channels have users"));
    }
    // As at Soketi.
    let has_info = query(request, "with_user_info") == "1";
    let topic = presence_of(&app.options.id, &channel);
    let users = ChannelUsers { publisher: request.publisher(), topic, has_info };
    Ok(Response::json("").with_source(PagedList::new("{\"users\":[", users, "]}")).into())
}

/// A presence channel's users.
struct ChannelUsers {
    publisher: Publisher,
    /// The topic of the channel's presence.
    topic: String,
    has_info: bool,
}

impl JsonPages for ChannelUsers {
    fn write_page(&self, after: Option<&str>, page: &mut PageItems<'_>) -> Option<Arc<str>> {
        let members = self.publisher.members(&self.topic, after, PAGE_ITEMS);
        for (member, _) in &members {
            let mut item = page.begin_item();
            // Writing to a buffer cannot fail.
            let _ = write!(item, "{{\"id\":{}", json!(member.id()));
            // It is JSON, or empty.
            if self.has_info
                && let Ok(info) = serde_json::from_slice::<&RawValue>(member.info())
            {
                let _ = write!(item, ",\"user_info\":{info}");
            }
            let _ = item.write_char('}');
        }
        members.get(PAGE_ITEMS - 1).map(|(member, _)| member.id().into())
    }
}
