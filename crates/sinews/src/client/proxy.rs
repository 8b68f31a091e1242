//! Choice of the proxy for a server.

use std::net::IpAddr;

use http::Uri;

use super::proxy_error::ProxyError;
use super::target::{ConnectTarget, Credentials, UrlAuthority, UrlError, authority, redacted};

/// Proxy setting of [`Connect`](super::Connect).
#[derive(Clone, Debug, Default)]
pub(crate) enum ProxyChoice {
    #[default]
    Environment,
    None,
    Url(String),
}

/// A proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proxy {
    pub(crate) kind: ProxyKind,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) credentials: Option<Credentials>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProxyKind {
    /// `http://`: CONNECT.
    Http,
    /// `socks5://`: the client resolves names.
    Socks5,
    /// `socks5h://`: the proxy resolves names.
    Socks5h,
}

impl ProxyChoice {
    /// The proxy for this server, if any.
    pub(crate) fn choose(
        &self,
        target: &ConnectTarget,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<Proxy>, (String, ProxyError)> {
        match self {
            Self::None => Ok(None),
            Self::Url(url) => Proxy::parse(url).map(Some).map_err(|error| (redacted(url), error)),
            Self::Environment => from_environment(target, variable),
        }
    }
}

impl Proxy {
    pub(crate) fn parse(url: &str) -> Result<Self, ProxyError> {
        // Without a scheme, `host:port` names an HTTP proxy.
        let with_scheme = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let uri: Uri = with_scheme.parse().map_err(|_| ProxyError::Url(UrlError::Malformed))?;
        let kind = match uri.scheme_str().unwrap_or_default().to_ascii_lowercase().as_str() {
            "http" => ProxyKind::Http,
            "socks5" => ProxyKind::Socks5,
            "socks5h" => ProxyKind::Socks5h,
            _ => return Err(ProxyError::Scheme),
        };
        let UrlAuthority { host, port, credentials } =
            UrlAuthority::from_uri(&uri).map_err(ProxyError::Url)?;
        let default = if kind == ProxyKind::Http { 80 } else { 1080 };
        Ok(Self { kind, host, port: port.unwrap_or(default), credentials })
    }

    /// The proxy's URL without name and password.
    pub(crate) fn name(&self) -> String {
        let scheme = match self.kind {
            ProxyKind::Http => "http",
            ProxyKind::Socks5 => "socks5",
            ProxyKind::Socks5h => "socks5h",
        };
        format!("{scheme}://{}", authority(&self.host, self.port))
    }
}

/// Reads the environment variables by convention, as no standard defines them: see
/// [`Connect::proxy_from_environment`].
///
/// [`Connect::proxy_from_environment`]: super::Connect::proxy_from_environment
fn from_environment(
    target: &ConnectTarget,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<Proxy>, (String, ProxyError)> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    if is_local(&target.host) || any_case(&set, "no_proxy").is_some_and(|list| is_exempt(&list.1, target)) {
        return Ok(None);
    }
    let own = match target.secure {
        true => any_case(&set, "https_proxy"),
        // A server that runs CGI programs sets HTTP_PROXY to the value of a request's header `Proxy`.
        false if set("REQUEST_METHOD").is_some() => {
            set("http_proxy").map(|url| ("http_proxy".to_owned(), url))
        }
        false => any_case(&set, "http_proxy"),
    };
    let Some((name, url)) = own.or_else(|| any_case(&set, "all_proxy")) else { return Ok(None) };
    Proxy::parse(&url).map(Some).map_err(|error| (format!("{name}={}", redacted(&url)), error))
}

/// A variable in lower or upper case, lower case first, with its name.
fn any_case(set: &dyn Fn(&str) -> Option<String>, name: &str) -> Option<(String, String)> {
    [name.to_owned(), name.to_ascii_uppercase()]
        .into_iter()
        .find_map(|name| set(&name).map(|value| (name, value)))
}

/// Whether the host is this machine: a proxy would connect to itself.
fn is_local(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    match host.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    }
}

