//! Compares a connection with the reference decoder.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sinews_proto::{
    CloseCode, Config, Connection, Event, Kind, Negotiated, PayloadLocation, PeerMisbehaved, PerThread,
    PingRate, Received, Role, Time,
};

use crate::agree;
use crate::input::{Chunks, Input};
use crate::reference::{self, End, Reading, Rules, Said};

/// Fuzzes a stream of frames in either role, whole and in chunks, as messages and as fragments.
///
/// The first bytes select role, limits, compression and chunking. The rest is the stream itself, or decisions
/// to build a stream, so that the fuzzer reaches deep states easily.
pub fn frames(data: &[u8]) {
    let mut input = Input::new(data);
    let setup = Setup::read(&mut input);
    let chunks = Chunks::read(&mut input);
    let stream = if setup.built { build(&mut input, &setup) } else { input.rest().to_vec() };
    setup.check(&stream, chunks);
}

/// A receiver, and the limits on its input.
#[derive(Debug)]
pub(crate) struct Setup {
    negotiated: Negotiated,
    rules: Rules,
    fragments: bool,
    built: bool,
}

impl Setup {
    /// Reads four bytes, and another four for the compression.
    pub(crate) fn read(input: &mut Input<'_>) -> Self {
        let flags = input.byte();
        let role = if flags & 1 == 0 { Role::Server } else { Role::Client };
        let limits = input.byte();
        let rules = Rules {
            role,
            deflate: None,
            max_message: [1 << 20, 1000, 126, 20][usize::from(limits & 3)],
            max_frame: [1 << 20, 1000, 125, 10][usize::from(limits >> 2 & 3)],
            max_fragments: [100_000, 8, 2, 1][usize::from(limits >> 4 & 3)],
            max_empty_fragments: [1024, 4, 1, 1][usize::from(limits >> 6)],
            pings: if flags & 2 == 0 { 256 } else { 3 },
        };
        let config = (flags & 4 != 0).then(|| agree::read_config(input));
        let agreement = agree::agree(config.as_ref(), config.as_ref());
        let negotiated = if role == Role::Server { agreement.server } else { agreement.client };
        Self::new(negotiated, rules, flags & 8 != 0, flags & 16 == 0)
    }

    pub(crate) fn new(negotiated: Negotiated, rules: Rules, fragments: bool, built: bool) -> Self {
        let deflate = agree::windows(negotiated).map(|(client, server)| match rules.role {
            Role::Server => client,
            Role::Client => server,
        });
        Self { negotiated, rules: Rules { deflate, ..rules }, fragments, built }
    }

