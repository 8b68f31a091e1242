//! The interface between shared loop state (slots, timers, mail, commands) and the backends.

use std::io;
use std::time::Duration;

use crate::config::BackendChoice;
use crate::mail::Waker;
use crate::poll::Poll;
#[cfg(target_os = "linux")]
use crate::ring::{Refusal, Ring};
use crate::{App, Chain, Config, Io, Listener};

/// Executes the commands recorded in [`Io`] and delivers the kernel's events.
///
/// The interface follows completions: a chunk is lent to the application, a chain moves to the kernel and
/// back by value, and a connection is closed only when none of its operations is in flight. The readiness
/// backend executes an operation when it can complete; a ring submits it and waits.
pub(crate) trait Backend<A: App> {
    /// Called on the thread that runs the loop, before it waits.
    fn start(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Whether work is left from the last turn, so that this turn must not sleep. Called at the end of the
    /// turn, when no more work can be added.
    fn has_work(&self, app: &A, io: &Io) -> bool;

    /// The maximum sleep of the backend itself, in addition to the timers in [`Io`].
    fn until_next_work(&self, io: &Io) -> Option<Duration>;

    /// Waits for events of the kernel, at most `timeout` (`None`: without limit).
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()>;

    /// Delivers events: `received`, `ended`, `accepted`. Bounded per connection.
    fn deliver(&mut self, app: &mut A, io: &mut Io);

    /// Executes commands at the end of a turn: closes, resumes, sends. Commands recorded during the sends
    /// are left to the next turn, except for closes.
    fn carry_out(&mut self, app: &mut A, io: &mut Io);

    /// Submits queued operations, when the next wait may be far away.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The backend of an engine.
#[expect(clippy::large_enum_variant, reason = "one per thread, and it never moves")]
pub(crate) enum AnyBackend<C> {
    Poll(Poll<C>),
    #[cfg(target_os = "linux")]
    Ring(Ring<C>),
}

impl<C: Chain> AnyBackend<C> {
    /// Creates the configured backend or its fallback, and the waker for it.
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
                Err(io::Error::new(io::ErrorKind::Unsupported, "io_uring cannot be used: it requires Linux"))
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

/// Checks whether a loop of this process can use io_uring: creates a small ring and drops it.
///
/// # Errors
///
/// [`Unsupported`](io::ErrorKind::Unsupported) where io_uring is refused or missing; the text names the
/// cause and the remedy.
pub fn check_io_uring() -> io::Result<()> {
    let config = Config::default().backend(BackendChoice::Uring);
    AnyBackend::<io::Cursor<Vec<u8>>>::new(&config, Vec::new()).map(drop)
}

/// Logs once per process why its loops run without a ring.
#[cfg(target_os = "linux")]
fn report(refusal: &Refusal) {
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| tracing::warn!("{refusal}. Serving by readiness (epoll) instead"));
}

/// Calls the active backend.
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
