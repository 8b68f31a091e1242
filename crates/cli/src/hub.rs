//! The topics of this program. Each has two forms: the payload itself (`/topics/{name}`), and a message of the protocol
//! (`/ws`). Topics report the number of their subscribers.
//!
//! For the server below, each form is a topic of its own, so a message is framed once for all subscribers of a form. A
//! publication goes to both forms; a form without subscribers is not encoded.

pub(crate) mod authority;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::json;
use serde_json::value::RawValue;
use sinews_server::{Context, InvalidTopic, Kind, Position, Prepared, PublishError, Publisher, Topics};

use self::authority::{Authority, Origin, published};
use crate::auth::pattern;

/// State that publishers and subscribers share.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    /// Subscriptions to payloads, on all workers.
    plain: AtomicUsize,
    /// Subscriptions to messages of the protocol.
    framed: AtomicUsize,
    rooms: Mutex<HashMap<String, Room>>,
    /// Open dashboards.
    watching: AtomicUsize,
    /// Publications of each topic since the last request; counted while a dashboard is open.
    rates: Mutex<HashMap<String, u64>>,
    /// Patterns of the topics that have a history.
    kept: Vec<String>,
    /// Write-locked during a change of authority, so that no publication happens in between.
    authority: RwLock<Authority>,
}

/// Topics that are counted between two reports; further topics are not counted.
const RATES_MAX: usize = 1_024;

/// Presence of one topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Room {
    subscribers: usize,
    /// Subscribers to presence.
    watchers: usize,
    /// Number of changes so far.
    changes: u64,
}

/// The form in which a subscriber receives a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Plain,
    Framed,
    /// The number of subscribers, on each change.
    Presence,
}

impl Form {
    /// The name of the topic in the server below.
    pub(crate) fn topic(self, name: &str) -> String {
        let prefix = match self {
            Self::Plain => "r.",
            Self::Framed => "j.",
            Self::Presence => "p.",
        };
        [prefix, name].concat()
    }
}

impl Form {
    /// The public name of a topic of the server below.
    pub(crate) fn name(topic: &str) -> Option<&str> {
        ["r.", "j.", "p."].iter().find_map(|prefix| topic.strip_prefix(prefix))
    }
}

/// Longest topic name in bytes: the limit of the server below, less the prefix of the form.
pub(crate) const NAME_MAX: usize = 250;

/// Tokens of a pattern that is never rejected for its matching steps; the form is one more token.
const FREE_TOKENS: usize = Topics::FREE_TOKENS - 1;

/// Why a subscription was rejected, short enough for a Close reason.
pub(crate) fn subscription_fault(error: InvalidTopic) -> String {
    match error {
        InvalidTopic::TooAmbiguous => format!(
            "too many matching steps a message (limit {}): use a pattern of at most {FREE_TOKENS} tokens",
            Topics::MATCH_STEPS_MAX
        ),
        _ => error.to_string(),
    }
}

/// Checks the topic name of a publication.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    if pattern::is_pattern(name) {
        return Err("wildcards are for subscriptions: name one topic".to_owned());
    }
    check_subscription(name)
}

/// Checks the topic name or pattern of a subscription.
pub(crate) fn check_subscription(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
        return Err(format!("a topic's name has 1 to {NAME_MAX} bytes and no control characters"));
    }
    if pattern::has_empty_token(name) {
        return Err("a topic's name has an empty token between its dots".to_owned());
    }
    if !pattern::is_valid(name) {
        return Err("the wildcard > is valid at the end of a pattern only".to_owned());
    }
    Ok(())
}

/// The origin of a publication: a connection or a request.
pub(crate) trait Outlet {
    /// Publishes to all subscribers, including the publisher; returns the number of subscribers reached.
    fn publish(&mut self, topic: &str, message: &Prepared) -> usize;

    /// Publishes to all subscribers; the message is made from its position if the topic has a history.
    fn publish_with(&mut self, topic: &str, make: impl FnOnce(Option<Position>) -> Prepared) -> usize;

    /// Publishes to all other subscribers.
    fn publish_to_others(&mut self, topic: &str, message: &Prepared) -> usize;
}

impl Outlet for Context<'_> {
    fn publish(&mut self, topic: &str, message: &Prepared) -> usize {
        // The name was checked, and is no pattern.
        Context::publish(self, topic, message).unwrap_or(0)
    }

    fn publish_with(&mut self, topic: &str, make: impl FnOnce(Option<Position>) -> Prepared) -> usize {
        Context::publish_with(self, topic, make).unwrap_or(0)
    }

    fn publish_to_others(&mut self, topic: &str, message: &Prepared) -> usize {
        Context::publish_to_others(self, topic, message).unwrap_or(0)
    }
}

impl Outlet for Topics {
    fn publish(&mut self, topic: &str, message: &Prepared) -> usize {
        Self::publish(self, topic, message, None).unwrap_or(0)
    }

