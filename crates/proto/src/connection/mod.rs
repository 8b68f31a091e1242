//! The connection machine: frames in, events out; messages in, frames out.

mod closing;
mod control;
mod keepalive;
mod parts;
mod receive;
mod send;
mod spares;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::time::Duration;

pub use self::closing::Transport;
use self::closing::{Receiving, Sending, Signal};
use self::control::Pending;
use self::keepalive::{Due, Keepalive};
use self::parts::Part;
use self::receive::{Inflate, Stage};
pub use self::send::write_prepared;
use self::send::{Deflate, OpenMessage};
use self::spares::Spares;
use crate::deflate::Contexts;
use crate::{CloseCode, Config, Expired, Framing, Misuse, Negotiated, PeerMisbehaved, Role, Time};

/// One WebSocket connection after its handshake, either role.
///
/// It owns no payload and performs no I/O. Its methods come in four families:
///
/// * from outside: [`receive`](Self::receive), [`receive_end`](Self::receive_end),
///   [`handle_timeout`](Self::handle_timeout), [`note_outbound`](Self::note_outbound);
/// * from the application: [`send`](Self::send), [`send_head`](Self::send_head),
///   [`send_fragment`](Self::send_fragment), [`send_ping`](Self::send_ping), [`close`](Self::close);
/// * what to do next: [`write_control`](Self::write_control), [`transport`](Self::transport),
///   [`deadline`](Self::deadline);
/// * getters.
///
/// The order of a turn: `receive` until it answers [`Event::NeedMore`], the application sends while it
/// handles the events, then `write_control`, then the bytes leave, then `transport` and `deadline` say
/// what to wait for. The crate page shows the loop.
#[derive(Debug)]
pub struct Connection {
    config: Arc<Config>,
    role: Role,
    framing: Framing,
    part: Part,
    receiving: Receiving,
    sending: Sending,
    /// Deliver pieces as they come instead of whole messages.
    fragments: bool,
    stage: Stage,
    /// Boxed, since most messages come whole and need none.
    message: Option<Box<receive::Open>>,
    inflate: Option<Box<Inflate>>,
    deflate: Option<Box<Deflate>>,
    open_message: Option<OpenMessage>,
    pending: Pending,
    keepalive: Keepalive,
}

/// What the connections of one thread share: contexts of the deflate library that are borrowed for one
/// message, and the source of mask keys. Lent to each call that may need it.
pub struct PerThread {
    contexts: Contexts,
    /// Compressed payload on its way into a frame.
    scratch: Vec<u8>,
    spares: Spares,
    masks: Box<dyn FnMut() -> [u8; 4] + Send>,
}

impl PerThread {
    /// `masks` gives a fresh, unpredictable key for each frame that a client sends (RFC 6455 section
    /// 5.3: derive it from a strong source of entropy). Servers never call it.
    pub fn new(masks: impl FnMut() -> [u8; 4] + Send + 'static) -> Self {
        Self {
            contexts: Contexts::new(),
            scratch: Vec::new(),
            spares: Spares::default(),
            masks: Box::new(masks),
        }
    }

    /// Takes back the memory of a large message ([`Place::Assembly`]), for the next one: otherwise each
    /// would be paid for by the page. What is kept is bounded, and freed by
    /// [`release_idle`](Self::release_idle). Small buffers are just freed.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        self.spares.give(buffer);
    }

    /// Makes room in `buffer` for a large message of `additional` bytes, in the memory of an earlier one if some is
    /// spare.
    pub fn make_room(&mut self, buffer: &mut Vec<u8>, additional: usize) {
        let needed = buffer.len().saturating_add(additional);
        self.spares.grow(buffer, additional, needed, usize::MAX);
    }

    /// Frees the spare memory that no message has used since the last call. A driver calls it every few
    /// seconds while it answers that some is left.
    pub fn release_idle(&mut self) -> bool {
        self.spares.release_idle()
    }

    /// Whether [`release_idle`](Self::release_idle) will have something to free.
    #[must_use]
    pub fn holds_spares(&self) -> bool {
        !self.spares.is_empty()
    }

    /// Takes the scratch back for the next message, unless one large message has swollen it.
    fn keep_scratch(&mut self, mut scratch: Vec<u8>) {
        if scratch.capacity() <= SCRATCH_MAX {
            scratch.clear();
            self.scratch = scratch;
        }
    }

    fn mask_for(&mut self, role: Role) -> Option<[u8; 4]> {
        (role == Role::Client).then(|| (self.masks)())
    }
}

/// Largest scratch that a thread keeps between messages.
const SCRATCH_MAX: usize = 256 << 10;

