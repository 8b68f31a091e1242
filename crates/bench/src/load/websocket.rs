//! A WebSocket client: the handshake, followed by a session with echoes or deliveries.

use std::sync::Arc;

use sinews_proto::handshake::{ClientHandshake, ClientRequest, ClientStep};
use sinews_proto::{CloseCode, Config, Kind, PingRate};
use sinews_session::{Cause, Chain, Events, Outbound, Payload, Resources, Session, TransportAction, Tx};

use super::super::tally::FailureKind;
use super::failure::ConnectionFailure;
use super::role::ConnectionRole;
use super::tracker::{MessageTracker, ThreadState, delivered};
use super::traffic::SocketTraffic;

#[derive(Debug)]
pub(super) enum WebSocketLoad {
    Handshake {
        machine: Box<ClientHandshake>,
        received: Vec<u8>,
        out: Outbound,
    },
    Open(Box<Session>),
    /// Transient state between handshake and session.
    Nothing,
}

/// Limits for all sessions in a run: the plan bounds queued data.
pub(super) fn config() -> Arc<Config> {
    let config = Config::default()
        .with_max_message(MESSAGE_MAX)
        .with_max_frame(MESSAGE_MAX)
        .with_high_water(usize::MAX)
        .with_max_outbound(usize::MAX)
        .with_ping_rate(PingRate { per_second: 10_000, burst: 10_000 })
        .with_idle_timeout(None)
        .with_ping_interval(None);
    Arc::new(config)
}

impl WebSocketLoad {
    pub(super) fn new(request: &ClientRequest, key: [u8; 16]) -> Self {
        let machine = Box::new(request.clone().start(key));
        Self::Handshake { machine, received: Vec::new(), out: Outbound::default() }
    }

    pub(super) fn begin(&mut self, resources: &mut Resources) {
        if let Self::Handshake { machine, out, .. } = self {
            out.pending_chain(resources).write(|out| machine.write_request(out));
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Open(_))
    }

    pub(super) fn receive(
        &mut self,
        chunk: &mut [u8],
        traffic: &mut SocketTraffic,
        thread_state: &mut ThreadState,
        resources: &mut Resources,
        config: &Arc<Config>,
    ) -> Result<(), ConnectionFailure> {
        match self {
            Self::Open(session) => receive(session, chunk, traffic, thread_state, resources),
            Self::Nothing => Ok(()),
            Self::Handshake { machine, received, .. } => {
                received.extend_from_slice(chunk);
                let step = machine.read_response(received);
                let step =
                    step.map_err(|error| ConnectionFailure::new(FailureKind::Handshake, &error.to_string()))?;
                let ClientStep::Done(done) = step else { return Ok(()) };
                let Self::Handshake { mut received, out, .. } = std::mem::replace(self, Self::Nothing) else {
                    return Ok(());
                };
                let now = thread_state.time();
                let session = Session::with_outbound(done.negotiated(), config.clone(), now, out);
                *self = Self::Open(Box::new(session));
                let behind = &mut received[done.consumed()..];
                if behind.is_empty() {
                    return Ok(());
                }
                self.receive(behind, traffic, thread_state, resources, config)
            }
        }
    }

    /// Sends messages as far as allowed.
    pub(super) fn send(
        &mut self,
        traffic: &mut SocketTraffic,
        thread_state: &mut ThreadState,
        resources: &mut Resources,
    ) {
        if let Self::Open(session) = self {
            send_messages(session, traffic, thread_state, resources);
        }
    }

    /// Sends a message before the load's messages: a login, or a subscription.
    pub(super) fn send_first(&mut self, text: &str, thread_state: &ThreadState, resources: &mut Resources) {
        if let Self::Open(session) = self {
            send_first(session, text, thread_state, resources);
        }
    }

