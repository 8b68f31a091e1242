//! The connection: from the dial to the settings of the server.

use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use h2::client::{Builder, Connection, SendRequest};
use h2::{Ping, Reason};
use sinews_proto::http::HeadLimits;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};

use super::driver::{DriverHandle, Http2Driver};
use super::open::Http2Open;
use super::payload::StreamPayload;
use crate::client::deadline::ConnectDeadline;
use crate::client::settings::ConnectSettings;
use crate::client::target::ConnectTarget;
use crate::client::{Connect, ConnectError, ConnectPhase, OverStream, Runtime};
#[cfg(feature = "tokio-rustls")]
use crate::tls_info::{TlsInfo, TlsTransport as _};

/// Makes a connection of HTTP/2 when awaited: to a URL, whose path is ignored, with the feature `url-connect`, or
/// [over](Connect::over) your own stream, which must have selected `h2` where it is TLS.
pub fn connect(url: impl Into<String>) -> Connect<Http2> {
    Connect::new(url.into(), Http2 { stream_window: STREAM_WINDOW })
}

/// HTTP/2 on the sockets of Tokio.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Http2 {
    stream_window: u32,
}

impl Runtime for Http2 {}

/// Default of [`Connect::stream_window`].
const STREAM_WINDOW: u32 = 256 << 10;

/// The window of the connection: the most that HTTP/2 allows, so that unread WebSockets, which have windows of their
/// own, do not stop the others.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

/// Most memory of small DATA frames that are not read, beyond their payload: h2 counts 256 bytes for each frame. Fifty
/// unread WebSockets with default windows stay below, also if each frame has 12 bytes.
const FRAME_MEMORY_MAX: usize = 256 << 20;

/// Most streams of dropped WebSockets that are remembered, so that frames that were on their way are dropped. Each frame
/// of a forgotten stream is answered with a reset. A remembered stream takes less than 1 KiB.
const RESET_STREAMS_MAX: usize = 1024;

/// How long such a stream is remembered: more than a round trip.
const RESET_STREAM_TIME: Duration = Duration::from_secs(10);

/// A connection of HTTP/2 that carries WebSockets. A clone is a handle to the same connection.
#[derive(Clone)]
pub struct Http2Connection {
    pub(super) requests: SendRequest<StreamPayload>,
    pub(super) shared: Arc<Http2Shared>,
    pub(super) driver: DriverHandle,
}

/// What all WebSockets of a connection have in common.
pub(super) struct Http2Shared {
    pub(super) settings: ConnectSettings,
    pub(super) target: ConnectTarget,
    #[cfg(feature = "url-connect")]
    pub(super) redirects: u8,
    #[cfg(feature = "tokio-rustls")]
    tls: Option<TlsInfo>,
}

impl Http2Connection {
    /// Opens a WebSocket when awaited: at this path, which begins with `/` and may have a query. It begins with the
    /// settings of the connection for the handshake; further headers and subprotocols are added to those.
    pub fn open(&self, path: impl Into<String>) -> Connect<Http2Open> {
        Connect::from_connection(self.clone(), path.into())
    }

    /// Whether each further [`open`](Self::open) fails: the connection is lost, or the server has announced its end
    /// (GOAWAY). WebSockets continue after GOAWAY, until they or the server close. Further WebSockets need a new
    /// connection.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let cx = &mut Context::from_waker(Waker::noop());
        matches!(self.requests.clone().poll_ready(cx), Poll::Ready(Err(_)))
    }

    /// The most WebSockets that the server allows at a time (its SETTINGS_MAX_CONCURRENT_STREAMS); `usize::MAX` without
    /// a limit.
    #[must_use]
    pub fn max_websockets(&self) -> usize {
        self.requests.current_max_send_streams()
    }

    /// The result of the TLS handshake; `None`: the connection is not encrypted, or was made [over](Connect::over) a
    /// stream.
    #[cfg(feature = "tokio-rustls")]
    #[must_use]
    pub fn tls_info(&self) -> Option<&TlsInfo> {
        self.shared.tls.as_ref()
    }
}

impl fmt::Debug for Http2Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http2Connection")
            .field("server", &self.shared.target.authority())
            .finish_non_exhaustive()
    }
}

impl Connect<Http2> {
    /// Sets the most bytes that the server may send to one WebSocket that is not read (its flow-control window).
    /// Default 256 KiB: at a round trip of 20 ms it permits 12 MB/s. At most 2 GiB, and at least 1 byte.
    pub fn stream_window(mut self, bytes: u32) -> Self {
        self.runtime.stream_window = bytes.clamp(1, CONNECTION_WINDOW);
        self
    }

    /// Makes the connection, as awaiting it does: dials, and waits for the settings of the server.
    ///
    /// A dropped future closes the sockets that it has opened.
    ///
    /// # Errors
    /// See [`ConnectError`]; [`ConnectError::NoExtendedConnect`] where the server offers no WebSockets over HTTP/2.
    #[cfg(feature = "url-connect")]
    pub async fn open(self) -> Result<Http2Connection, ConnectError> {
        use crate::tls::Tls;
        use crate::tokio::Tokio;

        let Self { settings, mut network, runtime } = self;
        let deadline = ConnectDeadline::new(settings.timeout, Instant::now().into_std());
        let target = settings.target()?;
        if target.secure {
            let tls = network.tls.take().map_or_else(Tls::new, Ok).and_then(Tls::for_http2);
            network.tls = Some(tls.map_err(|error| ConnectError::Tls { host: target.host.clone(), error })?);
        }
        let redirects = network.redirects;
        let stream = crate::client::dial::dial::<Tokio>(settings.clone(), network).await?;
        let shared = Http2Shared {
            settings,
            target,
            redirects,
            #[cfg(feature = "tokio-rustls")]
            tls: stream.tls_info(),
        };
        begin(stream, shared, runtime, deadline).await
    }
}

