//! The server for JavaScript: one call for a turn, in both directions.

use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use napi::bindgen_prelude::{BufferSlice, Either, Function};
use napi::{Env, Error, Result, Status};
use napi_derive::napi;
use sinews_bindings::server::{
    BatchServer, ConfigSource, InvalidArgument, NextTurn, Position, ReplayFrom, SendResult, ServerFault,
    ServerSettings,
};
use sinews_proto::deflate::DeflateConfig;
use sinews_proto::{CloseCode, Config, Kind};

use crate::kinds::{BINARY, SLOW, TEXT};
use crate::watch::Watcher;

/// Options of a server, which JavaScript has checked.
#[napi(object)]
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// IP address and port.
    pub address: Option<String>,
    /// The configuration file of the whole server.
    pub config_file: Option<String>,
    /// The settings of the whole server as a JSON object.
    pub config_json: Option<String>,
    /// Paths of WebSockets.
    pub websockets: Vec<String>,
    /// Paths of HTTP requests.
    pub requests: Vec<String>,
    /// Subprotocols, the preferred one first.
    pub subprotocols: Vec<String>,
    /// Origins of pages that may connect.
    pub origins: Vec<String>,
    /// Whether messages are compressed.
    pub compression: bool,
    /// Bytes of a message.
    pub max_message: u32,
    /// Bytes that wait for a connection, at most.
    pub max_outbound: u32,
    /// Bytes that wait for a connection, from which on `send` asks to slow down.
    pub high_water: u32,
    /// Seconds without any byte from the client, after which a connection ends; 0: never.
    pub idle_timeout: u32,
    /// Seconds between pings; 0: none.
    pub ping_interval: u32,
    /// Whether a thread waits for the descriptor, because JavaScript's loop cannot.
    pub has_thread: bool,
}

impl ServerOptions {
    fn settings(self) -> Result<ServerSettings> {
        let seconds = |count: u32| (count > 0).then(|| Duration::from_secs(count.into()));
        let config = Config::default()
            .with_max_message(self.max_message.into())
            .with_max_frame(self.max_message.into())
            .with_max_outbound(self.max_outbound as usize)
            .with_high_water(self.high_water as usize)
            .with_idle_timeout(seconds(self.idle_timeout))
            .with_ping_interval(seconds(self.ping_interval));
        let parse = |address: String| {
            address.parse().map_err(|_| invalid(format!("hostname: {address} is no IP address")))
        };
        let address: Option<SocketAddr> = self.address.map(parse).transpose()?;
        let file = self.config_file.map(|path| ConfigSource::File(path.into()));
        Ok(ServerSettings {
            address,
            whole: file.or_else(|| self.config_json.map(ConfigSource::Json)),
            websockets: self.websockets,
            requests: self.requests,
            config,
            deflate: self.compression.then(DeflateConfig::new),
            subprotocols: self.subprotocols,
            origins: self.origins,
        })
    }
}

fn invalid(text: impl ToString) -> Error {
    Error::new(Status::InvalidArg, text.to_string())
}

/// Bytes of each command: four numbers of 32 bits, kind, connection, payload's start and length. Kinds: [`TEXT`],
/// [`BINARY`], [`SLOW`], and [`CLOSE`](crate::kinds::CLOSE) otherwise.
const COMMAND_BYTES: usize = 16;

/// Results of [`NativeServer::turn`] that are no number of events.
mod result {
    /// Nothing to do until the function is called again.
    pub(super) const IDLE: i32 = 0;
    /// The server has ended.
    pub(super) const ENDED: i32 = -1;
    /// The events need more memory.
    pub(super) const TOO_SMALL: i32 = -2;
}

/// Turns without an event until JavaScript's other work gets its time.
const TURNS_MAX: usize = 64;

/// A bound server.
#[napi]
#[derive(Debug)]
pub struct NativeServer {
    /// Dropped before the server: it watches the server's descriptor.
    watcher: Option<Watcher>,
    server: Option<BatchServer>,
    /// JavaScript has the events.
    is_read: bool,
    /// Connections with a long queue since the last turn.
    slow: Vec<u32>,
    address: Option<SocketAddr>,
}

#[napi]
impl NativeServer {
    /// Binds the address. `tick` is called when a turn has work.
    ///
    /// # Errors
    /// `InvalidArg` names the option; `GenericFailure` is the system's.
    #[napi(constructor)]
    pub fn new(env: Env, options: ServerOptions, tick: Function<'_, (), ()>) -> Result<Self> {
        let has_thread = options.has_thread;
        let server = BatchServer::bind(options.settings()?).map_err(|fault| match fault {
            ServerFault::Setting(text) => invalid(text),
            ServerFault::System(text) => Error::new(Status::GenericFailure, text),
        })?;
        let (address, descriptor) = (server.address(), server.descriptor().as_raw_fd());
        let watcher = Watcher::new(&env, descriptor, &tick, has_thread)?;
        // The first turn starts the server.
        watcher.set_timer(Some(Duration::ZERO));
        Ok(Self { server: Some(server), watcher: Some(watcher), is_read: false, slow: Vec::new(), address })
    }

