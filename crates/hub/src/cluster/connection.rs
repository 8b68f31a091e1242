//! A broker connection: login, and the buffers for both directions.

use std::io::{ErrorKind, Read, Write};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::event::{Event, Source};
use mio::{Registry, Token};
use rustls::ClientConfig;

use super::options::ClusterOptions;
use super::protocol::{BrokerClient, BrokerEvent};
use super::transport::{BrokerDial, BrokerTransport};
use crate::background::Background;

/// Time without any byte from the broker, which answers a ping every second, after which the connection is given up.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Time without an answer from a broker that sends other bytes, after which the connection is given up: the broker does
/// not get this node's commands. With the interval of the checks, less than 10 s.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(8);

/// Bytes received at once.
const CHUNK: usize = 64 << 10;

/// Buffer capacity that is retained for later use.
const BUFFER_MAX: usize = 1 << 20;

/// A connection, from its start to its end.
pub(super) struct BrokerConnection {
    transport: BrokerTransport,
    /// Where the socket is registered once it is connected.
    registry: (Registry, Token),
    host: String,
    client: BrokerClient,
    begins: bool,
    has_tls_first: bool,
    tls: Option<Arc<ClientConfig>>,
    is_connected: bool,
    pub(super) is_ready: bool,
    /// Received bytes up to `filled`; those from `parsed` on are not parsed yet.
    input: Vec<u8>,
    filled: usize,
    parsed: usize,
    /// Bytes from `written` on are not sent yet.
    output: Vec<u8>,
    written: usize,
    /// Bytes that were sent since the start.
    sent: u64,
    is_readable: bool,
    is_writable: bool,
    /// The broker has closed its direction: it is read to its end.
    is_ending: bool,
    pub(super) started: Instant,
    pub(super) received: Instant,
    /// When the broker has last answered a command, and not only sent messages.
    pub(super) answered: Instant,
    /// End of a ping answer that is not written yet, in the output since the start.
    pong_end: Option<u64>,
    /// The broker's last error: the reason if it closes the connection.
    rejected: Option<String>,
}

/// What happened on the connection.
pub(super) enum LinkEvent {
    /// The login has succeeded.
    Ready,
    /// The broker has executed all commands before a ping: a subscription's ping, if the broker repeats its id.
    Pong(Option<u64>),
    /// A subscription has begun, at a broker that confirms it.
    Subscribed,
    /// The broker has rejected a command, with this text. The connection continues.
    Rejected(String),
    /// A message: a range for [`BrokerConnection::payload`].
    Message(Range<usize>),
}

impl BrokerConnection {
    /// Starts to connect; `own` is this connection's own subject, if it publishes. `wake` is called when
    /// [`establish`](Self::establish) can continue.
    ///
    /// # Errors
    /// The reason.
    pub(super) fn start(
        background: &Background,
        options: &ClusterOptions,
        own: Option<&str>,
        attempt: usize,
        registry: &Registry,
        token: Token,
        wake: impl FnOnce() + Send + 'static,
    ) -> Result<Self, String> {
        let registry = (registry.try_clone().map_err(|error| error.to_string())?, token);
        let tls = options.has_tls.then(|| options.files.tls()).transpose()?;
        let client = BrokerClient::new(options, own)?;
        let dial = BrokerDial::start(background, options, tls.clone(), attempt, wake)?;
        let (host, now) = (String::new(), Instant::now());
        let begins = options.engine.client_begins();
        Ok(Self {
            transport: BrokerTransport::Dialing(dial),
            registry,
            host,
            client,
            begins,
            has_tls_first: begins && options.has_tls,
            tls,
            is_connected: false,
            is_ready: false,
            input: Vec::new(),
            filled: 0,
            parsed: 0,
            output: Vec::new(),
            written: 0,
            sent: 0,
            is_readable: false,
            is_writable: false,
            is_ending: false,
            started: now,
            received: now,
            answered: now,
            pong_end: None,
            rejected: None,
        })
    }

    /// The socket may be read or written again.
    pub(super) fn wake(&mut self, event: &Event) {
        self.is_ending |= event.is_read_closed() || event.is_error();
        self.is_readable |= event.is_readable() || self.is_ending;
        self.is_writable |= event.is_writable() || event.is_error();
    }

    /// Whether there is something to do without waiting for the socket.
    pub(super) fn has_input(&self) -> bool {
        self.is_connected && self.is_readable
    }

    /// The socket, to end waiting for it.
    pub(super) fn socket(&mut self) -> Option<&mut dyn Source> {
        self.transport.socket()
    }

    /// Returns a second handle for the socket, to write whole commands.
    pub(super) fn second_handle(&self) -> Option<std::net::TcpStream> {
        self.transport.second_handle()
    }

    /// Whether the broker omits replies to publications on request.
    pub(super) fn skips_replies(&self) -> bool {
        self.client.skips_replies()
    }

