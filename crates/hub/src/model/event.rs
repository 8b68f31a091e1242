//! Events: publications with a name, as the Pusher protocol has them.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use sinews_server::Kind;

use crate::model::json::read_object;
use crate::model::socket_id::{parse_socket_id, socket_id_text};
use crate::model::user_id::user_id_json;
use crate::model::{MessageContent, push_json};

/// The name for an event that another protocol has published without a name.
const UNNAMED: &str = "message";

/// Client events begin with this.
pub(crate) const CLIENT_EVENT: &str = "client-";

/// An event without its channel.
#[derive(Debug)]
pub(crate) struct Event<'a> {
    pub(crate) name: Cow<'a, str>,
    /// The JSON of the data, empty for none.
    pub(crate) data: Cow<'a, str>,
    /// The sender's id as JSON.
    pub(crate) user_id: Option<&'a str>,
    /// The connection that does not receive the event.
    pub(crate) socket_id: Option<u128>,
    /// The user that receives the event.
    pub(crate) user: Option<Cow<'a, str>>,
}

/// An event, as [`MessageContent::Event`] and other protocols' JSON objects hold it.
#[derive(Deserialize)]
struct EventFields<'a> {
    #[serde(borrow)]
    event: Cow<'a, str>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    /// The sender's id, on presence channels.
    #[serde(borrow)]
    user_id: Option<&'a RawValue>,
    /// The connection that does not receive the event.
    #[serde(borrow)]
    socket_id: Option<Cow<'a, str>>,
    /// The user that receives the event.
    #[serde(borrow)]
    user: Option<Cow<'a, str>>,
}

impl<'a> Event<'a> {
    /// Creates an event with the JSON of its data, empty for none.
    pub(crate) fn new(name: impl Into<Cow<'a, str>>, data: impl Into<Cow<'a, str>>) -> Self {
        Self { name: name.into(), data: data.into(), user_id: None, socket_id: None, user: None }
    }

    /// Parses a publication. Publications by other protocols are events if they are objects with an `event`, and
    /// otherwise events with the name `message`.
    pub(crate) fn from_content(content: &'a MessageContent) -> Self {
        let (bytes, is_trusted) = match content {
            MessageContent::Event(bytes) => (bytes, true),
            MessageContent::Json(bytes) => (bytes, false),
            MessageContent::Text(_) | MessageContent::Binary(_) => return Self::unnamed(content),
        };
        let Ok(fields) = read_object::<EventFields<'_>>(bytes) else {
            return Self::unnamed(content);
        };
        let data = fields.data.map_or("", RawValue::get);
        if !is_trusted {
            return match fields.event.starts_with("pusher") {
                true => Self::unnamed(content),
                false => Self::new(fields.event, data),
            };
        }
        Self {
            user_id: fields.user_id.map(RawValue::get),
            socket_id: fields.socket_id.and_then(|id| parse_socket_id(&id)),
            user: fields.user,
            ..Self::new(fields.event, data)
        }
    }

    /// A payload that is no event.
    fn unnamed(content: &MessageContent) -> Self {
        let plain = content.plain();
        let text = match plain.kind() {
            Kind::Text => String::from_utf8_lossy(plain.payload()).into_owned(),
            Kind::Binary => {
                use base64::Engine as _;
                base64::engine::general_purpose::STANDARD.encode(plain.payload())
            }
        };
        let mut data = String::with_capacity(text.len() + 2);
        push_json(&mut data, &text);
        Self::new(UNNAMED, data)
    }

    /// Whether a client has sent the event.
    pub(crate) fn is_from_client(&self) -> bool {
        self.name.starts_with(CLIENT_EVENT)
    }

    /// Encodes the event as publication content.
    pub(crate) fn to_content(&self) -> MessageContent {
        let socket_id = self.socket_id.map(|id| user_id_json(&socket_id_text(id), false));
        let user = self.user.as_deref().map(|user| user_id_json(user, false));
        let more =
            [("user_id", self.user_id), ("socket_id", socket_id.as_deref()), ("user", user.as_deref())];
        let mut text = String::with_capacity(64 + self.name.len() + self.data.len());
        text.push_str("{\"event\":");
        push_json(&mut text, &self.name);
        let data = Some(&*self.data).filter(|data| !data.is_empty());
        for (field, value) in [("data", data)].into_iter().chain(more) {
            if let Some(value) = value {
                text.push_str(",\"");
                text.push_str(field);
                text.push_str("\":");
                text.push_str(value);
            }
        }
        text.push('}');
        MessageContent::Event(Bytes::from(text))
    }
}

/// Encodes a client event: its data is any JSON, as received. Presence channel members have an id, as JSON.
pub(crate) fn client_event(name: &str, data: Option<&str>, user_id: Option<&str>) -> MessageContent {
    Event { user_id, ..Event::new(name, data.unwrap_or_default()) }.to_content()
}

/// Returns the name, the data and the sender's id from a [client event](client_event). Data that is no string is JSON
/// text.
pub(crate) fn client_event_fields(content: &[u8]) -> Option<(String, Option<String>, Option<Value>)> {
    let fields = read_object::<EventFields<'_>>(content).ok()?;
    let data = fields.data.map(RawValue::get);
    let data = data.map(|data| serde_json::from_str(data).unwrap_or_else(|_| data.to_owned()));
    let user_id = fields.user_id.and_then(|id| serde_json::from_str(id.get()).ok());
    Some((fields.event.into_owned(), data, user_id))
}
