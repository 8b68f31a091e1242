//! Webhook events.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use ring::rand::{SecureRandom as _, SystemRandom};

use crate::model::events::EventDetail;

/// An event, with an id that it retains in all retries and for all webhooks.
#[derive(Debug)]
pub(crate) struct WebhookEvent {
    /// The process's random number, and the event's number.
    pub(crate) id: (u64, u64),
    /// Milliseconds since 1970.
    pub(crate) time: u64,
    pub(crate) detail: EventDetail,
}

/// Numbers a process's events.
#[derive(Debug)]
pub(super) struct EventNumbers {
    process: u64,
    last: AtomicU64,
}

impl Default for EventNumbers {
    fn default() -> Self {
        let mut random = [0; 8];
        // Without random numbers, the time distinguishes the processes.
        if SystemRandom::new().fill(&mut random).is_err() {
            random = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(random, |now| (now.as_nanos() as u64).to_le_bytes());
        }
        Self { process: u64::from_le_bytes(random), last: AtomicU64::new(0) }
    }
}

impl EventNumbers {
    pub(super) fn event(&self, detail: EventDetail) -> WebhookEvent {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let time = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        WebhookEvent { id: (self.process, number), time, detail }
    }
}

impl WebhookEvent {
    /// The id as 32 hexadecimal digits.
    pub(crate) fn id_text(&self) -> String {
        format!("{:016x}{:016x}", self.id.0, self.id.1)
    }
}
