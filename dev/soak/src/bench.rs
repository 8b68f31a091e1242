//! Loads from `sinews bench`, which compares every answer, and its processes' faults.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use sinews_testkit::{Rng, process};

use crate::Fault;
use crate::scenarios::World;

/// A load in one process.
pub(crate) struct BenchLoad {
    pub(crate) name: &'static str,
    scheme: &'static str,
    path: &'static str,
    options: &'static str,
}

const fn load(
    name: &'static str,
    scheme: &'static str,
    path: &'static str,
    options: &'static str,
) -> BenchLoad {
    BenchLoad { name, scheme, path, options }
}

/// Path for topics that no other process has.
const TOPIC: &str = "/topics/soak-{process}-{topic}";

/// Loads for a server without TLS.
pub(crate) const LOADS: [BenchLoad; 10] = [
    load("bursts", "ws", "/echo", "-c 24 -i 50 --burst -s 1-300 --binary"),
    load("text", "ws", "/echo", "-c 16 -i 4 -s 1-20k --text"),
    load("large", "ws", "/echo", "-c 3 -s 256k-4m --binary"),
    load("deflate", "ws", "/echo", "-c 8 -i 8 -s 1-5k --deflate"),
    load("http", "http", "/", "-c 8 -i 10 --requests-per-connection 50"),
    load("posts", "http", "/topics/soak", "-c 4 --method POST -s 1-3k"),
    load("topics", "ws", TOPIC, "-m fan-out -c 18 --publishers 2 --topics 2 --rate 300 -s 64-1k"),
    load("http2", "ws", "/echo", "--http2 -c 4 --sockets-per-connection 8 -i 6 -s 1-200k"),
    load("http2 requests", "http", "/healthz", "--http2 -c 2 -i 20"),
    load("connections", "ws", "/echo", "-m storm -c 64"),
];

/// Loads for a server with TLS and HTTP/3.
pub(crate) const HTTP3_LOADS: [BenchLoad; 3] = [
    load("http3", "wss", "/echo", "-k --http3 -c 4 --sockets-per-connection 8 -i 6 -s 1-200k"),
    load("http3 requests", "https", "/healthz", "-k --http3 -c 2 -i 20"),
    load("webtransport", "wss", "/echo", "-k --webtransport -c 4 -i 6 -s 1-20k"),
];

/// Loads that last as long as all others: connections that stay open, and subscribers that do not read. The server
/// disconnects the latter, once it has queued a megabyte behind what the kernel takes.
pub(crate) const STEADY: [BenchLoad; 2] = [
    load("residents", "ws", "/echo", "-c 40 --rate 100 -s 1-2k"),
    load("slow subscribers", "ws", TOPIC, "-m fan-out -c 6 --stalled 3 -s 8k --rate 200"),
];

/// Connections of a storm, which are busy when their process is killed.
pub(crate) const STORM: BenchLoad = load("storm", "ws", "/echo", "-i 4 -s 1-3k --backend poll");

/// Connections that wait for a server without descriptors.
pub(crate) const CROWD: BenchLoad = load("crowd", "ws", "/echo", "-m idle --backend poll");

/// Small messages.
pub(crate) const ECHO: BenchLoad = load("echo", "ws", "/echo", "-s 64 --binary");

/// One connection, which is answered.
pub(crate) const ONE: BenchLoad = load("one", "ws", "/echo", "-c 1 -n 1");
pub(crate) const ONE_HTTP3: BenchLoad = load("one", "wss", "/echo", "-k --http3 -c 1 -n 1");

/// What happens to a process in the middle of its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessFault {
    None,
    /// It is stopped for a while, in which it reads nothing, and continues.
    Pause,
    /// It is killed: its connections end in the middle of messages and handshakes, by a reset if answers are unread.
    Kill,
}

impl ProcessFault {
    pub(crate) fn any(rng: &mut Rng) -> Self {
        match rng.below(4) {
            0 => Self::Kill,
            1 => Self::Pause,
            _ => Self::None,
        }
    }
}

impl BenchLoad {
    /// Starts `sinews bench`, with further options.
    pub(crate) fn start(
        &self,
        binary: &Path,
        address: SocketAddr,
        more: &[&str],
    ) -> Result<BenchProcess, Fault> {
        static PROCESSES: AtomicU64 = AtomicU64::new(0);
        let Self { scheme, options, .. } = self;
        let path = self.path.replace("{process}", &PROCESSES.fetch_add(1, Ordering::Relaxed).to_string());
        let child = Command::new(binary)
            .args(["bench", &format!("{scheme}://{address}{path}")])
            .args(options.split(' '))
            .args(["--timeout", TIMEOUT, "--json", "--quiet"])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        Ok(BenchProcess(Some(child)))
    }

    /// Runs the load for a time. Without a kill, every answer has to be right.
    pub(crate) fn run(
        &self,
        world: &World,
        time: Duration,
        fault: ProcessFault,
        rng: &mut Rng,
    ) -> Result<(), Fault> {
        let seconds = format!("{}ms", time.as_millis());
        let mut process =
            self.start(&world.binary, world.address, &["--duration", &seconds, "--warm-up", "0s"])?;
        let part = time.mul_f64(rng.below(1000) as f64 / 1e3);
        match fault {
            ProcessFault::None => {}
            ProcessFault::Pause => {
                thread::sleep(part);
                process.signal("STOP");
                thread::sleep(PAUSE);
                process.signal("CONT");
            }
            ProcessFault::Kill => {
                thread::sleep(part);
                process.kill();
                return Ok(());
            }
        }
        let result = process.result()?;
        let count = |value: &Value| value.as_u64().unwrap_or_default();
        world.tally.add(count(&result["connect_us"]["count"]), count(&result["messages"]));
        Ok(())
    }
}

/// A `sinews bench` process; dropping it kills it.
pub(crate) struct BenchProcess(Option<Child>);

impl BenchProcess {
    fn signal(&self, signal: &str) {
        // It may have ended already.
        let _ = self.0.as_ref().is_some_and(|child| process::signal(child.id(), signal));
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Interrupts it, and returns its warnings and errors.
    pub(crate) fn interrupt(&mut self) -> Result<String, Fault> {
        self.signal("INT");
        let output = self.0.take().ok_or("the process was killed")?.wait_with_output()?;
        let errors = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        Ok(format!("{}, {errors}", output.status))
    }

    /// Waits for its end, and returns its figures. Each wrong or missing answer is an error.
    pub(crate) fn result(mut self) -> Result<Value, Fault> {
        let child = self.0.take().ok_or("the process was killed")?;
        let output = child.wait_with_output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().into());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

impl Drop for BenchProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Longer than any answer takes on a busy machine; reached only when data is lost.
const TIMEOUT: &str = "60s";

/// Shorter than the server's timeouts.
const PAUSE: Duration = Duration::from_secs(1);