    /// Sends Close as RFC 6455 requires. Returns whether an answer is pending.
    pub(super) fn close(&mut self, thread_state: &ThreadState, resources: &mut Resources) -> bool {
        match self {
            Self::Open(session) => close(session, thread_state, resources),
            _ => false,
        }
    }

    pub(super) fn start_send(&mut self) -> Option<Box<Chain>> {
        match self {
            Self::Open(session) => session.start_send(),
            Self::Handshake { out, .. } => out.start(),
            Self::Nothing => None,
        }
    }

    pub(super) fn wants_send(&self) -> bool {
        match self {
            Self::Open(session) => session.wants_send(),
            Self::Handshake { out, .. } => out.wants_send(),
            Self::Nothing => false,
        }
    }

    /// Whether no data is queued behind the send in flight.
    pub(super) fn finish_may_wait(&self) -> bool {
        match self {
            Self::Open(session) => session.finish_may_wait(),
            Self::Handshake { .. } => false,
            Self::Nothing => true,
        }
    }

    pub(super) fn progressed(&mut self, bytes: usize, thread_state: &ThreadState) {
        match self {
            Self::Open(session) => session.progressed(bytes, thread_state.time()),
            Self::Handshake { out, .. } => out.progressed(bytes),
            Self::Nothing => {}
        }
    }

    pub(super) fn finish_send(
        &mut self,
        chain: Box<Chain>,
        thread_state: &ThreadState,
        resources: &mut Resources,
    ) {
        match self {
            Self::Open(session) => {
                session.finish_send(chain, resources, thread_state.time());
            }
            Self::Handshake { out, .. } => out.finish(chain, resources),
            Self::Nothing => {}
        }
    }

    /// Whether the session has ended and the transport may be closed.
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Open(session) if session.transport_action() != TransportAction::Open && !session.is_open() && session.buffered() == 0)
    }
}

/// Sends messages as far as allowed.
pub(super) fn send_messages(
    session: &mut Session,
    SocketTraffic { role, tracker }: &mut SocketTraffic,
    thread_state: &mut ThreadState,
    resources: &mut Resources,
) {
    let now = thread_state.time();
    let mut tx = session.tx(resources, now);
    match *role {
        ConnectionRole::Echo => send(tracker, thread_state, &mut tx),
        ConnectionRole::Publisher(topic) => {
            while let Some(publication) = tracker.publication(topic, thread_state) {
                let template = thread_state.plan.fan_out.publish.as_str();
                let message = if template == "{payload}" {
                    publication
                } else {
                    let topic = super::super::plan::FanOut::topic(topic);
                    template.replace("{topic}", &topic).replace("{payload}", &publication)
                };
                // The session is open and unlimited.
                let _ = tx.send_text(&message);
                tracker.sent_bytes(thread_state, message.len());
            }
        }
        ConnectionRole::Subscriber(_) | ConnectionRole::Stalled(_) => {}
    }
    session.after_tx(resources, now);
}

/// Sends a message before the load's messages.
pub(super) fn send_first(
    session: &mut Session,
    text: &str,
    thread_state: &ThreadState,
    resources: &mut Resources,
) {
    let now = thread_state.time();
    let _ = session.tx(resources, now).send_text(text);
    session.after_tx(resources, now);
}

/// Sends Close. Returns whether an answer is pending.
pub(super) fn close(session: &mut Session, thread_state: &ThreadState, resources: &mut Resources) -> bool {
    let now = thread_state.time();
    let is_pending = session.tx(resources, now).close(CloseCode::NORMAL, "").is_ok();
    session.after_tx(resources, now);
    is_pending
}

/// Passes received bytes to the session. Each correct echo triggers the next message.
pub(super) fn receive(
    session: &mut Session,
    chunk: &mut [u8],
    SocketTraffic { role, tracker }: &mut SocketTraffic,
    thread_state: &mut ThreadState,
    resources: &mut Resources,
) -> Result<(), ConnectionFailure> {
    let now = thread_state.time();
    let mut receiver = MessageReceiver { role: *role, tracker, thread_state, fault: None };
    // Reads are never paused: there is no high-water mark.
    let _ = session.receive(chunk, resources, now, &mut receiver);
    if let Some(fault) = receiver.fault {
        return Err(fault);
    }
    closed(session)
}

