//! Binding, threads, stopping.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use sinews_engine::{self as engine, BackendChoice, Engine, Listener, Post};

use crate::appends::{Appender, Queue};
use crate::client::TrustedProxies;
use crate::http::HttpConfig;
use crate::inherit::{Doors, Listeners};
use crate::limits::{Gate, Limits};
use crate::listen::{Expects, Listen, Place, SocketFile};
use crate::mail::{Mail, Stop, StopLevel};
use crate::metrics::{Counters, Monitor, Sources};
use crate::pool::{BlockingConfig, BlockingPool};
use crate::router::Router;
use crate::shard::{Shard, ShardParts, StopTimes};
use crate::tasks::Tasks;
use crate::tls::TlsConfig;
use crate::topics::{Directory, Publisher, Rules, TopicConfig, TopicRule, Topics};

/// A server that is not bound yet.
///
/// ```
/// use sinews_server::{Response, Router, Server};
///
/// let router = Router::new().get("/", |_| Response::text("hello\n"));
/// let server = Server::new(router).listen("127.0.0.1:0".parse()?).threads(1).bind()?;
/// let stop = server.stop_handle();
/// println!("listening on {}", server.addresses()[0]);
/// stop.stop();
/// server.run()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Server {
    router: Router,
    listens: Vec<Listen>,
    threads: usize,
    http: HttpConfig,
    engine: engine::Config,
    stop_times: StopTimes,
    topics: TopicConfig,
    rules: Vec<TopicRule>,
    limits: Limits,
    blocking: BlockingConfig,
    proxies: TrustedProxies,
    inherited: Listeners,
}

impl Server {
    /// A server of these routes.
    #[must_use]
    pub fn new(router: Router) -> Self {
        Self {
            router,
            listens: Vec::new(),
            threads: thread::available_parallelism().map_or(1, NonZeroUsize::get),
            http: HttpConfig::default(),
            engine: engine::Config::default(),
            stop_times: StopTimes::default(),
            topics: TopicConfig::default(),
            rules: Vec::new(),
            limits: Limits::default(),
            blocking: BlockingConfig::default(),
            proxies: TrustedProxies::default(),
            inherited: Listeners::default(),
        }
    }

    /// Adds an address to listen on; port 0 takes a free one.
    #[must_use]
    pub fn listen(self, address: SocketAddr) -> Self {
        self.listen_on(Listen::tcp(address))
    }

    /// Adds a Unix socket to listen at: [`Listen::unix`].
    #[must_use]
    pub fn listen_unix(self, path: impl Into<PathBuf>, mode: u32) -> Self {
        self.listen_on(Listen::unix(path, mode))
    }

    /// Adds an address to listen on for TLS: [`Listen::with_tls`].
    #[must_use]
    pub fn listen_tls(self, address: SocketAddr, tls: TlsConfig) -> Self {
        self.listen_on(Listen::tcp(address).with_tls(tls))
    }

    /// Adds a place to listen at.
    #[must_use]
    pub fn listen_on(mut self, listen: Listen) -> Self {
        self.listens.push(listen);
        self
    }

    /// How many threads serve, each with listeners of its own. Default: one for each processor.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// How many threads will serve.
    #[must_use]
    pub fn thread_count(&self) -> usize {
        self.threads
    }

    /// Limits and waits of plain HTTP.
    #[must_use]
    pub fn http(mut self, http: HttpConfig) -> Self {
        self.http = http;
        self
    }

    /// Settings of the event loops, the backend among them.
    #[must_use]
    pub fn engine(mut self, engine: engine::Config) -> Self {
        self.engine = engine;
        self
    }

    /// How much a thread publishes at a time, and how much may wait.
    #[must_use]
    pub fn topics(mut self, topics: TopicConfig) -> Self {
        self.topics = topics;
        self
    }

