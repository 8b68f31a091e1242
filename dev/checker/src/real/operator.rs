//! Executes one fault at a time, beside the driver.

use std::thread::{self, JoinHandle};

use super::{Begun, LaneError};

#[derive(Default)]
pub(super) struct Operator {
    task: Option<JoinHandle<Result<(), LaneError>>>,
    /// The first error.
    error: Option<LaneError>,
}

impl Operator {
    /// Whether the last fault has ended. It never begins another one after an error.
    pub(super) fn is_idle(&mut self) -> bool {
        if self.task.as_ref().is_some_and(JoinHandle::is_finished) {
            self.join();
        }
        self.task.is_none()
    }

    /// Whether the fault has begun.
    pub(super) fn begin(&mut self, begun: Result<Begun, LaneError>) -> bool {
        match begun {
            Ok(Begun::Now) => true,
            Ok(Begun::Later) => false,
            Ok(Begun::Task(task)) => {
                self.task = Some(thread::spawn(task));
                true
            }
            Err(error) => {
                self.error.get_or_insert(error);
                false
            }
        }
    }

    pub(super) fn finish(&mut self) -> Result<(), LaneError> {
        self.join();
        self.error.take().map_or(Ok(()), Err)
    }

    fn join(&mut self) {
        let Some(task) = self.task.take() else { return };
        let ended =
            task.join().unwrap_or_else(|_| Err(LaneError::Failed("a fault's thread panicked".into())));
        if let Err(error) = ended {
            self.error.get_or_insert(error);
        }
    }
}
