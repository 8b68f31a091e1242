//! Last events of cache channels, requested from the other nodes.
//!
//! Nodes send cache-channel events to all nodes, with or without subscribers. A node that has started or was cut off
//! meanwhile lacks some: it requests a channel's event when a client subscribes to the channel, once after its login
//! and after each node joins.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use serde_json::{Value, json};
use sinews_server::{Prepared, Publisher};

use super::Cluster;
use super::command::{NodeCommand, NodeResults};
use super::pending::PendingWork;
use super::times::{LOSS_MAX, RETURN_TIME};
use crate::model::encoding::RetainedEvent;
use crate::model::nodes::NodePublicationId;
use crate::topics::HubTopics;

/// Maximum channels that are requested after a login at the broker; further ones have no earlier event here.
const REQUESTED_MAX: usize = 65_536;

/// Maximum requests that wait for the link's thread.
const WAITING_MAX: usize = 1_024;

/// Limit for events that are sent again after a login: the youngest ones.
const RESENT_MAX: usize = 4_096;
const RESENT_BYTES_MAX: usize = 4 << 20;

/// Requests for events.
#[derive(Debug, Default)]
pub(super) struct CachedEventRequests(Mutex<RequestState>);

#[derive(Debug, Default)]
struct RequestState {
    /// Topics for the link's thread.
    waiting: Vec<String>,
    /// The login that the requested topics belong to.
    login: Option<Instant>,
    /// Hashes of the requested topics: names are chosen by clients.
    requested: HashSet<u64>,
    hasher: RandomState,
}

impl CachedEventRequests {
    /// Adds a topic, once after each login. Returns whether it is new.
    fn add(&self, topic: &str, login: Instant) -> bool {
        let mut state = self.0.lock();
        if state.login != Some(login) {
            state.login = Some(login);
            state.requested = HashSet::new();
        }
        let hash = state.hasher.hash_one(topic);
        let has_room = state.requested.len() < REQUESTED_MAX && state.waiting.len() < WAITING_MAX;
        let is_new = has_room && state.requested.insert(hash);
        if is_new {
            state.waiting.push(topic.to_owned());
        }
        is_new
    }

    /// Forgets a request: the topic's next client requests it again.
    fn forget(&self, topic: &str) {
        let mut state = self.0.lock();
        let hash = state.hasher.hash_one(topic);
        state.requested.remove(&hash);
    }

    /// Handles a new node, which may have events: each topic's next client requests its event again.
    pub(super) fn forget_all(&self) {
        self.0.lock().requested.clear();
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().waiting)
    }
}

impl Cluster {
    /// Requests a cache channel's last event, if this node may lack it: it has retained none since its login, and the
    /// login is not longer ago than the time for which events are retained. Returns whether it is requested.
    pub(super) fn request_event(&self, topic: &str, retained: Option<Instant>, time: Duration) -> bool {
        // Before the broker has confirmed the login, the beginning of the outage.
        let since = self.lock_status().since;
        let is_complete = retained.is_some_and(|at| at > since) || since.elapsed() >= time;
        let is_requested = self.outbox.is_open() && !is_complete && self.cached_events.add(topic, since);
        if is_requested {
            self.outbox.wake();
        }
        is_requested
    }
}

/// This node's events that the others may have missed in an outage, and in a moment before it: another node with the
/// connection does not know about the outage. They are sent after the login, and again when all nodes have returned.
#[derive(Debug, Default)]
pub(super) struct MissedEvents {
    /// When the events are sent again, and the beginning of the outage.
    again: Option<(Instant, Instant)>,
}

impl MissedEvents {
    /// Sends the events after a login.
    pub(super) fn connected(&mut self, cluster: &Cluster, hub: &HubTopics, now: Instant) {
        // The broker has not confirmed the login.
        let begin = cluster.lock_status().since;
        // Nodes that were to return after the last outage have missed its events as well.
        let begin = self.again.map_or(begin, |(_, earlier)| begin.min(earlier));
        self.again = Some((now + RETURN_TIME, begin));
        send_events_since(begin, cluster, hub, now);
    }

