//! A connection on compio: when bytes leave and in how many operations, cancellation, and the end.

use std::cell::Cell;
use std::io;
use std::num::NonZero;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use compio::buf::{BufResult, IoBuf, IoBufMut, IoVectoredBuf};
use compio::driver::ProactorBuilder;
use compio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use compio::net::UnixStream;
use compio::runtime::{CancelToken, FutureExt as _, Runtime, RuntimeBuilder};
use sinews::compio::{Transport, WebSocket};
use sinews::{
    AtFault, Cause, CloseCode, Config, Error, Expired, Message, Misuse, Negotiated, Overflow, Role, Sent,
};
use sinews_testkit::{Frame, negotiate};

/// Runs on compio, with this many managed buffers; prints a note on machines without io_uring.
fn run_with<F: Future<Output = ()>>(buffers: u16, test: impl FnOnce() -> F) {
    let mut proactor = ProactorBuilder::new();
    proactor.buffer_pool_size(NonZero::new(buffers).unwrap()).single_issuer(true).defer_taskrun(true);
    match RuntimeBuilder::new().with_proactor(proactor).build() {
        Ok(runtime) => runtime.block_on(async {
            compio::time::timeout(Duration::from_secs(60), test()).await.expect("bounded in time");
        }),
        Err(error) => println!("skipped: no runtime: {error}"),
    }
}

fn run<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    run_with(64, test);
}

type End = WebSocket<UnixStream>;

fn sockets() -> (UnixStream, UnixStream) {
    let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
    (UnixStream::from_std(one).unwrap(), UnixStream::from_std(other).unwrap())
}

fn pair_with(config: &Config) -> (End, End) {
    let agreed = negotiate(None, None);
    let (client, server) = sockets();
    let config = Arc::new(config.clone());
    (
        WebSocket::from_negotiated(client, agreed.client, config.clone(), &[]),
        WebSocket::from_negotiated(server, agreed.server, config, &[]),
    )
}

fn pair() -> (End, End) {
    pair_with(&Config::default())
}

/// A server against a raw peer.
fn server_and_raw(config: &Config) -> (End, UnixStream) {
    let (raw, server) = sockets();
    let negotiated = negotiate(None, None).server;
    (WebSocket::from_negotiated(server, negotiated, Arc::new(config.clone()), &[]), raw)
}

/// A writer that counts the operations.
#[derive(Clone)]
struct Counted<S>(S, Rc<Cell<usize>>);

impl<S: AsyncWrite> AsyncWrite for Counted<S> {
    async fn write<T: IoBuf>(&mut self, buf: T) -> BufResult<usize, T> {
        self.1.set(self.1.get() + 1);
        self.0.write(buf).await
    }

    async fn write_vectored<T: IoVectoredBuf>(&mut self, buf: T) -> BufResult<usize, T> {
        self.1.set(self.1.get() + 1);
        self.0.write_vectored(buf).await
    }

    async fn flush(&mut self) -> io::Result<()> {
        self.0.flush().await
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        self.0.shutdown().await
    }
}

/// A reader that returns a few bytes at a time.
struct ShortReads<S>(S, usize);

impl<S: AsyncRead> AsyncRead for ShortReads<S> {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        use compio::buf::IntoInner as _;
        let start = buf.buf_len();
        let slice = buf.slice(start..start + self.1);
        self.0.read(slice).await.into_inner()
    }
}

type CountedEnd = WebSocket<(UnixStream, Counted<UnixStream>)>;

/// A server with counted sends.
fn counting_pair() -> (End, CountedEnd, Rc<Cell<usize>>) {
    let agreed = negotiate(None, None);
    let (client, server) = sockets();
    let config = Arc::new(Config::default());
    let writes = Rc::new(Cell::new(0));
    let halves = (server.clone(), Counted(server, writes.clone()));
    (
        WebSocket::from_negotiated(client, agreed.client, config.clone(), &[]),
        WebSocket::from_negotiated(halves, agreed.server, config, &[]),
        writes,
    )
}

