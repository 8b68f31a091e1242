//! Operations that wait for Redis, or for its answer.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use redis::Value;
use sinews_store::{StoreAnswer, StoreError};
use tokio::sync::Notify;

use super::names::{PARTITIONS, partition};
use super::script::ScriptName;
use crate::lock::lock;

/// Maximum operations that wait or are in flight.
const OPERATIONS_MAX: usize = 65_536;
/// Their maximum bytes.
const BYTES_MAX: usize = 16 << 20;
/// Maximum operations on one topic that wait or are in flight.
const TOPIC_OPERATIONS_MAX: usize = 1_024;
/// Time from the submission to the answer.
pub(super) const DEADLINE: Duration = Duration::from_secs(3);
/// Maximum operations in a batch, and their bytes: Redis is busy for about a millisecond.
pub(super) const BATCH_OPERATIONS: usize = 64;
pub(super) const BATCH_BYTES: usize = 256 << 10;
/// Time that an operation waits for the answer to a batch before it, to be in a larger batch.
const BATCH_DELAY: Duration = Duration::from_millis(1);
/// Bytes that an operation has beside its arguments.
const OPERATION_BYTES: usize = 256;

/// An operation of a script.
pub(super) struct StoreOperation {
    pub(super) script: ScriptName,
    pub(super) topic: Arc<str>,
    pub(super) partition: u32,
    pub(super) keys: Vec<String>,
    /// The name in the script comes first.
    pub(super) arguments: Vec<Bytes>,
    /// Bytes in the arguments, and those that the answer may have.
    pub(super) bytes: usize,
    /// Its acknowledgement may wait for a replica.
    pub(super) is_write: bool,
    /// It is a batch of its own.
    pub(super) is_alone: bool,
    pub(super) submitted: Instant,
    pub(super) answer: OperationAnswer,
}

pub(super) type OperationAnswer = Box<dyn FnOnce(Result<OperationReply, StoreError>) + Send>;

/// An operation's answer.
#[derive(Debug)]
pub(super) struct OperationReply {
    /// Begins with a status.
    pub(super) values: Vec<Value>,
    /// The server's time when the answer came, or a little less, in milliseconds since 1970.
    pub(super) now: u64,
}

/// An operation that is not submitted yet.
pub(super) struct OperationRequest {
    script: ScriptName,
    topic: Arc<str>,
    partition: u32,
    keys: Vec<String>,
    arguments: Vec<Bytes>,
    answer_bytes: usize,
    is_write: bool,
}

impl OperationRequest {
    pub(super) fn new(script: ScriptName, operation: &'static str, topic: &str) -> Self {
        let arguments = vec![Bytes::from_static(operation.as_bytes())];
        Self {
            script,
            topic: topic.into(),
            partition: partition(topic),
            keys: Vec::new(),
            arguments,
            answer_bytes: 0,
            is_write: false,
        }
    }

    /// Sets the partition of an operation that is not for one topic.
    pub(super) fn in_partition(mut self, partition: u32) -> Self {
        self.partition = partition;
        self
    }

    pub(super) fn partition(&self) -> u32 {
        self.partition
    }

    #[cfg(test)]
    pub(super) fn keys(&self) -> &[String] {
        &self.keys
    }

    #[cfg(test)]
    pub(super) fn arguments(&self) -> &[Bytes] {
        &self.arguments
    }

    pub(super) fn key(mut self, key: String) -> Self {
        self.keys.push(key);
        self
    }

    pub(super) fn text(mut self, text: impl Into<Bytes>) -> Self {
        self.arguments.push(text.into());
        self
    }

    pub(super) fn number(self, number: u64) -> Self {
        self.text(number.to_string())
    }

    /// Counts a large answer in the batch.
    pub(super) fn answers(mut self, bytes: usize) -> Self {
        self.answer_bytes = bytes.min(BATCH_BYTES);
        self
    }

