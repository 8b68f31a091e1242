//! Memory follows the bytes received, never the bytes declared, and is freed with them.
//!
//! The allocator counts each thread's allocations. Tests run on separate threads, so each test counts only its own; the
//! measured code stays on one thread.

use std::sync::Arc;

use bytes::Bytes;
use sinews_proto::deflate::{DeflateConfig, DeflateMode};
use sinews_proto::{Config, Negotiated, PingRate, Role, Time};
use sinews_session::{Events, Flow, Fragment, Payload, Resources, Session, Tx};
use sinews_testkit::{Codec, Frame, Length, Rng, measure, negotiate, negotiate_plain};

/// An owner that allocates nothing: it counts, echoes on request, and retains nothing.
#[derive(Default)]
struct Quiet {
    messages: usize,
    bytes: usize,
    echo: bool,
}

impl Events for Quiet {
    fn message(&mut self, payload: Payload<'_>, tx: &mut Tx<'_>) {
        self.messages += 1;
        self.bytes += payload.len();
        if self.echo {
            let _ = tx.send_payload(payload).expect("open");
        }
    }

    fn fragment(&mut self, fragment: Fragment<'_>, _: &mut Tx<'_>) {
        self.bytes += fragment.bytes.len();
        self.messages += usize::from(fragment.last);
    }
}

/// A session with the resources that its thread shares.
struct End {
    session: Session,
    resources: Resources,
    owner: Quiet,
}

impl End {
    fn new(negotiated: Negotiated, config: Config) -> Self {
        let session = Session::new(negotiated, Arc::new(config), Time::ZERO);
        Self { session, resources: Resources::new(), owner: Quiet::default() }
    }

    fn server() -> Self {
        Self::new(negotiate_plain(Role::Server), quiet())
    }

    /// Delivers the bytes in chunks, from one buffer that is allocated before the measurement.
    fn deliver(&mut self, bytes: &mut [u8], chunk: usize) -> Flow {
        let mut flow = Flow::Continue;
        for chunk in bytes.chunks_mut(chunk) {
            flow = self.session.receive(chunk, &mut self.resources, Time::ZERO, &mut self.owner);
        }
        flow
    }

    /// Sends the queued bytes, and discards them.
    fn drain(&mut self) {
        while let Some(mut chain) = self.session.start_send() {
            chain.advance(chain.len());
            if self.session.finish_send(chain, &mut self.resources, Time::ZERO) && self.session.wants_resume()
            {
                let _ = self.session.resume(&mut self.resources, Time::ZERO, &mut self.owner);
            }
        }
    }
}

fn quiet() -> Config {
    Config::default().with_ping_interval(None).with_idle_timeout(None)
}

fn dedicated() -> Option<DeflateConfig> {
    Some(DeflateConfig::new().with_mode(DeflateMode::Dedicated).with_threshold(0))
}

/// Class A: a peer that sends headers only. Declared lengths reserve no memory.
#[test]
fn a_declared_length_reserves_nothing() {
    for (deflate, rsv) in [(None, 0), (dedicated(), 4)] {
        let negotiated = negotiate(deflate.clone(), deflate).server;
        for len in [16 << 20, 1 << 40, (1 << 63) - 1] {
            for opcode in [1, 2] {
                let config = quiet().with_max_frame(u64::MAX).with_max_message(u64::MAX);
                let mut end = End::new(negotiated, config);
                let head = Frame::new(opcode, "").rsv(rsv).length(Length::Bits64).declares(len);
                let mut bytes = head.encode(Role::Client);
                let (_, counts) = measure(|| end.deliver(&mut bytes, usize::MAX));
                // An open message needs no state beyond the fact that it is open.
                assert!(counts.peak <= 64, "{len:#x}: {counts:?}");
            }
        }
    }
}