    /// Reads the stream in several ways, each of which must agree with the reference.
    pub(crate) fn check(&self, stream: &[u8], chunks: Chunks) {
        let reading = reference::read(stream, &self.rules);
        let whole = self.hear(stream, Chunks::whole());
        self.compare(&reading, &whole, "whole");
        let mut ways = vec![("in chunks", chunks)];
        if stream.len() <= SHORT {
            ways.push(("byte by byte", Chunks::bytes()));
        }
        for (way, chunks) in ways {
            let heard = self.hear(stream, chunks);
            self.compare(&reading, &heard, way);
            if self.rules.deflate.is_none() {
                assert_eq!(heard.fault, whole.fault, "{way}: the fault depends on how the stream is cut");
            }
        }
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    fn config(&self) -> Arc<Config> {
        let rate = PingRate { per_second: 1, burst: self.rules.pings as u32 };
        Arc::new(
            Config::default()
                .with_max_message(self.rules.max_message as u64)
                .with_max_frame(self.rules.max_frame as u64)
                .with_max_fragments(self.rules.max_fragments as u32)
                .with_max_empty_fragments(self.rules.max_empty_fragments as u32)
                .with_ping_rate(rate),
        )
    }

    fn hear(&self, mut stream: &[u8], mut chunks: Chunks) -> Heard {
        let mut connection = Connection::new(self.negotiated, self.config(), Time::ZERO);
        connection.deliver_fragments(self.fragments);
        let mut listener = Listener {
            connection,
            shared: PerThread::new(|| [1, 2, 3, 4]),
            assembly: Vec::new(),
            held: Vec::new(),
            wanted: 1,
            assembly_max: 2 * self.rules.max_message + 1024,
            heard: Heard::default(),
        };
        while !stream.is_empty() {
            let chunk = chunks.cut(&mut stream);
            listener.chunk(chunk);
        }
        listener.heard
    }

    /// Compares the received events with the reference.
    fn compare(&self, reading: &Reading, heard: &Heard, way: &str) {
        let expected = &reading.said;
        let same = heard.said.iter().zip(expected).take_while(|(one, other)| one == other).count();
        let context = || format!("{way}\nheard {heard:?}\nreference {reading:?}");
        assert_eq!(same, expected.len(), "something else was heard, {}", context());
        if reading.end == End::Unspecified {
            return;
        }
        assert_eq!(same, heard.said.len(), "more was heard, {}", context());
        let fault = heard.fault.map(reference::name);
        let (must, may) = match &reading.end {
            End::Failed(faults) => (true, faults.clone()),
            End::MayFail(faults) => (false, faults.clone()),
            _ => (false, BTreeSet::new()),
        };
        assert!(!must || fault.is_some(), "no fault was found, {}", context());
        assert!(fault.is_none_or(|fault| may.contains(&fault)), "another fault was found, {}", context());
        self.compare_open(reading, heard, &context);
        self.compare_replies(heard, &context);
    }

    /// In fragment delivery: the delivered fragments of an unfinished message are a prefix of its content.
    fn compare_open(&self, reading: &Reading, heard: &Heard, context: &dyn Fn() -> String) {
        let Some((kind, pieces)) = &heard.open else { return };
        let Some((expected, content)) = &reading.open else {
            panic!("pieces of no message, {}", context());
        };
        assert_eq!(kind, expected, "{}", context());
        assert!(content.starts_with(pieces), "other pieces, {}", context());
        let all = heard.fault.is_none() && self.rules.deflate.is_none();
        assert!(!all || content.len() == pieces.len(), "pieces held back, {}", context());
    }

    /// Each ping is answered, then the Close or the fault; no other frames are sent.
    fn compare_replies(&self, heard: &Heard, context: &dyn Fn() -> String) {
        let role = if self.rules.role == Role::Server { Role::Client } else { Role::Server };
        let rules = Rules { role, deflate: None, max_message: 0, max_frame: 125, ..self.rules.clone() };
        let replies = reference::read(&heard.replies, &rules);
        let mut expected = Vec::new();
        for said in &heard.said {
            match said {
                Said::Ping(payload) => expected.push(Said::Pong(payload.clone())),
                Said::Close(code, _) => expected.push(Said::Close(*code, Vec::new())),
                Said::Message(..) | Said::Pong(_) => {}
            }
        }
        if let Some(fault) = heard.fault {
            let reason = fault.reason().as_bytes().to_vec();
            expected.push(Said::Close(Some(fault.close_code().as_u16()), reason));
        }
        assert_eq!(replies.said, expected, "other replies, {}", context());
        let closed = matches!(expected.last(), Some(Said::Close(..)));
        let end = if closed { End::Closed } else { End::Waiting };
        assert_eq!(replies.end, end, "broken replies, {}", context());
    }
}

/// Streams up to this length are also fed byte by byte.
const SHORT: usize = 600;

/// Events of a connection for a stream.
#[derive(Debug, Default)]
struct Heard {
    said: Vec<Said>,
    open: Option<(Kind, Vec<u8>)>,
    fault: Option<PeerMisbehaved>,
    replies: Vec<u8>,
}

struct Listener {
    connection: Connection,
    shared: PerThread,
    assembly: Vec<u8>,
    held: Vec<u8>,
    /// Bytes that the connection needs before its next event.
    wanted: usize,
    assembly_max: usize,
    heard: Heard,
}

impl Listener {
    fn chunk(&mut self, chunk: &[u8]) {
        self.held.extend_from_slice(chunk);
        let early = chunk.len() < self.wanted;
        self.wanted = self.wanted.saturating_sub(chunk.len());
        let mut at = 0;
        loop {
            let assembly = &mut self.assembly;
            let given = self.held.len() - at;
            let received =
                self.connection.receive(&mut self.held[at..], assembly, &mut self.shared, Time::ZERO);
            assert!(self.assembly.capacity() <= self.assembly_max, "an assembly beyond the limit");
            let (consumed, event) = match received {
                Ok(Received { consumed, event, .. }) => (consumed, event),
                Err(fault) => {
                    assert!(!early, "{fault} was found before the bytes it was waiting for");
                    assert_eq!(self.heard.fault.replace(fault), None, "a second fault");
                    self.reply();
                    continue;
                }
            };
            assert!(consumed <= given, "more was used than was given");
            if let Event::NeedMore(need) = event {
                assert!(need > 0, "nothing is needed");
                at += consumed;
                assert!(self.held.len() - at <= HELD_MAX, "{} bytes are left over", self.held.len() - at);
                self.wanted = need;
                break;
            }
            assert!(!early, "{event:?} came before the bytes it was waiting for");
            self.event(event, at);
            at += consumed;
            self.reply();
        }
        self.held.drain(..at);
    }

