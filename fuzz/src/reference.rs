//! A decoder of frames written from RFC 6455 and RFC 7692, for whole streams and for clarity alone.
//!
//! For a frame with several faults, the RFCs do not define which to report first. So the decoder returns the
//! set of correct faults.

use std::collections::BTreeSet;

use sinews_proto::{Kind, PeerMisbehaved, Role};

use crate::inflate::{Inflater, Window};

/// Limits of the receiver.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// The receiver's role.
    pub(crate) role: Role,
    /// The sender's compression, where it was negotiated.
    pub(crate) deflate: Option<Window>,
    pub(crate) max_message: usize,
    pub(crate) max_frame: usize,
    pub(crate) max_fragments: usize,
    pub(crate) max_empty_fragments: usize,
    pub(crate) pings: usize,
}

/// Content of a complete message or control frame.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Said {
    Message(Kind, Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<u16>, Vec<u8>),
}

/// End of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// More frames may follow.
    Waiting,
    /// More bytes may follow, but one of these faults may be reported already: part of a frame header is
    /// present.
    MayFail(BTreeSet<Fault>),
    /// After a Close.
    Closed,
    /// One of these faults.
    Failed(BTreeSet<Fault>),
    /// The RFCs do not specify the rest.
    Unspecified,
}

/// A fault by its text, since neither the RFC nor the type defines an order of faults.
pub(crate) type Fault = String;

/// Meaning of a whole stream.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) said: Vec<Said>,
    /// The unfinished message, as far as it has been received.
    pub(crate) open: Option<(Kind, Vec<u8>)>,
    pub(crate) end: End,
}

struct Message {
    kind: Kind,
    content: Vec<u8>,
    compressed: bool,
    wire: usize,
    fragments: usize,
    empty: usize,
}

struct Decoder<'a> {
    rules: &'a Rules,
    said: Vec<Said>,
    message: Option<Message>,
    inflater: Option<Inflater>,
    pings: usize,
}

/// Reads a whole stream.
pub(crate) fn read(stream: &[u8], rules: &Rules) -> Reading {
    let inflater = rules.deflate.map(|window| Inflater::new(window, rules.max_message));
    let mut decoder = Decoder { rules, said: Vec::new(), message: None, inflater, pings: 0 };
    let mut rest = stream;
    let end = loop {
        if let Err(end) = decoder.frame(&mut rest) {
            break end;
        }
    };
    let open = decoder.message.map(|message| (message.kind, message.content));
    Reading { said: decoder.said, open, end }
}

/// A frame header by the RFC: its fields so far, and its faults.
struct Head {
    fin: bool,
    rsv1: bool,
    opcode: u8,
    len: u64,
    key: [u8; 4],
    faults: BTreeSet<Fault>,
}