fn text(n: usize) -> Message {
    Message::text(format!("message {n}"))
}

/// Frames of a client, as bytes.
fn wire(frames: &[Frame]) -> Vec<u8> {
    frames.iter().flat_map(|frame| frame.encode(Role::Client)).collect()
}

/// Polls a future once, then drops it.
fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Yields to the runtime, so that operations complete: bytes go through the kernel and back.
async fn turn() {
    let (mut one, mut other) = sockets();
    for _ in 0..3 {
        one.write_all([1]).await.unwrap();
        other.read_exact([0]).await.unwrap();
    }
}

async fn echo<S: Transport>(mut socket: WebSocket<S>) -> Result<(), Error> {
    while let Some(message) = socket.next().await {
        let message = message?;
        if message.is_data() {
            socket.send(message).await?;
        }
    }
    Ok(())
}

#[test]
fn messages_of_each_kind_arrive_unchanged() {
    run(|| async {
        let (mut client, mut server) = pair();
        let sent = [
            Message::text("grün"),
            Message::text(""),
            Message::binary(vec![0xff; 100_000]),
            Message::binary(vec![]),
            Message::Ping(vec![1, 2, 3].into()),
            Message::Pong(vec![4].into()),
        ];
        for message in &sent {
            client.feed(message.clone()).await.unwrap();
        }
        let flushing = async { client.flush().await.unwrap() };
        let hearing = async {
            for message in &sent {
                assert_eq!(server.next().await.unwrap().unwrap(), *message);
            }
        };
        futures_util::join!(flushing, hearing);
        assert!(poll_once(server.next()).is_pending());
        assert_eq!(client.next().await.unwrap().unwrap(), Message::Pong(vec![1, 2, 3].into()), "the pong");
    });
}

#[test]
fn replies_to_a_burst_leave_in_one_operation() {
    run(|| async {
        const BURST: usize = 20;
        let (mut client, mut server, writes) = counting_pair();
        let mut attempts = 0..1_000;
        loop {
            for n in 0..BURST {
                client.feed(text(n)).await.unwrap();
            }
            client.flush().await.unwrap();
            let (begun, before) = (Instant::now(), writes.get());
            for n in 0..BURST {
                let message = server.next().await.unwrap().unwrap();
                assert_eq!(message, text(n));
                server.send(message).await.unwrap();
            }
            let (took, made) = (begun.elapsed(), writes.get() - before);
            for n in 0..BURST {
                assert_eq!(client.next().await.unwrap().unwrap(), text(n));
            }
            // A reply that has waited a millisecond for its burst leaves earlier.
            if took < Duration::from_millis(1) {
                assert_eq!(made, 1);
                break;
            }
            attempts.next().expect("an attempt without a delay");
        }
        let before = writes.get();
        for n in 0..3 {
            server.send(text(n)).await.unwrap();
            assert_eq!(writes.get(), before + 1 + n, "a single message leaves at once");
        }
    });
}

#[test]
fn queued_messages_leave_when_the_reader_waits() {
    run(|| async {
        let (mut client, mut server) = pair();
        client.feed("fed").await.unwrap();
        assert_eq!(client.try_send("tried").unwrap(), Sent::Queued);
        assert!(poll_once(client.next()).is_pending());
        assert_eq!(server.next().await.unwrap().unwrap(), Message::text("fed"));
        assert_eq!(server.next().await.unwrap().unwrap(), Message::text("tried"));
    });
}

/// `next` is dropped at every byte of the input, while its receive is in flight and after it has completed.
#[test]
fn dropped_next_loses_nothing() {
    run(|| async {
        let (mut server, mut raw) = server_and_raw(&Config::default());
        let mut expected = Vec::new();
        let mut bytes = Vec::new();
        for n in 0..20 {
            let payload = "x".repeat(n * 7);
            bytes.extend(wire(&[
                Frame::text(&payload).fin(false),
                Frame::ping("p"),
                Frame::continuation(""),
            ]));
            expected.push(Message::Ping("p".into()));
            expected.push(Message::text(payload));
        }
        let mut heard = Vec::new();
        for byte in bytes {
            assert!(poll_once(server.next()).is_pending());
            raw.write_all([byte]).await.unwrap();
            turn().await;
            while let Poll::Ready(message) = poll_once(server.next()) {
                heard.push(message.unwrap().unwrap());
            }
        }
        assert_eq!(heard, expected);
    });
}

