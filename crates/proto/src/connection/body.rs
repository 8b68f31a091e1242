//! Messages in the body of a streaming HTTP response: output without WebSocket.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::ptr;

use sinews_http::{LAST_CHUNK, write_chunk};

use super::event::Kind;
use crate::CloseCode;

/// Encodes a message; see [`BodyFormat::new`].
type EncodeMessage = fn(Kind, &[u8], &mut Vec<u8>);

/// Returns the label of a message; see [`BodyFormat::with_label`].
type LabelMessage = fn(Kind, &[u8]) -> Option<Box<[u8]>>;

/// Encodes a Close; see [`BodyFormat::with_close`].
type EncodeClose = fn(Option<CloseCode>, &str, &mut Vec<u8>);

/// The message encoding in the body of a streaming response, such as Server-Sent Events.
///
/// A format is a `static`: connections with the same format share a message's bytes if it is [prepared](write_body) for
/// many.
pub struct BodyFormat {
    encode: EncodeMessage,
    label: Option<LabelMessage>,
    keepalive: &'static [u8],
    close: Option<EncodeClose>,
}

impl BodyFormat {
    /// Creates a format. `encode` appends the bytes of a message; a message without bytes is omitted.
    #[must_use]
    pub const fn new(encode: EncodeMessage) -> Self {
        Self { encode, label: None, keepalive: b"", close: None }
    }

    /// Sets what is written after [`Config::ping_interval`](crate::Config::ping_interval), in place of a
    /// ping: it keeps proxies from closing an idle response, and finds clients that are gone. Default:
    /// nothing.
    #[must_use]
    pub const fn with_keepalive(mut self, bytes: &'static [u8]) -> Self {
        self.keepalive = bytes;
        self
    }

    /// Sets the encoding for a local Close, before the body's end. Default: the body ends without.
    #[must_use]
    pub const fn with_close(mut self, encode: EncodeClose) -> Self {
        self.close = Some(encode);
        self
    }

    /// Sets a part of each message that [`BodyPrefix::before`] gets. It is computed once for all
    /// connections. Default: none.
    #[must_use]
    pub const fn with_label(mut self, label: LabelMessage) -> Self {
        self.label = Some(label);
        self
    }

    /// Returns the label of a message.
    #[must_use]
    pub fn label(&self, kind: Kind, payload: &[u8]) -> Option<Box<[u8]>> {
        self.label.and_then(|label| label(kind, payload))
    }
}

/// A format is equal to itself only.
impl PartialEq for BodyFormat {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self, other)
    }
}

impl Eq for BodyFormat {}

impl fmt::Debug for BodyFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyFormat").finish_non_exhaustive()
    }
}

/// Bytes that one connection writes between the messages of its body, such as an event id or a comma.
pub trait BodyPrefix: Send + Sync {
    /// Appends bytes before a message with this [label](BodyFormat::with_label).
    fn before(&mut self, label: Option<&[u8]>, out: &mut Vec<u8>);

    /// Appends bytes at the end of the body, after an encoded Close.
    fn end(&mut self, out: &mut Vec<u8>);
}

/// Appends a message for any number of connections with a format, as an HTTP/1.1 chunk. Returns the encoded message's
/// length; the bytes before it and 2 bytes after it belong to the chunk.
pub fn write_body(format: &BodyFormat, kind: Kind, payload: &[u8], out: &mut Vec<u8>) -> usize {
    let mut body = Vec::new();
    (format.encode)(kind, payload, &mut body);
    write_chunk(&body, out);
    body.len()
}

/// Whether and how a connection writes the body of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BodySetup {
    pub(crate) format: &'static BodyFormat,
    /// In chunks (HTTP/1.1); otherwise the end of the transport ends the body (HTTP/1.0).
    pub(crate) chunked: bool,
}

/// The body of one connection.
pub(super) struct BodyWriter {
    pub(super) setup: BodySetup,
    pub(super) prefix: Option<Box<dyn BodyPrefix>>,
}

impl fmt::Debug for BodyWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyWriter").field("setup", &self.setup).finish_non_exhaustive()
    }
}

impl BodyWriter {
    pub(super) fn new(setup: BodySetup) -> Self {
        Self { setup, prefix: None }
    }

    /// Appends a message of this connection alone.
    pub(super) fn message(&mut self, kind: Kind, payload: &[u8], out: &mut Vec<u8>) {
        let (format, mut body) = (self.setup.format, Vec::new());
        (format.encode)(kind, payload, &mut body);
        if body.is_empty() {
            return;
        }
        if self.prefix.is_some() {
            let label = format.label(kind, payload);
            self.before(label.as_deref(), out);
        }
        self.push(&body, out);
    }

    /// Appends the prefix of a message.
    pub(super) fn before(&mut self, label: Option<&[u8]>, out: &mut Vec<u8>) {
        let Some(prefix) = &mut self.prefix else { return };
        let mut bytes = Vec::new();
        prefix.before(label, &mut bytes);
        self.push(&bytes, out);
    }

    pub(super) fn keepalive(&self, out: &mut Vec<u8>) {
        self.push(self.setup.format.keepalive, out);
    }

    /// Appends the end of the body.
    pub(super) fn close(&mut self, code: Option<CloseCode>, reason: &str, out: &mut Vec<u8>) {
        let mut bytes = Vec::new();
        if let Some(encode) = self.setup.format.close {
            encode(code, reason, &mut bytes);
        }
        if let Some(prefix) = &mut self.prefix {
            prefix.end(&mut bytes);
        }
        self.push(&bytes, out);
        if self.setup.chunked {
            out.extend_from_slice(LAST_CHUNK);
        }
    }

