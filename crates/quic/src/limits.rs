//! Limits of an endpoint, and their translation into quinn-proto's configuration.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quinn_proto::crypto::rustls::{NoInitialCipherSuite, QuicClientConfig, QuicServerConfig};
use quinn_proto::{
    ClientConfig, ConnectError, EndpointConfig, IdleTimeout, ServerConfig, TransportConfig, VarInt,
};
use ring::rand::SystemRandom;

use crate::ids::{ConnectionRoutes, RoutedIds, WorkerRoute};

/// Limits of the connections of one worker.
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

    /// Sets the maximum of connections; the endpoint refuses further connections. Default: 10,000.
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

    /// Sets the maximum of unfinished handshakes; the endpoint refuses further connections. Default: 1,000, of which all but
    /// the first [`retry_at`](Self::with_retry_at) are of clients that have proved their address.
    #[must_use]
    pub const fn with_max_handshakes(mut self, handshakes: usize) -> Self {
        self.max_handshakes = handshakes;
        self
    }

    /// Sets the maximum of unfinished handshakes of a client that has proved its address, or of its network of IPv6; the endpoint
    /// refuses further ones. Default: 100.
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

    /// Sets the time without a packet after which the endpoint asks whether the client is still there. The answer restarts the
    /// [idle timeout](Self::with_idle_timeout), so that it ends only connections of clients that are gone; choose less than
    /// half of it. Default: never.
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

    /// Sets the bytes that a client may send ahead on all streams of a connection. Streams that the application
    /// does not read take at most half of it: the window grows by the rest. Default: 1 MiB.
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

    pub(crate) fn transport(
        &self,
        http: &sinews_http::h3::Config,
    ) -> Result<TransportConfig, QuicSetupError> {
        let mut transport = TransportConfig::default();
        let idle = IdleTimeout::try_from(self.idle_timeout).map_err(|_| QuicSetupError::IdleTimeout)?;
        let (max_streams, has_datagrams) = http.for_transport();
        let datagrams = has_datagrams.then_some(DATAGRAM_BUFFER);
        transport
            .max_concurrent_bidi_streams(max_streams.into())
            .max_concurrent_uni_streams(max_streams.min(PLAIN_STREAMS_MAX).into())
            .max_idle_timeout(Some(idle))
            .keep_alive_interval(self.keep_alive)
            .stream_receive_window(self.stream_window.into())
            .receive_window(self.connection_window.into())
            .send_window(self.send_window.into())
            .datagram_receive_buffer_size(datagrams)
            .datagram_send_buffer_size(self.datagram_send_buffer);
        Ok(transport)
    }

    pub(crate) fn server(
        &self,
        tls: Arc<rustls::ServerConfig>,
        http: &sinews_http::h3::Config,
    ) -> Result<ServerConfig, QuicSetupError> {
        let crypto = QuicServerConfig::try_from(tls).map_err(QuicSetupError::CipherSuite)?;
        let mut server = ServerConfig::new(Arc::new(crypto), Arc::new(token_key()?));
        server
            .transport_config(Arc::new(self.transport(http)?))
            .max_incoming(self.retry_at.max(1))
            .incoming_buffer_size(INCOMING_MAX)
            .incoming_buffer_size_total(INCOMING_MAX * 64);
        Ok(server)
    }

    pub(crate) fn client(
        &self,
        tls: Arc<rustls::ClientConfig>,
        http: &sinews_http::h3::Config,
    ) -> Result<ClientConfig, QuicSetupError> {
        let crypto = QuicClientConfig::try_from(tls).map_err(QuicSetupError::CipherSuite)?;
        let mut client = ClientConfig::new(Arc::new(crypto));
        client.transport_config(Arc::new(self.transport(http)?));
        Ok(client)
    }
}

/// Received datagrams of a connection that wait for the application. It reads them at once.
const DATAGRAM_BUFFER: usize = 64 << 10;

/// Unidirectional streams of a client without a session of WebTransport: three (RFC 9114 section 6.2), and unknown ones. QUIC
/// takes memory for each permitted stream. A session permits further streams as its client opens streams.
const PLAIN_STREAMS_MAX: u32 = 6;

/// Bytes of a client before its connection is accepted, which happens at once.
const INCOMING_MAX: u64 = 16 << 10;

impl Default for QuicLimits {
    fn default() -> Self {
        Self::new()
    }
}

fn random_key() -> Result<[u8; 64], QuicSetupError> {
    let mut key = [0; 64];
    let filled = ring::rand::SecureRandom::fill(&SystemRandom::new(), &mut key);
    filled.map_err(|_| QuicSetupError::Random)?;
    Ok(key)
}

/// The key of tokens of Retry. A token is valid for 15 s at the worker that sent it.
fn token_key() -> Result<ring::hkdf::Prk, QuicSetupError> {
    Ok(ring::hkdf::Salt::new(ring::hkdf::HKDF_SHA256, &[]).extract(&random_key()?))
}

/// QUIC version 1 (RFC 9000 section 15).
const VERSION_1: u32 = 1;

pub(crate) fn endpoint(
    routes: ConnectionRoutes,
    route: WorkerRoute,
) -> Result<EndpointConfig, QuicSetupError> {
    let reset_key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &random_key()?);
    let mut config = EndpointConfig::new(Arc::new(reset_key));
    // Version negotiation offers no drafts to fall back to.
    config.supported_versions(vec![VERSION_1]);
    let random = Arc::new(SystemRandom::new());
    config.cid_generator(move || {
        Box::new(RoutedIds { routes: routes.clone(), route, random: Arc::clone(&random) })
    });
    Ok(config)
}

pub(crate) fn varint(number: u64) -> VarInt {
    VarInt::from_u64(number).unwrap_or(VarInt::MAX)
}

/// The reason why an endpoint cannot be created.
#[derive(Debug)]
#[non_exhaustive]
pub enum QuicSetupError {
    /// TLS 1.3 with AES-128-GCM, which protects first packets, is not configured.
    CipherSuite(NoInitialCipherSuite),
    /// The idle timeout exceeds 2^62 ms.
    IdleTimeout,
    /// The system's random source failed.
    Random,
}

impl fmt::Display for QuicSetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CipherSuite(error) => error.fmt(f),
            Self::IdleTimeout => f.write_str("idle timeout exceeds 2^62 ms"),
            Self::Random => f.write_str("the random source of the system failed"),
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
    Quic(ConnectError),
}

impl fmt::Display for QuicConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotClient => f.write_str("the endpoint only accepts connections"),
            Self::Quic(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for QuicConnectError {}
