//! Other projects' real faults, by class: lengths, growth by small parts, compression, resets, queues.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sinews_conformance::Case;
use sinews_proto::Kind::{Binary, Text};
use sinews_proto::deflate::{DeflateConfig, DeflateMode};
use sinews_proto::{
    CloseCode, Config, Connection, Event, Expired, Misuse, Overflow, PeerMisbehaved as Fault, PerThread,
    PingRate, Role, Time,
};
use sinews_session::{Cause, Events, Payload, Prepared, Resources, Sent, Session, TransportAction, Tx};
use sinews_testkit::{
    App, Chunks, Codec, Frame, Heard, Length, Machine, Pair, Probe, Reader, Reply, SessionEnd, corpora,
    negotiate, negotiate_plain,
};

const ROLES: [Role; 2] = [Role::Server, Role::Client];

fn quiet() -> Config {
    Config::default().with_ping_interval(None).with_idle_timeout(None)
}

// Class A: the length field.

#[test]
fn absurd_lengths_fail_with_the_head() {
    for len in corpora::LENGTHS_ABSURD {
        let fault = if len >> 63 == 1 { Fault::LengthTopBit } else { Fault::FrameTooBig };
        for opcode in [1, 2] {
            for fin in [true, false] {
                let head = Frame::new(opcode, "").length(Length::Bits64).declares(len).fin(fin);
                Case::new(format!("{len:#x}")).send(head).fails(fault).run_everywhere();
            }
        }
        let inside = Case::new(format!("{len:#x} in a continuation"))
            .send(Frame::text("x").fin(false))
            .send(Frame::continuation("").length(Length::Bits64).declares(len));
        inside.fails(fault).run_everywhere();
    }
}

/// Without limits, lengths near the end of 64 bits neither overflow nor panic: the machine waits for the
/// frame.
#[test]
fn lengths_near_the_end_of_64_bits_do_not_overflow() {
    let config = quiet().with_max_frame(u64::MAX).with_max_message(u64::MAX);
    for deflate in [None, Some(DeflateConfig::new())] {
        for role in ROLES {
            for chunks in Chunks::USUAL {
                let negotiated = negotiate(deflate.clone(), deflate.clone()).of(role);
                let rsv = if deflate.is_some() { 4 } else { 0 };
                for len in [1 << 62, (1 << 63) - 1] {
                    let mut probe = Probe::session(negotiated, config.clone());
                    let head = Frame::binary("").rsv(rsv).fin(false).length(Length::Bits64).declares(len);
                    probe.send_frame(&head, chunks);
                    if deflate.is_none() {
                        probe.send(b"a few bytes", chunks);
                    }
                    assert!(probe.take_heard().is_empty(), "{len:#x}");
                    assert_eq!(probe.machine.transport_action(), TransportAction::Open);
                }
            }
        }
    }
    // Fragments with an overflowing sum exceed any limit below.
    let config = quiet().with_max_frame(u64::MAX).with_max_message(u64::MAX - 1).with_max_fragments(9);
    let mut probe = Probe::session(negotiate_plain(Role::Server), config);
    probe.send_frame(&Frame::binary("").fin(false), Chunks::Whole);
    let head = Frame::continuation("").length(Length::Bits64).declares((1 << 63) - 1);
    probe.send_frame(&head, Chunks::Whole);
    assert_eq!(probe.machine.transport_action(), TransportAction::Open);
}

#[test]
fn header_errors_are_reported_before_the_length_arrives() {
    for (frame, fault) in [
        (Frame::new(3, "").length(Length::Bits64).declares(1 << 40), Fault::UnknownOpcode(3)),
        (Frame::text("").rsv(2).length(Length::Bits64).declares(1 << 40), Fault::ReservedBits),
        (Frame::ping("").length(Length::Bits64).declares(1 << 40), Fault::ControlTooLong),
        (Frame::close_raw("").length(Length::Bits16).declares(4), Fault::ControlTooLong),
        (Frame::ping("").fin(false).declares(5), Fault::ControlFragmented),
    ] {
        for role in ROLES {
            let mut probe = Probe::session(negotiate_plain(role), Config::default());
            let bytes = frame.encode(probe.peer());
            probe.send(&bytes[..1], Chunks::Whole);
            assert!(probe.take_heard().is_empty());
            probe.send(&bytes[1..2], Chunks::Whole);
            let code = fault.close_code().as_u16();
            assert_eq!(probe.take_heard(), [Heard::Over(Some(code), Cause::Fault(fault))]);
        }
    }
}

