//! A WebSocket client: the handshake, followed by a session of echoes or deliveries.

use std::sync::Arc;
use std::time::Instant;

use sinews_proto::handshake::{ClientHandshake, ClientRequest, ClientStep};
use sinews_proto::{CloseCode, Config, PingRate, Time};
use sinews_session::{Cause, Chain, Events, Fate, Outbound, Payload, Resources, Session, Tx};

use super::super::tally::Failure;
use super::lane::{Desk, Lane, delivered};
use super::wire::{Fault, Part};

#[derive(Debug)]
pub(super) enum WebSocket {
    Handshake {
        machine: Box<ClientHandshake>,
        received: Vec<u8>,
        out: Outbound,
    },
    Open(Box<Session>),
    /// Transient state between handshake and session.
    Nothing,
}

/// Limits of all sessions of a run: the plan bounds queued data.
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

impl WebSocket {
    pub(super) fn new(request: &ClientRequest, key: [u8; 16]) -> Self {
        let machine = Box::new(request.clone().start(key));
        Self::Handshake { machine, received: Vec::new(), out: Outbound::default() }
    }

    pub(super) fn begin(&mut self, resources: &mut Resources) {
        if let Self::Handshake { machine, out, .. } = self {
            out.gathering(resources).write(|out| machine.write_request(out));
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Open(_))
    }

    pub(super) fn receive(
        &mut self,
        chunk: &mut [u8],
        part: Part,
        lane: &mut Lane,
        desk: &mut Desk,
        with: (&mut Resources, &Arc<Config>),
    ) -> Result<(), Fault> {
        match self {
            Self::Open(session) => receive(session, chunk, part, lane, desk, with.0),
            Self::Nothing => Ok(()),
            Self::Handshake { machine, received, .. } => {
                received.extend_from_slice(chunk);
                let step = machine.read_response(received);
                let step = step.map_err(|error| Fault::new(Failure::Handshake, &error.to_string()))?;
                let ClientStep::Done(done) = step else { return Ok(()) };
                let Self::Handshake { mut received, out, .. } = std::mem::replace(self, Self::Nothing) else {
                    return Ok(());
                };
                let now = time(desk.epoch, desk.now);
                let session = Session::with_outbound(done.negotiated(), with.1.clone(), now, out);
                *self = Self::Open(Box::new(session));
                let behind = &mut received[done.consumed()..];
                if behind.is_empty() { Ok(()) } else { self.receive(behind, part, lane, desk, with) }
            }
        }
    }

    /// Sends messages as far as allowed.
    pub(super) fn send(&mut self, part: Part, lane: &mut Lane, desk: &mut Desk, resources: &mut Resources) {
        let Self::Open(session) = self else { return };
        let now = time(desk.epoch, desk.now);
        let mut tx = session.tx(resources, now);
        match part {
            Part::Echo => send(lane, desk, &mut tx),
            Part::Publisher(topic) => {
                while let Some(publication) = lane.publication(topic, desk) {
                    let template = desk.plan.fan_out.publish.as_str();
                    let message = if template == "{payload}" {
                        publication
                    } else {
                        let topic = super::super::plan::FanOut::topic(topic);
                        template.replace("{topic}", &topic).replace("{payload}", &publication)
                    };
                    // The session is open and unlimited.
                    let _ = tx.send_text(&message);
                    lane.sent_bytes(desk, message.len());
                }
            }
            Part::Subscriber(_) => {}
        }
        session.after_tx(resources, now);
    }

    /// Sends a subscriber's first message.
    pub(super) fn subscribe(&mut self, text: &str, desk: &Desk, resources: &mut Resources) {
        let Self::Open(session) = self else { return };
        let now = time(desk.epoch, desk.now);
        let _ = session.tx(resources, now).send_text(text);
        session.after_tx(resources, now);
    }

