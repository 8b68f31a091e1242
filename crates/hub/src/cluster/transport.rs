//! The connection to a broker: plain TCP, or TLS on it. Nonblocking.

use std::io::{self, Read, Write};
use std::net::ToSocketAddrs;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use mio::net::TcpStream;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// A connection.
pub(super) enum BrokerTransport {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
    /// While TLS starts.
    Closed,
}

impl BrokerTransport {
    /// Starts to connect to an address of the hosts: the next one with each attempt.
    ///
    /// # Errors
    /// No host has an address, or no socket can be opened.
    pub(super) fn connect(hosts: &[String], attempt: usize) -> Result<(Self, String), String> {
        let mut problem = "no host".to_owned();
        let mut found = Vec::new();
        for host in hosts {
            match host.to_socket_addrs() {
                Ok(addresses) => found.extend(addresses.map(|address| (host, address))),
                Err(error) => problem = format!("{host}: {error}"),
            }
        }
        let Some((host, address)) = found.get(attempt.checked_rem(found.len()).unwrap_or(0)) else {
            return Err(problem);
        };
        let stream = TcpStream::connect(*address).map_err(|error| format!("{host}: {error}"))?;
        Ok((Self::Plain(stream), (*host).clone()))
    }

    /// Whether the connection is established; `false` while it is not.
    ///
    /// # Errors
    /// The connection has failed.
    pub(super) fn is_connected(&self) -> io::Result<bool> {
        let Self::Plain(stream) = self else { return Ok(true) };
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
        match stream.peer_addr() {
            Ok(_) => {
                // Without it, only the latency is larger.
                let _ = stream.set_nodelay(true);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Starts TLS with a host, with the certificate authorities of the system.
    ///
    /// # Errors
    /// The host is no name for TLS.
    pub(super) fn start_tls(&mut self, host: &str) -> Result<(), String> {
        let Self::Plain(stream) = std::mem::replace(self, Self::Closed) else {
            return Err("TLS has started already".to_owned());
        };
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        let name = name.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(name).map_err(|error| format!("{host}: {error}"))?;
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let config = config.with_root_certificates(roots).with_no_client_auth();
        let session = ClientConnection::new(Arc::new(config), name).map_err(|error| error.to_string())?;
        *self = Self::Tls(Box::new(StreamOwned::new(session, stream)));
        Ok(())
    }

    pub(super) fn has_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Whether bytes that were written wait in the buffer of TLS for the socket.
    pub(super) fn has_output(&self) -> bool {
        matches!(self, Self::Tls(stream) if stream.conn.wants_write())
    }

    /// A second handle of the socket, on which whole commands can be written: none with TLS.
    pub(super) fn second_handle(&self) -> Option<std::net::TcpStream> {
        let Self::Plain(stream) = self else { return None };
        // Without it, all commands take the way through the link's thread.
        stream.as_fd().try_clone_to_owned().ok().map(std::net::TcpStream::from)
    }

    /// The socket, to wait for it.
    pub(super) fn socket(&mut self) -> Option<&mut TcpStream> {
        match self {
            Self::Plain(stream) => Some(stream),
            Self::Tls(stream) => Some(&mut stream.sock),
            Self::Closed => None,
        }
    }
}

impl Read for BrokerTransport {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
            Self::Closed => Ok(0),
        }
    }
}

impl Write for BrokerTransport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            // Its buffer is full: more is written when the socket accepts it.
            Self::Tls(stream) => match stream.write(bytes) {
                Ok(0) => Err(io::ErrorKind::WouldBlock.into()),
                written => written,
            },
            Self::Closed => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) | Self::Closed => Ok(()),
            Self::Tls(stream) => stream.flush(),
        }
    }
}