    /// Sends the events again when it is time: nodes that have returned later than this one lack them. The others know
    /// them.
    pub(super) fn send_again(&mut self, cluster: &Cluster, hub: &HubTopics, now: Instant) {
        if let Some((_, begin)) = self.again.take_if(|(due, _)| *due <= now) {
            send_events_since(begin, cluster, hub, now);
        }
    }
}

/// Sends all nodes this node's events since an outage, and a moment before it.
fn send_events_since(begin: Instant, cluster: &Cluster, hub: &HubTopics, now: Instant) {
    let age_max = now.saturating_duration_since(begin) + LOSS_MAX;
    let all = cluster.outbox.subjects.all();
    let mut bytes = 0;
    for topic in hub.own_last_events(age_max).into_iter().take(RESENT_MAX) {
        // Workers publish meanwhile, so there may be a later event, or one that is under way to the other nodes.
        hub.send_own_last_event(&topic, |message, age| {
            bytes += message.payload().len();
            if bytes <= RESENT_BYTES_MAX {
                let event = String::from_utf8_lossy(message.payload()).into_owned();
                let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
                cluster.send_command(&all, 0, NodeCommand::RetainEvent { topic: topic.clone(), event, age });
            }
        });
        if bytes > RESENT_BYTES_MAX {
            return;
        }
    }
}

/// Requests by the link's thread that wait for the other nodes: each with its topic and its time.
pub(super) type PendingEvents = PendingWork<(String, Instant, NodeResults)>;

/// Starts requests, and delivers events that have arrived.
pub(super) fn exchange_events(
    pending: &mut PendingEvents,
    cluster: &Arc<Cluster>,
    hub: &HubTopics,
    publisher: &Publisher,
) {
    for topic in cluster.cached_events.take() {
        let asked = Instant::now();
        let results = cluster.request(&NodeCommand::CachedEvent { topic: topic.clone() });
        // Beyond the limit, the client keeps the answer that there is no event.
        pending.add(results.map(move |results| (topic, asked, results)).boxed());
    }
    while let Some((topic, asked, NodeResults { results, is_complete, .. })) = pending.next_done() {
        // A node without an answer may have an event. A lost node that returns joins again.
        if !is_complete {
            cluster.cached_events.forget(&topic);
        }
        let events = results.iter().filter_map(read_event);
        if let Some((age, message, origin)) = events.min_by_key(|(age, ..)| *age) {
            // An answer may be older than the last one, or than the time limit: it follows the request. Later events
            // have arrived as publications, and stay.
            hub.restore_last_event(publisher, &topic, &message, origin, asked.elapsed() + age);
        }
    }
}

/// Returns a cache channel's last event on this node, for another one.
pub(super) fn cached_event(hub: &HubTopics, topic: &str) -> Value {
    match hub.last_event(topic) {
        Some(RetainedEvent { message, origin, age }) => json!({
            "event": String::from_utf8_lossy(message.payload()),
            "age": u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            "from": origin.publication().map(|from| (format!("{:032x}", from.node), from.start, from.number, from.index)),
        }),
        None => Value::Null,
    }
}

fn read_event(result: &Value) -> Option<(Duration, Prepared, Option<NodePublicationId>)> {
    let message = Prepared::text(result["event"].as_str()?);
    Some((Duration::from_millis(result["age"].as_u64()?), message, read_origin(&result["from"])))
}

/// Reads another node's publication from which a node has an event; `None` if it has published the event itself.
fn read_origin(from: &Value) -> Option<NodePublicationId> {
    let node = u128::from_str_radix(from[0].as_str()?, 16).ok()?;
    let number = |at: usize| from[at].as_u64();
    Some(NodePublicationId { node, start: number(1)?, number: number(2)?, index: number(3)? })
}

#[cfg(all(test, feature = "pusher"))]
mod tests;
