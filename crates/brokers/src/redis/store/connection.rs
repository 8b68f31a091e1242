//! The connection for operations: it is opened again when it fails.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{LocalBoxFuture, select_all};
use redis::aio::{MultiplexedConnection, SendError};
use redis::{AsyncConnectionConfig, ConnectionAddr, ProtocolVersion, PushInfo, PushKind, RedisError, cmd};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::batch::{BatchSender, ReplicaAcks, SentBatches};
use super::queue::DEADLINE;
use super::script::ScriptName;
use super::servers::ServerState;
use super::settings::{CONNECT_TIMEOUT, ServerLookup};
use super::store_thread::StoreThread;
use crate::reconnect::ReconnectDelay;
use crate::redis::error::rejection;

/// Interval of probes on the connection for operations.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Time without an answer to a probe after which a connection is closed.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(4);
/// The first major version with all commands.
const VERSION_MIN: u32 = 7;

/// State of one server on the store's thread.
pub(super) struct ServerThread {
    pub(super) store: Rc<StoreThread>,
    pub(super) state: Arc<ServerState>,
    lookup: ServerLookup,
    /// The address of the last connection for operations, for subscriptions.
    pub(super) address: RefCell<Option<ConnectionAddr>>,
    /// Notified when the address has changed.
    pub(super) address_changed: Notify,
    is_connected: Cell<bool>,
    is_following: Cell<bool>,
}

impl ServerThread {
    /// Starts the tasks of a server.
    pub(super) fn spawn(
        store: &Rc<StoreThread>,
        state: Arc<ServerState>,
        lookup: ServerLookup,
    ) -> Vec<JoinHandle<()>> {
        let server = Rc::new(Self {
            store: store.clone(),
            state,
            lookup,
            address: RefCell::default(),
            address_changed: Notify::new(),
            is_connected: Cell::new(false),
            is_following: Cell::new(false),
        });
        vec![tokio::task::spawn_local(server.clone().execute()), tokio::task::spawn_local(server.subscribe())]
    }

    /// Its name in logs, without a secret.
    pub(super) fn name(&self) -> &str {
        if self.state.name.is_empty() { &self.store.settings.name } else { &self.state.name }
    }

    /// Executes operations, and reconnects, until the store is closed.
    pub(super) async fn execute(self: Rc<Self>) {
        let mut delay = ReconnectDelay::default();
        loop {
            let reason = match self.connect().await {
                Ok((connection, ended)) => self.serve(connection, &ended).await,
                Err(reason) => reason,
            };
            self.state.queue.pause(&self.state.fault(&reason));
            self.is_connected.set(false);
            self.update_health(&reason);
            delay.wait().await;
        }
    }

    /// Opens a connection, and returns the notification of its end, too.
    async fn connect(&self) -> Result<(MultiplexedConnection, Arc<Notify>), String> {
        let server = self.store.settings.primary(&self.lookup).await?;
        let ended = Arc::new(Notify::new());
        let end = ended.clone();
        let settings = AsyncConnectionConfig::new()
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    end.notify_one();
                }
                Ok::<_, SendError>(())
            })
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(CONNECT_TIMEOUT));
        let client = self.store.settings.client(&server, ProtocolVersion::RESP3)?;
        let connected = client.get_multiplexed_async_connection_with_config(&settings).await;
        let mut connection = connected.map_err(|error| error.to_string())?;
        self.check(&mut connection).await?;
        // Each batch has a deadline of its own.
        connection.set_response_timeout(DEADLINE + SILENCE_MAX);
        if self.address.replace(Some(server.clone())).as_ref() != Some(&server) {
            self.address_changed.notify_one();
        }
        Ok((connection, ended))
    }

    /// Checks the server's role, version and settings.
    async fn check(&self, connection: &mut MultiplexedConnection) -> Result<(), String> {
        let mut command = cmd("INFO");
        command.arg("server").arg("replication").arg("memory");
        let text: String =
            command.query_async(connection).await.map_err(|error: RedisError| rejection(&command, &error))?;
        let info: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.split_once(':')).collect();
        let field = |name| info.get(name).copied().unwrap_or_default();
        let version = field("redis_version");
        if version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0) < VERSION_MIN {
            return Err(format!(
                "the server has version {version}, but Redis {VERSION_MIN} or Valkey is needed"
            ));
        }
        if field("role") != "master" {
            return Err(format!("the server is no primary, but has the role {}", field("role")));
        }
        let time: u64 = field("server_time_usec").parse().unwrap_or(0);
        self.state.clock.restart();
        self.state.clock.note(time / 1_000, Instant::now());
        let policy = field("maxmemory_policy");
        if policy != "noeviction" {
            tracing::warn!(
                "{}: maxmemory-policy is {policy}, by which Redis removes topics when its memory is full; \
                 set noeviction",
                self.name()
            );
        }
        let detects_failover = info.contains_key(self.store.settings.rules.id_field);
        self.state.set_detects_failover(detects_failover);
        if !detects_failover {
            tracing::warn!(
                "{}: the server names no replication id; each change of the server begins a new epoch of all topics",
                self.name()
            );
        }
        Ok(())
    }

    /// Executes operations on a connection until it fails. Returns the reason.
    async fn serve(&self, connection: MultiplexedConnection, ended: &Notify) -> String {
        let replicas = ReplicaAcks::default();
        // The first batch finds the number.
        replicas.replicas.set(1);
        let mut tasks: Vec<LocalBoxFuture<'_, String>> = Vec::new();
        for script in ScriptName::ALL {
            let mut loading = connection.clone();
            let mut command = cmd("SCRIPT");
            command.arg("LOAD").arg(self.store.scripts.text(script));
            // Without the right to store it, each call sends it.
            let hash = command.query_async(&mut loading).await.ok();
            let state = SentBatches::new(&self.state.queue);
            let (store, server) = (&*self.store, &*self.state);
            let (connection, replicas) = (connection.clone(), &replicas);
            tasks.push(Box::pin(
                BatchSender { store, server, script, hash, connection, replicas, state }.run(),
            ));
        }
        tasks.push(Box::pin(probe(connection)));
        tasks.push(Box::pin(self.sweep()));
        tasks.push(Box::pin(async {
            ended.notified().await;
            "the connection was closed".to_owned()
        }));
        self.state.queue.open();
        self.is_connected.set(true);
        self.update_health("");
        select_all(tasks).await.0
    }

    /// Notes whether all parts are followed.
    pub(super) fn set_following(&self, is_following: bool, reason: &str) {
        self.is_following.set(is_following);
        self.update_health(reason);
    }

    fn update_health(&self, reason: &str) {
        let is_up = self.is_connected.get() && self.is_following.get();
        if self.state.set_health(is_up, reason) {
            if is_up {
                tracing::info!("{} answers", self.name());
            } else {
                tracing::warn!("{} does not answer: {reason}", self.name());
                self.store.slots_moved.notify_one();
            }
        }
        self.store.report_health();
    }
}

/// Probes a connection until it is silent. Returns the reason.
async fn probe(mut connection: MultiplexedConnection) -> String {
    loop {
        tokio::time::sleep(PROBE_INTERVAL).await;
        let command = cmd("PING");
        let answer = command.query_async::<redis::Value>(&mut connection);
        match tokio::time::timeout(SILENCE_MAX, answer).await {
            Err(_) => return format!("no answer for {} s", SILENCE_MAX.as_secs()),
            Ok(Err(error)) if error.code().is_none() => return error.to_string(),
            Ok(_) => {}
        }
    }
}
