//! Wakeups of answers that complete later and of handlers, and blocking work.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use sinews_engine::{ConnId, Post};

use crate::pool::BlockingPool;
use crate::topics::mail::Mail;

/// Maximum number of futures and handlers called in a turn. Many wake at once, for a batch that is synced to disk or
/// acknowledged by a broker. The first answers leave, and their results are handled, before the last are computed.
/// (Otherwise 128 clients that wait for Kafka would go in step: all answered, then all asking, and no work done while
/// Kafka is busy.)
const WOKEN_PER_TURN: usize = 16;

/// Futures and handlers of a thread. Their state is with their connections.
#[derive(Debug)]
pub(crate) struct Tasks {
    woken: Arc<Woken>,
    pool: BlockingPool,
    /// Wakers of connections whose handler has asked for one: most have none, and use no memory for it.
    wakers: RefCell<FxHashMap<ConnId, Arc<TaskWaker>>>,
}

/// Connections whose future or handler was woken. Not mail, since a mailbox may be full; still bounded, since each
/// connection is listed once.
#[derive(Debug)]
struct Woken {
    conns: Mutex<VecDeque<ConnId>>,
    /// Checked without the lock.
    any: AtomicBool,
    post: Post<Mail>,
}

/// Waker of a connection's future or handler.
#[derive(Debug)]
pub(crate) struct TaskWaker {
    conn: ConnId,
    listed: AtomicBool,
    woken: Arc<Woken>,
}

impl Tasks {
    /// Creates the tasks of the loop that this post belongs to.
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

    /// Returns the waker of a connection's handler, always the same one.
    pub(crate) fn waker_of(&self, conn: ConnId) -> Arc<TaskWaker> {
        Arc::clone(self.wakers.borrow_mut().entry(conn).or_insert_with(|| self.waker(conn)))
    }

    /// Marks the waker of a connection as handled; returns whether it exists.
    pub(crate) fn acknowledge_wakeup(&self, conn: ConnId) -> bool {
        self.wakers.borrow().get(&conn).inspect(|waker| waker.polled()).is_some()
    }

    /// Removes a closed connection.
    #[inline]
    pub(crate) fn remove(&self, conn: ConnId) {
        let mut wakers = self.wakers.borrow_mut();
        if !wakers.is_empty() {
            wakers.remove(&conn);
        }
    }

    /// Returns the connections that were woken first. Some may be closed or finished meanwhile. If more remain, the
    /// loop continues in its next turn.
    pub(crate) fn take_woken(&self) -> Vec<ConnId> {
        if !self.woken.any.load(Ordering::SeqCst) {
            return Vec::new();
        }
        let mut conns = self.woken.conns.lock();
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
    /// Returns whether a wakeup is not handled yet.
    pub(crate) fn is_woken(&self) -> bool {
        self.listed.load(Ordering::SeqCst)
    }

    /// Marks the future as polled: later wakeups schedule it again.
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
            let mut conns = self.woken.conns.lock();
            conns.push_back(self.conn);
            self.woken.any.store(true, Ordering::SeqCst);
            drop(conns);
            self.woken.post.wake();
        }
    }
}
