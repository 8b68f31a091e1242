//! Topic store at NATS with JetStream.
//!
//! * **Logs** are streams with a subject for each topic, one stream for each class of topics that retain the same. A
//!   position is a stream's sequence. The server announces each message on a subject without JetStream, with the sequence
//!   before it.
//! * **Keys** are streams with one message for each key; a version is a stream's sequence. Each node has a replica of all
//!   keys, which a consumer for each stream feeds. Nodes remove expired keys, each under the condition that it was not
//!   written since. The server removes them a minute later if no node has done it: nats-server 2.15.3 stores its marker
//!   without a condition, and the marker removes a value that was written at the same time.
//! * **Values that are stored once** are messages with a time to live in a stream of their own.
//!
//! A user needs these rights, where PREFIX is the setting `prefix`: to publish `PREFIX.>`, `$JS.API.INFO`,
//! `$JS.API.STREAM.NAMES`, and `STREAM.INFO`, `STREAM.CREATE`, `STREAM.UPDATE`, `STREAM.PURGE`, `STREAM.MSG.GET`,
//! `DIRECT.GET` and `CONSUMER.CREATE` of `$JS.API` for the streams `PREFIX_*`, and `$JS.FC.>`; to subscribe `PREFIX.r.>`
//! and `_INBOX.>`.
//!
//! One thread runs the client. A caller sends it operations, at most [`OPERATIONS_MAX`] and [`BYTES_MAX`].

mod classes;
mod connection;
mod engine;
mod follow;
mod key_streams;
mod keys;
mod known_tops;
mod lanes;
mod log;
mod read;
mod replica;
mod settings;
mod shared;
mod streams;
mod subjects;
mod wire;

use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sinews_store::{
    AckedLoss, Capabilities, ConditionSupport, FailoverDetection, FirstValue, KeyChanges, KeyCommands,
    KeysWritten, LogAppend, LogAppended, LogPage, OnceRequest, PartKind, Position, ReadKeys, ReadLog,
    StoreAnswer, StoreError, StoreHealth, StoreSink, StoredKeys, TakeRequest, TopicPart, TopicStore,
};
use tokio::runtime;
use tokio::sync::mpsc;
use tokio::task::LocalSet;

use self::shared::{MAX_PAYLOAD, OVERHEAD, StoreShared};
use crate::error::BrokerConfigError;
use crate::lock::lock;
use crate::url::BrokerUrl;
use connection::{DEADLINE, OperationState};
use engine::StoreEngine;
use follow::FollowedName;
use settings::NatsStoreSettings;

type Job = Box<dyn FnOnce(&Rc<StoreEngine>) + Send>;

/// A topic store at NATS.
pub(crate) struct NatsTopicStore {
    shared: Arc<StoreShared>,
    /// `None` once closed.
    jobs: Mutex<Option<mpsc::UnboundedSender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Connects in the background, once the store is started.
pub(crate) fn connect(address: BrokerUrl) -> Result<NatsTopicStore, BrokerConfigError> {
    let name = address.to_string();
    let settings = NatsStoreSettings::from_address(address)?;
    let failed =
        |error: std::io::Error| BrokerConfigError::Client { broker: name, reason: error.to_string() };
    let shared = Arc::new(StoreShared {
        health: Mutex::new(StoreHealth::Away { since: Instant::now(), reason: "not connected yet".into() }),
        operations: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        max_value: AtomicU64::new(MAX_PAYLOAD - OVERHEAD),
    });
    let (jobs, mut queue) = mpsc::unbounded_channel::<Job>();
    let of_thread = Arc::clone(&shared);
    let run = move |runtime: runtime::Runtime| {
        let engine = Rc::new(StoreEngine::new(settings, of_thread));
        LocalSet::new().block_on(&runtime, async {
            // Until the store is closed.
            while let Some(job) = queue.recv().await {
                job(&engine);
            }
        });
    };
    let started = runtime::Builder::new_current_thread().enable_all().build().and_then(|runtime| {
        thread::Builder::new().name("nats-topics".to_owned()).spawn(move || run(runtime))
    });
    let thread = Mutex::new(Some(started.map_err(failed)?));
    Ok(NatsTopicStore { shared, jobs: Mutex::new(Some(jobs)), thread })
}

impl NatsTopicStore {
    fn run(&self, job: impl FnOnce(&Rc<StoreEngine>) + Send + 'static) -> bool {
        lock(&self.jobs).as_ref().is_some_and(|jobs| jobs.send(Box::new(job)).is_ok())
    }

    /// Runs an operation on the thread, within the limits of the queue.
    fn submit<T, F>(
        &self,
        bytes: usize,
        operation: impl FnOnce(Rc<StoreEngine>, Rc<OperationState>) -> F + Send + 'static,
    ) -> StoreAnswer<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + 'static,
    {
        let Some(permit) = self.shared.permit(bytes) else {
            return StoreAnswer::ready(Err(StoreError::Busy));
        };
        let (responder, pending) = StoreAnswer::channel();
        let deadline = tokio::time::Instant::now() + DEADLINE;
        let is_sent = self.run(move |engine| {
            let state = Rc::new(OperationState::default());
            let answer = operation(Rc::clone(engine), Rc::clone(&state));
            tokio::task::spawn_local(async move {
                let answer = tokio::time::timeout_at(deadline, answer).await;
                let late = || Err(state.unanswered("NATS did not answer within 3 s"));
                responder.answer(answer.unwrap_or_else(|_| late()));
                drop(permit);
            });
        });
        if is_sent { pending } else { StoreAnswer::ready(Err(StoreError::Closed)) }
    }

