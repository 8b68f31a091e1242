//! Responses of the `http` crate.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use sinews_proto::handshake::Accepted;

use crate::server::AcceptError;

/// The response that accepts a request.
pub(super) fn accepted<R: Default>(accepted: &Accepted) -> Response<R> {
    let mut response = Response::new(R::default());
    set(&mut response, accepted.status(), accepted.headers());
    response
}

fn set<'h, R>(
    response: &mut Response<R>,
    status: u16,
    headers: impl Iterator<Item = (impl AsRef<str>, &'h str)>,
) {
    *response.status_mut() = StatusCode::from_u16(status).expect("a status was validated on construction");
    for (name, value) in headers {
        // Validated on construction, by the same grammar, which has bytes beyond ASCII. Only a name of 64 KiB is none.
        let value = HeaderValue::from_bytes(value.as_bytes());
        if let (Ok(name), Ok(value)) = (name.as_ref().parse::<HeaderName>(), value) {
            response.headers_mut().append(name, value);
        }
    }
}

impl AcceptError {
    /// The response that rejects a hyper request: the status of the rejection, or 500 for an error of the server.
    /// Over HTTP/1.1 it closes the connection, since the client may have sent frames already; over HTTP/2, hyper
    /// omits that header.
    #[must_use]
    pub fn to_response<R: From<Bytes>>(&self) -> Response<R> {
        let Some(refusal) = self.refusal() else {
            // The client has disconnected.
            let mut response = Response::new(R::from(Bytes::new()));
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            return response;
        };
        let mut response = Response::new(R::from(Bytes::copy_from_slice(refusal.body())));
        set(&mut response, refusal.status(), refusal.headers());
        let connection = HeaderValue::from_static(refusal.connection());
        response.headers_mut().insert(header::CONNECTION, connection);
        response
    }
}