/// Whether the list of `NO_PROXY` contains the server.
fn is_exempt(list: &str, target: &ConnectTarget) -> bool {
    list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).any(|entry| names(entry, target))
}

fn names(entry: &str, target: &ConnectTarget) -> bool {
    if entry == "*" {
        return true;
    }
    let (entry, port) = split_port(entry);
    if port.is_some_and(|port| port != target.port) {
        return false;
    }
    let Ok(host) = target.host.parse::<IpAddr>() else {
        let entry = entry.trim_start_matches("*.").trim_matches('.').to_ascii_lowercase();
        let host = target.host.trim_end_matches('.').to_ascii_lowercase();
        return !entry.is_empty()
            && host.strip_suffix(&entry).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    };
    match entry.split_once('/') {
        Some((network, bits)) => match (network.parse(), bits.parse()) {
            (Ok(network), Ok(bits)) => is_within(host, network, bits),
            _ => false,
        },
        None => entry.parse() == Ok(host),
    }
}

/// Splits the port off an entry of the list; an IPv6 address with a port is in brackets.
fn split_port(entry: &str) -> (&str, Option<u16>) {
    if let Some((address, rest)) = entry.strip_prefix('[').and_then(|entry| entry.split_once(']')) {
        return (address, rest.strip_prefix(':').and_then(|port| port.parse().ok()));
    }
    match entry.split_once(':') {
        Some((host, port)) if !port.contains(':') => match port.parse() {
            Ok(port) => (host, Some(port)),
            Err(_) => (entry, None),
        },
        _ => (entry, None),
    }
}

