//! A hub's options, and their checks.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use sinews_server::{Config, DeflateMode};
use sinews_store::TopicStore;

use super::Hub;
use crate::access::auth::Auth;
use crate::access::auth::options::{AuthError, AuthOptions};
use crate::access::hosts::HostRules;
#[cfg(feature = "pusher")]
use crate::apps;
#[cfg(feature = "pusher")]
use crate::apps::live::LiveApps;
use crate::cluster::Cluster;
use crate::cluster::options::ClusterOptions;
use crate::config::{ConfigHandle, HubConfig};
use crate::error::HubError;
use crate::handover::SuccessorCallback;
use crate::handover::predecessor::Predecessor;
use crate::hub::rules::{HubRules, check_compaction};
use crate::hub::store_needs::check_store;
use crate::model::check_pattern;
use crate::node::ServerInfo;
use crate::options::RouteOptions;
#[cfg(feature = "pusher")]
use crate::protocol::pusher;
use crate::protocol::{json, raw};
use crate::session::backends::Backends;
use crate::streams::directory;
use crate::streams::options::StreamOptions;
use crate::topics::HubTopics;
use crate::topics::encodings::Encodings;
use crate::topics::shared_keys::KeysWithoutStore;
use crate::topics::stored::{StoreAway, StoredTopics};

/// A [`Hub`]'s options.
pub struct HubBuilder {
    options: RouteOptions,
    config: Option<HubConfig>,
    history: Vec<(String, usize)>,
    /// Messages that each chat-page room retains.
    chat_history: usize,
    streams: Option<StreamOptions>,
    cluster: Option<ClusterOptions>,
    topic_store: Option<Arc<dyn TopicStore>>,
    store_away: StoreAway,
    has_predecessor: bool,
    predecessor_node: Option<String>,
    info: ServerInfo,
    on_successor: Option<SuccessorCallback>,
}

/// Largest message by default: above the messages that people and devices send, and small enough for memory.
const MAX_MESSAGE: usize = 16 << 20;

impl HubBuilder {
    pub(super) fn new() -> Self {
        Self {
            options: RouteOptions {
                max_message: MAX_MESSAGE,
                websocket: Config::default(),
                deflate: Some(DeflateMode::Shared),
                message_rate: None,
                has_pages: true,
                admin_tag: None,
                #[cfg(feature = "pusher")]
                pusher_prefix: None,
                #[cfg(feature = "pusher")]
                pusher_recovery_bytes: None,
                dropped_log_lines: None,
            },
            config: None,
            history: Vec::new(),
            chat_history: 0,
            streams: None,
            cluster: None,
            topic_store: None,
            store_away: StoreAway::default(),
            has_predecessor: false,
            predecessor_node: None,
            info: ServerInfo::default(),
            on_successor: None,
        }
    }

    /// Sets the configuration. Default: no tokens, pages of the same origin, and [`HostRules::default`].
    #[must_use]
    pub fn config(mut self, config: HubConfig) -> Self {
        self.config = Some(config);
        self
    }

    /// Retains the last messages of all topics that a pattern covers, as a [`Namespace`](crate::Namespace) with this
    /// history does. Default: no topic has a history.
    #[must_use]
    pub fn history(mut self, pattern: impl Into<String>, messages: usize) -> Self {
        self.history.push((pattern.into(), messages));
        self
    }

    /// Retains the last messages in each chat-page room: the topics `sinews.chat.*`. A history or a namespace with a
    /// history that covers these topics, and durable topics that do, apply in its place. Default: 0, which retains
    /// none.
    #[must_use]
    pub fn chat_history(mut self, messages: usize) -> Self {
        self.chat_history = messages;
        self
    }

    /// Stores durable streams. Default: no streams, so that the hub writes no files.
    #[must_use]
    pub fn streams(mut self, options: StreamOptions) -> Self {
        self.streams = Some(options);
        self
    }

    /// Makes the server a cluster node. Default: it is alone. Topics in a directory of this machine are not shared, so
    /// [`build`](Self::build) rejects durable topics without a broker for the streams.
    #[cfg(feature = "cluster")]
    #[must_use]
    pub fn cluster(mut self, options: ClusterOptions) -> Self {
        self.cluster = Some(options);
        self
    }

