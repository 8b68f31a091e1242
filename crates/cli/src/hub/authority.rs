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
use std::sync::{Mutex, MutexGuard, PoisonError, RwLockReadGuard, RwLockWriteGuard};

use sinews_server::{KeptTopic, Position, Publisher};

use super::{Content, Form, Hub, Outlet};
use crate::handover::wire::{Frame, Head, Kind, Outbox};

/// The predecessor and the successor of this process, if there are any.
#[derive(Debug, Default)]
pub(super) struct Authority {
    pub(super) successor: Option<Successor>,
    pub(super) former: Option<Outbox>,
}

/// Origin of a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Here,
    /// The predecessor, which waits for the publication.
    FormerAwaits,
    /// The predecessor, which has delivered it already.
    FormerKnows,
    Successor,
}

/// The successor process.
#[derive(Debug)]
pub(super) struct Successor {
    outbox: Outbox,
    /// Publications that the successor has not confirmed. `None` after it has stopped confirming.
    awaited: Mutex<Option<VecDeque<(Origin, String, Content)>>>,
}

impl Authority {
    /// The predecessor, if it has to receive publications of this origin.
    pub(super) fn former_of(&self, origin: Origin) -> Option<&Outbox> {
        self.former.as_ref().filter(|_| origin != Origin::FormerKnows)
    }
}

