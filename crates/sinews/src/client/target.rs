//! Parsing of URLs (RFC 6455 section 3).

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use percent_encoding::percent_decode_str;

/// A server, and the request target on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectTarget {
    /// Whether the scheme is `wss` rather than `ws`.
    pub(crate) secure: bool,
    /// A name or an address; an IPv6 address without its brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Path and query.
    pub(crate) path: String,
    pub(crate) credentials: Option<Credentials>,
}

impl ConnectTarget {
    pub(crate) fn parse(url: &str) -> Result<Self, UrlError> {
        if url.contains('#') {
            return Err(UrlError::Fragment);
        }
        let uri: Uri = url.parse().map_err(|_| UrlError::Malformed)?;
        let secure = match uri.scheme_str() {
            Some(scheme) if is_any(scheme, ["ws", "http"]) => false,
            Some(scheme) if is_any(scheme, ["wss", "https"]) => true,
            _ => return Err(UrlError::Scheme),
        };
        let UrlAuthority { host, port, credentials } = UrlAuthority::from_uri(&uri)?;
        let path = match uri.path_and_query().map_or("/", |path| path.as_str()) {
            path if path.starts_with('/') => path.to_owned(),
            path => format!("/{path}"),
        };
        let port = port.unwrap_or_else(|| default_port(secure));
        Ok(Self { secure, host, port, path, credentials })
    }

    /// The value of `Host`: without the port where it is the scheme's default (RFC 6455 section 4.1).
    pub(crate) fn host_header(&self) -> String {
        if self.port == default_port(self.secure) { bracketed(&self.host) } else { self.authority() }
    }

    /// Host and port, always with the port.
    pub(crate) fn authority(&self) -> String {
        authority(&self.host, self.port)
    }
}

#[cfg(feature = "url-connect")]
impl ConnectTarget {
    pub(crate) const fn scheme(&self) -> &'static str {
        if self.secure { "wss" } else { "ws" }
    }

    pub(crate) fn is_same_origin(&self, other: &Self) -> bool {
        self.secure == other.secure && self.port == other.port && self.host.eq_ignore_ascii_case(&other.host)
    }
}

/// The authority of a URL.
pub(crate) struct UrlAuthority {
    pub(crate) host: String,
    pub(crate) port: Option<u16>,
    pub(crate) credentials: Option<Credentials>,
}

impl UrlAuthority {
    pub(crate) fn from_uri(uri: &Uri) -> Result<Self, UrlError> {
        let authority = uri.authority().ok_or(UrlError::Host)?;
        let (userinfo, address) = match authority.as_str().rsplit_once('@') {
            Some((userinfo, address)) => (Some(userinfo), address),
            None => (None, authority.as_str()),
        };
        let host = authority.host();
        let port = match address.strip_prefix(host).and_then(|rest| rest.strip_prefix(':')) {
            None | Some("") => None,
            Some(port) => Some(port.parse().map_err(|_| UrlError::Port)?),
        };
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(address) => address.parse::<Ipv6Addr>().map_err(|_| UrlError::Host)?.to_string(),
            None => host.to_owned(),
        };
        if host.is_empty() {
            return Err(UrlError::Host);
        }
        let credentials =
            userinfo.filter(|userinfo| !userinfo.is_empty()).map(Credentials::parse).transpose()?;
        Ok(Self { host, port, credentials })
    }
}

/// A user name and a password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) user: Vec<u8>,
    pub(crate) password: Vec<u8>,
}

impl Credentials {
    fn parse(userinfo: &str) -> Result<Self, UrlError> {
        let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
        let user: Vec<u8> = percent_decode_str(user).collect();
        // RFC 7617 section 2: a colon would end the name.
        if user.contains(&b':') {
            return Err(UrlError::UserInfo);
        }
        Ok(Self { user, password: percent_decode_str(password).collect() })
    }

    /// Formats the value of `Authorization` (RFC 7617).
    pub(crate) fn basic(&self) -> String {
        format!("Basic {}", STANDARD.encode([self.user.as_slice(), b":", &self.password].concat()))
    }
}

/// Omits the password, since the output may end in logs.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

/// The defect of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UrlError {
    /// It is not an absolute URL of ASCII characters: names in other scripts are written in their `xn--` form, other
    /// characters of a path percent-encoded.
    Malformed,
    /// The scheme is not `ws`, `wss`, `http` or `https`.
    Scheme,
    /// There is no host, or the text in brackets is not an IPv6 address.
    Host,
    /// The port is not a number below 65,536.
    Port,
    /// The URL has a fragment (`#…`), which is not allowed in a WebSocket's URL (RFC 6455 section 3); write a literal
    /// `#` as `%23`.
    Fragment,
    /// The user name contains a colon, so that it cannot be sent as Basic authentication (RFC 7617 section 2).
    UserInfo,
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "not an absolute URL in ASCII",
            Self::Scheme => "the scheme must be ws or wss (or http or https)",
            Self::Host => "no valid host",
            Self::Port => "the port must be a number below 65536",
            Self::Fragment => "a WebSocket URL has no fragment; write # as %23",
            Self::UserInfo => "the user's name must not contain a colon",
        })
    }
}

