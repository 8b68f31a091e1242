//! Fields that the server adds to a publication. Clients cannot write them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sinews_server::{Member, Position};

use super::content::push_json;

/// The client that has published, as its token or its claims name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VerifiedSender {
    pub(crate) user: Box<str>,
    /// JSON.
    pub(crate) info: Option<Arc<str>>,
}

/// A sender as the key of a record, or a frame between two processes, has it.
#[derive(Serialize, Deserialize)]
struct SenderFields<'a> {
    user: std::borrow::Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    info: Option<&'a RawValue>,
}

impl VerifiedSender {
    /// Longest user and info in bytes: each message repeats them.
    pub(crate) const USER_MAX: usize = Member::ID_MAX;
    pub(crate) const INFO_MAX: usize = Member::INFO_MAX;

    /// Creates the sender from parts that another node or process has written; `None` if they are invalid.
    pub(crate) fn from_parts(user: &[u8], info: Option<&[u8]>) -> Option<Self> {
        let user = std::str::from_utf8(user).ok()?;
        let info = match info {
            Some(info) => Some(serde_json::from_slice::<&RawValue>(info).ok()?.get().into()),
            None => None,
        };
        Some(Self { user: user.into(), info })
    }

    /// The sender as a JSON object.
    pub(crate) fn to_json(&self) -> String {
        let mut text = String::from("{\"user\":");
        push_json(&mut text, &self.user);
        if let Some(info) = &self.info {
            text.push_str(",\"info\":");
            text.push_str(info);
        }
        text.push('}');
        text
    }

    /// Reads a JSON object; `None` if it is invalid.
    pub(crate) fn read_json(text: &[u8]) -> Option<Self> {
        let SenderFields { user, info } = serde_json::from_slice(text).ok()?;
        Some(Self { user: user.into(), info: info.map(|info| info.get().into()) })
    }
}

/// The fields of a protocol message besides its topic and its content.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MessageStamp<'a> {
    pub(crate) position: Option<Position>,
    /// When it was published, in milliseconds since 1970.
    pub(crate) time: Option<u64>,
    pub(crate) sender: Option<&'a VerifiedSender>,
}

impl From<Option<Position>> for MessageStamp<'_> {
    fn from(position: Option<Position>) -> Self {
        Self { position, ..Self::default() }
    }
}

impl MessageStamp<'_> {
    /// The fields in JSON, each behind a comma. Without fields, this does not allocate.
    pub(crate) fn fields(&self) -> String {
        let mut fields = self.position.map_or_else(String::new, |Position { epoch, sequence }| {
            format!(",\"epoch\":{epoch},\"seq\":{sequence}")
        });
        if let Some(time) = self.time {
            fields.push_str(",\"at\":");
            fields.push_str(&time.to_string());
        }
        if let Some(VerifiedSender { user, info }) = self.sender {
            fields.push_str(",\"user\":");
            push_json(&mut fields, user);
            if let Some(info) = info {
                fields.push_str(",\"info\":");
                fields.push_str(info);
            }
        }
        fields
    }
}

/// The time in milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_are_read_as_written_and_texts_cannot_forge_fields() {
        for (user, info) in
            [("anna", None), ("a\",\"info\":1,\"x\":\"", Some(r#"{"name":"A \" B"}"#)), ("", Some("[0]"))]
        {
            let sender = VerifiedSender { user: user.into(), info: info.map(Into::into) };
            assert_eq!(VerifiedSender::read_json(sender.to_json().as_bytes()).as_ref(), Some(&sender));
            let parts = VerifiedSender::from_parts(user.as_bytes(), info.map(str::as_bytes));
            assert_eq!(parts.as_ref(), Some(&sender));
            let stamp = MessageStamp { sender: Some(&sender), time: Some(7), position: None };
            let message: serde_json::Value =
                serde_json::from_str(&format!("{{\"op\":1{}}}", stamp.fields())).unwrap();
            assert_eq!((&message["user"], &message["at"]), (&user.into(), &7.into()));
            assert_eq!(message.get("info").map(ToString::to_string).is_some(), info.is_some());
        }
        assert_eq!(VerifiedSender::from_parts(b"a", Some(b"{")), None);
        assert_eq!(VerifiedSender::from_parts(b"a", Some(b"1,\"x\":2")), None);
        assert_eq!(VerifiedSender::from_parts(b"\xff", None), None);
        assert_eq!(MessageStamp::default().fields(), "");
    }
}
