//! Negotiation for interpreters that read and write HTTP heads themselves.

use sinews_proto::Negotiated;
use sinews_proto::deflate::DeflateConfig;
use sinews_proto::handshake::{
    ClientError, ClientRequest, ClientStep, OriginPolicy, Refusal, ServerOptions, accept, accept_key,
};
use sinews_proto::http::{HeadLimits, HeaderSlots, RequestHead};

/// Any key: the caller checks the key of its handshake.
const KEY: [u8; 16] = [0; 16];
const KEY_TEXT: &str = "AAAAAAAAAAAAAAAAAAAAAA==";

/// Returns what a server negotiates for a request's `Sec-WebSocket-Extensions`, and the response's value if there is
/// one.
///
/// # Errors
/// The offer is malformed: the refusal has the response's status.
pub fn negotiate_server(
    offer: Option<&str>,
    deflate: Option<DeflateConfig>,
) -> Result<(Negotiated, Option<String>), Box<Refusal>> {
    let mut options = ServerOptions::new().with_origin(OriginPolicy::any());
    if let Some(deflate) = deflate {
        options = options.with_deflate(deflate);
    }
    let offer = offer.map_or_else(String::new, |offer| format!("Sec-WebSocket-Extensions: {offer}\r\n"));
    let head = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY_TEXT}\r\n{offer}\r\n"
    );
    let mut slots = HeaderSlots::new();
    // A value that no header may have.
    let invalid = |_| Box::new(Refusal::new(400).expect("a status of an error"));
    let head = RequestHead::parse(head.as_bytes(), &HeadLimits::new(), &mut slots).map_err(invalid)?;
    let accepted = accept(&head, &options).map_err(Box::new)?;
    Ok((accepted.negotiated(), accepted.extensions().map(str::to_owned)))
}

/// Returns what a client has negotiated, given its own offer and the response's `Sec-WebSocket-Extensions`.
///
/// # Errors
/// The response accepts what was not offered, or is malformed.
pub fn negotiate_client(
    response: Option<&str>,
    deflate: Option<DeflateConfig>,
) -> Result<Negotiated, Box<ClientError>> {
    // The host and the path are constants.
    let mut request = ClientRequest::new("localhost", "/").expect("a valid request");
    if let Some(deflate) = deflate {
        request = request.with_deflate(deflate);
    }
    let mut handshake = request.start(KEY);
    let extensions =
        response.map_or_else(String::new, |value| format!("Sec-WebSocket-Extensions: {value}\r\n"));
    let key = accept_key(KEY_TEXT.as_bytes()).unwrap_or_default();
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {key}\r\n{extensions}\r\n"
    );
    match handshake.read_response(head.as_bytes()).map_err(Box::new)? {
        ClientStep::Done(established) => Ok(established.negotiated()),
        ClientStep::NeedMore => Err(Box::new(ClientError::TimedOut)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_negotiate_compression_if_both_enable_it() {
        let deflate = || Some(DeflateConfig::new());
        let (negotiated, header) = negotiate_server(Some("permessage-deflate"), deflate()).unwrap();
        assert!(negotiated.deflate().is_some());
        assert!(negotiate_client(header.as_deref(), deflate()).unwrap().deflate().is_some());
        let (negotiated, header) = negotiate_server(Some("permessage-deflate"), None).unwrap();
        assert_eq!((negotiated.deflate(), header), (None, None));
        assert_eq!(negotiate_server(None, deflate()).unwrap().1, None);
        assert_eq!(negotiate_client(None, deflate()).unwrap().deflate(), None);
    }

    #[test]
    fn what_was_not_offered_or_is_malformed_is_an_error() {
        assert!(negotiate_client(Some("permessage-deflate"), None).is_err());
        assert!(negotiate_client(Some("permessage-deflate; a"), Some(DeflateConfig::new())).is_err());
        assert_eq!(negotiate_server(Some(";;"), Some(DeflateConfig::new())).unwrap_err().status(), 400);
    }
}
