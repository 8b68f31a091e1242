//! A broker's client protocol, without I/O: subscriptions and publications.

use std::ops::Range;

use super::nats::NatsClient;
use super::options::{BrokerKind, ClusterOptions};
use super::redis::RedisClient;
use super::{nats, redis};

/// What a broker has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BrokerEvent {
    /// Nothing relevant.
    Other,
    /// The broker expects an answer: [`BrokerClient::write_pong`].
    Ping,
    /// A subscription has begun.
    Subscribed,
    /// A command is rejected, with this text: the connection continues.
    Rejected(String),
    /// TLS starts with the next byte in both directions; [`BrokerClient::log_in`] follows.
    StartTls,
    /// The login has succeeded.
    Ready,
    /// The answer to a ping; at Redis with the preceding subscription's id, if that was its purpose.
    Pong(Option<u64>),
    /// A message of a subscription: the range of its payload.
    Message(Range<usize>),
}

/// Bytes consumed, and what they mean; `None` if more bytes are needed.
pub(super) type Received = Result<Option<(usize, BrokerEvent)>, String>;

/// The receiving side of a connection.
#[derive(Debug)]
pub(super) enum BrokerClient {
    Nats(NatsClient),
    Redis(RedisClient),
}

/// Adds the remedy to an error text about a missing right: `NOPERM` at Redis, a permissions violation at NATS.
pub(super) fn with_remedy(text: String) -> String {
    let is_right = text.contains("NOPERM") || text.to_ascii_lowercase().contains("permissions violation");
    if is_right { text + "; grant the rights that the documentation of clusters lists" } else { text }
}

impl BrokerClient {
    /// A client; `own` is this connection's own subject, if it publishes.
    ///
    /// # Errors
    /// A file of the URL cannot be read.
    pub(super) fn new(options: &ClusterOptions, own: Option<&str>) -> Result<Self, String> {
        Ok(match options.engine {
            BrokerKind::Nats => Self::Nats(NatsClient::new(options, options.files.nats_key()?)),
            BrokerKind::Redis => Self::Redis(RedisClient::new(options, own)),
        })
    }

    /// Writes the login, for a broker that expects it at once, or after [`BrokerEvent::StartTls`].
    pub(super) fn log_in(&self, out: &mut Vec<u8>) {
        match self {
            Self::Nats(client) => client.log_in(out),
            Self::Redis(client) => client.log_in(out),
        }
    }

    /// Reads the next item of the input; writes the login at its time.
    ///
    /// # Errors
    /// The broker has rejected the login, or does not speak its protocol.
    pub(super) fn receive(&mut self, input: &[u8], out: &mut Vec<u8>) -> Received {
        match self {
            Self::Nats(client) => client.receive(input, out),
            Self::Redis(client) => client.receive(input),
        }
    }

    /// Writes the answer to a ping.
    pub(super) fn write_pong(&self, out: &mut Vec<u8>) {
        match self {
            Self::Nats(_) => nats::pong(out),
            // It sends no pings.
            Self::Redis(_) => {}
        }
    }

    /// Asks for the role of a broker that was found by Sentinel.
    pub(super) fn write_role_check(&self, out: &mut Vec<u8>) {
        match self {
            Self::Nats(_) => {}
            Self::Redis(client) => client.write_role_check(out),
        }
    }

    /// Whether the broker sends no reply to a publication behind [`BrokerKind::skip_reply`].
    pub(super) fn skips_replies(&self) -> bool {
        match self {
            Self::Nats(_) => false,
            Self::Redis(client) => client.skips_replies(),
        }
    }

    /// Returns a message's maximum payload in bytes.
    pub(super) fn max_payload(&self) -> usize {
        match self {
            Self::Nats(client) => client.max_payload(),
            Self::Redis(_) => redis::MAX_PAYLOAD,
        }
    }
}

impl BrokerKind {
    pub(super) fn encode_publication(self, out: &mut Vec<u8>, subject: &str, payload: &[u8]) {
        match self {
            Self::Nats => nats::encode_publication(out, subject, payload),
            Self::Redis => redis::command(out, &[b"PUBLISH", subject.as_bytes(), payload]),
        }
    }

    /// Makes the broker omit its reply to the next command; NATS has no replies.
    pub(super) fn skip_reply(self, out: &mut Vec<u8>) {
        match self {
            Self::Nats => {}
            Self::Redis => redis::skip_reply(out),
        }
    }

    /// Subscribes with an id that is unique on the connection.
    pub(super) fn subscribe(self, out: &mut Vec<u8>, subject: &str, is_pattern: bool, id: u64) {
        match self {
            Self::Nats => nats::subscribe(out, subject, id),
            Self::Redis => {
                let command: &[u8] = if is_pattern { b"PSUBSCRIBE" } else { b"SUBSCRIBE" };
                redis::command(out, &[command, subject.as_bytes()]);
            }
        }
    }

    pub(super) fn unsubscribe(self, out: &mut Vec<u8>, subject: &str, is_pattern: bool, id: u64) {
        match self {
            Self::Nats => nats::unsubscribe(out, id),
            Self::Redis => {
                let command: &[u8] = if is_pattern { b"PUNSUBSCRIBE" } else { b"UNSUBSCRIBE" };
                redis::command(out, &[command, subject.as_bytes()]);
            }
        }
    }

    pub(super) fn ping(self, out: &mut Vec<u8>) {
        match self {
            Self::Nats => nats::ping(out),
            Self::Redis => redis::command(out, &[b"PING"]),
        }
    }

    /// Pings for a subscription's result.
    pub(super) fn ping_for(self, out: &mut Vec<u8>, subscription: u64) {
        match self {
            Self::Nats => nats::ping(out),
            Self::Redis => redis::command(out, &[b"PING", subscription.to_string().as_bytes()]),
        }
    }

    /// Whether the broker confirms subscriptions. Otherwise a subscription has begun if there is no error before the
    /// answer to the next ping.
    pub(super) fn confirms_subscriptions(self) -> bool {
        self == Self::Redis
    }

    /// Whether an error text concerns a publication, and no subscription.
    pub(super) fn is_publication_error(self, text: &str) -> bool {
        self == Self::Nats && text.to_ascii_lowercase().contains("publish")
    }

    /// Whether the client writes first.
    pub(super) fn client_begins(self) -> bool {
        self == Self::Redis
    }
}
