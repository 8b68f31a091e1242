//! A conversation: sends the input, shows received messages, and decides when to end.

mod drive;
mod ending;

use std::collections::{BTreeMap, VecDeque};
use std::future::pending;

use sinews::{CloseCode, CloseFrame, Message, Sender};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

pub(crate) use self::drive::{Event, drive};
pub(crate) use self::ending::{ANSWER_WAIT, Rules};
use super::command::{Command, HELP};
use super::end::{End, Kind};
use super::entry::{self, Direction, Entry};
use super::input::Input;
use super::output::Output;

/// Capacity of the event queue.
pub(crate) const EVENTS_MAX: usize = 64;
/// Maximum number of pings with measured answers.
const PINGS_MAX: usize = 64;

/// A connection and its sender.
struct Peer {
    sender: Sender,
    /// Unanswered pings.
    pings: VecDeque<(Vec<u8>, Instant)>,
    name: String,
}

/// A conversation.
pub(crate) struct Talk {
    output: Output,
    rules: Rules,
    peers: BTreeMap<u32, Peer>,
    /// Messages rejected by a full outbound queue; further input waits for them.
    stuck: VecDeque<(u32, Message)>,
    sent: u64,
    /// Number of received messages; the replay waits for it.
    received: watch::Sender<u64>,
    pinged: u64,
    input_ended: bool,
    /// Time of the last event.
    heard: Instant,
    started: Instant,
    /// Start time of closing.
    leaving: Option<Instant>,
    /// The first decision about the result.
    end: Option<End>,
}

impl Talk {
    pub(crate) fn new(output: Output, rules: Rules, received: watch::Sender<u64>) -> Self {
        let now = Instant::now();
        Self {
            output,
            rules,
            peers: BTreeMap::new(),
            stuck: VecDeque::new(),
            sent: 0,
            received,
            pinged: 0,
            input_ended: false,
            heard: now,
            started: now,
            leaving: None,
            end: None,
        }
    }

    /// Adds an open connection.
    pub(crate) fn open(&mut self, id: u32, sender: Sender, entry: Entry, words: &str) -> Result<(), End> {
        self.heard = Instant::now();
        self.peers.insert(id, Peer { sender, pings: VecDeque::new(), name: words.to_owned() });
        self.output.opened(entry, words)
    }

    /// Runs the conversation to its end.
    pub(crate) async fn run(
        mut self,
        mut events: mpsc::Receiver<Event>,
        mut input: mpsc::Receiver<Input>,
    ) -> End {
        let end = match self.turns(&mut events, &mut input).await {
            Ok(()) => self.end.take().unwrap_or_else(|| End::new(Kind::Fine, "")),
            Err(trouble) => trouble,
        };
        match self.output.finish() {
            Err(trouble) if end.kind == Kind::Fine => trouble,
            _ => end,
        }
    }