/// A partial message reserves at most twice its received bytes.
#[test]
fn assembly_follows_the_bytes_received() {
    let mut rng = Rng::new(4);
    for _ in 0..50 {
        let came = 1 + rng.below(200_000);
        let frame = Frame::binary(vec![1; came]).length(Length::Bits64).declares(16 << 20);
        let mut bytes = frame.encode(Role::Client);
        let mut end = End::server();
        let chunk = 1 + rng.below(20_000);
        let ((), counts) = measure(|| {
            let _ = end.deliver(&mut bytes, chunk);
        });
        let allowed = 2 * came as isize + 1024;
        assert!(counts.live <= allowed, "{came} bytes in {chunk}s: {counts:?}");
        // While it grows, the old buffer exists beside the new buffer.
        assert!(counts.peak <= 2 * allowed, "{came} bytes in {chunk}s: {counts:?}");
    }
}

/// Class A again, in fragment delivery: delivered fragments are not retained.
#[test]
fn a_stream_in_pieces_costs_no_memory() {
    let config = quiet().with_max_frame(u64::MAX).with_max_message(u64::MAX);
    let mut end = End::new(negotiate_plain(Role::Server), config);
    end.session.deliver_fragments(true);
    let mut bytes = Frame::binary(vec![1; 4 << 20]).declares(1 << 40).encode(Role::Client);
    let ((), counts) = measure(|| {
        let _ = end.deliver(&mut bytes, 64 << 10);
    });
    assert_eq!(end.owner.bytes, 4 << 20);
    assert!(counts.allocations <= 1 && counts.peak <= 64, "{counts:?}");
}

/// A message of n bytes grows its buffer by doubling, independent of the chunking.
#[test]
fn a_message_of_16_mib_costs_few_allocations() {
    let len = 16 << 20;
    for (frame_max, chunk) in [(len, 64 << 10), (4096, 64 << 10), (1 << 20, 1000)] {
        let payload = vec![b'x'; len];
        let mut bytes = Vec::new();
        for (at, piece) in payload.chunks(frame_max).enumerate() {
            let frame = if at == 0 { Frame::text(piece) } else { Frame::continuation(piece) };
            bytes.extend(frame.fin((at + 1) * frame_max >= len).encode(Role::Client));
        }
        let mut end = End::server();
        let ((), counts) = measure(|| {
            let _ = end.deliver(&mut bytes, chunk);
            // A driver does this every few seconds.
            assert!(end.resources.release_idle(), "used since the last look");
            assert!(!end.resources.release_idle(), "not used since");
        });
        assert_eq!((end.owner.messages, end.owner.bytes), (1, len));
        // From 1 KiB to 16 MiB are 14 doublings. Headers cut by a chunk's end are kept in a few bytes.
        let heads_cut = bytes.len() / chunk;
        assert!(counts.allocations <= 16 + 3 * heads_cut, "{frame_max} {chunk}: {counts:?}");
        if frame_max == len {
            assert!(counts.allocations <= 18, "{counts:?}");
        }
        assert!(counts.largest <= len, "the limit caps the last doubling: {counts:?}");
        assert!(counts.live <= 64 << 10, "a large buffer is given back: {counts:?}");
    }
}

/// The design's bar: at most 512 bytes of user memory for an idle connection after any history, the session's own value
/// included.
#[test]
fn an_idle_session_owns_no_buffers_after_any_history() {
    let own = size_of::<Session>() as isize;
    let shared = Some(DeflateConfig::new().with_threshold(0));
    for role in [Role::Server, Role::Client] {
        let peer = if role == Role::Server { Role::Client } else { Role::Server };
        for deflate in [None, shared.clone()] {
            let negotiated = negotiate(deflate.clone(), deflate).of(role);
            let mut stream = Vec::new();
            for len in [0, 1, 100, 5000, 256 << 10] {
                let payload = vec![b'h'; len];
                match negotiated.deflate() {
                    Some(params) => {
                        let payload = Codec::new(peer, params).compress(&payload);
                        stream.extend(Frame::text(payload).rsv(4).encode(peer));
                    }
                    None => stream.extend(Frame::text(&payload).encode(peer)),
                }
                stream.extend(Frame::text("in ").fin(false).encode(peer));
                stream.extend(Frame::ping([1; 125]).encode(peer));
                stream.extend(Frame::continuation(&payload).encode(peer));
            }
            for chunk in [usize::MAX, 1000, 7] {
                let config = Arc::new(quiet().with_max_outbound(10 << 20));
                // The thread's shared resources are dropped before the count is taken.
                let (session, counts) = measure(|| busy_session(negotiated, &config, &stream, chunk));
                let memory = counts.live + own;
                assert!(memory <= 512, "{role:?} {chunk}: {own} and {counts:?}");
                drop(session);
            }
        }
    }
}