    pub(super) fn max_payload(&self) -> usize {
        self.client.max_payload()
    }

    /// Completes the connection, if it is established.
    ///
    /// # Errors
    /// The reason why it has failed.
    pub(super) fn establish(&mut self) -> Result<bool, String> {
        let BrokerTransport::Dialing(dial) = &self.transport else { return Ok(self.is_connected) };
        let Some(dialed) = dial.take() else { return Ok(false) };
        let (socket, host) = dialed?;
        let (registry, token) = &self.registry;
        let registered = BrokerTransport::register(socket, registry, *token);
        self.transport = registered.map_err(|error| format!("{host}: {error}"))?;
        self.host = host;
        (self.is_connected, self.is_readable, self.is_writable) = (true, true, true);
        if self.begins {
            if self.has_tls_first {
                self.start_tls()?;
            }
            self.client.log_in(&mut self.output);
        }
        Ok(true)
    }

    fn start_tls(&mut self) -> Result<(), String> {
        let config = self.tls.clone().ok_or("the URL of the broker is without TLS")?;
        self.transport.start_tls(&self.host, config)
    }

    /// Asks the broker whether it still is the primary, if it was found by Sentinel.
    pub(super) fn check_role(&mut self) {
        self.client.write_role_check(&mut self.output);
    }

