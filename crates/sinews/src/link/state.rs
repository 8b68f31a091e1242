//! The state of a link in three parts, and the invariants that hold between two calls.

use std::io;
use std::sync::Arc;

use sinews_proto::{Config, Negotiated, PayloadLocation, Role, Time};
use sinews_session::{Chain, Closed, ReceivedEvent, Session};

#[cfg(not(any(feature = "tokio", feature = "compio")))]
pub(super) use super::no_inbox::{NoSenderQueue as SenderQueue, SenderMessage};
use super::pair::{HalfSide, HalfState};
use crate::resources;
#[cfg(any(feature = "tokio", feature = "compio"))]
pub(super) use crate::sender::{SenderMessage, SenderQueue};

/// One connection: its session, received input that is not yet processed, and queued output.
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) session: Session,
    pub(super) inbound: InboundState,
    pub(super) outbound: OutboundState,
    pub(super) lifecycle: LifecycleState,
    /// Set if the link is one half of a split connection.
    pub(super) half: Option<Box<HalfState>>,
    subprotocol: Option<Box<str>>,
    /// The driver's newest time: of the last receive, or of the begin of a wait.
    pub(crate) now: Time,
}

/// Received input, and how it is delivered.
#[derive(Debug, Default)]
pub(super) struct InboundState {
    /// Received input: `block[at..]` is not yet processed. A pooled block during large receives, empty when idle.
    pub(super) block: Vec<u8>,
    pub(super) at: usize,
    /// The received input holds no further event.
    pub(super) exhausted: bool,
    /// An event received during a send, for the next receive call.
    pub(super) pending_event: Option<ReceivedEvent>,
    /// Whether the messages that begin from now on are delivered in pieces.
    pub(super) pieces: bool,
    /// The rest of a message in pieces is skipped, since its reader was dropped.
    pub(super) skipping: bool,
    /// The received part of a message in pieces without a reader; or a whole borrowed message.
    pub(super) gathered: Vec<u8>,
}

/// Queued output, and when it leaves.
#[derive(Debug, Default)]
pub(super) struct OutboundState {
    /// The send in flight, unless a driver has it.
    pub(super) sending: Option<Box<Chain>>,
    /// A driver has `sending`.
    pub(super) send_taken: bool,
    /// The queue of the producers' messages.
    pub(super) inbox: Option<Box<SenderQueue>>,
    /// A pong is queued. It is sent without waiting for a reply of the application.
    pub(super) pong_queued: bool,
    /// Time of the first message queued to leave with the rest of a burst.
    pub(super) queued_at: Option<Time>,
    /// A message was queued at a time that is not known exactly.
    pub(super) has_sent: bool,
    /// Messages handed out since queued bytes were last sent.
    pub(super) handed_out: u32,
    /// Messages sent since the last one was handed out.
    pub(super) answers: u32,
    /// The transport accepts no bytes for now.
    pub(super) stalled: bool,
    /// [`Config::max_outbound`] is reached before [`Config::high_water`] is passed.
    pub(super) fills_early: bool,
}

/// Progress of the connection towards its end.
#[derive(Debug, Default)]
pub(super) struct LifecycleState {
    pub(super) closed: Option<Box<Closed>>,
    /// The transport's error, until it is reported.
    pub(super) io_error: Option<io::Error>,
    /// The peer ended the transport.
    pub(super) receive_ended: bool,
    /// The transport accepts no more bytes.
    pub(super) send_ended: bool,
    /// The end of the sending side was sent.
    pub(super) shut: bool,
    /// The end was reported to receive calls.
    pub(super) reported: bool,
    /// The deadline may have moved to an earlier time.
    pub(super) recheck: bool,
}

/// Constant properties of a connection, which both halves report without synchronization.
#[derive(Debug)]
pub(crate) struct ConnectionInfo {
    subprotocol: Option<Box<str>>,
    role: Role,
    config: Config,
}

impl ConnectionInfo {
    pub(crate) fn subprotocol(&self) -> Option<&str> {
        self.subprotocol.as_deref()
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }
}

impl Link {
    /// A connection after a handshake, with the bytes received behind the handshake.
    pub(crate) fn new(negotiated: Negotiated, config: Arc<Config>, received: &[u8], now: Time) -> Self {
        Self::from_session(Session::new(negotiated, config, now), received, now)
    }

    pub(super) fn from_session(session: Session, received: &[u8], now: Time) -> Self {
        let fills_early = session.config().max_outbound() <= session.config().high_water();
        Self {
            session,
            inbound: InboundState { block: received.to_vec(), ..InboundState::default() },
            outbound: OutboundState { fills_early, ..OutboundState::default() },
            lifecycle: LifecycleState { recheck: true, ..LifecycleState::default() },
            half: None,
            subprotocol: None,
            now,
        }
    }

