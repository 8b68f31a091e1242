//! Who says in which order messages of kept topics come, while one process takes another's place.
//!
//! ```text
//!   former ── Publish ──▶ this process ── Publish ──▶ successor
//!          ◀─ Published ─              ◀─ Published ─
//! ```
//!
//! A process that has a successor publishes nothing of a kept topic itself: it forwards, and delivers what comes back
//! with its position. Everything else is delivered at once, and forwarded. One that has a former process tells it what is
//! published, but for what that has delivered itself.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLockReadGuard, RwLockWriteGuard};

use sinews_server::{KeptTopic, Position, Publisher};

use super::{Content, Form, Hub, Outlet};
use crate::handover::wire::{Frame, Head, Kind, Outbox};

/// The processes before and behind this one, if there are any.
#[derive(Debug, Default)]
pub(super) struct Authority {
    pub(super) successor: Option<Successor>,
    pub(super) former: Option<Outbox>,
}

/// Where a publication came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Here,
    /// The former process, which waits for it to be published.
    FormerAwaits,
    /// The former process, which has delivered it already.
    FormerKnows,
    Successor,
}

/// The process that this one hands over to.
#[derive(Debug)]
pub(super) struct Successor {
    outbox: Outbox,
    /// What it has not published yet. `None` when it does not tell any more.
    awaited: Mutex<Option<VecDeque<(Origin, String, Content)>>>,
}

impl Authority {
    /// The former process, if it is to be told of what comes from there.
    pub(super) fn former_of(&self, origin: Origin) -> Option<&Outbox> {
        self.former.as_ref().filter(|_| origin != Origin::FormerKnows)
    }
}

impl Successor {
    /// Whether there was room.
    pub(super) fn forward(&self, topic: &str, content: &Content, kept: bool, origin: Origin) -> bool {
        let (kind, body) = content.parts();
        let frame = Frame { head: Head::Publish { topic: topic.to_owned(), kind, kept }, body };
        // One order for both.
        let mut awaited = self.lock();
        if !self.outbox.put(frame) {
            tracing::error!(topic, "too much waits for the process that takes over: a message is lost there");
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

/// What the former process is told.
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

    /// From here on another process decides. Answers everything that is kept up to here, and then the epochs of topics.
    pub(crate) fn begin_handover(&self, outbox: Outbox, publisher: &Publisher) -> (Vec<KeptTopic>, Vec<u8>) {
        let mut authority = self.write_authority();
        authority.successor = Some(Successor { outbox, awaited: Mutex::new(Some(VecDeque::new())) });
        let kept = publisher.histories();
        // Behind them: a topic that is forgotten in between has another epoch.
        (kept, publisher.epochs())
    }

    /// What is published here is told to the process that was before this one.
    pub(crate) fn follow(&self, former: Outbox) {
        self.write_authority().former = Some(former);
    }

    /// The former process has ended.
    pub(crate) fn follow_nobody(&self) {
        self.write_authority().former = None;
    }

    /// Nothing is published here any more: what waits for the successor leaves, and then the end of it.
    pub(crate) fn finish_handover(&self) {
        self.write_authority().successor = None;
    }

    /// The former process forwards what was published there.
    pub(crate) fn publish_for_former(&self, out: &mut Publisher, topic: &str, content: &Content, kept: bool) {
        self.count(topic);
        let origin = if kept { Origin::FormerAwaits } else { Origin::FormerKnows };
        let authority = self.read_authority();
        self.publish_framed(&authority, out, topic, content, origin);
        drop(authority);
        self.publish_plain(out, topic, content, true);
    }

    /// The successor has published something.
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
            // Nobody is told how many it reached, and a mailbox that is full is made up for.
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

    /// The successor tells no more.
    pub(crate) fn successor_is_silent(&self) {
        if let Some(successor) = &self.read_authority().successor {
            *successor.lock() = None;
        }
    }

    /// The successor has gone, and this process decides again. Answers whether it was one.
    pub(crate) fn end_handover(&self, out: &mut Publisher) -> bool {
        let mut authority = self.write_authority();
        let Some(successor) = authority.successor.take() else { return false };
        // What it did not publish, in its order, before anything else is.
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

    /// A process, but for its loops: what is kept is looked at.
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

        /// The texts that are kept, each with its sequence.
        fn kept(&self) -> Vec<(u64, String)> {
            let histories = self.publisher.histories();
            let messages = histories.iter().flat_map(|topic| &topic.messages);
            let read = |message: &sinews_server::KeptMessage| {
                let value: serde_json::Value = serde_json::from_slice(message.message.payload()).unwrap();
                (value["seq"].as_u64().unwrap(), value["data"].as_str().unwrap().to_owned())
            };
            messages.map(read).collect()
        }

        /// Takes over; answers what comes from it.
        fn take_over(&self, (kept, epochs): (Vec<KeptTopic>, Vec<u8>)) -> Waiting {
            assert!(self.publisher.restore_epochs(&epochs));
            kept.into_iter().for_each(|topic| assert!(self.publisher.restore(topic).unwrap()));
            let (former, waiting) = outbox();
            self.hub.follow(former);
            waiting
        }

        /// Does what the former process has said.
        fn obey(&self, waiting: &Waiting) {
            while let Some(Frame { head: Head::Publish { topic, kind, kept }, body }) = waiting.take() {
                let content = Content::of(kind, body);
                self.hub.publish_for_former(&mut self.publisher.clone(), &topic, &content, kept);
            }
        }

        /// Hears what the new one has said.
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

    /// The one in the middle hands over before the first has ended.
    #[test]
    fn three_processes_in_a_row_have_one_order() {
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
    fn what_a_successor_has_not_published_when_it_goes_is_published_here() {
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