// Class B: growth by many small parts.

#[test]
fn empty_continuations_are_counted() {
    let allowed = Config::default().max_empty_fragments();
    for role in ROLES {
        let mut probe = Probe::session(negotiate_plain(role), Config::default());
        let mut bytes = Frame::text("").fin(false).encode(probe.peer());
        let empty = Frame::continuation("").fin(false).encode(probe.peer());
        for _ in 1..allowed {
            bytes.extend_from_slice(&empty);
        }
        probe.send(&bytes, Chunks::Whole);
        assert!(probe.take_heard().is_empty(), "the first counts as one of {allowed}");
        probe.send(&empty.repeat(1_000_000), Chunks::Fixed(64 << 10));
        let fault = Cause::Fault(Fault::TooManyEmptyFragments);
        assert_eq!(probe.take_heard(), [Heard::Over(Some(1008), fault)]);
        assert_eq!(probe.take_replies().len(), 1);
    }
}

#[test]
fn fragments_are_counted_and_the_suite_stays_below_the_limit() {
    let config = Config::default().with_max_fragments(10);
    let mut case = Case::new("ten").send(Frame::text("x").fin(false));
    for _ in 0..8 {
        case = case.send(Frame::continuation("x").fin(false));
    }
    let ten = case.clone().send(Frame::continuation("x")).echoes(Text, "x".repeat(10)).bye();
    ten.run_under(&config, None);
    let eleven = case.send(Frame::continuation("x").fin(false)).send(Frame::continuation("x"));
    eleven.fails(Fault::TooManyFragments).run_under(&config, None);
    assert!(Config::default().max_fragments() > 65_536, "Autobahn sends as many");
}

/// A fragment collector must not escape the limit, nor may an incomplete frame.
#[test]
fn fragments_and_incomplete_frames_count_toward_the_message_limit() {
    let config = Config::default().with_max_frame(1000).with_max_message(1000);
    let start = Case::new("fragments").send(Frame::binary([0; 600]).fin(false));
    let head = Frame::continuation("").length(Length::Bits16).declares(401);
    start.send(head).fails(Fault::MessageTooBig).run_under(&config, None);
    let alone = Case::new("alone").send(Frame::binary("").length(Length::Bits16).declares(1001));
    alone.fails(Fault::FrameTooBig).run_under(&config, None);
}

#[test]
fn pings_faster_than_the_rate_fail() {
    let config = quiet().with_ping_rate(PingRate { per_second: 10, burst: 20 });
    let mut probe = Probe::session(negotiate_plain(Role::Server), config);
    for _ in 0..20 {
        probe.send_frame(&Frame::ping("p"), Chunks::Whole);
    }
    assert_eq!(probe.take_replies().len(), 20);
    probe.pass(Duration::from_secs(1));
    for _ in 0..10 {
        probe.send_frame(&Frame::ping("p"), Chunks::Whole);
    }
    assert_eq!(probe.take_replies().len(), 10);
    probe.send_frame(&Frame::ping("p"), Chunks::Whole);
    assert_eq!(probe.take_replies(), [Reply::Close(Some(1008), "too many pings".to_owned())]);
}