fn is_within(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) if bits <= 32 => {
            (address.to_bits() ^ network.to_bits()).checked_shr(32 - bits).unwrap_or(0) == 0
        }
        (IpAddr::V6(address), IpAddr::V6(network)) if bits <= 128 => {
            (address.to_bits() ^ network.to_bits()).checked_shr(128 - bits).unwrap_or(0) == 0
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Host and port of the proxy that this environment names, "" without a proxy.
    fn chosen(url: &str, environment: &[(&str, &str)]) -> String {
        let target = ConnectTarget::parse(url).expect(url);
        let variable = |name: &str| {
            environment.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned())
        };
        match ProxyChoice::Environment.choose(&target, &variable) {
            Ok(proxy) => proxy.map_or_else(String::new, |proxy| proxy.name()),
            Err((name, error)) => format!("{name}: {error}"),
        }
    }

    #[test]
    fn proxy_urls_are_parsed_with_default_ports() {
        let parse = |url| Proxy::parse(url).map(|proxy| proxy.name()).map_err(|error| error.to_string());
        assert_eq!(parse("http://proxy"), Ok("http://proxy:80".into()));
        assert_eq!(parse("proxy:3128"), Ok("http://proxy:3128".into()));
        assert_eq!(parse("user:pw@proxy:3128/"), Ok("http://proxy:3128".into()));
        assert_eq!(parse("SOCKS5://[::1]"), Ok("socks5://[::1]:1080".into()));
        assert_eq!(parse("socks5h://proxy:1"), Ok("socks5h://proxy:1".into()));
        assert!(parse("https://proxy").is_err_and(|error| error.contains("socks5h")));
        assert!(parse("socks4://proxy").is_err());
        assert!(parse("http://proxy:99999").is_err());
        let proxy = Proxy::parse("socks5://u:p%40@proxy").expect("sound");
        assert_eq!(proxy.credentials.map(|it| (it.user, it.password)), Some((b"u".to_vec(), b"p@".to_vec())));
    }

    #[test]
    fn each_scheme_has_its_environment_variable() {
        let all = [("HTTPS_PROXY", "s:1"), ("HTTP_PROXY", "p:1"), ("ALL_PROXY", "a:1")];
        assert_eq!(chosen("wss://x/", &all), "http://s:1");
        assert_eq!(chosen("ws://x/", &all), "http://p:1");
        assert_eq!(chosen("ws://x/", &all[2..]), "http://a:1");
        assert_eq!(chosen("wss://x/", &[("ALL_PROXY", "socks5h://a")]), "socks5h://a:1080");
        assert_eq!(chosen("wss://x/", &[("HTTPS_PROXY", "u:1"), ("https_proxy", "l:1")]), "http://l:1");
        assert_eq!(chosen("wss://x/", &[("HTTPS_PROXY", ""), ("HTTP_PROXY", "p:1")]), "");
        assert_eq!(chosen("wss://x/", &[]), "");
        assert_eq!(
            chosen("wss://x/", &[("HTTPS_PROXY", "ftp://u:secret@p")]),
            "HTTPS_PROXY=ftp://p: the scheme must be http, socks5 or socks5h"
        );
    }

    #[test]
    fn http_proxy_in_upper_case_is_ignored_in_cgi_programs() {
        let cgi = [("REQUEST_METHOD", "GET"), ("HTTP_PROXY", "evil:1")];
        assert_eq!(chosen("ws://x/", &cgi), "");
        assert_eq!(chosen("ws://x/", &[cgi[0], cgi[1], ("http_proxy", "good:1")]), "http://good:1");
    }

    #[test]
    fn loopback_is_reached_without_a_proxy() {
        for url in ["ws://localhost/", "ws://127.1.2.3/", "ws://[::1]/", "ws://A.LocalHost/"] {
            assert_eq!(chosen(url, &[("ALL_PROXY", "a:1")]), "", "{url}");
        }
        assert_eq!(chosen("ws://notlocalhost/", &[("ALL_PROXY", "a:1")]), "http://a:1");
    }

    #[test]
    fn no_proxy_matches_names_addresses_and_networks() {
        let exempt = |list, url| chosen(url, &[("ALL_PROXY", "a:1"), ("NO_PROXY", list)]).is_empty();
        for (list, url) in [
            ("*", "ws://x/"),
            ("other, Example.com", "ws://example.COM/"),
            ("example.com", "ws://a.b.example.com/"),
            (".example.com", "ws://a.example.com/"),
            (".example.com", "ws://example.com/"),
            ("*.example.com", "ws://a.example.com/"),
            ("example.com", "ws://example.com./"),
            ("example.com:8080", "ws://example.com:8080/"),
            ("10.1.2.3", "ws://10.1.2.3/"),
            ("10.0.0.0/8", "ws://10.1.2.3/"),
            ("10.1.2.3:80", "ws://10.1.2.3/"),
            ("0.0.0.0/0", "ws://10.1.2.3/"),
            ("2001:db8::/32", "ws://[2001:db8::5]/"),
            ("[2001:db8::5]:80", "ws://[2001:DB8::5]/"),
            ("2001:db8::5", "ws://[2001:db8::5]/"),
        ] {
            assert!(exempt(list, url), "{list} names {url}");
        }
        for (list, url) in [
            ("", "ws://x/"),
            (",", "ws://x/"),
            (".", "ws://x/"),
            ("example.com", "ws://badexample.com/"),
            ("a.example.com", "ws://example.com/"),
            ("example.com:8080", "ws://example.com/"),
            ("10.0.0.0/8", "ws://11.1.2.3/"),
            ("10.0.0.0/33", "ws://10.1.2.3/"),
            ("10.0.0.0/8", "ws://10.example.com/"),
            ("0.3", "ws://10.1.0.3/"),
            ("2001:db8::/32", "ws://[2001:db9::5]/"),
        ] {
            assert!(!exempt(list, url), "{list} does not name {url}");
        }
        assert_eq!(chosen("ws://x/", &[("ALL_PROXY", "a:1"), ("no_proxy", "x")]), "");
    }
}
