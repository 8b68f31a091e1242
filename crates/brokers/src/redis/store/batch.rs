//! Batches: operations that wait together for one script are one call.

use std::cell::Cell;
use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::pin::{Pin, pin};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesOrdered;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, RedisResult, Value, cmd};
use sinews_store::StoreError;

use super::queue::{DEADLINE, OperationQueue, OperationReply, StoreOperation};
use super::random;
use super::script::ScriptName;
use super::servers::ServerState;
use super::store_thread::StoreThread;
use crate::redis::error::{is_answer, rejection, with_remedy};

/// Maximum batches of one script in flight.
const BATCHES_IN_FLIGHT: usize = 16;
/// Time without a replica's acknowledgement after which another batch waits for one.
const REPLICA_RETRY: Duration = Duration::from_secs(1);
/// Codes of answers that only another server, or a later one, gives differently.
const AWAY_CODES: [&str; 5] = ["READONLY", "LOADING", "MASTERDOWN", "NOAUTH", "BUSY"];
/// Codes of a server of a Redis Cluster that does not have the slot.
const SLOT_CODES: [&str; 2] = ["MOVED", "CLUSTERDOWN"];
/// Codes while a slot moves, and the error of a script that then finds a key missing.
const MOVING_CODES: [&str; 2] = ["ASK", "TRYAGAIN"];
const MOVING: &str = "Redis moves the topic to another server; retry";
const MOVING_KEY: &str = "a non local key";

/// Facts about a connection that its senders share.
#[derive(Default)]
pub(super) struct ReplicaAcks {
    /// Connected replicas, as the last batch found.
    pub(super) replicas: Cell<i64>,
    /// No replica has acknowledged in time.
    retry_at: Cell<Option<Instant>>,
}

/// The batches of one script on one connection.
pub(super) struct BatchSender<'a> {
    pub(super) store: &'a StoreThread,
    pub(super) server: &'a ServerState,
    pub(super) script: ScriptName,
    /// The hash by which Redis knows the script; `None`: each call sends the text.
    pub(super) hash: Option<String>,
    pub(super) connection: MultiplexedConnection,
    pub(super) replicas: &'a ReplicaAcks,
    pub(super) state: SentBatches<'a>,
}

/// Operations that were sent. They fail as unknown if the sender ends.
pub(super) struct SentBatches<'a> {
    queue: &'a OperationQueue,
    /// Batches in flight, oldest first.
    sent: VecDeque<Vec<StoreOperation>>,
    /// Batches that found no script, or a key that moves.
    unexecuted: Vec<StoreOperation>,
    /// The next call stores the script.
    sends_text: bool,
}

impl<'a> SentBatches<'a> {
    pub(super) fn new(queue: &'a OperationQueue) -> Self {
        Self { queue, sent: VecDeque::new(), unexecuted: Vec::new(), sends_text: false }
    }
}

impl Drop for SentBatches<'_> {
    fn drop(&mut self) {
        let unknown = StoreError::Unknown("the connection to Redis was closed".into());
        for operation in self.sent.drain(..).flatten() {
            self.queue.answer(operation, Err(unknown.clone()));
        }
        let away = StoreError::Away("the connection to Redis was closed".into());
        for operation in self.unexecuted.drain(..) {
            self.queue.answer(operation, Err(away.clone()));
        }
    }
}

/// The answer to a batch, and to `WAIT`; `None`: it came too late.
type BatchAnswer = Option<RedisResult<Vec<RedisResult<Value>>>>;
type BatchInFlight = Pin<Box<dyn Future<Output = BatchAnswer>>>;

