//! The connection state machine: frames in, events out; messages in, frames out.

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
/// It owns no payload and performs no I/O. Its methods form four groups:
///
/// * input: [`receive`](Self::receive), [`receive_end`](Self::receive_end),
///   [`handle_timeout`](Self::handle_timeout), [`note_outbound`](Self::note_outbound);
/// * application: [`send`](Self::send), [`send_head`](Self::send_head),
///   [`send_fragment`](Self::send_fragment), [`send_ping`](Self::send_ping), [`close`](Self::close);
/// * next action: [`write_control`](Self::write_control), [`transport`](Self::transport),
///   [`deadline`](Self::deadline);
/// * getters.
///
/// The order of a turn: call `receive` until it returns [`Event::NeedMore`]; the application sends while it
/// handles the events. Then call `write_control`, send the bytes, and query `transport` and `deadline`. The
/// crate page shows the loop.
#[derive(Debug)]
pub struct Connection {
    config: Arc<Config>,
    role: Role,
    framing: Framing,
    part: Part,
    receiving: Receiving,
    sending: Sending,
    /// Deliver fragments instead of whole messages.
    fragments: bool,
    stage: Stage,
    /// Boxed, since most messages arrive whole and need none.
    message: Option<Box<receive::Open>>,
    inflate: Option<Box<Inflate>>,
    deflate: Option<Box<Deflate>>,
    open_message: Option<OpenMessage>,
    pending: Pending,
    keepalive: Keepalive,
}

/// State shared by the connections of one thread: deflate contexts, borrowed for one message each, and the
/// source of mask keys. Passed to each call that may need it.
pub struct PerThread {
    contexts: Contexts,
    /// Buffer for the compressed payload of a frame.
    scratch: Vec<u8>,
    spares: Spares,
    masks: Box<dyn FnMut() -> [u8; 4] + Send>,
}

impl PerThread {
    /// `masks` returns a fresh, unpredictable key for each frame of a client (RFC 6455 section 5.3: derive
    /// it from a strong source of entropy). Servers never call it.
    pub fn new(masks: impl FnMut() -> [u8; 4] + Send + 'static) -> Self {
        Self {
            contexts: Contexts::new(),
            scratch: Vec::new(),
            spares: Spares::default(),
            masks: Box::new(masks),
        }
    }

    /// Takes back the buffer of a large message ([`Place::Assembly`]) for reuse: otherwise each message
    /// would pay for new pages. The retained memory is bounded, and freed by
    /// [`release_idle`](Self::release_idle). Small buffers are freed at once.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        self.spares.give(buffer);
    }

    /// Reserves capacity in `buffer` for a large message of `additional` bytes, reusing the memory of an
    /// earlier message if available.
    pub fn make_room(&mut self, buffer: &mut Vec<u8>, additional: usize) {
        let needed = buffer.len().saturating_add(additional);
        self.spares.grow(buffer, additional, needed, usize::MAX);
    }

    /// Frees the spare memory that no message has used since the last call. A driver calls it every few
    /// seconds until it returns `false`.
    pub fn release_idle(&mut self) -> bool {
        self.spares.release_idle()
    }

    /// Whether [`release_idle`](Self::release_idle) has memory to free.
    #[must_use]
    pub fn holds_spares(&self) -> bool {
        !self.spares.is_empty()
    }

    /// Takes the scratch buffer back for the next message, unless a large message has grown it.
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

/// Largest scratch buffer that a thread keeps between messages.
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
    /// UTF-8, validated on receipt.
    Text,
    /// Any bytes.
    Binary,
}

/// The location of an event's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a reader must handle both")]
pub enum Place {
    /// In the input of this call, unmasked in place.
    Input(Range<usize>),
    /// The whole assembly buffer of this call. The caller may take the buffer; otherwise the next message
    /// reuses it.
    Assembly,
}

/// The result of one call of [`Connection::receive`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// Consumed bytes of the input. The rest must be passed again, in front of the next bytes.
    pub consumed: usize,
    /// The event that they encode.
    pub event: Event,
}

/// A received event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a driver must handle each")]
pub enum Event {
    /// At least this many further bytes are required. The unconsumed input, at most 130 bytes, is part of a
    /// head or of a control frame.
    NeedMore(usize),
    /// A whole message.
    Message {
        /// Text (which is valid UTF-8) or binary.
        kind: Kind,
        /// The payload.
        at: Place,
    },
    /// In fragment delivery, a piece of a message. Its boundaries have no meaning. In text, a boundary may
    /// split a code point, but all pieces so far are a valid prefix of UTF-8 text, and complete with the
    /// last piece.
    Fragment {
        /// Text or binary.
        kind: Kind,
        /// The piece; may be empty.
        at: Place,
        /// Whether this is the first piece of the message.
        first: bool,
        /// Whether the message ends with this piece.
        last: bool,
    },
    /// A ping. The answer is already pending.
    Ping(Range<usize>),
    /// A pong; `answers` is the round-trip time of the newest ping, if this pong answers it.
    Pong {
        /// The payload.
        at: Range<usize>,
        /// The round-trip time of the keepalive ping.
        answers: Option<Duration>,
    },
    /// The peer's Close frame. The answer is already pending; later bytes are ignored.
    Close {
        /// `None`: the frame had no code (an application sees 1005).
        code: Option<CloseCode>,
        /// The reason, UTF-8.
        reason: Range<usize>,
        /// Whether it answers a local Close.
        answers: bool,
    },
}