    async fn turns(
        &mut self,
        events: &mut mpsc::Receiver<Event>,
        input: &mut mpsc::Receiver<Input>,
    ) -> Result<(), End> {
        let mut interrupts = interrupts()?;
        loop {
            self.look_whether_done()?;
            if self.leaving.is_some() && self.peers.is_empty() {
                return Ok(());
            }
            let wants_input =
                !self.input_ended && self.leaving.is_none() && self.stuck.is_empty() && !self.is_alone();
            let due = self.due();
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.handle_event(event)?,
                    None => return Ok(()),
                },
                command = input.recv(), if wants_input => self.handle_input(command)?,
                () = unstick(self.stuck.front(), &self.peers), if !self.stuck.is_empty() => {
                    self.stuck.pop_front();
                }
                () = wait_until(due) => self.handle_time()?,
                _ = interrupts.recv() => match self.leaving {
                    None => self.leave(CloseCode::NORMAL, None)?,
                    Some(_) => return Ok(()),
                },
            }
        }
    }

    /// In a pipe, a server queues its input for the first client.
    fn is_alone(&self) -> bool {
        self.peers.is_empty() && self.rules.listening && !self.rules.in_console
    }

    fn handle_event(&mut self, event: Event) -> Result<(), End> {
        match event {
            Event::Opened(id, sender, entry, words) => {
                self.open(id, sender, *entry, &words)?;
                // Clients that connect during shutdown are closed immediately.
                if self.leaving.is_some() {
                    self.send(id, close(CloseCode::GOING_AWAY))?;
                }
                Ok(())
            }
            Event::Failed(words) => self.output.say(&words),
            Event::Message(id, message) => self.handle_message(id, &message),
            Event::Echoed(id, message) => {
                self.handle_message(id, &message)?;
                self.output.sent(id, &message)
            }
            Event::Over(id, end) => {
                self.peers.remove(&id);
                self.stuck.retain(|(peer, _)| *peer != id);
                self.output.over(id, &end)?;
                if !self.rules.listening || self.rules.once {
                    self.leaving.get_or_insert_with(Instant::now);
                    self.decide(end);
                    if let Some(missing) = self.missing() {
                        self.decide(missing);
                    }
                }
                Ok(())
            }
        }
    }

    fn handle_message(&mut self, id: u32, message: &Message) -> Result<(), End> {
        let rtt_ms = match message {
            Message::Pong(payload) => self.peers.get_mut(&id).and_then(|peer| peer.pong(payload)),
            _ => None,
        };
        self.output.received(id, message, rtt_ms)?;
        if message.is_data() {
            self.heard = Instant::now();
            self.received.send_modify(|count| *count += 1);
            self.compare(message)?;
        }
        Ok(())
    }

    /// Compares with the recorded answers, if --check is set.
    fn compare(&mut self, message: &Message) -> Result<(), End> {
        let Some(expected) = &mut self.rules.expected else { return Ok(()) };
        let came = Entry::of(Direction::In, message);
        let number = *self.received.borrow();
        let words = match expected.pop_front() {
            Some(wanted)
                if (wanted.kind, &wanted.text, &wanted.base64) == (came.kind, &came.text, &came.base64) =>
            {
                return Ok(());
            }
            Some(wanted) => {
                format!("answer {number} is {}, and not {} as recorded", came.describe(), wanted.describe())
            }
            None => format!("answer {number}, {}, is one more than recorded", came.describe()),
        };
        self.rules.expected = None;
        self.leave(CloseCode::NORMAL, Some(End::new(Kind::Differs, words)))
    }

    fn handle_input(&mut self, input: Option<Input>) -> Result<(), End> {
        match input {
            Some(Input::Command(command)) => self.handle_command(command),
            Some(Input::Bad(why)) => self.output.warn(&why),
            Some(Input::Trouble(why)) => self.leave(CloseCode::NORMAL, Some(End::trouble(why))),
            Some(Input::End) | None => {
                self.input_ended = true;
                self.heard = Instant::now();
                Ok(())
            }
        }
    }

    fn handle_command(&mut self, command: Command) -> Result<(), End> {
        match command {
            Command::Help => self.output.lines(HELP),
            Command::Peers => {
                let list: Vec<String> = self.peers.values().map(|peer| peer.name.clone()).collect();
                self.output.lines(&if list.is_empty() { "no clients".to_owned() } else { list.join("\n") })
            }
            Command::To(id, command) if self.peers.contains_key(&id) => self.say_to(&[id], *command),
            Command::To(id, _) => self.output.warn(&format!("client {id} is not connected")),
            command => {
                let all: Vec<u32> = self.peers.keys().copied().collect();
                if all.is_empty() {
                    return self.output.warn("no client is connected");
                }
                self.say_to(&all, command)
            }
        }
    }

    fn say_to(&mut self, peers: &[u32], command: Command) -> Result<(), End> {
        let command = match command {
            // A ping with a unique payload, so that its answer is recognizable.
            Command::Ping(payload) if payload.is_empty() => {
                self.pinged += 1;
                Command::Ping(format!("ping {}", self.pinged).into_bytes())
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
            self.leaving.get_or_insert_with(Instant::now);
        }
        Ok(())
    }

    fn send(&mut self, id: u32, message: Message) -> Result<(), End> {
        let Some(peer) = self.peers.get_mut(&id) else { return Ok(()) };
        if let Message::Ping(payload) = &message {
            peer.pings.push_back((payload.to_vec(), Instant::now()));
            if peer.pings.len() > PINGS_MAX {
                peer.pings.pop_front();
            }
        }
        let note = message.clone();
        self.sent += u64::from(note.is_data());
        if self.stuck.iter().any(|(peer, _)| *peer == id) {
            // Earlier rejected messages are sent first.
            self.stuck.push_back((id, message));
            return self.output.sent(id, &note);
        }
        match peer.sender.try_send(message) {
            Ok(()) => {}
            Err(error) if error.is_full() => self.stuck.push_back((id, error.into_message())),
            Err(error) if error.is_closed() => return Ok(()),
            Err(error) => return self.output.warn(&format!("not sent: {error}")),
        }
        self.output.sent(id, &note)
    }
}

impl Peer {
    /// Milliseconds since the ping of this pong.
    fn pong(&mut self, payload: &[u8]) -> Option<f64> {
        let found = self.pings.iter().position(|(sent, _)| sent == payload)?;
        // A pong may answer several pings; it carries the payload of the newest (RFC 6455 section 5.5.3).
        let (_, since) = self.pings.drain(..=found).next_back()?;
        Some((since.elapsed().as_secs_f64() * 1e6).round() / 1e3)
    }
}

fn close(code: CloseCode) -> Message {
    Message::Close(Some(CloseFrame::new(code, "")))
}

/// Receives Ctrl-C, including signals during other work.
pub(crate) fn interrupts() -> Result<Signal, End> {
    signal(SignalKind::interrupt()).map_err(|error| End::io("SIGINT", &error))
}

pub(crate) async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
}

/// Waits for capacity in the outbound queue. A closed connection reports its end itself.
async fn unstick(stuck: Option<&(u32, Message)>, peers: &BTreeMap<u32, Peer>) {
    if let Some((id, message)) = stuck
        && let Some(peer) = peers.get(id)
    {
        let _ = peer.sender.send(message.clone()).await;
    }
}
