//! A node's copy of a topic's messages, and its use.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sinews_server::Position;
use sinews_store::LogCopy;

/// Time after which an unused copy is dropped: clients that reconnect find it.
pub(super) const UNUSED_MAX: Duration = Duration::from_secs(60);

/// This node's copy of a topic's messages.
pub(super) struct LogTopic {
    pub(super) topic: Arc<str>,
    /// Locked during a delivery, which locks the topics of the server below: their observer must not lock it.
    pub(super) state: Mutex<LogState>,
    /// Clients can resume from the copy.
    pub(super) is_open: AtomicBool,
    /// Locked for a moment.
    pub(super) usage: Mutex<LogUsage>,
}

pub(super) struct LogState {
    pub(super) copy: LogCopy,
    /// The copy has the messages from before its begin.
    pub(super) is_complete: bool,
    /// Comparisons with the store so far.
    pub(super) audits: u64,
}

pub(super) struct LogUsage {
    /// Encodings with subscribers, as bits.
    pub(super) encodings: u8,
    /// The store was asked to follow the topic by its name.
    pub(super) is_followed: bool,
    pub(super) used: Instant,
}

impl LogTopic {
    pub(super) fn insert(logs: &mut HashMap<Arc<str>, Arc<Self>>, topic: &str, copy: LogCopy) -> Arc<Self> {
        let topic: Arc<str> = topic.into();
        let is_complete = !copy.is_live();
        let usage = LogUsage { encodings: 0, is_followed: false, used: Instant::now() };
        let log = Arc::new(Self {
            topic: Arc::clone(&topic),
            state: Mutex::new(LogState { copy, is_complete, audits: 0 }),
            is_open: AtomicBool::new(false),
            usage: Mutex::new(usage),
        });
        logs.insert(topic, Arc::clone(&log));
        log
    }

    /// If the copy lacks this position in its epoch: the number of comparisons with the store so far.
    pub(super) fn is_behind(&self, position: Position) -> Option<u64> {
        let state = self.state.lock();
        let last = state.copy.last()?;
        (last.epoch == position.epoch && last.sequence < position.sequence).then_some(state.audits)
    }

    pub(super) fn is_live(&self) -> bool {
        self.state.lock().copy.is_live()
    }

    pub(super) fn is_unused(&self) -> bool {
        let usage = self.usage.lock();
        usage.encodings == 0 && usage.used.elapsed() > UNUSED_MAX
    }
}
