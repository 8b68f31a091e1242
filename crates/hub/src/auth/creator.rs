//! The client that counts as the creator of streams.

use std::net::{IpAddr, Ipv6Addr};

/// A client that creates streams: the subject of its token, its app of the Pusher protocol, or its address. An IPv6 address
/// counts by its first 64 bits, usually the network of one customer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Creator {
    Subject(Box<str>),
    /// The id of an app, for publications of its server.
    App(Box<str>),
    Address(IpAddr),
    /// The program itself, which has no limit.
    Server,
}

impl Creator {
    pub(crate) fn of_address(address: IpAddr) -> Self {
        Self::Address(network_of(address))
    }
}

/// The address by which limits count a client: of IPv6 the first 64 bits, usually the network of one customer, who can use
/// all its addresses.
pub(crate) fn network_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(six) => match six.to_ipv4_mapped() {
            Some(four) => four.into(),
            None => Ipv6Addr::from_bits(six.to_bits() & !u128::from(u64::MAX)).into(),
        },
        four => four,
    }
}