    fn publish_with(&mut self, topic: &str, make: impl FnOnce(Option<Position>) -> Prepared) -> usize {
        Self::publish_with(self, topic, make, None).unwrap_or(0)
    }

    fn publish_to_others(&mut self, topic: &str, message: &Prepared) -> usize {
        Self::publish(self, topic, message, None).unwrap_or(0)
    }
}

impl Outlet for Publisher {
    fn publish(&mut self, topic: &str, message: &Prepared) -> usize {
        reached(Self::publish(self, topic, message))
    }

    fn publish_with(&mut self, topic: &str, make: impl FnOnce(Option<Position>) -> Prepared) -> usize {
        reached(Self::publish_with(self, topic, make))
    }

    fn publish_to_others(&mut self, topic: &str, message: &Prepared) -> usize {
        reached(Self::publish(self, topic, message))
    }
}

fn reached(result: Result<usize, PublishError>) -> usize {
    result.unwrap_or_else(|error| match error {
        PublishError::Unreached(unreached) => {
            tracing::warn!("{unreached}");
            unreached.reached
        }
        _ => 0,
    })
}

impl Hub {
    /// Creates a hub with the patterns of the topics that have a history.
    pub(crate) fn new(kept: Vec<String>) -> Self {
        Self { kept, ..Self::default() }
    }

    /// Whether a topic has a history.
    pub(crate) fn keeps(&self, topic: &str) -> bool {
        self.kept.iter().any(|pattern| pattern::covers(pattern, topic))
    }

    /// Whether the protocol's form has subscribers or a history.
    fn is_framed(&self, topic: &str) -> bool {
        self.framed.load(Ordering::Acquire) > 0 || self.keeps(topic)
    }

    /// Publishes to both forms; returns the number of subscriptions of this process that it reaches.
    pub(crate) fn publish(
        &self,
        out: &mut impl Outlet,
        topic: &str,
        content: &Content,
        include_self: bool,
    ) -> usize {
        self.count(topic);
        let authority = self.read_authority();
        let reached = self.publish_framed(&authority, out, topic, content, Origin::Here);
        drop(authority);
        reached + self.publish_plain(out, topic, content, include_self)
    }

    /// Publishes a record of a durable topic's stream here and in the predecessor process.
    pub(crate) fn relay(&self, out: &mut Publisher, topic: &str, content: &Content, position: Position) {
        self.count(topic);
        if let Some(former) = self.read_authority().former_of(Origin::Here) {
            former.put_or_cut(published(topic, content, Some(position), Origin::Here));
        }
        // A later subscriber starts in the stream.
        if self.framed.load(Ordering::Acquire) > 0 {
            let message = content.framed(topic, Some(position));
            reached(out.publish_at(&Form::Framed.topic(topic), position, &message));
        }
        self.publish_plain(out, topic, content, true);
    }

    /// Notifies subscribers that the stream of a topic was deleted: the topic starts again with a new epoch.
    pub(crate) fn tell_reset(&self, out: &mut Publisher, topic: &str) {
        if self.framed.load(Ordering::Acquire) > 0 {
            let message = serde_json::json!({ "op": "reset", "topic": topic }).to_string();
            out.publish(&Form::Framed.topic(topic), &Prepared::text(&message));
        }
    }

    fn publish_plain(
        &self,
        out: &mut impl Outlet,
        topic: &str,
        content: &Content,
        include_self: bool,
    ) -> usize {
        if self.plain.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let (topic, message) = (Form::Plain.topic(topic), content.plain());
        if include_self { out.publish(&topic, &message) } else { out.publish_to_others(&topic, &message) }
    }

    /// Publishes a message of the protocol here, or forwards it to the successor process.
    fn publish_framed(
        &self,
        authority: &Authority,
        out: &mut impl Outlet,
        topic: &str,
        content: &Content,
        origin: Origin,
    ) -> usize {
        if let Some(successor) = &authority.successor {
            let kept = self.keeps(topic);
            let is_on_its_way = successor.forward(topic, content, kept, origin);
            if kept {
                if !is_on_its_way && let Some(former) = authority.former_of(origin) {
                    former.put_or_cut(published(topic, content, None, origin));
                }
                return 0;
            }
        }
        let former = authority.former_of(origin);
        if former.is_none() && !self.is_framed(topic) {
            return 0;
        }
        out.publish_with(&Form::Framed.topic(topic), |position| {
            // The topic is locked, so the predecessor receives messages in order.
            if let Some(former) = former {
                former.put_or_cut(published(topic, content, position, origin));
            }
            content.framed(topic, position)
        })
    }

    /// Counts a new subscription and notifies subscribers to presence.
    pub(crate) fn joined(&self, out: &mut impl Outlet, form: Form, topic: &str) {
        match form {
            Form::Plain => self.plain.fetch_add(1, Ordering::AcqRel),
            Form::Framed => self.framed.fetch_add(1, Ordering::AcqRel),
            Form::Presence => return self.room(topic, |room| room.watchers += 1),
        };
        self.change(out, topic, |room| room.subscribers += 1);
    }

