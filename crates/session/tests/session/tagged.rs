//! Messages with their kind and their length, as in a session of WebTransport.

use std::sync::Arc;

use sinews_proto::{CloseCode, Config, Kind, Misuse, Negotiated, Role, Time};
use sinews_session::{Cause, Events, Flow, Payload, Prepared, Resources, Session, TransportAction, Tx};

#[derive(Default)]
struct Recorder {
    messages: Vec<(Kind, Vec<u8>)>,
    pauses: bool,
}

impl Events for Recorder {
    fn message(&mut self, payload: Payload<'_>, _: &mut Tx<'_>) {
        self.messages.push((payload.kind(), payload.to_vec()));
    }

    fn pauses(&self) -> bool {
        self.pauses
    }
}

struct Side {
    session: Session,
    resources: Resources,
    events: Recorder,
}

impl Side {
    fn new() -> Self {
        Self::with(Config::default())
    }

    fn with(config: Config) -> Self {
        let session = Session::new(Negotiated::tagged(Role::Server), Arc::new(config), Time::ZERO);
        Self { session, resources: Resources::new(), events: Recorder::default() }
    }

    fn receive(&mut self, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        let _: Flow = self.session.receive(&mut bytes, &mut self.resources, Time::ZERO, &mut self.events);
    }

    fn sent(&mut self) -> Vec<u8> {
        let Some(mut chain) = self.session.start_send() else { return Vec::new() };
        let sent = chain.pieces().flat_map(<[u8]>::to_vec).collect();
        chain.advance(chain.len());
        self.session.finish_send(chain, &mut self.resources, Time::ZERO);
        sent
    }
}

fn message(kind: u8, payload: &[u8]) -> Vec<u8> {
    [&[kind][..], &(payload.len() as u32).to_be_bytes(), payload].concat()
}

#[test]
fn messages_keep_their_kind_in_pieces_of_any_size() {
    let bytes = [message(1, "grüße".as_bytes()), message(2, &[0xff; 300]), message(1, b"")].concat();
    for size in [1, 2, 4, 5, 6, 7, 100, bytes.len()] {
        let mut side = Side::new();
        for piece in bytes.chunks(size) {
            side.receive(piece);
        }
        let expected = [
            (Kind::Text, "grüße".as_bytes().to_vec()),
            (Kind::Binary, vec![0xff; 300]),
            (Kind::Text, Vec::new()),
        ];
        assert_eq!(side.events.messages, expected, "{size}");
    }
}

/// Subscribers of a topic share a long payload; a short one costs less as a copy.
#[test]
fn published_messages_share_their_payload() {
    for (len, shared) in [(256, false), (257, true)] {
        let message = Prepared::binary(vec![7; len]);
        for _ in 0..2 {
            let mut side = Side::new();
            let mut tx = side.session.tx(&mut side.resources, Time::ZERO);
            let _ = tx.queue_prepared(&message, true).expect("an open session");
            assert_eq!(tx.exempt(), 5 + len);
            let chain = side.session.start_send().expect("output");
            let pieces: Vec<&[u8]> = chain.pieces().collect();
            let payload = message.payload();
            assert_eq!(pieces.concat(), self::message(2, payload));
            assert_eq!(pieces.iter().any(|piece| piece.as_ptr() == payload.as_ptr()), shared, "{len}");
            assert_eq!(side.resources.traffic().messages_sent, 1);
        }
    }
}

#[test]
fn own_messages_have_kind_and_length() {
    let mut side = Side::new();
    let mut tx = side.session.tx(&mut side.resources, Time::ZERO);
    let _ = tx.send_text("hi").expect("an open session");
    let _ = tx.send_prepared(&Prepared::binary(&b"many"[..])).expect("an open session");
    let _ = tx
        .send_pieces(Kind::Binary, &[bytes::Bytes::from_static(b"a"), bytes::Bytes::from_static(b"b")])
        .expect("an open session");
    assert_eq!(tx.send_fragment(Kind::Text, b"part", false), Err(Misuse::Prefixed));
    let sent = side.sent();
    assert_eq!(sent, [message(1, b"hi"), message(2, b"many"), message(2, b"ab")].concat());
}

