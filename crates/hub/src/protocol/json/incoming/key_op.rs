//! Operations on keys.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sinews_server::{KeySubscription, KeyWrite, Position};

use super::super::keys::{KeyOp, KeyRequest};
use super::{AfterMessage, MessageFields, StartField};
use crate::model::MessageContent;
use crate::model::brief::brief;
use crate::model::problem::{Problem, code, problem};
use crate::topics::keys::with_condition;

pub(super) fn parse_key_op<'a>(name: &str, fields: MessageFields<'a>) -> Result<KeyRequest<'a>, Problem> {
    let fault = |what: &str| problem(code::MALFORMED, format!("{}: {what}", brief(name)));
    let is_write = matches!(name, "set" | "delete");
    let has_payload = fields.key.is_some() || fields.data.is_some() || fields.b64.is_some();
    let has_others = match is_write {
        true => fields.keys.is_some() || fields.has_key_option() || fields.from.is_some(),
        false => has_payload || fields.has_condition(),
    };
    if has_others || fields.has_field_without_keys() {
        return Err(fault("a field is not valid for keys"));
    }
    let op = match name {
        "set" | "delete" => KeyOp::Write(Box::new(key_write(name, &fields)?)),
        "subscribe" => {
            let mut options = KeySubscription::new();
            if let Some(filter) = &fields.filter {
                options = options.with_filter(&**filter);
            }
            if let Some(interval) = fields.interval {
                options = options.with_interval(Duration::from_millis(interval));
            }
            match fields.from {
                Some(StartField::After(AfterMessage { epoch, seq })) => {
                    options = options.with_position(Position { epoch, sequence: seq });
                }
                Some(_) => return Err(fault("from takes epoch and seq")),
                None => {}
            }
            KeyOp::Subscribe(options)
        }
        "unsubscribe" if fields.from.is_none() && fields.filter.is_none() && fields.interval.is_none() => {
            KeyOp::Unsubscribe
        }
        _ => return Err(fault("a field is not valid for this op")),
    };
    Ok(KeyRequest { topic: fields.topic.ok_or_else(|| fault("topic is missing"))?, op })
}

fn key_write(name: &str, fields: &MessageFields<'_>) -> Result<KeyWrite, Problem> {
    let fault = |what: &str| problem(code::MALFORMED, format!("{}: {what}", brief(name)));
    let key = fields.key.as_deref().ok_or_else(|| fault("key is missing"))?;
    let mut write = match (name, fields.data, &fields.b64) {
        ("set", Some(data), None) => KeyWrite::set(key, MessageContent::json(data)?.into_key_value()),
        ("set", None, Some(b64)) => {
            let bytes = STANDARD.decode(b64.as_bytes()).map_err(|error| fault(&format!("b64: {error}")))?;
            KeyWrite::set(key, MessageContent::Binary(bytes.into()).into_key_value())
        }
        ("set", ..) => return Err(fault("either data or b64 is required")),
        (_, None, None) if fields.ttl.is_none() => KeyWrite::delete(key),
        _ => return Err(fault("data, b64 and ttl are for set")),
    };
    if let Some(ttl) = fields.ttl {
        write = write.with_ttl(Duration::from_millis(ttl));
    }
    if let Some(idempotency_key) = fields.idempotency_key.as_deref() {
        write = write.with_idempotency_key(idempotency_key);
    }
    with_condition(write, fields.if_new, fields.if_exists, fields.version, fields.epoch).map_err(fault)
}
