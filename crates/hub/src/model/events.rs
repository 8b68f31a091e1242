//! Topic and connection events, for reports to the application. Webhooks are their sink.

use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use sinews_server::Member;

/// Receives events.
pub(crate) trait EventSink: Debug + Send + Sync {
    /// Whether anything wants events of a kind.
    fn wants(&self, kind: WebhookEventKind) -> bool;

    /// Reports an event.
    fn emit(&self, detail: EventDetail);

    /// Reports everything at once, before a successor process takes over this process's topics.
    fn hand_over(&self);
}

/// An event's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WebhookEventKind {
    /// A topic has its first subscriber.
    TopicOccupied,
    /// A topic has had no subscriber for the grace.
    TopicVacated,
    /// A member has joined a topic.
    MemberJoined,
    /// A member has been absent from a topic for the grace.
    MemberLeft,
    /// A client has published a message.
    ClientMessage,
    /// A connection of a client has ended.
    ConnectionClosed,
    /// A client has subscribed to a cache channel without an event. Only app webhooks
    /// ([`PusherWebhook`](crate::PusherWebhook)) receive it.
    CacheMiss,
    /// The subscriber count of a channel without presence has changed. Only app webhooks receive it.
    SubscriptionCount,
    /// The server has started without its former state in memory: not after a hot restart.
    ServerStarted,
}

impl WebhookEventKind {
    /// All kinds.
    pub const ALL: [Self; 9] = [
        Self::TopicOccupied,
        Self::TopicVacated,
        Self::MemberJoined,
        Self::MemberLeft,
        Self::ClientMessage,
        Self::ConnectionClosed,
        Self::CacheMiss,
        Self::SubscriptionCount,
        Self::ServerStarted,
    ];

    /// The kinds that follow from the presence of topics.
    pub(crate) const STATES: [Self; 5] = [
        Self::TopicOccupied,
        Self::TopicVacated,
        Self::MemberJoined,
        Self::MemberLeft,
        Self::SubscriptionCount,
    ];

    /// The event kinds for channels only.
    pub(crate) const OF_CHANNELS: [Self; 2] = [Self::CacheMiss, Self::SubscriptionCount];

    /// The name in the configuration and in requests, such as `topic_occupied`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TopicOccupied => "topic_occupied",
            Self::TopicVacated => "topic_vacated",
            Self::MemberJoined => "member_joined",
            Self::MemberLeft => "member_left",
            Self::ClientMessage => "client_message",
            Self::ConnectionClosed => "connection_closed",
            Self::CacheMiss => "cache_miss",
            Self::SubscriptionCount => "subscription_count",
            Self::ServerStarted => "server_started",
        }
    }

    pub(crate) const fn bit(self) -> u16 {
        1 << self as u8
    }
}

/// What has happened.
#[derive(Clone, Debug)]
pub(crate) enum EventDetail {
    /// A topic has its first subscriber.
    TopicOccupied { topic: Arc<str> },
    /// A topic has no subscriber any more.
    TopicVacated { topic: Arc<str> },
    /// A member has joined with its first connection.
    MemberJoined { topic: Arc<str>, member: Member },
    /// A member has left with its last connection.
    MemberLeft {
        topic: Arc<str>,
        id: Arc<str>,
        /// A Pusher app's application has sent the id as a number.
        has_number_id: bool,
    },
    /// A client has published a message.
    ClientMessage {
        topic: Arc<str>,
        content: EventContent,
        user: Option<Arc<str>>,
        connection: Option<String>,
    },
    /// The server has started, without its former state in memory.
    ServerStarted {
        version: Arc<str>,
        /// The id of the cluster node.
        node: Option<Arc<str>>,
    },
    /// A connection of a client has ended.
    ConnectionClosed(Box<ClosedConnection>),
    /// A client has subscribed to a cache channel without an event.
    CacheMiss { topic: Arc<str> },
    /// The subscriber count has changed.
    SubscriptionCount { topic: Arc<str>, count: usize },
}

/// A message's content.
#[derive(Clone, Debug)]
pub(crate) enum EventContent {
    /// UTF-8.
    Text(Bytes),
    /// JSON text.
    Json(Bytes),
    Binary(Bytes),
}

/// A connection that has ended.
#[derive(Clone, Debug)]
pub(crate) struct ClosedConnection {
    pub(crate) id: String,
    pub(crate) path: &'static str,
    pub(crate) user: Option<Arc<str>>,
    pub(crate) address: Option<IpAddr>,
    /// Milliseconds since 1970.
    pub(crate) opened: u64,
    /// Close code of a WebSocket: 1006 without a Close.
    pub(crate) code: Option<u16>,
}

/// Memory of an event besides its texts, in bytes.
const EVENT_COST: usize = 160;

impl EventDetail {
    pub(crate) fn kind(&self) -> WebhookEventKind {
        match self {
            Self::TopicOccupied { .. } => WebhookEventKind::TopicOccupied,
            Self::TopicVacated { .. } => WebhookEventKind::TopicVacated,
            Self::MemberJoined { .. } => WebhookEventKind::MemberJoined,
            Self::MemberLeft { .. } => WebhookEventKind::MemberLeft,
            Self::ClientMessage { .. } => WebhookEventKind::ClientMessage,
            Self::ConnectionClosed(_) => WebhookEventKind::ConnectionClosed,
            Self::CacheMiss { .. } => WebhookEventKind::CacheMiss,
            Self::SubscriptionCount { .. } => WebhookEventKind::SubscriptionCount,
            Self::ServerStarted { .. } => WebhookEventKind::ServerStarted,
        }
    }

    pub(crate) fn topic(&self) -> Option<&Arc<str>> {
        match self {
            Self::TopicOccupied { topic }
            | Self::TopicVacated { topic }
            | Self::MemberJoined { topic, .. }
            | Self::MemberLeft { topic, .. }
            | Self::ClientMessage { topic, .. }
            | Self::CacheMiss { topic }
            | Self::SubscriptionCount { topic, .. } => Some(topic),
            Self::ConnectionClosed(_) | Self::ServerStarted { .. } => None,
        }
    }

    /// Approximate memory in bytes.
    pub(crate) fn cost(&self) -> usize {
        EVENT_COST
            + self.topic().map_or(0, |topic| topic.len())
            + match self {
                Self::MemberJoined { member, .. } => member.id().len() + member.info().len(),
                Self::MemberLeft { id, .. } => id.len(),
                Self::ClientMessage { content, .. } => match content {
                    EventContent::Text(bytes) | EventContent::Json(bytes) | EventContent::Binary(bytes) => {
                        bytes.len()
                    }
                },
                _ => 0,
            }
    }
}
