//! Client activity: connections, subscriptions, publications and rejections, for the log and the live view.
//!
//! One place observes each of them. Without a viewer and below the log level `debug`, an observation is two relaxed
//! loads.

mod watcher;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::RwLock;
use serde_json::{Value, json};
use sinews_server::KeyWrite;
use tracing::Level;

pub(crate) use self::watcher::{ActivityFilter, ActivityWatcher, RATE};
use crate::model::MessageContent;

/// Viewers at a time: each observation is compared with the filters of all.
pub(crate) const WATCHERS_MAX: usize = 16;

/// Bytes of a content that an observation contains.
pub(crate) const PREVIEW_MAX: usize = 1_024;

/// A client's action.
#[derive(Clone, Debug, Default)]
pub(crate) struct Activity<'a> {
    pub(crate) kind: ActivityKind,
    /// Path of the connection or the request.
    pub(crate) path: &'a str,
    pub(crate) connection: Option<String>,
    pub(crate) user: Option<&'a str>,
    pub(crate) address: Option<IpAddr>,
    pub(crate) topic: Option<&'a str>,
    /// Key of the topic.
    pub(crate) key: Option<&'a str>,
    /// Id of a member.
    pub(crate) member: Option<&'a str>,
    pub(crate) content: Option<ActivityContent<'a>>,
    /// Rejected operation.
    pub(crate) op: Option<&'a str>,
    /// Close code, or the code of the rejection.
    pub(crate) code: Option<u16>,
    /// Reason of the rejection.
    pub(crate) reason: Option<&'a str>,
}

/// The content of a publication, or the value of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ActivityContent<'a> {
    Message(&'a MessageContent),
    /// The value in its stored form: a field of a message.
    KeyValue(&'a [u8]),
}

/// The path of actions by a backend: the HTTP API, or the program that embeds the hub.
pub(crate) const BACKEND: &str = "backend";

/// A kind of action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ActivityKind {
    #[default]
    Connect,
    Close,
    Subscribe,
    Unsubscribe,
    /// A subscription to a topic's keys.
    SubscribeKeys,
    UnsubscribeKeys,
    Publish,
    SetKey,
    DeleteKey,
    Join,
    Leave,
    /// A request or connection that the server rejects.
    Reject,
}

impl ActivityKind {
    pub(crate) const ALL: [Self; 12] = [
        Self::Connect,
        Self::Close,
        Self::Subscribe,
        Self::Unsubscribe,
        Self::SubscribeKeys,
        Self::UnsubscribeKeys,
        Self::Publish,
        Self::SetKey,
        Self::DeleteKey,
        Self::Join,
        Self::Leave,
        Self::Reject,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Close => "close",
            Self::Subscribe => "subscribe",
            Self::Unsubscribe => "unsubscribe",
            Self::SubscribeKeys => "subscribe_keys",
            Self::UnsubscribeKeys => "unsubscribe_keys",
            Self::Publish => "publish",
            Self::SetKey => "set",
            Self::DeleteKey => "delete",
            Self::Join => "join",
            Self::Leave => "leave",
            Self::Reject => "reject",
        }
    }

    const fn bit(self) -> u16 {
        1 << self as u16
    }
}

impl<'a> Activity<'a> {
    /// Describes a publication.
    pub(crate) fn publication(topic: &'a str, content: &'a MessageContent) -> Self {
        let content = Some(ActivityContent::Message(content));
        Self { kind: ActivityKind::Publish, topic: Some(topic), content, ..Self::default() }
    }

    /// Describes a write of a key.
    pub(crate) fn key_write(topic: &'a str, write: &'a KeyWrite) -> Self {
        let value = write.value();
        let kind = if value.is_some() { ActivityKind::SetKey } else { ActivityKind::DeleteKey };
        let content = value.map(|value| ActivityContent::KeyValue(value));
        Self { kind, topic: Some(topic), key: Some(write.key()), content, ..Self::default() }
    }

