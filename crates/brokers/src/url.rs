//! Broker URLs: `scheme://[user[:password]@]host[:port][,host[:port]…][/path][?name=value[&…]]`.

use std::collections::BTreeMap;
use std::fmt;

use percent_encoding::percent_decode_str;

use crate::error::BrokerConfigError;

/// A decoded broker URL. URL crates do not support several hosts.
pub(crate) struct BrokerUrl {
    pub(crate) scheme: String,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    /// Hosts with ports; the default port where none is given.
    pub(crate) hosts: Vec<String>,
    /// The text behind the first slash; empty unless the scheme has a path.
    pub(crate) path: String,
    /// Settings; the URL's take precedence over the configuration's.
    pub(crate) settings: BTreeMap<String, String>,
}

/// Omits the credentials and the settings, which may hold more of them: for logs and errors.
impl fmt::Display for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.hosts.join(","))
    }
}

impl BrokerUrl {
    /// Parses a URL without a path.
    pub(crate) fn parse(url: &str, settings: &BTreeMap<String, String>) -> Result<Self, BrokerConfigError> {
        let parsed = Self::parse_with_path(url, settings)?;
        if !parsed.path.is_empty() {
            return Err(url_error(url, "it has a path, which is not supported"));
        }
        parsed.check_hosts(url)?;
        Ok(parsed)
    }

    /// Parses a URL that may have a path, and no host.
    pub(crate) fn parse_with_path(
        url: &str,
        settings: &BTreeMap<String, String>,
    ) -> Result<Self, BrokerConfigError> {
        let (scheme, rest) =
            url.split_once("://").ok_or_else(|| url_error(url, "it has no scheme before `://`"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (credentials, hosts) =
            rest.rsplit_once('@').map_or((None, rest), |(credentials, hosts)| (Some(credentials), hosts));
        let (hosts, path) = hosts.split_once('/').unwrap_or((hosts, ""));
        let hosts: Vec<String> = hosts.split(',').map(str::to_owned).collect();
        let (user, password) = match credentials.map(|who| who.split_once(':').unwrap_or((who, ""))) {
            None => (None, None),
            Some((user, password)) => {
                let password = Some(decode(url, password)?).filter(|password| !password.is_empty());
                (Some(decode(url, user)?), password)
            }
        };
        let mut settings = settings.clone();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) =
                pair.split_once('=').ok_or_else(|| url_error(url, "a setting behind `?` has no `=`"))?;
            settings.insert(decode(url, name)?, decode(url, value)?);
        }
        let path = decode(url, path)?;
        Ok(Self { scheme: scheme.to_ascii_lowercase(), user, password, hosts, path, settings })
    }

    /// Checks that each host has a name, and that ports are numbers.
    pub(crate) fn check_hosts(&self, url: &str) -> Result<(), BrokerConfigError> {
        if self.hosts.iter().any(String::is_empty) {
            return Err(url_error(url, "it has no host, or an empty one"));
        }
        // Without an `@` behind it, a password would be here.
        if self.hosts.iter().any(|host| !has_valid_port(host)) {
            return Err(url_error(url, "the text behind the colon of a host is not a port"));
        }
        Ok(())
    }

    /// Adds the engine's default port to each host without a port.
    pub(crate) fn default_port(&mut self, port: u16) {
        for host in &mut self.hosts {
            // A colon within brackets belongs to an IPv6 address.
            let after_address = host.rsplit_once(']').map_or(host.as_str(), |(_, after)| after);
            if !after_address.contains(':') {
                host.push_str(&format!(":{port}"));
            }
        }
    }

