//! Options of durable streams.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sinews_stream::broker::Broker;
use sinews_stream::{Fsync, StreamConfig};

use super::quota::CreationLimits;
use crate::access::namespaces::order::PatternSet;

/// Options of durable streams: where they are stored, and what a new stream looks like.
#[derive(Clone)]
pub struct StreamOptions {
    pub(crate) directory: Option<PathBuf>,
    pub(crate) broker: Option<(Arc<dyn Broker>, BrokerIdentity)>,
    pub(crate) topics: Vec<String>,
    /// Patterns of topics that are not durable, although a less specific pattern is.
    pub(crate) exceptions: Vec<String>,
    pub(crate) durable_keys: Vec<String>,
    /// Patterns of topics whose keys are in memory, although a less specific pattern makes them durable.
    pub(crate) keyed_exceptions: Vec<String>,
    pub(crate) compacted: Vec<String>,
    pub(crate) config: StreamConfig,
    pub(crate) max_streams: usize,
    pub(crate) rules: CreationRules,
    /// Topics whose messages have a time, or have none; the namespaces set it.
    pub(crate) timestamps: PatternSet,
}

/// A broker's identity, without secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BrokerIdentity {
    pub(crate) location: String,
    pub(crate) prefix: String,
}

impl BrokerIdentity {
    /// Returns the content of the marker file in a directory with a copy of the streams.
    pub(super) fn marker(&self) -> String {
        format!("{}\n{}\n", self.location, self.prefix)
    }
}

/// Rules for streams that their first use creates.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CreationRules {
    pub(crate) creation: CreationLimits,
    /// Time after which a stream without appends and reads is deleted.
    pub(crate) expire_unused: Option<Duration>,
}

/// Default stream limit, as in [`StreamsConfig`](sinews_stream::StreamsConfig).
const STREAMS_MAX: usize = 10_000;

/// Default size of a node's copy of each partition, in bytes. The broker has the rest.
const COPY_BYTES: u64 = 1 << 30;

/// Folder for the streams of durable keys, in a directory with the copy of a broker's streams.
const KEYS_DIRECTORY: &str = "keys";

/// Why a cluster rejects durable topics on one node's disk.
const LOCAL_TOPICS: &str = "the nodes do not share durable topics in a directory: store the streams at a broker \
                            (streams.store)";

/// Why a cluster rejects durable keys on one node's disk.
const LOCAL_KEYS: &str = "the nodes do not share durable keys in a directory (streams.durable_keys, \
                          namespace.*.durable_keys): store the keys in a topic store (cluster.store)";

