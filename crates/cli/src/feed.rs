//! `WS /dashboard/feed`: metrics of the server, once a second while a dashboard is open.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sinews_server::{
    CloseCode, Closed, Context, Handler, Metrics, Monitor, Payload, Prepared, Publisher, Request, Stats,
};

use crate::admission::Rejection;
use crate::auth::{Rights, Want};
use crate::hub::Hub;
use crate::live::{Live, Policy};
use crate::routes::{TOKEN_EXPIRED, close};
use crate::streams::{Store, report};
use crate::version;

/// The right to subscribe to this topic is required to view the dashboard: the report names topics.
const TOPIC: &str = "sinews.dashboard";

/// The topic in the server below; no client can name it there.
const FEED: &str = "m.feed";

const INTERVAL: Duration = Duration::from_secs(1);

/// Topics whose rates are reported, by descending rate.
const TOPICS_MAX: usize = 20;

/// A connected dashboard.
pub(crate) struct Viewer {
    rights: Rights,
    hub: Arc<Hub>,
    counted: bool,
}

impl Viewer {
    pub(crate) fn new(request: &Request<'_>, policy: &Policy, hub: Arc<Hub>) -> Result<Self, Rejection> {
        let rights = policy.rights(request)?;
        rights.check(Want::Subscribe(TOPIC))?;
        Ok(Self { rights, hub, counted: false })
    }
}

impl Handler for Viewer {
    fn open(&mut self, cx: &mut Context<'_>) {
        match cx.subscribe(FEED) {
            Ok(()) => {
                self.counted = true;
                self.hub.watch(true);
            }
            Err(error) => close(cx, CloseCode::POLICY, &error.to_string()),
        }
    }

    /// Each message is answered at once, so that the page can measure the round trip.
    fn message(&mut self, _: Payload<'_>, cx: &mut Context<'_>) {
        let _ = cx.send_text("pong");
    }

    fn deadline(&self) -> Option<Instant> {
        self.rights.deadline()
    }

    fn expired(&mut self, cx: &mut Context<'_>) {
        close(cx, TOKEN_EXPIRED, "the token has expired");
    }

    fn close(&mut self, _: &Closed, _: &mut Context<'_>) {
        if std::mem::take(&mut self.counted) {
            self.hub.watch(false);
        }
    }
}

/// Facts about the server that do not change while it runs.
pub(crate) struct Facts {
    pub(crate) threads: usize,
    /// `io_uring` or `readiness`.
    pub(crate) backend: &'static str,
    /// `a directory` or the scheme of the broker; `None` without streams.
    pub(crate) store: Option<String>,
}

impl Facts {
    fn to_json(&self, begin: Instant) -> Value {
        json!({
            "version": version::VERSION,
            "commit": version::COMMIT,
            "node": node(),
            "threads": self.threads,
            "backend": self.backend,
            "store": self.store,
            "uptime": begin.elapsed().as_secs(),
        })
    }
}

/// The host name, which identifies the node.
fn node() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Publishes the report on a thread that ends with the process.
///
/// # Errors
/// If no thread can be started.
pub(crate) fn start(
    monitor: Monitor,
    publisher: Publisher,
    (hub, live): (Arc<Hub>, Live),
    store: Option<Arc<Store>>,
    facts: Facts,
) -> io::Result<()> {
    let thread = thread::Builder::new().name("dashboard".to_owned());
    let begin = Instant::now();
    thread.spawn(move || {
        let mut busy = Busy::new();
        loop {
            thread::sleep(INTERVAL);
            if !hub.is_watched() {
                continue;
            }
            let metrics = monitor.metrics();
            let share = busy.busiest(&metrics.loops, Instant::now());
            let mut words = words(&metrics, share, &hub.take_rates(TOPICS_MAX), begin);
            // They do not count as failed handshakes, since the server accepts them to close them.
            words["refused"] = json!(refused(&metrics) + live.policy().rejections().closed());
            words["server"] = facts.to_json(begin);
            if let Some(store) = &store {
                words["streams"] = report::words(store);
            }
            let words = words.to_string();
            // A server that is stopping has no subscribers left.
            let _ = publisher.publish(FEED, &Prepared::text(words));
        }
    })?;
    Ok(())
}

/// Busy times of the workers at the last sample.
struct Busy {
    at: Instant,
    /// For each worker: the CPU time of its thread, or the timed turns where the CPU time is unknown.
    loops: Vec<(Option<Duration>, Duration, Duration)>,
}

impl Busy {
    fn new() -> Self {
        Self { at: Instant::now(), loops: Vec::new() }
    }

    /// The largest share of a CPU that a worker has used since the last sample.
    fn busiest(&mut self, loops: &[Stats], at: Instant) -> f64 {
        let passed = at.saturating_duration_since(self.at);
        let now: Vec<_> =
            loops.iter().map(|stats| (stats.cpu, stats.timed_busy, stats.timed_waiting)).collect();
        let shares = now.iter().enumerate().map(|(number, (cpu, busy, waiting))| {
            let before = self.loops.get(number).copied().unwrap_or_default();
            let (part, whole) = match cpu {
                Some(cpu) => (cpu.saturating_sub(before.0.unwrap_or_default()), passed),
                None => {
                    let busy = busy.saturating_sub(before.1);
                    (busy, busy + waiting.saturating_sub(before.2))
                }
            };
            // The clocks are read one after the other and differ slightly.
            if whole.is_zero() { 0.0 } else { (part.as_secs_f64() / whole.as_secs_f64()).min(1.0) }
        });
        let most = shares.fold(0.0, f64::max);
        (self.at, self.loops) = (at, now);
        most
    }
}

fn refused(metrics: &Metrics) -> u64 {
    metrics.handshakes_refused.iter().map(|(_, count)| count).sum::<u64>() + metrics.limited.total()
}

fn words(metrics: &Metrics, busy: f64, topics: &[(String, u64)], begin: Instant) -> Value {
    json!({
        "at": begin.elapsed().as_millis() as u64,
        "connections": metrics.connections(),
        "websockets": metrics.websockets(),
        "messages_sent": metrics.messages_sent,
        "messages_received": metrics.messages_received,
        "sent_bytes": metrics.loops.iter().map(|stats| stats.sent_bytes).sum::<u64>(),
        "received_bytes": metrics.loops.iter().map(|stats| stats.received_bytes).sum::<u64>(),
        "dropped": metrics.dropped.total(),
        "queued_bytes": metrics.queued_bytes,
        "resident_bytes": metrics.process.resident_bytes,
        "busy": busy,
        "topics": topics,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busiest_worker_is_measured_by_cpu_time_or_by_timed_turns() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut busy = Busy { at: begin, loops: Vec::new() };
        let (mut one, mut other) = (Stats::default(), Stats::default());
        // It sends within the waiting system call: its turns are short.
        (one.cpu, one.timed_busy, one.timed_waiting) =
            (Some(Duration::from_millis(900)), Duration::from_millis(1), Duration::from_millis(99));
        other.cpu = Some(Duration::from_millis(300));
        assert!((busy.busiest(&[one, other], at(2)) - 0.45).abs() < 1e-9);
        other.cpu = Some(Duration::from_millis(800));
        assert!((busy.busiest(&[one, other], at(3)) - 0.5).abs() < 1e-9, "since it was asked last");
        let mut unknown = Stats::default();
        (unknown.timed_busy, unknown.timed_waiting) = (Duration::from_secs(1), Duration::from_secs(3));
        let mut busy = Busy { at: begin, loops: Vec::new() };
        assert!((busy.busiest(&[unknown], at(1)) - 0.25).abs() < 1e-9);
    }
}
