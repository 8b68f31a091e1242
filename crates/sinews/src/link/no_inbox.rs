//! Replacement for the queue of `Sender` where there is no runtime, and thus no producer.

use std::task::{Context, Poll};

use sinews_session::Closed;

use crate::message::Message;

/// A queue that cannot be constructed.
#[derive(Debug)]
pub(crate) enum NoSenderQueue {}

#[allow(clippy::needless_pass_by_ref_mut, reason = "same signature as the queue")]
impl NoSenderQueue {
    pub(crate) fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Message> {
        match *self {}
    }

    pub(crate) fn next(&mut self) -> Option<Message> {
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
