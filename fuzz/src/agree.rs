//! Negotiation results of a client and a server, from real handshakes: no other code can create them.

use sinews_proto::Negotiated;
use sinews_proto::deflate::{DeflateConfig, DeflateMode};
use sinews_proto::handshake::{ClientRequest, ClientStep, ServerOptions, accept};
use sinews_proto::http::{HeadLimits, HeaderSlots, RequestHead};

use crate::inflate::Window;
use crate::input::Input;

/// Results of both ends after a handshake.
#[derive(Debug)]
pub(crate) struct Agreement {
    pub(crate) client: Negotiated,
    pub(crate) server: Negotiated,
}

/// Runs a handshake between a client and a server with these configurations.
pub(crate) fn agree(client: Option<&DeflateConfig>, server: Option<&DeflateConfig>) -> Agreement {
    let mut request = ClientRequest::new("fuzz", "/").expect("host and path are sound");
    let mut options = ServerOptions::new();
    if let Some(config) = client {
        request = request.with_deflate(config.clone());
    }
    if let Some(config) = server {
        options = options.with_deflate(config.clone());
    }
    let mut handshake = request.start([7; 16]);
    let mut sent = Vec::new();
    handshake.write_request(&mut sent);
    let mut slots = HeaderSlots::new();
    let head = RequestHead::parse(&sent, &HeadLimits::new(), &mut slots).expect("our own request");
    let accepted = accept(&head, &options).expect("our own request");
    let mut answer = Vec::new();
    accepted.write_response(&[], &mut answer).expect("nothing was added");
    match handshake.read_response(&answer) {
        Ok(ClientStep::Done(done)) => {
            assert_eq!(done.consumed(), answer.len(), "bytes of the answer");
            Agreement { client: done.negotiated(), server: accepted.negotiated() }
        }
        other => panic!("our own answer: {other:?}"),
    }
}

/// Reads a compression configuration: five bytes.
pub(crate) fn read_config(input: &mut Input<'_>) -> DeflateConfig {
    let flags = input.byte();
    let mode = if flags & 1 == 0 { DeflateMode::Dedicated } else { DeflateMode::Shared };
    DeflateConfig::new()
        .with_mode(mode)
        .with_server_no_context_takeover(flags & 2 != 0)
        .with_client_no_context_takeover(flags & 4 != 0)
        .with_level(1 + input.below(9) as u8)
        .and_then(|config| config.with_server_max_window_bits(15 - input.below(7) as u8))
        .and_then(|config| config.with_client_max_window_bits(15 - input.below(7) as u8))
        .expect("all in range")
        .with_threshold(input.below(256))
}

/// Returns the LZ77 windows of the client and the server.
pub(crate) fn windows(negotiated: Negotiated) -> Option<(Window, Window)> {
    let params = negotiated.deflate()?;
    let client =
        Window { bits: params.client_max_window_bits(), takeover: !params.client_no_context_takeover() };
    let server =
        Window { bits: params.server_max_window_bits(), takeover: !params.server_no_context_takeover() };
    Some((client, server))
}