    /// The bound port; 0 without an address.
    #[napi(getter)]
    pub fn port(&self) -> u16 {
        self.address.map_or(0, |address| address.port())
    }

    /// The bound address without the port; empty without an address.
    #[napi(getter)]
    pub fn hostname(&self) -> String {
        self.address.map(|address| address.ip().to_string()).unwrap_or_default()
    }

    /// Takes `count` commands, and turns until there are events, which it copies to `words` (four numbers each: kind,
    /// id, payload's start and length) and `bytes`. Returns their number; 0: wait for `tick`; -1: the server has ended;
    /// -2: call again with more memory, and no commands.
    ///
    /// # Errors
    /// The kernel cannot be asked for events.
    #[napi]
    pub fn turn(
        &mut self,
        mut words: BufferSlice<'_>,
        mut bytes: BufferSlice<'_>,
        commands: BufferSlice<'_>,
        payloads: BufferSlice<'_>,
        count: u32,
    ) -> Result<i32> {
        let Some(server) = &mut self.server else { return Ok(result::ENDED) };
        if std::mem::take(&mut self.is_read) {
            server.clear();
        }
        let commands = commands.get(..count as usize * COMMAND_BYTES).unwrap_or_default();
        execute(server, commands, &payloads, &mut self.slow);
        // Events that did not fit before, without a further turn.
        if count == 0 {
            let found = copy_events(server, &mut self.slow, &mut words, &mut bytes);
            if found != result::IDLE {
                self.is_read = found > 0;
                return Ok(found);
            }
        }
        for _ in 0..TURNS_MAX {
            let goes_on =
                server.turn().map_err(|error| Error::new(Status::GenericFailure, error.to_string()))?;
            let found = copy_events(server, &mut self.slow, &mut words, &mut bytes);
            if found != result::IDLE {
                self.is_read = found > 0;
                return Ok(found);
            }
            if !goes_on {
                self.watcher = None;
                self.server = None;
                return Ok(result::ENDED);
            }
            if let NextTurn::Readable(time) = server.next_turn() {
                self.set_timer(time);
                return Ok(result::IDLE);
            }
        }
        self.set_timer(Some(Duration::ZERO));
        Ok(result::IDLE)
    }

    fn set_timer(&self, time: Option<Duration>) {
        if let Some(watcher) = &self.watcher {
            watcher.set_timer(time);
        }
    }

    /// Subscribes a connection to a topic or a pattern. Returns whether the connection is open.
    ///
    /// # Errors
    /// `InvalidArg`: the topic is invalid.
    #[napi]
    pub fn subscribe(&self, id: u32, topic: String) -> Result<bool> {
        self.server
            .as_ref()
            .map_or(Ok(false), |server| server.subscribe(id, &topic))
            .map_err(invalid_argument)
    }

    /// Ends a subscription. Returns whether the connection is open.
    #[napi]
    pub fn unsubscribe(&self, id: u32, topic: String) -> bool {
        self.server.as_ref().is_some_and(|server| server.unsubscribe(id, &topic))
    }

    /// Publishes to all subscribers with the next turn. Returns whether the message was queued.
    ///
    /// # Errors
    /// `InvalidArg`: the topic is invalid, or the text is not JSON.
    #[napi]
    pub fn publish(
        &self,
        topic: String,
        data: Either<String, BufferSlice<'_>>,
        is_json: Option<bool>,
    ) -> Result<bool> {
        let Some(server) = &self.server else { return Ok(false) };
        let published = match &data {
            Either::A(text) if is_json == Some(true) => server.publish_json(&topic, text),
            Either::A(text) => server.publish(&topic, Kind::Text, text.as_bytes()),
            Either::B(bytes) => server.publish(&topic, Kind::Binary, bytes),
        };
        published.map_err(invalid_argument)
    }

