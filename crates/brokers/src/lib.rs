//! Kafka, Redis and NATS clients that store durable streams: implementations of [`Broker`], each with a feature of its
//! name. [`connect`] chooses one by a URL's scheme. [`connect_topic_store`] does so for stores of histories and keys that
//! several nodes share: implementations of [`TopicStore`].
//!
//! ```
//! use std::collections::BTreeMap;
//!
//! // Connects and reconnects in the background; an invalid address or setting is an immediate error.
//! let error = sinews_brokers::connect("kafka://127.0.0.1:9092?lingerms=5", &BTreeMap::new()).err().unwrap();
//! # #[cfg(feature = "kafka")]
//! assert_eq!(error.to_string(), "kafka://127.0.0.1:9092: setting `lingerms`: unknown; did you mean `linger.ms`?");
//! ```

#![forbid(unsafe_code)]

mod error;
#[cfg(any(feature = "kafka", feature = "redis", feature = "nats"))]
mod followed;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(any(feature = "kafka", feature = "redis", feature = "nats"))]
mod lock;
#[cfg(feature = "nats")]
mod nats;
#[cfg(any(feature = "kafka", feature = "redis", feature = "nats"))]
mod reconnect;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "redis", feature = "nats"))]
mod remote;
#[cfg(any(feature = "redis", feature = "nats"))]
mod shared_connection;
#[cfg(any(feature = "kafka", feature = "redis", feature = "nats"))]
mod status;
#[cfg(any(feature = "kafka", feature = "redis", feature = "nats"))]
mod url;

use std::collections::BTreeMap;
use std::sync::Arc;

use sinews_store::TopicStore;
use sinews_stream::broker::Broker;

pub use error::BrokerConfigError;

/// Connects to the broker in a URL: `kafka://host:port,host…`, `redis://host:port` or `nats://host:port`; with TLS
/// `kafka+tls://`, `rediss://` and `nats+tls://`. `user:password@` precedes the hosts. Settings are specific to the
/// engine, and follow a `?` or are in the map; settings in the URL take precedence. `docs/book/src/server/brokers.md`
/// lists them.
///
/// Returns immediately: [`Broker::health`] reports whether the broker answers.
///
/// # Errors
///
/// [`BrokerConfigError`], which names the invalid setting or URL part.
pub fn connect(url: &str, settings: &BTreeMap<String, String>) -> Result<Arc<dyn Broker>, BrokerConfigError> {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
    match &*scheme {
        "kafka" | "kafka+tls" => connect_kafka(url, settings),
        "redis" | "rediss" => connect_redis(url, settings),
        "nats" | "nats+tls" => connect_nats(url, settings),
        _ => {
            let reason = "the schemes are kafka, kafka+tls, redis, rediss, nats and nats+tls".to_owned();
            Err(BrokerConfigError::Url { scheme, reason })
        }
    }
}

/// Creates the topic store in a URL: `redis://host:port`, `redis+sentinel://host:port,host…/SERVICE` with the addresses
/// of sentinels, `redis+cluster://host:port,host…` with some servers of a Redis Cluster, `redis+unix:///PATH` or
/// `nats://host:port,host…`; with TLS `rediss://`, `rediss+sentinel://`, `rediss+cluster://` and `nats+tls://`. Credentials
/// and settings are as in [`connect`]. Topics are divided between several Redis servers (`redis://one,two`) or services
/// (`redis+sentinel://host/ONE,TWO`), by their order.
///
/// The store connects when it is [started](TopicStore::start): [`TopicStore::health`] reports whether it answers.
///
/// # Errors
///
/// [`BrokerConfigError`], which names the invalid setting or URL part.
pub fn connect_topic_store(
    url: &str,
    settings: &BTreeMap<String, String>,
) -> Result<Arc<dyn TopicStore>, BrokerConfigError> {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
    match &*scheme {
        "redis" | "rediss" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster" | "rediss+cluster"
        | "redis+unix" => redis_store(url, settings),
        "nats" | "nats+tls" => nats_topic_store(url, settings),
        _ => {
            let reason = "the schemes are redis, rediss, redis+sentinel, rediss+sentinel, redis+cluster, rediss+cluster, \
                          redis+unix, nats and nats+tls";
            Err(BrokerConfigError::Url { scheme, reason: reason.to_owned() })
        }
    }
}

type SettingsMap = BTreeMap<String, String>;
type ConnectResult = Result<Arc<dyn Broker>, BrokerConfigError>;
type StoreResult = Result<Arc<dyn TopicStore>, BrokerConfigError>;

#[cfg(feature = "kafka")]
fn connect_kafka(url: &str, settings: &SettingsMap) -> ConnectResult {
    Ok(Arc::new(kafka::Kafka::connect(url::BrokerUrl::parse(url, settings)?)?))
}

#[cfg(not(feature = "kafka"))]
fn connect_kafka(_: &str, _: &SettingsMap) -> ConnectResult {
    Err(BrokerConfigError::NotBuilt { feature: "kafka" })
}

#[cfg(feature = "redis")]
fn connect_redis(url: &str, settings: &SettingsMap) -> ConnectResult {
    Ok(Arc::new(redis::connect(url::BrokerUrl::parse(url, settings)?)?))
}

#[cfg(not(feature = "redis"))]
fn connect_redis(_: &str, _: &SettingsMap) -> ConnectResult {
    Err(BrokerConfigError::NotBuilt { feature: "redis" })
}

#[cfg(feature = "redis")]
fn redis_store(url: &str, settings: &SettingsMap) -> StoreResult {
    Ok(Arc::new(redis::store::connect(url, settings)?))
}

#[cfg(not(feature = "redis"))]
fn redis_store(_: &str, _: &SettingsMap) -> StoreResult {
    Err(BrokerConfigError::NotBuilt { feature: "redis" })
}

#[cfg(feature = "nats")]
fn connect_nats(url: &str, settings: &SettingsMap) -> ConnectResult {
    Ok(Arc::new(nats::connect(url::BrokerUrl::parse(url, settings)?)?))
}

#[cfg(feature = "nats")]
fn nats_topic_store(url: &str, settings: &SettingsMap) -> StoreResult {
    Ok(Arc::new(nats::store::connect(url::BrokerUrl::parse(url, settings)?)?))
}

#[cfg(not(feature = "nats"))]
fn nats_topic_store(_: &str, _: &SettingsMap) -> StoreResult {
    Err(BrokerConfigError::NotBuilt { feature: "nats" })
}

#[cfg(not(feature = "nats"))]
fn connect_nats(_: &str, _: &SettingsMap) -> ConnectResult {
    Err(BrokerConfigError::NotBuilt { feature: "nats" })
}
