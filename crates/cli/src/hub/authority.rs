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

    /// From here on another process decides. Answers everything that is kept up to here.
    pub(crate) fn begin_handover(&self, outbox: Outbox, publisher: &Publisher) -> Vec<KeptTopic> {
        let mut authority = self.write_authority();
        authority.successor = Some(Successor { outbox, awaited: Mutex::new(Some(VecDeque::new())) });
        publisher.histories()
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
