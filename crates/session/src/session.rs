//! One connection: its protocol machine, buffers, operations in flight and deadlines.

use std::sync::Arc;

use sinews_proto::{
    CloseCode, Config, Connection, Event, Expired, Kind, Misuse, Negotiated, PeerMisbehaved, PerThread,
    Place, Received, Role, Time, Transport,
};

use crate::chain::Chain;
use crate::closed::{Cause, Closed};
use crate::outbound::Outbound;
use crate::payload::{Fragment, Payload};
use crate::pool::Pool;
use crate::traffic::Traffic;
use crate::tx::Tx;

/// State shared by the connections of one thread: spare buffers, deflate contexts, mask keys.
#[derive(Debug)]
pub struct Resources {
    pub(crate) shared: PerThread,
    pub(crate) pool: Pool,
    pub(crate) traffic: Traffic,
}

impl Resources {
    /// Creates resources with mask keys from the operating system's random source.
    #[must_use]
    pub fn new() -> Self {
        Self::with_masks(crate::masks::from_os())
    }

    /// Creates resources with the caller's mask keys. Tests pass seeded keys.
    pub fn with_masks(masks: impl FnMut() -> [u8; 4] + Send + 'static) -> Self {
        Self { shared: PerThread::new(masks), pool: Pool::default(), traffic: Traffic::default() }
    }
}

impl Resources {
    /// Frees the spare memory that no message has used since the last call. Returns whether some is left. A
    /// driver calls it every few seconds until it returns `false`.
    pub fn release_idle(&mut self) -> bool {
        let large = self.shared.release_idle();
        self.pool.release_idle() || large
    }

    /// Traffic counters of the thread's sessions.
    #[must_use]
    #[inline]
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Pool of spare buffers of at most 64 KiB, for inbound and outbound messages.
    #[must_use]
    pub fn spares(&self) -> usize {
        self.pool.spares()
    }

    /// Whether [`release_idle`](Self::release_idle) has memory to free.
    #[must_use]
    pub fn holds_spares(&self) -> bool {
        self.shared.holds_spares() || self.pool.holds_spares()
    }

    /// Reserves capacity for a large payload and its head behind the content of a chain, in the memory of
    /// an earlier message.
    #[inline]
    pub(crate) fn make_room(&mut self, chain: &mut Chain, len: usize) {
        if len > Pool::CAPACITY_MAX {
            chain.write(|arena| self.shared.make_room(arena, len + HEAD_MAX));
        }
    }

    /// Takes the buffer of a delivered message for reuse.
    pub(crate) fn give_assembly(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() > Pool::CAPACITY_MAX {
            self.shared.recycle(buffer);
        } else {
            self.pool.give(buffer);
        }
    }

    /// Takes back a chain that is sent, and the memory of its large payloads.
    #[inline]
    pub(crate) fn take_home(&mut self, mut chain: Box<Chain>) {
        while let Some(buffer) = chain.take_memory() {
            self.shared.recycle(buffer);
        }
        if let Some(arena) = chain.take_large_arena() {
            self.shared.recycle(arena);
        }
        self.pool.give_chain(chain);
    }
}

impl Default for Resources {
    fn default() -> Self {
        Self::new()
    }
}

/// Longest head of a frame (RFC 6455 section 5.2).
const HEAD_MAX: usize = 14;

/// Callbacks of the application for received messages. The views are borrowed for the call.
pub trait Events {
    /// A whole message.
    fn message(&mut self, payload: Payload<'_>, tx: &mut Tx<'_>);

    /// A piece of a message, after [`Session::deliver_fragments`].
    fn fragment(&mut self, fragment: Fragment<'_>, tx: &mut Tx<'_>) {
        let _ = (fragment, tx);
    }

    /// A ping. The session answers it.
    fn ping(&mut self, payload: &[u8], tx: &mut Tx<'_>) {
        let _ = (payload, tx);
    }

    /// A pong. `answers` is the round-trip time of the newest keepalive ping, if this pong answers it.
    fn pong(&mut self, payload: &[u8], answers: Option<std::time::Duration>, tx: &mut Tx<'_>) {
        let _ = (payload, answers, tx);
    }

