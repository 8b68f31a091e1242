//! One connection: its protocol machine, its memory, what is in flight, when it must be looked at.

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

/// What the connections of one thread share: spare buffers, deflate contexts, mask keys.
#[derive(Debug)]
pub struct Resources {
    pub(crate) shared: PerThread,
    pub(crate) pool: Pool,
    pub(crate) traffic: Traffic,
}

impl Resources {
    /// Resources whose mask keys come from the operating system's random source.
    #[must_use]
    pub fn new() -> Self {
        Self::with_masks(crate::masks::from_os())
    }

    /// Resources with mask keys of the caller's; tests want them from a seed.
    pub fn with_masks(masks: impl FnMut() -> [u8; 4] + Send + 'static) -> Self {
        Self { shared: PerThread::new(masks), pool: Pool::default(), traffic: Traffic::default() }
    }
}

impl Resources {
    /// Frees the spare memory that no message has used since the last call, and answers whether some is left.
    /// A driver calls it every few seconds while there is any.
    pub fn release_idle(&mut self) -> bool {
        let large = self.shared.release_idle();
        self.pool.release_idle() || large
    }

    /// What the thread's sessions have sent.
    #[must_use]
    #[inline]
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Spare buffers of at most 64 KiB, for messages on their way in and out.
    #[must_use]
    pub fn spares(&self) -> usize {
        self.pool.spares()
    }

    /// Whether [`release_idle`](Self::release_idle) will have something to free.
    #[must_use]
    pub fn holds_spares(&self) -> bool {
        self.shared.holds_spares() || self.pool.holds_spares()
    }

    /// Makes room for a large payload and its head behind what a chain holds, in memory that an earlier message has
    /// left.
    #[inline]
    pub(crate) fn make_room(&mut self, chain: &mut Chain, len: usize) {
        if len > Pool::CAPACITY_MAX {
            chain.write(|arena| self.shared.make_room(arena, len + HEAD_MAX));
        }
    }

    /// A buffer that held a message, for the next one.
    pub(crate) fn give_assembly(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() > Pool::CAPACITY_MAX {
            self.shared.recycle(buffer);
        } else {
            self.pool.give(buffer);
        }
    }

    /// A chain that has left, and the memory of the large payloads in it.
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

/// What a connection's owner wants to hear. The views are lent for the call.
pub trait Events {
    /// A whole message.
    fn message(&mut self, payload: Payload<'_>, tx: &mut Tx<'_>);

    /// A piece of a message, after [`Session::deliver_fragments`].
    fn fragment(&mut self, fragment: Fragment<'_>, tx: &mut Tx<'_>) {
        let _ = (fragment, tx);
    }

    /// A ping; it is answered without our help.
    fn ping(&mut self, payload: &[u8], tx: &mut Tx<'_>) {
        let _ = (payload, tx);
    }

    /// A pong; `answers` tells how long our newest keepalive ping took, if this answers it.
    fn pong(&mut self, payload: &[u8], answers: Option<std::time::Duration>, tx: &mut Tx<'_>) {
        let _ = (payload, answers, tx);
    }

    /// Asked after each event: whether the rest of the input must wait until
    /// [`Session::resume`], as if what waits to be sent had passed [`Config::high_water`]. The driver that
    /// answers so knows when to go on.
    fn pauses(&self) -> bool {
        false
    }
}

/// What one [`Session::pull`] came to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct Pulled {
    /// Bytes of the input that are done with.
    pub consumed: usize,
    /// What they meant.
    pub event: Option<Arrived>,
}

/// What came, for an owner that pulls.
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
        /// The piece.
        at: Place,
        /// The message begins here.
        first: bool,
        /// The message ends here.
        last: bool,
    },
    /// A ping, which is answered without our help; the range of its payload in the input.
    Ping(std::ops::Range<usize>),
    /// A pong.
    Pong {
        /// The payload.
        at: std::ops::Range<usize>,
        /// How long our newest keepalive ping took, if this answers it.
        answers: Option<std::time::Duration>,
    },
    /// The peer's Close: [`Session::take_closed`] has it.
    Close,
}

