//! Formats for the protocol's messages in a response's body. Each takes the JSON messages from `/ws`.

use std::borrow::Cow;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::{Mutex, MutexGuard};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use sinews_server::{
    BodyFormat, BodyPrefix, CloseCode, Kind, Position, ReplayFrom, end_event, write_event_data,
    write_event_field,
};

use super::cursor::{Cursor, UNKNOWN, parse_position};
use super::request::RequestedTopic;
use crate::model::json::present;

/// Server-Sent Events for one topic: a publication is an event's data, its position the id.
pub(super) static PAYLOAD_EVENTS: BodyFormat =
    BodyFormat::new(write_payload_event).with_keepalive(COMMENT).with_close(close_event);

/// Server-Sent Events for several topics: an event's data is a protocol message.
pub(super) static MESSAGE_EVENTS: BodyFormat =
    BodyFormat::new(write_message_event).with_keepalive(COMMENT).with_close(close_event).with_label(label);

/// Server-Sent Events for a topic's keys: the data is a protocol message, its position the id once the client has all
/// changes up to there.
pub(super) static KEY_EVENTS: BodyFormat =
    BodyFormat::new(write_key_event).with_keepalive(COMMENT).with_close(close_event);

/// Lines: each is a message of the protocol.
pub(super) static LINES: BodyFormat =
    BodyFormat::new(write_line).with_keepalive(b"{\"op\":\"ping\"}\n").with_close(close_line);

/// JSON array elements. Between them, spaces are a keepalive.
pub(super) static ELEMENTS: BodyFormat =
    BodyFormat::new(|_, message, out| out.extend_from_slice(message)).with_keepalive(b" ").with_label(label);

/// The same for a topic's keys: the label has the position once the client has all changes up to there.
pub(super) static KEY_ELEMENTS: BodyFormat =
    BodyFormat::new(|_, message, out| out.extend_from_slice(message))
        .with_keepalive(b" ")
        .with_label(key_label);

/// Event-stream clients ignore comments.
const COMMENT: &[u8] = b":\n\n";

/// How long a client waits before it connects again, in milliseconds: long enough to spread a restarting server's
/// clients.
const RETRY_MS: &[u8] = b"2000";

/// The message fields that formats use.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Envelope<'a> {
    #[serde(borrow)]
    op: Cow<'a, str>,
    #[serde(borrow)]
    topic: Cow<'a, str>,
    epoch: Option<u64>,
    seq: Option<u64>,
    /// Further snapshot parts follow.
    more: bool,
    replayed: u64,
    // `null` is a valid payload.
    #[serde(borrow, deserialize_with = "present")]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    b64: Option<Cow<'a, str>>,
}

impl<'a> Envelope<'a> {
    /// The server writes valid messages.
    fn read(message: &'a [u8]) -> Self {
        serde_json::from_slice(message).unwrap_or_default()
    }

    /// The key view's position after this message; `None` if the client still has its earlier view.
    fn position_of_keys(&self) -> Option<Position> {
        if self.more || self.is_subscribed() { None } else { self.position() }
    }

    fn is_publication(&self) -> bool {
        self.op == "message"
    }

    /// Where a client resumes after this message. After an acknowledgement, the replayed messages still follow.
    fn position(&self) -> Option<Position> {
        let sequence = self.seq?.saturating_sub(self.replayed);
        Some(Position { epoch: self.epoch?, sequence })
    }

    /// The event's type for a message that is no publication.
    fn event_type(&self) -> &str {
        if self.op == "ack" { "subscribed" } else { &self.op }
    }

    fn is_subscribed(&self) -> bool {
        self.op == "ack"
    }
}

