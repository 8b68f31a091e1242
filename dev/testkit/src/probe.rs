use std::collections::VecDeque;
use std::time::Duration;

use sinews_proto::{Config, Negotiated, Role, Time};
use sinews_session::TransportAction;

use crate::chunks::Chunks;
use crate::reader::{Reader, Reply};
use crate::{App, Codec, ConnectionEnd, Frame, Heard, Machine, SessionEnd};

/// One machine against a peer that sends arbitrary bytes.
#[derive(Debug)]
pub struct Probe<M> {
    /// The machine under test.
    pub machine: M,
    /// The time at both ends.
    pub now: Time,
    reader: Reader,
    replies: Vec<Reply>,
    /// Sent by the peer, and not yet delivered to a paused machine.
    inbox: VecDeque<Vec<u8>>,
    /// Partial-send sizes.
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
    /// A machine with this handshake result.
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

    /// Sets the partial-send sizes. Default: all bytes at once.
    #[must_use]
    pub const fn taking(mut self, takes: Chunks) -> Self {
        self.takes = takes;
        self
    }

    /// Stops the peer's reads.
    #[must_use]
    pub const fn deaf(mut self) -> Self {
        self.reads = false;
        self
    }

    /// Resumes the peer's reads.
    #[must_use]
    pub const fn hearing(mut self) -> Self {
        self.reads = true;
        self
    }

    /// Returns the peer's role.
    pub fn peer(&self) -> Role {
        other(self.machine.role())
    }

    /// Sends a frame in chunks.
    pub fn send_frame(&mut self, frame: &Frame, chunks: Chunks) {
        let bytes = frame.encode(self.peer());
        self.send(&bytes, chunks);
    }

    /// Sends bytes in chunks, and lets the machine answer in between.
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

    /// Closes the peer's side of the transport.
    pub fn end(&mut self) {
        self.machine.deliver_end(self.now);
        self.pump();
    }

    /// Moves bytes until no progress is possible.
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

    /// Advances the clock, and handles the machine's timeouts.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(deadline) = self.machine.deadline().filter(|deadline| *deadline <= end) {
            self.now = self.now.max(deadline);
            self.machine.handle_timeout(self.now);
            self.pump();
        }
        self.now = end;
    }

    /// Returns the frames that the machine has sent since the last call, parsed.
    pub fn take_replies(&mut self) -> Vec<Reply> {
        std::mem::take(&mut self.replies)
    }

    /// Returns the machine's events since the last call.
    pub fn take_heard(&mut self) -> Vec<Heard> {
        self.machine.take_heard()
    }

    /// Returns all bytes that the machine has sent.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// Returns how many bytes are not yet delivered to a paused machine.
    #[must_use]
    pub fn undelivered(&self) -> usize {
        self.inbox.iter().map(Vec::len).sum()
    }

    /// Whether the machine has stopped in the middle of a frame or a message.
    #[must_use]
    pub const fn is_between_messages(&self) -> bool {
        self.reader.is_between_messages()
    }

    /// Closes the transport from the peer's side at once; returns whether the machine then releases it
    /// without another byte.
    #[must_use]
    pub fn finishes(&mut self) -> bool {
        let sent = self.output.len();
        self.end();
        self.machine.transport_action() == TransportAction::Drop && self.output.len() == sent
    }
}

const fn other(role: Role) -> Role {
    match role {
        Role::Client => Role::Server,
        Role::Server => Role::Client,
    }
}
