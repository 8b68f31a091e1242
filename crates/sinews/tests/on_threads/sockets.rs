//! `sinews::blocking`: over in-memory streams that block at every byte, and over loopback with a thread per end.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use sinews::blocking::{WebSocket, accept, connect};
use sinews::client::ConnectPhase;
use sinews::server::{Reject, Reply};
use sinews::{
    AcceptError, Cause, CloseCode, Config, ConnectError, Error, Expired, Message, Misuse, Negotiated,
    PeerMisbehaved, Role, Sent,
};
use sinews_testkit::{Frame, Reader, Reply as SentFrame, Rng, TestCertificate, negotiate, wire};

/// One direction of an in-memory link.
#[derive(Debug, Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    capacity: usize,
    ended: bool,
    writes: usize,
}

type Shared = Rc<RefCell<Pipe>>;

fn pipe(capacity: usize) -> Shared {
    Rc::new(RefCell::new(Pipe { capacity, ..Pipe::default() }))
}

/// One end of an in-memory link: it never blocks, and, with a seed, often returns `WouldBlock`, is interrupted, or
/// passes one byte.
#[derive(Debug)]
struct End {
    incoming: Shared,
    outgoing: Shared,
    rng: Option<Rng>,
}

impl End {
    fn admit(&mut self, most: usize) -> io::Result<usize> {
        let Some(rng) = &mut self.rng else { return Ok(most) };
        match rng.below(6) {
            0 => Err(ErrorKind::WouldBlock.into()),
            1 => Err(ErrorKind::TimedOut.into()),
            2 => Err(ErrorKind::Interrupted.into()),
            3 => Ok(most.min(1 + rng.below(1000))),
            _ => Ok(most.min(1)),
        }
    }
}

impl Read for End {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let most = self.admit(buf.len())?;
        let mut pipe = self.incoming.borrow_mut();
        match pipe.bytes.read(&mut buf[..most]) {
            Ok(0) if !pipe.ended => Err(ErrorKind::WouldBlock.into()),
            read => read,
        }
    }
}

impl Write for End {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let most = self.admit(buf.len())?;
        let mut pipe = self.outgoing.borrow_mut();
        if pipe.ended {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let count = most.min(pipe.capacity - pipe.bytes.len());
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        pipe.bytes.extend(&buf[..count]);
        pipe.writes += 1;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.admit(1).map(drop)
    }
}

/// The two ends of a link with this capacity in each direction.
fn link(capacity: usize, seed: Option<u64>) -> (End, End) {
    let (up, down) = (pipe(capacity), pipe(capacity));
    let client = End { incoming: down.clone(), outgoing: up.clone(), rng: seed.map(Rng::new) };
    let server = End { incoming: up, outgoing: down, rng: seed.map(|seed| Rng::new(seed + 1)) };
    (client, server)
}

/// A WebSocket of one role against a raw peer.
fn against_bytes(role: Role, config: &Config) -> (WebSocket<End>, Shared, Shared) {
    let (client, _) = link(1 << 20, None);
    let (to, from) = (client.incoming.clone(), client.outgoing.clone());
    let negotiated = negotiate(None, None).of(role);
    (WebSocket::from_negotiated(client, negotiated, Arc::new(config.clone()), &[]), to, from)
}

fn pair(config: &Config, capacity: usize, seed: Option<u64>) -> (WebSocket<End>, WebSocket<End>) {
    let (client, server) = link(capacity, seed);
    let (agreed, config) = (negotiate(None, None), Arc::new(config.clone()));
    (
        WebSocket::from_negotiated(client, agreed.client, config.clone(), &[]),
        WebSocket::from_negotiated(server, agreed.server, config, &[]),
    )
}

fn text(n: usize) -> Message {
    Message::text(format!("message {n}"))
}

/// The frames that a WebSocket of this role sent to a raw peer.
fn sent_frames(role: Role, from: &Shared) -> Vec<SentFrame> {
    let bytes: Vec<u8> = from.borrow_mut().bytes.drain(..).collect();
    Reader::new(role, None).read(&bytes).expect("sound frames")
}

fn is_wait(error: &Error) -> bool {
    matches!(error, Error::Io(error) if error.kind() == ErrorKind::WouldBlock)
}

/// Whether the next call would block.
fn waits(ws: &mut WebSocket<End>) -> bool {
    matches!(ws.next(), Some(Err(error)) if is_wait(&error))
}

/// Retries a call while it would block.
fn insist<T>(mut call: impl FnMut() -> Option<Result<T, Error>>) -> Option<Result<T, Error>> {
    let start = Instant::now();
    loop {
        match call() {
            Some(Err(error)) if is_wait(&error) => assert!(start.elapsed().as_secs() < 60, "for ever"),
            done => return done,
        }
    }
}

