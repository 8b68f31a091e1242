//! HTTP/3: a reader of whole streams, written from RFC 9114, and the same events for any split of the input.

use std::collections::HashSet;
use std::time::Duration;

use sinews_http::h3::{Config, Event, FieldBuffer, H3Connection, QuicStreamId};

use crate::input::{Chunks, Input};

/// GET https://a/, in indexes of the static table and one literal.
const REQUEST: &[u8] = &[0, 0, 0xd1, 0xd7, 0xc1, 0x50, 1, b'a'];
/// POST with a Content-Length of 7.
const LENGTH_7: &[u8] = &[0, 0, 0xd4, 0xd7, 0xc1, 0x50, 1, b'a', 0x54, 1, b'7'];
/// CONNECT for WebTransport.
const SESSION: &[u8] = b"\0\0\xcf\x27\x02:protocol\x0cwebtransport\xd7\xc1\x50\x01a";
/// A trailer field: accept: */*.
const TRAILERS: &[u8] = &[0, 0, 0xdd];
/// A reference to the dynamic table.
const DYNAMIC: &[u8] = &[0, 0, 0x80];

/// Fuzz of the machine for HTTP/3. The first byte selects how the rest becomes input: one stream of frames that the reader
/// understands, or many streams of any bytes.
///
/// # Panics
///
/// If the machine and the reader differ, or events depend on the split of the input.
pub fn http3(data: &[u8]) {
    let mut input = Input::new(data);
    let flags = input.byte();
    let chunks = Chunks::read(&mut input);
    let steps = if flags & 1 == 0 {
        let (stream, wire) = if flags & 2 == 0 { (0, request(&mut input)) } else { (2, control(&mut input)) };
        let ends = flags & 4 != 0;
        let expected = if stream == 0 { read_request(&wire, ends) } else { read_control(&wire, ends) };
        let steps = vec![(stream, wire, ends)];
        let (events, error) = run(&steps, &mut Chunks::whole());
        assert_eq!((events, error), expected, "{steps:x?}");
        steps
    } else {
        streams(&mut input)
    };
    let whole = run(&steps, &mut Chunks::whole());
    assert_eq!(run(&steps, &mut Chunks::bytes()), whole, "split into bytes");
    assert_eq!(run(&steps, &mut chunks.clone()), whole, "split into chunks");
}

/// Bytes of a stream, and whether it ends after them.
type Step = (u64, Vec<u8>, bool);

/// Events as text with joined content, and the code of a connection error.
type Outcome = (Vec<String>, Option<u64>);

/// Builds streams of any bytes.
fn streams(input: &mut Input<'_>) -> Vec<Step> {
    let mut steps = Vec::new();
    while !input.is_empty() {
        let stream = input.below(24) as u64;
        let mut wire = match input.below(8) {
            0 => control(input),
            1 => [&[0x40, 0x54, 0][..], b"bytes"].concat(),
            2 => [&[0x40, 0x41, 0][..], b"bytes"].concat(),
            3 => vec![input.below(4) as u8],
            _ => request(input),
        };
        let len = input.below(30);
        if input.flag() {
            wire.extend_from_slice(input.take(len));
        }
        steps.push((stream, wire, input.flag()));
    }
    steps
}

/// Appends an integer in a form that may be longer than necessary.
fn integer(value: u64, input: &mut Input<'_>, wire: &mut Vec<u8>) {
    let shortest = match value {
        0..0x40 => 0,
        0x40..0x4000 => 1,
        0x4000..0x4000_0000 => 2,
        _ => 3,
    };
    let bits = (shortest + input.below(8) / 7).min(3) as u8;
    let bytes = value.to_be_bytes();
    let at = wire.len();
    wire.extend_from_slice(&bytes[8 - (1 << bits)..]);
    wire[at] |= bits << 6;
}