    /// Keeps histories and keys in a store that several servers share, such as those of `sinews_brokers`: clients resume
    /// at any of these servers, and a condition on a key holds for all of them. Default: each server has its own, in
    /// memory.
    #[must_use]
    pub fn topic_store(mut self, store: Arc<dyn TopicStore>) -> Self {
        self.topic_store = Some(store);
        self
    }

    /// Sets the handling of publications to topics with a history while the [topic store](Self::topic_store) is away.
    /// Default: [`StoreAway::Reject`].
    #[must_use]
    pub fn store_away(mut self, away: StoreAway) -> Self {
        self.store_away = away;
        self
    }

    /// Sets the largest message size in bytes. Default: 16 MiB.
    #[must_use]
    pub fn max_message(mut self, bytes: usize) -> Self {
        self.options.max_message = bytes;
        self
    }

    /// Sets the timeouts and queues for each WebSocket. Its message limits come from
    /// [`max_message`](Self::max_message). Default: [`Config::default`].
    #[must_use]
    pub fn websocket(mut self, config: Config) -> Self {
        self.options.websocket = config;
        self
    }

    /// Sets the WebSocket compression; `None` rejects it. Default: [`DeflateMode::Shared`], which takes no memory for
    /// each connection.
    #[must_use]
    pub fn deflate(mut self, mode: Option<DeflateMode>) -> Self {
        self.options.deflate = mode;
        self
    }

    /// Limits the messages a second of each connection; the burst after an idle second is the same number. Default: no
    /// limit.
    #[must_use]
    pub fn message_rate(mut self, per_second: Option<u32>) -> Self {
        self.options.message_rate = per_second;
        self
    }

    /// Serves no pages: the start page at `/`, the chat, the console and the dashboard; and no `/echo`, with which one
    /// tries a WebSocket. The client library (`/sinews.js`) stays: pages of applications load it.
    #[must_use]
    pub fn without_pages(mut self) -> Self {
        self.options.has_pages = false;
        self
    }

    /// Serves the HTTP API (`/api/v1`), `/metrics`, the pages and `/echo` only at listeners with this tag
    /// ([`Listen::with_tag`](sinews_server::Listen::with_tag)); the others answer 404 there. A listener with the tag
    /// serves all other paths, too. Default: all listeners serve them.
    #[must_use]
    pub fn admin_tag(mut self, tag: u8) -> Self {
        self.options.admin_tag = Some(tag);
        self
    }

