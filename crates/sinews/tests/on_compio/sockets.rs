//! A connection on compio: when bytes leave and in how many operations, cancellation, and the end.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::support::{
    End, Operations, Recorded, echo, ends, pair, poll_once, raw_peer, run, run_with, server_and_raw, text,
    turn, wire,
};
use compio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use compio::net::UnixStream;
use compio::runtime::{CancelToken, FutureExt as _, Runtime};
use sinews::compio::WebSocket;
use sinews::{Cause, CloseCode, Config, Error, Expired, Message, Role, Sent};
use sinews_testkit::{Frame, negotiate};

type CountedEnd = WebSocket<(UnixStream, Recorded)>;

/// A server with counted sends.
fn counting_pair() -> (End, CountedEnd, Operations) {
    let (client, server) = raw_peer(Role::Client, &Config::default(), &[]);
    let writes = Operations::default();
    let halves = (server.clone(), Recorded(server, writes.clone()));
    let negotiated = negotiate(None, None).server;
    (client, WebSocket::from_negotiated(halves, negotiated, Arc::default(), &[]), writes)
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
            let (begun, before) = (Instant::now(), writes.borrow().len());
            for n in 0..BURST {
                let message = server.next().await.unwrap().unwrap();
                assert_eq!(message, text(n));
                server.send(message).await.unwrap();
            }
            let (took, made) = (begun.elapsed(), writes.borrow().len() - before);
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
        let before = writes.borrow().len();
        for n in 0..3 {
            server.send(text(n)).await.unwrap();
            assert_eq!(writes.borrow().len(), before + 1 + n, "a single message leaves at once");
        }
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

/// A sender receives meanwhile, while the queue is below its limit.
#[test]
fn large_sends_in_both_directions_do_not_deadlock() {
    run(|| async {
        let config = Config::default().with_high_water(8 << 20).with_max_outbound(16 << 20);
        let (mut one, mut other) = ends(&config);
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
        assert_eq!(client.get_ref().peer_addr().unwrap(), server.get_ref().local_addr().unwrap());
        client.get_mut().set_nodelay(true).unwrap();
        assert!(client.get_ref().nodelay().unwrap());
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
        let (mut client, server) = ends(&config);
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
            let config =
                Config::default().with_close_timeout(Duration::from_secs(3600)).with_end_at_close(true);
            let (mut ws, mut raw) = raw_peer(role, &config, &[]);
            let peer = if role == Role::Server { Role::Client } else { Role::Server };
            raw.write_all(Frame::close(1000, "done").encode(peer)).await.unwrap();
            assert!(ws.next().await.unwrap().unwrap().is_close());
            assert!(ws.next().await.is_none(), "the raw peer is still open");
            let (_, answer) = raw.read_exact([0; 2]).await.unwrap();
            assert_eq!(answer[0], 0x88);
        });
    }
}
