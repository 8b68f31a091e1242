//! The opening handshake's checks. Python code reads and writes the heads.

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sinews_proto::Negotiated;
use sinews_proto::handshake::{ClientRequest, ClientStep, HandshakeMisuse, OriginPolicy, ServerOptions};
use sinews_proto::http::{HeadLimits, HeadScanner, HeaderSlots, RequestHead, ResponseHead, Version};

use crate::config::Config;

create_exception!(
    sinews._native,
    HandshakeError,
    PyException,
    "A malformed head or a failed negotiation: text, status, headers and body."
);

/// A handshake's result: role and compression.
#[pyclass(frozen, module = "sinews._native")]
pub(crate) struct Negotiation {
    pub(crate) negotiated: Negotiated,
}

type Headers = Vec<(String, String)>;

/// A request: length, method, target, whether it is HTTP/1.1, headers.
type Request = (usize, String, String, bool, Headers);

/// A response: length, status, headers.
type Response = (usize, u16, Headers);

/// Parses a request's head. Returns `None` if it is incomplete.
#[pyfunction]
pub(crate) fn parse_request(data: &[u8]) -> PyResult<Option<Request>> {
    let limits = HeadLimits::new();
    let Some(len) = HeadScanner::new().scan(data, &limits).map_err(invalid_head)? else { return Ok(None) };
    let mut slots = HeaderSlots::new();
    let head = RequestHead::parse(&data[..len], &limits, &mut slots).map_err(invalid_head)?;
    let is_http11 = head.version() == Version::Http11;
    Ok(Some((len, head.method().to_owned(), head.target().to_owned(), is_http11, headers(head.headers()))))
}

/// Parses a response's head. Returns `None` if it is incomplete.
#[pyfunction]
pub(crate) fn parse_response(data: &[u8]) -> PyResult<Option<Response>> {
    let limits = HeadLimits::new();
    let Some(len) = HeadScanner::new().scan(data, &limits).map_err(invalid_head)? else { return Ok(None) };
    let mut slots = HeaderSlots::new();
    let head = ResponseHead::parse(&data[..len], &limits, &mut slots).map_err(invalid_head)?;
    Ok(Some((len, head.status(), headers(head.headers()))))
}

/// Accepts a server's request. Returns the values of `Sec-WebSocket-Accept` and `Sec-WebSocket-Extensions`.
#[pyfunction]
pub(crate) fn accept(data: &[u8], config: &Config) -> PyResult<(String, Option<String>, Negotiation)> {
    let mut slots = HeaderSlots::new();
    let head = RequestHead::parse(data, &HeadLimits::new(), &mut slots).map_err(invalid_head)?;
    let mut options = ServerOptions::new().with_origin(OriginPolicy::any());
    if let Some(deflate) = &config.deflate {
        options = options.with_deflate(deflate.clone());
    }
    let accepted = sinews_proto::handshake::accept(&head, &options).map_err(|refusal| {
        let headers: Headers =
            refusal.headers().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let body = String::from_utf8_lossy(refusal.body()).into_owned();
        HandshakeError::new_err((body.trim_end().to_owned(), refusal.status(), headers))
    })?;
    let mut headers = accepted.headers();
    let key = headers.find(|(name, _)| name.eq_ignore_ascii_case("sec-websocket-accept"));
    let key = key.map_or_else(String::new, |(_, value)| value.to_owned());
    let extensions = accepted.extensions().map(str::to_owned);
    Ok((key, extensions, Negotiation { negotiated: accepted.negotiated() }))
}

/// A client's handshake.
#[pyclass(module = "sinews._native")]
pub(crate) struct ClientHandshake {
    handshake: sinews_proto::handshake::ClientHandshake,
}

#[pymethods]
impl ClientHandshake {
    #[new]
    fn new(
        host: String,
        path: String,
        headers: Headers,
        subprotocols: Vec<String>,
        key: [u8; 16],
        config: &Config,
    ) -> PyResult<Self> {
        let mut request = ClientRequest::new(host, path).map_err(|error| misuse("uri", error))?;
        for name in subprotocols {
            request = request.with_subprotocol(name).map_err(|error| misuse("subprotocols", error))?;
        }
        for (name, value) in headers {
            let error = |error| misuse(&format!("additional_headers: {name}"), error);
            request = request.with_header(name.as_str(), value).map_err(error)?;
        }
        if let Some(deflate) = &config.deflate {
            request = request.with_deflate(deflate.clone());
        }
        Ok(Self { handshake: request.start(key) })
    }

    /// Returns the request.
    fn request<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let mut request = Vec::new();
        self.handshake.write_request(&mut request);
        PyBytes::new(py, &request)
    }

    /// Checks the response with its head complete. Returns the head's length and the subprotocol.
    fn finish(&mut self, data: &[u8]) -> PyResult<(usize, Option<String>, Negotiation)> {
        match self.handshake.read_response(data) {
            Ok(ClientStep::Done(done)) => {
                let subprotocol = done.subprotocol().map(str::to_owned);
                Ok((done.consumed(), subprotocol, Negotiation { negotiated: done.negotiated() }))
            }
            Ok(ClientStep::NeedMore) => Err(HandshakeError::new_err("response is incomplete")),
            Err(error) => Err(HandshakeError::new_err(error.to_string())),
        }
    }
}

fn headers<'a>(lines: impl Iterator<Item = (&'a str, &'a [u8])>) -> Headers {
    // Each byte is a character, as HTTP's history has it (RFC 9110 section 5.5).
    let text = |value: &[u8]| match std::str::from_utf8(value) {
        Ok(text) => text.to_owned(),
        Err(_) => value.iter().map(|&byte| char::from(byte)).collect(),
    };
    lines.map(|(name, value)| (name.to_owned(), text(value))).collect()
}

fn invalid_head(error: sinews_proto::http::HeadError) -> PyErr {
    let headers: Headers = Vec::new();
    HandshakeError::new_err((error.to_string(), error.status(), headers))
}

fn misuse(what: &str, error: HandshakeMisuse) -> PyErr {
    PyValueError::new_err(format!("{what}: {error}"))
}
