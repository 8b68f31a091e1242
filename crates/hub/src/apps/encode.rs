//! Messages to clients.

use serde_json::{Value, json};
use sinews_server::{Member, Position, Prepared, PresenceMessage, PresenceUpdate};

use crate::apps::channel::{ChannelKind, PusherTopic, USER_CHANNEL, channel_of_topic};
use crate::apps::position;
use crate::model::event::Event;
use crate::model::push_json;
use crate::model::user_id::{has_number_id, push_user_id};

/// The protocol's own events, which no publisher may send.
pub(crate) const INTERNAL_EVENT: &str = "pusher_internal:";

/// An event, encoded for all subscribers of a channel.
pub(crate) struct EncodedEvent {
    pub(crate) message: Prepared,
    /// The connection that does not receive the event.
    pub(crate) socket_id: Option<u128>,
}

impl EncodedEvent {
    /// Appends the event's position, and which connection does not receive it: the one that the event names, or else
    /// the one that has sent it.
    pub(crate) fn with_position(self, position: Position, sender: Option<u128>) -> Self {
        let socket_id = self.socket_id.or(sender);
        let text = String::from_utf8_lossy(self.message.payload());
        let text = position::with_position(&text, position, socket_id);
        Self { message: Prepared::text(text), socket_id }
    }
}

/// Encodes an event for a channel. [`USER_CHANNEL`] is that of the user in the event.
pub(crate) fn encode(event: &Event<'_>, channel: &str) -> EncodedEvent {
    let users_channel =
        event.user.as_ref().filter(|_| channel == USER_CHANNEL).map(|user| user_channel(user));
    let channel = users_channel.as_deref().unwrap_or(channel);
    EncodedEvent {
        message: Prepared::text(event_text(&event.name, Some(channel), &event.data, event.user_id)),
        socket_id: event.socket_id,
    }
}

/// Encodes an event with the JSON of its data, empty for none, and of its sender's id.
fn event_text(event: &str, channel: Option<&str>, data: &str, user_id: Option<&str>) -> String {
    let fields_len = [channel, Some(data), user_id].into_iter().flatten().map(str::len).sum::<usize>();
    let mut text = String::with_capacity(48 + event.len() + fields_len);
    text.push_str("{\"event\":");
    push_json(&mut text, event);
    if let Some(channel) = channel {
        text.push_str(",\"channel\":");
        push_json(&mut text, channel);
    }
    if !data.is_empty() {
        text.push_str(",\"data\":");
        text.push_str(data);
    }
    if let Some(user_id) = user_id {
        text.push_str(",\"user_id\":");
        text.push_str(user_id);
    }
    text.push('}');
    text
}

/// Encodes an event whose data is a JSON string.
pub(crate) fn nested(event: &str, channel: Option<&str>, data: &Value) -> String {
    nested_text(event, channel, &data.to_string())
}

/// Encodes an event whose data is this text.
pub(crate) fn nested_text(event: &str, channel: Option<&str>, data: &str) -> String {
    let mut quoted = String::with_capacity(data.len() + data.len() / 8 + 2);
    push_json(&mut quoted, data);
    event_text(event, channel, &quoted, None)
}

/// Encodes an event whose data is an object.
pub(crate) fn object(event: &str, channel: Option<&str>, data: &Value) -> String {
    event_text(event, channel, &data.to_string(), None)
}

/// Encodes `pusher:subscription_error`.
pub(crate) fn subscription_error(channel: &str, kind: &str, text: &str, status: u16) -> String {
    let data = json!({ "type": kind, "error": text, "status": status });
    object("pusher:subscription_error", Some(channel), &data)
}

/// Encodes `pusher:error`.
pub(crate) fn error(code: Option<u16>, message: &str, channel: Option<&str>) -> String {
    let data = match code {
        Some(code) => json!({ "code": code, "message": message }),
        None => json!({ "message": message }),
    };
    object("pusher:error", channel, &data)
}

