//! The history of a run, and the place of each client in it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use rustc_hash::FxHashMap;
use sinews_store::StoredKey;

use crate::history::{EpochSequence, EventKind, History, KeyState, Part, Run};

/// A history that grows.
pub(super) struct Record {
    pub(super) history: History,
    /// Time 0 as the process's.
    origin: Instant,
    /// Microseconds.
    pub(super) now: u64,
    /// Last position of each client.
    pub(super) positions: FxHashMap<(u16, Part), EpochSequence>,
}

impl Record {
    pub(super) fn new(run: Run, origin: Instant) -> Self {
        let history = History { run, events: vec![] };
        Self { history, origin, now: 0, positions: FxHashMap::default() }
    }

    /// The time as the process's.
    pub(super) fn instant(&self) -> Instant {
        self.origin + Duration::from_micros(self.now)
    }

    pub(super) fn push(&mut self, kind: EventKind) {
        match &kind {
            EventKind::Subscribed { client, part, position, .. }
            | EventKind::Reset { client, part, position, .. } => {
                self.positions.insert((*client, *part), *position);
            }
            EventKind::Delivered { client, topic, epoch, entry } => {
                let position = EpochSequence { epoch: *epoch, sequence: entry.sequence };
                self.positions.insert((*client, Part::log(*topic)), position);
            }
            EventKind::Changed { client, topic, position, .. } => {
                self.positions.insert((*client, Part::keys(*topic)), *position);
            }
            _ => {}
        }
        self.history.push(self.now, kind);
    }
}

/// A value's payload.
pub(super) fn payload(value: u64) -> Bytes {
    Bytes::from(value.to_string())
}

/// A payload's value; `u64::MAX` if no client sent it.
pub(super) fn value(payload: &[u8]) -> u64 {
    let digits = str::from_utf8(payload).ok();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(u64::MAX)
}

/// The number in a name such as `t3` or `k1`; `u16::MAX` if no client sent it.
pub(super) fn number(name: &str) -> u16 {
    name.get(1..).and_then(|digits| digits.parse().ok()).unwrap_or(u16::MAX)
}

/// A key as the history has it.
pub(super) fn key_state(key: &StoredKey) -> KeyState {
    KeyState { key: number(&key.key), version: key.version, value: key.value.as_deref().map(value) }
}
