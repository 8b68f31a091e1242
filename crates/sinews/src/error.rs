//! The errors of the library as one type, and the side at fault.

use std::{fmt, io};

#[cfg(feature = "deflate")]
use sinews_proto::deflate::InvalidDeflateConfig;
use sinews_proto::handshake::HandshakeMisuse;
use sinews_proto::{CloseCode, InvalidCloseCode, InvalidConfig, Misuse};
use sinews_session::{Cause, Closed};
use sinews_simd::Utf8Error;

#[cfg(all(feature = "url-connect", any(feature = "tokio", feature = "compio", feature = "blocking")))]
use crate::tls::TlsError;
#[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
use crate::{AcceptError, ConnectError, HandshakeError};

/// An error of any call of this library: it ends a connection, prevents one, or rejects a call.
///
/// The calls of a connection return it. `?` converts the errors of handshakes, settings, [`Tls`](crate::Tls) and
/// [`Sender`](crate::Sender) into it, so that one function may connect, accept, send and receive:
///
/// ```
/// # #[cfg(all(feature = "tokio", feature = "url-connect"))]
/// async fn relay(stream: tokio::net::TcpStream) -> sinews::Result<()> {
///     let mut client = sinews::accept(stream).await?;
///     let mut server = sinews::connect("ws://localhost:9001/").await?;
///     while let Some(message) = client.next_data().await {
///         server.send(message?).await?;
///     }
///     Ok(())
/// }
/// ```
///
/// It displays as the converted error, and has the same source.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The connection has ended. [`Closed::cause`] tells why: a Close of either side, a peer that violated the
    /// protocol or a limit, a timeout, or a transport that ended without a Close.
    Closed(Closed),
    /// The call is not possible: nothing was sent, and the connection stays open.
    Misuse(Misuse),
    /// The transport failed. The kind [`WouldBlock`](io::ErrorKind::WouldBlock) comes only from streams that are
    /// nonblocking or block with a timeout: the call was not completed in time, and the connection stays open.
    Io(io::Error),
    /// A client did not connect.
    #[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
    Connect(Box<ConnectError>),
    /// A server did not accept a request.
    #[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
    Accept(Box<AcceptError>),
    /// The default of TLS is not available ([`Tls::new`](crate::Tls::new)). TLS of a connection attempt fails with
    /// [`Connect`](Self::Connect).
    #[cfg(all(feature = "url-connect", any(feature = "tokio", feature = "compio", feature = "blocking")))]
    Tls(TlsError),
    /// Binary data was read as text, and is not UTF-8 ([`Message::to_text`](crate::Message::to_text)). A received text
    /// message that is not UTF-8 ends the connection with [`Closed`](Self::Closed).
    Utf8(Utf8Error),
    /// A [`Config`](crate::Config) is invalid ([`Config::check`](crate::Config::check)).
    Config(InvalidConfig),
    /// A number is not a close code ([`CloseCode::try_from`]).
    CloseCode(InvalidCloseCode),
    /// A header, subprotocol, origin or status is not valid on the wire.
    Handshake(HandshakeMisuse),
    /// A setting of [`DeflateConfig`](crate::DeflateConfig) is invalid.
    #[cfg(feature = "deflate")]
    Deflate(InvalidDeflateConfig),
}

/// A result with the [`Error`] of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The side that must act on an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AtFault {
    /// The peer violated the protocol or a limit, or was too slow.
    Peer,
    /// The caller of this library: [`Misuse`], or a send on a connection that this side has closed.
    Caller,
    /// The network failed, or the peer's process ended.
    Transport,
    /// No side: the peer sent a Close, with any code.
    Nobody,
}

