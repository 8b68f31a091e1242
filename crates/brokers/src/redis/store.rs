//! A topic store in Redis or Valkey, from version 7.0 on.
//!
//! # Operations
//! An operation is a part of a Lua script, so that it is atomic. Operations that wait together for one script are one call
//! of it ([`batch`]): entering a script costs more than an operation. Redis announces a change by `PUBLISH` in the same
//! script, and one connection has the node's subscriptions ([`follow`]).
//!
//! # Lost writes
//! A failover to a replica may lose acknowledged writes. Each topic's state names the replication id that its last
//! writer had. If the id differs, the next sequence is the time in microseconds, or 2^20 higher: sequences that lost
//! messages had are never used again, even if another failover loses this message, and the next message names the last surviving one as its predecessor. So a
//! [`TopicChain`](sinews_store::TopicChain) and [`LogPage::follows`](sinews_store::LogPage::follows) find the loss, and nodes
//! without a lost message continue. A server without a replication id begins a new epoch instead.
//!
//! # Log: a list
//! 50,000 topics with one message of 200 bytes, by the used memory of Redis 7.0.15 per topic: list 443 bytes, stream
//! 4,346 bytes (762 with `stream-node-max-bytes 512`, a setting of the server). `LPOP` of a list returns what it removes,
//! so that limits of bytes are exact. The state is a string (138 bytes with its name; 154 as a hash), since `SET` with a
//! time to live is one command. Processor time of Redis 7.0.15 for an append of 200 bytes to topics with 100 messages, in
//! batches of 1, 8 and 64: 20, 11 and 9 µs (`measure_appends`). 13 µs are those of one call, whatever the batch.
//!
//! # Keys
//! A hash has the values with their versions and expiries, and sorted sets index them: versions for the changes since a
//! position, expiries, and removals, which are remembered for 60 s. Time is the server's: each script compares expiries
//! with it, so that an expired key has no value for readers and writers; nodes
//! compare announced expiries with their estimate of that clock ([`clock`]). One node at a time, by a lease, removes expired
//! keys and announces that ([`sweep`]). Options and limits are one argument each, which a script reads once per batch, and
//! a write leaves the texts that it does not change: `measure_key_writes` prints the cost.
//!
//! # Rights
//! The least rights of an ACL user:
//!
//! ```text
//! ACL SETUSER sinews on >PASSWORD resetchannels &sinews:* ~sinews:* -@all +del +eval +evalsha +get
//!   +hdel +hget +hmget +hscan +hset +info +lindex +llen +lpop +lrange +persist +pexpire +ping +publish +rpush
//!   +script|load +select +set +subscribe +time +unsubscribe +wait +zadd +zrange +zrangebyscore +zrem +zscore
//! ```
//!
//! Patterns need `+psubscribe +punsubscribe`, and `allchannels` in place of `&sinews:*`: Redis compares a pattern with
//! the rights letter by letter. A Redis Cluster needs further ones, and these for patterns do not exist there:
//!
//! ```text
//! +cluster|nodes +exists +spublish +ssubscribe +sunsubscribe
//! ```
//!
//! # Several servers
//! [`StoreServers`] divides the partitions between independent servers, or a Redis Cluster does ([`topology`]). Each server has its
//! own connections, queue, health, scripts and lease, and the rule for lost writes is a matter of one server. In a cluster a
//! batch has operations in one partition, channels are sharded, and patterns are matched by the nodes: each message is
//! announced to its partition, too. A slot that moves takes its topics along as if after a failover without a loss: a script
//! touches each key that it may write before it writes, so that a part of a topic at another server is an error without an
//! effect. `ASK` is not obeyed: the target would take keys that have not arrived for missing ones.

mod batch;
mod channel;
mod clock;
mod connection;
mod decode;
mod follow;
mod keys;
mod log;
mod messages;
mod names;
mod queue;
mod random;
mod script;
mod servers;
mod settings;
mod shared;
mod store_thread;
mod sweep;
mod topology;
mod windows;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use sinews_store::{
    AckedLoss, Capabilities, ConditionSupport, FailoverDetection, FirstValue, KeyChanges, KeyCommands,
    KeysWritten, LogAppend, LogAppended, LogPage, OnceRequest, PartKind, Position, ReadKeys, ReadLog,
    StoreAnswer, StoreError, StoreHealth, StoreServer, StoreSink, StoredKeys, TakeRequest, TopicPart,
    TopicStore,
};
use tokio::runtime;
use tokio::task::LocalSet;

use self::channel::FollowedChannel;
use self::connection::ServerThread;
use self::names::partition;
use self::servers::{ServerState, StoreServers};
use self::settings::{Settings, StoreTarget};
use self::shared::RedisStoreShared;
use self::store_thread::StoreThread;
use self::topology::Topology;
use crate::error::BrokerConfigError;
use crate::lock::lock;

/// Time for which repetitions are recognized.
const ONCE_WINDOW: Duration = Duration::from_secs(5 * 60);
/// Maximum bytes of a payload or value.
const VALUE_MAX: usize = 8 << 20;

/// A topic store in Redis.
pub(crate) struct RedisStore {
    shared: Arc<RedisStoreShared>,
    /// Taken by the thread.
    settings: Mutex<Option<Settings>>,
}

/// Creates a store from a URL. It connects when it is started.
pub(crate) fn connect(
    url: &str,
    settings: &BTreeMap<String, String>,
) -> Result<RedisStore, BrokerConfigError> {
    Ok(RedisStore::new(Settings::parse(url, settings)?))
}

