//! Peers that only send, transports that only receive, tasks that never yield: none of them may postpone deadlines
//! forever.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::spawn::spawn;
use crate::support::{poll_once, server_and_raw};
use sinews::tokio::WebSocket;
use sinews::{Cause, CloseCode, Config, Error, Expired, Message, Role, Sent};
use sinews_testkit::{Frame, negotiate, split_frames};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};

/// What a transport does with bytes to send: accept, wait, or fail.
const TAKES: u8 = 0;
const WAITS: u8 = 1;
const FAILS: u8 = 2;

/// A transport that always has input, until its input ends.
struct OneSided {
    input: Vec<u8>,
    at: usize,
    /// The input repeats.
    endless: bool,
    output: Arc<AtomicU8>,
}

impl AsyncRead for OneSided {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let count = buf.remaining().min(this.input.len() - this.at);
        buf.put_slice(&this.input[this.at..this.at + count]);
        this.at += count;
        if this.endless && this.at == this.input.len() {
            this.at = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for OneSided {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.output.load(Ordering::Relaxed) {
            TAKES => Poll::Ready(Ok(buf.len())),
            WAITS => Poll::Pending,
            _ => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A server whose peer sends these frames, and the switch of how the transport handles bytes to send.
fn one_sided(frames: &[Frame], endless: bool, output: u8) -> (WebSocket<OneSided>, Arc<AtomicU8>) {
    let input = frames.iter().flat_map(|frame| frame.encode(Role::Client)).collect();
    let output = Arc::new(AtomicU8::new(output));
    let io = OneSided { input, at: 0, endless, output: output.clone() };
    (WebSocket::from_negotiated(io, negotiate(None, None).server, Arc::default(), &[]), output)
}

#[tokio::test(start_paused = true)]
async fn endless_input_does_not_postpone_deadlines() {
    for (output, wait) in [(TAKES, Expired::Close), (WAITS, Expired::Write)] {
        let (mut server, _) = one_sided(&[Frame::text("more")], true, output);
        server.next().await.unwrap().unwrap();
        server.start_close(CloseCode::NORMAL, "").unwrap();
        let mut seconds = 0;
        let end = loop {
            match server.next().await.unwrap() {
                Ok(_) => tokio::time::advance(Duration::from_secs(1)).await,
                Err(end) => break end,
            }
            seconds += 1;
            assert!(seconds < 60, "{wait:?}");
        };
        assert!(matches!(&end, Error::Closed(closed) if closed.cause() == Cause::Expired(wait)), "{end:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn endless_input_into_caller_memory_does_not_postpone_deadlines() {
    let (mut server, _) = one_sided(&[Frame::binary(vec![0; 8 << 20])], false, TAKES);
    let mut memory = vec![0; 64 << 10];
    assert!(!server.recv_into(&mut memory).await.unwrap().unwrap().last);
    server.start_close(CloseCode::NORMAL, "").unwrap();
    let mut seconds = 0;
    while let Ok(filled) = server.recv_into(&mut memory).await.unwrap() {
        assert!(!filled.last && seconds < 60);
        tokio::time::advance(Duration::from_secs(1)).await;
        seconds += 1;
    }
    assert!(seconds >= 5, "the close timeout");
}

#[tokio::test(start_paused = true)]
async fn sender_without_receives_notices_pong_timeout() {
    let (mut server, mut raw) = server_and_raw(&Config::default());
    let peer = spawn(async move {
        let mut all = Vec::new();
        raw.read_to_end(&mut all).await.unwrap();
        all
    });
    let mut sent = 0;
    while server.send("tick").await.is_ok() {
        tokio::time::sleep(Duration::from_millis(100)).await;
        sent += 1;
        assert!(sent < 1200, "silence of two minutes");
    }
    assert_eq!(server.closed().unwrap().cause(), Cause::Expired(Expired::Pong));
    drop(server);
    let frames = split_frames(&peer.await.unwrap()).0;
    assert_eq!(frames.iter().filter(|frame| frame.opcode == 9).count(), 1, "a ping was sent");
}

#[tokio::test(start_paused = true)]
async fn timer_set_at_the_end_of_the_task_budget_fires() {
    let (mut server, mut raw) = server_and_raw(&Config::default());
    let _server = spawn(async move {
        for _ in 0..128 {
            tokio::task::coop::consume_budget().await;
        }
        server.next().await
    });
    let mut head = [0; 2];
    tokio::time::timeout(Duration::from_secs(60), raw.read_exact(&mut head)).await.expect("a ping").unwrap();
    assert_eq!(head[0], 0x89);
}

#[tokio::test]
async fn received_input_is_readable_after_a_failed_congested_transport() {
    let frames: Vec<Frame> = (0..100).map(|n| Frame::text(format!("message {n}"))).collect();
    let (mut server, output) = one_sided(&frames, false, WAITS);
    assert_eq!(server.try_send(vec![0; 1 << 20]).unwrap(), Sent::Backpressure);
    assert!(poll_once(server.flush()).is_pending());
    output.store(FAILS, Ordering::Relaxed);
    for n in 0..100 {
        assert_eq!(server.next().await.unwrap().unwrap(), Message::text(format!("message {n}")));
    }
    assert!(matches!(server.next().await, Some(Err(Error::Io(_)))));
}

#[tokio::test(start_paused = true)]
async fn reunited_connection_does_not_wait_for_discarded_bytes() {
    let (mut raw, server) = tokio::io::duplex(1 << 10);
    let server = WebSocket::from_negotiated(server, negotiate(None, None).server, Arc::default(), &[]);
    let (mut write, mut read) = server.split();
    assert_eq!(write.try_send(vec![0; 1 << 20]).unwrap(), Sent::Backpressure);
    assert!(poll_once(read.close(CloseCode::NORMAL, "")).is_pending());
    let mut close = [0; 4];
    raw.read_exact(&mut close).await.unwrap();
    assert_eq!(close, [0x88, 2, 3, 0xe8], "before the message");
    assert!(matches!(poll_once(write.flush()), Poll::Ready(Err(_))), "which never leaves");
    let mut server = read.reunite(write).unwrap();
    raw.write_all(&Frame::text("late").encode(Role::Client)).await.unwrap();
    let late = tokio::time::timeout(Duration::from_secs(1), server.next()).await.expect("read in time");
    assert_eq!(late.unwrap().unwrap(), Message::text("late"));
}

#[tokio::test(start_paused = true)]
async fn pongs_follow_a_message_of_a_dropped_send() {
    let (mut raw, server) = tokio::io::duplex(64 << 10);
    let server = WebSocket::from_negotiated(server, negotiate(None, None).server, Arc::default(), &[]);
    let (mut write, mut read) = server.split();
    assert!(poll_once(write.send(vec![0; 200_000])).is_pending());
    // More than the reader may add to the waiting bytes.
    let pings: Vec<u8> = (0..40).flat_map(|_| Frame::ping([7; 125]).encode(Role::Client)).collect();
    raw.write_all(&pings).await.unwrap();
    let _reader = spawn(async move { while let Some(Ok(_)) = read.next().await {} });
    let mut all = vec![0; 200_010 + 40 * 127];
    let whole = tokio::time::timeout(Duration::from_millis(100), raw.read_exact(&mut all)).await;
    whole.expect("without anything else to wake the reader").unwrap();
    assert_eq!(split_frames(&all).0.len(), 41);
}

#[tokio::test(start_paused = true)]
async fn deadlines_survive_split_and_reunite() {
    let (mut server, mut raw) = server_and_raw(&Config::default());
    assert!(poll_once(server.next()).is_pending());
    let (write, mut read) = server.split();
    let mut ping = [0; 6];
    {
        let reading = read.next();
        let pinged = tokio::time::timeout(Duration::from_secs(26), raw.read_exact(&mut ping));
        tokio::select! {
            biased;
            pinged = pinged => drop(pinged.expect("a ping").unwrap()),
            _ = reading => panic!("nothing was sent"),
        }
    }
    raw.write_all(&Frame::pong(&ping[2..]).encode(Role::Client)).await.unwrap();
    assert!(matches!(read.next().await, Some(Ok(Message::Pong(_)))));
    assert!(poll_once(read.next()).is_pending());
    let mut server = read.reunite(write).unwrap();
    let reading = server.next();
    let pinged = tokio::time::timeout(Duration::from_secs(26), raw.read_exact(&mut ping));
    tokio::select! {
        biased;
        pinged = pinged => drop(pinged.expect("another ping").unwrap()),
        _ = reading => panic!("nothing was sent"),
    }
}

#[tokio::test]
async fn busy_producers_do_not_cause_an_endless_loop() {
    let (mut server, mut raw) = server_and_raw(&Config::default());
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let sender = server.sender();
            for _ in 0..200 {
                sender.try_send("x").unwrap();
                server.flush().await.unwrap();
            }
        });
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(60)).expect("no endless loop");
    let mut all = [0; 600];
    raw.read_exact(&mut all).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn peer_with_an_unread_message_is_not_silent() {
    let agreed = negotiate(None, None);
    let (client, server) = tokio::io::duplex(1 << 20);
    let mut client = WebSocket::from_negotiated(client, agreed.client, Arc::default(), &[]);
    let server = WebSocket::from_negotiated(server, agreed.server, Arc::default(), &[]);
    let (mut write, mut read) = server.split();
    assert!(poll_once(read.next()).is_pending());
    client.send("hello").await.unwrap();
    let client = spawn(async move { while let Some(Ok(_)) = client.next().await {} });
    for n in 0..1000 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        write.send("tick").await.unwrap_or_else(|error| panic!("{n}: {error}"));
    }
    assert_eq!(read.next().await.unwrap().unwrap(), Message::text("hello"));
    drop((write, read));
    client.await.unwrap();
}
