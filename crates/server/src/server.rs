//! Server configuration, bind, threads and stop.

mod bind_error;
mod bound;
mod embedded;
mod keyed;
mod late;
mod quic;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sinews_engine::{self as engine, BackendChoice, Engine, Post};
use sinews_proto::Time;

pub use self::bind_error::BindError;
use self::bind_error::BindFault;
use self::bound::{BoundListeners, ThreadLoop, check_backends, start_loops};
pub use self::embedded::EmbeddedServer;
use self::keyed::KeyedSetup;
use self::late::LateSockets;
use crate::appends::{AppendQueue, Appender};
use crate::client::TrustedProxies;
use crate::date::Date;
use crate::http::HttpConfig;
use crate::inherit::{ListenerFds, Listeners};
use crate::limits::{Gate, Limits};
use crate::listen::{Listen, SocketFile};
use crate::metrics::ShardCounters;
use crate::monitor::{Monitor, Sources};
use crate::pool::{BlockingConfig, BlockingPool};
use crate::router::Router;
use crate::shared::Services;
use crate::tasks::Tasks;
use crate::tls::TlsConfig;
use crate::topics::mail::{Mail, Stop, StopLevel};
use crate::topics::{
    Directory, EncodeUpdate, PresenceInterval, PresenceIntervals, PresenceMessage, PresenceTable,
    PresenceUpdate, Publisher, TopicConfig, TopicRule, TopicRules, Topics,
};
use crate::worker::{QuicRouting, StopTimes, Worker, WorkerSetup};

/// Configuration for a server that is not bound yet.
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
    engine: engine::EngineConfig,
    stop_times: StopTimes,
    topics: TopicConfig,
    rules: Vec<TopicRule>,
    presence: Option<EncodeUpdate>,
    presence_intervals: PresenceIntervals,
    keyed: KeyedSetup,
    limits: Limits,
    blocking: BlockingConfig,
    proxies: TrustedProxies,
    inherited: Listeners,
}

