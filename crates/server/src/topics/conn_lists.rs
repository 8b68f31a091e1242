//! A list of each connection of a thread, most of them short.

use sinews_engine::ConnId;

/// A list of each connection that has one, by the slot of the connection: slots are dense, so this takes less memory than a
/// hash table.
#[derive(Debug)]
pub(super) struct ConnLists<T> {
    conns: Vec<Option<(ConnId, Vec<T>)>>,
    /// The same by the slot of a socket on a stream.
    streams: Vec<Option<(ConnId, Vec<T>)>>,
}

/// Length of a list from which on its capacity doubles.
const SHORT: usize = 4;

impl<T> Default for ConnLists<T> {
    fn default() -> Self {
        Self { conns: Vec::new(), streams: Vec::new() }
    }
}

impl<T> ConnLists<T> {
    /// Returns the list of a connection.
    pub(super) fn get(&self, conn: ConnId) -> &[T] {
        let slot = match conn.stream_slot() {
            None => self.conns.get(conn.index()),
            Some(slot) => self.streams.get(slot),
        };
        match slot {
            Some(Some((owner, list))) if *owner == conn => list,
            _ => &[],
        }
    }

    /// Returns the list of a connection, if it has one.
    pub(super) fn get_mut(&mut self, conn: ConnId) -> Option<&mut Vec<T>> {
        let slot = match conn.stream_slot() {
            None => self.conns.get_mut(conn.index()),
            Some(slot) => self.streams.get_mut(slot),
        };
        slot?.as_mut().filter(|(owner, _)| *owner == conn).map(|(_, list)| list)
    }

    /// Appends to the list of a connection, without spare capacity while the list is short.
    pub(super) fn push(&mut self, conn: ConnId, item: T) {
        self.find_or_push(conn, |_| false, || item);
    }

    /// Returns an item of the list of a connection, which is appended if there is none.
    pub(super) fn find_or_push(
        &mut self,
        conn: ConnId,
        is_equal: impl FnMut(&T) -> bool,
        new: impl FnOnce() -> T,
    ) -> &mut T {
        let (slots, index) = match conn.stream_slot() {
            None => (&mut self.conns, conn.index()),
            Some(slot) => (&mut self.streams, slot),
        };
        if slots.len() <= index {
            slots.resize_with(index + 1, || None);
        }
        // The list of an earlier connection was removed with it.
        slots[index].take_if(|(owner, _)| *owner != conn);
        let (_, list) = slots[index].get_or_insert_with(|| (conn, Vec::new()));
        let at = list.iter().position(is_equal).unwrap_or_else(|| {
            if list.len() < SHORT {
                list.reserve_exact(1);
            }
            list.push(new());
            list.len() - 1
        });
        &mut list[at]
    }

    /// Removes the list of a connection.
    pub(super) fn remove(&mut self, conn: ConnId) -> Vec<T> {
        let slot = match conn.stream_slot() {
            None => self.conns.get_mut(conn.index()),
            Some(slot) => self.streams.get_mut(slot),
        };
        let removed = slot.and_then(|slot| slot.take_if(|(owner, _)| *owner == conn));
        removed.map_or_else(Vec::new, |(_, list)| list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_belong_to_one_connection_of_a_slot() {
        let mut lists = ConnLists::default();
        let [first, second] = [1, 2].map(|generation| ConnId::of_stream(3, generation));
        lists.push(first, 1);
        *lists.find_or_push(first, |item| *item == 1, || 0) += 1;
        lists.find_or_push(first, |item| *item == 1, || 5);
        assert_eq!((lists.get(first), lists.get(second)), (&[2, 5][..], &[][..]));
        assert!(lists.get_mut(second).is_none() && lists.remove(second).is_empty());
        lists.get_mut(first).unwrap().clear();
        assert_eq!(lists.get(first), []);
        lists.push(first, 7);
        assert_eq!((lists.remove(first), lists.remove(first)), (vec![7], vec![]));
        lists.push(second, 8);
        assert_eq!((lists.get(first), lists.get(second)), (&[][..], &[8][..]));
        assert_eq!(lists.get(ConnId::of_stream(900, 1)), []);
    }

    #[test]
    fn short_lists_have_no_spare_capacity() {
        let (mut lists, conn) = (ConnLists::default(), ConnId::of_stream(0, 0));
        for number in 0..SHORT {
            lists.push(conn, number);
            assert_eq!(lists.get_mut(conn).unwrap().capacity(), number + 1);
        }
    }
}
