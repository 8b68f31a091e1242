//! The loop: turns of waiting, delivering, and executing commands.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::any_backend::AnyBackend;
use crate::backend::Backend;
use crate::config::BackendChoice;
use crate::mail::MailInbox;
use crate::{App, DatagramSocket, EngineConfig, Io, Listener, Post, Stats, StatsReader};

/// The next turn of a loop that another loop embeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "the other loop must handle each")]
pub enum NextTurn {
    /// Now: the last turn has left work.
    Now,
    /// When the [descriptor](Engine::descriptor) is readable, or after this time; `None`: without limit.
    Readable(Option<Duration>),
}

/// One loop: its sockets, timers and mailbox. It may be created on one thread and run on another; the
/// thread of the first turn must run all turns.
pub struct Engine<A: App> {
    io: Io,
    backend: AnyBackend<A::Chain>,
    inbox: MailInbox<A::Mail>,
    /// [`App::started`] has been called.
    begun: bool,
    /// A turn has begun and not ended. If it stays `true`, a callback has panicked, and the rest of its
    /// events are lost.
    in_turn: bool,
}

impl<A: App> std::fmt::Debug for Engine<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("io", &self.io).finish_non_exhaustive()
    }
}

impl<A: App> Engine<A> {
    /// Creates a loop that accepts from `listeners`. Without listeners it runs for the connections that its
    /// application makes from [`App::started`] on, or [`until stopped`](Io::run_until_stopped).
    ///
    /// # Errors
    ///
    /// Errors of the system, when it cannot create the poller or register the listeners.
    /// [`Unsupported`](io::ErrorKind::Unsupported) when a ring was requested and is refused; the text names
    /// the cause and the remedy.
    pub fn new(config: EngineConfig, listeners: Vec<Listener>) -> io::Result<Self> {
        let mut io = Io::new(!listeners.is_empty());
        let (backend, waker) = AnyBackend::new(&config, listeners)?;
        io.appends_files = backend.choice() == BackendChoice::Uring;
        Ok(Self { io, backend, inbox: MailInbox::new(waker, config.mailbox), begun: false, in_turn: false })
    }

    /// Adds a datagram socket, which [`App::datagrams`] reads. Returns its index: sockets are counted from 0. The loop
    /// continues until [`Io::close_datagrams`] or [`Io::stop`].
    ///
    /// # Errors
    ///
    /// Errors of the system, when it cannot watch the socket.
    pub fn add_datagrams(&mut self, socket: DatagramSocket) -> io::Result<usize> {
        let index = self.io.datagrams.len();
        Backend::<A>::watch_datagrams(&mut self.backend, index, &socket)?;
        self.io.datagrams.add(Some(socket));
        Ok(index)
    }

    /// Adds an index for a datagram socket that [`Io::open_datagrams`] opens later.
    pub fn reserve_datagrams(&mut self) -> usize {
        self.io.datagrams.add(None);
        self.io.datagrams.len() - 1
    }

    /// The active backend: the configured one, or its fallback.
    pub fn backend(&self) -> BackendChoice {
        self.backend.choice()
    }

    /// A handle for posting mail to this loop from other threads.
    pub fn post(&self) -> Post<A::Mail> {
        self.inbox.post()
    }

    /// Counters since the creation of the loop. From within a callback: [`Io::stats`].
    pub fn stats(&self) -> Stats {
        self.io.stats()
    }

    /// A handle for reading the counters from other threads while the loop runs.
    pub fn stats_reader(&self) -> StatsReader {
        StatsReader::new(&self.io.stats)
    }

    /// Runs until [`Io::stop`], or until no listener accepts and no connection is left. All accepted and
    /// outgoing connections are [`closed`](App::closed) by then.
    ///
    /// # Errors
    ///
    /// Only if waiting for the kernel fails, or a callback panicked in an earlier turn and the panic was
    /// caught. No connection, peer or shortage ends the loop, except a kernel shortage of memory for a
    /// ring's completions (EBADR).
    pub fn run(&mut self, app: &mut A) -> io::Result<()> {
        self.begin(app);
        while !self.io.finished() {
            self.one_turn(app, None)?;
        }
        Backend::<A>::flush(&mut self.backend)
    }

