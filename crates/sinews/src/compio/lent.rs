//! The application's memory that a message is received into. It belongs to the connection and to no future, so that a
//! dropped call loses nothing: the next call continues in the same memory, and copies at the end.

use std::any::Any;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};

use compio::buf::{BufResult, IntoInner as _, IoBufMut};
use compio::io::AsyncRead as _;
use compio::net::{TcpStream, UnixStream};

use super::drive::Drive;
use super::transport::Transport;
use super::websocket::WebSocket;
use crate::driver::Driver as _;
use crate::error::Error;
use crate::message::{Filled, MessageHead};
use crate::reading::Target;

/// Least remaining payload that justifies a separate receive: a shorter payload is received with the input behind it.
pub(super) const DIRECT_MIN: usize = 16 << 10;

/// Memory of a call, of any type.
pub(crate) trait Memory: Any {
    fn bytes(&self) -> &[u8];

    fn bytes_mut(&mut self) -> &mut [u8];

    /// Copies bytes to an offset. They fit.
    fn put(self: Box<Self>, at: usize, bytes: &[u8]) -> Box<dyn Memory>;

    /// Passes the memory to the kernel to receive at an offset, at most `most` bytes.
    fn receive(self: Box<Self>, from: Socket, at: usize, most: usize) -> Receiving;
}

/// A receive into the memory, with its result.
pub(crate) type Receiving = Pin<Box<dyn Future<Output = (io::Result<usize>, Box<dyn Memory>)>>>;

/// The socket that it receives from.
#[allow(unnameable_types, reason = "a bound of the other side of a sealed trait")]
pub enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl From<TcpStream> for Socket {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

impl From<UnixStream> for Socket {
    fn from(stream: UnixStream) -> Self {
        Self::Unix(stream)
    }
}

impl<B: IoBufMut> Memory for B {
    fn bytes(&self) -> &[u8] {
        self.as_init()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }

    fn put(mut self: Box<Self>, at: usize, mut bytes: &[u8]) -> Box<dyn Memory> {
        if let Some(there) = self.as_mut_slice().get_mut(at..at + bytes.len()) {
            there.copy_from_slice(bytes);
            return self;
        }
        // A byte slice is a reader that never waits, and it can mark memory as initialized.
        let copying = pin!(bytes.read((*self).slice(at..)));
        match copying.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(BufResult(_, slice)) => Box::new(slice.into_inner()),
            Poll::Pending => Box::new(Vec::new()),
        }
    }

    fn receive(self: Box<Self>, from: Socket, at: usize, most: usize) -> Receiving {
        Box::pin(async move {
            let slice = (*self).slice(at..at + most);
            let BufResult(result, slice) = match from {
                Socket::Tcp(mut stream) => stream.read(slice).await,
                Socket::Unix(mut stream) => stream.read(slice).await,
            };
            let memory: Box<dyn Memory> = Box::new(slice.into_inner());
            (result, memory)
        })
    }
}

/// Memory of a call, and its state.
#[derive(Default)]
pub(super) struct Lent {
    /// `None` while the kernel has it.
    pub(super) memory: Option<Box<dyn Memory>>,
    pub(super) capacity: usize,
    /// Offset from which the transport may receive.
    pub(super) at: usize,
    /// A message that has begun is received into it. Before its head is known, nothing may be received directly.
    pub(super) begun: bool,
    /// The unprocessed result of a receive there: number of bytes, and whether they end the message.
    pub(super) piece: Option<(usize, bool)>,
}

impl Lent {
    fn new<B: IoBufMut>(mut buffer: B) -> Box<Self> {
        let capacity = buffer.buf_capacity();
        Box::new(Self { memory: Some(Box::new(buffer)), capacity, at: 0, begun: false, piece: None })
    }

    /// The memory in its original type; `None`: the kernel has it, or its type is another.
    fn into_buffer<B: IoBufMut>(self) -> Option<B> {
        let memory: Box<dyn Any> = self.memory?;
        memory.downcast().ok().map(|buffer| *buffer)
    }

    fn filled(&self, len: usize) -> &[u8] {
        let bytes = self.memory.as_ref().map_or(&[][..], |memory| (**memory).bytes());
        &bytes[..len.min(bytes.len())]
    }
}

