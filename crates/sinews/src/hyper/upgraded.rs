//! The transport of a request that hyper has read.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A connection taken over from hyper.
///
/// hyper returns it as a trait object. A [`TcpStream`] is extracted, so that its reads and writes are direct calls; a
/// stream of another kind, TLS or HTTP/2, stays a trait object. It is found if it was passed to hyper in a
/// [`TokioIo`], as `axum::serve`, [`auto::Builder`] and hyper's own examples do.
#[derive(Debug)]
pub struct Upgraded(UpgradedIo);

#[derive(Debug)]
enum UpgradedIo {
    Tcp(TcpStream),
    Other(TokioIo<hyper::upgrade::Upgraded>),
}

impl Upgraded {
    /// The transport, and the bytes that hyper has read of it already.
    pub(super) fn new(upgraded: hyper::upgrade::Upgraded) -> (Self, Bytes) {
        let upgraded = match upgraded.downcast::<TokioIo<TcpStream>>() {
            Ok(parts) => return (Self::tcp_of(parts.io), parts.read_buf),
            Err(upgraded) => upgraded,
        };
        match auto::upgrade::downcast::<TokioIo<TcpStream>>(upgraded) {
            Ok(parts) => (Self::tcp_of(parts.io), parts.read_buf),
            Err(upgraded) => (Self(UpgradedIo::Other(TokioIo::new(upgraded))), Bytes::new()),
        }
    }

    /// Nagle's algorithm is disabled: this library coalesces writes itself.
    fn tcp_of(io: TokioIo<TcpStream>) -> Self {
        let stream = io.into_inner();
        // The socket may have failed already; the first read then returns the error.
        let _ = stream.set_nodelay(true);
        Self(UpgradedIo::Tcp(stream))
    }

    /// The TCP stream, if the transport is plain TCP: for its addresses and options. `TCP_NODELAY` is set.
    #[must_use]
    pub fn tcp(&self) -> Option<&TcpStream> {
        match &self.0 {
            UpgradedIo::Tcp(stream) => Some(stream),
            UpgradedIo::Other(_) => None,
        }
    }
}

impl crate::tokio::MaybeTcp for Upgraded {
    fn into_tcp(self) -> Result<TcpStream, Self> {
        match self.0 {
            UpgradedIo::Tcp(stream) => Ok(stream),
            other @ UpgradedIo::Other(_) => Err(Self(other)),
        }
    }

    fn from_tcp(stream: TcpStream) -> Self {
        Self(UpgradedIo::Tcp(stream))
    }
}

crate::tokio::split_maybe_tcp!(Upgraded);

/// Calls a method of the variant.
macro_rules! delegate {
    ($self:ident, $io:ident => $call:expr) => {
        match &mut $self.get_mut().0 {
            UpgradedIo::Tcp(io) => {
                let $io = Pin::new(io);
                $call
            }
            UpgradedIo::Other(io) => {
                let $io = Pin::new(io);
                $call
            }
        }
    };
}

impl AsyncRead for Upgraded {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        delegate!(self, io => io.poll_read(cx, buf))
    }
}

impl AsyncWrite for Upgraded {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        delegate!(self, io => io.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        delegate!(self, io => io.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.0 {
            UpgradedIo::Tcp(io) => io.is_write_vectored(),
            UpgradedIo::Other(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, io => io.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, io => io.poll_shutdown(cx))
    }
}
