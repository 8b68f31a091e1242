use std::collections::VecDeque;
use std::time::Duration;

use sinews_proto::{Config, Negotiated, Role, Time};
use sinews_session::Fate;

use crate::chunks::Chunks;
use crate::reader::{Reader, Reply};
use crate::{App, Codec, ConnectionEnd, Frame, Heard, Machine, SessionEnd};

/// One machine against a peer that sends whatever it likes.
#[derive(Debug)]
pub struct Probe<M> {
    /// The machine under test.
    pub machine: M,
    /// The time of both.
    pub now: Time,
    reader: Reader,
    replies: Vec<Reply>,
    /// Sent by the peer, and not yet taken by a machine that pauses.
    inbox: VecDeque<Vec<u8>>,
    /// How much of a send leaves at once.
    takes: Chunks,
    reads: bool,
    output: Vec<u8>,
}

impl Probe<SessionEnd> {
    /// A session that echoes.
    #[must_use]
    pub fn session(negotiated: Negotiated, config: Config) -> Self {
        Self::new(SessionEnd::new(negotiated, config, App::echo(), Time::ZERO), negotiated)
    }
}

impl Probe<ConnectionEnd> {
    /// A bare connection machine that echoes.
    #[must_use]
    pub fn connection(negotiated: Negotiated, config: Config) -> Self {
        Self::new(ConnectionEnd::new(negotiated, config, true, Time::ZERO), negotiated)
    }
}

impl<M: Machine> Probe<M> {
    /// A machine that was opened with this ticket.
    #[must_use]
    pub fn new(machine: M, negotiated: Negotiated) -> Self {
        let role = negotiated.role();
        let codec = negotiated.deflate().map(|params| Codec::new(other(role), params));
        Self {
            machine,
            now: Time::ZERO,
            reader: Reader::new(role, codec),
            replies: Vec::new(),
            inbox: VecDeque::new(),
            takes: Chunks::Whole,
            reads: true,
            output: Vec::new(),
        }
    }

    /// How much of a send leaves at once. Default: all.
    #[must_use]
    pub const fn taking(mut self, takes: Chunks) -> Self {
        self.takes = takes;
        self
    }

    /// The peer never reads.
    #[must_use]
    pub const fn deaf(mut self) -> Self {
        self.reads = false;
        self
    }

    /// The peer reads again.
    #[must_use]
    pub const fn hearing(mut self) -> Self {
        self.reads = true;
        self
    }

    /// The role of the peer.
    pub fn peer(&self) -> Role {
        other(self.machine.role())
    }

    /// Sends a frame, cut.
    pub fn send_frame(&mut self, frame: &Frame, chunks: Chunks) {
        let bytes = frame.encode(self.peer());
        self.send(&bytes, chunks);
    }

    /// Sends bytes, cut, and lets the machine answer in between.
    pub fn send(&mut self, mut bytes: &[u8], chunks: Chunks) {
        let mut cutter = chunks.start();
        while !bytes.is_empty() {
            let (chunk, rest) = bytes.split_at(cutter.next(bytes.len()));
            self.inbox.push_back(chunk.to_vec());
            bytes = rest;
            self.pump();
        }
        self.pump();
    }

    /// Ends the peer's side of the transport.
    pub fn end(&mut self) {
        self.machine.deliver_end(self.now);
        self.pump();
    }

    /// Moves bytes until nothing moves.
    pub fn pump(&mut self) {
        let mut takes = self.takes.start();
        loop {
            let mut moved = false;
            if !self.machine.is_paused()
                && let Some(mut chunk) = self.inbox.pop_front()
            {
                self.machine.deliver(&mut chunk, self.now);
                moved = true;
            }
            while self.reads && self.machine.waiting() > 0 {
                let most = takes.next(self.machine.waiting());
                let taken = self.machine.take(most, self.now);
                assert!(!taken.is_empty(), "bytes wait, and none can be taken");
                self.output.extend_from_slice(&taken);
                self.replies.extend(self.reader.read(&taken).expect("the machine speaks the protocol"));
                moved = true;
            }
            if !moved {
                return;
            }
        }
    }

    /// Lets time pass, and wakes the machine whenever it wants.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(deadline) = self.machine.deadline().filter(|deadline| *deadline <= end) {
            self.now = self.now.max(deadline);
            self.machine.handle_timeout(self.now);
            self.pump();
        }
        self.now = end;
    }

    /// What the machine sent since the last call, read.
    pub fn take_replies(&mut self) -> Vec<Reply> {
        std::mem::take(&mut self.replies)
    }

    /// What the machine told its owner since the last call.
    pub fn take_heard(&mut self) -> Vec<Heard> {
        self.machine.take_heard()
    }

    /// All bytes that the machine has sent.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// Bytes that a paused machine has not been given.
    #[must_use]
    pub fn undelivered(&self) -> usize {
        self.inbox.iter().map(Vec::len).sum()
    }

    /// Whether the machine has stopped in the middle of a frame or a message.
    #[must_use]
    pub const fn is_between_messages(&self) -> bool {
        self.reader.is_between_messages()
    }

    /// Sees the transport to its end, as a peer that ends its side at once; answers whether the machine
    /// lets go of it then, without another byte.
    #[must_use]
    pub fn finishes(&mut self) -> bool {
        let sent = self.output.len();
        self.end();
        self.machine.fate() == Fate::Drop && self.output.len() == sent
    }
}

const fn other(role: Role) -> Role {
    match role {
        Role::Client => Role::Server,
        Role::Server => Role::Client,
    }
}
