//! WebSockets, and the commands that wait for them.

use std::ops::Range;
use std::task::Waker;

use sinews_hub::{ProgramSubscriber, ProgramTopics};
use sinews_proto::Kind;
use sinews_server::{CloseCode, Closed, Context, Handler, Payload, Request};
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
    /// Connections with commands.
    commanded: usize,
    /// Connections that wait until the interpreter has read the events: with further input, or with the answer to a Close.
    unread: Vec<usize>,
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
    /// A send was told to wait for the drain.
    is_slow: bool,
    is_paused: bool,
    /// The interpreter has read the events since the connection was registered in [`Connections::unread`].
    is_read: bool,
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
    /// The interpreter has dropped a message: it waits for the drain.
    Slow,
}

impl Connections {
    /// The slot of a connection that is not closed.
    fn open(&mut self, id: u32) -> Option<&mut Slot> {
        self.slots.get_mut(id as usize).filter(|slot| slot.is_open)
    }

    /// A message of the interpreter was dropped: the drain is reported.
    pub(super) fn set_slow(&mut self, id: u32) {
        if let Some(slot) = self.open(id) {
            slot.is_slow = true;
            self.command(id, Command::Slow);
        }
    }

    pub(super) fn send(&mut self, id: u32, kind: Kind, payload: &[u8]) -> SendResult {
        let Some(slot) = self.open(id) else { return SendResult::Dropped };
        let start = slot.commands.bytes.len();
        if start + payload.len() > slot.limit.max(payload.len()) {
            // Commands wait, so that the drain will be reported.
            slot.is_slow = true;
            return SendResult::Dropped;
        }
        slot.commands.bytes.extend_from_slice(payload);
        let is_long = slot.waiting() > slot.high_water;
        slot.is_slow |= is_long;
        self.command(id, Command::Send(kind, start..start + payload.len()));
        if is_long { SendResult::Backpressure } else { SendResult::Queued }
    }

    /// Queues a command, and wakes the connection. Returns whether it is open.
    pub(super) fn command(&mut self, id: u32, command: Command) -> bool {
        let Some(slot) = self.open(id) else { return false };
        let is_first = slot.commands.list.is_empty();
        slot.commands.list.push(command);
        if is_first {
            slot.waker.wake_by_ref();
            self.commanded += 1;
        }
        true
    }

    pub(super) fn buffered(&self, id: u32) -> usize {
        self.slots.get(id as usize).map_or(0, Slot::waiting)
    }

    /// Whether a connection has commands.
    pub(super) fn has_commands(&self) -> bool {
        self.commanded > 0
    }

    /// Takes a connection's commands, which are executed or dropped.
    fn take_commands(&mut self, id: u32) -> CommandQueue {
        let Some(slot) = self.slots.get_mut(id as usize) else { return CommandQueue::default() };
        let commands = std::mem::take(&mut slot.commands);
        self.commanded -= usize::from(!commands.list.is_empty());
        commands
    }

    /// Reads a connection no more until [`resume`](Self::resume).
    fn pause(&mut self, id: u32, cx: &mut Context<'_>) {
        cx.pause_reads();
        if let Some(slot) = self.slots.get_mut(id as usize)
            && !std::mem::replace(&mut slot.is_paused, true)
        {
            self.unread.push(id as usize);
        }
    }

    /// Wakes a connection once the interpreter has read the events.
    fn await_read(&mut self, id: u32) {
        if let Some(slot) = self.slots.get_mut(id as usize) {
            slot.is_read = false;
            self.unread.push(id as usize);
        }
    }

