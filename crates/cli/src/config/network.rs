//! Places to listen at, and networks, as people write them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};
use sinews_server::IpNet;

/// An address, or `unix:` and the path of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// Permissions of a file, in octal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mode(pub(crate) u32);

/// A network, one address, or `unix` for what comes through Unix sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network(pub(crate) IpNet);

impl FromStr for Place {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("unix:") {
            Some("") => Err("expected a path behind unix:"),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text
                .parse()
                .map(Self::Tcp)
                .map_err(|_| "expected an address and a port such as [::]:8080, or unix:/run/sinews.sock"),
        }
    }
}

impl FromStr for Mode {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_octal = !text.is_empty() && text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| is_octal && *mode <= 0o777);
        mode.map(Self).ok_or("expected three octal digits such as 0660")
    }
}

impl FromStr for Network {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "unix" {
            // The server's word for a peer without an address.
            return Ok(Self(IpAddr::from(Ipv4Addr::UNSPECIFIED).into()));
        }
        let address = || text.parse::<IpAddr>().map(IpNet::from);
        let network = text.parse().or_else(|_| address());
        network.map(Self).map_err(|_| "expected a network such as 10.0.0.0/8, an address, or unix")
    }
}

/// Each is a string in the file.
macro_rules! from_string {
    ($($name:ident),*) => {
        $(
            impl<'de> Deserialize<'de> for $name {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
                }
            }
        )*
    };
}

from_string!(Place, Mode, Network);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_modes_and_networks_are_read() {
        assert_eq!("[::1]:80".parse(), Ok(Place::Tcp(SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 80)))));
        assert_eq!("unix:/run/a b".parse(), Ok(Place::Unix("/run/a b".into())));
        assert!(["unix:", "/run/socket", "localhost", ""].iter().all(|text| text.parse::<Place>().is_err()));
        assert_eq!(("0660".parse(), "7".parse()), (Ok(Mode(0o660)), Ok(Mode(7))));
        assert!(["", "0o660", "+660", "888", "1777"].iter().all(|text| text.parse::<Mode>().is_err()));
        for (text, network) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("192.0.2.1", "192.0.2.1/32"),
            ("fd00::1", "fd00::1/128"),
            ("unix", "0.0.0.0/32"),
        ] {
            assert_eq!(text.parse(), Ok(Network(network.parse().unwrap())));
        }
        assert!(["10.0.0.0/33", "proxy", ""].iter().all(|text| text.parse::<Network>().is_err()));
    }
}