    /// Its acknowledgement may wait for a replica.
    pub(super) fn writes(mut self) -> Self {
        self.is_write = true;
        self
    }
}

/// One node's operations at one server, by script.
pub(super) struct OperationQueue {
    /// A batch has operations in one partition only.
    is_by_partition: bool,
    state: Mutex<OperationQueueState>,
    /// Notified of operations, by script.
    wake: [Notify; ScriptName::COUNT],
}

struct OperationQueueState {
    acceptance: Acceptance,
    waiting: [WaitingOperations; ScriptName::COUNT],
    operations: usize,
    bytes: usize,
    topics: HashMap<Arc<str>, usize>,
}

/// Operations of a script, in groups that may be in one batch. Groups take turns.
#[derive(Default)]
struct WaitingOperations {
    groups: HashMap<u32, VecDeque<StoreOperation>>,
    /// Groups with operations. Each occurs once.
    turns: VecDeque<u32>,
}

impl WaitingOperations {
    fn group(&mut self, number: u32, is_next: bool) -> &mut VecDeque<StoreOperation> {
        let group = self.groups.entry(number).or_default();
        match group.is_empty() {
            true if is_next => self.turns.push_front(number),
            true => self.turns.push_back(number),
            false => {}
        }
        group
    }

    fn next(&self) -> Option<&VecDeque<StoreOperation>> {
        self.groups.get(self.turns.front()?)
    }

    /// Takes a batch, and operations past their deadline.
    fn take(&mut self) -> (Vec<StoreOperation>, Vec<StoreOperation>) {
        let (mut batch, mut late, mut bytes) = (Vec::new(), Vec::new(), 0);
        let Some(number) = self.turns.pop_front() else { return (batch, late) };
        let group = self.groups.entry(number).or_default();
        while let Some(operation) = group.pop_front() {
            if operation.submitted.elapsed() >= DEADLINE {
                late.push(operation);
                continue;
            }
            bytes += operation.bytes;
            let is_alone = operation.is_alone;
            if !batch.is_empty() && (bytes > BATCH_BYTES || is_alone) {
                group.push_front(operation);
                break;
            }
            batch.push(operation);
            if batch.len() == BATCH_OPERATIONS || is_alone {
                break;
            }
        }
        if group.is_empty() {
            self.groups.remove(&number);
        } else {
            self.turns.push_back(number);
        }
        (batch, late)
    }
}

#[derive(Clone, Debug)]
enum Acceptance {
    Open,
    Away(Arc<str>),
    Closed,
}

impl OperationQueue {
    pub(super) fn new(reason: &str, is_by_partition: bool) -> Self {
        let state = OperationQueueState {
            acceptance: Acceptance::Away(reason.into()),
            waiting: Default::default(),
            operations: 0,
            bytes: 0,
            topics: HashMap::new(),
        };
        Self { is_by_partition, state: Mutex::new(state), wake: Default::default() }
    }

    /// Submits an operation. Its answer is decoded on the store's thread.
    pub(super) fn submit<T: Send + 'static>(
        &self,
        request: OperationRequest,
        decode: impl FnOnce(OperationReply) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreAnswer<T> {
        let (responder, pending) = StoreAnswer::channel();
        let answer =
            move |reply: Result<OperationReply, StoreError>| responder.answer(reply.and_then(decode));
        self.submit_with(request, Box::new(answer));
        pending
    }

    /// Submits an operation. Its answer comes from the store's thread, or at once if the operation is rejected.
    pub(super) fn submit_with(&self, request: OperationRequest, answer: OperationAnswer) {
        let bytes = request.arguments.iter().map(Bytes::len).sum::<usize>();
        let bytes = bytes + request.answer_bytes + OPERATION_BYTES;
        let mut state = lock(&self.state);
        if let Err(error) = state.reserve(&request.topic, bytes) {
            drop(state);
            return answer(Err(error));
        }
        let OperationRequest { script, topic, partition, keys, arguments, is_write, .. } = request;
        let (submitted, is_alone) = (Instant::now(), false);
        let operation = StoreOperation {
            script,
            topic,
            partition,
            keys,
            arguments,
            bytes,
            is_write,
            is_alone,
            submitted,
            answer,
        };
        state.waiting[script as usize].group(self.group(&operation), false).push_back(operation);
        drop(state);
        self.wake[script as usize].notify_one();
    }

