//! Settings of a client connection.

use std::fmt;
#[cfg(feature = "url-connect")]
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use sinews_proto::Config;
#[cfg(feature = "deflate")]
use sinews_proto::deflate::DeflateConfig;
use sinews_proto::http::HeadLimits;

#[cfg(feature = "url-connect")]
use super::proxy::ProxyChoice;
use super::settings::ConnectSettings;
#[cfg(feature = "url-connect")]
use super::settings::{AddressOverride, NetworkSettings};
use super::target::redacted;

/// A client connection to be made: set options, then await it.
///
/// `R` is the transport: the sockets of a runtime, or [your own stream](Self::over). Awaiting returns an invalid
/// setting as a [`ConnectError`](super::ConnectError). A clone connects again: keep it to reconnect.
///
/// ```
/// # #[cfg(feature = "tokio")] {
/// use std::time::Duration;
///
/// let connect = sinews::connect("wss://example.com/feed?depth=10")
///     .header("authorization", "Bearer 1234")
///     .subprotocol("v2.feed")
///     .subprotocol("v1.feed")
///     .config(sinews::Config::default().with_max_message(1 << 20))
///     .timeout(Duration::from_secs(5));
/// # drop(connect);
/// # }
/// ```
#[derive(Clone)]
#[must_use = "nothing is connected before it is awaited"]
pub struct Connect<R> {
    pub(crate) settings: ConnectSettings,
    #[cfg(feature = "url-connect")]
    pub(crate) network: NetworkSettings,
    #[allow(dead_code, reason = "the transport of a runtime is a unit")]
    pub(crate) runtime: R,
}

/// A runtime whose sockets connect to a URL.
pub trait Runtime {}

/// A transport that makes TLS if the URL is `wss`.
pub trait UsesTls {}

impl<R: Runtime> UsesTls for R {}

#[cfg(feature = "url-connect")]
impl<R, T> UsesTls for OverTls<R, T> {}

/// A stream that is connected already, in place of the sockets of a runtime.
#[derive(Debug)]
pub struct OverStream<R, S> {
    pub(crate) stream: S,
    #[allow(dead_code, reason = "names the runtime of the stream")]
    pub(crate) runtime: R,
}

/// A TCP connection of the caller, in place of a connection that the runtime opens.
#[cfg(feature = "url-connect")]
#[derive(Debug)]
pub struct OverTls<R, T> {
    pub(crate) tcp: T,
    #[allow(dead_code, reason = "names the runtime of the socket")]
    pub(crate) runtime: R,
}

/// Defines `over_tls` of a runtime, for its own sockets.
#[cfg(feature = "url-connect")]
macro_rules! over_tls {
    ($runtime:ty, $tcp:ty) => {
        impl Connect<$runtime> {
            /// Makes TLS, if the URL is `wss`, and the handshake over a TCP connection that is connected already: to the
            /// server, or through a proxy of your own. The transport has the same type as that of a connection to a URL.
            /// `tls` and `server_name` apply; other settings for the path to the server (proxy, redirects, local
            /// address, `TCP_NODELAY`) are ignored. For TLS that is made already use [`over`](Self::over).
            pub fn over_tls(self, tcp: $tcp) -> Connect<$crate::client::OverTls<$runtime, $tcp>> {
                let runtime = $crate::client::OverTls { tcp, runtime: self.runtime };
                Connect { settings: self.settings, network: self.network, runtime }
            }
        }
    };
}

#[cfg(feature = "url-connect")]
pub(crate) use over_tls;

impl<R> Connect<R> {
    pub(crate) fn new(url: String, runtime: R) -> Self {
        Self {
            settings: ConnectSettings::new(url),
            #[cfg(feature = "url-connect")]
            network: NetworkSettings::default(),
            runtime,
        }
    }

