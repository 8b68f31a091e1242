//! Replacement for the queue of `Sender` where there is no runtime, and thus no producer.

use std::task::{Context, Poll};

use sinews_session::Closed;

/// A message that cannot be constructed.
pub(crate) type SenderMessage = NoSenderQueue;

/// A queue that cannot be constructed.
#[derive(Debug)]
pub(crate) enum NoSenderQueue {}

#[allow(clippy::needless_pass_by_ref_mut, clippy::use_self, reason = "same signature as the queue")]
impl NoSenderQueue {
    pub(crate) fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<SenderMessage> {
        match *self {}
    }

    pub(crate) fn next(&mut self) -> Option<SenderMessage> {
        match *self {}
    }

    pub(crate) fn is_empty(&self) -> bool {
        match *self {}
    }

    pub(crate) fn close(&mut self) {
        match *self {}
    }

    pub(crate) fn ended(&mut self, _: &Closed) {
        match *self {}
    }
}