impl Decoder<'_> {
    fn frame(&mut self, rest: &mut &[u8]) -> Result<(), End> {
        let (head, whole) = self.head(rest);
        if !head.faults.is_empty() {
            return Err(if whole { End::Failed(head.faults) } else { End::MayFail(head.faults) });
        }
        if !whole {
            return Err(End::Waiting);
        }
        let have = usize::try_from(head.len).unwrap_or(usize::MAX).min(rest.len());
        let (payload, behind) = rest.split_at(have);
        *rest = behind;
        let mut payload = payload.to_vec();
        for (at, byte) in payload.iter_mut().enumerate() {
            *byte ^= head.key[at % 4];
        }
        let complete = have as u64 == head.len;
        match head.opcode {
            8.. if !complete => Err(End::Waiting),
            8 => Err(self.close(&payload)),
            9 => self.ping(payload),
            10 => {
                self.said.push(Said::Pong(payload));
                Ok(())
            }
            _ => self.data(&head, &payload, complete),
        }
    }

    /// RFC 6455 section 5.2. Returns the header so far, and whether it is complete.
    fn head(&self, rest: &mut &[u8]) -> (Head, bool) {
        let mut head =
            Head { fin: false, rsv1: false, opcode: 0, len: 0, key: [0; 4], faults: BTreeSet::new() };
        let Some([first, second]) = cut::<2>(rest) else { return (head, false) };
        head.fin = first & 0x80 != 0;
        head.rsv1 = first & 0x40 != 0;
        head.opcode = first & 0x0f;
        let masked = second & 0x80 != 0;
        self.check_first(&mut head, first, second);
        head.len = match second & 0x7f {
            126 => {
                let Some(long) = cut::<2>(rest) else { return (head, false) };
                let len = u64::from(u16::from_be_bytes(long));
                head.complain_if(len < 126, PeerMisbehaved::LengthNotMinimal);
                len
            }
            127 => {
                let Some(long) = cut::<8>(rest) else { return (head, false) };
                let len = u64::from_be_bytes(long);
                head.complain_if(len < 65_536, PeerMisbehaved::LengthNotMinimal);
                head.complain_if(len >> 63 != 0, PeerMisbehaved::LengthTopBit);
                len
            }
            short => u64::from(short),
        };
        self.check_limits(&mut head);
        if masked {
            let Some(key) = cut::<4>(rest) else { return (head, false) };
            head.key = key;
        }
        (head, true)
    }

    fn check_first(&self, head: &mut Head, first: u8, second: u8) {
        use PeerMisbehaved as P;
        let masked = second & 0x80 != 0;
        head.complain_if(head.opcode >= 8 && second & 0x7f > 125, P::ControlTooLong);
        head.complain_if(first & 0x30 != 0, P::ReservedBits);
        head.complain_if(!matches!(head.opcode, 0..=2 | 8..=10), P::UnknownOpcode(head.opcode));
        head.complain_if(masked && self.rules.role == Role::Client, P::MaskedFrame);
        head.complain_if(!masked && self.rules.role == Role::Server, P::UnmaskedFrame);
        head.complain_if(head.opcode >= 8 && !head.fin, P::ControlFragmented);
        head.complain_if(head.opcode == 0 && self.message.is_none(), P::NothingToContinue);
        head.complain_if(matches!(head.opcode, 1..=7) && self.message.is_some(), P::DataInsideMessage);
        let compresses = self.rules.deflate.is_some();
        head.complain_if(head.rsv1 && !compresses, P::ReservedBits);
        // RFC 7692 section 6.1: only on the first frame of a message.
        let misplaced = head.rsv1 && compresses && (head.opcode == 0 || head.opcode >= 8);
        head.complain_if(misplaced, P::MisplacedCompressionBit);
    }

    fn check_limits(&self, head: &mut Head) {
        use PeerMisbehaved as P;
        if head.opcode >= 8 {
            return;
        }
        let message = self.message.as_ref();
        let (wire, fragments, empty, compressed) = message.map_or((0, 0, 0, head.rsv1), |message| {
            (message.wire, message.fragments, message.empty, message.compressed)
        });
        let rules = self.rules;
        // Compressed data may be longer than their content, by a documented margin.
        let wire_max = if compressed { rules.max_message * 2 + 1024 } else { rules.max_message };
        head.complain_if(head.len > rules.max_frame as u64, P::FrameTooBig);
        head.complain_if(head.len.saturating_add(wire as u64) > wire_max as u64, P::MessageTooBig);
        head.complain_if(fragments + 1 > rules.max_fragments, P::TooManyFragments);
        let empties = empty + usize::from(head.len == 0);
        head.complain_if(empties > rules.max_empty_fragments, P::TooManyEmptyFragments);
    }

    /// RFC 6455 sections 5.5.1 and 7.4.
    fn close(&mut self, payload: &[u8]) -> End {
        let mut faults = BTreeSet::new();
        match payload {
            [] => self.said.push(Said::Close(None, Vec::new())),
            [_] => drop(faults.insert(name(PeerMisbehaved::CloseTooShort))),
            [high, low, reason @ ..] => {
                let code = u16::from_be_bytes([*high, *low]);
                if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
                    faults.insert(name(PeerMisbehaved::InvalidCloseCode(code)));
                }
                if std::str::from_utf8(reason).is_err() {
                    faults.insert(name(PeerMisbehaved::CloseReasonNotUtf8));
                }
                if faults.is_empty() {
                    self.said.push(Said::Close(Some(code), reason.to_vec()));
                }
            }
        }
        if faults.is_empty() { End::Closed } else { End::Failed(faults) }
    }

    fn ping(&mut self, payload: Vec<u8>) -> Result<(), End> {
        self.pings += 1;
        if self.pings > self.rules.pings {
            return Err(End::Failed(BTreeSet::from([name(PeerMisbehaved::PingFlood)])));
        }
        self.said.push(Said::Ping(payload));
        Ok(())
    }

    /// RFC 6455 sections 5.4, 5.6 and 8.1; RFC 7692 section 7.2.2.
    fn data(&mut self, head: &Head, payload: &[u8], complete: bool) -> Result<(), End> {
        let message = self.message.get_or_insert_with(|| Message {
            kind: if head.opcode == 1 { Kind::Text } else { Kind::Binary },
            content: Vec::new(),
            compressed: head.rsv1,
            wire: 0,
            fragments: 0,
            empty: 0,
        });
        message.wire += usize::try_from(head.len).unwrap_or(usize::MAX);
        message.fragments += 1;
        message.empty += usize::from(head.len == 0);
        let last = complete && head.fin;
        let mut faults = BTreeSet::new();
        match &mut self.inflater {
            Some(inflater) if message.compressed => {
                let inflated = inflater.feed(payload, last);
                message.content.clone_from(&inflated.content);
                if inflated.unspecified {
                    return Err(End::Unspecified);
                }
                if inflated.bad {
                    faults.insert(name(PeerMisbehaved::BadDeflate));
                }
                if message.content.len() > self.rules.max_message {
                    faults.insert(name(PeerMisbehaved::MessageTooBig));
                    // A decoder that reads one byte ahead may find it broken.
                    faults.insert(name(PeerMisbehaved::BadDeflate));
                }
            }
            _ => message.content.extend_from_slice(payload),
        }
        let broken = match std::str::from_utf8(&message.content) {
            _ if message.kind == Kind::Binary => false,
            Ok(_) => false,
            // A truncated code point may still be completed, unless the message ends with it.
            Err(error) => error.error_len().is_some() || last,
        };
        if broken {
            faults.insert(name(PeerMisbehaved::InvalidUtf8));
        }
        if !faults.is_empty() {
            return Err(End::Failed(faults));
        }
        if !complete {
            return Err(End::Waiting);
        }
        if let Some(message) = self.message.take_if(|_| head.fin) {
            self.said.push(Said::Message(message.kind, message.content));
        }
        Ok(())
    }
}

impl Head {
    fn complain_if(&mut self, wrong: bool, fault: PeerMisbehaved) {
        if wrong {
            self.faults.insert(name(fault));
        }
    }
}

/// Returns the name of a fault.
pub(crate) fn name(fault: PeerMisbehaved) -> Fault {
    fault.to_string()
}

fn cut<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(*taken)
}

impl std::fmt::Debug for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (what, bytes) = match self {
            Self::Message(kind, bytes) => (format!("{kind:?}"), bytes),
            Self::Ping(bytes) => ("Ping".to_owned(), bytes),
            Self::Pong(bytes) => ("Pong".to_owned(), bytes),
            Self::Close(code, bytes) => (format!("Close {code:?}"), bytes),
        };
        write!(f, "{what} \"{}\" ({} bytes)", bytes[..bytes.len().min(200)].escape_ascii(), bytes.len())
    }
}
