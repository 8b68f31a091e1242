//! The broker that `cargo xtask brokers` has started for tests.

use std::env;
use std::process::{Command, Stdio};

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

/// Runs a command of the broker's control script.
pub(crate) fn control(verb: &str) {
    let script = env::var("SINEWS_TEST_BROKER_SCRIPT").expect("cargo xtask brokers sets it");
    let status = Command::new(script).arg(verb).stdout(Stdio::null()).status().expect("bash runs");
    assert!(status.success(), "{verb}: {status}");
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
