//! Published messages that are deferred until a fragmented message ends.

use std::collections::VecDeque;

use crate::prepared::Prepared;

/// Published messages that were queued while a message was being sent in fragments. No other data frame may
/// be interleaved with the fragments (RFC 6455 section 5.4), so these messages follow the last fragment, in
/// order.
#[derive(Debug, Default)]
pub(crate) struct DeferredMessages {
    messages: VecDeque<Prepared>,
    bytes: usize,
}

impl DeferredMessages {
    /// The uncompressed wire size of all messages.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn push(&mut self, message: Prepared) {
        self.bytes += queued_size(&message);
        self.messages.push_back(message);
    }

    pub(crate) fn pop(&mut self) -> Option<Prepared> {
        let message = self.messages.pop_front()?;
        self.bytes -= queued_size(&message);
        Some(message)
    }
}

/// The queue size of one message. An empty message counts too.
pub(crate) fn queued_size(message: &Prepared) -> usize {
    message.payload().len() + HEAD_MAX
}

/// Longest head of an unmasked frame (RFC 6455 section 5.2).
const HEAD_MAX: usize = 10;
