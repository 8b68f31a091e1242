//! Mail between threads.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use bytes::Bytes;
use sinews_engine::{ConnId, DatagramSocket};
use sinews_session::Prepared;

use crate::topics::{KeyedTopic, Position};

/// Mail to a shard.
#[derive(Debug)]
pub(crate) enum Mail {
    /// A message for the subscribers of a topic on this shard.
    Publish(MailedPublication),
    /// Keys of a topic have changed, or expire earlier than this shard knows.
    Keyed(Arc<KeyedTopic>),
    /// The presence of a topic has changed: this shard sends its update when it is due.
    Presence { topic: Arc<str>, due: Instant },
    /// This shard has the connection with the largest queues, and the memory limit is exceeded.
    Shed,
    /// A datagram of a connection of this shard.
    Datagram(Box<MailedDatagram>),
    /// A datagram socket of this shard, by its index: the predecessor process has closed its own.
    DatagramSocket(usize, Box<DatagramSocket>),
}

/// Publication in transit between threads.
#[derive(Debug)]
pub(crate) struct MailedPublication {
    pub(crate) topic: Arc<str>,
    pub(crate) message: Prepared,
    /// Its position in the topic, if the topic has history.
    pub(crate) position: Option<Position>,
    /// The sequence before it.
    pub(crate) prev: u64,
    /// A subscriber that is excluded.
    pub(crate) except: Option<ConnId>,
    /// Its version in the topic, if later subscribers do not receive it; otherwise 0.
    pub(crate) version: u64,
}

/// A datagram that another worker has received.
#[derive(Debug)]
pub(crate) struct MailedDatagram {
    pub(crate) listener: usize,
    pub(crate) payload: Bytes,
    pub(crate) from: SocketAddr,
    pub(crate) local: Option<IpAddr>,
    pub(crate) ecn: u8,
}

impl Mail {
    pub(crate) fn publication(
        topic: &Arc<str>,
        message: &Prepared,
        version: u64,
        except: Option<ConnId>,
    ) -> Self {
        let (topic, message) = (Arc::clone(topic), message.clone());
        Self::Publish(MailedPublication { topic, message, position: None, prev: 0, except, version })
    }
}

/// Requested stop of a server. Not mail, since a mailbox may be full: shards check it when they are woken.
#[derive(Debug, Default)]
pub(crate) struct StopLevel(AtomicU8);

/// Levels of [`StopLevel`], which only rises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stop {
    No,
    /// Gracefully, and another process accepts instead.
    HandedOver,
    /// Gracefully.
    Graceful,
    /// At once.
    Now,
}

impl StopLevel {
    pub(crate) fn raise(&self, to: Stop) {
        self.0.fetch_max(to as u8, Ordering::SeqCst);
    }

    pub(crate) fn read(&self) -> Stop {
        match self.0.load(Ordering::SeqCst) {
            0 => Stop::No,
            1 => Stop::HandedOver,
            2 => Stop::Graceful,
            _ => Stop::Now,
        }
    }
}
