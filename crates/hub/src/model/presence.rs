//! Topic presence as protocol messages.

use std::fmt::Write;

use bytes::Bytes;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sinews_server::{Context, Member, PresenceCount, PresencePart, PresenceUpdate};

use crate::model::push_json;

/// Maximum members in one message: a page has at most 400 KB, however long the ids and infos are.
pub(crate) const PAGE_MAX: usize = 256;

/// Returns the message with a topic's subscriber count by its name, and the number of their changes.
pub(crate) fn presence_message(topic: &str, presence: PresenceCount) -> Value {
    json!({ "op": "presence", "topic": topic, "subscribers": presence.connections, "at": presence.version })
}

/// Returns the messages of an update, each with at most [`PAGE_MAX`] changed members.
pub(crate) fn update_messages(update: &PresenceUpdate) -> impl Iterator<Item = String> {
    update.parts(PAGE_MAX).map(|part| update_message(update, &part))
}

/// Encodes the message of a part. It is written without a `Value`: a large topic has thousands of changed members.
fn update_message(update: &PresenceUpdate, part: &PresencePart<'_>) -> String {
    let mut text = String::from("{\"op\":\"presence\",\"topic\":");
    push_json(&mut text, update.topic());
    let (subscribers, at, since) = (update.count().connections, part.version(), part.since());
    let _ = write!(text, ",\"subscribers\":{subscribers},\"at\":{at},\"since\":{since}");
    if !update.is_complete() {
        text.push_str(",\"complete\":false");
    }
    if !part.joined().is_empty() {
        text.push_str(",\"joined\":");
        push_list(&mut text, part.joined().iter(), |text, member| push_member(text, member, None));
    }
    if part.left().len() > 0 {
        text.push_str(",\"left\":");
        push_list(&mut text, part.left(), push_json);
    }
    text.push('}');
    text
}

/// Adds the numbers of a page of a topic's members to a message, after the member `after`. Returns the page, encoded.
/// The numbers are of before: a later update has all changes of the page since then.
pub(crate) fn add_members(message: &mut Value, topic: &str, after: Option<&str>, cx: &Context<'_>) -> Bytes {
    let count = cx.topics().presence(topic);
    add_page(message, count, cx.topics().members(topic, after, PAGE_MAX + 1))
}

/// The same for a page that is read; one member more than a page means that further ones follow.
pub(crate) fn add_page(
    message: &mut Value,
    count: PresenceCount,
    mut members: Vec<(Member, usize)>,
) -> Bytes {
    message["subscribers"] = json!(count.connections);
    message["at"] = json!(count.version);
    message["more"] = json!(members.len() > PAGE_MAX);
    members.truncate(PAGE_MAX);
    encode_members(&members)
}

/// The same for the first page, for a new watcher. The page may be of an earlier time since the last update: the next
/// update has all changes since then.
pub(crate) fn add_first_members(message: &mut Value, topic: &str, cx: &Context<'_>) -> Bytes {
    let page = cx.topics().first_members(topic, PAGE_MAX, encode_members);
    message["subscribers"] = json!(cx.topics().presence(topic).connections);
    message["at"] = json!(page.version);
    message["more"] = json!(page.more);
    page.encoded
}

/// Encodes an object, with encoded `members`.
pub(crate) fn with_members(message: &Value, members: Option<&[u8]>) -> String {
    let mut text = message.to_string();
    // This crate encodes members, as UTF-8.
    if let Some(Ok(members)) = members.map(std::str::from_utf8)
        && text.pop() == Some('}')
    {
        text.push_str(",\"members\":");
        text.push_str(members);
        text.push('}');
    }
    text
}

/// Encodes a list of members with their connection counts. It is written without a `Value`, as updates are.
pub(crate) fn encode_members(members: &[(Member, usize)]) -> Bytes {
    let mut text = String::new();
    push_list(&mut text, members.iter(), |text, (member, connections)| {
        push_member(text, member, Some(*connections));
    });
    text.into_boxed_str().into_boxed_bytes().into()
}

pub(crate) fn member(member: &Member) -> Value {
    let mut fields = json!({ "id": member.id() });
    // Empty without an info, otherwise JSON.
    if let Ok(info) = serde_json::from_slice::<Value>(member.info()) {
        fields["info"] = info;
    }
    fields
}

fn push_member(text: &mut String, member: &Member, connections: Option<usize>) {
    text.push_str("{\"id\":");
    push_json(text, member.id());
    if let Some(connections) = connections {
        let _ = write!(text, ",\"connections\":{connections}");
    }
    // Empty without an info, otherwise JSON, as far as the client protocols have set it.
    if let Ok(info) = serde_json::from_slice::<&RawValue>(member.info()) {
        text.push_str(",\"info\":");
        text.push_str(info.get());
    }
    text.push('}');
}

fn push_list<T>(text: &mut String, items: impl Iterator<Item = T>, mut push: impl FnMut(&mut String, T)) {
    text.push('[');
    for (at, item) in items.enumerate() {
        if at > 0 {
            text.push(',');
        }
        push(text, item);
    }
    text.push(']');
}
