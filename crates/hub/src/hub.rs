//! The hub, which a program embeds: options, routes, start and shutdown.

mod admin;
mod builder;
mod health;
mod metrics;
mod program;
mod routes;
mod rules;
mod store_needs;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use sinews_server::{
    BoundServer, KeyLog, KeyWrite, KeyWritten, MessageRoute, Prepared, PresenceMessage, PresenceUpdate,
    Publisher, Router, Server, TopicRule,
};

#[cfg(all(test, feature = "pusher"))]
pub(crate) use self::builder::encodings;
pub use self::builder::{BuildError, HubBuilder};
pub use self::program::{ProgramMessage, ProgramSubscriber, ProgramTopics, RequestFailed};
use crate::access::auth::Revocations;
use crate::api;
#[cfg(feature = "pusher")]
use crate::apps::encode;
use crate::background::{Background, Periodic};
use crate::cluster::Cluster;
use crate::cluster::link::RunningLink;
use crate::cluster::node::LocalParts;
use crate::config::ConfigHandle;
use crate::dashboard;
use crate::error::HubError;
use crate::handover::predecessor::{Predecessor, RunningHandover};
use crate::handover::{Handover, SuccessorCallback};
#[cfg(feature = "pusher")]
use crate::hub::health::Readiness;
use crate::keys::KeyStore;
use crate::model::Creator;
use crate::model::events::{EventDetail, WebhookEventKind};
use crate::model::presence;
use crate::node::ServerInfo;
use crate::options::RouteOptions;
#[cfg(feature = "pusher")]
use crate::protocol::pusher;
use crate::session::backends::Backends;
use crate::streams::service::StreamService;
use crate::topics::shared_keys::KeyWriteOutcome;
use crate::topics::stored::StoredInterest;
use crate::topics::subscribed::TopicObserver;
use crate::topics::{HubTopics, keys};
use crate::webhooks::Webhooks;

/// A real-time server without its sockets: topics, presence, histories, durable streams, tokens and pages.
///
/// [`mount`](Self::mount) adds its routes to a router, [`configure`](Self::configure) its topics to a server, and
/// [`start`](Self::start) begins its work when the server has bound its addresses.
///
/// ```no_run
/// use sinews_hub::Hub;
/// use sinews_server::{Response, Router, Server};
///
/// let hub = Hub::builder().history("chat.>", 100).build()?;
/// let router = hub.mount(Router::new().get("/hello", |_| Response::text("hello\n")));
/// let server = hub.configure(Server::new(router)).listen(([127, 0, 0, 1], 8080).into()).bind()?;
/// let hub = hub.start(&server)?;
/// server.run()?;
/// hub.shut_down();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Hub {
    options: RouteOptions,
    live: ConfigHandle,
    topics: Arc<HubTopics>,
    services: Backends,
    /// Rules for topics with a history, and for durable topics.
    rules: Vec<TopicRule>,
    info: ServerInfo,
    on_successor: Option<SuccessorCallback>,
    has_predecessor: bool,
}

impl Hub {
    /// Starts a hub's options.
    #[must_use]
    pub fn builder() -> HubBuilder {
        HubBuilder::new()
    }

    /// Adds the hub's routes to a router with its own routes. The hub checks the `Host` of every request, also to other
    /// routes, except `/healthz` and `/readyz`: [`HostRules`](crate::HostRules).
    #[must_use]
    pub fn mount(&self, router: Router) -> Router {
        let router = routes::add_to(router, &self.options, &self.live, &self.topics, &self.services);
        let router = admin::add_to(router, &self.options);
        #[cfg(feature = "pusher")]
        let router = {
            let readiness = Readiness::new(&router, &self.services);
            let check = Arc::new(move || readiness.answer()) as _;
            pusher::add_to(router, &self.options, &self.live, &self.topics, &self.services, &check)
        };
        api::v1::add_to(router, &self.live, &self.topics, &self.services, &self.info)
    }

    /// Sets the hub's topic rules, and the messages for presence and keys.
    #[must_use]
    pub fn configure(&self, server: Server) -> Server {
        let server = self.rules.iter().cloned().fold(server, Server::topic_rule);
        let server = server.keyed_topics(keys::encode);
        let durable_keys = self
            .services
            .store
            .as_ref()
            .map(|store| store.for_keys().keys())
            .filter(|keys| keys.is_enabled());
        let server = match durable_keys {
            Some(keys) => server.key_log(Arc::clone(keys) as Arc<dyn KeyLog>),
            None => server,
        };
        let server = match self.topics.shared_keys() {
            Some(_) => server.shared_keys(),
            None => server,
        };
        let live = self.live.clone();
        let server = server.presence_interval(move |topic| live.config().presence_interval(topic));
        server.presence(|update: &PresenceUpdate| {
            #[cfg(feature = "pusher")]
            if let Some(messages) = encode::presence_update(update) {
                return messages;
            }
            let texts = presence::update_messages(update);
            texts.map(|text| PresenceMessage::from(Prepared::text(text))).collect::<Vec<_>>()
        })
    }

