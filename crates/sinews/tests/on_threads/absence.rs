//! Timeouts of a connection whose thread does not call it for a while, on blocking streams with short timeouts.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sinews::blocking::WebSocket;
use sinews::{Cause, CloseCode, Config, Error, Expired, Message, Role};
use sinews_testkit::{Frame, negotiate};

/// Long enough for a loaded machine to respond in time; short, since the test waits for it in real time.
const IDLE: Duration = Duration::from_millis(100);

/// Input of the peer; a read without input waits briefly and times out.
#[derive(Clone, Default)]
struct Peer {
    bytes: Rc<RefCell<VecDeque<u8>>>,
    read_timeout: Duration,
}

impl Peer {
    fn send(&self, frame: Frame) {
        self.bytes.borrow_mut().extend(frame.encode(Role::Client));
    }
}

impl Read for Peer {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.bytes.borrow_mut().read(buf) {
            Ok(0) => {
                pass(self.read_timeout);
                Err(ErrorKind::WouldBlock.into())
            }
            read => read,
        }
    }
}

impl Write for Peer {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Waits in real time.
fn pass(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
}

fn without_pings() -> Config {
    Config::default().with_ping_interval(None).with_idle_timeout(Some(IDLE))
}

fn socket_and_peer(config: Config, read_timeout: Duration) -> (WebSocket<Peer>, Peer) {
    let peer = Peer { read_timeout, ..Peer::default() };
    let negotiated = negotiate(None, None).server;
    (WebSocket::from_negotiated(peer.clone(), negotiated, Arc::new(config), &[]), peer)
}

fn expired(end: Option<Result<Message, Error>>) -> Option<Expired> {
    match end {
        Some(Err(Error::Closed(closed))) => match closed.cause() {
            Cause::Expired(wait) => Some(wait),
            cause => panic!("{cause:?}"),
        },
        Some(Err(Error::Io(error))) if error.kind() == ErrorKind::WouldBlock => None,
        end => panic!("{end:?}"),
    }
}

#[test]
fn reply_to_a_request_after_idle_timeout_is_delivered() {
    let pings = without_pings().with_ping_interval(Some(IDLE / 4)).with_pong_timeout(IDLE * 100);
    for config in [pings, without_pings()] {
        let (mut socket, peer) = socket_and_peer(config, Duration::ZERO);
        for requests in [1, 1, 2] {
            for _ in 0..requests {
                socket.send("request").unwrap();
            }
            assert_eq!(expired(socket.next()), None, "no reply yet");
            peer.send(Frame::text("reply"));
            assert_eq!(socket.next().unwrap().unwrap(), Message::text("reply"));
            pass(IDLE * 3 / 2);
        }
    }
}

#[test]
fn caller_that_returns_waits_idle_timeout_again() {
    let (mut socket, peer) = socket_and_peer(without_pings(), Duration::ZERO);
    pass(IDLE * 3 / 2);
    assert_eq!(expired(socket.next()), None, "the caller was absent");
    peer.send(Frame::text("late"));
    assert_eq!(socket.next().unwrap().unwrap(), Message::text("late"));
}

#[test]
fn reads_that_time_out_notice_idle_timeout() {
    let (mut socket, _peer) = socket_and_peer(without_pings(), IDLE * 3 / 4);
    let began = Instant::now();
    let end = loop {
        if let Some(end) = expired(socket.next()) {
            break end;
        }
        assert!(began.elapsed() < IDLE * 600, "the connection stays open");
    };
    assert_eq!(end, Expired::Idle);
}

#[test]
fn messages_received_before_close_timeout_are_read_after_absence() {
    const MESSAGES: usize = 20;
    let (mut socket, peer) = socket_and_peer(without_pings().with_close_timeout(IDLE), Duration::ZERO);
    socket.start_close(CloseCode::NORMAL, "").unwrap();
    socket.flush().unwrap();
    for _ in 0..MESSAGES {
        peer.send(Frame::binary(vec![7; 30_000]));
    }
    peer.send(Frame::close(1000, ""));
    pass(IDLE * 3 / 2);
    let mut messages = 0;
    loop {
        match socket.next() {
            Some(Ok(Message::Binary(_))) => messages += 1,
            Some(Ok(Message::Close(_))) => break,
            end => panic!("after {messages} messages: {end:?}"),
        }
    }
    assert_eq!(messages, MESSAGES);
}
