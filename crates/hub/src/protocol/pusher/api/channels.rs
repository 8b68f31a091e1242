//! Channels: their list, their attributes and their users.

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value, json};
use sinews_server::{Member, Publisher, Request};

use super::{ApiAnswer, ApiError, AppApi, ChannelInfo, success};
use crate::protocol::pusher::channel::{
    ChannelKind, PusherTopic, channel_of_topic, check_channel, presence_of, presence_prefix,
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
    let mut channels = Map::new();
    for (topic, count) in request.publisher().presence_counts(&presence_prefix(&app.options.id)) {
        let Some(PusherTopic::Channel { channel, .. }) = channel_of_topic(&topic) else { continue };
        if !channel.starts_with(&*prefix) {
            continue;
        }
        let is_presence = ChannelKind::of(&channel).is_presence();
        let mut attributes = json!({});
        if info.user_count {
            attributes["user_count"] = json!(count.members);
        }
        if info.subscription_count && !is_presence {
            attributes["subscription_count"] = json!(count.connections);
        }
        channels.insert(channel.into_owned(), attributes);
    }
    Ok(success(&json!({ "channels": channels })).into())
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
    if !ChannelKind::of(&channel).is_presence() {
        return Err(ApiError::bad("only presence channels have users"));
    }
    let members = request.publisher().roster(&presence_of(&app.options.id, &channel));
    // As at Soketi.
    let has_info = query(request, "with_user_info") == "1";
    let user = |member: &Member| {
        let mut user = json!({ "id": member.id() });
        // It is JSON, or empty.
        if let Ok(info) = serde_json::from_slice::<Value>(member.info())
            && has_info
        {
            user["user_info"] = info;
        }
        user
    };
    let users: Vec<Value> = members.iter().map(user).collect();
    Ok(success(&json!({ "users": users })).into())
}
