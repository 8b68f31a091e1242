//! Hook options.

use std::fmt;
use std::time::Duration;

use hyper::Uri;
use hyper::header::{HeaderName, HeaderValue};
use hyper::http::uri::InvalidUri;
use rustls::pki_types::CertificateDer;

use crate::error::{HubError, HubErrorKind};
use crate::outgoing::addresses::is_public;
use crate::outgoing::http::{PERMIT_PRIVATE, trusted_certificates};

/// Hooks: the application's URLs, and the request limits.
///
/// The URLs here are the defaults for all topics; a [`Namespace`](crate::Namespace) may have others for its topics.
#[derive(Clone)]
pub struct HookOptions {
    pub(crate) connect: Option<String>,
    pub(crate) refresh: Option<String>,
    pub(crate) subscribe: Option<String>,
    pub(crate) publish: Option<String>,
    pub(crate) rpc: Option<String>,
    pub(crate) signing_key: Option<Vec<u8>>,
    pub(crate) timeout: Duration,
    pub(crate) concurrency: usize,
    pub(crate) queue: usize,
    pub(crate) failure: HookFailure,
    pub(crate) retries: u32,
    pub(crate) headers: Vec<HeaderName>,
    pub(crate) circuit_failures: u32,
    pub(crate) circuit_open_time: Duration,
    /// Calls a second of a connection, and of a user.
    pub(crate) call_rates: [u32; 2],
    /// `None`: the certificates that the system trusts.
    pub(crate) roots: Option<Vec<CertificateDer<'static>>>,
}

/// What happens if the application does not answer a hook: it cannot be reached, answers with an error or too late, or
/// too many requests wait. A status that a client can cause (400 to 499 except 408, 425 and 429) always rejects:
/// otherwise a client could choose not to be examined, for example by a message's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HookFailure {
    /// The connection, the subscription or the publication is rejected.
    #[default]
    Closed,
    /// It is accepted, as if there were no hook.
    Open,
}

/// A namespace's hook.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HookTarget {
    /// No request, although other topics have the hook.
    Off,
    /// A request to this URL.
    Url(String),
}

impl Default for HookOptions {
    fn default() -> Self {
        Self {
            connect: None,
            refresh: None,
            subscribe: None,
            publish: None,
            rpc: None,
            signing_key: None,
            timeout: Duration::from_secs(5),
            concurrency: 64,
            queue: 1_024,
            failure: HookFailure::Closed,
            retries: 1,
            headers: Vec::new(),
            circuit_failures: 10,
            circuit_open_time: Duration::from_secs(10),
            call_rates: [200, 1_000],
            roots: None,
        }
    }
}

impl fmt::Debug for HookOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // URLs may be logged; the signing key must not.
        f.debug_struct("HookOptions").field("connect", &self.connect).finish_non_exhaustive()
    }
}

/// Maximum timeout: a connection reads nothing meanwhile, also no pong.
const TIMEOUT_MAX: Duration = Duration::from_secs(30);

/// Maximum requests at a time: each takes a socket.
const CONCURRENCY_MAX: usize = 4_096;

/// Maximum forwarded headers.
const HEADERS_MAX: usize = 32;

/// Minimum signing key length in bytes: the length of the hash.
const SIGNING_KEY_MIN: usize = 32;

impl HookOptions {
    /// Creates options without hooks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the URL that decides about new connections to `/ws` and `/topics/{name}`, and about requests for topics and
    /// keys. Default: the token decides.
    #[must_use]
    pub fn with_connect(mut self, url: impl Into<String>) -> Self {
        self.connect = Some(url.into());
        self
    }

    /// Sets the URL that extends connections whose token or claims expire. Default: they are closed with 4401.
    #[must_use]
    pub fn with_refresh(mut self, url: impl Into<String>) -> Self {
        self.refresh = Some(url.into());
        self
    }

    /// Sets the URL that decides about subscriptions. Default: the token decides.
    #[must_use]
    pub fn with_subscribe(mut self, url: impl Into<String>) -> Self {
        self.subscribe = Some(url.into());
        self
    }

    /// Sets the URL that decides about publications and key writes. Default: the token decides.
    #[must_use]
    pub fn with_publish(mut self, url: impl Into<String>) -> Self {
        self.publish = Some(url.into());
        self
    }

    /// Sets the URL that answers client calls. Default: calls are rejected with 404.
    #[must_use]
    pub fn with_rpc(mut self, url: impl Into<String>) -> Self {
        self.rpc = Some(url.into());
        self
    }

