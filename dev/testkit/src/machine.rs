//! The machines under test, with reference drivers.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use sinews_proto::{
    Config, Connection, Event, Expired, Kind, Negotiated, PayloadLocation, PeerMisbehaved, PerThread, Role,
    Time, TransportState,
};
use sinews_session::{
    Cause, Chain, Events, Flow, Fragment, Payload, Resources, Session, TransportAction, Tx,
};

use crate::Rng;

/// A machine's event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A whole message.
    Message(Kind, Vec<u8>),
    /// A fragment of a message.
    Fragment {
        /// Text or binary.
        kind: Kind,
        /// The fragment's bytes.
        bytes: Vec<u8>,
        /// It begins the message.
        first: bool,
        /// It ends the message.
        last: bool,
    },
    /// A ping.
    Ping(Vec<u8>),
    /// A pong, with the round-trip time if it answers our keepalive ping.
    Pong(Vec<u8>, Option<Duration>),
    /// The connection has ended, with this close code if any.
    Over(Option<u16>, Cause),
}

/// One end of a connection, of any implementation. Bytes go in and out; the caller sets the time.
pub trait Machine {
    /// Returns this end's role.
    fn role(&self) -> Role;
    /// Delivers received bytes.
    fn deliver(&mut self, chunk: &mut [u8], now: Time);
    /// Reports that the other end has closed the transport.
    fn deliver_end(&mut self, now: Time);
    /// Whether reads are paused.
    fn is_paused(&self) -> bool;
    /// Takes the next output, at most `most` bytes.
    fn take(&mut self, most: usize, now: Time) -> Vec<u8>;
    /// Returns the queued output bytes.
    fn waiting(&self) -> usize;
    /// Returns the next timeout.
    fn deadline(&self) -> Option<Time>;
    /// Handles a timeout.
    fn handle_timeout(&mut self, now: Time);
    /// Returns the next step for the transport.
    fn transport_action(&self) -> TransportAction;
    /// Returns the events so far, in order.
    fn heard(&self) -> &[Heard];
    /// Removes and returns the events so far.
    fn take_heard(&mut self) -> Vec<Heard>;
}

/// An end's reaction to its events.
#[derive(Default)]
pub struct App {
    heard: Vec<Heard>,
    behaviour: Behaviour,
    /// Drain events from the session.
    pub drains: usize,
}

/// A script: receives each event, and can send.
type Script = Box<dyn FnMut(&Heard, &mut Tx<'_>)>;

#[derive(Default)]
enum Behaviour {
    #[default]
    Listen,
    Echo,
    Script(Script),
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").field("heard", &self.heard).finish_non_exhaustive()
    }
}

impl App {
    /// Records events only.
    #[must_use]
    pub fn listener() -> Self {
        Self::default()
    }

    /// Sends each message back, and each fragment in fragment delivery.
    #[must_use]
    pub fn echo() -> Self {
        Self { behaviour: Behaviour::Echo, ..Self::default() }
    }

    /// Runs the script at each event.
    pub fn script(script: impl FnMut(&Heard, &mut Tx<'_>) + 'static) -> Self {
        Self { behaviour: Behaviour::Script(Box::new(script)), ..Self::default() }
    }

    fn hear(&mut self, heard: Heard, tx: &mut Tx<'_>) {
        if let Behaviour::Script(script) = &mut self.behaviour {
            script(&heard, tx);
        }
        self.heard.push(heard);
    }
}

impl Events for App {
    fn message(&mut self, payload: Payload<'_>, tx: &mut Tx<'_>) {
        self.hear(Heard::Message(payload.kind(), payload.to_vec()), tx);
        if let Behaviour::Echo = self.behaviour {
            // After a Close there is no echo.
            let _ = tx.send_payload(payload);
        }
    }

