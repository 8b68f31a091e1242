//! Many producers, one connection: a bounded queue in front of it.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use sinews_proto::{Misuse, PING_MAX};
use sinews_session::Closed;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::message::Message;

/// A handle by which any task may send on a connection that another one drives. A clone is a count.
///
/// Messages wait in a queue of [`Sender::CAPACITY`] messages, or as many as the connection's owner has chosen, which
/// all handles of the connection share. Whoever drives the connection takes them out, whether it waits for messages or
/// sends, and all that wait leave in one write. While the peer takes nothing, so that
/// [`Config::high_water`](crate::Config::high_water) is passed, nothing is taken out, the queue fills, and producers
/// wait: in the order in which they came, so that none starves.
///
/// The messages of one handle leave in their order. Dropping handles changes nothing for the connection. A connection
/// that is not driven sends nothing.
#[derive(Clone)]
pub struct Sender {
    queue: mpsc::Sender<Message>,
    ended: Arc<OnceLock<Closed>>,
}

impl Sender {
    /// How many messages wait by default, before producers do. Enough that those of one turn of the scheduler find
    /// room; few enough that a queue of small messages is some 10 KiB at most, and that what a producer is told to
    /// wait for is near.
    pub const CAPACITY: usize = 64;

    /// Queues a message, once there is room.
    ///
    /// Cancel-safe: a dropped future has not queued the message; its place in the line is lost.
    ///
    /// # Errors
    /// The connection is over, or the message can never be sent. What is queued when the connection ends is lost, as
    /// what has left and was not received is.
    pub async fn send(&self, message: impl Into<Message>) -> Result<(), SendError> {
        let message = self.check(message.into())?;
        match self.queue.reserve().await {
            Ok(place) => {
                place.send(message);
                Ok(())
            }
            Err(_) => Err(self.over(message)),
        }
    }

    /// Queues a message if there is room now.
    ///
    /// # Errors
    /// There is none ([`SendError::is_full`]), the connection is over, or the message can never be sent.
    pub fn try_send(&self, message: impl Into<Message>) -> Result<(), SendError> {
        let message = self.check(message.into())?;
        self.queue.try_send(message).map_err(|refused| match refused {
            TrySendError::Full(message) => SendError { message, why: Why::Full },
            TrySendError::Closed(message) => self.over(message),
        })
    }

    /// Whether nothing can be sent any more: a Close was decided, or the connection is gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    /// Waits until nothing can be sent any more.
    ///
    /// Cancel-safe.
    pub async fn closed(&self) {
        self.queue.closed().await;
    }

    /// How the connection ended, if it did and that is known: a connection whose owner dropped it has no such end.
    #[must_use]
    pub fn end(&self) -> Option<&Closed> {
        self.ended.get()
    }

    /// Messages for which there is room now.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    /// What never fits into a frame is refused here, where somebody hears of it.
    fn check(&self, message: Message) -> Result<Message, SendError> {
        let why = match &message {
            Message::Ping(payload) | Message::Pong(payload) if payload.len() > PING_MAX => {
                Misuse::PingTooLong
            }
            Message::Close(Some(frame)) if frame.reason().len() > PING_MAX - 2 => Misuse::ReasonTooLong,
            _ => return Ok(message),
        };
        Err(SendError { message, why: Why::Misuse(why) })
    }

    fn over(&self, message: Message) -> SendError {
        SendError { message, why: Why::Over(self.ended.get().cloned()) }
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("capacity", &self.capacity()).finish_non_exhaustive()
    }
}

/// Why a [`Sender`] did not queue a message, with the message.
#[derive(Debug)]
pub struct SendError {
    message: Message,
    why: Why,
}

#[derive(Debug)]
enum Why {
    Full,
    Over(Option<Closed>),
    Misuse(Misuse),
}

impl SendError {
    /// The message.
    #[must_use]
    pub fn into_message(self) -> Message {
        self.message
    }

    /// Whether there was no room: later there may be.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self.why, Why::Full)
    }

    /// Whether the connection takes no messages any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self.why, Why::Over(_))
    }

    /// How the connection ended, where that is known.
    #[must_use]
    pub fn closed(&self) -> Option<&Closed> {
        match &self.why {
            Why::Over(closed) => closed.as_ref(),
            Why::Full | Why::Misuse(_) => None,
        }
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            Why::Full => f.write_str("the queue is full"),
            Why::Over(None) => f.write_str("the connection is closing or gone"),
            Why::Over(Some(closed)) => closed.fmt(f),
            Why::Misuse(misuse) => misuse.fmt(f),
        }
    }
}

impl std::error::Error for SendError {}

/// The end of the queue that a connection has.
#[derive(Debug)]
pub(crate) struct Inbox {
    queue: mpsc::Receiver<Message>,
    /// For new handles. It also keeps the queue from ending when all others are gone.
    sender: Sender,
}

impl Inbox {
    /// A queue of at least one message.
    pub(crate) fn new(capacity: usize) -> Self {
        let (sender, queue) = mpsc::channel(capacity.clamp(1, tokio::sync::Semaphore::MAX_PERMITS));
        Self { queue, sender: Sender { queue: sender, ended: Arc::default() } }
    }

    pub(crate) fn sender(&self) -> Sender {
        self.sender.clone()
    }

    /// The oldest message that waits. Pending: there is none, and the next one wakes.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Message> {
        match self.queue.poll_recv(cx) {
            Poll::Ready(Some(message)) => Poll::Ready(message),
            // A task of Tokio's whose budget is used up is told so whatever waits; who flushes must get it all the same.
            Poll::Pending if !self.is_empty() => self.next().map_or(Poll::Pending, Poll::Ready),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    /// The same for who does not wait.
    pub(crate) fn next(&mut self) -> Option<Message> {
        self.queue.try_recv().ok()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Nothing is sent any more: producers hear so, and what waits is lost.
    pub(crate) fn close(&mut self) {
        self.queue.close();
        while self.next().is_some() {}
    }

    /// How it ended, for those who ask.
    pub(crate) fn ended(&mut self, closed: &Closed) {
        // Told first: whoever finds the queue closed finds out why.
        let _ = self.sender.ended.set(closed.clone());
        self.close();
    }
}
