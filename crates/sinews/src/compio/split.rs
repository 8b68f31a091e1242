//! Halves for two tasks of one runtime. They share the connection by reference count: a compio thread runs one task
//! at a time, so that no lock is needed.

pub(super) mod shared;

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use compio::buf::{IoBufMut, IoVectoredBuf};
use futures_core::Stream;
use futures_sink::Sink;
use sinews_proto::{CloseCode, Kind, Misuse};
use sinews_session::{Closed, Prepared, Sent};

use self::shared::{HalfCall, SharedSocket};
use super::pieces::{self, MessageWriter, SocketOrHalf};
use super::transport::Transport;
use super::websocket::WebSocket;
use crate::driver::Driver as _;
use crate::error::Error;
use crate::link::{accepted, started};
use crate::message::{Filled, Message, MessageHead};
use crate::methods;
use crate::sender::Sender;

/// The receiving half: it receives, and does the connection's own work: pongs, the reply to a Close, keepalive.
///
/// While this half is dropped or not polled, the writing half does this work whenever it sends, until a message
/// arrives that no call receives.
///
/// It has the methods of Tokio's half except `next_borrowed`: the halves share the connection, and a borrowed message
/// would block the writer. [`recv_into`](Self::recv_into) receives without a copy.
pub struct ReadHalf<S: Transport> {
    shared: Rc<SharedSocket<S>>,
}

/// The sending half.
pub struct WriteHalf<S: Transport> {
    shared: Rc<SharedSocket<S>>,
}

impl<S: Transport> WebSocket<S> {
    /// Splits the connection, over any transport, into halves for two tasks of the runtime. [`ReadHalf::reunite`]
    /// joins them. The reader skips the rest of a message that [`recv_into`](Self::recv_into) has received in part.
    ///
    /// The halves are not [`Send`]: a connection stays on the thread whose runtime opened its transport, so that the
    /// halves move to other tasks of that thread ([`compio::runtime::spawn`]). For a producer on another thread use a
    /// [`Sender`].
    #[must_use]
    pub fn split(self) -> (WriteHalf<S>, ReadHalf<S>) {
        let shared = Rc::new(SharedSocket::new(self));
        (WriteHalf { shared: shared.clone() }, ReadHalf { shared })
    }
}

impl<S: Transport> ReadHalf<S> {
    methods::receive_methods!();
    methods::accessors!(this => end: this.shared, info: this.shared.info);

    fn poll_message(&self, cx: &Context<'_>) -> Poll<Option<Result<Message, Error>>> {
        self.shared.poll_reading(cx, |socket, cx| Pin::new(socket).poll_next(cx))
    }

    /// Waits for the head of the next message, as [`WebSocket::next_head`].
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn next_head(&mut self) -> Option<Result<MessageHead, Error>> {
        pieces::next_head(SocketOrHalf::HalfCall(HalfCall::Read(&self.shared))).await
    }

    /// Receives the next message into the caller's memory, as [`WebSocket::recv_into`].
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn recv_into<B: IoBufMut>(&mut self, buffer: B) -> (Option<Result<Filled, Error>>, B) {
        pieces::recv_into(SocketOrHalf::HalfCall(HalfCall::Read(&self.shared)), buffer).await
    }

    /// Closes the connection and waits for its end, as [`WebSocket::close`]. Messages that the writer sends from now
    /// on do not leave.
    ///
    /// Cancel-safe: call it again, or [`next`](Self::next).
    ///
    /// # Errors
    /// [`Error::Misuse`] for a reason over 123 bytes; how the connection ended, if not in order.
    pub async fn close(&mut self, code: CloseCode, reason: &str) -> Result<Closed, Error> {
        self.shared.change(|socket| {
            socket.driver.begin_close(code, reason)?;
            socket.leave_filling();
            Ok::<_, Error>(())
        })?;
        poll_fn(|cx| self.shared.poll_reading(cx, |socket, cx| socket.driver.poll_end(cx))).await
    }

