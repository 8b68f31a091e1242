//! The broker that `cargo xtask brokers` has started for tests.

use std::env;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// URL of the broker, with settings.
pub(crate) fn url(settings: &str) -> String {
    let url = env::var("SINEWS_TEST_BROKER").expect("cargo xtask brokers sets it");
    format!("{url}?{settings}")
}

/// A name that no earlier run has used, since brokers persist their data.
pub(crate) fn unused_name(name: &str) -> String {
    let now = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos();
    format!("{name}-{now}")
}

/// The broker's control script.
pub(crate) fn script() -> String {
    env::var("SINEWS_TEST_BROKER_SCRIPT").expect("cargo xtask brokers sets it")
}

/// Runs a command of the broker's control script.
pub(crate) fn control(verb: &str) {
    let status = Command::new(script()).arg(verb).stdout(Stdio::null()).status().expect("bash runs");
    assert!(status.success(), "{verb}: {status}");
}

/// Passes connections on to the broker, and counts the bytes that it answers.
#[cfg(any(feature = "nats", feature = "redis"))]
pub(crate) struct CountingProxy {
    address: SocketAddr,
    received: Arc<AtomicUsize>,
}

#[cfg(any(feature = "nats", feature = "redis"))]
impl CountingProxy {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let (received, url) = (Arc::new(AtomicUsize::new(0)), url(""));
        let broker = url.split_once("://").expect("a URL").1.trim_end_matches('?').to_owned();
        let counted = received.clone();
        // Until the process ends.
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(&broker) else { return };
                let (Ok(mut from), Ok(mut to)) = (client.try_clone(), server.try_clone()) else { return };
                thread::spawn(move || io::copy(&mut from, &mut to));
                let counted = counted.clone();
                thread::spawn(move || count(server, client, &counted));
            }
        });
        Self { address, received }
    }

    pub(crate) fn url(&self, settings: &str) -> String {
        let url = url("");
        let scheme = url.split_once("://").expect("a URL").0;
        format!("{scheme}://{}?{settings}", self.address)
    }

    pub(crate) fn received(&self) -> usize {
        self.received.load(Ordering::SeqCst)
    }
}

#[cfg(any(feature = "nats", feature = "redis"))]
fn count(mut server: TcpStream, mut client: TcpStream, counted: &AtomicUsize) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = server.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        counted.fetch_add(count, Ordering::SeqCst);
        client.write_all(&buffer[..count])?;
    }
}

#[cfg(feature = "redis")]
pub(crate) mod redis {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpStream;

    /// Sends a command to Redis; each line has an answer.
    pub(crate) fn command(command: &str) {
        let url = super::url("");
        let address = url.trim_start_matches("redis://").trim_end_matches('?');
        let mut redis = TcpStream::connect(address).expect("it is there");
        redis.write_all(format!("{command}\r\n").as_bytes()).expect("it is there");
        let mut redis = BufReader::new(redis);
        for _ in command.lines() {
            let mut answer = String::new();
            redis.read_line(&mut answer).expect("it answers");
            assert!(!answer.starts_with('-'), "{command}: {answer}");
        }
    }
}
