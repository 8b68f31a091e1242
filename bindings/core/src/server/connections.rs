//! WebSockets, and the commands that wait for them.

use std::ops::Range;
use std::task::Waker;

use sinews_proto::Kind;
use sinews_server::{CloseCode, Closed, Context, Handler, Payload, Request, Sent};
use slab::Slab;

use super::{SendResult, ServerEvent, SharedState, lock};

/// All WebSockets, by id.
#[derive(Debug, Default)]
pub(super) struct Connections {
    slots: Slab<Slot>,
    /// Closed since the last release.
    closed: Vec<usize>,
    /// How many of these the interpreter knows.
    known_closed: usize,
    /// Connections with subscriptions, or ends of subscriptions, that wait for a turn.
    subscribing: usize,
}

/// A WebSocket, as the interpreter knows it.
#[derive(Debug)]
struct Slot {
    waker: Waker,
    is_open: bool,
    /// Maximum bytes that wait here.
    limit: usize,
    /// Bytes in the connection's own queue: 0 below 16 KiB.
    buffered: usize,
    high_water: usize,
    /// The queue has a change of subscriptions.
    is_subscribing: bool,
    commands: CommandQueue,
}

/// Commands in order. Payloads lie one after the other: a burst of sends takes no memory for each.
#[derive(Debug, Default)]
struct CommandQueue {
    list: Vec<Command>,
    bytes: Vec<u8>,
}

#[derive(Debug)]
pub(super) enum Command {
    Send(Kind, Range<usize>),
    Subscribe(String),
    Unsubscribe(String),
    Close(CloseCode, String),
}

impl Connections {
    /// The slot of a connection that is not closed.
    fn open(&mut self, id: u32) -> Option<&mut Slot> {
        self.slots.get_mut(id as usize).filter(|slot| slot.is_open)
    }

    pub(super) fn send(&mut self, id: u32, kind: Kind, payload: &[u8]) -> SendResult {
        let Some(slot) = self.open(id) else { return SendResult::Dropped };
        let start = slot.commands.bytes.len();
        if start + payload.len() > slot.limit.max(payload.len()) {
            return SendResult::Dropped;
        }
        slot.commands.bytes.extend_from_slice(payload);
        slot.push(Command::Send(kind, start..start + payload.len()));
        match slot.waiting() > slot.high_water {
            true => SendResult::Backpressure,
            false => SendResult::Queued,
        }
    }

    /// Queues a command. Returns whether the connection is open.
    pub(super) fn command(&mut self, id: u32, command: Command) -> bool {
        let Some(slot) = self.open(id) else { return false };
        let changes = matches!(command, Command::Subscribe(_) | Command::Unsubscribe(_));
        slot.push(command);
        if changes && !std::mem::replace(&mut slot.is_subscribing, true) {
            self.subscribing += 1;
        }
        true
    }

    pub(super) fn buffered(&self, id: u32) -> usize {
        self.slots.get(id as usize).map_or(0, Slot::waiting)
    }

    pub(super) fn has_waiting_subscriptions(&self) -> bool {
        self.subscribing > 0
    }

    /// The connection's commands were executed, or dropped with the connection.
    fn end_subscribing(&mut self, id: u32) {
        let slot = self.slots.get_mut(id as usize);
        if slot.is_some_and(|slot| std::mem::take(&mut slot.is_subscribing)) {
            self.subscribing -= 1;
        }
    }

    /// The interpreter has read all events.
    pub(super) fn note_read(&mut self) {
        self.known_closed = self.closed.len();
    }

    /// Ids may be given again, once the interpreter knows the end of their connections: it would send to another one.
    pub(super) fn release(&mut self) {
        for id in self.closed.drain(..std::mem::take(&mut self.known_closed)) {
            self.slots.remove(id);
        }
    }
}

impl Slot {
    fn push(&mut self, command: Command) {
        if self.commands.list.is_empty() {
            self.waker.wake_by_ref();
        }
        self.commands.list.push(command);
    }

    fn waiting(&self) -> usize {
        self.commands.bytes.len() + self.buffered
    }
}

/// The handler of a WebSocket.
pub(super) struct Hosted {
    shared: SharedState,
    id: u32,
    /// The request, until the connection is open.
    request: Vec<u8>,
    limit: usize,
}

