//! A reference for topic stores: a pure state machine, with the clock as an argument.

mod keys;
mod log;

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sinews_store::{
    AckedLoss, Capabilities, ConditionSupport, FailoverDetection, FirstValue, KeyChanges, KeyCommands,
    KeyUpdate, KeysWritten, LogAppend, LogAppended, LogEntry, LogPage, OnceRequest, PartKind, Position,
    ReadKeys, ReadLog, StoreError, StoredKeys, TakeRequest, TopicPart,
};
use sinews_testkit::Rng;

use keys::TopicKeys;
use log::TopicLog;

/// Sequences that the first write behind a failover skips if the clock is behind them.
const SKIPPED_MIN: u64 = 1 << 20;
/// Sequences that [`Jump::Fixed`] skips.
const SKIPPED: u64 = 1 << 32;

/// A topic store's state. Times are microseconds by the store's clock.
#[derive(Clone, Debug)]
pub struct Model {
    rules: Rules,
    /// Changes when another server becomes the primary.
    replication: u64,
    epochs: Rng,
    logs: BTreeMap<Box<str>, TopicLog>,
    keys: BTreeMap<Box<str>, TopicKeys>,
    values: BTreeMap<Box<str>, (Bytes, u64)>,
    budgets: BTreeMap<Box<str>, Budget>,
}

/// Rules that a test of the checks switches off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// How the first write behind a failover skips sequences.
    pub jump: Jump,
    /// [`KeyCondition::IfNew`](sinews_store::KeyCondition::IfNew) holds only for a key without a value.
    pub if_new: bool,
    /// Time for which repetitions are recognized.
    pub once_window: Duration,
}

/// How the first write to a topic part behind a failover skips sequences, which lost writes may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jump {
    /// To the store's time in microseconds: later than all lost writes, also if the replica had lost earlier jumps.
    ToTime,
    /// By 2^32. If a second failover loses the first jump, the second jump has the same sequences.
    Fixed,
    /// Not.
    Never,
}

impl Default for Rules {
    fn default() -> Self {
        Self { jump: Jump::ToTime, if_new: true, once_window: Duration::from_secs(300) }
    }
}

static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The time of a model's clock, in microseconds, as the process's.
#[must_use]
pub(crate) fn instant(time: u64) -> Instant {
    *ORIGIN + Duration::from_micros(time)
}

/// A notification for followers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A message was appended.
    Appended {
        /// Topic name.
        topic: Box<str>,
        /// The log's epoch.
        epoch: u64,
        /// The message.
        entry: LogEntry,
    },
    /// Keys have changed.
    Changed {
        /// Topic name.
        topic: Box<str>,
        /// Their changes.
        update: KeyUpdate,
    },
}

