//! Memory of an idle connection on compio, by counting allocations.
#![cfg(feature = "compio")]

use std::num::NonZero;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use compio::driver::ProactorBuilder;
use compio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use compio::net::UnixStream;
use compio::runtime::RuntimeBuilder;
use sinews::compio::WebSocket;
use sinews::{Config, Message};
use sinews_testkit::{CountingAllocator, live_bytes, negotiate};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

type End = WebSocket<UnixStream>;

fn pair() -> (End, End) {
    let agreed = negotiate(None, None);
    let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
    let config = Arc::new(Config::default());
    (
        WebSocket::from_negotiated(UnixStream::from_std(one).unwrap(), agreed.client, config.clone(), &[]),
        WebSocket::from_negotiated(UnixStream::from_std(other).unwrap(), agreed.server, config, &[]),
    )
}

/// Waits for bytes, as an idle connection does.
fn wait(end: &mut End) {
    let waiting = std::pin::pin!(end.next());
    assert!(matches!(waiting.poll(&mut Context::from_waker(Waker::noop())), Poll::Pending));
}

async fn exchange((client, server): &mut (End, End), message: Message, times: usize) {
    for _ in 0..times {
        client.feed(message.clone()).await.unwrap();
    }
    let sending = async { client.flush().await.unwrap() };
    let echoing = async {
        for _ in 0..times {
            let heard = server.next().await.unwrap().unwrap();
            assert_eq!(heard, message);
            server.feed(heard).await.unwrap();
        }
    };
    futures_util::join!(sending, echoing);
    let sending = async { server.flush().await.unwrap() };
    let hearing = async {
        for _ in 0..times {
            assert_eq!(client.next().await.unwrap().unwrap(), message);
        }
    };
    futures_util::join!(sending, hearing);
    for _ in 0..2 {
        // The second receive begins after the check for more input has completed.
        wait(client);
        wait(server);
        turn().await;
    }
}

/// Yields to the runtime: bytes go through the kernel and back.
async fn turn() {
    let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
    let (mut one, mut other) = (UnixStream::from_std(one).unwrap(), UnixStream::from_std(other).unwrap());
    for _ in 0..3 {
        one.write_all([1]).await.unwrap();
        other.read_exact([0]).await.unwrap();
    }
}

const CONNECTIONS: usize = 50;

/// Maximum memory of one end, including its own size and its receive in flight.
const END_MAX: isize = 1536;

/// Length and number of the messages of a burst: short messages, a message that is received into its own memory, and
/// messages that fill the managed buffers exactly.
const HISTORIES: [(usize, usize); 3] = [(64, 50), (256 << 10, 1), (8192 - 8, 4)];

/// All connections wait some seconds, until the spare memory of the thread is freed, which belongs to no connection.
async fn settle(pairs: &mut [(End, End)]) -> isize {
    for _ in 0..2 {
        // A deadline waits a millisecond more for a receive that was just begun.
        for pause in [2100, 5] {
            compio::time::sleep(Duration::from_millis(pause)).await;
            for (client, server) in &mut *pairs {
                wait(client);
                wait(server);
            }
        }
        turn().await;
    }
    live_bytes()
}

#[test]
fn idle_connection_is_small_after_any_history() {
    let mut proactor = ProactorBuilder::new();
    proactor.buffer_pool_size(NonZero::new(16).unwrap());
    let runtime = match RuntimeBuilder::new().with_proactor(proactor).build() {
        Ok(runtime) => runtime,
        Err(error) => return println!("skipped: no runtime: {error}"),
    };
    runtime.block_on(async {
        // Allocate the thread's shared memory before the measurement.
        let mut first = [pair()];
        for (len, times) in HISTORIES {
            exchange(&mut first[0], Message::binary(vec![1; len]), times).await;
        }
        let before = settle(&mut first).await;
        let mut pairs: Vec<(End, End)> = Vec::with_capacity(CONNECTIONS);
        pairs.extend((0..CONNECTIONS).map(|_| pair()));
        for (len, times) in HISTORIES {
            for pair in &mut pairs {
                exchange(pair, Message::binary(vec![1; len]), times).await;
            }
        }
        let each = (settle(&mut pairs).await - before) / (2 * CONNECTIONS as isize);
        println!("{each} bytes for each end, {} of them the WebSocket", size_of::<End>());
        assert!(each <= END_MAX, "{each} bytes");
    });
}
