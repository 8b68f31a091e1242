//! Backend-independent state of a connection: a few flags and a timer.

use slab::Slab;

use crate::wheel::{TimerNode, TimerNodes};

/// Identifies one connection of one loop: a slot and its generation.
///
/// A slot is reused after [`App::closed`](crate::App::closed), a generation is not: commands with the id of
/// a closed connection are ignored. (Generations are counted in 32 bits per loop, so an id kept for exactly
/// 2^32 connections, or a multiple, could collide. Keep no ids after `closed`.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId {
    index: u32,
    generation: u32,
}

impl ConnId {
    /// The slot: small, dense, unique among this loop's open connections. Suited as an index into the application's
    /// slab or vector.
    pub fn index(self) -> usize {
        self.index as usize
    }

    /// An id that no connection of a loop has: for a part of a connection that the application drives like a connection
    /// of its own, such as a stream. Commands with it are ignored. The slot must be below 2^31.
    #[must_use]
    pub const fn for_stream(slot: u32, generation: u32) -> Self {
        Self { index: STREAM | slot, generation }
    }

    /// The slot of an id that [`for_stream`](Self::for_stream) made; `None` for a connection.
    #[must_use]
    #[inline]
    pub const fn stream_slot(self) -> Option<usize> {
        if self.index & STREAM == 0 { None } else { Some((self.index & !STREAM) as usize) }
    }

    /// The id as a number.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// The id of a number. A number that is not of [`to_bits`](Self::to_bits) is no connection, or another one: commands
    /// with the id of no connection are ignored.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self { index: bits as u32, generation: (bits >> 32) as u32 }
    }

    /// Distinguishes connections that used the same slot.
    #[cfg(target_os = "linux")]
    pub(crate) fn generation(self) -> u32 {
        self.generation
    }
}

/// Marks the slots of [`ConnId::for_stream`]: a process cannot hold 2^31 descriptors.
const STREAM: u32 = 1 << 31;

/// State of the receiving side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadState {
    On,
    /// The application paused reads; bytes of the peer wait in the kernel.
    Paused,
    /// The peer shut down its sending side.
    Ended,
}

/// State of the sending side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteState {
    Open,
    /// To be shut down once all queued bytes are sent.
    Closing,
    Shut,
}

#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    generation: u32,
    pub(crate) receiving: ReadState,
    pub(crate) sending: WriteState,
    /// The application requested a send, and `start_send` has not been called yet.
    pub(crate) send_wanted: bool,
    /// The connection is on the list of sends.
    pub(crate) send_listed: bool,
    /// The backend has a chain.
    pub(crate) in_flight: bool,
    /// The connection is on the list of resumes.
    pub(crate) resume_listed: bool,
    /// A reason to close is recorded: commands are ignored, no bytes are received or sent.
    pub(crate) closing: bool,
    /// An outgoing connection that is not established yet.
    pub(crate) connecting: bool,
    timer: TimerNode,
}

#[cfg(target_os = "linux")]
impl ConnectionSlot {
    /// Whether a command of the connection waits for its chain in flight.
    pub(crate) fn waits_for_send(&self) -> bool {
        let ends = self.closing || self.sending == WriteState::Closing;
        self.send_wanted || ends || self.receiving == ReadState::Paused
    }
}

/// All connections of one loop.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slab: Slab<ConnectionSlot>,
    generation: u32,
}

impl Slots {
    pub(crate) fn insert(&mut self) -> ConnId {
        self.generation = self.generation.wrapping_add(1);
        let index = self.slab.insert(ConnectionSlot {
            generation: self.generation,
            receiving: ReadState::On,
            sending: WriteState::Open,
            send_wanted: false,
            send_listed: false,
            in_flight: false,
            resume_listed: false,
            closing: false,
            connecting: false,
            timer: TimerNode::default(),
        });
        // A process cannot hold 2^31 descriptors, so the index always fits.
        ConnId { index: index as u32, generation: self.generation }
    }

    pub(crate) fn remove(&mut self, conn: ConnId) {
        if self.get(conn).is_some() {
            self.slab.remove(conn.index());
        }
    }

    pub(crate) fn get(&self, conn: ConnId) -> Option<&ConnectionSlot> {
        self.slab.get(conn.index()).filter(|slot| slot.generation == conn.generation)
    }

    pub(crate) fn get_mut(&mut self, conn: ConnId) -> Option<&mut ConnectionSlot> {
        self.slab.get_mut(conn.index()).filter(|slot| slot.generation == conn.generation)
    }

    /// The slot of a connection that is neither closed nor closing.
    pub(crate) fn live_mut(&mut self, conn: ConnId) -> Option<&mut ConnectionSlot> {
        self.get_mut(conn).filter(|slot| !slot.closing)
    }

    /// The id of the connection in the slot.
    pub(crate) fn id_at(&self, index: usize) -> Option<ConnId> {
        let slot = self.slab.get(index)?;
        Some(ConnId { index: index as u32, generation: slot.generation })
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = ConnId> + '_ {
        self.slab.iter().map(|(index, slot)| ConnId { index: index as u32, generation: slot.generation })
    }

    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }
}

impl TimerNodes for Slots {
    /// The wheel refers only to occupied slots: a timer is cleared before its slot is vacated.
    fn node(&mut self, index: u32) -> &mut TimerNode {
        &mut self.slab[index as usize].timer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_id_does_not_match_reused_slot() {
        let mut slots = Slots::default();
        let first = slots.insert();
        slots.remove(first);
        let second = slots.insert();
        assert_eq!(first.index(), second.index(), "the slot is reused");
        assert_ne!(first, second);
        assert!(slots.get(first).is_none() && slots.get(second).is_some());
        slots.remove(first);
        assert_eq!(slots.len(), 1, "removing by a stale id has no effect");
        assert_eq!(slots.id_at(second.index()), Some(second));
    }

    #[test]
    fn closing_connection_ignores_commands() {
        let mut slots = Slots::default();
        let conn = slots.insert();
        assert!(slots.live_mut(conn).is_some());
        slots.get_mut(conn).unwrap().closing = true;
        assert!(slots.live_mut(conn).is_none() && slots.get(conn).is_some());
    }
}
