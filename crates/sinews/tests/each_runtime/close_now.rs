//! A close that does not wait for the peer.

use std::time::Duration;

use crate::support::{End, Instant, Raw, raw_peer, read_raw_to_end, run, spawn};
use sinews::{Cause, CloseCode, Config, Error, Role};

/// The Close frame of a server, code 1001 and no reason.
pub(crate) const CLOSE: &[u8] = b"\x88\x02\x03\xe9";

/// Runs a test that must not wait for the peer, on a connection with long timeouts.
fn run_without_waiting(test: impl AsyncFnOnce(End, Raw)) {
    run(|| async {
        let config = Config::default().with_close_timeout(Duration::from_secs(3600));
        let (socket, raw) = raw_peer(Role::Server, &config, &[]);
        let began = Instant::now();
        test(socket, raw).await;
        assert!(began.elapsed() < Duration::from_secs(60), "it waits for the peer");
    });
}

#[test]
fn close_now_sends_queued_messages_and_close_without_waiting_for_the_peer() {
    run_without_waiting(async |mut socket, mut raw| {
        socket.feed("last").await.unwrap();
        socket.close_now(CloseCode::GOING_AWAY, "").await.unwrap();
        assert_eq!(read_raw_to_end(&mut raw).await, [b"\x81\x04last", CLOSE].concat());
        socket.close_now(CloseCode::GOING_AWAY, "").await.unwrap();
        let closed = socket.closed().expect("it has ended");
        assert_eq!((closed.cause(), closed.status()), (Cause::Local, 1001));
        assert!(socket.next().await.is_none());
    });
}

#[test]
fn close_now_of_the_write_half_ends_a_waiting_read_half() {
    run_without_waiting(async |socket, mut raw| {
        let (mut write, mut read) = socket.split();
        let reading = spawn(async move { (read.next().await.is_none(), read) });
        write.feed("last").await.unwrap();
        write.close_now(CloseCode::GOING_AWAY, "").await.unwrap();
        assert_eq!(read_raw_to_end(&mut raw).await, [b"\x81\x04last", CLOSE].concat());
        let (is_over, mut read) = reading.await.unwrap();
        assert!(is_over && read.next().await.is_none());
        for closed in [write.closed(), read.closed()] {
            let closed = closed.expect("the halves know the end");
            assert_eq!((closed.cause(), closed.code()), (Cause::Local, Some(CloseCode::GOING_AWAY)));
        }
        write.close_now(CloseCode::NORMAL, "").await.unwrap();
        read.close_now(CloseCode::NORMAL, "").await.unwrap();
        assert!(matches!(write.send("late").await, Err(Error::Closed(_))));
    });
}

#[test]
fn close_now_of_the_read_half_ends_the_write_half() {
    run_without_waiting(async |socket, mut raw| {
        let (mut write, mut read) = socket.split();
        write.send("sent").await.unwrap();
        read.close_now(CloseCode::GOING_AWAY, "").await.unwrap();
        assert_eq!(read_raw_to_end(&mut raw).await, [b"\x81\x04sent", CLOSE].concat());
        assert!(read.next().await.is_none());
        let late = write.send("late").await;
        assert!(matches!(&late, Err(Error::Closed(closed)) if closed.cause() == Cause::Local), "{late:?}");
        write.close_now(CloseCode::NORMAL, "").await.unwrap();
    });
}
