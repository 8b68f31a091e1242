//! The client that counts as the creator of streams.

use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU64;

use crate::model::stable_hash::{fnv, mix};

/// A client that creates streams: the subject of its token, its Pusher app, or its address. An IPv6 address counts by
/// its first 64 bits, usually the network of one customer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Creator {
    Subject(Box<str>),
    /// The id of an app, for publications by its server.
    App(Box<str>),
    Address(IpAddr),
    /// The program itself, which has no limit.
    Server,
}

impl Creator {
    /// Returns the number by which all nodes count the memory of the client's keys; `None` without a limit.
    pub(crate) fn share(&self) -> Option<NonZeroU64> {
        let (kind, hash) = match self {
            Self::Subject(subject) => (1, fnv(subject.bytes())),
            Self::App(app) => (2, fnv(app.bytes())),
            Self::Address(IpAddr::V4(four)) => (3, fnv(four.octets())),
            Self::Address(IpAddr::V6(six)) => (4, fnv(six.octets())),
            Self::Server => return None,
        };
        NonZeroU64::new(mix(hash ^ kind)).or(Some(NonZeroU64::MIN))
    }

    pub(crate) fn from_address(address: IpAddr) -> Self {
        Self::Address(network_of(address))
    }
}

/// Returns the address by which limits count a client: of IPv6 the first 64 bits, usually the network of one customer,
/// who can use all its addresses.
pub(crate) fn network_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(six) => match six.to_ipv4_mapped() {
            Some(four) => four.into(),
            None => Ipv6Addr::from_bits(six.to_bits() & !u128::from(u64::MAX)).into(),
        },
        four => four,
    }
}