impl Server {
    /// Creates a server with these routes.
    #[must_use]
    pub fn new(router: Router) -> Self {
        Self {
            router,
            listens: Vec::new(),
            threads: thread::available_parallelism().map_or(1, NonZeroUsize::get),
            http: HttpConfig::default(),
            engine: engine::EngineConfig::default(),
            stop_times: StopTimes::default(),
            topics: TopicConfig::default(),
            rules: Vec::new(),
            presence: None,
            presence_intervals: PresenceIntervals::default(),
            keyed: KeyedSetup::default(),
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

    /// Adds a Unix socket to listen on: [`Listen::unix`].
    #[must_use]
    pub fn listen_unix(self, path: impl Into<PathBuf>, mode: u32) -> Self {
        self.listen_on(Listen::unix(path, mode))
    }

    /// Adds an address to listen on for TLS: [`Listen::with_tls`].
    #[must_use]
    pub fn listen_tls(self, address: SocketAddr, tls: TlsConfig) -> Self {
        self.listen_on(Listen::tcp(address).with_tls(tls))
    }

    /// Adds a listen address with its protocol.
    #[must_use]
    pub fn listen_on(mut self, listen: Listen) -> Self {
        self.listens.push(listen);
        self
    }

    /// Sets the thread count; each thread has its own listeners. Default: one for each processor.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Returns the thread count.
    #[must_use]
    pub fn thread_count(&self) -> usize {
        self.threads
    }

    /// Sets limits and timeouts for plain HTTP.
    #[must_use]
    pub fn http(mut self, http: HttpConfig) -> Self {
        self.http = http;
        self
    }

    /// Configures the event loops, including the backend.
    #[must_use]
    pub fn engine(mut self, engine: engine::EngineConfig) -> Self {
        self.engine = engine;
        self
    }

    /// Sets a thread's publication budget, and the limits for queued publications and history.
    #[must_use]
    pub fn topics(mut self, topics: TopicConfig) -> Self {
        self.topics = topics;
        self
    }

    /// Sets the presence update encoder: the messages to all watchers of a topic
    /// ([`Context::watch_presence`](crate::Context::watch_presence)), or `None` to send nothing. It runs once for each
    /// update, on any thread, and must not block. Default: none, and presence cannot be watched.
    ///
    /// ```
    /// use sinews_server::{Prepared, Router, Server};
    ///
    /// let _server = Server::new(Router::new()).presence(|update| {
    ///     let left: Vec<&str> = update.left().collect();
    ///     Some(Prepared::text(format!("{} in {}; left: {left:?}", update.count().members, update.topic())))
    /// });
    /// ```
    #[must_use]
    pub fn presence<M>(mut self, encode: impl Fn(&PresenceUpdate) -> M + Send + Sync + 'static) -> Self
    where
        M: IntoIterator<Item: Into<PresenceMessage>>,
    {
        self.presence = Some(EncodeUpdate::new(encode));
        self
    }

    /// Sets the interval between a topic's presence updates. The function runs before each update on any thread, and
    /// must not block. Default: [`PresenceInterval::default`] for all topics.
    #[must_use]
    pub fn presence_interval(
        mut self,
        interval: impl Fn(&str) -> PresenceInterval + Send + Sync + 'static,
    ) -> Self {
        self.presence_intervals = PresenceIntervals::new(interval);
        self
    }

    /// Adds a rule for topics. The first rule that matches a topic applies, and only that rule. Default: none.
    #[must_use]
    pub fn topic_rule(mut self, rule: TopicRule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Limits the server as a whole. Default: [`Limits::default`].
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Configures the thread pool for [`Answer::blocking`](crate::Answer::blocking). One pool serves all threads; it
    /// starts threads on demand.
    #[must_use]
    pub fn blocking(mut self, blocking: BlockingConfig) -> Self {
        self.blocking = blocking;
        self
    }

    /// Sets the proxies that may pass their client's address: [`Request::client`](crate::Request::client). Default:
    /// none. Their connections carry many clients, so
    /// [`Limits::with_max_connections_per_address`](crate::Limits::with_max_connections_per_address) does not apply to
    /// them.
    #[must_use]
    pub fn trusted_proxies(mut self, proxies: TrustedProxies) -> Self {
        self.proxies = proxies;
        self
    }

    /// Time to keep serving as before after a graceful stop has started, while [`Monitor::ready`] and
    /// [`Router::readyz`] already fail, so that a load balancer can notice before new connections are rejected.
    /// Default: zero, since it helps only with health checks; use twice their interval.
    #[must_use]
    pub fn readiness_delay(mut self, delay: Duration) -> Self {
        self.stop_times.delay = delay;
        self
    }

    /// Time over which a graceful stop spreads the Close to all WebSockets, so that clients do not
    /// reconnect to another server all at once. Each connection is served until its turn. Default 5 s. A thread
    /// closes at least 64 connections every 20 ms, so that a thread with few does not use up the time; with 100,000
    /// connections, five seconds are 20,000 a second.
    #[must_use]
    pub fn drain_window(mut self, window: Duration) -> Self {
        self.stop_times.window = window;
        self
    }

    /// Time that a graceful stop waits for clients to answer their Close, counted from the last Close. Default 10 s.
    /// Then the remaining connections are closed.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.stop_times.grace = grace;
        self
    }

    /// Takes over another server's listening sockets at this server's listen addresses. Every socket is served,
    /// whatever the thread count of either server. Sockets at other addresses are closed when this server
    /// [runs](BoundServer::run); binding does not affect the predecessor. Default: none.
    #[must_use]
    pub fn inherit(mut self, listeners: Listeners) -> Self {
        self.inherited = listeners;
        self
    }

    /// Binds every address.
    ///
    /// # Errors
    /// [`BindError`] names the address or the setting at fault, or reports that an event loop could not be created.
    pub fn bind(mut self) -> Result<BoundServer, BindError> {
        self.check()?;
        let routing = self.routing()?;
        let BoundListeners { addresses, files, threads, late, listener_fds } =
            self.bind_listeners(&routing)?;
        let loops = start_loops(&self.engine, threads)
            .map_err(|error| BindError { fault: BindFault::Loop, error })?;
        check_backends(&loops, !files.is_empty())?;
        let posts: Arc<[Post<Mail>]> = loops.iter().map(|thread| thread.engine.post()).collect();
        let presence = PresenceTable::new(self.topics.max_presence_bytes, self.presence);
        let presence = presence.with_intervals(self.presence_intervals);
        let keyed = self.keyed.into_table(loops.len(), self.topics.keyed);
        let directory = Directory::with_state(&self.topics, TopicRules::new(self.rules), presence, keyed);
        let (router, http, stop) = (Arc::new(self.router), Arc::new(self.http), Arc::default());
        let monitor = router.monitor();
        let counted: Vec<_> =
            loops.iter().map(|thread| (Arc::default(), thread.engine.stats_reader())).collect();
        let counters: Vec<Arc<ShardCounters>> =
            counted.iter().map(|(counters, _)| Arc::clone(counters)).collect();
        let proxies = Arc::new(self.proxies);
        let gate = Arc::new(Gate::new(self.limits, Arc::clone(&proxies), counters.clone()));
        monitor.attach(Sources {
            shards: counted,
            stop: Arc::clone(&stop),
            gate: Arc::clone(&gate),
            directory: Arc::clone(&directory),
        });
        let (pool, unused) = (BlockingPool::new(self.blocking), self.inherited);
        let workers = loops
            .into_iter()
            .zip(counters)
            .enumerate()
            .map(|(at, (ThreadLoop { engine, protocols, endpoints }, counters))| {
                let topics = Topics::new(at, self.topics, Arc::clone(&directory), Arc::clone(&posts));
                let services = Services {
                    http: Arc::clone(&http),
                    topics,
                    tasks: Tasks::new(engine.post(), pool.clone()),
                    counters,
                    gate: Arc::clone(&gate),
                    proxies: Arc::clone(&proxies),
                    date: Date::default(),
                    now: Time::ZERO,
                    epoch: Instant::now(),
                    stopping_since: None,
                    encrypted: false,
                    tag: 0,
                    http3_port: None,
                };
                let setup = WorkerSetup {
                    router: Arc::clone(&router),
                    services,
                    stop_times: self.stop_times,
                    stop: Arc::clone(&stop),
                    appends: AppendQueue::new(engine.post()),
                    number: at,
                    listener_protocols: protocols,
                    endpoints,
                    routing: Arc::clone(&routing),
                };
                (engine, setup)
            })
            .collect();
        let publisher = Publisher::new(directory, Arc::clone(&posts));
        let late = LateSockets::new(late, &posts, &stop, &routing);
        let stop = StopHandle { level: stop, posts, listener_fds: Arc::new(listener_fds), routing };
        Ok(BoundServer { addresses, files, unused, workers, late, publisher, monitor, pool, stop })
    }
}

impl Server {
    fn check(&self) -> Result<(), BindError> {
        if self.listens.is_empty() {
            return Err(BindError::invalid(
                "no address to listen on: `Server::listen` was not called".to_owned(),
            ));
        }
        self.http.check().map_err(|fault| BindError::invalid(format!("`HttpConfig`: {fault}")))?;
        let http3 = self.http.http3_limits.check();
        http3.map_err(|fault| BindError::invalid(format!("`Http3Limits`: {fault}")))?;
        self.limits.check().map_err(|fault| BindError::invalid(format!("`Limits`: {fault}")))?;
        self.blocking.check().map_err(|fault| BindError::invalid(format!("`BlockingConfig`: {fault}")))?;
        self.topics.check().map_err(|fault| BindError::invalid(format!("`TopicConfig`: {fault}")))?;
        TopicRules::check(&self.rules)
            .map_err(|(pattern, fault)| BindError::invalid(format!("`TopicRule` of {pattern:?}: {fault}")))?;
        let messages = self.listens.iter().filter_map(|listen| listen.protocol.messages.as_ref());
        for route in messages {
            route.check().map_err(|fault| BindError::invalid(format!("`MessageRoute`: {fault}")))?;
        }
        let invalid = |(path, fault)| BindError::invalid(format!("`Config` of the route {path}: {fault}"));
        self.router.check().map_err(invalid)
    }
}

/// Server with bound addresses; connections wait until it runs.
pub struct BoundServer {
    addresses: Vec<SocketAddr>,
    /// Unix socket files, removed at the server's end.
    files: Vec<SocketFile>,
    /// Inherited sockets that this server does not use.
    unused: Listeners,
    workers: Vec<(Engine<Worker>, WorkerSetup)>,
    late: LateSockets,
    publisher: Publisher,
    monitor: Monitor,
    pool: BlockingPool,
    stop: StopHandle,
}

impl BoundServer {
    /// Returns the backend in use: the choice of [`Server::engine`], or its fallback.
    #[must_use]
    pub fn backend(&self) -> BackendChoice {
        self.workers.first().map_or(BackendChoice::Auto, |(engine, _)| engine.backend())
    }

    /// Returns the TCP addresses, with the bound ports.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns a handle that stops the server from any thread.
    #[must_use]
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// Returns a handle that appends to files on the server's threads, from any thread. `None` on the readiness
    /// backend, which has no asynchronous file I/O.
    #[must_use]
    pub fn appender(&self) -> Option<Appender> {
        let all = self.workers.iter().all(|(engine, _)| engine.backend() == BackendChoice::Uring);
        all.then(|| Appender::new(self.workers.iter().map(|(_, setup)| Arc::clone(&setup.appends))))
    }

    /// Returns a handle that publishes from any thread.
    #[must_use]
    pub fn publisher(&self) -> Publisher {
        self.publisher.clone()
    }

    /// Returns a monitor that reads the server's metrics from any thread.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        self.monitor.clone()
    }

    /// Serves on its own threads until stopped. Blocking work that is still running then is not awaited.
    ///
    /// # Errors
    /// If a thread cannot be started or its loop fails; the other threads are stopped then.
    ///
    /// # Panics
    /// If a handler panics, after the other threads have shut down: a server that lacks a thread would look alive and
    /// never answer some clients.
    pub fn run(self) -> io::Result<()> {
        self.run_with(|| {})
    }

    /// Serves as [`run`](Self::run) does, and calls `serving` when every thread has started, for example to notify a
    /// supervisor.
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
        for (at, (mut engine, setup)) in self.workers.into_iter().enumerate() {
            let on_error = stop.clone();
            let spawned = thread::Builder::new().name(format!("sinews-{at}")).spawn(move || {
                let _guard = StopOnPanic(on_error.clone());
                let mut worker = Worker::new(setup);
                engine.run(&mut worker).inspect_err(|_| on_error.stop())
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
        if result.is_ok() {
            result = self.late.start().inspect_err(|_| stop.stop());
        }
        let _closed = CloseOnDrop(self.pool);
        if result.is_ok() {
            serving();
        }
        // Memory from the setup: small allocations by connections would pin it.
        sinews_engine::release_free_memory();
        for thread in threads {
            let ended = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result = result.and(ended);
        }
        stop.end(&mut files);
        result
    }
}

impl BoundServer {
    /// Serves on the calling thread, inside of another event loop.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput): the server has more than one worker ([`Server::threads`]), or its
    /// backend is io_uring, which only its own wait completes. System errors: a thread for datagrams cannot be started.
    pub fn embed(mut self) -> io::Result<EmbeddedServer> {
        let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidInput, text);
        if self.backend() != BackendChoice::Poll {
            return Err(invalid("an embedded server needs the readiness backend: BackendChoice::Poll"));
        }
        let (Some((engine, setup)), None) = (self.workers.pop(), self.workers.pop()) else {
            return Err(invalid("an embedded server has one worker: Server::threads(1)"));
        };
        let (stop, mut files, pool) = (self.stop, self.files, CloseOnDrop(self.pool));
        files.iter_mut().for_each(SocketFile::own);
        self.unused.close();
        self.late.start()?;
        Ok(EmbeddedServer::new(engine, setup, move || {
            stop.end(&mut files);
            drop(pool);
        }))
    }
}

/// Closes the pool when the last thread has ended, or a thread has panicked.
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
    listener_fds: Arc<ListenerFds>,
    routing: Arc<QuicRouting>,
}

impl StopHandle {
    /// The last worker has ended.
    fn end(&self, files: &mut [SocketFile]) {
        self.routing.end();
        self.listener_fds.close();
        if self.listener_fds.is_handed_over() {
            files.iter_mut().for_each(SocketFile::disown);
        }
    }

    /// Stops gracefully. [`Router::readyz`] fails at once. After [`Server::readiness_delay`] no connection is accepted
    /// any more. Each WebSocket gets a Close with 1001 or its [`Handler::stop_code`](crate::Handler::stop_code) within
    /// [`Server::drain_window`], and each pending request its answer. [`Server::grace`] then bounds the wait for the
    /// peers. A second call changes nothing.
    pub fn stop(&self) {
        self.listener_fds.close();
        self.raise(Stop::Graceful);
    }

    /// Stops gracefully after a successor process has taken over the [listeners](Self::listeners). As
    /// [`stop`](Self::stop), but without visible effect for clients: it begins at once and readiness does not fail. A
    /// keep-alive connection may send one more request within [`Server::drain_window`], and a connection without any
    /// request yet within [`HttpConfig::with_head_timeout`](crate::HttpConfig::with_head_timeout) and
    /// [`Server::grace`]; the answer carries `Connection: close` (RFC 9112 section 9.6). Unix socket files stay.
    pub fn hand_over(&self) {
        self.listener_fds.hand_over();
        self.routing.hand_over();
        self.raise(Stop::HandedOver);
    }

    /// Returns the server's listening sockets, for a successor process ([`Server::inherit`]); none after the server has
    /// begun to stop. The sockets stay open as long as the returned value lives. With HTTP/3 one more socket leads to
    /// the successor: each server passes on datagrams for the other one's connections.
    ///
    /// With HTTP/3 a call has effects: it starts a thread, which ends when the other end of this socket closes or this
    /// server ends, and datagrams for a successor take the last call's path from then on. So call this once for each
    /// successor, and drop the value when it has failed.
    ///
    /// # Errors
    /// If descriptors run out, or no thread can be started.
    pub fn listeners(&self) -> io::Result<Listeners> {
        let mut listeners = self.listener_fds.try_clone()?;
        if self.routing.has_listeners() && !listeners.is_empty() {
            listeners.set_datagrams(self.routing.link_successor(&self.posts)?);
        }
        Ok(listeners)
    }

    /// Stops at once.
    pub fn stop_now(&self) {
        self.listener_fds.close();
        self.raise(Stop::Now);
    }

    fn raise(&self, to: Stop) {
        self.level.raise(to);
        self.posts.iter().for_each(Post::wake);
    }
}
