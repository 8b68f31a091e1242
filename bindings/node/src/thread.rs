//! A thread that waits for a descriptor, where JavaScript's loop cannot: in Bun, which has no `uv_poll_init`. Each
//! wait costs two thread switches.

use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use napi::bindgen_prelude::Function;
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use napi::{Env, Error, Result, Status};

const DESCRIPTOR: Token = Token(0);
const WAKER: Token = Token(1);

/// JavaScript's function: one call waits at most.
type Tick = ThreadsafeFunction<(), (), (), Status, false, false, 1>;

/// A thread that calls a function once after each [`set_timer`](Self::set_timer). It ends when this value is dropped.
pub(crate) struct ThreadWatcher {
    orders: Arc<Mutex<Order>>,
    waker: Waker,
    tick: Arc<Mutex<Tick>>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// As before.
    None,
    /// To wait for the descriptor, and for this time at most.
    Wait(Option<Instant>),
    End,
}

fn failed(error: &io::Error) -> Error {
    Error::new(Status::GenericFailure, format!("the thread that waits cannot start: {error}"))
}

impl ThreadWatcher {
    /// Starts the thread. The descriptor must stay open until this value is dropped.
    ///
    /// # Errors
    /// The system has no descriptor or thread left.
    pub(crate) fn new(fd: RawFd, function: &Function<'_, (), ()>) -> Result<Self> {
        let tick = function
            .build_threadsafe_function::<()>()
            .callee_handled::<false>()
            .max_queue_size::<1>()
            .build()?;
        let tick = Arc::new(Mutex::new(tick));
        let poll = Poll::new().map_err(|error| failed(&error))?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(|error| failed(&error))?;
        poll.registry()
            .register(&mut SourceFd(&fd), DESCRIPTOR, Interest::READABLE)
            .map_err(|error| failed(&error))?;
        let orders = Arc::new(Mutex::new(Order::None));
        let (taken, called) = (Arc::clone(&orders), Arc::clone(&tick));
        let wait = move || {
            // Without the descriptor, the timer alone calls.
            let _ = run(poll, fd, &taken, || {
                lock(&called).call((), ThreadsafeFunctionCallMode::NonBlocking);
            });
        };
        let thread = thread::Builder::new().name("sinews-wait".to_owned()).spawn(wait);
        Ok(Self { orders, waker, tick, thread: Some(thread.map_err(|error| failed(&error))?) })
    }

    /// Calls the function once: when the descriptor is readable, or after this time.
    pub(crate) fn set_timer(&self, after: Option<Duration>) {
        self.order(Order::Wait(after.map(|after| Instant::now() + after)));
    }

    /// Whether the thread keeps the process alive.
    ///
    /// # Errors
    /// The environment ends.
    #[expect(deprecated, reason = "nothing else changes whether the process may end while the thread waits")]
    pub(crate) fn set_ref(&self, env: &Env, is_ref: bool) -> Result<()> {
        let mut tick = lock(&self.tick);
        if is_ref { tick.refer(env) } else { tick.unref(env) }
    }

    fn order(&self, order: Order) {
        *lock(&self.orders) = order;
        // The waker's descriptor takes any number of wakes.
        let _ = self.waker.wake();
    }
}

impl Drop for ThreadWatcher {
    fn drop(&mut self) {
        self.order(Order::End);
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked has ended as well.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for ThreadWatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadWatcher").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits as ordered, until the order to end.
fn run(mut poll: Poll, fd: RawFd, orders: &Mutex<Order>, mut call: impl FnMut()) -> io::Result<()> {
    let mut events = Events::with_capacity(4);
    // The current wait, and its end.
    let mut wait: Option<Option<Instant>> = None;
    loop {
        let timeout = wait.flatten().map(|at| at.saturating_duration_since(Instant::now()));
        match poll.poll(&mut events, timeout) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        match std::mem::replace(&mut *lock(orders), Order::None) {
            Order::End => return Ok(()),
            Order::Wait(until) => {
                wait = Some(until);
                // Reports again what is readable now.
                poll.registry().reregister(&mut SourceFd(&fd), DESCRIPTOR, Interest::READABLE)?;
            }
            Order::None => {
                let is_readable = events.iter().any(|event| event.token() == DESCRIPTOR);
                let is_due = |until: Option<Instant>| until.is_some_and(|until| until <= Instant::now());
                if wait.is_some_and(|until| is_readable || is_due(until)) {
                    wait = None;
                    call();
                }
            }
        }
    }
}