    fn fragment(&mut self, fragment: Fragment<'_>, tx: &mut Tx<'_>) {
        let Fragment { kind, first, last, .. } = fragment;
        let bytes = fragment.bytes.to_vec();
        if let Behaviour::Echo = self.behaviour {
            let _ = tx.send_fragment(kind, &bytes, last);
        }
        self.hear(Heard::Fragment { kind, bytes, first, last }, tx);
    }

    fn ping(&mut self, payload: &[u8], tx: &mut Tx<'_>) {
        self.hear(Heard::Ping(payload.to_vec()), tx);
    }

    fn pong(&mut self, payload: &[u8], answers: Option<Duration>, tx: &mut Tx<'_>) {
        self.hear(Heard::Pong(payload.to_vec(), answers), tx);
    }
}

/// A whole session.
#[derive(Debug)]
pub struct SessionEnd {
    role: Role,
    session: Session,
    resources: Resources,
    app: App,
    in_flight: Option<Box<Chain>>,
    paused: bool,
    /// Reads the next input directly into the message's buffer, if the session lends it. Every other input
    /// does, so that both receive paths are tested, and the transitions between them.
    lends: bool,
}

/// Seed for all test clients' mask keys.
const MASK_SEED: u64 = 0x6d61_736b;

fn seeded_masks() -> impl FnMut() -> [u8; 4] + Send + 'static {
    let mut rng = Rng::new(MASK_SEED);
    move || rng.key()
}

impl SessionEnd {
    /// Creates a session after a handshake.
    #[must_use]
    pub fn new(negotiated: Negotiated, config: Config, app: App, now: Time) -> Self {
        Self {
            role: negotiated.role(),
            session: Session::new(negotiated, Arc::new(config), now),
            resources: Resources::with_masks(seeded_masks()),
            app,
            in_flight: None,
            paused: false,
            lends: false,
        }
    }

    /// Delivers later messages in fragments.
    #[must_use]
    pub fn in_fragments(mut self) -> Self {
        self.session.deliver_fragments(true);
        self
    }

    /// Gives access to the outbound side.
    pub fn act<R>(&mut self, now: Time, act: impl FnOnce(&mut Tx<'_>) -> R) -> R {
        let result = act(&mut self.session.tx(&mut self.resources, now));
        self.session.after_tx(&mut self.resources, now);
        self.tell_end();
        result
    }

    /// Returns the session.
    #[must_use]
    pub const fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the application.
    #[must_use]
    pub const fn app(&self) -> &App {
        &self.app
    }

    fn tell_end(&mut self) {
        if let Some(closed) = self.session.take_closed() {
            self.app.heard.push(Heard::Over(closed.code().map(|code| code.as_u16()), closed.cause()));
        }
        assert!(self.session.take_closed().is_none(), "an end is told once");
    }

    /// Receives into the message's own buffer; returns the received byte count.
    fn append(&mut self, chunk: &[u8], now: Time) -> usize {
        self.lends = !self.lends;
        if !self.lends || self.paused {
            return 0;
        }
        let Some((mut buffer, room)) = self.session.lend_assembly(&mut self.resources) else { return 0 };
        assert!(0 < room && room <= buffer.capacity() - buffer.len(), "the lent buffer has spare capacity");
        let took = chunk.len().min(room);
        buffer.extend_from_slice(&chunk[..took]);
        let flow = self.session.receive_appended(buffer, took, &mut self.resources, now, &mut self.app);
        self.paused = flow == Flow::Pause;
        took
    }

    fn resume(&mut self, now: Time) {
        while self.paused && self.session.wants_resume() {
            let flow = self.session.resume(&mut self.resources, now, &mut self.app);
            self.paused = flow == Flow::Pause;
        }
        self.tell_end();
    }
}

impl Machine for SessionEnd {
    fn role(&self) -> Role {
        self.role
    }