/// A peer floods and never reads: the queue stays near the high-water mark, reads are paused, and after the
/// write timeout without progress the peer is dropped.
#[test]
fn a_flood_of_pings_to_a_peer_that_never_reads_is_bounded() {
    let rate = PingRate { per_second: u32::MAX, burst: u32::MAX };
    let config = quiet().with_ping_rate(rate);
    let (mark, timeout) = (config.high_water(), config.write_timeout());
    let mut probe = Probe::session(negotiate_plain(Role::Server), config).deaf();
    let flood = Frame::ping([7; 125]).encode(Role::Client).repeat(20_000);
    probe.send(&flood, Chunks::Fixed(16 << 10));
    assert!(probe.machine.is_paused());
    assert!(probe.machine.waiting() <= mark + 127, "{}", probe.machine.waiting());
    assert!(probe.undelivered() > 1_000_000, "the rest stays in the peer's hands");
    probe.pass(timeout);
    assert_eq!(probe.machine.transport_action(), TransportAction::Drop);
    let heard = probe.take_heard();
    assert_eq!(heard.last(), Some(&Heard::Over(None, Cause::Expired(Expired::Write))));
}

/// While the output is full, a flood costs one pong, the newest (RFC 6455 section 5.5.3).
#[test]
fn pongs_without_room_are_reduced_to_the_newest() {
    let config = Arc::new(quiet());
    let mut connection = Connection::new(negotiate_plain(Role::Server), config, Time::ZERO);
    let mut shared = PerThread::new(|| [0; 4]);
    let (mut assembly, mut out) = (Vec::new(), Vec::new());
    for text in ["first", "second", "third"] {
        let mut ping = Frame::ping(text).encode(Role::Client);
        let received = connection.receive(&mut ping, &mut assembly, &mut shared, Time::ZERO);
        assert!(matches!(received.map(|received| received.event), Ok(Event::Ping(_))));
    }
    connection.write_control(&mut shared, &mut out, Time::ZERO);
    let replies = Reader::new(Role::Server, None).read(&out);
    assert_eq!(replies, Ok(vec![Reply::Pong(b"third".to_vec())]));
}

/// Above the high-water mark no pong is queued. While bytes are queued, no keepalive ping is due: their
/// progress is the better evidence.
#[test]
fn no_pong_or_ping_is_queued_above_the_high_water_mark() {
    let app = App::script(|heard, tx| {
        if *heard == Heard::Ping(b"fill".to_vec()) {
            let _ = tx.send_binary(&[0; 2000]).expect("open");
        }
    });
    let config = Config::default().with_high_water(1000);
    let interval = config.ping_interval().expect("on by default");
    let negotiated = negotiate_plain(Role::Server);
    let mut probe = Probe::new(SessionEnd::new(negotiated, config, app, Time::ZERO), negotiated).deaf();
    probe.send_frame(&Frame::ping("fill"), Chunks::Whole);
    assert_eq!(probe.machine.waiting(), 2004, "the message, and not the pong");
    probe.pass(interval);
    assert_eq!(probe.machine.waiting(), 2004);
    let mut probe = probe.hearing();
    probe.pump();
    let replies = probe.take_replies();
    assert_eq!(replies, [Reply::binary([0; 2000]), Reply::Pong(b"fill".to_vec())]);
    probe.pass(interval);
    assert!(matches!(probe.take_replies()[..], [Reply::Ping(_)]), "silent since");
}

/// An echo to a peer that does not read stops at the high-water mark, and later resumes at that point.
#[test]
fn reading_pauses_while_the_peer_does_not_read_and_loses_nothing() {
    for chunks in [Chunks::Whole, Chunks::Fixed(1000), Chunks::Random(5)] {
        let config = quiet().with_high_water(10_000);
        let mut probe = Probe::session(negotiate_plain(Role::Server), config).deaf();
        let message = [b'm'; 300];
        probe.send(&Frame::text(message).encode(Role::Client).repeat(200), chunks);
        assert!(probe.machine.is_paused());
        assert!(probe.machine.waiting() < 10_000 + 310);
        let told = probe.take_heard().len();
        assert!(told < 40, "{told} of 200 were handled");
        let mut probe = probe.hearing();
        probe.pump();
        assert_eq!(told + probe.take_heard().len(), 200);
        assert_eq!(probe.take_replies(), vec![Reply::text(message); 200]);
        assert_eq!(probe.undelivered(), 0);
    }
}