    fn group(&self, operation: &StoreOperation) -> u32 {
        if self.is_by_partition { operation.partition % PARTITIONS } else { 0 }
    }

    /// Answers an operation, which is no longer in flight.
    pub(super) fn answer(&self, operation: StoreOperation, answer: Result<OperationReply, StoreError>) {
        lock(&self.state).release(&operation);
        (operation.answer)(answer);
    }

    /// Accepts operations from now on.
    pub(super) fn open(&self) {
        let mut state = lock(&self.state);
        if !matches!(state.acceptance, Acceptance::Closed) {
            state.acceptance = Acceptance::Open;
        }
    }

    /// Rejects operations from now on, and those that were not sent.
    pub(super) fn pause(&self, reason: &str) {
        self.stop(&Acceptance::Away(reason.into()), &StoreError::Away(reason.into()));
    }

    /// Rejects all operations from now on, and those that were not sent.
    pub(super) fn close(&self) {
        self.stop(&Acceptance::Closed, &StoreError::Closed);
        self.wake.iter().for_each(Notify::notify_one);
    }

    fn stop(&self, acceptance: &Acceptance, error: &StoreError) {
        let mut state = lock(&self.state);
        if !matches!(state.acceptance, Acceptance::Closed) {
            state.acceptance = acceptance.clone();
        }
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for operation in waiting.into_iter().flat_map(|waiting| waiting.groups).flat_map(|(_, group)| group) {
            self.answer(operation, Err(error.clone()));
        }
    }

    /// Waits until a batch of a script is due: at once if none is in flight, or if a full one waits.
    pub(super) async fn batch_due(&self, script: ScriptName, is_idle: bool) {
        loop {
            let notified = self.wake[script as usize].notified();
            let due = self.due_at(script, is_idle);
            match due {
                Some(due) if due <= Instant::now() => return,
                Some(due) => drop(tokio::time::timeout_at(due.into(), notified).await),
                None => notified.await,
            }
        }
    }

    fn due_at(&self, script: ScriptName, is_idle: bool) -> Option<Instant> {
        let state = lock(&self.state);
        let waiting = state.waiting[script as usize].next()?;
        let oldest = waiting.front()?.submitted;
        let is_full = is_idle || waiting.len() >= BATCH_OPERATIONS;
        Some(if is_full { oldest } else { oldest + BATCH_DELAY })
    }

    /// Takes a batch. Those past their deadline fail.
    pub(super) fn take(&self, script: ScriptName) -> Vec<StoreOperation> {
        let (batch, late) = lock(&self.state).waiting[script as usize].take();
        for operation in late {
            self.answer(operation, Err(StoreError::Away("Redis is too slow".into())));
        }
        batch
    }

    /// Returns operations that had no effect to the front.
    pub(super) fn put_back(&self, operations: Vec<StoreOperation>) {
        let mut state = lock(&self.state);
        for operation in operations.into_iter().rev() {
            let script = operation.script as usize;
            state.waiting[script].group(self.group(&operation), true).push_front(operation);
        }
    }
}