    fn deliver(&mut self, chunk: &mut [u8], now: Time) {
        let at = self.append(chunk, now);
        if at < chunk.len() {
            let flow = self.session.receive(&mut chunk[at..], &mut self.resources, now, &mut self.app);
            self.paused = flow == Flow::Pause;
        }
        self.tell_end();
    }

    fn deliver_end(&mut self, now: Time) {
        self.session.receive_end(now);
        self.tell_end();
    }

    fn is_paused(&self) -> bool {
        self.paused
    }

    fn take(&mut self, most: usize, now: Time) -> Vec<u8> {
        let Some(mut chain) = self.in_flight.take().or_else(|| self.session.start_send()) else {
            return Vec::new();
        };
        let mut slices = [IoSlice::new(&[]); 16];
        let filled = chain.slices(&mut slices);
        let mut taken = Vec::new();
        for slice in &slices[..filled] {
            let len = slice.len().min(most - taken.len());
            taken.extend_from_slice(&slice[..len]);
        }
        chain.advance(taken.len());
        self.session.progressed(taken.len(), now);
        if chain.is_empty() {
            let drained = self.session.finish_send(chain, &mut self.resources, now);
            self.app.drains += usize::from(drained);
            self.resume(now);
        } else {
            self.in_flight = Some(chain);
        }
        taken
    }

    fn waiting(&self) -> usize {
        self.session.buffered()
    }

    fn deadline(&self) -> Option<Time> {
        self.session.deadline()
    }

    fn handle_timeout(&mut self, now: Time) {
        self.session.handle_timeout(&mut self.resources, now);
        self.tell_end();
    }

    fn transport_action(&self) -> TransportAction {
        self.session.transport_action()
    }

    fn heard(&self) -> &[Heard] {
        &self.app.heard
    }

    fn take_heard(&mut self) -> Vec<Heard> {
        std::mem::take(&mut self.app.heard)
    }
}

/// A bare connection machine with a minimal driver: an input buffer and an output buffer.
#[derive(Debug)]
pub struct ConnectionEnd {
    connection: Connection,
    shared: PerThread,
    assembly: Vec<u8>,
    rest: Vec<u8>,
    out: Vec<u8>,
    heard: Vec<Heard>,
    echo: bool,
    over: bool,
    ended: bool,
    dropped: bool,
}

impl ConnectionEnd {
    /// Creates a connection after a handshake, optionally as an echo.
    #[must_use]
    pub fn new(negotiated: Negotiated, config: Config, echo: bool, now: Time) -> Self {
        Self {
            connection: Connection::new(negotiated, Arc::new(config), now),
            shared: PerThread::new(seeded_masks()),
            assembly: Vec::new(),
            rest: Vec::new(),
            out: Vec::new(),
            heard: Vec::new(),
            echo,
            over: false,
            ended: false,
            dropped: false,
        }
    }

    /// Gives access to the machine and its output buffer.
    pub fn act<R>(
        &mut self,
        now: Time,
        act: impl FnOnce(&mut Connection, &mut PerThread, &mut Vec<u8>) -> R,
    ) -> R {
        let result = act(&mut self.connection, &mut self.shared, &mut self.out);
        self.settle(now);
        result
    }

    /// Returns the machine.
    #[must_use]
    pub const fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Returns how many bytes the machine has buffered for an incomplete message.
    #[must_use]
    pub const fn assembly(&self) -> &Vec<u8> {
        &self.assembly
    }

    fn settle(&mut self, now: Time) {
        if !self.dropped {
            self.connection.write_control(&mut self.shared, &mut self.out, now);
        }
        self.connection.note_outbound(self.out.len(), false, now);
    }

    fn over(&mut self, code: Option<u16>, cause: Cause) {
        if !std::mem::replace(&mut self.over, true) {
            self.heard.push(Heard::Over(code, cause));
        }
    }

    fn fault(&mut self, fault: PeerMisbehaved) {
        self.over(Some(fault.close_code().as_u16()), Cause::Fault(fault));
    }

