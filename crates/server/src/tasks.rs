//! Answers that come later, and handlers that wait for something: who was woken, and where work may block.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;

use rustc_hash::FxHashMap;
use sinews_engine::{ConnId, Post};

use crate::mail::Mail;
use crate::pool::BlockingPool;

/// Futures and handlers called in a turn. Many are woken at once, by a batch that is on disk or acknowledged by a
/// broker; the first answers leave, and what they bring is taken up, before the last are made. (128 clients that
/// wait for Kafka would go in step otherwise: all answered, then all asking, and nothing done while Kafka works.)
pub(crate) const WOKEN_PER_TURN: usize = 16;

/// What a thread needs for its futures and handlers. They lie with their connections.
#[derive(Debug)]
pub(crate) struct Tasks {
    woken: Arc<Woken>,
    pool: BlockingPool,
    /// Of the connections whose handler has asked for one: most have none, and need no place for it.
    wakers: RefCell<FxHashMap<ConnId, Arc<TaskWaker>>>,
}

/// Connections whose future or handler was woken. No mail, since a box may be full; bounded all the same, since each
/// is listed once.
#[derive(Debug)]
struct Woken {
    conns: Mutex<VecDeque<ConnId>>,
    /// Looked at without the lock.
    any: AtomicBool,
    post: Post<Mail>,
}

/// Wakes one future of a connection, or its handler.
#[derive(Debug)]
pub(crate) struct TaskWaker {
    conn: ConnId,
    listed: AtomicBool,
    woken: Arc<Woken>,
}

impl Tasks {
    /// Those of the loop that this post belongs to.
    pub(crate) fn new(post: Post<Mail>, pool: BlockingPool) -> Self {
        let woken = Woken { conns: Mutex::default(), any: AtomicBool::new(false), post };
        Self { woken: Arc::new(woken), pool, wakers: RefCell::default() }
    }

    pub(crate) fn pool(&self) -> &BlockingPool {
        &self.pool
    }

    pub(crate) fn waker(&self, conn: ConnId) -> Arc<TaskWaker> {
        Arc::new(TaskWaker { conn, listed: AtomicBool::new(false), woken: Arc::clone(&self.woken) })
    }

    /// What wakes the handler of a connection, always the same.
    pub(crate) fn waker_of(&self, conn: ConnId) -> Arc<TaskWaker> {
        Arc::clone(self.wakers.borrow_mut().entry(conn).or_insert_with(|| self.waker(conn)))
    }

    /// The handler of a connection is about to be told that it was woken, if it has a waker.
    pub(crate) fn answers_waker(&self, conn: ConnId) -> bool {
        self.wakers.borrow().get(&conn).inspect(|waker| waker.polled()).is_some()
    }

    /// The connection has gone.
    #[inline]
    pub(crate) fn forget(&self, conn: ConnId) {
        let mut wakers = self.wakers.borrow_mut();
        if !wakers.is_empty() {
            wakers.remove(&conn);
        }
    }

    /// Those that were woken first. One that has gone or finished meanwhile may be among them. If there are more, the
    /// loop comes back in its next turn.
    pub(crate) fn take_woken(&self) -> Vec<ConnId> {
        if !self.woken.any.load(Ordering::SeqCst) {
            return Vec::new();
        }
        let mut conns = self.woken.conns.lock().unwrap_or_else(PoisonError::into_inner);
        let count = conns.len().min(WOKEN_PER_TURN);
        let first = conns.drain(..count).collect();
        let any = !conns.is_empty();
        self.woken.any.store(any, Ordering::SeqCst);
        drop(conns);
        if any {
            self.woken.post.wake();
        }
        first
    }
}

impl TaskWaker {
    /// It is about to be called: whoever wakes it from here on wakes it again.
    pub(crate) fn polled(&self) {
        self.listed.store(false, Ordering::SeqCst);
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.listed.swap(true, Ordering::SeqCst) {
            let mut conns = self.woken.conns.lock().unwrap_or_else(PoisonError::into_inner);
            conns.push_back(self.conn);
            self.woken.any.store(true, Ordering::SeqCst);
            drop(conns);
            self.woken.post.wake();
        }
    }
}
