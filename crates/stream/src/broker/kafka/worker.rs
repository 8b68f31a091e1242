//! A thread that answers requests in sequence: most of librdkafka's requests block.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use super::super::answer::Reply;
use super::super::{Answer, BrokerError};

/// Maximum number of pending requests. Each is answered or fails within seconds.
const QUESTIONS_MAX: usize = 1024;

/// The work of a request thread.
pub(super) trait Work: Send + 'static {
    type Question: Send + 'static;

    /// Idle time after which periodic work runs.
    const IDLE: Duration;

    /// Answers the requests that have arrived, at least one.
    fn answer(&mut self, questions: Vec<Self::Question>);

    /// Does periodic work, after an idle time or many requests.
    fn look_around(&mut self);
}

/// Handle of such a thread. When closed, the thread ends after its current request; closing does not wait for it.
pub(super) struct Worker<Q> {
    questions: RwLock<Option<SyncSender<Q>>>,
    is_closed: Arc<AtomicBool>,
}

impl<Q: Send + 'static> Worker<Q> {
    pub(super) fn start<W: Work<Question = Q>>(name: &str, work: W) -> io::Result<Self> {
        let (sender, receiver) = mpsc::sync_channel(QUESTIONS_MAX);
        let is_closed = Arc::new(AtomicBool::new(false));
        let closed = is_closed.clone();
        super::start(name, move || run(work, &receiver, &closed))?;
        Ok(Self { questions: RwLock::new(Some(sender)), is_closed })
    }

    /// Sends a request; the answer is an error if the queue is full or the thread has ended.
    pub(super) fn ask<T>(&self, question: impl FnOnce(Reply<T>) -> Q) -> Answer<T> {
        let (reply, answer) = Answer::channel();
        let questions = self.questions.read().unwrap_or_else(PoisonError::into_inner);
        match questions.as_ref().map(|questions| questions.try_send(question(reply))) {
            Some(Ok(())) => answer,
            Some(Err(TrySendError::Full(_))) => Answer::ready(Err(BrokerError::Busy)),
            Some(Err(TrySendError::Disconnected(_))) | None => Answer::ready(Err(BrokerError::Closed)),
        }
    }

    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.questions.write().unwrap_or_else(PoisonError::into_inner).take();
    }
}

fn run<W: Work>(mut work: W, questions: &Receiver<W::Question>, is_closed: &AtomicBool) {
    loop {
        let first = match questions.recv_timeout(W::IDLE) {
            Ok(first) => Some(first),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        // Each request may take seconds when the broker is unreachable; the remaining requesters get `Closed`.
        if is_closed.load(Ordering::Relaxed) {
            return;
        }
        if let Some(first) = first {
            work.answer(std::iter::once(first).chain(questions.try_iter().take(QUESTIONS_MAX)).collect());
        }
        work.look_around();
    }
}
