//! The trait for topic stores and their notifications.

use std::sync::Arc;

use crate::answer::StoreAnswer;
use crate::capabilities::Capabilities;
use crate::error::{StoreError, StoreHealth, StoreServer};
use crate::keys::{KeyChanges, KeyCommands, KeyUpdate, KeysWritten, ReadKeys, StoredKeys};
use crate::log::{LogAppend, LogAppended, LogEntry, LogPage, ReadLog};
use crate::position::{Position, TopicPart};
use crate::windows::{FirstValue, OnceRequest, TakeRequest};

/// A topic store. It has its own threads, reconnects indefinitely, and never blocks its caller.
///
/// One node's operations on one topic are executed in their order. Operations that were not sent fail as
/// [`Away`](crate::StoreError::Away); operations without an answer within three seconds fail as
/// [`Unknown`](crate::StoreError::Unknown), and are never retried, except reads.
pub trait TopicStore: Send + Sync {
    /// What it promises.
    fn capabilities(&self) -> Capabilities;

    /// Whether it answers, each of its servers included.
    fn health(&self) -> StoreHealth;

    /// Whether the server that has a topic answers.
    fn topic_health(&self, _topic: &str) -> StoreHealth {
        self.health()
    }

    /// The servers of a store that divides topics between several; empty for any other.
    fn servers(&self) -> Vec<StoreServer> {
        Vec::new()
    }

    /// Begins to notify `sink`. Called once, before any other operation.
    fn start(&self, sink: Arc<dyn StoreSink>);

    /// Follows a topic part: [`StoreSink::following`] confirms it, and from then on the sink receives
    /// messages or changes. A second call changes nothing.
    fn follow(&self, part: &TopicPart);

    /// Ends [`follow`](Self::follow). Notifications that are on their way still come.
    fn unfollow(&self, part: &TopicPart);

    /// Follows the logs for all topics that match a pattern, as far as the store
    /// [supports](Capabilities::patterns) it. A topic that is followed twice may be notified twice.
    fn follow_pattern(&self, pattern: &str);

    /// Ends [`follow_pattern`](Self::follow_pattern).
    fn unfollow_pattern(&self, pattern: &str);

    /// Appends a message.
    fn append(&self, append: LogAppend) -> StoreAnswer<LogAppended>;

    /// Reads messages. Changes nothing at the store.
    fn read_log(&self, read: ReadLog) -> StoreAnswer<LogPage>;

    /// The last positions in topics; `None` for a topic that does not exist, and an error for one whose server does not
    /// answer.
    fn tops(&self, parts: Vec<TopicPart>) -> StoreAnswer<Vec<Result<Option<Position>, StoreError>>>;

    /// Removes all messages, or all keys, from a topic, which begins a new epoch. Followers are not notified: their audit
    /// finds it, or the next message.
    fn clear(&self, part: &TopicPart) -> StoreAnswer<()>;

    /// Writes keys.
    fn write_keys(&self, writes: KeyCommands) -> StoreAnswer<KeysWritten>;

    /// Reads keys, a page at a time.
    fn read_keys(&self, read: ReadKeys) -> StoreAnswer<StoredKeys>;

    /// Changes to a topic's keys behind a position.
    fn key_changes(&self, topic: &str, after: Position) -> StoreAnswer<KeyChanges>;

    /// Stores a value once.
    fn once(&self, once: OnceRequest) -> StoreAnswer<FirstValue>;

    /// Takes permits; the answer may be fewer than wanted, and 0.
    fn take(&self, take: TakeRequest) -> StoreAnswer<u32>;

    /// Ends all connections. Operations that wait fail.
    fn close(&self);
}

/// Is notified by a [`TopicStore`]. Calls come from the store's thread, one at a time, and must not block.
pub trait StoreSink: Send + Sync {
    /// A message was appended to a log in this epoch, by any node. Notifications for one topic usually come in order,
    /// may be missing, and may come twice.
    fn appended(&self, topic: &str, epoch: u64, entry: LogEntry);

    /// Keys have changed, by any node or by expiry.
    fn keys_changed(&self, topic: &str, update: KeyUpdate);

    /// From now on the store notifies about this part. Called again after each reconnect, since notifications may be
    /// missing: the receiver reads the [tops](TopicStore::tops).
    fn following(&self, part: &TopicPart);

    /// The store rejects a [`follow`](TopicStore::follow), for example by its rights; the text has the reason. It tries
    /// again after a reconnect.
    fn not_following(&self, part: &TopicPart, reason: &str);

    /// [`TopicStore::health`] has changed, which the store logs. It is [`Up`](StoreHealth::Up) after a reconnect when all parts are
    /// followed again.
    fn health_changed(&self, health: StoreHealth);
}
