//! Reads a streaming response's body: chunks, lines, and Server-Sent Events by the rules of the HTML standard.

use std::collections::HashMap;
use std::io::Read;

/// A response whose body is read as it arrives.
#[derive(Debug)]
pub struct BodyReader<R> {
    transport: R,
    /// Received bytes that are not decoded yet.
    wire: Vec<u8>,
    head: String,
    is_chunked: bool,
    /// Decoded body bytes that are not returned yet.
    body: Vec<u8>,
    ended: bool,
    /// The last event's `id`, which a browser sends when it connects again.
    last_id: String,
}

/// An event as a browser dispatches it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// The type; `message` without a field `event`.
    pub kind: String,
    /// The lines from the `data` fields.
    pub data: String,
    /// The last event id at this event.
    pub id: String,
}

impl SseEvent {
    /// An event without an id, for comparison.
    #[must_use]
    pub fn new(kind: &str, data: &str) -> Self {
        Self { kind: kind.to_owned(), data: data.to_owned(), id: String::new() }
    }
}

impl<R: Read> BodyReader<R> {
    /// Reads the head.
    pub fn new(transport: R) -> Self {
        let mut this = Self {
            transport,
            wire: Vec::new(),
            head: String::new(),
            is_chunked: false,
            body: Vec::new(),
            ended: false,
            last_id: String::new(),
        };
        let end = loop {
            if let Some(end) = find(&this.wire, b"\r\n\r\n") {
                break end + 4;
            }
            assert!(this.receive(), "half a head: {:?}", String::from_utf8_lossy(&this.wire));
        };
        let head: Vec<u8> = this.wire.drain(..end).collect();
        this.head = String::from_utf8(head).expect("a head in ASCII");
        this.is_chunked = this.header("transfer-encoding") == Some("chunked");
        this
    }

    /// The status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.head.get("HTTP/1.1 ".len()..).and_then(|rest| rest[..3].parse().ok()).expect("a status")
    }

    /// Returns a header's value.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The transport, if no received byte is left.
    ///
    /// # Panics
    /// If bytes follow the body.
    pub fn into_transport(self) -> R {
        assert!(self.wire.is_empty(), "{:?}", String::from_utf8_lossy(&self.wire));
        self.transport
    }

    /// Whether the body has ended in order: by its last chunk, or by the transport's end if it has no chunks.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns the rest of the body.
    pub fn rest(&mut self) -> String {
        while self.decode() {}
        String::from_utf8(std::mem::take(&mut self.body)).expect("UTF-8")
    }

    /// The next bytes up to and including `end`; `None` if the body ends before.
    pub fn until(&mut self, end: &str) -> Option<String> {
        loop {
            if let Some(at) = find(&self.body, end.as_bytes()) {
                let bytes: Vec<u8> = self.body.drain(..at + end.len()).collect();
                return Some(String::from_utf8(bytes).expect("UTF-8"));
            }
            if !self.decode() {
                return None;
            }
        }
    }

    /// The next line, without its end.
    pub fn line(&mut self) -> Option<String> {
        self.until("\n").map(|line| line.trim_end_matches('\n').to_owned())
    }

    /// Returns the next event that a browser dispatches; `None` at the body's end.
    pub fn event(&mut self) -> Option<SseEvent> {
        loop {
            let block = self.until("\n\n")?;
            if let Some(event) = dispatch(&block, &mut self.last_id) {
                return Some(event);
            }
        }
    }

    /// Decodes more of the body; `false` at its end.
    fn decode(&mut self) -> bool {
        while !self.ended {
            if !self.is_chunked {
                // Bytes that are here must not wait for the next ones.
                self.ended = self.wire.is_empty() && !self.receive();
                self.body.append(&mut self.wire);
                return !self.ended;
            }
            let Some(line) = find(&self.wire, b"\r\n") else {
                assert!(self.receive(), "the body ends without its last chunk");
                continue;
            };
            let size = std::str::from_utf8(&self.wire[..line]).expect("ASCII");
            let size = usize::from_str_radix(size, 16).expect("the size of a chunk");
            while self.wire.len() < line + 2 + size + 2 {
                assert!(self.receive(), "the body ends within a chunk");
            }
            let chunk: Vec<u8> = self.wire.drain(..line + 2 + size + 2).collect();
            assert!(chunk.ends_with(b"\r\n"));
            self.body.extend_from_slice(&chunk[line + 2..line + 2 + size]);
            self.ended = size == 0;
            return !self.ended;
        }
        false
    }

    fn receive(&mut self) -> bool {
        let mut chunk = [0; 16 << 10];
        let count = self.transport.read(&mut chunk).expect("the transport works");
        self.wire.extend_from_slice(&chunk[..count]);
        count > 0
    }
}

/// The event of a block of lines, if a browser dispatches one. A field `id` becomes the last id.
fn dispatch(block: &str, last_id: &mut String) -> Option<SseEvent> {
    let mut fields: HashMap<&str, Vec<&str>> = HashMap::new();
    for line in block.split(['\n', '\r']).filter(|line| !line.starts_with(':') && !line.is_empty()) {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        fields.entry(name).or_default().push(value.strip_prefix(' ').unwrap_or(value));
    }
    if let Some(id) = fields.get("id").and_then(|ids| ids.last()) {
        (*id).clone_into(last_id);
    }
    let data = fields.get("data")?.join("\n");
    let kind = fields.get("event").and_then(|kinds| kinds.last()).unwrap_or(&"message");
    Some(SseEvent { kind: (*kind).to_owned(), data, id: last_id.clone() })
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}
