//! When messages leave, cancellation, and the end.

use std::task::Poll;

use crate::support::{
    LENGTH_STEP, LONGEST_CHOPPED, choppy_pairs, echo, ends, narrow_pairs, poll_once, raw_peer, run,
    server_and_raw, spawn, turn, wire, write_raw,
};
use futures_util::{Sink, SinkExt as _, StreamExt as _, join};
use sinews::{AtFault, Cause, CloseCode, Config, Error, Message, Misuse, Overflow, Role, Sent};
use sinews_testkit::Frame;

#[test]
fn messages_of_each_kind_arrive_unchanged() {
    run(|| async {
        let (mut client, mut server) = ends(&Config::default());
        let messages = [
            Message::text("grün"),
            Message::text(""),
            Message::binary(vec![0xff; 100_000]),
            Message::binary(vec![]),
            Message::Ping(vec![1, 2, 3].into()),
            Message::Pong(vec![4].into()),
        ];
        for is_fed in [true, false] {
            let sending = async {
                for message in messages.clone() {
                    let sent = if is_fed { client.feed(message).await } else { client.send(message).await };
                    sent.unwrap();
                }
                client.flush().await.unwrap();
            };
            let hearing = async {
                for message in &messages {
                    assert_eq!(server.next().await.unwrap().unwrap(), *message);
                }
            };
            join!(sending, hearing);
            assert!(poll_once(server.next()).is_pending());
            let pong = client.next().await.unwrap().unwrap();
            assert_eq!(pong, Message::Pong(vec![1, 2, 3].into()), "the pong");
        }
    });
}

#[test]
fn queued_messages_leave_when_the_reader_waits() {
    run(|| async {
        let (mut client, mut server) = ends(&Config::default());
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
        let (mut bytes, mut expected, mut heard) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..40 {
            let payload = "x".repeat(n * 7);
            let frames = [Frame::text(&payload).fin(false), Frame::ping("p"), Frame::continuation("")];
            bytes.extend(wire(&frames));
            expected.extend([Message::Ping("p".into()), Message::text(payload)]);
        }
        for byte in bytes {
            assert!(poll_once(server.next()).is_pending());
            write_raw(&mut raw, vec![byte]).await;
            turn().await;
            while let Poll::Ready(message) = poll_once(server.next()) {
                heard.push(message.unwrap().unwrap());
            }
        }
        assert_eq!(heard, expected);
    });
}

/// `send` is dropped during its operation, before it, and in the middle of frames. A dropped message may have been queued.
/// The next one has another number, so that the order is visible.
#[test]
fn dropped_send_sends_whole_messages_or_nothing() {
    run(|| async {
        for (mut client, mut server) in narrow_pairs() {
            let mut heard = Vec::new();
            for n in 0..300 {
                let sent = poll_once(client.send(format!("{n} {}", "y".repeat(n * LENGTH_STEP))));
                assert!(!matches!(sent, Poll::Ready(Err(_))));
                if n % 3 == 0 {
                    turn().await;
                }
                while let Poll::Ready(message) = poll_once(server.next()) {
                    heard.push(message.unwrap().unwrap());
                }
            }
            let flushing = async { client.send("end").await.unwrap() };
            let hearing = async {
                loop {
                    match server.next().await.unwrap().unwrap() {
                        message if message == Message::text("end") => break,
                        message => heard.push(message),
                    }
                }
            };
            join!(flushing, hearing);
            let number = |message: &Message| {
                let (number, rest) = message.as_text().unwrap().split_once(' ').unwrap();
                let number: usize = number.parse().unwrap();
                assert_eq!(rest.len(), number * LENGTH_STEP, "whole");
                number
            };
            let numbers: Vec<usize> = heard.iter().map(number).collect();
            assert!(numbers.is_sorted_by(|a, b| a < b), "in order and once: {numbers:?}");
            assert!(numbers.len() > 20, "{}", numbers.len());
        }
    });
}

