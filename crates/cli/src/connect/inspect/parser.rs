//! One direction of a connection: frames in order, and all violations in frames and their order (RFC 6455 sections 5 to
//! 8, RFC 7692 section 6).

use super::close::close_violations;
use super::deflate::{CheckedInflater, DirectionParams};
use super::extension::OfferParams;
use super::frame::{RawFrameHead, unmask};
use super::utf8::Utf8Checker;
use super::violation::{PROTOCOL, Violation};

/// Maximum stored bytes of a control frame's payload, well above the legal 125.
const CONTROL_EXCERPT: usize = 4 << 10;

/// A parsed event.
#[derive(Clone, Debug)]
pub(crate) enum FrameEvent {
    /// Start of a frame.
    Head(RawFrameHead, Vec<Violation>),
    /// The complete payload, or its beginning if the transport ended.
    Payload(FramePayload),
}

/// A frame's unmasked payload.
#[derive(Clone, Debug)]
pub(crate) struct FramePayload {
    pub(crate) head: RawFrameHead,
    /// The beginning; for a control frame, all bytes.
    pub(crate) bytes: Vec<u8>,
    /// Received bytes.
    pub(crate) len: u64,
    /// An inflated message's beginning, with its last frame.
    pub(crate) inflated: Option<(Vec<u8>, usize)>,
    /// The frame ends a message.
    pub(crate) is_message: bool,
    pub(crate) violations: Vec<Violation>,
}

/// One direction.
pub(crate) struct FrameParser {
    from_client: bool,
    inflater: Option<CheckedInflater>,
    excerpt: usize,
    max_message: usize,
    /// Bytes in an incomplete head.
    buffer: Vec<u8>,
    frame: Option<InspectedFrame>,
    message: Option<PartialMessage>,
    closed: bool,
}

/// A frame with an incomplete payload.
struct InspectedFrame {
    head: RawFrameHead,
    got: u64,
    beginning: Vec<u8>,
    violations: Vec<Violation>,
    /// A data frame in the current message.
    is_part: bool,
}

/// An incomplete message.
struct PartialMessage {
    is_text: bool,
    compressed: bool,
    utf8: Utf8Checker,
    inflated: Vec<u8>,
}

impl FrameParser {
    pub(crate) fn new(
        from_client: bool,
        deflate: Option<&OfferParams>,
        excerpt: usize,
        max_message: usize,
    ) -> Self {
        Self {
            from_client,
            inflater: deflate.map(|params| CheckedInflater::new(DirectionParams::new(params, from_client))),
            excerpt,
            max_message,
            buffer: Vec::new(),
            frame: None,
            message: None,
            closed: false,
        }
    }

    /// Parses received bytes.
    pub(crate) fn read(&mut self, mut bytes: &[u8]) -> Vec<FrameEvent> {
        let mut seen = Vec::new();
        while !bytes.is_empty() || self.frame.is_some() {
            let Some(mut frame) = self.frame.take() else {
                let Some(&byte) = bytes.first() else { break };
                bytes = &bytes[1..];
                self.buffer.push(byte);
                if let Some(head) = RawFrameHead::read(&self.buffer) {
                    self.buffer.clear();
                    let (frame, violations) = self.begin(head);
                    seen.push(FrameEvent::Head(frame.head.clone(), violations));
                    self.frame = Some(frame);
                }
                continue;
            };
            let left = frame.head.len - frame.got;
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
            let (piece, rest) = bytes.split_at(count);
            bytes = rest;
            self.take(&mut frame, piece);
            if frame.got == frame.head.len {
                seen.push(FrameEvent::Payload(self.finish(frame)));
            } else {
                self.frame = Some(frame);
                break;
            }
        }
        seen
    }

    /// Handles the transport's end.
    pub(crate) fn end(&mut self) -> (Option<FramePayload>, Vec<Violation>) {
        let mut violations = Vec::new();
        if !self.buffer.is_empty() {
            violations.push(Violation::new(
                "RFC 6455 section 5.2",
                "the transport ends within the head of a frame",
            ));
        }
        let payload = self.frame.take().map(|frame| {
            let missing = frame.head.len - frame.got;
            let description = format!("the transport ends within a frame, {missing} bytes before its end");
            violations.push(Violation::new("RFC 6455 section 5.2", description));
            FramePayload {
                head: frame.head,
                bytes: frame.beginning,
                len: frame.got,
                inflated: None,
                is_message: false,
                violations: frame.violations,
            }
        });
        if self.message.is_some() {
            violations.push(Violation::new(
                "RFC 6455 section 5.4",
                "the transport ends within a fragmented message",
            ));
        }
        if !self.closed {
            let description = "the transport ends without a Close frame (an application sees 1006)";
            violations.push(Violation::new("RFC 6455 section 7.1.1", description));
        }
        (payload, violations)
    }

