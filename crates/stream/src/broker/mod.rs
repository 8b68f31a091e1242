//! Existing engines as storage of the streams, behind one trait: Kafka, Redis and NATS, each with a feature of its
//! name.
//!
//! With a broker, the embedded log of a node is a cache of the broker's partitions, with the broker's offsets:
//! [`Broker::follow`] appends the broker's records to a [`Partition`], and all subscribers read from there. Records are
//! published to the broker alone and return with their offsets, so every node sees them in the same order. Nodes share
//! nothing but the broker.
//!
//! ```text
//!   publish ──▶ Broker::publish ──▶ the broker ──▶ Broker::follow ──▶ Partition ──▶ readers, live and from disk
//!                     ▲                  │
//!                  Pending ◀── its acknowledgement, with the offset
//! ```
//!
//! ```
//! use std::collections::BTreeMap;
//!
//! // Connects and reconnects in the background; an invalid address or setting is an immediate error.
//! let error = sinews_stream::broker::connect("kafka://127.0.0.1:9092?lingerms=5", &BTreeMap::new()).err().unwrap();
//! # #[cfg(feature = "kafka")]
//! assert_eq!(error.to_string(), "kafka://127.0.0.1:9092: setting `lingerms`: unknown; did you mean `linger.ms`?");
//! ```

#[cfg(any(feature = "kafka", feature = "redis", feature = "nats"))]
mod address;
mod answer;
#[cfg(any(feature = "kafka", feature = "redis", feature = "nats"))]
mod batches;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "redis", feature = "nats"))]
mod remote;
mod signal;
#[cfg(any(feature = "kafka", feature = "redis", feature = "nats"))]
mod sink;
#[cfg(any(feature = "kafka", feature = "redis", feature = "nats"))]
mod status;
#[cfg(any(feature = "kafka", feature = "redis", feature = "nats"))]
mod visible;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::record::Records;
use crate::{AppendError, Partition, Pending, Read, Start};

pub use answer::Answer;

/// A connection to a broker. It runs its own threads, reconnects indefinitely, and never blocks its caller.
///
/// Offsets are the broker's; `docs/book/src/server/brokers.md` describes their form for each engine. They grow, and may have gaps.
pub trait Broker: Send + Sync {
    /// Publishes records to the broker. The pending append completes with the broker's acknowledgement, for any
    /// requested durability: the offset of a record is known only then. Records of one call keep their order; records
    /// of concurrent calls may be interleaved.
    ///
    /// # Errors
    ///
    /// [`AppendError::Busy`] if the queue to the broker is full: see [`room`](Self::room). [`AppendError::TooLarge`] if
    /// a record exceeds the broker's limit. [`AppendError::Broker`] if the broker does not permit the stream's name;
    /// the pending append fails with it if the broker rejected the records, or did not confirm them.
    fn publish(&self, stream: &str, partition: u32, records: Records) -> Result<Pending, AppendError>;

    /// Whether records can be published again after [`AppendError::Busy`]; otherwise the waker is called once when they
    /// can.
    fn room(&self, waker: &Waker) -> bool;

    /// Appends the broker's records from `from` on to `sink`, in order, while both are open, at most as fast as `sink`
    /// accepts them. Errors are reported by [`health`](Self::health). Following a partition a second time does nothing.
    fn follow(&self, stream: &str, partition: u32, from: Start, sink: Partition);

    /// Fetches records from the broker itself, for records older than a node's copy. Returns at least the requested
    /// record, if it exists, and about `max_bytes` at most.
    fn fetch(&self, stream: &str, partition: u32, from: u64, max_bytes: usize) -> Answer<Read>;

    /// The offset of the first available record, and the next offset.
    fn ends(&self, stream: &str, partition: u32) -> Answer<(u64, u64)>;

    /// Number of partitions of a stream. If the broker permits it, a missing stream is created.
    fn partitions(&self, stream: &str) -> Answer<u32>;

    /// The offset of the first record that any stream ever had: the same for all streams of this engine.
    fn first_offset(&self) -> u64;

    /// Whether publishing to a partition creates it. Then the caller decides on the number of partitions, and
    /// [`partitions`](Self::partitions) returns the setting; otherwise the broker decides.
    fn makes_partitions(&self) -> bool;

    /// Commits a group's offset: the next record that the group wants.
    fn commit(&self, stream: &str, partition: u32, group: &str, offset: u64) -> Answer<()>;

    /// Committed offset of a group, if it has one.
    fn committed(&self, stream: &str, partition: u32, group: &str) -> Answer<Option<u64>>;

    /// Whether the broker answers, and the last error.
    fn health(&self) -> Health;

    /// Rejects further records, waits up to `within` for pending acknowledgements, and ends the threads. Records not
    /// acknowledged by then fail. Dropping the broker does the same without waiting.
    fn close(&self, within: Duration);
}

