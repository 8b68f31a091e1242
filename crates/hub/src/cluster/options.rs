//! Cluster options.

use std::fmt;

use percent_encoding::percent_decode_str;

use crate::error::{HubError, HubErrorKind};

/// Options for a server cluster: the broker that connects its nodes, and this node's identity.
///
/// ```
/// use sinews_hub::ClusterOptions;
///
/// let options = ClusterOptions::parse("nats://one:4222,two?prefix=staging")?;
/// assert_eq!(options.to_string(), "nats://one:4222,two:4222");
/// assert!(ClusterOptions::parse("kafka://one").is_err());
/// # Ok::<(), sinews_hub::HubError>(())
/// ```
#[derive(Clone)]
pub struct ClusterOptions {
    pub(crate) engine: BrokerKind,
    pub(crate) has_tls: bool,
    /// Hosts with ports.
    pub(crate) hosts: Vec<String>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    /// Prefix for all subjects and channels.
    pub(crate) prefix: String,
    pub(crate) name: Option<String>,
}

/// The kind of a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BrokerKind {
    Nats,
    Redis,
}

/// Default prefix for subjects and channels.
const PREFIX: &str = "sinews";

/// Longest prefix in bytes, so that a subject fits the control line of NATS (4 KiB) with the longest topic.
const PREFIX_MAX: usize = 64;

/// Maximum node name in bytes.
const NAME_MAX: usize = 64;

impl ClusterOptions {
    /// Parses a broker's URL: `nats://[user:password@]host[:port][,host…]` or `redis://…`; with TLS `nats+tls://` and
    /// `rediss://`. `nats://token@host` has a token. `?prefix=NAME` separates clusters at one broker: all nodes in a
    /// cluster have the same prefix, `sinews` by default. Redis supports one host.
    ///
    /// # Errors
    /// [`HubErrorKind::Url`], with the reason, and without the URL, which may have a password.
    pub fn parse(url: &str) -> Result<Self, HubError> {
        Self::read(url).map_err(|fault| HubError::new(HubErrorKind::Url, fault))
    }

    fn read(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let (engine, has_tls, port) = match &*scheme.to_ascii_lowercase() {
            "nats" => (BrokerKind::Nats, false, 4222),
            "nats+tls" => (BrokerKind::Nats, true, 4222),
            "redis" => (BrokerKind::Redis, false, 6379),
            "rediss" => (BrokerKind::Redis, true, 6379),
            _ => return Err("unknown scheme: nats, nats+tls, redis and rediss are supported".to_owned()),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (login, hosts) =
            rest.rsplit_once('@').map_or((None, rest), |(login, hosts)| (Some(login), hosts));
        let hosts = parse_hosts(hosts.trim_end_matches('/'), port)?;
        if engine == BrokerKind::Redis && hosts.len() > 1 {
            return Err("several hosts: Redis supports one".to_owned());
        }
        let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
            None => (None, None),
            Some((user, password)) => (decoded(user)?, decoded(password)?),
        };
        let mut prefix = PREFIX.to_owned();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("prefix", value)) => prefix = decoded(value)?.unwrap_or_default(),
                _ => return Err("unknown setting in the URL: only `prefix` is supported".to_owned()),
            }
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if prefix.is_empty() || prefix.len() > PREFIX_MAX || !prefix.bytes().all(is_plain) {
            return Err(format!(
                "`prefix` must have 1 to {PREFIX_MAX} letters (a-z, A-Z), digits, `-` or `_`"
            ));
        }
        Ok(Self { engine, has_tls, hosts, user, password, prefix, name: None })
    }

    /// Sets the broker user's password, in place of a password in the URL.
    #[must_use]
    pub fn with_password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Sets this node's name, for node lists. Default: the host name. Nodes are identified by a random id, so names
    /// need not differ.
    ///
    /// # Errors
    /// [`HubErrorKind::Setting`]: the name has not 1 to 64 bytes, or has control characters.
    pub fn with_name(mut self, name: impl Into<String>) -> Result<Self, HubError> {
        let name = name.into();
        if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
            return Err(HubError::setting(format!(
                "the name of a node must have 1 to {NAME_MAX} bytes and no control characters"
            )));
        }
        self.name = Some(name);
        Ok(self)
    }
}

/// Omits the login.
impl fmt::Display for ClusterOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (self.engine, self.has_tls) {
            (BrokerKind::Nats, false) => "nats",
            (BrokerKind::Nats, true) => "nats+tls",
            (BrokerKind::Redis, false) => "redis",
            (BrokerKind::Redis, true) => "rediss",
        };
        write!(f, "{scheme}://{}", self.hosts.join(","))
    }
}

impl fmt::Debug for ClusterOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClusterOptions").field(&self.to_string()).finish()
    }
}

fn parse_hosts(hosts: &str, port: u16) -> Result<Vec<String>, String> {
    let with_port = |host: &str| {
        // A colon within brackets belongs to an IPv6 address.
        let after_address = host.rsplit_once(']').map_or(host, |(_, after)| after);
        match after_address.split_once(':') {
            _ if host.is_empty() || host.contains('/') => {
                Err("the URL has no host, or has a path".to_owned())
            }
            None => Ok(format!("{host}:{port}")),
            Some((_, given)) if given.parse::<u16>().is_ok() => Ok(host.to_owned()),
            // Without an `@` behind it, a password is here.
            Some(_) => Err("the text behind the colon of a host is not a port".to_owned()),
        }
    };
    hosts.split(',').map(with_port).collect()
}

/// `None` for an empty text.
fn decoded(text: &str) -> Result<Option<String>, String> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|_| "the percent-encoding of the URL is not UTF-8".to_owned())?;
    Ok(Some(decoded.into_owned()).filter(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_of_the_url_are_read() {
        let options = ClusterOptions::parse("nats+tls://ann:p%40ss@one,[::1],two:7/?prefix=a_b").unwrap();
        assert_eq!(options.to_string(), "nats+tls://one:4222,[::1]:4222,two:7");
        assert_eq!((options.user.as_deref(), options.password.as_deref()), (Some("ann"), Some("p@ss")));
        assert_eq!((&*options.prefix, options.has_tls), ("a_b", true));
        let options = ClusterOptions::parse("redis://:secret@host").unwrap();
        assert_eq!((options.user, options.password.as_deref()), (None, Some("secret")));
        assert_eq!((&*options.prefix, options.engine), (PREFIX, BrokerKind::Redis));
    }

    #[test]
    fn invalid_urls_are_rejected_without_their_password() {
        for (url, reason) in [
            ("host", "unknown scheme"),
            ("kafka://host", "unknown scheme"),
            ("nats://a:secret@", "no host"),
            ("nats://a:secret@h/path", "path"),
            ("nats://a:secret@h:x1", "not a port"),
            ("redis://a:secret@h,i", "several hosts"),
            ("nats://a:secret@h?x=y", "unknown setting"),
            ("nats://a:secret@h?prefix=a.b", "prefix"),
            ("nats://%FF@h", "UTF-8"),
        ] {
            let error = ClusterOptions::parse(url).unwrap_err().to_string();
            assert!(error.contains(reason) && !error.contains("secret"), "{url}: {error}");
        }
        let options = ClusterOptions::parse("nats://h").unwrap();
        assert!(options.clone().with_name("").is_err() && options.with_name("a\n").is_err());
    }
}
