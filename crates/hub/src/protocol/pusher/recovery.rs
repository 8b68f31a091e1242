//! Recovery: a client that connects again receives the events that it has missed, on channels with a history.
//!
//! ```text
//!   ▶ {"event":"pusher:subscribe","data":{"channel":"a","recover":true}}
//!   ◀ {"event":"pusher_internal:subscription_succeeded","channel":"a","data":"{}","position":"81-7","recovered":false}
//!   ◀ {"event":"e","channel":"a","data":"1","position":"81-8"}
//!   ▶ {"event":"pusher:subscribe","data":{"channel":"a","recover":{"position":"81-8","socket_id":"1.2"}}}
//! ```
//!
//! Only clients that have sent `recover` receive these fields. Each is behind all fields that a publisher sets.

use std::fmt::Write as _;

use serde_json::Value;
use sinews_server::{Context, InvalidTopic, Position, Prepared, ReplayFrom, Topics};

use crate::apps::encoding::RECOVERABLE_EVENTS;
use crate::apps::position::{end_of, parse_position, push_position};
use crate::model::encoding::MESSAGES;
use crate::model::socket_id::parse_socket_id;
use crate::streams::topic_history::{HISTORY_BYTES_MAX, HISTORY_MAX};

/// A subscription's field `recover`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecoverRequest {
    /// A first subscription: events with positions, and no earlier ones.
    Live,
    After {
        position: Position,
        /// The client's earlier connection, which does not receive its own events.
        socket_id: Option<u128>,
    },
}

impl RecoverRequest {
    /// The position of the last event that the client has.
    pub(super) fn start(self) -> Option<ReplayFrom> {
        match self {
            Self::Live => None,
            Self::After { position, .. } => Some(ReplayFrom::After(position)),
        }
    }

    /// Reads the field; `None` if the client does not recover.
    ///
    /// # Errors
    /// The part that is invalid.
    pub(super) fn read(value: Option<&Value>) -> Result<Option<Self>, &'static str> {
        let fields = match value {
            None | Some(Value::Null | Value::Bool(false)) => return Ok(None),
            Some(Value::Bool(true)) => return Ok(Some(Self::Live)),
            Some(Value::Object(fields)) => fields,
            Some(_) => return Err("recover is neither true nor an object with a position"),
        };
        let position = fields.get("position").and_then(Value::as_str).and_then(parse_position);
        let position = position.ok_or("recover.position is no position of an event")?;
        let socket_id = match fields.get("socket_id") {
            None | Some(Value::Null) => None,
            Some(id) => {
                let id = id.as_str().and_then(parse_socket_id);
                Some(id.ok_or("recover.socket_id is no id of a connection")?)
            }
        };
        Ok(Some(Self::After { position, socket_id }))
    }
}

/// The start of a subscription that recovers.
#[derive(Debug, Default)]
pub(super) struct ChannelRecovery {
    /// The last event so far; `None` if the channel has no history.
    pub(super) position: Option<Position>,
    /// The events that the client has missed, in order; `None` if not all are retained, or none was asked for.
    pub(super) missed: Option<Vec<Prepared>>,
}

impl ChannelRecovery {
    /// Subscribes to the events with positions of a topic that has a history.
    pub(super) fn subscribe(
        cx: &mut Context<'_>,
        topic: &str,
        request: RecoverRequest,
    ) -> Result<Self, InvalidTopic> {
        let encoded = RECOVERABLE_EVENTS.topic(topic);
        let mut start = cx.subscribe_from(&encoded, ReplayFrom::Last(0))?.position;
        if start.sequence == 0 {
            // No event was published here: the history in the message encoding assigns the epoch.
            let framed = MESSAGES.topic(topic);
            let position = cx.subscribe_from(&framed, ReplayFrom::Last(0))?.position;
            cx.unsubscribe(&framed);
            cx.topics().publisher().advance_to(&encoded, position)?;
            start = cx.subscribe_from(&encoded, ReplayFrom::Last(0))?.position;
        }
        let missed = match request {
            RecoverRequest::Live => None,
            RecoverRequest::After { position, socket_id } => {
                missed(cx.topics(), &encoded, position, start, socket_id)
            }
        };
        Ok(Self { position: Some(start), missed })
    }

    /// Whether the client has missed no event, once it has received these.
    pub(super) fn is_complete(&self) -> bool {
        self.missed.is_some()
    }

    /// Appends an acknowledgement's fields.
    pub(super) fn acknowledge(&self, mut message: String) -> String {
        message.pop();
        if let Some(position) = self.position {
            push_position(&mut message, position);
        }
        let _ = write!(message, ",\"recovered\":{}}}", self.is_complete());
        message
    }
}

/// The events between two positions, without a connection's own events; `None` if not all are retained, or if they
/// exceed the limits of a page of the history.
fn missed(
    topics: &Topics,
    encoded: &str,
    after: Position,
    end: Position,
    socket_id: Option<u128>,
) -> Option<Vec<Prepared>> {
    let retained = topics.history_after(encoded, after)?.into_iter();
    let retained: Vec<_> = retained.take_while(|(sequence, _)| *sequence <= end.sequence).collect();
    if retained.len() > HISTORY_MAX {
        return None;
    }
    let bytes: usize = retained.iter().map(|(_, message)| message.payload().len()).sum();
    if bytes > HISTORY_BYTES_MAX {
        return None;
    }
    let is_foreign = |(sequence, message): &(u64, Prepared)| {
        let position = Position { sequence: *sequence, ..end };
        !socket_id.is_some_and(|id| message.payload().ends_with(end_of(position, id).as_bytes()))
    };
    Some(retained.into_iter().filter(is_foreign).map(|(_, message)| message).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const POSITION: Position = Position { epoch: 81, sequence: 7 };

    #[test]
    fn requests_are_read_and_malformed_ones_are_rejected() {
        let read = |value: Value| RecoverRequest::read(Some(&value));
        assert_eq!(RecoverRequest::read(None), Ok(None));
        assert_eq!((read(json!(false)), read(json!(null))), (Ok(None), Ok(None)));
        assert_eq!(read(json!(true)), Ok(Some(RecoverRequest::Live)));
        let after = |socket_id| Ok(Some(RecoverRequest::After { position: POSITION, socket_id }));
        assert_eq!(read(json!({ "position": "81-7" })), after(None));
        assert_eq!(read(json!({ "position": "81-7", "socket_id": "0.5", "more": 1 })), after(Some(5)));
        for bad in [
            json!(1),
            json!("81-7"),
            json!([]),
            json!({}),
            json!({ "position": 7 }),
            json!({ "position": "81" }),
            json!({ "position": "81-+7" }),
            json!({ "position": "-81-7" }),
            json!({ "position": "81-18446744073709551616" }),
            json!({ "position": "81-7", "socket_id": 5 }),
            json!({ "position": "81-7", "socket_id": "5" }),
        ] {
            assert!(read(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn acknowledgements_say_whether_the_client_has_missed_nothing() {
        let ack = |recovery: ChannelRecovery| recovery.acknowledge("{\"a\":1}".to_owned());
        assert_eq!(ack(ChannelRecovery::default()), r#"{"a":1,"recovered":false}"#);
        let complete = ChannelRecovery { position: Some(POSITION), missed: Some(Vec::new()) };
        assert_eq!(ack(complete), r#"{"a":1,"position":"81-7","recovered":true}"#);
    }
}
