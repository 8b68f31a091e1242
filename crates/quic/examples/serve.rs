//! A server of HTTP/3 on one thread: `serve CERTIFICATE KEY ADDRESS`, both files in PEM. It echoes bodies, and
//! streams and datagrams of WebTransport.

use std::collections::HashMap;
use std::env;
use std::error::Error;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sinews_engine::{DatagramBatch, DatagramSocket};
use sinews_http::h3::{Config, Event, QuicStreamId};
use sinews_quic::{
    ConnectionKey, ConnectionRoutes, Exchanges, Http3App, LinkEnd, QuicEndpoint, QuicLimits, WorkerRoute,
};

#[derive(Default)]
struct EchoStreams {
    bodies: HashMap<(ConnectionKey, QuicStreamId), Vec<u8>>,
    /// Sessions of the streams of WebTransport.
    sessions: HashMap<(ConnectionKey, QuicStreamId), QuicStreamId>,
}

impl Http3App for EchoStreams {
    fn handle_event(&mut self, exchanges: &mut Exchanges<'_>, event: Event<'_>) {
        let key = exchanges.connection();
        // A stream that the client resets meanwhile takes no answer.
        let _ = match event {
            Event::Request { stream, head } => {
                self.bodies.insert((key, stream), Vec::new());
                let fields = [
                    ("x-path", head.target().unwrap_or_default()),
                    ("sec-webtransport-http3-draft", "draft02"),
                ];
                exchanges.send_head(stream, 200, fields, false)
            }
            Event::Data { stream, data } => {
                self.bodies.entry((key, stream)).or_default().extend_from_slice(data);
                Ok(())
            }
            Event::SessionStream { stream, session } => {
                self.sessions.insert((key, stream), session);
                Ok(())
            }
            Event::End { stream } if self.sessions.contains_key(&(key, stream)) => {
                let body = self.bodies.remove(&(key, stream)).unwrap_or_default().into();
                let session = self.sessions.remove(&(key, stream)).unwrap_or(stream);
                // A stream of one direction is answered by another.
                let answer = if stream.is_unidirectional() {
                    exchanges.open_session_stream(session, true)
                } else {
                    Ok(Some(stream))
                };
                answer.map(|answer| {
                    if let Some(answer) = answer {
                        exchanges.send_bytes(answer, body, true);
                    }
                })
            }
            Event::End { stream } if stream.is_request() => {
                let body = self.bodies.remove(&(key, stream)).unwrap_or_default();
                exchanges.send_data(stream, body.into(), true)
            }
            Event::Reset { stream, .. } => {
                self.bodies.remove(&(key, stream));
                Ok(())
            }
            _ => Ok(()),
        };
    }

    fn handle_datagram(&mut self, exchanges: &mut Exchanges<'_>, session: QuicStreamId, payload: &[u8]) {
        let _ = exchanges.send_datagram(session, &[payload]);
    }

    fn handle_end(&mut self, connection: ConnectionKey, _: LinkEnd, _: &str) {
        self.bodies.retain(|(key, _), _| *key != connection);
        self.sessions.retain(|(key, _), _| *key != connection);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [certificate, key, address] = &arguments[..] else {
        return Err("serve CERTIFICATE KEY ADDRESS".into());
    };
    let certificate = CertificateDer::from_pem_file(certificate)?;
    let key = PrivateKeyDer::from_pem_file(key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider);
    let tls = tls.with_protocol_versions(&[&rustls::version::TLS13])?.with_no_client_auth();
    let mut tls = tls.with_single_cert(vec![certificate], key)?;
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let http = Config::new().with_max_sessions(16);
    let route = WorkerRoute::new(0, 0);
    let mut endpoint =
        QuicEndpoint::new(Arc::new(tls), http, QuicLimits::new(), ConnectionRoutes::new(), route)?;
    let mut socket = DatagramSocket::bind(address.parse()?)?;
    println!("listening on {}", socket.local_address()?);
    let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(1));
    poll.registry().register(&mut SourceFd(&socket.as_raw_fd()), Token(0), Interest::READABLE)?;
    let (mut app, mut out) = (EchoStreams::default(), Vec::new());
    loop {
        let receive = |endpoint: &mut QuicEndpoint, app: &mut EchoStreams, socket: &mut DatagramSocket| {
            socket.receive(|datagram| {
                let payload = BytesMut::from(datagram.payload);
                endpoint.receive(payload, datagram.from, datagram.local, datagram.ecn, app, Instant::now());
            })
        };
        while receive(&mut endpoint, &mut app, &mut socket)? {}
        endpoint.expire(&mut app, Instant::now());
        while let Some(outgoing) =
            endpoint.transmit(&mut out, socket.segments_max(), &mut app, Instant::now())
        {
            let batch = DatagramBatch::new(outgoing.destination, &out[..outgoing.len]);
            let batch = batch.with_segment(outgoing.segment).with_source(outgoing.source);
            // A full buffer loses datagrams, as the network does; QUIC sends their content again.
            let _ = socket.send(&batch.with_ecn(outgoing.ecn))?;
        }
        let wait = endpoint.next_timeout().map(|at| at.saturating_duration_since(Instant::now()));
        poll.poll(&mut events, wait.map(|wait| wait.max(Duration::from_millis(1))))?;
    }
}