    /// Adds a rule for topics. Of those that match a topic the one that was added first holds, and it alone.
    /// Default: none.
    #[must_use]
    pub fn topic_rule(mut self, rule: TopicRule) -> Self {
        self.rules.push(rule);
        self
    }

    /// How much the server takes on in all. Default: what each connection's limits allow.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How much work of [`Answer::blocking`](crate::Answer::blocking) is done at a time, and how much may wait. One
    /// pool serves all threads; it starts none before there is work.
    #[must_use]
    pub fn blocking(mut self, blocking: BlockingConfig) -> Self {
        self.blocking = blocking;
        self
    }

    /// Proxies that are believed when they say who their client is: [`Request::client`](crate::Request::client).
    /// Default: none. Their connections are many clients', so
    /// [`Limits::with_max_connections_per_address`](crate::Limits::with_max_connections_per_address) passes them over.
    #[must_use]
    pub fn trusted_proxies(mut self, proxies: TrustedProxies) -> Self {
        self.proxies = proxies;
        self
    }

    /// How long a graceful stop goes on as before, but for [`Monitor::ready`] and [`Router::readyz`], so that whatever
    /// sends clients here can notice before nobody is accepted any more. Default: zero, since it helps only where
    /// something asks; there, two of its intervals.
    #[must_use]
    pub fn stop_delay(mut self, delay: Duration) -> Self {
        self.stop_times.delay = delay;
        self
    }

    /// Over how long a time a graceful stop spreads the Close with 1001 that every WebSocket gets, so that those who
    /// come back to another server do not come all at once. Until its turn each is served as before. Default 5 s. A
    /// thread tells 64 clients every 20 ms at least, so that one with few does not use up the time; with 100,000,
    /// five seconds are 20,000 a second.
    #[must_use]
    pub fn drain_window(mut self, window: Duration) -> Self {
        self.stop_times.window = window;
        self
    }

    /// How long a graceful stop waits for clients to answer their Close, counted from when the last one was told.
    /// Default 10 s. Then those who are left are closed.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.stop_times.grace = grace;
        self
    }

    /// Listens with sockets of another server, which this one is to take the place of, where it was told to listen at
    /// their addresses. Every one of them is served, whatever the number of threads is here and was there. What it was
    /// not told to listen at is closed when it [runs](BoundServer::run), and binding changes nothing for the other one.
    /// Default: none.
    #[must_use]
    pub fn inherit(mut self, listeners: Listeners) -> Self {
        self.inherited = listeners;
        self
    }

    /// Binds every address.
    ///
    /// # Errors
    /// [`BindError`] names the address or the setting at fault, or says that a loop could not be made.
    pub fn bind(mut self) -> Result<BoundServer, BindError> {
        self.check()?;
        let Entrances { addresses, files, by_thread, doors } = self.enter()?;
        let mut expects: Vec<Arc<[Expects]>> = Vec::new();
        let mut make = |entrances: Vec<(Listener, Expects)>| {
            let (listeners, expected): (_, Vec<Expects>) = entrances.into_iter().unzip();
            expects.push(expected.into());
            Engine::new(self.engine.clone(), listeners)
        };
        let engines: Vec<Engine<Shard>> = by_thread
            .into_iter()
            .map(&mut make)
            .collect::<io::Result<_>>()
            .map_err(|error| BindError { fault: Fault::Loop, error })?;
        check_backends(&engines, !files.is_empty())?;
        let posts: Arc<[Post<Mail>]> = engines.iter().map(Engine::post).collect();
        let history = self.topics.max_history_bytes;
        let directory = Directory::with_history(engines.len(), Rules::new(self.rules), history);
        let (router, http, stop) = (Arc::new(self.router), Arc::new(self.http), Arc::default());
        let monitor = router.monitor();
        let counted: Vec<_> = engines.iter().map(|engine| (Arc::default(), engine.watch())).collect();
        let counters: Vec<Arc<Counters>> = counted.iter().map(|(counters, _)| Arc::clone(counters)).collect();
        let proxies = Arc::new(self.proxies);
        let gate = Arc::new(Gate::new(self.limits, Arc::clone(&proxies), counters.clone()));
        monitor.attach(Sources {
            shards: counted,
            stop: Arc::clone(&stop),
            gate: Arc::clone(&gate),
            directory: Arc::clone(&directory),
        });
        let pool = BlockingPool::new(self.blocking);
        let shards = engines
            .into_iter()
            .zip(counters)
            .zip(expects)
            .enumerate()
            .map(|(at, ((engine, counters), expects))| {
                let topics = Topics::new(at, self.topics, Arc::clone(&directory), Arc::clone(&posts));
                let (router, http, stop) = (Arc::clone(&router), Arc::clone(&http), Arc::clone(&stop));
                let (stop_times, gate) = (self.stop_times, Arc::clone(&gate));
                let proxies = Arc::clone(&proxies);
                let tasks = Tasks::new(engine.post(), pool.clone());
                let appends = Queue::new(engine.post());
                let parts = ShardParts {
                    router,
                    http,
                    stop_times,
                    stop,
                    topics,
                    counters,
                    gate,
                    expects,
                    proxies,
                    tasks,
                    appends,
                    number: at,
                };
                (engine, parts)
            })
            .collect();
        let publisher = Publisher::new(directory, Arc::clone(&posts));
        let stop = StopHandle { level: stop, posts, doors: Arc::new(doors) };
        let unused = self.inherited;
        Ok(BoundServer { addresses, files, unused, shards, publisher, monitor, pool, stop })
    }
}