    fn push(&self, bytes: &[u8], out: &mut Vec<u8>) {
        if self.setup.chunked {
            write_chunk(bytes, out);
        } else {
            out.extend_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use core::time::Duration;

    use super::*;
    use crate::{Config, Connection, Event, Misuse, Negotiated, PerThread, Time, TransportState};

    static FORMAT: BodyFormat = BodyFormat::new(|kind, payload, out| {
        if payload != b"omit" {
            out.push(if kind == Kind::Text { b'"' } else { b'#' });
            out.extend_from_slice(payload);
        }
    })
    .with_keepalive(b":")
    .with_label(|_, payload| payload.first().map(|first| Box::from([*first])))
    .with_close(|code, reason, out| {
        out.extend_from_slice(&code.map_or(0, CloseCode::as_u16).to_be_bytes());
        out.extend_from_slice(reason.as_bytes());
    });

    /// Writes the label and a comma, and a period at the end.
    struct Commas;

    impl BodyPrefix for Commas {
        fn before(&mut self, label: Option<&[u8]>, out: &mut Vec<u8>) {
            out.extend_from_slice(label.unwrap_or(b"-"));
            out.push(b',');
        }

        fn end(&mut self, out: &mut Vec<u8>) {
            out.push(b'.');
        }
    }

    struct TestBody {
        connection: Connection,
        shared: PerThread,
        out: Vec<u8>,
    }

    impl TestBody {
        fn new(chunked: bool) -> Self {
            let config = Arc::new(Config::default().with_idle_timeout(Some(Duration::from_secs(1))));
            let connection = Connection::new(Negotiated::response_body(&FORMAT, chunked), config, Time::ZERO);
            Self { connection, shared: PerThread::new(|| [0; 4]), out: Vec::new() }
        }

        fn send(&mut self, payload: &[u8]) -> &mut Self {
            self.connection.send(Kind::Text, payload, &mut self.shared, &mut self.out).unwrap();
            self
        }

        fn end(&mut self) -> Vec<u8> {
            self.connection.close(CloseCode::NORMAL, "end", Time::ZERO).unwrap();
            self.connection.write_control(&mut self.shared, &mut self.out, Time::ZERO);
            assert_eq!(self.connection.transport(), TransportState::Finish);
            core::mem::take(&mut self.out)
        }
    }

    #[test]
    fn each_message_is_one_chunk_and_the_close_ends_the_body() {
        assert_eq!(
            TestBody::new(true).send(b"a").send(b"omit").send(b"").end(),
            b"2\r\n\"a\r\n1\r\n\"\r\n5\r\n\x03\xe8end\r\n0\r\n\r\n"
        );
        assert_eq!(TestBody::new(false).send(b"a").send(b"b").end(), b"\"a\"b\x03\xe8end");
    }

    #[test]
    fn prefix_of_a_connection_precedes_each_message_and_ends_the_body() {
        let mut body = TestBody::new(false);
        body.connection.set_body_prefix(Box::new(Commas));
        assert_eq!(body.send(b"ab").send(b"omit").send(b"").end(), b"a,\"ab-,\"\x03\xe8end.");
    }

    #[test]
    fn prepared_message_has_the_bytes_of_a_sent_one() {
        let mut body = TestBody::new(true);
        for payload in [&b"hello"[..], b"", b"omit", &[b'x'; 300]] {
            let mut prepared = Vec::new();
            let len = write_body(&FORMAT, Kind::Text, payload, &mut prepared);
            body.send(payload);
            assert_eq!(core::mem::take(&mut body.out), prepared);
            assert_eq!(len, if payload == b"omit" { 0 } else { payload.len() + 1 });
        }
    }

    #[test]
    fn keepalive_needs_no_answer() {
        let mut body = TestBody::new(true);
        for round in 1..=3 {
            let due = Time::ZERO + Duration::from_secs(25 * round);
            assert_eq!(body.connection.deadline(), Some(due));
            body.connection.handle_timeout(due).unwrap();
            body.connection.write_control(&mut body.shared, &mut body.out, due);
            assert_eq!(core::mem::take(&mut body.out), b"1\r\n:\r\n");
        }
    }

    #[test]
    fn input_is_discarded_and_the_end_of_the_client_ends_the_body() {
        let mut body = TestBody::new(true);
        let mut input = *b"GET / HTTP/1.1\r\n\r\n";
        let (size, mut assembly) = (input.len(), Vec::new());
        let received = body.connection.receive(&mut input, &mut assembly, &mut body.shared, Time::ZERO);
        let received = received.unwrap();
        assert_eq!((received.consumed, received.event), (size, Event::NeedMore(1)));
        assert!(body.connection.is_open() && assembly.is_empty());
        assert!(body.connection.receive_end(&mut assembly, Time::ZERO));
        assert!(!body.connection.is_open());
    }

    #[test]
    fn fragments_and_frames_are_rejected() {
        let TestBody { mut connection, mut shared, mut out } = TestBody::new(true);
        assert_eq!(
            connection.send_fragment(Kind::Text, b"a", true, &mut shared, &mut out),
            Err(Misuse::Prefixed)
        );
        assert_eq!(connection.send_head(Kind::Text, 1, &mut out), Err(Misuse::Prefixed));
        assert_eq!(connection.send_prepared(false), Err(Misuse::Prefixed));
        assert!(!connection.takes_prepared() && out.is_empty());
        connection.send_pieces(Kind::Binary, &[b"a", b"b"], &mut shared, &mut out).unwrap();
        assert_eq!(out, b"3\r\n#ab\r\n");
    }
}
