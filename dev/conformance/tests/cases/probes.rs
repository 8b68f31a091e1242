//! Requests and frames that other projects' running servers answered wrongly.

use sinews_conformance::Case;
use sinews_proto::Kind::{Binary, Text};
use sinews_proto::deflate::{DeflateConfig, DeflateMode};
use sinews_proto::handshake::{
    Accepted, ClientRequest, ClientStep, OriginPolicy, Refusal, ServerOptions, accept,
};
use sinews_proto::http::{HeadLimits, HeaderSlots, RequestHead};
use sinews_proto::{Config, Misuse, PeerMisbehaved as Fault, Role, Time};
use sinews_session::{Resources, Sent};
use sinews_testkit::{
    App, Chunks, Codec, Frame, Heard, Length, Machine, Probe, Reply, SessionEnd, corpora, negotiate,
    negotiate_offer, negotiate_plain, request_with_offer, split_frames,
};

const SOUND: &str = "GET / HTTP/1.1\r\nHost: example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

fn decide(request: &str) -> Result<Accepted, Refusal> {
    let limits = HeadLimits::new();
    let mut slots = HeaderSlots::new();
    let head = RequestHead::parse(request.as_bytes(), &limits, &mut slots)?;
    accept(&head, &ServerOptions::new().with_origin(OriginPolicy::any()).with_deflate(DeflateConfig::new()))
}

fn status(request: &str) -> u16 {
    match decide(request) {
        Ok(accepted) => accepted.status(),
        Err(refusal) => refusal.status(),
    }
}

/// Returns the valid request without the line with this prefix.
fn without(line: &str) -> String {
    let found = SOUND.lines().find(|found| found.starts_with(line)).expect("a line of the request");
    SOUND.replace(&format!("{found}\r\n"), "")
}

#[test]
fn a_key_alone_is_not_a_websocket_request() {
    assert_eq!(status(SOUND), 101);
    let key_only =
        "GET / HTTP/1.1\r\nHost: example.com\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    assert_eq!(status(key_only), 426);
    assert_eq!(status(&without("Upgrade")), 426);
    assert_eq!(status(&without("Connection")), 426);
    assert_eq!(status(&without("Sec-WebSocket-Version")), 426);
    assert_eq!(status(&without("Sec-WebSocket-Key")), 400);
    assert_eq!(status(&without("Host")), 400);
}

#[test]
fn version_8_is_rejected_with_the_supported_version() {
    let refusal = decide(&SOUND.replace("Version: 13", "Version: 8")).expect_err("another version");
    assert_eq!(refusal.status(), 426);
    assert!(refusal.headers().any(|header| header == ("Sec-WebSocket-Version", "13")));
}

#[test]
fn twenty_four_characters_are_not_yet_a_key() {
    assert_eq!(status(&SOUND.replace("dGhlIHNhbXBsZSBub25jZQ==", "not base64 but 24 bytes!")), 400);
    let line = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    assert_eq!(status(&SOUND.replace(line, &line.repeat(2))), 400);
    // The space around the key is not part of it.
    assert_eq!(status(&SOUND.replace("Key: ", "Key: \t ").replace("==\r\n", "== \t\r\n")), 101);
}

#[test]
fn unsupported_offers_are_declined_and_the_next_is_accepted() {
    for offer in [
        "permessage-deflate; unknown",
        "permessage-deflate; server_max_window_bits=16",
        "permessage-deflate; server_max_window_bits=8",
        "permessage-deflate; server_max_window_bits=7",
        "permessage-deflate; server_max_window_bits=09",
        "permessage-deflate; server_max_window_bits",
        "permessage-deflate; client_max_window_bits=16",
        "permessage-deflate; server_no_context_takeover; server_no_context_takeover",
        "permessage-deflate; server_no_context_takeover=1",
    ] {
        let (negotiated, answer) = negotiate_offer(offer, DeflateConfig::new()).expect("it goes on");
        assert_eq!((negotiated.deflate(), answer), (None, None), "{offer}");
        let both = format!("{offer}, permessage-deflate");
        let (negotiated, _) = negotiate_offer(&both, DeflateConfig::new()).expect("it goes on");
        assert!(negotiated.deflate().is_some(), "{both}");
    }
    assert_eq!(status(&request_with_offer("permessage-deflate; unknown")), 101);
    let ten = "permessage-deflate; server_max_window_bits=\"10\"";
    let (negotiated, _) = negotiate_offer(ten, DeflateConfig::new()).expect("a sound offer");
    assert_eq!(negotiated.deflate().map(|params| params.server_max_window_bits()), Some(10));
}

