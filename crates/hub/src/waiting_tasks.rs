//! Tasks that wait for a change to shared state.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::{Poll, Waker};

use parking_lot::{Mutex, MutexGuard};

/// Tasks that wait for a change to shared state. A task is registered once, however often it is polled, and forgotten
/// when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct WaitingTasks(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    wakers: BTreeMap<u64, Waker>,
    last: u64,
}

impl WaitingTasks {
    /// Waits until a condition holds. Each change is followed by [`wake_all`](Self::wake_all).
    pub(crate) async fn wait_until(&self, condition: impl Fn() -> bool) {
        let mut task = WaitingTask { tasks: self, number: 0 };
        poll_fn(|cx| {
            if condition() {
                return Poll::Ready(());
            }
            task.register(cx.waker());
            // A change before the registration has woken no task.
            if condition() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    pub(crate) fn wake_all(&self) {
        let wakers = std::mem::take(&mut self.lock().wakers);
        wakers.into_values().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

struct WaitingTask<'a> {
    tasks: &'a WaitingTasks,
    /// 0 before the registration.
    number: u64,
}

impl WaitingTask<'_> {
    fn register(&mut self, waker: &Waker) {
        let mut state = self.tasks.lock();
        if self.number == 0 {
            state.last += 1;
            self.number = state.last;
        }
        state.wakers.insert(self.number, waker.clone());
    }
}

impl Drop for WaitingTask<'_> {
    fn drop(&mut self) {
        if self.number > 0 {
            self.tasks.lock().wakers.remove(&self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Context;

    use super::*;

    #[test]
    fn task_is_registered_once_and_forgotten_when_it_is_dropped() {
        let (tasks, is_done) = (WaitingTasks::default(), AtomicBool::new(false));
        let registered = || tasks.lock().wakers.len();
        let mut cx = Context::from_waker(Waker::noop());
        let mut first = pin!(tasks.wait_until(|| is_done.load(Ordering::SeqCst)));
        {
            let mut second = pin!(tasks.wait_until(|| false));
            for _ in 0..3 {
                assert!(first.as_mut().poll(&mut cx).is_pending());
                assert!(second.as_mut().poll(&mut cx).is_pending());
            }
            assert_eq!(registered(), 2);
        }
        assert_eq!(registered(), 1);
        tasks.wake_all();
        assert_eq!(registered(), 0);
        assert!(first.as_mut().poll(&mut cx).is_pending());
        is_done.store(true, Ordering::SeqCst);
        assert!(first.as_mut().poll(&mut cx).is_ready());
    }
}
