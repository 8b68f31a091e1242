//! Listen addresses, and trusted proxies.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use sinews_server::{IpNet, Listen, Server, TlsConfig, TrustedProxies};

use super::Pick;
use crate::args::{ListenArgs, ProxyHeader};
use crate::config::Values;
use crate::config::network::{Mode, Network, Place};
use crate::config::units::OneOrMore;

/// Listen addresses, and trusted proxies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListenSettings {
    places: Vec<Place>,
    unix_mode: u32,
    proxy_protocol: bool,
    trusted_proxies: Vec<IpNet>,
    trusted_header: ProxyHeader,
}

impl ListenSettings {
    pub(super) fn merge(args: &ListenArgs, file: &Values, pick: &mut Pick<'_>) -> Self {
        let localhost = SocketAddr::from((Ipv4Addr::LOCALHOST, 8080));
        let places = file.listen.clone().map(|OneOrMore(list)| list);
        let networks = file.trusted_proxies.clone().map(|OneOrMore(list)| list);
        let networks = pick.one("trusted_proxies", &args.trusted_proxies, networks).unwrap_or_default();
        Self {
            places: pick.one("listen", &args.listen, places).unwrap_or_else(|| vec![Place::Tcp(localhost)]),
            unix_mode: pick
                .one("unix_mode", &args.unix_mode, file.unix_mode)
                .map_or(0o660, |Mode(mode)| mode),
            proxy_protocol: pick
                .one("proxy_protocol", &args.proxy_protocol, file.proxy_protocol)
                .unwrap_or(false),
            trusted_proxies: networks.into_iter().map(|Network(network)| network).collect(),
            trusted_header: pick
                .one("trusted_header", &args.trusted_header, file.trusted_header)
                .unwrap_or(ProxyHeader::XForwardedFor),
        }
    }

    /// Adds the listeners; TCP listeners use TLS if configured.
    pub(crate) fn apply(&self, mut server: Server, tls: Option<&TlsConfig>) -> Server {
        for place in &self.places {
            let listen = match (place, tls) {
                (Place::Tcp(address), Some(tls)) => Listen::tcp(*address).with_tls(tls.clone()),
                (Place::Tcp(address), None) => Listen::tcp(*address),
                (Place::Unix(path), _) => Listen::unix(path, self.unix_mode),
            };
            server =
                server.listen_on(if self.proxy_protocol { listen.with_proxy_protocol() } else { listen });
        }
        let networks = self.trusted_proxies.iter().copied();
        server.trusted_proxies(match self.trusted_header {
            ProxyHeader::XForwardedFor => TrustedProxies::x_forwarded_for(networks),
            ProxyHeader::Forwarded => TrustedProxies::forwarded(networks),
        })
    }

    /// The TCP addresses.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.places.iter().filter_map(|place| match place {
            Place::Tcp(address) => Some(*address),
            Place::Unix(_) => None,
        })
    }

    /// The paths of Unix sockets.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &Path> {
        self.places.iter().filter_map(|place| match place {
            Place::Unix(path) => Some(&**path),
            Place::Tcp(_) => None,
        })
    }

    pub(super) fn differs(&self, new: &Self) -> [(&'static str, bool); 5] {
        [
            ("listen", self.places != new.places),
            ("unix_mode", self.unix_mode != new.unix_mode),
            ("proxy_protocol", self.proxy_protocol != new.proxy_protocol),
            ("trusted_proxies", self.trusted_proxies != new.trusted_proxies),
            ("trusted_header", self.trusted_header != new.trusted_header),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::settings;
    use super::*;

    #[test]
    fn listeners_and_proxies_come_from_file_and_flags() {
        let localhost = vec![Place::Tcp("127.0.0.1:8080".parse().unwrap())];
        assert_eq!(settings(&[], "").unwrap().listen.places, localhost);
        let file = "listen = [\"127.0.0.1:8080\", \"unix:/run/a\"]\nunix_mode = \"0600\"\nproxy_protocol = true\n\
                    trusted_proxies = \"10.0.0.0/8\"\ntrusted_header = \"forwarded\"";
        let listen = settings(&["--proxy-protocol=false"], file).unwrap().listen;
        assert_eq!(listen.sockets().collect::<Vec<_>>(), [Path::new("/run/a")]);
        assert_eq!((listen.unix_mode, listen.proxy_protocol), (0o600, false));
        assert_eq!(listen.trusted_proxies, ["10.0.0.0/8".parse().unwrap()]);
        assert_eq!(listen.trusted_header, ProxyHeader::Forwarded);
        let flags = ["--proxy-protocol", "--trusted-proxies", "unix,fd00::/8", "--listen", "unix:b"];
        let listen = settings(&flags, file).unwrap().listen;
        assert!(listen.proxy_protocol && listen.sockets().eq([Path::new("b")]));
        assert_eq!(listen.trusted_proxies.len(), 2);
    }
}
