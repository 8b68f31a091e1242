//! The transport of a client's connection, and its TLS.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

#[cfg(any(feature = "rustls", feature = "native-tls"))]
use super::wait::within;
use crate::client::exchange::WaitError;
#[cfg(any(feature = "rustls", feature = "native-tls"))]
use crate::tls::TlsLibrary;
use crate::tls::{Tls, TlsError};

/// The transport of a client: TCP, or TLS over TCP.
#[derive(Debug)]
#[non_exhaustive]
pub enum Stream {
    /// `ws`.
    Plain(TcpStream),
    /// `wss` by rustls.
    #[cfg(feature = "rustls")]
    Rustls(Box<rustls::StreamOwned<rustls::ClientConnection, TcpStream>>),
    /// `wss` by the library of the platform.
    #[cfg(feature = "native-tls")]
    NativeTls(Box<native_tls::TlsStream<TcpStream>>),
}

impl Stream {
    /// The socket: for addresses, options and [timeouts](crate::blocking#time).
    #[must_use]
    pub fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(tcp) => tcp,
            #[cfg(feature = "rustls")]
            Self::Rustls(tls) => &tls.sock,
            #[cfg(feature = "native-tls")]
            Self::NativeTls(tls) => tls.get_ref(),
        }
    }

    /// Whether the connection is encrypted.
    #[must_use]
    pub const fn is_tls(&self) -> bool {
        !matches!(self, Self::Plain(_))
    }

    /// Ends the sending side: over TLS by `close_notify` (RFC 8446 section 6.1), then that of TCP.
    ///
    /// # Errors
    /// The error of the socket.
    pub fn shutdown(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => {}
            #[cfg(feature = "rustls")]
            Self::Rustls(tls) => {
                tls.conn.send_close_notify();
                tls.flush()?;
            }
            #[cfg(feature = "native-tls")]
            Self::NativeTls(tls) => tls.shutdown()?,
        }
        self.tcp().shutdown(Shutdown::Write)
    }

    /// Bounds the next read or write.
    pub(super) fn bound(&mut self, left: Option<Duration>) -> io::Result<()> {
        bound(self.tcp(), left)
    }
}

/// Forwards a call to the variant.
macro_rules! forward {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream {
            Stream::Plain($inner) => $call,
            #[cfg(feature = "rustls")]
            Stream::Rustls($inner) => $call,
            #[cfg(feature = "native-tls")]
            Stream::NativeTls($inner) => $call,
        }
    };
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        forward!(self, inner => inner.read(buf))
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        forward!(self, inner => inner.write(buf))
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        forward!(self, inner => inner.write_vectored(bufs))
    }

    fn flush(&mut self) -> io::Result<()> {
        forward!(self, inner => inner.flush())
    }
}

/// Bounds the next read or write.
pub(super) fn bound(tcp: &TcpStream, left: Option<Duration>) -> io::Result<()> {
    tcp.set_read_timeout(left)?;
    tcp.set_write_timeout(left)
}

/// The TLS handshake of a client.
///
/// # Errors
/// [`WaitError::TimedOut`]. Errors of the socket are errors of TLS.
#[cfg_attr(
    not(any(feature = "rustls", feature = "native-tls")),
    allow(unused_variables, reason = "without a TLS library no `Tls` exists")
)]
pub(super) fn secure(
    tls: Tls,
    tcp: TcpStream,
    host: &str,
    until: Option<Instant>,
) -> Result<Result<Stream, TlsError>, WaitError> {
    let secured = match tls.0 {
        #[cfg(feature = "rustls")]
        TlsLibrary::Rustls(config) => secure_by_rustls(config, tcp, host, until),
        #[cfg(all(feature = "http2-client", feature = "tokio-rustls"))]
        TlsLibrary::Http2(_) => return Ok(Err(TlsError::Unavailable)),
        #[cfg(feature = "native-tls")]
        TlsLibrary::Native(connector) => secure_by_platform(&connector, tcp, host, until),
    };
    #[cfg(any(feature = "rustls", feature = "native-tls"))]
    match secured {
        Ok(stream) => Ok(Ok(stream)),
        Err(SecureError::Tls(error)) => Ok(Err(error)),
        Err(SecureError::Wait(WaitError::Io(error))) => Ok(Err(TlsError::Handshake(error))),
        Err(SecureError::Wait(WaitError::TimedOut)) => Err(WaitError::TimedOut),
    }
}

