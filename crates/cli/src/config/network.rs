//! Listen addresses and networks, parsed from text.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::str::FromStr;

use sinews_server::IpNet;

use super::value::scalar;

/// An address, or `unix:` and a socket path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListenEndpoint {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// File permissions, in octal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnixMode(pub(crate) u32);

/// A network, an address, or `unix` for all Unix sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProxyNetwork(pub(crate) IpNet);

impl FromStr for ListenEndpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("unix:") {
            Some("") => Err("expected a path after unix:".to_owned()),
            Some(path) => Ok(Self::Unix(path.into())),
            None => tcp(text).map(Self::Tcp),
        }
    }
}

/// Parses an address, a port alone (on 127.0.0.1), `:PORT` (every interface), or a host name and a port.
pub(crate) fn tcp(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let (host, port) = text.rsplit_once(':').unwrap_or(("127.0.0.1", text));
    let is_number = !port.is_empty() && port.bytes().all(|digit| digit.is_ascii_digit());
    if !is_number {
        return Err(EXPECTED.to_owned());
    }
    let port: u16 = port.parse().map_err(|_| format!("port {port} exceeds 65535"))?;
    match host {
        "" => Ok((every_interface(), port).into()),
        // localhost is not resolved: it usually has both families, and other programs need one address.
        "localhost" => Ok((Ipv4Addr::LOCALHOST, port).into()),
        host => {
            let found = (host, port).to_socket_addrs().map_err(|error| format!("host {host:?}: {error}"))?;
            let found: Vec<SocketAddr> = found.collect();
            let first = found.iter().find(|address| address.is_ipv4()).or_else(|| found.first());
            first.copied().ok_or_else(|| format!("host {host:?} has no address"))
        }
    }
}

/// `::` if sockets accept IPv4 too, or `0.0.0.0` on a machine without IPv6.
fn every_interface() -> IpAddr {
    let has_ipv6 = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok();
    if has_ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

const EXPECTED: &str = "expected HOST:PORT, PORT, :PORT (every interface) or unix:PATH";

impl FromStr for UnixMode {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_octal = !text.is_empty() && text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| is_octal && *mode <= 0o777);
        mode.map(Self).ok_or("expected three octal digits such as 0660")
    }
}

impl FromStr for ProxyNetwork {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "unix" {
            // The server's placeholder for a peer without an address.
            return Ok(Self(IpAddr::from(Ipv4Addr::UNSPECIFIED).into()));
        }
        let address = || text.parse::<IpAddr>().map(IpNet::from);
        let network: IpNet = text
            .parse()
            .or_else(|_| address())
            .map_err(|_| "expected a network such as 10.0.0.0/8, an address, or unix")?;
        if network.addr() != network.network() {
            let (address, network) = (network.addr(), network.trunc());
            return Err(format!(
                "has bits set behind its prefix: write {network}, or {address} for one address"
            ));
        }
        if let (IpAddr::V6(address), 96..) = (network.addr(), network.prefix_len())
            && let Some(address) = address.to_ipv4_mapped()
        {
            let prefix = network.prefix_len() - 96;
            return Err(format!(
                "is a network of IPv4, whose addresses are compared as such: write {address}/{prefix}"
            ));
        }
        Ok(Self(network))
    }
}

scalar!(
    ListenEndpoint => Self, Text, "ADDRESS",
    "an address such as \"127.0.0.1:8080\" or \"unix:/run/sinews.sock\"",
    |endpoint| endpoint
);
scalar!(
    UnixMode => u32, Text, "MODE",
    "a string of octal digits such as \"0660\"",
    |UnixMode(mode)| mode
);
scalar!(
    ProxyNetwork => IpNet, Text, "NETWORK",
    "a network such as \"10.0.0.0/8\", an address, \"unix\"",
    |ProxyNetwork(network)| network
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_modes_and_networks_parse() {
        assert_eq!(
            "[::1]:80".parse(),
            Ok(ListenEndpoint::Tcp(SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 80))))
        );
        assert_eq!("unix:/run/a b".parse(), Ok(ListenEndpoint::Unix("/run/a b".into())));
        let tcp = |text: &str| text.parse::<ListenEndpoint>();
        assert_eq!(tcp("8083"), Ok(ListenEndpoint::Tcp("127.0.0.1:8083".parse().unwrap())));
        assert_eq!(tcp("localhost:8083"), tcp("8083"));
        assert_eq!(tcp(":8083"), Ok(ListenEndpoint::Tcp("[::]:8083".parse().unwrap())));
        assert_eq!(tcp("80830").unwrap_err(), "port 80830 exceeds 65535");
        assert!(tcp("no-such-host.invalid:1").unwrap_err().starts_with("host \"no-such-host.invalid\": "));
        assert!(
            ["unix:", "/run/socket", "localhost", "localhost:", ":", "-1", "+1", ""]
                .iter()
                .all(|text| text.parse::<ListenEndpoint>().is_err())
        );
        assert_eq!(("0660".parse(), "7".parse()), (Ok(UnixMode(0o660)), Ok(UnixMode(7))));
        assert!(["", "0o660", "+660", "888", "1777"].iter().all(|text| text.parse::<UnixMode>().is_err()));
        for (text, network) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("192.0.2.1", "192.0.2.1/32"),
            ("fd00::1", "fd00::1/128"),
            ("unix", "0.0.0.0/32"),
        ] {
            assert_eq!(text.parse(), Ok(ProxyNetwork(network.parse().unwrap())));
        }
        assert!(["10.0.0.0/33", "proxy", ""].iter().all(|text| text.parse::<ProxyNetwork>().is_err()));
    }
}