fn next(ws: &mut WebSocket<End>) -> Message {
    insist(|| ws.next()).expect("still open").expect("in order")
}

#[test]
fn single_message_leaves_at_once() {
    let (mut client, mut server) = pair(&Config::default(), 1 << 20, None);
    for n in 1..=3 {
        client.send(text(n)).unwrap();
        assert_eq!(client.get_ref().outgoing.borrow().writes, n);
    }
    client.send_text("lent").unwrap();
    client.send_binary(b"lent").unwrap();
    for n in 1..=3 {
        assert_eq!(server.next().unwrap().unwrap(), text(n));
    }
    assert_eq!(server.next_borrowed().unwrap().unwrap().payload(), b"lent");
    assert_eq!(server.next().unwrap().unwrap(), Message::binary("lent"));
    assert!(waits(&mut server));
}

#[test]
fn large_messages_are_read_in_large_chunks_up_to_their_end() {
    let (mut client, mut server) = pair(&Config::default(), 8 << 20, None);
    let message = |len: usize, first: u8| -> Vec<u8> {
        (0..len).map(|place| (place as u8).wrapping_mul(31).wrapping_add(first)).collect()
    };
    let sizes = [1_000_000, 300_000, 10, 2_500_000, 200_000];
    for (number, size) in sizes.into_iter().enumerate() {
        server.send(Message::binary(message(size, number as u8))).unwrap();
    }
    for (number, size) in sizes.into_iter().enumerate() {
        let received = client.next_borrowed().unwrap().unwrap();
        assert!(received.payload() == message(size, number as u8), "message {number} of {size} bytes");
    }
}

/// Replies of a burst leave after a millisecond at the latest, so an attempt counts only if this thread was not
/// delayed for so long.
fn undisturbed<T>(mut burst: impl FnMut() -> T) -> T {
    for _ in 0..1_000 {
        let begun = Instant::now();
        let outcome = burst();
        if begun.elapsed() < Duration::from_millis(1) {
            return outcome;
        }
    }
    panic!("this thread is always delayed for over a millisecond");
}

#[test]
fn replies_to_a_burst_leave_in_one_write() {
    const BURST: usize = 20;
    let (mut client, mut server) = pair(&Config::default(), 1 << 20, None);
    for n in 0..BURST {
        client.feed(text(n)).unwrap();
    }
    client.flush().unwrap();
    assert_eq!(client.get_ref().outgoing.borrow().writes, 1, "so do fed messages");
    let writes = undisturbed(|| {
        let before = client.get_ref().incoming.borrow().writes;
        for n in 0..BURST {
            let message = server.next().unwrap().unwrap();
            assert_eq!(message, text(n));
            server.send(message).unwrap();
        }
        // Without another call of `next`: the last reply knows that it is the last.
        let writes = client.get_ref().incoming.borrow().writes - before;
        for n in 0..BURST {
            assert_eq!(client.next().unwrap().unwrap(), text(n));
            client.feed(text(n)).unwrap();
        }
        client.flush().unwrap();
        writes
    });
    assert_eq!(writes, 1);
}

/// Behind the last whole message of a burst is part of another: replies do not wait for it.
#[test]
fn incomplete_message_does_not_delay_replies() {
    let bytes = wire(&[Frame::text("one"), Frame::text("two"), Frame::text("three")]);
    let (writes, sent_frames) = undisturbed(|| {
        let (mut server, to, from) = against_bytes(Role::Server, &Config::default());
        to.borrow_mut().bytes.extend(&bytes[..bytes.len() - 1]);
        for _ in 0..2 {
            let message = server.next().unwrap().unwrap();
            server.send(message).unwrap();
        }
        let writes = from.borrow().writes;
        (writes, sent_frames(Role::Server, &from))
    });
    assert_eq!(writes, 1);
    assert_eq!(sent_frames, [SentFrame::text("one"), SentFrame::text("two")]);
}

#[test]
fn queued_bytes_leave_before_a_read() {
    let (mut client, _, from) = against_bytes(Role::Client, &Config::default());
    client.feed("fed").unwrap();
    assert_eq!(client.try_send("tried").unwrap(), Sent::Queued);
    assert_eq!(from.borrow().writes, 0);
    assert!(waits(&mut client));
    assert_eq!(from.borrow().writes, 1);
    assert_eq!(sent_frames(Role::Client, &from), [SentFrame::text("fed"), SentFrame::text("tried")]);
}

