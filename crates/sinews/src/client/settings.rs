//! Settings of an attempt: of the opening handshake, and of the path to the server.

#[cfg(feature = "url-connect")]
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use sinews_proto::Config;
use sinews_proto::deflate::DeflateConfig;
use sinews_proto::handshake::ClientRequest;
use sinews_proto::http::HeadLimits;

use super::error::{ConnectError, ConnectPhase};
#[cfg(feature = "url-connect")]
use super::proxy::ProxyChoice;
use super::target::{ConnectTarget, redacted};
#[cfg(feature = "url-connect")]
use super::target::{UrlError, authority};
use super::upgrade::HandshakeExchange;

/// Settings of the handshake, for any transport.
#[derive(Clone)]
pub(crate) struct ConnectSettings {
    pub(crate) url: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) subprotocols: Vec<String>,
    pub(crate) deflate: Option<DeflateConfig>,
    pub(crate) config: Arc<Config>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) limits: HeadLimits,
    pub(crate) body_max: usize,
}

/// Settings for the path to the server.
#[cfg(feature = "url-connect")]
#[derive(Clone, Debug)]
pub(crate) struct NetworkSettings {
    pub(crate) proxy: ProxyChoice,
    pub(crate) redirects: u8,
    pub(crate) downgrade: bool,
    pub(crate) local: Option<IpAddr>,
    pub(crate) nodelay: bool,
    pub(crate) tls: Option<crate::tls::Tls>,
    pub(crate) server_name: Option<String>,
    /// Replacements of servers, by host and port.
    pub(crate) address_overrides: Vec<AddressOverride>,
}

/// A server that is reached at another host and port.
#[cfg(feature = "url-connect")]
#[derive(Clone, Debug)]
pub(crate) struct AddressOverride {
    pub(crate) from: (String, u16),
    pub(crate) to: (String, u16),
}

#[cfg(feature = "url-connect")]
impl AddressOverride {
    /// Fails if the host to connect to is none: it becomes a line of a request to a proxy.
    pub(crate) fn check(&self) -> Result<(), ConnectError> {
        let (host, port) = &self.to;
        if !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Ok(());
        }
        let url = authority(host, *port);
        Err(ConnectError::Url { url, error: UrlError::Host })
    }
}

#[cfg(feature = "url-connect")]
impl Default for NetworkSettings {
    fn default() -> Self {
        Self {
            proxy: ProxyChoice::default(),
            redirects: 0,
            downgrade: false,
            local: None,
            nodelay: true,
            tls: None,
            server_name: None,
            address_overrides: Vec::new(),
        }
    }
}

impl ConnectSettings {
    pub(crate) fn new(url: String) -> Self {
        Self {
            url,
            headers: Vec::new(),
            subprotocols: Vec::new(),
            deflate: None,
            config: crate::server::default_config(),
            timeout: Some(Duration::from_secs(20)),
            limits: HeadLimits::new(),
            body_max: 64 << 10,
        }
    }

    pub(crate) fn target(&self) -> Result<ConnectTarget, ConnectError> {
        self.config.check().map_err(ConnectError::Config)?;
        ConnectTarget::parse(&self.url).map_err(|error| ConnectError::Url { url: redacted(&self.url), error })
    }

    /// The request of the opening handshake with this server.
    pub(crate) fn request(&self, target: &ConnectTarget) -> Result<ClientRequest, ConnectError> {
        let mut request = ClientRequest::new(target.host_header(), target.path.as_str())?;
        for name in &self.subprotocols {
            request = request.with_subprotocol(name.as_str())?;
        }
        if let Some(deflate) = &self.deflate {
            request = request.with_deflate(deflate.clone());
        }
        for (name, value) in &self.headers {
            request = request.with_header(name.as_str(), value.as_str())?;
        }
        let has_authorization =
            self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization"));
        if let Some(credentials) = target.credentials.as_ref().filter(|_| !has_authorization) {
            request = request.with_header("Authorization", credentials.basic())?;
        }
        Ok(request)
    }

    /// The opening handshake with this server.
    pub(crate) fn upgrade(&self, target: &ConnectTarget) -> Result<HandshakeExchange, ConnectError> {
        let request = self.request(target)?;
        let mut key = [0; 16];
        getrandom::fill(&mut key).map_err(|error| ConnectError::Transport {
            phase: ConnectPhase::Handshake,
            peer: target.authority(),
            error: std::io::Error::other(error.to_string()),
        })?;
        let handshake = request.with_response_limits(self.limits).start(key);
        Ok(HandshakeExchange::new(handshake, self.limits, self.body_max))
    }
}