    /// The route of a listener for binary stream messages over plain TCP; `None` without streams.
    #[must_use]
    pub fn stream_messages(&self) -> Option<MessageRoute> {
        Some(routes::messages(&self.options, &self.live, &self.topics, self.services.store.as_ref()?))
    }

    /// Returns the configuration, which may be replaced at any time.
    #[must_use]
    pub fn config(&self) -> ConfigHandle {
        self.live.clone()
    }

    /// Starts the hub's work beside the server's threads: the durable-topic relay, the deletion of unused streams, and
    /// the dashboard's reports. Call this after [`Server::bind`] and before [`BoundServer::run`].
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(self, server: &BoundServer) -> io::Result<RunningHub> {
        let Self { topics, services, live, info, on_successor, has_predecessor, .. } = self;
        let Backends { store, cluster, stored } = &services;
        let publisher = server.publisher();
        if let (Some(store), Some(appender)) = (store, server.appender()) {
            store.write_on_workers(appender);
        }
        let handover = Handover::new(
            Arc::clone(&topics),
            Arc::clone(live.config().revocations()),
            store.clone(),
            publisher.clone(),
            server.stop_handle(),
            on_successor.unwrap_or_else(|| Box::new(|_| {})),
        );
        let info = info.with_bound(server);
        let webhooks = Arc::clone(live.config().webhooks());
        let revocations = Arc::clone(live.config().revocations());
        let nodes = cluster.as_ref().map(Cluster::other_nodes);
        let background = live.config().background().clone();
        let local = LocalParts {
            revocations: Arc::clone(&revocations),
            #[cfg(feature = "pusher")]
            apps: Arc::clone(live.config().live_apps()),
            background: background.clone(),
        };
        webhooks.start(server.publisher(), nodes, &background, has_predecessor)?;
        report_start(&topics, has_predecessor, &info, cluster.as_ref());
        let (hub, beside) = (Arc::clone(&topics), services.clone());
        let dashboard = dashboard::start(server.monitor(), server.publisher(), hub, live, beside, info)?;
        let mut tasks = Vec::from_iter(dashboard);
        if let Some(store) = store {
            tasks.extend(store.start_expiry()?);
            start_streams(store, &topics, &publisher)?;
        }
        if let Some(stored) = stored {
            stored.start(Arc::clone(&topics) as _, publisher.clone())?;
            stored.share_revocations(Arc::clone(&revocations), Arc::clone(topics.connections()));
        }
        let observe = |bus: Arc<dyn TopicObserver>| {
            let observer = match stored.clone() {
                Some(stored) => Arc::new(StoredInterest { hub: Arc::clone(&topics) as _, stored, bus }),
                None => bus,
            };
            publisher.observe_subscriptions(topics.observer(observer));
        };
        let link = match cluster {
            Some(cluster) => {
                observe(cluster.observer());
                let changed = Arc::clone(cluster);
                publisher.share_presence(move || changed.note_presence());
                Some(RunningLink::start(cluster, Arc::clone(&topics), local, server.publisher())?)
            }
            None => {
                observe(Arc::clone(topics.subscribed()) as _);
                None
            }
        };
        Ok(RunningHub {
            topics,
            services,
            publisher,
            handover,
            tasks,
            link,
            webhooks,
            revocations,
            background,
        })
    }
}

/// Reports a start without the former state in memory: a backend writes keys again.
fn report_start(
    topics: &HubTopics,
    has_predecessor: bool,
    info: &ServerInfo,
    cluster: Option<&Arc<Cluster>>,
) {
    if has_predecessor {
        return;
    }
    let version: Arc<str> = info.version.as_str().into();
    tracing::info!(version = &*version, "server_started: keys and histories in memory begin empty");
    if let Some(events) = topics.events().filter(|events| events.wants(WebhookEventKind::ServerStarted)) {
        let node = cluster.map(|cluster| Cluster::other_nodes(cluster).id().into());
        events.emit(EventDetail::ServerStarted { version, node });
    }
}

