use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use sinews_stream::Durability;
use sinews_stream::record::{RecordBuilder, ValueKind};
use tokio::sync::Notify;

use super::*;
use crate::reconnect::simulated;

/// Attempts to connect, each of which has a delay behind it.
const LOSSES: usize = 6;

#[test]
fn connections_have_nodelay() {
    for url in ["redis://localhost:6379", "rediss://localhost:6379"] {
        let address = BrokerUrl::parse(url, &BTreeMap::new()).expect("a URL");
        let client = client(&address, &address.hosts[0], 0).expect("a client");
        assert!(client.get_connection_info().tcp_settings().nodelay(), "{url}");
    }
}

/// Answers the login commands, and returns at the first command `last`, or without one behind the login.
fn log_in(stream: &TcpStream, last: Option<&str>) {
    let mut lines = BufReader::new(stream.try_clone().expect("a descriptor")).lines();
    let mut logins = 0;
    while let Some(Ok(line)) = lines.next() {
        let answer: &[u8] = match &*line {
            // The client names its library, and the version.
            "SETINFO" => {
                logins += 1;
                b"+OK\r\n"
            }
            "SCRIPT" => b"-ERR unknown command\r\n",
            _ if Some(&*line) == last => return,
            _ => continue,
        };
        let mut stream = stream;
        stream.write_all(answer).expect("it is open");
        if logins == 2 && last.is_none() {
            return;
        }
    }
}

/// A Redis that closes each connection: every second one before the login, and the others at the command. Notifies of its end.
fn start(last: Option<&'static str>) -> (Redis, Arc<Notify>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!("redis://{}", listener.local_addr().expect("it is bound"));
    let is_done = Arc::new(Notify::new());
    let done = Arc::clone(&is_done);
    let server = thread::spawn(move || {
        for connection in 0..LOSSES {
            let (stream, _) = listener.accept().expect("a connection");
            if connection % 2 == 0 {
                log_in(&stream, last);
            }
        }
        let _next = listener.accept().expect("a connection");
        done.notify_one();
    });
    let address = BrokerUrl::parse(&url, &BTreeMap::new()).expect("a URL");
    let redis = Redis {
        client: client(&address, &address.hosts[0], 0).expect("a client"),
        prefix: String::new(),
        partitions: 1,
        maxlen: 0,
        status: Arc::new(Status::new(url, Duration::ZERO)),
        connection: SharedConnection::default(),
        announcements: RefCell::default(),
        subscribe: WakeSignal::default(),
    };
    (redis, is_done, server)
}

fn run(future: impl Future<Output = ()>) -> Vec<Duration> {
    simulated::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(future);
    simulated::delays()
}

#[test]
fn delays_of_the_subscriptions_grow_across_logins() {
    let (redis, is_done, server) = start(None);
    let delays = run(async {
        select(pin!(redis.run()), pin!(is_done.notified())).await;
    });
    server.join().expect("no panic");
    assert!(delays.len() >= LOSSES, "{delays:?}");
    simulated::assert_growth(&delays);
}

#[test]
fn delays_of_appends_grow_across_logins() {
    let (redis, is_done, server) = start(Some("EVAL"));
    let (queue, receiver) = mpsc::channel(1);
    let appends = async {
        for _ in 0..=LOSSES {
            let mut records = RecordBuilder::new();
            records.push(0, b"", b"a", ValueKind::Bytes).expect("small");
            let records = records.finish().expect("a record");
            let (append, mut pending) = QueuedAppend::without_queue(records, redis.status.clone());
            assert!(queue.send(append).await.is_ok());
            assert!(pending.wait(Durability::Broker).await.is_err());
        }
    };
    let delays = run(async {
        let work = futures_util::future::join(redis.publish(receiver), appends);
        select(pin!(work), pin!(is_done.notified())).await;
    });
    server.join().expect("no panic");
    assert!(delays.len() >= LOSSES, "{delays:?}");
    simulated::assert_growth(&delays);
}
