//! The seam between what every backend shares (slots, timers, mail, commands) and what it does its own way.

use std::io;
use std::time::Duration;

use crate::{App, Io};

/// Carries out the commands recorded in [`Io`] and hands over what the kernel reports.
///
/// It is shaped by completions: a chunk is lent to the application, a chain goes to the kernel by value and
/// comes home by value, and a connection is closed only when nothing of it is with the kernel. Readiness
/// performs an operation when it can complete; a ring submits it and waits.
pub(crate) trait Backend<A: App> {
    /// Something is left from the last turn, so this one must not sleep.
    fn has_work(&self, io: &Io) -> bool;

    /// How long the backend itself may sleep, beside the timers in [`Io`].
    fn until_next_work(&self, io: &Io) -> Option<Duration>;

    /// Waits for the kernel, at most `timeout` (`None`: without end).
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()>;

    /// Hands over what has come: `received`, `ended`, `accepted`. Bounded per connection.
    fn deliver(&mut self, app: &mut A, io: &mut Io);

    /// Carries out commands at the end of a turn: closes, resumes, sends. What callbacks record during the
    /// sends is left to the next turn, except for closes.
    fn carry_out(&mut self, app: &mut A, io: &mut Io);
}
