//! Closing, sending and publishing from inside every callback.

use std::sync::Arc;

use sinews_proto::Kind::{Binary, Text};
use sinews_proto::deflate::DeflateConfig;
use sinews_proto::{CloseCode, Config, Misuse, Role, Time};
use sinews_session::{Cause, Prepared, TransportAction, Tx};
use sinews_testkit::{App, Chunks, Frame, Heard, Machine, Probe, Reply, SessionEnd, negotiate};

const ROLES: [Role; 2] = [Role::Server, Role::Client];

fn quiet() -> Config {
    Config::default().with_ping_interval(None).with_idle_timeout(None)
}

/// Runs the script as a probe's owner at each event, with and without fragment delivery and compression.
fn each_probe(
    script: impl Fn(&Heard, &mut Tx<'_>) + Clone + 'static,
    check: impl Fn(Probe<SessionEnd>, Chunks),
) {
    for deflate in [None, Some(DeflateConfig::new().with_threshold(0))] {
        for role in ROLES {
            for fragments in [false, true] {
                for chunks in Chunks::USUAL {
                    let negotiated = negotiate(deflate.clone(), deflate.clone()).of(role);
                    let app = App::script(script.clone());
                    let mut end = SessionEnd::new(negotiated, quiet(), app, Time::ZERO);
                    if fragments {
                        end = end.in_fragments();
                    }
                    check(Probe::new(end, negotiated), chunks);
                }
            }
        }
    }
}

/// One frame for each callback, identified by its result.
fn triggers() -> [Frame; 4] {
    [Frame::text("message"), Frame::binary([7; 300]), Frame::ping("ping"), Frame::pong("pong")]
}

#[test]
fn closing_inside_any_callback_answers_earlier_frames_only() {
    for trigger in triggers() {
        each_probe(
            |_, tx| {
                let _ = tx.close(CloseCode::GOING_AWAY, "enough");
            },
            |mut probe, chunks| {
                probe.send_frame(&trigger, chunks);
                let close = Reply::Close(Some(1001), "enough".to_owned());
                let replies = probe.take_replies();
                assert_eq!(replies.last(), Some(&close));
                // The callbacks of further input may close again, without effect.
                for frame in triggers() {
                    probe.send_frame(&frame, chunks);
                }
                probe.send_frame(&Frame::close(1001, ""), chunks);
                assert!(probe.take_replies().is_empty());
                assert_eq!(probe.take_heard().last(), Some(&Heard::Over(Some(1001), Cause::Local)));
                assert!(probe.finishes());
            },
        );
    }
}

#[test]
fn sending_behind_a_close_inside_a_callback_is_rejected() {
    for trigger in triggers() {
        each_probe(
            |_, tx| {
                // The second callback finds the connection closing already.
                let _ = tx.close(CloseCode::NORMAL, "");
                let published = Prepared::text("published");
                let refused = [
                    tx.send_text("x").is_err(),
                    tx.send_binary(&[0; 9000]).is_err(),
                    tx.send_bytes(vec![0; 9000].into()).is_err(),
                    tx.send_prepared(&published).is_err(),
                    tx.send_fragment(Text, b"x", true).is_err(),
                    tx.send_ping(b"x").is_err(),
                    tx.close(CloseCode::NORMAL, "").is_err(),
                ];
                assert_eq!(refused, [true; 7]);
                assert!(!tx.is_open());
            },
            |mut probe, chunks| {
                probe.send_frame(&trigger, chunks);
                assert_eq!(probe.take_replies().last(), Some(&Reply::Close(Some(1000), String::new())));
            },
        );
    }
}

/// All sends from a callback leave in call order, the automatic pong behind them.
#[test]
fn sending_and_publishing_inside_any_callback_keep_their_order() {
    let published = Prepared::text("published to all, compressed where that was agreed");
    let large = bytes::Bytes::from(vec![5; 20_000]);
    let script = {
        let (published, large) = (published.clone(), large.clone());
        move |heard: &Heard, tx: &mut Tx<'_>| {
            if matches!(heard, Heard::Fragment { last: false, .. }) {
                return;
            }
            let _ = tx.send_text("copied").expect("open");
            let _ = tx.send_bytes(large.clone()).expect("open");
            let _ = tx.send_prepared(&published).expect("open");
            let _ = tx.send_fragment(Binary, b"in ", false).expect("open");
            assert_eq!(tx.send_text("inside a message"), Err(Misuse::MessageOpen));
            let _ = tx.send_prepared(&published).expect("held until the message has ended");
            assert_eq!(tx.send_fragment(Text, b"", true), Err(Misuse::MessageOpen));
            let _ = tx.send_ping(b"between").expect("open");
            let _ = tx.send_fragment(Binary, b"pieces", true).expect("open");
        }
    };
    for trigger in triggers() {
        let (published, large) = (published.payload().clone(), large.clone());
        each_probe(script.clone(), |mut probe, chunks| {
            probe.send_frame(&trigger, chunks);
            let mut expected = vec![
                Reply::text("copied"),
                Reply::binary(&large),
                Reply::text(&published),
                Reply::Ping(b"between".to_vec()),
                Reply::binary("in pieces"),
                Reply::text(&published),
            ];
            if trigger.payload() == b"ping" {
                expected.push(Reply::Pong(b"ping".to_vec()));
            }
            assert_eq!(probe.take_replies(), expected);
        });
    }
}