/// In the middle of a message that is received into its own memory.
#[test]
fn dropped_next_loses_nothing_of_a_large_message() {
    run(|| async {
        let (mut server, mut raw) = server_and_raw(&Config::default());
        let payload: Vec<u8> = (0..3_000_000_u32).map(|n| (n / 3) as u8).collect();
        let bytes = wire(&[Frame::binary(&payload), Frame::text("behind")]);
        let writer = compio::runtime::spawn(async move {
            raw.write_all(bytes).await.unwrap();
            raw
        });
        let mut polls = 0;
        let message = loop {
            match poll_once(server.next()) {
                Poll::Ready(message) => break message.unwrap().unwrap(),
                Poll::Pending => polls += 1,
            }
            turn().await;
        };
        assert!(message == Message::binary(payload) && polls > 5, "{polls} times dropped");
        assert_eq!(server.next().await.unwrap().unwrap(), Message::text("behind"));
        drop(writer.await);
    });
}

/// `send` is dropped during its operation, and before it.
#[test]
fn dropped_send_sends_whole_messages_or_nothing() {
    run(|| async {
        let config = Config::default().with_high_water(100_000).with_max_outbound(1 << 20);
        let (mut client, mut server) = pair_with(&config);
        let mut heard = Vec::new();
        for n in 0..300 {
            let _ = poll_once(client.send(format!("{n} {}", "y".repeat(n * 100))));
            if n % 3 == 0 {
                turn().await;
            }
            while let Poll::Ready(message) = poll_once(server.next()) {
                heard.push(message.unwrap().unwrap());
            }
        }
        let flushing = async {
            client.send("end").await.unwrap();
        };
        let hearing = async {
            loop {
                let message = server.next().await.unwrap().unwrap();
                if message == Message::text("end") {
                    break;
                }
                heard.push(message);
            }
        };
        futures_util::join!(flushing, hearing);
        let numbers: Vec<usize> = heard
            .iter()
            .map(|message| {
                let (number, rest) = message.as_text().unwrap().split_once(' ').unwrap();
                let number: usize = number.parse().unwrap();
                assert_eq!(rest.len(), number * 100, "whole");
                number
            })
            .collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "in order and once: {numbers:?}");
        assert!(numbers.len() > 20, "{}", numbers.len());
    });
}

/// The operation in flight outlives the future, and so it does not belong to the future's cancel token.
#[test]
fn cancel_token_cancels_the_future_not_the_connection() {
    run(|| async {
        let (mut client, mut server) = pair();
        for n in 0..5 {
            let token = CancelToken::new();
            let waiting = server.next().with_cancel(token.clone()).fail_fast();
            let cancelling = async {
                turn().await;
                token.cancel();
            };
            let (waited, ()) = futures_util::join!(waiting, cancelling);
            assert!(waited.is_err());
            client.send(text(n)).await.unwrap();
            assert_eq!(server.next().await.unwrap().unwrap(), text(n));
        }
    });
}

#[test]
fn sixteen_mebibytes_pass_in_both_directions_concurrently() {
    run(|| async {
        let (mut client, server, _) = counting_pair();
        let server = compio::runtime::spawn(echo(server));
        let message = Message::binary((0..16 << 20).map(|n: u32| (n >> 3) as u8).collect::<Vec<u8>>());
        client.feed(message.clone()).await.unwrap();
        assert!(client.next().await.unwrap().unwrap() == message);
        client.send("small again").await.unwrap();
        assert_eq!(client.next().await.unwrap().unwrap(), Message::text("small again"));
        drop(client);
        server.await.unwrap().unwrap_err();
    });
}

