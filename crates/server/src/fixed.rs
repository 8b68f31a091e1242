//! Responses that are the same for each request.

use sinews_http::EncodedResponse;

use crate::request::{Response, ResponseBody};

/// Response of [`Router::fixed`](crate::Router::fixed), with its encoding for HTTP/1.1.
#[derive(Debug)]
pub(crate) struct FixedResponse {
    response: Response,
    encoded: Option<EncodedResponse>,
}

impl FixedResponse {
    pub(crate) fn new(response: Response) -> Self {
        let body = match &response.body {
            _ if !response.may_have_body() => Some(&[][..]),
            ResponseBody::Bytes(bytes) => (bytes.len() <= BODY_COPY_MAX).then_some(&bytes[..]),
            ResponseBody::File(_) => None,
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

/// Bodies up to this size are copied after their head.
pub(crate) const BODY_COPY_MAX: usize = 4 << 10;
