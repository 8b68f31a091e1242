//! Handshakes in memory: both ends are the real implementations, and exchange real text.

use sinews_proto::deflate::DeflateConfig;
use sinews_proto::handshake::{
    ClientError, ClientRequest, ClientStep, Established, OriginPolicy, Refusal, ServerOptions, accept,
};
use sinews_proto::http::{HeadLimits, HeaderSlots, RequestHead};
use sinews_proto::{Negotiated, Role};

/// A handshake's results at both ends.
#[derive(Clone, Copy, Debug)]
pub struct Agreed {
    /// The client's ticket.
    pub client: Negotiated,
    /// The server's ticket.
    pub server: Negotiated,
}

impl Agreed {
    /// Returns one role's ticket.
    #[must_use]
    pub const fn of(self, role: Role) -> Negotiated {
        match role {
            Role::Client => self.client,
            Role::Server => self.server,
        }
    }
}

/// Performs a handshake between our client and our server, each with or without compression.
///
/// # Panics
/// If the handshake fails.
#[must_use]
pub fn negotiate(client: Option<DeflateConfig>, server: Option<DeflateConfig>) -> Agreed {
    let mut request = ClientRequest::new("example.com", "/").expect("a sound host and path");
    if let Some(config) = client {
        request = request.with_deflate(config);
    }
    let mut handshake = request.start([7; 16]);
    let mut bytes = Vec::new();
    handshake.write_request(&mut bytes);
    let (answer, server) = answer(&bytes, server).expect("our server takes our client");
    match handshake.read_response(&answer).expect("our client takes our server's answer") {
        ClientStep::Done(done) => Agreed { client: done.negotiated(), server },
        ClientStep::NeedMore => panic!("the answer is complete"),
    }
}

/// Returns one role's ticket, without compression.
#[must_use]
pub fn negotiate_plain(role: Role) -> Negotiated {
    negotiate(None, None).of(role)
}

/// Returns a server's ticket for a client's extension offer, and the answer's extensions.
///
/// # Errors
/// The rejection.
pub fn negotiate_offer(offer: &str, config: DeflateConfig) -> Result<(Negotiated, Option<String>), Refusal> {
    let request = request_with_offer(offer);
    let limits = HeadLimits::new();
    let mut slots = HeaderSlots::new();
    let head = RequestHead::parse(request.as_bytes(), &limits, &mut slots)?;
    let accepted = accept(&head, &options(Some(config)))?;
    Ok((accepted.negotiated(), accepted.extensions().map(str::to_owned)))
}

/// Returns a valid request with this extension offer.
#[must_use]
pub fn request_with_offer(offer: &str) -> String {
    format!(
        "GET / HTTP/1.1\r\nHost: example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Extensions: {offer}\r\n\r\n"
    )
}

/// Runs a client with this compression on an answer with these header lines after the three mandatory lines.
///
/// # Errors
/// The client's reason for the failure.
pub fn read_answer(config: Option<DeflateConfig>, lines: &str) -> Result<Established, ClientError> {
    let mut request = ClientRequest::new("example.com", "/").expect("a sound host and path");
    if let Some(config) = config {
        request = request.with_deflate(config);
    }
    // The example key in RFC 6455 section 1.3, which also has its accept value.
    let mut handshake = request.start(*b"the sample nonce");
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n{lines}\r\n"
    );
    match handshake.read_response(answer.as_bytes())? {
        ClientStep::Done(done) => Ok(done),
        ClientStep::NeedMore => panic!("the answer is complete"),
    }
}

fn answer(request: &[u8], deflate: Option<DeflateConfig>) -> Result<(Vec<u8>, Negotiated), Refusal> {
    let limits = HeadLimits::new();
    let mut slots = HeaderSlots::new();
    let head = RequestHead::parse(request, &limits, &mut slots)?;
    let accepted = accept(&head, &options(deflate))?;
    let mut answer = Vec::new();
    accepted.write_response(&[], &mut answer).expect("an answer over HTTP/1.1");
    Ok((answer, accepted.negotiated()))
}

fn options(deflate: Option<DeflateConfig>) -> ServerOptions {
    let options = ServerOptions::new().with_origin(OriginPolicy::any());
    match deflate {
        Some(config) => options.with_deflate(config),
        None => options,
    }
}
