//! Connection identifiers that lead a datagram to its worker.

use std::fmt;
use std::sync::Arc;
#[cfg(feature = "quinn")]
use std::time::Duration;

#[cfg(feature = "quinn")]
use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};
use ring::aead::quic::{AES_128, HeaderProtectionKey};
use ring::rand::{SecureRandom as _, SystemRandom};

/// Length of our identifiers in bytes.
pub(crate) const ID_LEN: usize = 8;

/// Random bytes of an identifier, which come first.
const NONCE_LEN: usize = 5;

/// A connection's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WorkerRoute {
    worker: u8,
    generation: u8,
}

impl WorkerRoute {
    /// Creates the route to a worker. `generation` numbers the processes of a hot restart chain.
    #[must_use]
    pub const fn new(worker: u8, generation: u8) -> Self {
        Self { worker, generation }
    }

    /// The worker's number.
    #[must_use]
    pub const fn worker(self) -> u8 {
        self.worker
    }

    /// The process's number.
    #[must_use]
    pub const fn generation(self) -> u8 {
        self.generation
    }
}

/// The key by which all workers of a process, and its successor, read identifiers.
#[derive(Clone)]
pub struct ConnectionRoutes {
    key: [u8; Self::KEY_LEN],
    mask: Arc<HeaderProtectionKey>,
}

impl ConnectionRoutes {
    /// Length of the key in bytes.
    pub const KEY_LEN: usize = 16;

    /// Creates routes with a random key.
    #[must_use]
    pub fn new() -> Self {
        let mut key = [0; Self::KEY_LEN];
        // Without the system's random source no TLS key exists either.
        let _ = SystemRandom::new().fill(&mut key);
        Self::with_key(key)
    }

    /// Creates the routes of another process, whose identifiers these routes read.
    ///
    /// # Panics
    /// Never: each key of this length is valid.
    #[must_use]
    pub fn with_key(key: [u8; Self::KEY_LEN]) -> Self {
        let mask = HeaderProtectionKey::new(&AES_128, &key).expect("a key of AES-128 has 16 bytes");
        Self { key, mask: Arc::new(mask) }
    }

    /// The key, for this process's successor. It is secret: its owner can tell the workers of connections apart.
    #[must_use]
    pub const fn key(&self) -> [u8; Self::KEY_LEN] {
        self.key
    }

    /// Returns the owner of a received datagram by its destination identifier. `None`: the identifier is the client's choice,
    /// so that the worker that received the datagram handles it.
    #[must_use]
    pub fn route(&self, datagram: &[u8]) -> Option<WorkerRoute> {
        let id = match datagram {
            // A short header (RFC 9000 section 17.3), or a long one with an identifier of our length.
            [first, rest @ ..] if first & 0x80 == 0 => rest.get(..ID_LEN)?,
            [_, _, _, _, _, len, rest @ ..] if usize::from(*len) == ID_LEN => rest.get(..ID_LEN)?,
            _ => return None,
        };
        self.read(id.try_into().ok()?)
    }

    /// Hides the owner from observers: otherwise they could tell workers apart.
    fn mask(&self, nonce: [u8; NONCE_LEN]) -> [u8; 3] {
        let mut sample = [0; 16];
        sample[..NONCE_LEN].copy_from_slice(&nonce);
        // A sample of AES has 16 bytes, so there is a mask.
        let [a, b, c, ..] = self.mask.new_mask(&sample).unwrap_or_default();
        [a, b, c]
    }

    fn read(&self, id: [u8; ID_LEN]) -> Option<WorkerRoute> {
        let [a, b, c, d, e, worker, generation, check] = id;
        let [x, y, z] = self.mask([a, b, c, d, e]);
        let route = WorkerRoute { worker: worker ^ x, generation: generation ^ y };
        (check ^ z == CHECK).then_some(route)
    }

    fn write(&self, nonce: [u8; NONCE_LEN], route: WorkerRoute) -> [u8; ID_LEN] {
        let [a, b, c, d, e] = nonce;
        let [x, y, z] = self.mask(nonce);
        [a, b, c, d, e, route.worker ^ x, route.generation ^ y, CHECK ^ z]
    }
}

impl Default for ConnectionRoutes {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ConnectionRoutes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionRoutes").finish_non_exhaustive()
    }
}

/// Distinguishes our identifiers from 255 of 256 foreign identifiers.
const CHECK: u8 = 0xa5;

/// Makes identifiers for one worker.
pub(crate) struct RoutedIds {
    pub(crate) routes: ConnectionRoutes,
    pub(crate) route: WorkerRoute,
    pub(crate) random: Arc<SystemRandom>,
}

#[cfg(feature = "quinn")]
impl ConnectionIdGenerator for RoutedIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut nonce = [0; NONCE_LEN];
        // Without the system's random source no TLS key exists either. The endpoint never accepts an identifier twice.
        let _ = self.random.fill(&mut nonce);
        ConnectionId::new(&self.routes.write(nonce, self.route))
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        let id: &[u8] = id;
        let route = id.try_into().ok().and_then(|id| self.routes.read(id));
        if route == Some(self.route) { Ok(()) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        ID_LEN
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(all(test, feature = "quinn"))]
mod tests {
    use super::*;

    #[test]
    fn identifiers_lead_to_their_worker_and_reveal_nothing() {
        let routes = ConnectionRoutes::new();
        let route = WorkerRoute { worker: 3, generation: 1 };
        let random = Arc::new(SystemRandom::new());
        let mut ids = RoutedIds { routes: routes.clone(), route, random };
        let mut owners = std::collections::HashSet::new();
        for _ in 0..1000 {
            let id = ids.generate_cid();
            let id: &[u8] = &id;
            assert_eq!(routes.route(&[&[0x40][..], id, &[0; 20]].concat()), Some(route));
            assert_eq!(routes.route(&[&[0xe0, 0, 0, 0, 1, 8][..], id, &[0; 20]].concat()), Some(route));
            assert_eq!(routes.route(&id[..7]), None);
            owners.insert([id[5], id[6]]);
        }
        assert!(owners.len() > 900, "{}", owners.len());
        let random_ids =
            (0..10_000_u64).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        let taken = random_ids.filter(|id| routes.read(*id).is_some()).count();
        assert!(taken < 120, "{taken} of 10000 random identifiers are taken for ours");
        // The successor reads its predecessor's identifiers.
        let id = ids.generate_cid();
        let datagram = [&[0x40][..], &id].concat();
        assert_eq!(ConnectionRoutes::with_key(routes.key()).route(&datagram), Some(route));
        assert_ne!(ConnectionRoutes::new().route(&datagram), Some(route));
        // Other lengths are the client's.
        assert_eq!(routes.route(&[0xc0, 0, 0, 0, 1, 20, 1, 2, 3]), None);
        assert_eq!(routes.route(&[]), None);
    }
}
