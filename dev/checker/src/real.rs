//! Real engines: servers on loopback, and a proxy on each link of a node.

#[cfg(feature = "nats")]
mod nats;
mod operator;
mod plan;
mod proxy;
#[cfg(feature = "redis")]
mod redis;
mod script;
mod times;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sinews_brokers::connect_topic_store;
use sinews_store::{KeyUpdate, LogEntry, StoreHealth, StoreSink, TopicPart, TopicStore};

use crate::driver::{EngineSide, Moment, NODES, Plan, PlannedFault, run_with};
use crate::history::History;
#[cfg(feature = "nats")]
use nats::NatsServers;
use operator::Operator;
use proxy::{Proxy, ProxyFault};
#[cfg(feature = "redis")]
use redis::RedisServers;
pub use script::LaneError;
pub use times::{FaultTimes, Times};

/// Time between two looks at nodes and answers.
const PAUSE: Duration = Duration::from_millis(1);
/// Time in which a connection for the final state must be up.
const OBSERVER_LIMIT: Duration = Duration::from_secs(20);

/// A real engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RealEngine {
    /// A primary and a replica. `has_jump`: sequences jump behind a failover, as the engine's rules say.
    #[cfg(feature = "redis")]
    Redis {
        /// As the rules say. Otherwise proxies change the scripts, and acknowledged writes are lost silently.
        has_jump: bool,
    },
    /// Three servers.
    #[cfg(feature = "nats")]
    Nats,
}

impl RealEngine {
    /// Executes a plan from a seed, in which faults happen for a time.
    ///
    /// # Errors
    /// The servers are missing, or do not do what they should.
    pub fn run(self, seed: u64, active: Duration) -> Result<History, LaneError> {
        let active = u64::try_from(active.as_micros()).unwrap_or(u64::MAX);
        match self {
            #[cfg(feature = "redis")]
            Self::Redis { has_jump } => {
                run(&plan::redis(seed, active, has_jump), RedisServers::start()?, has_jump)
            }
            #[cfg(feature = "nats")]
            Self::Nats => run(&plan::nats(seed, active), NatsServers::start()?, true),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis { .. } => RedisServers::NAME,
            #[cfg(feature = "nats")]
            Self::Nats => NatsServers::NAME,
        }
    }
}

fn run<S: Servers>(plan: &Plan, servers: S, has_jump: bool) -> Result<History, LaneError> {
    let side = RealSide::new(servers, plan.seed, has_jump)?;
    let (history, mut side) = run_with(plan, side);
    side.operator.finish()?;
    Ok(history)
}

/// The servers of an engine.
trait Servers: Send + Sync + 'static {
    const NAME: &'static str;
    /// In microseconds.
    const TTL_RESOLUTION: u64;
    const WRITE_RESOLUTION: u64;
    const READS_ARE_EXACT: bool;
    const KEYS_ARE_STREAM: bool;

    /// Ports to which nodes connect.
    fn ports(&self) -> Vec<u16>;

    /// The URL for a node.
    fn url(&self, ports: &[u16], seed: u64) -> String;

    /// Begins a fault, while no other one lasts.
    fn begin(self: &Arc<Self>, fault: PlannedFault, links: &Links) -> Result<Begun, LaneError>;

    /// Ends faults that last.
    fn heal(&self);
}

/// The beginning of a fault.
enum Begun {
    /// It has happened.
    Now,
    /// It is not possible yet.
    Later,
    /// It happens while this runs.
    Task(Box<dyn FnOnce() -> Result<(), LaneError> + Send>),
}

/// The proxies of all nodes.
#[derive(Clone)]
struct Links(Arc<Vec<Vec<Proxy>>>);

impl Links {
    fn all(&self) -> impl Iterator<Item = &Proxy> {
        self.0.iter().flatten()
    }

    /// Closes all connections, and rejects further ones.
    fn close(&self) {
        self.all().for_each(|proxy| proxy.set_closed(true));
    }

