//! A Kafka that is there while it is needed.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::Error;

/// One broker on this machine, started by `dev/brokers/kafka.sh`, or one that runs anyway.
pub(crate) struct Kafka {
    pub(crate) address: String,
    /// Ended with this value.
    is_ours: bool,
}

impl Kafka {
    /// Starts it on the core of the load, unless there is an address of one.
    pub(crate) fn start(given: Option<&str>, seconds: u64) -> Result<Self, Error> {
        if let Some(address) = given {
            return Ok(Self { address: address.to_owned(), is_ours: false });
        }
        let output = script("up").env("BROKER_SECONDS", seconds.to_string()).output()?;
        if !output.status.success() {
            return Err(format!("no Kafka: {}", String::from_utf8_lossy(&output.stderr).trim()).into());
        }
        let address = String::from_utf8(output.stdout)?.trim().to_owned();
        Ok(Self { address, is_ours: true })
    }

    /// The offset that the next message of a topic gets: how many there have been. One that is not there is made, which
    /// takes a moment.
    pub(crate) fn next(&self, ingest: &Path, topic: &str) -> Result<u64, Error> {
        let mut command = Command::new(ingest);
        command.args(["ends", "--kafka", &self.address, "--topic", topic]);
        let mut attempt = 1;
        loop {
            let output = command.output()?;
            let text = String::from_utf8_lossy(&output.stdout);
            if let Some(next) = text.split_whitespace().nth(1).and_then(|next| next.parse().ok()) {
                return Ok(next);
            }
            if attempt == ATTEMPTS {
                let why = String::from_utf8_lossy(&output.stderr);
                return Err(format!("how far {topic} goes: {}", why.trim()).into());
            }
            attempt += 1;
            thread::sleep(PAUSE);
        }
    }
}

/// A topic that has just been made has no leader yet.
const ATTEMPTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(200);

impl Drop for Kafka {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = script("down").status();
        }
    }
}

/// On a port of its own, so that tests may have theirs meanwhile.
fn script(what: &str) -> Command {
    let path: PathBuf = concat!(env!("CARGO_MANIFEST_DIR"), "/../brokers/kafka.sh").into();
    let mut command = Command::new(path);
    command.arg(what);
    if env::var_os("BROKER_PORT").is_none() {
        command.env("BROKER_PORT", PORT);
    }
    // Its compiler for what runs often pays within the first seconds.
    if env::var_os("KAFKA_TIER").is_none() {
        command.env("KAFKA_TIER", "4");
    }
    // Nor is it to be measured how often it collects garbage.
    if env::var_os("KAFKA_HEAP").is_none() {
        command.env("KAFKA_HEAP", "1g");
    }
    command
}

const PORT: &str = "19392";
