//! Transports that can be split.

use std::marker::PhantomData;

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};

/// Splits a stream into a receiving and a sending side.
///
/// Sockets need no lock. TLS streams, and [`Stream`](super::super::Stream) and `Upgraded` where they are not plain
/// TCP, have sides that share a lock. For any other stream use [`Locked`], by
/// [`WebSocket::split_locked`](crate::WebSocket::split_locked).
#[diagnostic::on_unimplemented(
    message = "`split` does not support `{Self}`",
    label = "this stream does not implement `sinews::tokio::Split`",
    note = "call `split_locked()` instead: it splits any stream, and its halves move to other tasks where the stream is `Send`",
    note = "or implement `sinews::tokio::Split` for the stream, if its sides can do without a lock"
)]
pub trait Split {
    /// The whole stream.
    type Stream: AsyncRead + AsyncWrite + Unpin;
    /// The receiving side.
    type Read: AsyncRead + Unpin;
    /// The sending side. Dropping it must not end anything: shutting it down does that.
    type Write: AsyncWrite + Unpin;

    /// Splits the stream.
    fn split(stream: Self::Stream) -> (Self::Read, Self::Write);

    /// Joins the sides again. Only called with sides of one stream.
    fn reunite(read: Self::Read, write: Self::Write) -> Self::Stream;
}

/// Any stream, split by [`tokio::io::split`]: both sides share a lock, which each holds while it is polled. For
/// streams whose sides share a state anyway, such as TLS.
#[derive(Debug)]
pub struct Locked<S>(PhantomData<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> Split for Locked<S> {
    type Stream = S;
    type Read = tokio::io::ReadHalf<S>;
    type Write = tokio::io::WriteHalf<S>;

    fn split(stream: S) -> (Self::Read, Self::Write) {
        tokio::io::split(stream)
    }

    fn reunite(read: Self::Read, write: Self::Write) -> S {
        read.unsplit(write)
    }
}

/// Defines the split of streams whose sides share a lock.
macro_rules! locked {
    ($(#[$attr:meta])* impl[$($param:ident)?] $stream:ty) => {
        $(#[$attr])*
        impl $(<$param: AsyncRead + AsyncWrite + Unpin>)? Split for $stream {
            type Stream = Self;
            type Read = tokio::io::ReadHalf<Self>;
            type Write = tokio::io::WriteHalf<Self>;

            fn split(stream: Self) -> (Self::Read, Self::Write) {
                tokio::io::split(stream)
            }

            fn reunite(read: Self::Read, write: Self::Write) -> Self {
                read.unsplit(write)
            }
        }
    };
}

locked!(impl[] DuplexStream);
locked!(
    #[cfg(feature = "tokio-rustls")]
    impl[S] tokio_rustls::client::TlsStream<S>
);
locked!(
    #[cfg(feature = "tokio-rustls")]
    impl[S] tokio_rustls::server::TlsStream<S>
);
locked!(
    #[cfg(feature = "tokio-rustls")]
    impl[S] tokio_rustls::TlsStream<S>
);
locked!(
    #[cfg(feature = "native-tls")]
    impl[S] tokio_native_tls::TlsStream<S>
);
locked!(
    #[cfg(feature = "hyper")]
    impl[] hyper_util::rt::TokioIo<hyper::upgrade::Upgraded>
);

/// Defines the split of a socket, whose sides need no lock.
macro_rules! socket {
    ($module:ident, $stream:ident) => {
        impl Split for tokio::net::$stream {
            type Stream = Self;
            type Read = tokio::net::$module::OwnedReadHalf;
            type Write = tokio::net::$module::OwnedWriteHalf;

            fn split(stream: Self) -> (Self::Read, Self::Write) {
                stream.into_split()
            }

            fn reunite(read: Self::Read, write: Self::Write) -> Self {
                read.reunite(write).expect("both are sides of one stream")
            }
        }
    };
}

socket!(tcp, TcpStream);
#[cfg(unix)]
socket!(unix, UnixStream);
