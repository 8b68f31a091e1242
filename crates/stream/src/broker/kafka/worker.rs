//! A thread that answers questions, one after the other: librdkafka's answers to most are waited for.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use super::super::answer::Reply;
use super::super::{Answer, BrokerError};

/// Questions that may wait. Each is answered within seconds, or refused.
const QUESTIONS_MAX: usize = 1024;

/// What a thread does with its questions.
pub(super) trait Work: Send + 'static {
    type Question: Send + 'static;

    /// How long nothing may be asked before it has something to do itself.
    const IDLE: Duration;

    /// Answers what has been asked meanwhile: one question at least.
    fn answer(&mut self, questions: Vec<Self::Question>);

    /// Nothing was asked for a while, or much: whatever has to be done now and then.
    fn look_around(&mut self);
}

/// The other end of such a thread. It ends when this is closed, after the question that it may be at: nobody waits for
/// that.
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

    /// Asks; the answer says so if too much waits, or the thread has ended.
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
        // Each may take seconds when the broker is away; those who asked hear that it was closed.
        if is_closed.load(Ordering::Relaxed) {
            return;
        }
        if let Some(first) = first {
            work.answer(std::iter::once(first).chain(questions.try_iter().take(QUESTIONS_MAX)).collect());
        }
        work.look_around();
    }
}
