//! What the loop remembers about a connection whatever the backend: a few states and a timer.

use slab::Slab;

use crate::wheel::{Node, Nodes};

/// Names one connection of one loop: a slot and the generation that lives in it.
///
/// A slot is used again after [`App::closed`](crate::App::closed), a generation is not: commands on an id
/// whose connection has gone are ignored. (Generations are counted in 32 bits per loop, so an id kept for
/// exactly 2^32 connections, or a multiple, could meet its double. Keep no ids after `closed`.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId {
    index: u32,
    generation: u32,
}

impl ConnId {
    /// The slot: small, dense, unique among the living connections of this loop. Made to index a slab or a
    /// vector of the application's own.
    pub fn index(self) -> usize {
        self.index as usize
    }

    /// Tells it from others that had the slot before.
    #[cfg(target_os = "linux")]
    pub(crate) fn generation(self) -> u32 {
        self.generation
    }
}

/// Our receiving side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiving {
    On,
    /// The application asked for a pause; what the peer sends waits in the kernel.
    Paused,
    /// The peer ended its sending side.
    Ended,
}

/// Our sending side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    Open,
    /// To be shut down once everything queued has left.
    Closing,
    Shut,
}

#[derive(Debug)]
pub(crate) struct Slot {
    generation: u32,
    pub(crate) receiving: Receiving,
    pub(crate) sending: Sending,
    /// The application has something to send that `start_send` has not been asked for.
    pub(crate) send_wanted: bool,
    /// The connection is on the list of sends.
    pub(crate) send_listed: bool,
    /// A chain is with the backend.
    pub(crate) in_flight: bool,
    /// The connection is on the list of resumed ones.
    pub(crate) resume_listed: bool,
    /// A reason to close is recorded: commands are ignored, nothing more is received or sent.
    pub(crate) closing: bool,
    /// It is ours to connect, and is not connected yet.
    pub(crate) connecting: bool,
    timer: Node,
}

#[cfg(target_os = "linux")]
impl Slot {
    /// Whether something of the connection waits for its chain in flight to come home.
    pub(crate) fn waits_for_send(&self) -> bool {
        let ends = self.closing || self.sending == Sending::Closing;
        self.send_wanted || ends || self.receiving == Receiving::Paused
    }
}

/// All connections of one loop.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slab: Slab<Slot>,
    generation: u32,
}

impl Slots {
    pub(crate) fn insert(&mut self) -> ConnId {
        self.generation = self.generation.wrapping_add(1);
        let index = self.slab.insert(Slot {
            generation: self.generation,
            receiving: Receiving::On,
            sending: Sending::Open,
            send_wanted: false,
            send_listed: false,
            in_flight: false,
            resume_listed: false,
            closing: false,
            connecting: false,
            timer: Node::default(),
        });
        // A process cannot hold 2^32 descriptors, so the index always fits.
        ConnId { index: index as u32, generation: self.generation }
    }

    pub(crate) fn remove(&mut self, conn: ConnId) {
        if self.get(conn).is_some() {
            self.slab.remove(conn.index());
        }
    }

    pub(crate) fn get(&self, conn: ConnId) -> Option<&Slot> {
        self.slab.get(conn.index()).filter(|slot| slot.generation == conn.generation)
    }

    pub(crate) fn get_mut(&mut self, conn: ConnId) -> Option<&mut Slot> {
        self.slab.get_mut(conn.index()).filter(|slot| slot.generation == conn.generation)
    }

    /// The slot, unless the connection has gone or is about to.
    pub(crate) fn live_mut(&mut self, conn: ConnId) -> Option<&mut Slot> {
        self.get_mut(conn).filter(|slot| !slot.closing)
    }

    /// Who lives in the slot now.
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

impl Nodes for Slots {
    /// The wheel names only slots that are filled: a timer is cleared before its slot is vacated.
    fn node(&mut self, index: u32) -> &mut Node {
        &mut self.slab[index as usize].timer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_id_finds_nothing_in_a_slot_used_again() {
        let mut slots = Slots::default();
        let first = slots.insert();
        slots.remove(first);
        let second = slots.insert();
        assert_eq!(first.index(), second.index(), "the slot is used again");
        assert_ne!(first, second);
        assert!(slots.get(first).is_none() && slots.get(second).is_some());
        slots.remove(first);
        assert_eq!(slots.len(), 1, "removing by a stale id removes nobody");
        assert_eq!(slots.id_at(second.index()), Some(second));
    }

    #[test]
    fn a_closing_connection_takes_no_commands() {
        let mut slots = Slots::default();
        let conn = slots.insert();
        assert!(slots.live_mut(conn).is_some());
        slots.get_mut(conn).unwrap().closing = true;
        assert!(slots.live_mut(conn).is_none() && slots.get(conn).is_some());
    }
}
