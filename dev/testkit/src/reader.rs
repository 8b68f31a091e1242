//! A strict reader of a machine's output, without any code from the machine.

use sinews_proto::{Kind, Role};

use crate::Codec;

/// A frame or message from a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A message, assembled and inflated.
    Message(Kind, Vec<u8>),
    /// A ping.
    Ping(Vec<u8>),
    /// A pong.
    Pong(Vec<u8>),
    /// A Close with its code, if it had one, and its reason.
    Close(Option<u16>, String),
}

impl Reply {
    /// A text message.
    pub fn text(payload: impl AsRef<[u8]>) -> Self {
        Self::Message(Kind::Text, payload.as_ref().to_vec())
    }

    /// A binary message.
    pub fn binary(payload: impl AsRef<[u8]>) -> Self {
        Self::Message(Kind::Binary, payload.as_ref().to_vec())
    }

    /// The code, if this is a Close with one.
    #[must_use]
    pub fn close_code(&self) -> Option<u16> {
        match self {
            Self::Close(code, _) => *code,
            _ => None,
        }
    }
}

/// A frame from the wire, unmasked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawFrame {
    /// FIN.
    pub fin: bool,
    /// The reserved bits; 4 is RSV1.
    pub rsv: u8,
    /// Four bits.
    pub opcode: u8,
    /// The mask key, if it was masked.
    pub key: Option<[u8; 4]>,
    /// The payload, unmasked.
    pub payload: Vec<u8>,
    /// The length has the shortest form.
    pub minimal: bool,
}

/// Splits bytes into complete frames; returns the frames and their total length.
#[must_use]
pub fn split_frames(bytes: &[u8]) -> (Vec<RawFrame>, usize) {
    let mut frames = Vec::new();
    let mut at = 0;
    while let Some((frame, len)) = first_frame(&bytes[at..]) {
        frames.push(frame);
        at += len;
    }
    (frames, at)
}

