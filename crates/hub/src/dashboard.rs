//! `WS /dashboard/feed`: the server's metrics, once a second while a dashboard is open.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sinews_server::{
    CloseCode, Closed, Context, Handler, Metrics, Monitor, Payload, Prepared, PublishOptions, Publisher,
    Request, Stats, WebSocketEnd,
};

use crate::access::auth::{Action, ApiCredential, ApiRight, Denied, Rights};
use crate::admission::HandshakeRejection;
#[cfg(feature = "pusher")]
use crate::apps::report::AppsReport;
use crate::background::Periodic;
use crate::closing::{FORBIDDEN, TOKEN_EXPIRED, close};
use crate::config::ConfigHandle;
use crate::connections::ConnectionPath;
use crate::node::ServerInfo;
use crate::session::backends::Backends;
use crate::session::client_session::ClientSession;
use crate::streams::report;
use crate::topics::HubTopics;
use crate::topics::encodings::Encodings;
use crate::topics::list::{TopicScan, TopicUse};

/// The right to subscribe to this topic is required to view the dashboard: the report names topics.
const TOPIC: &str = "sinews.dashboard";

/// The topic in the server below; no client can name it there.
const FEED: &str = "m.feed";

const INTERVAL: Duration = Duration::from_secs(1);

/// Topics whose rates are reported, by descending rate.
const TOPICS_MAX: usize = 20;

/// A connected dashboard.
pub(crate) struct DashboardClient {
    session: ClientSession<()>,
    /// The API key that grants the view, in place of a token.
    key: Option<ApiCredential>,
    counted: bool,
}

impl DashboardClient {
    pub(crate) fn new(
        request: &Request<'_>,
        live: &ConfigHandle,
        hub: Arc<HubTopics>,
    ) -> Result<Self, HandshakeRejection> {
        let (config, key) = (live.config(), ApiCredential::from_subprotocols(request));
        let rights = match &key {
            Some(key) => {
                let checked = config.api_rights_of(key).map(|rights| rights.check(ApiRight::Admin));
                let problem = match checked {
                    Some(Ok(())) => None,
                    Some(Err(problem)) => Some(problem.text),
                    None => Some("this is no API key of the server".to_owned()),
                };
                if let Some(problem) = problem {
                    return Err(Denied::token(problem).into());
                }
                Rights::all().for_client(request.client())
            }
            None => {
                let rights = config.rights(request)?;
                rights.may_by_token(Action::Subscribe, TOPIC)?;
                rights
            }
        };
        Ok(Self { session: ClientSession::new(rights, live, hub), key, counted: false })
    }

    /// Whether the API key is still valid, if there is one.
    fn is_admitted(&self) -> bool {
        let rights = |key| self.session.config().api_rights_of(key);
        self.key.as_ref().is_none_or(|key| rights(key).is_some_and(|it| it.check(ApiRight::Admin).is_ok()))
    }
}

impl Handler for DashboardClient {
    fn open(&mut self, cx: &mut Context<'_>) {
        self.session.open(ConnectionPath::Dashboard, cx);
        match cx.subscribe(FEED) {
            Ok(()) => {
                self.counted = true;
                self.session.hub().count_dashboard(true);
            }
            Err(error) => close(cx, CloseCode::POLICY, &error.to_string()),
        }
    }

    /// Each message is answered at once, so that the page can measure the round trip.
    fn message(&mut self, _: Payload<'_>, cx: &mut Context<'_>) {
        if !self.is_admitted() {
            return close(cx, TOKEN_EXPIRED, "the API key is no longer valid");
        }
        let _ = cx.send_text("pong");
    }

    fn woken(&mut self, cx: &mut Context<'_>) {
        for change in self.session.execute_commands(None, cx) {
            if self.session.change_rights(&change, cx)
                && let Err(denied) = self.session.rights().may_by_token(Action::Subscribe, TOPIC)
            {
                close(cx, FORBIDDEN, &denied.problem);
            }
        }
    }

    fn queued(&mut self, bytes: usize) {
        self.session.set_queued(bytes);
    }

    fn deadline(&self) -> Option<Instant> {
        self.session.deadline()
    }

    fn expired(&mut self, cx: &mut Context<'_>) {
        close(cx, TOKEN_EXPIRED, "the token has expired");
    }

    fn close(&mut self, closed: &Closed, _: &mut Context<'_>) {
        self.session.end(closed);
        if std::mem::take(&mut self.counted) {
            self.session.hub().count_dashboard(false);
        }
    }
}

