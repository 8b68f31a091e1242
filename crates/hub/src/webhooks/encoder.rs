//! The request form: body and signature.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use ring::hmac;
use serde_json::{Value, json};

use super::event::WebhookEvent;
use crate::model::events::{ClosedConnection, EventContent, EventDetail};
use crate::model::presence;
use crate::outgoing::http::{SIGNATURE, signature};

/// One request's events.
#[derive(Debug)]
pub(crate) struct EventBatch<'a> {
    /// The request's id, the same in all attempts.
    pub(crate) id: &'a str,
    pub(crate) events: &'a [Arc<WebhookEvent>],
    /// Events that were lost since the last request that the application has accepted.
    pub(crate) lost: u64,
}

/// Makes a webhook's requests.
pub(crate) trait WebhookEncoder: fmt::Debug + Send + Sync {
    /// Returns a request's body, in JSON; the same in all attempts.
    fn body(&self, batch: &EventBatch<'_>) -> Bytes;

    /// Returns the headers of one attempt besides the content type: the body's signature, and others.
    fn headers(&self, id: &str, body: &[u8]) -> Vec<(HeaderName, HeaderValue)>;
}

/// The form of docs/book/src/server/webhooks.md.
pub(crate) struct JsonEncoder(hmac::Key);

impl fmt::Debug for JsonEncoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JsonEncoder")
    }
}

impl JsonEncoder {
    pub(crate) fn new(key: hmac::Key) -> Self {
        Self(key)
    }
}

impl WebhookEncoder for JsonEncoder {
    fn body(&self, batch: &EventBatch<'_>) -> Bytes {
        let mut text = format!("{{\"id\":\"{}\",\"lost\":{},\"events\":[", batch.id, batch.lost);
        for (index, event) in batch.events.iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            push_event(&mut text, event);
        }
        text.push_str("]}");
        text.into()
    }

    fn headers(&self, id: &str, body: &[u8]) -> Vec<(HeaderName, HeaderValue)> {
        let headers = [("sinews-webhook-id", id.to_owned()), (SIGNATURE, signature(&self.0, body))];
        let pair = |(name, value): (&'static str, String)| {
            // Hexadecimal digits and punctuation are valid values.
            Some((HeaderName::from_static(name), HeaderValue::try_from(value).ok()?))
        };
        headers.into_iter().filter_map(pair).collect()
    }
}

fn push_event(text: &mut String, event: &WebhookEvent) {
    let mut fields =
        json!({ "id": event.id_text(), "event": event.detail.kind().name(), "time": event.time });
    if let Some(topic) = event.detail.topic() {
        fields["topic"] = json!(**topic);
    }
    let mut content = None;
    match &event.detail {
        EventDetail::TopicOccupied { .. }
        | EventDetail::TopicVacated { .. }
        | EventDetail::CacheMiss { .. } => {}
        EventDetail::ServerStarted { version, node } => {
            fields["version"] = json!(**version);
            set(&mut fields, "node", node.as_deref());
        }
        EventDetail::SubscriptionCount { count, .. } => fields["count"] = json!(count),
        EventDetail::MemberJoined { member, .. } => fields["member"] = presence::member(member),
        EventDetail::MemberLeft { id, .. } => fields["member"] = json!({ "id": **id }),
        EventDetail::ClientMessage { content: sent, user, connection, .. } => {
            set(&mut fields, "user", user.as_deref());
            set(&mut fields, "connection", connection.as_deref());
            content = Some(field(sent));
        }
        EventDetail::ConnectionClosed(closed) => {
            let ClosedConnection { id, path, user, address, opened, code } = &**closed;
            fields["connection"] = json!(id);
            fields["path"] = json!(path);
            fields["opened"] = json!(opened);
            set(&mut fields, "user", user.as_deref());
            set(&mut fields, "address", address.map(|address| address.to_string()).as_deref());
            if let Some(code) = code {
                fields["code"] = json!(code);
            }
        }
    }
    let fields = fields.to_string();
    match content {
        // The content is JSON already.
        Some(content) => {
            text.push_str(fields.strip_suffix('}').unwrap_or(&fields));
            text.push(',');
            text.push_str(&content);
            text.push('}');
        }
        None => text.push_str(&fields),
    }
}

/// Encodes the field of the content, in JSON.
fn field(content: &EventContent) -> String {
    match content {
        EventContent::Text(text) => format!("\"data\":{}", json!(String::from_utf8_lossy(text))),
        EventContent::Json(text) => format!("\"data\":{}", String::from_utf8_lossy(text)),
        EventContent::Binary(bytes) => format!("\"b64\":\"{}\"", STANDARD.encode(bytes)),
    }
}

fn set(fields: &mut Value, name: &str, value: Option<&str>) {
    if let Some(value) = value {
        fields[name] = json!(value);
    }
}

#[cfg(test)]
mod tests {
    use sinews_server::Member;

    use super::*;

    #[test]
    fn events_are_encoded_with_their_fields() {
        let topic: Arc<str> = "chat.a".into();
        let member = Member::new("anna").with_info(r#"{"name":"Anna"}"#);
        let message = |content| EventDetail::ClientMessage {
            topic: topic.clone(),
            content,
            user: Some("anna".into()),
            connection: Some("c-1".into()),
        };
        let closed = ClosedConnection {
            id: "c-1".into(),
            path: "/ws",
            user: None,
            address: Some([192, 0, 2, 7].into()),
            opened: 5,
            code: Some(1001),
        };
        let details = [
            (EventDetail::TopicOccupied { topic: topic.clone() }, json!({"topic": "chat.a"})),
            (
                EventDetail::MemberJoined { topic: topic.clone(), member },
                json!({"topic": "chat.a", "member": {"id": "anna", "info": {"name": "Anna"}}}),
            ),
            (
                EventDetail::MemberLeft { topic: topic.clone(), id: "anna".into(), has_number_id: false },
                json!({"topic": "chat.a", "member": {"id": "anna"}}),
            ),
            (
                message(EventContent::Json("{\"a\":1}".into())),
                json!({"topic": "chat.a", "user": "anna", "connection": "c-1", "data": {"a": 1}}),
            ),
            (
                message(EventContent::Text("a\"b".into())),
                json!({"topic": "chat.a", "user": "anna", "connection": "c-1", "data": "a\"b"}),
            ),
            (
                message(EventContent::Binary(vec![0, 255].into())),
                json!({"topic": "chat.a", "user": "anna", "connection": "c-1", "b64": "AP8="}),
            ),
            (
                EventDetail::ConnectionClosed(Box::new(closed)),
                json!({"connection": "c-1", "path": "/ws", "address": "192.0.2.7", "opened": 5, "code": 1001}),
            ),
        ];
        let encoder = JsonEncoder::new(hmac::Key::new(hmac::HMAC_SHA256, b"secret"));
        for (detail, expected) in details {
            let kind = detail.kind().name();
            let events = [Arc::new(WebhookEvent { id: (1, 2), time: 9, detail })];
            let body = encoder.body(&EventBatch { id: "b", events: &events, lost: 3 });
            let mut body: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!((&body["id"], &body["lost"]), (&json!("b"), &json!(3)));
            let event = body["events"][0].as_object_mut().unwrap();
            assert_eq!(event.remove("id"), Some(json!("00000000000000010000000000000002")));
            assert_eq!((event.remove("event"), event.remove("time")), (Some(json!(kind)), Some(json!(9))));
            assert_eq!(body["events"][0], expected);
        }
    }
}