    /// Called after each event. `true` leaves the rest of the input until [`Session::resume`], as if the
    /// outbound queue had passed [`Config::high_water`]. A driver that returns `true` must know when to
    /// resume.
    fn pauses(&self) -> bool {
        false
    }
}

/// The result of one [`Session::pull`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct Pulled {
    /// Consumed bytes of the input.
    pub consumed: usize,
    /// The event that they encode.
    pub event: Option<Arrived>,
}

/// A received event, for an owner that pulls.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "an owner must handle each")]
pub enum Arrived {
    /// A whole message.
    Message {
        /// Text (which is valid UTF-8) or binary.
        kind: Kind,
        /// The payload: a range of the input, or all of [`Session::assembled`].
        at: Place,
    },
    /// A piece of a message, after [`Session::deliver_fragments`]; see [`Event::Fragment`].
    Fragment {
        /// Text or binary.
        kind: Kind,
        /// The bytes of the piece.
        at: Place,
        /// Whether the message begins here.
        first: bool,
        /// Whether the message ends here.
        last: bool,
    },
    /// A ping, with the range of its payload in the input. The session answers it.
    Ping(std::ops::Range<usize>),
    /// A pong.
    Pong {
        /// The payload.
        at: std::ops::Range<usize>,
        /// The round-trip time of the newest keepalive ping, if this pong answers it.
        answers: Option<std::time::Duration>,
    },
    /// The peer's Close. [`Session::take_closed`] returns it.
    Close,
}

impl Arrived {
    /// Shifts the ranges by `offset`, for an input with `offset` more bytes in front.
    #[must_use]
    #[inline]
    pub fn behind(mut self, offset: usize) -> Self {
        match &mut self {
            Self::Message { at: Place::Input(at), .. }
            | Self::Fragment { at: Place::Input(at), .. }
            | Self::Ping(at)
            | Self::Pong { at, .. } => *at = at.start + offset..at.end + offset,
            Self::Message { .. } | Self::Fragment { .. } | Self::Close => {}
        }
        self
    }

    const fn is_in_assembly(&self) -> bool {
        matches!(self, Self::Message { at: Place::Assembly, .. } | Self::Fragment { at: Place::Assembly, .. })
    }
}

/// Whether the driver continues to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[allow(clippy::exhaustive_enums, reason = "a driver must handle both")]
pub enum Flow {
    /// Pass the next received bytes.
    Continue,
    /// The outbound queue has passed [`Config::high_water`]. Pass nothing until [`Session::wants_resume`]
    /// returns `true`. That includes the peer's end of the transport, which follows the retained input.
    Pause,
}

/// One WebSocket connection: everything between a protocol machine and a socket.
///
/// A driver passes received bytes ([`receive`](Self::receive), [`receive_end`](Self::receive_end)), sends
/// queued bytes ([`start_send`](Self::start_send), [`progressed`](Self::progressed),
/// [`finish_send`](Self::finish_send)), and queries the next step: [`fate`](Self::fate),
/// [`deadline`](Self::deadline), [`take_closed`](Self::take_closed).
#[derive(Debug)]
pub struct Session {
    pub(crate) connection: Connection,
    pub(crate) outbound: Outbound,
    /// Unprocessed input: part of a head or of a control frame, or, while paused, the rest of a chunk.
    pub(crate) rest: Vec<u8>,
    /// The message under assembly.
    pub(crate) assembly: Vec<u8>,
    /// The capacity of the assembly while it is lent to a driver, saturated at 4 GiB.
    pub(crate) lent_bytes: u32,
    pub(crate) paused: bool,
    /// The peer closed the transport.
    pub(crate) ended: bool,
    pub(crate) dropped: bool,
    /// Bytes for the same peer that are queued outside of this session.
    pub(crate) elsewhere: usize,
    pub(crate) closed: ClosedState,
}

/// Smallest remainder of a message for which lending the assembly buffer pays off.
const LARGE_MIN: u64 = 64 << 10;