    /// The error for a payload that no message can have.
    fn too_large(&self, bytes: usize) -> Option<StoreError> {
        let (bytes, max) = (bytes as u64, self.shared.max_value.load(Ordering::Relaxed));
        (bytes > max).then_some(StoreError::TooLarge { bytes, max })
    }
}

impl TopicStore for NatsTopicStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            engine: "nats",
            logs: true,
            keys: true,
            failover_detection: FailoverDetection::Partial,
            acked_loss: AckedLoss::PowerLoss,
            conditions: ConditionSupport::SpuriousConflicts,
            atomic_keys: true,
            exact_limits: false,
            byte_limit: false,
            ttl_resolution: Duration::from_secs(1),
            once_window: classes::ONCE_WINDOW,
            patterns: true,
            max_value: self.shared.max_value.load(Ordering::Relaxed),
            budgets: false,
        }
    }

    fn health(&self) -> StoreHealth {
        lock(&self.shared.health).clone()
    }

    fn start(&self, sink: Arc<dyn StoreSink>) {
        self.run(move |engine| {
            engine.sink.replace(Some(sink));
            tokio::task::spawn_local(Rc::clone(engine).run());
        });
    }

    fn follow(&self, part: &TopicPart) {
        let name = FollowedName::Part(part.clone());
        self.run(move |engine| engine.follow(name));
    }

    fn unfollow(&self, part: &TopicPart) {
        let name = FollowedName::Part(part.clone());
        self.run(move |engine| engine.unfollow(&name));
    }

    fn follow_pattern(&self, pattern: &str) {
        let name = FollowedName::Pattern(pattern.into());
        self.run(move |engine| engine.follow(name));
    }

    fn unfollow_pattern(&self, pattern: &str) {
        let name = FollowedName::Pattern(pattern.into());
        self.run(move |engine| engine.unfollow(&name));
    }

    fn append(&self, append: LogAppend) -> StoreAnswer<LogAppended> {
        if let Some(error) = self.too_large(append.payload.len()) {
            return StoreAnswer::ready(Err(error));
        }
        let bytes = append.payload.len();
        self.submit(bytes, |engine, state| async move { engine.append(&state, append).await })
    }

    fn read_log(&self, read: ReadLog) -> StoreAnswer<LogPage> {
        self.submit(0, |engine, state| async move { engine.read_log(&state, read).await })
    }

    fn tops(&self, parts: Vec<TopicPart>) -> StoreAnswer<Vec<Result<Option<Position>, StoreError>>> {
        self.submit(0, |engine, state| async move { engine.tops(&state, &parts).await })
    }

    fn clear(&self, part: &TopicPart) -> StoreAnswer<()> {
        let part = part.clone();
        self.submit(0, move |engine, state| async move {
            match part.part {
                PartKind::Log => engine.clear_log(&state, &part.topic).await,
                PartKind::Keys => engine.clear_keys(&state, &part.topic).await,
            }
        })
    }

    fn write_keys(&self, writes: KeyCommands) -> StoreAnswer<KeysWritten> {
        let sizes = writes.writes.iter().filter_map(|write| write.value.as_ref()).map(Bytes::len);
        if let Some(error) = sizes.clone().find_map(|bytes| self.too_large(bytes)) {
            return StoreAnswer::ready(Err(error));
        }
        let bytes = sizes.sum();
        self.submit(bytes, |engine, state| async move { engine.write_keys(&state, writes).await })
    }

    fn read_keys(&self, read: ReadKeys) -> StoreAnswer<StoredKeys> {
        self.submit(0, |engine, _| async move { engine.read_keys(&read) })
    }

    fn key_changes(&self, topic: &str, after: Position) -> StoreAnswer<KeyChanges> {
        let topic: Box<str> = topic.into();
        self.submit(0, move |engine, _| async move { engine.key_changes(&topic, after).await })
    }

    fn once(&self, once: OnceRequest) -> StoreAnswer<FirstValue> {
        if let Some(error) = self.too_large(once.value.len()) {
            return StoreAnswer::ready(Err(error));
        }
        let bytes = once.value.len();
        self.submit(bytes, |engine, state| async move { engine.store_once(&state, once).await })
    }

    fn take(&self, _: TakeRequest) -> StoreAnswer<u32> {
        StoreAnswer::ready(Err(StoreError::Unsupported))
    }

    fn close(&self) {
        lock(&self.jobs).take();
        if let Some(thread) = lock(&self.thread).take() {
            // The thread returns no value, and a panic was already printed.
            let _ = thread.join();
        }
    }
}

impl Drop for NatsTopicStore {
    fn drop(&mut self) {
        self.close();
    }
}