/// Fills a session's output behind a send in flight, until the overflow policy applies.
fn fill(policy: Overflow, len: usize) -> (SessionEnd, Vec<Sent>) {
    let config = quiet().with_max_outbound(10_000).with_high_water(5000).with_overflow(policy);
    let negotiated = negotiate_plain(Role::Server);
    let mut end = SessionEnd::new(negotiated, config, App::listener(), Time::ZERO);
    // The first byte of a first message has left: the rest can no longer be dropped.
    let _ = end.act(Time::ZERO, |tx| tx.send_text("in flight").expect("open"));
    assert_eq!(end.take(1, Time::ZERO).len(), 1);
    let mut sent = Vec::new();
    for number in 0..120_u8 {
        let message = Prepared::binary(Bytes::from(vec![number; len]));
        let result = end.act(Time::ZERO, |tx| tx.send_prepared(&message));
        sent.push(result.expect("open until the policy closes"));
        if policy == Overflow::Close && sent.last() == Some(&Sent::Dropped) {
            break;
        }
    }
    assert!(end.waiting() <= 10_000 + len + 4 + 140, "{} bytes wait", end.waiting());
    (end, sent)
}

/// Returns the frames that the peer reads: each binary message's first byte, and the end.
fn drained(end: SessionEnd) -> (Vec<u8>, Vec<Reply>) {
    let mut end = end;
    let mut bytes = vec![0x81];
    while end.waiting() > 0 {
        bytes.extend(end.take(777, Time::ZERO));
    }
    let mut reader = Reader::new(Role::Server, None);
    let replies = reader.read(&bytes).expect("whole frames in order");
    assert!(reader.is_between_messages(), "no frame was cut");
    let mut firsts = Vec::new();
    let mut others = Vec::new();
    for reply in replies {
        match reply {
            Reply::Message(Binary, payload) => firsts.push(payload[0]),
            other => others.push(other),
        }
    }
    (firsts, others)
}

#[test]
fn output_over_the_cap_closes() {
    for len in [200, 1000] {
        let (mut end, sent) = fill(Overflow::Close, len);
        assert_eq!(sent.last(), Some(&Sent::Dropped));
        assert!(!end.session().is_open());
        assert_eq!(end.take_heard(), [Heard::Over(Some(1008), Cause::Overflow)]);
        let (firsts, others) = drained(end);
        assert_eq!(firsts, (0..sent.len() as u8 - 1).collect::<Vec<u8>>());
        let close = Reply::Close(Some(1008), "too slow".to_owned());
        assert_eq!(others, [Reply::text("in flight"), close]);
    }
}

#[test]
fn output_over_the_cap_drops_the_newest() {
    let (end, sent) = fill(Overflow::DropNewest, 1000);
    let kept = sent.iter().take_while(|sent| **sent != Sent::Dropped).count();
    assert!((10..=11).contains(&kept), "{kept}");
    assert!(sent[kept..].iter().all(|sent| *sent == Sent::Dropped));
    let (firsts, others) = drained(end);
    assert_eq!(firsts, (0..kept as u8).collect::<Vec<u8>>());
    assert_eq!(others, [Reply::text("in flight")]);
}

#[test]
fn output_over_the_cap_drops_the_oldest() {
    for len in [200, 1000] {
        let (end, sent) = fill(Overflow::DropOldest, len);
        assert!(sent.iter().all(|sent| *sent != Sent::Dropped), "the newest is always queued");
        let (firsts, others) = drained(end);
        let oldest = firsts[0];
        assert_eq!(firsts, (oldest..120).collect::<Vec<u8>>(), "the newest, in order");
        assert_eq!(others, [Reply::text("in flight")]);
        assert!(oldest > 0);
    }
}

