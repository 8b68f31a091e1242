//! A topic's messages.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use sinews_store::{LogAppend, LogAppended, LogEntry, LogPage, LogStart, Position, ReadLog, Retention};

use super::{Primary, micros};

#[derive(Clone, Debug)]
pub(super) struct TopicLog {
    top: Position,
    /// The primary at the last write.
    replication: u64,
    entries: VecDeque<LogEntry>,
    retention: Option<Retention>,
    /// Time of the last write.
    used: u64,
    names: BTreeMap<Box<str>, (LogAppended, u64)>,
}

impl TopicLog {
    pub(super) fn new(epoch: u64, primary: Primary) -> Self {
        let top = Position { epoch, sequence: 0 };
        let replication = primary.replication;
        Self { top, replication, entries: VecDeque::new(), retention: None, used: 0, names: BTreeMap::new() }
    }

    pub(super) fn top(&self) -> Position {
        self.top
    }

    pub(super) fn is_used(&self, now: u64) -> bool {
        self.retention.is_none_or(|retention| self.used.saturating_add(micros(retention.unused)) > now)
    }

    /// The answer to an earlier publication with the same name.
    pub(super) fn repetition(&self, now: u64, append: &LogAppend) -> Option<LogAppended> {
        let (first, _) = self.names.get(append.once.as_ref()?).filter(|(_, until)| *until > now)?;
        Some(LogAppended { repeated: true, ..*first })
    }

    pub(super) fn append(
        &mut self,
        append: &LogAppend,
        primary: Primary,
        once_window: Duration,
    ) -> (LogAppended, LogEntry) {
        let prev = self.top.sequence;
        let now = primary.now;
        self.top.sequence = primary.next(prev, self.replication);
        self.replication = primary.replication;
        let payload = append.payload.clone();
        let entry = LogEntry { sequence: self.top.sequence, prev, time: now / 1_000, payload };
        self.entries.push_back(entry.clone());
        self.retention = Some(append.retention);
        self.used = now;
        self.trim(now);
        let appended = LogAppended { position: self.top, prev, repeated: false };
        if let Some(name) = &append.once {
            self.names.insert(name.clone(), (appended, now + micros(once_window)));
        }
        (appended, entry)
    }

    pub(super) fn read(&self, now: u64, read: &ReadLog) -> LogPage {
        let mut entries: Vec<&LogEntry> =
            self.entries.iter().filter(|entry| self.is_young(now, entry)).collect();
        let max = read.max_messages as usize;
        let mut left = read.max_bytes;
        let mut fits = |entry: &LogEntry| {
            let has_room = left > 0;
            left = left.saturating_sub(entry.payload.len() as u64);
            has_room
        };
        let count = match read.start {
            LogStart::After(after) => {
                entries.retain(|entry| entry.sequence > after);
                entries.iter().take(max).take_while(|entry| fits(entry)).count()
            }
            LogStart::Last(count) => {
                let count = max.min(count as usize);
                let start = entries.iter().rev().take(count).take_while(|entry| fits(entry)).count();
                entries.drain(..entries.len() - start);
                entries.len()
            }
        };
        let more = count < entries.len();
        let entries = entries.into_iter().take(count).cloned().collect();
        LogPage { top: Some(self.top), entries, more }
    }

    fn trim(&mut self, now: u64) {
        let Some(retention) = self.retention else { return };
        let mut bytes: u64 = self.entries.iter().map(|entry| entry.payload.len() as u64).sum();
        while let Some(first) = self.entries.front().filter(|_| self.entries.len() > 1) {
            let is_beyond = self.entries.len() > retention.messages as usize || bytes > retention.bytes;
            if !is_beyond && self.is_young(now, first) {
                break;
            }
            bytes -= first.payload.len() as u64;
            self.entries.pop_front();
        }
    }

    fn is_young(&self, now: u64, entry: &LogEntry) -> bool {
        let age = self.retention.and_then(|retention| retention.age);
        age.is_none_or(|age| entry.time.saturating_mul(1_000).saturating_add(micros(age)) > now)
    }
}
