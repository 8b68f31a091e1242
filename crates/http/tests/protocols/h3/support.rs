//! A peer that writes its frames by hand.

use std::collections::HashSet;
use std::time::Duration;

use sinews_http::h3::{
    Config, Error, Event, FieldBuffer, H3Code, H3Connection, QuicStreamId, RequestTarget, StreamSignal,
};

pub(crate) const DATA: u64 = 0;
pub(crate) const HEADERS: u64 = 1;
pub(crate) const CANCEL_PUSH: u64 = 3;
pub(crate) const SETTINGS: u64 = 4;
pub(crate) const PUSH_PROMISE: u64 = 5;
pub(crate) const GOAWAY: u64 = 7;
pub(crate) const MAX_PUSH_ID: u64 = 13;

/// An event, copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SeenEvent {
    Settings,
    /// Stream, method, target.
    Request(u64, String, String),
    TooLarge(u64),
    Response(u64, u16),
    Data(u64, Vec<u8>),
    Trailers(u64, Vec<(String, String)>),
    End(u64),
    /// By the peer, with its code.
    Reset(u64, u64),
    /// For a violation by the peer, with our code.
    Violated(u64, H3Code),
    GoAway(u64),
    /// Stream and session.
    SessionStream(u64, u64),
    Draining(u64),
    SessionClosed(u64, u32, String),
}

/// A signal: whether it is a reset, the stream, the code.
pub(crate) type Signal = (bool, u64, H3Code);

/// A connection, and its peer's streams.
pub(crate) struct Side {
    pub(crate) connection: H3Connection,
    pub(crate) now: Duration,
    pub(crate) out: Vec<u8>,
    pub(crate) fields: FieldBuffer,
    opened: HashSet<u64>,
}

pub(crate) fn id(stream: u64) -> QuicStreamId {
    QuicStreamId::new(stream)
}

impl Side {
    /// A server before the first byte.
    pub(crate) fn fresh(config: Config) -> Self {
        Self::of(H3Connection::server(config))
    }

    pub(crate) fn of(connection: H3Connection) -> Self {
        let (now, opened) = (Duration::ZERO, HashSet::new());
        Self { connection, now, out: Vec::new(), fields: FieldBuffer::new(), opened }
    }

    /// A server after SETTINGS of both sides; the client's control stream is 2.
    pub(crate) fn with(config: Config) -> Self {
        let mut server = Self::fresh(config);
        assert_eq!(server.receive(2, &control(&[(0x33, 1)])), Ok(vec![SeenEvent::Settings]));
        server.connection.write_control(&mut Vec::new());
        server
    }

    pub(crate) fn new() -> Self {
        Self::with(Config::new())
    }

    /// A server with a request on stream 0 whose content follows.
    pub(crate) fn posted() -> Self {
        let mut server = Self::new();
        server.post(0);
        server
    }

    /// A client after SETTINGS of both sides; the server's control stream is 3, which permits extended CONNECT.
    pub(crate) fn client(config: Config) -> Self {
        let mut client = Self::of(H3Connection::client(config));
        assert_eq!(client.receive(3, &control(&[(8, 1), (0x33, 1)])), Ok(vec![SeenEvent::Settings]));
        client.connection.write_control(&mut Vec::new());
        client
    }

    /// A client that has sent a request on stream 0.
    pub(crate) fn asking(method: &str) -> Self {
        let mut client = Self::client(Config::new());
        let target = RequestTarget::new(method, "https", "example.com", "/");
        client.connection.send_request(id(0), &target, [], true, &mut client.out).expect("a new stream");
        client
    }

    /// Passes bytes of a stream, which is opened before.
    pub(crate) fn receive(&mut self, stream: u64, input: &[u8]) -> Result<Vec<SeenEvent>, Error> {
        let mut seen = Vec::new();
        self.receive_into(stream, input, false, &mut seen)?;
        Ok(seen)
    }

    /// Passes the last bytes of a stream.
    pub(crate) fn receive_last(&mut self, stream: u64, input: &[u8]) -> Result<Vec<SeenEvent>, Error> {
        let mut seen = Vec::new();
        self.receive_into(stream, input, true, &mut seen)?;
        Ok(seen)
    }