fn write_payload_event(_: Kind, message: &[u8], out: &mut Vec<u8>) {
    let envelope = Envelope::read(message);
    if let Some(Position { epoch, sequence }) = envelope.position() {
        write_event_field("id", format!("{epoch}-{sequence}").as_bytes(), out);
    }
    if !envelope.is_publication() {
        return write_control_event(&envelope, message, out);
    }
    match (envelope.data, envelope.b64) {
        (_, Some(b64)) => {
            write_event_field("event", b"binary", out);
            write_event_data(b64.as_bytes(), out);
        }
        (data, None) => {
            let json = data.map_or("null", RawValue::get);
            match serde_json::from_str::<Cow<'_, str>>(json) {
                Ok(text) => write_event_data(text.as_bytes(), out),
                Err(_) => write_event_data(json.as_bytes(), out),
            }
        }
    }
    end_event(out);
}

fn write_key_event(_: Kind, message: &[u8], out: &mut Vec<u8>) {
    let envelope = Envelope::read(message);
    if let Some(Position { epoch, sequence }) = envelope.position_of_keys() {
        write_event_field("id", format!("{epoch}-{sequence}").as_bytes(), out);
    }
    write_control_event(&envelope, message, out);
}

fn write_message_event(_: Kind, message: &[u8], out: &mut Vec<u8>) {
    let envelope = Envelope::read(message);
    if envelope.is_publication() {
        write_event_data(message, out);
        end_event(out);
    } else {
        write_control_event(&envelope, message, out);
    }
}

/// Writes a message that is no publication as an event of its type.
fn write_control_event(envelope: &Envelope<'_>, message: &[u8], out: &mut Vec<u8>) {
    if envelope.op == "welcome" {
        write_event_field("retry", RETRY_MS, out);
    }
    write_event_field("event", envelope.event_type().as_bytes(), out);
    write_event_data(message, out);
    end_event(out);
}

fn close_event(code: Option<CloseCode>, reason: &str, out: &mut Vec<u8>) {
    let Some(code) = code.filter(|code| *code != CloseCode::NORMAL) else { return };
    write_event_field("event", b"close", out);
    write_event_data(json!({ "code": code.as_u16(), "reason": reason }).to_string().as_bytes(), out);
    end_event(out);
}

/// Line breaks in JSON text are white space between its tokens, so that a space replaces them.
fn write_line(_: Kind, message: &[u8], out: &mut Vec<u8>) {
    out.extend(message.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }));
    out.push(b'\n');
}

fn close_line(code: Option<CloseCode>, reason: &str, out: &mut Vec<u8>) {
    let Some(code) = code.filter(|code| *code != CloseCode::NORMAL) else { return };
    let close = json!({ "op": "close", "code": code.as_u16(), "reason": reason });
    out.extend_from_slice(format!("{close}\n").as_bytes());
}

/// A message's label: `+` if it is more than an acknowledgement, then its position, a space and its topic.
fn label(_: Kind, message: &[u8]) -> Option<Box<[u8]>> {
    let envelope = Envelope::read(message);
    let mut label = String::from(if envelope.is_subscribed() { "" } else { "+" });
    if let Some(Position { epoch, sequence }) = envelope.position() {
        label.push_str(&format!("{epoch}-{sequence}"));
    }
    label.push(' ');
    label.push_str(&envelope.topic);
    Some(label.into_bytes().into())
}

/// The same for keys: a snapshot's first parts are labeled as acknowledgements.
fn key_label(_: Kind, message: &[u8]) -> Option<Box<[u8]>> {
    let envelope = Envelope::read(message);
    let is_part = envelope.is_subscribed() || envelope.more;
    let position = envelope.position_of_keys();
    let position =
        position.map_or_else(String::new, |Position { epoch, sequence }| format!("{epoch}-{sequence}"));
    let label = format!("{}{position} {}", if is_part { "" } else { "+" }, envelope.topic);
    Some(label.into_bytes().into())
}

/// Follows the positions in one response's topics.
pub(super) struct Positions {
    topics: Vec<String>,
    cursor: Cursor,
}

