//! The process that assigns positions to messages of topics with a history, during a handover.
//!
//! ```text
//!   predecessor ── Publish ──▶ this process ── Publish ──▶ successor
//!               ◀─ Published ─              ◀─ Published ─
//! ```
//!
//! A process with a successor forwards publications to topics with a history, and delivers them when they return with
//! their position. It delivers other publications at once and forwards them. A process with a predecessor forwards its
//! publications to it, except for messages that the predecessor has delivered itself.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard, RwLockReadGuard, RwLockWriteGuard};
use sinews_server::{Position, Publisher, TopicSnapshot};

use super::HubTopics;
use crate::access::auth::Revocation;
use crate::model::MessageContent;
use crate::model::connection_id::ConnectionId;
use crate::model::event::Event;
use crate::model::publication::{Publication, PublicationOrigin, PublicationSender, WaitingPublication};
use crate::model::socket_id::{parse_socket_id, socket_id_text};
use crate::model::stamp::VerifiedSender;
use crate::wire::{ContentKind, FrameSender, HandoverDelivered, HandoverFrame, HandoverHead, HandoverSender};

/// This process's predecessor and successor, if there are any.
#[derive(Debug, Default)]
pub(super) struct HandoverRole {
    pub(super) successor: Option<Successor>,
    predecessor: Option<FrameSender>,
}

/// The successor process.
#[derive(Debug)]
pub(super) struct Successor {
    sender: FrameSender,
    /// Publications that the successor has not confirmed. `None` after it has stopped confirming.
    awaited: Mutex<Option<VecDeque<WaitingPublication>>>,
}

impl HandoverRole {
    /// Passes a publication to the predecessor, if there is one that has not delivered it.
    pub(super) fn pass_to_predecessor(&self, publication: &Publication<'_, '_>, position: Option<Position>) {
        let Publication { topic, content, origin, .. } = *publication;
        let Some(predecessor) = &self.predecessor else { return };
        if origin == (PublicationOrigin::Predecessor { awaits: false }) {
            return;
        }
        let (kind, body) = content.message().parts();
        let head = HandoverHead::Published {
            topic: topic.to_owned(),
            kind,
            position: position.map(Into::into),
            answers: origin == PublicationOrigin::Predecessor { awaits: true },
            sender: publication.into(),
        };
        predecessor.send_or_cut(HandoverFrame { head, body });
    }
}

impl Successor {
    /// Queues a publication for the successor; returns whether the queue had capacity.
    pub(super) fn forward(&self, publication: &Publication<'_, '_>, kept: bool) -> bool {
        let Publication { topic, content, .. } = *publication;
        let (kind, body) = content.message().parts();
        let head = HandoverHead::Publish { topic: topic.to_owned(), kind, kept, sender: publication.into() };
        let frame = HandoverFrame { head, body };
        // One order for both queues.
        let mut awaited = self.lock();
        if !self.sender.try_send(frame) {
            tracing::error!(topic, "queue to the successor process is full: a message is lost there");
            return false;
        }
        if kept && let Some(awaited) = &mut *awaited {
            awaited.push_back(publication.into());
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, Option<VecDeque<WaitingPublication>>> {
        self.awaited.lock()
    }
}

/// The sender as a frame has it.
impl From<&Publication<'_, '_>> for HandoverSender {
    fn from(publication: &Publication<'_, '_>) -> Self {
        let PublicationSender { socket, exclude, .. } = publication.sender;
        Self {
            socket: socket.map(socket_id_text),
            exclude: exclude.map(|id| id.to_string()),
            verified: publication.verified.map(|sender| sender.to_json()),
            at: publication.time,
        }
    }
}

impl HandoverSender {
    fn verified(&self) -> Option<Arc<VerifiedSender>> {
        VerifiedSender::read_json(self.verified.as_ref()?.as_bytes()).map(Arc::new)
    }
}

/// The sender of another process's publication.
impl From<&HandoverSender> for PublicationSender {
    fn from(sender: &HandoverSender) -> Self {
        let socket = sender.socket.as_deref().and_then(parse_socket_id);
        let exclude = sender.exclude.as_deref().and_then(ConnectionId::parse);
        Self { socket, exclude, excludes_publisher: false }
    }
}

impl MessageContent {
    pub(crate) fn parts(&self) -> (ContentKind, bytes::Bytes) {
        match self {
            Self::Text(bytes) => (ContentKind::Text, bytes.clone()),
            Self::Json(bytes) => (ContentKind::Json, bytes.clone()),
            Self::Binary(bytes) => (ContentKind::Binary, bytes.clone()),
            Self::Event(bytes) => (ContentKind::Event, bytes.clone()),
        }
    }

    pub(crate) fn from_wire(kind: ContentKind, body: bytes::Bytes) -> Self {
        match kind {
            ContentKind::Text => Self::Text(body),
            ContentKind::Json => Self::Json(body),
            ContentKind::Binary => Self::Binary(body),
            ContentKind::Event => Self::Event(body),
        }
    }
}

impl HubTopics {
    pub(super) fn read_role(&self) -> RwLockReadGuard<'_, HandoverRole> {
        self.role.read()
    }

    fn write_role(&self) -> RwLockWriteGuard<'_, HandoverRole> {
        self.role.write()
    }

