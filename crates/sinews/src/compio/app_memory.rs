//! The application's memory, of any type, during an operation of the kernel.

use std::any::Any;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use compio::buf::{BufResult, IntoInner as _, IoBufMut};
use compio::io::AsyncRead as _;
use compio::net::{TcpStream, UnixStream};

/// Memory of a call, of any type.
pub(crate) trait AppMemory: Any {
    fn bytes(&self) -> &[u8];

    fn bytes_mut(&mut self) -> &mut [u8];

    /// Copies bytes to an offset. They fit.
    fn put(self: Box<Self>, at: usize, bytes: &[u8]) -> Box<dyn AppMemory>;

    /// Passes the memory to the kernel to receive at an offset, at most `most` bytes.
    fn receive(self: Box<Self>, from: AnySocket, at: usize, most: usize) -> AppReceive;
}

/// A receive into the memory, with its result.
pub(crate) type AppReceive = Pin<Box<dyn Future<Output = (io::Result<usize>, Box<dyn AppMemory>)>>>;

/// The socket that it receives from.
#[allow(unnameable_types, reason = "a bound of the other side of a sealed trait")]
pub enum AnySocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl From<TcpStream> for AnySocket {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

impl From<UnixStream> for AnySocket {
    fn from(stream: UnixStream) -> Self {
        Self::Unix(stream)
    }
}

impl<B: IoBufMut> AppMemory for B {
    fn bytes(&self) -> &[u8] {
        self.as_init()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }

    fn put(mut self: Box<Self>, at: usize, mut bytes: &[u8]) -> Box<dyn AppMemory> {
        if let Some(there) = self.as_mut_slice().get_mut(at..at + bytes.len()) {
            there.copy_from_slice(bytes);
            return self;
        }
        // A byte slice is a reader that never waits, and it can mark memory as initialized.
        let copying = pin!(bytes.read((*self).slice(at..)));
        match copying.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(BufResult(_, slice)) => Box::new(slice.into_inner()),
            Poll::Pending => unreachable!("reading from a byte slice never waits"),
        }
    }

    fn receive(self: Box<Self>, from: AnySocket, at: usize, most: usize) -> AppReceive {
        Box::pin(async move {
            let slice = (*self).slice(at..at + most);
            let BufResult(result, slice) = match from {
                AnySocket::Tcp(mut stream) => stream.read(slice).await,
                AnySocket::Unix(mut stream) => stream.read(slice).await,
            };
            let memory: Box<dyn AppMemory> = Box::new(slice.into_inner());
            (result, memory)
        })
    }
}
