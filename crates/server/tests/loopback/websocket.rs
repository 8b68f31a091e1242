//! WebSocket over the loopback: cases of the state machine's tests in memory, repeated through sockets.

use std::time::Duration;

use sinews_proto::Role;
use sinews_server::{
    Config, Context, DeflateConfig, DeflateMode, Fragment, Handler, Payload, Router, Sent, ServerOptions,
    WebSocketRoute,
};
use sinews_testkit::{Codec, Frame, Length, Reply, negotiate, noise};

use crate::support::{Peer, Running, echo, echo_with, routes};

/// Sends while the answers are read, as the server pauses for a peer that does not read.
fn send_along(peer: &Peer, bytes: Vec<u8>) -> std::thread::JoinHandle<()> {
    let mut sender = peer.client.try_clone();
    std::thread::spawn(move || {
        sender.send(bytes);
    })
}

#[test]
fn messages_of_every_size_are_echoed() {
    let server = Running::router(routes());
    let mut peer = server.websocket("/echo");
    let sizes =
        [0, 1, 125, 126, 127, 4_095, 4_096, 16_383, 16_384, 65_535, 65_536, 65_537, 300_000, 16 << 20];
    for size in sizes {
        let payload = noise(size);
        let sending = send_along(&peer, Frame::binary(&payload).encode(Role::Client));
        assert!(peer.next() == Some(Reply::binary(&payload)), "{size} bytes");
        sending.join().unwrap();
    }
    let text = "aé€😀".repeat(10_000);
    peer.send(&Frame::text(&text)).expect(&Reply::text(&text));
}

/// Forwards a message in pieces as it arrives.
struct Stream;

impl Handler for Stream {
    fn open(&mut self, cx: &mut Context<'_>) {
        cx.deliver_fragments(true);
    }

    fn message(&mut self, _: Payload<'_>, _: &mut Context<'_>) {
        panic!("messages come in pieces");
    }

    fn fragment(&mut self, fragment: Fragment<'_>, cx: &mut Context<'_>) {
        let sent = cx.send_fragment(fragment.kind, fragment.bytes, fragment.last).expect("it is open");
        assert_ne!(sent, Sent::Dropped, "reading pauses before that");
    }
}

#[test]
fn message_of_any_length_is_forwarded_in_pieces() {
    let config = Config::default().with_max_message(u64::MAX).with_max_frame(u64::MAX);
    let route = WebSocketRoute::new(|_| Ok(Stream)).with_config(config);
    let server = Running::router(Router::new().websocket("/stream", route));
    let mut peer = server.websocket("/stream");
    let payload = noise(24 << 20);
    let sending = send_along(&peer, Frame::binary(&payload).encode(Role::Client));
    assert!(peer.next() == Some(Reply::binary(&payload)));
    sending.join().unwrap();
    let text = "aé€😀".repeat(100_000);
    peer.send(&Frame::text(&text)).expect(&Reply::text(&text));
    peer.send(&Frame::text(b"broken \xff")).expect_close(1007);
}

#[test]
fn message_over_the_limit_is_closed_with_1009() {
    let config = Config::default().with_max_message(1_000).with_max_frame(1_000);
    let server = Running::router(echo_with(config));
    let mut peer = server.websocket("/echo");
    peer.send(&Frame::binary(noise(1_000))).expect(&Reply::binary(noise(1_000)));
    peer.send(&Frame::binary("").declares(1_001)).expect_close(1009);
    let mut peer = server.websocket("/echo");
    peer.send(&Frame::binary(noise(600)).fin(false)).send(&Frame::continuation(noise(401)));
    peer.expect_close(1009);
}

#[test]
fn fragments_may_have_pings_between_them() {
    let server = Running::router(routes());
    let mut peer = server.websocket("/echo");
    peer.send(&Frame::text("a").fin(false)).send(&Frame::ping("1")).expect(&Reply::Pong(b"1".to_vec()));
    for _ in 0..100 {
        peer.send(&Frame::continuation("b").fin(false));
    }
    peer.send(&Frame::ping("2")).expect(&Reply::Pong(b"2".to_vec()));
    peer.send(&Frame::continuation("")).expect(&Reply::text(format!("a{}", "b".repeat(100))));
    let wire =
        [Frame::text("x").fin(false), Frame::pong("unasked"), Frame::continuation("y"), Frame::binary("z")];
    let bytes: Vec<u8> = wire.iter().flat_map(|frame| frame.encode(Role::Client)).collect();
    for cut in 0..=bytes.len() {
        peer.client.send(&bytes[..cut]).send(&bytes[cut..]);
        peer.expect(&Reply::text("xy"));
        peer.expect(&Reply::binary("z"));
    }
}

