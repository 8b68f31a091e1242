//! Sides of streams that are a socket, or wrap a socket.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// The receiving side of a stream that is plain TCP or wraps it, such as TLS.
///
/// TCP has sides without a lock. The sides of any other stream share a lock, which each holds while it is polled.
pub struct ReadSide<S>(StreamSide<OwnedReadHalf, tokio::io::ReadHalf<S>>);

/// The sending side of a stream that is plain TCP or wraps it; see [`ReadSide`].
pub struct WriteSide<S>(StreamSide<OwnedWriteHalf, tokio::io::WriteHalf<S>>);

#[derive(Debug)]
enum StreamSide<T, L> {
    Tcp(T),
    Locked(L),
}

/// A stream that may be plain TCP.
pub(crate) trait MaybeTcp: AsyncRead + AsyncWrite + Unpin + Sized {
    /// The socket, if the stream is plain TCP.
    fn into_tcp(self) -> Result<TcpStream, Self>;

    fn from_tcp(stream: TcpStream) -> Self;
}

pub(crate) fn split_sides<S: MaybeTcp>(stream: S) -> (ReadSide<S>, WriteSide<S>) {
    match stream.into_tcp() {
        Ok(tcp) => {
            let (read, write) = tcp.into_split();
            (ReadSide(StreamSide::Tcp(read)), WriteSide(StreamSide::Tcp(write)))
        }
        Err(stream) => {
            let (read, write) = tokio::io::split(stream);
            (ReadSide(StreamSide::Locked(read)), WriteSide(StreamSide::Locked(write)))
        }
    }
}

/// Only called with sides of one stream.
pub(crate) fn reunite_sides<S: MaybeTcp>(read: ReadSide<S>, write: WriteSide<S>) -> S {
    match (read.0, write.0) {
        (StreamSide::Tcp(read), StreamSide::Tcp(write)) => {
            S::from_tcp(read.reunite(write).expect("both are sides of one stream"))
        }
        (StreamSide::Locked(read), StreamSide::Locked(write)) => read.unsplit(write),
        _ => unreachable!("both are sides of one stream"),
    }
}

/// Forwards a call to the variant.
macro_rules! forward {
    ($side:expr, $io:ident => $call:expr) => {
        match $side {
            StreamSide::Tcp($io) => $call,
            StreamSide::Locked($io) => $call,
        }
    };
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadSide<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        forward!(&mut self.get_mut().0, io => Pin::new(io).poll_read(cx, buf))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteSide<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        forward!(&mut self.get_mut().0, io => Pin::new(io).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        forward!(&mut self.get_mut().0, io => Pin::new(io).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        forward!(&self.0, io => io.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(&mut self.get_mut().0, io => Pin::new(io).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(&mut self.get_mut().0, io => Pin::new(io).poll_shutdown(cx))
    }
}

impl<S> fmt::Debug for ReadSide<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadSide").field("is_tcp", &matches!(self.0, StreamSide::Tcp(_))).finish()
    }
}

impl<S> fmt::Debug for WriteSide<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteSide").field("is_tcp", &matches!(self.0, StreamSide::Tcp(_))).finish()
    }
}

/// Defines the split of a stream that is plain TCP or wraps it.
macro_rules! split_maybe_tcp {
    ($stream:ty) => {
        impl $crate::tokio::Split for $stream {
            type Stream = Self;
            type Read = $crate::tokio::ReadSide<Self>;
            type Write = $crate::tokio::WriteSide<Self>;

            fn split(stream: Self) -> (Self::Read, Self::Write) {
                $crate::tokio::split_sides(stream)
            }

            fn reunite(read: Self::Read, write: Self::Write) -> Self {
                $crate::tokio::reunite_sides(read, write)
            }
        }
    };
}

pub(crate) use split_maybe_tcp;
