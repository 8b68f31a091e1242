//! Messages that wait for the end of another.

use std::collections::VecDeque;

use crate::prepared::Prepared;

/// Messages framed for many that came while one was being sent in fragments: nothing may stand between
/// those (RFC 6455 section 5.4), so they leave behind its end, in their order.
#[derive(Debug, Default)]
pub(crate) struct Held {
    messages: VecDeque<Prepared>,
    bytes: usize,
}

impl Held {
    /// What all of them will put on the wire, uncompressed.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn push(&mut self, message: Prepared) {
        self.bytes += cost(&message);
        self.messages.push_back(message);
    }

    pub(crate) fn pop(&mut self) -> Option<Prepared> {
        let message = self.messages.pop_front()?;
        self.bytes -= cost(&message);
        Some(message)
    }
}

/// What one of them counts as: empty ones cost something too.
pub(crate) fn cost(message: &Prepared) -> usize {
    message.payload().len() + HEAD_MAX
}

/// Longest head of an unmasked frame (RFC 6455 section 5.2).
const HEAD_MAX: usize = 10;