    /// Runs one turn of the loop, waiting at most `max_wait` (`None`: without limit). For tests, and for
    /// embedding in another loop. Returns whether the loop must continue to run.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn turn(&mut self, app: &mut A, max_wait: Option<Duration>) -> io::Result<bool> {
        self.one_turn(app, max_wait)?;
        // `run` flushes on entry into the next wait; here the time of the next wait is unknown.
        Backend::<A>::flush(&mut self.backend)?;
        Ok(!self.io.finished())
    }

    /// Prepares to wait in another loop, after a [`turn`](Self::turn) without wait. Mail that arrives from then on makes the
    /// descriptor readable.
    pub fn next_turn(&mut self, app: &A) -> NextTurn {
        let timeout = self.timeout(None);
        if self.has_work(app) || timeout == Some(Duration::ZERO) || !self.inbox.fall_asleep() {
            self.inbox.wake_up();
            return NextTurn::Now;
        }
        NextTurn::Readable(timeout)
    }

    /// Returns the descriptor of the readiness backend, which is readable when a turn has work. `None` on io_uring: only a
    /// wait of the loop itself completes its operations.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.backend.descriptor()
    }

    fn begin(&mut self, app: &mut A) {
        if !std::mem::replace(&mut self.begun, true) {
            self.io.begin();
            app.started(&mut self.io);
        }
    }

    fn one_turn(&mut self, app: &mut A, max_wait: Option<Duration>) -> io::Result<()> {
        if std::mem::replace(&mut self.in_turn, true) {
            return Err(io::Error::other("a callback panicked in an earlier turn of this engine"));
        }
        self.begin(app);
        self.wait(app, max_wait).inspect_err(|_| self.in_turn = false)?;
        self.io.begin_turn();
        self.backend.deliver(app, &mut self.io);
        if self.io.datagrams.len() > 0 {
            self.deliver_datagrams(app);
        }
        if let Some(mut burst) = self.inbox.take() {
            app.mail(&mut self.io, &mut burst);
            self.inbox.finish(burst);
        }
        while let Some(conn) = self.io.take_due() {
            app.timer(&mut self.io, conn);
        }
        if self.io.take_app_due() {
            app.app_timer(&mut self.io);
        }
        if self.io.take_batch_due() {
            app.batch_timer(&mut self.io);
        }
        if self.io.take_datagram_due() {
            app.datagram_timer(&mut self.io);
        }
        if app.pending_sends() >= GATHER_MIN {
            self.gather(app).inspect_err(|_| self.in_turn = false)?;
        }
        self.send_step(app);
        while app.continues_turn() {
            self.gather(app).inspect_err(|_| self.in_turn = false)?;
            self.send_step(app);
        }
        self.in_turn = false;
        Ok(())
    }

    /// Executes the commands of the turn so far.
    fn send_step(&mut self, app: &mut A) {
        app.end_turn(&mut self.io);
        self.io.close_all_if_stopping();
        self.backend.execute_commands(app, &mut self.io);
        if self.io.datagrams.are_changing() {
            self.change_datagrams();
        }
    }

    /// Watches datagram sockets that were opened, and closes those that are to be closed.
    #[cold]
    fn change_datagrams(&mut self) {
        for index in self.io.datagrams.take_opened() {
            if let Some(socket) = self.io.datagrams.get(index)
                && let Err(error) = Backend::<A>::watch_datagrams(&mut self.backend, index, socket)
            {
                tracing::error!(%error, "cannot watch a datagram socket");
            }
        }
        for (index, socket) in self.io.datagrams.take_closed() {
            Backend::<A>::unwatch_datagrams(&mut self.backend, index, &socket);
        }
    }

    /// Passes readable datagram sockets to the application.
    fn deliver_datagrams(&mut self, app: &mut A) {
        let mut next = 0;
        while let Some((index, mut socket)) = self.io.datagrams.take_ready(next) {
            next = index + 1;
            let has_more = app.datagrams(&mut self.io, index, &mut socket);
            self.io.datagrams.put_back(index, socket, has_more);
        }
    }

    /// Delivers the input that has arrived during this turn.
    fn gather(&mut self, app: &mut A) -> io::Result<()> {
        self.backend_wait(Some(Duration::ZERO))?;
        self.backend.deliver(app, &mut self.io);
        Ok(())
    }

    fn wait(&mut self, app: &A, max_wait: Option<Duration>) -> io::Result<()> {
        self.io.end_turn();
        // Before other threads may see that the loop sleeps, or they would wake a ring that cannot be woken
        // yet.
        Backend::<A>::start(&mut self.backend)?;
        let timeout = if self.has_work(app) { Some(Duration::ZERO) } else { self.timeout(max_wait) };
        if timeout == Some(Duration::ZERO) || !self.inbox.fall_asleep() {
            let result = self.backend_wait(Some(Duration::ZERO));
            self.inbox.wake_up();
            return result;
        }
        let result = self.backend_wait(timeout);
        self.inbox.wake_up();
        result
    }

    fn has_work(&self, app: &A) -> bool {
        let commands = self.io.has_commands() || app.pending_sends() > 0;
        commands || self.backend.has_work(app, &self.io)
    }

    /// The earliest of: the caller's bound, the next timer, the backend's own deadline.
    fn timeout(&self, max_wait: Option<Duration>) -> Option<Duration> {
        let backend = Backend::<A>::until_next_work(&self.backend, &self.io);
        [max_wait, self.io.until_next_timer(), backend].into_iter().flatten().min()
    }

    fn backend_wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        Backend::<A>::wait(&mut self.backend, timeout)
    }
}

/// Minimum pending sends for one more look at the sockets before them: it costs one system call, as much as a fraction
/// of a send.
const GATHER_MIN: usize = 16;