    /// Reads the last messages of a topic, or those after a position. Returns the id of the answer's event; `None` if
    /// the server has ended, or too many answers wait.
    ///
    /// # Errors
    /// `InvalidArg`: the topic is invalid, or the server has no configuration.
    #[napi]
    pub fn history(
        &mut self,
        topic: String,
        last: u32,
        epoch: Option<f64>,
        sequence: Option<f64>,
    ) -> Result<Option<u32>> {
        let Some(server) = &mut self.server else { return Ok(None) };
        // JavaScript has checked that they are safe integers.
        let start = match (epoch, sequence) {
            (Some(epoch), Some(sequence)) => {
                ReplayFrom::After(Position { epoch: epoch as u64, sequence: sequence as u64 })
            }
            _ => ReplayFrom::Last(last as usize),
        };
        server.history(&topic, start).map_err(invalid_argument)
    }

    /// Reads who is present in a topic, as JSON, after a member; `None` if the server has ended.
    ///
    /// # Errors
    /// `InvalidArg`: the topic is invalid, or the server has no configuration.
    #[napi]
    pub fn presence(&self, topic: String, after: Option<String>) -> Result<Option<String>> {
        let Some(server) = &self.server else { return Ok(None) };
        server.presence(&topic, after.as_deref()).map(Some).map_err(invalid_argument)
    }

    /// Answers a request. Returns whether it still waits.
    ///
    /// # Errors
    /// `InvalidArg` names the status or the header.
    #[napi]
    pub fn respond(
        &self,
        id: u32,
        status: u16,
        headers: Vec<(String, String)>,
        body: Either<String, BufferSlice<'_>>,
    ) -> Result<bool> {
        let Some(server) = &self.server else { return Ok(false) };
        let body = match &body {
            Either::A(text) => text.as_bytes(),
            Either::B(bytes) => bytes,
        };
        server.respond(id, status, &headers, body).map_err(invalid)
    }

    /// Bytes that wait for a connection.
    #[napi]
    pub fn buffered(&self, id: u32) -> f64 {
        // JavaScript has no larger integers.
        self.server.as_ref().map_or(0.0, |server| server.buffered(id) as f64)
    }

    /// Whether the server keeps the process alive.
    ///
    /// # Errors
    /// The environment ends.
    #[napi]
    pub fn set_ref(&self, env: Env, is_ref: bool) -> Result<()> {
        self.watcher.as_ref().map_or(Ok(()), |watcher| watcher.set_ref(&env, is_ref))
    }

    /// Stops gracefully: `tick` is called.
    #[napi]
    pub fn stop(&self) {
        if let Some(server) = &self.server {
            server.stop();
            self.set_timer(Some(Duration::ZERO));
        }
    }
}

fn invalid_argument(fault: InvalidArgument) -> Error {
    invalid(fault)
}

/// The numbers in a buffer, at any address.
fn numbers(command: &[u8]) -> [u32; 4] {
    let number = |at: usize| {
        let bytes = command.get(at * 4..at * 4 + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_ne_bytes)
    };
    [number(0), number(1), number(2), number(3)]
}

fn execute(server: &BatchServer, commands: &[u8], payloads: &[u8], slow: &mut Vec<u32>) {
    for command in commands.chunks_exact(COMMAND_BYTES) {
        let [kind, id, start, len] = numbers(command);
        let payload = payloads.get(start as usize..(start as usize).saturating_add(len as usize));
        let payload = payload.unwrap_or_default();
        let sent = match kind {
            TEXT => server.send(id, Kind::Text, payload),
            BINARY => server.send(id, Kind::Binary, payload),
            SLOW => {
                server.set_slow(id);
                SendResult::Queued
            }
            _ => {
                let (code, reason) = payload.split_at_checked(2).unwrap_or((&[3, 232], &[]));
                let code =
                    CloseCode::new(u16::from_be_bytes([code[0], code[1]])).unwrap_or(CloseCode::NORMAL);
                server.close(id, code, &String::from_utf8_lossy(reason));
                SendResult::Queued
            }
        };
        if sent != SendResult::Queued && slow.last() != Some(&id) {
            slow.push(id);
        }
    }
}

/// Copies the events, slow connections first. Returns their number, or [`result::TOO_SMALL`].
fn copy_events(server: &BatchServer, slow: &mut Vec<u32>, words: &mut [u8], bytes: &mut [u8]) -> i32 {
    server.with_events(|events, payloads| {
        let count = slow.len() + events.len() / 4;
        if count * COMMAND_BYTES > words.len() || payloads.len() > bytes.len() {
            return result::TOO_SMALL;
        }
        let slow = slow.drain(..).flat_map(|id| [SLOW, id, 0, 0]);
        let all = slow.chain(events.iter().copied());
        for (number, place) in all.zip(words.chunks_exact_mut(4)) {
            place.copy_from_slice(&number.to_ne_bytes());
        }
        bytes[..payloads.len()].copy_from_slice(payloads);
        // Far below 2³¹.
        count as i32
    })
}
