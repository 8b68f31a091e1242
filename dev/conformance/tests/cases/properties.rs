//! Any chunking of the same bytes gives the same events and the same output.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use sinews_proto::deflate::{DeflateConfig, DeflateMode};
use sinews_proto::{Config, Kind, Negotiated, PeerMisbehaved, Role, Time};
use sinews_session::Cause;
use sinews_testkit::{
    App, Chunks, Codec, ConnectionEnd, Frame, Heard, Machine, Probe, Reply, Rng, SessionEnd, corpora,
    negotiate,
};

fn quiet() -> Config {
    // High enough that no pong waits for the output to drain: the time of that depends on the time of the
    // sends.
    Config::default().with_ping_interval(None).with_idle_timeout(None).with_high_water(64 << 20)
}

/// A peer's next action.
#[derive(Clone, Debug)]
enum Act {
    /// A message of this length in fragments of at most `frame` bytes, pings between them, compressed or not.
    Message {
        text: bool,
        len: usize,
        frame: usize,
        pings: bool,
        compressed: bool,
    },
    Ping(usize),
    Pong(usize),
    /// A byte in the stream so far is changed.
    Damage(usize, u8),
    Close(u16),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let len =
        prop_oneof![4 => 0_usize..40, 2 => 100_usize..400, 1 => 1000_usize..9000, 1 => 65_500_usize..65_600];
    let frame = prop_oneof![3 => Just(usize::MAX), 1 => 1_usize..50, 1 => 100_usize..5000];
    let message = (any::<bool>(), len, frame, any::<bool>(), any::<bool>()).prop_map(
        |(text, len, frame, pings, compressed)| {
            // At most as many fragments as a second allows pings.
            let frame = frame.max(len / 20 + 1);
            Act::Message { text, len, frame, pings, compressed }
        },
    );
    let act = prop_oneof![
        12 => message,
        3 => (0_usize..126).prop_map(Act::Ping),
        2 => (0_usize..126).prop_map(Act::Pong),
        2 => (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Act::Damage(at, byte)),
        1 => prop::sample::select(&[1000_u16, 1001, 1005, 3000, 4999][..]).prop_map(Act::Close),
    ];
    prop::collection::vec(act, 1..8)
}

/// Returns a peer's bytes for these actions.
fn stream(acts: &[Act], peer: Role, negotiated: Negotiated, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut codec = negotiated.deflate().map(|params| Codec::new(peer, params));
    let mut bytes = Vec::new();
    let key = |frame: Frame, rng: &mut Rng| match peer {
        Role::Client => frame.key(rng.key()),
        Role::Server => frame,
    };
    for act in acts {
        match *act {
            Act::Message { text, len, frame, pings, compressed } => {
                let payload: Vec<u8> = match text {
                    true => "a\u{e4}\u{20ac}\u{1f600}".bytes().cycle().take(len / 10 * 10).collect(),
                    false => rng.bytes(len),
                };
                let codec = codec.as_mut().filter(|_| compressed);
                let rsv = if codec.is_some() { 4 } else { 0 };
                let body = codec.map_or_else(|| payload.clone(), |codec| codec.compress(&payload));
                let pieces: Vec<&[u8]> =
                    if body.is_empty() { vec![&[]] } else { body.chunks(frame).collect() };
                for (at, piece) in pieces.iter().enumerate() {
                    let one = match at {
                        0 => Frame::new(if text { 1 } else { 2 }, piece).rsv(rsv),
                        _ => Frame::continuation(piece),
                    };
                    bytes.extend(key(one.fin(at + 1 == pieces.len()), &mut rng).encode(peer));
                    if pings && at % 3 == 0 {
                        bytes.extend(key(Frame::ping([at as u8; 9]), &mut rng).encode(peer));
                    }
                }
            }
            Act::Ping(len) => bytes.extend(key(Frame::ping(rng.bytes(len)), &mut rng).encode(peer)),
            Act::Pong(len) => bytes.extend(key(Frame::pong(rng.bytes(len)), &mut rng).encode(peer)),
            Act::Damage(at, byte) => {
                if !bytes.is_empty() {
                    let at = at % bytes.len();
                    bytes[at] ^= byte;
                }
            }
            Act::Close(code) => bytes.extend(key(Frame::close(code, "bye"), &mut rng).encode(peer)),
        }
    }
    bytes
}

fn negotiations() -> Vec<Option<DeflateConfig>> {
    let config = DeflateConfig::new().with_threshold(16);
    vec![None, Some(config.clone()), Some(config.with_mode(DeflateMode::Dedicated))]
}

/// A machine's result for a stream: its events, and its output.
type Outcome = (Vec<Heard>, Vec<u8>);

