//! Cluster options.

use std::fmt;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;

use super::security::SecurityFiles;
use crate::error::{HubError, HubErrorKind};

/// Options for a server cluster: the broker that connects its nodes, and this node's identity.
///
/// ```
/// use sinews_hub::ClusterOptions;
///
/// let options = ClusterOptions::parse("nats://one:4222,two?prefix=staging")?;
/// assert_eq!(options.to_string(), "nats://one:4222,two:4222");
/// let options = ClusterOptions::parse("redis+sentinel://one,two,three/main")?;
/// assert_eq!(options.to_string(), "redis+sentinel://one:26379,two:26379,three:26379/main");
/// assert!(ClusterOptions::parse("kafka://one").is_err());
/// # Ok::<(), sinews_hub::HubError>(())
/// ```
#[derive(Clone)]
pub struct ClusterOptions {
    pub(crate) engine: BrokerKind,
    pub(crate) has_tls: bool,
    pub(crate) address: BrokerAddress,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    /// Files with certificates and keys.
    pub(crate) files: SecurityFiles,
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

/// Where a broker listens. Hosts have ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BrokerAddress {
    Hosts(Vec<String>),
    Unix(PathBuf),
    /// Redis Sentinel knows the primary's address.
    Sentinels {
        hosts: Vec<String>,
        service: String,
    },
    /// Some servers of a Redis Cluster: each of them passes messages to all others.
    Cluster(Vec<String>),
}

/// Supported schemes and settings, for errors.
const SCHEMES: &str = "nats, nats+tls, redis, rediss, redis+unix, redis+sentinel, rediss+sentinel, redis+cluster and \
                       rediss+cluster";
const SETTINGS: &str = "`prefix`, `tls.ca`, `tls.cert`, `tls.key`, `credentials` and `nkey`";

/// Default prefix for subjects and channels.
const PREFIX: &str = "sinews";

/// Longest prefix in bytes, so that a subject fits the control line of NATS (4 KiB) with the longest topic.
const PREFIX_MAX: usize = 64;

/// Maximum node name in bytes.
const NAME_MAX: usize = 64;

impl BrokerAddress {
    /// The first one of several hosts.
    fn first(self) -> Self {
        match self {
            Self::Hosts(hosts) => Self::Hosts(hosts.into_iter().take(1).collect()),
            other => other,
        }
    }
}

impl ClusterOptions {
    /// Parses a broker's URL: `nats://[user:password@]host[:port][,host…]` or `redis://…`; with TLS `nats+tls://` and
    /// `rediss://`. `nats://token@host` has a token. Redis has a host, a socket (`redis+unix:///path`), Sentinel
    /// (`redis+sentinel://host,host…/SERVICE`, with TLS `rediss+sentinel://`), or a cluster (`redis+cluster://host,host…`,
    /// with TLS `rediss+cluster://`). If the URL names several independent servers or services, for a topic store, messages
    /// pass through the first one.
    ///
    /// Settings behind `?`, joined by `&`: `prefix=NAME` separates clusters at one broker: all nodes in a cluster have
    /// the same prefix, `sinews` by default. `tls.ca=FILE` has the trusted certificate authorities in place of the
    /// system's, `tls.cert=FILE` and `tls.key=FILE` this node's certificate and its key, `credentials=FILE` the JWT and
    /// the seed of a NATS user, and `nkey=FILE` the seed alone. The files are read here and at each connection.
    ///
    /// # Errors
    /// [`HubErrorKind::Url`], with the reason, and without the URL, which may have a password.
    pub fn parse(url: &str) -> Result<Self, HubError> {
        let options = Self::read(url).map_err(|fault| HubError::new(HubErrorKind::Url, fault))?;
        options.files.check().map_err(|fault| HubError::new(HubErrorKind::Url, fault))?;
        Ok(options)
    }