/// A client may send frames in the request's segment only after the answer, yet some clients do not wait: no bytes may
/// be lost. The server's answer may well have frames behind it.
#[test]
fn frames_behind_either_head_in_the_same_segment_are_kept() {
    let mut stream = SOUND.as_bytes().to_vec();
    stream.extend(Frame::text("early").encode(Role::Client));
    let limits = HeadLimits::new();
    let mut slots = HeaderSlots::new();
    let head = RequestHead::parse(&stream, &limits, &mut slots).expect("a sound request");
    let accepted = accept(&head, &ServerOptions::new()).expect("a sound request");
    let mut probe = Probe::session(accepted.negotiated(), Config::default());
    probe.send(&stream[head.wire_len()..], Chunks::Whole);
    assert_eq!(probe.take_replies(), [Reply::text("early")]);

    let mut client = ClientRequest::new("example.com", "/").expect("sound").start(*b"the sample nonce");
    let mut answer = Vec::new();
    accepted.write_response(&[], &mut answer).expect("HTTP/1.1");
    answer.extend(Frame::text("early").encode(Role::Server));
    let ClientStep::Done(done) = client.read_response(&answer).expect("a sound answer") else {
        panic!("the answer is complete");
    };
    let mut probe = Probe::session(done.negotiated(), Config::default());
    probe.send(&answer[done.consumed()..], Chunks::Whole);
    assert_eq!(probe.take_replies(), [Reply::text("early")]);
}

#[test]
fn input_that_is_masked_wrongly_for_the_role_fails() {
    let wrong = |role, frame: Frame| {
        for chunks in Chunks::USUAL {
            let mut probe = Probe::session(negotiate_plain(role), Config::default());
            probe.send_frame(&frame, chunks);
            assert_eq!(probe.take_replies()[0].close_code(), Some(1002), "{role:?}");
            probe.send_frame(&Frame::text("behind"), chunks);
            assert!(probe.take_replies().is_empty(), "nothing behind the fault counts");
            assert_eq!(probe.take_heard().len(), 1);
        }
    };
    for frame in [Frame::text("hello"), Frame::ping(""), Frame::close(1000, ""), Frame::binary([0; 70_000])] {
        wrong(Role::Server, frame.clone().unmasked());
        wrong(Role::Client, frame.clone().key([1, 2, 3, 4]));
        // A key of zeros is still a mask.
        wrong(Role::Client, frame.key([0; 4]));
    }
    let zero_key = Case::new("zero key").send(Frame::text("hello").key([0; 4])).echoes(Text, "hello").bye();
    for chunks in Chunks::USUAL {
        zero_key.run(&sinews_conformance::Setup::new(Role::Server, chunks));
    }
}

#[test]
fn a_length_takes_no_more_bytes_than_it_needs() {
    for (len, form) in [
        (0, Length::Bits16),
        (2, Length::Bits16),
        (125, Length::Bits16),
        (3, Length::Bits64),
        (126, Length::Bits64),
        (65_535, Length::Bits64),
    ] {
        let frame = Frame::binary(vec![7; len]).length(form);
        Case::new(format!("{len} in {form:?}")).send(frame).fails(Fault::LengthNotMinimal).run_everywhere();
    }
}

#[test]
fn a_data_frame_of_either_kind_inside_a_message_fails() {
    for inside in [Frame::binary("b"), Frame::text("t"), Frame::text("t").fin(false), Frame::binary("")] {
        Case::new("data inside text")
            .send(Frame::text("fragment").fin(false))
            .send(inside.clone())
            .fails(Fault::DataInsideMessage)
            .run_everywhere();
        Case::new("text fragment, ping, data")
            .send(Frame::text("fragment").fin(false))
            .send(Frame::ping("p"))
            .send(inside)
            .pongs("p")
            .fails(Fault::DataInsideMessage)
            .run_everywhere();
    }
}