impl BatchSender<'_> {
    /// Sends batches until the connection is useless. Returns the reason.
    pub(super) async fn run(mut self) -> String {
        let mut answers: FuturesOrdered<BatchInFlight> = FuturesOrdered::new();
        loop {
            let is_idle = answers.is_empty();
            let must_wait = answers.len() >= BATCHES_IN_FLIGHT || !self.state.unexecuted.is_empty();
            let due = pin!(self.state.queue.batch_due(self.script, is_idle));
            let answer = match (is_idle, must_wait) {
                (true, _) => {
                    due.await;
                    None
                }
                (false, true) => answers.next().await,
                (false, false) => match select(answers.next(), due).await {
                    Either::Left((answer, _)) => answer,
                    Either::Right(_) => None,
                },
            };
            match answer {
                None => {
                    if let Some(sent) = self.send() {
                        answers.push_back(sent);
                    }
                }
                Some(answer) => {
                    if let Some(reason) = self.handle_answer(answer) {
                        return reason;
                    }
                    if answers.is_empty() && !self.state.unexecuted.is_empty() {
                        self.state.queue.put_back(std::mem::take(&mut self.state.unexecuted));
                    }
                }
            }
        }
    }

    /// Sends the operations that wait, in one call.
    fn send(&mut self) -> Option<BatchInFlight> {
        let batch = self.state.queue.take(self.script);
        let deadline = batch.iter().map(|operation| operation.submitted).min()? + DEADLINE;
        let has_write = batch.iter().any(|operation| operation.is_write);
        let replica_wait = self.store.settings.replica_wait.filter(|_| has_write && self.may_wait());
        let mut pipeline = redis::pipe();
        pipeline.ignore_errors().add_command(self.call(&batch));
        if let Some(time) = replica_wait {
            // The connection executes nothing meanwhile.
            pipeline.cmd("WAIT").arg(1).arg(time.as_millis() as u64);
        }
        self.state.sent.push_back(batch);
        let mut connection = self.connection.clone();
        Some(Box::pin(async move {
            let answer = pipeline.query_async(&mut connection);
            tokio::time::timeout_at(deadline.into(), answer).await.ok()
        }))
    }

    fn may_wait(&self) -> bool {
        let is_paused = self.replicas.retry_at.get().is_some_and(|at| Instant::now() < at);
        self.replicas.replicas.get() > 0 && !is_paused
    }

    fn call(&self, batch: &[StoreOperation]) -> Cmd {
        let mut call = match &self.hash {
            Some(hash) if !self.state.sends_text => cmd("EVALSHA").arg(hash).to_owned(),
            _ => cmd("EVAL").arg(self.store.scripts.text(self.script)).to_owned(),
        };
        call.arg(batch.iter().map(|operation| operation.keys.len()).sum::<usize>());
        for key in batch.iter().flat_map(|operation| &operation.keys) {
            call.arg(key);
        }
        call.arg(random::below(sinews_store::POSITION_MAX));
        for argument in batch.iter().flat_map(|operation| &operation.arguments) {
            call.arg(&argument[..]);
        }
        call
    }

    /// Answers the oldest batch. Returns a reason to close the connection.
    fn handle_answer(&mut self, answer: BatchAnswer) -> Option<String> {
        let batch = self.state.sent.pop_front().unwrap_or_default();
        let answers = match answer {
            None => {
                self.fail(batch, &StoreError::Unknown("Redis did not answer in time".into()));
                return None;
            }
            Some(Err(error)) => {
                self.fail(batch, &StoreError::Unknown(error.to_string().into()));
                return Some(error.to_string());
            }
            Some(Ok(answers)) => answers,
        };
        let mut answers = answers.into_iter();
        let value = answers.next().unwrap_or(Ok(Value::Nil));
        let is_replicated = answers.next().map(|count| matches!(count, Ok(Value::Int(1..))));
        if let Some(is_replicated) = is_replicated {
            let retry_at = (!is_replicated).then(|| Instant::now() + REPLICA_RETRY);
            self.replicas.retry_at.set(retry_at);
        }
        match value {
            Ok(Value::ServerError(error)) => self.handle_error(batch, RedisError::from(error)),
            Err(error) => self.handle_error(batch, error),
            Ok(value) => {
                self.state.sends_text = false;
                self.handle_values(batch, value, is_replicated == Some(true))
            }
        }
    }

    /// Redis has executed nothing.
    fn handle_error(&mut self, batch: Vec<StoreOperation>, error: RedisError) -> Option<String> {
        match error.code() {
            Some("NOSCRIPT") => {
                self.state.sends_text = true;
                self.state.unexecuted.extend(batch);
                None
            }
            // Perhaps one of them has a key that moves.
            Some(code) if MOVING_CODES.contains(&code) && batch.len() > 1 => {
                let alone = batch.into_iter().map(|operation| StoreOperation { is_alone: true, ..operation });
                self.state.unexecuted.extend(alone);
                None
            }
            Some(code) if MOVING_CODES.contains(&code) => {
                self.fail(batch, &moving());
                None
            }
            Some(code) if SLOT_CODES.contains(&code) => {
                self.store.slots_moved.notify_one();
                let reason = rejection(&cmd("EVALSHA"), &error);
                self.fail(batch, &StoreError::Away(reason.into()));
                None
            }
            Some(code) if AWAY_CODES.contains(&code) => {
                let reason = rejection(&cmd("EVALSHA"), &error);
                self.fail(batch, &StoreError::Away(reason.as_str().into()));
                Some(reason)
            }
            _ if is_answer(&error) => {
                self.fail(batch, &StoreError::Rejected(rejection(&cmd("EVALSHA"), &error).into()));
                None
            }
            _ => {
                self.fail(batch, &StoreError::Unknown(error.to_string().into()));
                Some(error.to_string())
            }
        }
    }

    fn handle_values(
        &mut self,
        batch: Vec<StoreOperation>,
        value: Value,
        is_replicated: bool,
    ) -> Option<String> {
        self.reject_overtaken(&batch);
        let Value::Array(values) = value else {
            self.fail(batch, &StoreError::Unknown("Redis gave an unexpected answer".into()));
            return Some("an answer is no array".to_owned());
        };
        let mut values = values.into_iter();
        if let Some(Value::Int(replicas)) = values.next() {
            self.replicas.replicas.set(replicas);
        }
        if let Some(Value::BulkString(error)) = values.next()
            && !error.is_empty()
        {
            tracing::warn!("Redis rejects PUBLISH: {}", String::from_utf8_lossy(&error));
        }
        if let Some(Value::Int(time)) = values.next() {
            self.server.clock.note(u64::try_from(time).unwrap_or(0), Instant::now());
        }
        let now = self.server.clock.milliseconds(Instant::now());
        let mut reason = None;
        for operation in batch {
            let answer = match (reply(values.next(), now), self.store.settings.replica_wait) {
                (Ok(_), Some(time)) if operation.is_write && !is_replicated => Err(unreplicated(time)),
                (answer, _) => answer,
            };
            if let Err(StoreError::Away(away)) = &answer
                && **away != *MOVING
            {
                reason = Some(away.to_string());
            }
            self.state.queue.answer(operation, answer);
        }
        reason
    }

    /// Rejects operations that were not executed, and whose successors on the same topic were executed.
    fn reject_overtaken(&mut self, executed: &[StoreOperation]) {
        if self.state.unexecuted.is_empty() {
            return;
        }
        let topics: HashSet<&str> = executed.iter().map(|operation| &*operation.topic).collect();
        let unexecuted = std::mem::take(&mut self.state.unexecuted);
        let (overtaken, rest): (Vec<_>, Vec<_>) =
            unexecuted.into_iter().partition(|operation| topics.contains(&*operation.topic));
        self.state.unexecuted = rest;
        self.fail(
            overtaken,
            &StoreError::Away("Redis has lost its scripts, or moves the topic; retry".into()),
        );
    }

    fn fail(&self, batch: Vec<StoreOperation>, error: &StoreError) {
        for operation in batch {
            self.state.queue.answer(operation, Err(error.clone()));
        }
    }
}

