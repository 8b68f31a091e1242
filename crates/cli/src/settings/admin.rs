//! The address for administrators.

use std::net::SocketAddr;

use sinews_server::{Listen, Server, TlsConfig};

use super::listen::ListenSettings;
use crate::config::network::ListenEndpoint;
use crate::config::schema::settings;

/// Tag for the administrators' listeners.
pub(crate) const ADMIN_TAG: u8 = 1;

settings! {
    /// A second address for administrators. Changes of this table need a restart.
    pub(crate) struct AdminSettings in "admin", "Address for administrators" {
        /// Addresses that alone serve the HTTP API (`/api/v1`), `/metrics`, the pages with the dashboard, and `/echo`:
        /// then {listen} answers 404 there. All other paths are served, too, so that the console and the chat work. Give
        /// `HOST:PORT`, `PORT` alone for 127.0.0.1, or `unix:PATH`.
        listen: Vec<ListenEndpoint> { example: "127.0.0.1:9090" }

        /// Use TLS at {admin.listen}, if {tls.certificate} is set.
        tls: bool { default: "true" }
    }
}

impl AdminSettings {
    /// Whether the address for administrators is apart.
    pub(crate) fn is_apart(&self) -> bool {
        !self.listen.is_empty()
    }

    /// Adds the listeners.
    pub(crate) fn apply(
        &self,
        mut server: Server,
        listen: &ListenSettings,
        tls: Option<&TlsConfig>,
    ) -> Server {
        for endpoint in &self.listen {
            let listen = match (endpoint, tls.filter(|_| self.tls)) {
                (ListenEndpoint::Tcp(address), Some(tls)) => Listen::tcp(*address).with_tls(tls.clone()),
                (ListenEndpoint::Tcp(address), None) => Listen::tcp(*address),
                (ListenEndpoint::Unix(path), _) => Listen::unix(path, listen.unix_mode),
            };
            server = server.listen_on(listen.with_tag(ADMIN_TAG));
        }
        server
    }

    /// The TCP addresses.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.listen.iter().filter_map(|endpoint| match endpoint {
            ListenEndpoint::Tcp(address) => Some(*address),
            ListenEndpoint::Unix(_) => None,
        })
    }
}