/// Growth factor: the lent capacity per received byte. A message of 1 MiB takes two receives.
const LARGE_FACTOR: usize = 4;

/// Largest single receive into the assembly: the bytes are unmasked while they are in the second-level
/// cache.
const LARGE_PIECE: usize = 1 << 20;

#[derive(Debug)]
pub(crate) enum ClosedState {
    Open,
    /// Ended, but not yet reported.
    Due(Box<Closed>),
    Told,
}

/// The driver's next action on the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a driver must handle each")]
pub enum Fate {
    /// Continue.
    Open,
    /// Send the queued bytes, shut down the sending side, discard received bytes. Close at the peer's end
    /// of the transport or at the deadline.
    Finish,
    /// Send the queued bytes. Close at the peer's end of the transport or at the deadline.
    AwaitEnd,
    /// Close immediately.
    Drop,
}

impl Session {
    /// Creates a session for a completed handshake.
    #[must_use]
    pub fn new(negotiated: Negotiated, config: Arc<Config>, now: Time) -> Self {
        Self::with_outbound(negotiated, config, now, Outbound::default())
    }

    /// Creates a session for a handshake whose response, and possibly earlier bytes, are still in
    /// `outbound`.
    #[must_use]
    pub fn with_outbound(negotiated: Negotiated, config: Arc<Config>, now: Time, outbound: Outbound) -> Self {
        Self {
            connection: Connection::new(negotiated, config, now),
            outbound,
            rest: Vec::new(),
            assembly: Vec::new(),
            lent_bytes: 0,
            paused: false,
            ended: false,
            dropped: false,
            elsewhere: 0,
            closed: ClosedState::Open,
        }
    }

    /// Delivers later messages in pieces ([`Events::fragment`]), so that a message may exceed the available
    /// memory.
    pub fn deliver_fragments(&mut self, fragments: bool) {
        self.connection.deliver_fragments(fragments);
    }

    /// Handles received bytes, in place.
    #[inline]
    pub fn receive(
        &mut self,
        chunk: &mut [u8],
        resources: &mut Resources,
        now: Time,
        events: &mut impl Events,
    ) -> Flow {
        let mut at = 0;
        if !self.rest.is_empty() {
            at = self.receive_behind_rest(chunk, resources, now, events);
        }
        if self.rest.is_empty() && !self.paused {
            at += self.handle(&mut chunk[at..], resources, now, events).0;
        }
        if at < chunk.len() {
            self.rest.extend_from_slice(&chunk[at..]);
        }
        self.after_input(resources, now)
    }

    /// Reads `input` up to the next event, in place, for an owner that takes events one by one instead of
    /// receiving callbacks. The input is the unconsumed rest of the earlier pull, followed by the newly
    /// received bytes. Bytes that are not [`consumed`](Pulled::consumed) must be passed again. If
    /// [`Pulled::event`] is `None`, at most 130 bytes are left, and the next event requires more input.
    ///
    /// The owner controls the pace: this method never pauses. A session is used either with this method or
    /// with [`receive`](Self::receive).
    #[inline]
    pub fn pull(&mut self, input: &mut [u8], resources: &mut Resources, now: Time) -> Pulled {
        self.settle_assembly(resources);
        if self.assembly.capacity() == 0 && self.connection.inflates() {
            self.assembly = resources.pool.take();
        }
        let received = self.connection.receive(input, &mut self.assembly, &mut resources.shared, now);
        let pulled = match received {
            Ok(Received { consumed, event, .. }) => Pulled { consumed, event: self.pulled(event, input) },
            Err(fault) => {
                self.fault(fault);
                Pulled { consumed: input.len(), event: None }
            }
        };
        if self.assembly.capacity() > 0 && !matches!(&pulled.event, Some(event) if event.is_in_assembly()) {
            self.settle_assembly(resources);
            self.assembly = resources.pool.keep_tight(std::mem::take(&mut self.assembly));
        }
        if self.connection.wants_control() {
            self.after_tx(resources, now);
        }
        pulled
    }

