//! A server of HTTP/3 on a blocking UDP socket: `serve CERTIFICATE KEY ADDRESS`, both files in PEM. It echoes bodies, and
//! streams and datagrams of WebTransport.

use std::collections::HashMap;
use std::env;
use std::error::Error;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sinews_http::h3::{Config, Event, QuicStreamId};
use sinews_quic::{
    ConnectionKey, ConnectionRoutes, Exchanges, Http3App, QuicEndpoint, QuicLimits, WorkerRoute,
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
        let _ = exchanges.send_datagram(session, payload);
    }

    fn handle_end(&mut self, connection: ConnectionKey, _: &str) {
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
    let socket = UdpSocket::bind(address)?;
    println!("listening on {}", socket.local_addr()?);
    let (mut app, mut buffer, mut out) = (EchoStreams::default(), vec![0; 65_536], Vec::new());
    loop {
        while let Some(outgoing) = endpoint.transmit(&mut out, &mut app, Instant::now()) {
            for datagram in out[..outgoing.len].chunks(outgoing.segment.unwrap_or(outgoing.len)) {
                socket.send_to(datagram, outgoing.destination)?;
            }
        }
        let wait = endpoint.next_timeout().map(|at| at.saturating_duration_since(Instant::now()));
        socket.set_read_timeout(wait.map(|wait| wait.max(Duration::from_millis(1))))?;
        match socket.recv_from(&mut buffer) {
            Ok((len, from)) => {
                let datagram = BytesMut::from(&buffer[..len]);
                endpoint.receive(datagram, from, None, 0, &mut app, Instant::now());
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
        endpoint.expire(&mut app, Instant::now());
    }
}