    fn open(&self) {
        self.all().for_each(|proxy| proxy.set_closed(false));
    }
}

/// An engine of real servers, with the real clock.
struct RealSide<S> {
    servers: Arc<S>,
    links: Links,
    seed: u64,
    operator: Operator,
    start: Instant,
    looks: u64,
}

impl<S: Servers> RealSide<S> {
    fn new(servers: S, seed: u64, has_jump: bool) -> io::Result<Self> {
        let ports = servers.ports();
        let proxies = |_| ports.iter().map(|port| Proxy::start(*port, !has_jump)).collect();
        let links = Links(Arc::new((0..NODES).map(proxies).collect::<io::Result<_>>()?));
        let operator = Operator::default();
        Ok(Self { servers: Arc::new(servers), links, seed, operator, start: Instant::now(), looks: 0 })
    }

    fn connect(&self, ports: &[u16]) -> Arc<dyn TopicStore> {
        let url = self.servers.url(ports, self.seed);
        connect_topic_store(&url, &BTreeMap::new()).unwrap_or_else(|error| panic!("{url}: {error}"))
    }
}

impl<S: Servers> EngineSide for RealSide<S> {
    fn name(&self) -> &'static str {
        S::NAME
    }

    fn ttl_resolution(&self) -> u64 {
        S::TTL_RESOLUTION
    }

    fn write_resolution(&self) -> u64 {
        S::WRITE_RESOLUTION
    }

    fn reads_are_exact(&self) -> bool {
        S::READS_ARE_EXACT
    }

    fn keys_are_stream(&self) -> bool {
        S::KEYS_ARE_STREAM
    }

    fn store(&self, node: usize) -> Arc<dyn TopicStore> {
        let ports: Vec<u16> = self.links.0[node].iter().map(Proxy::port).collect();
        self.connect(&ports)
    }

    fn observer(&self) -> Arc<dyn TopicStore> {
        let store = self.connect(&self.servers.ports());
        store.start(Arc::new(NoSink));
        let begun = Instant::now();
        while !store.health().is_up() && begun.elapsed() < OBSERVER_LIMIT {
            thread::sleep(PAUSE);
        }
        store
    }

    fn advance(&mut self, next: Option<u64>) -> Moment {
        let now = self.now();
        let until_next = next.map_or(PAUSE, |next| Duration::from_micros(next.saturating_sub(now)));
        thread::sleep(until_next.min(PAUSE));
        let now = self.now();
        Moment { now, is_due: next.is_some_and(|next| next <= now) }
    }

    fn origin(&self) -> Instant {
        self.start
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn answered(&mut self) -> u64 {
        self.looks += 1;
        self.looks
    }

    fn fail(&mut self, fault: PlannedFault) -> bool {
        let (node, link, time) = match fault {
            PlannedFault::Cut { node, away } => (node, ProxyFault::Cut, away),
            PlannedFault::Link { node, fault, time } => (node, fault, time),
            fault => {
                return self.operator.is_idle()
                    && self.operator.begin(self.servers.begin(fault, &self.links));
            }
        };
        self.links.0[node].iter().for_each(|proxy| proxy.fail(link, Duration::from_micros(time)));
        true
    }

    fn heal(&mut self) -> bool {
        let is_idle = self.operator.is_idle();
        if is_idle {
            self.links.all().for_each(Proxy::heal);
            self.servers.heal();
        }
        is_idle
    }
}

/// Takes no notifications.
struct NoSink;

impl StoreSink for NoSink {
    fn appended(&self, _: &str, _: u64, _: LogEntry) {}
    fn keys_changed(&self, _: &str, _: KeyUpdate) {}
    fn following(&self, _: &TopicPart) {}
    fn not_following(&self, _: &TopicPart, _: &str) {}
    fn health_changed(&self, _: StoreHealth) {}
}