impl RedisStore {
    fn new(settings: Settings) -> Self {
        let servers = match &settings.target {
            StoreTarget::Servers(servers) => {
                let servers = servers.iter().map(|(name, _)| Arc::new(ServerState::new(name, false)));
                StoreServers::new(servers.collect(), false)
            }
            StoreTarget::Cluster(_) => StoreServers::new(Vec::new(), true),
        };
        let shared = RedisStoreShared::new(settings.names.clone(), servers);
        Self { shared: Arc::new(shared), settings: Mutex::new(Some(settings)) }
    }

    /// Starts the thread.
    fn run(&self, settings: Settings, sink: Arc<dyn StoreSink>) -> std::io::Result<()> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let shared = self.shared.clone();
        let run = move || {
            LocalSet::new().block_on(&runtime, async {
                start_tasks(&Rc::new(StoreThread::new(settings, shared.clone(), sink)));
                shared.closed.notified().await;
            });
        };
        thread::Builder::new().name("redis-store".to_owned()).spawn(run).map(drop)
    }
}

/// Starts the tasks of all servers.
fn start_tasks(store: &Rc<StoreThread>) {
    match store.settings.target.clone() {
        StoreTarget::Cluster(seeds) => {
            drop(tokio::task::spawn_local(Topology::new(store.clone(), seeds).run()));
        }
        StoreTarget::Servers(servers) => {
            for (state, (_, lookup)) in store.shared.servers.all().into_iter().zip(servers) {
                drop(ServerThread::spawn(store, state, lookup));
            }
        }
    }
}

impl TopicStore for RedisStore {
    fn capabilities(&self) -> Capabilities {
        let detects_failover = self.shared.servers.detect_failover();
        Capabilities {
            engine: "redis",
            logs: true,
            keys: true,
            failover_detection: if detects_failover {
                FailoverDetection::Exact
            } else {
                FailoverDetection::None
            },
            acked_loss: AckedLoss::Failover,
            conditions: ConditionSupport::Exact,
            atomic_keys: true,
            exact_limits: true,
            byte_limit: true,
            ttl_resolution: Duration::from_millis(1),
            once_window: ONCE_WINDOW,
            patterns: true,
            max_value: VALUE_MAX as u64,
            budgets: true,
        }
    }

    fn health(&self) -> StoreHealth {
        self.shared.servers.health()
    }

    fn topic_health(&self, topic: &str) -> StoreHealth {
        self.shared.servers.get(partition(topic)).map_or_else(|health| health, |server| server.health())
    }

    fn servers(&self) -> Vec<StoreServer> {
        self.shared.servers.named()
    }

    fn start(&self, sink: Arc<dyn StoreSink>) {
        let Some(settings) = lock(&self.settings).take() else { return };
        if let Err(error) = self.run(settings, sink) {
            let reason = format!("its thread does not start: {error}");
            self.shared.servers.set_missing(&reason);
            for server in self.shared.servers.all() {
                server.queue.pause(&reason);
                server.set_health(false, &reason);
            }
        }
    }

    fn follow(&self, part: &TopicPart) {
        self.shared.set_followed(FollowedChannel::Part(part.clone()), true);
    }

    fn unfollow(&self, part: &TopicPart) {
        self.shared.set_followed(FollowedChannel::Part(part.clone()), false);
    }

    fn follow_pattern(&self, pattern: &str) {
        self.shared.set_followed(FollowedChannel::Pattern(pattern.into()), true);
    }

    fn unfollow_pattern(&self, pattern: &str) {
        self.shared.set_followed(FollowedChannel::Pattern(pattern.into()), false);
    }

    fn append(&self, append: LogAppend) -> StoreAnswer<LogAppended> {
        self.append_to(append)
    }

    fn read_log(&self, read: ReadLog) -> StoreAnswer<LogPage> {
        self.read_entries(&read)
    }

    fn tops(&self, parts: Vec<TopicPart>) -> StoreAnswer<Vec<Result<Option<Position>, StoreError>>> {
        self.read_tops(&parts)
    }

    fn clear(&self, part: &TopicPart) -> StoreAnswer<()> {
        match part.part {
            PartKind::Log => self.clear_log(part),
            PartKind::Keys => self.clear_keys(&part.topic),
        }
    }

    fn write_keys(&self, writes: KeyCommands) -> StoreAnswer<KeysWritten> {
        self.write(writes)
    }

    fn read_keys(&self, read: ReadKeys) -> StoreAnswer<StoredKeys> {
        self.read_page(&read)
    }

    fn key_changes(&self, topic: &str, after: Position) -> StoreAnswer<KeyChanges> {
        self.read_changes(topic, after)
    }

    fn once(&self, once: OnceRequest) -> StoreAnswer<FirstValue> {
        self.store_once(once)
    }

    fn take(&self, take: TakeRequest) -> StoreAnswer<u32> {
        self.take_permits(&take)
    }

    fn close(&self) {
        self.shared.servers.all().iter().for_each(|server| server.queue.close());
        self.shared.closed.notify_one();
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.close();
    }
}

/// Milliseconds, rounded up.
fn milliseconds(time: Duration) -> u64 {
    /// As long as Redis can add it to the time.
    const MAX: u64 = 1 << 52;
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(MAX).clamp(1, MAX)
}

fn check_size(bytes: usize) -> Result<(), StoreError> {
    if bytes <= VALUE_MAX {
        return Ok(());
    }
    Err(StoreError::TooLarge { bytes: bytes as u64, max: VALUE_MAX as u64 })
}
