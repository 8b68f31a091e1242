//! The configured backend or its fallback.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::backend::Backend;
use crate::config::BackendChoice;
use crate::mail::Waker;
use crate::poll::Poll;
#[cfg(target_os = "linux")]
use crate::ring::{Ring, RingUnavailable};
use crate::{App, DatagramSocket, EngineConfig, Io, Listener, SendChain};

/// The backend of an engine.
#[expect(clippy::large_enum_variant, reason = "one per thread, and it never moves")]
pub(crate) enum AnyBackend<C> {
    Poll(Poll<C>),
    #[cfg(target_os = "linux")]
    Ring(Ring<C>),
}

impl<C: SendChain> AnyBackend<C> {
    /// Creates the configured backend or its fallback, and the waker for it.
    pub(crate) fn new(config: &EngineConfig, listeners: Vec<Listener>) -> io::Result<(Self, Waker)> {
        match config.backend {
            BackendChoice::Poll => Self::poll(config, listeners),
            #[cfg(target_os = "linux")]
            BackendChoice::Uring | BackendChoice::Auto => match Ring::new(config, listeners) {
                Ok((ring, waker)) => Ok((Self::Ring(ring), Waker::Ring(waker))),
                Err((error, _)) if config.backend == BackendChoice::Uring => Err(error.into()),
                Err((error, listeners)) => {
                    report(&error);
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

    fn poll(config: &EngineConfig, listeners: Vec<Listener>) -> io::Result<(Self, Waker)> {
        let (poll, waker) = Poll::new(config, listeners)?;
        Ok((Self::Poll(poll), Waker::Poll(waker)))
    }

    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Poll(poll) => Some(poll.descriptor()),
            #[cfg(target_os = "linux")]
            Self::Ring(_) => None,
        }
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
    let config = EngineConfig::default().with_backend(BackendChoice::Uring);
    AnyBackend::<io::Cursor<Vec<u8>>>::new(&config, Vec::new()).map(drop)
}

/// Logs once per process why its loops run without a ring.
#[cfg(target_os = "linux")]
fn report(error: &RingUnavailable) {
    static REPORTED: std::sync::Once = std::sync::Once::new();
    REPORTED.call_once(|| tracing::warn!("{error}. Serving by readiness (epoll) instead"));
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

    fn execute_commands(&mut self, app: &mut A, io: &mut Io) {
        each!(self, one => one.execute_commands(app, io))
    }

    fn watch_datagrams(&mut self, index: usize, socket: &DatagramSocket) -> io::Result<()> {
        each!(self, one => Backend::<A>::watch_datagrams(one, index, socket))
    }

    fn unwatch_datagrams(&mut self, index: usize, socket: &DatagramSocket) {
        each!(self, one => Backend::<A>::unwatch_datagrams(one, index, socket));
    }

    fn flush(&mut self) -> io::Result<()> {
        each!(self, one => Backend::<A>::flush(one))
    }
}