fn outcome<M: Machine>(mut probe: Probe<M>, bytes: &[u8], chunks: Chunks, takes: Chunks) -> Outcome {
    probe = probe.taking(takes);
    probe.send(bytes, chunks);
    let output = probe.output().to_vec();
    probe.end();
    assert_eq!(probe.output(), output, "the end of the transport says nothing");
    one_fault_for_1007((probe.take_heard(), output), probe.machine.role())
}

/// Compressed text can be broken in two ways at once: the data, and the text before the broken data. The
/// first detected fault depends on the progress of inflating; the Close has 1007 either way.
fn one_fault_for_1007((mut heard, mut output): Outcome, role: Role) -> Outcome {
    if let Some(Heard::Over(Some(1007), Cause::Fault(fault))) = heard.last_mut() {
        let head = if role == Role::Client { 6 } else { 2 };
        output.truncate(output.len() - head - 2 - fault.reason().len());
        *fault = PeerMisbehaved::BadDeflate;
    }
    (heard, output)
}

fn session(negotiated: Negotiated, app: App) -> SessionEnd {
    SessionEnd::new(negotiated, quiet(), app, Time::ZERO)
}

/// Joins each message's fragments; the connection's end loses an incomplete message.
fn joined(heard: &[Heard]) -> Vec<Heard> {
    let mut whole = Vec::new();
    // The message so far, and where its complete text ends.
    let mut open: Option<(Kind, Vec<u8>, usize)> = None;
    for one in heard {
        match one {
            Heard::Fragment { kind, bytes, first, last } => {
                assert_eq!(open.is_none(), *first, "the first piece, and only that, says so");
                let (begun, mut message, mut good) = open.take().unwrap_or((*kind, Vec::new(), 0));
                assert_eq!(begun, *kind);
                message.extend_from_slice(bytes);
                if *kind == Kind::Text {
                    match corpora::verdict(&message[good..]) {
                        corpora::Verdict::Valid => good = message.len(),
                        verdict => assert!(!last && verdict == corpora::Verdict::Incomplete),
                    }
                }
                match last {
                    true => whole.push(Heard::Message(*kind, message)),
                    false => open = Some((*kind, message, good)),
                }
            }
            other => whole.push(other.clone()),
        }
    }
    whole
}

fn chunkings() -> impl Strategy<Value = (Chunks, Chunks)> {
    let chunks = prop_oneof![
        1 => Just(Chunks::Whole),
        2 => Just(Chunks::OneByte),
        2 => (1_usize..70_000).prop_map(Chunks::Fixed),
        6 => any::<u64>().prop_map(Chunks::Random),
    ];
    (chunks.clone(), chunks)
}

const ROLES: [(Role, Role); 2] = [(Role::Server, Role::Client), (Role::Client, Role::Server)];

/// Runs the same cases every time: the fuzz targets search further.
fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 48,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    /// The events do not depend on the chunking of the input, and the output does not depend on the send sizes.
    #[test]
    fn any_chunking_gives_the_same_events_and_the_same_bytes(
        acts in acts(),
        seed: u64,
        (chunks, takes) in chunkings(),
    ) {
        for deflate in negotiations() {
            for (role, peer) in ROLES {
                let negotiated = negotiate(deflate.clone(), deflate.clone()).of(role);
                let bytes = stream(&acts, peer, negotiated, seed);
                let probe = || Probe::new(session(negotiated, App::echo()), negotiated);
                let expected = outcome(probe(), &bytes, Chunks::Whole, Chunks::Whole);
                let found = outcome(probe(), &bytes, chunks, takes);
                prop_assert_eq!(&found, &expected, "{:?} {:?}", role, &deflate);
                // The bare machine under another driver has the same result.
                let bare = Probe::new(ConnectionEnd::new(negotiated, quiet(), true, Time::ZERO), negotiated);
                let bare = outcome(bare, &bytes, chunks, takes);
                prop_assert_eq!(&bare, &expected, "bare {:?} {:?}", role, &deflate);
            }
        }
    }

    /// Joined fragments equal the messages, and the end is the same.
    #[test]
    fn pieces_put_together_are_the_messages(acts in acts(), seed: u64, (chunks, takes) in chunkings()) {
        for deflate in negotiations() {
            for (role, peer) in ROLES {
                let negotiated = negotiate(deflate.clone(), deflate.clone()).of(role);
                let bytes = stream(&acts, peer, negotiated, seed);
                let whole = Probe::new(session(negotiated, App::listener()), negotiated);
                let (expected, _) = outcome(whole, &bytes, Chunks::Whole, Chunks::Whole);
                let pieces = Probe::new(session(negotiated, App::listener()).in_fragments(), negotiated);
                let (found, _) = outcome(pieces, &bytes, chunks, takes);
                prop_assert_eq!(joined(&found), expected, "{:?} {:?}", role, &deflate);
            }
        }
    }

    /// An echo of fragments, cut anywhere, equals the message.
    #[test]
    fn an_echo_of_pieces_is_the_message(acts in acts(), seed: u64, (chunks, takes) in chunkings()) {
        for deflate in negotiations() {
            for (role, peer) in ROLES {
                let negotiated = negotiate(deflate.clone(), deflate.clone()).of(role);
                let bytes = stream(&acts, peer, negotiated, seed);
                let replies = |end: SessionEnd, chunks, takes| {
                    let mut probe = Probe::new(end, negotiated).taking(takes);
                    probe.send(&bytes, chunks);
                    let mut replies = probe.take_replies();
                    if let Some(Reply::Close(Some(1007), reason)) = replies.last_mut() {
                        reason.clear();
                    }
                    replies
                };
                let expected = replies(session(negotiated, App::echo()), Chunks::Whole, Chunks::Whole);
                let found = replies(session(negotiated, App::echo()).in_fragments(), chunks, takes);
                prop_assert_eq!(found, expected, "{:?} {:?}", role, &deflate);
            }
        }
    }

    /// Arbitrary bytes: no panic, one end at most, and valid protocol output only.
    #[test]
    fn arbitrary_bytes_do_not_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        (chunks, takes) in chunkings(),
    ) {
        for deflate in negotiations() {
            for (role, _) in ROLES {
                let negotiated = negotiate(deflate.clone(), deflate.clone()).of(role);
                let probe = || Probe::new(session(negotiated, App::echo()), negotiated);
                let expected = outcome(probe(), &bytes, Chunks::Whole, Chunks::Whole);
                let found = outcome(probe(), &bytes, chunks, takes);
                prop_assert_eq!(&found, &expected);
                let ends = found.0.iter().filter(|heard| matches!(heard, Heard::Over(..))).count();
                prop_assert_eq!(ends, 1);
            }
        }
    }
}