/// Starts the durable topics and the durable keys.
fn start_streams(
    store: &Arc<StreamService>,
    topics: &Arc<HubTopics>,
    publisher: &Publisher,
) -> io::Result<()> {
    store.topics().start(Arc::clone(topics), publisher.clone())?;
    let of_keys = store.for_keys();
    of_keys.keys().start(publisher.clone())?;
    of_keys.load_keys();
    Ok(())
}

/// Time that a successor process waits for its login at a cluster's broker.
const LOGIN_MAX: Duration = Duration::from_secs(5);

/// A running hub. [`shut_down`](Self::shut_down), or dropping it, ends its threads and closes its streams.
#[must_use = "dropping it shuts the hub down"]
pub struct RunningHub {
    topics: Arc<HubTopics>,
    services: Backends,
    publisher: Publisher,
    handover: Handover,
    /// The dashboard's report, and the deletion of unused streams.
    tasks: Vec<Periodic>,
    link: Option<RunningLink>,
    webhooks: Arc<Webhooks>,
    revocations: Arc<Revocations>,
    background: Background,
}

impl fmt::Debug for RunningHub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningHub").field("background", &self.background).finish_non_exhaustive()
    }
}

impl RunningHub {
    /// Writes a topic's key, in the [topic store](HubBuilder::topic_store) if there is one: there,
    /// [`Publisher::write_key`](sinews_server::Publisher::write_key) fails. The value comes from
    /// [`key_value_of_json`](crate::key_value_of_json).
    ///
    /// # Errors
    /// [`RequestFailed`]: the condition is not met, a limit is reached, the store does not answer, or a cluster has no
    /// topic store.
    pub fn write_key(
        &self,
        topic: &str,
        write: KeyWrite,
    ) -> impl Future<Output = Result<KeyWritten, RequestFailed>> + Send + 'static + use<> {
        let keys = KeyStore::new(&self.topics, self.services.store.as_ref());
        let outcome = keys.write(topic, write, Creator::Server, &self.publisher);
        async move {
            let written = match outcome {
                KeyWriteOutcome::Done(written) => written,
                KeyWriteOutcome::Later(written) => written.await,
            };
            written.map_err(RequestFailed::from)
        }
    }

    /// The topics, for the program that embeds this hub.
    #[must_use]
    pub fn topics(&self) -> ProgramTopics {
        ProgramTopics {
            hub: Arc::clone(&self.topics),
            store: self.services.store.clone(),
            publisher: self.publisher.clone(),
            background: self.background.clone(),
        }
    }

    /// The means to replace this process by a successor.
    #[must_use]
    pub fn handover(&self) -> Handover {
        self.handover.clone()
    }

    /// Takes over a predecessor process's histories. From here on, the predecessor publishes no message of a topic with
    /// a history. Call [`RunningHandover::run`] when the server accepts connections.
    ///
    /// In a cluster, this waits up to 5 s for the login at the broker: other nodes' publications would be lost
    /// otherwise.
    ///
    /// # Errors
    /// [`HubErrorKind::Handover`](crate::HubErrorKind::Handover): the handover is incomplete.
    pub fn take_over(&self, predecessor: &mut Predecessor) -> Result<RunningHandover, HubError> {
        if let Some(cluster) = &self.services.cluster
            && !cluster.wait_connected(LOGIN_MAX)
        {
            let limit = LOGIN_MAX.as_secs();
            tracing::warn!(
                "no connection to the cluster within {limit} s: publications of other nodes may be lost"
            );
        }
        let taken = predecessor.take_over(&self.topics, &self.revocations, &self.publisher);
        self.topics.deliver_queued(&mut self.publisher.clone());
        self.webhooks.take_over();
        if let Some(cluster) = &self.services.cluster {
            cluster.set_serving(true);
        }
        taken
    }

    /// Shuts the hub down after the server has stopped. Waits until a successor process has all publications, until
    /// queued records are written, and until all threads have ended.
    pub fn shut_down(self) {
        drop(self);
    }
}

impl Drop for RunningHub {
    fn drop(&mut self) {
        self.tasks.clear();
        self.handover.finish();
        self.link = None;
        if let Some(stored) = &self.services.stored {
            stored.close();
        }
        self.webhooks.stop();
        if let Some(store) = &self.services.store {
            store.close();
            store.topics().finish();
            store.for_keys().keys().finish();
        }
        self.revocations.close_file();
        // The tasks above have ended. Those that are left have nothing to finish.
        self.background.shut_down();
    }
}

#[cfg(all(test, feature = "pusher"))]
mod tests;
