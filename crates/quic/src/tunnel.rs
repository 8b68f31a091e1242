//! A client's tunnel, such as a WebSocket, on its own connection, on Tokio.

use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use sinews_http::h3::{Config, Event, H3Code, QuicStreamId, RequestTarget};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UdpSocket;
use tokio::select;
use tokio::time::sleep_until;

use crate::{ConnectionKey, Exchanges, Http3App, LinkEnd, QuicEndpoint, QuicLimits};

/// An extended CONNECT request (RFC 9220).
#[derive(Clone, Debug)]
pub struct TunnelRequest {
    authority: String,
    path: String,
    protocol: &'static str,
    headers: Vec<(String, String)>,
}

impl TunnelRequest {
    /// Creates the request for a WebSocket. The caller has validated authority and path.
    #[must_use]
    pub fn websocket(authority: impl Into<String>, path: impl Into<String>) -> Self {
        Self { authority: authority.into(), path: path.into(), protocol: "websocket", headers: Vec::new() }
    }

    /// Adds a header.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

/// The answer to a request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TunnelResponse {
    /// The status. 200 to 299 opens the tunnel.
    pub status: u16,
    /// Names and values of its headers.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The beginning of a rejection's content.
    pub body: Vec<u8>,
}

impl TunnelResponse {
    /// Whether the tunnel is open.
    #[must_use]
    pub const fn is_accepted(&self) -> bool {
        self.status >= 200 && self.status < 300
    }
}

/// An open tunnel. A dropped one closes its connection.
pub struct Http3Tunnel {
    socket: UdpSocket,
    endpoint: QuicEndpoint,
    key: ConnectionKey,
    events: TunnelEvents,
    /// A received datagram.
    buffer: Box<[u8]>,
    /// A datagram to send.
    out: Vec<u8>,
}

/// The state of the tunnel, as its connection reports it.
struct TunnelEvents {
    /// The request, until it is sent.
    request: Option<TunnelRequest>,
    stream: Option<QuicStreamId>,
    response: Option<TunnelResponse>,
    received: Vec<u8>,
    is_paused: bool,
    /// The server has ended its side.
    has_ended: bool,
    end: Option<io::Error>,
}

/// Received bytes that wait for the local side. The stream's window then closes.
const RECEIVED_MAX: usize = 64 << 10;

/// Bytes that wait for the server's windows. The local side is then not read.
const QUEUED_MAX: usize = 64 << 10;

/// Maximum bytes of a rejection's content.
const BODY_MAX: usize = 16 << 10;

/// The largest datagram.
const DATAGRAM_MAX: usize = 1 << 16;

