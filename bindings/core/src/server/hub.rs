//! The hub of the whole server, and its end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::thread;

use sinews_hub::RunningHub;

/// The rest of the whole server.
#[derive(Debug)]
pub(super) enum HubState {
    None,
    Running(RunningHub),
    /// A thread waits for the others, so that the interpreter's goes on. True once they have ended.
    ShuttingDown(Arc<AtomicBool>),
}

impl HubState {
    /// Shuts the hub down. Returns whether it has ended; otherwise it wakes the server when it has.
    pub(super) fn has_ended(&mut self, waker: impl FnOnce() -> Waker) -> io::Result<bool> {
        if let Self::Running(_) = self
            && let Self::Running(hub) = std::mem::replace(self, Self::None)
        {
            let (waker, has_ended) = (waker(), Arc::new(AtomicBool::new(false)));
            *self = Self::ShuttingDown(Arc::clone(&has_ended));
            thread::Builder::new().name("sinews-end".to_owned()).spawn(move || {
                hub.shut_down();
                has_ended.store(true, Ordering::Release);
                waker.wake();
            })?;
        }
        Ok(match self {
            Self::ShuttingDown(has_ended) => has_ended.load(Ordering::Acquire),
            _ => true,
        })
    }
}
