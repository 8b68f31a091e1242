//! Requests to hooks and their answers, as JSON.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::access::auth::ASSIGNED_MAX;
use crate::access::namespaces::ClientIdentity;
use crate::model::HookKind;
use crate::model::brief::{brief, brief_error};
use crate::model::json::{TOO_DEEP, exceeds_depth};

/// The application's answer.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct HookReply {
    /// Set by [`parse`](Self::parse).
    #[serde(skip)]
    pub(crate) rejection: Option<HookRejection>,
    /// `null` or `false`: an answer with a rejection is read apart.
    reject: Option<Value>,
    /// Claims, as in a token.
    pub(crate) claims: Option<Map<String, Value>>,
    /// Topics to which the server subscribes the client.
    pub(crate) topics: Vec<String>,
    /// The client's info as a member.
    pub(crate) info: Option<Value>,
    /// A value for the client, or the publication's content.
    pub(crate) data: Option<Box<RawValue>>,
    /// The publication's binary content.
    pub(crate) b64: Option<String>,
}

/// A rejection by the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HookRejection {
    /// `None`: the hook's default.
    pub(crate) code: Option<u16>,
    pub(crate) reason: String,
}

impl HookReply {
    /// Parses an answer. An answer with a rejection is one, whatever else it has.
    ///
    /// # Errors
    /// The answer's fault.
    pub(super) fn parse(kind: HookKind, body: &[u8]) -> Result<Self, String> {
        let fault = |error: serde_json::Error| format!("answer: {}", brief_error(&error));
        let fields: BTreeMap<Cow<'_, str>, &RawValue> = serde_json::from_slice(body).map_err(fault)?;
        let reject = fields.get("reject").map(|reject| reject.get());
        if let Some(reject) = reject.filter(|reject| !matches!(*reject, "null" | "false")) {
            let reject = serde_json::from_str(reject).map_err(fault)?;
            let rejection = Some(HookRejection::from_json(kind, &reject));
            return Ok(Self { rejection, ..Self::default() });
        }
        let reply: Self = serde_json::from_slice(body).map_err(fault)?;
        if reply.topics.len() > ASSIGNED_MAX {
            return Err(format!("answer: {} topics exceed the limit of {ASSIGNED_MAX}", reply.topics.len()));
        }
        if reply.data.as_ref().is_some_and(|data| exceeds_depth(data.get().as_bytes())) {
            return Err(format!("answer: data: {TOO_DEEP}"));
        }
        if reply.data.is_some() && reply.b64.is_some() {
            return Err("answer: data or b64, not both".to_owned());
        }
        let known: &[&str] = match kind {
            HookKind::Connect => &["claims", "topics", "info", "data"],
            HookKind::Refresh => &["claims", "info"],
            HookKind::Subscribe => &["topics", "info"],
            HookKind::Publish => &["data", "b64"],
            HookKind::Rpc => &["data"],
        };
        match fields.keys().find(|name| *name != "reject" && !known.contains(&&***name)) {
            Some(name) => Err(format!("answer: {} is no field of the hook {}", brief(name), kind.name())),
            None => Ok(reply),
        }
    }
}

impl HookRejection {
    fn from_json(kind: HookKind, reject: &Value) -> Self {
        let codes = match kind {
            HookKind::Connect | HookKind::Refresh => 4000..=4999,
            _ => 400..=499,
        };
        let code = reject["code"].as_u64().and_then(|code| u16::try_from(code).ok());
        let code = code.filter(|code| codes.contains(code));
        let reason = reject["reason"].as_str().unwrap_or("rejected by the application");
        Self { code, reason: reason.to_owned() }
    }
}

/// Creates the beginning of a request: the hook, the connection, unless its id is empty, and its client.
pub(crate) fn begin(kind: HookKind, connection: &str, client: ClientIdentity<'_>) -> Value {
    let mut request = json!({ "hook": kind.name() });
    if !connection.is_empty() {
        request["connection"] = json!(connection);
    }
    if let Some(user) = client.subject {
        request["user"] = json!(user);
    }
    if let Some(address) = client.address {
        request["address"] = json!(address.to_string());
    }
    request
}

/// Adds fields that are JSON already, such as `"data":1`.
pub(crate) fn with_fields(request: &Value, fields: &str) -> String {
    let mut text = request.to_string();
    text.pop();
    text.push(',');
    text.push_str(fields);
    text.push('}');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_the_fields_of_their_hook() {
        let parse = |kind, text: &str| HookReply::parse(kind, text.as_bytes());
        let reply =
            parse(HookKind::Connect, r#"{"claims":{"sub":"a"},"topics":["b"],"info":1,"data":[2]}"#).unwrap();
        assert_eq!((reply.topics, reply.info), (vec!["b".to_owned()], Some(json!(1))));
        assert!(reply.rejection.is_none() && reply.data.unwrap().get() == "[2]");
        for kind in HookKind::ALL {
            assert!(parse(kind, r#"{"reject":null}"#).unwrap().rejection.is_none());
        }
        for (kind, bad) in [
            (HookKind::Publish, r#"{"topics":["b"]}"#),
            (HookKind::Subscribe, r#"{"data":1}"#),
            (HookKind::Rpc, r#"{"claims":{}}"#),
            (HookKind::Connect, r#"{"rejct":{}}"#),
            (HookKind::Connect, r#"{"topics":"b"}"#),
            (HookKind::Publish, r#"{"data":1,"b64":"AA=="}"#),
            (HookKind::Connect, "[]"),
            (HookKind::Rpc, &*format!("{{\"data\":{}1{}}}", "[".repeat(129), "]".repeat(129))),
            (HookKind::Connect, ""),
        ] {
            assert!(parse(kind, bad).unwrap_err().starts_with("answer: "), "{bad}");
        }
        let many = json!({ "topics": vec!["a"; ASSIGNED_MAX + 1] }).to_string();
        assert!(parse(HookKind::Connect, &many).unwrap_err().ends_with("limit of 64"));
    }

    #[test]
    fn rejection_wins_over_every_other_field() {
        let parse = |kind, text: &str| HookReply::parse(kind, text.as_bytes()).unwrap().rejection.unwrap();
        for (kind, text, code) in [
            (HookKind::Publish, r#"{"reject":{"code":409,"reason":"no"},"unknown":1}"#, Some(409)),
            (HookKind::Publish, r#"{"reject":{"code":4001,"reason":"no"}}"#, None),
            (HookKind::Connect, r#"{"reject":{"code":4001,"reason":"no"},"topics":7}"#, Some(4001)),
            (HookKind::Connect, r#"{"reject":{"code":1000,"reason":"no"}}"#, None),
        ] {
            assert_eq!(parse(kind, text), HookRejection { code, reason: "no".to_owned() }, "{text}");
        }
        assert_eq!(parse(HookKind::Rpc, r#"{"reject":true}"#).reason, "rejected by the application");
    }
}