    /// Closes the connection without waiting for the peer, as [`WebSocket::close_now`]: sends queued messages and a
    /// Close frame, ends the sending side, and drops received messages. Drop both halves afterwards: a later send of
    /// the writer returns [`Error::Closed`] with [`Cause::Local`](crate::Cause::Local).
    ///
    /// Cancel-safe: call it again.
    ///
    /// # Errors
    /// As [`WebSocket::close_now`].
    pub async fn close_now(&mut self, code: CloseCode, reason: &str) -> Result<(), Error> {
        self.shared.socket.borrow_mut().leave_filling();
        HalfCall::Read(&self.shared).close_now(code, reason).await
    }

    /// Joins the halves to the whole connection.
    ///
    /// # Errors
    /// Returns both halves, if they are not of one connection.
    pub fn reunite(self, writer: WriteHalf<S>) -> Result<WebSocket<S>, ReuniteError<S>> {
        if !Rc::ptr_eq(&self.shared, &writer.shared) {
            return Err(ReuniteError { write: writer, read: self });
        }
        drop(writer);
        Rc::try_unwrap(self.shared).map(|shared| shared.socket.into_inner()).map_err(|shared| ReuniteError {
            read: Self { shared: shared.clone() },
            write: WriteHalf { shared },
        })
    }
}

impl<S: Transport> WriteHalf<S> {
    methods::accessors!(this => end: this.shared, info: this.shared.info);