#[test]
fn ping_is_answered_without_a_send() {
    let (mut server, to, from) = against_bytes(Role::Server, &Config::default());
    to.borrow_mut().bytes.extend(wire(&[Frame::ping("1"), Frame::ping("2")]));
    assert_eq!(server.next().unwrap().unwrap(), Message::Ping("1".into()));
    assert_eq!(server.next().unwrap().unwrap(), Message::Ping("2".into()));
    // Before the application handles it.
    assert_eq!(
        sent_frames(Role::Server, &from),
        [SentFrame::Pong(b"1".to_vec()), SentFrame::Pong(b"2".to_vec())]
    );
    assert_eq!(from.borrow().writes, 1);
}

#[test]
fn would_block_at_every_byte_loses_nothing() {
    let (mut server, to, _) = against_bytes(Role::Server, &Config::default());
    let (mut bytes, mut expected, mut heard) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..40 {
        let payload = "x".repeat(n * 7);
        bytes.extend(wire(&[Frame::text(&payload).fin(false), Frame::ping("p"), Frame::continuation("")]));
        expected.extend([Message::Ping("p".into()), Message::text(payload)]);
    }
    for byte in bytes {
        to.borrow_mut().bytes.push_back(byte);
        loop {
            match server.next().expect("still open") {
                Ok(message) => heard.push(message),
                Err(error) if is_wait(&error) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert_eq!(heard, expected);
}

/// Both ends block, are interrupted, and pass one byte or several, on a link that is mostly full.
#[test]
fn unreliable_streams_preserve_messages_and_order() {
    for seed in 0..9 {
        let config = Config::default().with_high_water(1000);
        let (mut client, mut server) = pair(&config, 37 + 400 * (seed as usize % 3), Some(seed));
        let (mut sent, mut echoed, mut heard) = (0, None::<Message>, 0);
        let size = |n: usize| if n % 50 == 49 { 70_000 } else { n * 13 % 300 };
        let message = |n: usize| Message::binary(vec![n as u8; size(n)]);
        while heard < 150 {
            // Two ends that both send more than the other reads would wait for each other.
            let under_way: usize = (heard..sent).map(size).sum();
            if sent < 150 && (heard == sent || under_way + size(sent) < 900) {
                match client.send(message(sent)) {
                    Ok(()) => sent += 1,
                    Err(error) => assert!(is_wait(&error), "{error}"),
                }
            }
            if echoed.is_none() {
                echoed = match server.next().expect("still open") {
                    Ok(message) => Some(message),
                    Err(error) => {
                        assert!(is_wait(&error), "{error}");
                        None
                    }
                };
            }
            if let Some(message) = echoed.take()
                && let Err(error) = server.send(message.clone())
            {
                assert!(is_wait(&error), "{error}");
                echoed = Some(message);
            }
            match client.next().expect("still open") {
                Ok(back) => {
                    assert_eq!(back, message(heard), "seed {seed}");
                    heard += 1;
                }
                Err(error) => assert!(is_wait(&error), "{error}"),
            }
        }
    }
}

#[test]
fn unsent_bytes_leave_with_a_later_call() {
    let (client, mut server) = link(10, None);
    let outgoing = client.outgoing.clone();
    let config = Arc::new(Config::default().with_high_water(100));
    let mut client = WebSocket::from_negotiated(client, negotiate(None, None).client, config, &[]);
    client.send_binary(&[7; 150]).expect("queued");
    assert_eq!(outgoing.borrow().bytes.len(), 10);
    assert!(is_wait(&client.flush().expect_err("partly sent")));
    assert!(is_wait(&client.send("more").expect_err("queue is full")));
    let mut bytes = Vec::new();
    while client.flush().is_err() {
        let mut part = [0; 10];
        let count = server.read(&mut part).expect("something");
        bytes.extend_from_slice(&part[..count]);
    }
    bytes.extend(outgoing.borrow_mut().bytes.drain(..));
    let heard = Reader::new(Role::Client, None).read(&bytes).expect("sound");
    assert_eq!(heard, [SentFrame::binary([7; 150])], "without the rejected message");
    client.send("more").expect("capacity again");
}

#[test]
fn either_side_can_close() {
    for client_first in [true, false] {
        for seed in 0..20 {
            let (mut client, mut server) = pair(&Config::default(), 64, Some(seed));
            let ends = if client_first { [&mut client, &mut server] } else { [&mut server, &mut client] };
            let [closing, other] = ends;
            closing.send("last").unwrap();
            closing.start_close(CloseCode::NORMAL, "done").unwrap();
            assert!(matches!(
                closing.start_close(CloseCode::NORMAL, "again"),
                Err(Error::Misuse(Misuse::Closing))
            ));
            let mut heard = Vec::new();
            let (mut over, mut closed) = (false, false);
            while !over || !closed {
                for (ws, done) in [(&mut *other, &mut over), (&mut *closing, &mut closed)] {
                    match ws.next() {
                        Some(Ok(message)) => heard.push(message),
                        Some(Err(error)) => assert!(is_wait(&error), "{error}"),
                        None if !*done => {
                            *done = true;
                            // The stream is dropped.
                            ws.get_ref().outgoing.borrow_mut().ended = true;
                        }
                        None => {}
                    }
                }
            }
            let [Message::Text(last), Message::Close(Some(frame)), Message::Close(_)] = &heard[..] else {
                panic!("{heard:?}")
            };
            assert_eq!((last.as_str(), frame.code(), frame.reason()), ("last", CloseCode::NORMAL, "done"));
            assert_eq!(other.closed().unwrap().cause(), Cause::Peer);
            assert_eq!(closing.closed().unwrap().cause(), Cause::Local);
            assert!(other.send("late").is_err());
        }
    }
}

#[test]
fn server_with_shutdown_reads_until_the_end() {
    let (server, to, from) = against_bytes(Role::Server, &Config::default());
    let mut server = server.with_shutdown(|end| {
        end.outgoing.borrow_mut().ended = true;
        Ok(())
    });
    to.borrow_mut().bytes.extend(wire(&[Frame::close(1000, "")]));
    assert!(matches!(server.next(), Some(Ok(Message::Close(_)))));
    assert!(waits(&mut server), "the client has not ended its side");
    assert!(from.borrow().ended);
    assert_eq!(sent_frames(Role::Server, &from), [SentFrame::Close(Some(1000), String::new())]);
    to.borrow_mut().ended = true;
    assert!(server.next().is_none());
    assert_eq!(server.closed().unwrap().cause(), Cause::Peer);
}

#[test]
fn errors_are_returned_once() {
    // The transport ends without a Close.
    let (mut server, to, _) = against_bytes(Role::Server, &Config::default());
    to.borrow_mut().bytes.extend(&wire(&[Frame::text("cut")])[..5]);
    to.borrow_mut().ended = true;
    assert!(matches!(server.next(), Some(Err(Error::Closed(closed))) if closed.cause() == Cause::Ended));
    assert!(server.next().is_none());
    assert!(server.next_borrowed().is_none());

    // It accepts no more bytes; input of the peer is still read.
    let (mut server, to, from) = against_bytes(Role::Server, &Config::default());
    from.borrow_mut().ended = true;
    to.borrow_mut().bytes.extend(wire(&[Frame::text("heard")]));
    let sent = server.send("lost");
    assert!(matches!(sent, Err(Error::Io(error)) if error.kind() == ErrorKind::BrokenPipe));
    assert_eq!(server.next().unwrap().unwrap(), Message::text("heard"));

    // The peer violates the protocol, and gets a Close.
    let (mut server, to, from) = against_bytes(Role::Server, &Config::default());
    to.borrow_mut().bytes.extend(wire(&[Frame::text("in clear").unmasked()]));
    match server.next() {
        Some(Err(Error::Closed(closed))) => {
            assert_eq!(closed.cause(), Cause::Fault(PeerMisbehaved::UnmaskedFrame));
        }
        other => panic!("{other:?}"),
    }
    assert!(server.next().is_none());
    assert_eq!(sent_frames(Role::Server, &from)[0].close_code(), Some(1002));
}

/// A stream that returns scripted results.
struct ScriptedStream {
    read: fn(&mut [u8]) -> io::Result<usize>,
    write: fn(&[u8]) -> io::Result<usize>,
}

impl Read for ScriptedStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (self.read)(buf)
    }
}

impl Write for ScriptedStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        (self.write)(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn scripted(
    read: fn(&mut [u8]) -> io::Result<usize>,
    write: fn(&[u8]) -> io::Result<usize>,
) -> WebSocket<ScriptedStream> {
    let negotiated = negotiate(None, None).client;
    WebSocket::from_negotiated(ScriptedStream { read, write }, negotiated, Arc::default(), &[])
}

#[test]
fn misbehaving_streams_end_the_connection() {
    let wait = |_: &mut [u8]| Err(ErrorKind::WouldBlock.into());
    let all = |buf: &[u8]| Ok(buf.len());
    let mut ws = scripted(|_| Err(ErrorKind::ConnectionReset.into()), all);
    assert!(matches!(ws.next(), Some(Err(Error::Io(error))) if error.kind() == ErrorKind::ConnectionReset));
    assert!(ws.next().is_none());

    let mut ws = scripted(wait, |_| Ok(0));
    assert!(matches!(ws.send("a"), Err(Error::Io(error)) if error.kind() == ErrorKind::WriteZero));

    // More than the buffer holds: the count is not trusted, and causes no panic.
    let mut ws = scripted(|buf| Ok(buf.len() + 1), |buf| Ok(buf.len() + 1));
    ws.send("a").unwrap();
    assert!(matches!(ws.next(), Some(Err(Error::Closed(_)))));
}

/// A peer that no longer responds is not an expired read timeout.
#[cfg(target_os = "linux")]
#[test]
fn a_dead_peer_ends_the_connection() {
    const ETIMEDOUT: i32 = 110;
    let mut ws = scripted(|_| Err(io::Error::from_raw_os_error(ETIMEDOUT)), |buf| Ok(buf.len()));
    match ws.next() {
        Some(Err(error @ Error::Io(_))) => assert!(error.is_fatal()),
        other => panic!("{other:?}"),
    }
    assert!(ws.next().is_none());
}

#[test]
fn deadlines_are_executed_when_reads_time_out() {
    let moment = Duration::from_micros(1);
    let long = Duration::from_secs(3600);

    // A ping without a pong.
    let config = Config::default().with_ping_interval(Some(moment)).with_pong_timeout(moment);
    let (mut client, _, from) = against_bytes(Role::Client, &config);
    let closed = match insist(|| client.next()) {
        Some(Err(Error::Closed(closed))) => closed,
        other => panic!("{other:?}"),
    };
    assert_eq!(closed.cause(), Cause::Expired(Expired::Pong));
    let sent_frames = sent_frames(Role::Client, &from);
    assert!(
        matches!(&sent_frames[..], [SentFrame::Ping(_), SentFrame::Close(Some(1011), _)]),
        "{sent_frames:?}"
    );
    assert!(insist(|| client.next()).is_none());

    // No input.
    let config = Config::default().with_ping_interval(None).with_idle_timeout(Some(moment));
    let (mut client, _, _) = against_bytes(Role::Client, &config);
    assert!(
        matches!(insist(|| client.next()), Some(Err(Error::Closed(closed))) if closed.cause() == Cause::Expired(Expired::Idle))
    );

    // Bytes are not accepted.
    let config = Config::default().with_write_timeout(moment).with_idle_timeout(Some(long));
    let (mut client, mut server) = pair(&config, 5, None);
    assert_eq!(client.try_send("more than fits").expect("queued"), Sent::Queued);
    let stalled = insist(|| Some(client.flush())).expect("returned");
    assert!(
        matches!(stalled, Err(Error::Closed(closed)) if closed.cause() == Cause::Expired(Expired::Write))
    );
    assert!(server.get_mut().read(&mut [0; 9]).is_ok());

    // No reply to our Close, and no end.
    let config = Config::default().with_close_timeout(moment);
    let (mut client, _, _) = against_bytes(Role::Client, &config);
    let closed = insist(|| Some(client.close(CloseCode::NORMAL, ""))).expect("returned");
    assert!(
        matches!(&closed, Err(Error::Closed(closed)) if closed.cause() == Cause::Expired(Expired::Close)),
        "{closed:?}"
    );
}

/// Unread input in the transport is not silence, regardless of the caller's absence.
#[test]
fn absent_caller_reads_before_deadlines_are_executed() {
    let moment = Duration::from_micros(1);
    let config = Config::default()
        .with_idle_timeout(Some(moment))
        .with_write_timeout(moment)
        .with_ping_interval(Some(Duration::from_secs(3600)));
    let (mut server, to, from) = against_bytes(Role::Server, &config);
    to.borrow_mut().bytes.extend(wire(&[Frame::text("one")]));
    assert_eq!(server.next().unwrap().unwrap(), Message::text("one"));
    server.feed("queued long ago").unwrap();
    to.borrow_mut().bytes.extend(wire(&[Frame::text("two")]));
    let away = Instant::now();
    while away.elapsed() < 10 * moment {}
    server.flush().unwrap();
    assert_eq!(server.next().unwrap().unwrap(), Message::text("two"));
    assert_eq!(sent_frames(Role::Server, &from), [SentFrame::text("queued long ago")]);
}

/// A peer that sends endlessly does not keep a closing connection open.
#[test]
fn close_completes_although_the_peer_never_stops_sending() {
    let negotiated = negotiate(None, None).client;
    let config = Config::default().with_close_timeout(Duration::from_micros(1));
    let talk = |buf: &mut [u8]| (&b"\x82\x00"[..]).read(buf);
    let stream = ScriptedStream { read: talk, write: |buf| Ok(buf.len()) };
    let mut client = WebSocket::from_negotiated(stream, negotiated, Arc::new(config), &[]);
    let closed = client.close(CloseCode::NORMAL, "");
    assert!(
        matches!(&closed, Err(Error::Closed(closed)) if closed.cause() == Cause::Expired(Expired::Close)),
        "{closed:?}"
    );
}

/// A stream within a WebSocket, which is read during another read.
struct Tunnel {
    outer: WebSocket<End>,
    rest: VecDeque<u8>,
}

impl Read for Tunnel {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.outer.next() {
                Some(Ok(Message::Binary(bytes))) => self.rest.extend(bytes),
                Some(Ok(_)) => {}
                Some(Err(Error::Io(error))) => return Err(error),
                Some(Err(error)) => return Err(io::Error::other(error)),
                None => return Ok(0),
            }
        }
        self.rest.read(buf)
    }
}

