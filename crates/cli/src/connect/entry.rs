//! What happens, as a line of JSON: `--jsonl` prints it, `--record` writes it, `--replay` reads it.
//! docs/book/src/reference/connect.md lists the fields.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sinews::{CloseCode, CloseFrame, Message};

use super::command::Command;

/// Something that happened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Entry {
    /// Seconds since 1970, to the microsecond.
    pub(crate) ts: f64,
    /// Milliseconds since the first connection was open, to the microsecond.
    pub(crate) at_ms: f64,
    /// Which client, with `--listen`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<u32>,
    pub(crate) direction: Direction,
    pub(crate) kind: Kind,
    /// Bytes of the payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) text: Option<String>,
    /// A payload that is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) base64: Option<String>,
    /// Of a pong: since its ping.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rtt_ms: Option<f64>,
    /// Of a Close.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) code: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// With what it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) subprotocol: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) extensions: Option<String>,
    /// Of the end: what the program answers its caller with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit: Option<u8>,
}

/// Which way it went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Direction {
    In,
    Out,
    /// Neither: the beginning, the end.
    #[default]
    None,
}

/// What happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// A connection is open.
    Open,
    Text,
    Binary,
    Ping,
    Pong,
    Close,
    /// A connection is over: `reason` says how.
    #[default]
    End,
}

impl Entry {
    /// A message on its way, without the times.
    pub(crate) fn of(direction: Direction, message: &Message) -> Self {
        let mut entry = Self { direction, ..Self::default() };
        let payload = match message {
            Message::Text(text) => {
                entry.kind = Kind::Text;
                entry.text = Some(text.as_str().to_owned());
                entry.bytes = Some(text.len());
                return entry;
            }
            Message::Close(frame) => {
                entry.kind = Kind::Close;
                entry.code = frame.as_ref().map(|frame| frame.code().as_u16());
                entry.reason = frame.as_ref().map(|frame| frame.reason().to_owned());
                return entry;
            }
            Message::Binary(payload) => {
                entry.kind = Kind::Binary;
                payload
            }
            Message::Ping(payload) => {
                entry.kind = Kind::Ping;
                payload
            }
            Message::Pong(payload) => {
                entry.kind = Kind::Pong;
                payload
            }
        };
        entry.bytes = Some(payload.len());
        match (entry.kind, std::str::from_utf8(payload)) {
            (Kind::Ping | Kind::Pong, Ok(text)) => entry.text = Some(text.to_owned()),
            _ => entry.base64 = Some(STANDARD.encode(payload)),
        }
        entry
    }

    /// What would have to be typed for it.
    ///
    /// # Errors
    /// What is wrong with a line that somebody has written by hand.
    pub(crate) fn command(&self) -> Result<Command, String> {
        let payload = match (&self.text, &self.base64) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, Some(base64)) => STANDARD.decode(base64).map_err(|error| format!("base64: {error}"))?,
            (None, None) => Vec::new(),
        };
        Ok(match self.kind {
            Kind::Text => Command::Text(self.text.clone().ok_or("a text without text")?),
            Kind::Binary => Command::Binary(payload),
            Kind::Ping => Command::Ping(payload),
            Kind::Pong => Command::Pong(payload),
            Kind::Close => Command::Close(self.code, self.reason.clone().unwrap_or_default()),
            Kind::Open | Kind::End => return Err("nothing that can be sent".to_owned()),
        })
    }

    pub(crate) fn is_data(&self) -> bool {
        matches!(self.kind, Kind::Text | Kind::Binary)
    }

    /// For a person, when it is not what was expected.
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

/// What a command puts on the wire, where a sound connection can send it.
///
/// # Errors
/// It cannot.
pub(crate) fn message(command: Command) -> Result<Message, String> {
    Ok(match command {
        Command::Text(text) => Message::text(text),
        Command::Binary(payload) => Message::binary(payload),
        Command::Ping(payload) => Message::Ping(Bytes::from(payload)),
        Command::Pong(payload) => Message::Pong(Bytes::from(payload)),
        Command::Close(None, _) => Message::Close(None),
        Command::Close(Some(code), reason) => {
            let code = CloseCode::new(code).ok_or_else(|| format!("{code} is no code that may be sent"))?;
            Message::Close(Some(CloseFrame::new(code, reason)))
        }
        _ => return Err("nothing to send".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_recorded_can_be_sent_again() {
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
            let line = serde_json::to_string(&Entry::of(Direction::Out, &sent)).unwrap();
            let entry: Entry = serde_json::from_str(&line).unwrap();
            assert_eq!(entry.direction, Direction::Out);
            assert_eq!(message(entry.command().unwrap()), Ok(sent), "{line}");
        }
        assert!(Entry::default().command().is_err());
    }
}
