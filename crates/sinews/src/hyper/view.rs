//! Adapter from a request of the `http` crate to the handshake.

use http::{Extensions, HeaderMap, Method, Request, Uri};
use sinews_proto::handshake::RequestView;
use sinews_proto::http::Version;

/// A request of the `http` crate, borrowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpRequestView<'a> {
    method: &'a Method,
    uri: &'a Uri,
    version: http::Version,
    headers: &'a HeaderMap,
    #[cfg_attr(not(feature = "http2"), allow(dead_code))]
    extensions: &'a Extensions,
}

impl<'a> HttpRequestView<'a> {
    pub(crate) fn new<B>(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            version: request.version(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }
}

impl RequestView for HttpRequestView<'_> {
    fn method(&self) -> &str {
        self.method.as_str()
    }

    fn version(&self) -> Version {
        match self.version {
            http::Version::HTTP_11 => Version::Http11,
            http::Version::HTTP_2 => Version::Http2,
            http::Version::HTTP_3 => Version::Http3,
            _ => Version::Http10,
        }
    }

    fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()))
    }

    fn header(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.headers.get_all(name).iter().map(http::HeaderValue::as_bytes)
    }

    #[cfg(feature = "http2")]
    fn protocol(&self) -> Option<&str> {
        self.extensions.get::<hyper::ext::Protocol>().map(hyper::ext::Protocol::as_str)
    }

    fn authority(&self) -> Option<&str> {
        match self.uri.authority() {
            Some(authority) => Some(authority.as_str()),
            None => std::str::from_utf8(self.only("host")?).ok(),
        }
    }
}
