//! Waiting for the server's descriptor: in JavaScript's loop, or on a thread where that loop cannot.

use std::os::fd::RawFd;
use std::time::Duration;

use napi::bindgen_prelude::Function;
use napi::{Env, Result};

use crate::thread::ThreadWatcher;
use crate::uv::LoopWatcher;

/// Calls a function when a descriptor is readable, or after a time.
#[derive(Debug)]
pub(crate) enum Watcher {
    Loop(LoopWatcher),
    Thread(ThreadWatcher),
}

impl Watcher {
    /// Watches a descriptor, which must stay open until this value is dropped.
    ///
    /// # Errors
    /// libuv cannot watch it, or the thread cannot start.
    pub(crate) fn new(
        env: &Env,
        fd: RawFd,
        function: &Function<'_, (), ()>,
        has_thread: bool,
    ) -> Result<Self> {
        match has_thread {
            true => ThreadWatcher::new(fd, function).map(Self::Thread),
            false => LoopWatcher::new(env, fd, function).map(Self::Loop),
        }
    }

    /// Calls the function after this time; `None`: only when the descriptor is readable.
    pub(crate) fn set_timer(&self, after: Option<Duration>) {
        match self {
            Self::Loop(watcher) => watcher.set_timer(after),
            Self::Thread(watcher) => watcher.set_timer(after),
        }
    }

    /// Whether the server keeps the process alive.
    ///
    /// # Errors
    /// The environment ends.
    pub(crate) fn set_ref(&self, env: &Env, is_ref: bool) -> Result<()> {
        match self {
            Self::Loop(watcher) => {
                watcher.set_ref(is_ref);
                Ok(())
            }
            Self::Thread(watcher) => watcher.set_ref(env, is_ref),
        }
    }
}