impl Write for Tunnel {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.outer.send_binary(buf).map_err(io::Error::other)?;
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn websocket_runs_inside_a_websocket() {
    let (client, server) = pair(&Config::default(), 1 << 20, None);
    let agreed = negotiate(None, None);
    let tunnel = |outer| Tunnel { outer, rest: VecDeque::new() };
    let mut client = WebSocket::from_negotiated(tunnel(client), agreed.client, Arc::default(), &[]);
    let mut server = WebSocket::from_negotiated(tunnel(server), agreed.server, Arc::default(), &[]);
    for n in 0..3 {
        client.send(text(n)).unwrap();
        assert_eq!(server.next().unwrap().unwrap(), text(n));
    }
}

/// The request of RFC 6455 section 1.3.
const REQUEST: &str = "GET /chat HTTP/1.1\r\nHost: server.example.com\r\nUpgrade: websocket\r\n\
     Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
     Sec-WebSocket-Protocol: chat\r\nSec-WebSocket-Version: 13\r\n\r\n";

#[test]
fn handshake_byte_by_byte_keeps_the_bytes_behind_it() {
    for seed in [None, Some(3)] {
        let (client, server) = link(1 << 20, seed);
        let mut bytes = REQUEST.as_bytes().to_vec();
        bytes.extend(wire(&[Frame::text("early")]));
        client.outgoing.borrow_mut().bytes.extend(bytes);
        let (mut ws, request) = accept(server)
            .subprotocols(["v2", "chat"])
            .on_request(|request| {
                assert_eq!(request.path(), "/chat");
                Ok(Reply::new().with_header("X-Room", "7"))
            })
            .open()
            .expect("accepted");
        assert_eq!((request.header("host"), ws.subprotocol()), (Some("server.example.com"), Some("chat")));
        let answer: Vec<u8> = client.incoming.borrow_mut().bytes.drain(..).collect();
        let answer = String::from_utf8(answer).expect("a head");
        assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
        assert!(answer.contains("\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"));
        assert!(answer.contains("\r\nX-Room: 7\r\n") && answer.ends_with("\r\n\r\n"));
        assert_eq!(next(&mut ws), Message::text("early"));
    }
}

#[test]
fn rejected_requests_get_a_response() {
    let (client, server) = link(1 << 20, None);
    client.outgoing.borrow_mut().bytes.extend(REQUEST.as_bytes());
    let rejected = accept(server).on_request(|_| Err(Reject::new(403).with_body("not you"))).open();
    assert_eq!(rejected.expect_err("refused").status(), Some(403));
    let answer: Vec<u8> = client.incoming.borrow_mut().bytes.drain(..).collect();
    assert!(answer.starts_with(b"HTTP/1.1 403 ") && answer.ends_with(b"\r\n\r\nnot you"));

    // A client that disconnects, a silent client, and a client that sends a non-WebSocket request.
    let (client, server) = link(1 << 20, None);
    client.outgoing.borrow_mut().bytes.extend(b"GET");
    client.outgoing.borrow_mut().ended = true;
    assert!(matches!(accept(server).open(), Err(AcceptError::ClientLeft { received: 3 })));
    let (_client, server) = link(1 << 20, None);
    let silent = accept(server).timeout(Duration::from_millis(2)).open();
    assert!(matches!(silent, Err(AcceptError::TimedOut(sinews::server::AcceptPhase::Head))));
    let (client, server) = link(1 << 20, None);
    client.outgoing.borrow_mut().bytes.extend(b"SSH-2.0-OpenSSH\r\n\r\n");
    assert!(matches!(accept(server).open(), Err(AcceptError::Head(_))));
}

#[test]
fn silent_server_times_out() {
    let (client, _server) = link(1 << 20, None);
    let opened = connect("ws://example.com/").timeout(Duration::from_millis(2)).over(client).open();
    assert!(matches!(opened, Err(ConnectError::TimedOut { phase: ConnectPhase::Handshake, .. })));
    let (client, server) = link(1 << 20, None);
    server.outgoing.borrow_mut().ended = true;
    let opened = connect("ws://example.com/").over(client).open();
    match opened {
        Err(ConnectError::Transport { error, .. }) => assert_eq!(error.kind(), ErrorKind::UnexpectedEof),
        other => panic!("{other:?}"),
    }
}

/// A rejection with a body without an end: its received part is returned after a second of silence, or, here, when
/// the server ends.
#[test]
fn rejection_includes_its_body() {
    let (client, server) = link(1 << 20, Some(5));
    let answer = b"HTTP/1.1 403 Forbidden\r\nX-Why: a\r\n\r\nnot today";
    server.outgoing.borrow_mut().bytes.extend(answer);
    server.outgoing.borrow_mut().ended = true;
    match connect("ws://example.com/").over(client).open() {
        Err(ConnectError::Rejected(response)) => {
            assert_eq!((response.status().as_u16(), response.body()), (403, &b"not today"[..]));
        }
        other => panic!("{other:?}"),
    }
}

/// Serves an echo on its own thread for one connection; returns how the connection ended.
fn serve<S: Read + Write + 'static>(
    open: impl FnOnce(TcpStream) -> S + Send + 'static,
    shutdown: Option<fn(&mut S) -> io::Result<()>>,
) -> (u16, JoinHandle<sinews::Closed>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let serving = thread::spawn(move || {
        let (tcp, _) = listener.accept().expect("a client");
        bounded(&tcp);
        let accept = accept(open(tcp)).subprotocols(["echo"]);
        let accepted = match shutdown {
            Some(shutdown) => accept.open_with_shutdown(shutdown),
            None => accept.open(),
        };
        let (mut ws, _) = accepted.expect("accepted");
        while let Some(message) = ws.next() {
            let message = message.expect("in order");
            if message.is_data() {
                ws.send(message).expect("sent");
            }
        }
        ws.closed().expect("over").clone()
    });
    (port, serving)
}

