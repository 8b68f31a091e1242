//! Client activity of apps.

use serde_json::{Value, json};
use sinews_server::Context;

use super::client::{PusherClient, PusherConnection};
use crate::activity::{Activity, ActivityKind};
use crate::apps::channel::{PusherTopic, TopicSpace, channel_of_topic, topic_of};
use crate::apps::live::LiveApp;
use crate::connections::ConnectionPath;
use crate::model::is_reserved;
use crate::model::publication::PublishedContent;
use crate::model::socket_id::socket_id_text;
use crate::topics::HubTopics;

/// Returns the topic that a viewer sees: the shared topic, or else the channel.
fn shown_topic(space: TopicSpace<'_>, channel: &str) -> String {
    let topic = topic_of(space, channel);
    if is_reserved(&topic) { channel.to_owned() } else { topic }
}

impl PusherClient {
    /// Observes an action of a client; the description has all but the client.
    pub(super) fn observe<'a>(
        &'a self,
        connection: Option<&'a PusherConnection>,
        cx: &Context<'_>,
        describe: impl FnOnce() -> Activity<'a>,
    ) {
        self.hub().activity().observe(|| Activity {
            path: ConnectionPath::App.as_str(),
            connection: Some(socket_id_text(self.socket_id(cx))),
            user: connection.and_then(PusherConnection::user).map(|user| &*user.id),
            address: Some(cx.peer().ip().to_canonical()),
            ..describe()
        });
    }

    /// Observes an action on a channel; the description has all but the client and the channel.
    pub(super) fn observe_channel<'a>(
        &'a self,
        connection: &'a PusherConnection,
        channel: &str,
        cx: &Context<'_>,
        describe: impl FnOnce() -> Activity<'a>,
    ) {
        let activity = self.hub().activity();
        if activity.is_observed() {
            let topic = shown_topic(connection.app.options.topic_space(), channel);
            activity.observe(|| Activity {
                path: ConnectionPath::App.as_str(),
                connection: Some(socket_id_text(self.socket_id(cx))),
                user: connection.user().map(|user| &*user.id),
                address: Some(cx.peer().ip().to_canonical()),
                topic: Some(&topic),
                ..describe()
            });
        }
    }

    /// Observes a rejected operation.
    pub(super) fn observe_rejection(
        &self,
        connection: &PusherConnection,
        op: &str,
        channel: Option<&str>,
        code: u16,
        reason: &str,
        cx: &Context<'_>,
    ) {
        let describe = || Activity {
            kind: ActivityKind::Reject,
            op: Some(op),
            code: Some(code),
            reason: Some(reason),
            ..Activity::default()
        };
        match channel {
            Some(channel) => self.observe_channel(connection, channel, cx, describe),
            None => self.observe(Some(connection), cx, describe),
        }
    }
}

impl PusherConnection {
    /// Describes the subscriptions for the HTTP API.
    pub(super) fn describe(&self, cx: &Context<'_>) -> Value {
        let space = self.app.options.topic_space();
        let channels = cx.joined().filter_map(|(presence, member)| match channel_of_topic(presence)? {
            PusherTopic::Channel { channel, .. } => Some((shown_topic(space, &channel), member)),
            PusherTopic::User { .. } => None,
        });
        let (mut subscriptions, mut joined) = (Vec::new(), Vec::new());
        for (topic, member) in channels {
            if let Some(id) = member {
                joined.push(json!({ "topic": topic, "id": id }));
            }
            subscriptions.push(json!({ "topic": topic }));
        }
        json!({ "subscriptions": subscriptions, "joined": joined })
    }
}

/// Observes an event of an app's server.
pub(super) fn observe_event(hub: &HubTopics, app: &LiveApp, channel: &str, content: &PublishedContent<'_>) {
    let activity = hub.activity();
    if activity.is_observed() {
        let topic = shown_topic(app.options.topic_space(), channel);
        activity.observe(|| Activity {
            path: "/apps/{id}/events",
            ..Activity::publication(&topic, content.message())
        });
    }
}