    /// Fast path of [`pull`](Self::pull) for the most frequent case: a complete message at the beginning of
    /// the input. Returns its kind and the range of its payload; the input is consumed up to the end of
    /// that range. `None` in all other cases, including faults: call [`pull`](Self::pull).
    #[inline]
    pub fn pull_whole(&mut self, input: &mut [u8], now: Time) -> Option<(Kind, std::ops::Range<usize>)> {
        if self.assembly.capacity() > 0 {
            return None;
        }
        self.connection.receive_whole(input, now).unwrap_or_else(|fault| {
            self.fault(fault);
            None
        })
    }

    /// [`receive_appended`](Self::receive_appended) for an owner that pulls. Returns the message that these
    /// bytes complete.
    pub fn pull_appended(
        &mut self,
        mut assembly: Vec<u8>,
        appended: usize,
        resources: &mut Resources,
        now: Time,
    ) -> Option<Arrived> {
        self.lent_bytes = 0;
        let mut arrived = None;
        if appended > 0 {
            match self.connection.receive_appended(&mut assembly, appended, now) {
                Ok(event) => arrived = self.pulled(event, &[]),
                Err(fault) => self.fault(fault),
            }
        }
        self.assembly = assembly;
        if arrived.is_none() {
            self.settle_assembly(resources);
        }
        self.after_tx(resources, now);
        arrived
    }

    /// Whether a [`pull`](Self::pull) from this input yields an event ([`Connection::holds_event`]).
    #[must_use]
    #[inline]
    pub fn holds_event(&self, input: &[u8]) -> bool {
        self.connection.is_receiving() && self.connection.holds_event(input)
    }

    /// Number of payload bytes that a driver may receive into the application's memory
    /// ([`Connection::awaits_piece`]), in fragment delivery.
    #[must_use]
    pub fn awaits_piece(&self) -> u64 {
        self.connection.awaits_piece()
    }

    /// Whether these bytes end the message ([`Connection::awaits_last_piece`]).
    #[must_use]
    pub fn awaits_last_piece(&self) -> bool {
        self.connection.awaits_last_piece()
    }

    /// Whether the next [`pull`](Self::pull) from this input may end the current message without further
    /// payload ([`Connection::may_end`]).
    #[must_use]
    pub fn may_end(&self, input: &[u8]) -> bool {
        self.connection.is_receiving() && self.connection.may_end(input)
    }

    /// Processes payload bytes in place ([`Connection::receive_piece`]). Returns whether they end their
    /// message, or `None` if the connection has ended.
    pub fn receive_piece(
        &mut self,
        piece: &mut [u8],
        resources: &mut Resources,
        now: Time,
    ) -> Option<(Kind, bool)> {
        let handled = self.connection.receive_piece(piece, now).unwrap_or_else(|fault| {
            self.fault(fault);
            None
        });
        self.after_tx(resources, now);
        handled
    }

    /// The message of the last pull that returned [`Place::Assembly`]. The next pull drops its remaining
    /// bytes.
    pub fn assembled(&mut self) -> &mut Vec<u8> {
        &mut self.assembly
    }

    /// Returns the memory of a delivered message to the pool.
    #[inline]
    pub fn settle_assembly(&mut self, resources: &mut Resources) {
        if self.assembly.capacity() > 0 && !self.connection.holds_assembly() {
            resources.give_assembly(std::mem::take(&mut self.assembly));
        }
    }

    #[inline]
    fn pulled(&mut self, event: Event, input: &[u8]) -> Option<Arrived> {
        Some(match event {
            Event::NeedMore(_) => return None,
            Event::Message { kind, at } => Arrived::Message { kind, at },
            Event::Fragment { kind, at, first, last } => Arrived::Fragment { kind, at, first, last },
            Event::Ping(at) => Arrived::Ping(at),
            Event::Pong { at, answers } => Arrived::Pong { at, answers },
            Event::Close { code, reason, answers } => {
                self.close_came(code, &input[reason], answers);
                Arrived::Close
            }
        })
    }