    /// Sends a message at once. Unread messages delay no reply here, since the reader may be slow: to coalesce
    /// replies to bursts from another task, use [`feed`](Self::feed).
    ///
    /// Cancel-safe: a dropped future has queued the message whole or not at all.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn send(&mut self, message: impl Into<Message>) -> Result<(), Error> {
        self.feed(message).await?;
        self.flush().await
    }

    /// Sends borrowed text, copied once, behind its frame header; otherwise as [`send`](Self::send).
    ///
    /// Cancel-safe, as [`send`](Self::send) is.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn send_text(&mut self, text: &str) -> Result<(), Error> {
        self.send_borrowed(Kind::Text, text.as_bytes()).await
    }

    /// Sends a borrowed binary message, copied once, behind its frame header; otherwise as [`send`](Self::send).
    ///
    /// Cancel-safe, as [`send`](Self::send) is.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn send_binary(&mut self, payload: &[u8]) -> Result<(), Error> {
        self.send_borrowed(Kind::Binary, payload).await
    }

    async fn send_borrowed(&mut self, kind: Kind, payload: &[u8]) -> Result<(), Error> {
        self.wait_for_capacity().await;
        accepted(self.shared.change(|socket| socket.driver.link().queue_borrowed(kind, payload)))?;
        self.flush().await
    }

    /// Sends one message from several buffers, as [`WebSocket::send_vectored`].
    ///
    /// Cancel-safe, as [`WebSocket::send_vectored`].
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn send_vectored<V: IoVectoredBuf + Send + Sync>(
        &mut self,
        kind: Kind,
        buffers: V,
    ) -> (Result<(), Error>, Option<V>) {
        pieces::send_vectored(SocketOrHalf::HalfCall(HalfCall::Write(&self.shared)), kind, buffers).await
    }

    async fn wait_for_capacity(&self) {
        poll_fn(|cx| self.shared.poll_writing(cx, |socket, cx| socket.driver.poll_capacity(cx))).await;
    }

    /// Sends a message in chunks, as [`WebSocket::writer`].
    pub fn writer(&mut self, kind: Kind) -> MessageWriter<'_, S> {
        MessageWriter::new(SocketOrHalf::HalfCall(HalfCall::Write(&self.shared)), kind)
    }

    /// Whether a message of a [`writer`](Self::writer) has begun and not ended: [`writer`](Self::writer) continues it.
    #[must_use]
    pub fn is_mid_message(&self) -> bool {
        self.shared.socket.borrow().driver.link.is_mid_message()
    }

    /// A handle by which any task may send on this connection, as [`WebSocket::sender`].
    pub fn sender(&mut self) -> Sender {
        self.sender_with_capacity(Sender::CAPACITY)
    }

    /// As [`sender`](Self::sender), with capacity for `capacity` messages, at least one. The first call for a
    /// connection sets it.
    pub fn sender_with_capacity(&mut self, capacity: usize) -> Sender {
        self.shared.change(|socket| socket.sender_with_capacity(capacity))
    }

    /// Queues a message: it leaves with the next [`flush`](Self::flush) or [`send`](Self::send), or when the task of
    /// a waiting reading half runs. Waits only while more than [`Config::high_water`](crate::Config::high_water)
    /// bytes are queued.
    ///
    /// Cancel-safe, as [`send`](Self::send) is.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn feed(&mut self, message: impl Into<Message>) -> Result<(), Error> {
        self.wait_for_capacity().await;
        accepted(self.try_send(message))
    }

    /// Queues a message without waiting, as [`WebSocket::try_send`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn try_send(&mut self, message: impl Into<Message>) -> Result<Sent, Error> {
        self.shared.change(|socket| socket.try_send(message))
    }

    /// Queues a message that is framed once for many connections, as [`WebSocket::publish`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn publish(&mut self, message: &Prepared) -> Result<Sent, Error> {
        self.shared.change(|socket| socket.publish(message))
    }

    /// Sends all queued bytes.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn flush(&mut self) -> Result<(), Error> {
        poll_fn(|cx| self.poll_flushed(cx)).await
    }

    fn poll_flushed(&self, cx: &Context<'_>) -> Poll<Result<(), Error>> {
        self.shared.poll_writing(cx, |socket, cx| socket.driver.poll_out(cx))
    }

    /// Begins the closing handshake behind queued messages, without waiting, as [`WebSocket::start_close`]. The
    /// reading half sees the end.
    ///
    /// # Errors
    /// As [`WebSocket::start_close`].
    pub fn start_close(&mut self, code: CloseCode, reason: &str) -> Result<(), Error> {
        self.shared.change(|socket| socket.start_close(code, reason))
    }

    /// Begins the closing handshake behind queued messages, and waits until the Close has left. The [`ReadHalf`] sees
    /// the end. If a Close is decided already, the call does nothing.
    ///
    /// Cancel-safe: call [`flush`](Self::flush).
    ///
    /// # Errors
    /// [`Error::Misuse`] for a reason over 123 bytes; [`Error::Io`].
    pub async fn close(&mut self, code: CloseCode, reason: &str) -> Result<(), Error> {
        self.shared.change(|socket| socket.driver.begin_close(code, reason))?;
        match self.flush().await {
            Err(Error::Closed(_) | Error::Misuse(Misuse::Closing)) => Ok(()),
            flushed => flushed,
        }
    }

    /// Closes the connection without waiting for the peer, as [`WebSocket::close_now`]: sends queued messages and a
    /// Close frame, ends the sending side, and drops received messages. Drop both halves afterwards: the
    /// [`ReadHalf`], even one that is awaited, returns `None` from now on.
    ///
    /// Cancel-safe: call it again.
    ///
    /// # Errors
    /// As [`WebSocket::close_now`].
    pub async fn close_now(&mut self, code: CloseCode, reason: &str) -> Result<(), Error> {
        HalfCall::Write(&self.shared).close_now(code, reason).await
    }
}

impl<S: Transport> Stream for ReadHalf<S> {
    type Item = Result<Message, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_message(cx)
    }
}

impl<S: Transport> Sink<Message> for WriteHalf<S> {
    type Error = Error;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.shared.poll_writing(cx, |socket, cx| Pin::new(socket).poll_ready(cx))
    }

    fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), Error> {
        started(self.try_send(message))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.poll_flushed(cx)
    }

    /// Sends a Close behind queued messages. The reading half sees the end.
    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.shared.change(|socket| socket.driver.begin_close(CloseCode::NORMAL, ""))?;
        match ready!(self.poll_flushed(cx)) {
            // The peer closed first.
            Err(Error::Closed(_)) | Ok(()) => Poll::Ready(Ok(())),
            error => Poll::Ready(error),
        }
    }
}

impl<S: Transport> fmt::Debug for ReadHalf<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadHalf").field(&self.shared.socket).finish()
    }
}

impl<S: Transport> fmt::Debug for WriteHalf<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WriteHalf").field(&self.shared.socket).finish()
    }
}

methods::reunite_error!(Transport);
