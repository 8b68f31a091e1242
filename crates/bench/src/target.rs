//! A run's target: a parsed and resolved URL.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;

use sinews_engine::Remote;

use crate::url::with_scheme;

/// A target's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetProtocol {
    WebSocket,
    Http,
    Tcp,
}

#[derive(Clone, Debug)]
pub(crate) struct LoadTarget {
    pub(crate) url: String,
    pub(crate) protocol: TargetProtocol,
    pub(crate) tls: bool,
    /// Host without the port.
    pub(crate) name: String,
    /// `Host` header value.
    pub(crate) host: String,
    /// Path with the query.
    pub(crate) path: String,
    pub(crate) remote: Remote,
}

impl LoadTarget {
    /// # Errors
    ///
    /// Returns an error if the URL is invalid or its host is unknown.
    pub(crate) fn new(url: &str, unix: Option<&Path>) -> Result<Self, String> {
        let url = &*with_scheme(url);
        let wrong = || format!("{url}: expected ws://, wss://, http://, https:// or tcp:// and a host");
        let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
        let (protocol, tls, default) = match scheme.to_ascii_lowercase().as_str() {
            "ws" => (TargetProtocol::WebSocket, false, Some(80)),
            "wss" => (TargetProtocol::WebSocket, true, Some(443)),
            "http" => (TargetProtocol::Http, false, Some(80)),
            "https" => (TargetProtocol::Http, true, Some(443)),
            "tcp" => (TargetProtocol::Tcp, false, None),
            _ => return Err(wrong()),
        };
        let rest = rest.split_once('#').map_or(rest, |(rest, _)| rest);
        let at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (host, path) = rest.split_at(at);
        if host.is_empty() || host.contains('@') {
            return Err(wrong());
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let (name, port) = split_port(host).ok_or_else(wrong)?;
        let remote = match unix {
            Some(path) => Remote::from(std::sync::Arc::<Path>::from(path)),
            None => {
                let port = port.or(default).ok_or_else(|| format!("{url}: port is missing"))?;
                lookup(name, port)?.into()
            }
        };
        let host = if port.is_some() && port == default {
            host[..host.len() - port_len(host)].to_owned()
        } else {
            host.to_owned()
        };
        Ok(Self { url: url.to_owned(), protocol, tls, name: name.to_owned(), host, path, remote })
    }
}

fn port_len(host: &str) -> usize {
    host.rfind(':').map_or(0, |at| host.len() - at)
}

/// Splits into the name, without an address's brackets, and the port.
fn split_port(host: &str) -> Option<(&str, Option<u16>)> {
    if let Some(rest) = host.strip_prefix('[') {
        let (name, port) = rest.split_once(']')?;
        return match port.strip_prefix(':') {
            Some(port) => Some((name, Some(port.parse().ok()?))),
            None => port.is_empty().then_some((name, None)),
        };
    }
    match host.split_once(':') {
        Some((name, port)) => (!name.is_empty()).then_some((name, Some(port.parse().ok()?))),
        None => Some((host, None)),
    }
}

fn lookup(name: &str, port: u16) -> Result<SocketAddr, String> {
    let mut all = (name, port).to_socket_addrs().map_err(|error| format!("{name}: {error}"))?;
    all.next().ok_or_else(|| format!("{name}: name has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_parse_into_protocol_host_and_path() {
        let of = |url: &str| {
            let target = LoadTarget::new(url, None).unwrap();
            (target.protocol, target.tls, target.host, target.path, target.remote)
        };
        let at = |address: &str| Remote::from(address.parse::<SocketAddr>().unwrap());
        assert_eq!(
            of("ws://127.0.0.1:9001/a?b=c#d"),
            (
                TargetProtocol::WebSocket,
                false,
                "127.0.0.1:9001".into(),
                "/a?b=c".into(),
                at("127.0.0.1:9001")
            )
        );
        assert_eq!(
            of("https://[::1]:443?x"),
            (TargetProtocol::Http, true, "[::1]".into(), "/?x".into(), at("[::1]:443"))
        );
        assert_eq!(of("tcp://127.0.0.1:7").0, TargetProtocol::Tcp);
        for wrong in
            ["", "ws:/a", "ftp://a", "ws://", "ws://a@127.0.0.1", "tcp://127.0.0.1", "ws://127.0.0.1:x"]
        {
            assert!(LoadTarget::new(wrong, None).is_err(), "{wrong}");
        }
    }
}