#[test]
fn a_continuation_without_a_message_fails() {
    for fin in [true, false] {
        let stray = Frame::continuation("x").fin(fin);
        Case::new("bare").send(stray.clone()).fails(Fault::NothingToContinue).run_everywhere();
        Case::new("behind a whole message")
            .send(Frame::text("whole"))
            .send(stray)
            .echoes(Text, "whole")
            .fails(Fault::NothingToContinue)
            .run_everywhere();
    }
}

#[test]
fn the_compression_bit_stands_on_first_frames_only() {
    for control in [Frame::ping("p"), Frame::pong("p"), Frame::close(1000, "")] {
        let case = Case::new("control").send(control.rsv(4)).fails(Fault::MisplacedCompressionBit);
        case.run_everywhere_deflated();
    }
    for first in [Frame::text("a"), Frame::text("a").rsv(4)] {
        Case::new("continuation")
            .send(first.fin(false))
            .send(Frame::continuation("b").rsv(4))
            .fails(Fault::MisplacedCompressionBit)
            .run_everywhere_deflated();
    }
    for bits in [1, 2, 3, 5, 6, 7] {
        let case = Case::new("other bits").send(Frame::text("a").rsv(bits)).fails(Fault::ReservedBits);
        case.run_everywhere_deflated();
    }
}

#[test]
fn the_compression_bit_means_nothing_without_the_extension() {
    for frame in [Frame::text("a"), Frame::binary("a"), Frame::ping(""), Frame::close(1000, "")] {
        Case::new("rsv1").send(frame.rsv(4)).fails(Fault::ReservedBits).run_everywhere();
    }
}

#[test]
fn uncompressed_messages_stay_legal_beside_compressed_ones() {
    Case::new("plain, compressed, plain, compressed")
        .send(Frame::text("plain"))
        .echoes(Text, "plain")
        .message(Text, "compressed compressed compressed".as_bytes(), usize::MAX)
        .send(Frame::binary("plain again"))
        .echoes(Binary, "plain again")
        .send(Frame::ping("p"))
        .pongs("p")
        .message(Text, "compressed compressed compressed".as_bytes(), 5)
        .bye()
        .run_everywhere_deflated();
}

#[test]
fn close_codes_that_may_be_on_the_wire_are_echoed() {
    for code in corpora::CLOSE_CODES_VALID {
        let case = Case::new(format!("close {code}")).send(Frame::close(code, "bye"));
        case.closes(Some(code)).run_everywhere();
    }
}

#[test]
fn close_frames_that_may_not_be_are_answered_with_1002() {
    for code in corpora::CLOSE_CODES_INVALID {
        let case = Case::new(format!("close {code}")).send(Frame::close(code, ""));
        case.fails(Fault::InvalidCloseCode(code)).run_everywhere();
    }
    Case::new("one byte").send(Frame::close_raw([3])).fails(Fault::CloseTooShort).run_everywhere();
    for reason in corpora::kuhn().concat() {
        let case = Case::new("reason").send(Frame::close(1000, &reason));
        match corpora::verdict(&reason) {
            corpora::Verdict::Valid => case.closes(Some(1000)).run_everywhere(),
            _ => case.fails(Fault::CloseReasonNotUtf8).run_everywhere(),
        }
    }
}

#[test]
fn each_failure_sends_the_close_that_names_it() {
    let config = Config::default().with_max_frame(1000).with_max_message(1500);
    for (frames, fault, code) in [
        (vec![Frame::text([0xc3, 0x28])], Fault::InvalidUtf8, 1007),
        (vec![Frame::binary([0; 1001])], Fault::FrameTooBig, 1009),
        (
            vec![Frame::binary([0; 1000]).fin(false), Frame::continuation([0; 501])],
            Fault::MessageTooBig,
            1009,
        ),
        (vec![Frame::ping([0; 126])], Fault::ControlTooLong, 1002),
        (vec![Frame::binary("").length(Length::Bits64).declares(1 << 63)], Fault::LengthTopBit, 1002),
        (vec![Frame::text("").rsv(1)], Fault::ReservedBits, 1002),
    ] {
        assert_eq!(fault.close_code().as_u16(), code);
        let mut case = Case::new(format!("{fault}"));
        for frame in frames {
            case = case.send(frame);
        }
        case.fails(fault).run_under(&config, None);
    }
}