fn first_frame(bytes: &[u8]) -> Option<(RawFrame, usize)> {
    let (first, second) = (*bytes.first()?, *bytes.get(1)?);
    let extended = match second & 0x7f {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    let mut at = 2 + extended;
    let mut len = u64::from(second & 0x7f);
    if extended > 0 {
        len = bytes.get(2..at)?.iter().fold(0, |len, byte| len << 8 | u64::from(*byte));
    }
    let minimal = match extended {
        0 => true,
        2 => len > 125,
        _ => len > 65_535,
    };
    let mut key = None;
    if second & 0x80 != 0 {
        key = Some(<[u8; 4]>::try_from(bytes.get(at..at + 4)?).ok()?);
        at += 4;
    }
    let end = at.checked_add(usize::try_from(len).ok()?)?;
    let mut payload = bytes.get(at..end)?.to_vec();
    if let Some(key) = key {
        payload.iter_mut().zip(key.iter().cycle()).for_each(|(byte, key)| *byte ^= key);
    }
    let (fin, rsv, opcode) = (first & 0x80 != 0, first >> 4 & 7, first & 15);
    Some((RawFrame { fin, rsv, opcode, key, payload, minimal }, end))
}

/// Reads a machine's output in one role, and validates it against RFC 6455 and RFC 7692.
#[derive(Debug)]
pub struct Reader {
    from: Role,
    codec: Option<Codec>,
    buffer: Vec<u8>,
    open: Option<(Kind, bool, Vec<u8>)>,
    closed: bool,
}

/// Maximum message size.
const MESSAGE_MAX: usize = 64 << 20;

impl Reader {
    /// Reads a machine with this role; `codec` is the other end's codec if compression was negotiated.
    #[must_use]
    pub const fn new(from: Role, codec: Option<Codec>) -> Self {
        Self { from, codec, buffer: Vec::new(), open: None, closed: false }
    }

    /// Parses further bytes.
    ///
    /// # Errors
    /// The sender's protocol violation.
    pub fn read(&mut self, bytes: &[u8]) -> Result<Vec<Reply>, String> {
        if self.closed && !bytes.is_empty() {
            return Err(format!("{} bytes behind the Close", bytes.len()));
        }
        self.buffer.extend_from_slice(bytes);
        let (frames, used) = split_frames(&self.buffer);
        self.buffer.drain(..used);
        let mut replies = Vec::new();
        for frame in frames {
            replies.extend(self.frame(frame)?);
        }
        if self.closed && !self.buffer.is_empty() {
            return Err(format!("{} bytes behind the Close", self.buffer.len()));
        }
        Ok(replies)
    }

    /// Whether all frames and messages are complete.
    #[must_use]
    pub const fn is_between_messages(&self) -> bool {
        self.buffer.is_empty() && self.open.is_none()
    }

    fn frame(&mut self, frame: RawFrame) -> Result<Option<Reply>, String> {
        if self.closed {
            return Err("a frame behind the Close".to_owned());
        }
        if frame.key.is_some() != (self.from == Role::Client) {
            return Err(format!("mask {:?} from a {:?}", frame.key, self.from));
        }
        if !frame.minimal {
            return Err("a length longer than it must be".to_owned());
        }
        if frame.rsv & 3 != 0 {
            return Err(format!("reserved bits {}", frame.rsv));
        }
        match frame.opcode {
            8..=10 => self.control(frame).map(Some),
            0..=2 => self.data(frame),
            opcode => Err(format!("opcode {opcode}")),
        }
    }

    fn control(&mut self, frame: RawFrame) -> Result<Reply, String> {
        if !frame.fin || frame.rsv != 0 || frame.payload.len() > 125 {
            return Err(format!("control frame {frame:?}"));
        }
        match frame.opcode {
            9 => Ok(Reply::Ping(frame.payload)),
            10 => Ok(Reply::Pong(frame.payload)),
            _ => {
                self.closed = true;
                read_close(&frame.payload)
            }
        }
    }

    fn data(&mut self, frame: RawFrame) -> Result<Option<Reply>, String> {
        let compressed = frame.rsv == 4;
        if compressed && (self.codec.is_none() || frame.opcode == 0) {
            return Err("a compression bit out of place".to_owned());
        }
        let (kind, compressed, mut payload) = match (frame.opcode, self.open.take()) {
            (0, None) => return Err("a continuation without a message".to_owned()),
            (0, Some(open)) => open,
            (_, Some(_)) => return Err("a message inside a message".to_owned()),
            (1, None) => (Kind::Text, compressed, Vec::new()),
            (_, None) => (Kind::Binary, compressed, Vec::new()),
        };
        payload.extend_from_slice(&frame.payload);
        if !frame.fin {
            self.open = Some((kind, compressed, payload));
            return Ok(None);
        }
        if let Some(codec) = self.codec.as_mut().filter(|_| compressed) {
            payload = codec.decompress(&payload, MESSAGE_MAX)?;
        }
        if kind == Kind::Text && std::str::from_utf8(&payload).is_err() {
            return Err("text that is not UTF-8".to_owned());
        }
        Ok(Some(Reply::Message(kind, payload)))
    }
}

fn read_close(payload: &[u8]) -> Result<Reply, String> {
    let (code, reason) = match payload {
        [] => return Ok(Reply::Close(None, String::new())),
        [_] => return Err("a Close of one byte".to_owned()),
        [a, b, reason @ ..] => (u16::from_be_bytes([*a, *b]), reason),
    };
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Err(format!("a Close with {code}"));
    }
    let reason = String::from_utf8(reason.to_vec()).map_err(|_| "a reason that is not UTF-8")?;
    Ok(Reply::Close(Some(code), reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Frame, Length};

    fn read(frames: &[Frame]) -> Result<Vec<Reply>, String> {
        let bytes: Vec<u8> = frames.iter().flat_map(|frame| frame.encode(Role::Client)).collect();
        Reader::new(Role::Client, None).read(&bytes)
    }

    #[test]
    fn the_reader_parses_encoded_frames() {
        let long = vec![7; 70_000];
        for payload in [&b""[..], b"x", &long[..125], &long[..126], &long[..65_535], &long[..65_536], &long] {
            assert_eq!(read(&[Frame::binary(payload)]), Ok(vec![Reply::binary(payload)]));
        }
        let parts = [Frame::text("a").fin(false), Frame::ping("p"), Frame::continuation("b")];
        assert_eq!(read(&parts), Ok(vec![Reply::Ping(b"p".to_vec()), Reply::text("ab")]));
        assert_eq!(read(&[Frame::close(1000, "bye")]), Ok(vec![Reply::Close(Some(1000), "bye".into())]));
    }

    #[test]
    fn the_reader_rejects_invalid_frames() {
        for wrong in [
            Frame::text("a").unmasked(),
            Frame::text("a").rsv(4),
            Frame::text("a").rsv(2),
            Frame::text("a").length(Length::Bits16),
            Frame::text([0xff]),
            Frame::new(3, ""),
            Frame::continuation(""),
            Frame::ping([0; 126]),
            Frame::ping("").fin(false),
            Frame::close(1005, ""),
            Frame::close_raw("x"),
        ] {
            assert!(read(std::slice::from_ref(&wrong)).is_err(), "{wrong:?}");
        }
        assert!(read(&[Frame::text("").fin(false), Frame::text("")]).is_err());
        assert!(read(&[Frame::close(1000, ""), Frame::text("")]).is_err());
    }
}