impl StreamOptions {
    /// Checks that this machine does not store what a cluster's nodes share.
    ///
    /// # Errors
    /// What it stores.
    pub(crate) fn check_shared(&self) -> Result<(), &'static str> {
        if self.broker.is_none() && !self.topics.is_empty() {
            return Err(LOCAL_TOPICS);
        }
        if !self.durable_keys.is_empty() {
            return Err(LOCAL_KEYS);
        }
        Ok(())
    }

    /// Returns options for streams in a directory on this machine.
    #[must_use]
    pub fn in_directory(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: Some(directory.into()),
            broker: None,
            topics: Vec::new(),
            exceptions: Vec::new(),
            durable_keys: Vec::new(),
            keyed_exceptions: Vec::new(),
            compacted: Vec::new(),
            config: StreamConfig::default(),
            max_streams: STREAMS_MAX,
            rules: CreationRules::default(),
            timestamps: PatternSet::default(),
        }
    }

    /// Returns options for streams at a broker, with a copy of their last records on this machine. `location`
    /// identifies the broker without credentials, and `prefix` its names: a directory with the copy of one broker is
    /// never used for another one.
    ///
    /// The copy is not synced and has at most 1 GiB per partition, because the broker has the records.
    #[must_use]
    pub fn at_broker(broker: Arc<dyn Broker>, location: &str, prefix: &str) -> Self {
        let identity = BrokerIdentity { location: location.to_owned(), prefix: prefix.to_owned() };
        Self {
            directory: None,
            broker: Some((broker, identity)),
            topics: Vec::new(),
            exceptions: Vec::new(),
            durable_keys: Vec::new(),
            keyed_exceptions: Vec::new(),
            compacted: Vec::new(),
            config: StreamConfig::default().with_fsync(Fsync::Never).with_retain_bytes(Some(COPY_BYTES)),
            max_streams: STREAMS_MAX,
            rules: CreationRules::default(),
            timestamps: PatternSet::default(),
        }
    }

    /// Sets the directory. Default with a broker: a temporary directory, which the shutdown removes.
    #[must_use]
    pub fn with_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Sets the patterns of durable topics. Their publications are appended to the stream of the same name. Default:
    /// none.
    #[must_use]
    pub fn with_durable_topics(mut self, patterns: impl IntoIterator<Item = String>) -> Self {
        self.topics = patterns.into_iter().collect();
        self
    }

    /// Sets the patterns of topics whose keys are durable. A topic's keys are stored in its own compacted stream, which
    /// clients cannot name. Default: none; keys are in memory. A broker stores no keys: beside it, the keys are in the
    /// folder `keys` of the [directory](Self::with_directory), synced before each acknowledgement.
    #[must_use]
    pub fn with_durable_keys(mut self, patterns: impl IntoIterator<Item = String>) -> Self {
        self.durable_keys = patterns.into_iter().collect();
        self
    }

    /// Sets the patterns of streams that are compacted if their first use creates them: the newest record of each key
    /// is retained, and a tombstone for a day. They must not match durable topics, whose records have no keys. Default:
    /// none. No effect with a broker.
    #[must_use]
    pub fn with_compaction(mut self, patterns: impl IntoIterator<Item = String>) -> Self {
        self.compacted = patterns.into_iter().collect();
        self
    }

    /// Sets the configuration of streams that their first use creates. Default: [`StreamConfig::default`] in a
    /// directory; see [`at_broker`](Self::at_broker) for a broker.
    #[must_use]
    pub fn with_stream(mut self, config: StreamConfig) -> Self {
        self.config = config;
        self
    }

    /// Sets the stream limit. Default: 10,000, which take a few seconds to open.
    #[must_use]
    pub fn with_max_streams(mut self, streams: usize) -> Self {
        self.max_streams = streams;
        self
    }

    /// Sets the limits for streams that one client may create.
    #[must_use]
    pub fn with_creation_limits(mut self, limits: CreationLimits) -> Self {
        self.rules.creation = limits;
        self
    }

    /// Sets the time after which a stream that its first use has created is deleted, if it has no appends and reads.
    /// Default: never.
    #[must_use]
    pub fn with_expiry_of_unused(mut self, time: Option<Duration>) -> Self {
        self.rules.expire_unused = time;
        self
    }

    /// Takes the durable-key options, for a directory on this machine, if a broker stores the other streams.
    pub(super) fn take_keys(&mut self) -> Option<Self> {
        let directory = self.directory.as_ref().filter(|_| self.broker.is_some())?.join(KEYS_DIRECTORY);
        if self.durable_keys.is_empty() {
            return None;
        }
        Some(Self {
            durable_keys: std::mem::take(&mut self.durable_keys),
            keyed_exceptions: std::mem::take(&mut self.keyed_exceptions),
            // No broker has the keys.
            config: self.config.clone().with_fsync(Fsync::Batch),
            max_streams: self.max_streams,
            rules: CreationRules { expire_unused: None, ..self.rules },
            ..Self::in_directory(directory)
        })
    }

    /// The durable topics.
    pub(super) fn durable(&self) -> PatternSet {
        let topics = self.topics.iter().map(|pattern| (pattern.clone(), true));
        PatternSet::new(topics.chain(self.exceptions.iter().map(|pattern| (pattern.clone(), false))))
    }

    /// The topics whose keys are durable.
    pub(crate) fn keyed(&self) -> PatternSet {
        let topics = self.durable_keys.iter().map(|pattern| (pattern.clone(), true));
        PatternSet::new(topics.chain(self.keyed_exceptions.iter().map(|pattern| (pattern.clone(), false))))
    }

    /// The location for reports: the broker, or the directory.
    pub(crate) fn location(&self) -> String {
        match (&self.broker, &self.directory) {
            (Some((_, broker)), _) => broker.location.clone(),
            (None, Some(directory)) => directory.display().to_string(),
            (None, None) => "no streams".to_owned(),
        }
    }

    /// The directory, if the options name one.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }
}