/// Publishes the report at an interval, while a dashboard is open; a build without the feature `pages` has none.
///
/// # Errors
/// If the task thread cannot be started.
pub(crate) fn start(
    monitor: Monitor,
    publisher: Publisher,
    hub: Arc<HubTopics>,
    live: ConfigHandle,
    Backends { store, cluster, .. }: Backends,
    server_info: ServerInfo,
) -> io::Result<Option<Periodic>> {
    let begin = Instant::now();
    let mut usage = WorkerUsage::new();
    #[cfg(feature = "pusher")]
    let mut apps = AppsReport::default();
    let (background, watched) = (live.config().background().clone(), Arc::clone(&hub));
    let report = move || {
        let metrics = monitor.metrics();
        let share = usage.busiest(&metrics.loops, Instant::now());
        let mut snapshot = snapshot(&metrics, share, begin);
        let (topics, count) = topics(&publisher, hub.encodings(), hub.take_rates(TOPICS_MAX));
        snapshot["topics"] = json!(topics);
        snapshot["topic_count"] = json!(count);
        let counts = hub.connections().counts();
        let mut users = counts.users;
        snapshot["subscribed_topics"] = json!(hub.subscribed().len());
        // They do not count as failed handshakes, since the server accepts them to close them.
        snapshot["refused"] = json!(refused(&metrics) + live.config().rejections().closed());
        snapshot["server"] = server_info.to_json(begin);
        if let Some(cluster) = &cluster {
            snapshot["server"]["node"] = json!(cluster.name());
            let nodes = cluster.nodes(counts);
            users = nodes.iter().map(|(node, _)| node.users).sum();
            let own = nodes.iter().find(|(_, is_own)| *is_own);
            snapshot["subscribed_topics"] = json!(own.map_or(0, |(node, _)| node.topics));
            let nodes: Vec<Value> = nodes.iter().map(|(node, _)| node.to_json()).collect();
            snapshot["cluster"] = json!({ "connected": cluster.check_broker().is_ok(), "nodes": nodes });
        }
        snapshot["users"] = json!(users);
        if let Some(hooks) = live.config().hook_metrics() {
            snapshot["hooks"] = hooks.report();
        }
        let webhooks = live.config().webhooks().collector();
        #[cfg(feature = "pusher")]
        if let Some(apps) = apps.next(live.config().live_apps(), &publisher, webhooks.as_ref()) {
            snapshot["apps"] = apps;
        }
        if let Some(webhooks) = webhooks {
            snapshot["webhooks"] = webhooks.report();
        }
        if let Some(store) = &store {
            snapshot["streams"] = report::snapshot(store);
        }
        let snapshot = snapshot.to_string();
        // A server that is stopping has no subscribers left.
        let _ = publisher.publish(FEED, &Prepared::text(snapshot), PublishOptions::new());
    };
    let report = background.every("dashboard", INTERVAL, move || watched.has_dashboards(), report)?;
    Ok(Some(report))
}

/// The workers' busy times at the last sample.
struct WorkerUsage {
    at: Instant,
    /// For each worker: its thread's CPU time, or the timed turns where the CPU time is unknown.
    loops: Vec<(Option<Duration>, Duration, Duration)>,
}

impl WorkerUsage {
    fn new() -> Self {
        Self { at: Instant::now(), loops: Vec::new() }
    }