/// Builds frames of a request.
fn request(input: &mut Input<'_>) -> Vec<u8> {
    let mut wire = Vec::new();
    for _ in 0..input.below(8) {
        let (frame_type, payload): (u64, &[u8]) = match input.below(12) {
            0..3 => (1, REQUEST),
            3 => (1, LENGTH_7),
            4 => (1, SESSION),
            5 => (1, TRAILERS),
            6 => (1, DYNAMIC),
            7..10 => {
                let len = input.below(9);
                (0, input.take(len))
            }
            10 => (0x21, b"grease"),
            _ => (input.below(16) as u64, &[0]),
        };
        integer(frame_type, input, &mut wire);
        integer(payload.len() as u64, input, &mut wire);
        let cut = if input.below(16) == 15 { payload.len() / 2 } else { payload.len() };
        wire.extend_from_slice(&payload[..cut]);
        if cut < payload.len() {
            break;
        }
    }
    wire
}

/// Builds a control stream.
fn control(input: &mut Input<'_>) -> Vec<u8> {
    let mut wire = Vec::new();
    integer(if input.below(8) == 7 { input.below(5) as u64 } else { 0 }, input, &mut wire);
    for number in 0..input.below(6) {
        let frame_type = if number == 0 && input.below(8) < 7 {
            4
        } else {
            [0, 1, 2, 3, 4, 5, 7, 13, 0x21][input.below(9)]
        };
        let mut payload = Vec::new();
        for _ in 0..if frame_type == 4 { 2 * input.below(5) } else { 1 } {
            integer(input.below(10) as u64, input, &mut payload);
        }
        if input.below(16) == 15 {
            payload.push(0x40);
        }
        integer(frame_type, input, &mut wire);
        integer(payload.len() as u64, input, &mut wire);
        wire.extend_from_slice(&payload);
    }
    wire
}

