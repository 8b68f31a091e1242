//! An application that records its messages.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use sinews_proto::{CloseCode, Kind, Misuse, Overflow};
use sinews_session::{Events, Fragment, Payload, Prepared, Sent, Tx};

use crate::input::Input;

/// A message, and whether the overflow policy may drop it once it is queued.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) content: Vec<u8>,
    pub(super) droppable: bool,
}

#[derive(Default)]
pub(super) struct App {
    name: &'static str,
    /// Its answers to messages, used cyclically.
    habits: Vec<u8>,
    answered: usize,
    numbers: u32,
    /// Remaining bytes to send, which limits a run.
    budget: usize,
    /// Queued messages that the peer has not received.
    pub(super) sent: VecDeque<Message>,
    /// Received messages that are not yet compared with the peer's.
    pub(super) heard: Vec<Message>,
    /// Fragments of an incomplete incoming message.
    coming: Option<(Kind, Vec<u8>)>,
    /// An outgoing message in fragments.
    pub(super) open: Option<(Kind, Vec<u8>)>,
    /// Messages that it published meanwhile.
    held: Vec<Message>,
    pings: VecDeque<Vec<u8>>,
    pub(super) ping_bytes: usize,
    /// It was throttled and not yet resumed.
    pub(super) slowed: bool,
    /// The first Close that its end decided.
    pub(super) intent: Option<(u16, String)>,
    /// The overflow policy has closed the connection.
    pub(super) overflowed: bool,
    pub(super) longest: usize,
}

/// The first byte of a message that may be answered, and of a message that may not: answers end.
const ASK: u8 = b'?';
const TOLD: u8 = b'.';

impl App {
    pub(super) fn read(name: &'static str, input: &mut Input<'_>) -> Self {
        let habits = (0..1 + input.below(3)).map(|_| input.byte()).collect();
        Self { name, habits, budget: BUDGET, ..Self::default() }
    }

    /// Stops answering messages.
    pub(super) fn fall_silent(&mut self) {
        self.habits.clear();
    }

    /// Performs one action of an application, valid or not.
    pub(super) fn act(&mut self, tx: &mut Tx<'_>, what: u8, input: &mut Input<'_>) {
        let kind = if what & 16 == 0 { Kind::Text } else { Kind::Binary };
        match what % 16 {
            0..=3 => self.send(tx, kind, what % 4, length(input)),
            4 | 5 => {
                let content = self.content(kind, length(input));
                self.send_prepared(tx, &prepare(kind, content));
            }
            6..=8 => self.send_fragment(tx, kind, length(input), what & 32 != 0),
            9 => self.ping(tx, input.below(127)),
            10 if what & 0xe0 == 0xe0 => self.close(tx, input),
            _ => {
                for _ in 0..input.below(12) {
                    self.send(tx, kind, 0, 20);
                }
            }
        }
    }

    fn send(&mut self, tx: &mut Tx<'_>, kind: Kind, how: u8, len: usize) {
        let kind = if how == 2 { Kind::Binary } else { kind };
        let content = self.content(kind, len);
        let before = Before::of(tx);
        let sent = match (how, kind) {
            (2, _) => tx.send_bytes(Bytes::from(content.clone())),
            (_, Kind::Text) => tx.send_text(std::str::from_utf8(&content).expect("made of characters")),
            (_, Kind::Binary) => tx.send_binary(&content),
        };
        if matches!(sent, Ok(Sent::Queued | Sent::Backpressure)) {
            assert!(self.open.is_none(), "{}: queued inside of a message", self.name);
        }
        self.settle(tx, before, sent, Message { kind, content, droppable: false });
    }

    pub(super) fn send_prepared(&mut self, tx: &mut Tx<'_>, message: &Prepared) {
        let content = message.payload().to_vec();
        let before = Before::of(tx);
        let sent = tx.send_prepared(message);
        assert_ne!(sent, Err(Misuse::MessageOpen), "{}: published messages are held", self.name);
        let droppable = tx.config().overflow() == Overflow::DropOldest;
        self.settle(tx, before, sent, Message { kind: message.kind(), content, droppable });
    }

    fn settle(&mut self, tx: &Tx<'_>, before: Before, sent: Result<Sent, Misuse>, message: Message) {
        self.check(tx, before, &sent, message.content.len());
        match sent {
            Ok(Sent::Queued | Sent::Backpressure) => {
                assert!(before.open, "{}: queued where nothing may be", self.name);
                if self.open.is_some() {
                    self.held.push(message);
                } else {
                    self.sent.push_back(message);
                }
            }
            Ok(Sent::Dropped) => {}
            Err(Misuse::MessageOpen) => assert!(self.open.is_some(), "{}: no message is open", self.name),
            Err(Misuse::Closing) => assert!(!before.open, "{}: nothing is closing", self.name),
            Err(other) => panic!("{}: {other}", self.name),
        }
    }

