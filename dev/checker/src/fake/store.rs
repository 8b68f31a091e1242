//! A node's link to the engine.

use std::sync::{Arc, Mutex, PoisonError};

use sinews_store::{
    Capabilities, FirstValue, KeyChanges, KeyCommands, KeysWritten, LogAppend, LogAppended, LogPage,
    OnceRequest, Position, ReadKeys, ReadLog, StoreAnswer, StoreError, StoreHealth, StoreResponder,
    StoreSink, StoredKeys, TakeRequest, TopicPart, TopicStore,
};

use super::FakeEngine;
use super::engine::Executed;
use crate::model::{Model, Notice};

/// A node's [`TopicStore`] at a [`FakeEngine`].
#[derive(Clone)]
pub struct FakeStore {
    engine: FakeEngine,
    node: usize,
}

impl FakeStore {
    pub(super) fn new(engine: FakeEngine, node: usize) -> Self {
        Self { engine, node }
    }

    fn submit<T: Send + 'static>(
        &self,
        topic: &str,
        run: impl FnOnce(&mut Model, u64) -> (Result<T, StoreError>, Vec<Notice>) + Send + 'static,
    ) -> StoreAnswer<T> {
        let mut engine = self.engine.lock();
        if !engine.is_connected(self.node) {
            return StoreAnswer::ready(Err(StoreError::Away("the connection was cut".into())));
        }
        let (responder, answer) = StoreAnswer::channel();
        let responder = Slot(Arc::new(Mutex::new(Some(responder))));
        let cancelled = responder.clone();
        let execute = move |model: &mut Model, now| {
            let (result, notices) = run(model, now);
            Executed { answer: Box::new(move || responder.answer(result)), notices }
        };
        engine.submit(self.node, topic, Box::new(execute), Box::new(move || drop(cancelled.take())));
        answer
    }
}

/// The end of an operation, which is answered or dropped: then it is unknown.
struct Slot<T>(Arc<Mutex<Option<StoreResponder<T>>>>);

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Slot<T> {
    fn take(&self) -> Option<StoreResponder<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn answer(&self, answer: Result<T, StoreError>) {
        if let Some(responder) = self.take() {
            responder.answer(answer);
        }
    }
}

impl TopicStore for FakeStore {
    fn capabilities(&self) -> Capabilities {
        Model::CAPABILITIES
    }

    fn health(&self) -> StoreHealth {
        self.engine.lock().health(self.node)
    }

    fn start(&self, sink: Arc<dyn StoreSink>) {
        self.engine.lock().set_sink(self.node, sink);
    }

    fn follow(&self, part: &TopicPart) {
        self.engine.lock().follow(self.node, part);
    }

    fn unfollow(&self, part: &TopicPart) {
        self.engine.lock().unfollow(self.node, part);
    }

    /// Does nothing: [`Capabilities::patterns`] is false.
    fn follow_pattern(&self, _: &str) {}

    /// Does nothing.
    fn unfollow_pattern(&self, _: &str) {}

    fn append(&self, append: LogAppend) -> StoreAnswer<LogAppended> {
        let topic = append.topic.clone();
        self.submit(&topic, move |model, now| match model.append(now, &append) {
            Ok((appended, notice)) => (Ok(appended), Vec::from_iter(notice)),
            Err(error) => (Err(error), vec![]),
        })
    }

    fn read_log(&self, read: ReadLog) -> StoreAnswer<LogPage> {
        let topic = read.topic.clone();
        self.submit(&topic, move |model, now| (Ok(model.read_log(now, &read)), vec![]))
    }

    fn tops(&self, parts: Vec<TopicPart>) -> StoreAnswer<Vec<Result<Option<Position>, StoreError>>> {
        self.submit("", move |model, now| {
            (Ok(parts.iter().map(|part| Ok(model.top(now, part))).collect()), vec![])
        })
    }

    fn clear(&self, part: &TopicPart) -> StoreAnswer<()> {
        let part = part.clone();
        let topic = part.topic.clone();
        self.submit(&topic, move |model, _| {
            model.clear(&part);
            (Ok(()), vec![])
        })
    }

    fn write_keys(&self, writes: KeyCommands) -> StoreAnswer<KeysWritten> {
        let topic = writes.topic.clone();
        self.submit(&topic, move |model, now| {
            let (written, notices) = model.write_keys(now, &writes);
            (Ok(written), notices)
        })
    }

    fn read_keys(&self, read: ReadKeys) -> StoreAnswer<StoredKeys> {
        let topic = read.topic.clone();
        self.submit(&topic, move |model, now| (Ok(model.read_keys(now, &read)), vec![]))
    }

    fn key_changes(&self, topic: &str, after: Position) -> StoreAnswer<KeyChanges> {
        let name: Box<str> = topic.into();
        self.submit(topic, move |model, _| (Ok(model.key_changes(&name, after)), vec![]))
    }

    fn once(&self, once: OnceRequest) -> StoreAnswer<FirstValue> {
        self.submit("", move |model, now| (Ok(model.once(now, &once)), vec![]))
    }

    fn take(&self, take: TakeRequest) -> StoreAnswer<u32> {
        self.submit("", move |model, now| (Ok(model.take(now, &take)), vec![]))
    }

    fn close(&self) {
        self.engine.lock().cut(self.node, u64::MAX / 2);
    }
}