    /// Returns the largest CPU share that a worker has used since the last sample.
    fn busiest(&mut self, loops: &[Stats], at: Instant) -> f64 {
        let passed = at.saturating_duration_since(self.at);
        let now: Vec<_> =
            loops.iter().map(|stats| (stats.cpu, stats.timed_busy, stats.timed_waiting)).collect();
        let shares = now.iter().enumerate().map(|(number, (cpu, usage, waiting))| {
            let before = self.loops.get(number).copied().unwrap_or_default();
            let (part, whole) = match cpu {
                Some(cpu) => (cpu.saturating_sub(before.0.unwrap_or_default()), passed),
                None => {
                    let usage = usage.saturating_sub(before.1);
                    (usage, usage + waiting.saturating_sub(before.2))
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
    metrics.handshakes_rejected.iter().map(|(_, count)| count).sum::<u64>() + metrics.limited.total()
}

/// A topic with its publications since the last report, its subscribers, and its keys.
type ReportedTopic = (String, u64, usize, usize);

/// Returns the reported topics, and the number of topics with subscribers by name, a history or keys, as far as one
/// look at the list shows. After the topics with publications come the topics with the most subscribers of messages and
/// keys.
fn topics(
    publisher: &Publisher,
    encodings: &Arc<Encodings>,
    rates: Vec<(String, u64)>,
) -> (Vec<ReportedTopic>, usize) {
    let mut listed = TopicScan::new(">", encodings).map(|mut scan| scan.next(publisher)).unwrap_or_default();
    listed.retain(|(_, found)| found.is_any());
    let count = listed.len();
    let known: HashMap<String, TopicUse> = listed.iter().cloned().collect();
    let subscribers = |found: &TopicUse| found.subscribers.unwrap_or(0) + found.key_subscribers;
    let published = rates.into_iter().map(|(topic, rate)| match known.get(&topic) {
        Some(found) => (topic, rate, subscribers(found), found.keys),
        None => {
            let subscribers = count_subscribers(publisher, encodings, &topic);
            (topic, rate, subscribers, 0)
        }
    });
    let mut topics: Vec<ReportedTopic> = published.collect();
    let is_used = |found: &TopicUse| subscribers(found) > 0 || found.keys > 0;
    listed.retain(|(topic, found)| is_used(found) && topics.iter().all(|(other, ..)| other != topic));
    let order = |found: &TopicUse| (subscribers(found), found.keys);
    listed.sort_by(|one, other| order(&other.1).cmp(&order(&one.1)).then_with(|| one.0.cmp(&other.0)));
    let rest = TOPICS_MAX.saturating_sub(topics.len());
    topics.extend(
        listed.into_iter().take(rest).map(|(topic, found)| (topic, 0, subscribers(&found), found.keys)),
    );
    (topics, count)
}

/// Returns a topic's subscriber count by its name.
fn count_subscribers(publisher: &Publisher, encodings: &Encodings, topic: &str) -> usize {
    let counts = encodings.shared().map(|encoded| {
        let name = encoded.topic(topic);
        let found = publisher.topics(&name, None, 1);
        found.first().filter(|listed| *listed.name == *name).map_or(0, |listed| listed.subscribers)
    });
    counts.sum()
}

fn snapshot(metrics: &Metrics, usage: f64, begin: Instant) -> Value {
    json!({
        "at": begin.elapsed().as_millis() as u64,
        "connections": metrics.connections(),
        "websockets": metrics.websockets(),
        "messages_sent": metrics.messages_sent,
        "messages_received": metrics.messages_received,
        "sent_bytes": metrics.loops.iter().map(|stats| stats.sent_bytes).sum::<u64>(),
        "received_bytes": metrics.loops.iter().map(|stats| stats.received_bytes).sum::<u64>(),
        "dropped": metrics.dropped.total(),
        // Clients that were closed because they read too slowly, and key subscribers that fell behind.
        "overflowed": metrics.websockets_closed.get(WebSocketEnd::Overflow)
            + metrics.streaming_responses_closed.get(WebSocketEnd::Overflow),
        "keyed_lags": metrics.keyed_lags,
        "keyed_topics": metrics.keyed_topics,
        "keys": metrics.keys,
        "keyed_bytes": metrics.keyed_bytes,
        "key_changes": metrics.key_changes,
        "members": metrics.presence_members,
        "queued_bytes": metrics.queued_bytes,
        "resident_bytes": metrics.process.resident_bytes,
        "busy": usage,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busiest_worker_is_measured_by_cpu_time_or_by_timed_turns() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut usage = WorkerUsage { at: begin, loops: Vec::new() };
        let (mut one, mut other) = (Stats::default(), Stats::default());
        // It sends within the waiting system call: its turns are short.
        (one.cpu, one.timed_busy, one.timed_waiting) =
            (Some(Duration::from_millis(900)), Duration::from_millis(1), Duration::from_millis(99));
        other.cpu = Some(Duration::from_millis(300));
        assert!((usage.busiest(&[one, other], at(2)) - 0.45).abs() < 1e-9);
        other.cpu = Some(Duration::from_millis(800));
        assert!((usage.busiest(&[one, other], at(3)) - 0.5).abs() < 1e-9, "since it was asked last");
        let mut unknown = Stats::default();
        (unknown.timed_busy, unknown.timed_waiting) = (Duration::from_secs(1), Duration::from_secs(3));
        let mut usage = WorkerUsage { at: begin, loops: Vec::new() };
        assert!((usage.busiest(&[unknown], at(1)) - 0.25).abs() < 1e-9);
    }
}