/// Bytes arrive in chunks of any size, also exactly as many as fit.
#[test]
fn messages_are_independent_of_the_link() {
    run(|| async {
        for (mut client, server) in choppy_pairs() {
            let server = spawn(echo(server));
            for n in [0, 1, 125, 126, 1000, 1016, 8184, 8186, LONGEST_CHOPPED] {
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
fn sixteen_mebibytes_pass_in_both_directions_concurrently() {
    run(|| async {
        let (mut client, server) = ends(&Config::default());
        let server = spawn(echo(server));
        let message = Message::binary((0..16 << 20).map(|n: u32| (n >> 3) as u8).collect::<Vec<u8>>());
        for is_fed in [true, false] {
            let copy = message.clone();
            let sent = if is_fed { client.feed(copy).await } else { client.send(copy).await };
            sent.unwrap();
            assert!(client.next().await.unwrap().unwrap() == message);
        }
        client.send("small again").await.unwrap();
        assert_eq!(client.next().await.unwrap().unwrap(), Message::text("small again"));
        drop(client);
        server.await.unwrap().unwrap_err();
    });
}

#[test]
fn borrowed_message_is_not_copied() {
    run(|| async {
        let (mut client, mut server) = ends(&Config::default());
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
fn close_of_the_peer_is_returned_answered_and_recorded() {
    run(|| async {
        let (mut client, mut server) = ends(&Config::default());
        client.send("last").await.unwrap();
        client.start_close(CloseCode::new(4000).unwrap(), "bye").unwrap();
        assert!(matches!(client.send("too late").await, Err(Error::Misuse(Misuse::Closing))));
        let server = spawn(async move {
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
        let (mut client, mut server) = ends(&Config::default());
        let closing = client.close(CloseCode::NORMAL, "a");
        let (one, two) = join!(closing, server.close(CloseCode::GOING_AWAY, "b"));
        assert_eq!((one.unwrap().status(), two.unwrap().status()), (1001, 1000));
    });
}

#[test]
fn end_without_a_close_is_an_error_once() {
    run(|| async {
        let (mut client, server) = ends(&Config::default());
        drop(server);
        let error = client.next().await.unwrap().unwrap_err();
        assert!(
            matches!(&error, Error::Closed(closed) if closed.cause() == Cause::Ended && closed.status() == 1006)
        );
        assert_eq!(error.at_fault(), AtFault::Transport);
        assert!(client.next().await.is_none());
        assert!(client.send("too late").await.is_err());
    });
}

#[test]
fn websocket_is_a_stream_and_a_sink() {
    run(|| async {
        let (client, server) = ends(&Config::default());
        let server = spawn(async move {
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

/// Starts five messages of 1,000 bytes without waiting for capacity. Returns how many are queued, and the error of the
/// next one.
fn start_five(sink: &mut (impl Sink<Message, Error = Error> + Unpin)) -> (usize, Error) {
    let started: Vec<_> = (0..5).map(|number| sink.start_send_unpin(vec![number; 1000].into())).collect();
    let queued = started.iter().filter(|started| started.is_ok()).count();
    let error = started.into_iter().nth(queued).expect("the queue is full").expect_err("queued first");
    (queued, error)
}

#[test]
fn sink_reports_a_message_that_a_full_queue_drops() {
    run(|| async {
        let config = Config::default().with_high_water(1000).with_max_outbound(3000);
        for overflow in [Overflow::Close, Overflow::DropNewest, Overflow::DropOldest] {
            let config = config.clone().with_overflow(overflow);
            let check = |(queued, error): (usize, Error)| match error {
                Error::Misuse(Misuse::QueueFull) => {
                    assert_eq!((queued, overflow == Overflow::Close), (3, false))
                }
                Error::Closed(closed) => {
                    assert_eq!((queued, closed.cause(), overflow), (3, Cause::Overflow, Overflow::Close))
                }
                error => panic!("{error}"),
            };
            let (mut client, mut server) = ends(&config);
            check(start_five(&mut server));
            let (mut other_client, half) = ends(&config);
            let (mut write, _read) = half.split();
            check(start_five(&mut write));
            if overflow == Overflow::Close {
                continue;
            }
            // A caller that waits is not concerned.
            server.send("after").await.unwrap();
            write.send("after").await.unwrap();
            for client in [&mut client, &mut other_client] {
                for number in 0..3 {
                    assert_eq!(client.next().await.unwrap().unwrap().as_bytes()[0], number, "{overflow:?}");
                }
                assert_eq!(client.next().await.unwrap().unwrap(), Message::text("after"));
            }
        }
    });
}

/// Bytes received with the handshake are the beginning of the stream.
#[test]
fn bytes_behind_the_handshake_are_delivered_first() {
    run(|| async {
        let received = wire(&[Frame::text("early"), Frame::text("bird")]);
        let (first, rest) = received.split_at(received.len() - 3);
        let (mut server, mut raw) = raw_peer(Role::Server, &Config::default(), first);
        assert_eq!(server.next().await.unwrap().unwrap(), Message::text("early"));
        write_raw(&mut raw, rest.to_vec()).await;
        assert_eq!(server.next().await.unwrap().unwrap(), Message::text("bird"));
    });
}
