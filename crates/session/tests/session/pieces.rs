//! Messages composed of several buffers, and plain streams without WebSocket.

use std::io::IoSlice;
use std::sync::Arc;

use bytes::Bytes;
use sinews_proto::{Config, Kind, Misuse, Negotiated, Overflow, Role, Time};
use sinews_session::{Cause, Flow, Resources, Sent, Session, TransportAction};

use crate::{RecordedEvents, negotiate};

fn session(negotiated: Negotiated, config: Config) -> Session {
    Session::new(negotiated, Arc::new(config.with_ping_interval(None)), Time::ZERO)
}

/// The sent bytes, and their number of slices.
fn send_all(session: &mut Session, resources: &mut Resources) -> (Vec<u8>, usize) {
    let Some(mut chain) = session.start_send() else { return (Vec::new(), 0) };
    let mut slices = [IoSlice::new(&[]); 16];
    let filled = chain.slices(&mut slices);
    let bytes = slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect();
    chain.advance(chain.len());
    session.finish_send(chain, resources, Time::ZERO);
    (bytes, filled)
}

#[test]
fn large_pieces_are_sent_by_reference_behind_one_head() {
    let pieces =
        [Bytes::from_static(b"head"), vec![1; 5_000].into(), vec![2; 70_000].into(), vec![3; 9].into()];
    let whole = pieces.concat();
    let head = |prefixed| match prefixed {
        true => (whole.len() as u32).to_le_bytes().to_vec(),
        false => [&[0x82, 127][..], &(whole.len() as u64).to_be_bytes()].concat(),
    };
    for (negotiated, prefixed) in
        [(negotiate(Role::Server), false), (Negotiated::prefixed(Role::Server), true)]
    {
        let (mut session, mut resources) = (session(negotiated, Config::default()), Resources::new());
        let sent = session.tx(&mut resources, Time::ZERO).send_pieces(Kind::Binary, &pieces);
        assert_eq!(sent, Ok(Sent::Backpressure));
        let (bytes, slices) = send_all(&mut session, &mut resources);
        assert_eq!(bytes, [head(prefixed), whole.clone()].concat());
        assert_eq!(slices, 4, "head and first piece, two large pieces, last piece");
        assert_eq!(resources.traffic().messages_sent, 1);
        // The callers still own the buffers.
        assert_eq!(pieces[1].len(), 5_000);
    }
}

#[test]
fn limits_apply_to_whole_message_of_pieces() {
    let config = Config::default().with_max_outbound(100).with_overflow(Overflow::DropNewest);
    let (mut session, mut resources) = (session(negotiate(Role::Server), config), Resources::new());
    let mut tx = session.tx(&mut resources, Time::ZERO);
    let pieces = [vec![0; 60].into(), vec![0; 60].into()];
    assert_eq!(tx.send_pieces(Kind::Binary, &pieces), Ok(Sent::Queued));
    assert_eq!(tx.send_pieces(Kind::Binary, &pieces), Ok(Sent::Dropped));
    assert_eq!(tx.send_pieces(Kind::Binary, &[]), Ok(Sent::Dropped));
}

#[test]
fn plain_stream_is_independent_of_chunk_boundaries() {
    let payloads: Vec<Vec<u8>> = [0_usize, 1, 5, 200, 0, 3].iter().map(|len| vec![b'-'; *len]).collect();
    let wire: Vec<u8> = payloads
        .iter()
        .flat_map(|payload| [&(payload.len() as u32).to_le_bytes()[..], payload].concat())
        .collect();
    for step in 1..=wire.len() {
        let mut session = session(Negotiated::prefixed(Role::Server), Config::default());
        let (mut resources, mut heard) = (Resources::new(), RecordedEvents::default());
        for piece in wire.chunks(step) {
            let flow = session.receive(&mut piece.to_vec(), &mut resources, Time::ZERO, &mut heard);
            assert_eq!(flow, Flow::Continue);
        }
        assert_eq!(heard.0, payloads, "in pieces of {step}");
        session.receive_end(Time::ZERO);
        assert_eq!(session.take_closed().map(|closed| closed.cause()), Some(Cause::Peer));
        assert_eq!(session.transport_action(), TransportAction::Drop);
    }
}

#[test]
fn plain_stream_ending_within_message_is_truncated() {
    for cut in [&[1, 0][..], &[2, 0, 0, 0], &[2, 0, 0, 0, 9]] {
        let mut session = session(Negotiated::prefixed(Role::Server), Config::default());
        let (mut resources, mut heard) = (Resources::new(), RecordedEvents::default());
        let _ = session.receive(&mut cut.to_vec(), &mut resources, Time::ZERO, &mut heard);
        session.receive_end(Time::ZERO);
        assert_eq!(session.take_closed().map(|closed| closed.cause()), Some(Cause::Ended), "{cut:?}");
    }
}

#[test]
fn plain_stream_closes_at_end_of_transport() {
    let mut session = session(Negotiated::prefixed(Role::Server), Config::default());
    let mut resources = Resources::new();
    let mut tx = session.tx(&mut resources, Time::ZERO);
    let _ = tx.send_text("last").expect("open");
    assert_eq!(tx.send_fragment(Kind::Text, b"a", true), Err(Misuse::Prefixed));
    tx.close(sinews_proto::CloseCode::NORMAL, "enough").expect("open");
    session.after_tx(&mut resources, Time::ZERO);
    assert_eq!(send_all(&mut session, &mut resources).0, b"\x04\0\0\0last");
    assert_eq!(session.transport_action(), TransportAction::Finish);
    session.receive_end(Time::ZERO);
    assert_eq!(session.transport_action(), TransportAction::Drop);
}