    /// Adds a header to the request, such as `Authorization`, `Cookie` or `Origin`; a name may be added several
    /// times. Headers that the handshake writes itself are rejected
    /// ([`ConnectError::Request`](super::ConnectError::Request)).
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.headers.push((name.into(), value.into()));
        self
    }

    /// Offers a subprotocol (RFC 6455 section 1.9), with lower preference than earlier calls.
    /// `WebSocket::subprotocol` returns the server's choice, which may be none.
    pub fn subprotocol(mut self, name: impl Into<String>) -> Self {
        self.settings.subprotocols.push(name.into());
        self
    }

    /// Offers several subprotocols in order of preference.
    pub fn subprotocols<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.settings.subprotocols.extend(names.into_iter().map(Into::into));
        self
    }

    /// Offers permessage-deflate (RFC 7692). Default: not offered, since compression costs more time than it saves
    /// where messages are small or the network is near.
    #[cfg(feature = "deflate")]
    pub fn deflate(mut self, deflate: DeflateConfig) -> Self {
        self.settings.deflate = Some(deflate);
        self
    }

    /// Sets limits, keepalive and timeouts of the connection: a [`Config`], or an `Arc` of a `Config` that many
    /// connections share. Default: [`Config::default`].
    pub fn config(mut self, config: impl Into<Arc<Config>>) -> Self {
        self.settings.config = config.into();
        self
    }

    /// Sets the timeout of the whole attempt, from name resolution to the end of the handshake, redirects included.
    /// Default 20 s: TCP retries after 1, 3, 7 and 15 s, and a reply to the last retry leaves time for the rest.
    /// `None` waits as long as the system does, for a silent server forever.
    pub fn timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.settings.timeout = timeout.into();
        self
    }

    /// Limits the head of the server's response, and of a proxy's. Default: [`HeadLimits::new`]. Over HTTP/2 the limits
    /// of the connection apply to every response too, and those of an `open` can only be lower.
    pub fn response_limits(mut self, limits: HeadLimits) -> Self {
        self.settings.limits = limits;
        self
    }

    /// Sets the maximum of bytes read from the body of a rejection, as received. Default 64 KiB: an error page or a
    /// JSON object fits. 0 reads none.
    pub fn rejection_body_max(mut self, bytes: usize) -> Self {
        self.settings.body_max = bytes;
        self
    }
}

/// Settings for TLS.
#[cfg(any(feature = "rustls", feature = "native-tls"))]
impl<R: UsesTls> Connect<R> {
    /// Sets the TLS configuration of `wss`: a configuration of rustls, a connector of native-tls, or
    /// [`Tls`](crate::Tls). Default: [`Tls::new`](crate::Tls::new).
    pub fn tls(mut self, tls: impl Into<crate::Tls>) -> Self {
        self.network.tls = Some(tls.into());
        self
    }

    /// Sets the server name for TLS (SNI) and certificate verification, in place of the URL's host. Default: the
    /// URL's host. A redirect to another origin ends the setting: the name is that of the redirect's host.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.network.server_name = Some(name.into());
        self
    }
}

impl<R: Runtime> Connect<R> {
    /// Makes the handshake on a stream that is connected already, TLS included: the URL only sets the contents of the
    /// request. Settings for the path to the server (proxy, TLS, redirects, local address, `TCP_NODELAY`) are
    /// ignored.
    ///
    /// ```
    /// # #[cfg(feature = "tokio")] {
    /// let (stream, _server) = tokio::io::duplex(4096);
    /// let connect = sinews::connect("ws://example.com/chat").header("cookie", "a=b").over(stream);
    /// # drop(connect);
    /// # }
    /// ```
    pub fn over<S>(self, stream: S) -> Connect<OverStream<R, S>> {
        Connect {
            settings: self.settings,
            #[cfg(feature = "url-connect")]
            network: self.network,
            runtime: OverStream { stream, runtime: self.runtime },
        }
    }
}