impl std::error::Error for UrlError {}

/// The URL without name and password, also if it is invalid.
pub(crate) fn redacted(url: &str) -> String {
    let start = url.find("://").map_or(0, |at| at + 3);
    let (scheme, rest) = url.split_at(start);
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    // An `@` in the path does not end a password.
    let host = rest[..end].rfind('@').map_or(0, |at| at + 1);
    let shown = if is_authority(&rest[host..end]) {
        &rest[host..]
    } else {
        // The password has a `/` or a `?`, or the port is invalid.
        rest.rsplit('@').next().unwrap_or_default()
    };
    format!("{scheme}{shown}")
}

/// Whether the text is a host, and perhaps the number of a port.
fn is_authority(text: &str) -> bool {
    text.ends_with(']')
        || text.rsplit_once(':').is_none_or(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Host and port.
pub(crate) fn authority(host: &str, port: u16) -> String {
    format!("{}:{port}", bracketed(host))
}

fn bracketed(host: &str) -> String {
    if matches!(host.parse(), Ok(IpAddr::V6(_))) { format!("[{host}]") } else { host.to_owned() }
}

const fn default_port(secure: bool) -> u16 {
    if secure { 443 } else { 80 }
}

fn is_any<const N: usize>(word: &str, words: [&str; N]) -> bool {
    words.iter().any(|other| word.eq_ignore_ascii_case(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> ConnectTarget {
        ConnectTarget::parse(url).expect(url)
    }

    #[test]
    fn default_port_depends_on_the_scheme() {
        for (url, port, host) in [
            ("ws://example.com", 80, "example.com"),
            ("wss://example.com/", 443, "example.com"),
            ("WSS://example.com:/", 443, "example.com"),
            ("http://example.com:443", 443, "example.com:443"),
            ("https://example.com:443", 443, "example.com"),
            ("ws://[2001:DB8::1]/", 80, "[2001:db8::1]"),
            ("ws://[::1]:8080/", 8080, "[::1]:8080"),
            ("ws://127.0.0.1:65535/", 65535, "127.0.0.1:65535"),
        ] {
            let target = parse(url);
            assert_eq!((target.port, target.host_header().as_str()), (port, host), "{url}");
        }
        assert_eq!(parse("ws://[::1]/").host, "::1");
        assert_eq!(parse("wss://example.com").authority(), "example.com:443");
    }

    #[test]
    fn path_defaults_to_slash_and_keeps_its_query() {
        for (url, path) in
            [("ws://a", "/"), ("ws://a?x=1", "/?x=1"), ("ws://a/b/c?d=%23&e=@", "/b/c?d=%23&e=@")]
        {
            assert_eq!(parse(url).path, path, "{url}");
        }
    }

    #[test]
    fn invalid_urls_are_rejected() {
        for (url, error) in [
            ("", UrlError::Malformed),
            ("/chat", UrlError::Scheme),
            ("example.com:80", UrlError::Scheme),
            ("ftp://example.com/", UrlError::Scheme),
            ("ws:///chat", UrlError::Malformed),
            ("ws://a/b#c", UrlError::Fragment),
            ("ws://a:65536/", UrlError::Port),
            ("ws://[::g]/", UrlError::Host),
            ("ws://a/\r\nX: y", UrlError::Malformed),
            ("ws://m\u{fc}nchen.example/", UrlError::Malformed),
            ("ws://a%3Ab:c@example.com/", UrlError::UserInfo),
        ] {
            assert_eq!(ConnectTarget::parse(url), Err(error), "{url}");
        }
    }

    #[test]
    fn userinfo_becomes_basic_authentication() {
        // The example of RFC 7617 section 2.
        let target = parse("ws://Aladdin:open%20sesame@example.com/");
        assert_eq!(
            target.credentials.map(|it| it.basic()).as_deref(),
            Some("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==")
        );
        assert_eq!(parse("ws://user@a/").credentials.map(|it| it.basic()).as_deref(), Some("Basic dXNlcjo="));
        assert_eq!(parse("ws://@a/").credentials, None);
    }

    #[test]
    fn debug_output_contains_no_passwords() {
        for (url, shown) in [
            ("ws://a:b@c/d", "ws://c/d"),
            ("ws://a:b@c@d/e", "ws://d/e"),
            ("a:b@c:1", "c:1"),
            ("ws://c/d@e", "ws://c/d@e"),
            ("ws://c:80/d@e", "ws://c:80/d@e"),
            ("ws://[::1]/d@e", "ws://[::1]/d@e"),
            ("ws://a:b@c/d@e", "ws://c/d@e"),
            ("wss://a:b/c@d.example/", "wss://d.example/"),
            ("wss://a:b?c@d.example/", "wss://d.example/"),
            ("wss://a@b:c/d@e.example/", "wss://e.example/"),
            ("socks5://a:b/c@d:1080", "socks5://d:1080"),
            ("a:b/c@d:3128", "d:3128"),
            ("ws://c:x/", "ws://c:x/"),
        ] {
            assert_eq!(redacted(url), shown);
        }
        assert!(!format!("{:?}", parse("ws://u:secret@a/")).contains("secret"));
    }
}