/// Where clients come in.
struct Entrances {
    addresses: Vec<SocketAddr>,
    files: Vec<SocketFile>,
    by_thread: Vec<Vec<(Listener, Expects)>>,
    doors: Doors,
}

impl Server {
    /// Binds every address, for every thread.
    fn enter(&mut self) -> Result<Entrances, BindError> {
        let (mut addresses, mut files, mut kept) = (Vec::new(), Vec::new(), Listeners::default());
        let mut by_thread: Vec<Vec<(Listener, Expects)>> = (0..self.threads).map(|_| Vec::new()).collect();
        for Listen { place, expects } in std::mem::take(&mut self.listens) {
            let bound = place.bind(self.threads, self.inherited.take(&place));
            let bound = bound.and_then(|bound| {
                kept.add(
                    &place,
                    if bound.file.is_some() { &bound.listeners[..1] } else { &bound.listeners },
                )?;
                Ok(bound)
            });
            let bound = bound.map_err(|error| BindError { fault: Fault::Place(place), error })?;
            addresses.extend(bound.address);
            files.extend(bound.file);
            for (at, listener) in bound.listeners.into_iter().enumerate() {
                by_thread[at % self.threads].push((listener, expects.clone()));
            }
        }
        Ok(Entrances { addresses, files, by_thread, doors: Doors::new(kept) })
    }

    fn check(&self) -> Result<(), BindError> {
        if self.listens.is_empty() {
            return Err(BindError::invalid(
                "no address to listen on: `Server::listen` was not called".to_owned(),
            ));
        }
        self.http.check().map_err(|fault| BindError::invalid(format!("`HttpConfig`: {fault}")))?;
        self.limits.check().map_err(|fault| BindError::invalid(format!("`Limits`: {fault}")))?;
        self.blocking.check().map_err(|fault| BindError::invalid(format!("`BlockingConfig`: {fault}")))?;
        self.topics.check().map_err(|fault| BindError::invalid(format!("`TopicConfig`: {fault}")))?;
        Rules::check(&self.rules)
            .map_err(|(pattern, fault)| BindError::invalid(format!("`TopicRule` of {pattern:?}: {fault}")))?;
        let messages = self.listens.iter().filter_map(|listen| listen.expects.messages.as_ref());
        for route in messages {
            route.check().map_err(|fault| BindError::invalid(format!("`MessageRoute`: {fault}")))?;
        }
        let invalid = |(path, fault)| BindError::invalid(format!("`Config` of the route {path}: {fault}"));
        self.router.check().map_err(invalid)
    }
}