/// Passes a message that has arrived in a datagram to the session.
pub(super) fn receive_datagram(
    session: &mut Session,
    kind: Kind,
    payload: &mut [u8],
    SocketTraffic { role, tracker }: &mut SocketTraffic,
    thread_state: &mut ThreadState,
    resources: &mut Resources,
) -> Result<(), ConnectionFailure> {
    let now = thread_state.time();
    let mut receiver = MessageReceiver { role: *role, tracker, thread_state, fault: None };
    // A closing session takes no messages.
    let _ = session.receive_datagram(kind, payload, resources, now, &mut receiver);
    receiver.fault.map_or_else(|| closed(session), Err)
}

fn closed(session: &mut Session) -> Result<(), ConnectionFailure> {
    match session.take_closed() {
        None => Ok(()),
        Some(closed) => match closed.cause() {
            Cause::Local => Err(ConnectionFailure::expected()),
            Cause::Fault(fault) => Err(ConnectionFailure::new(FailureKind::Protocol, &fault.to_string())),
            _ => {
                let code =
                    closed.code().map_or(String::new(), |code| format!(" with code {}", code.as_u16()));
                Err(ConnectionFailure::new(
                    FailureKind::Closed,
                    &format!("the server closed{code} {}", closed.reason()),
                ))
            }
        },
    }
}

struct MessageReceiver<'a> {
    role: ConnectionRole,
    tracker: &'a mut MessageTracker,
    thread_state: &'a mut ThreadState,
    fault: Option<ConnectionFailure>,
}

impl Events for MessageReceiver<'_> {
    fn message(&mut self, payload: Payload<'_>, tx: &mut Tx<'_>) {
        if self.fault.is_some() {
            return;
        }
        match self.role {
            ConnectionRole::Publisher(_) | ConnectionRole::Stalled(_) => {}
            ConnectionRole::Subscriber(_) => {
                if let Err(error) = delivered(&payload, self.thread_state) {
                    self.fault = Some(ConnectionFailure::new(FailureKind::WrongBytes, &error));
                }
            }
            ConnectionRole::Echo => {
                self.fault = echoed(&payload, self.tracker, self.thread_state);
                if self.fault.is_none() {
                    send(self.tracker, self.thread_state, tx);
                }
            }
        }
    }
}

/// Compares an echo with the sent message.
#[inline]
fn echoed(
    payload: &Payload<'_>,
    tracker: &mut MessageTracker,
    thread_state: &mut ThreadState,
) -> Option<ConnectionFailure> {
    let Some(number) = tracker.expects() else {
        return Some(ConnectionFailure::new(FailureKind::WrongBytes, "unexpected message without a request"));
    };
    let len = payload.len();
    if payload.kind() != thread_state.plan.kind || **payload != *thread_state.plan.corpus.message(number) {
        let what = "echo differs from the sent message, or is out of order";
        return Some(ConnectionFailure::new(FailureKind::WrongBytes, what));
    }
    tracker.answered(thread_state, len);
    None
}

#[inline]
fn send(tracker: &mut MessageTracker, thread_state: &mut ThreadState, tx: &mut Tx<'_>) {
    while let Some(number) = tracker.take(thread_state) {
        let message = thread_state.plan.corpus.message(number);
        let len = message.len();
        // The plan has validated the text.
        let sent = tx.send(thread_state.plan.kind, message);
        if sent.is_err() {
            return;
        }
        tracker.sent_bytes(thread_state, len);
    }
}

/// Maximum message size in bytes: more than the largest sent message, with overhead that a server may add.
const MESSAGE_MAX: u64 = 128 << 20;
