//! A list for each connection on a thread, most of them short.

use std::fmt::Debug;

use sinews_engine::ConnId;
use smallvec::{Array, SmallVec};

/// A list for each connection that has one, by the connection's slot: slots are dense, so this takes less memory than a
/// hash table. As many items as the array has are in the slot.
#[derive(Debug)]
pub(super) struct ConnLists<A: Array<Item: Debug>> {
    conns: Vec<ConnList<A>>,
    /// The same by slot, for sockets on streams.
    streams: Vec<ConnList<A>>,
}

/// A slot. An empty list is that of no connection.
#[derive(Debug)]
struct ConnList<A: Array<Item: Debug>> {
    owner: ConnId,
    list: SmallVec<A>,
}

/// List length from which on its capacity doubles.
const SHORT: usize = 4;

impl<A: Array<Item: Debug>> Default for ConnLists<A> {
    fn default() -> Self {
        Self { conns: Vec::new(), streams: Vec::new() }
    }
}

impl<A: Array<Item: Debug>> ConnLists<A> {
    /// Returns a connection's list.
    pub(super) fn get(&self, conn: ConnId) -> &[A::Item] {
        let slot = match conn.stream_slot() {
            None => self.conns.get(conn.index()),
            Some(slot) => self.streams.get(slot),
        };
        slot.filter(|slot| slot.owner == conn).map_or(&[], |slot| &slot.list)
    }

    /// Returns a connection's list, if it has one.
    pub(super) fn get_mut(&mut self, conn: ConnId) -> Option<&mut SmallVec<A>> {
        let slot = match conn.stream_slot() {
            None => self.conns.get_mut(conn.index()),
            Some(slot) => self.streams.get_mut(slot),
        };
        slot.filter(|slot| slot.owner == conn && !slot.list.is_empty()).map(|slot| &mut slot.list)
    }

    /// Appends to a connection's list, without spare capacity while the list is short.
    pub(super) fn push(&mut self, conn: ConnId, item: A::Item) {
        self.find_or_push(conn, |_| false, || item);
    }

    /// Returns an item in a connection's list, which is appended if there is none.
    pub(super) fn find_or_push(
        &mut self,
        conn: ConnId,
        is_equal: impl FnMut(&A::Item) -> bool,
        new: impl FnOnce() -> A::Item,
    ) -> &mut A::Item {
        let (slots, index) = match conn.stream_slot() {
            None => (&mut self.conns, conn.index()),
            Some(slot) => (&mut self.streams, slot),
        };
        if slots.len() <= index {
            slots.resize_with(index + 1, || ConnList { owner: conn, list: SmallVec::new() });
        }
        let slot = &mut slots[index];
        if slot.owner != conn {
            // An earlier connection's list was removed with it.
            *slot = ConnList { owner: conn, list: SmallVec::new() };
        }
        let list = &mut slot.list;
        let at = list.iter().position(is_equal).unwrap_or_else(|| {
            if list.len() < SHORT {
                list.reserve_exact(1);
            }
            list.push(new());
            list.len() - 1
        });
        &mut list[at]
    }

    /// Removes a connection's list.
    pub(super) fn remove(&mut self, conn: ConnId) -> SmallVec<A> {
        let slot = match conn.stream_slot() {
            None => self.conns.get_mut(conn.index()),
            Some(slot) => self.streams.get_mut(slot),
        };
        slot.filter(|slot| slot.owner == conn).map(|slot| std::mem::take(&mut slot.list)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_belong_to_one_connection_of_a_slot() {
        let mut lists = ConnLists::<[i32; 1]>::default();
        let [first, second] = [1, 2].map(|generation| ConnId::for_stream(3, generation));
        lists.push(first, 1);
        *lists.find_or_push(first, |item| *item == 1, || 0) += 1;
        lists.find_or_push(first, |item| *item == 1, || 5);
        assert_eq!((lists.get(first), lists.get(second)), (&[2, 5][..], &[][..]));
        assert!(lists.get_mut(second).is_none() && lists.remove(second).is_empty());
        lists.get_mut(first).unwrap().clear();
        assert!(lists.get(first).is_empty() && lists.get_mut(first).is_none());
        lists.push(first, 7);
        assert_eq!((&lists.remove(first)[..], &lists.remove(first)[..]), (&[7][..], &[][..]));
        lists.push(second, 8);
        assert_eq!((lists.get(first), lists.get(second)), (&[][..], &[8][..]));
        assert!(lists.get(ConnId::for_stream(900, 1)).is_empty());
    }

    #[test]
    fn short_lists_have_no_spare_capacity() {
        let (mut lists, conn) = (ConnLists::<[usize; 2]>::default(), ConnId::for_stream(0, 0));
        for number in 0..SHORT {
            lists.push(conn, number);
            assert_eq!(lists.get_mut(conn).unwrap().capacity(), (number + 1).max(2));
        }
    }
}