/// Settings for the path to the server.
#[cfg(feature = "url-connect")]
impl<R: Runtime> Connect<R> {
    /// Connects through a proxy: `http://user:password@host:port` by HTTP CONNECT (RFC 9110 section 9.3.6),
    /// `socks5://…` or `socks5h://…` by SOCKS5 (RFC 1928, RFC 1929). With `socks5h` the proxy resolves the server's
    /// name; with `socks5` the client resolves it, and uses its first address. The default port is 80 for HTTP and
    /// 1080 for SOCKS5. Replaces [`proxy_from_environment`](Self::proxy_from_environment).
    pub fn proxy(mut self, url: impl Into<String>) -> Self {
        self.network.proxy = ProxyChoice::Url(url.into());
        self
    }

    /// Connects without a proxy, regardless of the environment.
    pub fn no_proxy(mut self) -> Self {
        self.network.proxy = ProxyChoice::None;
        self
    }

    /// Connects through the proxy that the environment names, if any. This is the default, as in most clients: where
    /// a proxy is the only route, the environment names it.
    ///
    /// `https_proxy` is for `wss`, `http_proxy` for `ws`, `all_proxy` for a scheme without its own variable; in lower
    /// or upper case, lower case first. `HTTP_PROXY` in upper case is ignored where `REQUEST_METHOD` is set: in a CGI
    /// program a client of the web server could set it.
    ///
    /// `no_proxy` lists servers that are reached directly, separated by commas: domain names, which include their
    /// subdomains, addresses, networks such as `10.0.0.0/8`, each with a port or without, or `*`. `localhost` and
    /// loopback addresses are always reached directly.
    pub fn proxy_from_environment(mut self) -> Self {
        self.network.proxy = ProxyChoice::Environment;
        self
    }

    /// Follows up to `max` redirects (301, 302, 303, 307, 308). Default 0, as browsers do: a redirect is then
    /// [`ConnectError::Rejected`](super::ConnectError::Rejected), with its `Location`.
    ///
    /// `Authorization`, `Proxy-Authorization` and `Cookie`, and name and password of the URL, are not sent to another
    /// origin (scheme, host, port), nor to any server behind it; all other headers are sent along.
    pub fn redirects(mut self, max: u8) -> Self {
        self.network.redirects = max;
        self
    }

    /// Allows redirects from `wss` to `ws`, which is not encrypted. Default: no.
    pub fn allow_downgrade(mut self, allow: bool) -> Self {
        self.network.downgrade = allow;
        self
    }

    /// Sets the local address to connect from, and so the family of addresses to connect to. Default: the system's
    /// choice.
    pub fn local_address(mut self, address: impl Into<Option<IpAddr>>) -> Self {
        self.network.local = address.into();
        self
    }

    /// Connects to `address` and `address_port` where the URL, or a redirect, names the host `server` and `server_port`: for
    /// a server whose name does not resolve to it yet, or one of several servers behind a name. The arguments have the
    /// order of curl's `--connect-to`. Request and certificate are those of the URL. May be called for several servers;
    /// the first match applies. A proxy is asked for `address`.
    ///
    /// Connecting fails with [`ConnectError::Url`](crate::ConnectError::Url) if `address` is empty, or contains a space, a control
    /// character or a character outside of ASCII: write international names in their `xn--` form.
    pub fn connect_to(mut self, server: &str, server_port: u16, address: &str, address_port: u16) -> Self {
        let from = (server.to_owned(), server_port);
        let to = (address.to_owned(), address_port);
        self.network.address_overrides.push(AddressOverride { from, to });
        self
    }

    /// Sets `TCP_NODELAY`, which disables Nagle's algorithm. Default: yes. Coalescing works without the algorithm,
    /// which delays small packets by up to 40 ms.
    pub fn nodelay(mut self, nodelay: bool) -> Self {
        self.network.nodelay = nodelay;
        self
    }
}

/// Omits headers and passwords, since the output may end in logs.
impl<R> fmt::Debug for Connect<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connect").field("url", &redacted(&self.settings.url)).finish_non_exhaustive()
    }
}