    /// Checks the invariants after a send of this length.
    fn check(&mut self, tx: &Tx<'_>, before: Before, sent: &Result<Sent, Misuse>, len: usize) {
        let waits = tx.buffered();
        let config = tx.config();
        match sent {
            Ok(Sent::Queued) => assert!(waits <= config.high_water(), "{}: not slowed down", self.name),
            Ok(Sent::Backpressure) => {
                assert!(waits > config.high_water(), "{}: slowed down without need", self.name);
                self.slowed = true;
            }
            Ok(Sent::Dropped) => {
                let held: usize = self.held.iter().map(|message| message.content.len() + 10).sum();
                assert!(before.waits + held >= config.max_outbound(), "{}: dropped without need", self.name);
                if config.overflow() == Overflow::Close && before.open {
                    assert!(!tx.is_open(), "{}: open behind an overflow", self.name);
                    self.overflowed = true;
                    self.intent.get_or_insert_with(|| (1008, "too slow".to_owned()));
                }
            }
            Err(_) => {}
        }
        if matches!(sent, Ok(Sent::Queued | Sent::Backpressure)) {
            // Compression adds at most one byte in eight, and a flush takes a few.
            let longest = len + len / 8 + 64;
            assert!(waits <= before.waits + longest, "{}: more was queued than sent", self.name);
            self.longest = self.longest.max(longest);
        }
    }

    /// Sends a fragment of a message, possibly the last. A dropped fragment ends the attempt.
    pub(super) fn send_fragment(&mut self, tx: &mut Tx<'_>, kind: Kind, len: usize, last: bool) {
        let first = self.open.is_none();
        let piece = if first { self.content(kind, len) } else { vec![b'f'; self.spend(len)] };
        let before = Before::of(tx);
        let sent = tx.send_fragment(kind, &piece, last);
        let released: usize = self.held.iter().map(|message| 2 * message.content.len() + 64).sum();
        self.check(tx, before, &sent, piece.len() + if last { released } else { 0 });
        match sent {
            Ok(Sent::Queued | Sent::Backpressure) => {
                assert!(before.open, "{}: queued where nothing may be", self.name);
                let (open, content) = self.open.get_or_insert_with(|| (kind, Vec::new()));
                assert_eq!(*open, kind, "{}: the kind changed", self.name);
                content.extend_from_slice(&piece);
                if let Some((kind, content)) = self.open.take_if(|_| last) {
                    self.sent.push_back(Message { kind, content, droppable: false });
                    self.sent.extend(self.held.drain(..));
                }
            }
            Ok(Sent::Dropped) => {}
            Err(Misuse::MessageOpen) => {
                let other = self.open.as_ref().is_some_and(|(open, _)| *open != kind);
                assert!(other, "{}: the same kind goes on", self.name);
            }
            Err(Misuse::Closing) => assert!(!before.open, "{}: nothing is closing", self.name),
            Err(other) => panic!("{}: {other}", self.name),
        }
    }

    fn ping(&mut self, tx: &mut Tx<'_>, len: usize) {
        if self.pings.len() == PINGS_MAX {
            return;
        }
        self.numbers += 1;
        let mut payload = format!("ping {}", self.numbers).into_bytes();
        payload.resize(payload.len().max(len), b'.');
        let before = Before::of(tx);
        let sent = tx.send_ping(&payload);
        self.check(tx, before, &sent, payload.len());
        match sent {
            Ok(Sent::Dropped) => {}
            Ok(Sent::Queued | Sent::Backpressure) => {
                assert!(payload.len() <= 125, "{}: a ping of {}", self.name, payload.len());
                self.ping_bytes += payload.len() + 14;
                self.pings.push_back(payload);
            }
            Err(Misuse::PingTooLong) => assert!(payload.len() > 125),
            Err(Misuse::Closing) => assert!(!tx.is_open(), "{}: nothing is closing", self.name),
            Err(other) => panic!("{}: {other}", self.name),
        }
    }

    fn close(&mut self, tx: &mut Tx<'_>, input: &mut Input<'_>) {
        let code = [1000, 1001, 3000, 4999][input.below(4)];
        let reason = "r".repeat(input.below(126));
        self.close_with(tx, code, &reason);
    }

    pub(super) fn close_with(&mut self, tx: &mut Tx<'_>, code: u16, reason: &str) {
        let open = tx.is_open();
        match tx.close(CloseCode::new(code).expect("it may be sent"), reason) {
            Ok(()) => {
                assert!(open && reason.len() <= 123, "{}: closed twice or at length", self.name);
                self.intent.get_or_insert_with(|| (code, reason.to_owned()));
            }
            Err(Misuse::ReasonTooLong) => assert!(reason.len() > 123),
            Err(Misuse::Closing) => assert!(!open, "{}: nothing is closing", self.name),
            Err(other) => panic!("{}: {other}", self.name),
        }
    }