/// Health of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Whether the broker has answered recently, every followed partition is followed, and appends do not fail. Appends
    /// fail if, for the setting `failure.timeout.ms` (10,000), all of them failed, and the last failure is less than 10
    /// seconds old.
    pub ready: bool,
    /// The last error, or one that persists.
    pub error: Option<Arc<str>>,
    /// Records waiting for the broker's acknowledgement.
    pub waiting: u64,
}

/// Error of a request to the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BrokerError {
    /// The request queue is full; retry later.
    Busy,
    /// Retention has removed the records.
    Gone {
        /// The earliest offset that is left.
        earliest: u64,
    },
    /// The broker did not answer in time, or rejected the request: the text has the reason.
    Failed(Arc<str>),
    /// The connection has been closed.
    Closed,
}

impl fmt::Display for BrokerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("the broker request queue is full (limit 1024)"),
            Self::Gone { earliest } => write!(f, "removed by retention; the earliest offset is {earliest}"),
            Self::Failed(why) => f.write_str(why),
            Self::Closed => f.write_str("the connection to the broker has been closed"),
        }
    }
}

impl std::error::Error for BrokerError {}

/// Error of the configuration of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectError {
    /// The text is not a valid broker URL.
    Url {
        /// The part before `://`; the rest may hold a password.
        scheme: String,
        /// The defect.
        why: String,
    },
    /// The program was built without the engine of this scheme.
    NotBuilt {
        /// The missing feature.
        feature: &'static str,
    },
    /// A setting is unknown, or its value is invalid.
    Setting {
        /// The broker's URL, without credentials.
        broker: String,
        /// Name of the setting.
        setting: String,
        /// The defect, and a correction if known.
        why: String,
    },
    /// The engine's client could not be created.
    Client {
        /// The broker's URL, without credentials.
        broker: String,
        /// The client's error.
        why: String,
    },
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url { scheme, why } => write!(f, "invalid broker URL ({scheme}://…): {why}"),
            Self::NotBuilt { feature } => write!(f, "this program was built without the feature `{feature}`"),
            Self::Setting { broker, setting, why } => write!(f, "{broker}: setting `{setting}`: {why}"),
            Self::Client { broker, why } => write!(f, "{broker}: {why}"),
        }
    }
}

impl std::error::Error for ConnectError {}

/// Connects to the broker of a URL: `kafka://host:port,host…`, `redis://host:port` or `nats://host:port`; with TLS
/// `kafka+tls://`, `rediss://` and `nats+tls://`. `user:password@` precedes the hosts. Settings are specific to the
/// engine, and follow a `?` or are in the map; settings in the URL take precedence. `docs/book/src/server/brokers.md` lists them.
///
/// Returns immediately: [`Broker::health`] reports whether the broker answers.
///
/// # Errors
///
/// [`ConnectError`], which names the invalid setting or part of the URL.
pub fn connect(url: &str, settings: &BTreeMap<String, String>) -> Result<Arc<dyn Broker>, ConnectError> {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
    match &*scheme {
        "kafka" | "kafka+tls" => connect_kafka(url, settings),
        "redis" | "rediss" => connect_redis(url, settings),
        "nats" | "nats+tls" => connect_nats(url, settings),
        _ => {
            let why = "the schemes are kafka, kafka+tls, redis, rediss, nats and nats+tls".to_owned();
            Err(ConnectError::Url { scheme, why })
        }
    }
}

type Settings = BTreeMap<String, String>;
type Connected = Result<Arc<dyn Broker>, ConnectError>;

#[cfg(feature = "kafka")]
fn connect_kafka(url: &str, settings: &Settings) -> Connected {
    Ok(Arc::new(kafka::Kafka::connect(address::Address::parse(url, settings)?)?))
}

#[cfg(not(feature = "kafka"))]
fn connect_kafka(_: &str, _: &Settings) -> Connected {
    Err(ConnectError::NotBuilt { feature: "kafka" })
}

#[cfg(feature = "redis")]
fn connect_redis(url: &str, settings: &Settings) -> Connected {
    Ok(Arc::new(redis::connect(address::Address::parse(url, settings)?)?))
}

#[cfg(not(feature = "redis"))]
fn connect_redis(_: &str, _: &Settings) -> Connected {
    Err(ConnectError::NotBuilt { feature: "redis" })
}

#[cfg(feature = "nats")]
fn connect_nats(url: &str, settings: &Settings) -> Connected {
    Ok(Arc::new(nats::connect(address::Address::parse(url, settings)?)?))
}

#[cfg(not(feature = "nats"))]
fn connect_nats(_: &str, _: &Settings) -> Connected {
    Err(ConnectError::NotBuilt { feature: "nats" })
}
