//! Asynchronous broker answers.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_channel::oneshot;

use super::error::BrokerError;
use crate::thread_waker;

/// The answer to a request to a [`Broker`](super::Broker): a future that any thread may poll. Dropping it does not
/// cancel the request.
#[must_use = "futures do nothing unless polled"]
pub struct BrokerResponse<T> {
    receiver: oneshot::Receiver<Result<T, BrokerError>>,
}

/// The broker client's end of a [`BrokerResponse`]. Dropping it without an answer answers [`BrokerError::Closed`].
pub struct BrokerResponder<T> {
    sender: oneshot::Sender<Result<T, BrokerError>>,
}

impl<T> BrokerResponder<T> {
    /// Answers the request. The answer is dropped if the requester has dropped its end.
    pub fn send(self, result: Result<T, BrokerError>) {
        let _ = self.sender.send(result);
    }
}

impl<T> BrokerResponse<T> {
    /// Creates both ends of an answer.
    pub fn channel() -> (BrokerResponder<T>, Self) {
        let (sender, receiver) = oneshot::channel();
        (BrokerResponder { sender }, Self { receiver })
    }

    /// Creates an answer that is available immediately.
    pub fn ready(result: Result<T, BrokerError>) -> Self {
        let (responder, response) = Self::channel();
        responder.send(result);
        response
    }

    /// Blocks the current thread until the answer is available.
    ///
    /// # Errors
    ///
    /// [`BrokerError`].
    pub fn block(mut self) -> Result<T, BrokerError> {
        thread_waker::block_on(|cx| Pin::new(&mut self).poll(cx))
    }
}

impl<T> Future for BrokerResponse<T> {
    type Output = Result<T, BrokerError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.receiver).poll(cx).map(|response| response.unwrap_or(Err(BrokerError::Closed)))
    }
}

impl<T> fmt::Debug for BrokerResponse<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerResponse").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for BrokerResponder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerResponder").finish_non_exhaustive()
    }
}