fn busy_session(negotiated: Negotiated, config: &Arc<Config>, stream: &[u8], chunk: usize) -> Session {
    let session = Session::new(negotiated, Arc::clone(config), Time::ZERO);
    let owner = Quiet { echo: true, ..Quiet::default() };
    let mut end = End { session, resources: Resources::new(), owner };
    let mut stream = stream.to_vec();
    for chunk in stream.chunks_mut(chunk) {
        let _ = end.deliver(chunk, usize::MAX);
        end.drain();
    }
    assert_eq!(end.owner.messages, 10);
    assert_eq!(end.session.buffered(), 0);
    end.session
}

/// Bytes in segments of one: only an incomplete header or control frame is retained.
#[test]
fn segments_of_one_byte_cost_no_memory() {
    let mut end = End::server();
    let mut bytes = Vec::new();
    for _ in 0..100 {
        bytes.extend(Frame::text("x").fin(false).encode(Role::Client));
        bytes.extend(Frame::ping([0; 125]).encode(Role::Client));
        bytes.extend(Frame::continuation([b'y'; 300]).encode(Role::Client));
    }
    let ((), counts) = measure(|| {
        for chunk in bytes.chunks_mut(1) {
            let _ = end.deliver(chunk, 1);
            end.drain();
        }
    });
    assert_eq!(end.owner.messages, 100);
    // Nearly all is the thread's spare buffers, at most 256.
    assert!(counts.peak <= 300 << 10, "{counts:?}");
    let ((), freed) = measure(|| end.resources = Resources::new());
    assert!(counts.live + freed.live <= 64, "{counts:?} {freed:?}");
}

/// Class B: a million empty continuations, if they were allowed, and a flood of pings to a peer that never
/// reads.
#[test]
fn many_small_parts_cost_no_memory() {
    let config = quiet().with_max_fragments(u32::MAX).with_max_empty_fragments(u32::MAX);
    let mut end = End::new(negotiate_plain(Role::Server), config);
    let mut start = Frame::binary("").fin(false).encode(Role::Client);
    let mut empties = Frame::continuation("").fin(false).encode(Role::Client).repeat(10_000);
    let ((), counts) = measure(|| {
        let _ = end.deliver(&mut start, usize::MAX);
        for _ in 0..100 {
            let _ = end.deliver(&mut empties, usize::MAX);
        }
    });
    assert!(counts.peak <= 64, "{counts:?}");

    let rate = PingRate { per_second: u32::MAX, burst: u32::MAX };
    let config = quiet().with_ping_rate(rate);
    let mark = config.high_water();
    let mut end = End::new(negotiate_plain(Role::Server), config);
    let ping = Frame::ping([7; 125]).encode(Role::Client);
    let (flow, counts) = measure(|| {
        for _ in 0..1_000_000 {
            if end.deliver(&mut ping.clone(), usize::MAX) == Flow::Pause {
                return Flow::Pause;
            }
        }
        Flow::Continue
    });
    assert_eq!(flow, Flow::Pause, "reading stops");
    assert!(counts.peak <= 4 * mark as isize, "{counts:?}");
}

/// Class C: inflating a bomb stops at the limit; its cost until then is the limit, not the declared length.
#[test]
fn a_bomb_costs_no_more_than_the_limit() {
    for deflate in [dedicated(), Some(DeflateConfig::new())] {
        let negotiated = negotiate(deflate.clone(), deflate).server;
        let params = negotiated.deflate().expect("agreed");
        let payload = Codec::new(Role::Client, params).compress(&vec![0; 8 << 20]);
        let mut bytes = Frame::binary(payload).rsv(4).encode(Role::Client);
        let limit = 100_000;
        let mut end = End::new(negotiated, quiet().with_max_message(limit));
        let ((), counts) = measure(|| {
            let _ = end.deliver(&mut bytes, usize::MAX);
        });
        assert_eq!(end.session.take_closed().map(|closed| closed.status()), Some(1009));
        // The inflater itself takes some 100 KiB.
        assert!(counts.peak < 3 * limit as isize + (128 << 10), "{counts:?}");
    }
}

