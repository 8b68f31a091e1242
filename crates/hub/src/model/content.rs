//! Publication content, and its forms.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::json;
use serde_json::value::RawValue;
use sinews_server::{Kind, Prepared};

use crate::model::events::EventContent;
use crate::model::json::check_depth;
use crate::model::problem::Problem;
use crate::model::stamp::MessageStamp;

/// A publication's content.
#[derive(Clone, Debug)]
pub(crate) enum MessageContent {
    /// A payload that is UTF-8.
    Text(Bytes),
    /// JSON text as received; a string's plain form is its text.
    Json(Bytes),
    Binary(Bytes),
    /// A Pusher protocol event as a JSON object, from a client or an app's server: other protocols cannot set all its
    /// fields.
    Event(Bytes),
}

impl MessageContent {
    /// Creates the content of a received payload.
    pub(crate) fn payload(kind: Kind, bytes: Bytes) -> Self {
        if kind == Kind::Text { Self::Text(bytes) } else { Self::Binary(bytes) }
    }

    /// # Errors
    /// The data is nested too deeply.
    pub(crate) fn json(data: &RawValue) -> Result<Self, Problem> {
        check_depth(data.get())?;
        Ok(Self::Json(Bytes::copy_from_slice(data.get().as_bytes())))
    }

    /// Returns the content of an event.
    pub(crate) fn as_event(&self) -> EventContent {
        match self.clone() {
            Self::Text(bytes) => EventContent::Text(bytes),
            Self::Json(bytes) | Self::Event(bytes) => EventContent::Json(bytes),
            Self::Binary(bytes) => EventContent::Binary(bytes),
        }
    }

    pub(crate) fn bytes(&self) -> &Bytes {
        match self {
            Self::Text(bytes) | Self::Json(bytes) | Self::Binary(bytes) | Self::Event(bytes) => bytes,
        }
    }

    /// Size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes().len()
    }

    pub(crate) fn plain(&self) -> Prepared {
        match self {
            Self::Text(bytes) | Self::Event(bytes) => Prepared::new(Kind::Text, bytes.clone()),
            Self::Json(bytes) => match serde_json::from_slice::<String>(bytes) {
                Ok(text) => Prepared::text(text),
                Err(_) => Prepared::new(Kind::Text, bytes.clone()),
            },
            Self::Binary(bytes) => Prepared::new(Kind::Binary, bytes.clone()),
        }
    }

    pub(crate) fn framed<'a>(&self, topic: &str, stamp: impl Into<MessageStamp<'a>>) -> Prepared {
        Prepared::text(self.framed_text(topic, stamp))
    }

    /// Encodes a protocol message.
    pub(crate) fn framed_text<'a>(&self, topic: &str, stamp: impl Into<MessageStamp<'a>>) -> String {
        const HEAD: &str = "{\"op\":\"message\",\"topic\":";
        let fields = stamp.into().fields();
        // With the topic's quotes, a comma and the brace.
        let len = HEAD.len() + topic.len() + fields.len() + self.field_len() + 4;
        let mut text = String::with_capacity(len);
        text.push_str(HEAD);
        push_json(&mut text, topic);
        text.push_str(&fields);
        text.push(',');
        self.push_field(&mut text);
        text.push('}');
        text
    }

    /// Returns the field's length without escapes.
    fn field_len(&self) -> usize {
        match self {
            Self::Text(bytes) => "\"data\":\"\"".len() + bytes.len(),
            Self::Json(bytes) | Self::Event(bytes) => "\"data\":".len() + bytes.len(),
            Self::Binary(bytes) => "\"b64\":\"\"".len() + bytes.len().div_ceil(3) * 4,
        }
    }

    /// Encodes the message field that has the content: `"data":…` or `"b64":…`.
    pub(crate) fn field(&self) -> String {
        let mut text = String::with_capacity(self.field_len());
        self.push_field(&mut text);
        text
    }

    fn push_field(&self, text: &mut String) {
        match self {
            Self::Text(bytes) => {
                text.push_str("\"data\":");
                push_json(text, &to_text(bytes));
            }
            Self::Json(bytes) | Self::Event(bytes) => {
                text.push_str("\"data\":");
                text.push_str(&to_text(bytes));
            }
            Self::Binary(bytes) => {
                text.push_str("\"b64\":\"");
                STANDARD.encode_string(bytes, text);
                text.push('"');
            }
        }
    }
}

/// Returns the text of a content. For valid UTF-8, the check takes a fraction of the time of
/// [`String::from_utf8_lossy`].
fn to_text(bytes: &[u8]) -> Cow<'_, str> {
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

/// Appends a text as a JSON string.
pub(crate) fn push_json(text: &mut String, string: &str) {
    if string.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
        text.push('"');
        text.push_str(string);
        text.push('"');
    } else {
        text.push_str(&json!(string).to_string());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use sinews_server::Position;

    use super::*;

    #[test]
    fn messages_of_the_protocol_are_valid_json_of_the_expected_length() {
        let position = Some(Position { epoch: 7, sequence: 41 });
        let of = |content: MessageContent, position| content.framed_text("a.b", position);
        let text = of(MessageContent::Text("hé".into()), None);
        assert_eq!(text, r#"{"op":"message","topic":"a.b","data":"hé"}"#);
        let json = of(MessageContent::Json("[1]".into()), position);
        assert_eq!(json, r#"{"op":"message","topic":"a.b","epoch":7,"seq":41,"data":[1]}"#);
        let binary = of(MessageContent::Binary("abcd".into()), None);
        assert_eq!(binary, r#"{"op":"message","topic":"a.b","b64":"YWJjZA=="}"#);
        // No memory is left over or moved.
        assert!([text, json, binary].iter().all(|message| message.capacity() == message.len()));
    }

    #[test]
    fn strings_are_escaped_as_json() {
        for string in ["", "a\"b", "back\\slash", "line\nbreak", "\u{0}\u{1f}\u{7f}", "\u{2028}é😀"] {
            let mut text = String::new();
            push_json(&mut text, string);
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), string, "{text}");
            assert_eq!(text, json!(string).to_string());
        }
    }
}