    /// The interpreter has read the events: wakes the connections that wait for it.
    pub(super) fn resume(&mut self) {
        for id in std::mem::take(&mut self.unread) {
            if let Some(slot) = self.slots.get_mut(id) {
                slot.is_read = true;
                slot.waker.wake_by_ref();
            }
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
    /// Of the whole server. Few programs have it: a pointer costs other connections little.
    subscriber: Option<Box<ProgramSubscriber>>,
    /// The peer's Close or violation, until it is answered.
    ending: Option<Box<Closed>>,
}

impl Hosted {
    pub(super) fn new(shared: &SharedState, request: &Request<'_>, limit: usize) -> Self {
        let (shared, request) = (SharedState::clone(shared), head_lines(request, false));
        Self { shared, id: u32::MAX, request, limit, subscriber: None, ending: None }
    }

    /// Reports a message or a pong. Beyond the events' limit, the connection is not read until the interpreter has read
    /// the events.
    fn push(&self, kind: ServerEvent, payload: &[u8], cx: &mut Context<'_>) {
        let shared = &mut *lock(&self.shared);
        if !shared.events.push(kind, self.id, &[payload]) {
            let _ = cx.close(CloseCode::TRY_AGAIN_LATER, "too many events");
        }
        if shared.events.is_full() {
            shared.connections.pause(self.id, cx);
        }
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
        let slot = Slot {
            waker,
            is_open: true,
            limit,
            buffered: 0,
            high_water,
            is_slow: false,
            is_paused: false,
            is_read: false,
            commands,
        };
        self.subscriber = shared.topics.as_ref().map(ProgramTopics::subscriber).map(Box::new);
        // As many connections as descriptors.
        self.id = shared.connections.slots.insert(slot) as u32;
        shared.events.push(ServerEvent::Open, self.id, &[&std::mem::take(&mut self.request)]);
    }

    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        let kind = if payload.kind() == Kind::Text { ServerEvent::Text } else { ServerEvent::Binary };
        self.push(kind, &payload, cx);
    }

    fn pong(&mut self, payload: &[u8], _: Option<std::time::Duration>, cx: &mut Context<'_>) {
        self.push(ServerEvent::Pong, payload, cx);
    }

    fn queued(&mut self, bytes: usize) {
        if let Some(slot) = lock(&self.shared).connections.slots.get_mut(self.id as usize) {
            slot.buffered = bytes;
        }
    }

    fn drain(&mut self, _: &mut Context<'_>) {
        let shared = &mut *lock(&self.shared);
        let slot = shared.connections.slots.get_mut(self.id as usize);
        if slot.is_some_and(|slot| std::mem::take(&mut slot.is_slow)) {
            shared.events.push(ServerEvent::Drain, self.id, &[]);
        }
    }

    fn woken(&mut self, cx: &mut Context<'_>) {
        let shared = &mut *lock(&self.shared);
        let mut commands = shared.connections.take_commands(self.id);
        for command in commands.list.drain(..) {
            match command {
                Command::Send(kind, at) => {
                    // A closing connection takes nothing more. What the session drops is reported below.
                    let _ = cx.send(kind, &commands.bytes[at]);
                }
                Command::Subscribe(topic) => {
                    // The name was checked. Beyond the limit of subscriptions, the client is closed: it would miss
                    // messages.
                    let subscribed = match &mut self.subscriber {
                        Some(subscriber) => subscriber.subscribe(&topic, cx),
                        None => cx.subscribe(&topic),
                    };
                    if subscribed.is_err() {
                        let _ = cx.close(CloseCode::POLICY, "too many subscriptions");
                    }
                }
                Command::Unsubscribe(topic) => {
                    match &mut self.subscriber {
                        Some(subscriber) => subscriber.unsubscribe(&topic, cx),
                        None => cx.unsubscribe(&topic),
                    };
                }
                Command::Close(code, reason) => {
                    let _ = cx.close(code, &reason);
                }
                Command::Slow => {}
            }
        }
        let Some(slot) = shared.connections.slots.get_mut(self.id as usize) else { return };
        if std::mem::take(&mut slot.is_paused) {
            cx.resume_reads();
        }
        if std::mem::take(&mut slot.is_read)
            && let Some(closed) = self.ending.take()
        {
            answer_end(&closed, cx);
        }
        if commands.bytes.capacity() <= COMMAND_BYTES_KEPT {
            commands.bytes.clear();
            slot.commands = commands;
        }
        // The session reports the drain of a queue that it has found long itself.
        if slot.is_slow && cx.buffered() <= slot.high_water {
            slot.is_slow = false;
            shared.events.push(ServerEvent::Drain, self.id, &[]);
        }
    }

    fn ending(&mut self, closed: &Closed, cx: &mut Context<'_>) {
        let shared = &mut *lock(&self.shared);
        if shared.events.words.is_empty() {
            return answer_end(closed, cx);
        }
        // Behind the commands of the handlers for messages that arrived before.
        shared.connections.await_read(self.id);
        self.ending = Some(Box::new(closed.clone()));
    }

    fn close(&mut self, closed: &Closed, cx: &mut Context<'_>) {
        if let Some(subscriber) = &mut self.subscriber {
            subscriber.end(cx);
        }
        let shared = &mut *lock(&self.shared);
        if let Some(slot) = shared.connections.slots.get_mut(self.id as usize) {
            slot.is_open = false;
            shared.connections.take_commands(self.id);
            shared.connections.closed.push(self.id as usize);
            let (code, reason) = (closed.status().to_be_bytes(), closed.reason().as_bytes());
            shared.events.push(ServerEvent::Close, self.id, &[&code, reason]);
        }
    }
}

/// Closes with the peer's code and reason, or those of its violation.
fn answer_end(closed: &Closed, cx: &mut Context<'_>) {
    // Fails only if a handler has closed the connection.
    let _ = match closed.code() {
        Some(code) => cx.close(code, closed.reason()),
        None => cx.close_without_code(),
    };
}

/// Memory of queued payloads that stays with an idle connection.
const COMMAND_BYTES_KEPT: usize = 1 << 10;
