//! The address of a peer in few bytes: each open socket has one.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The address and port of a peer, without the flow and the zone of an IPv6 address, which name no other peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerAddress {
    /// An IPv4 address in its mapped form.
    octets: [u8; 16],
    port: u16,
    is_v4: bool,
}

impl PeerAddress {
    pub(crate) fn new(peer: SocketAddr) -> Self {
        let (octets, is_v4) = match peer.ip() {
            IpAddr::V4(ip) => (ip.to_ipv6_mapped().octets(), true),
            IpAddr::V6(ip) => (ip.octets(), false),
        };
        Self { octets, port: peer.port(), is_v4 }
    }

    pub(crate) fn get(self) -> SocketAddr {
        let ip = Ipv6Addr::from(self.octets);
        match ip.to_ipv4_mapped().filter(|_| self.is_v4) {
            Some(ip) => (ip, self.port).into(),
            None => SocketAddrV6::new(ip, self.port, 0, 0).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_of_each_kind_is_restored() {
        for peer in
            ["127.0.0.1:80", "0.0.0.0:0", "[::1]:8080", "[::ffff:10.0.0.1]:443", "[2001:db8::7]:65535"]
        {
            let peer: SocketAddr = peer.parse().unwrap();
            assert_eq!(PeerAddress::new(peer).get(), peer);
        }
        assert!(size_of::<PeerAddress>() <= 20);
    }
}
