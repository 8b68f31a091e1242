//! A conversation: sends the input, shows received messages, and decides when to end.

mod drive;
mod ending;

use std::collections::{BTreeMap, VecDeque};
use std::future::pending;

use sinews::{CloseCode, CloseFrame, Message, Sender};
use sinews_server::escape::escape_line;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

pub(crate) use self::drive::{ConnectionEvent, drive};
pub(crate) use self::ending::{ANSWER_WAIT, EndRules};
use super::command::{ConsoleCommand, HELP};
use super::end::{EndKind, RunEnd};
use super::entry::{self, Direction, RecordEntry};
use super::input::InputEvent;
use super::output::Output;

/// Capacity of the event queue.
pub(crate) const EVENTS_MAX: usize = 64;
/// Maximum pings with measured answers.
const PINGS_MAX: usize = 64;

/// A connection and its sender.
struct ConversationPeer {
    sender: Sender,
    /// Unanswered pings.
    pings: VecDeque<(Vec<u8>, Instant)>,
    name: String,
}

/// A conversation.
pub(crate) struct Conversation {
    output: Output,
    rules: EndRules,
    peers: BTreeMap<u32, ConversationPeer>,
    /// Messages rejected by a full outbound queue; further input waits for them.
    unsent: VecDeque<(u32, Message)>,
    sent: u64,
    /// Received messages; the replay waits for it.
    received: watch::Sender<u64>,
    pinged: u64,
    input_ended: bool,
    /// Time of the last event.
    last_event: Instant,
    started: Instant,
    /// When closing started.
    closing_since: Option<Instant>,
    /// The first decision about the result.
    end: Option<RunEnd>,
}

impl Conversation {
    pub(crate) fn new(output: Output, rules: EndRules, received: watch::Sender<u64>) -> Self {
        let now = Instant::now();
        Self {
            output,
            rules,
            peers: BTreeMap::new(),
            unsent: VecDeque::new(),
            sent: 0,
            received,
            pinged: 0,
            input_ended: false,
            last_event: now,
            started: now,
            closing_since: None,
            end: None,
        }
    }

    /// Adds an open connection.
    pub(crate) fn open(
        &mut self,
        id: u32,
        sender: Sender,
        entry: RecordEntry,
        description: &str,
    ) -> Result<(), RunEnd> {
        self.last_event = Instant::now();
        self.peers
            .insert(id, ConversationPeer { sender, pings: VecDeque::new(), name: description.to_owned() });
        self.output.opened(entry, description)
    }

    /// Runs the conversation to its end.
    pub(crate) async fn run(
        mut self,
        mut events: mpsc::Receiver<ConnectionEvent>,
        mut input: mpsc::Receiver<InputEvent>,
    ) -> RunEnd {
        let end = match self.run_loop(&mut events, &mut input).await {
            Ok(()) => self.end.take().unwrap_or_else(|| RunEnd::new(EndKind::Success, "")),
            Err(failure) => failure,
        };
        match self.output.finish() {
            Err(failure) if end.kind == EndKind::Success => failure,
            _ => end,
        }
    }

