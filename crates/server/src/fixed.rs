//! Responses that are the same for each request.

use std::num::NonZeroU16;

use sinews_http::EncodedResponse;

use crate::request::{Response, ResponseBody};

/// Response of [`Router::fixed`](crate::Router::fixed), with its encodings for HTTP/1.1.
#[derive(Debug)]
pub(crate) struct FixedResponse {
    plain: PreparedResponse,
    /// The response with the announcement of HTTP/3, by its port.
    announcing: Vec<(NonZeroU16, PreparedResponse)>,
}

/// A response with its encoding.
#[derive(Debug)]
pub(crate) struct PreparedResponse {
    response: Response,
    encoded: Option<EncodedResponse>,
}

impl FixedResponse {
    pub(crate) fn new(response: Response) -> Self {
        Self { plain: PreparedResponse::new(response), announcing: Vec::new() }
    }

    /// Prepares the response for connections whose answers announce HTTP/3 on a port.
    pub(crate) fn announce_http3(&mut self, port: NonZeroU16) {
        if self.announcing.iter().all(|(known, _)| *known != port) {
            let mut response = self.plain.response.clone();
            announce_http3(&mut response, Some(port));
            self.announcing.push((port, PreparedResponse::new(response)));
        }
    }

    /// Returns the response, which announces HTTP/3 on a port.
    #[inline]
    pub(crate) fn prepared(&self, http3_port: Option<NonZeroU16>) -> &PreparedResponse {
        let announcing = http3_port.and_then(|port| self.announcing.iter().find(|(known, _)| *known == port));
        announcing.map_or(&self.plain, |(_, prepared)| prepared)
    }

    /// Returns the response without an announcement.
    pub(crate) fn response(&self) -> &Response {
        &self.plain.response
    }
}

impl PreparedResponse {
    fn new(response: Response) -> Self {
        let body = match &response.body {
            _ if !response.may_have_body() => Some(&[][..]),
            ResponseBody::Bytes(bytes) => (bytes.len() <= BODY_COPY_MAX).then_some(&bytes[..]),
            ResponseBody::File(_) | ResponseBody::Source(_) => None,
        };
        let encoded = body.map(|body| {
            EncodedResponse::new(response.status, &response.headers, response.content_length(), body)
        });
        Self { response, encoded }
    }

    pub(crate) fn response(&self) -> &Response {
        &self.response
    }

    /// Returns the encoding as an HTTP/1.1 answer after which the connection stays open. `None` if the body is sent by
    /// reference.
    pub(crate) fn encoded(&self) -> Option<&EncodedResponse> {
        self.encoded.as_ref()
    }
}

/// Adds `Alt-Svc` (RFC 7838). A client tries HTTP/3 in parallel, and remembers that for a day.
pub(crate) fn announce_http3(response: &mut Response, port: Option<NonZeroU16>) {
    if let Some(port) = port
        && response.status() >= 200
        && response.header("Alt-Svc").next().is_none()
    {
        response.set_header("Alt-Svc", format!("h3=\":{port}\"; ma=86400"));
    }
}

/// Bodies up to this size are copied after their head.
pub(crate) const BODY_COPY_MAX: usize = 4 << 10;