/// Why a TLS handshake failed.
#[cfg(any(feature = "rustls", feature = "native-tls"))]
enum SecureError {
    Tls(TlsError),
    Wait(WaitError),
}

#[cfg(any(feature = "rustls", feature = "native-tls"))]
impl From<TlsError> for SecureError {
    fn from(error: TlsError) -> Self {
        Self::Tls(error)
    }
}

#[cfg(any(feature = "rustls", feature = "native-tls"))]
impl From<WaitError> for SecureError {
    fn from(error: WaitError) -> Self {
        Self::Wait(error)
    }
}

/// The deadline is checked before each read and write.
#[cfg(feature = "rustls")]
fn secure_by_rustls(
    config: std::sync::Arc<rustls::ClientConfig>,
    tcp: TcpStream,
    host: &str,
    until: Option<Instant>,
) -> Result<Stream, SecureError> {
    let name = rustls::pki_types::ServerName::try_from(host.to_owned()).map_err(|_| TlsError::Name)?;
    let connection = rustls::ClientConnection::new(config, name);
    let mut connection = connection.map_err(|error| TlsError::Setup(error.to_string()))?;
    while connection.is_handshaking() || connection.wants_write() {
        if connection.wants_write() {
            within(&mut &tcp, until, |tcp, left| bound(tcp, left), |tcp| connection.write_tls(tcp))?;
            continue;
        }
        if within(&mut &tcp, until, |tcp, left| bound(tcp, left), |tcp| connection.read_tls(tcp))? == 0 {
            return Err(TlsError::Handshake(io::ErrorKind::UnexpectedEof.into()).into());
        }
        if let Err(error) = connection.process_new_packets() {
            // The alert tells the server the reason. An error now changes nothing.
            let _ = within(&mut &tcp, until, |tcp, left| bound(tcp, left), |tcp| connection.write_tls(tcp));
            return Err(TlsError::Handshake(io::Error::new(io::ErrorKind::InvalidData, error)).into());
        }
    }
    crate::tls::check_alpn(connection.alpn_protocol())?;
    Ok(Stream::Rustls(Box::new(rustls::StreamOwned::new(connection, tcp))))
}

/// The socket is nonblocking during the handshake, so that the deadline is checked before each wait: the library reads
/// several times in one call.
#[cfg(feature = "native-tls")]
fn secure_by_platform(
    connector: &native_tls::TlsConnector,
    tcp: TcpStream,
    host: &str,
    until: Option<Instant>,
) -> Result<Stream, SecureError> {
    let failed = |error| TlsError::Handshake(io::Error::other(error));
    tcp.set_nonblocking(true).map_err(WaitError::Io)?;
    let mut shaken = connector.connect(host, tcp);
    loop {
        let interrupted = match shaken {
            Ok(stream) => {
                stream.get_ref().set_nonblocking(false).map_err(WaitError::Io)?;
                return Ok(Stream::NativeTls(Box::new(stream)));
            }
            Err(native_tls::HandshakeError::Failure(error)) => return Err(failed(error).into()),
            Err(native_tls::HandshakeError::WouldBlock(interrupted)) => interrupted,
        };
        let mut tcp = interrupted.get_ref();
        tcp.set_nonblocking(false).map_err(WaitError::Io)?;
        within(&mut tcp, until, |tcp, left| bound(tcp, left), |tcp| tcp.peek(&mut [0]))?;
        tcp.set_nonblocking(true).map_err(WaitError::Io)?;
        shaken = interrupted.handshake();
    }
}