impl core::fmt::Debug for PerThread {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PerThread").finish_non_exhaustive()
    }
}

/// Text or binary (RFC 6455 section 5.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "the RFC knows two")]
pub enum Kind {
    /// UTF-8; checked on receipt.
    Text,
    /// Any bytes.
    Binary,
}

/// Where the bytes of an event are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a reader must handle both")]
pub enum Place {
    /// In the input of this call, unmasked in place.
    Input(Range<usize>),
    /// All of the assembly buffer of this call. The caller may take the buffer away; otherwise the next
    /// message reuses it.
    Assembly,
}

/// What one call of [`Connection::receive`] came to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// Bytes of the input that are done with. The rest must be given again, in front of what comes next.
    pub consumed: usize,
    /// What they meant.
    pub event: Event,
}

/// What the input meant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a driver must handle each")]
pub enum Event {
    /// Nothing more can be said before at least so many further bytes are there. What is left of the
    /// input, at most 130 bytes, is part of a head or of a control frame.
    NeedMore(usize),
    /// A whole message.
    Message {
        /// Text (which is valid UTF-8) or binary.
        kind: Kind,
        /// The payload.
        at: Place,
    },
    /// In fragment delivery, a piece of a message. Its edges carry no meaning; in text, a code point may
    /// be cut by them, yet all pieces so far can become valid UTF-8, and with the last one they are.
    Fragment {
        /// Text or binary.
        kind: Kind,
        /// The piece; may be empty.
        at: Place,
        /// No other piece of this message has come before.
        first: bool,
        /// The message ends with this piece.
        last: bool,
    },
    /// A ping. The answer is already prepared.
    Ping(Range<usize>),
    /// A pong; `answers` tells how long our newest ping took, if this answers it.
    Pong {
        /// The payload.
        at: Range<usize>,
        /// The time since our ping.
        answers: Option<Duration>,
    },
    /// The peer's Close frame. The answer is already prepared; nothing behind it counts.
    Close {
        /// `None`: the frame had no code (an application sees 1005).
        code: Option<CloseCode>,
        /// The reason, UTF-8.
        reason: Range<usize>,
        /// It answers a Close of ours.
        answers: bool,
    },
}

impl Connection {
    /// A connection that a handshake has opened.
    #[must_use]
    pub fn new(negotiated: Negotiated, config: Arc<Config>, now: Time) -> Self {
        let role = negotiated.role();
        let deflate = negotiated.deflate;
        Self {
            role,
            framing: negotiated.framing,
            part: Part::Whole,
            receiving: Receiving::Open,
            sending: Sending::Open,
            fragments: false,
            stage: Stage::Head,
            message: None,
            inflate: deflate.map(|setup| Box::new(Inflate::new(setup.params, role))),
            deflate: deflate.map(|setup| Box::new(Deflate::new(setup, role))),
            open_message: None,
            pending: Pending::default(),
            keepalive: Keepalive::new(&config, now),
            config,
        }
    }

    /// Delivers the messages that start from now on as pieces ([`Event::Fragment`]) instead of whole, so
    /// that a message larger than memory can pass.
    pub fn deliver_fragments(&mut self, fragments: bool) {
        self.fragments = fragments;
    }

    /// Whether the assembly buffer holds part of a message.
    #[must_use]
    #[inline]
    pub fn holds_assembly(&self) -> bool {
        self.message.is_some()
    }

    /// The role of this end.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// Whether frames that were [prepared](write_prepared) for many may be sent: to clients of a WebSocket they may.
    #[must_use]
    #[inline]
    pub fn takes_prepared(&self) -> bool {
        self.role == Role::Server && self.framing == Framing::WebSocket
    }

    /// The limits and waits.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whether data may still be sent.
    #[must_use]
    #[inline]
    pub fn is_open(&self) -> bool {
        self.sending == Sending::Open
    }

    /// Whether a message is being sent in fragments, so that no other may begin.
    #[must_use]
    #[inline]
    pub fn is_mid_message(&self) -> bool {
        self.open_message.is_some()
    }

    /// Whether the peer may still be heard: neither did its Close come nor did it break the protocol.
    #[must_use]
    #[inline]
    pub fn is_receiving(&self) -> bool {
        self.receiving == Receiving::Open
    }