    fn event(&mut self, event: Event, at: usize) {
        let input = &self.held[at..];
        let bytes = |place: PayloadLocation, assembly: &[u8]| match place {
            PayloadLocation::Input(range) => input[range].to_vec(),
            PayloadLocation::Assembly => assembly.to_vec(),
        };
        let said = match event {
            Event::Message { kind, at } => Said::Message(kind, bytes(at, &self.assembly)),
            Event::Fragment { kind, at, first, last } => {
                let piece = bytes(at, &self.assembly);
                assert_eq!(first, self.heard.open.is_none(), "first piece");
                let open = self.heard.open.get_or_insert_with(|| (kind, Vec::new()));
                assert_eq!(open.0, kind, "the kind changes inside a message");
                open.1.extend_from_slice(&piece);
                if !last {
                    return;
                }
                let Some((kind, content)) = self.heard.open.take() else { return };
                Said::Message(kind, content)
            }
            Event::Ping(range) => Said::Ping(input[range].to_vec()),
            Event::Pong { at, answers } => {
                assert_eq!(answers, None::<Duration>, "no ping was sent");
                Said::Pong(input[at].to_vec())
            }
            Event::Close { code, reason, answers } => {
                assert!(!answers, "we did not close");
                Said::Close(code.map(CloseCode::as_u16), input[reason].to_vec())
            }
            Event::NeedMore(_) => return,
        };
        self.heard.said.push(said);
    }

    fn reply(&mut self) {
        self.connection.write_control(&mut self.shared, &mut self.heard.replies, Time::ZERO);
    }
}

/// Maximum unconsumed bytes: a control frame without its last byte, as the documentation of
/// [`Event::NeedMore`] states.
const HELD_MAX: usize = 130;

/// Builds a stream of mostly valid frames.
fn build(input: &mut Input<'_>, setup: &Setup) -> Vec<u8> {
    let mut stream = Vec::new();
    let mut open = false;
    while !input.is_empty() && stream.len() < BUILT_MAX {
        let what = input.byte();
        let len = match what >> 5 {
            0 => 0,
            1..=5 => input.below(24),
            6 => 110 + input.below(32),
            _ => input.below(1200),
        };
        // Payload beyond the input is generated.
        let mut payload = input.take(len).to_vec();
        payload.resize(len, b'a');
        let (opcode, fin) = match what & 15 {
            0..=2 => (u8::from(!open) * (1 + what % 2), true),
            3..=6 => (u8::from(!open) * (1 + what % 2), false),
            7 | 8 => (9, true),
            9 => (10, true),
            10 => (8, true),
            _ => (input.byte() & 15, input.flag()),
        };
        open = if opcode < 8 { !fin } else { open };
        let odd = if what & 16 != 0 { input.byte() } else { 0 };
        let rsv = if odd & 8 != 0 { odd >> 4 & 7 } else { 0 };
        let masked = (setup.rules.role == Role::Server) != (odd & 7 == 7);
        let long = usize::from(odd & 7 == 6) + 2 * usize::from(odd & 7 == 5);
        frame(&mut stream, u8::from(fin) << 7 | rsv << 4 | opcode, &payload, masked, long);
    }
    stream
}

/// Appends a frame; `long` encodes its length in a longer form than necessary.
pub(crate) fn frame(stream: &mut Vec<u8>, first: u8, payload: &[u8], masked: bool, long: usize) {
    let len = payload.len();
    let form = long.max(usize::from(len > 125) + usize::from(len > 65_535));
    let mask_bit = u8::from(masked) << 7;
    stream.push(first);
    match form {
        0 => stream.push(len as u8 | mask_bit),
        1 => {
            stream.push(126 | mask_bit);
            stream.extend_from_slice(&(len as u16).to_be_bytes());
        }
        _ => {
            stream.push(127 | mask_bit);
            stream.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    let key = if masked { [0x5a, 0xc3, len as u8, 0x11] } else { [0; 4] };
    if masked {
        stream.extend_from_slice(&key);
    }
    stream.extend(payload.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key));
}

/// Stream length at which building stops.
const BUILT_MAX: usize = 8 << 10;
