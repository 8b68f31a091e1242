//! A signal that wakes a sleeping thread.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Wake;
use std::time::Duration;

/// Set by any thread, and cleared by the one thread that waits.
#[derive(Default)]
pub(super) struct Signal {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    pub(super) fn set(&self) {
        if !std::mem::replace(&mut *self.lock(), true) {
            self.changed.notify_one();
        }
    }

    /// Waits until the signal is set or the time has passed, and clears it.
    pub(super) fn wait(&self, within: Duration) {
        let waited = self.changed.wait_timeout_while(self.lock(), within, |is_set| !*is_set);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.set();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.set();
    }
}