    /// Serves the [apps](crate::PusherApps) also below a path prefix, such as `/broadcast`: `/broadcast/app/{key}` and
    /// `/broadcast/apps/{id}/…`. Request signatures may cover the path with or without it, because proxies remove a
    /// prefix, and some libraries do not sign it. A prefix has 1 to 100 letters, digits and the characters `/ - _ . ~`,
    /// begins with a slash, and has no empty part. Default: none.
    #[cfg(feature = "pusher")]
    #[must_use]
    pub fn pusher_path_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.options.pusher_prefix = Some(prefix.into());
        self
    }

    /// Sets the memory that recoveries of [apps](crate::PusherApps) reserve while they read missed events of durable
    /// topics, each 1 MiB: further recoveries wait. A recovery that has waited and read for
    /// [`PusherLimits::recovery_time`](crate::PusherLimits) is answered as incomplete. Less than 1 MiB counts as 1 MiB.
    /// Default: 64 MiB, which is enough for 64 recoveries at once.
    #[cfg(feature = "pusher")]
    #[must_use]
    pub fn pusher_recovery_bytes(mut self, bytes: usize) -> Self {
        self.options.pusher_recovery_bytes = Some(bytes);
        self
    }

    /// Sets the version and the commit that the dashboard shows. Default: the version of this crate.
    #[must_use]
    pub fn build_info(mut self, version: &str, commit: &str) -> Self {
        (self.info.version, self.info.commit) = (version.to_owned(), commit.to_owned());
        self
    }

    /// Sets a function that counts the dropped log lines, for the metric `sinews_log_lines_dropped_total`: a log must
    /// not block the server's threads, which write to it. Default: none, and no such metric.
    #[must_use]
    pub fn dropped_log_lines(mut self, count: fn() -> u64) -> Self {
        self.options.dropped_log_lines = Some(count);
        self
    }

    /// Prepares for the takeover from a predecessor process: streams that it still owns become available later.
    #[must_use]
    pub fn predecessor(mut self, predecessor: Option<&Predecessor>) -> Self {
        self.has_predecessor = predecessor.is_some();
        self.predecessor_node = predecessor.and_then(Predecessor::cluster_node);
        self
    }

    /// Sets a function to call when a successor process serves, with its process id: a service manager must know it.
    #[must_use]
    pub fn on_successor(mut self, callback: impl Fn(u32) + Send + Sync + 'static) -> Self {
        self.on_successor = Some(Box::new(callback));
        self
    }

    /// Checks the options as [`build`](Self::build) does, without the stream directory.
    ///
    /// # Errors
    /// An option is invalid, or contradicts another one.
    pub fn check(mut self) -> Result<(), BuildError> {
        self.resolve().map(drop)
    }

    /// Checks the options. Returns the configuration, the encodings and the topic rules; the stream options get the
    /// namespaces' durable topics.
    fn resolve(&mut self) -> Result<(HubConfig, Encodings, HubRules), BuildError> {
        let config = match self.config.take() {
            Some(config) => config,
            None => HubConfig::new(Auth::new(&AuthOptions::new())?, HostRules::default()),
        };
        let streams = &mut self.streams;
        let durable = streams.as_ref().map_or(&[][..], |options| &options.topics);
        let keyed = streams.as_ref().map_or(&[][..], |options| &options.durable_keys);
        let compacted = streams.as_ref().map_or(&[][..], |options| &options.compacted);
        let patterns =
            self.history.iter().map(|(pattern, _)| pattern).chain(durable).chain(keyed).chain(compacted);
        if let Some(bad) = patterns.into_iter().find(|pattern| check_pattern(pattern).is_err()) {
            return Err(BuildError::Pattern(bad.clone()));
        }
        #[cfg(feature = "pusher")]
        if let Some(prefix) = &self.options.pusher_prefix {
            let checked = pusher::check_prefix(prefix).map_err(HubError::setting);
            checked.map_err(BuildError::PusherPrefix)?;
        }
        #[cfg(feature = "pusher")]
        let encodings = encodings(config.live_apps());
        #[cfg(not(feature = "pusher"))]
        let encodings = encodings();
        let namespaces = config.namespaces();
        let histories = &self.history;
        let rules = HubRules::new(&encodings, namespaces, histories, self.chat_history, streams.as_mut());
        let rules = rules.map_err(BuildError::Namespace)?;
        if let Some(streams) = streams {
            if !streams.durable_keys.is_empty() && streams.directory().is_none() {
                return Err(BuildError::KeysAtBroker);
            }
            check_compaction(config.namespaces(), streams).map_err(BuildError::Compaction)?;
            if self.cluster.is_some() {
                streams.check_shared().map_err(|why| BuildError::Cluster(HubError::setting(why)))?;
            }
            if self.topic_store.is_some() && !streams.durable_keys.is_empty() {
                return Err(BuildError::KeysInStore);
            }
        }
        if let Some(store) = &self.topic_store {
            let has_histories = !rules.histories.is_empty();
            let checked = check_store(&store.capabilities(), config.namespaces(), has_histories);
            checked.map_err(BuildError::TopicStore)?;
        }
        Ok((config, encodings, rules))
    }

    /// Builds the hub, and opens its stream directory.
    ///
    /// # Errors
    /// An option is invalid or contradicts another one, or the directory cannot be opened.
    pub fn build(mut self) -> Result<Hub, BuildError> {
        let (config, encodings, built) = self.resolve()?;
        let streams = self.streams;
        let patterns = built.histories.patterns();
        let topics = HubTopics::new(built.histories).with_durable(built.durable);
        let topics = topics.with_timestamps(built.timestamps).with_encodings(encodings);
        let topics = topics.with_namespaces(built.namespaces).with_activity(config.rejections().activity());
        let background = config.background().clone();
        let stored = self
            .topic_store
            .map(|store| Arc::new(StoredTopics::new(store, self.store_away, background.clone())));
        // A store retains the messages that no subscriber receives here.
        let patterns = if stored.is_some() { Vec::new() } else { patterns };
        let mut cluster = None;
        if let Some(options) = self.cluster {
            let predecessor = self.predecessor_node.as_deref();
            let node = Cluster::new(options, &patterns, predecessor).map_err(BuildError::Cluster)?;
            node.set_serving(!self.has_predecessor);
            if self.has_predecessor {
                topics.await_histories();
            }
            let node = Arc::new(node);
            topics.set_other_nodes(node.other_nodes());
            match &stored {
                Some(stored) => node.set_stored(Arc::clone(stored)),
                None => topics.set_shared_keys(Arc::new(KeysWithoutStore)),
            }
            cluster = Some(node);
        }
        if let Some(stored) = &stored {
            topics.set_shared_keys(stored.shared_keys());
            topics.set_stored(Arc::clone(stored));
        }
        let mut info = self.info;
        info.store = streams.as_ref().map(StreamOptions::location);
        let directory = streams.as_ref().and_then(|options| options.directory().map(Path::to_owned));
        let max_message = self.options.max_message;
        let store =
            streams.map(|options| directory::open(options, max_message, self.has_predecessor, &background));
        let webhooks = Arc::clone(config.webhooks());
        let store = store.transpose().map_err(BuildError::StreamDirectory)?;
        if let Some(directory) = directory {
            let stored = config.revocations().store_in(&directory, self.has_predecessor, &background);
            stored.map_err(BuildError::StreamDirectory)?;
        }
        let live = ConfigHandle::new(config).map_err(BuildError::Hooks)?;
        topics.set_events(webhooks);
        Ok(Hub {
            options: self.options,
            live,
            topics: Arc::new(topics),
            services: Backends { store, cluster, stored },
            rules: built.rules,
            info,
            on_successor: self.on_successor,
            has_predecessor: self.has_predecessor,
        })
    }
}

