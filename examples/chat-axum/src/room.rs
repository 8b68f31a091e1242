//! Presence and history of the rooms.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde::Serialize;
use sinews::Message;
use tokio::sync::broadcast;

use crate::Options;

/// A message to a client.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum Event<'a> {
    /// The first message: the client's name, the people in the room, and the history.
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
    /// The client's message was rejected.
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
    /// Serialized once for all subscribers: cloning the message increments a counter.
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

    /// Returns the number of rooms in memory, and of people in them.
    pub(crate) fn count(&self) -> (usize, usize) {
        let rooms = self.rooms();
        (rooms.len(), rooms.values().map(|room| room.people.len()).sum())
    }

    /// Joins a room: no event is missing between the welcome and the first delivered event, and none is in
    /// both.
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
        // No code panics while a change is incomplete.
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Room {
    /// Events in the queue between a room and the task of a client, which never waits for its network: enough
    /// for the events until the task's next turn.
    const EVENTS_MAX: usize = 256;

    fn new() -> Self {
        let (people, history) = (BTreeSet::new(), VecDeque::new());
        Self { people, history, events: broadcast::Sender::new(Self::EVENTS_MAX) }
    }

    /// Returns this name, or numbers it if it is taken.
    fn free_name(&self, name: &str) -> String {
        let numbered = (2..).map(|n| format!("{name} ({n})"));
        let mut names = std::iter::once(name.to_owned()).chain(numbered);
        names.find(|name| !self.people.contains(name)).unwrap_or_default()
    }

    fn tell(&self, event: &Event<'_>) {
        // An empty room is not an error.
        let _ = self.events.send(event.to_message());
    }
}

/// Reason why there is no seat.
pub(crate) struct Full(pub(crate) &'static str);

/// A seat in a room.
pub(crate) struct Seat {
    pub(crate) welcome: Message,
    pub(crate) events: broadcast::Receiver<Message>,
    pub(crate) place: Place,
}

/// A person's membership in a room. Dropping it leaves the room, however the connection ends.
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
