//! Listen addresses, and the protocols of their connections.

use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sinews_engine::{ListenOptions, Listener};

use crate::messages::MessageRoute;
use crate::tls::TlsConfig;

/// Listen address and protocol, for [`Server::listen_on`](crate::Server::listen_on).
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
    pub(crate) target: ListenTarget,
    pub(crate) protocol: ListenerProtocol,
}

/// Listen address as configured.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ListenAddress {
    /// An address; port 0 if any free port was requested.
    Tcp(SocketAddr),
    /// A path.
    Unix(PathBuf),
    /// No address, but the way of datagrams of HTTP/3 between a server and its successor.
    Datagrams,
}

#[derive(Clone, Debug)]
pub(crate) enum ListenTarget {
    Tcp(SocketAddr),
    Unix { path: PathBuf, mode: u32 },
}

/// Protocol layers of a listener's connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListenerProtocol {
    /// Connections begin with a PROXY header.
    pub(crate) proxy: bool,
    /// Connections speak TLS.
    pub(crate) tls: Option<TlsConfig>,
    /// Connections carry messages instead of HTTP.
    pub(crate) messages: Option<Arc<MessageRoute>>,
    /// Port of HTTP/3, if it is bound.
    pub(crate) http3_port: Option<NonZeroU16>,
    /// Tag that requests show.
    pub(crate) tag: u8,
}

impl ListenerProtocol {
    /// Returns whether HTTP/3 is served beside: QUIC includes TLS, a proxy does not pass it on, and it has no tags.
    pub(crate) const fn carries_http3(&self) -> bool {
        self.tls.is_some() && !self.proxy && self.messages.is_none() && self.tag == 0
    }
}

impl Listen {
    /// Listens on a TCP address; port 0 takes a free one.
    #[must_use]
    pub fn tcp(address: SocketAddr) -> Self {
        Self { target: ListenTarget::Tcp(address), protocol: ListenerProtocol::default() }
    }

    /// Listens on a Unix socket, for a proxy on the same machine. `mode` is its permissions: `0o660` lets the user
    /// and the group of the process connect. A stale socket file of an ended server is replaced, and the file is
    /// removed at the end of this server. Connections have the [peer](crate::Request::peer) `0.0.0.0:0`; to trust
    /// their headers, trust `0.0.0.0/32` ([`Server::trusted_proxies`](crate::Server::trusted_proxies)).
    #[must_use]
    pub fn unix(path: impl Into<PathBuf>, mode: u32) -> Self {
        Self { target: ListenTarget::Unix { path: path.into(), mode }, protocol: ListenerProtocol::default() }
    }

    /// Requires a PROXY header, version 1 or 2, on every connection, as HAProxy, nginx, Envoy and cloud load
    /// balancers send it. The client in it becomes the [`peer`](crate::Request::peer), and its connections are
    /// [counted](crate::Limits::with_max_connections_per_address). A connection without a complete header within
    /// [`head_timeout`](crate::HttpConfig::with_head_timeout), or with an invalid one, is closed.
    ///
    /// Any peer of this address can claim any client address, so only the proxy may reach it: bind an address that
    /// only the proxy can reach, or use a firewall. Default: no header.
    #[must_use]
    pub fn with_proxy_protocol(mut self) -> Self {
        self.protocol.proxy = true;
        self
    }

    /// Requires TLS on every connection, after the PROXY header if there is one. Default: no TLS.
    #[must_use]
    pub fn with_tls(mut self, tls: TlsConfig) -> Self {
        self.protocol.tls = Some(tls);
        self
    }

    /// Marks the requests that arrive here ([`Request::listener_tag`](crate::Request::listener_tag)), for routes that
    /// serve a part of the listeners, such as an address for administrators. A listener with another tag than 0 serves
    /// no HTTP/3. Default: 0.
    #[must_use]
    pub fn with_tag(mut self, tag: u8) -> Self {
        self.protocol.tag = tag;
        self
    }

    /// Makes every connection one of [messages](MessageRoute) from its first byte on, after the PROXY header and TLS
    /// if enabled. A connection beyond a limit is closed without an answer. Default: HTTP.
    #[must_use]
    pub fn with_messages(mut self, route: MessageRoute) -> Self {
        self.protocol.messages = Some(Arc::new(route));
        self
    }
}

/// Bound listeners, at least one for each thread.
pub(crate) struct BoundAddress {
    pub(crate) listeners: Vec<Listener>,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) file: Option<SocketFile>,
}

impl ListenTarget {
    pub(crate) fn address(&self) -> ListenAddress {
        match self {
            Self::Tcp(address) => ListenAddress::Tcp(*address),
            Self::Unix { path, .. } => ListenAddress::Unix(path.clone()),
        }
    }

    /// Binds listeners for this number of threads, and reuses inherited ones.
    pub(crate) fn bind(&self, threads: usize, mut inherited: Vec<Listener>) -> io::Result<BoundAddress> {
        let options = ListenOptions::default();
        match self {
            Self::Tcp(address) => {
                let listeners = match inherited.first() {
                    None => Listener::bind_all(*address, threads, &options)?,
                    Some(first) => {
                        let more = threads.saturating_sub(inherited.len());
                        let beside = if more > 0 { first.bind_beside(more, &options)? } else { Vec::new() };
                        inherited.extend(beside);
                        inherited
                    }
                };
                let address = listeners.first().map(Listener::local_addr).transpose()?;
                Ok(BoundAddress { listeners, address, file: None })
            }
            Self::Unix { path, mode } => {
                // All inherited listeners share one socket, and clients find it only by its file.
                let found = inherited.pop().filter(|_| path.exists());
                let is_own = found.is_none();
                let first = found.map_or_else(|| Listener::bind_unix(path, *mode, &options), Ok)?;
                let mut file = SocketFile::new(path)?;
                if is_own {
                    file.own();
                } else {
                    fs::set_permissions(path, Permissions::from_mode(*mode))?;
                }
                let mut listeners = vec![first];
                while listeners.len() < threads {
                    listeners.push(listeners[0].try_clone()?);
                }
                Ok(BoundAddress { listeners, address: None, file: Some(file) })
            }
        }
    }
}

/// File of a Unix socket. An owned file is removed on drop, unless another file has replaced it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
    is_own: bool,
}

impl SocketFile {
    /// Takes a file that still belongs to another server.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)?, is_own: false })
    }

    pub(crate) fn own(&mut self) {
        self.is_own = true;
    }

    /// Leaves the file to another server.
    pub(crate) fn disown(&mut self) {
        self.is_own = false;
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_own
            && identity(&self.path).is_ok_and(|identity| identity == self.identity)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(%error, path = %self.path.display(), "cannot remove the socket file");
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}
