//! Maintenance of the copies: an audit finds notifications that were lost without a successor.

use std::sync::{Arc, Weak};
use std::time::Duration;

use sinews_server::Position;
use sinews_store::{PartKind, TopicPart};
use tokio::time::timeout;

use super::shared::StoredTopics;

/// Topics in one request.
const TOPICS_MAX: usize = 1_000;

/// Interval of the audit of all topics: each request has [`TOPICS_MAX`] of them.
const ROUND: Duration = Duration::from_secs(10);

/// Interval of the maintenance.
const TICK: Duration = Duration::from_secs(1);

/// Audits until the topics are dropped.
pub(super) async fn run(stored: Weak<StoredTopics>) {
    let mut round = Vec::new();
    let mut ticks = 0;
    while let Some(stored) = stored.upgrade() {
        let is_tick = timeout(TICK, stored.audit.notified()).await.is_err();
        let is_up = stored.is_partly_up();
        if is_tick {
            ticks += 1;
            stored.maintain_logs();
            stored.maintain_keys();
            stored.waiting.wake_all();
        }
        if !is_up {
            continue;
        }
        stored.mark_unstored().await;
        stored.complete_revocations().await;
        let urgent = std::mem::take(&mut *stored.unaudited.lock());
        if !urgent.is_empty() {
            let all = stored.audited();
            stored.audit(all.into_iter().filter(|(part, _)| urgent.contains(part)).collect()).await;
        }
        if is_tick {
            if round.is_empty() && ticks >= ROUND.as_secs() {
                (ticks, round) = (0, stored.audited());
            }
            // A large round is spread over the interval.
            let rest = round.split_off(round.len().min(TOPICS_MAX.max(round.len() / 8)));
            let now = std::mem::replace(&mut round, rest);
            stored.audit(now).await;
        }
    }
}

impl StoredTopics {
    fn audited(&self) -> Vec<(TopicPart, Position)> {
        let mut all = self.audited_logs();
        all.extend(self.audited_keys());
        all
    }

    /// Compares the copies' last positions with the store's.
    async fn audit(self: &Arc<Self>, copies: Vec<(TopicPart, Position)>) {
        for part in copies.chunks(TOPICS_MAX) {
            let names = part.iter().map(|(part, _)| part.clone()).collect();
            // The next round repeats it.
            let Ok(tops) = self.store.tops(names).await else { return };
            for ((part, asked), top) in part.iter().zip(tops) {
                let Ok(top) = top else { continue };
                match part.part {
                    PartKind::Log => self.audit_log(&part.topic, *asked, top),
                    PartKind::Keys => self.audit_keys(&part.topic, *asked, top),
                }
            }
        }
    }
}
