//! The path to a server: proxy, request, redirects.

use std::net::IpAddr;

use super::builder::Settings;
use super::error::{ConnectError, RedirectError};
use super::proxy::{Proxy, ProxyChoice, ProxyError};
use super::redirect;
use super::response::Response;
use super::socks5::Socks5;
use super::target::{Target, authority};
use super::tunnel::Tunnel;
use super::upgrade::Upgrade;

/// Settings for the path to the server.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    pub(crate) proxy: ProxyChoice,
    pub(crate) redirects: u8,
    pub(crate) downgrade: bool,
    pub(crate) local: Option<IpAddr>,
    pub(crate) nodelay: bool,
    pub(crate) tls: Option<crate::tls::Tls>,
    pub(crate) server_name: Option<String>,
    /// Replacements of servers, by host and port.
    pub(crate) detours: Vec<Detour>,
}

/// A server that is reached at another host and port.
#[derive(Clone, Debug)]
pub(crate) struct Detour {
    pub(crate) from: (String, u16),
    pub(crate) to: (String, u16),
}

impl Default for Network {
    fn default() -> Self {
        Self {
            proxy: ProxyChoice::default(),
            redirects: 0,
            downgrade: false,
            local: None,
            nodelay: true,
            tls: None,
            server_name: None,
            detours: Vec::new(),
        }
    }
}

/// One attempt, across all servers of a chain of redirects. A driver connects to [`proxy`](Self::proxy) and
/// [`target`](Self::target), makes the [`upgrade`](Self::upgrade), and passes a rejection to
/// [`follow`](Self::follow).
pub(crate) struct Journey {
    settings: Settings,
    pub(crate) network: Network,
    pub(crate) target: Target,
    pub(crate) proxy: Option<Proxy>,
    redirected: u8,
}

impl Journey {
    pub(crate) fn new(settings: Settings, network: Network) -> Result<Self, ConnectError> {
        let target = settings.target()?;
        let proxy = choose(&network, &target)?;
        Ok(Self { settings, network, target, proxy, redirected: 0 })
    }

    /// The opening handshake with the server.
    pub(crate) fn upgrade(&self) -> Result<Upgrade, ConnectError> {
        self.settings.upgrade(&self.target)
    }

    /// Host and port to connect to: the server's own, unless a detour applies.
    pub(crate) fn destination(&self) -> (&str, u16) {
        let Target { host, port, .. } = &self.target;
        let here = |detour: &&Detour| detour.from.0.eq_ignore_ascii_case(host) && detour.from.1 == *port;
        match self.network.detours.iter().find(here) {
            Some(detour) => (&detour.to.0, detour.to.1),
            None => (host, *port),
        }
    }

    /// The name that the server's certificate must match.
    pub(crate) fn server_name(&self) -> &str {
        self.network.server_name.as_deref().unwrap_or(&self.target.host)
    }

    pub(crate) const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Follows the redirect of a rejection, or returns why not.
    pub(crate) fn follow(&mut self, response: Box<Response>) -> Result<(), ConnectError> {
        let max = self.network.redirects;
        if max == 0 || !redirect::is_redirect(response.status().as_u16()) {
            return Err(ConnectError::Rejected(response));
        }
        let next = redirect::next(&self.target, &response, self.network.downgrade)?;
        if self.redirected == max {
            let location = format!("{}://{}{}", next.scheme(), next.host_header(), next.path);
            return Err(ConnectError::Redirect { location, error: RedirectError::TooMany(max) });
        }
        if !next.is_same_origin(&self.target) {
            self.settings.headers.retain(|(name, _)| !is_private(name));
        }
        self.proxy = choose(&self.network, &next)?;
        self.target = next;
        self.redirected += 1;
        Ok(())
    }
}

/// Headers that authenticate the client to one server and must not be sent to another.
fn is_private(name: &str) -> bool {
    ["authorization", "cookie", "proxy-authorization"].iter().any(|other| name.eq_ignore_ascii_case(other))
}

fn choose(network: &Network, target: &Target) -> Result<Option<Proxy>, ConnectError> {
    let variable = |name: &str| std::env::var(name).ok();
    network.proxy.choose(target, &variable).map_err(|(proxy, error)| ConnectError::Proxy { proxy, error })
}

impl Proxy {
    /// The exchange with an HTTP proxy.
    pub(crate) fn tunnel(&self, (host, port): (&str, u16), settings: &Settings) -> Tunnel {
        let authorization = self.credentials.as_ref().map(|credentials| credentials.basic());
        Tunnel::new(&authority(host, port), authorization.as_deref(), settings.limits, settings.body_max)
    }

    /// The exchange with a SOCKS5 proxy, to a name or an address.
    pub(crate) fn socks5(&self, host: &str, port: u16) -> Result<Socks5, ConnectError> {
        Socks5::new(host, port, self.credentials.as_ref()).map_err(|error| self.refused(error))
    }

    pub(crate) fn refused(&self, error: ProxyError) -> ConnectError {
        ConnectError::Proxy { proxy: self.name(), error }
    }

    /// Host and port.
    pub(crate) fn authority(&self) -> String {
        authority(&self.host, self.port)
    }
}
