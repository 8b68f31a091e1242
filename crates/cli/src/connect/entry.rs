//! Events as JSON lines: `--jsonl` prints them, `--record` writes them, `--replay` reads them. docs/book/src/reference/connect.md lists
//! the fields.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sinews::{CloseCode, CloseFrame, Message};

use super::command::ConsoleCommand;

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RecordEntry {
    /// Seconds since 1970, to the microsecond.
    pub(crate) ts: f64,
    /// Milliseconds since the first connection opened, to the microsecond.
    pub(crate) at_ms: f64,
    /// Client number, with `--listen`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<u32>,
    pub(crate) direction: Direction,
    pub(crate) kind: EntryKind,
    /// Payload length in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) text: Option<String>,
    /// A payload that is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) base64: Option<String>,
    /// Of a pong: time since its ping.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rtt_ms: Option<f64>,
    /// A Close's code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) code: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// The opened connection's parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) subprotocol: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) extensions: Option<String>,
    /// Of the end: the program's exit code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit: Option<u8>,
}

/// An event's direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Direction {
    In,
    Out,
    /// Neither: start and end.
    #[default]
    None,
}

/// An event's kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EntryKind {
    /// A connection opened.
    Open,
    Text,
    Binary,
    Ping,
    Pong,
    Close,
    /// A connection ended; `reason` describes the reason.
    #[default]
    End,
}

impl RecordEntry {
    /// A message in transit, without times.
    pub(crate) fn new(direction: Direction, message: &Message) -> Self {
        let mut entry = Self { direction, ..Self::default() };
        let payload = match message {
            Message::Text(text) => {
                entry.kind = EntryKind::Text;
                entry.text = Some(text.as_str().to_owned());
                entry.bytes = Some(text.len());
                return entry;
            }
            Message::Close(frame) => {
                entry.kind = EntryKind::Close;
                entry.code = frame.as_ref().map(|frame| frame.code().as_u16());
                entry.reason = frame.as_ref().map(|frame| frame.reason().to_owned());
                return entry;
            }
            Message::Binary(payload) => {
                entry.kind = EntryKind::Binary;
                payload
            }
            Message::Ping(payload) => {
                entry.kind = EntryKind::Ping;
                payload
            }
            Message::Pong(payload) => {
                entry.kind = EntryKind::Pong;
                payload
            }
        };
        entry.bytes = Some(payload.len());
        match (entry.kind, std::str::from_utf8(payload)) {
            (EntryKind::Ping | EntryKind::Pong, Ok(text)) => entry.text = Some(text.to_owned()),
            _ => entry.base64 = Some(STANDARD.encode(payload)),
        }
        entry
    }

    /// Returns the console command that sends this entry.
    ///
    /// # Errors
    /// Returns a description of an invalid entry, for example after manual editing.
    pub(crate) fn command(&self) -> Result<ConsoleCommand, String> {
        let payload = match (&self.text, &self.base64) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, Some(base64)) => STANDARD.decode(base64).map_err(|error| format!("base64: {error}"))?,
            (None, None) => Vec::new(),
        };
        Ok(match self.kind {
            EntryKind::Text => {
                ConsoleCommand::Text(self.text.clone().ok_or("text entry without a text field")?)
            }
            EntryKind::Binary => ConsoleCommand::Binary(payload),
            EntryKind::Ping => ConsoleCommand::Ping(payload),
            EntryKind::Pong => ConsoleCommand::Pong(payload),
            EntryKind::Close => ConsoleCommand::Close(self.code, self.reason.clone().unwrap_or_default()),
            EntryKind::Open | EntryKind::End => return Err("entry cannot be sent".to_owned()),
        })
    }

    pub(crate) fn is_data(&self) -> bool {
        matches!(self.kind, EntryKind::Text | EntryKind::Binary)
    }

    /// Describes an unexpected entry.
    pub(crate) fn describe(&self) -> String {
        const SHOWN: usize = 60;
        match (&self.text, &self.base64) {
            (Some(text), _) => format!("text {:?}", text.chars().take(SHOWN).collect::<String>()),
            (None, payload) => {
                let payload: String = payload.iter().flat_map(|text| text.chars()).take(SHOWN).collect();
                format!("{} bytes in base64 {payload:?}", self.bytes.unwrap_or_default())
            }
        }
    }
}

/// Converts a command into a message, if a valid connection can send it.
///
/// # Errors
/// Returns an error if it cannot.
pub(crate) fn message(command: ConsoleCommand) -> Result<Message, String> {
    Ok(match command {
        ConsoleCommand::Text(text) => Message::text(text),
        ConsoleCommand::Binary(payload) => Message::binary(payload),
        ConsoleCommand::Ping(payload) => Message::Ping(Bytes::from(payload)),
        ConsoleCommand::Pong(payload) => Message::Pong(Bytes::from(payload)),
        ConsoleCommand::Close(None, _) => Message::Close(None),
        ConsoleCommand::Close(Some(code), reason) => {
            let code = CloseCode::new(code).ok_or_else(|| format!("close code {code} may not be sent"))?;
            Message::Close(Some(CloseFrame::new(code, reason)))
        }
        _ => return Err("nothing to send".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_entries_convert_back_to_messages() {
        let code = CloseCode::new(4000).unwrap();
        for sent in [
            Message::text("κόσμε"),
            Message::binary(vec![0, 255]),
            Message::Ping(Bytes::from_static(b"a")),
            Message::Ping(Bytes::from_static(b"\xff")),
            Message::Pong(Bytes::new()),
            Message::Close(None),
            Message::Close(Some(CloseFrame::new(code, "why"))),
        ] {
            let line = serde_json::to_string(&RecordEntry::new(Direction::Out, &sent)).unwrap();
            let entry: RecordEntry = serde_json::from_str(&line).unwrap();
            assert_eq!(entry.direction, Direction::Out);
            assert_eq!(message(entry.command().unwrap()), Ok(sent), "{line}");
        }
        assert!(RecordEntry::default().command().is_err());
    }
}