/// The policy never drops a connection's own messages.
#[test]
fn own_messages_are_not_dropped_by_the_overflow_policy() {
    let config = quiet().with_max_outbound(5000).with_overflow(Overflow::DropOldest);
    let mut end = SessionEnd::new(negotiate_plain(Role::Server), config, App::listener(), Time::ZERO);
    let _ = end.act(Time::ZERO, |tx| tx.send_text("in flight").expect("open"));
    assert_eq!(end.take(1, Time::ZERO).len(), 1);
    let published = Prepared::binary(Bytes::from(vec![9; 1000]));
    for number in 0..20_u8 {
        end.act(Time::ZERO, |tx| {
            let _ = tx.send_binary(&[number; 10]).expect("open");
            let _ = tx.send_prepared(&published).expect("open");
        });
    }
    let (firsts, _) = drained(end);
    let own: Vec<u8> = firsts.iter().copied().filter(|first| *first != 9).collect();
    let all: Vec<u8> = (0..20).filter(|number| *number != 9).collect();
    assert_eq!(own, all);
    assert!(firsts.len() < 30, "published messages were dropped");
}

/// An application that pings without end does not fill the memory either.
#[test]
fn own_pings_count_toward_the_cap() {
    for policy in [Overflow::Close, Overflow::DropNewest, Overflow::DropOldest] {
        let config = quiet().with_max_outbound(5000).with_overflow(policy);
        let mut end = SessionEnd::new(negotiate_plain(Role::Server), config, App::listener(), Time::ZERO);
        for _ in 0..1000 {
            // The policy decides on pings over the cap.
            let _ = end.act(Time::ZERO, |tx| tx.send_ping(&[0; 125]));
        }
        assert!(end.waiting() <= 5000 + 2 * 127, "{policy:?}: {}", end.waiting());
    }
}

/// A connection whose close times out is dropped.
#[test]
fn a_peer_that_does_not_finish_the_closing_handshake_is_dropped() {
    for role in ROLES {
        let mut probe = Probe::session(negotiate_plain(role), quiet());
        let now = probe.now;
        probe.machine.act(now, |tx| tx.close(CloseCode::NORMAL, "")).expect("open");
        probe.pump();
        assert_eq!(probe.take_replies(), [Reply::Close(Some(1000), String::new())]);
        // Messages in between do not extend the timeout.
        probe.pass(Duration::from_secs(4));
        probe.send_frame(&Frame::text("still here"), Chunks::Whole);
        assert_eq!(probe.machine.transport_action(), TransportAction::Open);
        probe.pass(Duration::from_secs(1));
        assert_eq!(probe.machine.transport_action(), TransportAction::Drop);
        assert_eq!(probe.take_heard().last(), Some(&Heard::Over(None, Cause::Expired(Expired::Close))));
        assert!(probe.machine.deadline().is_none());
    }
    // The transport of a failed peer that keeps it open is dropped too.
    let mut probe = Probe::session(negotiate_plain(Role::Server), quiet());
    probe.send_frame(&Frame::new(7, ""), Chunks::Whole);
    assert_eq!(probe.machine.transport_action(), TransportAction::Finish);
    probe.pass(Config::default().close_timeout());
    assert_eq!(probe.machine.transport_action(), TransportAction::Drop);
}

#[test]
fn silent_peers_are_pinged_and_then_closed() {
    for role in ROLES {
        let mut probe = Probe::session(negotiate_plain(role), Config::default());
        probe.pass(Duration::from_secs(25));
        let replies = probe.take_replies();
        let [Reply::Ping(payload)] = &replies[..] else { panic!("{replies:?}") };
        // An answer restarts the timeout.
        probe.send_frame(&Frame::pong(payload), Chunks::Whole);
        assert_eq!(probe.take_heard(), [Heard::Pong(payload.clone(), Some(Duration::ZERO))]);
        probe.pass(Duration::from_secs(25));
        assert!(matches!(probe.take_replies()[..], [Reply::Ping(_)]));
        probe.pass(Duration::from_secs(20));
        assert_eq!(probe.take_replies(), [Reply::Close(Some(1011), "ping timeout".to_owned())]);
        assert_eq!(probe.take_heard(), [Heard::Over(None, Cause::Expired(Expired::Pong))]);
    }
    let config = Config::default().with_ping_interval(None);
    let mut probe = Probe::session(negotiate_plain(Role::Server), config);
    probe.pass(Duration::from_secs(120));
    assert_eq!(probe.take_replies(), [Reply::Close(Some(1001), "idle timeout".to_owned())]);
}