/// Encodes a subscription's acknowledgement; for a presence channel with all its members.
pub(crate) fn subscription_succeeded(channel: &str, members: Option<&[Member]>) -> String {
    const EVENT: &str = "pusher_internal:subscription_succeeded";
    let Some(members) = members else { return nested_text(EVENT, Some(channel), "{}") };
    let mut data = format!("{{\"presence\":{{\"count\":{},\"ids\":[", members.len());
    for (at, member) in members.iter().enumerate() {
        if at > 0 {
            data.push(',');
        }
        push_user_id(&mut data, member.id(), has_number_id(member.info()));
    }
    data.push_str("],\"hash\":{");
    for (at, member) in members.iter().enumerate() {
        if at > 0 {
            data.push(',');
        }
        push_json(&mut data, member.id());
        data.push(':');
        // Clients count the users here, so that a user without `user_info` has its place.
        data.push_str(info_text(member.info()).unwrap_or("null"));
    }
    data.push_str("}}}");
    nested_text(EVENT, Some(channel), &data)
}

/// The JSON of a member's `user_info`, if it has one.
fn info_text(info: &[u8]) -> Option<&str> {
    let info = std::str::from_utf8(info.trim_ascii_start()).ok()?;
    (!info.is_empty()).then_some(info)
}

/// Encodes an update of a channel's or a user's presence; `None` for another protocol's topic.
pub(crate) fn presence_update(update: &PresenceUpdate) -> Option<Vec<PresenceMessage>> {
    let text = |text: String| PresenceMessage::from(Prepared::text(text));
    Some(match channel_of_topic(update.topic())? {
        PusherTopic::User { .. } => {
            // The only member is the user, so the list is complete.
            let transitions = update.transitions().iter().map(|transition| {
                let event = if transition.info().is_some() { "online" } else { "offline" };
                let ids = vec![transition.id().to_owned()];
                let message = Prepared::text(watchlist_events(&[(event, ids)]));
                PresenceMessage::leading_to(transition.version(), message)
            });
            transitions.collect()
        }
        PusherTopic::Channel { channel, .. } if !ChannelKind::from_name(&channel).is_presence() => {
            let data = json!({ "subscription_count": update.count().connections });
            vec![text(nested("pusher_internal:subscription_count", Some(&channel), &data))]
        }
        PusherTopic::Channel { channel, .. } if !update.has_transitions() => {
            // Clients replace their member list.
            let all = subscription_succeeded(&channel, Some(update.members()));
            vec![PresenceMessage::leading_to(update.count().version, Prepared::text(all))]
        }
        PusherTopic::Channel { channel, .. } => {
            let transitions = update.transitions().iter().map(|transition| {
                let mut data = String::from("{\"user_id\":");
                push_user_id(&mut data, transition.id(), has_number_id(transition.last_info()));
                let event = match transition.info() {
                    Some(info) => {
                        if let Some(info) = info_text(info) {
                            data.push_str(",\"user_info\":");
                            data.push_str(info);
                        }
                        "pusher_internal:member_added"
                    }
                    None => "pusher_internal:member_removed",
                };
                data.push('}');
                let message = Prepared::text(nested_text(event, Some(&channel), &data));
                PresenceMessage::leading_to(transition.version(), message)
            });
            transitions.collect()
        }
    })
}

/// Encodes user states.
pub(crate) fn watchlist_events(events: &[(&str, Vec<String>)]) -> String {
    let events: Vec<Value> =
        events.iter().map(|(name, ids)| json!({ "name": name, "user_ids": ids })).collect();
    object("pusher_internal:watchlist_events", None, &json!({ "events": events }))
}