    /// Receives a chunk; returns whether there was one.
    ///
    /// # Errors
    /// The reason why the connection has ended.
    pub(super) fn receive(&mut self, now: Instant) -> Result<bool, String> {
        self.input.copy_within(self.parsed..self.filled, 0);
        self.filled -= std::mem::take(&mut self.parsed);
        if self.filled == 0 && self.input.len() > BUFFER_MAX {
            self.input = Vec::new();
        }
        // Only a buffer that grows is cleared, not that of each receive.
        if self.input.len() < self.filled + CHUNK {
            self.input.resize((self.filled + CHUNK).max(self.input.len() * 2), 0);
        }
        let free = self.filled..self.filled + CHUNK;
        let read = loop {
            match self.transport.read(self.input.get_mut(free.clone()).unwrap_or_default()) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.filled += read.as_ref().map_or(0, |count| *count);
        match read {
            Ok(0) => Err(match self.rejected.take() {
                Some(text) => format!("{}: the broker has closed the connection: {text}", self.host),
                None => format!("{}: the broker has closed the connection", self.host),
            }),
            Ok(count) => {
                self.received = now;
                // A short read has emptied the socket; TLS may have more.
                self.is_readable = count == CHUNK || self.is_ending || self.transport.has_tls();
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.is_readable = false;
                Ok(false)
            }
            Err(error) => Err(format!("{}: {error}", self.host)),
        }
    }

    /// Returns the next event in the received bytes.
    ///
    /// # Errors
    /// The broker has rejected something, or does not speak its protocol.
    pub(super) fn next_event(&mut self) -> Result<Option<LinkEvent>, String> {
        loop {
            let input = self.input.get(self.parsed..self.filled).unwrap_or_default();
            let received = self.client.receive(input, &mut self.output);
            let Some((consumed, event)) = received.map_err(|error| format!("{}: {error}", self.host))? else {
                return Ok(None);
            };
            let at = self.parsed;
            self.parsed += consumed;
            if !matches!(event, BrokerEvent::Message(_) | BrokerEvent::Ping) {
                self.answered = self.received;
            }
            match event {
                BrokerEvent::Other => {}
                BrokerEvent::Ping => self.answer_ping(),
                BrokerEvent::Subscribed => return Ok(Some(LinkEvent::Subscribed)),
                BrokerEvent::Rejected(text) => {
                    self.rejected = Some(text.clone());
                    return Ok(Some(LinkEvent::Rejected(text)));
                }
                BrokerEvent::Pong(id) => return Ok(Some(LinkEvent::Pong(id))),
                BrokerEvent::StartTls => {
                    self.start_tls()?;
                    self.client.log_in(&mut self.output);
                }
                BrokerEvent::Ready => {
                    self.is_ready = true;
                    return Ok(Some(LinkEvent::Ready));
                }
                BrokerEvent::Message(range) => {
                    return Ok(Some(LinkEvent::Message(at + range.start..at + range.end)));
                }
            }
        }
    }

    /// Queues the answer to a ping. One answer suffices while the broker reads nothing: a broker that pings and never
    /// reads costs no memory.
    fn answer_ping(&mut self) {
        if self.pong_end.is_none() {
            self.client.write_pong(&mut self.output);
            self.pong_end = Some(self.sent + self.unwritten() as u64);
        }
    }

    /// Returns a message's payload, until the next call to [`receive`](Self::receive).
    pub(super) fn payload(&self, range: Range<usize>) -> &[u8] {
        self.input.get(range).unwrap_or_default()
    }

    /// Returns the bytes to send: all are written.
    pub(super) fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Returns the number of output bytes that are not written.
    pub(super) fn unwritten(&self) -> usize {
        self.output.len() - self.written
    }

    /// Whether the kernel has all bytes.
    pub(super) fn is_flushed(&self) -> bool {
        self.is_written() && !self.transport.has_output()
    }

    /// Whether the login has succeeded, and there is nothing to receive or to send without waiting for the socket.
    pub(super) fn is_idle(&self) -> bool {
        self.is_ready && !self.has_input() && self.is_flushed()
    }

    fn is_written(&self) -> bool {
        self.unwritten() == 0
    }

    /// Writes as much as the socket accepts.
    ///
    /// # Errors
    /// The reason why the connection has ended.
    pub(super) fn send(&mut self) -> Result<(), String> {
        let describe = |host: &str, error: std::io::Error| format!("{host}: {error}");
        while self.is_writable && !self.is_written() {
            match self.transport.write(self.output.get(self.written..).unwrap_or_default()) {
                Ok(count) => {
                    self.written += count;
                    self.sent += count as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_writable = false,
                Err(error) => return Err(describe(&self.host, error)),
            }
        }
        self.pong_end = self.pong_end.filter(|end| self.sent < *end);
        if self.is_written() {
            self.written = 0;
            self.output.clear();
            if self.output.capacity() > BUFFER_MAX {
                self.output = Vec::new();
            }
        } else if self.written >= self.unwritten() {
            // At least as many bytes are freed as are moved.
            self.output.drain(..std::mem::take(&mut self.written));
        }
        match self.transport.flush() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                return Err(describe(&self.host, error));
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use mio::{Events, Poll};

    use super::*;
    use crate::outgoing::http::client_config;

    /// A connection that is established, and its peer.
    fn connected() -> (BrokerConnection, std::net::TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let options = ClusterOptions::parse(&format!("nats://{}", listener.local_addr().unwrap())).unwrap();
        let mut poll = Poll::new().unwrap();
        let registry = poll.registry();
        let background = Background::default();
        let connection = BrokerConnection::start(&background, &options, None, 0, registry, Token(0), || {});
        let mut connection = connection.unwrap();
        let mut events = Events::with_capacity(8);
        while !connection.establish().unwrap() {
            poll.poll(&mut events, Some(Duration::from_millis(1))).unwrap();
            events.iter().for_each(|event| connection.wake(event));
        }
        (connection, listener.accept().unwrap().0)
    }

    #[test]
    fn output_that_is_written_frees_its_memory_while_more_waits() {
        let (mut connection, mut peer) = connected();
        let mut read = vec![0; 1 << 20];
        for _ in 0..100 {
            connection.output.resize(connection.output.len() + (1 << 20), b'x');
            // Some bytes always wait.
            while connection.unwritten() > 8 << 20 {
                connection.is_writable = true;
                connection.send().unwrap();
                assert!(peer.read(&mut read).unwrap() > 0);
            }
            assert!(connection.output.len() <= 20 << 20, "{}", connection.output.len());
        }
    }

    #[test]
    fn broker_that_pings_and_never_reads_costs_no_memory() {
        let (mut connection, mut peer) = connected();
        peer.write_all(b"INFO {}\r\n").unwrap();
        let mut turn = |connection: &mut BrokerConnection, sent: &[u8]| {
            peer.write_all(sent).unwrap();
            let end = Instant::now() + Duration::from_secs(60);
            let mut left = sent.len();
            while left > 0 {
                assert!(Instant::now() < end);
                let before = connection.filled - connection.parsed;
                if connection.receive(Instant::now()).unwrap() {
                    left = left.saturating_sub(connection.filled - connection.parsed - before);
                }
                while connection.next_event().unwrap().is_some() {}
            }
        };
        turn(&mut connection, b"");
        // The socket accepts nothing.
        connection.is_writable = false;
        let pings = b"PING\r\n".repeat(1_000);
        for _ in 0..1_000 {
            turn(&mut connection, &pings);
            assert!(connection.output.len() < 1_024, "{} bytes wait", connection.output.len());
        }
        // Once it reads, each further ping has an answer.
        connection.is_writable = true;
        connection.send().unwrap();
        assert!(connection.is_flushed());
        turn(&mut connection, b"PING\r\n");
        assert_eq!(connection.output, b"PONG\r\n");
    }

    #[test]
    fn bytes_in_the_buffer_of_tls_are_not_sent() {
        let (mut connection, _peer) = connected();
        connection.host = "localhost:1".to_owned();
        connection.tls = Some(Arc::new(client_config(None).unwrap()));
        connection.start_tls().unwrap();
        // The first TLS message waits, and the output is empty.
        assert!(!connection.is_flushed());
        connection.send().unwrap();
        assert!(connection.is_flushed());
    }
}