/// A connection creates its own context at its first compressed message, not before, and frees it when the
/// connection fails.
#[test]
fn deflate_contexts_are_made_on_first_use() {
    let negotiated = negotiate(dedicated(), dedicated()).server;
    let config = Arc::new(quiet());
    let (session, counts) = measure(|| Session::new(negotiated, config, Time::ZERO));
    assert!(counts.live + size_of::<Session>() as isize <= 512, "{counts:?}");
    drop(session);
}

/// A small message that an application keeps must not retain a large block, nor must a message at a grown buffer's end;
/// a large message is handed over without a copy.
#[test]
fn a_message_that_is_kept_costs_its_own_length() {
    struct Keep(Vec<Bytes>);
    impl Events for Keep {
        fn message(&mut self, payload: Payload<'_>, _: &mut Tx<'_>) {
            self.0.push(payload.detach());
        }
    }
    for len in [1, 100, 5000, 15_000, 16_384, 40_000, 100_000] {
        for chunk in [usize::MAX, 4096] {
            let mut end = End::server();
            let mut bytes = Frame::binary(vec![1; len]).encode(Role::Client);
            let mut keep = Keep(Vec::with_capacity(1));
            let ((), counts) = measure(|| {
                for chunk in bytes.chunks_mut(chunk) {
                    let _ = end.session.receive(chunk, &mut end.resources, Time::ZERO, &mut keep);
                }
            });
            assert_eq!(keep.0.iter().map(Bytes::len).sum::<usize>(), len);
            // The thread's spare buffers do not belong to the message.
            let ((), freed) = measure(|| end.resources = Resources::new());
            let cost = counts.live + freed.live;
            assert!(cost <= 2 * len as isize + 200, "{len} in {chunk}: {counts:?} {freed:?}");
        }
    }
}

/// Output costs its own bytes and little more: a large owned message is not copied.
#[test]
fn an_owned_message_leaves_by_reference() {
    let mut end = End::server();
    let payload = Bytes::from(vec![1; 1 << 20]);
    let ((), counts) = measure(|| {
        let mut tx = end.session.tx(&mut end.resources, Time::ZERO);
        let _ = tx.send_bytes(payload.clone()).expect("open");
        end.drain();
    });
    assert!(counts.peak < 4096, "{counts:?}");
}

/// An assembled message's echo hands the buffer over.
#[test]
fn an_echo_of_a_long_message_does_not_copy_it() {
    let len = 1 << 20;
    let mut end = End::server();
    end.owner.echo = true;
    let mut bytes = Frame::binary(vec![1; len]).encode(Role::Client);
    let ((), counts) = measure(|| {
        for chunk in bytes.chunks_mut(64 << 10) {
            let _ = end.deliver(chunk, usize::MAX);
        }
        end.drain();
    });
    assert_eq!(end.owner.messages, 1);
    // The buffer and its smaller predecessor.
    assert!(counts.peak <= 3 * len as isize, "{counts:?}");
    assert!(counts.allocations <= 24, "{counts:?}");
}

/// A paused session retains the rest of the driver's input, and frees it on resume.
#[test]
fn a_paused_session_frees_its_retained_bytes_on_resume() {
    let mut end = End::new(negotiate_plain(Role::Server), quiet().with_high_water(1000));
    end.owner.echo = true;
    let mut bytes = Frame::text([b'x'; 200]).encode(Role::Client).repeat(100);
    let ((), counts) = measure(|| {
        let _ = end.deliver(&mut bytes, usize::MAX);
        while end.session.buffered() > 0 {
            end.drain();
        }
    });
    assert_eq!(end.owner.messages, 100);
    assert!(counts.live <= 16 << 10, "{counts:?}");
}