/// Sizes of exactly the limits pass.
#[test]
fn frames_and_messages_of_the_limit_pass() {
    let config = Config::default().with_max_frame(1000).with_max_message(1500);
    Case::new("at the limits")
        .send(Frame::binary([1; 1000]))
        .echoes(Binary, [1; 1000])
        .send(Frame::binary([1; 1000]).fin(false))
        .send(Frame::continuation([1; 500]))
        .echoes(Binary, [1; 1500])
        .message(Text, &[b'a'; 1500], 7)
        .bye()
        .run_under(&config, None);
    let inflated = Case::new("inflated").message(Text, &[b'a'; 1500], 7).bye();
    inflated.run_under(&config, Some(DeflateConfig::new()));
    let over = Case::new("inflated over the limit");
    let mut codec =
        Codec::new(Role::Client, negotiate(deflate(), deflate()).client.deflate().expect("agreed"));
    let over = over.send(Frame::text(codec.compress(&[b'a'; 1501])).rsv(4)).fails(Fault::MessageTooBig);
    over.run_under(&config, Some(DeflateConfig::new()));
}

fn deflate() -> Option<DeflateConfig> {
    Some(DeflateConfig::new().with_mode(DeflateMode::Dedicated))
}

fn codec() -> Codec {
    Codec::new(Role::Client, negotiate(deflate(), deflate()).client.deflate().expect("agreed"))
}

#[test]
fn broken_deflate_data_fails_with_1007() {
    let message: Vec<u8> = (0..2000_u32).flat_map(|n| (n * n).to_le_bytes()).collect();
    let sound = codec().compress(&message);
    let mut cases = vec![
        ("garbage", vec![0xff; 40]),
        ("a reserved block type", vec![0x07, 0x00]),
        ("no byte at all", vec![]),
        ("a stored block whose lengths disagree", vec![0x00, 0x05, 0x00, 0x05, 0x00]),
        ("a match before the start", vec![0x4b, 0x04, 0x92, 0x00]),
    ];
    // Truncated data is not a complete message.
    cases.push(("cut", sound[..sound.len() / 2].to_vec()));
    for (what, payload) in cases {
        let case = Case::new(what).send(Frame::binary(payload).rsv(4));
        case.fails(Fault::BadDeflate).run_everywhere_deflated();
    }
}

#[test]
fn inflated_text_must_be_utf8() {
    let compressed = codec().compress(b"good \xed\xa0\x80 bad");
    let case = Case::new("surrogate").send(Frame::text(&compressed).rsv(4));
    case.fails(Fault::InvalidUtf8).run_everywhere_deflated();
    let cut = codec().compress(b"cut \xe2\x82");
    let case = Case::new("cut code point").send(Frame::text(&cut).rsv(4));
    case.fails(Fault::InvalidUtf8).run_everywhere_deflated();
}

/// RFC 7692 sections 7.2.3.1 to 7.2.3.6.
#[test]
fn every_form_of_compressed_message_is_read() {
    let hex = |text: &str| corpora::hex(text).concat();
    for (what, payload) in [
        ("one block", hex("f248cdc9c90700")),
        ("stored", hex("000500faff48656c6c6f00")),
        ("BFINAL", hex("f348cdc9c9070000")),
        ("two blocks", hex("f248050000 00ffffcac9c90700")),
    ] {
        Case::new(what)
            .send(Frame::text(&payload).rsv(4))
            .echoes(Text, "Hello")
            .message(Text, b"Hello again", usize::MAX)
            .bye()
            .run_under(&Config::default(), Some(DeflateConfig::new()));
        let mut case = Case::new(format!("{what}, a byte a frame"));
        for (at, byte) in payload.iter().enumerate() {
            let frame = if at == 0 { Frame::text([*byte]).rsv(4) } else { Frame::continuation([*byte]) };
            case = case.send(frame.fin(at + 1 == payload.len()));
        }
        case.echoes(Text, "Hello").bye().run_everywhere_deflated();
    }
    Case::new("empty").send(Frame::text([0]).rsv(4)).echoes(Text, "").bye().run_everywhere_deflated();
    let whole = codec().compress_final(b"in one final block");
    Case::new("final")
        .send(Frame::text(whole).rsv(4))
        .echoes(Text, "in one final block")
        .bye()
        .run_everywhere_deflated();
}

