//! Sockets: sends are submitted as typed operations stored in the connection itself, and common receives share one
//! box for its whole lifetime.
#![allow(private_interfaces, unnameable_types, reason = "the other side of a sealed trait")]

use std::future::Future;
use std::io;
use std::num::NonZero;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use compio::buf::{BufResult, IntoInner as _, IoBuf, IoBufMut as _, IoVectoredBuf, Slice};
use compio::driver::op::{Recv, RecvFlags, Send, SendFlags, SendVectored};
use compio::driver::{BufferRef, SharedFd, ToSharedFd};
use compio::io::{AsyncRead, AsyncReadManaged, AsyncWrite};
use compio::net::{TcpStream, UnixStream};
use compio::runtime::{CancelToken, FutureExt as _, Submit};
use futures_core::Stream;
use sinews_session::Chain;
use socket2::Socket;

use super::app_memory::{AnySocket, AppMemory, AppReceive};
use super::transport::sealed::Duplex;
use super::transport::{ReceiveResult, SendResult, Sink, SocketTransport, Source};
use crate::link::ReceiveBuffer;
use crate::resources::BLOCK;

type Fd = SharedFd<Socket>;

/// A boxed future for rare or large operations.
type Boxed<T> = Pin<Box<dyn Future<Output = T>>>;

/// Slices in one send; further slices follow in the next. The kernel accepts 1,024.
const SLICES: usize = 64;

/// Size of a receive buffer if all of the runtime's buffers are taken.
const SMALL: usize = 1 << 10;

/// Least size of a receive when much data is expected.
const BLOCK_MIN: usize = 16 << 10;

/// Most bytes received into a managed buffer, until several receives in a row were full. The kernel uses the buffers
/// in turn, so that each is touched; this limit keeps the touched part small where most messages are small.
const MODEST: usize = 4 << 10;
const PLENTY: u8 = 8;

macro_rules! duplex {
    ($($stream:ty),*) => {$(
        impl Duplex for $stream {
            type Source = SocketSource<Self>;
            type Sink = SocketSink<Self>;

            fn open(self) -> (SocketSource<Self>, SocketSink<Self>) {
                (SocketSource::new(self.clone()), SocketSink { stream: self, op: None })
            }
        }

        impl SocketTransport for $stream {
            type Socket = Self;

            fn socket(sink: &SocketSink<Self>) -> &Self {
                &sink.stream
            }

            fn socket_mut(sink: &mut SocketSink<Self>) -> &mut Self {
                &mut sink.stream
            }
        }
    )*};
}

duplex!(TcpStream, UnixStream);

/// A socket's receiving side.
///
/// It waits in the runtime's managed buffers, of which a waiting connection holds none. A full buffer means that more
/// data is available: the next bytes go into a block of the caller, by a receive that does not wait, so that a
/// waiting connection never pins a block.
pub struct SocketSource<S> {
    stream: S,
    /// A stream of receives into managed buffers; created when first needed.
    managed: Option<Managed>,
    state: State,
    /// The last receive filled its buffer of this size, so that more data may be available.
    full: Option<NonZero<u32>>,
    /// All managed buffers were taken.
    exhausted: bool,
}

type Managed = Pin<Box<dyn Stream<Item = io::Result<Option<BufferRef>>>>>;

/// The receive in flight, or the received bytes.
enum State {
    Idle,
    Managed,
    /// Into the source's own memory.
    Small(Submit<Recv<Vec<u8>, Fd>>),
    /// Into a block of the caller, without waiting.
    Block(Box<Submit<Recv<Slice<Vec<u8>>, Fd>>>),
    /// Into the memory of a message, at most this many bytes.
    Message(Boxed<BufResult<usize, Slice<Vec<u8>>>>, usize),
    /// Into the application's memory, until the token is used.
    AppBuffer(AppReceive, usize, Option<CancelToken>),
    /// Received bytes, from an offset on.
    Buffered(BufferRef, u32),
    BufferedSmall(Vec<u8>, u32),
}

