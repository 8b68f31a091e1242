//! Messages and their parts.

use std::fmt;

use bytes::Bytes;
use sinews_proto::{CloseCode, Kind};
use sinews_simd::{Utf8Bytes, Utf8Error};

/// A message (RFC 6455 section 5.6), or a control frame as `WebSocket::next` returns it. Clones share the payload.
#[derive(Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "the RFC defines no other messages, and callers match")]
pub enum Message {
    /// Text, valid UTF-8.
    Text(Utf8Bytes),
    /// Binary data.
    Binary(Bytes),
    /// A ping, at most 125 bytes. The library answers received pings.
    Ping(Bytes),
    /// A pong, at most 125 bytes. A pong that you send is a heartbeat without a reply (RFC 6455 section 5.5.3).
    Pong(Bytes),
    /// A Close: the last message received. Sending it equals `WebSocket::start_close`.
    Close(Option<CloseFrame>),
}

/// Code and reason of a Close frame (RFC 6455 section 5.5.1).
///
/// ```
/// use sinews::{CloseCode, CloseFrame, Message};
///
/// let close = Message::Close(Some(CloseFrame { code: CloseCode::GOING_AWAY, reason: "restart".into() }));
/// match close {
///     Message::Close(Some(CloseFrame { code: CloseCode::NORMAL, .. })) => println!("done"),
///     Message::Close(Some(CloseFrame { code, reason })) => println!("{code}: {reason}"),
///     _ => {}
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "the RFC defines no other fields, and callers construct it")]
pub struct CloseFrame {
    /// The close code.
    pub code: CloseCode,
    /// The reason as text: at most 123 bytes, possibly empty. Boxed, so that a [`Message`] stays small; `into`
    /// converts `&str`, `String` and [`Utf8Bytes`].
    pub reason: Box<str>,
}

impl CloseFrame {
    /// Creates a Close with a code, and a reason of at most 123 bytes, which may be empty.
    pub fn new(code: CloseCode, reason: impl Into<Box<str>>) -> Self {
        Self { code, reason: reason.into() }
    }

    /// The close code.
    #[must_use]
    pub fn code(&self) -> CloseCode {
        self.code
    }

    /// The reason, possibly empty.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

/// Messages are moved often, so their size is a small number of words.
const _: () = assert!(size_of::<Message>() == 40);

impl Message {
    /// A text message.
    pub fn text(text: impl Into<Utf8Bytes>) -> Self {
        Self::Text(text.into())
    }

    /// A binary message.
    pub fn binary(payload: impl Into<Bytes>) -> Self {
        Self::Binary(payload.into())
    }

    /// A binary message in the caller's own type of memory: a pool's buffer, a mapped file, aligned memory. A server
    /// sends it without a copy, from 4 KiB on; the memory is dropped once it is sent.
    ///
    /// ```
    /// struct Pooled(Box<[u8]>);
    ///
    /// impl AsRef<[u8]> for Pooled {
    ///     fn as_ref(&self) -> &[u8] {
    ///         &self.0
    ///     }
    /// }
    ///
    /// impl Drop for Pooled {
    ///     fn drop(&mut self) {
    ///         // The pool takes the memory back here.
    ///     }
    /// }
    ///
    /// let message = sinews::Message::from_owner(Pooled(vec![7; 4096].into()));
    /// assert_eq!(message.len(), 4096);
    /// ```
    pub fn from_owner(memory: impl AsRef<[u8]> + Send + 'static) -> Self {
        Self::Binary(Bytes::from_owner(memory))
    }

    /// The text of a text message.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The payload of any message; a Close has none.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Binary(bytes) | Self::Ping(bytes) | Self::Pong(bytes) => bytes,
            Self::Close(_) => &[],
        }
    }

    /// The payload of any message, without a copy; a Close has none.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        match self {
            Self::Text(text) => text.into_bytes(),
            Self::Binary(bytes) | Self::Ping(bytes) | Self::Pong(bytes) => bytes,
            Self::Close(_) => Bytes::new(),
        }
    }

    /// The text of a text message, without a copy.
    ///
    /// # Errors
    /// Returns any other message.
    pub fn into_text(self) -> Result<Utf8Bytes, Self> {
        match self {
            Self::Text(text) => Ok(text),
            other => Err(other),
        }
    }

    /// The payload as text: a text message, the reason of a Close, or any other payload that is UTF-8. The name of
    /// tungstenite and axum; [`as_text`](Self::as_text) returns only text messages.
    ///
    /// ```
    /// use sinews::{CloseCode, CloseFrame, Message};
    ///
    /// assert_eq!(Message::text("Grüße").to_text()?, "Grüße");
    /// assert_eq!(Message::binary("bytes").to_text()?, "bytes");
    /// assert_eq!(Message::from(CloseFrame::new(CloseCode::NORMAL, "done")).to_text()?, "done");
    /// assert!(Message::binary(vec![0xff]).to_text().is_err());
    /// # Ok::<(), sinews::Error>(())
    /// ```
    ///
    /// # Errors
    /// The payload is not UTF-8.
    pub fn to_text(&self) -> Result<&str, Utf8Error> {
        match self {
            Self::Text(text) => Ok(text),
            Self::Binary(bytes) | Self::Ping(bytes) | Self::Pong(bytes) => sinews_simd::from_utf8(bytes),
            Self::Close(frame) => Ok(frame.as_ref().map_or("", CloseFrame::reason)),
        }
    }

    /// The payload of any message, and the reason of a Close, which is copied. The name of tungstenite and axum;
    /// [`into_bytes`](Self::into_bytes) never copies.
    #[must_use]
    pub fn into_data(self) -> Bytes {
        match self {
            Self::Close(Some(frame)) => String::from(frame.reason).into(),
            other => other.into_bytes(),
        }
    }

    /// Length of the payload in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.as_bytes().len()
    }

    /// Whether the payload is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether this is a text message.
    #[must_use]
    pub const fn is_text(&self) -> bool {
        matches!(self, Self::Text(_))
    }

    /// Whether this is a binary message.
    #[must_use]
    pub const fn is_binary(&self) -> bool {
        matches!(self, Self::Binary(_))
    }

    /// Whether this is a text or binary message, not a control frame.
    #[must_use]
    pub const fn is_data(&self) -> bool {
        matches!(self, Self::Text(_) | Self::Binary(_))
    }

    /// Whether this is a ping.
    #[must_use]
    pub const fn is_ping(&self) -> bool {
        matches!(self, Self::Ping(_))
    }

    /// Whether this is a pong.
    #[must_use]
    pub const fn is_pong(&self) -> bool {
        matches!(self, Self::Pong(_))
    }

    /// Whether this is a Close.
    #[must_use]
    pub const fn is_close(&self) -> bool {
        matches!(self, Self::Close(_))
    }
}

