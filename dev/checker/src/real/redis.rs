//! A primary and a replica.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::proxy::{Proxy, ProxyFault};
use super::script::{LaneError, Script, redis};
use super::{Begun, Links, Servers};
use crate::driver::PlannedFault;

/// Time in which a replica must have all.
const SYNC_LIMIT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(10);
/// Longer than a run.
const ALWAYS: Duration = Duration::from_secs(86_400);

pub(super) struct RedisServers {
    servers: [Script; 2],
    primary: AtomicUsize,
    /// From the replica to the primary.
    replication: Proxy,
    is_stopped: AtomicBool,
}

impl RedisServers {
    pub(super) fn start() -> Result<Self, LaneError> {
        let start = || {
            let server = Script::start("redis.sh", 1)?;
            // A replica begins at once.
            redis(server.port, "CONFIG SET repl-diskless-sync-delay 0")?;
            Ok::<_, LaneError>(server)
        };
        let servers = [start()?, start()?];
        let replication = Proxy::start(servers[0].port, false)?;
        redis(servers[1].port, &format!("REPLICAOF 127.0.0.1 {}", replication.port()))?;
        let primary = AtomicUsize::new(0);
        let all = Self { servers, primary, replication, is_stopped: AtomicBool::new(false) };
        all.until_replicated()?;
        Ok(all)
    }

    fn primary(&self) -> &Script {
        &self.servers[self.primary.load(Ordering::SeqCst)]
    }

    fn replicates(&self) -> bool {
        redis(self.primary().port, "INFO replication").is_ok_and(|info| info.contains("state=online"))
    }

    fn until_replicated(&self) -> Result<(), LaneError> {
        let begun = Instant::now();
        while !self.replicates() {
            if begun.elapsed() > SYNC_LIMIT {
                return Err(LaneError::Failed(format!("the replica is not online after {SYNC_LIMIT:?}")));
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Makes the replica the primary for the nodes, and the primary its replica.
    fn fail_over(&self, away: Duration, links: &Links) -> Result<(), LaneError> {
        let old = self.primary();
        let index = 1 - self.primary.load(Ordering::SeqCst);
        let new = &self.servers[index];
        self.replication.set_closed(true);
        redis(new.port, "REPLICAOF NO ONE")?;
        self.primary.store(index, Ordering::SeqCst);
        thread::sleep(away);
        links.all().for_each(|proxy| proxy.set_target(new.port));
        links.open();
        self.replication.heal();
        self.replication.set_target(new.port);
        self.replication.set_closed(false);
        self.is_stopped.store(false, Ordering::SeqCst);
        redis(old.port, &format!("REPLICAOF 127.0.0.1 {}", self.replication.port()))?;
        self.until_replicated()
    }

    fn restart_empty(&self, links: &Links) -> Result<(), LaneError> {
        let primary = self.primary();
        primary.run(&["kill"])?;
        fs::remove_dir_all(primary.directory.join("appendonlydir"))?;
        self.up(primary)?;
        links.open();
        self.until_replicated()
    }

    fn up(&self, server: &Script) -> Result<(), LaneError> {
        server.run(&["up"])?;
        redis(server.port, "CONFIG SET repl-diskless-sync-delay 0")?;
        Ok(())
    }
}

impl Servers for RedisServers {
    const NAME: &'static str = "redis";
    /// A node's estimate of the server's clock is late by the time of a login, over a link that holds bytes.
    const TTL_RESOLUTION: u64 = 100_000 + 2_000_000;
    const WRITE_RESOLUTION: u64 = 1_000;
    const READS_ARE_EXACT: bool = true;
    const KEYS_ARE_STREAM: bool = false;

    fn ports(&self) -> Vec<u16> {
        vec![self.primary().port]
    }

    fn url(&self, ports: &[u16], seed: u64) -> String {
        format!("redis://127.0.0.1:{}?prefix=c{seed}:", ports[0])
    }

    fn begin(self: &Arc<Self>, fault: PlannedFault, links: &Links) -> Result<Begun, LaneError> {
        let (this, links) = (Arc::clone(self), links.clone());
        let port = self.primary().port;
        let is_stopped = self.is_stopped.load(Ordering::SeqCst);
        let micros = Duration::from_micros;
        Ok(match fault {
            PlannedFault::StopReplication if !is_stopped && self.replicates() => {
                self.replication.fail(ProxyFault::Silent, ALWAYS);
                self.is_stopped.store(true, Ordering::SeqCst);
                Begun::Now
            }
            PlannedFault::FailOver { away } if is_stopped => {
                links.close();
                Begun::Task(Box::new(move || this.fail_over(micros(away.unwrap_or(0)), &links)))
            }
            PlannedFault::RestartEmpty if !is_stopped => {
                links.close();
                Begun::Task(Box::new(move || this.restart_empty(&links)))
            }
            PlannedFault::Freeze { time, .. } => Begun::Task(Box::new(move || {
                this.primary().run(&["stop"])?;
                thread::sleep(micros(time));
                this.primary().run(&["cont"])
            })),
            PlannedFault::Kill { away, .. } => Begun::Task(Box::new(move || {
                this.primary().run(&["kill"])?;
                thread::sleep(micros(away));
                this.up(this.primary())
            })),
            PlannedFault::Pause(time) => Begun::Task(Box::new(move || {
                redis(port, &format!("CLIENT PAUSE {} ALL", time / 1_000))?;
                thread::sleep(micros(time));
                Ok(())
            })),
            PlannedFault::FlushScripts => redis(port, "SCRIPT FLUSH").map(|_| Begun::Now)?,
            PlannedFault::KillSubscriptions => redis(port, "CLIENT KILL TYPE pubsub").map(|_| Begun::Now)?,
            _ => Begun::Later,
        })
    }

    fn heal(&self) {
        self.replication.heal();
        self.is_stopped.store(false, Ordering::SeqCst);
    }
}
