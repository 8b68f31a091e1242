//! Presence over all nodes: each node announces its own members' changes, numbered in order. A node that misses a
//! number requests the other node's whole presence, which arrives in parts.
//!
//! ```text
//!   changes   number 8 B · topics
//!   snapshot  number 8 B · flags 1 B (first part 1, last part 2, number of the part times 4) · topics
//!   topic     name (length 2 B) · connections 4 B · members 2 B · members
//!   member    id (length 1 B, or 255 and 2 B) · connections 4 B · info (length 2 B)
//! ```
//!
//! All connection counts are totals, not differences: to apply a later part or change, or one twice, does no harm.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sinews_server::{LogLimit, Member, OwnPresence, Publisher};

use super::message::NodeId;

/// Maximum members in one message: some tens of KiB.
const MEMBERS_PER_MESSAGE: usize = 256;

/// Bytes for a member with the longest id and info, in a topic with the longest name.
const MEMBER_BYTES_MAX: usize = 1_920;

/// Marks a member's id with as many bytes or more, whose length follows.
const LONG_ID: u8 = u8::MAX;

/// Maximum members that are changed at once in this node's table, which is locked meanwhile.
const MEMBERS_PER_CHANGE: usize = 1_000;

/// Interval between requests for the same presence.
const REQUEST_INTERVAL: Duration = Duration::from_secs(3);

/// Limit for lines about members that exceed the memory limit.
static EXCESS_LINES: LogLimit = LogLimit::new();

/// Flags for a snapshot part.
pub(super) const FIRST_PART: u8 = 1;
pub(super) const LAST_PART: u8 = 2;

/// Parts have numbers from 1 to this one, and then from 1 again. Earlier versions send 0, and ignore numbers.
const PART_MAX: u8 = 63;

/// Flag bits below the part's number.
const PART_SHIFT: u32 = 2;

/// Returns the next part's number; 0 precedes the first.
fn next_part(part: u8) -> u8 {
    part % PART_MAX + 1
}

/// Returns how many members fit in one message to the broker, which has this limit in bytes.
pub(super) fn members_per_message(max_payload: usize) -> usize {
    (max_payload / MEMBER_BYTES_MAX).clamp(1, MEMBERS_PER_MESSAGE)
}

/// The other nodes' presence.
#[derive(Debug, Default)]
pub(super) struct RemotePresence(HashMap<NodeId, NodePresence>);

/// One node's presence.
#[derive(Debug, Default)]
struct NodePresence {
    /// Number of the last applied changes.
    applied: u64,
    /// All changes up to that number are applied.
    is_complete: bool,
    requested: Option<Instant>,
    topics: HashMap<Arc<str>, NodeTopic>,
    /// While a snapshot arrives: topics and members that it has not named yet.
    unnamed: Option<Unnamed>,
}

#[derive(Debug, Default)]
struct Unnamed {
    /// Number of the last part.
    part: u8,
    /// A part was lost, which may have named others.
    has_gap: bool,
    topics: HashSet<Arc<str>>,
    members: HashSet<(Arc<str>, Arc<str>)>,
}

/// A node's connections in a topic.
#[derive(Debug, Default)]
struct NodeTopic {
    connections: usize,
    members: HashMap<Arc<str>, usize>,
}

impl RemotePresence {
    /// Applies a node's changes. Returns whether the node's whole presence has to be requested.
    pub(super) fn apply_changes(
        &mut self,
        node: NodeId,
        body: &[u8],
        publisher: &Publisher,
        now: Instant,
    ) -> bool {
        let Some((number, rest)) = body.split_first_chunk::<8>() else { return false };
        let number = u64::from_le_bytes(*number);
        let known = self.0.entry(node).or_default();
        if number == 1 && known.applied == 0 {
            known.is_complete = true;
        }
        known.is_complete &= known.applied.checked_add(1) == Some(number);
        known.applied = known.applied.max(number);
        known.apply(rest, publisher);
        known.request(now)
    }

    /// Compares with the number in a heartbeat. Returns whether the node's whole presence has to be requested.
    pub(super) fn compare(&mut self, node: NodeId, number: u64, now: Instant) -> bool {
        let known = self.0.entry(node).or_default();
        known.is_complete = known.applied == number && (known.is_complete || number == 0);
        known.request(now)
    }

    /// Applies a snapshot part.
    pub(super) fn apply_snapshot(&mut self, node: NodeId, body: &[u8], publisher: &Publisher, now: Instant) {
        let Some(([number @ .., flags], rest)) = body.split_first_chunk::<9>() else { return };
        let number = number.first_chunk::<8>().map_or(0, |number| u64::from_le_bytes(*number));
        let known = self.0.entry(node).or_default();
        if flags & FIRST_PART != 0 {
            known.begin_snapshot();
            // All changes up to this number came before; later changes must not be missed. It is lower than before if
            // another program has sent a higher one, or the process was restored from a machine snapshot.
            known.applied = number;
            known.is_complete = true;
        }
        known.note_part(*flags);
        known.requested = Some(now);
        known.apply(rest, publisher);
        if flags & LAST_PART != 0 {
            // After a gap, it is requested again with the next heartbeat.
            if !known.has_gap() {
                known.end_snapshot(publisher);
            }
            known.requested = None;
        }
    }

