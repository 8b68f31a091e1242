//! Adapter for synchronous protocol libraries: `Read` and `Write` over memory, which asynchronous calls fill and
//! flush.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use compio::buf::{BufResult, IntoInner as _, IoBuf};
use compio::io::util::Splittable;
use compio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

/// Initial size of a buffer.
const START: usize = 8 << 10;

/// A compio transport for a synchronous protocol library, such as tungstenite: [`Read`] returns bytes that
/// [`fill`](Self::fill) has received, and [`Write`] stores bytes that [`flush`](Self::flush) sends. Both return
/// [`WouldBlock`](io::ErrorKind::WouldBlock) where they would have to wait.
///
/// ```
/// use std::io::{ErrorKind, Read, Write};
///
/// use compio::io::{AsyncReadExt, AsyncWriteExt};
/// use sinews::compio::SyncBridge;
///
/// # let Ok(runtime) = compio::runtime::Runtime::new() else { return Ok(()) };
/// # runtime.block_on(async {
/// # let (one, other) = std::os::unix::net::UnixStream::pair()?;
/// # let stream = compio::net::UnixStream::from_std(one)?;
/// # let mut peer = compio::net::UnixStream::from_std(other)?;
/// let mut bridge = SyncBridge::new(stream);
/// peer.write_all(b"question").await.0?;
///
/// let mut buffer = [0; 100];
/// let count = loop {
///     match bridge.read(&mut buffer) {
///         Err(error) if error.kind() == ErrorKind::WouldBlock => bridge.fill().await?,
///         read => break read?,
///     };
/// };
/// assert_eq!(&buffer[..count], b"question");
///
/// bridge.write_all(b"answer")?;
/// bridge.flush().await?;
/// assert_eq!(peer.read_exact(vec![0; 6]).await.1, b"answer");
/// # std::io::Result::Ok(())
/// # })?;
/// # std::io::Result::Ok(())
/// ```
///
/// Buffers begin with [`SyncBridge::START`] bytes. The size of a fill, which is one operation, doubles after a full
/// receive, up to the limit, and halves after a receive of less than a quarter. The write buffer grows as needed, up
/// to the limit, and a flush sends all of it; memory that was much too large is freed.
///
/// [`fill`](Self::fill) and [`flush`](Self::flush) are cancel-safe: the bridge owns the operation in flight.
/// [`fill_or_flush`](Self::fill_or_flush) awaits both at the same time, from one task.
///
/// This crate's own connections do not use it: they pass their buffers to the kernel by value, without a copy.
pub struct SyncBridge<S: Splittable> {
    filling: FillSide<S::ReadHalf>,
    flushing: FlushSide<S::WriteHalf>,
}

impl<S> SyncBridge<S>
where
    S: Splittable<ReadHalf: AsyncRead + 'static, WriteHalf: AsyncWrite + 'static>,
{
    /// Initial size of a buffer, 8 KiB: most messages fit, and a thousand connections take 16 MiB.
    pub const START: usize = START;

    /// Default limit of a buffer, 1 MiB: a fill of 16 MiB takes some twenty operations; larger buffers save little.
    pub const LIMIT: usize = 1 << 20;

    /// Creates a bridge whose buffers grow to [`LIMIT`](Self::LIMIT). The transport's halves must not wait for each
    /// other; sockets, and pairs of a reader and a writer, do not.
    pub fn new(transport: S) -> Self {
        Self::with_limit(transport, Self::LIMIT)
    }

    /// Creates a bridge whose buffers grow to this many bytes; at least [`START`](Self::START) in each direction.
    pub fn with_limit(transport: S, limit: usize) -> Self {
        let (reader, writer) = transport.split();
        let limit = limit.max(Self::START);
        Self { filling: FillSide::new(reader, limit), flushing: FlushSide::new(writer, limit) }
    }

    /// Receives once, behind unread bytes, and returns the number of received bytes; 0: the peer has ended its side,
    /// permanently.
    ///
    /// Cancel-safe: bytes that arrive after the future was dropped are kept for the next call.
    ///
    /// # Errors
    /// The error of the transport; [`io::ErrorKind::OutOfMemory`] if unread bytes fill the buffer up to its limit.
    pub async fn fill(&mut self) -> io::Result<usize> {
        poll_fn(|cx| self.filling.poll(cx)).await
    }

    /// Sends all written bytes.
    ///
    /// Cancel-safe: no byte is sent twice, and the rest follows with the next call.
    ///
    /// # Errors
    /// The error of the transport.
    pub async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.flushing.poll(cx)).await
    }

    /// Flushes and fills until bytes are received: for a library that has returned `WouldBlock` while its own bytes
    /// are still in flight. Returns as [`fill`](Self::fill).
    ///
    /// # Errors
    /// As [`fill`](Self::fill) and [`flush`](Self::flush).
    pub async fn fill_or_flush(&mut self) -> io::Result<usize> {
        poll_fn(|cx| {
            if let Poll::Ready(Err(error)) = self.flushing.poll(cx) {
                return Poll::Ready(Err(error));
            }
            self.filling.poll(cx)
        })
        .await
    }

    /// Sends all written bytes, and then ends the sending side.
    ///
    /// # Errors
    /// The error of the transport.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        self.flush().await?;
        match &mut self.flushing.state {
            State::Idle(writer) => writer.shutdown().await,
            State::Busy(_) | State::Lost => Err(lost()),
        }
    }
}