    /// Lets the successor assign positions. Returns all histories at this point, and the topics' epochs.
    pub(crate) fn begin_handover(
        &self,
        sender: FrameSender,
        publisher: &Publisher,
    ) -> (Vec<TopicSnapshot>, Vec<u8>) {
        let mut role = self.write_role();
        role.successor = Some(Successor { sender, awaited: Mutex::new(Some(VecDeque::new())) });
        self.node_publications.start_queue();
        let mut histories = publisher.histories();
        // The successor reads the others from the store.
        histories.retain(|history| !self.is_stored_encoded(&history.name));
        // Read epochs after the histories: a topic that is evicted in between has another epoch.
        (histories, publisher.epochs())
    }

    /// Queues other nodes' publications to topics with a history, until the predecessor's histories are here.
    pub(crate) fn await_histories(&self) {
        self.node_publications.start_queue();
    }

    /// How many publications from other nodes wait for histories.
    pub(crate) fn queued_publications(&self) -> usize {
        self.node_publications.queued()
    }

    /// Leaves out the other nodes' publications that the predecessor has delivered. An earlier version does not report
    /// them: it has delivered this many publications of the queue.
    pub(crate) fn inherit_delivered(
        &self,
        delivered: Option<&[HandoverDelivered]>,
        of_earlier_version: usize,
    ) {
        self.node_publications.inherit(delivered, of_earlier_version);
    }

    /// The last publication from each other process in the cluster that this one has delivered to a topic with a
    /// history. After [`begin_handover`](Self::begin_handover), the histories have all of these.
    pub(crate) fn last_publications(&self) -> Option<Vec<HandoverDelivered>> {
        self.other_nodes().map(|_| self.node_publications.delivered())
    }

    /// Delivers the queue.
    pub(crate) fn deliver_queued(&self, out: &mut Publisher) {
        while let Some(waiting) = self.node_publications.next_queued() {
            let content = (&waiting.content).into();
            let publication = waiting.publication(&content);
            let last_event = self.lock_last_event(publication.topic);
            let role = self.read_role();
            // A further successor has its own.
            if role.successor.is_none() {
                self.deliver(role, out, &publication, last_event.is_some());
            }
        }
    }

    /// The successor serves, and publishes its queue.
    pub(crate) fn discard_queued(&self) {
        self.node_publications.discard_queue();
    }

    /// Forwards this process's publications to its predecessor.
    pub(crate) fn set_predecessor(&self, predecessor: FrameSender) {
        self.write_role().predecessor = Some(predecessor);
    }