    /// Handles a head: returns its violations, by itself and in sequence.
    fn begin(&mut self, head: RawFrameHead) -> (InspectedFrame, Vec<Violation>) {
        let mut violations = head.violations(self.from_client);
        let mut add =
            |section, description: &str| violations.push(Violation::fatal(section, description, PROTOCOL));
        if head.rsv1() {
            match (&self.inflater, head.is_control() || head.opcode() == 0) {
                (None, _) => {
                    add("RFC 6455 section 5.2", "RSV1 is set, and no extension has given it a meaning")
                }
                (Some(_), true) => {
                    add("RFC 7692 section 6", "RSV1 is set on a control frame or a continuation")
                }
                (Some(_), false) => {}
            }
        }
        let is_part = match (head.opcode(), &self.message) {
            (0, None) => {
                add("RFC 6455 section 5.4", "a continuation without a message to continue");
                false
            }
            (0, Some(_)) => true,
            (1 | 2, open) => {
                if open.is_some() {
                    add(
                        "RFC 6455 section 5.4",
                        "a new data frame, and the fragmented message before is not finished",
                    );
                }
                let compressed = head.rsv1() && self.inflater.is_some();
                self.message = Some(PartialMessage {
                    is_text: head.opcode() == 1,
                    compressed,
                    utf8: Utf8Checker::default(),
                    inflated: Vec::new(),
                });
                true
            }
            _ => false,
        };
        if self.closed && !head.is_control() {
            violations.push(Violation::new("RFC 6455 section 5.5.1", "a data frame after a Close"));
        } else if self.closed && head.opcode() == 8 {
            violations.push(Violation::new("RFC 6455 section 5.5.1", "a second Close"));
        }
        (InspectedFrame { head, got: 0, beginning: Vec::new(), violations: Vec::new(), is_part }, violations)
    }

    /// Handles a piece of a payload.
    fn take(&mut self, frame: &mut InspectedFrame, piece: &[u8]) {
        let mut piece = piece.to_vec();
        if let Some(key) = frame.head.key {
            unmask(&mut piece, key, frame.got);
        }
        frame.got += piece.len() as u64;
        let beginning = if frame.head.is_control() { CONTROL_EXCERPT } else { self.excerpt.max(1) };
        let capacity = beginning.saturating_sub(frame.beginning.len()).min(piece.len());
        frame.beginning.extend_from_slice(&piece[..capacity]);
        let Some(message) = self.message.as_mut().filter(|_| frame.is_part) else { return };
        match &mut self.inflater {
            Some(inflater) if message.compressed => {
                let before = message.inflated.len();
                let violation = inflater.inflate(&piece, self.max_message, &mut message.inflated);
                frame.violations.extend(violation);
                frame.violations.extend(message.check(before));
            }
            _ if message.is_text => frame.violations.extend(message.utf8.check(&piece)),
            _ => {}
        }
    }

    fn finish(&mut self, frame: InspectedFrame) -> FramePayload {
        let InspectedFrame { head, got, beginning, mut violations, is_part } = frame;
        let mut inflated = None;
        let is_message = is_part && head.fin();
        if let Some(mut message) = self.message.take_if(|_| is_message) {
            if let Some(inflater) = self.inflater.as_mut().filter(|_| message.compressed) {
                let before = message.inflated.len();
                violations.extend(inflater.finish(self.max_message, &mut message.inflated));
                violations.extend(message.check(before));
                let len = message.inflated.len();
                // Bytes above the limit are unchecked, and may end within a character.
                message.utf8.failed |= len >= self.max_message;
                message.inflated.truncate(self.excerpt.max(1));
                inflated = Some((std::mem::take(&mut message.inflated), len));
            }
            if message.is_text {
                violations.extend(message.utf8.end());
            }
        }
        if head.opcode() == 8 {
            self.closed = true;
            violations.extend(close_violations(&beginning, self.from_client));
        }
        FramePayload { head, bytes: beginning, len: got, inflated, is_message, violations }
    }
}