impl<S: Splittable> SyncBridge<S> {
    /// Number of received bytes that are unread.
    #[must_use]
    pub fn readable(&self) -> usize {
        self.filling.unread().len()
    }

    /// Number of written bytes that have not left, as far as known.
    #[must_use]
    pub fn unsent(&self) -> usize {
        self.flushing.unsent()
    }

    /// Size of the next [`fill`](Self::fill) in bytes, if the limit allows it.
    #[must_use]
    pub fn fill_size(&self) -> usize {
        self.filling.size
    }
}

impl<S: Splittable> Read for SyncBridge<S> {
    /// Returns received bytes: [`WouldBlock`](io::ErrorKind::WouldBlock) if there are none, 0 at the end of input.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.filling.unread().is_empty() && !<[u8]>::is_empty(into) && !self.filling.ended {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(self.filling.take(into))
    }
}

impl<S: Splittable> Write for SyncBridge<S> {
    /// Stores as much as fits below the limit: [`WouldBlock`](io::ErrorKind::WouldBlock) if nothing fits.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.flushing.put(bytes);
        if taken == 0 && !<[u8]>::is_empty(bytes) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(taken)
    }

    /// [`WouldBlock`](io::ErrorKind::WouldBlock) while bytes are queued for [`SyncBridge::flush`], which sends them.
    fn flush(&mut self) -> io::Result<()> {
        if self.unsent() > 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    }
}

impl<S: Splittable> fmt::Debug for SyncBridge<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncBridge")
            .field("readable", &self.filling.unread().len())
            .field("unsent", &self.flushing.unsent())
            .finish_non_exhaustive()
    }
}

/// The output of an operation: the half, its result and its memory.
type BridgeOperation<H> = Pin<Box<dyn Future<Output = (H, BufResult<usize, Vec<u8>>)>>>;

/// Half of a transport, or its operation in flight.
enum State<H> {
    Idle(H),
    Busy(BridgeOperation<H>),
    /// Only during a transition between states.
    Lost,
}

fn lost() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

/// The received bytes, from an offset on, and the state of the next receive.
struct FillSide<R> {
    state: State<R>,
    ready: Vec<u8>,
    at: usize,
    /// Memory of the last receive, reused for the next.
    spare: Vec<u8>,
    /// Size of the next receive, and of the last.
    size: usize,
    requested: usize,
    limit: usize,
    ended: bool,
}

impl<R> FillSide<R> {
    fn new(reader: R, limit: usize) -> Self {
        let state = State::Idle(reader);
        Self {
            state,
            ready: Vec::new(),
            at: 0,
            spare: Vec::new(),
            size: START,
            requested: 0,
            limit,
            ended: false,
        }
    }

    fn unread(&self) -> &[u8] {
        &self.ready[self.at..]
    }

    fn take(&mut self, into: &mut [u8]) -> usize {
        let count = into.len().min(self.ready.len() - self.at);
        into[..count].copy_from_slice(&self.ready[self.at..self.at + count]);
        self.at += count;
        count
    }