/// The channel of a user's events.
pub(crate) fn user_channel(user: &str) -> String {
    [USER_CHANNEL, user].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::MessageContent;
    use crate::model::event::client_event;
    use crate::model::publication::PublishedContent;

    fn encoded(channel: &str, content: &MessageContent) -> EncodedEvent {
        encode(&Event::from_content(content), channel)
    }

    fn text(event: &EncodedEvent) -> String {
        String::from_utf8(event.message.payload().to_vec()).unwrap()
    }

    #[test]
    fn pusher_8_1_data_is_passed_on_byte_for_byte() {
        let published = PublishedContent::from_server("e", r#""{\"a\": 1}\u00fc""#, Some("1.2"), None);
        // Also at another node, which receives the content.
        for event in [encode(published.event(), "private-a"), encoded("private-a", published.message())] {
            assert_eq!(text(&event), r#"{"event":"e","channel":"private-a","data":"{\"a\": 1}\u00fc"}"#);
            assert_eq!(event.socket_id, Some(1 << 64 | 2));
        }
    }

    #[test]
    fn event_of_a_user_names_its_channel_and_other_channels_stay() {
        let published = PublishedContent::from_server("e", "\"1\"", None, Some("u\"1"));
        for (channel, expected) in [(USER_CHANNEL, r##""#server-to-user-u\"1""##), ("a", "\"a\"")] {
            let expected = format!(r#"{{"event":"e","channel":{expected},"data":"1"}}"#);
            for event in [encode(published.event(), channel), encoded(channel, published.message())] {
                assert_eq!(text(&event), expected);
            }
        }
        let forged = MessageContent::Json(r#"{"event":"e","user":"1"}"#.into());
        assert_eq!(text(&encoded("a", &forged)), r#"{"event":"e","channel":"a"}"#);
    }

    #[test]
    fn pusher_8_2_and_8_4_client_events_keep_their_data_and_get_the_id_of_the_sender() {
        let content = client_event("client-e", Some(r#"{"a": [1]}"#), Some(r#""u\"1""#));
        let event = encoded("presence-a", &content);
        let expected = r#"{"event":"client-e","channel":"presence-a","data":{"a": [1]},"user_id":"u\"1"}"#;
        assert_eq!(text(&event), expected);
        assert!(Event::from_content(&content).is_from_client());
        assert_eq!(
            text(&encoded("a", &client_event("client-e", None, None))),
            r#"{"event":"client-e","channel":"a"}"#
        );
    }

    #[test]
    fn publications_of_other_protocols_are_events_and_cannot_forge_those_of_the_protocol() {
        let json = |text: &'static str| MessageContent::Json(text.into());
        for (content, expected) in [
            (json(r#"{"event":"e","data":{"a":1}}"#), r#"{"event":"e","channel":"c","data":{"a":1}}"#),
            (json(r#"{"event":"e","user_id":"1","socket_id":"1.2"}"#), r#"{"event":"e","channel":"c"}"#),
            (
                json(r#"{"event":"pusher_internal:member_added"}"#),
                r#"{"event":"message","channel":"c","data":"{\"event\":\"pusher_internal:member_added\"}"}"#,
            ),
            (json("[1]"), r#"{"event":"message","channel":"c","data":"[1]"}"#),
            (json(r#""a""#), r#"{"event":"message","channel":"c","data":"a"}"#),
            (MessageContent::Text("a\"b".into()), r#"{"event":"message","channel":"c","data":"a\"b"}"#),
            (MessageContent::Binary("abcd".into()), r#"{"event":"message","channel":"c","data":"YWJjZA=="}"#),
        ] {
            assert_eq!(text(&encoded("c", &content)), expected);
        }
    }

    #[test]
    fn pusher_5_2_and_5_3_acknowledgements_have_all_members() {
        assert_eq!(
            subscription_succeeded("a", None),
            r#"{"event":"pusher_internal:subscription_succeeded","channel":"a","data":"{}"}"#
        );
        let members = [
            Member::new("1").with_info(r#"{"n":"ü"}"#),
            Member::new("2"),
            Member::new("3").with_info(r#" {"n":3}"#),
            Member::new("4").with_info(" "),
        ];
        let message: Value =
            serde_json::from_str(&subscription_succeeded("presence-a", Some(&members))).unwrap();
        let data: Value = serde_json::from_str(message["data"].as_str().unwrap()).unwrap();
        let hash = json!({ "1": { "n": "ü" }, "2": null, "3": { "n": 3 }, "4": null });
        let expected = json!({ "count": 4, "ids": ["1", "2", 3, 4], "hash": hash });
        assert_eq!(data, json!({ "presence": expected }));
    }
}