/// A send that stops at any byte, and is cancelled and retried any number of times, leaves the same bytes:
/// none is lost, repeated or overtaken by later output.
#[test]
fn a_send_may_stop_at_every_byte() {
    for (role, _) in ROLES {
        let negotiated = negotiate(None, None).of(role);
        let queue = |end: &mut SessionEnd| {
            end.act(Time::ZERO, |tx| {
                let _ = tx.send_text("small").expect("open");
                let _ = tx.send_bytes(vec![b'L'; 5000].into()).expect("open");
                let _ = tx.send_binary(&[1; 130]).expect("open");
                let _ = tx.send_ping(b"ping").expect("open");
                let _ = tx.send_bytes(vec![b'M'; 4096].into()).expect("open");
            });
        };
        let late = |end: &mut SessionEnd| {
            let _ = end.act(Time::ZERO, |tx| tx.send_text("behind all that").expect("open"));
        };
        let mut whole = session(negotiated, App::listener());
        queue(&mut whole);
        let first = whole.take(usize::MAX, Time::ZERO);
        late(&mut whole);
        let expected = [first, whole.take(usize::MAX, Time::ZERO)].concat();
        assert_eq!(whole.waiting(), 0);
        for cut in 1..expected.len() - 20 {
            let mut end = session(negotiated, App::listener());
            queue(&mut end);
            let mut bytes = end.take(cut, Time::ZERO);
            assert_eq!(bytes.len(), cut.min(bytes.len() + end.waiting()));
            // Output queued during a partial send follows it.
            late(&mut end);
            while end.waiting() > 0 {
                bytes.extend(end.take(usize::MAX, Time::ZERO));
            }
            assert!(bytes == expected, "{role:?} cut at {cut}");
        }
    }
}

/// A message cut at every byte, once: two segments have the same result as one.
#[test]
fn two_segments_cut_at_every_byte_equal_the_whole() {
    for deflate in negotiations() {
        for (role, peer) in ROLES {
            let negotiated = negotiate(deflate.clone(), deflate.clone()).of(role);
            let acts = [
                Act::Message { text: true, len: 150, frame: 50, pings: true, compressed: false },
                Act::Message { text: true, len: 200, frame: 9, pings: true, compressed: true },
                Act::Message { text: false, len: 126, frame: usize::MAX, pings: false, compressed: true },
                Act::Pong(125),
                Act::Close(1000),
            ];
            let bytes = stream(&acts, peer, negotiated, 1);
            let probe = || Probe::new(session(negotiated, App::echo()), negotiated);
            let expected = outcome(probe(), &bytes, Chunks::Whole, Chunks::Whole);
            assert_eq!(expected.0.last(), Some(&Heard::Over(Some(1000), Cause::Peer)));
            for cut in 1..bytes.len() {
                let mut probe = probe();
                probe.send(&bytes[..cut], Chunks::Whole);
                probe.send(&bytes[cut..], Chunks::Whole);
                assert_eq!(probe.take_heard(), expected.0, "cut at {cut}");
                assert_eq!(probe.output(), expected.1, "cut at {cut}");
            }
        }
    }
}
