//! Public addresses: those that the special-purpose address registries (RFC 6890) do not list.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Networks that are private, local, reserved or multicast: the address, and the prefix length in bits.
const IPV4: [([u8; 4], u32); 15] = [
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 0, 2, 0], 24),
    ([192, 88, 99, 0], 24),
    ([192, 168, 0, 0], 16),
    ([198, 18, 0, 0], 15),
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
    ([224, 0, 0, 0], 4),
    ([240, 0, 0, 0], 4),
];

/// The same in 2000::/3, the global unicast addresses: Teredo and other protocols, documentation, 6to4.
const IPV6: [(u128, u32); 4] =
    [(0x2001_0000 << 96, 23), (0x2001_0db8 << 96, 32), (0x2002_0000 << 96, 16), (0x3fff_0000 << 96, 20)];

/// Prefix of IPv4 addresses behind a translator (RFC 6052).
const TRANSLATED: u128 = 0x0064_ff9b << 96;

/// Whether an address is public.
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let bits = address.to_bits();
    !IPV4.iter().any(|(network, length)| (bits ^ u32::from_be_bytes(*network)) >> (32 - length) == 0)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let bits = address.to_bits();
    if let Some(embedded) = address.to_ipv4_mapped() {
        return is_public_v4(embedded);
    }
    if (bits ^ TRANSLATED) >> 32 == 0 {
        let [.., a, b, c, d] = address.octets();
        return is_public_v4(Ipv4Addr::new(a, b, c, d));
    }
    bits >> 125 == 1 && !IPV6.iter().any(|(network, length)| (bits ^ network) >> (128 - length) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_addresses_are_not_public() {
        let special = "0.0.0.0 10.255.0.1 100.64.0.1 100.127.255.255 127.0.0.1 127.255.0.1 169.254.169.254 \
             172.16.0.1 172.31.255.255 192.0.0.8 192.0.2.1 192.88.99.1 192.168.1.1 198.18.0.1 \
             198.19.255.255 198.51.100.9 203.0.113.9 224.0.0.1 239.1.1.1 240.0.0.1 255.255.255.255 :: \
             ::1 ::ffff:10.0.0.1 ::ffff:127.0.0.1 64:ff9b::10.0.0.1 64:ff9b::7f00:1 64:ff9b:1::1 \
             ::10.0.0.1 fe80::1 fc00::1 fd12::1 ff02::1 2001::1 2001:1ff::1 2001:db8::1 2002:a00:1:: \
             3fff::1 fec0::1 100::1 4000::1";
        for text in special.split(' ') {
            assert!(!is_public(text.parse().unwrap()), "{text}");
        }
        let public = "1.1.1.1 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 \
             169.253.255.255 172.15.255.255 172.32.0.0 192.0.1.1 192.167.255.255 198.17.255.255 \
             198.20.0.0 223.255.255.255 2606:4700::1111 2a00::1 2001:200::1 2001:db9::1 3ffe::1 \
             ::ffff:1.1.1.1 64:ff9b::1.1.1.1";
        for text in public.split(' ') {
            assert!(is_public(text.parse().unwrap()), "{text}");
        }
    }
}