/// Writes the text of [`to_text`](Message::to_text), or the length of a payload that is not text. A peer chooses the
/// text, control characters included: use [`Debug`](fmt::Debug) for a log or a terminal.
impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_text() {
            Ok(text) => f.pad(text),
            Err(_) => write!(f, "{} bytes", self.len()),
        }
    }
}

/// Shows the kind, the length and the beginning of the payload, short enough for a log line.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => match text.char_indices().nth(SHOWN) {
                Some((cut, _)) => write!(f, "Text({:?}… {} bytes)", &text[..cut], text.len()),
                None => write!(f, "Text({:?})", text.as_str()),
            },
            Self::Binary(bytes) => show(f, "Binary", bytes),
            Self::Ping(bytes) => show(f, "Ping", bytes),
            Self::Pong(bytes) => show(f, "Pong", bytes),
            Self::Close(frame) => f.debug_tuple("Close").field(frame).finish(),
        }
    }
}

/// Maximum characters or bytes of a message that [`Debug`](fmt::Debug) shows.
const SHOWN: usize = 64;

fn show(f: &mut fmt::Formatter<'_>, name: &str, bytes: &Bytes) -> fmt::Result {
    match bytes.len() > SHOWN {
        true => write!(f, "{name}({:?}… {} bytes)", bytes.slice(..SHOWN), bytes.len()),
        false => write!(f, "{name}({bytes:?})"),
    }
}

/// Converts to [`Message::Close`].
impl From<CloseFrame> for Message {
    fn from(frame: CloseFrame) -> Self {
        Self::Close(Some(frame))
    }
}

impl From<String> for Message {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

/// Copies the text.
impl From<&str> for Message {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<Utf8Bytes> for Message {
    fn from(text: Utf8Bytes) -> Self {
        Self::Text(text)
    }
}

impl From<Bytes> for Message {
    fn from(payload: Bytes) -> Self {
        Self::Binary(payload)
    }
}

impl From<Vec<u8>> for Message {
    fn from(payload: Vec<u8>) -> Self {
        Self::Binary(payload.into())
    }
}

/// Copies the bytes.
impl From<&[u8]> for Message {
    fn from(payload: &[u8]) -> Self {
        Self::Binary(Bytes::copy_from_slice(payload))
    }
}

/// A message borrowed from the connection's memory until the next call.
#[derive(Debug)]
#[non_exhaustive]
pub struct MessageRef<'a> {
    kind: Kind,
    payload: &'a mut [u8],
}

impl<'a> MessageRef<'a> {
    #[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
    pub(crate) fn new(kind: Kind, payload: &'a mut [u8]) -> Self {
        Self { kind, payload }
    }

    /// Whether the message is text or binary.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The text of a text message. It was validated on receipt; this call validates it again (at some 30 GB/s for
    /// ASCII), so use [`payload`](Self::payload) to pass bytes on.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self.kind {
            Kind::Text => std::str::from_utf8(self.payload).ok(),
            Kind::Binary => None,
        }
    }

    /// The payload.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.payload
    }

    /// The payload, for the lifetime of the borrow.
    #[must_use]
    pub fn into_payload(self) -> &'a mut [u8] {
        self.payload
    }

    /// The payload, mutably: decrypt or decode in place, without a second buffer.
    #[must_use]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        self.payload
    }
}

/// The message that `WebSocket::recv_into` receives next, as far as the headers of its frames describe it, so that a
/// caller can choose its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageHead {
    /// Whether the message is text or binary.
    pub kind: Kind,
    /// Bytes of payload that are known to follow, from the first byte that no call has returned: bytes already
    /// received, and the declared length of the current frame. At most
    /// [`Config::max_message`](crate::Config::max_message).
    pub len: usize,
    /// The message ends with these bytes. If not, further frames follow, or the message is compressed, so that its
    /// length is known only at its end.
    pub last: bool,
}

/// The result of `WebSocket::recv_into`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Filled {
    /// Whether the message is text or binary.
    pub kind: Kind,
    /// Bytes of the buffer that hold payload.
    pub len: usize,
    /// The message ends with these bytes. If not, the message did not fit, or its end had not arrived when the buffer
    /// was full: then `next_head`, or a call with an empty buffer, waits until that is known.
    pub last: bool,
}