/// Sets timeouts, so that no test hangs.
fn bounded(tcp: &TcpStream) {
    tcp.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
    tcp.set_write_timeout(Some(Duration::from_secs(60))).expect("a socket");
}

fn echoes<S: Read + Write>(ws: &mut WebSocket<S>) {
    let messages =
        [Message::text("grün"), Message::binary(vec![]), Message::binary(vec![0xa5; 1_000_000]), text(4)];
    for message in messages {
        // In chunks that both sockets can hold: a thread that blocks in a write does not read.
        ws.send(message.clone()).expect("sent");
        assert_eq!(ws.next().expect("still open").expect("in order"), message);
    }
}

#[test]
fn loopback_with_a_thread_per_end_echoes() {
    for with_shutdown in [false, true] {
        let (port, serving) = match with_shutdown {
            true => serve(|tcp| tcp, Some(|tcp: &mut TcpStream| tcp.shutdown(Shutdown::Write))),
            false => serve(|tcp| tcp, None),
        };
        let tcp = TcpStream::connect(("127.0.0.1", port)).expect("connected");
        bounded(&tcp);
        let (mut ws, response) =
            connect("ws://localhost/").subprotocol("echo").over(tcp).open().expect("opened");
        assert_eq!((response.status().as_u16(), ws.subprotocol()), (101, Some("echo")));
        echoes(&mut ws);
        let closed = ws.close(CloseCode::NORMAL, "bye").expect("in order");
        assert_eq!((closed.cause(), closed.code()), (Cause::Local, Some(CloseCode::NORMAL)));
        // The server waits for the end of our side.
        drop(ws);
        let closed = serving.join().expect("no panic");
        assert_eq!((closed.cause(), closed.reason()), (Cause::Peer, "bye"));
    }
}