/// A burst in which an early callback closes: later messages are still delivered, as RFC 6455 section 7.1.2
/// requires until the peer's own Close.
#[test]
fn messages_behind_our_close_are_delivered_until_the_peer_closes() {
    let script = |heard: &Heard, tx: &mut Tx<'_>| {
        if *heard == Heard::Message(Text, b"first".to_vec()) {
            let _ = tx.send_text("answer").expect("open");
            tx.close(CloseCode::NORMAL, "").expect("open");
        }
    };
    for role in ROLES {
        for chunks in Chunks::USUAL {
            let negotiated = negotiate(None, None).of(role);
            let end = SessionEnd::new(negotiated, quiet(), App::script(script), Time::ZERO);
            let mut probe = Probe::new(end, negotiated);
            let frames = [
                Frame::text("first"),
                Frame::text("second"),
                Frame::ping("p"),
                Frame::close(1000, ""),
                Frame::text("behind"),
            ];
            let burst: Vec<u8> = frames.iter().flat_map(|frame| frame.encode(probe.peer())).collect();
            probe.send(&burst, chunks);
            assert_eq!(
                probe.take_heard(),
                [
                    Heard::Message(Text, b"first".to_vec()),
                    Heard::Message(Text, b"second".to_vec()),
                    Heard::Ping(b"p".to_vec()),
                    Heard::Over(Some(1000), Cause::Local),
                ]
            );
            let close = Reply::Close(Some(1000), String::new());
            assert_eq!(probe.take_replies(), [Reply::text("answer"), close]);
        }
    }
}

/// A callback that fills the output past every mark: reads are paused, the message is not lost, and the
/// connection resumes once the output has drained.
#[test]
fn a_callback_may_fill_the_output() {
    let config = quiet().with_high_water(1000).with_max_outbound(100_000);
    let script = |heard: &Heard, tx: &mut Tx<'_>| {
        if matches!(heard, Heard::Message(..)) {
            let _ = tx.send_binary(&[1; 5000]).expect("open");
        }
    };
    let negotiated = negotiate(None, None).server;
    let end = SessionEnd::new(negotiated, config, App::script(script), Time::ZERO);
    let mut probe = Probe::new(end, negotiated).taking(Chunks::Fixed(700)).deaf();
    probe.send(&Frame::text("x").encode(Role::Client).repeat(10), Chunks::Whole);
    assert!(probe.machine.is_paused());
    assert_eq!(probe.take_heard().len(), 1);
    let mut probe = probe.hearing();
    probe.pump();
    assert_eq!(probe.take_heard().len(), 9);
    assert_eq!(probe.take_replies(), vec![Reply::binary([1; 5000]); 10]);
    assert_eq!(probe.machine.app().drains, 10);
}

/// A session's end while its send is in flight: the send's buffers stay allocated, and the rest that it sends is
/// complete.
#[test]
fn a_session_may_end_while_a_send_is_in_flight() {
    for role in ROLES {
        let negotiated = negotiate(None, None).of(role);
        let mut end = SessionEnd::new(negotiated, quiet(), App::listener(), Time::ZERO);
        let _ = end.act(Time::ZERO, |tx| tx.send_bytes(vec![3; 50_000].into()).expect("open"));
        let mut sent = end.take(10, Time::ZERO);
        end.deliver(
            &mut Frame::new(5, "").encode(if role == Role::Server { Role::Client } else { Role::Server }),
            Time::ZERO,
        );
        assert_eq!(
            end.transport_action(),
            TransportAction::Finish,
            "both Closes are settled, ours is still to leave"
        );
        end.deliver_end(Time::ZERO);
        assert_eq!(end.transport_action(), TransportAction::Finish, "queued bytes may still be read");
        while end.waiting() > 0 {
            sent.extend(end.take(999, Time::ZERO));
        }
        assert_eq!(end.transport_action(), TransportAction::Drop);
        let replies = sinews_testkit::Reader::new(role, None).read(&sent).expect("whole frames");
        assert_eq!(replies.len(), 2);
        assert_eq!(replies[1].close_code(), Some(1002));
    }
}

/// The configuration is shared between many sessions: ending some does not affect the rest.
#[test]
fn sessions_of_one_thread_end_independently() {
    let negotiated = negotiate(Some(DeflateConfig::new()), Some(DeflateConfig::new())).server;
    let config = Arc::new(quiet());
    let mut resources = sinews_session::Resources::new();
    let mut sessions: Vec<_> =
        (0..20).map(|_| sinews_session::Session::new(negotiated, Arc::clone(&config), Time::ZERO)).collect();
    let mut app = App::echo();
    let whole = Frame::text("hello").encode(Role::Client);
    for round in 0..10 {
        for (number, session) in sessions.iter_mut().enumerate() {
            let _ = session.receive(&mut whole.clone()[..4], &mut resources, Time::ZERO, &mut app);
            if number == round {
                session.receive_end(Time::ZERO);
            }
        }
        for session in &mut sessions {
            let _ = session.receive(&mut whole.clone()[4..], &mut resources, Time::ZERO, &mut app);
        }
        sessions.remove(round);
    }
    assert_eq!(sessions.len(), 10);
    for session in &mut sessions {
        assert_eq!(session.buffered() % 7, 0, "whole echoes of seven bytes");
        assert!(session.is_open());
    }
}
