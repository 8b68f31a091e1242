//! A blocking WebSocket client, whose input is validated by the [`Reader`].

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};

use sinews_proto::Role;

use crate::{Frame, Reader, Reply};

/// Returns a handshake with further header lines and the example key from RFC 6455 section 1.3.
#[must_use]
pub fn handshake(path: &str, host: &str, lines: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{lines}\r\n"
    )
}

/// The answer to that key.
const ACCEPT: &str = "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n";

/// Reads the head of an HTTP message and no byte behind it; at the end of the transport, what has arrived of it.
///
/// # Errors
/// The transport fails, or the head is not text.
pub fn read_head(stream: &mut impl Read) -> io::Result<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(0) => break,
            Ok(_) => head.push(byte[0]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    String::from_utf8(head).map_err(io::Error::other)
}

/// Sends a request and reads all bytes until the connection ends.
///
/// # Errors
/// The transport fails, or the answer is not text.
pub fn exchange(mut stream: impl Read + Write, request: &str) -> io::Result<String> {
    // In one write, since a server that rejects the request may close before a second one.
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Returns a request for a path whose answer ends the connection.
#[must_use]
pub fn last_get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
}

/// A test's WebSocket client. It answers no pings.
#[derive(Debug)]
pub struct RawSocket<S> {
    /// The transport. Bytes that were read from it may wait as replies.
    pub stream: S,
    /// The server's response head.
    pub head: String,
    reader: Reader,
    replies: VecDeque<Reply>,
}

impl<S: Read + Write> RawSocket<S> {
    /// Sends a [`handshake`] and reads its answer. The inner error is a rejection's head.
    ///
    /// # Errors
    /// The transport fails.
    pub fn open(mut stream: S, path: &str, host: &str, lines: &str) -> io::Result<Result<Self, String>> {
        stream.write_all(handshake(path, host, lines).as_bytes())?;
        Self::answered(stream)
    }

    /// Reads the answer to a [`handshake`].
    ///
    /// # Errors
    /// The transport fails.
    ///
    /// # Panics
    /// The server does not prove that it has read the key.
    pub fn answered(mut stream: S) -> io::Result<Result<Self, String>> {
        let head = read_head(&mut stream)?;
        if !head.starts_with("HTTP/1.1 101 ") {
            return Ok(Err(head));
        }
        assert!(head.contains(ACCEPT), "{head}");
        Ok(Ok(Self { stream, head, reader: Reader::new(Role::Server, None), replies: VecDeque::new() }))
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// The transport fails.
    pub fn send(&mut self, frame: &Frame) -> io::Result<()> {
        self.stream.write_all(&frame.encode(Role::Client))
    }

    /// Returns the server's next reply, or `None` at the end.
    ///
    /// # Errors
    /// The transport fails, or the server violates the protocol.
    pub fn receive(&mut self) -> io::Result<Option<Reply>> {
        let mut chunk = [0; 16 << 10];
        while self.replies.is_empty() {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Ok(None),
                Ok(count) => {
                    self.replies.extend(self.reader.read(&chunk[..count]).map_err(io::Error::other)?);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.replies.pop_front())
    }

    /// Asserts that this is the next reply.
    ///
    /// # Panics
    /// It is another one, or the transport fails.
    #[track_caller]
    pub fn expect(&mut self, expected: &Reply) {
        assert_eq!(self.receive().expect("a reply").as_ref(), Some(expected));
    }

    /// Asserts that the transport ends in order, without a further reply.
    ///
    /// # Panics
    /// It does not.
    #[track_caller]
    pub fn assert_end(&mut self) {
        assert_eq!(self.receive().expect("an end in order"), None);
    }
}
