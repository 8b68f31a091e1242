//! What a hook decides about, and its fields in the request.

use serde_json::json;
use sinews_server::{KeyCondition, KeyWrite, Position};

use super::calls::{CallData, HookCall};
use crate::model::{HookKind, MessageContent};

/// What a hook decides about. Its fields are encoded once the request is admitted.
pub(crate) enum HookDetail<'a> {
    /// A connection or request at a route.
    Connect {
        path: &'a str,
    },
    /// Expired rights.
    Refresh,
    Subscribe {
        topic: &'a str,
    },
    Publish {
        topic: &'a str,
        content: &'a MessageContent,
        idempotency_key: Option<&'a str>,
    },
    WriteKey {
        topic: &'a str,
        write: &'a KeyWrite,
    },
    Rpc {
        call: HookCall<'a>,
        data: Option<CallData<'a>>,
    },
}

impl HookDetail<'_> {
    pub(super) fn kind(&self) -> HookKind {
        match self {
            Self::Connect { .. } => HookKind::Connect,
            Self::Refresh => HookKind::Refresh,
            Self::Subscribe { .. } => HookKind::Subscribe,
            Self::Publish { .. } | Self::WriteKey { .. } => HookKind::Publish,
            Self::Rpc { .. } => HookKind::Rpc,
        }
    }

    /// Returns the content bytes of the client's message.
    pub(super) fn content_len(&self) -> usize {
        match self {
            Self::Publish { content, .. } => content.len(),
            Self::WriteKey { write, .. } => write.value().map_or(0, |value| value.len()),
            Self::Rpc { data, .. } => data.map_or(0, CallData::len),
            Self::Connect { .. } | Self::Refresh | Self::Subscribe { .. } => 0,
        }
    }

    /// The fields, in JSON without braces.
    pub(super) fn fields(&self) -> String {
        match self {
            Self::Connect { path } => format!("\"path\":{}", json!(path)),
            Self::Refresh => "\"expired\":true".to_owned(),
            Self::Subscribe { topic } => format!("\"topic\":{}", json!(topic)),
            Self::Publish { topic, content, idempotency_key } => {
                let key = idempotency_key
                    .map_or_else(String::new, |key| format!("\"idempotency_key\":{},", json!(key)));
                format!("\"topic\":{},{key}{}", json!(topic), content.field())
            }
            Self::WriteKey { topic, write } => key_fields(topic, write),
            Self::Rpc { call: HookCall { method, topic }, data } => {
                let topic = topic.map_or_else(String::new, |topic| format!(",\"topic\":{}", json!(topic)));
                let data = data.map_or_else(String::new, |data| format!(",{}", data.field()));
                format!("\"method\":{}{topic}{data}", json!(method))
            }
        }
    }
}

/// Returns the fields of a request about a key write.
fn key_fields(topic: &str, write: &KeyWrite) -> String {
    let mut fields = json!({ "topic": topic, "key": write.key() });
    if let Some(ttl) = write.ttl() {
        fields["ttl"] = json!(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    }
    match write.condition() {
        Some(KeyCondition::IfNew) => fields["if_new"] = json!(true),
        Some(KeyCondition::IfExists) => fields["if_exists"] = json!(true),
        Some(KeyCondition::Version(version)) => fields["version"] = json!(version),
        Some(KeyCondition::At(Position { epoch, sequence })) => {
            (fields["version"], fields["epoch"]) = (json!(sequence), json!(epoch));
        }
        _ => {}
    }
    if let Some(name) = write.idempotency_key() {
        fields["idempotency_key"] = json!(name);
    }
    // A value's stored form is a field.
    let value = write.value().map(|value| String::from_utf8_lossy(value).into_owned());
    let fields = fields.to_string();
    let fields = fields.strip_prefix('{').and_then(|fields| fields.strip_suffix('}')).unwrap_or_default();
    format!("{fields},{}", value.as_deref().unwrap_or("\"delete\":true"))
}
