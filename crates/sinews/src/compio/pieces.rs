//! Messages that are larger than memory, or that are received into the application's memory.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use compio::buf::{BufResult, IoBuf, IoBufMut, IoVectoredBuf};
use compio::io::{AsyncRead, AsyncWrite};
use sinews_proto::Kind;

use super::split::shared::HalfCall;
use super::transport::Transport;
use super::websocket::WebSocket;
use crate::driver::Driver as _;
use crate::error::Error;
use crate::link::accepted;
use crate::message::{Filled, MessageHead};
use crate::reading::{FRAGMENT_MAX, MessageCursor};

impl<S: Transport> WebSocket<S> {
    /// Waits for the next text or binary message and reads it in chunks as they arrive: it need not fit into memory.
    /// Its limits are [`max_message`](crate::Config::max_message), [`max_frame`](crate::Config::max_frame) and
    /// [`max_fragments`](crate::Config::max_fragments). `None` when the connection has ended.
    ///
    /// Cancel-safe. The rest of a message whose reader is dropped is skipped.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn next_reader(&mut self) -> Option<Result<MessageReader<'_, S>, Error>> {
        self.leave_filling();
        match poll_fn(|cx| MessageCursor::poll_begin(&mut self.driver, cx)).await {
            Some(reading) => Some(Ok(MessageReader { socket: self, reading })),
            None => self.driver.link().take_end_error().map(Err),
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
    /// # let Ok(runtime) = compio::runtime::Runtime::new() else { return Ok(()) };
    /// # runtime.block_on(async {
    /// # use sinews::compio::WebSocket;
    /// # let agreed = sinews_testkit::negotiate(None, None);
    /// # let (one, other) = std::os::unix::net::UnixStream::pair()?;
    /// # let (one, other) = (compio::net::UnixStream::from_std(one)?, compio::net::UnixStream::from_std(other)?);
    /// # let mut ws = WebSocket::from_negotiated(one, agreed.server, Default::default(), &[]);
    /// # let mut peer = WebSocket::from_negotiated(other, agreed.client, Default::default(), &[]);
    /// # peer.send(vec![7; 100]).await?;
    /// let head = ws.next_head().await.expect("the connection is open")?;
    /// let (received, buffer) = ws.recv_into(Vec::with_capacity(head.len)).await;
    /// let filled = received.expect("the connection is open")?;
    /// assert!(head.last && filled.last);
    /// assert_eq!(buffer, [7; 100]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn next_head(&mut self) -> Option<Result<MessageHead, Error>> {
        next_head(SocketOrHalf::Whole(self)).await
    }

