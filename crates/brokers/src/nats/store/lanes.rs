//! Order for the operations on one topic.
//!
//! Most operations on a topic are in flight together. One that may be sent twice, or that must not meet others from this
//! node, has the topic for itself. All wait in their order.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use tokio::sync::RwLock;

/// Maximum operations on one topic that wait or are in flight.
const TOPIC_OPERATIONS_MAX: usize = 1_024;

/// Topics with operations.
#[derive(Default)]
pub(super) struct Lanes(RefCell<HashMap<String, Rc<RwLock<()>>>>);

/// An operation's slot in its topic. Locks for reading are for operations in flight together. Dropping it releases the
/// slot.
pub(super) struct LaneSlot<'a> {
    lanes: &'a Lanes,
    topic: String,
    pub(super) lock: Rc<RwLock<()>>,
}

impl Lanes {
    /// Enters a topic; `None`: too many operations wait.
    pub(super) fn enter(&self, topic: &str) -> Option<LaneSlot<'_>> {
        let mut lanes = self.0.borrow_mut();
        let lock = Rc::clone(lanes.entry(topic.to_owned()).or_default());
        // The map has one reference, and this is another one.
        if Rc::strong_count(&lock) > TOPIC_OPERATIONS_MAX + 1 {
            return None;
        }
        Some(LaneSlot { lanes: self, topic: topic.to_owned(), lock })
    }
}

impl Drop for LaneSlot<'_> {
    fn drop(&mut self) {
        if Rc::strong_count(&self.lock) == 2 {
            self.lanes.0.borrow_mut().remove(&self.topic);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_of_a_topic_are_bounded_and_forgotten() {
        let lanes = Lanes::default();
        let slots: Vec<_> = (0..TOPIC_OPERATIONS_MAX).map(|_| lanes.enter("a").expect("a slot")).collect();
        assert!(lanes.enter("a").is_none() && lanes.enter("b").is_some());
        drop(slots);
        assert!(lanes.0.borrow().is_empty());
    }
}