/// A sender receives meanwhile, while the queue is below its limit.
#[test]
fn large_sends_in_both_directions_do_not_deadlock() {
    run(|| async {
        let config = Config::default().with_high_water(8 << 20).with_max_outbound(16 << 20);
        let (mut one, mut other) = pair_with(&config);
        let much = Message::binary(vec![7; 4 << 20]);
        let first = async {
            one.send(much.clone()).await.unwrap();
            assert!(one.next().await.unwrap().unwrap() == much);
        };
        let second = async {
            other.send(much.clone()).await.unwrap();
            assert!(other.next().await.unwrap().unwrap() == much);
        };
        futures_util::join!(first, second);
    });
}

/// All of the runtime's buffers are taken: receives continue in memory of their own.
#[test]
fn connections_without_a_managed_buffer_continue() {
    run_with(1, || async {
        let mut pairs: Vec<_> = (0..20).map(|_| pair()).collect();
        for round in 0..5 {
            for (client, server) in &mut pairs {
                assert!(poll_once(server.next()).is_pending());
                client.send(Message::binary(vec![round; 20_000])).await.unwrap();
                client.send(text(usize::from(round))).await.unwrap();
            }
            turn().await;
            for (_, server) in &mut pairs {
                assert_eq!(server.next().await.unwrap().unwrap(), Message::binary(vec![round; 20_000]));
                assert_eq!(server.next().await.unwrap().unwrap(), text(usize::from(round)));
            }
        }
    });
}

/// Bytes arrive in chunks of any size, also exactly as many as fit.
#[test]
fn messages_are_independent_of_read_sizes() {
    run(|| async {
        for portion in [1, 2, 3, 7, 100, 1024, 5000] {
            let agreed = negotiate(None, None);
            let (client, server) = sockets();
            let config = Arc::new(Config::default());
            let mut client = WebSocket::from_negotiated(client, agreed.client, config.clone(), &[]);
            let halves = (ShortReads(server.clone(), portion), server);
            let server = WebSocket::from_negotiated(halves, agreed.server, config, &[]);
            let server = compio::runtime::spawn(echo(server));
            for n in [0, 1, 125, 126, 1016, 8184, 8186, 20_000] {
                let message = Message::binary(vec![n as u8; n]);
                client.send(message.clone()).await.unwrap();
                assert_eq!(client.next().await.unwrap().unwrap(), message);
            }
            let closed = client.close(CloseCode::NORMAL, "enough").await.unwrap();
            assert_eq!((closed.status(), closed.cause()), (1000, Cause::Local));
            drop(client);
            server.await.unwrap().unwrap();
        }
    });
}

#[test]
fn borrowed_message_is_not_copied() {
    run(|| async {
        let (mut client, mut server) = pair();
        client.feed("abc").await.unwrap();
        client.feed(Message::Ping("between".into())).await.unwrap();
        client.feed(vec![1, 2, 3]).await.unwrap();
        client.flush().await.unwrap();
        let message = server.next_borrowed().await.unwrap().unwrap();
        assert_eq!((message.text(), message.payload()), (Some("abc"), &b"abc"[..]));
        let mut message = server.next_borrowed().await.unwrap().unwrap();
        message.payload_mut().reverse();
        assert_eq!((message.text(), message.payload()), (None, &[3, 2, 1][..]));
    });
}

#[test]
fn sender_without_receives_answers_pings() {
    run(|| async {
        let (mut server, mut raw) = server_and_raw(&Config::default());
        server.send("first").await.unwrap();
        raw.write_all(wire(&[Frame::ping("are you there"), Frame::text("later")])).await.unwrap();
        let mut sent = 0;
        let sending = async {
            loop {
                server.send("").await.unwrap();
                sent += 1;
                turn().await;
            }
        };
        let mut opcodes = Vec::new();
        let hearing = async {
            let mut head = raw.read_exact(vec![0; 2]).await.unwrap().1;
            while head[0] != 0x8a {
                opcodes.push(head[0]);
                raw.read_exact(vec![0; head[1].into()]).await.unwrap();
                head = raw.read_exact(vec![0; 2]).await.unwrap().1;
            }
        };
        futures_util::future::select(pin!(sending), pin!(hearing)).await;
        assert!(sent < 10_000, "messages leave although received input is unread: {sent}");
        assert!(opcodes.iter().all(|&opcode| opcode == 0x81));
        // The ping was answered without a receive call.
        assert_eq!(server.next().await.unwrap().unwrap(), Message::text("later"));
    });
}