impl Connection {
    /// Creates a connection for a completed handshake.
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

    /// Delivers later messages in pieces ([`Event::Fragment`]) instead of whole, so that a message may
    /// exceed the available memory.
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

    /// Whether frames [prepared](write_prepared) for many connections may be sent: only to clients of a
    /// WebSocket.
    #[must_use]
    #[inline]
    pub fn takes_prepared(&self) -> bool {
        self.role == Role::Server && self.framing == Framing::WebSocket
    }

    /// The limits and timeouts.
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

    /// Whether a message is being sent in fragments. No other message may begin until it ends.
    #[must_use]
    #[inline]
    pub fn is_mid_message(&self) -> bool {
        self.open_message.is_some()
    }

    /// Whether input of the peer is still processed: it has neither sent a Close nor violated the protocol.
    #[must_use]
    #[inline]
    pub fn is_receiving(&self) -> bool {
        self.receiving == Receiving::Open
    }

    /// Starts the closing handshake (RFC 6455 section 7.1.2). Messages of the peer are still delivered
    /// until its Close.
    ///
    /// # Errors
    /// [`Misuse::ReasonTooLong`] over 123 bytes; [`Misuse::Closing`] if a local Close is pending or written
    /// already.
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

    /// Prepares the Close with the code for the peer's violation.
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

    /// The required state of the transport once all written bytes are sent.
    #[must_use]
    #[inline]
    pub fn transport(&self) -> Transport {
        match self.framing {
            // Only the peer's own end shows that it has seen the local end.
            Framing::Prefixed if self.sending == Sending::Closed => Transport::Finish,
            _ => closing::transport(self.receiving, self.sending, self.role),
        }
    }

    /// Time at which to call [`handle_timeout`](Self::handle_timeout); `None`: never. It may move to a
    /// later time, and to an earlier time only after [`handle_timeout`](Self::handle_timeout),
    /// [`close`](Self::close), a Close or violation of the peer, or [`note_outbound`](Self::note_outbound).
    #[must_use]
    #[inline]
    pub fn deadline(&self) -> Option<Time> {
        self.keepalive.deadline(&self.config)
    }

    /// Executes the actions due at `now`: prepares a ping or a Close for
    /// [`write_control`](Self::write_control).
    ///
    /// # Errors
    /// The timeout that ended the connection. `Idle` and `Pong` still prepare a Close frame; after `Write`
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

    /// The timeout that ends the connection at the [`deadline`](Self::deadline); `None` if a ping is due
    /// then, or if there is no deadline.
    #[must_use]
    pub fn awaits(&self) -> Option<Expired> {
        self.keepalive.awaits(&self.config)
    }

    /// Records that the application has sent a message, at `now` or later. [`Config::idle_timeout`]
    /// restarts there, so that the peer has time to answer.
    #[inline]
    pub fn note_sent(&mut self, now: Time) {
        self.keepalive.sent(now);
    }

    /// Records that no input was read until `now`, since reads were paused or the driver was delayed. The
    /// peer's silence starts here.
    pub fn note_unread(&mut self, now: Time) {
        self.keepalive.unread(now);
    }

    /// Records that the connection is driven again, from `since` on. If the idle or the close timeout
    /// expired in the meantime, it restarts: a peer is not at fault for the absence of the caller. A driver
    /// calls this before [`handle_timeout`](Self::handle_timeout), after reading all pending input.
    ///
    /// The close timeout restarts only once. The pong timeout restarts only if bytes arrived after the
    /// ping: otherwise the pong had time to arrive.
    pub fn note_driven(&mut self, since: Time) {
        self.keepalive.driven(&self.config, since);
    }

    /// Records that the transport accepts no more bytes: the write timeout starts here.
    pub fn note_stalled(&mut self, now: Time) {
        self.keepalive.stalled(now);
    }

    /// Whether messages of the peer may be compressed.
    #[must_use]
    #[inline]
    pub fn inflates(&self) -> bool {
        self.inflate.is_some()
    }

    /// Records the number of queued bytes, and whether the peer accepted some since the last call. The
    /// write timeout depends on both.
    #[inline]
    pub fn note_outbound(&mut self, waiting: usize, moved: bool, now: Time) {
        self.keepalive.outbound(waiting, moved, now);
    }
}
