//! A server in the interpreter's loop: HTTP, WebSocket and topics. Events arrive in one list for a turn, and commands
//! leave with the next one.
//!
//! Fan-out stays here: a publication to 10,000 subscribers is one call.

mod connections;
mod hub;
mod requests;
mod topics;

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sinews_cli::{ServeError, ServerConfig, WholeServer};
use sinews_hub::ProgramTopics;
use sinews_proto::Kind;
use sinews_proto::handshake::{OriginPolicy, ServerOptions};
use sinews_server::{
    BackendChoice, BindError, CloseCode, Config, DeflateConfig, EmbeddedServer, EngineConfig, Request,
    Router, Server, StopHandle, WebSocketRoute,
};
pub use sinews_server::{NextTurn, Position, ReplayFrom};

use self::connections::{Command, Connections, Hosted};
use self::hub::HubState;
use self::requests::{PendingRequests, answer};
pub use self::topics::{InvalidArgument, REQUESTS_MAX};
use self::topics::{QueuedMessage, Requests, ServerTopics};

/// The kind of a server's event. For messages and pongs its number is the frame's opcode (RFC 6455 section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(clippy::exhaustive_enums, reason = "an interpreter must handle each")]
pub enum ServerEvent {
    /// A text message.
    Text = 1,
    /// A binary message.
    Binary = 2,
    /// A WebSocket has opened. The payload: its request's target, the client's address, and the request's headers, a line
    /// each.
    Open = 3,
    /// The connection's queue is short again, after a send that asked to slow down.
    Drain = 4,
    /// An HTTP request waits for [`BatchServer::respond`]. Its kind is this number and 256 times the index of its route in
    /// [`ServerSettings::requests`]. The payload: method and target, the client's address, the
    /// headers, a line each; an empty line; the body.
    Request = 5,
    /// The answer to [`BatchServer::history`], under its id. Its kind is this number and 256 times a status, as HTTP's:
    /// 0 with JSON as the payload, another one with the reason of a failure. A failed publication to a stream is such
    /// an event, too, under an id that no call has returned.
    Answer = 7,
    /// The connection has ended. The payload: the close code in two bytes, big-endian, and the reason.
    Close = 8,
    /// A pong.
    Pong = 10,
}

/// What a send has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a sender must handle each")]
pub enum SendResult {
    /// The message leaves with the next turn.
    Queued,
    /// Queued, but the connection's queue is long: wait for [`ServerEvent::Drain`].
    Backpressure,
    /// Not queued: the connection is closed, or its queue is full.
    Dropped,
}

/// A turn's events, connections and requests. The handlers write, the interpreter reads, both on one thread: the lock
/// is never contended.
#[derive(Debug, Default)]
struct Shared {
    events: EventList,
    connections: Connections,
    requests: PendingRequests,
    publications: Publications,
    /// Of the whole server.
    topics: Option<ProgramTopics>,
}

/// Publications since the last turn, in order.
#[derive(Debug, Default)]
struct Publications {
    list: Vec<(String, QueuedMessage)>,
    bytes: usize,
    /// Those to streams.
    durable: usize,
}

type SharedState = Arc<Mutex<Shared>>;

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The events of a turn.
#[derive(Debug, Default)]
struct EventList {
    words: Vec<u32>,
    bytes: Vec<u8>,
    /// Words and bytes that the interpreter has read.
    read: [usize; 2],
}

impl EventList {
    /// Appends an event whose payload is `parts`, one after the other. Returns `false`, without an effect, beyond 4 GiB.
    fn push(&mut self, kind: ServerEvent, id: u32, parts: &[&[u8]]) -> bool {
        self.push_numbered(kind as u32, id, parts)
    }

    fn push_numbered(&mut self, kind: u32, id: u32, parts: &[&[u8]]) -> bool {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let start = u32::try_from(self.bytes.len());
        let (Ok(start), Ok(len), true) =
            (start, u32::try_from(len), self.bytes.len() + len <= u32::MAX as usize)
        else {
            return false;
        };
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.words.extend([kind, id, start, len]);
        true
    }

    /// Whether connections with further messages are not read until the events were read.
    fn is_full(&self) -> bool {
        self.bytes.len() >= EVENT_BYTES_MAX || self.words.len() >= 4 * EVENTS_MAX
    }

