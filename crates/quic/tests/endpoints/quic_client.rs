//! A client of quinn-proto with the client's side of HTTP/3, without a socket.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use quinn_proto::crypto::ClientConfig as CryptoConfig;
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    Chunk, ClientConfig, Connection, ConnectionError, ConnectionHandle, DatagramEvent, Dir, Endpoint,
    EndpointConfig, Event as QuicEvent, ReadError, StreamEvent, StreamId, TransportConfig, VarInt,
};
use sinews_http::h3::{Config, Event, FieldBuffer, H3Connection, QuicStreamId, RequestTarget};

/// A client with one connection.
pub(crate) struct QuicClient {
    pub(crate) endpoint: Endpoint,
    pub(crate) handle: ConnectionHandle,
    pub(crate) quic: Connection,
    pub(crate) http: H3Connection,
    pub(crate) fields: FieldBuffer,
    pub(crate) control: Option<StreamId>,
    /// Bytes for closed windows.
    pub(crate) pending: Vec<(StreamId, Bytes)>,
    /// Status, content, and whether the response is complete.
    pub(crate) responses: HashMap<u64, (u16, Vec<u8>, bool)>,
    pub(crate) datagrams: Vec<Vec<u8>>,
    /// The sessions of all datagrams so far.
    pub(crate) datagram_sessions: Vec<u64>,
    pub(crate) lost: Option<String>,
    /// Whether the server's code is that of an application, and the code.
    pub(crate) closed: Option<(bool, u64)>,
    /// The client opens no control stream.
    pub(crate) sends_no_control: bool,
    pub(crate) go_away: Option<u64>,
    pub(crate) headers: HashMap<u64, Vec<(String, String)>>,
    /// Streams of sessions that the server has opened.
    pub(crate) session_streams: Vec<u64>,
    /// Codes and reasons of sessions that have ended.
    pub(crate) closed_sessions: HashMap<u64, (u32, String)>,
    /// Codes of streams that the server has reset.
    pub(crate) resets: HashMap<u64, u64>,
    /// Codes of streams that the server does not read.
    pub(crate) stopped: HashMap<u64, u64>,
    /// Streams that the client does not read.
    pub(crate) unread: HashSet<u64>,
    /// Bytes of streams that wait for their session.
    held: HashMap<StreamId, Bytes>,
    server: SocketAddr,
    config: ClientConfig,
}

impl QuicClient {
    /// Starts a connection. The idle timeout is that of the server: a test may not run its client for a while.
    pub(crate) fn connect(to: SocketAddr, roots: rustls::RootCertStore, alpn: &str, now: Instant) -> Self {
        let mut transport = TransportConfig::default();
        transport.max_idle_timeout(Some(Duration::from_secs(600).try_into().expect("a short time")));
        Self::connect_with(to, roots, alpn, transport, now)
    }

    /// Starts a connection with parameters of the transport.
    pub(crate) fn connect_with(
        to: SocketAddr,
        roots: rustls::RootCertStore,
        alpn: &str,
        transport: TransportConfig,
        now: Instant,
    ) -> Self {
        Self::connect_wrapped(to, roots, alpn, transport, |crypto| crypto, now)
    }

