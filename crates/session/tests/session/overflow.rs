//! Overflow policies at the limit of the outbound queue.

use std::sync::Arc;

use sinews_proto::{CloseCode, Config, Misuse, Overflow, Role, Time};
use sinews_session::{Cause, Prepared, Resources, Sent, Session};

use crate::negotiate;

#[test]
fn overflow_policy_does_not_apply_after_close() {
    for overflow in [Overflow::Close, Overflow::DropNewest, Overflow::DropOldest] {
        let config = Config::default().with_overflow(overflow).with_max_outbound(10);
        let (mut session, mut resources) = session(config);
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
    let (mut session, mut resources) = session(config);
    let mut tx = session.tx(&mut resources, Time::ZERO);
    assert_eq!(tx.send_binary(&[7; 20]), Ok(Sent::Queued));
    assert_eq!(tx.send_binary(&[7; 20]), Ok(Sent::Dropped));
    assert_eq!(tx.send_binary(&[7; 20]), Err(Misuse::Closing));
    session.after_tx(&mut resources, Time::ZERO);
    let closed = session.take_closed().expect("the policy is to close");
    assert_eq!((closed.cause(), closed.code()), (Cause::Overflow, Some(CloseCode::POLICY)));
    assert_eq!(session.take_closed(), None);
}

fn session(config: Config) -> (Session, Resources) {
    let session = Session::new(negotiate(Role::Server), Arc::new(config), Time::ZERO);
    (session, Resources::with_masks(|| [0; 4]))
}

/// Every publication of the burst can be dropped, of any size; the newest is always admitted.
#[test]
fn drop_oldest_applies_within_one_burst() {
    let config = Config::default().with_overflow(Overflow::DropOldest).with_max_outbound(5000);
    let (mut session, mut resources) = session(config);
    for number in 0..100_u8 {
        let mut tx = session.tx(&mut resources, Time::ZERO);
        let sent = tx.send_prepared(&Prepared::binary(vec![number; 200])).expect("it is open");
        assert_ne!(sent, Sent::Dropped, "{number}");
        assert!(tx.buffered() <= 5000 + 202, "{} wait", tx.buffered());
    }
    let chain = session.start_send().expect("the newest messages are queued");
    let mut slices = vec![std::io::IoSlice::new(&[]); 100];
    let filled = chain.slices(&mut slices);
    let numbers: Vec<u8> = slices[..filled].iter().map(|frame| frame[frame.len() - 1]).collect();
    assert_eq!(
        numbers,
        (100 - numbers.len() as u8..100).collect::<Vec<u8>>(),
        "the newest messages, in order"
    );
}

/// A send in flight cannot be dropped; the newest message still replaces older publications.
#[test]
fn newest_publication_is_admitted_behind_full_send_in_flight() {
    let config = Config::default().with_overflow(Overflow::DropOldest).with_max_outbound(10_000);
    let (mut session, mut resources) = session(config);
    assert_eq!(session.tx(&mut resources, Time::ZERO).send_binary(&[7; 20_000]), Ok(Sent::Queued));
    let in_flight = session.start_send().expect("it waits");
    for number in 0..5_u8 {
        let message = Prepared::binary(vec![number; 10]);
        let sent = session.tx(&mut resources, Time::ZERO).send_prepared(&message);
        assert_eq!(sent, Ok(Sent::Queued), "{number}");
    }
    session.finish_send(in_flight, &mut resources, Time::ZERO);
    let chain = session.start_send().expect("the newest message is queued");
    assert_eq!(chain.len(), 12, "only the newest message");
    let mut slices = [std::io::IoSlice::new(&[]); 2];
    assert_eq!(chain.slices(&mut slices), 1);
    assert_eq!(slices[0][2..], [4; 10]);
}

#[test]
fn sent_and_dropped_messages_are_counted() {
    let sent = |config: Config| {
        let (mut session, mut resources) = session(config);
        let mut tx = session.tx(&mut resources, Time::ZERO);
        for _ in 0..3 {
            let _ = tx.send_text("four");
            let _ = tx.send_prepared(&Prepared::text("seven!!"));
        }
        let _ = tx.send_ping(b"not data");
        let _ = tx.send_fragment(sinews_proto::Kind::Text, b"ab", false);
        let _ = tx.send_prepared(&Prepared::text("held"));
        let _ = tx.send_fragment(sinews_proto::Kind::Text, b"c", true);
        let traffic = resources.traffic();
        (traffic.messages_sent, traffic.bytes_sent, traffic.dropped_newest, traffic.dropped_oldest)
    };
    assert_eq!(sent(Config::default()), (8, 3 * 11 + 7, 0, 0));
    // The first two messages reach the limit; the ping and the fragments are dropped as well.
    let newest = Config::default().with_overflow(Overflow::DropNewest).with_max_outbound(10);
    assert_eq!(sent(newest), (2, 11, 8, 0));
    // A published message replaces older publications.
    let oldest = Config::default().with_overflow(Overflow::DropOldest).with_max_outbound(10);
    let (messages, _, refused, replaced) = sent(oldest);
    assert_eq!((messages, refused, replaced), (6, 4, 4));
}

#[test]
fn messages_queued_apart_do_not_count_towards_max_outbound() {
    let config = Config::default().with_max_outbound(100);
    let (mut session, mut resources) = session(config);
    let message = Prepared::binary(vec![1; 1_000]);
    let mut tx = session.tx(&mut resources, Time::ZERO);
    for number in 1..=3 {
        assert_eq!(tx.queue_prepared(&message, true), Ok(Sent::Queued));
        assert_eq!((tx.waiting(), tx.exempt()), (number * 1_004, number * 1_004));
    }
    assert_eq!(tx.send_binary(&[7; 98]), Ok(Sent::Queued));
    // Sent bytes are attributed to the connection's own messages first.
    let chain = session.start_send().expect("four messages are queued");
    session.progressed(2_000, Time::ZERO);
    let mut tx = session.tx(&mut resources, Time::ZERO);
    assert_eq!(tx.send_binary(&[7; 8]), Ok(Sent::Queued));
    session.finish_send(chain, &mut resources, Time::ZERO);
    let mut tx = session.tx(&mut resources, Time::ZERO);
    assert_eq!(tx.queue_prepared(&message, false), Ok(Sent::Queued));
    assert_eq!(tx.send_binary(&[7; 8]), Ok(Sent::Dropped), "the policy is to close");
}

#[test]
fn own_messages_displace_counted_publications_only() {
    let config = Config::default().with_overflow(Overflow::DropOldest).with_max_outbound(100);
    let (mut session, mut resources) = session(config);
    let mut tx = session.tx(&mut resources, Time::ZERO);
    for (payload, exempt) in [("spared", true), ("first", false), ("second", false)] {
        let _ = tx.queue_prepared(&Prepared::text(payload), exempt).expect("it is open");
    }
    assert_eq!(tx.send_binary(&[7; 98]), Ok(Sent::Queued));
    assert_eq!(tx.send_binary(&[8; 98]), Ok(Sent::Dropped), "the publications are too short");
    assert_eq!((session.take_dropped(), session.take_dropped()), (2, 0));
    let chain = session.start_send().expect("two messages");
    let bytes = chain.pieces().collect::<Vec<_>>().concat();
    assert_eq!(bytes[..11], *b"\x81\x06spared\x82\x62\x07");
    assert!(session.finish_send(chain, &mut resources, Time::ZERO), "the owner gets drain");
    assert_eq!(resources.traffic().dropped_oldest, 2);
}

#[test]
fn drops_within_a_fragmented_message_do_not_pause_reads() {
    let config = Config::default().with_overflow(Overflow::DropOldest).with_max_outbound(100);
    let (mut session, mut resources) = session(config);
    let _ = session
        .tx(&mut resources, Time::ZERO)
        .send_fragment(sinews_proto::Kind::Binary, b"a", false)
        .expect("it is open");
    let chain = session.start_send().expect("the fragment");
    assert!(!session.finish_send(chain, &mut resources, Time::ZERO));
    let mut tx = session.tx(&mut resources, Time::ZERO);
    for _ in 0..3 {
        assert_eq!(tx.send_prepared(&Prepared::binary(vec![1; 60])), Ok(Sent::Queued));
    }
    // Nothing is queued, so that no send would end a pause.
    assert!(session.start_send().is_none() && !session.is_congested());
    assert_eq!(session.take_dropped(), 2);
    let mut tx = session.tx(&mut resources, Time::ZERO);
    let _ = tx.send_fragment(sinews_proto::Kind::Binary, b"b", true).expect("it is open");
    let chain = session.start_send().expect("the last fragment and a message");
    assert!(session.finish_send(chain, &mut resources, Time::ZERO), "the owner gets drain");
}

#[test]
fn message_queued_apart_follows_last_fragment() {
    let mut session = Session::new(negotiate(Role::Server), Arc::default(), Time::ZERO);
    let mut resources = Resources::with_masks(|| [0; 4]);
    let mut tx = session.tx(&mut resources, Time::ZERO);
    let _ = tx.send_fragment(sinews_proto::Kind::Binary, b"a", false).expect("it is open");
    let _ = tx.queue_prepared(&Prepared::binary(&b"held"[..]), true).expect("it is open");
    assert_eq!((tx.buffered(), tx.waiting() > 7), (3, true));
    let _ = tx.send_fragment(sinews_proto::Kind::Binary, b"b", true).expect("it is open");
    let chain = session.start_send().expect("all messages are queued");
    assert_eq!(chain.pieces().collect::<Vec<_>>().concat(), b"\x02\x01a\x80\x01b\x82\x04held");
}

#[test]
fn close_for_overflow_reports_overflow_cause() {
    let mut session = Session::new(negotiate(Role::Server), Arc::default(), Time::ZERO);
    let mut resources = Resources::with_masks(|| [0; 4]);
    let code = CloseCode::new(4_000).expect("an application's own");
    session.close_for_overflow(code, "lags", &mut resources, Time::ZERO).expect("it is open");
    assert!(session.close_for_overflow(code, "lags", &mut resources, Time::ZERO).is_err());
    let closed = session.take_closed().expect("reported at once");
    assert_eq!((closed.cause(), closed.code(), closed.reason()), (Cause::Overflow, Some(code), "lags"));
    let chain = session.start_send().expect("a Close");
    assert_eq!(chain.pieces().collect::<Vec<_>>().concat(), b"\x88\x06\x0f\xa0lags");
}