impl Positions {
    /// Starts where the client was: a topic that is not acknowledged before the response ends keeps that position.
    pub(super) fn new(topics: &[RequestedTopic]) -> Self {
        let mut cursor = Cursor::new(topics.len());
        for (at, topic) in topics.iter().enumerate() {
            if let Some(ReplayFrom::After(position)) = topic.start.filter(|start| *start != UNKNOWN) {
                cursor.set(at, position);
            }
        }
        Self { topics: topics.iter().map(|topic| topic.name.clone()).collect(), cursor }
    }

    /// Applies a message's label. Returns whether it has a position in any of the topics, and whether it is more than
    /// an acknowledgement.
    fn apply(&mut self, label: Option<&[u8]>) -> (bool, bool) {
        let label = label.and_then(|label| std::str::from_utf8(label).ok()).unwrap_or_default();
        let (is_news, label) = label.strip_prefix('+').map_or((false, label), |label| (true, label));
        let (position, topic) = label.split_once(' ').unwrap_or_default();
        let at = self.topics.iter().position(|known| known == topic);
        match (at, parse_position(position)) {
            (Some(at), Some(position)) => {
                self.cursor.set(at, position);
                (true, is_news)
            }
            _ => (false, is_news),
        }
    }
}

/// Writes all topics' positions as each event's id.
pub(super) struct EventIds(pub(super) Positions);

impl BodyPrefix for EventIds {
    fn before(&mut self, label: Option<&[u8]>, out: &mut Vec<u8>) {
        if self.0.apply(label).0 {
            write_event_field("id", self.0.cursor.to_string().as_bytes(), out);
        }
    }

    fn end(&mut self, _: &mut Vec<u8>) {}
}

/// Wakes a long poll's handler when there is an answer.
#[derive(Clone, Default)]
pub(super) struct PollWaker(Arc<Mutex<PollState>>);

#[derive(Default)]
struct PollState {
    waker: Option<Waker>,
    has_messages: bool,
}

impl PollWaker {
    pub(super) fn register(&self, waker: Waker) {
        self.lock().waker = Some(waker);
    }

    /// Whether the answer has messages.
    pub(super) fn has_messages(&self) -> bool {
        self.lock().has_messages
    }

    fn wake(&self) {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.has_messages, true)
            && let Some(waker) = state.waker.take()
        {
            waker.wake();
        }
    }

    /// One thread uses it, so it never waits.
    fn lock(&self) -> MutexGuard<'_, PollState> {
        self.0.lock()
    }
}

/// Writes the messages as an object: `{"messages":[…],"cursor":"…"}`.
pub(super) struct PollAnswer {
    positions: Positions,
    waker: PollWaker,
    is_empty: bool,
}

impl PollAnswer {
    pub(super) fn new(positions: Positions, waker: PollWaker) -> Self {
        Self { positions, waker, is_empty: true }
    }

    fn separate(&mut self, out: &mut Vec<u8>) {
        let first = std::mem::take(&mut self.is_empty);
        out.extend_from_slice(if first { b"{\"messages\":[" } else { b"," });
    }
}

impl BodyPrefix for PollAnswer {
    fn before(&mut self, label: Option<&[u8]>, out: &mut Vec<u8>) {
        self.separate(out);
        if self.positions.apply(label).1 {
            self.waker.wake();
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if self.is_empty {
            self.separate(out);
        }
        out.extend_from_slice(format!("],\"cursor\":\"{}\"}}\n", self.positions.cursor).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poll_without_an_acknowledgement_returns_the_position_of_the_request() {
        let position = Position { epoch: 7, sequence: 44 };
        let topics = [Some(ReplayFrom::After(position)), Some(UNKNOWN), Some(ReplayFrom::Last(3)), None];
        let topics = topics.map(|start| RequestedTopic { name: "t".to_owned(), start });
        let mut answer = PollAnswer::new(Positions::new(&topics), PollWaker::default());
        let mut out = Vec::new();
        answer.end(&mut out);
        assert_eq!(String::from_utf8(out).unwrap(), "{\"messages\":[],\"cursor\":\"7-44,,,\"}\n");
    }
}