// Class C: compression.

fn shared() -> Option<DeflateConfig> {
    Some(DeflateConfig::new())
}

fn dedicated() -> Option<DeflateConfig> {
    Some(DeflateConfig::new().with_mode(DeflateMode::Dedicated))
}

/// A thousand to one: 20 kB that inflate to 20 MB, over the default limit of 16 MiB.
fn bomb(role: Role, deflate: &Option<DeflateConfig>) -> Vec<u8> {
    let negotiated = negotiate(deflate.clone(), deflate.clone()).of(role);
    let payload = Codec::new(role, negotiated.deflate().expect("agreed")).compress(&vec![0; 20_000_000]);
    assert!(payload.len() < 25_000, "{}", payload.len());
    payload
}

#[test]
fn a_bomb_fails_in_one_frame_and_in_many() {
    for deflate in [shared(), dedicated()] {
        for role in ROLES {
            let negotiated = negotiate(deflate.clone(), deflate.clone()).of(role);
            let mut probe = Probe::session(negotiated, Config::default());
            let payload = bomb(probe.peer(), &deflate);
            probe.send_frame(&Frame::binary(&payload).rsv(4), Chunks::Whole);
            let over = [Heard::Over(Some(1009), Cause::Fault(Fault::MessageTooBig))];
            assert_eq!(probe.take_heard(), over);
            assert_eq!(probe.take_replies()[0].close_code(), Some(1009));

            let mut probe = Probe::session(negotiated, Config::default());
            probe.send_frame(&Frame::binary("").rsv(4).fin(false), Chunks::Whole);
            for piece in payload.chunks(100) {
                probe.send_frame(&Frame::continuation(piece).fin(false), Chunks::Whole);
            }
            assert_eq!(probe.take_heard(), over, "long before the last frame");
        }
    }
}

/// The limit stops a bomb while it inflates, in fragment delivery as in whole messages; no delivered fragment
/// is large.
#[test]
fn a_bomb_in_pieces_stops_at_the_limit() {
    let negotiated = negotiate(shared(), shared()).of(Role::Server);
    let config = quiet().with_max_message(1_000_000);
    let end = SessionEnd::new(negotiated, config, App::listener(), Time::ZERO).in_fragments();
    let mut probe = Probe::new(end, negotiated);
    let payload = bomb(Role::Client, &shared());
    probe.send_frame(&Frame::binary(&payload).rsv(4), Chunks::Whole);
    let heard = probe.take_heard();
    let (last, pieces) = heard.split_last().expect("an end");
    assert_eq!(*last, Heard::Over(Some(1009), Cause::Fault(Fault::MessageTooBig)));
    let mut total = 0;
    for piece in pieces {
        let Heard::Fragment { bytes, last: false, .. } = piece else { panic!("{piece:?}") };
        assert!(bytes.len() <= 64 << 10);
        total += bytes.len();
    }
    assert!(total <= 1_000_000, "{total}");
}

struct Messages(Vec<Vec<u8>>);

impl Events for Messages {
    fn message(&mut self, payload: Payload<'_>, _: &mut Tx<'_>) {
        self.0.push(payload.to_vec());
    }
}