impl<S> SocketSource<S>
where
    S: AsyncRead + Clone + Into<AnySocket> + ToSharedFd<Socket> + 'static,
    for<'a> &'a S: AsyncReadManaged<Buffer = BufferRef>,
{
    fn new(stream: S) -> Self {
        Self { stream, managed: None, state: State::Idle, full: None, exhausted: false }
    }

    /// Waits in a managed buffer, or in a small buffer if none is available.
    fn wait(&mut self) -> State {
        if std::mem::take(&mut self.exhausted) {
            let recv = Recv::new(self.stream.to_shared_fd(), vec![0; SMALL], RecvFlags::empty());
            return State::Small(compio::runtime::submit(recv));
        }
        self.managed.get_or_insert_with(|| {
            // The stream is passed along, as it remembers whether the socket was emptied.
            let start = (self.stream.clone(), 0);
            Box::pin(futures_util::stream::unfold(start, |(stream, plenty)| async move {
                // 0: as much as fits.
                let most = if plenty < PLENTY { MODEST } else { 0 };
                // Through a reference, which makes the future smaller.
                let received = (&stream).read_managed(most).await;
                let is_much = matches!(&received, Ok(Some(buffer)) if buffer.len() >= MODEST);
                Some((received, (stream, if is_much { PLENTY.min(plenty + 1) } else { 0 })))
            }))
        });
        State::Managed
    }

    /// Receives behind the contents of a block, but does not wait. The memory must be initialized, which costs little
    /// compared with the receive: it grows with the received data.
    fn take_more(&self, mut block: Vec<u8>) -> State {
        let start = block.len();
        let room = self.full.map_or(0, |full| 2 * full.get() as usize).clamp(BLOCK_MIN, BLOCK);
        let end = (start + room).min(block.capacity());
        block.resize(end, 0);
        let recv = Recv::new(self.stream.to_shared_fd(), block.slice(start..end), RecvFlags::DONTWAIT);
        State::Block(Box::new(compio::runtime::submit(recv)))
    }

    fn receive_message(&self, memory: Vec<u8>, most: usize) -> State {
        let mut stream = self.stream.clone();
        let end = memory.len() + most;
        let start = memory.len();
        let slice = memory.slice(start..end);
        State::Message(Box::pin(async move { stream.read(slice).await }), most)
    }

    fn managed_received(&mut self, received: io::Result<Option<BufferRef>>) -> ReceiveResult {
        match received {
            Ok(Some(mut buffer)) if !buffer.is_empty() => {
                let (count, room) = (buffer.len(), buffer.buf_capacity());
                self.note_received(count, if count == MODEST { count } else { room });
                self.state = State::Buffered(buffer, 0);
                ReceiveResult::Buffered
            }
            Ok(_) => ReceiveResult::Ended(None),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                self.exhausted = true;
                ReceiveResult::Nothing
            }
            Err(error) => ReceiveResult::Ended(Some(error)),
        }
    }

    fn small_received(&mut self, received: BufResult<usize, Vec<u8>>) -> ReceiveResult {
        match received {
            BufResult(Ok(0), _) => ReceiveResult::Ended(None),
            BufResult(Ok(count), mut memory) => {
                self.note_received(count, SMALL);
                memory.truncate(count);
                self.state = State::BufferedSmall(memory, 0);
                ReceiveResult::Buffered
            }
            BufResult(Err(error), _) => ReceiveResult::Ended(Some(error)),
        }
    }

    fn block_received(&mut self, received: BufResult<usize, Slice<Vec<u8>>>) -> ReceiveResult {
        let BufResult(result, slice) = received;
        let (start, room) = (slice.begin(), slice.len());
        let mut block = slice.into_inner();
        block.truncate(start + result.as_ref().map_or(0, |&count| count));
        self.note_received(result.as_ref().map_or(0, |&count| count), room);
        ReceiveResult::Filled(ReceiveBuffer::Block(block), result)
    }

    fn note_received(&mut self, count: usize, room: usize) {
        let full = u32::try_from(count).ok().filter(|_| count == room);
        self.full = full.and_then(NonZero::new);
    }
}