    async fn run_loop(
        &mut self,
        events: &mut mpsc::Receiver<ConnectionEvent>,
        input: &mut mpsc::Receiver<InputEvent>,
    ) -> Result<(), RunEnd> {
        let mut interrupts = interrupts()?;
        loop {
            self.check_done()?;
            if self.closing_since.is_some() && self.peers.is_empty() {
                return Ok(());
            }
            let wants_input = !self.input_ended
                && self.closing_since.is_none()
                && self.unsent.is_empty()
                && !self.awaits_first_client();
            let due = self.due();
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.handle_event(event)?,
                    None => return Ok(()),
                },
                command = input.recv(), if wants_input => self.handle_input(command)?,
                () = wait_for_capacity(self.unsent.front(), &self.peers), if !self.unsent.is_empty() => {
                    self.unsent.pop_front();
                }
                () = wait_until(due) => self.handle_time()?,
                _ = interrupts.recv() => match self.closing_since {
                    None => self.start_closing(CloseCode::NORMAL, None)?,
                    Some(_) => return Ok(()),
                },
            }
        }
    }

    /// In a pipe, a server queues its input for the first client.
    fn awaits_first_client(&self) -> bool {
        self.peers.is_empty() && self.rules.listening && !self.rules.in_console
    }

    fn handle_event(&mut self, event: ConnectionEvent) -> Result<(), RunEnd> {
        match event {
            ConnectionEvent::Opened(id, sender, entry, description) => {
                self.open(id, sender, *entry, &description)?;
                // Clients that connect during shutdown are closed immediately.
                if self.closing_since.is_some() {
                    self.send(id, close(CloseCode::GOING_AWAY))?;
                }
                Ok(())
            }
            ConnectionEvent::Failed(description) => self.output.print_status(&description),
            ConnectionEvent::Message(id, message) => self.handle_message(id, &message),
            ConnectionEvent::Echoed(id, message) => {
                self.handle_message(id, &message)?;
                self.output.sent(id, &message)
            }
            ConnectionEvent::Closed(id, end) => {
                self.peers.remove(&id);
                self.unsent.retain(|(peer, _)| *peer != id);
                self.output.closed(id, &end)?;
                if !self.rules.listening || self.rules.once {
                    self.closing_since.get_or_insert_with(Instant::now);
                    self.decide(end);
                    if let Some(missing) = self.missing() {
                        self.decide(missing);
                    }
                }
                Ok(())
            }
        }
    }

    fn handle_message(&mut self, id: u32, message: &Message) -> Result<(), RunEnd> {
        let rtt_ms = match message {
            Message::Pong(payload) => self.peers.get_mut(&id).and_then(|peer| peer.pong(payload)),
            _ => None,
        };
        self.output.received(id, message, rtt_ms)?;
        if message.is_data() {
            self.last_event = Instant::now();
            self.received.send_modify(|count| *count += 1);
            self.compare(message)?;
        }
        Ok(())
    }

    /// Compares with the recorded answers, if --check is set.
    fn compare(&mut self, message: &Message) -> Result<(), RunEnd> {
        let Some(expected) = &mut self.rules.expected else { return Ok(()) };
        let entry = RecordEntry::new(Direction::In, message);
        let number = *self.received.borrow();
        let description = match expected.pop_front() {
            Some(wanted)
                if (wanted.kind, &wanted.text, &wanted.base64)
                    == (entry.kind, &entry.text, &entry.base64) =>
            {
                return Ok(());
            }
            Some(wanted) => {
                format!("answer {number} is {}, and not {} as recorded", entry.describe(), wanted.describe())
            }
            None => format!("answer {number}, {}, is one more than recorded", entry.describe()),
        };
        self.rules.expected = None;
        self.start_closing(CloseCode::NORMAL, Some(RunEnd::new(EndKind::Mismatch, description)))
    }

    fn handle_input(&mut self, input: Option<InputEvent>) -> Result<(), RunEnd> {
        match input {
            Some(InputEvent::Command(command)) => self.handle_command(command),
            Some(InputEvent::Invalid(why)) => self.output.warn(&why),
            Some(InputEvent::Failed(why)) => self.start_closing(CloseCode::NORMAL, Some(RunEnd::failed(why))),
            Some(InputEvent::End) | None => {
                self.input_ended = true;
                self.last_event = Instant::now();
                Ok(())
            }
        }
    }

    fn handle_command(&mut self, command: ConsoleCommand) -> Result<(), RunEnd> {
        match command {
            ConsoleCommand::Help => self.output.lines(HELP),
            ConsoleCommand::Peers => {
                let list: Vec<String> = self.peers.values().map(|peer| escape_line(&peer.name)).collect();
                self.output.lines(&if list.is_empty() { "no clients".to_owned() } else { list.join("\n") })
            }
            ConsoleCommand::To(id, command) if self.peers.contains_key(&id) => self.send_to(&[id], *command),
            ConsoleCommand::To(id, _) => self.output.warn(&format!("client {id} is not connected")),
            command => {
                let all: Vec<u32> = self.peers.keys().copied().collect();
                if all.is_empty() {
                    return self.output.warn("no client is connected");
                }
                self.send_to(&all, command)
            }
        }
    }

    fn send_to(&mut self, peers: &[u32], command: ConsoleCommand) -> Result<(), RunEnd> {
        let command = match command {
            // A ping with a unique payload, so that its answer is recognizable.
            ConsoleCommand::Ping(payload) if payload.is_empty() => {
                self.pinged += 1;
                ConsoleCommand::Ping(format!("ping {}", self.pinged).into_bytes())
            }
            command => command,
        };
        let message = match entry::message(command) {
            Ok(message) => message,
            Err(why) => return self.output.warn(&why),
        };
        for id in peers {
            self.send(*id, message.clone())?;
        }
        // A Close to all clients ends the conversation.
        if message.is_close() && peers.len() == self.peers.len() && !self.rules.listening {
            self.closing_since.get_or_insert_with(Instant::now);
        }
        Ok(())
    }

    fn send(&mut self, id: u32, message: Message) -> Result<(), RunEnd> {
        let Some(peer) = self.peers.get_mut(&id) else { return Ok(()) };
        if let Message::Ping(payload) = &message {
            peer.pings.push_back((payload.to_vec(), Instant::now()));
            if peer.pings.len() > PINGS_MAX {
                peer.pings.pop_front();
            }
        }
        let note = message.clone();
        self.sent += u64::from(note.is_data());
        if self.unsent.iter().any(|(peer, _)| *peer == id) {
            // Earlier rejected messages are sent first.
            self.unsent.push_back((id, message));
            return self.output.sent(id, &note);
        }
        match peer.sender.try_send(message) {
            Ok(()) => {}
            Err(error) if error.is_full() => self.unsent.push_back((id, error.into_message())),
            Err(error) if error.is_closed() => return Ok(()),
            Err(error) => return self.output.warn(&format!("not sent: {error}")),
        }
        self.output.sent(id, &note)
    }
}

impl ConversationPeer {
    /// Returns the milliseconds since this pong's ping.
    fn pong(&mut self, payload: &[u8]) -> Option<f64> {
        let found = self.pings.iter().position(|(sent, _)| sent == payload)?;
        // A pong may answer several pings; it carries the newest ping's payload (RFC 6455 section 5.5.3).
        let (_, since) = self.pings.drain(..=found).next_back()?;
        Some((since.elapsed().as_secs_f64() * 1e6).round() / 1e3)
    }
}

fn close(code: CloseCode) -> Message {
    Message::Close(Some(CloseFrame::new(code, "")))
}

/// Receives Ctrl-C, including signals during other work.
pub(crate) fn interrupts() -> Result<Signal, RunEnd> {
    signal(SignalKind::interrupt()).map_err(|error| RunEnd::io("SIGINT", &error))
}

pub(crate) async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
}

/// Waits for capacity in the outbound queue. A closed connection reports its end itself.
async fn wait_for_capacity(unsent: Option<&(u32, Message)>, peers: &BTreeMap<u32, ConversationPeer>) {
    if let Some((id, message)) = unsent
        && let Some(peer) = peers.get(id)
    {
        let _ = peer.sender.send(message.clone()).await;
    }
}