    fn read(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let scheme = scheme.to_ascii_lowercase();
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        // A path may have an `@`.
        let at = if rest.starts_with('/') { None } else { rest.find("@/").or_else(|| rest.rfind('@')) };
        let (login, place) = at.map_or((None, rest), |at| (rest.get(..at), rest.get(at + 1..).unwrap_or("")));
        let (engine, has_tls, address) = match &*scheme {
            "nats" | "nats+tls" => (BrokerKind::Nats, scheme == "nats+tls", parse_hosts(place, 4222)?),
            "redis" | "rediss" => (BrokerKind::Redis, scheme == "rediss", parse_hosts(place, 6379)?.first()),
            "redis+cluster" | "rediss+cluster" => {
                let hosts = host_list(place.trim_end_matches('/'), 6379)?;
                (BrokerKind::Redis, scheme == "rediss+cluster", BrokerAddress::Cluster(hosts))
            }
            "redis+unix" => (BrokerKind::Redis, false, parse_socket(place)?),
            "redis+sentinel" | "rediss+sentinel" => {
                (BrokerKind::Redis, scheme == "rediss+sentinel", parse_sentinels(place)?)
            }
            _ => return Err(format!("unknown scheme: {SCHEMES} are supported")),
        };
        let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
            None => (None, None),
            Some((user, password)) => (decoded(user)?, decoded(password)?),
        };
        let (mut prefix, mut files) = (PREFIX.to_owned(), SecurityFiles::default());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (setting, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decoded(value)?;
            match (setting, files.setting(setting)) {
                ("prefix", _) => prefix = value.unwrap_or_default(),
                (_, Some(file)) if value.is_some() => *file = value.map(PathBuf::from),
                (_, Some(_)) => return Err(format!("`{setting}` has no file name")),
                _ => return Err(format!("unknown setting in the URL: {SETTINGS} are supported")),
            }
        }
        files.check_use(engine, has_tls, login.is_some())?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if prefix.is_empty() || prefix.len() > PREFIX_MAX || !prefix.bytes().all(is_plain) {
            return Err(format!(
                "`prefix` must have 1 to {PREFIX_MAX} letters (a-z, A-Z), digits, `-` or `_`"
            ));
        }
        Ok(Self { engine, has_tls, address, user, password, files, prefix, name: None })
    }

    /// Sets the broker user's password, in place of a password in the URL.
    #[must_use]
    pub fn with_password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Returns whether the login can have a password.
    ///
    /// # Errors
    /// [`HubErrorKind::Setting`]: the URL has `credentials` or `nkey`.
    pub fn check_password(&self) -> Result<(), HubError> {
        match self.files.has_nats_key() {
            true => Err(HubError::setting("the login is by `credentials` or `nkey`, without a password")),
            false => Ok(()),
        }
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
        match &self.address {
            BrokerAddress::Hosts(hosts) => write!(f, "{scheme}://{}", hosts.join(",")),
            BrokerAddress::Unix(path) => write!(f, "{scheme}+unix://{}", path.display()),
            BrokerAddress::Cluster(hosts) => write!(f, "{scheme}+cluster://{}", hosts.join(",")),
            BrokerAddress::Sentinels { hosts, service } => {
                write!(f, "{scheme}+sentinel://{}/{service}", hosts.join(","))
            }
        }
    }
}

impl fmt::Debug for ClusterOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClusterOptions").field(&self.to_string()).finish()
    }
}

fn parse_hosts(hosts: &str, port: u16) -> Result<BrokerAddress, String> {
    host_list(hosts.trim_end_matches('/'), port).map(BrokerAddress::Hosts)
}

/// Reads `/path`.
fn parse_socket(path: &str) -> Result<BrokerAddress, String> {
    match decoded(path)?.filter(|path| path.starts_with('/') && path.len() > 1) {
        Some(path) => Ok(BrokerAddress::Unix(path.into())),
        None => Err("the URL has no path of a socket, as in redis+unix:///run/redis.sock".to_owned()),
    }
}