impl PartialMessage {
    /// Checks newly inflated data.
    fn check(&mut self, before: usize) -> Option<Violation> {
        let piece = self.inflated.get(before..).unwrap_or_default();
        if self.is_text { self.utf8.check(piece) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::super::deflate::MessageDeflater;
    use super::*;

    fn sections(parser: &mut FrameParser, wire: &[u8]) -> Vec<String> {
        let mut found = Vec::new();
        let mut add = |violations: &[Violation]| {
            found.extend(
                violations
                    .iter()
                    .map(|violation| violation.section.trim_start_matches("RFC ").replace(" section ", " ")),
            );
        };
        for seen in parser.read(wire) {
            match seen {
                FrameEvent::Head(_, violations) => add(&violations),
                FrameEvent::Payload(payload) => add(&payload.violations),
            }
        }
        found
    }

    fn server() -> FrameParser {
        FrameParser::new(false, None, 64, 1 << 20)
    }

    #[test]
    fn valid_frames_have_no_violations_at_any_split() {
        let wire = b"\x01\x02\xce\xba\x89\x01p\x80\x03\xe4\xb8\x96\x82\x01\xff\x88\x04\x03\xe8by";
        for size in 1..=wire.len() {
            let mut parser = server();
            for piece in wire.chunks(size) {
                assert_eq!(sections(&mut parser, piece), [""; 0]);
            }
            assert!(parser.end().1.is_empty());
        }
    }

    #[test]
    fn every_violation_is_named_and_parsing_continues() {
        let none: &[&str] = &[];
        for (wire, expected) in [
            (&b"\xc1\x01a"[..], &["6455 5.2"][..]),
            (b"\x80\x01a", &["6455 5.4"]),
            (b"\x01\x01a\x81\x01b", &["6455 5.4"]),
            (b"\x01\x01a\x82\x01b", &["6455 5.4"]),
            (b"\x01\x01a\x89\x00\x80\x01b", none),
            (b"\x81\x01\xff", &["6455 8.1"]),
            (b"\x01\x01\xce\x80\x01a", &["6455 8.1"]),
            (b"\x81\x01\xce", &["6455 8.1"]),
            (b"\x82\x01\xff", none),
            (b"\x88\x01a", &["6455 5.5.1"]),
            (b"\x88\x02\x03\xed", &["6455 7.4.1"]),
            (b"\x88\x02\x03\xee", &["6455 7.4.1"]),
            (b"\x88\x02\x03\xf7", &["6455 7.4.1"]),
            (b"\x88\x02\x0b\xb7", &["6455 7.4.2"]),
            (b"\x88\x02\x13\x88", &["6455 7.4.2"]),
            (b"\x88\x02\x00\x01", &["6455 7.4.2"]),
            (b"\x88\x02\x03\xf4", none),
            (b"\x88\x02\x0b\xb8", none),
            (b"\x88\x02\x03\xf2", &["6455 7.4.1"]),
            (b"\x88\x03\x03\xe8\xff", &["6455 5.5.1"]),
            (b"\x88\x00\x81\x01a", &["6455 5.5.1"]),
            (b"\x88\x00\x88\x00", &["6455 5.5.1"]),
            (b"\x88\x00\x89\x00", none),
        ] {
            let mut parser = server();
            assert_eq!(sections(&mut parser, wire), expected, "{}", wire.escape_ascii());
            parser.message = None;
            parser.closed = false;
            assert_eq!(sections(&mut parser, b"\x81\x01\xff"), ["6455 8.1"], "{}", wire.escape_ascii());
        }
    }

    #[test]
    fn truncated_frame_is_named() {
        for (wire, count) in
            [(&b"\x88\x00"[..], 0), (b"", 1), (b"\x81", 2), (b"\x81\x02a", 3), (b"\x01\x01a", 2)]
        {
            let mut parser = server();
            sections(&mut parser, wire);
            assert_eq!(parser.end().1.len(), count, "{}", wire.escape_ascii());
        }
        // An endless length is handled too.
        let mut parser = server();
        assert_eq!(sections(&mut parser, b"\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xffabc"), ["6455 5.2"]);
        assert_eq!(parser.end().0.map(|payload| payload.bytes), Some(b"abc".to_vec()));
    }

    #[test]
    fn compressed_messages_are_checked() {
        let params = OfferParams::default();
        let agreed = DirectionParams::new(&params, false);
        let mut parser = FrameParser::new(false, Some(&params), 64, 1 << 20);
        let mut deflater = MessageDeflater::new(agreed).unwrap();
        let frame = |first: u8, payload: &[u8]| [&[first, payload.len() as u8], payload].concat();
        let text = deflater.deflate("κόσμε".as_bytes()).unwrap();
        let (one, two) = text.split_at(3);
        assert_eq!(sections(&mut parser, &[frame(0x41, one), frame(0x80, two)].concat()), [""; 0]);
        let wrong = deflater.deflate(b"\xff").unwrap();
        assert_eq!(sections(&mut parser, &frame(0xc1, &wrong)), ["6455 8.1"]);
        assert_eq!(sections(&mut parser, &frame(0xc9, b"a")), ["7692 6"]);
        assert_eq!(sections(&mut parser, &[frame(0x01, b"a"), frame(0xc0, b"b")].concat()), ["7692 6"]);
        assert_eq!(sections(&mut parser, &frame(0xc2, &[0xff; 9])), ["7692 7.2.2"]);
        assert_eq!(sections(&mut parser, &frame(0x81, b"plain")), [""; 0]);
    }
}
