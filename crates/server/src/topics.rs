//! Topics: by exact name and by pattern, with local subscribers and counts of the other threads' subscribers.
//!
//! ```text
//!   Directory, shared: entries, patterns, histories ◀── Publisher, from any thread
//!       ▲ names, counts         ▲ append                    │
//!       │                       │                           ▼ mail
//!   Topics, per thread: registry ◀─ subscriptions ─ routing ─ publish ─ throttle ─▶ sessions
//! ```

mod config;
mod conn_lists;
mod counters;
mod directory;
mod entry;
mod history;
mod index;
mod keyed;
mod local_names;
pub(crate) mod mail;
mod name;
mod observer;
mod presence;
mod publish;
mod publish_options;
mod publisher;
mod registry;
mod replicas;
mod routing;
mod rule;
mod subscriber_id;
mod subscriptions;
mod throttle;
mod trie;

pub use self::config::TopicConfig;
pub use self::counters::TopicCounters;
pub(crate) use self::directory::Directory;
pub use self::history::policy::{
    HistoryPage, HistoryPolicy, HistoryQuery, Position, ReplayFrom, RetainedMessage, StoredHistory,
    StoredMessage, Subscribed, TopicSnapshot,
};
pub use self::index::ListedTopic;
pub use self::keyed::config::KeyedConfig;
pub(crate) use self::keyed::delivery::is_ready_for_keys;
pub(crate) use self::keyed::local::KeyedDelivery;
pub(crate) use self::keyed::log::SharedKeyLog;
pub use self::keyed::log::{KeyLog, KeyLogError, LoggedChange};
pub use self::keyed::replication::ReplicaError;
pub(crate) use self::keyed::table::KeyedTable;
pub use self::keyed::table::list::ListedKeyedTopic;
pub(crate) use self::keyed::topic::{EncodeKeys, KeyedTopic};
pub use self::keyed::update::{
    KeyChange, KeyPage, KeySnapshot, KeySubscription, KeyedSnapshot, KeyedUpdate, KeysSubscribed,
    RecentKeyWrite,
};
pub use self::keyed::write::{KeyCondition, KeyError, KeyWrite, KeyWritten};
pub use self::name::{InvalidTopic, TopicName, TopicPattern};
pub use self::observer::SubscriptionObserver;
pub use self::presence::interval::PresenceInterval;
pub(crate) use self::presence::interval::PresenceIntervals;
pub use self::presence::member::{
    Member, MemberPage, OwnPresence, PresenceCount, PresenceError, PresenceMessage, PresencePart,
    PresenceSnapshot, PresenceTransition, PresenceUpdate,
};
pub use self::presence::observed::{PresenceChangeList, TopicPresence};
pub use self::presence::shared::OwnChanges;
pub(crate) use self::presence::table::{EncodeUpdate, PresenceTable};
pub(crate) use self::publish_options::Placement;
pub use self::publish_options::PublishOptions;
pub use self::publisher::{PublishError, Publisher, Undelivered};
pub(crate) use self::registry::QueuedPublication;
pub use self::registry::Topics;
pub(crate) use self::rule::{RuleId, TopicRules};
pub use self::rule::{SlowConsumer, TopicRule};
pub use self::subscriber_id::SubscriberId;
pub(crate) use self::throttle::backlog::datagrams::DatagramQueue;
pub(crate) use self::throttle::backlog::{Backlog, Delivery, is_ready};
pub use self::throttle::backlog::{DropReason, DroppedMessages};