/// The contexts that a thread's connections borrow are clean after a connection has failed inside a message.
#[test]
fn a_failed_connection_leaves_nothing_in_the_shared_contexts() {
    let agreed = negotiate(shared(), shared());
    let params = agreed.server.deflate().expect("agreed");
    let mut resources = Resources::new();
    let config = Arc::new(Config::default().with_max_message(50_000));
    let mut send = |bytes: &[u8]| {
        let mut session = Session::new(agreed.server, Arc::clone(&config), Time::ZERO);
        let mut messages = Messages(Vec::new());
        let _ = session.receive(&mut bytes.to_vec(), &mut resources, Time::ZERO, &mut messages);
        (messages.0, session.take_closed().map(|closed| closed.status()))
    };
    let mut codec = Codec::new(Role::Client, params);
    let sound = Frame::text(codec.compress(b"sound sound sound sound")).rsv(4).encode(Role::Client);
    let over = Frame::binary(codec.compress(&[1; 60_000])).rsv(4).encode(Role::Client);
    let garbage = Frame::binary([0xff; 20]).rsv(4).encode(Role::Client);
    let cut = Frame::binary(&codec.compress(&[2; 3000])[..8]).rsv(4).fin(false).encode(Role::Client);
    // A reference to another connection's message finds no data.
    let mut keeper =
        Codec::new(Role::Client, negotiate(dedicated(), dedicated()).server.deflate().expect("agreed"));
    let _ = keeper.compress(b"sound sound sound sound");
    let reaching = Frame::text(keeper.compress(b"sound sound sound sound")).rsv(4).encode(Role::Client);
    for (bad, status) in [(over, Some(1009)), (garbage, Some(1007)), (cut, None), (reaching, Some(1007))] {
        for _ in 0..3 {
            assert_eq!(send(&bad), (vec![], status));
            assert_eq!(send(&sound), (vec![b"sound sound sound sound".to_vec()], None));
        }
    }
}

/// Context takeover by one side only, over many messages, some uncompressed and some published.
#[test]
fn windows_stay_in_step_with_plain_and_published_messages_between() {
    for (client_forgets, server_forgets) in [(false, false), (true, false), (false, true), (true, true)] {
        let deflate = DeflateConfig::new()
            .with_mode(DeflateMode::Dedicated)
            .with_client_no_context_takeover(client_forgets)
            .with_server_no_context_takeover(server_forgets)
            .with_threshold(20);
        let mut pair = Pair::sessions(Some(deflate), quiet(), App::listener(), App::listener());
        let published = Prepared::text("published published published published");
        let mut expected = Vec::new();
        for number in 0..30 {
            let text = match number % 3 {
                0 => format!("short {number}"),
                _ => format!("a message that resembles the one before it, number {number}"),
            };
            let now = pair.now;
            let send = |tx: &mut Tx<'_>| {
                let _ = tx.send_text(&text).expect("open");
                if number % 4 == 0 {
                    let _ = tx.send_prepared(&published).expect("open");
                }
                if number % 5 == 0 {
                    let _ = tx.send_fragment(Text, b"in two ", false).expect("open");
                    let _ = tx.send_fragment(Text, b"fragments", true).expect("open");
                }
            };
            pair.client.act(now, send);
            pair.server.act(now, send);
            pair.settle();
            expected.push(Heard::Message(Text, text.into_bytes()));
            if number % 4 == 0 {
                expected.push(Heard::Message(Text, published.payload().to_vec()));
            }
            if number % 5 == 0 {
                expected.push(Heard::Message(Text, b"in two fragments".to_vec()));
            }
        }
        assert_eq!(pair.client.heard(), expected, "{client_forgets} {server_forgets}");
        assert_eq!(pair.server.heard(), expected, "{client_forgets} {server_forgets}");
    }
}

// Class D: resets.

