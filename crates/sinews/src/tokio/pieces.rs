//! Messages that are larger than memory, or that are received into the application's memory.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use sinews_proto::Kind;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::websocket::WebSocket;
use crate::driver::Driver as _;
use crate::error::Error;
use crate::message::{Filled, MessageHead};
use crate::reading::{FRAGMENT_MAX, MessageCursor, ReadStep};

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocket<S> {
    /// Waits for the next text or binary message and reads it in chunks as they arrive: it need not fit into memory.
    /// Its limits are [`max_message`](crate::Config::max_message), [`max_frame`](crate::Config::max_frame) and
    /// [`max_fragments`](crate::Config::max_fragments). `None` when the connection has ended.
    ///
    /// Cancel-safe. The rest of a message whose reader is dropped is skipped.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn next_reader(&mut self) -> Option<Result<MessageReader<'_, S>, Error>> {
        self.filling.abandon(&mut self.driver.link);
        let began = poll_fn(|cx| MessageCursor::poll_begin(&mut self.driver, cx));
        match began.await {
            Some(reading) => Some(Ok(MessageReader { socket: self, reading })),
            None => self.driver.link.take_end_error().map(Err),
        }
    }

    /// Waits for the head of the next text or binary message, and returns how many of its bytes are known to follow:
    /// its length, unless it is compressed or comes in several frames. The next [`recv_into`](Self::recv_into)
    /// receives it, into memory that the caller can choose now; any other receive method skips it. In the middle of a
    /// message that did not fit, the head describes the rest. `None` when the connection has ended.
    ///
    /// Cancel-safe.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use sinews::WebSocket;
    /// # let agreed = sinews_testkit::negotiate(None, None);
    /// # let (io, peer) = tokio::io::duplex(1 << 10);
    /// # let mut ws = WebSocket::from_negotiated(io, agreed.server, Default::default(), &[]);
    /// # let mut peer = WebSocket::from_negotiated(peer, agreed.client, Default::default(), &[]);
    /// # peer.send(vec![7; 100]).await?;
    /// let mut message = Vec::new();
    /// loop {
    ///     let head = ws.next_head().await.expect("the connection is open")?;
    ///     let start = message.len();
    ///     message.resize(start + head.len, 0);
    ///     let filled = ws.recv_into(&mut message[start..]).await.expect("the connection is open")?;
    ///     message.truncate(start + filled.len);
    ///     if filled.last {
    ///         break;
    ///     }
    /// }
    /// assert_eq!(message, [7; 100]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn next_head(&mut self) -> Option<Result<MessageHead, Error>> {
        let (filling, driver) = (&mut self.filling, &mut self.driver);
        let head = poll_fn(|cx| {
            filling.poll_head(
                driver,
                cx,
                |_| None,
                |driver, cx| driver.poll_event(cx).map(|it| it.map(ReadStep::Event)),
            )
        });
        match head.await {
            Some(head) => Some(Ok(head)),
            None => self.driver.link.take_end_error().map(Err),
        }
    }

    /// Receives the next text or binary message into the caller's memory, such as memory that is aligned for direct
    /// I/O. Behind the first part of a large message, the system receives directly into that memory, and the payload
    /// is unmasked in place. `None` when the connection has ended.
    ///
    /// Cancel-safe: call again with the same buffer, and it continues behind the bytes already received. Where the
    /// message does not fit, [`Filled::last`] is false, and the next call receives the following bytes; any other
    /// receive method skips them. A call with an empty buffer waits until the message has ended or more of it was
    /// received.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn recv_into(&mut self, buffer: &mut [u8]) -> Option<Result<Filled, Error>> {
        match poll_fn(|cx| self.filling.poll(&mut self.driver, cx, buffer)).await {
            Some(filled) => Some(Ok(filled)),
            None => self.driver.link.take_end_error().map(Err),
        }
    }

    /// Sends a message in chunks: its length need not be known, and it need not fit into memory. Each write is a
    /// fragment; pings, pongs and Close pass between fragments. [Published](Self::publish) messages and those of a
    /// [`Sender`](crate::Sender) wait for the end of the message; a Close before it drops them. `send`, `feed` and
    /// `try_send` return [`Misuse::MessageOpen`](crate::Misuse::MessageOpen) until then.
    pub fn writer(&mut self, kind: Kind) -> MessageWriter<'_, Self> {
        MessageWriter::new(self, kind)
    }

    /// Whether a message of a [`writer`](Self::writer) has begun and not ended: [`writer`](Self::writer) continues it.
    #[must_use]
    pub fn is_mid_message(&self) -> bool {
        self.driver.link.is_mid_message()
    }
}

/// A message that is read as it arrives: by [`next_chunk`](Self::next_chunk), without a copy, or as an [`AsyncRead`],
/// which ends with the message.
///
/// In text, a chunk may end in the middle of a code point; the whole is validated, and invalid UTF-8 ends the
/// connection.
#[derive(Debug)]
pub struct MessageReader<'a, S: AsyncRead + AsyncWrite + Unpin> {
    socket: &'a mut WebSocket<S>,
    reading: MessageCursor,
}

