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
    List(Vec<String>),
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

    /// Accepts pages of these origins, each `scheme://host` or `scheme://host:port` as browsers write them,
    /// or `null`. Compared as a whole, case-insensitive.
    ///
    /// # Errors
    /// [`HandshakeMisuse::Origin`] for any other value, such as an origin with a path or a trailing `/`,
    /// which no browser sends.
    pub fn list<S: Into<String>>(origins: impl IntoIterator<Item = S>) -> Result<Self, HandshakeMisuse> {
        let origins: Vec<String> = origins.into_iter().map(Into::into).collect();
        if origins.iter().any(|origin| origin != "null" && split(origin).is_none()) {
            return Err(HandshakeMisuse::Origin);
        }
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
            OriginRule::List(origins) => request.only("origin").is_some_and(|found| {
                origins.iter().any(|origin| origin.as_bytes().eq_ignore_ascii_case(found))
            }),
        };
        if allowed { Ok(()) } else { Err(Refusal::with_reason(403, "Origin not allowed")) }
    }
}

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
    let default_port = if scheme.eq_ignore_ascii_case("https") {
        ":443"
    } else if scheme.eq_ignore_ascii_case("http") {
        ":80"
    } else {
        return false;
    };
    let host = |authority: &'_ str| authority.len() - suffix_len(authority, default_port);
    origin[..host(origin)].eq_ignore_ascii_case(&authority[..host(authority)])
}

fn suffix_len(text: &str, suffix: &str) -> usize {
    if text.ends_with(suffix) { suffix.len() } else { 0 }
}

/// Scheme and authority of an origin (RFC 6454 section 6.2).
fn split(origin: &str) -> Option<(&str, &str)> {
    let (scheme, authority) = origin.split_once("://")?;
    let sound = is_token(scheme.as_bytes()) && !authority.is_empty() && is_authority(authority.as_bytes());
    sound.then_some((scheme, authority))
}