    /// Removes the events that were read.
    fn clear(&mut self) {
        let [words, bytes] = std::mem::take(&mut self.read);
        self.words.drain(..words);
        self.bytes.drain(..bytes);
        self.bytes.shrink_to(EVENT_BYTES_KEPT);
        for word in self.words.chunks_exact_mut(4) {
            // Payloads lie in the events' order.
            word[2] -= bytes as u32;
        }
    }
}

/// Options of a [`BatchServer`].
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// The address to listen on. `None`: of the [whole server](Self::whole) the setting `listen`, else a free port of
    /// 127.0.0.1.
    pub address: Option<SocketAddr>,
    /// Serves all of `sinews serve` beside these routes: `/ws`, the HTTP API, streams, tokens and others.
    pub whole: Option<ConfigSource>,
    /// Paths of WebSockets, as routes of [`Router`].
    pub websockets: Vec<String>,
    /// Paths of HTTP requests, as routes of [`Router`].
    pub requests: Vec<String>,
    /// Limits and timeouts of WebSockets.
    pub config: Config,
    /// Compression of messages. `None`: off.
    pub deflate: Option<DeflateConfig>,
    /// Subprotocols, the preferred one first.
    pub subprotocols: Vec<String>,
    /// Origins of pages that may connect. Empty: that of the server's own name. `*`: all.
    pub origins: Vec<String>,
}

/// Where the settings of the whole server are.
#[derive(Clone, Debug)]
#[allow(clippy::exhaustive_enums, reason = "an interpreter has both")]
pub enum ConfigSource {
    /// A configuration file of `sinews serve`.
    File(PathBuf),
    /// Its keys as a JSON object.
    Json(String),
}

/// A bound server on the interpreter's thread.
///
/// The interpreter calls [`turn`](Self::turn) when the [descriptor](Self::descriptor) is readable or the time is over,
/// dispatches the events, and calls [`turn`](Self::turn) again, which sends its handlers' messages, until
/// [`next_turn`](Self::next_turn) names a time.
///
/// ```
/// use sinews_bindings::server::{BatchServer, ServerSettings};
///
/// let settings = ServerSettings { websockets: vec!["/".to_owned()], ..ServerSettings::new(([127, 0, 0, 1], 0).into()) };
/// let mut server = BatchServer::bind(settings)?;
/// server.stop();
/// while server.turn()? {
///     server.clear();
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct BatchServer {
    embedded: EmbeddedServer,
    shared: SharedState,
    topics: ServerTopics,
    requests: Requests,
    /// When requests are given up, once the engine has ended.
    requests_end: Option<Instant>,
    stop: StopHandle,
    address: Option<SocketAddr>,
    /// Dropped after the server.
    hub: HubState,
}

impl ServerSettings {
    /// Settings without routes, with the limits of [`Config::default`].
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address: Some(address),
            whole: None,
            websockets: Vec::new(),
            requests: Vec::new(),
            config: Config::default(),
            deflate: None,
            subprotocols: Vec::new(),
            origins: Vec::new(),
        }
    }

    fn options(&self) -> Result<ServerOptions, String> {
        let mut options = ServerOptions::new();
        for name in &self.subprotocols {
            options = options.with_subprotocol(name).map_err(|fault| format!("subprotocols: {fault}"))?;
        }
        if let Some(deflate) = &self.deflate {
            options = options.with_deflate(deflate.clone());
        }
        let origin = match &self.origins[..] {
            [] => OriginPolicy::same_origin(),
            [all] if all == "*" => OriginPolicy::any(),
            list => OriginPolicy::list(list).map_err(|fault| format!("origins: {fault}"))?,
        };
        Ok(options.with_origin(origin))
    }

    /// Adds the routes to those of the whole server, whose routes at the same paths they replace.
    fn add_routes(&self, mut router: Router, shared: &SharedState) -> Result<Router, String> {
        let options = self.options()?;
        let known: Vec<String> = router.routes().map(|(path, _)| path.to_owned()).collect();
        let mut paths = matchit::Router::new();
        for path in &known {
            check_path(&mut paths, path)?;
        }
        for path in &self.websockets {
            check_path(&mut paths, path)?;
            let shared = Arc::clone(shared);
            let limit = self.config.max_outbound();
            let route = WebSocketRoute::new(move |request| Ok(Hosted::new(&shared, request, limit)))
                .with_options(options.clone())
                // Handlers answer messages before the Close behind these is answered.
                .with_config(self.config.clone().with_answers(false));
            router = router.websocket(path, route);
        }
        for (number, path) in self.requests.iter().enumerate() {
            check_path(&mut paths, path)?;
            let route = number as u32;
            let respond = || {
                let shared = Arc::clone(shared);
                move |request: &mut Request<'_>| answer(&shared, route, request)
            };
            if known.contains(path) {
                router = METHODS.iter().fold(router, |router, method| router.route(*method, path, respond()));
            }
            router = router.any(path, respond());
        }
        Ok(router)
    }
}