impl Successor {
    /// Queues a publication for the successor; returns whether the queue had capacity.
    pub(super) fn forward(&self, topic: &str, content: &Content, kept: bool, origin: Origin) -> bool {
        let (kind, body) = content.parts();
        let frame = Frame { head: Head::Publish { topic: topic.to_owned(), kind, kept }, body };
        // One order for both queues.
        let mut awaited = self.lock();
        if !self.outbox.put(frame) {
            tracing::error!(topic, "queue to the successor process is full: a message is lost there");
            return false;
        }
        if kept && let Some(awaited) = &mut *awaited {
            awaited.push_back((origin, topic.to_owned(), content.clone()));
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, Option<VecDeque<(Origin, String, Content)>>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Encodes a publication for the predecessor.
pub(super) fn published(topic: &str, content: &Content, position: Option<Position>, origin: Origin) -> Frame {
    let (kind, body) = content.parts();
    let (topic, position) = (topic.to_owned(), position.map(Into::into));
    Frame { head: Head::Published { topic, kind, position, answers: origin == Origin::FormerAwaits }, body }
}

impl Content {
    fn parts(&self) -> (Kind, bytes::Bytes) {
        match self {
            Self::Text(bytes) => (Kind::Text, bytes.clone()),
            Self::Json(bytes) => (Kind::Json, bytes.clone()),
            Self::Binary(bytes) => (Kind::Binary, bytes.clone()),
        }
    }

    pub(crate) fn of(kind: Kind, body: bytes::Bytes) -> Self {
        match kind {
            Kind::Text => Self::Text(body),
            Kind::Json => Self::Json(body),
            Kind::Binary => Self::Binary(body),
        }
    }
}

impl Hub {
    pub(super) fn read_authority(&self) -> RwLockReadGuard<'_, Authority> {
        self.authority.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_authority(&self) -> RwLockWriteGuard<'_, Authority> {
        self.authority.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Transfers authority to the successor. Returns all histories at this point, and the epochs of topics.
    pub(crate) fn begin_handover(&self, outbox: Outbox, publisher: &Publisher) -> (Vec<KeptTopic>, Vec<u8>) {
        let mut authority = self.write_authority();
        authority.successor = Some(Successor { outbox, awaited: Mutex::new(Some(VecDeque::new())) });
        let kept = publisher.histories();
        // Read epochs after the histories: a topic that is evicted in between has another epoch.
        (kept, publisher.epochs())
    }

    /// Forwards publications of this process to its predecessor.
    pub(crate) fn follow(&self, former: Outbox) {
        self.write_authority().former = Some(former);
    }

    /// The predecessor has exited.
    pub(crate) fn follow_nobody(&self) {
        self.write_authority().former = None;
    }

    /// Ends publishing in this process: queued publications are sent to the successor, followed by the end mark.
    pub(crate) fn finish_handover(&self) {
        self.write_authority().successor = None;
    }

    /// Publishes a message that the predecessor has forwarded.
    pub(crate) fn publish_for_former(&self, out: &mut Publisher, topic: &str, content: &Content, kept: bool) {
        self.count(topic);
        let origin = if kept { Origin::FormerAwaits } else { Origin::FormerKnows };
        let authority = self.read_authority();
        self.publish_framed(&authority, out, topic, content, origin);
        drop(authority);
        self.publish_plain(out, topic, content, true);
    }

    /// Delivers a message that the successor has published.
    pub(crate) fn published_by_successor(
        &self,
        out: &mut Publisher,
        topic: &str,
        content: &Content,
        (position, answers): (Option<Position>, bool),
    ) {
        let authority = self.read_authority();
        let Some(successor) = &authority.successor else { return };
        let mut origin = Origin::Successor;
        if answers && let Some((from, ..)) = successor.lock().as_mut().and_then(VecDeque::pop_front) {
            origin = from;
        }
        let message = content.framed(topic, position);
        let framed = Form::Framed.topic(topic);
        match position {
            // No caller needs the number of subscribers, and a full mailbox recovers from the history.
            Some(position) => drop(out.publish_at(&framed, position, &message)),
            None => {
                Outlet::publish(out, &framed, &message);
            }
        }
        if let Some(former) = authority.former_of(origin) {
            former.put_or_cut(published(topic, content, position, origin));
        }
        drop(authority);
        if origin == Origin::Successor {
            self.count(topic);
            self.publish_plain(out, topic, content, true);
        }
    }

    /// The successor sends no more publications.
    pub(crate) fn successor_is_silent(&self) {
        if let Some(successor) = &self.read_authority().successor {
            *successor.lock() = None;
        }
    }

    /// Takes authority back after the successor has exited. Returns whether there was one.
    pub(crate) fn end_handover(&self, out: &mut Publisher) -> bool {
        let mut authority = self.write_authority();
        let Some(successor) = authority.successor.take() else { return false };
        // Publish the unconfirmed messages in order, before any other.
        for (origin, topic, content) in successor.lock().take().unwrap_or_default() {
            self.publish_framed(&authority, out, &topic, &content, origin);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use sinews_server::{BoundServer, History, Router, Server, TopicRule};

    use super::*;
    use crate::handover::wire::{Waiting, outbox};

    /// A process without workers; the test reads its histories.
    struct Process {
        hub: Hub,
        publisher: Publisher,
        _server: BoundServer,
    }

    impl Process {
        fn new() -> Self {
            let rule = TopicRule::new("j.kept.>").with_history(History::new(100));
            let server = Server::new(Router::new()).threads(1).topic_rule(rule);
            let server = server.listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
            Self { hub: Hub::new(vec!["kept.>".to_owned()]), publisher: server.publisher(), _server: server }
        }

        fn publish(&self, text: &str) {
            let content = Content::Text(text.to_owned().into());
            self.hub.publish(&mut self.publisher.clone(), "kept.a", &content, true);
        }

        /// The retained texts, each with its sequence.
        fn kept(&self) -> Vec<(u64, String)> {
            let histories = self.publisher.histories();
            let messages = histories.iter().flat_map(|topic| &topic.messages);
            let read = |message: &sinews_server::KeptMessage| {
                let value: serde_json::Value = serde_json::from_slice(message.message.payload()).unwrap();
                (value["seq"].as_u64().unwrap(), value["data"].as_str().unwrap().to_owned())
            };
            messages.map(read).collect()
        }

        /// Takes over; returns the queue to the predecessor.
        fn take_over(&self, (kept, epochs): (Vec<KeptTopic>, Vec<u8>)) -> Waiting {
            assert!(self.publisher.restore_epochs(&epochs));
            kept.into_iter().for_each(|topic| assert!(self.publisher.restore(topic).unwrap()));
            let (former, waiting) = outbox();
            self.hub.follow(former);
            waiting
        }

        /// Executes the predecessor's frames.
        fn obey(&self, waiting: &Waiting) {
            while let Some(Frame { head: Head::Publish { topic, kind, kept }, body }) = waiting.take() {
                let content = Content::of(kind, body);
                self.hub.publish_for_former(&mut self.publisher.clone(), &topic, &content, kept);
            }
        }

        /// Executes the successor's frames.
        fn hear(&self, waiting: &Waiting) {
            while let Some(Frame { head, body }) = waiting.take() {
                let Head::Published { topic, kind, position, answers } = head else { panic!("{head:?}") };
                let published = (position.map(Into::into), answers);
                let content = Content::of(kind, body);
                self.hub.published_by_successor(&mut self.publisher.clone(), &topic, &content, published);
            }
        }
    }

    fn texts(texts: &[&str]) -> Vec<(u64, String)> {
        (1..).zip(texts.iter().map(|&text| text.to_owned())).collect()
    }

    /// The process in the middle hands over before the first one has exited.
    #[test]
    fn three_chained_processes_assign_one_order() {
        let [first, second, third] = [(); 3].map(|()| Process::new());
        first.publish("a");
        let (successor, to_second) = outbox();
        let from_second = second.take_over(first.hub.begin_handover(successor, &first.publisher));
        first.publish("b");
        assert_eq!(first.kept(), texts(&["a"]), "not before the successor says where it stands");
        second.publish("c");
        second.obey(&to_second);
        first.hear(&from_second);
        assert_eq!(first.kept(), texts(&["a", "c", "b"]));
        assert_eq!(second.kept(), first.kept());

        let (successor, to_third) = outbox();
        let from_third = third.take_over(second.hub.begin_handover(successor, &second.publisher));
        first.publish("d");
        second.publish("e");
        third.publish("f");
        second.obey(&to_second);
        third.obey(&to_third);
        second.hear(&from_third);
        first.hear(&from_second);
        let all = texts(&["a", "c", "b", "f", "e", "d"]);
        assert_eq!((first.kept(), second.kept(), third.kept()), (all.clone(), all.clone(), all));
        assert!(from_second.take().is_none() && from_third.take().is_none(), "no echo");
        for process in [&first, &second] {
            let left = process.hub.read_authority();
            let awaited = left.successor.as_ref().unwrap().lock();
            assert!(awaited.as_ref().unwrap().is_empty());
        }
    }

    #[test]
    fn unconfirmed_publications_are_published_when_the_successor_exits() {
        let [old, new] = [(); 2].map(|()| Process::new());
        let (successor, to_new) = outbox();
        let from_new = new.take_over(old.hub.begin_handover(successor, &old.publisher));
        old.publish("a");
        new.obey(&to_new);
        old.hear(&from_new);
        old.publish("b");
        old.publish("c");
        assert_eq!(old.kept(), texts(&["a"]));
        assert!(old.hub.end_handover(&mut old.publisher.clone()));
        old.publish("d");
        assert_eq!(old.kept(), texts(&["a", "b", "c", "d"]));
        assert!(!old.hub.end_handover(&mut old.publisher.clone()));
    }
}
