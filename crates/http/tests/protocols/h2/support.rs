//! A client that writes its frames by hand.

use std::time::Duration;

use sinews_http::h2::{Config, Error, ErrorCode, Event, FieldBuffer, H2Connection, PREFACE, StreamId};

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;
pub(crate) const WITH_PRIORITY: u8 = 0x20;

/// An event, copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Stream, method, target, end.
    Request(u32, String, String, bool),
    TooLarge(u32, bool),
    Data(u32, Vec<u8>, bool),
    Trailers(u32, Vec<(String, String)>),
    /// By the peer, with its code.
    Reset(u32, u32),
    /// For a violation by the peer, with our code.
    Violated(u32, u32),
    Opened(Option<u32>),
    Pong([u8; 8]),
    GoAway(u32),
}

/// A frame of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) frame_type: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Sent {
    pub(crate) fn code(&self) -> u32 {
        let at = if self.frame_type == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().expect("four bytes"))
    }
}

/// A server's connection, and the bytes that it sends.
pub(crate) struct Server {
    pub(crate) connection: H2Connection,
    pub(crate) now: Duration,
    pub(crate) out: Vec<u8>,
    fields: FieldBuffer,
    ids: Vec<StreamId>,
}

impl Server {
    /// A connection before its first byte.
    pub(crate) fn fresh(config: Config) -> Self {
        let connection = H2Connection::server(config);
        Self { connection, now: Duration::ZERO, out: Vec::new(), fields: FieldBuffer::new(), ids: Vec::new() }
    }

    /// A connection after preface and SETTINGS of both sides.
    pub(crate) fn with(config: Config) -> Self {
        let mut server = Self::fresh(config);
        let greeting = [&PREFACE[..], &frame(SETTINGS, 0, 0, &[]), &frame(SETTINGS, ACK, 0, &[])].concat();
        assert_eq!(server.receive(&greeting), Ok(Vec::new()));
        let sent = server.sent();
        assert_eq!((sent[0].frame_type, sent[0].flags), (SETTINGS, 0));
        assert!(sent.contains(&Sent { frame_type: SETTINGS, flags: ACK, stream: 0, payload: Vec::new() }));
        server
    }

    pub(crate) fn new() -> Self {
        Self::with(Config::new())
    }

    /// A server with the open stream 1.
    pub(crate) fn opened() -> Self {
        let mut server = Self::new();
        server.open(1);
        server
    }

    /// Passes bytes to the machine.
    pub(crate) fn receive(&mut self, input: &[u8]) -> Result<Vec<Seen>, Error> {
        let mut seen = Vec::new();
        self.receive_into(input, &mut seen)?;
        Ok(seen)
    }

    /// Passes bytes to the machine, and appends the events, also of an input that ends the connection.
    pub(crate) fn receive_into(&mut self, mut input: &[u8], seen: &mut Vec<Seen>) -> Result<(), Error> {
        loop {
            let before = input;
            let Some(event) = self.connection.receive(&mut input, &mut self.fields, self.now)? else { break };
            let event = match event {
                Event::Request { stream, head, ends } => {
                    self.ids.push(stream);
                    let target = head.target().unwrap_or_default();
                    Seen::Request(stream.get(), head.method().into(), target.into(), ends)
                }
                Event::HeadTooLarge { stream, ends } => {
                    self.ids.push(stream);
                    Seen::TooLarge(stream.get(), ends)
                }
                Event::Data { stream, data, ends } => {
                    let consumed = &before[..before.len() - input.len()];
                    let last = &consumed[consumed.len() - data.len()..];
                    assert!(data.is_empty() || std::ptr::eq(data, last), "the content ends at the position");
                    Seen::Data(stream.get(), data.to_vec(), ends)
                }
                Event::Trailers { stream, fields } => {
                    let fields = fields.iter().map(|(name, value)| (name.to_owned(), text(value)));
                    Seen::Trailers(stream.get(), fields.collect())
                }
                Event::Reset { stream, code, violation: None } => Seen::Reset(stream.get(), code.get()),
                Event::Reset { stream, code, violation: Some(_) } => Seen::Violated(stream.get(), code.get()),
                Event::WindowOpened { stream } => Seen::Opened(stream.map(StreamId::get)),
                Event::Pong { data } => Seen::Pong(data),
                Event::GoAway { code } => Seen::GoAway(code.get()),
                _ => unreachable!("no other event"),
            };
            seen.push(event);
        }
        assert!(input.is_empty());
        Ok(())
    }

    /// Passes bytes that are valid and cause no event.
    pub(crate) fn silent(&mut self, input: &[u8]) {
        assert_eq!(self.receive(input), Ok(Vec::new()));
    }

    /// Passes bytes that end the connection, and checks GOAWAY.
    pub(crate) fn fails(&mut self, input: &[u8], code: ErrorCode) {
        let error = self.receive(input).expect_err("a connection error");
        assert_eq!(error.code(), code, "{error}");
        let last = self.sent().pop().expect("GOAWAY");
        assert_eq!((last.frame_type, last.stream, last.code()), (GOAWAY, 0, code.get()), "{error}");
        assert_eq!(self.connection.streams(), 0);
        assert_eq!(self.receive(&frame(PING, 0, 0, &[0; 8])), Err(error), "the connection has ended");
        assert!(!self.connection.wants_write());
    }