/// Methods that the routes of the whole server may have.
const METHODS: [&str; 7] = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"];

/// Checks a path, for which the router would panic. A WebSocket and requests may have the same path.
fn check_path<'a>(paths: &mut matchit::Router<&'a str>, path: &'a str) -> Result<(), String> {
    let known = paths.at(path).is_ok_and(|found| *found.value == path);
    if !path.starts_with('/') {
        return Err(format!("routes: {path:?} must begin with /"));
    }
    if known {
        return Ok(());
    }
    paths.insert(path, path).map_err(|fault| format!("routes: {path:?}: {fault}"))
}

/// Why a server cannot be bound.
#[derive(Debug)]
#[allow(clippy::exhaustive_enums, reason = "an interpreter raises another exception for each")]
pub enum ServerFault {
    /// A setting, with its name.
    Setting(String),
    /// The address, or the system.
    System(String),
}

impl std::fmt::Display for ServerFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Setting(text) | Self::System(text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for ServerFault {}

impl From<ServeError> for ServerFault {
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::Setting(text) => Self::Setting(text),
            error => Self::System(error.to_string()),
        }
    }
}

impl From<BindError> for ServerFault {
    fn from(error: BindError) -> Self {
        Self::System(error.to_string())
    }
}

impl BatchServer {
    /// Binds the address.
    ///
    /// # Errors
    /// [`ServerFault::Setting`] names the setting; [`ServerFault::System`], for example for a port in use.
    pub fn bind(settings: ServerSettings) -> Result<Self, ServerFault> {
        settings.config.check().map_err(|fault| ServerFault::Setting(fault.to_string()))?;
        match &settings.whole {
            None => Self::bind_plain(&settings),
            Some(source) => Self::bind_whole(&settings, source),
        }
    }

    fn bind_plain(settings: &ServerSettings) -> Result<Self, ServerFault> {
        let shared = SharedState::default();
        let router = settings.add_routes(Router::new(), &shared).map_err(ServerFault::Setting)?;
        let bound = Server::new(router)
            .listen(settings.address.unwrap_or_else(|| ([127, 0, 0, 1], 0).into()))
            .engine(EngineConfig::default().with_backend(BackendChoice::Poll))
            .threads(1)
            .bind()?;
        let (publisher, stop) = (bound.publisher(), bound.stop_handle());
        let address = bound.addresses().first().copied();
        let embedded = bound.embed().map_err(|error| ServerFault::System(error.to_string()))?;
        let (topics, requests) = (ServerTopics::Plain(publisher), Requests::new(embedded.waker()));
        Ok(Self {
            embedded,
            shared,
            topics,
            requests,
            requests_end: None,
            stop,
            address,
            hub: HubState::None,
        })
    }

    fn bind_whole(settings: &ServerSettings, source: &ConfigSource) -> Result<Self, ServerFault> {
        let shared = SharedState::default();
        let config = match source {
            ConfigSource::File(path) => ServerConfig::from_file(path)?,
            ConfigSource::Json(text) => ServerConfig::from_json(text)?,
        };
        let config = match settings.address {
            Some(address) => config.with_listen(address),
            None => config,
        };
        let add_routes = |router| settings.add_routes(router, &shared).map_err(ServeError::Setting);
        let WholeServer { embedded, hub, stop, addresses, .. } = config.bind(add_routes)?;
        lock(&shared).topics = Some(hub.topics());
        let (topics, requests) = (ServerTopics::Whole(hub.topics()), Requests::new(embedded.waker()));
        let address = addresses.first().copied();
        Ok(Self {
            embedded,
            shared,
            topics,
            requests,
            requests_end: None,
            stop,
            address,
            hub: HubState::Running(hub),
        })
    }