#[test]
fn close_of_the_peer_is_returned_answered_and_recorded() {
    run(|| async {
        let (mut client, mut server) = pair();
        client.send("last").await.unwrap();
        client.start_close(CloseCode::new(4000).unwrap(), "bye").unwrap();
        assert!(matches!(client.send("too late").await, Err(Error::Misuse(Misuse::Closing))));
        let server = compio::runtime::spawn(async move {
            assert_eq!(server.next().await.unwrap().unwrap(), Message::text("last"));
            let Message::Close(Some(frame)) = server.next().await.unwrap().unwrap() else {
                panic!("a Close")
            };
            assert_eq!((frame.code().as_u16(), frame.reason()), (4000, "bye"));
            let error = server.send("too late").await.unwrap_err();
            assert_eq!((error.at_fault(), error.close_code().unwrap().as_u16()), (AtFault::Nobody, 4000));
            assert!(server.next().await.is_none());
            assert!(server.next().await.is_none(), "permanently");
            server
        });
        assert!(client.next().await.unwrap().unwrap().is_close());
        assert!(client.next().await.is_none());
        drop(client);
        let server = server.await.unwrap();
        let closed = server.closed().unwrap();
        assert_eq!((closed.status(), closed.reason(), closed.cause()), (4000, "bye", Cause::Peer));
    });
}

#[test]
fn simultaneous_close_is_in_order() {
    run(|| async {
        let (mut client, mut server) = pair();
        let (one, two) = futures_util::join!(
            client.close(CloseCode::NORMAL, "a"),
            server.close(CloseCode::GOING_AWAY, "b")
        );
        assert_eq!((one.unwrap().status(), two.unwrap().status()), (1001, 1000));
    });
}

#[test]
fn end_without_a_close_is_an_error_once() {
    run(|| async {
        let (mut client, server) = pair();
        drop(server);
        let error = client.next().await.unwrap().unwrap_err();
        assert_eq!(error.at_fault(), AtFault::Transport);
        assert!(client.next().await.is_none());
        assert!(client.send("too late").await.is_err());
    });
}

#[test]
fn silent_peer_is_pinged_and_disconnected_at_pong_timeout() {
    run(|| async {
        let config = Config::default()
            .with_idle_timeout(None)
            .with_ping_interval(Some(Duration::from_millis(30)))
            .with_pong_timeout(Duration::from_millis(30));
        let (mut server, mut raw) = server_and_raw(&config);
        let peer = async {
            let ping = raw.read_exact(vec![0; 6]).await.unwrap().1;
            assert_eq!(ping[0], 0x89);
            let close = raw.read_exact(vec![0; 4]).await.unwrap().1;
            assert_eq!(close, b"\x88\x0e\x03\xf3");
            drop(raw);
        };
        let (end, ()) = futures_util::join!(server.next(), peer);
        let Some(Err(Error::Closed(closed))) = end else { panic!("an error") };
        assert_eq!(closed.cause(), Cause::Expired(Expired::Pong));
    });
}

#[test]
fn write_timeout_ends_a_blocked_send() {
    run(|| async {
        let config = Config::default().with_write_timeout(Duration::from_millis(100));
        let (mut server, raw) = server_and_raw(&config);
        let error = loop {
            if let Err(error) = server.send(vec![0; 100_000]).await {
                break error;
            }
        };
        assert!(
            matches!(&error, Error::Closed(closed) if closed.cause() == Cause::Expired(Expired::Write)),
            "{error}"
        );
        drop(raw);
    });
}

