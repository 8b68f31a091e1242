//! A temporary Kafka.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::Error;

/// One broker on this machine, started by `dev/brokers/kafka.sh`, or a broker that runs already.
pub(crate) struct Kafka {
    pub(crate) address: String,
    /// This process started the broker, and stops it on drop.
    is_ours: bool,
}

impl Kafka {
    /// Starts a broker on the core of the load, unless an address is given.
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

    /// Returns the next offset of a topic, which is the number of its messages. Creates a missing topic,
    /// which takes a moment.
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
                return Err(format!("offsets of {topic}: {}", why.trim()).into());
            }
            attempt += 1;
            thread::sleep(PAUSE);
        }
    }
}

/// A new topic has no leader yet.
const ATTEMPTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(200);

impl Drop for Kafka {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = script("down").status();
        }
    }
}

/// Uses a separate port, so that tests may run their own broker meanwhile.
fn script(what: &str) -> Command {
    let path: PathBuf = concat!(env!("CARGO_MANIFEST_DIR"), "/../brokers/kafka.sh").into();
    let mut command = Command::new(path);
    command.arg(what);
    if env::var_os("BROKER_PORT").is_none() {
        command.env("BROKER_PORT", PORT);
    }
    // The optimizing compiler pays off within the first seconds.
    if env::var_os("KAFKA_TIER").is_none() {
        command.env("KAFKA_TIER", "4");
    }
    // A large heap keeps garbage collection out of the measurement.
    if env::var_os("KAFKA_HEAP").is_none() {
        command.env("KAFKA_HEAP", "1g");
    }
    command
}

const PORT: &str = "19392";
