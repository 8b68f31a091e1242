//! Existing engines that keep the streams, behind one trait: Kafka, Redis and NATS, each with a feature of its name.
//!
//! With a broker, the embedded log of a node is a cache of the broker's partitions, with the broker's offsets:
//! [`Broker::follow`] appends what the broker has to a [`Partition`], and everybody reads from there. Records are
//! published to the broker alone, come back with their offsets, and every node sees them in the same order. Nodes
//! share nothing but the broker.
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
//! // Makes the connection in the background, for ever; what is wrong with the address or a setting is an error at once.
//! let error = sinews_stream::broker::connect("kafka://127.0.0.1:9092?lingerms=5", &BTreeMap::new()).err().unwrap();
//! # #[cfg(feature = "kafka")]
//! assert_eq!(error.to_string(), "kafka://127.0.0.1:9092: setting `lingerms`: it is unknown; did you mean `linger.ms`?");
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

/// One connection to a broker. It runs threads of its own, connects again for ever, and never blocks its caller.
///
/// Offsets are the broker's: how they look there is said at each engine in `docs/brokers.md`. They grow, and may have
/// gaps.
pub trait Broker: Send + Sync {
    /// Hands records to the broker. The pending append ends with the broker's acknowledgement, whatever durability is
    /// asked for: the place of a record is known only then. Records of one call keep their order; those of others may
    /// come between.
    ///
    /// # Errors
    ///
    /// [`AppendError::Busy`] if as much waits for the broker as may: see [`room`](Self::room). [`AppendError::TooLarge`]
    /// if a record is larger than the broker takes. [`AppendError::Broker`] if the name is none that it permits; the
    /// pending append fails so if the broker refused the records, or does not say whether it has them.
    fn publish(&self, stream: &str, partition: u32, records: Records) -> Result<Pending, AppendError>;

    /// Whether records can be published again after [`AppendError::Busy`]; otherwise the waker is called once, when
    /// they can.
    fn room(&self, waker: &Waker) -> bool;

    /// Appends what the broker has from there on to `sink`, in order, for as long as both are open; at most as fast as
    /// `sink` takes it. What goes wrong is told by [`health`](Self::health). A partition is followed once: again does
    /// nothing.
    fn follow(&self, stream: &str, partition: u32, from: Start, sink: Partition);

    /// Records from the broker itself: those that are older than what a node keeps. At least the one asked for, if
    /// it is there, and no more than about so many bytes.
    fn fetch(&self, stream: &str, partition: u32, from: u64, max_bytes: usize) -> Answer<Read>;

    /// The offset of the first record that is there, and the one that comes next.
    fn ends(&self, stream: &str, partition: u32) -> Answer<(u64, u64)>;

    /// How many partitions a stream has. Where the broker permits it, a stream that is not there is made.
    fn partitions(&self, stream: &str) -> Answer<u32>;

    /// The offset of the first record that a stream has ever had: the same for all of this engine.
    fn first_offset(&self) -> u64;

    /// Whether a partition is there as soon as somebody publishes to it. How many a stream has is then for those to say
    /// who use it, and [`partitions`](Self::partitions) answers the setting; elsewhere the broker says it.
    fn makes_partitions(&self) -> bool;

    /// Keeps where a group goes on: the offset of the next record it wants.
    fn commit(&self, stream: &str, partition: u32, group: &str, offset: u64) -> Answer<()>;

    /// Where a group goes on, if it has committed that.
    fn committed(&self, stream: &str, partition: u32, group: &str) -> Answer<Option<u64>>;

    /// Whether the broker answers, and what went wrong last.
    fn health(&self) -> Health;

    /// Takes nothing more, waits so long for the acknowledgement of what it has, and ends its threads. What waited
    /// longer fails. Dropping it does the same without waiting.
    fn close(&self, within: Duration);
}

/// How a broker is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Whether the broker has answered lately, every followed partition is, and appends do not fail: for the setting
    /// `failure.timeout.ms` (10,000) there were failed appends and no other ones, and the last of them within 10 seconds.
    pub ready: bool,
    /// What went wrong last, or what is still wrong.
    pub error: Option<Arc<str>>,
    /// Records that wait for the broker's acknowledgement.
    pub waiting: u64,
}

/// Why a broker did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BrokerError {
    /// As many questions wait as may; ask again later.
    Busy,
    /// The records were removed by retention. What is left begins here.
    Gone {
        /// The earliest offset.
        earliest: u64,
    },
    /// The broker did not answer in time, or refused: the text says what.
    Failed(Arc<str>),
    /// The connection has been closed.
    Closed,
}

impl fmt::Display for BrokerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("as many questions wait for the broker as may"),
            Self::Gone { earliest } => write!(f, "removed by retention; the earliest offset is {earliest}"),
            Self::Failed(why) => f.write_str(why),
            Self::Closed => f.write_str("the connection to the broker has been closed"),
        }
    }
}

impl std::error::Error for BrokerError {}

/// Why a broker cannot be used as it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectError {
    /// The text is no URL of a broker.
    Url {
        /// What stands before `://`; the rest may hold a password.
        scheme: String,
        /// What is wrong.
        why: String,
    },
    /// The scheme is that of an engine which this program was built without.
    NotBuilt {
        /// The feature that is missing.
        feature: &'static str,
    },
    /// A setting is unknown, or its value means nothing.
    Setting {
        /// The broker's URL, without credentials.
        broker: String,
        /// The name.
        setting: String,
        /// What is wrong, and what would be right.
        why: String,
    },
    /// The engine's client could not be made.
    Client {
        /// The broker's URL, without credentials.
        broker: String,
        /// What it says.
        why: String,
    },
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url { scheme, why } => write!(f, "the URL of the broker ({scheme}://…): {why}"),
            Self::NotBuilt { feature } => write!(f, "this program was built without the feature `{feature}`"),
            Self::Setting { broker, setting, why } => write!(f, "{broker}: setting `{setting}`: {why}"),
            Self::Client { broker, why } => write!(f, "{broker}: {why}"),
        }
    }
}

impl std::error::Error for ConnectError {}

/// Connects to the broker that the URL names: `kafka://host:port,host…`, `redis://host:port` or `nats://host:port`;
/// with TLS `kafka+tls://`, `rediss://` and `nats+tls://`. `user:password@` goes before the hosts. Settings are those of
/// the engine, and go behind a `?` or into the map; those of the URL have precedence. `docs/brokers.md` lists them.
///
/// Returns at once: whether the broker answers is told by [`Broker::health`].
///
/// # Errors
///
/// [`ConnectError`], which names the setting or the part of the URL that is wrong.
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
