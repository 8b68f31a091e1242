//! An endpoint's connections, and their deadlines.

use std::collections::BTreeSet;
use std::time::Instant;

use quinn_proto::ConnectionHandle;

use crate::connection::Http3Link;

/// Connections by their handles, which quinn-proto takes from a slab: small numbers, used again.
#[derive(Default)]
pub(crate) struct Links {
    slots: Vec<Option<Box<Http3Link>>>,
    len: usize,
}

impl Links {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get_mut(&mut self, handle: &ConnectionHandle) -> Option<&mut Http3Link> {
        self.slots.get_mut(handle.0)?.as_deref_mut()
    }

    pub(crate) fn insert(&mut self, handle: ConnectionHandle, link: Box<Http3Link>) {
        if self.slots.len() <= handle.0 {
            self.slots.resize_with(handle.0 + 1, || None);
        }
        self.len += usize::from(self.slots[handle.0].replace(link).is_none());
    }

    pub(crate) fn remove(&mut self, handle: &ConnectionHandle) {
        let removed = self.slots.get_mut(handle.0).and_then(Option::take);
        self.len -= usize::from(removed.is_some());
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Http3Link> {
        self.slots.iter().flatten().map(|link| &**link)
    }

    pub(crate) fn handles(&self) -> Vec<ConnectionHandle> {
        let used = self.slots.iter().enumerate().filter(|(_, link)| link.is_some());
        used.map(|(index, _)| ConnectionHandle(index)).collect()
    }
}

/// Connection deadlines, each no later than the actual one: one that moves back, as nearly each packet moves it, stays
/// until it has passed.
#[derive(Debug, Default)]
pub(crate) struct LinkDeadlines {
    order: BTreeSet<(Instant, usize)>,
    armed: Vec<Option<Instant>>,
}

impl LinkDeadlines {
    /// Sets a connection's deadline. `None`: it has none any longer.
    pub(crate) fn set(&mut self, handle: usize, deadline: Option<Instant>) {
        if self.armed.len() <= handle {
            self.armed.resize(handle + 1, None);
        }
        let armed = &mut self.armed[handle];
        if let Some(earlier) = *armed {
            if deadline.is_some_and(|deadline| earlier <= deadline) {
                return;
            }
            self.order.remove(&(earlier, handle));
        }
        *armed = deadline;
        self.order.extend(deadline.map(|deadline| (deadline, handle)));
    }

    pub(crate) fn first(&self) -> Option<Instant> {
        self.order.first().map(|(deadline, _)| *deadline)
    }

    /// Takes a connection whose deadline has passed.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<usize> {
        let (deadline, handle) = self.order.first().copied().filter(|(deadline, _)| *deadline <= now)?;
        self.order.remove(&(deadline, handle));
        self.armed[handle] = None;
        Some(handle)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn deadlines_expire_no_later_than_set() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut deadlines = LinkDeadlines::default();
        deadlines.set(3, Some(at(5)));
        deadlines.set(1, Some(at(7)));
        // One that moves back stays, one that moves forward is replaced.
        deadlines.set(3, Some(at(9)));
        deadlines.set(1, Some(at(6)));
        assert_eq!((deadlines.first(), deadlines.take_due(at(4))), (Some(at(5)), None));
        assert_eq!((deadlines.take_due(at(5)), deadlines.take_due(at(5))), (Some(3), None));
        deadlines.set(3, Some(at(9)));
        assert_eq!(deadlines.take_due(at(8)), Some(1));
        deadlines.set(3, None);
        assert_eq!((deadlines.first(), deadlines.take_due(at(99))), (None, None));
    }
}