#[test]
fn close_is_echoed_and_the_server_ends_the_transport() {
    let server = Running::router(routes());
    for code in [1000, 1001, 1003, 1007, 1011, 1012, 1014, 3000, 4999] {
        let mut peer = server.websocket("/echo");
        // Frames after the Close do not count.
        peer.send(&Frame::close(code, "bye")).send(&Frame::text("late")).expect_close(code);
    }
    let mut peer = server.websocket("/echo");
    peer.send(&Frame::text("last")).send(&Frame::close_raw("")).expect(&Reply::text("last"));
    peer.expect(&Reply::Close(None, String::new()));
    assert_eq!(peer.next(), None);
    // A peer that has ended its side in the same segment still gets the answer.
    let mut peer = server.websocket("/echo");
    peer.send(&Frame::text("last")).send(&Frame::close(1000, "")).client.half_close();
    peer.expect(&Reply::text("last"));
    peer.expect_close(1000);
}

#[test]
fn protocol_error_is_answered_with_a_close() {
    let server = Running::router(routes());
    for (code, frame) in [
        (1002, Frame::text("x").unmasked()),
        (1002, Frame::text("x").rsv(4)),
        (1002, Frame::text("x").rsv(2)),
        (1002, Frame::new(3, "")),
        (1002, Frame::new(11, "")),
        (1002, Frame::continuation("x")),
        (1002, Frame::ping("x").fin(false)),
        (1002, Frame::ping([0; 126])),
        (1002, Frame::ping("x").rsv(4)),
        (1002, Frame::binary("xx").length(Length::Bits16)),
        (1002, Frame::binary("xx").length(Length::Bits64)),
        (1002, Frame::binary("").length(Length::Bits64).declares(1 << 63)),
        (1009, Frame::binary("").length(Length::Bits64).declares((1 << 63) - 1)),
        (1002, Frame::close_raw("x")),
        (1002, Frame::close(1005, "")),
        (1002, Frame::close(1006, "")),
        (1002, Frame::close(2999, "")),
        (1002, Frame::close(5000, "")),
        (1002, Frame::close(1000, b"\xff")),
        (1007, Frame::text(b"\xff")),
    ] {
        let mut peer = server.websocket("/echo");
        // Earlier messages are answered; the many bytes after the error are ignored.
        peer.send(&Frame::text("before")).send(&frame).send(&Frame::binary(noise(100_000)));
        peer.expect(&Reply::text("before"));
        peer.expect_close(code);
    }
    let mut peer = server.websocket("/echo");
    peer.send(&Frame::text("x").fin(false)).send(&Frame::binary("y")).expect_close(1002);
    let mut peer = server.websocket("/echo");
    peer.send(&Frame::text("ü").fin(false)).send(&Frame::continuation(b"\xc3")).expect_close(1007);
}

pub(crate) fn deflating(mode: DeflateMode) -> DeflateConfig {
    DeflateConfig::new().with_mode(mode)
}

/// An echo route with compression.
pub(crate) fn deflate_routes(mode: DeflateMode) -> Router {
    let options = ServerOptions::new().with_deflate(deflating(mode));
    Router::new().websocket("/echo", echo().with_options(options))
}

/// A peer with compression.
fn deflate_peer(server: &Running, mode: DeflateMode) -> (Peer, Codec) {
    let offer = match mode {
        DeflateMode::Shared => "permessage-deflate; client_no_context_takeover; server_no_context_takeover",
        _ => "permessage-deflate",
    };
    let lines = format!("Sec-WebSocket-Extensions: {offer}\r\n");
    let peer = server.connect().upgrade_with("/echo", &lines);
    assert!(peer.head.contains("Sec-WebSocket-Extensions: permessage-deflate"), "{}", peer.head);
    let agreed = negotiate(Some(deflating(mode)), Some(deflating(mode))).client;
    let params = agreed.deflate().unwrap();
    (peer.with_codec(Codec::new(Role::Client, params)), Codec::new(Role::Client, params))
}