    /// Begins the closing handshake (RFC 6455 section 7.1.2). Messages of the peer still come until its
    /// Close does.
    ///
    /// # Errors
    /// [`Misuse::ReasonTooLong`] over 123 bytes; [`Misuse::Closing`] if a Close is decided already.
    pub fn close(&mut self, code: CloseCode, reason: &str, now: Time) -> Result<(), Misuse> {
        if reason.len() > control::REASON_MAX {
            return Err(Misuse::ReasonTooLong);
        }
        if self.sending != Sending::Open {
            return Err(Misuse::Closing);
        }
        self.pending.set_close(Some(code), Box::from(reason));
        self.signal(Signal::WeClose, now);
        Ok(())
    }

    /// The peer broke the protocol: prepares the Close with the code that says so.
    fn fail(&mut self, fault: PeerMisbehaved, now: Time) {
        if self.sending == Sending::Open {
            self.pending.set_close(Some(fault.close_code()), Box::from(fault.reason()));
        }
        self.pending.pong = None;
        self.signal(Signal::PeerFails, now);
    }

    fn signal(&mut self, signal: Signal, now: Time) {
        (self.receiving, self.sending) = closing::step(self.receiving, self.sending, signal);
        if self.sending != Sending::Open {
            self.keepalive.start_closing(now);
        }
    }

    /// What becomes of the transport once everything written has left.
    #[must_use]
    #[inline]
    pub fn transport(&self) -> Transport {
        match self.framing {
            // Nothing of the peer's says that it has seen our end, but its own.
            Framing::Prefixed if self.sending == Sending::Closed => Transport::Finish,
            _ => closing::transport(self.receiving, self.sending, self.role),
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called; `None`: never. It may lie
    /// later than the last answer, and earlier only after [`handle_timeout`](Self::handle_timeout),
    /// [`close`](Self::close), a Close or fault of the peer, or [`note_outbound`](Self::note_outbound).
    #[must_use]
    #[inline]
    pub fn deadline(&self) -> Option<Time> {
        self.keepalive.deadline(&self.config)
    }

    /// Carries out what is due at `now`: a ping or a Close is prepared for
    /// [`write_control`](Self::write_control).
    ///
    /// # Errors
    /// The wait that ended the connection. `Idle` and `Pong` still prepare a Close frame; after `Write`
    /// and `Close` the transport must be dropped.
    pub fn handle_timeout(&mut self, now: Time) -> Result<(), Expired> {
        match self.keepalive.due(&self.config, now) {
            None => Ok(()),
            Some(Due::Ping) => {
                self.pending.ping = true;
                Ok(())
            }
            Some(Due::Close(wait)) => {
                let code = if wait == Expired::Idle { CloseCode::GOING_AWAY } else { CloseCode::INTERNAL };
                self.pending.set_close(Some(code), Box::from(wait.reason()));
                self.signal(Signal::WeClose, now);
                Err(wait)
            }
            Some(Due::Drop(wait)) => Err(wait),
        }
    }

    /// What ends the connection at the [`deadline`](Self::deadline); `None`: nothing, as a ping leaves then, or there is
    /// no deadline.
    #[must_use]
    pub fn awaits(&self) -> Option<Expired> {
        self.keepalive.awaits(&self.config)
    }

    /// The application has sent a message, at `now` or later. [`Config::idle_timeout`] is counted from there, so that
    /// the peer has time to answer.
    #[inline]
    pub fn note_sent(&mut self, now: Time) {
        self.keepalive.sent(now);
    }

    /// Nothing that the peer sent was read until `now`, since the input was paused or the driver was held up: its
    /// silence is counted from here.
    pub fn note_unread(&mut self, now: Time) {
        self.keepalive.unread(now);
    }

    /// The connection is driven from `since` on, and was not before. If the idle or the close timeout has ended in the
    /// meantime, it begins anew: a peer is not at fault for the absence of the caller. A driver calls this before
    /// [`handle_timeout`](Self::handle_timeout), once it has read what had come.
    ///
    /// The close timeout begins anew only once. The pong timeout does so only if bytes came after the ping: otherwise
    /// there was time for the pong to come.
    pub fn note_driven(&mut self, since: Time) {
        self.keepalive.driven(&self.config, since);
    }

    /// The transport takes nothing more of what waits: the write timeout is counted from here.
    pub fn note_stalled(&mut self, now: Time) {
        self.keepalive.stalled(now);
    }

    /// Whether messages may come compressed.
    #[must_use]
    #[inline]
    pub fn inflates(&self) -> bool {
        self.inflate.is_some()
    }

    /// Tells how many bytes wait to be sent, and whether the peer took some since the last call: what
    /// the write timeout is counted from.
    #[inline]
    pub fn note_outbound(&mut self, waiting: usize, moved: bool, now: Time) {
        self.keepalive.outbound(waiting, moved, now);
    }
}
