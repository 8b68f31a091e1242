//! A server inside of another event loop.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::{Wake, Waker};

use sinews_engine::{Engine, NextTurn, Post};

use crate::topics::mail::Mail;
use crate::worker::{Worker, WorkerSetup};

/// A server that runs on the thread of another event loop, such as that of an interpreter: one worker on the readiness
/// backend. [`BoundServer::embed`](crate::BoundServer::embed) creates it.
///
/// The other loop calls [`turn`](Self::turn) until [`next_turn`](Self::next_turn) says when to continue, and then waits
/// for the [descriptor](Self::descriptor) or for the time, whichever comes first.
///
/// ```
/// use sinews_server::{BackendChoice, EngineConfig, NextTurn, Response, Router, Server};
///
/// let router = Router::new().get("/", |_| Response::text("hello\n"));
/// let engine = EngineConfig::default().with_backend(BackendChoice::Poll);
/// let server = Server::new(router).listen("127.0.0.1:0".parse()?).threads(1).engine(engine).bind()?;
/// let stop = server.stop_handle();
/// let mut embedded = server.embed()?;
/// stop.stop();
/// while embedded.turn()? {
///     if let NextTurn::Readable(_time) = embedded.next_turn() {
///         // The other loop watches `embedded.descriptor()`.
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct EmbeddedServer {
    engine: Engine<Worker>,
    worker: Worker,
    /// Frees what the server shares with other threads.
    end: Option<Box<dyn FnOnce()>>,
}

impl fmt::Debug for EmbeddedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedServer").field("engine", &self.engine).finish_non_exhaustive()
    }
}

impl EmbeddedServer {
    /// `end` runs when the server is dropped.
    pub(super) fn new(engine: Engine<Worker>, setup: WorkerSetup, end: impl FnOnce() + 'static) -> Self {
        Self { engine, worker: Worker::new(setup), end: Some(Box::new(end)) }
    }

    /// Handles what has arrived, without waiting. Returns whether the server continues: `false` after a stop, when all
    /// connections are closed.
    ///
    /// # Errors
    /// The kernel cannot be asked for events, or a handler has panicked in an earlier turn.
    pub fn turn(&mut self) -> io::Result<bool> {
        self.engine.turn(&mut self.worker, Some(std::time::Duration::ZERO))
    }

    /// Returns when to call [`turn`](Self::turn) next. Publications and wakes from then on make the descriptor readable.
    pub fn next_turn(&mut self) -> NextTurn {
        self.engine.next_turn(&self.worker)
    }

    /// Returns a waker that makes the descriptor readable, from any thread: for futures that the other loop polls.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker::from(Arc::new(LoopWaker(self.engine.post())))
    }

    /// Returns the descriptor to watch for reading.
    ///
    /// # Panics
    /// Never: the backend was checked.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.engine.descriptor().expect("the readiness backend has a descriptor")
    }
}

struct LoopWaker(Post<Mail>);

impl Wake for LoopWaker {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }
}

impl Drop for EmbeddedServer {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            end();
        }
    }
}
