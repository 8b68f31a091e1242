//! Listen addresses, and trusted proxies.

use clap::{Args, ValueEnum};
use serde::Deserialize;

use crate::config::network::{Mode, Network, Place};

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ListenArgs {
    /// Address to listen on: `HOST:PORT`, `PORT` alone for 127.0.0.1, `:PORT` for every interface, or `unix:PATH` for
    /// a Unix socket. Port 0 selects a free port. Repeatable [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS", env = "SINEWS_LISTEN", value_delimiter = ',')]
    pub(crate) listen: Option<Vec<Place>>,

    /// Permissions of Unix sockets, in octal digits [default: 0660]
    #[arg(long, value_name = "MODE", env = "SINEWS_UNIX_MODE")]
    pub(crate) unix_mode: Option<Mode>,

    /// Expect a PROXY header, version 1 or 2, with the client's address at the start of every connection. Only the
    /// proxy may be able to connect [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        env = "SINEWS_PROXY_PROTOCOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub(crate) proxy_protocol: Option<bool>,

    /// Networks of trusted proxies: their header with the client address is used, and their connections do not count
    /// for the limit per address. `unix` means all Unix sockets. Repeatable
    #[arg(long, value_name = "NETWORK", env = "SINEWS_TRUSTED_PROXIES", value_delimiter = ',')]
    pub(crate) trusted_proxies: Option<Vec<Network>>,

    /// Header in which trusted proxies pass the client address; other headers are ignored [default: x-forwarded-for]
    #[arg(long, value_enum, value_name = "NAME", env = "SINEWS_TRUSTED_HEADER")]
    pub(crate) trusted_header: Option<ProxyHeader>,
}

/// Header with the client address, set by a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ProxyHeader {
    XForwardedFor,
    Forwarded,
}