    /// The predecessor has exited.
    pub(crate) fn clear_predecessor(&self) {
        self.write_role().predecessor = None;
    }

    /// Ends publishing in this process: queued publications are sent to the successor, followed by the end mark.
    pub(crate) fn finish_handover(&self) {
        self.write_role().successor = None;
    }

    /// Passes this process's revocations to the other processes in a handover.
    pub(crate) fn share_revocations(&self, all: &[Revocation]) {
        let role = self.read_role();
        for frame in HandoverFrame::from_revocations(all) {
            if let Some(predecessor) = &role.predecessor {
                predecessor.send_or_cut(frame.clone());
            }
            if let Some(successor) = &role.successor
                && !successor.sender.try_send(frame)
            {
                tracing::error!("queue to the successor process is full: a revocation is lost there");
            }
        }
    }

    /// Publishes a message that the predecessor has forwarded, perhaps of a topic that retains it.
    pub(crate) fn publish_from_predecessor(
        &self,
        out: &mut Publisher,
        topic: &str,
        content: &MessageContent,
        kept: bool,
        sender: &HandoverSender,
    ) {
        let (content, origin) = (content.into(), PublicationOrigin::Predecessor { awaits: kept });
        let verified = sender.verified();
        let publication = Publication::new(topic, &content).with_sender(sender.into());
        let publication = publication.by(verified.as_ref()).with_time(sender.at);
        self.publish(out, &publication.with_origin(origin));
    }

    /// Delivers a message that the successor has published, perhaps as an answer to this process's publication.
    pub(crate) fn deliver_from_successor(
        &self,
        out: &mut Publisher,
        topic: &str,
        content: &MessageContent,
        position: Option<Position>,
        answers: bool,
        sender: &HandoverSender,
    ) {
        let content = content.into();
        let verified = sender.verified();
        let publication = Publication::new(topic, &content).with_sender(sender.into()).at(position);
        let publication = publication.by(verified.as_ref()).with_time(sender.at);
        let publication = publication.with_origin(PublicationOrigin::Successor);
        let last_event = self.lock_last_event(topic);
        let role = self.read_role();
        let Some(successor) = &role.successor else { return };
        let awaited = answers.then(|| successor.lock().as_mut().and_then(VecDeque::pop_front)).flatten();
        match awaited {
            // The encodings without positions have received it.
            Some(WaitingPublication { origin, sender, .. }) => {
                let publication = publication.with_origin(origin).with_sender(sender);
                self.deliver_positioned(&role, out, &publication);
            }
            None => {
                self.deliver(role, out, &publication, last_event.is_some());
            }
        }
    }

    /// Whether a server's event waits for its position in the topic, which the successor process assigns.
    pub(crate) fn awaits_position(&self, topic: &str) -> bool {
        let role = self.read_role();
        let Some(successor) = &role.successor else { return false };
        let awaited = successor.lock();
        let mut waiting = awaited.iter().flatten().filter(|waiting| waiting.topic == topic);
        waiting.any(|waiting| !Event::from_content(&waiting.content).is_from_client())
    }

    /// The successor sends no more publications.
    pub(crate) fn stop_awaiting_successor(&self) {
        if let Some(successor) = &self.read_role().successor {
            *successor.lock() = None;
        }
    }

    /// Assigns positions again after the successor has exited. Returns whether there was one.
    pub(crate) fn end_handover(&self, out: &mut Publisher) -> bool {
        let mut role = self.write_role();
        let Some(successor) = role.successor.take() else { return false };
        // Publish the unconfirmed messages in order, before any other.
        for waiting in successor.lock().take().unwrap_or_default() {
            let content = (&waiting.content).into();
            self.deliver_positioned(&role, out, &waiting.publication(&content));
        }
        drop(role);
        self.deliver_queued(out);
        true
    }
}

#[cfg(all(test, feature = "pusher"))]
mod tests;
