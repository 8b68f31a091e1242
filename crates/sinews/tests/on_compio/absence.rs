//! Timeouts of a connection that its task does not poll for a while, on compio with short timeouts.

use std::time::{Duration, Instant};

use crate::support::server_and_raw;
use compio::io::AsyncWriteExt as _;
use compio::net::UnixStream;
use compio::runtime::Runtime;
use compio::time::{sleep, timeout};
use futures_util::future::join;
use sinews::{Cause, Config, Error, Expired, Message, Role};
use sinews_testkit::Frame;

const IDLE: Duration = Duration::from_millis(400);

fn without_pings() -> Config {
    Config::default().with_ping_interval(None).with_idle_timeout(Some(IDLE))
}

/// Short ping intervals, so that a ping is due in each absence.
fn with_pings() -> Config {
    let config = Config::default().with_idle_timeout(Some(IDLE));
    config.with_ping_interval(Some(IDLE / 4)).with_pong_timeout(IDLE * 25)
}

/// A step that took as long as a timeout: on a busy machine, this thread did not run meanwhile.
struct Disturbed;

/// Runs a test until it was not disturbed.
fn run(test: impl AsyncFn() -> Result<(), Disturbed>) {
    let undisturbed = async || while test().await.is_err() {};
    match Runtime::new() {
        Ok(runtime) => {
            runtime.block_on(async { timeout(IDLE * 150, undisturbed()).await.expect("bounded in time") })
        }
        Err(error) => println!("skipped: no runtime: {error}"),
    }
}

/// The output of a future that takes much less than the idle timeout.
async fn brief<F: Future>(step: F) -> Result<F::Output, Disturbed> {
    let begun = Instant::now();
    let output = step.await;
    if begun.elapsed() < IDLE * 3 / 4 { Ok(output) } else { Err(Disturbed) }
}

async fn reply(raw: &mut UnixStream) {
    sleep(IDLE / 20).await;
    // A connection that has timed out does not take it.
    let _ = raw.write_all(Frame::text("reply").encode(Role::Client)).await;
}

fn check_reply(message: Option<Result<Message, Error>>) {
    assert_eq!(message.unwrap().unwrap(), Message::text("reply"));
}

#[test]
fn reply_to_a_request_after_idle_timeout_is_delivered() {
    run(async || {
        for config in [with_pings(), without_pings()] {
            let (mut socket, mut raw) = server_and_raw(&config);
            for requests in [1, 1, 2] {
                for _ in 0..requests {
                    brief(socket.send("request")).await?.unwrap();
                }
                let (message, ()) = brief(join(socket.next_data(), reply(&mut raw))).await?;
                check_reply(message);
                sleep(IDLE * 3 / 2).await;
            }
        }
        Ok(())
    });
}

#[test]
fn half_that_reads_after_idle_timeout_gets_the_reply() {
    run(async || {
        for config in [with_pings(), without_pings()] {
            let (socket, mut raw) = server_and_raw(&config);
            let (mut write, mut read) = socket.split();
            for _ in 0..2 {
                brief(write.send("request")).await?.unwrap();
                let (message, ()) = brief(join(read.next(), reply(&mut raw))).await?;
                check_reply(message);
                sleep(IDLE * 3 / 2).await;
            }
        }
        Ok(())
    });
}

#[test]
fn caller_that_returns_waits_idle_timeout_again() {
    run(async || {
        let (mut socket, mut raw) = server_and_raw(&without_pings());
        assert!(brief(timeout(IDLE / 4, socket.next())).await?.is_err(), "no input");
        sleep(IDLE * 3 / 2).await;
        let (message, ()) = brief(join(socket.next(), reply(&mut raw))).await?;
        check_reply(message);
        match socket.next().await {
            Some(Err(Error::Closed(closed))) => assert_eq!(closed.cause(), Cause::Expired(Expired::Idle)),
            end => panic!("{end:?}"),
        }
        Ok(())
    });
}