/// Registers all client protocols' encodings.
pub(crate) fn encodings(#[cfg(feature = "pusher")] apps: &Arc<LiveApps>) -> Encodings {
    let mut encodings = Encodings::default();
    encodings.register(json::encoding::encodings());
    encodings.register(raw::encoding::encodings());
    #[cfg(feature = "pusher")]
    encodings.register(apps::encoding::encodings(apps));
    encodings
}

/// The reason why a hub cannot be built.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// The authorization options are invalid.
    Auth(AuthError),
    /// The hooks cannot be started.
    Hooks(HubError),
    /// A namespace contradicts another option.
    Namespace(HubError),
    /// A topic pattern is invalid.
    Pattern(String),
    /// Keys are to be durable, a broker stores the streams, and no directory is named: a broker stores no keys.
    KeysAtBroker,
    /// Keys are to be durable on this server's disk, and a topic store has them.
    KeysInStore,
    /// The topic store lacks what another option needs.
    TopicStore(HubError),
    /// A durable topic would have a compacted stream, which rejects its publications.
    Compaction(HubError),
    /// The stream directory cannot be opened.
    StreamDirectory(HubError),
    /// The options do not fit a cluster.
    Cluster(HubError),
    /// The Pusher protocol's path prefix is invalid.
    PusherPrefix(HubError),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auth(error) => error.fmt(f),
            Self::Hooks(fault) => write!(f, "hooks: {fault}"),
            Self::Namespace(fault) | Self::TopicStore(fault) => fault.fmt(f),
            Self::Pattern(pattern) => write!(f, "{pattern:?} is not a valid topic pattern"),
            Self::KeysInStore => f.write_str("durable keys on disk beside a topic store, which has the keys"),
            Self::KeysAtBroker => f.write_str("durable keys need a directory, also beside a broker"),
            Self::Compaction(why) => write!(f, "compaction of streams: {why}"),
            Self::StreamDirectory(why) => write!(f, "directory of streams: {why}"),
            Self::Cluster(why) => write!(f, "cluster: {why}"),
            Self::PusherPrefix(why) => write!(f, "prefix of paths of the Pusher protocol: {why}"),
        }
    }
}

impl std::error::Error for BuildError {
    /// Returns the source of the fault that [`Display`](fmt::Display) prints.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Auth(error) => error.source(),
            Self::Hooks(fault)
            | Self::Namespace(fault)
            | Self::TopicStore(fault)
            | Self::Compaction(fault)
            | Self::StreamDirectory(fault)
            | Self::Cluster(fault)
            | Self::PusherPrefix(fault) => fault.source(),
            Self::Pattern(_) | Self::KeysAtBroker | Self::KeysInStore => None,
        }
    }
}

impl From<AuthError> for BuildError {
    fn from(error: AuthError) -> Self {
        Self::Auth(error)
    }
}