    /// Takes a setting; settings that remain at the end are unknown.
    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        self.settings.remove(name)
    }

    /// Takes a numeric setting.
    #[cfg(any(feature = "redis", feature = "nats"))]
    pub(crate) fn take_number(&mut self, name: &'static str, default: u64) -> Result<u64, BrokerConfigError> {
        match self.take(name) {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| self.setting_error(name, "it is not a whole number")),
        }
    }

    /// Takes the time after which failing appends make the broker not ready.
    pub(crate) fn take_failure_timeout(&mut self) -> Result<std::time::Duration, BrokerConfigError> {
        let millis = match self.take(FAILURE_TIMEOUT) {
            None => FAILURE_TIMEOUT_MS,
            Some(text) => {
                text.parse().map_err(|_| self.setting_error(FAILURE_TIMEOUT, "it is not a whole number"))?
            }
        };
        Ok(std::time::Duration::from_millis(millis))
    }

    /// Error of a setting with an invalid or forbidden value.
    pub(crate) fn setting_error(&self, setting: &str, reason: impl Into<String>) -> BrokerConfigError {
        BrokerConfigError::Setting {
            broker: self.to_string(),
            setting: setting.to_owned(),
            reason: reason.into(),
        }
    }

    /// Error of a client that cannot be created.
    #[cfg(feature = "redis")]
    pub(crate) fn client_error(&self, error: &impl fmt::Display) -> BrokerConfigError {
        BrokerConfigError::Client { broker: self.to_string(), reason: error.to_string() }
    }

    /// Error of the first setting that was not taken.
    #[cfg(any(feature = "redis", feature = "nats"))]
    pub(crate) fn reject_unknown_settings(&self, known: &[&str]) -> Result<(), BrokerConfigError> {
        match self.settings.keys().next() {
            None => Ok(()),
            Some(name) => {
                Err(self.setting_error(name, format!("unknown; the settings are {}", known.join(", "))))
            }
        }
    }
}

/// Whether the text behind a host's colon, if there is one, is a port.
fn has_valid_port(host: &str) -> bool {
    // A colon within brackets belongs to an IPv6 address.
    let after_address = host.rsplit_once(']').map_or(host, |(_, after)| after);
    after_address.split_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_ok())
}

/// A setting of each engine.
pub(crate) const FAILURE_TIMEOUT: &str = "failure.timeout.ms";

/// Longer than a broker takes to elect a new leader, and about as long as it takes to detect a frozen one.
const FAILURE_TIMEOUT_MS: u64 = 10_000;

/// The text before a `@` may be a password, so the error repeats only the scheme.
pub(crate) fn url_error(url: &str, reason: &str) -> BrokerConfigError {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    BrokerConfigError::Url { scheme: scheme.to_owned(), reason: reason.to_owned() }
}

fn decode(url: &str, text: &str) -> Result<String, BrokerConfigError> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| url_error(url, "its percent-encoding is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<BrokerUrl, BrokerConfigError> {
        let settings =
            BTreeMap::from([("b".to_owned(), "file".to_owned()), ("c".to_owned(), "file".to_owned())]);
        BrokerUrl::parse(url, &settings)
    }

    #[test]
    fn all_parts_of_the_url_are_decoded() {
        let address = parse("Kafka://ann:p%40ss:word@one:9092,[::1]:7,two/?a=%2Fx&b=url").expect("a URL");
        assert_eq!(address.scheme, "kafka");
        assert_eq!((address.user.as_deref(), address.password.as_deref()), (Some("ann"), Some("p@ss:word")));
        assert_eq!(address.hosts, ["one:9092", "[::1]:7", "two"]);
        let settings: Vec<_> = address.settings.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(settings, [("a", "/x"), ("b", "url"), ("c", "file")]);
        assert_eq!(address.to_string(), "kafka://one:9092,[::1]:7,two", "no password is shown");
    }

    #[test]
    fn url_error_omits_the_password() {
        for (url, reason) in [
            ("localhost", "no scheme"),
            ("redis://a:secret@", "no host"),
            ("redis://a:secret@h,,i", "no host"),
            ("redis://a:secret@h/3", "path"),
            ("redis://a:secret@h?x", "no `=`"),
            ("redis://a:secret@h?x=%FF", "UTF-8"),
        ] {
            let error = parse(url).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(reason) && !error.contains("secret"), "{url}: {error}");
        }
    }

    #[test]
    fn host_without_port_gets_the_default_port() {
        let mut address = parse("kafka://a,b:1,[::1],[::1]:2").expect("a URL");
        address.default_port(9092);
        assert_eq!(address.hosts, ["a:9092", "b:1", "[::1]:9092", "[::1]:2"]);
    }
}
