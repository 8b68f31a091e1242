//! The transport of a client's connection.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The transport of a client: TCP, or TLS over TCP.
#[derive(Debug)]
#[non_exhaustive]
pub enum Stream {
    /// `ws`.
    Plain(TcpStream),
    /// `wss` by rustls.
    #[cfg(feature = "tokio-rustls")]
    Rustls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
    /// `wss` by the library of the platform.
    #[cfg(feature = "native-tls")]
    NativeTls(Box<tokio_native_tls::TlsStream<TcpStream>>),
}

impl Stream {
    /// The socket: for addresses and options.
    #[must_use]
    pub fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(tcp) => tcp,
            #[cfg(feature = "tokio-rustls")]
            Self::Rustls(tls) => tls.get_ref().0,
            #[cfg(feature = "native-tls")]
            Self::NativeTls(tls) => tls.get_ref().get_ref().get_ref(),
        }
    }

    /// Whether the connection is encrypted.
    #[must_use]
    pub const fn is_tls(&self) -> bool {
        !matches!(self, Self::Plain(_))
    }
}

impl super::MaybeTcp for Stream {
    fn into_tcp(self) -> Result<TcpStream, Self> {
        match self {
            Self::Plain(tcp) => Ok(tcp),
            #[cfg(any(feature = "tokio-rustls", feature = "native-tls"))]
            tls => Err(tls),
        }
    }

    fn from_tcp(stream: TcpStream) -> Self {
        Self::Plain(stream)
    }
}

super::split_maybe_tcp!(Stream);

/// Forwards a call to the variant.
macro_rules! forward {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream {
            Stream::Plain($inner) => $call,
            #[cfg(feature = "tokio-rustls")]
            Stream::Rustls($inner) => $call,
            #[cfg(feature = "native-tls")]
            Stream::NativeTls($inner) => $call,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        forward!(self.get_mut(), inner => Pin::new(inner).poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        forward!(self.get_mut(), inner => Pin::new(inner).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        forward!(self.get_mut(), inner => Pin::new(inner).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        forward!(self, inner => inner.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self.get_mut(), inner => Pin::new(inner).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self.get_mut(), inner => Pin::new(inner).poll_shutdown(cx))
    }
}
