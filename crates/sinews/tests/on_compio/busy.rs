//! An application that handles a message slowly.

use std::time::{Duration, Instant};

use crate::support::ends;
use compio::runtime::Runtime;
use sinews::{Config, Message};

#[test]
fn unread_input_in_the_socket_is_not_silence() {
    let Ok(runtime) = Runtime::new() else { return println!("skipped: no runtime") };
    // On a busy machine, this thread may not run for the timeout while the server waits: then once more.
    runtime.block_on(async { while !unread_input_is_received().await {} });
}

/// Returns whether the server has not waited for the timeout before.
async fn unread_input_is_received() -> bool {
    let idle = Duration::from_secs(1);
    let config = Config::default().with_idle_timeout(Some(idle)).with_ping_interval(None);
    let (mut client, mut server) = ends(&config);
    let client = compio::runtime::spawn(async move {
        // The server waits by then, and has set its timer.
        compio::time::sleep(Duration::from_millis(10)).await;
        // The server may have timed out.
        let _ = client.send("one").await;
        let _ = client.send("two").await;
        client
    });
    let begun = Instant::now();
    let first = server.next().await;
    if begun.elapsed() >= idle / 2 {
        return false;
    }
    assert_eq!(first.unwrap().unwrap(), Message::text("one"));
    let client = client.await;
    compio::time::sleep(idle * 3 / 2).await;
    assert_eq!(server.next().await.unwrap().unwrap(), Message::text("two"));
    drop(client);
    true
}
