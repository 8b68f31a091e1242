//! Translation of [limits](QuicLimits) into quinn-proto's configuration.

use std::sync::Arc;

use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{ClientConfig, EndpointConfig, IdleTimeout, ServerConfig, TransportConfig, VarInt};
use ring::rand::SystemRandom;

use crate::congestion::Congestion;
use crate::ids::{ConnectionRoutes, RoutedIds, WorkerRoute};
use crate::limits::{QuicLimits, QuicSetupError};

impl QuicLimits {
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
            .datagram_send_buffer_size(self.datagram_send_buffer)
            .congestion_controller_factory(Arc::new(Congestion::default()));
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

/// Unidirectional streams for a client without a WebTransport session: three (RFC 9114 section 6.2), and unknown ones.
/// QUIC takes memory for each permitted stream. A session permits further streams as its client opens streams.
const PLAIN_STREAMS_MAX: u32 = 6;

/// Bytes of a client before its connection is accepted, which happens at once.
const INCOMING_MAX: u64 = 16 << 10;

fn random_key() -> Result<[u8; 64], QuicSetupError> {
    let mut key = [0; 64];
    let filled = ring::rand::SecureRandom::fill(&SystemRandom::new(), &mut key);
    filled.map_err(|_| QuicSetupError::Random)?;
    Ok(key)
}

/// The key for Retry tokens. A token is valid for 15 s at the worker that sent it.
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