fn unreplicated(time: Duration) -> StoreError {
    let text =
        format!("no replica has confirmed the write within {} ms (`replica.wait.ms`)", time.as_millis());
    StoreError::Unknown(text.into())
}

fn moving() -> StoreError {
    StoreError::Away(MOVING.into())
}

/// Reads one operation's answer.
fn reply(value: Option<Value>, now: u64) -> Result<OperationReply, StoreError> {
    let values = match value {
        Some(Value::Array(values)) => values,
        // A successful operation with one value.
        Some(value @ Value::BulkString(_)) => vec![Value::Int(0), value],
        _ => return Err(StoreError::Unknown("an answer is missing".into())),
    };
    let (status, text) = match &values[..] {
        [Value::Int(status), Value::BulkString(text), ..] if *status < 0 => (*status, text),
        _ => return Ok(OperationReply { values, now }),
    };
    let text = String::from_utf8_lossy(text);
    let code = text.split(' ').next().unwrap_or_default();
    let reason = format!("Redis: {}", with_remedy(&text));
    Err(match status {
        -1 if text.contains(MOVING_KEY) => moving(),
        _ if AWAY_CODES.contains(&code) => StoreError::Away(reason.into()),
        -1 => StoreError::Rejected(reason.into()),
        _ => StoreError::Unknown(reason.into()),
    })
}
