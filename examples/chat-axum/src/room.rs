//! Who is where, and what was said.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde::Serialize;
use sinews::Message;
use tokio::sync::broadcast;

use crate::Options;

/// What a client is told.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum Event<'a> {
    /// The first message: what it is called, who is there, and what was said last.
    Welcome {
        you: &'a str,
        people: &'a BTreeSet<String>,
        history: &'a VecDeque<Said>,
    },
    Joined {
        name: &'a str,
    },
    Left {
        name: &'a str,
    },
    Said(&'a Said),
    /// What the client sent was not accepted.
    Refused {
        why: &'a str,
    },
}

#[derive(Serialize)]
pub(crate) struct Said {
    from: String,
    text: String,
    /// Milliseconds since 1970.
    at: u64,
}

impl Event<'_> {
    /// Written once for all who get it: a clone of a message is a count.
    pub(crate) fn to_message(&self) -> Message {
        serde_json::json!(self).to_string().into()
    }
}

/// All rooms. The lock is held for a few microseconds at a time.
pub(crate) struct Rooms {
    options: Options,
    rooms: Mutex<HashMap<String, Room>>,
}

struct Room {
    people: BTreeSet<String>,
    history: VecDeque<Said>,
    events: broadcast::Sender<Message>,
}

impl Rooms {
    pub(crate) fn new(options: Options) -> Self {
        Self { options, rooms: Mutex::default() }
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// Rooms that are remembered, and people in them.
    pub(crate) fn count(&self) -> (usize, usize) {
        let rooms = self.rooms();
        (rooms.len(), rooms.values().map(|room| room.people.len()).sum())
    }

    /// Takes a seat in a room: no event is missing between the welcome and those that follow, and none is in both.
    pub(crate) fn join(self: &Arc<Self>, room_name: String, name: &str) -> Result<Seat, Full> {
        let mut rooms = self.rooms();
        if !rooms.contains_key(&room_name) {
            if rooms.len() >= self.options.rooms_max {
                rooms.retain(|_, room| !room.people.is_empty());
            }
            if rooms.len() >= self.options.rooms_max {
                return Err(Full("there are too many rooms"));
            }
        }
        let room = rooms.entry(room_name.clone()).or_insert_with(Room::new);
        if room.people.len() >= self.options.people_max {
            return Err(Full("the room is full"));
        }
        let name = room.free_name(name);
        room.tell(&Event::Joined { name: &name });
        room.people.insert(name.clone());
        let welcome = Event::Welcome { you: &name, people: &room.people, history: &room.history };
        let (welcome, events) = (welcome.to_message(), room.events.subscribe());
        Ok(Seat { welcome, events, place: Place { rooms: self.clone(), room: room_name, name } })
    }

    fn rooms(&self) -> MutexGuard<'_, HashMap<String, Room>> {
        // Nothing in here panics half way through a change.
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Room {
    /// Events that wait between a room and the task of a client, which never waits for its network: enough for all
    /// that happens until it has its turn.
    const EVENTS_MAX: usize = 256;

    fn new() -> Self {
        let (people, history) = (BTreeSet::new(), VecDeque::new());
        Self { people, history, events: broadcast::Sender::new(Self::EVENTS_MAX) }
    }

    /// This name, or with a number if somebody has it already.
    fn free_name(&self, name: &str) -> String {
        let numbered = (2..).map(|n| format!("{name} ({n})"));
        let mut names = std::iter::once(name.to_owned()).chain(numbered);
        names.find(|name| !self.people.contains(name)).unwrap_or_default()
    }

    fn tell(&self, event: &Event<'_>) {
        // Nobody is there to hear it: that is no fault.
        let _ = self.events.send(event.to_message());
    }
}

/// Why there is no seat.
pub(crate) struct Full(pub(crate) &'static str);

/// A seat in a room.
pub(crate) struct Seat {
    pub(crate) welcome: Message,
    pub(crate) events: broadcast::Receiver<Message>,
    pub(crate) place: Place,
}

/// Somebody's place. Dropping it is leaving, however the connection ends.
pub(crate) struct Place {
    rooms: Arc<Rooms>,
    room: String,
    name: String,
}

impl Place {
    pub(crate) fn say(&self, text: String) {
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let said = Said { from: self.name.clone(), text, at: at.as_millis() as u64 };
        if let Some(room) = self.rooms.rooms().get_mut(&self.room) {
            room.tell(&Event::Said(&said));
            room.history.push_back(said);
            if room.history.len() > self.rooms.options.history_max {
                room.history.pop_front();
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(room) = self.rooms.rooms().get_mut(&self.room) {
            room.people.remove(&self.name);
            room.tell(&Event::Left { name: &self.name });
        }
    }
}

pub(crate) fn is_room_name(name: &str) -> bool {
    const LEN_MAX: usize = 48;
    let sound = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty() && name.len() <= LEN_MAX && name.bytes().all(sound)
}