#[test]
fn websocket_is_a_stream_and_a_sink() {
    run(|| async {
        use futures_util::{SinkExt as _, StreamExt as _};
        let (client, server) = pair();
        let server = compio::runtime::spawn(async move {
            let (sink, stream) = futures_util::StreamExt::split(server);
            stream.forward(sink).await
        });
        let (mut sink, mut stream) = futures_util::StreamExt::split(client);
        sink.send(Message::text("through")).await.unwrap();
        assert_eq!(stream.next().await.unwrap().unwrap(), Message::text("through"));
        sink.close().await.unwrap();
        let _ = server.await.unwrap();
    });
}

#[test]
fn sink_reports_a_message_that_a_full_queue_drops() {
    run(|| async {
        use futures_util::SinkExt as _;
        let config = Config::default().with_max_outbound(3000).with_overflow(Overflow::DropNewest);
        for is_split in [false, true] {
            let (_raw, server) = sockets();
            let negotiated = negotiate(None, None).server;
            let mut server = WebSocket::from_negotiated(server, negotiated, config.clone().into(), &[]);
            let message = || Message::binary(vec![0; 1000]);
            let started: Vec<_> = if is_split {
                let (mut write, _read) = server.split();
                (0..4).map(|_| write.start_send_unpin(message())).collect()
            } else {
                (0..4).map(|_| server.start_send_unpin(message())).collect()
            };
            let [Ok(()), Ok(()), Ok(()), Err(Error::Misuse(Misuse::QueueFull))] = &started[..] else {
                panic!("{started:?}");
            };
        }
    });
}

#[test]
fn bytes_behind_the_handshake_are_delivered_first() {
    run(|| async {
        let (mut raw, server) = sockets();
        let received = wire(&[Frame::text("early"), Frame::text("bird")]);
        let (first, rest) = received.split_at(received.len() - 3);
        let negotiated = negotiate(None, None).server;
        let mut server = WebSocket::from_negotiated(server, negotiated, Config::default().into(), first);
        assert_eq!(server.next().await.unwrap().unwrap(), Message::text("early"));
        raw.write_all(rest.to_vec()).await.unwrap();
        assert_eq!(server.next().await.unwrap().unwrap(), Message::text("bird"));
    });
}

#[test]
fn websocket_runs_over_tcp() {
    run(|| async {
        let listener = compio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, server) =
            futures_util::join!(compio::net::TcpStream::connect(address), listener.accept());
        let agreed = negotiate(None, None);
        let config = Arc::new(Config::default());
        let server = WebSocket::from_negotiated(server.unwrap().0, agreed.server, config.clone(), &[]);
        let mut client = WebSocket::from_negotiated(client.unwrap(), agreed.client, config, &[]);
        let server = compio::runtime::spawn(echo(server));
        for n in [10, 8000, 70_000, 2_000_000] {
            let message = Message::binary(vec![n as u8; n]);
            client.feed(message.clone()).await.unwrap();
            assert!(client.next().await.unwrap().unwrap() == message);
        }
        client.close(CloseCode::NORMAL, "").await.unwrap();
        server.await.unwrap().unwrap();
    });
}

/// The runtime is dropped while an operation is in flight.
#[test]
fn runtime_can_be_dropped_before_its_connections() {
    run(|| async {
        let (mut client, server) = pair();
        compio::runtime::spawn(echo(server)).detach();
        assert!(poll_once(client.next()).is_pending());
        turn().await;
    });
    if let Ok(runtime) = Runtime::new() {
        let ends = runtime.block_on(async {
            let mut ends = pair();
            assert!(poll_once(ends.0.next()).is_pending());
            ends
        });
        drop(runtime);
        drop(ends);
    }
}