    /// Counts the end of a subscription and notifies subscribers to presence.
    pub(crate) fn left(&self, out: &mut impl Outlet, form: Form, topic: &str) {
        match form {
            Form::Plain => self.plain.fetch_sub(1, Ordering::AcqRel),
            Form::Framed => self.framed.fetch_sub(1, Ordering::AcqRel),
            Form::Presence => {
                return self.room(topic, |room| room.watchers = room.watchers.saturating_sub(1));
            }
        };
        self.change(out, topic, |room| room.subscribers = room.subscribers.saturating_sub(1));
    }

    /// The number of subscribers of a topic by its name, and the number of changes.
    pub(crate) fn presence(&self, topic: &str) -> (usize, u64) {
        self.rooms().get(topic).map_or((0, 0), |room| (room.subscribers, room.changes))
    }

    /// Counts a dashboard that opens or closes.
    pub(crate) fn watch(&self, begins: bool) {
        if begins {
            self.watching.fetch_add(1, Ordering::AcqRel);
        } else if self.watching.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.take_rates(0);
        }
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watching.load(Ordering::Acquire) > 0
    }

    /// The busiest topics, and their publications since the last call.
    pub(crate) fn take_rates(&self, most: usize) -> Vec<(String, u64)> {
        let rates = std::mem::take(&mut *self.rates.lock().unwrap_or_else(PoisonError::into_inner));
        let mut rates: Vec<_> = rates.into_iter().collect();
        rates.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        rates.truncate(most);
        rates
    }

    fn count(&self, topic: &str) {
        if !self.is_watched() {
            return;
        }
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = rates.get_mut(topic) {
            *count += 1;
        } else if rates.len() < RATES_MAX {
            rates.insert(topic.to_owned(), 1);
        }
    }

    fn change(&self, out: &mut impl Outlet, topic: &str, change: impl FnOnce(&mut Room)) {
        // Pattern subscriptions do not count as members of a topic.
        if pattern::is_pattern(topic) {
            return;
        }
        let mut told = None;
        self.room(topic, |room| {
            change(room);
            room.changes += 1;
            told = (room.watchers > 0).then_some(*room);
        });
        if let Some(room) = told {
            let words = presence_text(topic, (room.subscribers, room.changes));
            out.publish(&Form::Presence.topic(topic), &Prepared::text(words));
        }
    }

    fn room(&self, topic: &str, change: impl FnOnce(&mut Room)) {
        let mut rooms = self.rooms();
        let mut room = rooms.get(topic).copied().unwrap_or_default();
        change(&mut room);
        if room.subscribers == 0 && room.watchers == 0 {
            rooms.remove(topic);
        } else {
            rooms.insert(topic.to_owned(), room);
        }
    }

    fn rooms(&self) -> MutexGuard<'_, HashMap<String, Room>> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The content of a publication.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// A payload that is UTF-8.
    Text(Bytes),
    /// JSON text as received; the plain form of a string is its text.
    Json(Bytes),
    Binary(Bytes),
}

impl Content {
    /// The content of a received payload.
    pub(crate) fn payload(kind: Kind, bytes: Bytes) -> Self {
        if kind == Kind::Text { Self::Text(bytes) } else { Self::Binary(bytes) }
    }

    pub(crate) fn json(data: &RawValue) -> Self {
        Self::Json(Bytes::copy_from_slice(data.get().as_bytes()))
    }

    fn plain(&self) -> Prepared {
        match self {
            Self::Text(bytes) => Prepared::new(Kind::Text, bytes.clone()),
            Self::Json(bytes) => match serde_json::from_slice::<String>(bytes) {
                Ok(text) => Prepared::text(text),
                Err(_) => Prepared::new(Kind::Text, bytes.clone()),
            },
            Self::Binary(bytes) => Prepared::new(Kind::Binary, bytes.clone()),
        }
    }

    fn framed(&self, topic: &str, position: Option<Position>) -> Prepared {
        Prepared::text(self.framed_text(topic, position))
    }

    /// Encodes a message of the protocol.
    pub(crate) fn framed_text(&self, topic: &str, position: Option<Position>) -> String {
        let topic = json!(topic);
        let place = position.map_or_else(String::new, |Position { epoch, sequence }| {
            format!(",\"epoch\":{epoch},\"seq\":{sequence}")
        });
        let (key, value) = match self {
            Self::Text(bytes) => ("data", json!(String::from_utf8_lossy(bytes)).to_string()),
            Self::Json(bytes) => ("data", String::from_utf8_lossy(bytes).into_owned()),
            Self::Binary(bytes) => ("b64", format!("\"{}\"", STANDARD.encode(bytes))),
        };
        format!("{{\"op\":\"message\",\"topic\":{topic}{place},\"{key}\":{value}}}")
    }
}

fn presence_text(topic: &str, (subscribers, at): (usize, u64)) -> String {
    json!({ "op": "presence", "topic": topic, "subscribers": subscribers, "at": at }).to_string()
}