impl Notice {
    /// The topic part.
    #[must_use]
    pub fn part(&self) -> TopicPart {
        match self {
            Self::Appended { topic, .. } => TopicPart::log(topic),
            Self::Changed { topic, .. } => TopicPart::keys(topic),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Budget {
    permits: f64,
    time: u64,
}

impl Model {
    /// What a store with this model promises.
    pub const CAPABILITIES: Capabilities = Capabilities {
        engine: "fake",
        logs: true,
        keys: true,
        failover_detection: FailoverDetection::Exact,
        acked_loss: AckedLoss::Failover,
        conditions: ConditionSupport::Exact,
        atomic_keys: true,
        exact_limits: true,
        byte_limit: true,
        ttl_resolution: Duration::from_millis(100),
        once_window: Duration::from_secs(300),
        patterns: false,
        max_value: 1 << 16,
        budgets: true,
    };

    /// An empty store. The seed determines its epochs.
    #[must_use]
    pub fn new(seed: u64, rules: Rules) -> Self {
        Self {
            rules,
            replication: 1,
            epochs: Rng::new(seed),
            logs: BTreeMap::new(),
            keys: BTreeMap::new(),
            values: BTreeMap::new(),
            budgets: BTreeMap::new(),
        }
    }

    /// A server with this state becomes the primary. Each time has another number.
    pub fn fail_over(&mut self, replication: u64) {
        self.replication = replication;
        self.epochs = Rng::new(self.epochs.next_u64() ^ replication);
    }

    /// The server restarts without data.
    pub fn restart_empty(&mut self, replication: u64) {
        let seed = self.epochs.next_u64();
        *self = Self::new(seed, self.rules);
        self.fail_over(replication);
    }

    fn primary(&self, now: u64) -> Primary {
        Primary { replication: self.replication, now, jump: self.rules.jump }
    }

    /// Appends a message.
    ///
    /// # Errors
    /// [`StoreError::OtherTop`].
    pub fn append(
        &mut self,
        now: u64,
        append: &LogAppend,
    ) -> Result<(LogAppended, Option<Notice>), StoreError> {
        self.logs.retain(|topic, log| **topic != *append.topic || log.is_used(now));
        let top = self.logs.get(&append.topic).map(TopicLog::top);
        let primary = self.primary(now);
        let log = match self.logs.get_mut(&append.topic) {
            Some(log) => log,
            None if append.if_top.is_some_and(|expected| expected != Position::default()) => {
                return Err(StoreError::OtherTop);
            }
            None => {
                let log = TopicLog::new(new_epoch(&mut self.epochs), primary);
                self.logs.entry(append.topic.clone()).or_insert(log)
            }
        };
        if let Some(first) = log.repetition(now, append) {
            return Ok((first, None));
        }
        if append.if_top.is_some_and(|expected| expected != top.unwrap_or_default()) {
            return Err(StoreError::OtherTop);
        }
        let (appended, entry) = log.append(append, primary, self.rules.once_window);
        let notice = Notice::Appended { topic: append.topic.clone(), epoch: appended.position.epoch, entry };
        Ok((appended, Some(notice)))
    }

    /// Reads messages.
    #[must_use]
    pub fn read_log(&self, now: u64, read: &ReadLog) -> LogPage {
        let log = self.logs.get(&read.topic).filter(|log| log.is_used(now));
        log.map(|log| log.read(now, read)).unwrap_or_default()
    }

    /// The last position in a topic part.
    #[must_use]
    pub fn top(&self, now: u64, part: &TopicPart) -> Option<Position> {
        match part.part {
            PartKind::Log => self.logs.get(&part.topic).filter(|log| log.is_used(now)).map(TopicLog::top),
            PartKind::Keys => self.keys.get(&part.topic).map(TopicKeys::top),
        }
    }

    /// Removes a topic part.
    pub fn clear(&mut self, part: &TopicPart) {
        match part.part {
            PartKind::Log => drop(self.logs.remove(&part.topic)),
            PartKind::Keys => drop(self.keys.remove(&part.topic)),
        }
    }

    /// Removes expired keys, then writes keys.
    pub fn write_keys(&mut self, now: u64, commands: &KeyCommands) -> (KeysWritten, Vec<Notice>) {
        let primary = self.primary(now);
        let is_new = !self.keys.contains_key(&commands.topic);
        let mut keys = match self.keys.remove(&commands.topic) {
            Some(keys) => keys,
            None => TopicKeys::new(new_epoch(&mut self.epochs.clone()), primary),
        };
        let mut updates = Vec::from_iter(keys.expire(primary));
        let (written, update) = keys.write(commands, primary, &self.rules);
        updates.extend(update);
        if is_new && updates.is_empty() && !keys.has_names() {
            let written = KeysWritten { position: Position::default(), prev: 0, ..written };
            return (written, vec![]);
        }
        if is_new {
            new_epoch(&mut self.epochs);
        }
        self.keys.insert(commands.topic.clone(), keys);
        let notice = |update| Notice::Changed { topic: commands.topic.clone(), update };
        (written, updates.into_iter().map(notice).collect())
    }

    /// Removes all expired keys.
    pub fn expire(&mut self, now: u64) -> Vec<Notice> {
        let primary = self.primary(now);
        let due = self.keys.iter_mut().filter_map(|(topic, keys)| {
            let update = keys.expire(primary)?;
            Some(Notice::Changed { topic: topic.clone(), update })
        });
        due.collect()
    }

    /// Reads keys, a page at a time.
    #[must_use]
    pub fn read_keys(&self, now: u64, read: &ReadKeys) -> StoredKeys {
        self.keys.get(&read.topic).map(|keys| keys.read(now, read)).unwrap_or_default()
    }

    /// Reads changes.
    #[must_use]
    pub fn key_changes(&self, topic: &str, after: Position) -> KeyChanges {
        self.keys.get(topic).map_or(KeyChanges::Unknown, |keys| keys.changes(after))
    }

    /// Stores a value once.
    pub fn once(&mut self, now: u64, once: &OnceRequest) -> FirstValue {
        match self.values.get(&once.name).filter(|(_, until)| *until > now) {
            Some((value, _)) => FirstValue::Value(value.clone()),
            None => {
                let until = now + micros(once.window);
                self.values.insert(once.name.clone(), (once.value.clone(), until));
                FirstValue::First
            }
        }
    }

    /// Takes permits.
    pub fn take(&mut self, now: u64, take: &TakeRequest) -> u32 {
        let burst = f64::from(take.burst);
        let budget = self.budgets.entry(take.name.clone()).or_insert(Budget { permits: burst, time: now });
        let elapsed = now.saturating_sub(budget.time) as f64 / 1e6;
        budget.permits = (budget.permits + elapsed * take.rate).min(burst);
        budget.time = now;
        let granted = f64::from(take.permits).min(budget.permits.floor());
        budget.permits -= granted;
        granted as u32
    }
}

/// Returns a random epoch.
fn new_epoch(epochs: &mut Rng) -> u64 {
    (epochs.next_u64() % (1 << 53)) | 1
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The writes of a primary.
#[derive(Clone, Copy)]
struct Primary {
    replication: u64,
    now: u64,
    jump: Jump,
}

impl Primary {
    /// The sequence behind `top`, which this primary or another one has assigned.
    fn next(self, top: u64, replication: u64) -> u64 {
        match self.jump {
            _ if self.replication == replication => top + 1,
            Jump::ToTime if self.now > top => self.now,
            Jump::ToTime => top + SKIPPED_MIN,
            Jump::Fixed => top + SKIPPED,
            Jump::Never => top + 1,
        }
    }
}

#[cfg(test)]
mod tests;