impl Hosted {
    pub(super) fn new(shared: &SharedState, request: &Request<'_>, limit: usize) -> Self {
        Self { shared: SharedState::clone(shared), id: u32::MAX, request: head_lines(request, false), limit }
    }
}

/// Returns a request's first line, the client's address and the headers, a line each.
pub(super) fn head_lines(request: &Request<'_>, has_method: bool) -> Vec<u8> {
    let mut lines = Vec::new();
    if has_method {
        lines.extend_from_slice(request.head().method().as_bytes());
        lines.push(b' ');
    }
    lines.extend_from_slice(request.head().target().as_bytes());
    lines.extend_from_slice(format!("\n{}\n", request.peer()).as_bytes());
    for (name, value) in request.head().headers() {
        // Neither has the end of a line.
        lines.extend_from_slice(name.as_bytes());
        lines.extend_from_slice(b": ");
        lines.extend_from_slice(value);
        lines.push(b'\n');
    }
    lines
}

impl Handler for Hosted {
    fn open(&mut self, cx: &mut Context<'_>) {
        let shared = &mut *lock(&self.shared);
        let (limit, high_water) = (self.limit, cx.config().high_water());
        let (waker, commands) = (cx.waker(), CommandQueue::default());
        let slot =
            Slot { waker, is_open: true, limit, buffered: 0, high_water, is_subscribing: false, commands };
        // As many connections as descriptors.
        self.id = shared.connections.slots.insert(slot) as u32;
        shared.events.push(ServerEvent::Open, self.id, &[&std::mem::take(&mut self.request)]);
    }

    fn message(&mut self, payload: Payload<'_>, _: &mut Context<'_>) {
        let kind = if payload.kind() == Kind::Text { ServerEvent::Text } else { ServerEvent::Binary };
        lock(&self.shared).events.push(kind, self.id, &[&payload]);
    }

    fn pong(&mut self, payload: &[u8], _: Option<std::time::Duration>, _: &mut Context<'_>) {
        lock(&self.shared).events.push(ServerEvent::Pong, self.id, &[payload]);
    }

    fn queued(&mut self, bytes: usize) {
        if let Some(slot) = lock(&self.shared).connections.slots.get_mut(self.id as usize) {
            slot.buffered = bytes;
        }
    }

    fn drain(&mut self, _: &mut Context<'_>) {
        lock(&self.shared).events.push(ServerEvent::Drain, self.id, &[]);
    }

    fn woken(&mut self, cx: &mut Context<'_>) {
        let shared = &mut *lock(&self.shared);
        let Some(slot) = shared.connections.slots.get_mut(self.id as usize) else { return };
        let mut is_dropped = false;
        for command in slot.commands.list.drain(..) {
            match command {
                Command::Send(kind, at) => {
                    let sent = cx.send(kind, &slot.commands.bytes[at]);
                    // A closing connection takes nothing more.
                    is_dropped |= matches!(sent, Ok(Sent::Dropped));
                }
                Command::Subscribe(topic) => {
                    // The name was checked. Beyond the limit of subscriptions, the client is closed: it would miss
                    // messages.
                    if cx.subscribe(&topic).is_err() {
                        let _ = cx.close(CloseCode::POLICY, "too many subscriptions");
                    }
                }
                Command::Unsubscribe(topic) => {
                    cx.unsubscribe(&topic);
                }
                Command::Close(code, reason) => {
                    let _ = cx.close(code, &reason);
                }
            }
        }
        slot.commands.bytes.clear();
        slot.commands.bytes.shrink_to(COMMAND_BYTES_KEPT);
        let is_short = cx.buffered() <= slot.high_water / 2;
        shared.connections.end_subscribing(self.id);
        if is_dropped && is_short {
            shared.events.push(ServerEvent::Drain, self.id, &[]);
        }
    }

    fn close(&mut self, closed: &Closed, _: &mut Context<'_>) {
        let shared = &mut *lock(&self.shared);
        if let Some(slot) = shared.connections.slots.get_mut(self.id as usize) {
            slot.is_open = false;
            slot.commands = CommandQueue::default();
            shared.connections.end_subscribing(self.id);
            shared.connections.closed.push(self.id as usize);
            let (code, reason) = (closed.status().to_be_bytes(), closed.reason().as_bytes());
            shared.events.push(ServerEvent::Close, self.id, &[&code, reason]);
        }
    }
}

/// Memory of queued payloads that stays with an idle connection.
const COMMAND_BYTES_KEPT: usize = 1 << 10;