    fn close_came(&mut self, code: Option<CloseCode>, reason: &[u8], answers: bool) {
        let reason = String::from_utf8_lossy(reason).into_owned();
        self.over(Closed::new(code, reason, if answers { Cause::Local } else { Cause::Peer }));
    }

    fn fault(&mut self, fault: PeerMisbehaved) {
        self.over(Closed::new(Some(fault.close_code()), fault.reason().to_owned(), Cause::Fault(fault)));
    }

    /// Whether the outbound queue has passed [`Config::high_water`] and not yet fallen to half of it.
    #[must_use]
    #[inline]
    pub fn is_congested(&self) -> bool {
        self.outbound.congested
    }

    /// Whether a message is being sent in fragments. No other message may begin until it ends.
    #[must_use]
    pub fn is_mid_message(&self) -> bool {
        self.connection.is_mid_message()
    }

    /// The role of this end.
    #[must_use]
    pub fn role(&self) -> Role {
        self.connection.role()
    }

    /// The limits and timeouts.
    #[must_use]
    pub fn config(&self) -> &Config {
        self.connection.config()
    }

    /// Whether the rest of the current message is large enough for a driver to receive it into the buffer
    /// of [`lend_assembly`](Self::lend_assembly) instead of its own.
    #[must_use]
    #[inline]
    pub fn awaits_large(&self) -> bool {
        self.rest.is_empty() && !self.paused && self.connection.awaits_payload() >= LARGE_MIN
    }

    /// Lends the buffer of the current message, and the number of bytes that may be appended. The buffer
    /// has capacity for that many bytes; the driver must not append more. Returns `None` if lending does
    /// not pay off. No other bytes may be received until [`receive_appended`](Self::receive_appended)
    /// returns the buffer.
    pub fn lend_assembly(&mut self, resources: &mut Resources) -> Option<(Vec<u8>, usize)> {
        if !self.awaits_large() {
            return None;
        }
        let mut assembly = std::mem::take(&mut self.assembly);
        // Memory follows the received bytes: a small multiple of their number.
        let most = (LARGE_FACTOR * assembly.len()).clamp(LARGE_MIN as usize, LARGE_PIECE);
        let room = self.connection.make_room(&mut assembly, &mut resources.shared, most);
        self.lent_bytes = u32::try_from(assembly.capacity()).unwrap_or(u32::MAX);
        Some((assembly, room))
    }

    /// Returns the lent buffer with `appended` bytes added by the driver; 0 if none were received.
    pub fn receive_appended(
        &mut self,
        mut assembly: Vec<u8>,
        appended: usize,
        resources: &mut Resources,
        now: Time,
        events: &mut impl Events,
    ) -> Flow {
        self.lent_bytes = 0;
        if appended > 0 {
            match self.connection.receive_appended(&mut assembly, appended, now) {
                Ok(Event::NeedMore(_)) => {}
                Ok(event) => {
                    self.dispatch(event, &mut [], &mut assembly, resources, now, events);
                    self.paused |= self.outbound.congested || events.pauses();
                }
                Err(fault) => self.fault(fault),
            }
        }
        if self.connection.holds_assembly() {
            self.assembly = assembly;
        } else {
            resources.give_assembly(assembly);
        }
        self.after_input(resources, now)
    }

    /// Continues with the input that was left when the session paused.
    pub fn resume(&mut self, resources: &mut Resources, now: Time, events: &mut impl Events) -> Flow {
        if self.paused {
            self.connection.note_unread(now);
        }
        self.paused = false;
        self.handle_rest(resources, now, events);
        self.after_input(resources, now)
    }

    /// The peer closed the transport.
    pub fn receive_end(&mut self, now: Time) {
        self.ended = true;
        let clean = self.connection.receive_end(&mut self.assembly, now);
        // A plain stream ends between messages or within a message. A Close was reported on receipt.
        let cause = if clean && self.rest.is_empty() { Cause::Peer } else { Cause::Ended };
        self.rest = Vec::new();
        self.over(Closed::new(None, String::new(), cause));
    }