    /// Receives the next text or binary message into the caller's memory, such as memory that is aligned for direct
    /// I/O, from its beginning and up to its capacity, and returns the memory. `None` when the connection has ended.
    /// Over a socket, the kernel receives the larger part of a large message directly into that memory, and the
    /// payload is unmasked in place; bytes received with the head of the message are copied once.
    ///
    /// Where the message does not fit, [`Filled::last`] is false, and the next call receives the following bytes; any
    /// other receive method skips them. A call with an empty buffer waits until the message has ended or more of it
    /// was received.
    ///
    /// Cancel-safe. The connection keeps the memory of a dropped call, which the kernel may have in use, until the
    /// message has ended or the memory is full. The next call continues to receive there, keeps its own memory for
    /// the end, and copies the received bytes once, regardless of the number of dropped calls; then the memory of the
    /// first call is dropped.
    ///
    /// ```
    /// # let Ok(runtime) = compio::runtime::Runtime::new() else { return Ok(()) };
    /// # runtime.block_on(async {
    /// # use sinews::compio::WebSocket;
    /// # let agreed = sinews_testkit::negotiate(None, None);
    /// # let (one, other) = std::os::unix::net::UnixStream::pair()?;
    /// # let (one, other) = (compio::net::UnixStream::from_std(one)?, compio::net::UnixStream::from_std(other)?);
    /// # let mut ws = WebSocket::from_negotiated(one, agreed.server, Default::default(), &[]);
    /// # let mut peer = WebSocket::from_negotiated(other, agreed.client, Default::default(), &[]);
    /// # peer.send(vec![7; 100]).await?;
    /// let (received, buffer) = ws.recv_into(Vec::with_capacity(4096)).await;
    /// let filled = received.expect("the connection is open")?;
    /// assert!(filled.last);
    /// assert_eq!(buffer[..filled.len], [7; 100]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn recv_into<B: IoBufMut>(&mut self, buffer: B) -> (Option<Result<Filled, Error>>, B) {
        recv_into(SocketOrHalf::Whole(self), buffer).await
    }

    /// Sends one message from several buffers, of any type that compio can send: a tuple of a header and a payload, a
    /// `Vec` or an array of buffers; use an array of one for a single buffer. A server sends buffers of 4 KiB and
    /// more without a copy. Smaller buffers, and all buffers of a client, which masks them, are copied once, behind
    /// the frame header. Compression copies first.
    ///
    /// It returns the buffers when the message has left; `None` if the connection ended while the kernel used them:
    /// they are dropped when the kernel is done. The buffers of a text message must be UTF-8 together.
    ///
    /// Cancel-safe: a dropped future has queued the message whole or not at all, and the buffers are dropped when it
    /// has left.
    ///
    /// ```
    /// # let Ok(runtime) = compio::runtime::Runtime::new() else { return Ok(()) };
    /// # runtime.block_on(async {
    /// # use sinews::{Kind, Message, compio::WebSocket};
    /// # let agreed = sinews_testkit::negotiate(None, None);
    /// # let (one, other) = std::os::unix::net::UnixStream::pair()?;
    /// # let (one, other) = (compio::net::UnixStream::from_std(one)?, compio::net::UnixStream::from_std(other)?);
    /// # let mut ws = WebSocket::from_negotiated(one, agreed.server, Default::default(), &[]);
    /// # let mut peer = WebSocket::from_negotiated(other, agreed.client, Default::default(), &[]);
    /// let (head, payload) = ([1_u8, 2], vec![7_u8; 3]);
    /// let (sent, buffers) = ws.send_vectored(Kind::Binary, (head, (payload,))).await;
    /// sent?;
    /// let (_, (payload,)) = buffers.expect("the connection is open");
    /// assert_eq!(payload, [7; 3]);
    /// # assert_eq!(peer.next().await.transpose()?, Some(Message::binary(vec![1, 2, 7, 7, 7])));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn send_vectored<V: IoVectoredBuf + Send + Sync>(
        &mut self,
        kind: Kind,
        buffers: V,
    ) -> (Result<(), Error>, Option<V>) {
        send_vectored(SocketOrHalf::Whole(self), kind, buffers).await
    }

    /// Sends a message in chunks: its length need not be known, and it need not fit into memory. Each write is a
    /// fragment; pings, pongs and Close pass between fragments, other messages wait for the end of the message.
    pub fn writer(&mut self, kind: Kind) -> MessageWriter<'_, S> {
        MessageWriter::new(SocketOrHalf::Whole(self), kind)
    }

    /// Whether a message of a [`writer`](Self::writer) has begun and not ended: [`writer`](Self::writer) continues it.
    #[must_use]
    pub fn is_mid_message(&self) -> bool {
        self.driver.link.is_mid_message()
    }
}

/// A connection, or one of its halves.
pub(super) enum SocketOrHalf<'a, S: Transport> {
    Whole(&'a mut WebSocket<S>),
    HalfCall(HalfCall<'a, S>),
}

impl<S: Transport> SocketOrHalf<'_, S> {
    fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(&mut WebSocket<S>, &mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        match self {
            Self::Whole(socket) => poll(socket, cx),
            Self::HalfCall(half) => half.poll(cx, poll),
        }
    }

    fn with<T>(&mut self, work: impl FnOnce(&mut WebSocket<S>) -> T) -> T {
        match self {
            Self::Whole(socket) => work(socket),
            Self::HalfCall(half) => half.with(work),
        }
    }
}

/// [`WebSocket::next_head`] for a connection or a half.
pub(super) async fn next_head<S: Transport>(
    mut holder: SocketOrHalf<'_, S>,
) -> Option<Result<MessageHead, Error>> {
    poll_fn(|cx| holder.poll(cx, |socket, cx| socket.poll_head(cx))).await
}

/// [`WebSocket::recv_into`] for a connection or a half.
pub(super) async fn recv_into<S: Transport, B: IoBufMut>(
    mut holder: SocketOrHalf<'_, S>,
    buffer: B,
) -> (Option<Result<Filled, Error>>, B) {
    let mut own = Some(buffer);
    poll_fn(|cx| holder.poll(cx, |socket, cx| socket.poll_into(cx, &mut own))).await
}

/// [`WebSocket::send_vectored`] for a connection or a half.
pub(super) async fn send_vectored<S: Transport, V: IoVectoredBuf + Send + Sync>(
    mut holder: SocketOrHalf<'_, S>,
    kind: Kind,
    buffers: V,
) -> (Result<(), Error>, Option<V>) {
    let owner = Arc::new(buffers);
    let sent = send_pieces(&mut holder, kind, pieces_of(&owner)).await;
    (sent, Arc::into_inner(owner))
}

async fn send_pieces<S: Transport>(
    holder: &mut SocketOrHalf<'_, S>,
    kind: Kind,
    pieces: Vec<Bytes>,
) -> Result<(), Error> {
    poll_fn(|cx| holder.poll(cx, |socket, cx| socket.driver.poll_capacity(cx))).await;
    accepted(holder.with(|socket| socket.driver.link().queue_pieces(kind, &pieces)))?;
    drop(pieces);
    poll_fn(|cx| holder.poll(cx, |socket, cx| socket.driver.poll_out(cx))).await
}

/// One of several buffers, which stay together.
struct OwnedPiece<V> {
    owner: Arc<V>,
    at: usize,
}