/// A read of a real socket times out in the middle of a frame, and the connection continues.
#[test]
fn socket_continues_after_a_read_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut peer = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    let (tcp, _) = listener.accept().expect("a client");
    tcp.set_read_timeout(Some(Duration::from_millis(1))).expect("a socket");
    let mut ws = WebSocket::from_negotiated(tcp, negotiate(None, None).server, Arc::default(), &[]);
    let bytes = wire(&[Frame::text("cut in two")]);
    peer.write_all(&bytes[..7]).expect("written");
    let error = ws.next().expect("still open").expect_err("only half a frame");
    assert!(is_wait(&error) && !error.is_fatal(), "{error:?}");
    peer.write_all(&bytes[7..]).expect("written");
    assert_eq!(insist(|| ws.next()).expect("still open").expect("in order"), Message::text("cut in two"));
}

#[test]
fn rejected_client_that_keeps_sending_reads_the_response() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut client = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    bounded(&client);
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("written");
    client.write_all(&[b'x'; 100_000]).expect("written");
    let serving = thread::spawn(move || {
        let (tcp, _) = listener.accept().expect("a client");
        bounded(&tcp);
        accept(tcp).open_with_shutdown(|tcp| tcp.shutdown(Shutdown::Write)).map(drop)
    });
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("no reset");
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    drop(client);
    assert!(matches!(serving.join().expect("no panic"), Err(AcceptError::Rejected(_))));
}

