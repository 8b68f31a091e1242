//! Where a server listens, and what it expects there.

use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sinews_engine::{ListenOptions, Listener};

use crate::inherit::ListenAddress;
use crate::messages::MessageRoute;
use crate::tls::TlsConfig;

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
    pub(crate) place: Place,
    pub(crate) expects: Expects,
}

#[derive(Clone, Debug)]
pub(crate) enum Place {
    Tcp(SocketAddr),
    Unix { path: PathBuf, mode: u32 },
}

/// What a connection of a listener begins with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expects {
    /// A PROXY header.
    pub(crate) proxy: bool,
    /// A TLS handshake.
    pub(crate) tls: Option<TlsConfig>,
    /// No HTTP.
    pub(crate) messages: Option<Arc<MessageRoute>>,
}

impl Listen {
    /// A TCP address; port 0 takes a free one.
    #[must_use]
    pub fn tcp(address: SocketAddr) -> Self {
        Self { place: Place::Tcp(address), expects: Expects::default() }
    }

    /// A Unix socket at a path, for what stands in front of the server on the same machine. `mode` is its permissions:
    /// `0o660` lets the user and the group of the process connect. A socket that was left behind there by a server
    /// that has ended is replaced, and the file is removed when this one ends. What comes through it has the
    /// [peer](crate::Request::peer) `0.0.0.0:0`; to believe its headers trust `0.0.0.0/32`
    /// ([`Server::trusted_proxies`](crate::Server::trusted_proxies)).
    #[must_use]
    pub fn unix(path: impl Into<PathBuf>, mode: u32) -> Self {
        Self { place: Place::Unix { path: path.into(), mode }, expects: Expects::default() }
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

    /// Every connection speaks TLS; behind the PROXY header, if there is one. Default: it does not.
    #[must_use]
    pub fn with_tls(mut self, tls: TlsConfig) -> Self {
        self.expects.tls = Some(tls);
        self
    }

    /// Every connection is one of [messages](MessageRoute) from its first byte on, behind the PROXY header and TLS if
    /// there are such. One that is beyond a limit is closed without a word. Default: HTTP.
    #[must_use]
    pub fn with_messages(mut self, route: MessageRoute) -> Self {
        self.expects.messages = Some(Arc::new(route));
        self
    }
}

/// A listener for each thread, or more, and what is to be known of them.
pub(crate) struct Bound {
    pub(crate) listeners: Vec<Listener>,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) file: Option<SocketFile>,
}

impl Place {
    pub(crate) fn address(&self) -> ListenAddress {
        match self {
            Self::Tcp(address) => ListenAddress::Tcp(*address),
            Self::Unix { path, .. } => ListenAddress::Unix(path.clone()),
        }
    }

    /// Listens there, for so many threads, with what listens there already.
    pub(crate) fn bind(&self, threads: usize, mut inherited: Vec<Listener>) -> io::Result<Bound> {
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
                Ok(Bound { listeners, address, file: None })
            }
            Self::Unix { path, mode } => {
                // All that may be inherited are the same socket; and without its file nobody finds it.
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
                Ok(Bound { listeners, address: None, file: Some(file) })
            }
        }
    }
}

/// The file of a Unix socket: if it is one's own, removed when this is dropped, unless another has taken its place.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
    is_own: bool,
}

impl SocketFile {
    /// One that is another server's still.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)?, is_own: false })
    }

    pub(crate) fn own(&mut self) {
        self.is_own = true;
    }

    /// It is another server's now.
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
            tracing::warn!(%error, path = %self.path.display(), "cannot remove the socket's file");
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}
