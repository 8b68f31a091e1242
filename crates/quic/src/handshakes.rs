//! Unfinished handshakes.

use std::collections::HashMap;
use std::net::IpAddr;

/// An endpoint's unfinished handshakes: their number, and that of each client that has proved its address. Handshakes
/// without that proof do not count for an address, which an attacker may have forged.
#[derive(Debug, Default)]
pub(crate) struct Handshakes {
    total: usize,
    by_client: HashMap<ClientNetwork, usize>,
}

/// An IPv4 address, or the network of an IPv6 address: a client has 2^64 addresses in its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ClientNetwork {
    V4(u32),
    V6(u64),
}

impl ClientNetwork {
    pub(crate) fn new(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address.to_bits()),
            IpAddr::V6(address) => Self::V6((address.to_bits() >> 64) as u64),
        }
    }
}

impl Handshakes {
    pub(crate) const fn total(&self) -> usize {
        self.total
    }

    /// Number of handshakes of a client.
    pub(crate) fn count(&self, client: Option<ClientNetwork>) -> usize {
        client.and_then(|client| self.by_client.get(&client)).copied().unwrap_or(0)
    }

    /// Counts a handshake. `client` has proved its address.
    pub(crate) fn start(&mut self, client: Option<ClientNetwork>) {
        self.total += 1;
        if let Some(client) = client {
            *self.by_client.entry(client).or_default() += 1;
        }
    }

    /// Ends a handshake that was counted.
    pub(crate) fn finish(&mut self, client: Option<ClientNetwork>) {
        self.total -= 1;
        let Some(client) = client else { return };
        if let Some(count) = self.by_client.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.by_client.remove(&client);
            }
        }
    }
}