#[test]
fn compressed_messages_are_echoed_in_either_mode() {
    for mode in [DeflateMode::Shared, DeflateMode::Dedicated] {
        let server = Running::router(deflate_routes(mode));
        let (mut peer, mut codec) = deflate_peer(&server, mode);
        let mut plain = server.websocket("/echo");
        for round in 0..20 {
            let text = format!("message {round} ").repeat(1 + round * 40);
            let (first, second) = {
                let compressed = codec.compress(text.as_bytes());
                let (first, second) = compressed.split_at(compressed.len() / 2);
                (first.to_vec(), second.to_vec())
            };
            peer.send(&Frame::text(first).rsv(4).fin(false)).send(&Frame::continuation(second));
            peer.expect(&Reply::text(&text));
            peer.send(&Frame::text(&text)).expect(&Reply::text(&text));
            plain.send(&Frame::text(&text)).expect(&Reply::text(&text));
        }
        peer.send(&Frame::text("not deflate").rsv(4)).expect_close(1007);
        plain.sync();
    }
}

/// As Safari of iOS 15, which keeps its window although an answer forbids it.
#[test]
fn client_without_parameters_compresses_all_messages_with_one_window() {
    let server = Running::router(deflate_routes(DeflateMode::Shared));
    let keeps_window =
        negotiate(Some(deflating(DeflateMode::Dedicated)), Some(deflating(DeflateMode::Dedicated)));
    let params = keeps_window.client.deflate().unwrap();
    let open = || {
        let peer = server.connect().upgrade_with("/echo", "Sec-WebSocket-Extensions: permessage-deflate\r\n");
        assert!(!peer.head.contains("client_no_context_takeover"), "{}", peer.head);
        (peer.with_codec(Codec::new(Role::Client, params)), Codec::new(Role::Client, params))
    };
    let (mut one, mut two) = (open(), open());
    for round in 0..60_usize {
        // Less than the window, more than it, and messages that repeat earlier ones.
        let text = format!("message {} ", round % 7).repeat(1 + (round % 5) * 900);
        for (number, (peer, codec)) in [&mut one, &mut two].into_iter().enumerate() {
            let text = format!("{number}{text}");
            let compressed = codec.compress(text.as_bytes());
            let (first, second) = compressed.split_at(compressed.len() / 2);
            peer.send(&Frame::text(first).rsv(4).fin(false)).send(&Frame::continuation(second));
            peer.expect(&Reply::text(&text));
        }
    }
    // The example of RFC 7692 section 7.2.3.2: the second message refers to the first one.
    let mut peer = open().0;
    for payload in [&[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00][..], &[0xf2, 0x00, 0x11, 0x00, 0x00]] {
        peer.send(&Frame::text(payload).rsv(4)).expect(&Reply::text("Hello"));
    }
}

#[test]
fn compression_bomb_is_closed_with_1009_while_inflating() {
    let mode = DeflateMode::Shared;
    let server = Running::router(deflate_routes(mode));
    let (mut peer, mut codec) = deflate_peer(&server, mode);
    let bomb = codec.compress(&vec![0; (16 << 20) + 1]);
    assert!(bomb.len() < 1 << 16);
    peer.send(&Frame::binary(&bomb).rsv(4)).expect_close(1009);
    let (mut other, mut codec) = deflate_peer(&server, mode);
    other.send(&Frame::text(codec.compress(b"still here")).rsv(4)).expect(&Reply::text("still here"));
}

/// Reports every pong.
struct Pongs;

impl Handler for Pongs {
    fn message(&mut self, _: Payload<'_>, cx: &mut Context<'_>) {
        let _ = cx.send_ping(b"ours").unwrap();
    }

    fn pong(&mut self, payload: &[u8], round_trip: Option<Duration>, cx: &mut Context<'_>) {
        assert_eq!(round_trip, None, "no ping of the keepalive");
        let _ = cx.send_binary(payload).unwrap();
    }
}

#[test]
fn handler_gets_pongs() {
    let server = Running::router(Router::new().websocket("/", WebSocketRoute::new(|_| Ok(Pongs))));
    let mut peer = server.websocket("/");
    peer.send(&Frame::text("ping me")).expect(&Reply::Ping(b"ours".to_vec()));
    peer.send(&Frame::pong("ours")).expect(&Reply::binary("ours"));
    peer.send(&Frame::pong("unasked")).expect(&Reply::binary("unasked"));
}

#[test]
fn handler_answers_closes_and_violations_unless_the_connection_does() {
    let server = Running::router(echo_with(Config::default().with_answers(false)));
    for (end, code) in [(Frame::close(4000, "done"), 4000), (Frame::text("a").rsv(4), 1002)] {
        let mut peer = server.websocket("/echo");
        // One chunk, whose message is answered before the end.
        let bytes = [Frame::text("last").encode(Role::Client), end.encode(Role::Client)].concat();
        peer.client.send(bytes);
        peer.expect(&Reply::text("last"));
        peer.expect_close(code);
    }
}