impl<V: IoVectoredBuf> AsRef<[u8]> for OwnedPiece<V> {
    fn as_ref(&self) -> &[u8] {
        self.owner.iter_slice().nth(self.at).unwrap_or_default()
    }
}

fn pieces_of<V: IoVectoredBuf + Send + Sync>(owner: &Arc<V>) -> Vec<Bytes> {
    let count = owner.iter_slice().count();
    (0..count).map(|at| Bytes::from_owner(OwnedPiece { owner: owner.clone(), at })).collect()
}

/// A message that is read as it arrives: by [`next_chunk`](Self::next_chunk), without a copy, or as an [`AsyncRead`],
/// which ends with the message.
///
/// In text, a chunk may end in the middle of a code point; the whole is validated, and invalid UTF-8 ends the
/// connection.
#[derive(Debug)]
pub struct MessageReader<'a, S: Transport> {
    socket: &'a mut WebSocket<S>,
    reading: MessageCursor,
}

impl<S: Transport> MessageReader<'_, S> {
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
            Ok(true) => Some(Ok(self.reading.take(self.socket.driver.link(), usize::MAX))),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }
}

/// Cancel-safe except for the buffer, which is dropped with the call.
impl<S: Transport> AsyncRead for MessageReader<'_, S> {
    async fn read<B: IoBufMut>(&mut self, mut buf: B) -> BufResult<usize, B> {
        let Self { socket, reading } = self;
        if let Err(error) = poll_fn(|cx| reading.poll_bytes(&mut socket.driver, cx)).await {
            return BufResult(Err(io::Error::new(io::ErrorKind::UnexpectedEof, error)), buf);
        }
        let mut piece: &[u8] = reading.take(socket.driver.link(), buf.buf_capacity());
        piece.read(buf).await
    }
}

impl<S: Transport> Drop for MessageReader<'_, S> {
    fn drop(&mut self) {
        if !self.reading.last {
            self.socket.driver.link().skip_rest();
        }
    }
}

/// A message that is sent in chunks: by [`write`](Self::write), or as an [`AsyncWrite`], whose shutdown is
/// [`finish`](Self::finish).
///
/// A writer that is dropped before that leaves the message open: [`WebSocket::writer`] continues it, and until its
/// end other messages are [`Misuse::MessageOpen`](crate::Misuse::MessageOpen).
pub struct MessageWriter<'a, S: Transport> {
    holder: SocketOrHalf<'a, S>,
    kind: Kind,
    /// The end is queued, and nothing was written behind it.
    ended: bool,
}

impl<'a, S: Transport> MessageWriter<'a, S> {
    pub(super) fn new(holder: SocketOrHalf<'a, S>, kind: Kind) -> Self {
        Self { holder, kind, ended: false }
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
            self.part(part, false).await?;
        }
        Ok(())
    }

    async fn part(&mut self, part: &[u8], last: bool) -> Result<(), Error> {
        let kind = self.kind;
        poll_fn(|cx| self.holder.poll(cx, |socket, cx| socket.driver.poll_part(cx, kind, part, last)))
            .await?;
        self.ended = last;
        Ok(())
    }

    async fn end(&mut self) -> Result<(), Error> {
        if !self.ended {
            self.part(&[], true).await?;
        }
        self.flush().await
    }

    /// Sends all queued bytes.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn flush(&mut self) -> Result<(), Error> {
        poll_fn(|cx| self.holder.poll(cx, |socket, cx| socket.driver.poll_out(cx))).await
    }

    /// Ends the message, and sends all queued bytes. A message without chunks is empty.
    ///
    /// Not cancel-safe: a dropped future may have queued the end; `is_mid_message` of the connection tells whether the
    /// message is still open; for a message without chunks it is `false` in both cases. The [shutdown](AsyncWrite::shutdown) of the writer is cancel-safe: call it again.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn finish(mut self) -> Result<(), Error> {
        self.end().await
    }
}

/// Sends a buffer in fragments of at most 64 KiB, each copied once, behind its frame header.
impl<S: Transport> AsyncWrite for MessageWriter<'_, S> {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        let bytes = buf.as_init();
        let part = &bytes[..bytes.len().min(FRAGMENT_MAX)];
        let count = part.len();
        if count > 0
            && let Err(error) = self.part(part, false).await
        {
            return BufResult(Err(io::Error::other(error)), buf);
        }
        BufResult(Ok(count), buf)
    }

    async fn flush(&mut self) -> io::Result<()> {
        Self::flush(self).await.map_err(io::Error::other)
    }

    /// Ends the message, as [`finish`](MessageWriter::finish). Another call does nothing more.
    async fn shutdown(&mut self) -> io::Result<()> {
        self.end().await.map_err(io::Error::other)
    }
}

impl<S: Transport> std::fmt::Debug for MessageWriter<'_, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageWriter").field("kind", &self.kind).finish_non_exhaustive()
    }
}
