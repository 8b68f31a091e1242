//! Client events.

use std::sync::Arc;

use serde_json::value::RawValue;
use sinews_server::Context;

use super::client::{PusherClient, PusherConnection, send};
use super::code;
use crate::activity::{Activity, ActivityContent, ActivityKind};
use crate::apps::channel::{ChannelAccess, ChannelKind, presence_of, topic_of};
use crate::apps::encode::error;
use crate::apps::live::LiveApp;
use crate::apps::metrics::PusherRejection;
use crate::model::MessageContent;
use crate::model::event::client_event;
use crate::model::events::{EventDetail, WebhookEventKind};
use crate::model::json::{TOO_DEEP, exceeds_depth_in_text};
use crate::model::publication::{Publication, PublicationSender};
use crate::model::socket_id::socket_id_text;
use crate::model::user_id::{has_number_id, may_be_number, user_id_json};

/// One connection's rate: the due time of its next event, in nanoseconds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ClientEventRate(u64);

impl PusherClient {
    /// Passes an event on to its channel's other subscribers.
    pub(super) fn client_event(
        &self,
        connection: &mut PusherConnection,
        name: &str,
        channel: Option<&str>,
        data: Option<&RawValue>,
        cx: &mut Context<'_>,
    ) {
        let checked = self.check_client_event(connection, name, channel, data, cx);
        let (channel, user_id) = match checked {
            Ok(accepted) => accepted,
            Err(problem) => {
                self.apps().counters.reject(PusherRejection::ClientEvent);
                connection.app.count_rejection();
                self.observe_rejection(connection, name, channel, code::CLIENT_EVENT, &problem, cx);
                return send(cx, &error(Some(code::CLIENT_EVENT), &problem, channel));
            }
        };
        let presence = presence_of(&connection.app.options.id, &channel);
        let user_id_json = user_id.as_deref().map(|id| {
            let member = may_be_number(id).then(|| cx.topics().member(&presence, id)).flatten();
            user_id_json(id, member.is_some_and(|member| has_number_id(member.info())))
        });
        let content = client_event(name, data.map(RawValue::get), user_id_json.as_deref());
        let topic = topic_of(connection.app.options.topic_space(), &channel);
        let socket_id = self.socket_id(cx);
        let sender = PublicationSender { socket: Some(socket_id), exclude: None, excludes_publisher: true };
        let published = (&content).into();
        self.hub().publish(cx, &Publication::new(&topic, &published).with_sender(sender));
        self.observe_channel(connection, &channel, cx, || Activity {
            kind: ActivityKind::Publish,
            content: Some(ActivityContent::Message(&content)),
            ..Activity::default()
        });
        self.report_client_event(&connection.app, socket_id, &topic, &channel, &content, user_id.as_deref());
    }

    /// Reports an event, if anything wants to know it: of its channel, and of the topic that the channel is.
    fn report_client_event(
        &self,
        app: &LiveApp,
        socket_id: u128,
        topic: &str,
        channel: &str,
        content: &MessageContent,
        user_id: Option<&str>,
    ) {
        let kind = WebhookEventKind::ClientMessage;
        let Some(events) = self.hub().events().filter(|events| events.wants(kind)) else { return };
        let own_topic = presence_of(&app.options.id, channel);
        let detail = |topic: &str, connection| EventDetail::ClientMessage {
            topic: topic.into(),
            content: content.as_event(),
            user: user_id.map(Arc::from),
            connection,
        };
        if topic != own_topic {
            events.emit(detail(topic, None));
        }
        events.emit(detail(&own_topic, Some(socket_id_text(socket_id))));
    }

    /// Checks an event. Returns its channel, and its sender's id on a presence channel.
    fn check_client_event(
        &self,
        connection: &mut PusherConnection,
        name: &str,
        channel: Option<&str>,
        data: Option<&RawValue>,
        cx: &Context<'_>,
    ) -> Result<(String, Option<String>), String> {
        let options = &connection.app.options;
        let limits = &options.limits;
        if !options.client_events {
            return Err("the app does not permit client events".to_owned());
        }
        if name.len() > limits.event_name {
            return Err(format!(
                "event name of {} bytes exceeds the limit of {}",
                name.len(),
                limits.event_name
            ));
        }
        let size = data.map_or(0, |data| data.get().len());
        if size > limits.event_data {
            return Err(format!("event data of {size} bytes exceeds the limit of {}", limits.event_data));
        }
        if data.is_some_and(|data| exceeds_depth_in_text(data.get())) {
            return Err(TOO_DEEP.to_owned());
        }
        let channel = channel.ok_or("a client event needs a channel")?;
        let known = connection.subscribed(channel, cx);
        let (_, user_id) = known.ok_or("a client event needs a subscription to its channel")?;
        if ChannelKind::from_name(channel).access == ChannelAccess::Public {
            return Err("client events are for private and presence channels".to_owned());
        }
        let rate = &mut connection.rare.get_or_insert_default().client_events;
        let due = options.client_event_rate().take(rate.0, self.apps().now());
        rate.0 = due
            .ok_or_else(|| format!("more than {} client events a second", limits.client_events_per_second))?;
        Ok((channel.to_owned(), user_id.map(str::to_owned)))
    }
}
