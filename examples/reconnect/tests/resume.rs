//! Follows a feed over connections that break: in memory with a simulated clock, then over TCP.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use reconnect::{Backoff, Feed, FollowError, Follower};
use sinews::server::Reject;
use sinews_testkit::Rng;
use tokio::io::{AsyncReadExt as _, DuplexStream, copy, duplex, split};
use tokio::net::TcpListener;
use tokio::time::Instant;

fn backoff(seed: u64) -> Backoff {
    let mut rng = Rng::new(seed);
    Backoff::new(Duration::from_millis(50), Duration::from_secs(10)).with_random(move || rng.next_u64())
}

/// Returns the client's end of a connection to the feed, which breaks after `breaks_after` bytes from the
/// server.
fn connection(feed: Arc<Feed>, breaks_after: u64) -> DuplexStream {
    let (client, near) = duplex(256);
    let (far, server) = duplex(256);
    tokio::spawn(async move {
        let _ = feed.serve(server).await;
    });
    tokio::spawn(async move {
        let (mut from_client, mut to_client) = split(near);
        let (from_server, mut to_server) = split(far);
        let mut from_server = from_server.take(breaks_after);
        tokio::select! {
            _ = copy(&mut from_client, &mut to_server) => {}
            _ = copy(&mut from_server, &mut to_client) => {}
        }
    });
    client
}

fn request(last: Option<u64>) -> sinews::Connect<sinews::tokio::Tokio> {
    let connect = sinews::connect("ws://feed.example/");
    match last {
        Some(last) => connect.header("last-event-id", last.to_string()),
        None => connect,
    }
}

/// Returns all numbers until the end of the feed, and the number of connections.
async fn follow(seed: u64, breaks_max: u64) -> (Vec<u64>, usize) {
    const EVENTS: u64 = 400;
    let feed = Arc::new(Feed::new(1, 10_000));
    let publisher = feed.clone();
    let mut sizes = Rng::new(seed);
    tokio::spawn(async move {
        for _ in 0..EVENTS {
            publisher.publish("x".repeat(sizes.below(500)));
            tokio::time::sleep(Duration::from_millis(sizes.below(20) as u64)).await;
        }
        publisher.finish();
    });
    let mut connections = 0;
    let mut cuts = Rng::new(seed + 1);
    let dial = |last| {
        connections += 1;
        assert!(connections < 1000, "it does not resume");
        let stream = connection(feed.clone(), cuts.below(breaks_max as usize) as u64);
        let connect = request(last).over(stream);
        async move {
            // A slow link.
            tokio::time::sleep(Duration::from_millis(5)).await;
            connect.await
        }
    };
    let mut follower = Follower::new(dial, backoff(seed + 2), None);
    let mut numbers = Vec::new();
    loop {
        // A caller that also waits for other events drops `next` again and again, also during a connect.
        let next = tokio::time::timeout(Duration::from_millis(3), follower.next());
        let event = match next.await {
            Ok(Some(event)) => event.expect("the server keeps everything"),
            Ok(None) => break,
            Err(_) => continue,
        };
        assert!(event.data.bytes().all(|byte| byte == b'x'), "a torn message");
        numbers.push(event.number);
    }
    (numbers, connections)
}