    pub(crate) fn open(&mut self, stream: u64) -> Result<(), Error> {
        if self.opened.insert(stream) { self.connection.open(id(stream), self.now) } else { Ok(()) }
    }

    /// Passes bytes, and appends the events, also of an input that ends the connection. Returns the rest, which a held
    /// stream leaves.
    pub(crate) fn receive_into(
        &mut self,
        stream: u64,
        mut input: &[u8],
        ends: bool,
        seen: &mut Vec<SeenEvent>,
    ) -> Result<usize, Error> {
        self.open(stream)?;
        loop {
            let before = input;
            let event = self.connection.receive(id(stream), &mut input, ends, &mut self.fields, self.now)?;
            let Some(event) = event else { break };
            if let Event::Data { data, .. } = event {
                let consumed = &before[..before.len() - input.len()];
                let last = &consumed[consumed.len() - data.len()..];
                assert!(!data.is_empty() && std::ptr::eq(data, last), "the content ends at the position");
            }
            seen.push(copied(event));
        }
        assert!(input.is_empty() || self.connection.is_held(id(stream)));
        Ok(input.len())
    }

    /// Passes bytes that are valid and cause no event.
    pub(crate) fn silent(&mut self, stream: u64, input: &[u8]) {
        assert_eq!(self.receive(stream, input), Ok(Vec::new()));
    }

    /// Passes bytes that end the connection.
    pub(crate) fn fails(&mut self, stream: u64, input: &[u8], code: H3Code) {
        let error = self.receive(stream, input).expect_err("a connection error");
        self.has_failed(error, code);
    }

    /// Passes the last bytes of a stream, which end the connection.
    pub(crate) fn fails_at_end(&mut self, stream: u64, input: &[u8], code: H3Code) {
        let error = self.receive_last(stream, input).expect_err("a connection error");
        self.has_failed(error, code);
    }

    fn has_failed(&mut self, error: Error, code: H3Code) {
        assert_eq!(error.code(), code, "{error}");
        assert_eq!((self.connection.requests(), self.connection.error()), (0, Some(error)));
        assert_eq!(self.receive(400, b""), Err(error), "the connection has ended");
        assert_eq!((self.connection.next_signal(), self.connection.wants_write()), (None, false));
    }

    /// Returns the signals since the last call.
    pub(crate) fn signals(&mut self) -> Vec<Signal> {
        let next = || self.connection.next_signal();
        std::iter::from_fn(next)
            .map(|signal| match signal {
                StreamSignal::Reset { stream, code } => (true, stream.get(), code),
                StreamSignal::StopSending { stream, code } => (false, stream.get(), code),
                _ => unreachable!("no other signal"),
            })
            .collect()
    }

    /// Passes a head that is malformed: its stream is reset without an event.
    pub(crate) fn rejects(&mut self, stream: u64, input: &[u8], code: H3Code, what: &str) {
        assert_eq!(self.receive_last(stream, input), Ok(Vec::new()), "{what}");
        assert_eq!(self.signals(), [(true, stream, code), (false, stream, code)], "{what}");
    }

    /// Opens a request whose content follows.
    pub(crate) fn post(&mut self, stream: u64) -> QuicStreamId {
        let seen = self.receive(stream, &headers(&POST)).expect("a valid request");
        assert_eq!(seen, [SeenEvent::Request(stream, "POST".into(), "/".into())]);
        id(stream)
    }

    /// Opens a request without content.
    pub(crate) fn ask(&mut self, stream: u64) -> QuicStreamId {
        let seen = self.receive_last(stream, &headers(&GET)).expect("a valid request");
        assert_eq!(seen, [SeenEvent::Request(stream, "GET".into(), "/".into()), SeenEvent::End(stream)]);
        id(stream)
    }

    pub(crate) fn head(&mut self, stream: u64, status: u16, ends: bool) {
        let answered = self.connection.send_head(id(stream), status, [], ends, &mut self.out);
        assert_eq!(answered, Ok(()));
    }

    /// Returns the bytes sent since the last call.
    pub(crate) fn sent(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }
}

