//! Sessions over memory: the driver's half of the library.

mod deferred;
mod large;
mod overflow;
mod pieces;
mod sending;
mod tagged;

use sinews_proto::handshake::{ClientRequest, ClientStep, ServerOptions, accept};
use sinews_proto::http::{HeadLimits, HeaderSlots, RequestHead};
use sinews_proto::{Negotiated, Role};
use sinews_session::{Events, Payload, Tx};

/// A side of a handshake without extensions.
pub(crate) fn negotiate(role: Role) -> Negotiated {
    let mut handshake = ClientRequest::new("a", "/").expect("host and path are valid").start([7; 16]);
    let (mut request, mut response) = (Vec::new(), Vec::new());
    handshake.write_request(&mut request);
    let mut slots = HeaderSlots::new();
    let head = RequestHead::parse(&request, &HeadLimits::new(), &mut slots).expect("our own request");
    let accepted = accept(&head, &ServerOptions::new()).expect("our own request");
    accepted.write_response(&[], &mut response).expect("sound");
    match (role, handshake.read_response(&response)) {
        (Role::Server, _) => accepted.negotiated(),
        (Role::Client, Ok(ClientStep::Done(done))) => done.negotiated(),
        (_, step) => panic!("{step:?}"),
    }
}

/// The messages that a session has received.
#[derive(Default)]
pub(crate) struct RecordedEvents(Vec<Vec<u8>>);

impl Events for RecordedEvents {
    fn message(&mut self, payload: Payload<'_>, _: &mut Tx<'_>) {
        self.0.push(payload.to_vec());
    }
}