#[tokio::test(start_paused = true)]
async fn every_event_comes_once_and_in_order_wherever_the_connection_breaks() {
    for seed in 0..20 {
        // Within the head of the response, within messages, between them.
        let (numbers, connections) = follow(1000 * seed, 4000).await;
        assert!(numbers.iter().copied().eq(1..=400), "seed {seed}: {numbers:?}");
        assert!(connections > 20, "seed {seed}: {connections} connections");
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_that_is_too_short_is_reported() {
    let feed = Arc::new(Feed::new(1, 10));
    for _ in 0..5 {
        feed.publish("early");
    }
    let server = feed.clone();
    let dial = |last| request(last).over(connection(server.clone(), 600)).into_future();
    let mut follower = Follower::new(dial, backoff(0), None);
    for number in 1..=5 {
        assert_eq!(follower.next().await.expect("an event").expect("in order").number, number);
    }
    for _ in 0..100 {
        feed.publish("while the connection was broken");
    }
    let error = loop {
        match follower.next().await.expect("an event or an error") {
            Ok(event) => assert!(event.number <= 15, "{event:?} with a gap before it"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, FollowError::Gone { last: Some(5..=15) }), "{error}");
    assert!(follower.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_position_of_another_log_is_rejected() {
    let feed = Arc::new(Feed::new(1, 10));
    let dial = |last| request(last).over(connection(feed.clone(), u64::MAX)).into_future();
    let mut follower = Follower::new(dial, backoff(0), Some(77));
    let error = follower.next().await.expect("an answer").expect_err("nothing to resume");
    assert!(matches!(error, FollowError::Gone { last: Some(77) }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn repeated_events_are_dropped_and_gaps_are_reported() {
    let dial = |last| {
        let (client, server) = duplex(1024);
        tokio::spawn(async move {
            let mut websocket = sinews::accept(server).await?;
            for number in [1, 2, 1, 2, 3, 5] {
                websocket.send(format!(r#"{{"number": {number}, "data": ""}}"#)).await?;
            }
            websocket.next().await;
            Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
        });
        request(last).over(client).into_future()
    };
    let mut follower = Follower::new(dial, backoff(0), None);
    for number in 1..=3 {
        assert_eq!(follower.next().await.expect("an event").expect("in order").number, number);
    }
    let error = follower.next().await.expect("an answer").expect_err("4 is missing");
    assert!(matches!(error, FollowError::Gap { expected: 4, found: 5 }), "{error}");
    assert_eq!(follower.last(), Some(3));
}

/// Runs a server that rejects every request with this response.
fn refusing(reject: Reject) -> DuplexStream {
    let (client, server) = duplex(1024);
    tokio::spawn(async move { sinews::accept(server).on_request(|_| Err(reject)).await.map(drop) });
    client
}

#[tokio::test(start_paused = true)]
async fn permanent_failures_are_not_retried() {
    let attempts = AtomicUsize::new(0);
    let dial = |last| {
        attempts.fetch_add(1, Relaxed);
        request(last).over(refusing(Reject::new(401))).into_future()
    };
    let mut follower = Follower::new(dial, backoff(0), None);
    let error = follower.next().await.expect("an answer").expect_err("no");
    assert!(matches!(error, FollowError::Refused(_)), "{error}");
    assert!(follower.next().await.is_none());
    assert_eq!(attempts.into_inner(), 1);
}

#[tokio::test(start_paused = true)]
async fn retry_after_of_a_busy_server_is_respected() {
    let feed = Arc::new(Feed::new(1, 10));
    feed.publish("after all");
    let mut attempts = Vec::new();
    let dial = |last| {
        attempts.push(Instant::now());
        let stream = match attempts.len() {
            1 => refusing(Reject::new(503).with_header("Retry-After", "7")),
            // More than the maximum delay.
            2 => refusing(Reject::new(429).with_header("Retry-After", "86400")),
            _ => connection(feed.clone(), u64::MAX),
        };
        request(last).over(stream).into_future()
    };
    let mut follower = Follower::new(dial, backoff(0), None);
    assert_eq!(follower.next().await.expect("an event").expect("in order").data, "after all");
    drop(follower);
    let waits: Vec<u64> = attempts.windows(2).map(|two| (two[1] - two[0]).as_secs()).collect();
    assert_eq!(waits, [7, 10]);
}

#[tokio::test]
async fn over_tcp_too() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("ws://{}/", listener.local_addr().expect("an address"));
    let feed = Arc::new(Feed::new(1, 1000));
    for n in 0..200 {
        feed.publish(format!("event {n}"));
    }
    feed.finish();
    tokio::spawn(async move {
        let mut cuts = Rng::new(1);
        loop {
            let (stream, _) = listener.accept().await.expect("a client");
            // The path to the client breaks after a few events.
            let mut inner = connection(feed.clone(), cuts.below(3000) as u64);
            let mut outer = stream;
            tokio::spawn(
                async move { tokio::io::copy_bidirectional(&mut inner, &mut outer).await.map(drop) },
            );
        }
    });
    let dial = |last: Option<u64>| {
        let connect = sinews::connect(url.clone());
        match last {
            Some(last) => connect.header("last-event-id", last.to_string()),
            None => connect,
        }
        .into_future()
    };
    let at_once = Backoff::new(Duration::ZERO, Duration::ZERO);
    let mut follower = Follower::new(dial, at_once, None);
    let mut numbers = Vec::new();
    while let Some(event) = follower.next().await {
        numbers.push(event.expect("in order").number);
    }
    assert!(numbers.iter().copied().eq(1..=200), "{numbers:?}");
}
