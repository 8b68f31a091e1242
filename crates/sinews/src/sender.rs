//! Many producers, one connection: a bounded queue in front of the connection.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use sinews_proto::{Kind, Misuse, PING_MAX};
use sinews_session::{Closed, Prepared};
use sinews_simd::Utf8Bytes;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::message::Message;

/// A handle by which any task may send on a connection that another task drives. Cloning increments a reference count.
///
/// All handles of a connection share a queue of [`Sender::CAPACITY`] messages, or of the capacity that the
/// connection's owner has set. The task that drives the connection, by waiting for messages or by sending, empties
/// the queue; all queued messages leave in one write. While the peer reads nothing, so that
/// [`Config::high_water`](crate::Config::high_water) is exceeded, the queue is not emptied, it fills, and producers
/// wait in FIFO order, so that none starves.
///
/// The messages of one handle leave in order. Dropping handles does not affect the connection. A connection that no
/// task drives sends nothing.
///
/// When the owner closes the connection or its write half, queued messages leave before the Close, up to
/// [`Config::max_outbound`](crate::Config::max_outbound) bytes; the others are dropped. A Close by the read half, by the
/// peer or by an error drops all of them. So `Ok` of [`send`](Self::send) does not mean that a message has left.
#[derive(Clone)]
pub struct Sender {
    queue: mpsc::Sender<SenderMessage>,
    ended: Arc<OnceLock<Closed>>,
}

impl Sender {
    /// Default capacity of the queue in messages. Enough for the messages of one scheduler turn; few enough that a
    /// queue of small messages takes some 10 KiB at most, and that a waiting producer is near the head of the queue.
    pub const CAPACITY: usize = 64;

    /// Queues a message, once there is capacity.
    ///
    /// Cancel-safe: a dropped future has not queued the message; its position in the queue is lost.
    ///
    /// # Errors
    /// The connection has ended, or the message can never be sent. Messages queued when the connection ends are lost,
    /// as are messages that the peer has not received.
    pub async fn send(&self, message: impl Into<Message>) -> Result<(), SendError> {
        let message = self.check(message.into())?;
        match self.queue.reserve().await {
            Ok(permit) => {
                permit.send(SenderMessage::Own(message));
                Ok(())
            }
            Err(_) => Err(self.ended_error(SenderMessage::Own(message))),
        }
    }

    /// Queues a message if there is capacity now.
    ///
    /// # Errors
    /// The queue is full ([`SendError::is_full`]), the connection has ended, or the message can never be sent.
    pub fn try_send(&self, message: impl Into<Message>) -> Result<(), SendError> {
        let message = self.check(message.into())?;
        self.try_queue(SenderMessage::Own(message))
    }

    /// Queues a message that is framed once for many connections, without waiting: for a registry of the `Sender`s of a
    /// room. A full queue (its capacity is in messages) is an error: the caller drops the message, or the connection;
    /// [`Config::overflow`](crate::Config::overflow) does not apply to this queue. `Ok` means queued, not delivered.
    ///
    /// # Errors
    /// As [`try_send`](Self::try_send).
    pub fn publish(&self, message: &Prepared) -> Result<(), SendError> {
        self.try_queue(SenderMessage::Published(message.clone()))
    }

    fn try_queue(&self, message: SenderMessage) -> Result<(), SendError> {
        self.queue.try_send(message).map_err(|error| match error {
            TrySendError::Full(message) => SendError { message, why: SendFailure::Full },
            TrySendError::Closed(message) => self.ended_error(message),
        })
    }

    /// Whether sending is no longer possible: a Close was decided, or the connection has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    /// Waits until sending is no longer possible.
    ///
    /// Cancel-safe.
    pub async fn closed(&self) {
        self.queue.closed().await;
    }

    /// How the connection ended, if it has and the end is known: a connection that its owner dropped has no such end.
    #[must_use]
    pub fn end(&self) -> Option<&Closed> {
        self.ended.get()
    }

    /// Free capacity of the queue in messages.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    /// Rejects messages that never fit into a frame here, where the producer gets the error.
    fn check(&self, message: Message) -> Result<Message, SendError> {
        let why = match &message {
            Message::Ping(payload) | Message::Pong(payload) if payload.len() > PING_MAX => {
                Misuse::PingTooLong
            }
            Message::Close(Some(frame)) if frame.reason().len() > PING_MAX - 2 => Misuse::ReasonTooLong,
            _ => return Ok(message),
        };
        Err(SendError { message: SenderMessage::Own(message), why: SendFailure::Misuse(why) })
    }