#[test]
fn our_own_control_frames_are_never_too_long() {
    for role in [Role::Server, Role::Client] {
        let negotiated = negotiate_plain(role);
        let mut end = SessionEnd::new(negotiated, Config::default(), App::listener(), Time::ZERO);
        let now = Time::ZERO;
        assert_eq!(end.act(now, |tx| tx.send_ping(&[0; 126])), Err(Misuse::PingTooLong));
        let long = "x".repeat(124);
        let normal = sinews_proto::CloseCode::NORMAL;
        assert_eq!(end.act(now, |tx| tx.close(normal, &long)), Err(Misuse::ReasonTooLong));
        assert_eq!(end.waiting(), 0, "nothing was written");
        assert_eq!(end.act(now, |tx| tx.send_ping(&[7; 125])), Ok(Sent::Queued));
        assert_eq!(end.act(now, |tx| tx.close(normal, &long[..123])), Ok(()));
        let mut probe = Probe::new(end, negotiated);
        probe.pump();
        let close = Reply::Close(Some(1000), long[..123].to_owned());
        assert_eq!(probe.take_replies(), [Reply::Ping(vec![7; 125]), close]);
    }
}

/// RFC 6455 section 5.3, with keys from the operating system.
#[test]
fn each_frame_of_a_client_has_a_key_of_its_own() {
    let config = std::sync::Arc::new(Config::default());
    let mut session = sinews_session::Session::new(negotiate_plain(Role::Client), config, Time::ZERO);
    let mut resources = Resources::new();
    let mut tx = session.tx(&mut resources, Time::ZERO);
    for _ in 0..500 {
        let _ = tx.send_text("same").expect("open");
    }
    let chain = session.start_send().expect("frames wait");
    let mut slices = [std::io::IoSlice::new(&[]); 4];
    let filled = chain.slices(&mut slices);
    let bytes: Vec<u8> = slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect();
    let (frames, used) = split_frames(&bytes);
    assert_eq!((frames.len(), used), (500, bytes.len()));
    let keys: std::collections::HashSet<[u8; 4]> = frames.iter().filter_map(|frame| frame.key).collect();
    assert!(keys.len() > 495, "{} keys in 500 frames", keys.len());
    // Every bit changes; with a counter or a constant some would not.
    let numbers: Vec<u32> = keys.iter().map(|key| u32::from_be_bytes(*key)).collect();
    let (ones, zeros) = numbers.iter().fold((0, 0), |(ones, zeros), key| (ones | key, zeros | !key));
    assert_eq!((ones, zeros), (u32::MAX, u32::MAX));
}

#[test]
fn an_unsolicited_pong_is_reported_and_not_answered() {
    Case::new("pong").send(Frame::pong("x")).hears(Heard::Pong(b"x".to_vec(), None)).bye().run_everywhere();
}

/// Between the strictest and the most generous of the established servers: python `websockets`, Node's `ws`,
/// `gws`, Centrifugo, NATS, uWebSockets.
#[test]
fn defaults_are_within_the_range_of_established_servers() {
    let config = Config::default();
    let seconds = |time: Option<std::time::Duration>| time.map(|time| time.as_secs());
    assert_eq!(config.max_message(), 16 << 20, "as gws; the largest that Autobahn sends");
    assert!(config.max_frame() <= config.max_message());
    assert_eq!(config.max_fragments(), 131_072, "as ws");
    assert!(config.max_empty_fragments() <= 4096);
    assert!((20..=30).contains(&seconds(config.ping_interval()).expect("on")));
    assert!((8..=30).contains(&config.pong_timeout().as_secs()));
    assert!((60..=240).contains(&seconds(config.idle_timeout()).expect("on")));
    assert!(config.write_timeout().as_secs() <= 60);
    assert!(config.close_timeout().as_secs() <= 30);
    assert!(config.high_water() < config.max_outbound() && config.max_outbound() <= 16 << 20);
    let limits = HeadLimits::new();
    assert!((4 << 10..=16 << 10).contains(&limits.max_bytes()));
    assert!(limits.max_headers() <= 128);
    assert_eq!(ServerOptions::new().origin(), &OriginPolicy::same_origin());
}