    /// Removes a node's members.
    pub(super) fn remove(&mut self, node: NodeId, publisher: &Publisher) {
        let Some(mut removed) = self.0.remove(&node) else { return };
        let topics: Vec<Arc<str>> = removed.topics.keys().cloned().collect();
        topics.iter().for_each(|topic| removed.remove_topic(topic, publisher));
    }
}

impl NodePresence {
    fn request(&mut self, now: Instant) -> bool {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < REQUEST_INTERVAL;
        let is_complete = self.is_complete && self.unnamed.is_none();
        if is_complete || self.requested.is_some_and(is_recent) {
            return false;
        }
        self.requested = Some(now);
        true
    }

    /// Applies a message's topics; the rest of a malformed message is ignored.
    fn apply(&mut self, mut body: &[u8], publisher: &Publisher) {
        while let Some((topic, rest)) = read_topic(body) {
            self.apply_topic(topic, publisher);
            body = rest;
        }
    }

    fn apply_topic(&mut self, topic: NamedPresence<'_>, publisher: &Publisher) {
        let name = match self.topics.get_key_value(topic.name) {
            Some((name, _)) => Arc::clone(name),
            None => Arc::from(topic.name),
        };
        if let Some(unnamed) = &mut self.unnamed {
            unnamed.topics.remove(&name);
            for (member, _) in &topic.members {
                unnamed.members.remove(&(Arc::clone(&name), Arc::from(member.id())));
            }
        }
        let known = self.topics.entry(Arc::clone(&name)).or_default();
        let change = difference(known.connections, topic.connections);
        known.connections = topic.connections;
        let members: Vec<(Member, isize)> = topic
            .members
            .into_iter()
            .map(|(member, connections)| {
                let id: Arc<str> = member.id().into();
                let before = match connections {
                    0 => known.members.remove(&id),
                    _ => known.members.insert(id, connections),
                };
                (member, difference(before.unwrap_or(0), connections))
            })
            .collect();
        if known.connections == 0 && known.members.is_empty() {
            self.topics.remove(&name);
        }
        // A topic that was present for a moment is a change for the node that reports it.
        if change != 0 || !members.is_empty() || topic.connections == 0 {
            let left_out = publisher.adjust_presence(&name, change, &members);
            if left_out > 0
                && let Some(omitted) = EXCESS_LINES.permit(Instant::now())
            {
                tracing::warn!(
                    topic = &*name,
                    left_out,
                    omitted,
                    "members of other nodes exceed the memory limit of presence"
                );
            }
        }
    }

    /// Notes a snapshot part by its flags.
    fn note_part(&mut self, flags: u8) {
        let Some(unnamed) = &mut self.unnamed else { return };
        let part = flags >> PART_SHIFT;
        unnamed.has_gap |= part > 0 && part != next_part(unnamed.part);
        unnamed.part = part;
    }

    fn has_gap(&self) -> bool {
        self.unnamed.as_ref().is_some_and(|unnamed| unnamed.has_gap)
    }

    fn begin_snapshot(&mut self) {
        let mut unnamed = Unnamed::default();
        for (name, topic) in &self.topics {
            unnamed.topics.insert(Arc::clone(name));
            let members = topic.members.keys().map(|id| (Arc::clone(name), Arc::clone(id)));
            unnamed.members.extend(members);
        }
        self.unnamed = Some(unnamed);
    }

    /// Removes members that the snapshot has not named.
    fn end_snapshot(&mut self, publisher: &Publisher) {
        let unnamed = self.unnamed.take().unwrap_or_default();
        for topic in &unnamed.topics {
            self.remove_topic(topic, publisher);
        }
        let mut gone: HashMap<Arc<str>, Vec<(Member, isize)>> = HashMap::new();
        for (topic, id) in unnamed.members {
            let known = self.topics.get_mut(&topic).and_then(|topic| topic.members.remove(&id));
            if let Some(connections) = known {
                gone.entry(topic).or_default().push((Member::new(id), difference(connections, 0)));
            }
        }
        for (topic, members) in gone {
            publisher.adjust_presence(&topic, 0, &members);
        }
    }

    fn remove_topic(&mut self, topic: &Arc<str>, publisher: &Publisher) {
        let Some(removed) = self.topics.remove(topic) else { return };
        let members = removed.members.into_iter();
        let members: Vec<(Member, isize)> =
            members.map(|(id, connections)| (Member::new(id), difference(connections, 0))).collect();
        let change = difference(removed.connections, 0);
        let mut parts = members.chunks(MEMBERS_PER_CHANGE);
        publisher.adjust_presence(topic, change, parts.next().unwrap_or_default());
        parts.for_each(|part| _ = publisher.adjust_presence(topic, 0, part));
    }
}

