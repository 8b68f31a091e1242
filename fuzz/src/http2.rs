//! HTTP/2: a ledger of all windows, written from RFC 9113 section 6.9, and the same events for any split of the input.

use std::collections::HashMap;
use std::time::Duration;

use sinews_http::h2::{Config, Event, FieldBuffer, H2Connection, PREFACE, RequestTarget, StreamId};

use crate::input::{Chunks, Input};

/// Bytes of a response, more than a window.
static BODY: [u8; 70_000] = [7; 70_000];

/// Fuzz of the machine for HTTP/2. The first byte selects settings, the second how the rest becomes input: as is, or as
/// decisions to build frames.
///
/// # Panics
///
/// If content exceeds a window of either side unnoticed, an output is no sequence of frames, or events depend on the
/// split of the input.
pub fn http2(data: &[u8]) {
    let mut input = Input::new(data);
    let flags = input.byte();
    let config = Config::new()
        .with_extended_connect(flags & 1 != 0)
        .with_max_streams(if flags & 2 == 0 { 128 } else { 2 })
        .with_stream_window(if flags & 4 == 0 { 65_535 } else { 500 })
        .with_connection_window(if flags & 8 == 0 { 1 << 20 } else { 65_535 })
        .with_header_table_size(if flags & 16 == 0 { 4096 } else { 60 });
    let mut chunks = Chunks::read(&mut input);
    let wire = if input.flag() { input.rest().to_vec() } else { frames(&mut input) };
    let greeting =
        if flags & 32 == 0 { [&PREFACE[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat() } else { Vec::new() };
    let wire = [greeting, wire].concat();
    for new in [H2Connection::server, client] {
        let whole = events(&wire, new(config), &mut Chunks::whole());
        assert_eq!(events(&wire, new(config), &mut Chunks::bytes()), whole, "split into bytes");
        assert_eq!(events(&wire, new(config), &mut chunks.clone()), whole, "split into chunks");
    }
    Exchange::new(config).run(&wire, &mut chunks);
}

/// A client that has sent requests. The preface of the input makes its connection fail, so that the flag decides.
fn client(config: Config) -> H2Connection {
    let mut connection = H2Connection::client(config);
    let mut out = Vec::new();
    for method in ["GET", "POST", "HEAD"] {
        let target = RequestTarget::new(method, "https", "a", "/");
        connection.send_request(&target, [("a", "b")], method == "GET", &mut out).expect("no limit is known");
    }
    connection
}

/// Builds frames from decisions.
fn frames(input: &mut Input<'_>) -> Vec<u8> {
    const REQUEST: &[u8] = &[0x82, 0x87, 0x84, 0x41, 1, b'a'];
    const RESPONSE: &[u8] = &[0x88, 0x0f, 0x0d, 1, b'5'];
    const TUNNEL: &[u8] = b"\x02\x07CONNECT\x00\x09:protocol\x09websocket\x87\x84\x01\x01a";
    let (mut wire, mut next) = (Vec::new(), 1);
    while !input.is_empty() {
        let stream = 1 + 2 * input.below(4) as u32;
        let (frame_type, flags, stream, payload) = match input.below(12) {
            0 | 1 => {
                next += 2;
                (1, 4 | input.byte() & 1, next - 2, REQUEST.to_vec())
            }
            2 => {
                next += 2;
                (1, 4, next - 2, TUNNEL.to_vec())
            }
            3 => (0, input.byte() & 9, stream, vec![1; input.below(20_000)]),
            4 => (8, 0, stream, (input.below(65_536) as u32 * 40_000).to_be_bytes().to_vec()),
            5 => (8, 0, 0, (input.below(65_536) as u32).to_be_bytes().to_vec()),
            6 => (3, 0, stream, vec![0, 0, 0, 8]),
            7 => {
                let value = (input.below(65_536) as u32 * 40_000).to_be_bytes();
                (4, 0, 0, [&[0, [1, 4, 5, 8][input.below(4)]][..], &value].concat())
            }
            8 => (4, 1, 0, Vec::new()),
            9 if input.flag() => (1, 4 | input.byte() & 1, stream, RESPONSE.to_vec()),
            9 => {
                let len = input.below(300);
                (1, input.byte() & 0x2d, stream, input.take(len).to_vec())
            }
            10 => {
                let len = input.below(300);
                (9, input.byte() & 4, next.max(3) - 2, input.take(len).to_vec())
            }
            _ => {
                let len = input.below(20);
                (input.byte() % 11, input.byte(), stream - 1, input.take(len).to_vec())
            }
        };
        wire.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
        wire.extend_from_slice(&[frame_type, flags]);
        wire.extend_from_slice(&u32::to_be_bytes(stream));
        wire.extend_from_slice(&payload);
    }
    wire
}

/// Events as text, with joined content; and the answers.
fn events(wire: &[u8], mut connection: H2Connection, chunks: &mut Chunks) -> (Vec<String>, Vec<u8>) {
    let mut fields = FieldBuffer::new();
    let mut found = Vec::<String>::new();
    let mut content: Option<(u32, Vec<u8>, bool)> = None;
    let mut rest = wire;
    while !rest.is_empty() {
        let mut chunk = chunks.cut(&mut rest);
        loop {
            let event = connection.receive(&mut chunk, &mut fields, Duration::ZERO);
            if let Ok(Some(Event::Data { stream, data, ends })) = event {
                let same = content.as_mut().filter(|(last, ..)| *last == stream.get());
                if let Some((_, bytes, end)) = same {
                    bytes.extend_from_slice(data);
                    *end |= ends;
                } else {
                    found.extend(
                        content.replace((stream.get(), data.to_vec(), ends)).map(|c| format!("{c:?}")),
                    );
                }
                continue;
            }
            if !matches!(event, Ok(None)) {
                found.extend(content.take().map(|content| format!("{content:?}")));
            }
            match event {
                Ok(Some(Event::Request { stream, head, ends })) => {
                    let fields: Vec<_> = head.fields().iter().collect();
                    let owned = head.to_owned_head();
                    let length = head.content_length();
                    found.push(format!(
                        "{stream:?} {head:?} {fields:?} {length:?} {ends} {:?}",
                        owned.is_ok()
                    ));
                }
                Ok(Some(Event::Response { stream, head, ends })) => {
                    let fields: Vec<_> = head.fields().iter().collect();
                    found.push(format!("{stream:?} {head:?} {fields:?} {ends}"));
                }
                Ok(Some(event)) => found.push(format!("{event:?}")),
                Ok(None) => break,
                Err(error) => {
                    found.push(error.to_string());
                    rest = &[];
                    break;
                }
            }
        }
    }
    found.extend(content.map(|content| format!("{content:?}")));
    let mut out = Vec::new();
    connection.write_control(&mut out);
    (found, out)
}

/// Windows of one direction.
#[derive(Debug)]
struct Windows {
    initial: i64,
    connection: i64,
    /// Credits minus content.
    streams: HashMap<u32, i64>,
}

impl Windows {
    fn charge(&mut self, stream: u32, bytes: usize) {
        let left = self.streams.entry(stream).or_default();
        *left -= bytes as i64;
        self.connection -= bytes as i64;
        assert!(bytes == 0 || self.connection >= 0, "content exceeds the window of the connection");
        assert!(bytes == 0 || self.initial + *left >= 0, "content exceeds the window of stream {stream}");
    }

    fn credit(&mut self, stream: u32, bytes: u32) {
        let left = if stream == 0 { &mut self.connection } else { self.streams.entry(stream).or_default() };
        *left += i64::from(bytes);
    }
}

/// A server that answers each request, and a ledger of both directions.
struct Exchange {
    connection: H2Connection,
    fields: FieldBuffer,
    open: Vec<StreamId>,
    to_client: Windows,
    to_server: Windows,
}

impl Exchange {
    fn new(config: Config) -> Self {
        let windows = |initial| Windows { initial, connection: 65_535, streams: HashMap::new() };
        Self {
            connection: H2Connection::server(config),
            fields: FieldBuffer::new(),
            open: Vec::new(),
            to_client: windows(65_535),
            // The window of SETTINGS binds from their acknowledgement on, and is at most the default here.
            to_server: windows(65_535),
        }
    }

    fn run(&mut self, wire: &[u8], chunks: &mut Chunks) {
        // Credits of the client count before the machine can use them.
        let mut rest = wire.strip_prefix(&PREFACE[..]).unwrap_or_default();
        let mut head = &wire[..wire.len() - rest.len()];
        if self.feed(&mut head).is_err() {
            return;
        }
        while let Some((frame, behind)) = cut_frame(rest) {
            rest = behind;
            self.client_sends(frame);
            let mut frame = frame;
            while !frame.is_empty() {
                let mut chunk = chunks.cut(&mut frame);
                if self.feed(&mut chunk).is_err() {
                    return;
                }
            }
        }
    }

    /// Adds the credits of a client's frame to the ledger.
    fn client_sends(&mut self, frame: &[u8]) {
        let (frame_type, flags, stream) = head_of(frame);
        match frame_type {
            8 if frame.len() == 13 => self.to_client.credit(stream, number(&frame[9..]) & 0x7fff_ffff),
            4 if stream == 0 && flags & 1 == 0 => {
                for setting in frame[9..].chunks(6).filter(|setting| setting.starts_with(&[0, 4])) {
                    self.to_client.initial = i64::from(number(setting.get(2..).unwrap_or_default()));
                }
            }
            _ => {}
        }
    }

    /// Passes bytes to the server, which answers each event.
    fn feed(&mut self, input: &mut &[u8]) -> Result<(), ()> {
        while let Some(event) =
            self.connection.receive(input, &mut self.fields, Duration::ZERO).map_err(|_| ())?
        {
            let mut out = Vec::new();
            match event {
                Event::Request { stream, .. } => {
                    self.open.push(stream);
                    let headed = self.connection.send_head(stream, 200, [("a", "b")], false, &mut out);
                    assert_eq!(headed, Ok(()));
                }
                Event::Data { stream, data, .. } => {
                    self.to_server.charge(stream.get(), data.len());
                    self.connection.release(stream, data.len());
                }
                Event::Reset { stream, .. } => {
                    assert!(!self.connection.is_open(stream));
                    self.open.retain(|open| *open != stream);
                }
                _ => {}
            }
            self.open.retain(|stream| {
                let ends = stream.get() % 4 == 1;
                let sent = self.connection.send_data(*stream, &BODY, ends, &mut out);
                sent.is_ok_and(|sent| sent < BODY.len())
            });
            self.server_sends(&mut out);
        }
        let mut out = Vec::new();
        self.server_sends(&mut out);
        Ok(())
    }

    /// Checks the frames of the server against the ledger.
    fn server_sends(&mut self, out: &mut Vec<u8>) {
        self.connection.write_control(out);
        let mut rest = &out[..];
        while !rest.is_empty() {
            let (frame, behind) = cut_frame(rest).expect("whole frames");
            rest = behind;
            let (frame_type, _, stream) = head_of(frame);
            match frame_type {
                0 => self.to_client.charge(stream, frame.len() - 9),
                8 => self.to_server.credit(stream, number(&frame[9..])),
                _ => {}
            }
        }
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// Type, flags and stream.
fn head_of(frame: &[u8]) -> (u8, u8, u32) {
    (frame[3], frame[4], number(&frame[5..]) & 0x7fff_ffff)
}

/// Cuts the first frame off.
fn cut_frame(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = number(&[0, *bytes.first()?, *bytes.get(1)?, *bytes.get(2)?]) as usize;
    bytes.split_at_checked(9 + len)
}
