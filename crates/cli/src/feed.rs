//! `WS /dashboard/feed`: what the server tells of itself, once a second while somebody looks.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sinews_server::{
    CloseCode, Closed, Context, Handler, Metrics, Monitor, Payload, Prepared, Publisher, Refusal, Request,
};

use crate::auth::{Rights, Want};
use crate::hub::Hub;
use crate::live::Policy;
use crate::routes::{TOKEN_EXPIRED, close};
use crate::streams::{Store, report};
use crate::version;

/// The right to subscribe to this is the right to look: the numbers name topics.
const TOPIC: &str = "sinews.dashboard";

/// The same, as the server below knows it; no client can name it there.
const FEED: &str = "m.feed";

const INTERVAL: Duration = Duration::from_secs(1);

/// Topics whose rates are told: the busiest.
const TOPICS_MAX: usize = 20;

/// Somebody who looks.
pub(crate) struct Viewer {
    rights: Rights,
    hub: Arc<Hub>,
    counted: bool,
}

impl Viewer {
    pub(crate) fn new(request: &Request<'_>, policy: &Policy, hub: Arc<Hub>) -> Result<Self, Refusal> {
        policy.origin.check(request.head())?;
        let rights = policy.rights(request).and_then(|rights| {
            rights.check(Want::Subscribe(TOPIC))?;
            Ok(rights)
        });
        Ok(Self { rights: rights.map_err(|denied| denied.refusal())?, hub, counted: false })
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

    /// Whatever comes is answered at once, so that the page sees how long that takes.
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

/// Facts about the server that stay the same while it runs.
pub(crate) struct Facts {
    pub(crate) threads: usize,
    /// `io_uring` or `readiness`.
    pub(crate) backend: &'static str,
    /// `a directory` or the scheme of the broker; none without streams.
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

/// The name of the machine, by which one node is told from another.
fn node() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Publishes the numbers, on a thread that ends with the process.
///
/// # Errors
/// If no thread can be started.
pub(crate) fn start(
    monitor: Monitor,
    publisher: Publisher,
    hub: Arc<Hub>,
    store: Option<Arc<Store>>,
    facts: Facts,
) -> io::Result<()> {
    let thread = thread::Builder::new().name("dashboard".to_owned());
    let begin = Instant::now();
    thread.spawn(move || {
        let mut busy = Vec::new();
        loop {
            thread::sleep(INTERVAL);
            if !hub.is_watched() {
                continue;
            }
            let metrics = monitor.metrics();
            let mut words = words(&metrics, busiest(&metrics, &mut busy), &hub.take_rates(TOPICS_MAX), begin);
            words["server"] = facts.to_json(begin);
            if let Some(store) = &store {
                words["streams"] = report::words(store);
            }
            let words = words.to_string();
            // A server that stops has nobody left to tell.
            let _ = publisher.publish(FEED, &Prepared::text(words));
        }
    })?;
    Ok(())
}

/// The largest share of its time that a loop has worked since it was asked last.
fn busiest(metrics: &Metrics, last: &mut Vec<(Duration, Duration)>) -> f64 {
    let now: Vec<_> = metrics.loops.iter().map(|stats| (stats.timed_busy, stats.timed_waiting)).collect();
    let shares = now.iter().enumerate().map(|(at, (busy, waiting))| {
        let before = last.get(at).copied().unwrap_or_default();
        let (busy, waiting) = (busy.saturating_sub(before.0), waiting.saturating_sub(before.1));
        let total = busy + waiting;
        if total.is_zero() { 0.0 } else { busy.as_secs_f64() / total.as_secs_f64() }
    });
    let most = shares.fold(0.0, f64::max);
    *last = now;
    most
}

fn words(metrics: &Metrics, busy: f64, topics: &[(String, u64)], begin: Instant) -> Value {
    let refused: u64 = metrics.handshakes_refused.iter().map(|(_, count)| count).sum();
    json!({
        "at": begin.elapsed().as_millis() as u64,
        "connections": metrics.connections(),
        "websockets": metrics.websockets(),
        "messages_sent": metrics.messages_sent,
        "messages_received": metrics.messages_received,
        "sent_bytes": metrics.loops.iter().map(|stats| stats.sent_bytes).sum::<u64>(),
        "received_bytes": metrics.loops.iter().map(|stats| stats.received_bytes).sum::<u64>(),
        "dropped": metrics.dropped.total(),
        "refused": refused + metrics.limited.total(),
        "queued_bytes": metrics.queued_bytes,
        "resident_bytes": metrics.process.resident_bytes,
        "busy": busy,
        "topics": topics,
    })
}
