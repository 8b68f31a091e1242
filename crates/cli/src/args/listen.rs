//! Where the server listens, and what stands in front of it.

use clap::{Args, ValueEnum};
use serde::Deserialize;

use crate::config::network::{Mode, Network, Place};

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ListenArgs {
    /// Address to listen on: `HOST:PORT`, `PORT` alone for 127.0.0.1, `:PORT` for every interface, or `unix:PATH` for
    /// a Unix socket. Port 0 takes a free one. May be given several times [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS", env = "SINEWS_LISTEN", value_delimiter = ',')]
    pub(crate) listen: Option<Vec<Place>>,

    /// Permissions of Unix sockets, in octal digits [default: 0660]
    #[arg(long, value_name = "MODE", env = "SINEWS_UNIX_MODE")]
    pub(crate) unix_mode: Option<Mode>,

    /// Every connection begins with a PROXY header, version 1 or 2, that names the client: only the proxy may be
    /// able to connect then [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        env = "SINEWS_PROXY_PROTOCOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub(crate) proxy_protocol: Option<bool>,

    /// Networks of proxies that are believed when they name their client in a header, and whose connections are
    /// not counted as one client's; `unix` means all that comes through Unix sockets. May be given several times
    #[arg(long, value_name = "NETWORK", env = "SINEWS_TRUSTED_PROXIES", value_delimiter = ',')]
    pub(crate) trusted_proxies: Option<Vec<Network>>,

    /// The header in which they do; the other one is not looked at [default: x-forwarded-for]
    #[arg(long, value_enum, value_name = "NAME", env = "SINEWS_TRUSTED_HEADER")]
    pub(crate) trusted_header: Option<ProxyHeader>,
}

/// Where a proxy names its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ProxyHeader {
    XForwardedFor,
    Forwarded,
}