    fn ended_error(&self, message: SenderMessage) -> SendError {
        SendError { message, why: SendFailure::Ended(self.ended.get().cloned()) }
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("capacity", &self.capacity()).finish_non_exhaustive()
    }
}

/// The error of a [`Sender`] that did not queue a message. It returns the message.
#[derive(Debug)]
pub struct SendError {
    message: SenderMessage,
    why: SendFailure,
}

#[derive(Debug)]
enum SendFailure {
    Full,
    Ended(Option<Closed>),
    Misuse(Misuse),
}

impl SendError {
    /// The message. A published text that is not UTF-8 is returned as binary.
    #[must_use]
    pub fn into_message(self) -> Message {
        match self.message {
            SenderMessage::Own(message) => message,
            SenderMessage::Published(message) => {
                let payload = message.payload().clone();
                match message.kind() {
                    Kind::Binary => Message::Binary(payload),
                    Kind::Text => {
                        Utf8Bytes::try_from(payload.clone()).map_or(Message::Binary(payload), Message::Text)
                    }
                }
            }
        }
    }

    /// Whether the queue is full: a later attempt may succeed.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self.why, SendFailure::Full)
    }

    /// Whether the connection accepts no more messages.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self.why, SendFailure::Ended(_))
    }

    /// How the connection ended, if known.
    #[must_use]
    pub fn closed(&self) -> Option<&Closed> {
        match &self.why {
            SendFailure::Ended(closed) => closed.as_ref(),
            SendFailure::Full | SendFailure::Misuse(_) => None,
        }
    }

    /// Why the message can never be sent, if so.
    #[must_use]
    pub fn misuse(&self) -> Option<Misuse> {
        match self.why {
            SendFailure::Misuse(misuse) => Some(misuse),
            SendFailure::Full | SendFailure::Ended(_) => None,
        }
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            SendFailure::Full => f.write_str("the queue is full"),
            SendFailure::Ended(None) => f.write_str("the connection is closing or has ended"),
            SendFailure::Ended(Some(closed)) => closed.fmt(f),
            SendFailure::Misuse(misuse) => misuse.fmt(f),
        }
    }
}

impl std::error::Error for SendError {}

/// A message in the queue.
#[derive(Debug)]
pub(crate) enum SenderMessage {
    Own(Message),
    /// Framed once for many connections.
    Published(Prepared),
}

/// The receiving end of the queue, owned by the connection.
#[derive(Debug)]
pub(crate) struct SenderQueue {
    queue: mpsc::Receiver<SenderMessage>,
    /// The sender for new handles. It also keeps the queue open after all handles are dropped.
    sender: Sender,
}

impl SenderQueue {
    /// Creates a queue with capacity for at least one message.
    pub(crate) fn new(capacity: usize) -> Self {
        let (sender, queue) = mpsc::channel(capacity.clamp(1, tokio::sync::Semaphore::MAX_PERMITS));
        Self { queue, sender: Sender { queue: sender, ended: Arc::default() } }
    }

    pub(crate) fn sender(&self) -> Sender {
        self.sender.clone()
    }

    /// The oldest queued message. Pending: the queue is empty, and the next message wakes the task.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<SenderMessage> {
        match self.queue.poll_recv(cx) {
            Poll::Ready(Some(message)) => Poll::Ready(message),
            // A Tokio task whose budget is used up gets Pending although messages are queued; a flush must get them
            // all.
            Poll::Pending if !self.is_empty() => self.next().map_or(Poll::Pending, Poll::Ready),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    /// The oldest queued message, without waiting.
    pub(crate) fn next(&mut self) -> Option<SenderMessage> {
        self.queue.try_recv().ok()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Ends sending: producers get an error, and queued messages are lost.
    pub(crate) fn close(&mut self) {
        self.queue.close();
        while self.next().is_some() {}
    }

    /// Records how the connection ended, for producers.
    pub(crate) fn ended(&mut self, closed: &Closed) {
        // Set first: a producer that finds the queue closed can read the reason.
        let _ = self.sender.ended.set(closed.clone());
        self.close();
    }
}