    /// The first bound address; `None` if the configuration has Unix sockets only.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The descriptor to watch for reading.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.embedded.descriptor()
    }

    /// Sends queued messages, then publications, and collects events, without waiting. Returns `false` when the server
    /// has stopped and all connections have ended.
    ///
    /// # Errors
    /// The kernel cannot be asked for events.
    pub fn turn(&mut self) -> io::Result<bool> {
        let mut goes_on = self.embedded.turn()?;
        // A turn wakes a part of many connections.
        while goes_on && lock(&self.shared).connections.has_commands() {
            goes_on = self.embedded.turn()?;
        }
        let publications = std::mem::take(&mut lock(&self.shared).publications).list;
        for (topic, mut message) in publications {
            if goes_on && self.topics.is_backlogged() {
                goes_on = self.embedded.turn()?;
            }
            // A full mailbox is empty after a turn.
            while goes_on && let Some(again) = self.topics.publish(&topic, message, &mut self.requests) {
                message = again;
                goes_on = self.embedded.turn()?;
            }
        }
        self.requests.poll(&self.shared);
        if goes_on {
            return Ok(true);
        }
        // Records that are being written are acknowledged first.
        let end = *self.requests_end.get_or_insert_with(|| Instant::now() + REQUESTS_TIMEOUT);
        let waits = self.requests.len() > 0 && Instant::now() < end;
        Ok(waits || !self.hub.has_ended(|| self.embedded.waker())?)
    }

    /// Returns when to call [`turn`](Self::turn) next: at once if commands wait.
    pub fn next_turn(&mut self) -> NextTurn {
        match (self.embedded.next_turn(), self.requests_end) {
            (NextTurn::Readable(_), _) if self.requests.is_woken() => NextTurn::Now,
            (NextTurn::Readable(time), Some(end)) if self.requests.len() > 0 => {
                let rest = end.saturating_duration_since(Instant::now());
                NextTurn::Readable(Some(time.map_or(rest, |time| time.min(rest))))
            }
            (next, _) => next,
        }
    }

    /// Calls a function with the events since the last [`clear`](Self::clear): for each its kind, the id of its
    /// connection or request, its payload's start and length; and all payloads.
    pub fn with_events<R>(&self, read: impl FnOnce(&[u32], &[u8]) -> R) -> R {
        let Shared { events, connections, .. } = &mut *lock(&self.shared);
        events.read = [events.words.len(), events.bytes.len()];
        connections.note_read();
        read(&events.words, &events.bytes)
    }

    /// Forgets the events that were read. Ids of closed connections may be given again from then on.
    pub fn clear(&self) {
        let shared = &mut *lock(&self.shared);
        shared.events.clear();
        shared.connections.resume();
        shared.connections.release();
    }

    /// Queues a message for a connection.
    pub fn send(&self, id: u32, kind: Kind, payload: &[u8]) -> SendResult {
        lock(&self.shared).connections.send(id, kind, payload)
    }

    /// Subscribes a connection to a topic or a pattern.
    ///
    /// # Errors
    /// The name is no topic and no pattern.
    pub fn subscribe(&self, id: u32, topic: &str) -> Result<bool, InvalidArgument> {
        self.topics.check_subscription(topic)?;
        Ok(lock(&self.shared).connections.command(id, Command::Subscribe(topic.to_owned())))
    }

    /// Ends a subscription.
    pub fn unsubscribe(&self, id: u32, topic: &str) -> bool {
        lock(&self.shared).connections.command(id, Command::Unsubscribe(topic.to_owned()))
    }

    /// Starts the closing handshake behind the queued messages.
    pub fn close(&self, id: u32, code: CloseCode, reason: &str) -> bool {
        lock(&self.shared).connections.command(id, Command::Close(code, reason.to_owned()))
    }

    /// Bytes that wait for a connection: sent since the last turn, and, from 16 KiB on, not taken by the socket.
    #[must_use]
    pub fn buffered(&self, id: u32) -> usize {
        lock(&self.shared).connections.buffered(id)
    }

    /// Publishes to all subscribers with the next turn, after its sends and subscriptions. Returns `false` if the message
    /// was dropped: more than [`PUBLICATION_BYTES_MAX`] wait, or [`REQUESTS_MAX`] to streams.
    ///
    /// # Errors
    /// The topic's name is invalid, or a pattern.
    pub fn publish(&self, topic: &str, kind: Kind, payload: &[u8]) -> Result<bool, InvalidArgument> {
        let message = self.topics.message(topic, kind, payload)?;
        Ok(self.queue(topic, message, payload.len()))
    }

    /// Publishes JSON to the topics of the whole server: clients of JSON protocols get it as it is. Otherwise as
    /// [`publish`](Self::publish).
    ///
    /// # Errors
    /// As for [`publish`](Self::publish), and for a text that is not JSON.
    pub fn publish_json(&self, topic: &str, text: &str) -> Result<bool, InvalidArgument> {
        let message = self.topics.json(topic, text)?;
        Ok(self.queue(topic, message, text.len()))
    }

    fn queue(&self, topic: &str, message: QueuedMessage, len: usize) -> bool {
        let publications = &mut lock(&self.shared).publications;
        let bytes = publications.bytes + topic.len() + len;
        if bytes > PUBLICATION_BYTES_MAX && !publications.list.is_empty() {
            return false;
        }
        if self.topics.is_durable(topic) {
            if self.requests.len() + publications.durable >= REQUESTS_MAX {
                return false;
            }
            publications.durable += 1;
        }
        publications.bytes = bytes;
        publications.list.push((topic.to_owned(), message));
        true
    }

    /// Reads a topic's retained messages, at most 1,000 and 1 MiB. Returns the id of the [`ServerEvent::Answer`]; `None`
    /// if [`REQUESTS_MAX`] wait.
    ///
    /// # Errors
    /// The topic's name is invalid, or the server has no [`ServerSettings::whole`].
    pub fn history(&mut self, topic: &str, start: ReplayFrom) -> Result<Option<u32>, InvalidArgument> {
        let messages = self.topics.history(topic, start)?;
        Ok((self.requests.len() < REQUESTS_MAX).then(|| self.requests.push(messages)))
    }

    /// Reads who is present in a topic, as JSON: the number of `subscribers`, and at most 256 `members` whose ids follow
    /// `after`, with `more` if further ones follow.
    ///
    /// # Errors
    /// As for [`history`](Self::history).
    pub fn presence(&self, topic: &str, after: Option<&str>) -> Result<String, InvalidArgument> {
        self.topics.presence(topic, after)
    }

    /// Reports [`ServerEvent::Drain`] once the connection's queue is short: the interpreter has dropped a message itself.
    pub fn set_slow(&self, id: u32) {
        lock(&self.shared).connections.set_slow(id);
    }

    /// Answers a request. Returns whether it still waits.
    ///
    /// # Errors
    /// The status or a header is invalid: the error names it.
    pub fn respond(
        &self,
        id: u32,
        status: u16,
        headers: &[(String, String)],
        body: &[u8],
    ) -> Result<bool, String> {
        let waker = lock(&self.shared).requests.respond(id, status, headers, body)?;
        // The request's task may lock the state.
        if let Some(waker) = &waker {
            waker.wake_by_ref();
        }
        Ok(waker.is_some())
    }

    /// Stops gracefully: WebSockets are closed with 1001. [`turn`](Self::turn) returns `false` once all have ended.
    pub fn stop(&self) {
        self.stop.stop();
    }
}

/// Memory of event payloads that stays between turns.
const EVENT_BYTES_KEPT: usize = 256 << 10;

/// Payload bytes of events, beyond which connections with further messages are not read: each adds one message at most.
const EVENT_BYTES_MAX: usize = 4 << 20;

/// Events, beyond which connections are not read either.
const EVENTS_MAX: usize = 16 << 10;

/// Time to answer requests to topics, once all connections have ended.
const REQUESTS_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of publications that wait for a turn.
pub const PUBLICATION_BYTES_MAX: usize = 64 << 20;

#[cfg(test)]
mod tests;
