//! The seam between what every backend shares (slots, timers, mail, commands) and what it does its own way.

use std::io;
use std::time::Duration;

use crate::config::BackendChoice;
use crate::mail::Waker;
use crate::poll::Poll;
#[cfg(target_os = "linux")]
use crate::ring::{Refusal, Ring};
use crate::{App, Chain, Config, Io, Listener};

/// Carries out the commands recorded in [`Io`] and hands over what the kernel reports.
///
/// It is shaped by completions: a chunk is lent to the application, a chain goes to the kernel by value and
/// comes home by value, and a connection is closed only when nothing of it is with the kernel. Readiness
/// performs an operation when it can complete; a ring submits it and waits.
pub(crate) trait Backend<A: App> {
    /// Called by the thread that runs the loop, before it waits.
    fn start(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Something is left from the last turn, so this one must not sleep. Asked when the turn is over, and nothing else
    /// can come to wait.
    fn has_work(&self, app: &A, io: &Io) -> bool;

    /// How long the backend itself may sleep, beside the timers in [`Io`].
    fn until_next_work(&self, io: &Io) -> Option<Duration>;

    /// Waits for the kernel, at most `timeout` (`None`: without end).
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()>;

    /// Hands over what has come: `received`, `ended`, `accepted`. Bounded per connection.
    fn deliver(&mut self, app: &mut A, io: &mut Io);

    /// Carries out commands at the end of a turn: closes, resumes, sends. What callbacks record during the
    /// sends is left to the next turn, except for closes.
    fn carry_out(&mut self, app: &mut A, io: &mut Io);

    /// Hands over what carrying out only queued, when the loop may not come back to wait soon.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The backend of an engine.
#[expect(clippy::large_enum_variant, reason = "there is one for each thread, and it never moves")]
pub(crate) enum AnyBackend<C> {
    Poll(Poll<C>),
    #[cfg(target_os = "linux")]
    Ring(Ring<C>),
}

impl<C: Chain> AnyBackend<C> {
    /// What the configuration asks for, or falls back on, and the means to wake it.
    pub(crate) fn new(config: &Config, listeners: Vec<Listener>) -> io::Result<(Self, Waker)> {
        match config.backend {
            BackendChoice::Poll => Self::poll(config, listeners),
            #[cfg(target_os = "linux")]
            BackendChoice::Uring | BackendChoice::Auto => match Ring::new(config, listeners) {
                Ok((ring, waker)) => Ok((Self::Ring(ring), Waker::Ring(waker))),
                Err((refusal, _)) if config.backend == BackendChoice::Uring => Err(refusal.into()),
                Err((refusal, listeners)) => {
                    report(&refusal);
                    Self::poll(config, listeners)
                }
            },
            #[cfg(not(target_os = "linux"))]
            BackendChoice::Auto => Self::poll(config, listeners),
            #[cfg(not(target_os = "linux"))]
            BackendChoice::Uring => {
                Err(io::Error::new(io::ErrorKind::Unsupported, "io_uring cannot be used: it is Linux's"))
            }
        }
    }

    fn poll(config: &Config, listeners: Vec<Listener>) -> io::Result<(Self, Waker)> {
        let (poll, waker) = Poll::new(config, listeners)?;
        Ok((Self::Poll(poll), Waker::Poll(waker)))
    }

    pub(crate) fn choice(&self) -> BackendChoice {
        match self {
            Self::Poll(_) => BackendChoice::Poll,
            #[cfg(target_os = "linux")]
            Self::Ring(_) => BackendChoice::Uring,
        }
    }
}

/// Whether a loop of this process can use io_uring: makes a small ring and drops it.
///
/// # Errors
///
/// [`Unsupported`](io::ErrorKind::Unsupported) where io_uring is refused or does not exist; the text names cause and
/// remedy.
pub fn check_io_uring() -> io::Result<()> {
    let config = Config::default().backend(BackendChoice::Uring);
    AnyBackend::<io::Cursor<Vec<u8>>>::new(&config, Vec::new()).map(drop)
}

/// Says once for all loops of the process why they do without a ring.
#[cfg(target_os = "linux")]
fn report(refusal: &Refusal) {
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| tracing::warn!("{refusal}. Serving by readiness (epoll) instead"));
}

/// Calls the one that serves.
macro_rules! each {
    ($backend:expr, $one:ident => $call:expr) => {
        match $backend {
            AnyBackend::Poll($one) => $call,
            #[cfg(target_os = "linux")]
            AnyBackend::Ring($one) => $call,
        }
    };
}

impl<A: App> Backend<A> for AnyBackend<A::Chain> {
    fn start(&mut self) -> io::Result<()> {
        each!(self, one => Backend::<A>::start(one))
    }

    fn has_work(&self, app: &A, io: &Io) -> bool {
        each!(self, one => one.has_work(app, io))
    }

    fn until_next_work(&self, io: &Io) -> Option<Duration> {
        each!(self, one => Backend::<A>::until_next_work(one, io))
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        each!(self, one => Backend::<A>::wait(one, timeout))
    }

    fn deliver(&mut self, app: &mut A, io: &mut Io) {
        each!(self, one => one.deliver(app, io))
    }

    fn carry_out(&mut self, app: &mut A, io: &mut Io) {
        each!(self, one => one.carry_out(app, io))
    }

    fn flush(&mut self) -> io::Result<()> {
        each!(self, one => Backend::<A>::flush(one))
    }
}