impl Arrived {
    /// The same for an input that begins `offset` bytes further to the front.
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

/// Whether the driver goes on receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[allow(clippy::exhaustive_enums, reason = "a driver must handle both")]
pub enum Flow {
    /// Give the next bytes when they come.
    Continue,
    /// Give nothing until [`Session::wants_resume`] says so, the peer's end included, since it stands behind
    /// the input that was kept: what waits to be sent has passed [`Config::high_water`].
    Pause,
}

/// One WebSocket connection: everything between a protocol machine and a socket.
///
/// A driver gives it what comes ([`receive`](Self::receive), [`receive_end`](Self::receive_end)), takes
/// what is to leave ([`start_send`](Self::start_send), [`progressed`](Self::progressed),
/// [`finish_send`](Self::finish_send)), and asks what is next: [`fate`](Self::fate),
/// [`deadline`](Self::deadline), [`take_closed`](Self::take_closed).
#[derive(Debug)]
pub struct Session {
    pub(crate) connection: Connection,
    pub(crate) outbound: Outbound,
    /// Input that could not be used yet: part of a head or of a control frame, or, while paused, the
    /// rest of a chunk.
    pub(crate) rest: Vec<u8>,
    /// A message that is not whole yet.
    pub(crate) assembly: Vec<u8>,
    /// The capacity of the assembly while a driver has it; beyond 4 GiB, that.
    pub(crate) lent_bytes: u32,
    pub(crate) paused: bool,
    /// The peer ended the transport.
    pub(crate) ended: bool,
    pub(crate) dropped: bool,
    /// Bytes that wait outside of this session, to the same peer.
    pub(crate) elsewhere: usize,
    pub(crate) closed: ClosedState,
}

/// Bytes to come for which lending the assembly is worth what it takes.
const LARGE_MIN: u64 = 64 << 10;

/// How many times what has come may be lent for what comes next: a MiB takes two receives then.
const LARGE_FACTOR: usize = 4;

/// Bytes received into it at once: they are unmasked while they are in the second-level cache.
const LARGE_PIECE: usize = 1 << 20;

#[derive(Debug)]
pub(crate) enum ClosedState {
    Open,
    /// Over, and not yet told.
    Due(Box<Closed>),
    Told,
}

/// What the driver does with the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a driver must handle each")]
pub enum Fate {
    /// Go on.
    Open,
    /// Send what is queued, end the sending side, discard what comes, close at the peer's end or at the
    /// deadline.
    Finish,
    /// Send what is queued, and close at the peer's end or at the deadline.
    AwaitEnd,
    /// Close now.
    Drop,
}

impl Session {
    /// A session that a handshake has opened.
    #[must_use]
    pub fn new(negotiated: Negotiated, config: Arc<Config>, now: Time) -> Self {
        Self::with_outbound(negotiated, config, now, Outbound::default())
    }

    /// A session behind a handshake whose answer, and what may have been queued before it, is still on
    /// its way.
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

    /// Delivers the messages that start from now on in pieces ([`Events::fragment`]), so that a message
    /// larger than memory can pass.
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

    /// Reads `input` up to the next event, in place, for an owner that takes one event after the other instead of
    /// being called. The input is what came last, behind what an earlier pull has left over; what is not
    /// [`consumed`](Pulled::consumed) must be given again. With [`Pulled::event`] `None`, at most 130 bytes are left,
    /// and more must come before there is an event.
    ///
    /// The owner pulls only while it wants to hear more: nothing here pauses. A session is either pulled from or
    /// [given](Self::receive) what comes.
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

    /// [`pull`](Self::pull) for the most frequent case, at less cost: a whole message at the beginning of the input.
    /// Answers its kind and where its payload is, with whose end it is consumed. `None`: [`pull`](Self::pull), which
    /// also tells of a fault.
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

    /// [`receive_appended`](Self::receive_appended) for an owner that pulls: the message that is whole by it.
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

    /// Whether a [`pull`](Self::pull) from this input would come to something ([`Connection::holds_event`]): more
    /// to answer follows.
    #[must_use]
    #[inline]
    pub fn holds_event(&self, input: &[u8]) -> bool {
        self.connection.is_receiving() && self.connection.holds_event(input)
    }

    /// Payload bytes that a driver may receive into memory of the application's
    /// ([`Connection::awaits_piece`]), in fragment delivery.
    #[must_use]
    pub fn awaits_piece(&self) -> u64 {
        self.connection.awaits_piece()
    }

