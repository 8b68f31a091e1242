//! The path to a server: proxy, request, redirects.

use super::error::{ConnectError, RedirectError};
use super::proxy::Proxy;
use super::proxy_error::ProxyError;
use super::redirect;
use super::response::Response;
use super::settings::{AddressOverride, ConnectSettings, NetworkSettings};
use super::socks5::Socks5;
use super::target::{ConnectTarget, authority};
use super::tunnel::Tunnel;
use super::upgrade::HandshakeExchange;

/// One attempt, across all servers of a chain of redirects. A driver connects to [`proxy`](Self::proxy) and
/// [`target`](Self::target), makes the [`upgrade`](Self::upgrade), and passes a rejection to
/// [`follow`](Self::follow).
pub(crate) struct ConnectAttempt {
    settings: ConnectSettings,
    pub(crate) network: NetworkSettings,
    pub(crate) target: ConnectTarget,
    pub(crate) proxy: Option<Proxy>,
    redirected: u8,
}

impl ConnectAttempt {
    pub(crate) fn new(settings: ConnectSettings, network: NetworkSettings) -> Result<Self, ConnectError> {
        let target = settings.target()?;
        network.address_overrides.iter().try_for_each(AddressOverride::check)?;
        let proxy = choose(&network, &target)?;
        Ok(Self { settings, network, target, proxy, redirected: 0 })
    }

    /// The opening handshake with the server.
    pub(crate) fn upgrade(&self) -> Result<HandshakeExchange, ConnectError> {
        self.settings.upgrade(&self.target)
    }

    /// Host and port to connect to: the server's own, unless a detour applies.
    pub(crate) fn destination(&self) -> (&str, u16) {
        let ConnectTarget { host, port, .. } = &self.target;
        let here = |address_override: &&AddressOverride| {
            address_override.from.0.eq_ignore_ascii_case(host) && address_override.from.1 == *port
        };
        match self.network.address_overrides.iter().find(here) {
            Some(address_override) => (&address_override.to.0, address_override.to.1),
            None => (host, *port),
        }
    }

    /// The name that the server's certificate must match.
    pub(crate) fn server_name(&self) -> &str {
        self.network.server_name.as_deref().unwrap_or(&self.target.host)
    }

    pub(crate) const fn settings(&self) -> &ConnectSettings {
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
            self.network.server_name = None;
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

fn choose(network: &NetworkSettings, target: &ConnectTarget) -> Result<Option<Proxy>, ConnectError> {
    let variable = |name: &str| std::env::var(name).ok();
    network.proxy.choose(target, &variable).map_err(|(proxy, error)| ConnectError::Proxy { proxy, error })
}

impl Proxy {
    /// The exchange with an HTTP proxy.
    pub(crate) fn tunnel(&self, host: &str, port: u16, settings: &ConnectSettings) -> Tunnel {
        let authorization = self.credentials.as_ref().map(|credentials| credentials.basic());
        Tunnel::new(&authority(host, port), authorization.as_deref(), settings.limits, settings.body_max)
    }

    /// The exchange with a SOCKS5 proxy, to a name or an address.
    pub(crate) fn socks5(&self, host: &str, port: u16) -> Result<Socks5, ConnectError> {
        Socks5::new(host, port, self.credentials.as_ref()).map_err(|error| self.rejected(error))
    }

    pub(crate) fn rejected(&self, error: ProxyError) -> ConnectError {
        ConnectError::Proxy { proxy: self.name(), error }
    }

    /// Host and port.
    pub(crate) fn authority(&self) -> String {
        authority(&self.host, self.port)
    }
}