/// Threads share the socket of a path, and with it whether accepting waits: a ring wants that it does, a loop by
/// readiness that it does not.
fn check_backends(engines: &[Engine<Shard>], shares_sockets: bool) -> Result<(), BindError> {
    let mut backends = engines.iter().map(Engine::backend);
    let first = backends.next();
    if shares_sockets && backends.any(|backend| Some(backend) != first) {
        let what = "io_uring was permitted to some threads only, which cannot share a Unix socket: choose \
                    `BackendChoice::Poll`";
        return Err(BindError::invalid(what.to_owned()));
    }
    Ok(())
}

/// A server whose addresses are bound; connections wait until it runs.
pub struct BoundServer {
    addresses: Vec<SocketAddr>,
    /// Of Unix sockets, while the server is there.
    files: Vec<SocketFile>,
    /// Sockets of another server that this one does not listen with.
    unused: Listeners,
    shards: Vec<(Engine<Shard>, ShardParts)>,
    publisher: Publisher,
    monitor: Monitor,
    pool: BlockingPool,
    stop: StopHandle,
}

impl BoundServer {
    /// What the event loops came to run on: the choice of [`Server::engine`], or what it fell back on.
    #[must_use]
    pub fn backend(&self) -> BackendChoice {
        self.shards.first().map_or(BackendChoice::Auto, |(engine, _)| engine.backend())
    }

    /// The TCP addresses, with the ports that were taken.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// A handle that stops the server from any thread.
    #[must_use]
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// A handle that has the threads append to files, from any thread; none where they cannot, since they run by
    /// readiness, in which files have no part.
    #[must_use]
    pub fn appender(&self) -> Option<Appender> {
        let all = self.shards.iter().all(|(engine, _)| engine.backend() == BackendChoice::Uring);
        all.then(|| Appender::new(self.shards.iter().map(|(_, parts)| Arc::clone(&parts.appends))))
    }

    /// A handle that publishes from any thread.
    #[must_use]
    pub fn publisher(&self) -> Publisher {
        self.publisher.clone()
    }

    /// Reads the server's metrics from any thread.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        self.monitor.clone()
    }

    /// Serves until stopped, on threads of its own. Work that blocks and is still running then is not waited for.
    ///
    /// # Errors
    /// If a thread cannot be started or its loop cannot go on; the others are stopped then.
    ///
    /// # Panics
    /// With the panic of a handler, after the other threads have been stopped in order: a server with
    /// one thread missing would look alive and answer some clients never.
    pub fn run(self) -> io::Result<()> {
        self.run_with(|| {})
    }

    /// As [`run`](Self::run), and calls `serving` when every thread has been started, so that whoever waits for this
    /// server can be told.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Panics
    /// As [`run`](Self::run).
    pub fn run_with(self, serving: impl FnOnce()) -> io::Result<()> {
        let stop = self.stop;
        let mut files = self.files;
        files.iter_mut().for_each(SocketFile::own);
        self.unused.close();
        let mut threads = Vec::new();
        let mut result = Ok(());
        for (at, (mut engine, parts)) in self.shards.into_iter().enumerate() {
            let on_error = stop.clone();
            let spawned = thread::Builder::new().name(format!("sinews-{at}")).spawn(move || {
                let _guard = StopOnPanic(on_error.clone());
                let mut shard = Shard::new(parts);
                engine.run(&mut shard).inspect_err(|_| on_error.stop())
            });
            match spawned {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    stop.stop();
                    result = Err(error);
                    break;
                }
            }
        }
        let _closed = CloseOnDrop(self.pool);
        if result.is_ok() {
            serving();
        }
        for thread in threads {
            let ended = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result = result.and(ended);
        }
        stop.doors.close();
        if stop.doors.are_handed_over() {
            files.iter_mut().for_each(SocketFile::disown);
        }
        result
    }
}

