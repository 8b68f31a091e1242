//! The way to a server: which proxy, which request, where next.

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

/// Settings of the way to the server.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    pub(crate) proxy: ProxyChoice,
    pub(crate) redirects: u8,
    pub(crate) downgrade: bool,
    pub(crate) local: Option<IpAddr>,
    pub(crate) nodelay: bool,
    pub(crate) tls: Option<crate::tls::Tls>,
    pub(crate) server_name: Option<String>,
    /// From whom to whom else, host and port.
    pub(crate) detours: Vec<Detour>,
}

/// A server that is reached elsewhere.
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

/// One attempt, over as many servers as redirects lead to. A driver dials what [`proxy`](Self::proxy) and
/// [`target`](Self::target) say, makes the [`upgrade`](Self::upgrade), and asks [`follow`](Self::follow) about a
/// refusal.
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

    /// The handshake with the server.
    pub(crate) fn upgrade(&self) -> Result<Upgrade, ConnectError> {
        self.settings.upgrade(&self.target)
    }

    /// Host and port to connect to: the server's own, unless a detour leads elsewhere.
    pub(crate) fn destination(&self) -> (&str, u16) {
        let Target { host, port, .. } = &self.target;
        let here = |detour: &&Detour| detour.from.0.eq_ignore_ascii_case(host) && detour.from.1 == *port;
        match self.network.detours.iter().find(here) {
            Some(detour) => (&detour.to.0, detour.to.1),
            None => (host, *port),
        }
    }

    /// The name that the server has to prove by its certificate.
    pub(crate) fn server_name(&self) -> &str {
        self.network.server_name.as_deref().unwrap_or(&self.target.host)
    }

    pub(crate) const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Goes where a refusal leads, or answers with why not.
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

/// Headers that tell one server who we are, and are nobody else's.
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