impl OperationQueueState {
    fn reserve(&mut self, topic: &Arc<str>, bytes: usize) -> Result<(), StoreError> {
        match &self.acceptance {
            Acceptance::Open => {}
            Acceptance::Away(reason) => return Err(StoreError::Away(reason.clone())),
            Acceptance::Closed => return Err(StoreError::Closed),
        }
        if self.operations >= OPERATIONS_MAX || self.bytes + bytes > BYTES_MAX {
            return Err(StoreError::Busy);
        }
        let of_topic = self.topics.entry(topic.clone()).or_default();
        if *of_topic >= TOPIC_OPERATIONS_MAX {
            return Err(StoreError::Busy);
        }
        *of_topic += 1;
        self.operations += 1;
        self.bytes += bytes;
        Ok(())
    }

    fn release(&mut self, operation: &StoreOperation) {
        self.operations -= 1;
        self.bytes -= operation.bytes;
        if let Some(of_topic) = self.topics.get_mut(&operation.topic) {
            *of_topic -= 1;
            if *of_topic == 0 {
                self.topics.remove(&operation.topic);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_queue_is_busy_until_an_answer() {
        let queue = OperationQueue::new("not yet", false);
        let submit = |topic: &str, bytes: usize| {
            let request = OperationRequest::new(ScriptName::Log, "append", topic).text(vec![0; bytes]);
            let mut pending = queue.submit(request, |_| Ok(()));
            pending.take().and_then(Result::err)
        };
        assert_eq!(submit("t", 1), Some(StoreError::Away("not yet".into())));
        queue.open();
        assert_eq!(submit("t", BYTES_MAX / 2), None);
        assert_eq!(submit("t", BYTES_MAX / 2), Some(StoreError::Busy));
        let batch = queue.take(ScriptName::Log);
        assert_eq!(batch.len(), 1);
        assert_eq!(submit("t", BYTES_MAX / 2), Some(StoreError::Busy), "it is in flight");
        for operation in batch {
            queue.answer(operation, Err(StoreError::Closed));
        }
        assert_eq!((0..TOPIC_OPERATIONS_MAX).filter_map(|_| submit("t", 1)).next(), None);
        assert_eq!((submit("t", 1), submit("u", 1)), (Some(StoreError::Busy), None));
        let full = (0..OPERATIONS_MAX).filter(|number| submit(&number.to_string(), 0).is_none()).count();
        assert!(full < OPERATIONS_MAX - TOPIC_OPERATIONS_MAX);
        assert_eq!(queue.take(ScriptName::Log).len(), BATCH_OPERATIONS);
        queue.close();
        assert_eq!(submit("t", 1), Some(StoreError::Closed));
    }

    #[test]
    fn batches_are_limited_by_their_bytes() {
        let queue = OperationQueue::new("not yet", false);
        queue.open();
        for bytes in [BATCH_BYTES / 2, BATCH_BYTES / 4, BATCH_BYTES / 2, 2 * BATCH_BYTES, 1] {
            let request = OperationRequest::new(ScriptName::Keys, "write", "t").text(vec![0; bytes]);
            drop(queue.submit(request, |_| Ok(())));
        }
        let sizes: Vec<_> = (0..5).map(|_| queue.take(ScriptName::Keys).len()).collect();
        assert_eq!(sizes, [2, 1, 1, 1, 0]);
    }

    #[test]
    fn groups_take_turns() {
        let queue = OperationQueue::new("not yet", true);
        queue.open();
        for number in [1, 1, 2, 1] {
            let request = OperationRequest::new(ScriptName::Log, "append", "t").in_partition(number);
            drop(queue.submit(request, |_| Ok(())));
        }
        let mut first = queue.take(ScriptName::Log);
        assert_eq!(first.len(), 3);
        first.iter_mut().for_each(|operation| operation.is_alone = true);
        queue.put_back(first);
        let numbers =
            std::iter::repeat_with(|| queue.take(ScriptName::Log)).take_while(|batch| !batch.is_empty());
        let numbers: Vec<Vec<u32>> =
            numbers.map(|batch| batch.iter().map(|operation| operation.partition).collect()).collect();
        assert_eq!(numbers, [vec![1], vec![2], vec![1], vec![1]]);
    }
}