    /// Starts a connection whose cryptography `wrap` changes.
    pub(crate) fn connect_wrapped(
        to: SocketAddr,
        roots: rustls::RootCertStore,
        alpn: &str,
        transport: TransportConfig,
        wrap: impl FnOnce(Arc<dyn CryptoConfig>) -> Arc<dyn CryptoConfig>,
        now: Instant,
    ) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![alpn.as_bytes().to_vec()];
        let crypto = wrap(Arc::new(QuicClientConfig::try_from(tls).expect("TLS 1.3")));
        let mut config = ClientConfig::new(crypto);
        config.transport_config(Arc::new(transport));
        let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, true, None);
        let kept = config.clone();
        let (handle, quic) = endpoint.connect(now, config, to, "localhost").expect("a valid name");
        Self {
            endpoint,
            handle,
            quic,
            http: H3Connection::client(Config::new().with_max_sessions(1)),
            fields: FieldBuffer::new(),
            control: None,
            pending: Vec::new(),
            responses: HashMap::new(),
            headers: HashMap::new(),
            session_streams: Vec::new(),
            closed_sessions: HashMap::new(),
            resets: HashMap::new(),
            stopped: HashMap::new(),
            unread: HashSet::new(),
            held: HashMap::new(),
            datagrams: Vec::new(),
            datagram_sessions: Vec::new(),
            lost: None,
            closed: None,
            sends_no_control: false,
            go_away: None,
            server: to,
            config: kept,
        }
    }

    /// Returns the first datagrams of a further connection, which does not continue.
    pub(crate) fn transmit_another(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let config = self.config.clone();
        let (_, mut quic) =
            self.endpoint.connect(now, config, self.server, "localhost").expect("a valid name");
        let (mut datagrams, mut out) = (Vec::new(), Vec::new());
        while let Some(transmit) = quic.poll_transmit(now, 1, &mut out) {
            datagrams.push(out[..transmit.size].to_vec());
            out.clear();
        }
        datagrams
    }

    pub(crate) fn transmit(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let mut datagrams = Vec::new();
        let mut out = Vec::new();
        while let Some(transmit) = self.quic.poll_transmit(now, 1, &mut out) {
            datagrams.push(out[..transmit.size].to_vec());
            out.clear();
        }
        datagrams
    }

    pub(crate) fn receive(&mut self, datagram: &[u8], now: Instant) {
        let event =
            self.endpoint.handle(now, self.server, None, None, BytesMut::from(datagram), &mut Vec::new());
        if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
            self.quic.handle_event(event);
            self.drive(now);
        }
    }

    pub(crate) fn drive(&mut self, now: Instant) {
        while let Some(event) = self.quic.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(self.handle, event) {
                self.quic.handle_event(event);
            }
        }
        while let Some(event) = self.quic.poll() {
            match event {
                QuicEvent::Connected if self.sends_no_control => {}
                QuicEvent::Connected => {
                    self.control = self.quic.streams().open(Dir::Uni);
                    let mut out = Vec::new();
                    self.http.write_control(&mut out);
                    self.send(self.control.expect("a permitted stream"), out.into(), false);
                }
                QuicEvent::ConnectionLost { reason } => {
                    self.lost = Some(reason.to_string());
                    self.closed = match reason {
                        ConnectionError::ConnectionClosed(close) => Some((false, close.error_code.into())),
                        ConnectionError::ApplicationClosed(close) => {
                            Some((true, close.error_code.into_inner()))
                        }
                        _ => None,
                    };
                }
                QuicEvent::Stream(StreamEvent::Opened { dir }) => {
                    while let Some(stream) = self.quic.streams().accept(dir) {
                        let id = QuicStreamId::new(stream.into());
                        self.http.open(id, Duration::ZERO).expect("a valid stream");
                        self.read(stream);
                    }
                }
                QuicEvent::Stream(StreamEvent::Readable { id }) => self.read(id),
                QuicEvent::Stream(StreamEvent::Writable { .. }) => self.flush(),
                QuicEvent::Stream(StreamEvent::Stopped { id, error_code }) => {
                    self.stopped.insert(id.into(), error_code.into_inner());
                }
                QuicEvent::DatagramReceived => {
                    while let Some(datagram) = self.quic.datagrams().recv() {
                        if let Some((session, payload)) =
                            self.http.receive_datagram(&datagram).expect("valid")
                        {
                            self.datagrams.push(payload.to_vec());
                            self.datagram_sessions.push(session.get());
                        }
                    }
                }
                _ => {}
            }
            while let Some(stream) = self.http.next_resumed() {
                let stream = StreamId::from(VarInt::from_u64(stream.get()).expect("an identifier"));
                self.held.entry(stream).or_default();
                self.read(stream);
            }
            while let Some((session, payload)) = self.http.next_early_datagram() {
                self.datagrams.push(payload.into());
                self.datagram_sessions.push(session.get());
            }
        }
        let _ = now;
    }

    pub(crate) fn read(&mut self, stream: StreamId) {
        while !self.unread.contains(&stream.into()) {
            let (bytes, ends) = match self.next_chunk(stream) {
                Ok(Some(chunk)) => (chunk.bytes, false),
                Ok(None) => (Bytes::new(), true),
                Err(ReadError::Blocked) => return,
                Err(ReadError::Reset(code)) => {
                    self.resets.insert(stream.into(), code.into_inner());
                    return;
                }
            };
            let (id, mut input) = (QuicStreamId::new(stream.into()), &bytes[..]);
            while let Some(event) = self
                .http
                .receive(id, &mut input, ends, &mut self.fields, Duration::ZERO)
                .expect("a valid server")
            {
                match event {
                    Event::Response { stream, head } => {
                        let fields = head.fields();
                        let fields = fields.iter().map(|(name, value)| {
                            (name.to_owned(), String::from_utf8_lossy(value).into_owned())
                        });
                        self.headers.insert(stream.get(), fields.collect());
                        self.responses.insert(stream.get(), (head.status(), Vec::new(), false));
                    }
                    Event::Data { stream, data } => {
                        self.responses.entry(stream.get()).or_default().1.extend_from_slice(data);
                    }
                    Event::SessionStream { stream, .. } => self.session_streams.push(stream.get()),
                    Event::SessionClosed { session, code, reason } => {
                        self.closed_sessions.insert(session.get(), (code, reason.to_owned()));
                    }
                    Event::GoAway { id } => self.go_away = Some(id),
                    Event::End { stream } => self.responses.entry(stream.get()).or_default().2 = true,
                    _ => {}
                }
            }
            if !input.is_empty() {
                self.held.insert(stream, bytes.slice_ref(input));
                return;
            }
            if ends {
                return;
            }
        }
    }

    fn next_chunk(&mut self, stream: StreamId) -> Result<Option<Chunk>, ReadError> {
        if let Some(bytes) = self.held.remove(&stream) {
            return Ok(Some(Chunk { offset: 0, bytes }));
        }
        if self.http.is_held(QuicStreamId::new(stream.into())) {
            return Err(ReadError::Blocked);
        }
        let mut reader = self.quic.recv_stream(stream);
        let Ok(mut chunks) = reader.read(true) else { return Err(ReadError::Blocked) };
        let next = chunks.next(usize::MAX);
        let _ = chunks.finalize();
        next
    }

    pub(crate) fn send(&mut self, stream: StreamId, bytes: Bytes, ends: bool) {
        // An empty piece is the end.
        if !bytes.is_empty() {
            self.pending.push((stream, bytes));
        }
        if ends {
            self.pending.push((stream, Bytes::new()));
        }
        self.flush();
    }

    /// Sends pending bytes; an empty piece is the end of a stream.
    pub(crate) fn flush(&mut self) {
        let mut blocked = Vec::new();
        for (stream, bytes) in std::mem::take(&mut self.pending) {
            if blocked.iter().any(|(id, _)| *id == stream) {
                blocked.push((stream, bytes));
                continue;
            }
            let mut writer = self.quic.send_stream(stream);
            if bytes.is_empty() {
                writer.finish().expect("an open stream");
                continue;
            }
            let written = writer.write(&bytes).unwrap_or(0);
            if written < bytes.len() {
                blocked.push((stream, bytes.slice(written..)));
            }
        }
        self.pending = blocked;
    }

    pub(crate) fn ask(&mut self, target: &RequestTarget<'_>, body: &[u8], ends: bool) -> u64 {
        self.ask_with(target, [], body, ends)
    }

    /// Sends a request with further fields.
    pub(crate) fn ask_with<'f>(
        &mut self,
        target: &RequestTarget<'_>,
        fields: impl IntoIterator<Item = (&'f str, &'f str)>,
        body: &[u8],
        ends: bool,
    ) -> u64 {
        let stream = self.quic.streams().open(Dir::Bi).expect("a permitted stream");
        let (id, mut out) = (QuicStreamId::new(stream.into()), Vec::new());
        self.http.send_request(id, target, fields, ends && body.is_empty(), &mut out).expect("a new stream");
        if !body.is_empty() {
            self.http.send_data(id, body, ends, &mut out).expect("an open stream");
        }
        self.send(stream, out.into(), ends);
        id.get()
    }
}