#[test]
fn violations_close_with_their_code() {
    for (wrong, code) in [
        (message(0, b"x"), CloseCode::PROTOCOL),
        (message(3, b"x"), CloseCode::PROTOCOL),
        (message(9, b""), CloseCode::PROTOCOL),
        // A frame of WebSocket.
        (vec![0x81, 0x81, 0, 0, 0, 0, b'x'], CloseCode::PROTOCOL),
        (message(8, &[0; 126]), CloseCode::PROTOCOL),
        (message(8, b"x"), CloseCode::PROTOCOL),
        (message(1, b"\xff"), CloseCode::INVALID_DATA),
        (message(2, &[0; 101]), CloseCode::TOO_BIG),
    ] {
        let mut side = Side::with(Config::default().with_max_message(100).with_max_frame(100));
        side.receive(&wrong);
        let sent = side.sent();
        assert_eq!((sent[0], &sent[5..7]), (8, &code.as_u16().to_be_bytes()[..]), "{wrong:?}");
        let closed = side.session.written_close().map(|(code, reason)| (code, !reason.is_empty()));
        assert_eq!(closed, Some((code, true)));
        assert_eq!(side.session.transport_action(), TransportAction::Finish);
        assert!(side.events.messages.is_empty());
    }
}

#[test]
fn close_is_the_last_message_and_is_kept_for_the_transport() {
    let mut side = Side::new();
    assert_eq!(side.session.written_close(), None);
    let code = CloseCode::new(4001).expect("a valid code");
    side.session.tx(&mut side.resources, Time::ZERO).close(code, "enough").expect("an open session");
    side.session.after_tx(&mut side.resources, Time::ZERO);
    assert_eq!(side.sent(), message(8, &[&4001u16.to_be_bytes()[..], b"enough"].concat()));
    assert_eq!(side.session.written_close(), Some((code, "enough")));
    assert_eq!(side.session.transport_action(), TransportAction::Finish);
    // Nothing follows.
    side.session.after_tx(&mut side.resources, Time::ZERO);
    assert!(!side.session.wants_send());
    // Of the peer: its code is echoed.
    let mut side = Side::new();
    side.receive(&message(8, &1000u16.to_be_bytes()));
    assert_eq!(side.sent(), message(8, &1000u16.to_be_bytes()));
    let closed = side.session.take_closed().expect("the peer has closed");
    assert_eq!((closed.cause(), closed.code()), (Cause::Peer, Some(CloseCode::NORMAL)));
}

#[test]
fn silent_peer_is_no_fault() {
    let mut side = Side::new();
    for seconds in 1..2000 {
        let now = Time::ZERO + std::time::Duration::from_secs(seconds);
        if side.session.deadline().is_some_and(|deadline| deadline <= now) {
            side.session.handle_timeout(&mut side.resources, now);
        }
    }
    assert!(side.session.is_open() && side.session.take_closed().is_none());
    assert_eq!(side.sent(), b"");
}

#[test]
fn datagrams_are_messages_unless_reads_are_paused() {
    let mut side = Side::new();
    // In the middle of a message of the stream.
    side.receive(&message(1, b"stream")[..7]);
    let receive = |side: &mut Side, payload: &mut [u8]| {
        let Side { session, resources, events } = side;
        session.receive_datagram(Kind::Binary, payload, resources, Time::ZERO, events)
    };
    assert!(receive(&mut side, &mut b"datagram".to_owned()));
    side.receive(&message(1, b"stream")[7..]);
    let expected = [(Kind::Binary, b"datagram".to_vec()), (Kind::Text, b"stream".to_vec())];
    assert_eq!(side.events.messages, expected);
    side.events.pauses = true;
    assert!(receive(&mut side, &mut b"last".to_owned()));
    assert!(side.session.is_paused() && !receive(&mut side, &mut b"dropped".to_owned()));
    assert_eq!(side.events.messages.len(), 3);
    // After the peer's Close.
    let mut side = Side::new();
    side.receive(&message(8, b""));
    assert!(!receive(&mut side, &mut b"late".to_owned()));
}
