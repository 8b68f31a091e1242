//! One connection in a load.

use std::time::Instant;

use sinews_engine::ConnId;
use sinews_quic::ConnectionKey;
use smallvec::SmallVec;

use super::protocol::LoadProtocol;
use super::role::ConnectionRole;
use super::tls::TlsLayer;
use super::traffic::SocketTraffic;

/// One connection.
pub(super) struct LoadConnection {
    pub(super) id: ConnId,
    /// Connection request time.
    pub(super) requested_at: Instant,
    pub(super) ordinal: usize,
    /// Several over HTTP/2 and HTTP/3 only.
    pub(super) traffic: SmallVec<[SocketTraffic; 1]>,
    pub(super) protocol: LoadProtocol,
    pub(super) tls: Option<Box<TlsLayer>>,
    /// Its endpoint and its key there, over HTTP/3.
    pub(super) quic: Option<(usize, ConnectionKey)>,
    /// The connection is reported as open.
    pub(super) open: bool,
    /// The connection is closing: later events on it are not errors.
    pub(super) closing: bool,
}

impl LoadConnection {
    /// Whether it does not read what the server sends.
    pub(super) fn is_stalled(&self) -> bool {
        self.traffic.iter().any(|traffic| matches!(traffic.role, ConnectionRole::Stalled(_)))
    }
}
