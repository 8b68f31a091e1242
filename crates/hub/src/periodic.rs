//! A thread that does a task at an interval, until it is stopped.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A periodic task. It ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Periodic {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Periodic {
    /// Runs a task on a thread of this name, first after one interval.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start(
        name: &str,
        interval: Duration,
        mut task: impl FnMut() + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                task();
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Periodic {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A task that has panicked has ended as well.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_repeats_until_it_is_dropped() {
        let (ran, has_run) = channel();
        let periodic = Periodic::start("test", Duration::from_millis(1), move || {
            let _ = ran.send(());
        });
        for _ in 0..3 {
            has_run.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        drop(periodic);
        while has_run.try_recv().is_ok() {}
        assert!(has_run.recv().is_err(), "the thread has ended and dropped its sender");
    }
}