    /// Sends Close as RFC 6455 requires. Returns whether an answer is pending.
    pub(super) fn close(&mut self, desk: &Desk, resources: &mut Resources) -> bool {
        let Self::Open(session) = self else { return false };
        let now = time(desk.epoch, desk.now);
        let closing = session.tx(resources, now).close(CloseCode::NORMAL, "").is_ok();
        session.after_tx(resources, now);
        closing
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

    pub(super) fn progressed(&mut self, bytes: usize, desk: &Desk) {
        match self {
            Self::Open(session) => session.progressed(bytes, time(desk.epoch, desk.now)),
            Self::Handshake { out, .. } => out.progressed(bytes),
            Self::Nothing => {}
        }
    }

    pub(super) fn finish_send(&mut self, chain: Box<Chain>, desk: &Desk, resources: &mut Resources) {
        match self {
            Self::Open(session) => {
                session.finish_send(chain, resources, time(desk.epoch, desk.now));
            }
            Self::Handshake { out, .. } => out.finish(chain, resources),
            Self::Nothing => {}
        }
    }

    /// Whether the session has ended and the transport may be closed.
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Open(session) if session.fate() != Fate::Open && !session.is_open() && session.buffered() == 0)
    }
}

fn receive(
    session: &mut Session,
    chunk: &mut [u8],
    part: Part,
    lane: &mut Lane,
    desk: &mut Desk,
    resources: &mut Resources,
) -> Result<(), Fault> {
    let now = time(desk.epoch, desk.now);
    let mut heard = Heard { part, lane, desk, fault: None };
    // Reads are never paused: there is no high-water mark.
    let _ = session.receive(chunk, resources, now, &mut heard);
    if let Some(fault) = heard.fault {
        return Err(fault);
    }
    match session.take_closed() {
        None => Ok(()),
        Some(closed) => match closed.cause() {
            Cause::Local => Err(Fault::expected()),
            Cause::Fault(fault) => Err(Fault::new(Failure::Protocol, &fault.to_string())),
            _ => {
                let code =
                    closed.code().map_or(String::new(), |code| format!(" with code {}", code.as_u16()));
                Err(Fault::new(Failure::Closed, &format!("the server closed{code} {}", closed.reason())))
            }
        },
    }
}

struct Heard<'a> {
    part: Part,
    lane: &'a mut Lane,
    desk: &'a mut Desk,
    fault: Option<Fault>,
}

impl Events for Heard<'_> {
    fn message(&mut self, payload: Payload<'_>, tx: &mut Tx<'_>) {
        if self.fault.is_some() {
            return;
        }
        match self.part {
            Part::Publisher(_) => {}
            Part::Subscriber(_) => {
                if let Err(error) = delivered(&payload, self.desk) {
                    self.fault = Some(Fault::new(Failure::WrongBytes, &error));
                }
            }
            Part::Echo => {
                self.fault = echoed(&payload, self.lane, self.desk);
                if self.fault.is_none() {
                    send(self.lane, self.desk, tx);
                }
            }
        }
    }
}

/// Compares an echo with the sent message.
#[inline]
fn echoed(payload: &Payload<'_>, lane: &mut Lane, desk: &mut Desk) -> Option<Fault> {
    let Some(number) = lane.expects() else {
        return Some(Fault::new(Failure::WrongBytes, "unexpected message without a request"));
    };
    let len = payload.len();
    if payload.kind() != desk.plan.kind || **payload != *desk.plan.corpus.message(number) {
        let what = "echo differs from the sent message, or is out of order";
        return Some(Fault::new(Failure::WrongBytes, what));
    }
    lane.answered(desk, len);
    None
}

#[inline]
fn send(lane: &mut Lane, desk: &mut Desk, tx: &mut Tx<'_>) {
    while let Some(number) = lane.take(desk) {
        let message = desk.plan.corpus.message(number);
        let len = message.len();
        // The plan has validated the text.
        let sent = tx.send(desk.plan.kind, message);
        if sent.is_err() {
            return;
        }
        lane.sent_bytes(desk, len);
    }
}

pub(super) fn time(epoch: Instant, now: Instant) -> Time {
    Time::from_micros(now.saturating_duration_since(epoch).as_micros() as u64)
}

/// Maximum message size in bytes: more than the largest sent message, with overhead that a server may add.
const MESSAGE_MAX: u64 = 128 << 20;
