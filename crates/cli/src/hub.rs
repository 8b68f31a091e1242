//! Topics as this program has them. Each is heard in two forms, as the payload itself (`/topics/{name}`) and as a
//! message of the protocol (`/ws`), and tells how many hear it.
//!
//! To the server below each form is a topic of its own, so that a message is framed once for all who hear that form.
//! What is published goes to both; a form that nobody hears is not made.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::json;
use serde_json::value::RawValue;
use sinews_server::{Context, Kind, Position, Prepared, Topics};

use crate::auth::pattern;

/// What those who publish and subscribe share.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    /// Subscriptions to payloads, on all threads.
    plain: AtomicUsize,
    /// Subscriptions to messages of the protocol.
    framed: AtomicUsize,
    rooms: Mutex<HashMap<String, Room>>,
    /// Those who look at the dashboard.
    watching: AtomicUsize,
    /// Publications of each topic since somebody asked last; counted while somebody looks.
    rates: Mutex<HashMap<String, u64>>,
    /// Patterns of the topics whose last messages are kept.
    kept: Vec<String>,
}

/// Topics that are counted at once: one more is one more only.
const RATES_MAX: usize = 1_024;

/// Who is at one topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Room {
    subscribers: usize,
    /// Those who want to hear of every change.
    watchers: usize,
    /// How many changes there were.
    changes: u64,
}

/// In which form somebody hears a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Plain,
    Framed,
    /// How many hear it, whenever that changes.
    Presence,
}

impl Form {
    /// As the server below knows it.
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
    /// The name of a topic of the server below.
    pub(crate) fn name(topic: &str) -> Option<&str> {
        ["r.", "j.", "p."].iter().find_map(|prefix| topic.strip_prefix(prefix))
    }
}

/// Longest name of a topic, in bytes: what the server takes, and room for the form.
pub(crate) const NAME_MAX: usize = 250;

/// What is wrong with the name of a topic that is to be published to.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    if pattern::is_pattern(name) {
        return Err("wildcards are for subscriptions: name one topic".to_owned());
    }
    check_subscription(name)
}

/// What is wrong with the name or pattern of topics that are to be subscribed to.
pub(crate) fn check_subscription(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
        return Err(format!("a topic's name has 1 to {NAME_MAX} bytes and no control characters"));
    }
    if !pattern::is_valid(name) {
        return Err("the wildcard > stands at the end of a pattern only".to_owned());
    }
    Ok(())
}

/// Where something is published: by a connection, or by a request.
pub(crate) trait Outlet {
    /// Publishes to everybody, the publisher too; answers how many that are.
    fn publish(&mut self, topic: &str, message: &Prepared) -> usize;

    /// Publishes to everybody what is made of where it will stand in its topic, if that is kept.
    fn publish_with(&mut self, topic: &str, make: impl FnOnce(Option<Position>) -> Prepared) -> usize;

    /// Publishes to everybody else.
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

impl Hub {
    /// With the patterns of the topics that are kept.
    pub(crate) fn new(kept: Vec<String>) -> Self {
        Self { kept, ..Self::default() }
    }

    /// Whether the last messages of a topic are kept.
    pub(crate) fn keeps(&self, topic: &str) -> bool {
        self.kept.iter().any(|pattern| pattern::covers(pattern, topic))
    }

    /// Publishes a message of the protocol.
    fn publish_framed(&self, out: &mut impl Outlet, topic: &str, content: &Content<'_>) -> usize {
        out.publish_with(&Form::Framed.topic(topic), |position| framed(topic, content, position))
    }

    /// Whether somebody hears the protocol's form, now or later.
    fn is_framed(&self, topic: &str) -> bool {
        self.framed.load(Ordering::Acquire) > 0 || self.keeps(topic)
    }

