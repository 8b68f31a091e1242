//! A waker that remembers whether it was woken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

/// A waker that remembers whether it was woken.
pub(super) struct WakeFlag {
    pub(super) woken: AtomicBool,
    waker: Waker,
}

impl WakeFlag {
    /// Creates a flag that is already woken.
    pub(super) fn new(waker: Waker) -> Arc<Self> {
        Arc::new(Self { woken: AtomicBool::new(true), waker })
    }

    pub(super) fn is_woken(&self) -> bool {
        self.woken.load(Ordering::Acquire)
    }

    /// Arms the flag; returns whether the awaited event has happened already.
    pub(super) fn arm(self: &Arc<Self>, watch: impl FnOnce(&Waker) -> bool) -> bool {
        self.woken.store(false, Ordering::Release);
        let happened = watch(&Waker::from(Arc::clone(self)));
        if happened {
            self.woken.store(true, Ordering::Release);
        }
        happened
    }
}

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.waker.wake_by_ref();
    }
}
