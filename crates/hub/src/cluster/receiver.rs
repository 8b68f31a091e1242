//! Handles other nodes' messages, on the thread that is connected with them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use futures_util::FutureExt as _;
use serde_json::Value;
use sinews_server::Publisher;

use super::Cluster;
use super::cached_events::{PendingEvents, exchange_events};
use super::command::NodeCommand;
use super::commands::{CommandMessage, CommandTarget, Execution, ResultMessage};
use super::members::RemotePresence;
use super::message::{MessageKind, NodeId, NodeMessageHead, NodePublication, read_publications};
use super::node::LocalParts;
use super::nodes::Heartbeat;
use super::pending::PendingWork;
use super::revocations::RevocationLists;
use crate::model::nodes::NodePublicationId;
use crate::model::problem::{code, problem};
use crate::model::publication::{Publication, PublicationOrigin, PublicationSender};
use crate::topics::HubTopics;

/// Handler for other nodes' messages.
pub(super) struct Receiver {
    pub(super) cluster: Arc<Cluster>,
    pub(super) hub: Arc<HubTopics>,
    pub(super) local: LocalParts,
    pub(super) publisher: Publisher,
    pub(super) remote: RemotePresence,
    /// Nodes that need this node's whole presence.
    pub(super) requesters: Vec<NodeId>,
    pub(super) revocations: RevocationLists,
    /// Results of commands that connections execute: the node that waits for one, and the id of its request.
    pub(super) results: PendingWork<(NodeId, u64, Value)>,
    /// Requests for cache-channel events.
    pub(super) events: PendingEvents,
}

impl Receiver {
    /// Handles a message. Returns whether the thread may have more to do for it: not for publications.
    pub(super) fn receive(&mut self, message: &[u8], now: Instant) -> bool {
        let Some((head, body)) = NodeMessageHead::read(message) else {
            if let Some((node, version)) = NodeMessageHead::other_version(message) {
                self.cluster.versions.note(self.cluster.node, node, version, now);
            }
            return false;
        };
        if head.node.id == self.cluster.node.id {
            return false;
        }
        let mut nodes = self.cluster.lock_nodes();
        if !nodes.has_place(head.node) {
            drop(nodes);
            self.cluster.log_excess(head.node, now);
            return false;
        }
        if !nodes.receive(head.node, head.number, now) {
            return false;
        }
        let is_publications = head.kind == MessageKind::Publications;
        let is_replaced = !is_publications && nodes.is_replaced(head.node);
        drop(nodes);
        match is_publications {
            true => self.receive_publication(&head, body),
            false => self.handle(&head, body, is_replaced, now),
        }
        !is_publications
    }

    /// Handles a message other than publications.
    fn handle(&mut self, head: &NodeMessageHead, body: &[u8], is_replaced: bool, now: Instant) {
        match head.kind {
            MessageKind::Publications => {}
            MessageKind::Heartbeat => {
                let Ok(heartbeat) = serde_json::from_slice::<Heartbeat>(body) else { return };
                if heartbeat.serving {
                    let predecessors = self.cluster.lock_nodes().predecessors(head.node);
                    predecessors.into_iter().for_each(|node| self.remote.remove(node, &self.publisher));
                }
                if !is_replaced && self.remote.compare(head.node, heartbeat.presence, now) {
                    self.request_presence(head.node);
                }
                self.cluster.note_heartbeat(head.node, heartbeat, now);
            }
            MessageKind::Leave => {
                self.cluster.left(head.node);
                self.remote.remove(head.node, &self.publisher);
            }
            MessageKind::PresenceChanges | MessageKind::PresenceSnapshot if is_replaced => {}
            MessageKind::PresenceChanges => {
                if self.remote.apply_changes(head.node, body, &self.publisher, now) {
                    self.request_presence(head.node);
                }
            }
            MessageKind::PresenceSnapshot => {
                self.remote.apply_snapshot(head.node, body, &self.publisher, now);
            }
            MessageKind::PresenceRequest => {
                if !self.requesters.contains(&head.node) {
                    self.requesters.push(head.node);
                }
            }
            MessageKind::Command => self.execute(head.node, body),
            MessageKind::Result => {
                let Ok(ResultMessage { id, result }) = serde_json::from_slice(body) else { return };
                self.cluster.lock_requests().complete(id, head.node, result);
            }
        }
    }

    /// Executes another node's command, and sends its result.
    fn execute(&mut self, node: NodeId, body: &[u8]) {
        // Other versions may send other commands.
        let Ok(CommandMessage { id, command }) = serde_json::from_slice(body) else { return };
        match command {
            NodeCommand::Sync if !self.cluster.answers_sync(node) => return,
            NodeCommand::Sync => return self.revocations.add_requester(node),
            _ => {}
        }
        let target = CommandTarget {
            connections: self.hub.connections(),
            local: &self.local,
            publisher: &self.publisher,
            hub: &self.hub,
        };
        match target.execute(command) {
            Execution::Done(result) => self.send_result(node, id, result),
            Execution::Pending(result) => {
                if !self.results.add(result.map(move |result| (node, id, result)).boxed()) {
                    let full = problem(code::TOO_MANY, "a node has too many pending commands");
                    self.send_result(node, id, full.fields());
                }
            }
        }
    }

    /// Sends the results from commands that connections have executed, and the revocations that other nodes have
    /// requested, and delivers events that other nodes have retained.
    pub(super) fn do_pending_work(&mut self) {
        self.revocations.send_parts(&self.cluster, &self.local.revocations);
        exchange_events(&mut self.events, &self.cluster, &self.hub, &self.publisher);
        while let Some((node, id, result)) = self.results.next_done() {
            self.send_result(node, id, result);
        }
    }

    fn send_result(&self, node: NodeId, id: u64, result: Value) {
        if id > 0 {
            // A value is always encoded.
            let body = serde_json::to_vec(&ResultMessage { id, result }).unwrap_or_default();
            self.cluster.outbox.send(&self.cluster.outbox.subjects.node(node), MessageKind::Result, &body);
        }
    }

    pub(super) fn request_presence(&self, node: NodeId) {
        let outbox = &self.cluster.outbox;
        outbox.send(&outbox.subjects.node(node), MessageKind::PresenceRequest, &[]);
    }

    fn receive_publication(&mut self, head: &NodeMessageHead, body: &[u8]) {
        let Some((topic, publications)) = read_publications(body) else { return };
        let NodeMessageHead { node: NodeId { id: node, start }, number, .. } = *head;
        self.cluster.outbox.counters.received.fetch_add(publications.len() as u64, Ordering::Relaxed);
        for NodePublication { index, content, exclude, time, verified } in publications {
            let origin = NodePublicationId { node, start, number, index };
            let sender = PublicationSender { exclude, ..PublicationSender::default() };
            let content = (&content).into();
            let publication = Publication::new(topic, &content).with_sender(sender);
            let publication = publication.by(verified.as_ref()).with_time(time);
            self.hub.publish(&mut self.publisher, &publication.with_origin(PublicationOrigin::Node(origin)));
        }
    }
}