/// Cuts an integer off.
fn cut_integer(bytes: &mut &[u8]) -> Option<u64> {
    let len = 1 << (bytes.first()? >> 6);
    let (number, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    let value = number.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
    Some(value & (u64::MAX >> (66 - 8 * len as u32)))
}

const FRAME_UNEXPECTED: u64 = 0x105;
const FRAME_ERROR: u64 = 0x106;

/// Reads a request stream as a whole.
fn read_request(wire: &[u8], ends: bool) -> Outcome {
    let mut message = Message::default();
    let error = message.read(wire, ends).err();
    let Message { mut events, content, .. } = message;
    let data = (!content.is_empty()).then(|| format!("data 0 {content:?}"));
    // Content is followed by the end of the message only.
    let at = events.iter().position(|event| !event.starts_with("request")).unwrap_or(events.len());
    events.splice(at..at, data);
    (events, error)
}

#[derive(Default)]
struct Message {
    events: Vec<String>,
    content: Vec<u8>,
    has_head: bool,
    has_trailers: bool,
    /// Rest of the declared length.
    left: Option<usize>,
}

/// The stream is over for the reader: it is cut, or the machine rejects the message.
struct Over;

impl Message {
    /// Reads all frames, or up to the code of a connection error.
    fn read(&mut self, mut wire: &[u8], ends: bool) -> Result<(), u64> {
        let cut = if ends { Err(FRAME_ERROR) } else { Ok(()) };
        while !wire.is_empty() {
            let Some(frame_type) = cut_integer(&mut wire) else { return cut };
            let is_valid = match frame_type {
                0 => self.has_head && !self.has_trailers,
                1 => !self.has_trailers,
                2..=9 | 13 => false,
                _ => true,
            };
            if !is_valid {
                return Err(FRAME_UNEXPECTED);
            }
            let Some(len) = cut_integer(&mut wire) else { return cut };
            let len = len as usize;
            if frame_type == 0 && self.charge(len).is_err() {
                return Ok(());
            }
            let available = len.min(wire.len());
            let (payload, rest) = wire.split_at(available);
            if frame_type == 0 {
                self.content.extend_from_slice(payload);
            }
            if available < len {
                return cut;
            }
            wire = rest;
            if frame_type == 1 {
                if payload == DYNAMIC || payload.len() < 2 {
                    return Err(0x200);
                }
                if self.section(payload).is_err() {
                    return Ok(());
                }
            }
        }
        if ends && self.has_head {
            let is_short = self.left.is_some_and(|left| left > 0);
            self.events.push(if is_short { "violated 0 270".into() } else { "end 0".into() });
        }
        Ok(())
    }

    fn violated(&mut self) -> Result<(), Over> {
        self.events.push("violated 0 270".into());
        Err(Over)
    }

    fn charge(&mut self, len: usize) -> Result<(), Over> {
        match &mut self.left {
            Some(left) if *left < len => self.violated(),
            Some(left) => {
                *left -= len;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn section(&mut self, section: &[u8]) -> Result<(), Over> {
        if self.has_head {
            if self.left.is_some_and(|left| left > 0) || section != TRAILERS {
                return self.violated();
            }
            self.has_trailers = true;
            self.events.push("trailers 0 accept".into());
            return Ok(());
        }
        let method = match section {
            REQUEST => "GET",
            LENGTH_7 => "POST",
            // Malformed, without an event: trailers, and CONNECT without the setting.
            _ => return Err(Over),
        };
        self.left = (method == "POST").then_some(7);
        self.has_head = true;
        self.events.push(format!("request 0 {method}"));
        Ok(())
    }
}

/// Reads a control stream as a whole.
fn read_control(mut wire: &[u8], ends: bool) -> Outcome {
    let closed = ends.then_some(0x104);
    let mut events = Vec::new();
    match cut_integer(&mut wire) {
        None | Some(4..) => return (events, None),
        Some(1) => return (events, Some(0x103)),
        Some(2) => return (events, if wire.iter().any(|byte| *byte != 0x20) { Some(0x201) } else { closed }),
        Some(3) => return (events, read_decoder_stream(wire).err().or(closed)),
        _ => {}
    }
    let (mut push, mut go_away) = (0, u64::MAX);
    while let Some(frame_type) = cut_integer(&mut wire) {
        let error = match (frame_type, events.is_empty()) {
            (2 | 6 | 8 | 9, _) => Some(FRAME_UNEXPECTED),
            (4, true) => None,
            (_, true) => Some(0x10a),
            (0 | 1 | 4 | 5, false) => Some(FRAME_UNEXPECTED),
            _ => None,
        };
        let Some(len) = (if error.is_some() { None } else { cut_integer(&mut wire) }) else {
            return (events, error.or(closed));
        };
        // Frames are whole here, and short.
        let Some((mut payload, rest)) = wire.split_at_checked(len as usize) else { return (events, closed) };
        wire = rest;
        match frame_type {
            4 => {
                if let Err(error) = read_settings(payload) {
                    return (events, Some(error));
                }
                events.push("settings".into());
            }
            3 | 7 | 13 => {
                let number = if payload.len() <= 8 { cut_integer(&mut payload) } else { None };
                let Some(number) = number.filter(|_| payload.is_empty()) else {
                    return (events, Some(FRAME_ERROR));
                };
                let is_valid = match frame_type {
                    3 => false,
                    7 => number <= go_away,
                    _ => number >= push,
                };
                if !is_valid {
                    return (events, Some(0x108));
                }
                if frame_type == 7 {
                    go_away = number;
                    events.push(format!("goaway {number}"));
                } else {
                    push = number;
                }
            }
            _ => {}
        }
    }
    (events, closed)
}

fn read_settings(mut payload: &[u8]) -> Result<(), u64> {
    let mut seen = HashSet::new();
    while !payload.is_empty() {
        let id = cut_integer(&mut payload).ok_or(FRAME_ERROR)?;
        if !seen.insert(id) {
            return Err(0x109);
        }
        let value = cut_integer(&mut payload).ok_or(FRAME_ERROR)?;
        if matches!(id, 0 | 2..=5) || id == 8 && value > 1 {
            return Err(0x109);
        }
    }
    Ok(())
}

fn read_decoder_stream(mut wire: &[u8]) -> Result<(), u64> {
    while let Some((first, rest)) = wire.split_first() {
        wire = rest;
        if first >> 6 != 1 {
            return Err(0x202);
        }
        if first & 0x3f == 0x3f {
            // An identifier of 62 bits has at most nine bytes behind its prefix.
            let last = wire.iter().position(|byte| byte & 0x80 == 0).unwrap_or(wire.len());
            if last > 8 {
                return Err(0x202);
            }
            wire = wire.get(last + 1..).unwrap_or_default();
        }
    }
    Ok(())
}

/// Passes streams to a server without settings of extensions if there is one, else with them.
fn run(steps: &[Step], chunks: &mut Chunks) -> Outcome {
    let config = if steps.len() == 1 { Config::new() } else { Config::new().with_max_sessions(2) };
    let mut connection = H3Connection::server(config);
    let mut fields = FieldBuffer::new();
    let mut log = Log::default();
    let mut opened = HashSet::new();
    for (stream, wire, ends) in steps {
        let (stream, mut rest) = (QuicStreamId::new(*stream), &wire[..]);
        if opened.insert(stream)
            && let Err(error) = connection.open(stream, Duration::ZERO)
        {
            return log.finish(Some(error.code().get()));
        }
        loop {
            let mut chunk = chunks.cut(&mut rest);
            let ends = *ends && rest.is_empty();
            loop {
                match connection.receive(stream, &mut chunk, ends, &mut fields, Duration::ZERO) {
                    Ok(Some(event)) => log.push(&event),
                    Ok(None) => break,
                    Err(error) => return log.finish(Some(error.code().get())),
                }
            }
            if rest.is_empty() || !chunk.is_empty() {
                break;
            }
        }
        // A session is accepted once its request has arrived.
        let _ = connection.send_head(stream, 200, [], false, &mut Vec::new());
        while let Some(signal) = connection.next_signal() {
            if steps.len() > 1 {
                log.line(format!("{signal:?}"));
            }
        }
    }
    log.finish(None)
}

/// Events as text, with joined content.
#[derive(Default)]
struct Log {
    lines: Vec<String>,
    content: Option<(u64, Vec<u8>)>,
}

impl Log {
    fn line(&mut self, line: String) {
        self.flush();
        self.lines.push(line);
    }

    fn flush(&mut self) {
        let content = self.content.take().map(|(stream, content)| format!("data {stream} {content:?}"));
        self.lines.extend(content);
    }

    fn push(&mut self, event: &Event<'_>) {
        let line = match event {
            Event::Data { stream, data } => {
                match &mut self.content {
                    Some((last, content)) if *last == stream.get() => content.extend_from_slice(data),
                    _ => {
                        self.flush();
                        self.content = Some((stream.get(), data.to_vec()));
                    }
                }
                return;
            }
            Event::Settings { .. } => "settings".to_owned(),
            Event::Request { stream, head } => format!("request {} {}", stream.get(), head.method()),
            Event::Trailers { stream, fields } => {
                let names: Vec<&str> = fields.iter().map(|(name, _)| name).collect();
                format!("trailers {} {}", stream.get(), names.join(" "))
            }
            Event::End { stream } => format!("end {}", stream.get()),
            Event::Reset { stream, code, violation: Some(_) } => {
                format!("violated {} {}", stream.get(), code.get())
            }
            Event::GoAway { id } => format!("goaway {id}"),
            event => format!("{event:?}"),
        };
        self.line(line);
    }

    fn finish(mut self, error: Option<u64>) -> Outcome {
        self.flush();
        (self.lines, error)
    }
}