fn difference(before: usize, after: usize) -> isize {
    isize::try_from(after).unwrap_or(isize::MAX).saturating_sub_unsigned(before)
}

/// Appends a topic to a message.
pub(super) fn write_own(out: &mut Vec<u8>, own: &OwnPresence) {
    // The server below limits names, members and infos.
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes();
    let short = |number: usize| u16::try_from(number).unwrap_or(u16::MAX).to_le_bytes();
    out.extend_from_slice(&short(own.topic.len()));
    out.extend_from_slice(own.topic.as_bytes());
    out.extend_from_slice(&count(own.connections));
    out.extend_from_slice(&short(own.members.len()));
    for (member, connections) in &own.members {
        let length = u8::try_from(member.id().len()).unwrap_or(LONG_ID);
        out.push(length);
        if length == LONG_ID {
            out.extend_from_slice(&short(member.id().len()));
        }
        out.extend_from_slice(member.id().as_bytes());
        out.extend_from_slice(&count(*connections));
        out.extend_from_slice(&short(member.info().len()));
        out.extend_from_slice(member.info());
    }
}

/// A topic in a message.
struct NamedPresence<'a> {
    name: &'a str,
    connections: usize,
    members: Vec<(Member, usize)>,
}

fn read_topic(body: &[u8]) -> Option<(NamedPresence<'_>, &[u8])> {
    let (length, rest) = body.split_first_chunk::<2>()?;
    let (name, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    let (connections, rest) = rest.split_first_chunk::<4>()?;
    let (count, mut rest) = rest.split_first_chunk::<2>()?;
    let mut members = Vec::new();
    for _ in 0..u16::from_le_bytes(*count) {
        let (length, after) = rest.split_first()?;
        let (length, after) = match *length {
            LONG_ID => {
                let (length, after) = after.split_first_chunk::<2>()?;
                (usize::from(u16::from_le_bytes(*length)), after)
            }
            length => (usize::from(length), after),
        };
        let (id, after) = after.split_at_checked(length)?;
        let (connections, after) = after.split_first_chunk::<4>()?;
        let (length, after) = after.split_first_chunk::<2>()?;
        let (info, after) = after.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        let member = Member::new(std::str::from_utf8(id).ok()?).with_info(Bytes::copy_from_slice(info));
        members.push((member, u32::from_le_bytes(*connections) as usize));
        rest = after;
    }
    let name = std::str::from_utf8(name).ok()?;
    Some((NamedPresence { name, connections: u32::from_le_bytes(*connections) as usize, members }, rest))
}

/// A snapshot of this node's own presence, while it is sent in parts.
#[derive(Debug)]
pub(super) struct PresenceSnapshotSender {
    pub(super) requesters: Vec<NodeId>,
    topics: std::vec::IntoIter<Arc<str>>,
    /// The topic whose members are not sent completely, and the last one sent.
    partial: Option<(Arc<str>, Arc<str>)>,
    /// Number of the last part; 0 before the first.
    part: u8,
    is_first: bool,
}

impl PresenceSnapshotSender {
    pub(super) fn new(requesters: Vec<NodeId>, publisher: &Publisher) -> Self {
        let topics = publisher.own_presence_topics().into_iter();
        Self { requesters, topics, partial: None, part: 0, is_first: true }
    }

    /// Returns the next part with at most this many members, with the number of the last announced changes; and whether
    /// it is the last.
    pub(super) fn next(&mut self, number: u64, members_max: usize, publisher: &Publisher) -> (Vec<u8>, bool) {
        let mut body = number.to_le_bytes().to_vec();
        body.push(0);
        let mut room = members_max;
        while room > 0 {
            let partial = self.partial.take().map(|(topic, after)| (topic, Some(after)));
            let Some((topic, after)) = partial.or_else(|| self.topics.next().map(|topic| (topic, None)))
            else {
                break;
            };
            let Some(own) = publisher.own_presence(&topic, after.as_deref(), room) else { continue };
            if let Some((last, _)) = own.members.last().filter(|_| own.members.len() == room) {
                self.partial = Some((topic, last.id().into()));
            }
            // A topic without members counts, too.
            room -= own.members.len().clamp(1, room);
            write_own(&mut body, &own);
        }
        let is_last = self.partial.is_none() && self.topics.len() == 0;
        let first = if std::mem::take(&mut self.is_first) { FIRST_PART } else { 0 };
        self.part = next_part(self.part);
        if let Some(flags) = body.get_mut(8) {
            *flags = self.part << PART_SHIFT | first | if is_last { LAST_PART } else { 0 };
        }
        (body, is_last)
    }
}

#[cfg(test)]
mod tests;
