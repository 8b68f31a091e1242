//! The client's request on a stream of HTTP/2 or HTTP/3.

use alloc::borrow::{Cow, ToOwned as _};
use alloc::vec::Vec;

use super::HandshakeMisuse;
use super::client::{ClientError, ClientRequest, Established, Rejection, ResponseLines};

/// A WebSocket request on a stream of HTTP/2 or HTTP/3 (RFC 8441 sections 4 and 5).
///
/// The driver sends the pseudo-header fields `:method` `CONNECT`, `:protocol` `websocket`, `:scheme` (`https` for
/// `wss`, `http` for `ws`), [`:authority`](Self::authority) and [`:path`](Self::path), then the
/// [`headers`](Self::headers), without the end of the stream. The stream then carries the WebSocket.
///
/// ```
/// use sinews_proto::handshake::ClientRequest;
///
/// let request = ClientRequest::new("example.com", "/chat")?.with_subprotocol("v1")?.extended_connect()?;
/// let names: Vec<&str> = request.headers().map(|(name, _)| name).collect();
/// assert_eq!(names, ["Sec-WebSocket-Version", "Sec-WebSocket-Protocol"]);
/// let established = request.read_response(200, [("sec-websocket-protocol", &b"v1"[..])].into_iter());
/// assert_eq!(established.map(|it| it.subprotocol().map(str::to_owned)), Ok(Some("v1".to_owned())));
/// # Ok::<(), sinews_proto::handshake::HandshakeMisuse>(())
/// ```
#[derive(Clone, Debug)]
pub struct ExtendedConnect(ClientRequest);

impl ExtendedConnect {
    /// The value of `:authority`.
    #[must_use]
    pub fn authority(&self) -> &str {
        &self.0.host
    }

    /// The value of `:path`: path and query.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.0.path
    }

    /// The other header fields in order. Names may have capital letters, which HTTP/2 and HTTP/3 send in lower case.
    pub fn headers(&self) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
        self.0.offers()
    }

    /// Checks the final response: its status, and its header fields in any case, without pseudo-header fields.
    ///
    /// # Errors
    /// [`ClientError::Status`] for a status other than 2xx, without a body; [`ClientError::Subprotocol`],
    /// [`ClientError::Extensions`], and [`ClientError::Content`] for a Content-Length. The stream must then be reset. The
    /// driver returns [`ClientError::Content`] for a 2xx that ends the stream.
    pub fn read_response<'h>(
        &self,
        status: u16,
        headers: impl Iterator<Item = (&'h str, &'h [u8])>,
    ) -> Result<Established, ClientError> {
        if !(200..300).contains(&status) {
            let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            return Err(ClientError::Status(Rejection { status, headers, body: Vec::new() }));
        }
        let (mut subprotocol, mut extensions) = (ResponseLines::None, ResponseLines::None);
        for (name, value) in headers {
            if name.eq_ignore_ascii_case("sec-websocket-protocol") {
                subprotocol.add(value);
            } else if name.eq_ignore_ascii_case("sec-websocket-extensions") {
                extensions.add(value);
            } else if name.eq_ignore_ascii_case("content-length") {
                // A tunnel has no length (RFC 9110 section 9.3.6). h2 and others would reset the stream at this length.
                return Err(ClientError::Content);
            }
        }
        self.0.negotiate(subprotocol, extensions, 0)
    }
}

/// Headers of a connection, beyond those that no request may add.
const CONNECTION_HEADERS: [&str; 3] = ["keep-alive", "proxy-connection", "te"];

impl ClientRequest {
    /// The same request as an extended CONNECT, for an HTTP/2 or HTTP/3 stream (RFC 8441, RFC 9220). The connection
    /// that carries the stream sets the response limits and the timeout.
    ///
    /// # Errors
    /// [`HandshakeMisuse::ReservedHeader`] for an added header that belongs to a connection of HTTP/1.1, such as
    /// `Keep-Alive` (RFC 9113 section 8.2.2).
    pub fn extended_connect(self) -> Result<ExtendedConnect, HandshakeMisuse> {
        let is_forbidden =
            |name: &str| CONNECTION_HEADERS.iter().any(|other| name.eq_ignore_ascii_case(other));
        match self.headers.iter().any(|(name, _)| is_forbidden(name)) {
            true => Err(HandshakeMisuse::ReservedHeader),
            false => Ok(ExtendedConnect(self)),
        }
    }
}
