//! Answers that come later.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_channel::oneshot;

use crate::error::StoreError;

/// Completes with a store's answer. Dropping it cancels nothing.
pub struct StoreAnswer<T>(AnswerState<T>);

enum AnswerState<T> {
    Ready(Option<Result<T, StoreError>>),
    Later(oneshot::Receiver<Result<T, StoreError>>),
}

impl<T> StoreAnswer<T> {
    /// An answer that exists already.
    #[must_use]
    pub fn ready(answer: Result<T, StoreError>) -> Self {
        Self(AnswerState::Ready(Some(answer)))
    }

    /// An answer that comes later, and its other end.
    #[must_use]
    pub fn channel() -> (StoreResponder<T>, Self) {
        let (sender, receiver) = oneshot::channel();
        (StoreResponder(Some(sender)), Self(AnswerState::Later(receiver)))
    }

    /// The answer, if it has come.
    pub fn take(&mut self) -> Option<Result<T, StoreError>> {
        match &mut self.0 {
            AnswerState::Ready(answer) => answer.take(),
            AnswerState::Later(receiver) => match receiver.try_recv() {
                Ok(answer) => answer,
                Err(oneshot::Canceled) => Some(Err(StoreError::Closed)),
            },
        }
    }
}

impl<T> Future for StoreAnswer<T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            AnswerState::Ready(answer) => Poll::Ready(answer.take().unwrap_or(Err(StoreError::Closed))),
            AnswerState::Later(receiver) => {
                Pin::new(receiver).poll(cx).map(|answer| answer.unwrap_or(Err(StoreError::Closed)))
            }
        }
    }
}

impl<T> Unpin for StoreAnswer<T> {}

impl<T> fmt::Debug for StoreAnswer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreAnswer")
    }
}

/// Answers an operation. If it is dropped, the operation fails as [`Unknown`](StoreError::Unknown).
pub struct StoreResponder<T>(Option<oneshot::Sender<Result<T, StoreError>>>);

impl<T> StoreResponder<T> {
    /// Answers. The caller may have gone.
    pub fn answer(mut self, answer: Result<T, StoreError>) {
        self.send(answer);
    }

    fn send(&mut self, answer: Result<T, StoreError>) {
        if let Some(sender) = self.0.take() {
            let _ = sender.send(answer);
        }
    }
}

impl<T> Drop for StoreResponder<T> {
    fn drop(&mut self) {
        self.send(Err(StoreError::Unknown("the connection was closed".into())));
    }
}

impl<T> fmt::Debug for StoreResponder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreResponder")
    }
}
