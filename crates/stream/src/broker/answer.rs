//! Asynchronous answers of a broker.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_channel::oneshot;

use super::BrokerError;
use super::signal::Signal;

/// The answer to a request to a [`Broker`](super::Broker): a future that any thread may poll. Dropping it does not
/// cancel the request.
#[must_use = "futures do nothing unless polled"]
pub struct Answer<T> {
    receiver: oneshot::Receiver<Result<T, BrokerError>>,
}

/// Sender of an answer. Dropping it without one means that the broker was closed.
#[cfg(any(feature = "kafka", feature = "redis", feature = "nats"))]
pub(super) type Reply<T> = oneshot::Sender<Result<T, BrokerError>>;

#[cfg(any(feature = "kafka", feature = "redis", feature = "nats"))]
impl<T> Answer<T> {
    pub(super) fn channel() -> (Reply<T>, Self) {
        let (sender, receiver) = oneshot::channel();
        (sender, Self { receiver })
    }

    /// Creates an answer that is available immediately.
    pub(super) fn ready(result: Result<T, BrokerError>) -> Self {
        let (reply, answer) = Self::channel();
        // The receiver exists here, so sending succeeds.
        let _ = reply.send(result);
        answer
    }
}

impl<T> Answer<T> {
    /// Blocks the current thread until the answer is available.
    ///
    /// # Errors
    ///
    /// [`BrokerError`].
    pub fn block(self) -> Result<T, BrokerError> {
        block_on(self)
    }
}

impl<T> Future for Answer<T> {
    type Output = Result<T, BrokerError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.receiver).poll(cx).map(|answer| answer.unwrap_or(Err(BrokerError::Closed)))
    }
}

impl<T> fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").finish_non_exhaustive()
    }
}

/// Polls the future whenever its waker wakes this thread.
fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    let signal = Arc::new(Signal::default());
    let waker = Waker::from(signal.clone());
    loop {
        if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        signal.wait(Duration::MAX);
    }
}
