//! Lists a cluster's nodes from outside, by their heartbeats.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token, Waker};

use super::connection::{BrokerConnection, LinkEvent};
use super::message::{MessageKind, NodeId, NodeMessageHead, VERSION};
use super::node::ClusterNode;
use super::nodes::Heartbeat;
use super::options::ClusterOptions;
use super::subject::Subjects;
use super::times::HEARTBEAT;
use crate::background::Background;
use crate::error::{HubError, HubErrorKind};

impl ClusterNode {
    pub(super) fn new(id: NodeId, heartbeat: &Heartbeat) -> Self {
        let Heartbeat { name, version, uptime, connections, users, topics, store, store_away, .. } =
            heartbeat.clone();
        Self { id: id.to_string(), name, version, uptime, connections, users, topics, store, store_away }
    }
}

/// Time in which each living node sends a heartbeat, also if one is late.
const OBSERVED: Duration = Duration::from_millis(HEARTBEAT.as_millis() as u64 * 5 / 2);

/// Lists a cluster's living nodes by name, without joining it. Takes two and a half seconds: two heartbeat intervals,
/// and some delay.
///
/// # Errors
/// [`HubErrorKind::Broker`]: the broker does not answer within the timeout, or rejects the login; or all nodes have
/// another version of the messages between nodes.
/// [`HubErrorKind::System`]: this process has no descriptor left.
pub fn observe_nodes(options: &ClusterOptions, timeout: Duration) -> Result<Vec<ClusterNode>, HubError> {
    let system = |error: std::io::Error| HubError::caused(HubErrorKind::System, error);
    let broker = |fault: String| HubError::new(HubErrorKind::Broker, fault);
    let (begin, mut found) = (Instant::now(), ObservedNodes::default());
    let mut end = begin + timeout;
    let mut poll = Poll::new().map_err(system)?;
    let waker = Arc::new(Waker::new(poll.registry(), Token(1)).map_err(system)?);
    // This function keeps the waker until it returns: a wakeup is lost with the last reference. Without a wakeup, the
    // next attempt to list them may succeed.
    let wake = {
        let waker = Arc::clone(&waker);
        move || drop(waker.wake())
    };
    let (background, registry) = (Background::default(), poll.registry());
    let connection = BrokerConnection::start(&background, options, None, 0, registry, Token(0), wake);
    let mut connection = connection.map_err(broker)?;
    let mut events = Events::with_capacity(8);
    loop {
        let now = Instant::now();
        if now >= end {
            break;
        }
        exchange(&mut connection, options, &mut found, now).map_err(broker)?;
        if connection.is_ready && end == begin + timeout {
            end = now + OBSERVED;
        }
        // An interrupted wait is over earlier.
        let _ = poll.poll(&mut events, Some(end.saturating_duration_since(now)));
        events.iter().filter(|event| event.token() == Token(0)).for_each(|event| connection.wake(event));
    }
    if !connection.is_ready {
        return Err(broker(format!("{options}: no answer within {} s", timeout.as_secs())));
    }
    if let Some(version) = found.other_version.filter(|_| found.nodes.is_empty()) {
        return Err(broker(format!(
            "{options}: the nodes have version {version} of the messages between nodes, and this program has version {VERSION}"
        )));
    }
    let nodes = found.nodes.iter().map(|(id, heartbeat)| ClusterNode::new(*id, heartbeat));
    let mut nodes: Vec<ClusterNode> = nodes.collect();
    nodes.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
    Ok(nodes)
}

#[derive(Default)]
struct ObservedNodes {
    nodes: BTreeMap<NodeId, Heartbeat>,
    /// Version of the last message with another version.
    other_version: Option<u8>,
}

/// Receives and sends.
fn exchange(
    connection: &mut BrokerConnection,
    options: &ClusterOptions,
    found: &mut ObservedNodes,
    now: Instant,
) -> Result<(), String> {
    if !connection.establish()? {
        return Ok(());
    }
    while connection.has_input() && connection.receive(now)? {
        while let Some(event) = connection.next_event()? {
            match event {
                LinkEvent::Ready => {
                    let all = Subjects::new(options.engine, &options.prefix).all();
                    options.engine.subscribe(connection.output(), &all, false, 1);
                }
                LinkEvent::Pong(_) | LinkEvent::Subscribed => {}
                LinkEvent::Rejected(text) => return Err(format!("{options}: {text}")),
                LinkEvent::Message(range) => {
                    let message = connection.payload(range);
                    let Some((head, body)) = NodeMessageHead::read(message) else {
                        let other = NodeMessageHead::other_version(message).map(|(_, version)| version);
                        found.other_version = other.or(found.other_version);
                        continue;
                    };
                    match head.kind {
                        MessageKind::Heartbeat => {
                            let heartbeat = serde_json::from_slice(body).ok();
                            found.nodes.extend(heartbeat.map(|heartbeat| (head.node, heartbeat)));
                        }
                        MessageKind::Leave => drop(found.nodes.remove(&head.node)),
                        _ => {}
                    }
                }
            }
        }
    }
    connection.send()
}