/// Closes the pool when the last thread has ended, or one of them panicked.
struct CloseOnDrop(BlockingPool);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Stops all threads when one panics.
struct StopOnPanic(StopHandle);

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.stop();
        }
    }
}

impl fmt::Debug for BoundServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundServer").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// Stops a server from any thread.
#[derive(Clone, Debug)]
pub struct StopHandle {
    level: Arc<StopLevel>,
    posts: Arc<[Post<Mail>]>,
    doors: Arc<Doors>,
}

impl StopHandle {
    /// Stops gracefully: [`Router::readyz`] says so, and after [`Server::stop_delay`] no connection is accepted any
    /// more; each WebSocket gets a Close with 1001 within [`Server::drain_window`], each request under way its
    /// answer; then [`Server::grace`] bounds the wait for the peers. A second call changes nothing.
    pub fn stop(&self) {
        self.doors.close();
        self.raise(Stop::InOrder);
    }

    /// Stops gracefully, since another process serves the same [listeners](Self::listeners) now. As [`stop`](Self::stop),
    /// but nobody is to notice: it begins at once and stays ready; a connection that is kept alive may ask once more
    /// within [`Server::drain_window`], and one that has not asked for anything as long as
    /// [`HttpConfig::with_head_timeout`](crate::HttpConfig::with_head_timeout) and [`Server::grace`] let it; the answer
    /// says that it was the last (`Connection: close`, RFC 9112 section 9.6). The files of Unix sockets stay.
    pub fn hand_over(&self) {
        self.doors.hand_over();
        self.raise(Stop::HandedOver);
    }

    /// The server's listening sockets, for a process that is to take its place ([`Server::inherit`]); none when the
    /// server has begun to stop. They stay open as long as these are there.
    ///
    /// # Errors
    /// If descriptors run out.
    pub fn listeners(&self) -> io::Result<Listeners> {
        self.doors.try_clone()
    }

    /// Stops at once.
    pub fn stop_now(&self) {
        self.doors.close();
        self.raise(Stop::Now);
    }

    fn raise(&self, to: Stop) {
        self.level.raise(to);
        self.posts.iter().for_each(Post::wake);
    }
}

/// An address could not be bound, a loop could not be made, or a setting makes no sense.
#[derive(Debug)]
pub struct BindError {
    fault: Fault,
    error: io::Error,
}

#[derive(Debug)]
enum Fault {
    Place(Place),
    Loop,
    Setting,
}

impl BindError {
    fn invalid(what: String) -> Self {
        Self { fault: Fault::Setting, error: io::Error::new(io::ErrorKind::InvalidInput, what) }
    }

    /// The address, if one is at fault.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match self.fault {
            Fault::Place(Place::Tcp(address)) => Some(address),
            Fault::Place(Place::Unix { .. }) | Fault::Loop | Fault::Setting => None,
        }
    }

    /// The path of the Unix socket, if one is at fault.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match &self.fault {
            Fault::Place(Place::Unix { path, .. }) => Some(path),
            Fault::Place(Place::Tcp(_)) | Fault::Loop | Fault::Setting => None,
        }
    }

    /// What the system said; [`InvalidInput`](io::ErrorKind::InvalidInput) of a setting.
    #[must_use]
    pub fn io_error(&self) -> &io::Error {
        &self.error
    }
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.fault {
            Fault::Place(Place::Tcp(address)) => write!(f, "cannot listen on {address}: {}", self.error),
            Fault::Place(Place::Unix { path, .. }) => {
                write!(f, "cannot listen at {}: {}", path.display(), self.error)
            }
            Fault::Loop => write!(f, "cannot start an event loop: {}", self.error),
            Fault::Setting => write!(f, "cannot serve: {}", self.error),
        }
    }
}

impl std::error::Error for BindError {
    /// The cause behind the one that [`Display`](fmt::Display) has named already.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}