impl Http3Tunnel {
    /// Connects, and sends the request. `name` is the name in the server's certificate. A response that rejects the
    /// request is no error. Bound the time by a timeout.
    ///
    /// # Errors
    /// [`io::Error`]: no socket, no connection, no extended CONNECT, or no response.
    pub async fn open(
        server: SocketAddr,
        name: &str,
        mut tls: rustls::ClientConfig,
        request: TunnelRequest,
    ) -> io::Result<(TunnelResponse, Self)> {
        let local: SocketAddr = match server {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(local).await?;
        // Path errors, such as a closed port, are then errors on this socket.
        socket.connect(server).await?;
        tls.alpn_protocols = vec![b"h3".to_vec()];
        let endpoint = QuicEndpoint::client(Arc::new(tls), Config::new(), QuicLimits::new());
        let mut endpoint = endpoint.map_err(io::Error::other)?;
        let key = endpoint.connect(server, name, Instant::now()).map_err(io::Error::other)?;
        let events = TunnelEvents {
            request: Some(request),
            stream: None,
            response: None,
            received: Vec::new(),
            is_paused: false,
            has_ended: false,
            end: None,
        };
        let buffer = vec![0; DATAGRAM_MAX].into();
        let mut tunnel = Self { socket, endpoint, key, events, buffer, out: Vec::new() };
        let response = tunnel.respond().await?;
        Ok((response, tunnel))
    }

    /// Waits for the response, and for a rejection's content.
    async fn respond(&mut self) -> io::Result<TunnelResponse> {
        loop {
            self.transmit().await?;
            let events = &mut self.events;
            if let Some(response) = &mut events.response
                && (response.is_accepted() || events.has_ended || events.end.is_some())
            {
                let body =
                    if response.is_accepted() { Vec::new() } else { std::mem::take(&mut events.received) };
                return Ok(TunnelResponse { body, ..response.clone() });
            }
            if let Some(error) = events.end.take() {
                return Err(error);
            }
            self.receive().await?;
        }
    }

    /// Passes bytes between the tunnel and a stream, until both sides have ended. A lost stream resets the tunnel.
    ///
    /// # Errors
    /// [`io::Error`]: the connection is lost, or the server has reset the tunnel.
    pub async fn relay(mut self, local: impl AsyncRead + AsyncWrite) -> io::Result<()> {
        let (mut read, mut write) = tokio::io::split(local);
        let (mut chunk, mut outgoing) = (vec![0; QUEUED_MAX], Vec::new());
        let (mut local_ended, mut is_shut) = (false, false);
        loop {
            if outgoing.is_empty() {
                outgoing = std::mem::take(&mut self.events.received);
                self.resume();
            }
            self.transmit().await?;
            if outgoing.is_empty() && self.events.received.is_empty() {
                if let Some(error) = self.events.end.take() {
                    return if local_ended && is_shut { Ok(()) } else { Err(error) };
                }
                if self.events.has_ended && !is_shut {
                    is_shut = true;
                    // The local side may have gone.
                    let _ = write.shutdown().await;
                }
                if is_shut && local_ended && self.unsent() == (0, 0) {
                    return Ok(());
                }
            }
            let may_read = !local_ended && self.unsent().0 < QUEUED_MAX;
            select! {
                received = self.receive() => received?,
                count = read.read(&mut chunk), if may_read => match count {
                    Ok(0) => {
                        local_ended = true;
                        self.send(Bytes::new(), true);
                    }
                    Ok(count) => self.send(Bytes::copy_from_slice(&chunk[..count]), false),
                    Err(_) => return self.reset().await,
                },
                written = write.write(&outgoing), if !outgoing.is_empty() => match written {
                    Ok(count @ 1..) => {
                        outgoing.drain(..count);
                    }
                    _ => return self.reset().await,
                },
            }
        }
    }

    fn lend<T>(&mut self, call: impl FnOnce(&mut TunnelEvents, &mut Exchanges<'_>) -> T) -> Option<T> {
        self.endpoint.with_connection(self.key, &mut self.events, Instant::now(), call)
    }

    fn send(&mut self, data: Bytes, ends: bool) {
        self.lend(|events, exchanges| {
            // An error means that the stream was reset, which an event reports.
            events.stream.map(|stream| exchanges.send_data(stream, data, ends))
        });
    }

    fn resume(&mut self) {
        if std::mem::take(&mut self.events.is_paused) {
            self.lend(|events, exchanges| events.stream.map(|stream| exchanges.resume_reads(stream)));
        }
    }

    /// Bytes that wait for windows, and streams with unacknowledged bytes.
    fn unsent(&mut self) -> (usize, usize) {
        let unsent = self.lend(|_, exchanges| (exchanges.queued(), exchanges.unacknowledged().0));
        unsent.unwrap_or_default()
    }

    /// Resets the tunnel: its local side is lost.
    async fn reset(mut self) -> io::Result<()> {
        self.lend(|events, exchanges| {
            events.stream.map(|stream| exchanges.reset(stream, H3Code::H3_REQUEST_CANCELLED))
        });
        self.transmit().await
    }

    /// Waits for datagrams or a timeout, and handles them.
    async fn receive(&mut self) -> io::Result<()> {
        let timeout = self.endpoint.next_timeout();
        let expired = async {
            match timeout {
                Some(at) => sleep_until(at.into()).await,
                None => pending().await,
            }
        };
        select! {
            received = self.socket.recv(&mut self.buffer) => self.handle(received)?,
            () = expired => {
                self.endpoint.expire(&mut self.events, Instant::now());
                return Ok(());
            }
        }
        for _ in 0..BATCH_MAX {
            match self.socket.try_recv(&mut self.buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                received => self.handle(received)?,
            }
        }
        Ok(())
    }

    fn handle(&mut self, received: io::Result<usize>) -> io::Result<()> {
        let len = match received {
            Ok(len) => len,
            // The network may lose packets on an open connection, and report that.
            Err(_) if self.events.response.is_some() => return Ok(()),
            Err(error) => return Err(error),
        };
        let (datagram, server) = (BytesMut::from(&self.buffer[..len]), self.socket.peer_addr()?);
        self.endpoint.receive(datagram, server, None, 0, &mut self.events, Instant::now());
        Ok(())
    }

    async fn transmit(&mut self) -> io::Result<()> {
        while self.endpoint.transmit(&mut self.out, 1, &mut self.events, Instant::now()).is_some() {
            match self.socket.send(&self.out).await {
                Err(error) if self.events.response.is_none() => return Err(error),
                // QUIC repeats what is lost.
                _ => {}
            }
        }
        Ok(())
    }
}

/// Datagrams that are handled before the answers leave.
const BATCH_MAX: usize = 64;

impl Drop for Http3Tunnel {
    /// Tells the server.
    fn drop(&mut self) {
        let now = Instant::now();
        self.endpoint.close("client has ended", &mut self.events, now);
        while self.endpoint.transmit(&mut self.out, 1, &mut self.events, now).is_some() {
            // Otherwise the server waits for its timeout.
            let _ = self.socket.try_send(&self.out);
        }
    }
}

impl TunnelEvents {
    fn fail(&mut self, kind: io::ErrorKind, text: impl Into<String>) {
        self.end.get_or_insert_with(|| io::Error::new(kind, text.into()));
    }
}

impl Http3App for TunnelEvents {
    fn handle_event(&mut self, exchanges: &mut Exchanges<'_>, event: Event<'_>) {
        match event {
            Event::Settings { settings } if !settings.extended_connect => {
                self.request = None;
                self.fail(io::ErrorKind::Unsupported, "the server offers no WebSockets over HTTP/3");
            }
            Event::Response { head, .. } if head.status() >= 200 => {
                let fields = head.fields();
                let headers = fields.iter().map(|(name, value)| (name.to_owned(), value.to_vec()));
                let headers = headers.collect();
                self.response = Some(TunnelResponse { status: head.status(), headers, body: Vec::new() });
            }
            Event::Data { stream, data } => {
                self.received.extend_from_slice(data);
                if self.response.as_ref().is_some_and(|response| !response.is_accepted()) {
                    self.received.truncate(BODY_MAX);
                } else if self.received.len() > RECEIVED_MAX {
                    self.is_paused = true;
                    exchanges.pause_reads(stream);
                }
            }
            Event::End { .. } => self.has_ended = true,
            Event::Reset { code, violation, .. } => {
                let rule = violation.map(|rule| format!(": {rule}")).unwrap_or_default();
                let text = format!("the server has reset the stream with {code}{rule}");
                self.fail(io::ErrorKind::ConnectionReset, text);
            }
            _ => {}
        }
    }

    fn handle_batch_end(&mut self, exchanges: &mut Exchanges<'_>) {
        if exchanges.peer_settings().is_none() {
            return;
        }
        let Some(TunnelRequest { authority, path, protocol, headers }) = self.request.take() else { return };
        let target = RequestTarget::connect(protocol, &authority, &path);
        let fields = headers.iter().map(|(name, value)| (&**name, &**value));
        match exchanges.send_request(&target, fields, false) {
            Ok(Some(stream)) => self.stream = Some(stream),
            Ok(None) => self.fail(io::ErrorKind::Unsupported, "the server permits no request"),
            Err(error) => self.fail(io::ErrorKind::Unsupported, error.to_string()),
        }
    }

    fn handle_end(&mut self, _: ConnectionKey, cause: LinkEnd, reason: &str) {
        let kind = match cause {
            LinkEnd::Lost => io::ErrorKind::TimedOut,
            LinkEnd::Violation => io::ErrorKind::InvalidData,
            _ => io::ErrorKind::ConnectionAborted,
        };
        self.fail(kind, reason);
    }
}