    /// Publishes a payload as it came.
    pub(crate) fn publish_payload(
        &self,
        out: &mut impl Outlet,
        topic: &str,
        payload: (Kind, Bytes),
        include_self: bool,
    ) -> usize {
        self.count(topic);
        let (kind, bytes) = payload;
        let mut reached = 0;
        if self.is_framed(topic) {
            let content = match std::str::from_utf8(&bytes) {
                Ok(text) if kind == Kind::Text => Content::Json(json!(text).to_string()),
                _ => Content::Binary(&bytes),
            };
            reached += self.publish_framed(out, topic, &content);
        }
        if self.plain.load(Ordering::Acquire) > 0 {
            let (topic, message) = (Form::Plain.topic(topic), Prepared::new(kind, bytes));
            reached += if include_self {
                out.publish(&topic, &message)
            } else {
                out.publish_to_others(&topic, &message)
            };
        }
        reached
    }

    /// Publishes JSON: a string is heard as its text in the plain form, anything else as it is written.
    pub(crate) fn publish_json(&self, out: &mut impl Outlet, topic: &str, data: &RawValue) -> usize {
        self.count(topic);
        let mut reached = 0;
        if self.plain.load(Ordering::Acquire) > 0 {
            let text = serde_json::from_str::<String>(data.get()).unwrap_or_else(|_| data.get().to_owned());
            reached += out.publish(&Form::Plain.topic(topic), &Prepared::text(text));
        }
        if self.is_framed(topic) {
            reached += self.publish_framed(out, topic, &Content::Json(data.get().to_owned()));
        }
        reached
    }

    /// Publishes bytes.
    pub(crate) fn publish_binary(&self, out: &mut impl Outlet, topic: &str, bytes: Vec<u8>) -> usize {
        self.count(topic);
        let mut reached = 0;
        if self.is_framed(topic) {
            reached += self.publish_framed(out, topic, &Content::Binary(&bytes));
        }
        if self.plain.load(Ordering::Acquire) > 0 {
            reached += out.publish(&Form::Plain.topic(topic), &Prepared::binary(bytes));
        }
        reached
    }

    /// Counts a subscription that was made, and tells who wants to hear of it.
    pub(crate) fn joined(&self, out: &mut impl Outlet, form: Form, topic: &str) {
        match form {
            Form::Plain => self.plain.fetch_add(1, Ordering::AcqRel),
            Form::Framed => self.framed.fetch_add(1, Ordering::AcqRel),
            Form::Presence => return self.room(topic, |room| room.watchers += 1),
        };
        self.change(out, topic, |room| room.subscribers += 1);
    }

    /// The same for one that is over.
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

    /// How many are subscribed to a topic by its name, and after how many changes.
    pub(crate) fn presence(&self, topic: &str) -> (usize, u64) {
        self.rooms().get(topic).map_or((0, 0), |room| (room.subscribers, room.changes))
    }

    /// Somebody begins to look at the dashboard, or ends.
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

    /// The busiest topics, and how often each was published to since the last time.
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
        // Who is subscribed by a pattern is at no topic.
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

/// What a message of the protocol carries.
enum Content<'a> {
    /// Written already.
    Json(String),
    Binary(&'a [u8]),
}

fn framed(topic: &str, content: &Content<'_>, position: Option<Position>) -> Prepared {
    let topic = json!(topic);
    let place = position.map_or_else(String::new, |Position { epoch, sequence }| {
        format!(",\"epoch\":{epoch},\"seq\":{sequence}")
    });
    Prepared::text(match content {
        Content::Json(json) => format!("{{\"op\":\"message\",\"topic\":{topic}{place},\"data\":{json}}}"),
        Content::Binary(bytes) => {
            let encoded = STANDARD.encode(bytes);
            format!("{{\"op\":\"message\",\"topic\":{topic}{place},\"b64\":\"{encoded}\"}}")
        }
    })
}

fn presence_text(topic: &str, (subscribers, at): (usize, u64)) -> String {
    json!({ "op": "presence", "topic": topic, "subscribers": subscribers, "at": at }).to_string()
}
