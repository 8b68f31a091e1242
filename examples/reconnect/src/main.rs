//! # reconnect
//!
//! A client that follows a feed over an unreliable network: it reconnects with exponential back-off and
//! jitter, and resumes after its last event. No event is lost or repeated.
//!
//! ```sh
//! cargo run -p reconnect
//! ```
//!
//! starts its own feed, which breaks connections from time to time, even in the middle of a message, and
//! follows it to its end. To see it survive a crash of the server, run both in separate terminals:
//!
//! ```sh
//! cargo run -p reconnect -- serve 127.0.0.1:4000
//! cargo run -p reconnect -- follow ws://127.0.0.1:4000/
//! ```
//!
//! Stop the server and start it again: its log is lost, and the client reports that instead of hiding it.
//!
//! Files to copy: `backoff.rs` and `follower.rs`, 300 lines together.
#![forbid(unsafe_code)]

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use reconnect::{Backoff, Feed, Follower};
use sinews::Config;
use tokio::net::TcpListener;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_target(false).init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => demonstrate().await,
        ["serve", address] => {
            let feed = Arc::new(new_feed()?);
            tokio::spawn(serve(TcpListener::bind(address).await?, feed.clone(), || Duration::MAX));
            publish(&feed, u64::MAX).await;
            Ok(())
        }
        ["follow", url] => follow(url).await,
        _ => Err("usage: reconnect [serve ADDRESS | follow URL]".into()),
    }
}

/// Runs a feed with connections that live 0 to 3 seconds, and a client that receives every event nonetheless.
async fn demonstrate() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("ws://{}/", listener.local_addr()?);
    let feed = Arc::new(new_feed()?);
    let lifetime = || Duration::from_millis(getrandom::u64().unwrap_or(1500) % 3000);
    tokio::spawn(serve(listener, feed.clone(), lifetime));
    tokio::spawn(async move {
        publish(&feed, 60).await;
        feed.finish();
    });
    follow(&url).await
}

async fn follow(url: &str) -> Result<(), Box<dyn Error>> {
    // A dead network is detected after ping interval and pong timeout.
    let config = Config::default()
        .with_ping_interval(Some(Duration::from_secs(10)))
        .with_pong_timeout(Duration::from_secs(5));
    let connect = sinews::connect(url).config(config).timeout(Duration::from_secs(10));
    let dial = |last: Option<u64>| {
        let connect = connect.clone();
        match last {
            Some(last) => connect.header("last-event-id", last.to_string()),
            None => connect,
        }
        .into_future()
    };
    let backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
    let mut follower = Follower::new(dial, backoff, None);
    while let Some(event) = follower.next().await {
        let event = event?;
        println!("{} {}", event.number, event.data);
    }
    println!("The feed is over.");
    Ok(())
}

/// Serves the feed, each client for the duration that `lifetime` returns.
async fn serve(listener: TcpListener, feed: Arc<Feed>, lifetime: impl Fn() -> Duration) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Probably out of file descriptors: other connections have to close first.
                tracing::warn!("accept: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (feed, lifetime) = (feed.clone(), lifetime());
        tokio::spawn(async move {
            match tokio::time::timeout(lifetime, feed.serve(stream)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::info!("client connection failed: {error}"),
                Err(_) => tracing::info!("client disconnected at the end of its lifetime"),
            }
        });
    }
}

async fn publish(feed: &Feed, count: u64) {
    for n in 0..count {
        feed.publish(format!("event {n} of this run"));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Creates a feed with a log of 1,000 events, with numbers above the numbers of all earlier runs.
fn new_feed() -> Result<Feed, Box<dyn Error>> {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    Ok(Feed::new(u64::try_from(since_1970.as_micros())?, 1000))
}