    /// Sets the secret key that signs requests, of at least 32 bytes (HMAC-SHA256). Default: requests are not signed.
    #[must_use]
    pub fn with_signing_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.signing_key = Some(key.into());
        self
    }

    /// Sets the time for an answer, with the time in the queue and all retries; at most 30 s. Default: 5 s.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the maximum number of requests by one hook to one URL at a time, 1 to 4,096. Default: 64, as many as small
    /// applications handle.
    #[must_use]
    pub fn with_concurrency(mut self, requests: usize) -> Self {
        self.concurrency = requests;
        self
    }

    /// Sets the maximum number of requests by one hook to one URL that wait, at least 1; further ones fail. So do
    /// requests with which the memory of all that wait or are in progress would exceed 64 MiB. Default: 1,024.
    #[must_use]
    pub fn with_queue(mut self, requests: usize) -> Self {
        self.queue = requests;
        self
    }

    /// Sets the behavior without an answer. Default: [`HookFailure::Closed`].
    #[must_use]
    pub fn with_failure(mut self, failure: HookFailure) -> Self {
        self.failure = failure;
        self
    }

    /// Sets how often a failed request is repeated within the timeout. Requests about publications and calls are
    /// repeated only if the application has not received them. Default: 1.
    #[must_use]
    pub fn with_retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// Sets the headers in the WebSocket's handshake that requests repeat, at most 32. Default: none.
    ///
    /// # Errors
    /// [`HubErrorKind::Setting`]: a name is no name of a header, or one that the request itself has, or there are too
    /// many.
    pub fn with_headers<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Result<Self, HubError> {
        for name in names {
            let fault = |_| HubError::setting(format!("{name:?} is not a header's name"));
            let parsed = HeaderName::try_from(name).map_err(fault)?;
            let own =
                ["connection", "content-length", "content-type", "host", "transfer-encoding", "upgrade"];
            if own.contains(&parsed.as_str()) || parsed.as_str().starts_with("sinews-") {
                return Err(HubError::setting(format!("{name} is a header of the request itself")));
            }
            self.headers.push(parsed);
        }
        if self.headers.len() > HEADERS_MAX {
            let count = self.headers.len();
            return Err(HubError::setting(format!("{count} headers exceed the limit of {HEADERS_MAX}")));
        }
        Ok(self)
    }

    /// Sets each URL's circuit breaker: after this number of failures in a row, at least 1, requests fail at once for
    /// this time; then one request is tried. A status that a client can cause (400 to 499 except 408, 425 and 429) is
    /// an answer. Default: 10 failures, 10 s.
    #[must_use]
    pub fn with_circuit(mut self, failures: u32, time: Duration) -> Self {
        (self.circuit_failures, self.circuit_open_time) = (failures, time);
        self
    }

    /// Limits the calls (`rpc`) a second without a topic, or with a topic whose namespace has no
    /// [rate](crate::Namespace::with_call_rate): of one connection, and of one user on this node over all connections
    /// and plain HTTP requests; as many at once after an idle time. A user's plain HTTP calls also share one rate of a
    /// connection. Further calls are rejected with 429. Default: 200 and 1,000.
    #[must_use]
    pub fn with_call_rates(mut self, connection: u32, user: u32) -> Self {
        self.call_rates = [connection, user];
        self
    }

    /// Trusts only these certificates, in PEM, for `https` URLs. Default: the certificates that the system trusts.
    ///
    /// # Errors
    /// [`HubErrorKind::Certificates`]: the text has no certificate, or an invalid one.
    pub fn with_trusted_certificates(mut self, pem: &[u8]) -> Result<Self, HubError> {
        self.roots = Some(trusted_certificates(pem)?);
        Ok(self)
    }

    /// Returns the URLs of all topics.
    pub(crate) fn urls(&self) -> impl Iterator<Item = &str> {
        let urls = [&self.connect, &self.refresh, &self.subscribe, &self.publish, &self.rpc];
        urls.into_iter().flatten().map(String::as_str)
    }

    /// Checks the options.
    ///
    /// # Errors
    /// [`HubErrorKind::Url`]: an invalid URL, which the error does not repeat. [`HubErrorKind::Key`]: the signing key
    /// is too short. [`HubErrorKind::Setting`]: another invalid option, and its limit.
    pub fn check(&self) -> Result<(), HubError> {
        let invalid = |text: String| Err(HubError::setting(text));
        self.urls().try_for_each(|url| parse_url(url).map(drop))?;
        if self.timeout.is_zero() || self.timeout > TIMEOUT_MAX {
            return invalid(format!(
                "timeout must be longer than zero and at most {} s",
                TIMEOUT_MAX.as_secs()
            ));
        }
        if !(1..=CONCURRENCY_MAX).contains(&self.concurrency) {
            return invalid(format!("concurrency must be from 1 to {CONCURRENCY_MAX}"));
        }
        if self.queue == 0 || self.circuit_failures == 0 {
            return invalid("queue and circuit_failures must be at least 1".to_owned());
        }
        match &self.signing_key {
            Some(key) if key.len() < SIGNING_KEY_MIN => Err(HubError::key(format!(
                "the signing key of {} bytes is too short (at least {SIGNING_KEY_MIN})",
                key.len()
            ))),
            _ => Ok(()),
        }
    }
}

