//! Listen addresses, and trusted proxies.

use std::net::SocketAddr;
use std::path::Path;

use clap::ValueEnum;
use sinews_server::{Listen, Server, TlsConfig, TrustedProxies};

use crate::config::network::{ListenEndpoint, ProxyNetwork, UnixMode};
use crate::config::schema::settings;
use crate::config::value::choice;

settings! {
    /// Listen addresses, and trusted proxies.
    pub(crate) struct ListenSettings in "", "" {
        /// Addresses to listen on: `HOST:PORT`, `PORT` alone for 127.0.0.1, `:PORT` for every interface, or `unix:PATH`
        /// for a Unix socket. Port 0 selects a free port.
        listen: Vec<ListenEndpoint> { default: "127.0.0.1:8080" }

        /// Permissions of Unix sockets, in octal digits. `0660` permits the user and the group of the process to
        /// connect.
        unix_mode: UnixMode { default: "0660" }

        /// Expect a PROXY header, version 1 or 2, with the client's address at the start of every connection, as
        /// HAProxy, nginx and cloud load balancers send it. Any client that can connect can forge its address: permit
        /// only the proxy to connect.
        proxy_protocol: bool { default: "false" }

        /// Networks of trusted proxies: their header with the client address is used, and their connections do not
        /// count for {limits.max_connections_per_address}. `unix` means all Unix sockets.
        trusted_proxies: Vec<ProxyNetwork> {}

        /// Header in which trusted proxies pass the client address. Other headers are ignored, since clients can forge
        /// them. The access log ({access_log}) contains this address.
        trusted_header: TrustedHeader { default: "x-forwarded-for" }
    }
}

/// Header with the client address, set by a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TrustedHeader {
    XForwardedFor,
    Forwarded,
}

choice!(TrustedHeader);

impl ListenSettings {
    /// Adds the listeners; TCP listeners use TLS if configured.
    pub(crate) fn apply(&self, mut server: Server, tls: Option<&TlsConfig>) -> Server {
        for endpoint in &self.listen {
            let listen = match (endpoint, tls) {
                (ListenEndpoint::Tcp(address), Some(tls)) => Listen::tcp(*address).with_tls(tls.clone()),
                (ListenEndpoint::Tcp(address), None) => Listen::tcp(*address),
                (ListenEndpoint::Unix(path), _) => Listen::unix(path, self.unix_mode),
            };
            server =
                server.listen_on(if self.proxy_protocol { listen.with_proxy_protocol() } else { listen });
        }
        let networks = self.trusted_proxies.iter().copied();
        server.trusted_proxies(match self.trusted_header {
            TrustedHeader::XForwardedFor => TrustedProxies::x_forwarded_for(networks),
            TrustedHeader::Forwarded => TrustedProxies::forwarded(networks),
        })
    }

    /// The TCP addresses.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.listen.iter().filter_map(|endpoint| match endpoint {
            ListenEndpoint::Tcp(address) => Some(*address),
            ListenEndpoint::Unix(_) => None,
        })
    }

    /// Returns the Unix socket paths.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &Path> {
        self.listen.iter().filter_map(|endpoint| match endpoint {
            ListenEndpoint::Unix(path) => Some(&**path),
            ListenEndpoint::Tcp(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::settings;
    use super::*;

    #[test]
    fn listeners_and_proxies_come_from_file_and_flags() {
        let localhost = vec![ListenEndpoint::Tcp("127.0.0.1:8080".parse().unwrap())];
        assert_eq!(settings(&[], "").unwrap().listen.listen, localhost);
        let file = "listen = [\"127.0.0.1:8080\", \"unix:/run/a\"]\nunix_mode = \"0600\"\nproxy_protocol = true\n\
                    trusted_proxies = \"10.0.0.0/8\"\ntrusted_header = \"forwarded\"";
        let listen = settings(&["--proxy-protocol=false"], file).unwrap().listen;
        assert_eq!(listen.sockets().collect::<Vec<_>>(), [Path::new("/run/a")]);
        assert_eq!((listen.unix_mode, listen.proxy_protocol), (0o600, false));
        assert_eq!(listen.trusted_proxies, ["10.0.0.0/8".parse().unwrap()]);
        assert_eq!(listen.trusted_header, TrustedHeader::Forwarded);
        let flags = ["--proxy-protocol", "--trusted-proxies", "unix,fd00::/8", "--listen", "unix:b"];
        let listen = settings(&flags, file).unwrap().listen;
        assert!(listen.proxy_protocol && listen.sockets().eq([Path::new("b")]));
        assert_eq!(listen.trusted_proxies.len(), 2);
    }
}
