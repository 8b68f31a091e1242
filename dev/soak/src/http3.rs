//! WebSockets and requests on the streams of one connection of HTTP/3.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use rustls::pki_types::CertificateDer;
use sinews_http::h3::{Config, Event, H3Code, QuicStreamId, RequestTarget};
use sinews_quic::{ConnectionKey, Exchanges, Http3App, LinkEnd, QuicEndpoint, QuicLimits};
use sinews_testkit::Rng;

use crate::Fault;
use crate::client::PATIENCE;
use crate::scenarios::World;
use crate::streams::{self, Stream, StreamConnection, find};

/// Messages of all streams of a client.
const QUEUED_MAX: usize = 64 << 20;

/// A connection and its streams.
struct Http3 {
    socket: UdpSocket,
    server: SocketAddr,
    endpoint: QuicEndpoint,
    key: ConnectionKey,
    events: Events,
    out: Vec<u8>,
    /// The time of the last datagram.
    heard: Instant,
}

#[derive(Default)]
struct Events {
    streams: Vec<Stream>,
    has_settings: bool,
    fault: Option<Fault>,
}

/// Runs WebSockets and requests on a connection.
pub(crate) fn run(world: &World, rng: &mut Rng) -> Result<(), Fault> {
    streams::run(Http3::connect(world)?, world, rng)
}

/// Opens a connection and closes it: all threads of the server run.
pub(crate) fn fresh(world: &World) -> Result<(), Fault> {
    Http3::connect(world)?.close()
}

/// Settings of clients that trust one certificate.
pub(crate) fn client_tls(certificate: CertificateDer<'static>) -> Result<Arc<rustls::ClientConfig>, Fault> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    Ok(Arc::new(tls))
}

impl Http3 {
    fn connect(world: &World) -> Result<Self, Fault> {
        world.tally.connected(1);
        let tls = world.tls.clone().ok_or("the server has no HTTP/3")?;
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        // A scenario queues its messages whole.
        let limits = QuicLimits::new().with_max_queued(QUEUED_MAX);
        let mut endpoint = QuicEndpoint::client(tls, Config::new(), limits)?;
        let key = endpoint.connect(world.address, "localhost", Instant::now())?;
        let (events, out, heard) = (Events::default(), Vec::new(), Instant::now());
        let mut http3 = Self { socket, server: world.address, endpoint, key, events, out, heard };
        while !http3.events.has_settings {
            http3.exchange()?;
        }
        Ok(http3)
    }

    fn lend<T>(&mut self, call: impl FnOnce(&mut Events, &mut Exchanges<'_>) -> T) -> Result<T, Fault> {
        let lent = self.endpoint.with_connection(self.key, &mut self.events, Instant::now(), call);
        lent.ok_or_else(|| self.events.fault.take().unwrap_or_else(|| "the connection has ended".into()))
    }

    fn close(&mut self) -> Result<(), Fault> {
        self.lend(|_, exchanges| exchanges.close(H3Code::H3_NO_ERROR, "done"))?;
        self.transmit()
    }

    fn transmit(&mut self) -> Result<(), Fault> {
        let now = Instant::now();
        while self.endpoint.transmit(&mut self.out, 1, &mut self.events, now).is_some() {
            self.socket.send_to(&self.out, self.server)?;
        }
        Ok(())
    }
}

impl StreamConnection for Http3 {
    const SCHEME: &'static str = "https";

    fn request(
        &mut self,
        target: &RequestTarget<'_>,
        fields: &[(&str, &str)],
        ends: bool,
    ) -> Result<u64, Fault> {
        loop {
            let fields = fields.iter().copied();
            let sent = self.lend(|_, exchanges| exchanges.send_request(target, fields, ends))?;
            match sent? {
                Some(stream) => return Ok(stream.get()),
                // The server permits a further stream once it has heard of the end of an earlier one.
                None => self.exchange()?,
            }
        }
    }

    fn streams(&mut self) -> &mut Vec<Stream> {
        &mut self.events.streams
    }

    fn reset(&mut self, id: u64, before: &[u8]) -> Result<(), Fault> {
        let before = Bytes::copy_from_slice(before);
        self.lend(|_, exchanges| {
            let stream = QuicStreamId::new(id);
            if !before.is_empty() {
                exchanges.send_data(stream, before, false)?;
            }
            exchanges.reset(stream, H3Code::H3_REQUEST_CANCELLED);
            Ok(())
        })?
    }

    /// Closes the connection. Sometimes its last packet is lost, so that the server waits for its idle timeout.
    fn abandon(mut self, rng: &mut Rng) -> Result<(), Fault> {
        if rng.below(4) > 0 {
            self.close()?;
        }
        Ok(())
    }

    fn exchange(&mut self) -> Result<(), Fault> {
        self.lend(|events, exchanges| {
            for stream in events.streams.iter_mut().filter(|stream| !stream.unsent.is_empty()) {
                let id = QuicStreamId::new(stream.id);
                if !stream.is_reset && !exchanges.is_blocked(id) {
                    exchanges.send_data(id, std::mem::take(&mut stream.unsent).into(), false)?;
                }
            }
            Ok::<(), Fault>(())
        })??;
        self.transmit()?;
        let now = Instant::now();
        let next = self.endpoint.next_timeout().unwrap_or(now + PATIENCE);
        let wait = next.saturating_duration_since(now).clamp(TICK, PATIENCE);
        self.socket.set_read_timeout(Some(wait))?;
        let mut datagram = [0; 1 << 16];
        match self.socket.recv(&mut datagram) {
            Ok(len) => {
                let (datagram, now) = (BytesMut::from(&datagram[..len]), Instant::now());
                self.heard = now;
                self.endpoint.receive(datagram, self.server, None, 0, &mut self.events, now);
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                self.endpoint.expire(&mut self.events, Instant::now());
                if self.heard.elapsed() > PATIENCE {
                    return Err("the server is silent".into());
                }
            }
            Err(error) => return Err(error.into()),
        }
        self.events.fault.take().map_or(Ok(()), Err)
    }
}

impl Events {
    fn handle(&mut self, event: Event<'_>) -> Result<(), Fault> {
        match event {
            Event::Settings { .. } => self.has_settings = true,
            Event::Response { stream, head } => {
                if let Some(found) = find(&mut self.streams, stream.get()) {
                    found.status = Some(head.status());
                }
            }
            Event::Data { stream, data } => {
                if let Some(found) = find(&mut self.streams, stream.get()) {
                    found.receive(data)?;
                }
            }
            Event::End { stream } => {
                if let Some(found) = find(&mut self.streams, stream.get()) {
                    found.has_ended = true;
                }
            }
            Event::Reset { stream, code, .. }
                if find(&mut self.streams, stream.get())
                    .is_some_and(|found| !found.is_reset && !found.has_ended) =>
            {
                return Err(format!("stream {} was reset with {code}", stream.get()).into());
            }
            Event::GoAway { .. } => return Err("the server accepts no further requests".into()),
            _ => {}
        }
        Ok(())
    }
}

impl Http3App for Events {
    fn handle_event(&mut self, _: &mut Exchanges<'_>, event: Event<'_>) {
        if let Err(fault) = self.handle(event) {
            self.fault.get_or_insert(fault);
        }
    }

    fn handle_end(&mut self, _: ConnectionKey, cause: LinkEnd, reason: &str) {
        if cause != LinkEnd::Local {
            self.fault.get_or_insert_with(|| format!("connection lost: {cause:?}, {reason}").into());
        }
    }
}

/// Shortest wait: a deadline in the past is not awaited.
const TICK: Duration = Duration::from_millis(1);