impl<S: AsyncRead + AsyncWrite + Unpin> MessageReader<'_, S> {
    /// Text or binary.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.reading.kind
    }

    /// Borrows the next chunk from the receive buffer, never empty; `None` at the end of the message.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// The connection ended before the message.
    pub async fn next_chunk(&mut self) -> Option<Result<&mut [u8], Error>> {
        match poll_fn(|cx| self.reading.poll_bytes(&mut self.socket.driver, cx)).await {
            Ok(true) => Some(Ok(self.reading.take(&mut self.socket.driver.link, usize::MAX))),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for MessageReader<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { socket, reading } = &mut *self;
        if reading.left() == 0 && !reading.last && buf.remaining() > 0 {
            if let Some((count, last)) = socket.driver.poll_piece(cx, buf.initialize_unfilled()) {
                buf.advance(count);
                reading.last = last;
                return Poll::Ready(Ok(()));
            }
            ready!(reading.poll_bytes(&mut socket.driver, cx))
                .map_err(|error| io::Error::new(io::ErrorKind::UnexpectedEof, error))?;
        }
        buf.put_slice(reading.take(&mut socket.driver.link, buf.remaining()));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Drop for MessageReader<'_, S> {
    fn drop(&mut self) {
        if !self.reading.last {
            self.socket.driver.link.skip_rest();
        }
    }
}

/// A message that is sent in chunks: by [`write`](Self::write), or as an [`AsyncWrite`], whose shutdown is
/// [`finish`](Self::finish). `W` is the [`WebSocket`], or its [`WriteHalf`](super::WriteHalf).
///
/// A writer that is dropped before that leaves the message open: [`WebSocket::writer`] continues it, and until its
/// end other messages are [`Misuse::MessageOpen`](crate::Misuse::MessageOpen).
#[derive(Debug)]
pub struct MessageWriter<'a, W> {
    socket: &'a mut W,
    kind: Kind,
    /// The end is queued, and nothing was written behind it.
    ended: bool,
}

/// A connection, or its sending half.
#[allow(unnameable_types, reason = "the bound of a sealed type")]
pub trait SendPieces {
    /// Queues a chunk of a message of a kind, and whether it ends the message, once there is capacity.
    fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
        kind: Kind,
        part: &[u8],
        last: bool,
    ) -> Poll<Result<(), Error>>;

    /// Sends everything that is queued.
    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>>;
}

impl<S: AsyncRead + AsyncWrite + Unpin> SendPieces for WebSocket<S> {
    fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
        kind: Kind,
        part: &[u8],
        last: bool,
    ) -> Poll<Result<(), Error>> {
        self.driver.poll_part(cx, kind, part, last)
    }

    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.driver.poll_out(cx)
    }
}

impl<'a, W: SendPieces> MessageWriter<'a, W> {
    pub(super) fn new(socket: &'a mut W, kind: Kind) -> Self {
        Self { socket, kind, ended: false }
    }

    /// Sends a chunk, in fragments of at most 64 KiB. It waits while more than
    /// [`high_water`](crate::Config::high_water) bytes are queued; small chunks leave together, at that mark, with
    /// [`flush`](Self::flush) or with the end.
    ///
    /// Not cancel-safe for chunks over 64 KiB: a dropped future may have sent a part.
    ///
    /// # Errors
    /// See [`Error`]; [`Misuse::MessageOpen`](crate::Misuse::MessageOpen) while a message of the other kind is open.
    pub async fn write(&mut self, piece: &[u8]) -> Result<(), Error> {
        for part in piece.chunks(FRAGMENT_MAX) {
            poll_fn(|cx| self.poll_part(cx, part)).await?;
        }
        Ok(())
    }

    fn poll_part(&mut self, cx: &mut Context<'_>, part: &[u8]) -> Poll<Result<(), Error>> {
        ready!(self.socket.poll_part(cx, self.kind, part, false))?;
        self.ended = false;
        Poll::Ready(Ok(()))
    }

    /// Queues the end of the message once, and sends all queued bytes.
    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if !self.ended {
            ready!(self.socket.poll_part(cx, self.kind, &[], true))?;
            self.ended = true;
        }
        self.socket.poll_sent(cx)
    }

    /// Sends all queued bytes.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn flush(&mut self) -> Result<(), Error> {
        poll_fn(|cx| self.socket.poll_sent(cx)).await
    }

    /// Ends the message, and sends all queued bytes. A message without chunks is empty.
    ///
    /// Not cancel-safe: a dropped future may have queued the end; `is_mid_message` of the connection tells whether the
    /// message is still open; for a message without chunks it is `false` in both cases. The [shutdown](tokio::io::AsyncWriteExt::shutdown) of the writer is cancel-safe: call it
    /// again.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn finish(mut self) -> Result<(), Error> {
        poll_fn(|cx| self.poll_finish(cx)).await
    }
}

impl<W: SendPieces> AsyncWrite for MessageWriter<'_, W> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let part = &buf[..buf.len().min(FRAGMENT_MAX)];
        if !part.is_empty() {
            ready!(self.poll_part(cx, part)).map_err(io::Error::other)?;
        }
        Poll::Ready(Ok(part.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_sent(cx).map_err(io::Error::other)
    }

    /// Ends the message, as [`finish`](MessageWriter::finish). Another call does nothing more.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_finish(cx).map_err(io::Error::other)
    }
}