/// The peer may vanish at any byte: the end is reported once, and the transport is released.
#[test]
fn the_peer_may_vanish_at_every_byte() {
    for deflate in [None, shared(), dedicated()] {
        for role in ROLES {
            let negotiated = negotiate(deflate.clone(), deflate.clone()).of(role);
            let peer = if role == Role::Server { Role::Client } else { Role::Server };
            let mut stream = Vec::new();
            if let Some(params) = negotiated.deflate() {
                let mut codec = Codec::new(peer, params);
                let payload = codec.compress(b"compressed compressed");
                stream.extend(Frame::text(&payload[..4]).rsv(4).fin(false).encode(peer));
                stream.extend(Frame::continuation(&payload[4..]).encode(peer));
            }
            for frame in [
                Frame::text("whole"),
                Frame::binary("frag").fin(false),
                Frame::ping("ping"),
                Frame::continuation("ment"),
                Frame::binary([9; 300]),
                Frame::close(1000, "bye"),
            ] {
                stream.extend(frame.encode(peer));
            }
            for cut in 0..=stream.len() {
                let mut probe = Probe::session(negotiated, Config::default());
                probe.send(&stream[..cut], Chunks::Random(cut as u64));
                probe.end();
                let heard = probe.take_heard();
                let ends = heard.iter().filter(|heard| matches!(heard, Heard::Over(..))).count();
                assert_eq!(ends, 1, "cut at {cut}");
                let cause = if cut == stream.len() { Cause::Peer } else { Cause::Ended };
                assert!(matches!(heard.last(), Some(Heard::Over(_, found)) if *found == cause));
                assert_eq!(probe.machine.transport_action(), TransportAction::Drop, "cut at {cut}");
            }
        }
    }
}

/// A connection's end discards its unfinished message.
#[test]
fn an_end_inside_a_message_never_delivers_it() {
    let mut probe = Probe::session(negotiate_plain(Role::Server), Config::default());
    probe.send_frame(&Frame::binary([1; 100]).fin(false), Chunks::Whole);
    probe.end();
    assert_eq!(probe.take_heard(), [Heard::Over(None, Cause::Ended)]);
    // Bytes after the end are ignored, even if a driver delivers them by mistake.
    probe.send_frame(&Frame::continuation([1; 100]), Chunks::Whole);
    assert!(probe.take_heard().is_empty());
}

/// RFC 6455 section 5.5.1: we send no frames after our Close.
#[test]
fn nothing_is_sent_behind_our_close() {
    for role in ROLES {
        let mut probe = Probe::session(negotiate_plain(role), Config::default());
        let now = probe.now;
        probe.machine.act(now, |tx| {
            let _ = tx.send_text("before").expect("open");
            tx.close(CloseCode::GOING_AWAY, "").expect("open");
            assert_eq!(tx.send_text("behind"), Err(Misuse::Closing));
            assert_eq!(tx.send_ping(b"behind"), Err(Misuse::Closing));
            assert_eq!(tx.send_fragment(Binary, b"behind", true), Err(Misuse::Closing));
            assert_eq!(tx.close(CloseCode::NORMAL, ""), Err(Misuse::Closing));
        });
        probe.send_frame(&Frame::ping("late"), Chunks::Whole);
        probe.send_frame(&Frame::text("the peer may go on until it answers"), Chunks::Whole);
        probe.send_frame(&Frame::close(1001, ""), Chunks::Whole);
        let close = Reply::Close(Some(1001), String::new());
        assert_eq!(probe.take_replies(), [Reply::text("before"), close]);
        assert_eq!(probe.take_heard().last(), Some(&Heard::Over(Some(1001), Cause::Local)));
        probe.pass(Duration::from_secs(100));
        assert!(probe.take_replies().is_empty());
    }
}

/// Both may close at once; each Close answers the other.
#[test]
fn two_closes_that_cross_answer_each_other() {
    let mut pair = Pair::sessions(None, quiet(), App::listener(), App::listener());
    pair.client.act(pair.now, |tx| tx.close(CloseCode::NORMAL, "a")).expect("open");
    pair.server.act(pair.now, |tx| tx.close(CloseCode::GOING_AWAY, "b")).expect("open");
    pair.drive();
    assert!(pair.is_over());
    assert_eq!(pair.now, Time::ZERO, "no timer had to expire");
    assert_eq!(pair.client.heard(), [Heard::Over(Some(1001), Cause::Local)]);
    assert_eq!(pair.server.heard(), [Heard::Over(Some(1000), Cause::Local)]);
}