    /// Completes the retained input with as few bytes of the chunk as needed. Returns the number of
    /// consumed bytes of the chunk.
    #[cold]
    fn receive_behind_rest(
        &mut self,
        chunk: &[u8],
        resources: &mut Resources,
        now: Time,
        events: &mut impl Events,
    ) -> usize {
        let mut at = 0;
        while !self.rest.is_empty() && !self.paused {
            let need = self.handle_rest(resources, now, events);
            if self.rest.is_empty() || self.paused || at == chunk.len() {
                break;
            }
            let take = need.min(chunk.len() - at);
            self.rest.extend_from_slice(&chunk[at..at + take]);
            at += take;
        }
        at
    }

    /// Processes `rest` as far as possible. Returns the number of missing bytes.
    fn handle_rest(&mut self, resources: &mut Resources, now: Time, events: &mut impl Events) -> usize {
        let mut rest = std::mem::take(&mut self.rest);
        let (used, need) = self.handle(&mut rest, resources, now, events);
        if used < rest.len() {
            rest.drain(..used);
            self.rest = rest;
        }
        need
    }

    /// Processes events until the input is used up or reading pauses. Returns the number of used bytes and
    /// the minimum number of missing bytes. The assembly is borrowed from the pool and stays only if it
    /// holds data.
    #[inline]
    fn handle(
        &mut self,
        input: &mut [u8],
        resources: &mut Resources,
        now: Time,
        events: &mut impl Events,
    ) -> (usize, usize) {
        let mut assembly = std::mem::take(&mut self.assembly);
        if assembly.capacity() == 0 {
            assembly = resources.pool.take();
        }
        let done = self.handle_with(&mut assembly, input, resources, now, events);
        if self.connection.holds_assembly() {
            self.assembly = resources.pool.keep_tight(assembly);
        } else {
            resources.give_assembly(assembly);
        }
        done
    }

    #[inline]
    fn handle_with(
        &mut self,
        assembly: &mut Vec<u8>,
        input: &mut [u8],
        resources: &mut Resources,
        now: Time,
        events: &mut impl Events,
    ) -> (usize, usize) {
        let mut at = 0;
        loop {
            let received = self.connection.receive(&mut input[at..], assembly, &mut resources.shared, now);
            let Received { consumed, event, .. } = match received {
                Ok(received) => received,
                Err(fault) => {
                    self.fault(fault);
                    return (input.len(), 1);
                }
            };
            let start = at;
            at += consumed;
            if let Event::NeedMore(need) = event {
                return (at, need);
            }
            self.dispatch(event, &mut input[start..], assembly, resources, now, events);
            if self.outbound.congested || events.pauses() {
                self.paused = true;
                return (at, 1);
            }
        }
    }

    #[inline]
    fn dispatch(
        &mut self,
        event: Event,
        input: &mut [u8],
        assembly: &mut Vec<u8>,
        resources: &mut Resources,
        now: Time,
        events: &mut impl Events,
    ) {
        let tx = &mut Tx::new(&mut self.connection, &mut self.outbound, resources, now);
        match event {
            Event::Message { kind, at: Place::Input(range) } => {
                events.message(Payload::chunk(kind, &mut input[range]), tx);
            }
            Event::Message { kind, at: Place::Assembly } => {
                events.message(Payload::assembly(kind, assembly), tx);
            }
            Event::Fragment { kind, at, first, last } => {
                let bytes = match at {
                    Place::Input(range) => &mut input[range],
                    Place::Assembly => assembly,
                };
                events.fragment(Fragment::new(kind, bytes, first, last), tx);
            }
            Event::Ping(range) => {
                events.ping(&input[range], tx);
                self.write_control(resources, now);
            }
            Event::Pong { at, answers } => events.pong(&input[at], answers, tx),
            Event::Close { code, reason, answers } => {
                self.close_came(code, &input[reason], answers);
            }
            Event::NeedMore(_) => {}
        }
    }

