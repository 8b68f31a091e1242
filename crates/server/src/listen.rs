//! Where a server listens, and what it expects there.

use std::net::SocketAddr;

/// One place to listen at, for [`Server::listen_on`](crate::Server::listen_on).
///
/// ```
/// use sinews_server::{Listen, Router, Server};
///
/// let behind_haproxy = Listen::tcp("127.0.0.1:0".parse()?).with_proxy_protocol();
/// let server = Server::new(Router::new()).threads(1).listen_on(behind_haproxy).bind()?;
/// # drop(server);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Listen {
    pub(crate) address: SocketAddr,
    pub(crate) expects: Expects,
}

/// What a connection of a listener begins with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expects {
    /// A PROXY header.
    pub(crate) proxy: bool,
}

impl Listen {
    /// A TCP address; port 0 takes a free one.
    #[must_use]
    pub fn tcp(address: SocketAddr) -> Self {
        Self { address, expects: Expects::default() }
    }

    /// Every connection begins with a PROXY header, version 1 or 2, as HAProxy, nginx, Envoy and the load balancers of
    /// clouds send it. The client that it names is the [`peer`](crate::Request::peer) then, and the one whose
    /// connections are [counted](crate::Limits::with_max_connections_per_address). A connection that begins
    /// otherwise, or whose header is not whole within
    /// [`head_timeout`](crate::HttpConfig::with_head_timeout), is closed.
    ///
    /// Whoever can connect here can name any client, so only the proxy may be able to: bind an address that it alone
    /// reaches, or have a firewall see to it. Default: no header.
    #[must_use]
    pub fn with_proxy_protocol(mut self) -> Self {
        self.expects.proxy = true;
        self
    }
}