    /// Stores received bytes behind unread bytes, or in their place if there are none.
    fn store(&mut self, mut bytes: Vec<u8>) {
        if bytes.len() == self.requested {
            self.size = (2 * self.requested).clamp(START, self.limit);
        } else if bytes.len() < self.size / 4 {
            self.size = (self.size / 2).max(START);
        }
        if self.unread().is_empty() {
            std::mem::swap(&mut self.ready, &mut bytes);
        } else {
            self.ready.drain(..self.at);
            self.ready.extend_from_slice(&bytes);
        }
        self.at = 0;
        bytes.clear();
        // The size may just have been halved: memory up to twice the size is kept.
        self.spare = if bytes.capacity() < 2 * self.size { bytes } else { Vec::new() };
    }
}

impl<R: AsyncRead + 'static> FillSide<R> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.ended {
            return Poll::Ready(Ok(0));
        }
        if let State::Idle(_) = self.state {
            self.start()?;
        }
        let State::Busy(op) = &mut self.state else { return Poll::Ready(Err(lost())) };
        let (reader, BufResult(result, bytes)) = ready!(op.as_mut().poll(cx));
        self.state = State::Idle(reader);
        self.ended = matches!(result, Ok(0));
        if result.is_ok() {
            self.store(bytes);
        }
        Poll::Ready(result)
    }

    fn start(&mut self) -> io::Result<()> {
        let unread = self.unread().len();
        let room = self.size.min(self.limit - unread);
        if room == 0 {
            let error =
                format!("receive buffer is full: {unread} unread bytes reach the limit of the bridge");
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, error));
        }
        if let State::Idle(mut reader) = std::mem::replace(&mut self.state, State::Lost) {
            let mut memory = std::mem::take(&mut self.spare);
            memory.reserve_exact(room);
            self.requested = room;
            self.state = State::Busy(Box::pin(async move {
                let result = reader.read(IoBuf::slice(memory, ..room)).await.into_inner();
                (reader, result)
            }));
        }
        Ok(())
    }
}

/// Written bytes that are queued, and the send in flight.
struct FlushSide<W> {
    state: State<W>,
    queued: Vec<u8>,
    /// Bytes in flight.
    leaving: usize,
    limit: usize,
}

impl<W> FlushSide<W> {
    fn new(writer: W, limit: usize) -> Self {
        Self { state: State::Idle(writer), queued: Vec::new(), leaving: 0, limit }
    }

    fn unsent(&self) -> usize {
        self.queued.len() + self.leaving
    }

    fn put(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.limit - self.unsent());
        if self.queued.capacity() == 0 && count > 0 {
            self.queued.reserve_exact(START);
        }
        self.queued.extend_from_slice(&bytes[..count]);
        count
    }

    /// Reuses memory, if it was not much too large.
    fn reuse(&mut self, mut bytes: Vec<u8>) {
        self.leaving = 0;
        let fits = bytes.capacity() <= START || bytes.len() >= bytes.capacity() / 4;
        if fits && self.queued.is_empty() {
            bytes.clear();
            self.queued = bytes;
        }
    }
}

impl<W: AsyncWrite + 'static> FlushSide<W> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match &mut self.state {
                State::Busy(op) => {
                    let (writer, BufResult(result, bytes)) = ready!(op.as_mut().poll(cx));
                    self.state = State::Idle(writer);
                    self.reuse(bytes);
                    result?;
                }
                State::Idle(_) if self.queued.is_empty() => return Poll::Ready(Ok(())),
                State::Idle(_) => self.start(),
                State::Lost => return Poll::Ready(Err(lost())),
            }
        }
    }

    fn start(&mut self) {
        if let State::Idle(mut writer) = std::mem::replace(&mut self.state, State::Lost) {
            let bytes = std::mem::take(&mut self.queued);
            self.leaving = bytes.len();
            self.state = State::Busy(Box::pin(async move {
                let BufResult(sent, bytes) = writer.write_all(bytes).await;
                let sent = match sent {
                    Ok(()) => writer.flush().await,
                    failed => failed,
                };
                (writer, BufResult(sent.map(|()| 0), bytes))
            }));
        }
    }
}