/// Each half has a task of its own; both wait concurrently.
#[test]
fn halves_run_on_two_tasks_and_reunite() {
    run(|| async {
        let (mut client, server) = pair();
        let (mut writer, mut reader) = server.split();
        let hearing = compio::runtime::spawn(async move {
            for n in 0..100 {
                assert_eq!(reader.next().await.unwrap().unwrap(), text(n));
            }
            reader
        });
        let sending = compio::runtime::spawn(async move {
            for n in 0..100 {
                writer.send(Message::binary(vec![n; 10_000])).await.unwrap();
            }
            writer
        });
        for n in 0..100 {
            client.send(text(n.into())).await.unwrap();
            assert_eq!(client.next().await.unwrap().unwrap(), Message::binary(vec![n; 10_000]));
        }
        let (reader, writer) = (hearing.await.unwrap(), sending.await.unwrap());
        let (other, stranger) = pair().0.split();
        let (reader, writer) = match stranger.reunite(writer) {
            Err(error) => {
                let (stranger, writer) = (error.read, error.write);
                drop((stranger, other));
                (reader, writer)
            }
            Ok(_) => panic!("halves of two connections"),
        };
        let mut server = reader.reunite(writer).unwrap();
        client.send("whole").await.unwrap();
        assert_eq!(server.next().await.unwrap().unwrap(), Message::text("whole"));
    });
}

/// The reader waits already when the writer queues, and when it closes.
#[test]
fn waiting_reader_completes_operations_of_the_writer() {
    run(|| async {
        let (mut client, server) = pair();
        let (mut writer, mut reader) = server.split();
        let reading = compio::runtime::spawn(async move {
            let closed = reader.next().await.unwrap().unwrap();
            assert!(closed.is_close() && reader.next().await.is_none());
            reader.closed().unwrap().cause()
        });
        turn().await;
        writer.feed("one").await.unwrap();
        assert_eq!(writer.try_send("two").unwrap(), Sent::Queued);
        assert_eq!(client.next().await.unwrap().unwrap(), Message::text("one"));
        assert_eq!(client.next().await.unwrap().unwrap(), Message::text("two"));
        writer.start_close(CloseCode::GOING_AWAY, "bye").unwrap();
        assert!(client.next().await.unwrap().unwrap().is_close());
        assert!(client.next().await.is_none());
        drop(client);
        assert_eq!(reading.await.unwrap(), Cause::Local);
        assert!(writer.send("late").await.is_err());
    });
}

/// Messages that the writer received while it sent are returned by the reader.
#[test]
fn waiting_writer_leaves_messages_to_the_reader() {
    run(|| async {
        let config = Config::default().with_high_water(4 << 20).with_max_outbound(8 << 20);
        let (mut client, server) = pair_with(&config);
        let (mut writer, mut reader) = server.split();
        let much = Message::binary(vec![1; 2 << 20]);
        let reading = compio::runtime::spawn(async move {
            for n in 0..20 {
                assert_eq!(reader.next().await.unwrap().unwrap(), text(n));
            }
        });
        let expected = much.clone();
        let writing = compio::runtime::spawn(async move {
            for _ in 0..3 {
                writer.send(much.clone()).await.unwrap();
            }
            writer
        });
        for n in 0..20 {
            client.send(text(n)).await.unwrap();
        }
        for _ in 0..3 {
            assert!(client.next().await.unwrap().unwrap() == expected);
        }
        drop(writing.await.unwrap());
        reading.await.unwrap();
    });
}

#[test]
fn end_at_close_does_not_wait_for_the_end_of_the_transport() {
    for role in [Role::Server, Role::Client] {
        run(move || async move {
            let (mut raw, near) = sockets();
            let config =
                Config::default().with_close_timeout(Duration::from_secs(3600)).with_end_at_close(true);
            let negotiated = Negotiated::websocket(role);
            let mut ws = WebSocket::from_negotiated(near, negotiated, Arc::new(config), &[]);
            let peer = if role == Role::Server { Role::Client } else { Role::Server };
            raw.write_all(Frame::close(1000, "done").encode(peer)).await.unwrap();
            assert!(ws.next().await.unwrap().unwrap().is_close());
            assert!(ws.next().await.is_none(), "the raw peer is still open");
            let (_, answer) = raw.read_exact([0; 2]).await.unwrap();
            assert_eq!(answer[0], 0x88);
        });
    }
}