impl Target for Box<Lent> {
    fn capacity(&mut self) -> usize {
        self.capacity
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.memory = self.memory.take().map(|memory| memory.put(at, bytes));
        }
    }

    /// The operation has to own the memory.
    fn behind(&mut self, _: usize) -> &mut [u8] {
        &mut []
    }

    fn take_piece(&mut self) -> Option<(usize, bool)> {
        self.piece.take()
    }
}

impl<S: Transport> WebSocket<S> {
    /// The head of the next message. Bytes that a dropped call has received count too.
    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<MessageHead, Error>>> {
        let elsewhere = |drive: &mut Drive<S>| drive.lent.as_ref().and_then(|lent| lent.piece);
        let head = self.filling.poll_head(&mut self.drive, cx, elsewhere, Drive::poll_step);
        head.map(|head| match head {
            Some(head) => Some(Ok(head)),
            None => {
                self.leave_filling();
                self.drive.link().last_words().map(Err)
            }
        })
    }

    /// Receives into the memory of this call, or into that of an earlier, dropped call.
    pub(super) fn poll_into<B: IoBufMut>(
        &mut self,
        cx: &mut Context<'_>,
        own: &mut Option<B>,
    ) -> Poll<(Option<Result<Filled, Error>>, B)> {
        loop {
            if self.drive.lent.is_none() {
                self.drive.lent = own.take().map(Lent::new);
            }
            let filled = ready!(self.poll_lent(cx));
            ready!(self.drive.poll_home(cx));
            let lent = self.drive.lent.take();
            let (filled, buffer) = match own.take() {
                None => (
                    filled,
                    lent.and_then(|lent| lent.into_buffer()).expect("this call has stored its buffer"),
                ),
                Some(buffer) => match self.hand_over(filled, lent, buffer) {
                    Ok(done) => done,
                    Err(more) => {
                        self.drive.lent = Some(more);
                        continue;
                    }
                },
            };
            let received = match filled {
                Some(filled) => Some(Ok(filled)),
                None => {
                    self.leave_filling();
                    self.drive.link().last_words().map(Err)
                }
            };
            return Poll::Ready((received, buffer));
        }
    }

    fn poll_lent(&mut self, cx: &mut Context<'_>) -> Poll<Option<Filled>> {
        let Some(mut lent) = self.drive.lent.take() else { return Poll::Ready(None) };
        let polled = self.filling.poll_step(&mut self.drive, cx, &mut lent, |drive, cx, lent, offered| {
            let Some(at) = offered else { return drive.poll_step(cx) };
            (lent.at, lent.begun) = (at, true);
            drive.lent = Some(std::mem::take(lent));
            let polled = drive.poll_step(cx);
            *lent = drive.lent.take().unwrap_or_default();
            polled
        });
        self.drive.lent = Some(lent);
        polled
    }

    /// Moves bytes received into the memory of an earlier call to this call's memory. `Err`: there is capacity left,
    /// and the receive continues there.
    fn hand_over<B: IoBufMut>(
        &mut self,
        filled: Option<Filled>,
        lent: Option<Box<Lent>>,
        buffer: B,
    ) -> Result<(Option<Filled>, B), Box<Lent>> {
        let (Some(mut filled), Some(lent)) = (filled, lent) else { return Ok((None, buffer)) };
        let mut target = Lent::new(buffer);
        let (here, rest) = lent.filled(filled.len).split_at(filled.len.min(target.capacity));
        target.put(0, here);
        if !rest.is_empty() {
            self.filling.give_back(rest, &filled);
            (filled.len, filled.last) = (here.len(), false);
        } else if !filled.last && here.len() < target.capacity {
            self.filling.resume(here.len());
            return Err(target);
        }
        Ok((Some(filled), target.into_buffer().expect("the buffer was stored just now")))
    }

    /// A receiver into its own memory discards the rest of the message.
    pub(super) fn leave_filling(&mut self) {
        if let Some(lent) = self.drive.lent.take()
            && let Some((_, true)) = lent.piece
        {
            self.filling.ended();
        }
        self.filling.leave(self.drive.link());
    }
}