    /// Whether the message ends with them ([`Connection::awaits_last_piece`]).
    #[must_use]
    pub fn awaits_last_piece(&self) -> bool {
        self.connection.awaits_last_piece()
    }

    /// Whether the next [`pull`](Self::pull) from this input may end the message under way without further payload
    /// ([`Connection::may_end`]).
    #[must_use]
    pub fn may_end(&self, input: &[u8]) -> bool {
        self.connection.is_receiving() && self.connection.may_end(input)
    }

    /// Handles them where they are ([`Connection::receive_piece`]): whether they end their message, or `None` if the
    /// connection is over.
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

    /// The message that the last pull answered with [`Place::Assembly`]. What is left in it is dropped by the next
    /// pull.
    pub fn assembled(&mut self) -> &mut Vec<u8> {
        &mut self.assembly
    }

    /// Gives the memory of a message that was delivered back.
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

    /// Whether what waits to be sent has passed [`Config::high_water`] and not yet fallen to half of it.
    #[must_use]
    #[inline]
    pub fn is_congested(&self) -> bool {
        self.outbound.congested
    }

    /// Whether a message is being sent in fragments, so that no other may begin.
    #[must_use]
    pub fn is_mid_message(&self) -> bool {
        self.connection.is_mid_message()
    }

    /// The role of this end.
    #[must_use]
    pub fn role(&self) -> Role {
        self.connection.role()
    }

    /// The limits and waits.
    #[must_use]
    pub fn config(&self) -> &Config {
        self.connection.config()
    }

    /// Whether so much of a message is still to come that a driver should receive it into
    /// [`lend_assembly`](Self::lend_assembly)'s buffer instead of its own.
    #[must_use]
    #[inline]
    pub fn awaits_large(&self) -> bool {
        self.rest.is_empty() && !self.paused && self.connection.awaits_payload() >= LARGE_MIN
    }

    /// Lends the buffer of the message under way, and how many bytes may be appended to it: it has capacity
    /// for them, and more must not be. `None` if there is no point in it. Until it is back in
    /// [`receive_appended`](Self::receive_appended), nothing else may be received.
    pub fn lend_assembly(&mut self, resources: &mut Resources) -> Option<(Vec<u8>, usize)> {
        if !self.awaits_large() {
            return None;
        }
        let mut assembly = std::mem::take(&mut self.assembly);
        // Memory follows the bytes received: a few times what has come.
        let most = (LARGE_FACTOR * assembly.len()).clamp(LARGE_MIN as usize, LARGE_PIECE);
        let room = self.connection.make_room(&mut assembly, &mut resources.shared, most);
        self.lent_bytes = u32::try_from(assembly.capacity()).unwrap_or(u32::MAX);
        Some((assembly, room))
    }

    /// The buffer comes back, with so many bytes appended by the driver; none, if nothing came.
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

    /// Goes on with input that was left when the session paused.
    pub fn resume(&mut self, resources: &mut Resources, now: Time, events: &mut impl Events) -> Flow {
        if self.paused {
            self.connection.note_unread(now);
        }
        self.paused = false;
        self.handle_rest(resources, now, events);
        self.after_input(resources, now)
    }

    /// The peer ended the transport.
    pub fn receive_end(&mut self, now: Time) {
        self.ended = true;
        let clean = self.connection.receive_end(&mut self.assembly, now);
        // A plain stream ends between messages, or in one; a Close was told when it came.
        let cause = if clean && self.rest.is_empty() { Cause::Peer } else { Cause::Ended };
        self.rest = Vec::new();
        self.over(Closed::new(None, String::new(), cause));
    }

    /// Completes what is left of the input before, by as few bytes as that needs; answers how many bytes
    /// of the chunk are done with.
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

    /// Handles `rest` as far as possible; answers how many bytes are missing.
    fn handle_rest(&mut self, resources: &mut Resources, now: Time, events: &mut impl Events) -> usize {
        let mut rest = std::mem::take(&mut self.rest);
        let (used, need) = self.handle(&mut rest, resources, now, events);
        if used < rest.len() {
            rest.drain(..used);
            self.rest = rest;
        }
        need
    }

    /// Handles events until the input is used up or reading pauses; answers the bytes used and how many
    /// are missing at least. The assembly is borrowed from the pool and stays only if it holds something.
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

