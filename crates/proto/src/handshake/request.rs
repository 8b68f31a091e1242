use core::str;

use crate::http::{RequestHead, Version};

/// A request as seen by the handshake, for any HTTP stack.
///
/// Values have no surrounding spaces; a header on several lines yields one value per line. Implement it for
/// the header map of another stack to use [`accept`](super::accept) there.
///
/// ```
/// use sinews_proto::handshake::{accept, RequestView, ServerOptions};
/// use sinews_proto::http::Version;
///
/// struct Http2Request(Vec<(String, Vec<u8>)>);
///
/// impl RequestView for Http2Request {
///     fn method(&self) -> &str {
///         "CONNECT"
///     }
///     fn version(&self) -> Version {
///         Version::Http2
///     }
///     fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
///         self.0.iter().map(|(name, value)| (name.as_str(), value.as_slice()))
///     }
///     fn protocol(&self) -> Option<&str> {
///         Some("websocket")
///     }
/// }
///
/// let request = Http2Request(vec![("sec-websocket-version".into(), b"13".into())]);
/// let accepted = accept(&request, &ServerOptions::new()).expect("RFC 8441 needs no key");
/// assert_eq!(accepted.status(), 200);
/// ```
pub trait RequestView {
    /// The method, case-sensitive.
    fn method(&self) -> &str;

    /// The version of HTTP.
    fn version(&self) -> Version;

    /// All headers in order, without pseudo-headers.
    fn headers(&self) -> impl Iterator<Item = (&str, &[u8])>;

    /// The `:protocol` pseudo-header of extended CONNECT (RFC 8441 section 4). Default: none.
    fn protocol(&self) -> Option<&str> {
        None
    }

    /// The requested host, `host` or `host:port`. Default: the `Host` header; stacks with an `:authority`
    /// pseudo-header return that.
    fn authority(&self) -> Option<&str> {
        self.only("host").and_then(|host| str::from_utf8(host).ok())
    }

    /// The values of all lines with this name, case-insensitive, in order.
    fn header(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.headers().filter(move |(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The value of the line with this name, if there is exactly one.
    fn only(&self, name: &str) -> Option<&[u8]> {
        let mut values = self.header(name);
        let first = values.next()?;
        values.next().is_none().then_some(first)
    }
}

impl RequestView for RequestHead<'_> {
    fn method(&self) -> &str {
        RequestHead::method(self)
    }

    fn version(&self) -> Version {
        RequestHead::version(self)
    }

    fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        RequestHead::headers(self)
    }

    fn authority(&self) -> Option<&str> {
        RequestHead::authority(self)
    }
}
