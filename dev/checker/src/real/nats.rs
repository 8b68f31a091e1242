//! Three servers.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::script::{LaneError, Script, jetstream};
use super::{Begun, Links, Servers};
use crate::driver::PlannedFault;

/// Servers.
pub(super) const SERVERS: usize = 3;
/// Time in which all servers must have all.
const CURRENT_LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);

pub(super) struct NatsServers {
    cluster: Script,
}

impl NatsServers {
    pub(super) fn start() -> Result<Self, LaneError> {
        Ok(Self { cluster: Script::start("nats.sh", SERVERS)? })
    }

    /// The answer from any server.
    fn ask(&self, subject: &str, body: &str) -> io::Result<Value> {
        let mut last = io::Error::other("no server answers");
        for port in self.ports() {
            match jetstream(port, subject, body) {
                Ok(answer) => return Ok(serde_json::from_str(&answer).unwrap_or(Value::Null)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn streams(&self) -> io::Result<Vec<String>> {
        let answer = self.ask("STREAM.NAMES", "")?;
        let names = answer["streams"].as_array().into_iter().flatten();
        Ok(names.filter_map(|name| name.as_str().map(str::to_owned)).collect())
    }

    /// Whether all servers have all of each stream.
    fn is_current(&self) -> io::Result<bool> {
        for stream in self.streams()? {
            let info = self.ask(&format!("STREAM.INFO.{stream}"), "")?;
            let cluster = &info["cluster"];
            let replicas = cluster["replicas"].as_array().map_or(&[][..], Vec::as_slice);
            let is_behind = |replica: &Value| replica["current"] != true || replica["offline"] == true;
            if !cluster["leader"].is_string()
                || replicas.len() + 1 != SERVERS
                || replicas.iter().any(is_behind)
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits, as an operator does before the next server.
    fn until_current(&self) -> Result<(), LaneError> {
        let begun = Instant::now();
        while !self.is_current().unwrap_or(false) {
            if begun.elapsed() > CURRENT_LIMIT {
                return Err(LaneError::Failed(format!("servers are behind after {CURRENT_LIMIT:?}")));
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Takes a server away for a time.
    fn take_away(&self, verbs: [&str; 2], server: usize, time: Duration) -> Result<(), LaneError> {
        let number = (server + 1).to_string();
        self.cluster.run(&[verbs[0], &number])?;
        thread::sleep(time);
        self.cluster.run(&[verbs[1], &number])?;
        self.until_current()
    }
}

impl Servers for NatsServers {
    const NAME: &'static str = "nats";
    const TTL_RESOLUTION: u64 = 1_000_000;
    const WRITE_RESOLUTION: u64 = 1_000_000;
    const READS_ARE_EXACT: bool = false;
    const KEYS_ARE_STREAM: bool = true;

    fn ports(&self) -> Vec<u16> {
        (self.cluster.port..).take(SERVERS).collect()
    }

    fn url(&self, ports: &[u16], seed: u64) -> String {
        let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("nats://{}?prefix=c{seed}", hosts.join(","))
    }

    fn begin(self: &Arc<Self>, fault: PlannedFault, _: &Links) -> Result<Begun, LaneError> {
        let this = Arc::clone(self);
        let micros = Duration::from_micros;
        Ok(match fault {
            PlannedFault::Freeze { server, time } => {
                Begun::Task(Box::new(move || this.take_away(["stop", "cont"], server, micros(time))))
            }
            PlannedFault::Kill { server, away } => {
                Begun::Task(Box::new(move || this.take_away(["kill", "up"], server, micros(away))))
            }
            PlannedFault::StepDown => Begun::Task(Box::new(move || {
                for stream in this.streams()? {
                    this.ask(&format!("STREAM.LEADER.STEPDOWN.{stream}"), "")?;
                }
                this.until_current()
            })),
            _ => Begun::Later,
        })
    }

    fn heal(&self) {}
}