    /// Writes the line of the log, without contents.
    fn log(&self) {
        let Self { kind, path, user, topic, key, member, op, code, reason, .. } = *self;
        let (connection, bytes) = (self.connection.as_deref(), self.content.map(ActivityContent::len));
        let address = self.address.map(tracing::field::display);
        tracing::debug!(
            connection,
            user,
            address,
            path,
            topic,
            key,
            member,
            bytes,
            op,
            code,
            reason,
            "client: {}",
            kind.name()
        );
    }

    /// Encodes the action as a line of the live view.
    fn to_json(&self) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let mut fields = json!({ "kind": self.kind.name(), "at": at, "path": self.path });
        let texts = [
            ("connection", self.connection.as_deref()),
            ("user", self.user),
            ("topic", self.topic),
            ("key", self.key),
            ("member", self.member),
            ("op", self.op),
            ("reason", self.reason),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                fields[name] = json!(text);
            }
        }
        if let Some(address) = self.address {
            fields["address"] = json!(address.to_string());
        }
        if let Some(code) = self.code {
            fields["code"] = json!(code);
        }
        if let Some(content) = self.content {
            add_preview(&mut fields, content);
        }
        fields.to_string()
    }
}

impl<'a> ActivityContent<'a> {
    /// Returns the bytes: of a key's value, the JSON.
    fn bytes(self) -> &'a [u8] {
        match self {
            Self::Message(content) => content.bytes(),
            Self::KeyValue(field) => {
                let name = field.iter().position(|byte| *byte == b':').map_or(0, |at| at + 1);
                &field[name..]
            }
        }
    }

    fn len(self) -> usize {
        self.bytes().len()
    }
}

/// Adds the size of a content, and its beginning: text as it is, bytes in base64.
fn add_preview(fields: &mut Value, content: ActivityContent<'_>) {
    let bytes = content.bytes();
    fields["bytes"] = json!(bytes.len());
    let cut = &bytes[..bytes.len().min(PREVIEW_MAX)];
    if cut.len() < bytes.len() {
        fields["cut"] = json!(true);
    }
    if matches!(content, ActivityContent::Message(MessageContent::Binary(_))) {
        fields["b64"] = json!(STANDARD.encode(cut));
        return;
    }
    // The cut may be within a character.
    let text = cut.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    let is_text = matches!(content, ActivityContent::Message(MessageContent::Text(_)));
    let name = if is_text { "text" } else { "json" };
    fields[name] = json!(text);
}

/// Observes actions of clients, for the log and for viewers.
#[derive(Debug, Default)]
pub(crate) struct ActivityMonitor {
    /// Number of `watchers`.
    count: AtomicUsize,
    watchers: RwLock<Vec<Arc<ActivityWatcher>>>,
}

impl ActivityMonitor {
    /// Observes an action, which is described only if the log or a viewer needs it.
    pub(crate) fn observe<'a>(&self, describe: impl FnOnce() -> Activity<'a>) {
        if self.is_observed() {
            self.report(&describe());
        }
    }

    /// Whether the log or a viewer needs descriptions.
    pub(crate) fn is_observed(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0 || tracing::enabled!(Level::DEBUG)
    }

    #[cold]
    fn report(&self, activity: &Activity<'_>) {
        activity.log();
        let mut encoded = None;
        for watcher in self.watchers.read().iter() {
            watcher.offer(activity, Instant::now(), || {
                Arc::clone(encoded.get_or_insert_with(|| activity.to_json().into()))
            });
        }
    }

    /// Adds a viewer. Returns `false` if there are [`WATCHERS_MAX`].
    pub(crate) fn add(&self, watcher: &Arc<ActivityWatcher>) -> bool {
        let mut watchers = self.watchers.write();
        if watchers.len() >= WATCHERS_MAX {
            return false;
        }
        watchers.push(Arc::clone(watcher));
        self.count.store(watchers.len(), Ordering::Relaxed);
        true
    }

    /// Removes a viewer.
    pub(crate) fn remove(&self, watcher: &Arc<ActivityWatcher>) {
        let mut watchers = self.watchers.write();
        watchers.retain(|known| !Arc::ptr_eq(known, watcher));
        self.count.store(watchers.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