    fn after_input(&mut self, resources: &mut Resources, now: Time) -> Flow {
        self.write_control(resources, now);
        self.note_outbound(false, now);
        if self.paused { Flow::Pause } else { Flow::Continue }
    }

    /// A view of the outbound side, for sends outside of a message callback. Call
    /// [`after_tx`](Self::after_tx) when done.
    pub fn tx<'a>(&'a mut self, resources: &'a mut Resources, now: Time) -> Tx<'a> {
        Tx::new(&mut self.connection, &mut self.outbound, resources, now)
    }

    /// Applies the effects of a [`tx`](Self::tx).
    pub fn after_tx(&mut self, resources: &mut Resources, now: Time) {
        self.write_control(resources, now);
        self.note_outbound(false, now);
    }

    /// The timeout that ends the connection at the [`deadline`](Self::deadline): see
    /// [`Connection::awaits`].
    #[must_use]
    pub fn awaits(&self) -> Option<Expired> {
        self.connection.awaits()
    }

    /// Records the time of a sent message: see [`Connection::note_sent`]. Sends through [`tx`](Self::tx)
    /// use the time that was passed to it. This method is for a driver whose time may have been old at that
    /// call.
    pub fn note_sent(&mut self, now: Time) {
        self.connection.note_sent(now);
    }

    /// Records that nothing was read until now: see [`Connection::note_unread`].
    pub fn note_unread(&mut self, now: Time) {
        self.connection.note_unread(now);
    }

    /// Records that the session is driven again: see [`Connection::note_driven`].
    pub fn note_driven(&mut self, since: Time) {
        self.connection.note_driven(since);
    }

    /// Executes the actions that are due, and updates [`deadline`](Self::deadline). While the session is
    /// paused, the peer's silence does not count, since no bytes are read.
    pub fn handle_timeout(&mut self, resources: &mut Resources, now: Time) {
        if self.paused && matches!(self.connection.awaits(), Some(Expired::Idle | Expired::Pong)) {
            self.connection.note_unread(now);
        }
        if let Err(wait) = self.connection.handle_timeout(now) {
            if matches!(wait, Expired::Write | Expired::Close) {
                self.dropped = true;
                self.outbound.discard(resources);
            }
            self.over(Closed::new(None, wait.reason().to_owned(), Cause::Expired(wait)));
        }
        self.write_control(resources, now);
        self.note_outbound(false, now);
    }

    /// Returns all queued bytes for one send. `None` while a send is in flight or the queue is empty.
    /// Return the chain with [`finish_send`](Self::finish_send).
    #[inline]
    pub fn start_send(&mut self) -> Option<Box<Chain>> {
        self.outbound.start()
    }

    /// Whether [`start_send`](Self::start_send) returns a chain.
    #[must_use]
    #[inline]
    pub fn wants_send(&self) -> bool {
        self.outbound.wants_send()
    }

    /// Records that the transport accepts no more bytes for now: the write timeout starts here instead of
    /// at the time of queueing. For a driver whose time may be old when it sends.
    pub fn stalled(&mut self, now: Time) {
        self.connection.note_stalled(now);
    }

    /// Records that `count` bytes of the chain in flight are sent.
    pub fn progressed(&mut self, count: usize, now: Time) {
        self.outbound.progressed(count);
        self.note_outbound(true, now);
    }

    /// Completes the send and takes its chain back. Returns whether the handler's `drain` is due: the queue
    /// has fallen below half of [`Config::high_water`] after it had passed it.
    #[inline]
    pub fn finish_send(&mut self, chain: Box<Chain>, resources: &mut Resources, now: Time) -> bool {
        self.outbound.finish(chain, resources);
        self.note_outbound(true, now);
        let config = self.connection.config();
        if self.outbound.congested && self.outbound.len() <= config.high_water() / 2 {
            self.outbound.congested = false;
            self.write_control(resources, now);
            return true;
        }
        false
    }

