//! This server's names: the allowed hosts in the `Host` header.
//!
//! A page can make its own name resolve to this machine's address (DNS rebinding). The browser then treats requests to
//! that name as same-origin with the page; their `Host` shows the name.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use sinews_server::Request;

use crate::error::HubError;
use crate::model::brief::brief;

/// Names that this server accepts in the `Host` header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRules {
    rule: HostRule,
    /// Hosts of the allowed origins, which are names of this server behind a proxy.
    origin_hosts: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum HostRule {
    Any,
    /// Any name, but only this machine's names for clients on this machine.
    Default {
        /// A connection from this machine may use an address that other machines reach, too.
        any_address: bool,
    },
    /// These names, in lower case; a prefix `*.` matches all subdomains.
    Named(Vec<String>),
}

/// All names, but only this machine's names for clients on this machine.
impl Default for HostRules {
    fn default() -> Self {
        Self { rule: HostRule::Default { any_address: false }, origin_hosts: Vec::new() }
    }
}

impl HostRules {
    /// Creates the rule from the setting, if there is one, the listen addresses, and the allowed origins.
    ///
    /// # Errors
    /// [`HubErrorKind::Setting`](crate::HubErrorKind::Setting), with the entry that is not a valid host name.
    pub fn new(
        names: Option<&[String]>,
        listen: impl Iterator<Item = SocketAddr>,
        origins: &[String],
    ) -> Result<Self, HubError> {
        let rule = match names {
            Some([one]) if one == "any" => HostRule::Any,
            Some(names) if names.iter().any(|name| name == "any") => {
                return Err(HubError::setting("any stands alone: the other names would have no effect"));
            }
            Some(names) => HostRule::Named(names.iter().map(|name| checked(name)).collect::<Result<_, _>>()?),
            None => HostRule::Default { any_address: listen.into_iter().any(|it| it.ip().is_unspecified()) },
        };
        let host_of_origin = |origin: &String| host_of(origin.split_once("://")?.1).map(Cow::into_owned);
        let origin_hosts = origins.iter().filter_map(host_of_origin).collect();
        Ok(Self { rule, origin_hosts })
    }

    /// Checks whether a request's `Host` is a name of this server.
    ///
    /// # Errors
    /// The rejected name.
    pub(crate) fn check(&self, request: &Request<'_>) -> Result<(), String> {
        let names = match &self.rule {
            HostRule::Any => return Ok(()),
            HostRule::Default { any_address } => {
                if *any_address || !request.peer().ip().to_canonical().is_loopback() {
                    return Ok(());
                }
                &[][..]
            }
            HostRule::Named(names) => names,
        };
        // Browsers always send the header.
        let Some(authority) = request.head().authority() else { return Ok(()) };
        let host = host_of(authority).unwrap_or_default();
        let is_known = is_of_machine(&host)
            || self.origin_hosts.iter().any(|known| covers(known, &host))
            || names.iter().any(|name| covers(name, &host));
        if is_known { Ok(()) } else { Err(brief(authority)) }
    }
}

/// Returns an authority's host in lower case, without its port and the final dot.
fn host_of(authority: &str) -> Option<Cow<'_, str>> {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if is_port(port) => host,
        _ => authority,
    };
    let host = host.strip_suffix('.').unwrap_or(host);
    let is_lower = !host.bytes().any(|byte| byte.is_ascii_uppercase());
    let host = if is_lower { Cow::Borrowed(host) } else { host.to_ascii_lowercase().into() };
    (!host.is_empty()).then_some(host)
}

/// Whether the host is an address, or a name that resolvers map to this machine only (RFC 6761 section 6.3): no page
/// can make it resolve to another address.
fn is_of_machine(host: &str) -> bool {
    let in_brackets = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    in_brackets.is_some_and(|host| host.parse::<Ipv6Addr>().is_ok())
        || host.parse::<IpAddr>().is_ok()
        || host == "localhost"
        || host.ends_with(".localhost")
}

fn covers(name: &str, host: &str) -> bool {
    match name.strip_prefix('*') {
        // With its dot.
        Some(parent) => host.len() > parent.len() && host.ends_with(parent),
        None => host == name,
    }
}

/// Normalizes a name for comparison.
fn checked(name: &str) -> Result<String, HubError> {
    let host = host_of(name).filter(|host| !name.contains(':') && host.len() <= NAME_MAX);
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let is_name = |host: &Cow<'_, str>| {
        let labels = host.strip_prefix("*.").unwrap_or(host);
        labels.split('.').all(is_label)
    };
    host.filter(is_name).map(Cow::into_owned).ok_or_else(|| {
        HubError::setting(format!(
            "{name:?} is not a host name such as ws.example.com or *.example.com, without scheme and port"
        ))
    })
}

/// Maximum bytes in a name (RFC 1035 section 2.3.4).
const NAME_MAX: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_is_compared_without_case_port_and_final_dot() {
        for (authority, host) in [
            ("A.Example:80", Some("a.example")),
            ("a.example.", Some("a.example")),
            ("[::1]:80", Some("[::1]")),
            ("[::1]", Some("[::1]")),
            ("127.0.0.1", Some("127.0.0.1")),
            (":80", None),
            ("", None),
        ] {
            assert_eq!(host_of(authority).as_deref(), host, "{authority}");
        }
        for host in ["localhost", "a.localhost", "127.0.0.1", "[::1]", "10.1.2.3"] {
            assert!(is_of_machine(host), "{host}");
        }
        for host in ["", "localhost.example", "notlocalhost", "[evil]", "127.0.0.1.example", "[]"] {
            assert!(!is_of_machine(host), "{host}");
        }
    }

    #[test]
    fn wildcard_covers_names_below_only() {
        assert!(covers("*.example.com", "a.example.com") && covers("*.example.com", "a.b.example.com"));
        assert!(!covers("*.example.com", "example.com") && !covers("*.example.com", "badexample.com"));
        assert!(!covers("*.example.com", ".example.com"));
        assert!(covers("example.com", "example.com") && !covers("example.com", "a.example.com"));
    }

    #[test]
    fn invalid_host_name_is_an_error() {
        for name in ["a.example", "A.example.", "*.example.com", "sinews", "a_b"] {
            assert!(checked(name).is_ok(), "{name}");
        }
        for bad in ["", "*", "http://a.example", "a.example:80", "a..b", "a/b", "*.*.a", &"a".repeat(254)] {
            assert!(checked(bad).is_err_and(|error| error.to_string().contains(bad)), "{bad}");
        }
    }
}