impl Error {
    /// The side that must act.
    #[must_use]
    pub fn at_fault(&self) -> AtFault {
        match self {
            Self::Closed(closed) => match closed.cause() {
                Cause::Fault(_) | Cause::Expired(_) | Cause::Overflow => AtFault::Peer,
                Cause::Local => AtFault::Caller,
                Cause::Ended => AtFault::Transport,
                _ => AtFault::Nobody,
            },
            Self::Io(_) => AtFault::Transport,
            #[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
            Self::Connect(error) => error.at_fault(),
            #[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
            Self::Accept(error) => error.at_fault(),
            Self::Utf8(_) => AtFault::Peer,
            _ => AtFault::Caller,
        }
    }

    /// The code of the Close frame that ended the connection: the peer's or, where the peer was at fault, ours.
    #[must_use]
    pub fn close_code(&self) -> Option<CloseCode> {
        match self {
            Self::Closed(closed) => closed.code(),
            _ => None,
        }
    }

    /// Whether there is no connection any more: it has ended, or the handshake failed. An open connection stays open
    /// after [`Misuse`], after invalid settings and text, and where the transport [would
    /// block](io::ErrorKind::WouldBlock).
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Closed(_) => true,
            Self::Io(error) => error.kind() != io::ErrorKind::WouldBlock,
            #[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
            Self::Connect(_) | Self::Accept(_) => true,
            _ => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(closed) => closed.fmt(f),
            Self::Misuse(misuse) => misuse.fmt(f),
            Self::Io(error) => write!(f, "transport: {error}"),
            #[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
            Self::Connect(error) => error.fmt(f),
            #[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
            Self::Accept(error) => error.fmt(f),
            #[cfg(all(
                feature = "url-connect",
                any(feature = "tokio", feature = "compio", feature = "blocking")
            ))]
            Self::Tls(error) => error.fmt(f),
            Self::Utf8(error) => error.fmt(f),
            Self::Config(error) => error.fmt(f),
            Self::CloseCode(error) => error.fmt(f),
            Self::Handshake(misuse) => misuse.fmt(f),
            #[cfg(feature = "deflate")]
            Self::Deflate(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    /// The source behind the error that [`Display`](fmt::Display) already includes, so that a report shows each error
    /// once.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => error.source(),
            #[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
            Self::Connect(error) => error.source(),
            #[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
            Self::Accept(error) => error.source(),
            #[cfg(all(
                feature = "url-connect",
                any(feature = "tokio", feature = "compio", feature = "blocking")
            ))]
            Self::Tls(error) => error.source(),
            _ => None,
        }
    }
}

/// Converts an error of the library by `?`, into the variant of this name.
macro_rules! from {
    ($($(#[$gate:meta])* $error:ty => $variant:ident;)*) => {
        $(
            $(#[$gate])*
            impl From<$error> for Error {
                fn from(error: $error) -> Self {
                    Self::$variant(error.into())
                }
            }
        )*
    };
}

from! {
    Misuse => Misuse;
    io::Error => Io;
    #[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
    ConnectError => Connect;
    #[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
    AcceptError => Accept;
    #[cfg(all(feature = "url-connect", any(feature = "tokio", feature = "compio", feature = "blocking")))]
    TlsError => Tls;
    Utf8Error => Utf8;
    InvalidConfig => Config;
    InvalidCloseCode => CloseCode;
    HandshakeMisuse => Handshake;
    #[cfg(feature = "deflate")]
    InvalidDeflateConfig => Deflate;
}

#[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
impl From<HandshakeError> for Error {
    fn from(error: HandshakeError) -> Self {
        match error {
            HandshakeError::Accept(error) => error.into(),
            HandshakeError::Connect(error) => error.into(),
        }
    }
}

/// Without the message. A queue that is full is [`Misuse::QueueFull`]; an end that is not known is
/// [`Misuse::Closing`].
#[cfg(any(feature = "tokio", feature = "compio"))]
impl From<crate::SendError> for Error {
    fn from(error: crate::SendError) -> Self {
        if let Some(closed) = error.closed() {
            return Self::Closed(closed.clone());
        }
        let unsent = if error.is_full() { Misuse::QueueFull } else { Misuse::Closing };
        Self::Misuse(error.misuse().unwrap_or(unsent))
    }
}