/// Reads `host,host…/SERVICE`.
fn parse_sentinels(place: &str) -> Result<BrokerAddress, String> {
    let (hosts, service) = place.split_once('/').unwrap_or((place, ""));
    let service = decoded(service.trim_end_matches('/'))?.filter(|service| !service.contains('/'));
    let first = service.as_deref().and_then(|services| services.split(',').next());
    let service = first.filter(|service| !service.is_empty()).map(str::to_owned);
    let service = service.ok_or("the URL has no service of Sentinel, as in redis+sentinel://host/SERVICE")?;
    Ok(BrokerAddress::Sentinels { hosts: host_list(hosts, 26379)?, service })
}

fn host_list(hosts: &str, port: u16) -> Result<Vec<String>, String> {
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
        let options = ClusterOptions::parse("redis+unix://ann:pw@/run/redis@1%20.sock").unwrap();
        assert_eq!(options.to_string(), "redis+unix:///run/redis@1 .sock");
        assert_eq!((options.user.as_deref(), options.password.as_deref()), (Some("ann"), Some("pw")));
        let options = ClusterOptions::parse("redis+unix:///run/redis@1.sock").unwrap();
        assert_eq!((&*options.to_string(), options.user), ("redis+unix:///run/redis@1.sock", None));
        let options = ClusterOptions::parse("rediss+sentinel://:pw@one,[::1]:7,two/main%2D1/").unwrap();
        assert_eq!(options.to_string(), "rediss+sentinel://one:26379,[::1]:7,two:26379/main-1");
        assert_eq!((options.has_tls, options.password.as_deref()), (true, Some("pw")));
        // Messages pass through the first one of independent servers, and through any server of a cluster.
        let shown = |url: &str| ClusterOptions::parse(url).unwrap().to_string();
        assert_eq!(shown("redis://one,two:7"), "redis://one:6379");
        assert_eq!(shown("redis+sentinel://one/main,other"), "redis+sentinel://one:26379/main");
        assert_eq!(shown("rediss+cluster://one,two:7"), "rediss+cluster://one:6379,two:7");
    }

    #[test]
    fn invalid_urls_are_rejected_without_their_password() {
        for (url, reason) in [
            ("host", "unknown scheme"),
            ("kafka://host", "unknown scheme"),
            ("nats://a:secret@", "no host"),
            ("nats://a:secret@h/path", "path"),
            ("nats://a:secret@h:x1", "not a port"),
            ("redis://a:secret@h,", "no host"),
            ("redis+cluster://a:secret@h/path", "path"),
            ("nats://a:secret@h?x=y", "unknown setting"),
            ("nats://a:secret@h?secret", "unknown setting"),
            ("nats://a:secret@h?tls.ca=", "`tls.ca` has no file name"),
            ("nats://a:secret@h?tls.ca=/x", "`tls.ca` needs TLS"),
            ("rediss://a:secret@h?tls.cert=/x", "`tls.cert` needs `tls.key`"),
            ("rediss://a:secret@h?tls.key=/x", "`tls.key` needs `tls.cert`"),
            ("rediss://a:secret@h?tls.ca=/no/such", "tls.ca: /no/such: "),
            ("redis://a:secret@h?nkey=/x", "`nkey` is for NATS"),
            ("nats://a:secret@h?nkey=/x", "`nkey` and the user in the URL"),
            ("nats://h?nkey=/x&credentials=/secret", "`credentials` and `nkey`"),
            ("nats://h?credentials=/no/such", "credentials: /no/such: "),
            ("redis+unix://a:secret@h", "no path of a socket"),
            ("redis+unix:///", "no path of a socket"),
            ("redis+sentinel://a:secret@h,i", "no service"),
            ("redis+sentinel://a:secret@h/", "no service"),
            ("redis+sentinel://a:secret@h/a/b", "no service"),
            ("redis+sentinel://a:secret@/a", "no host"),
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