impl<S> Source for SocketSource<S>
where
    S: AsyncRead + Clone + Into<AnySocket> + ToSharedFd<Socket> + 'static,
    for<'a> &'a S: AsyncReadManaged<Buffer = BufferRef>,
{
    fn is_direct(&self) -> bool {
        true
    }

    fn wants_block(&self) -> bool {
        self.full.is_some()
    }

    fn is_busy(&self) -> bool {
        !matches!(self.state, State::Idle)
    }

    fn start(&mut self, room: Option<ReceiveBuffer>) {
        self.state = match room {
            None => self.wait(),
            Some(ReceiveBuffer::Block(block)) => self.take_more(block),
            Some(ReceiveBuffer::Message(memory, most)) => self.receive_message(memory, most),
        };
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ReceiveResult> {
        let received = match &mut self.state {
            State::Idle => return Poll::Ready(ReceiveResult::Nothing),
            State::Buffered(..) | State::BufferedSmall(..) => return Poll::Ready(ReceiveResult::Buffered),
            State::Managed => {
                let Some(managed) = &mut self.managed else { return Poll::Pending };
                let received = ready!(managed.as_mut().poll_next(cx)).unwrap_or(Ok(None));
                self.state = State::Idle;
                self.managed_received(received)
            }
            State::Small(op) => {
                let received = ready!(Pin::new(op).poll(cx)).into_inner();
                self.state = State::Idle;
                self.small_received(received)
            }
            State::Block(op) => {
                let received = ready!(Pin::new(op).poll(cx)).into_inner();
                self.state = State::Idle;
                self.block_received(received)
            }
            State::AppBuffer(op, at, _) => {
                let at = *at;
                let (result, memory) = ready!(op.as_mut().poll(cx));
                self.state = State::Idle;
                self.full = None;
                ReceiveResult::AppMemory(memory, at, result)
            }
            State::Message(op, most) => {
                let most = *most;
                let BufResult(result, slice) = ready!(op.as_mut().poll(cx));
                self.state = State::Idle;
                self.full = None;
                ReceiveResult::Filled(ReceiveBuffer::Message(slice.into_inner(), most), result)
            }
        };
        Poll::Ready(received)
    }

    fn start_app_receive(
        &mut self,
        memory: Box<dyn AppMemory>,
        at: usize,
        most: usize,
    ) -> Option<Box<dyn AppMemory>> {
        let token = CancelToken::new();
        let op = memory.receive(self.stream.clone().into(), at, most).with_cancel(token.clone());
        self.state = State::AppBuffer(Box::pin(op), at, Some(token));
        None
    }

    fn cancel_app_receive(&mut self) {
        if let State::AppBuffer(_, _, token) = &mut self.state
            && let Some(token) = token.take()
        {
            token.cancel();
        }
    }

    fn drain(&mut self, into: &mut Vec<u8>, most: usize) -> usize {
        let (buffered, at): (&[u8], &mut u32) = match &mut self.state {
            State::Buffered(buffer, at) => (buffer, at),
            State::BufferedSmall(memory, at) => (memory, at),
            _ => return 0,
        };
        let rest = &buffered[*at as usize..];
        let count = most.min(rest.len());
        let is_all = count == rest.len();
        into.extend_from_slice(&rest[..count]);
        // The length of a receive fits into the operation's length field.
        *at += count as u32;
        if is_all {
            self.state = State::Idle;
        }
        count
    }
}

/// A socket's sending side: sends are vectored, and the chain itself is passed to the kernel.
pub struct SocketSink<S> {
    stream: S,
    op: Option<SendOp>,
}

enum SendOp {
    Piece(Submit<Send<SocketPiece, Fd>>),
    Pieces(Submit<SendVectored<SocketPieces, Fd>>),
    Shut(Boxed<io::Result<()>>),
}

/// A chain without large pieces.
struct SocketPiece(Box<Chain>);

impl IoBuf for SocketPiece {
    fn as_init(&self) -> &[u8] {
        self.0.as_slice().expect("the chain is a single slice")
    }
}

struct SocketPieces(Box<Chain>);

impl IoVectoredBuf for SocketPieces {
    fn iter_slice(&self) -> impl Iterator<Item = &[u8]> {
        self.0.pieces().take(SLICES)
    }
}

impl<S: AsyncWrite + Clone + ToSharedFd<Socket> + 'static> Sink for SocketSink<S> {
    fn is_busy(&self) -> bool {
        self.op.is_some()
    }

    fn start(&mut self, chain: Option<Box<Chain>>) {
        let Some(chain) = chain else { return };
        let fd = self.stream.to_shared_fd();
        // A disconnected peer is an error of this call, not a signal.
        let flags = SendFlags::NOSIGNAL;
        self.op = Some(if chain.as_slice().is_some() {
            SendOp::Piece(compio::runtime::submit(Send::new(fd, SocketPiece(chain), flags)))
        } else {
            SendOp::Pieces(compio::runtime::submit(SendVectored::new(fd, SocketPieces(chain), flags)))
        });
    }

    fn start_shut(&mut self) {
        let mut stream = self.stream.clone();
        self.op = Some(SendOp::Shut(Box::pin(async move { stream.shutdown().await })));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<SendResult> {
        let left = match &mut self.op {
            None => return Poll::Pending,
            Some(SendOp::Piece(op)) => {
                let BufResult(result, op) = ready!(Pin::new(op).poll(cx));
                SendResult::Sent(Some(op.into_inner().0), result)
            }
            Some(SendOp::Pieces(op)) => {
                let BufResult(result, op) = ready!(Pin::new(op).poll(cx));
                SendResult::Sent(Some(op.into_inner().0), result)
            }
            Some(SendOp::Shut(op)) => SendResult::Shut(ready!(op.as_mut().poll(cx))),
        };
        self.op = None;
        Poll::Ready(left)
    }
}
