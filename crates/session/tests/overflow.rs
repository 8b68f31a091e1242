//! What happens at the limit of what may wait.

use std::sync::Arc;

use sinews_proto::handshake::{ClientRequest, ServerOptions, accept};
use sinews_proto::http::{HeadLimits, HeaderSlots, RequestHead};
use sinews_proto::{CloseCode, Config, Misuse, Negotiated, Overflow, Time};
use sinews_session::{Cause, Resources, Sent, Session};

#[test]
fn behind_a_close_nothing_overflows() {
    for overflow in [Overflow::Close, Overflow::DropNewest, Overflow::DropOldest] {
        let config = Config::default().with_overflow(overflow).with_max_outbound(10);
        let mut session = Session::new(server(), Arc::new(config), Time::ZERO);
        let mut resources = Resources::with_masks(|| [0; 4]);
        let mut tx = session.tx(&mut resources, Time::ZERO);
        assert_eq!(tx.send_binary(&[7; 20]), Ok(Sent::Queued));
        tx.close(CloseCode::NORMAL, "done").expect("it is open");
        assert_eq!(tx.send_binary(&[7; 20]), Err(Misuse::Closing), "{overflow:?}");
        assert_eq!(tx.send_fragment(sinews_proto::Kind::Binary, b"x", true), Err(Misuse::Closing));
        session.after_tx(&mut resources, Time::ZERO);
        assert_eq!(session.take_closed(), None, "{overflow:?}: the peer has not answered yet");
    }
}

#[test]
fn an_overflow_closes_once() {
    let config = Config::default().with_max_outbound(10);
    let mut session = Session::new(server(), Arc::new(config), Time::ZERO);
    let mut resources = Resources::with_masks(|| [0; 4]);
    let mut tx = session.tx(&mut resources, Time::ZERO);
    assert_eq!(tx.send_binary(&[7; 20]), Ok(Sent::Queued));
    assert_eq!(tx.send_binary(&[7; 20]), Ok(Sent::Dropped));
    assert_eq!(tx.send_binary(&[7; 20]), Err(Misuse::Closing));
    session.after_tx(&mut resources, Time::ZERO);
    let closed = session.take_closed().expect("the policy is to close");
    assert_eq!((closed.cause(), closed.code()), (Cause::Overflow, Some(CloseCode::POLICY)));
    assert_eq!(session.take_closed(), None);
}

/// The server's half of a handshake without extensions.
fn server() -> Negotiated {
    let mut request = Vec::new();
    ClientRequest::new("a", "/").expect("host and path are sound").start([7; 16]).write_request(&mut request);
    let mut slots = HeaderSlots::new();
    let head = RequestHead::parse(&request, &HeadLimits::new(), &mut slots).expect("our own request");
    accept(&head, &ServerOptions::new()).expect("our own request").negotiated()
}