    /// A view of the outbound side, for what does not answer a message. Call
    /// [`after_tx`](Self::after_tx) when done.
    pub fn tx<'a>(&'a mut self, resources: &'a mut Resources, now: Time) -> Tx<'a> {
        Tx::new(&mut self.connection, &mut self.outbound, resources, now)
    }

    /// Settles what a [`tx`](Self::tx) has done.
    pub fn after_tx(&mut self, resources: &mut Resources, now: Time) {
        self.write_control(resources, now);
        self.note_outbound(false, now);
    }

    /// What ends the connection at the [`deadline`](Self::deadline): see [`Connection::awaits`].
    #[must_use]
    pub fn awaits(&self) -> Option<Expired> {
        self.connection.awaits()
    }

    /// A message was sent at this time: see [`Connection::note_sent`]. What is sent by a [`tx`](Self::tx) is noted
    /// with the time that it was given; this is for a driver whose time may have been old then.
    pub fn note_sent(&mut self, now: Time) {
        self.connection.note_sent(now);
    }

    /// Nothing was read until now: see [`Connection::note_unread`].
    pub fn note_unread(&mut self, now: Time) {
        self.connection.note_unread(now);
    }

    /// The session is driven again: see [`Connection::note_driven`].
    pub fn note_driven(&mut self, since: Time) {
        self.connection.note_driven(since);
    }

    /// Carries out what is due. The next [`deadline`](Self::deadline) is another one. While the session is paused, the
    /// peer's silence counts for nothing, since nobody reads.
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

    /// What leaves now, in one send; `None` while a send is in flight or nothing waits. The chain comes
    /// home through [`finish_send`](Self::finish_send).
    #[inline]
    pub fn start_send(&mut self) -> Option<Box<Chain>> {
        self.outbound.start()
    }

    /// Whether [`start_send`](Self::start_send) has something.
    #[must_use]
    #[inline]
    pub fn wants_send(&self) -> bool {
        self.outbound.wants_send()
    }

    /// The transport takes nothing more for now: what the peer may take its time for begins here, and not when it was
    /// queued. For a driver whose time may be old when it sends.
    pub fn stalled(&mut self, now: Time) {
        self.connection.note_stalled(now);
    }

    /// Part of the chain in flight has left.
    pub fn progressed(&mut self, count: usize, now: Time) {
        self.outbound.progressed(count);
        self.note_outbound(true, now);
    }

    /// The chain is home. Answers whether the handler's `drain` is due: what waits has fallen below half
    /// of [`Config::high_water`] after it had passed it.
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

    /// Whether nothing hangs on [`finish_send`](Self::finish_send) but memory: the connection is open, nothing waits
    /// behind the send in flight and nothing is held back, so that a driver may call it as late as suits it. The next call
    /// of a handler may change that.
    #[must_use]
    #[inline]
    pub fn finish_may_wait(&self) -> bool {
        let waits = self.outbound.congested || self.outbound.has_gathered();
        self.connection.is_open() && !waits && !self.paused
    }

    /// Ends a connection whose peer lags more than its owner allows: a Close behind what is queued, told as
    /// [`Cause::Overflow`].
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

    /// Whether the last input ended in [`Flow::Pause`] and was not resumed yet.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Whether the driver should call [`resume`](Self::resume): the session had paused and what waits to
    /// be sent is little enough.
    #[must_use]
    pub fn wants_resume(&self) -> bool {
        self.paused && !self.outbound.congested
    }

    /// Writes pongs and pings while there is room, so that a flood against a peer that does not read
    /// keeps only the newest; a Close always.
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

    /// How the connection ended, once: when the peer's Close came, a fault or a wait ended it, or the
    /// transport did.
    pub fn take_closed(&mut self) -> Option<Closed> {
        if !matches!(self.closed, ClosedState::Due(_)) {
            return None;
        }
        match std::mem::replace(&mut self.closed, ClosedState::Told) {
            ClosedState::Due(closed) => Some(*closed),
            _ => None,
        }
    }

    /// What the driver does with the transport.
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

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called. It may come to lie later
    /// unnoticed, so a driver asks again when the time it knows has come.
    #[must_use]
    #[inline]
    pub fn deadline(&self) -> Option<Time> {
        if self.dropped { None } else { self.connection.deadline() }
    }

    /// Bytes that wait to be sent, the send in flight included.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.outbound.len()
    }

    /// Bytes of memory that hold what has come and is not whole yet, a lent assembly included.
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