    /// Passes bytes that reset an open stream.
    pub(crate) fn resets(&mut self, input: &[u8], stream: u32, code: ErrorCode) {
        let seen = self.receive(input).expect("no connection error");
        assert_eq!(seen.last(), Some(&Seen::Violated(stream, code.get())), "{seen:?}");
        self.sent_reset(stream, code);
    }

    /// Passes a head that is malformed: its stream is reset without an event.
    pub(crate) fn rejects(&mut self, input: &[u8], stream: u32, code: ErrorCode) {
        self.silent(input);
        self.sent_reset(stream, code);
    }

    fn sent_reset(&mut self, stream: u32, code: ErrorCode) {
        let sent = self.sent();
        let reset = sent.iter().rfind(|frame| frame.frame_type == RST_STREAM).expect("RST_STREAM");
        assert_eq!((reset.stream, reset.code()), (stream, code.get()));
    }

    /// Returns the frames sent since the last call.
    pub(crate) fn sent(&mut self) -> Vec<Sent> {
        self.connection.write_control(&mut self.out);
        parse(&std::mem::take(&mut self.out))
    }

    pub(crate) fn id(&self, stream: u32) -> StreamId {
        *self.ids.iter().find(|id| id.get() == stream).expect("a request was seen")
    }

    /// Opens a stream whose content follows, and discards the event.
    pub(crate) fn open(&mut self, stream: u32) -> StreamId {
        let seen = self.receive(&post(stream)).expect("a valid request");
        assert_eq!(seen, [Seen::Request(stream, "POST".into(), "/".into(), false)]);
        self.id(stream)
    }

    /// Opens streams without content.
    pub(crate) fn ask(&mut self, stream: u32) -> StreamId {
        let seen = self.receive(&get(stream)).expect("a valid request");
        assert_eq!(seen, [Seen::Request(stream, "GET".into(), "/".into(), true)]);
        self.id(stream)
    }

    pub(crate) fn head(&mut self, stream: StreamId, ends: bool) {
        let answered = self.connection.send_head(stream, 200, [], ends, &mut self.out);
        assert_eq!(answered, Ok(()));
    }

    /// Answers with content, and returns how many bytes the windows took.
    pub(crate) fn data(&mut self, stream: StreamId, data: &[u8], ends: bool) -> usize {
        self.connection.send_data(stream, data, ends, &mut self.out).expect("an open stream")
    }
}

pub(crate) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

/// Splits bytes into frames.
pub(crate) fn parse(mut bytes: &[u8]) -> Vec<Sent> {
    let mut frames = Vec::new();
    while let [a, b, c, frame_type, flags, d, e, f, g, rest @ ..] = bytes {
        let (payload, behind) = rest.split_at(u32::from_be_bytes([0, *a, *b, *c]) as usize);
        let stream = u32::from_be_bytes([*d, *e, *f, *g]);
        frames.push(Sent { frame_type: *frame_type, flags: *flags, stream, payload: payload.to_vec() });
        bytes = behind;
    }
    assert!(bytes.is_empty(), "part of a frame");
    frames
}

pub(crate) fn frame(frame_type: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend_from_slice(&[frame_type, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

pub(crate) fn setting(id: u16, value: u32) -> Vec<u8> {
    [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()
}

pub(crate) fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

pub(crate) fn rst_stream(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())
}

/// A string literal without Huffman encoding.
fn string(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    match text.len() {
        len @ 0..127 => bytes.push(len as u8),
        len => {
            bytes.push(127);
            let mut rest = len - 127;
            while rest >= 128 {
                bytes.push(rest as u8 | 128);
                rest >>= 7;
            }
            bytes.push(rest as u8);
        }
    }
    bytes.extend_from_slice(text);
    bytes
}

/// A literal field without indexing, of any bytes.
pub(crate) fn literal(name: &[u8], value: &[u8]) -> Vec<u8> {
    [&[0][..], &string(name), &string(value)].concat()
}

/// A header block of literals.
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    fields.iter().flat_map(|(name, value)| literal(name.as_bytes(), value.as_bytes())).collect()
}

pub(crate) const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "https"), (":path", "/"), (":authority", "example.com")];

pub(crate) const POST: [(&str, &str); 4] =
    [(":method", "POST"), (":scheme", "https"), (":path", "/"), (":authority", "example.com")];

/// Complete HEADERS of these fields.
pub(crate) fn headers(stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, flags | END_HEADERS, stream, &block(fields))
}

pub(crate) fn get(stream: u32) -> Vec<u8> {
    headers(stream, END_STREAM, &GET)
}

/// A request whose content follows.
pub(crate) fn post(stream: u32) -> Vec<u8> {
    headers(stream, 0, &POST)
}
