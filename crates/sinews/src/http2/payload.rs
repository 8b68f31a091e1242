//! The data of a stream on its way to the socket.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};

/// The payload of DATA frames. Counts as unsent until it has moved into the send buffer of the connection.
pub(super) struct StreamPayload {
    bytes: Bytes,
    unsent: Unsent,
}

/// The unsent bytes of a stream. Each payload counts as one byte more, so that an empty one counts too.
#[derive(Clone, Default)]
pub(super) struct Unsent(Arc<Mutex<UnsentState>>);

#[derive(Default)]
struct UnsentState {
    count: usize,
    /// Waits until at most this many bytes are unsent.
    waiting: Option<(usize, Waker)>,
}

impl Unsent {
    pub(super) fn payload(&self, bytes: Bytes) -> StreamPayload {
        self.lock().count += bytes.len() + 1;
        StreamPayload { bytes, unsent: self.clone() }
    }

    pub(super) fn is_zero(&self) -> bool {
        self.lock().count == 0
    }

    /// Waits until at most this many bytes are unsent, or the stream has ended; returns their number.
    pub(super) fn poll_at_most(&self, most: usize, cx: &Context<'_>) -> Poll<usize> {
        let mut state = self.lock();
        if state.count <= most {
            return Poll::Ready(state.count);
        }
        state.waiting = Some((most, cx.waker().clone()));
        Poll::Pending
    }

    fn sent(&self, count: usize) {
        let mut state = self.lock();
        state.count -= count;
        let UnsentState { count, waiting } = &mut *state;
        let woken = waiting.take_if(|(most, _)| *count <= *most);
        drop(state);
        if let Some((_, waker)) = woken {
            waker.wake();
        }
    }

    /// No update panics in between.
    fn lock(&self) -> MutexGuard<'_, UnsentState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buf for StreamPayload {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.unsent.sent(count);
    }
}

impl Drop for StreamPayload {
    fn drop(&mut self) {
        self.unsent.sent(self.bytes.len() + 1);
    }
}