pub(crate) fn copied(event: Event<'_>) -> SeenEvent {
    match event {
        Event::Settings { .. } => SeenEvent::Settings,
        Event::Request { stream, head } => {
            SeenEvent::Request(stream.get(), head.method().into(), head.target().unwrap_or_default().into())
        }
        Event::HeadTooLarge { stream } => SeenEvent::TooLarge(stream.get()),
        Event::Response { stream, head } => SeenEvent::Response(stream.get(), head.status()),
        Event::Data { stream, data } => SeenEvent::Data(stream.get(), data.to_vec()),
        Event::Trailers { stream, fields } => {
            let fields = fields.iter().map(|(name, value)| (name.to_owned(), text(value)));
            SeenEvent::Trailers(stream.get(), fields.collect())
        }
        Event::End { stream } => SeenEvent::End(stream.get()),
        Event::Reset { stream, code, violation: None } => SeenEvent::Reset(stream.get(), code.get()),
        Event::Reset { stream, code, .. } => SeenEvent::Violated(stream.get(), code),
        Event::GoAway { id } => SeenEvent::GoAway(id),
        Event::SessionStream { stream, session } => SeenEvent::SessionStream(stream.get(), session.get()),
        Event::SessionDraining { session } => SeenEvent::Draining(session.get()),
        Event::SessionClosed { session, code, reason } => {
            SeenEvent::SessionClosed(session.get(), code, reason.to_owned())
        }
        _ => unreachable!("no other event"),
    }
}

pub(crate) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

/// An integer of QUIC in its shortest form.
pub(crate) fn varint(value: u64) -> Vec<u8> {
    match value {
        0..0x40 => vec![value as u8],
        0x40..0x4000 => (value as u16 | 0x4000).to_be_bytes().to_vec(),
        0x4000..0x4000_0000 => (value as u32 | 0x8000_0000).to_be_bytes().to_vec(),
        _ => (value | 0xc000_0000_0000_0000).to_be_bytes().to_vec(),
    }
}

pub(crate) fn frame(frame_type: u64, payload: &[u8]) -> Vec<u8> {
    [&varint(frame_type)[..], &varint(payload.len() as u64), payload].concat()
}

pub(crate) fn settings(settings: &[(u64, u64)]) -> Vec<u8> {
    let payload: Vec<u8> =
        settings.iter().flat_map(|(id, value)| [varint(*id), varint(*value)].concat()).collect();
    frame(SETTINGS, &payload)
}

/// The beginning of a control stream.
pub(crate) fn control(pairs: &[(u64, u64)]) -> Vec<u8> {
    [vec![0], settings(pairs)].concat()
}

/// An integer of QPACK in a first byte with a pattern.
fn integer(value: usize, prefix: u32, pattern: u8) -> Vec<u8> {
    let max = (1 << prefix) - 1;
    if value < max {
        return vec![pattern | value as u8];
    }
    let (mut bytes, mut rest) = (vec![pattern | max as u8], value - max);
    while rest >= 128 {
        bytes.push(rest as u8 | 128);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes
}

/// A literal field with a literal name, of any bytes, without Huffman coding.
pub(crate) fn literal(name: &[u8], value: &[u8]) -> Vec<u8> {
    [&integer(name.len(), 3, 0x20)[..], name, &integer(value.len(), 7, 0), value].concat()
}

/// A field section of literals.
pub(crate) fn section(fields: &[(&str, &str)]) -> Vec<u8> {
    let fields = fields.iter().flat_map(|(name, value)| literal(name.as_bytes(), value.as_bytes()));
    [0, 0].into_iter().chain(fields).collect()
}

pub(crate) fn headers(fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, &section(fields))
}

pub(crate) const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "https"), (":path", "/"), (":authority", "example.com")];

pub(crate) const POST: [(&str, &str); 4] =
    [(":method", "POST"), (":scheme", "https"), (":path", "/"), (":authority", "example.com")];

/// An extended CONNECT request.
pub(crate) fn connect(protocol: &str) -> Vec<u8> {
    headers(&[
        (":method", "CONNECT"),
        (":protocol", protocol),
        (":scheme", "https"),
        (":path", "/chat"),
        (":authority", "example.com"),
    ])
}