    fn bytes<'a>(at: PayloadLocation, input: &'a [u8], assembly: &'a [u8]) -> &'a [u8] {
        match at {
            PayloadLocation::Input(range) => &input[range],
            PayloadLocation::Assembly => assembly,
        }
    }

    /// Handles an event; `false` once more bytes are needed.
    fn event(&mut self, event: Event, input: &[u8], now: Time) -> bool {
        match event {
            Event::NeedMore(_) => return false,
            Event::Message { kind, at } => {
                let bytes = Self::bytes(at, input, &self.assembly).to_vec();
                if self.echo {
                    // After a Close there is no echo.
                    let _ = self.connection.send(kind, &bytes, &mut self.shared, &mut self.out);
                }
                self.heard.push(Heard::Message(kind, bytes));
            }
            Event::Fragment { kind, at, first, last } => {
                let bytes = Self::bytes(at, input, &self.assembly).to_vec();
                self.heard.push(Heard::Fragment { kind, bytes, first, last });
            }
            Event::Ping(range) => {
                self.heard.push(Heard::Ping(input[range].to_vec()));
                self.connection.write_control(&mut self.shared, &mut self.out, now);
            }
            Event::Pong { at, answers } => self.heard.push(Heard::Pong(input[at].to_vec(), answers)),
            Event::Close { code, answers, .. } => {
                let cause = if answers { Cause::Local } else { Cause::Peer };
                self.over(code.map(|code| code.as_u16()), cause);
            }
        }
        true
    }
}

impl Machine for ConnectionEnd {
    fn role(&self) -> Role {
        self.connection.role()
    }

    fn deliver(&mut self, chunk: &mut [u8], now: Time) {
        let mut input = std::mem::take(&mut self.rest);
        input.extend_from_slice(chunk);
        let mut at = 0;
        loop {
            let rest = &mut input[at..];
            match self.connection.receive(rest, &mut self.assembly, &mut self.shared, now) {
                Ok(received) => {
                    let start = at;
                    at += received.consumed;
                    if !self.event(received.event, &input[start..], now) {
                        break;
                    }
                }
                Err(fault) => {
                    self.fault(fault);
                    at = input.len();
                    break;
                }
            }
        }
        input.drain(..at);
        self.rest = input;
        self.settle(now);
    }

    fn deliver_end(&mut self, now: Time) {
        self.ended = true;
        if !self.connection.receive_end(&mut self.assembly, now) {
            self.over(None, Cause::Ended);
        }
    }

    fn is_paused(&self) -> bool {
        false
    }

    fn take(&mut self, most: usize, now: Time) -> Vec<u8> {
        let rest = self.out.split_off(most.min(self.out.len()));
        let taken = std::mem::replace(&mut self.out, rest);
        self.connection.note_outbound(self.out.len(), !taken.is_empty(), now);
        taken
    }

    fn waiting(&self) -> usize {
        self.out.len()
    }

    fn deadline(&self) -> Option<Time> {
        if self.dropped { None } else { self.connection.deadline() }
    }

    fn handle_timeout(&mut self, now: Time) {
        if let Err(wait) = self.connection.handle_timeout(now) {
            if matches!(wait, Expired::Write | Expired::Close) {
                self.dropped = true;
                self.out.clear();
            }
            self.over(None, Cause::Expired(wait));
        }
        self.settle(now);
    }

    fn transport_action(&self) -> TransportAction {
        match self.connection.transport() {
            _ if self.dropped => TransportAction::Drop,
            TransportState::Open => TransportAction::Open,
            _ if self.ended && self.out.is_empty() => TransportAction::Drop,
            TransportState::Finish => TransportAction::Finish,
            TransportState::AwaitEnd => TransportAction::AwaitEnd,
        }
    }

    fn heard(&self) -> &[Heard] {
        &self.heard
    }

    fn take_heard(&mut self) -> Vec<Heard> {
        std::mem::take(&mut self.heard)
    }
}