    /// Generates a unique message, if its number fits.
    pub(super) fn content(&mut self, kind: Kind, len: usize) -> Vec<u8> {
        let len = self.spend(len);
        self.numbers += 1;
        let asks = self.numbers.is_multiple_of(3);
        let mut content = vec![if asks { ASK } else { TOLD }];
        content.extend_from_slice(format!("{}{}", self.name, self.numbers).as_bytes());
        let pair = if kind == Kind::Text { "\u{e9}".as_bytes() } else { &[0xff, 0x00] };
        content.extend_from_slice(&pair.repeat(len.saturating_sub(content.len()) / 2));
        content.resize(content.len().max(len), b'!');
        content.truncate(len.max(1));
        if len == 0 { Vec::new() } else { content }
    }

    /// Takes up to this length from the budget.
    fn spend(&mut self, len: usize) -> usize {
        let len = len.min(self.budget);
        self.budget -= len;
        len
    }
}

pub(super) fn prepare(kind: Kind, content: Vec<u8>) -> Prepared {
    match kind {
        Kind::Text => Prepared::text(String::from_utf8(content).expect("made of characters")),
        Kind::Binary => Prepared::binary(content),
    }
}

/// State before a send.
#[derive(Clone, Copy)]
struct Before {
    waits: usize,
    open: bool,
}

impl Before {
    fn of(tx: &Tx<'_>) -> Self {
        Self { waits: tx.buffered(), open: tx.is_open() }
    }
}

/// Lengths at the thresholds of behavior: forms of the frame header, copies and references, hand-over.
pub(super) fn length(input: &mut Input<'_>) -> usize {
    let what = input.byte();
    let more = usize::from(what >> 4);
    match what & 15 {
        0 => more,
        1..=6 => 10 + 8 * more,
        7 => 118 + more,
        8..=10 => 200 + 16 * more,
        11 | 12 => 1000 + 100 * more,
        13 => 4090 + more,
        14 => (16 << 10) - 8 + 64 * more,
        _ => (64 << 10) - 8 + more,
    }
}

impl Events for App {
    fn message(&mut self, mut payload: Payload<'_>, tx: &mut Tx<'_>) {
        let (kind, content) = (payload.kind(), payload.to_vec());
        self.heard.push(Message { kind, content: content.clone(), droppable: false });
        if content.first() != Some(&ASK) || self.habits.is_empty() {
            return;
        }
        let habit = self.habits[self.answered % self.habits.len()];
        self.answered += 1;
        match habit % 8 {
            0..=3 => {
                if self.spend(content.len()) < content.len() {
                    return;
                }
                payload[0] = TOLD;
                let content = payload.to_vec();
                let before = Before::of(tx);
                let sent = tx.send_payload(payload);
                self.settle(tx, before, sent, Message { kind, content, droppable: false });
            }
            4 => drop(payload.detach()),
            5 => self.act(tx, habit >> 3, &mut Input::new(&[0x29, 0x48, 0x35])),
            6 => self.send_fragment(tx, Kind::Text, 30, habit & 8 != 0),
            _ if habit >= 0xf0 => self.close_with(tx, 4000, "enough"),
            _ => {}
        }
    }

    fn fragment(&mut self, fragment: Fragment<'_>, _: &mut Tx<'_>) {
        assert_eq!(fragment.first, self.coming.is_none(), "{}: first piece", self.name);
        let (kind, content) = self.coming.get_or_insert_with(|| (fragment.kind, Vec::new()));
        assert_eq!(*kind, fragment.kind, "{}: the kind changes inside a message", self.name);
        content.extend_from_slice(fragment.bytes);
        if let Some((kind, content)) = self.coming.take_if(|_| fragment.last) {
            self.heard.push(Message { kind, content, droppable: false });
        }
    }

    fn pong(&mut self, payload: &[u8], answers: Option<Duration>, _: &mut Tx<'_>) {
        if !payload.starts_with(b"ping") {
            assert_eq!(payload.len(), 4, "{}: a pong to nothing", self.name);
            return;
        }
        assert_eq!(answers, None, "{}: that ping was not the keepalive's", self.name);
        // Pings may stay unanswered, but no answer is repeated or out of order.
        let place = self.pings.iter().position(|ping| ping == payload);
        let place = place.unwrap_or_else(|| panic!("{}: a pong to nothing", self.name));
        self.pings.drain(..=place);
    }
}

/// Bytes that each application sends.
const BUDGET: usize = 200 << 10;

/// Maximum unanswered pings: below the peer's limit on bursts.
const PINGS_MAX: usize = 100;