#[cfg(feature = "url-connect")]
#[test]
fn connect_opens_a_socket_for_a_url() {
    let (port, serving) = serve(|tcp| tcp, None);
    let (mut ws, _) = connect(format!("ws://localhost:{port}/")).open().expect("opened");
    assert_eq!(ws.get_ref().tcp().read_timeout().expect("a socket"), None);
    echoes(&mut ws);
    ws.close(CloseCode::NORMAL, "").expect("in order");
    serving.join().expect("no panic");

    let error = connect("ws://127.0.0.1:1/").open().expect_err("no listener");
    assert!(matches!(error, ConnectError::Tcp { .. }), "{error:?}");
}

#[test]
fn end_at_close_does_not_wait_for_the_end_of_tcp() {
    let config = Config::default().with_end_at_close(true);
    for role in [Role::Server, Role::Client] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut raw = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
        let (stream, _) = listener.accept().expect("a client");
        // A read that waits for the end of TCP is an error.
        bounded(&stream);
        bounded(&raw);
        let mut ws =
            WebSocket::from_negotiated(stream, Negotiated::websocket(role), Arc::new(config.clone()), &[])
                .with_shutdown(|tcp| tcp.shutdown(Shutdown::Write));
        let peer = if role == Role::Server { Role::Client } else { Role::Server };
        raw.write_all(&Frame::close(1000, "done").encode(peer)).expect("written");
        assert!(ws.next().expect("a Close").expect("sound").is_close());
        assert!(ws.next().is_none());
        let mut answer = Vec::new();
        raw.read_to_end(&mut answer).expect("no reset");
        assert_eq!(answer[0], 0x88);
    }
}