    pub(crate) fn set_subprotocol(&mut self, subprotocol: Option<&str>) {
        self.subprotocol = subprotocol.map(Box::from);
    }

    pub(crate) fn subprotocol(&self) -> Option<&str> {
        self.subprotocol.as_deref()
    }

    pub(crate) fn role(&self) -> Role {
        self.session.role()
    }

    pub(crate) fn config(&self) -> &Config {
        self.session.config()
    }

    /// Returns the constant properties of the connection.
    pub(crate) fn info(&self) -> ConnectionInfo {
        ConnectionInfo {
            subprotocol: self.subprotocol.clone(),
            role: self.role(),
            config: self.config().clone(),
        }
    }

    /// Panics in debug builds if an [invariant](Self::violated_invariant) is violated. Each public transition ends
    /// with it.
    #[inline]
    pub(super) fn debug_check(&self) {
        debug_assert_eq!(self.violated_invariant(), None, "a connection violates an invariant");
    }

    /// The first invariant that does not hold.
    fn violated_invariant(&self) -> Option<&'static str> {
        let Self { inbound, outbound, lifecycle, session, half, .. } = self;
        let is_reader = half.as_ref().is_some_and(|half| half.side == HalfSide::Read);
        let invariants = [
            ("the read position lies within the block", inbound.at <= inbound.block.len()),
            ("a pending event lies within the block", inbound.holds_pending_event()),
            (
                "a send that a driver has taken is not stored",
                !outbound.send_taken || outbound.sending.is_none(),
            ),
            (
                "a stored send has unsent bytes",
                outbound.sending.as_ref().is_none_or(|chain| !chain.is_empty()),
            ),
            ("the reading half has no producers", !is_reader || outbound.inbox.is_none()),
            ("a closed connection accepts no messages", lifecycle.closed.is_none() || !session.is_open()),
            ("a connection without input is closed", !lifecycle.receive_ended || lifecycle.closed.is_some()),
            ("an open connection has not shut its sending side", !lifecycle.shut || !session.is_open()),
            (
                "a transport error ends a side",
                lifecycle.io_error.is_none() || lifecycle.receive_ended || lifecycle.send_ended,
            ),
            ("a reported end is known", !lifecycle.reported || lifecycle.closed.is_some()),
        ];
        invariants.into_iter().find(|(_, holds)| !holds).map(|(name, _)| name)
    }
}

impl InboundState {
    /// Whether the block holds the bytes of the pending event, if there is one.
    fn holds_pending_event(&self) -> bool {
        use ReceivedEvent::{Close, Fragment, Message, Ping, Pong};
        let end = match &self.pending_event {
            Some(
                Message { at: PayloadLocation::Input(range), .. }
                | Fragment { at: PayloadLocation::Input(range), .. },
            ) => range.end,
            Some(Ping(range) | Pong { at: range, .. }) => range.end,
            Some(Message { .. } | Fragment { .. } | Close) | None => 0,
        };
        end <= self.block.len()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        resources::give_block(std::mem::take(&mut self.inbound.block));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sinews_proto::CloseCode;

    fn link() -> Link {
        let negotiated = sinews_testkit::negotiate(None, None).server;
        Link::new(negotiated, Arc::default(), b"", Time::ZERO)
    }

    fn closed() -> Box<Closed> {
        let mut link = link();
        link.end_unanswered(CloseCode::NORMAL, "");
        link.lifecycle.closed.take().expect("the connection has ended")
    }

    #[test]
    fn each_broken_invariant_is_named() {
        type Break = fn(&mut Link);
        let broken: [(&str, Break); 8] = [
            ("the read position lies within the block", |link| link.inbound.at = 1),
            ("a pending event lies within the block", |link| {
                link.inbound.pending_event = Some(ReceivedEvent::Ping(3..4));
            }),
            ("a send that a driver has taken is not stored", |link| {
                link.outbound.sending = Some(Box::default());
                link.outbound.send_taken = true;
            }),
            ("a stored send has unsent bytes", |link| link.outbound.sending = Some(Box::default())),
            ("a closed connection accepts no messages", |link| link.lifecycle.closed = Some(closed())),
            ("a connection without input is closed", |link| link.lifecycle.receive_ended = true),
            ("an open connection has not shut its sending side", |link| link.lifecycle.shut = true),
            ("a transport error ends a side", |link| {
                link.lifecycle.io_error = Some(io::ErrorKind::BrokenPipe.into());
            }),
        ];
        assert_eq!(link().violated_invariant(), None);
        for (name, break_it) in broken {
            let mut link = link();
            break_it(&mut link);
            assert_eq!(link.violated_invariant(), Some(name));
        }
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "the read position lies within the block")]
    fn transition_with_a_broken_invariant_panics() {
        let mut link = link();
        link.inbound.at = 1;
        link.timeout();
    }
}
