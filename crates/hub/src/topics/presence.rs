//! Presence of topics as messages of the protocol.

use serde_json::{Value, json};
use sinews_server::{Context, Member, PresenceCount, PresenceUpdate};

/// Maximum number of members in one message: a page has at most 400 KB, however long the ids and infos are.
pub(crate) const PAGE_MAX: usize = 256;

/// The number of subscribers of a topic by its name, and of their changes.
pub(crate) fn presence_message(topic: &str, presence: PresenceCount) -> Value {
    json!({ "op": "presence", "topic": topic, "subscribers": presence.connections, "at": presence.version })
}

/// The same after changes, with the changed members.
pub(crate) fn update_message(update: &PresenceUpdate) -> Value {
    let mut message = presence_message(update.topic(), update.count());
    message["since"] = json!(update.since());
    if !update.is_complete() {
        message["complete"] = json!(false);
    }
    if !update.joined().is_empty() {
        message["joined"] = update.joined().iter().map(member).collect();
    }
    if update.left().len() > 0 {
        message["left"] = update.left().collect();
    }
    message
}

/// Adds a page of a topic's members to a message, after the member `after`, with the numbers of before: a later update
/// has all changes of the page since then.
pub(crate) fn add_members(message: &mut Value, topic: &str, after: Option<&str>, cx: &Context<'_>) {
    let count = cx.topics().presence(topic);
    let mut members = cx.topics().members(topic, after, PAGE_MAX + 1);
    message["subscribers"] = json!(count.connections);
    message["at"] = json!(count.version);
    message["more"] = json!(members.len() > PAGE_MAX);
    members.truncate(PAGE_MAX);
    message["members"] = members.iter().map(member).collect();
}

pub(crate) fn member(member: &Member) -> Value {
    let mut fields = json!({ "id": member.id() });
    // Empty without an info, otherwise JSON.
    if let Ok(info) = serde_json::from_slice::<Value>(member.info()) {
        fields["info"] = info;
    }
    fields
}