    /// Whether only memory depends on [`finish_send`](Self::finish_send): the connection is open, nothing
    /// is queued behind the send in flight and nothing is deferred. The driver may then delay that call.
    /// The next handler call may change the result.
    #[must_use]
    #[inline]
    pub fn finish_may_wait(&self) -> bool {
        let waits = self.outbound.congested || self.outbound.has_gathered();
        self.connection.is_open() && !waits && !self.paused
    }

    /// Closes a connection whose peer lags more than the owner allows: queues a Close behind the pending
    /// bytes and reports [`Cause::Overflow`].
    ///
    /// # Errors
    /// As [`Tx::close`].
    pub fn close_overflown(
        &mut self,
        code: CloseCode,
        reason: &str,
        resources: &mut Resources,
        now: Time,
    ) -> Result<(), Misuse> {
        self.connection.close(code, reason, now)?;
        self.over(Closed::new(Some(code), reason.to_owned(), Cause::Overflow));
        self.after_tx(resources, now);
        Ok(())
    }

    /// Whether the last input ended in [`Flow::Pause`] and has not been resumed yet.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Whether the driver should call [`resume`](Self::resume): the session is paused and the outbound
    /// queue is short enough.
    #[must_use]
    pub fn wants_resume(&self) -> bool {
        self.paused && !self.outbound.congested
    }

    /// Writes pongs and pings while the queue has capacity, so that a ping flood from a peer that does not
    /// read keeps only the newest pong. A Close is always written.
    fn write_control(&mut self, resources: &mut Resources, now: Time) {
        let room = !self.outbound.congested || !self.connection.is_open();
        if self.connection.wants_control() && room && !self.dropped {
            let chain = self.outbound.gathering(resources);
            let connection = &mut self.connection;
            let shared = &mut resources.shared;
            chain.write(|arena| connection.write_control(shared, arena, now));
            if self.outbound.len() > self.connection.config().high_water() {
                self.outbound.congested = true;
            }
        }
        if !self.connection.is_open() {
            self.outbound.forget_held();
        }
        if std::mem::take(&mut self.outbound.overflowed) {
            let reason = "too slow".to_owned();
            self.over(Closed::new(Some(CloseCode::POLICY), reason, Cause::Overflow));
        }
    }

    #[inline]
    pub(crate) fn note_outbound(&mut self, moved: bool, now: Time) {
        self.connection.note_outbound(self.outbound.len() + self.elsewhere, moved, now);
    }

    pub(crate) fn over(&mut self, closed: Closed) {
        if matches!(self.closed, ClosedState::Open) {
            self.closed = ClosedState::Due(Box::new(closed));
        }
    }

    /// Returns the cause of the connection's end, once: after the peer's Close, a fault, a timeout, or the
    /// end of the transport.
    pub fn take_closed(&mut self) -> Option<Closed> {
        if !matches!(self.closed, ClosedState::Due(_)) {
            return None;
        }
        match std::mem::replace(&mut self.closed, ClosedState::Told) {
            ClosedState::Due(closed) => Some(*closed),
            _ => None,
        }
    }

    /// The driver's next action on the transport.
    #[must_use]
    #[inline]
    pub fn fate(&self) -> Fate {
        match self.connection.transport() {
            _ if self.dropped => Fate::Drop,
            Transport::Open => Fate::Open,
            _ if self.ended && self.outbound.is_empty() => Fate::Drop,
            Transport::Finish => Fate::Finish,
            Transport::AwaitEnd => Fate::AwaitEnd,
        }
    }

    /// Time at which to call [`handle_timeout`](Self::handle_timeout). It may move to a later time without
    /// notice, so a driver checks it again when the known time is reached.
    #[must_use]
    #[inline]
    pub fn deadline(&self) -> Option<Time> {
        if self.dropped { None } else { self.connection.deadline() }
    }

    /// Queued bytes, including the send in flight.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.outbound.len()
    }

    /// Bytes of memory held for incomplete input, including a lent assembly.
    #[must_use]
    pub fn incomplete(&self) -> usize {
        self.assembly.capacity() + self.lent_bytes as usize + self.rest.capacity()
    }

    /// Whether data may still be sent.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.connection.is_open() && !self.dropped
    }
}