#[test]
fn websocket_runs_over_tls_streams() {
    use rustls::{ClientConnection, ServerConnection, StreamOwned};

    let certificate = TestCertificate::new();
    let config = certificate.server_config();
    let (port, serving) = serve(
        move |tcp| StreamOwned::new(ServerConnection::new(Arc::new(config)).expect("a configuration"), tcp),
        Some(|tls: &mut StreamOwned<ServerConnection, TcpStream>| {
            tls.conn.send_close_notify();
            tls.flush()
        }),
    );
    let name = "localhost".try_into().expect("a name");
    let tcp = TcpStream::connect(("127.0.0.1", port)).expect("connected");
    bounded(&tcp);
    let tls = ClientConnection::new(Arc::new(certificate.client_config()), name).expect("a configuration");
    let opened = connect("wss://localhost/").over(StreamOwned::new(tls, tcp)).open();
    let (mut ws, _) = opened.expect("opened");
    let info = ws.tls_info().expect("encrypted");
    assert_eq!((info.version, info.peer_certificates.len()), (Some("TLSv1.3"), 1));
    echoes(&mut ws);
    ws.close(CloseCode::NORMAL, "").expect("in order");
    drop(ws);
    assert_eq!(serving.join().expect("no panic").cause(), Cause::Peer);
}

#[test]
fn close_now_sends_queued_messages_and_close_without_waiting_for_the_peer() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut raw = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (io, _) = listener.accept().unwrap();
    bounded(&io);
    bounded(&raw);
    let socket = WebSocket::from_negotiated(io, negotiate(None, None).server, Arc::default(), &[]);
    let mut socket = socket.with_shutdown(|stream| stream.shutdown(Shutdown::Write));
    socket.feed("last").unwrap();
    socket.close_now(CloseCode::GOING_AWAY, "").unwrap();
    let mut received = Vec::new();
    raw.read_to_end(&mut received).unwrap();
    // The message, and a Close of a server with code 1001 and no reason.
    assert_eq!(received, b"\x81\x04last\x88\x02\x03\xe9");
    assert_eq!(socket.closed().map(|closed| closed.status()), Some(1001));
    assert!(socket.next().is_none());
    let _: Result<(), Error> = socket.close_now(CloseCode::GOING_AWAY, "");
}
