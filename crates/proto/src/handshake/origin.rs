use alloc::string::String;
use alloc::vec::Vec;
use core::str;

use super::refusal::Refusal;
use super::{HandshakeMisuse, RequestView};
use sinews_http::text::{is_authority, is_token};

/// The web pages that may connect (RFC 6455 section 10.2).
///
/// A browser lets every page open a WebSocket to any host and sends the user's cookies with it. Only the
/// server can distinguish its own pages from foreign pages, by the `Origin` header that pages cannot
/// change. Clients other than browsers send no or any `Origin`: the policy protects users of browsers and
/// does not replace authentication.
///
/// ```
/// use sinews_proto::handshake::OriginPolicy;
///
/// let policy = OriginPolicy::list(["https://example.com", "http://localhost:3000"])?;
/// # Ok::<(), sinews_proto::handshake::HandshakeMisuse>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginPolicy {
    rule: OriginRule,
    required: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum OriginRule {
    Any,
    SameOrigin,
    List(Vec<AllowedOrigin>),
}

/// An entry of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AllowedOrigin {
    /// `null`: of a page without an origin, such as a file.
    Null,
    Origin {
        scheme: String,
        /// Host and port, without the scheme's default port; of a wildcard, the part behind the `*`.
        authority: String,
        /// The authority is that of all subdomains.
        is_wildcard: bool,
    },
}

impl OriginPolicy {
    /// Accepts pages of any origin: for services that trust no credentials sent automatically by a browser,
    /// such as cookies.
    #[must_use]
    pub const fn any() -> Self {
        Self { rule: OriginRule::Any, required: false }
    }

    /// Accepts pages of the same host, see [`same_origin`]. The default. Behind a proxy that rewrites
    /// `Host` no page has the same origin: list the public origin instead.
    #[must_use]
    pub const fn same_origin() -> Self {
        Self { rule: OriginRule::SameOrigin, required: false }
    }

    /// Accepts pages from these origins, each `scheme://host` or `scheme://host:port`, or `null`. The host
    /// `*.example.com` stands for all subdomains of `example.com`, and not for `example.com`. Compared
    /// case-insensitive; the default port for `http` and `https` may be written or omitted.
    ///
    /// # Errors
    /// [`HandshakeMisuse::Origin`] for any other value, such as an origin with a path or a trailing `/`, with
    /// a `*` in another place, or with a port above 65535, which no browser sends.
    pub fn list<S: Into<String>>(origins: impl IntoIterator<Item = S>) -> Result<Self, HandshakeMisuse> {
        let parse = |origin: S| AllowedOrigin::parse(&origin.into()).ok_or(HandshakeMisuse::Origin);
        let origins = origins.into_iter().map(parse).collect::<Result<_, _>>()?;
        Ok(Self { rule: OriginRule::List(origins), required: false })
    }

    /// Rejects requests without `Origin` too, that is clients other than browsers. Default: they are
    /// accepted, since they send no cookies of a user automatically.
    #[must_use]
    pub const fn require_origin(mut self) -> Self {
        self.required = true;
        self
    }

    /// Checks the `Origin` of a request.
    ///
    /// # Errors
    /// A [`Refusal`] with status 403 (RFC 6455 section 4.2.2).
    pub fn check(&self, request: &impl RequestView) -> Result<(), Refusal> {
        if request.header("origin").next().is_none() {
            if self.required {
                return Err(Refusal::with_reason(403, "Origin required"));
            }
            return Ok(());
        }
        let allowed = match &self.rule {
            OriginRule::Any => true,
            OriginRule::SameOrigin => same_origin(request),
            OriginRule::List(origins) => request
                .only("origin")
                .and_then(|found| str::from_utf8(found).ok())
                .is_some_and(|found| origins.iter().any(|origin| origin.matches(found))),
        };
        if allowed { Ok(()) } else { Err(Refusal::with_reason(403, "Origin not allowed")) }
    }
}

impl AllowedOrigin {
    fn parse(origin: &str) -> Option<Self> {
        if origin == NULL {
            return Some(Self::Null);
        }
        let (scheme, authority) = split(origin)?;
        let authority = without_default_port(scheme, authority);
        let (is_wildcard, rest) = match authority.strip_prefix("*.") {
            Some(_) => (true, &authority[1..]),
            None => (false, authority),
        };
        // A host of dots and a port above the largest one match nothing.
        let host = match rest.rsplit_once(':') {
            Some((host, port)) if !rest.ends_with(']') => {
                port.parse::<u16>().ok()?;
                host
            }
            _ => rest,
        };
        let labels = if is_wildcard { &host[1..] } else { host };
        if labels.is_empty() || labels.starts_with('.') || labels.contains("..") || rest.contains('*') {
            return None;
        }
        Some(Self::Origin { scheme: scheme.into(), authority: rest.into(), is_wildcard })
    }

    fn matches(&self, found: &str) -> bool {
        let Self::Origin { scheme, authority, is_wildcard } = self else { return found == NULL };
        let Some((found_scheme, found)) = split(found) else { return false };
        let found = without_default_port(found_scheme, found);
        let ends = || {
            let start = found.len().checked_sub(authority.len()).filter(|start| *start > 0);
            start.and_then(|start| found.get(start..)).is_some_and(|end| end.eq_ignore_ascii_case(authority))
        };
        found_scheme.eq_ignore_ascii_case(scheme)
            && if *is_wildcard { ends() } else { found.eq_ignore_ascii_case(authority) }
    }
}

/// The origin of a page without one.
const NULL: &str = "null";

impl Default for OriginPolicy {
    fn default() -> Self {
        Self::same_origin()
    }
}

/// Whether the requesting page came from the requested host: host and port of its single `Origin` equal
/// those of the request's authority.
///
/// The scheme is not compared: behind a proxy that terminates TLS the server does not know it. A request
/// without `Origin`, or with `null`, has no origin.
#[must_use]
pub fn same_origin(request: &impl RequestView) -> bool {
    let origin = request.only("origin").and_then(|origin| str::from_utf8(origin).ok()).and_then(split);
    let (Some((scheme, origin)), Some(authority)) = (origin, request.authority()) else {
        return false;
    };
    // Browsers omit the default port in both, other clients may write it in either.
    default_port(scheme).is_some()
        && without_default_port(scheme, origin).eq_ignore_ascii_case(without_default_port(scheme, authority))
}

fn default_port(scheme: &str) -> Option<&'static str> {
    let ports = [("https", ":443"), ("http", ":80")];
    ports.into_iter().find(|(known, _)| scheme.eq_ignore_ascii_case(known)).map(|(_, port)| port)
}

/// The authority without the default port of the scheme, which browsers omit.
fn without_default_port<'a>(scheme: &str, authority: &'a str) -> &'a str {
    default_port(scheme).and_then(|port| authority.strip_suffix(port)).unwrap_or(authority)
}

/// Scheme and authority of an origin (RFC 6454 section 6.2).
fn split(origin: &str) -> Option<(&str, &str)> {
    let (scheme, authority) = origin.split_once("://")?;
    let sound = is_token(scheme.as_bytes()) && !authority.is_empty() && is_authority(authority.as_bytes());
    sound.then_some((scheme, authority))
}
