//! An endpoint's limits.

use std::fmt;
use std::time::Duration;

#[cfg(feature = "quinn")]
use quinn_proto::{ConnectError, crypto::rustls::NoInitialCipherSuite};

/// Limits for one worker's connections.
#[derive(Clone, Copy, Debug)]
pub struct QuicLimits {
    pub(crate) max_connections: usize,
    pub(crate) retry_at: usize,
    pub(crate) max_handshakes: usize,
    pub(crate) max_handshakes_per_address: usize,
    pub(crate) handshake_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    pub(crate) keep_alive: Option<Duration>,
    pub(crate) stream_window: u32,
    pub(crate) connection_window: u32,
    pub(crate) send_window: u32,
    pub(crate) max_send_window: u32,
    pub(crate) max_queued: usize,
    pub(crate) datagram_send_buffer: usize,
}

impl QuicLimits {
    /// Creates the default limits.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            max_connections: 10_000,
            retry_at: 100,
            max_handshakes: 1000,
            max_handshakes_per_address: 100,
            handshake_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(30),
            keep_alive: None,
            stream_window: 64 << 10,
            connection_window: 1 << 20,
            send_window: 128 << 10,
            max_send_window: 1 << 20,
            max_queued: 1 << 20,
            datagram_send_buffer: 16 << 10,
        }
    }

    /// Sets the connection limit; the endpoint refuses further connections. Default: 10,000.
    #[must_use]
    pub const fn with_max_connections(mut self, connections: usize) -> Self {
        self.max_connections = connections;
        self
    }

    /// Sets the number of unfinished handshakes from which on a client must prove its address by Retry (RFC 9000 section
    /// 8.1.2). Default: 100.
    #[must_use]
    pub const fn with_retry_at(mut self, handshakes: usize) -> Self {
        self.retry_at = handshakes;
        self
    }

    /// Sets the limit on unfinished handshakes; the endpoint refuses further connections. Default: 1,000, of which all
    /// but the first [`retry_at`](Self::with_retry_at) are from clients that have proved their address.
    #[must_use]
    pub const fn with_max_handshakes(mut self, handshakes: usize) -> Self {
        self.max_handshakes = handshakes;
        self
    }

    /// Sets the limit on unfinished handshakes of a client that has proved its address, or of its IPv6 network; the
    /// endpoint refuses further ones. Default: 100.
    #[must_use]
    pub const fn with_max_handshakes_per_address(mut self, handshakes: usize) -> Self {
        self.max_handshakes_per_address = handshakes;
        self
    }

    /// Sets the time for a handshake. Default: 10 s.
    #[must_use]
    pub const fn with_handshake_timeout(mut self, timeout: Duration) -> Self {
        self.handshake_timeout = timeout;
        self
    }

    /// Sets the time without a packet after which a connection ends, at most 2^62 ms. Default: 30 s.
    #[must_use]
    pub const fn with_idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = timeout;
        self
    }

    /// Sets the time without a packet after which the endpoint asks whether the client is still there. The answer
    /// restarts the [idle timeout](Self::with_idle_timeout), so that it ends only connections of clients that are gone;
    /// choose less than half of it. Default: never.
    #[must_use]
    pub const fn with_keep_alive(mut self, interval: Duration) -> Self {
        self.keep_alive = Some(interval);
        self
    }

    /// Sets the bytes that a connection queues for streams with closed windows. A longer queue ends the connection:
    /// read [`Exchanges::queued`](crate::Exchanges::queued) first. Default: 1 MiB.
    #[must_use]
    pub const fn with_max_queued(mut self, bytes: usize) -> Self {
        self.max_queued = bytes;
        self
    }

    /// Sets the bytes that a client may send ahead on a stream. Default: 64 KiB.
    #[must_use]
    pub const fn with_stream_window(mut self, bytes: u32) -> Self {
        self.stream_window = bytes;
        self
    }

    /// Sets the bytes that a client may send ahead on all streams of a connection. Streams that the application does
    /// not read take at most half of it: the window grows by the rest. Default: 1 MiB.
    #[must_use]
    pub const fn with_connection_window(mut self, bytes: u32) -> Self {
        self.connection_window = bytes;
        self
    }

    /// Sets the bytes that QUIC keeps until the client acknowledges them. A connection begins with 128 KiB. Default: 1 MiB.
    #[must_use]
    pub const fn with_send_window(mut self, bytes: u32) -> Self {
        self.max_send_window = bytes;
        if self.send_window > bytes {
            self.send_window = bytes;
        }
        self
    }

    /// Sets the bytes of datagrams of a connection that wait for its congestion window. While they fill it, further ones stay
    /// with the application, which can replace them by newer values. Default: 16 KiB, about the first congestion window.
    #[must_use]
    pub const fn with_datagram_send_buffer(mut self, bytes: usize) -> Self {
        self.datagram_send_buffer = bytes;
        self
    }
}

impl Default for QuicLimits {
    fn default() -> Self {
        Self::new()
    }
}

/// The reason why an endpoint cannot be created.
#[derive(Debug)]
#[non_exhaustive]
pub enum QuicSetupError {
    /// TLS 1.3 with AES-128-GCM, which protects first packets, is not configured.
    #[cfg(feature = "quinn")]
    CipherSuite(NoInitialCipherSuite),
    /// The idle timeout exceeds 2^62 ms.
    IdleTimeout,
    /// The system's random source failed.
    Random,
    /// This build has no QUIC: the feature `quinn` in this crate, `http3` in the crates above it.
    NotBuilt,
}

impl fmt::Display for QuicSetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            #[cfg(feature = "quinn")]
            Self::CipherSuite(error) => error.fmt(f),
            Self::IdleTimeout => f.write_str("idle timeout exceeds 2^62 ms"),
            Self::Random => f.write_str("the random source of the system failed"),
            Self::NotBuilt => f.write_str("this program is built without HTTP/3 (the Cargo feature http3)"),
        }
    }
}

impl std::error::Error for QuicSetupError {}

/// The reason why an endpoint cannot connect.
#[derive(Debug)]
#[non_exhaustive]
pub enum QuicConnectError {
    /// The endpoint was not created by [`QuicEndpoint::client`](crate::QuicEndpoint::client).
    NotClient,
    /// QUIC rejects the address, or the name.
    #[cfg(feature = "quinn")]
    Quic(ConnectError),
}

impl fmt::Display for QuicConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotClient => f.write_str("the endpoint only accepts connections"),
            #[cfg(feature = "quinn")]
            Self::Quic(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for QuicConnectError {}