#[cfg(feature = "url-connect")]
impl IntoFuture for Connect<Http2> {
    type Output = Result<Http2Connection, ConnectError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Connect<OverStream<Http2, S>> {
    /// Makes the connection on the stream, as awaiting it does. A dropped future drops the stream.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn open(self) -> Result<Http2Connection, ConnectError> {
        let OverStream { stream, runtime } = self.runtime;
        let settings = self.settings;
        let deadline = ConnectDeadline::new(settings.timeout, Instant::now().into_std());
        let target = settings.target()?;
        let shared = Http2Shared {
            settings,
            target,
            // Settings for the path to the server are ignored.
            #[cfg(feature = "url-connect")]
            redirects: 0,
            #[cfg(feature = "tokio-rustls")]
            tls: None,
        };
        begin(stream, shared, runtime, deadline).await
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> IntoFuture for Connect<OverStream<Http2, S>> {
    type Output = Result<Http2Connection, ConnectError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}

/// Begins HTTP/2 on a stream, and waits until the settings of the server are known.
async fn begin<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    shared: Http2Shared,
    runtime: Http2,
    deadline: ConnectDeadline,
) -> Result<Http2Connection, ConnectError> {
    let peer = shared.target.authority();
    let settled = settle(stream, runtime, shared.settings.limits);
    let (requests, connection) =
        within(&deadline, ConnectPhase::Http2, &peer, settled).await.map_err(explain)?;
    if !requests.is_extended_connect_protocol_enabled() {
        return Err(ConnectError::NoExtendedConnect { peer });
    }
    let (driver, handle) = Http2Driver::new(connection, shared.settings.config.close_timeout());
    tokio::spawn(driver);
    Ok(Http2Connection { requests, shared: Arc::new(shared), driver: handle })
}

/// The server's first frame has its settings (RFC 9113 section 3.4), so that they are known once it answers a ping.
async fn settle<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    runtime: Http2,
    limits: HeadLimits,
) -> Result<(SendRequest<StreamPayload>, Connection<S, StreamPayload>), h2::Error> {
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(runtime.stream_window)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(header_list_size(limits))
        .data_frame_budget(FRAME_MEMORY_MAX)
        .max_concurrent_reset_streams(RESET_STREAMS_MAX)
        .reset_stream_duration(RESET_STREAM_TIME)
        // h2 counts resets during the life of the connection. Late frames of forgotten streams are no fault.
        .max_local_error_reset_streams(None);
    let (requests, mut connection) = builder.handshake::<_, StreamPayload>(stream).await?;
    let mut pings = connection.ping_pong().expect("it is taken here only");
    {
        let mut answer = pin!(pings.ping(Ping::opaque()));
        poll_fn(|cx| match Pin::new(&mut connection).poll(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            // The connection is in use, so that only a graceful end of the server ends it without an error.
            Poll::Ready(Ok(())) => Poll::Ready(Err(Reason::REFUSED_STREAM.into())),
            Poll::Pending => answer.as_mut().poll(cx).map_ok(drop),
        })
        .await?;
    }
    Ok((requests, connection))
}

/// The size of a head at its limits. HTTP/2 adds 32 bytes to each line (RFC 9113 section 6.5.2), `:status` included. A
/// larger head is not stored.
fn header_list_size(limits: HeadLimits) -> u32 {
    u32::try_from(limits.max_bytes() + 32 * (limits.max_headers() + 1)).unwrap_or(u32::MAX)
}

/// Names the cause of a first frame that is none.
fn explain(error: ConnectError) -> ConnectError {
    explain_error(error, |error| {
        let is_invalid = error.is_library() && error.reason().is_some();
        is_invalid.then_some("the server does not speak HTTP/2 on this port")
    })
}

/// Names the cause of an error of h2.
pub(super) fn explain_error(
    error: ConnectError,
    cause: impl FnOnce(&h2::Error) -> Option<&'static str>,
) -> ConnectError {
    let ConnectError::Transport { phase, peer, error } = error else { return error };
    let error = match error.get_ref().and_then(|error| error.downcast_ref()).and_then(cause) {
        Some(cause) => io::Error::new(io::ErrorKind::InvalidData, format!("{cause}: {error}")),
        None => error,
    };
    ConnectError::Transport { phase, peer, error }
}

/// Waits for a step of HTTP/2 until the deadline.
pub(super) async fn within<T>(
    deadline: &ConnectDeadline,
    phase: ConnectPhase,
    peer: &str,
    work: impl Future<Output = Result<T, h2::Error>>,
) -> Result<T, ConnectError> {
    let done = match deadline.at {
        Some(at) => timeout_at(at.into(), work).await.map_err(|_| deadline.timed_out(phase, peer))?,
        None => work.await,
    };
    done.map_err(|error| ConnectError::Transport { phase, peer: peer.to_owned(), error: io_error(error) })
}

/// The error of a stream or of its connection, as a transport has it.
pub(super) fn io_error(error: h2::Error) -> io::Error {
    let kind =
        if error.is_go_away() { io::ErrorKind::ConnectionAborted } else { io::ErrorKind::ConnectionReset };
    let kind = error.get_io().map_or(kind, io::Error::kind);
    io::Error::new(kind, error)
}