/// An application URL.
#[derive(Clone, Debug)]
pub(crate) struct HookUrl {
    pub(crate) is_tls: bool,
    /// Host without brackets.
    pub(crate) host: String,
    /// Whether requests go to public addresses only.
    pub(crate) is_public_only: bool,
    pub(crate) port: u16,
    /// The `Host` value.
    pub(crate) authority: HeaderValue,
    pub(crate) path: Uri,
}

/// Parses a hook's URL.
///
/// # Errors
/// As [`HookUrl::parse`].
pub(crate) fn parse_url(url: &str) -> Result<HookUrl, HubError> {
    HookUrl::parse(HOOK_URL, url)
}

/// Names a hook's URL in errors.
const HOOK_URL: &str = "the URL of a hook";

impl HookUrl {
    /// Parses a URL, which errors call by this name.
    ///
    /// # Errors
    /// The fault. It does not repeat the URL, which may have a secret.
    pub(crate) fn parse(name: &str, url: &str) -> Result<Self, HubError> {
        let fault = |what: &str| HubError::new(HubErrorKind::Url, format!("{name} {what}"));
        // A parser drops what follows the sign, which may be a part of a password.
        if url.contains('#') {
            return Err(fault("must have no fragment (#)"));
        }
        let invalid = |error: InvalidUri| fault(&format!("is invalid: {error}")).with_source(error);
        let uri: Uri = url.parse().map_err(invalid)?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(fault("must begin with http:// or https://")),
        };
        let authority = uri.authority().ok_or_else(|| fault("has no host"))?;
        if authority.as_str().contains('@') {
            return Err(fault("must have no user and password: sign the requests instead"));
        }
        if authority.host().is_empty() {
            return Err(fault("has no host"));
        }
        let has_port = !authority.as_str().ends_with(authority.host());
        if has_port && authority.port_u16().is_none() {
            return Err(fault("has an invalid port"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Ok(Self {
            is_tls,
            host,
            is_public_only: false,
            port: authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 }),
            authority: HeaderValue::from_str(authority.as_str()).map_err(|_| fault("has an invalid host"))?,
            path: path.parse().map_err(|_| fault("has an invalid path"))?,
        })
    }

    /// Rejects private and local addresses: of the host now, of its name when a connection is opened.
    ///
    /// # Errors
    /// The fault, with the URL's name.
    pub(crate) fn public_only(mut self, name: &str) -> Result<Self, HubError> {
        self.is_public_only = true;
        if self.host.parse().is_ok_and(|address| !is_public(address)) {
            let fault = format!("{name} has an address that is not public: {PERMIT_PRIVATE}");
            return Err(HubError::new(HubErrorKind::Url, fault));
        }
        Ok(self)
    }
}

impl HookTarget {
    /// Checks the URL.
    ///
    /// # Errors
    /// The fault.
    pub(crate) fn check(&self) -> Result<(), HubError> {
        match self {
            Self::Off => Ok(()),
            Self::Url(url) => parse_url(url).map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed_into_host_port_and_path() {
        for (url, expected) in [
            ("http://app", (false, "app", 80, "app", "/")),
            ("https://app:8443/hooks?a=1", (true, "app", 8443, "app:8443", "/hooks?a=1")),
            ("https://[::1]/x", (true, "::1", 443, "[::1]", "/x")),
        ] {
            let parsed = parse_url(url).unwrap();
            let authority = parsed.authority.to_str().unwrap().to_owned();
            let path = parsed.path.to_string();
            assert_eq!((parsed.is_tls, &*parsed.host, parsed.port, &*authority, &*path), expected);
        }
        for bad in [
            "",
            "app",
            "ftp://app",
            "http://",
            "/hooks",
            "http://user:secret@app/",
            "http://a b/",
            "http://:secret/",
            "http://app:secret/",
            "http://u:1#secret@app",
        ] {
            let error = parse_url(bad).unwrap_err().to_string();
            assert!(error.starts_with("the URL of a hook ") && !error.contains("secret"), "{bad}: {error}");
        }
    }

    #[test]
    fn invalid_options_are_reported() {
        let options = HookOptions::new;
        for bad in [
            options().with_connect("ftp://a"),
            options().with_timeout(Duration::from_secs(31)),
            options().with_timeout(Duration::ZERO),
            options().with_concurrency(0),
            options().with_concurrency(4_097),
            options().with_queue(0),
            options().with_circuit(0, Duration::from_secs(1)),
            options().with_signing_key("short"),
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
        options().check().unwrap();
        for bad in ["Host", "a b", "Sinews-Signature", "content-length"] {
            assert!(options().with_headers([bad]).is_err(), "{bad}");
        }
        assert!(options().with_headers(["Cookie", "X-Request-Id"]).is_ok());
        assert!(options().with_trusted_certificates(b"none").is_err());
    }
}
