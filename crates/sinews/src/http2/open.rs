//! Opening a WebSocket on a stream of the connection.

use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::pin::Pin;

use h2::ext::Protocol;
use h2::{Reason, RecvStream};
use http::header::{AUTHORIZATION, COOKIE, HeaderName, HeaderValue, PROXY_AUTHORIZATION};
use http::{HeaderMap, Method, Request, Uri, Version};
use sinews_proto::handshake::{ClientError, ExtendedConnect, HandshakeMisuse};
use sinews_proto::http::HeadError;
use tokio::time::{Instant, timeout_at};

use super::connection::{Http2Connection, explain_error, within};
use super::stream::Http2Stream;
use crate::WebSocket;
use crate::client::body::RejectionBody;
use crate::client::deadline::ConnectDeadline;
use crate::client::settings::ConnectSettings;
#[cfg(feature = "url-connect")]
use crate::client::settings::NetworkSettings;
use crate::client::target::ConnectTarget;
use crate::client::{Connect, ConnectError, ConnectPhase, Response, UrlError};
#[cfg(feature = "url-connect")]
use crate::client::{RedirectError, redirect};

/// A stream of a connection of HTTP/2, as the transport of a WebSocket that is to be opened.
#[derive(Clone)]
pub struct Http2Open {
    connection: Http2Connection,
}

impl fmt::Debug for Http2Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.connection.fmt(f)
    }
}

impl Connect<Http2Open> {
    pub(super) fn from_connection(connection: Http2Connection, path: String) -> Self {
        Self {
            settings: ConnectSettings { url: path, ..connection.shared.settings.clone() },
            #[cfg(feature = "url-connect")]
            network: NetworkSettings::default(),
            runtime: Http2Open { connection },
        }
    }

    /// Opens the WebSocket, and also returns the server's response.
    ///
    /// A dropped future resets the stream.
    ///
    /// # Errors
    /// See [`ConnectError`]. [`ConnectError::Transport`] may mean that the connection is lost: no retry on it succeeds
    /// once it [is closed](Http2Connection::is_closed), although the error [is transient](ConnectError::is_transient)
    /// for a new connection. All other errors leave the connection open.
    pub async fn open(self) -> Result<(WebSocket<Http2Stream>, Response), ConnectError> {
        let Self { settings, runtime: Http2Open { connection }, .. } = self;
        settings.config.check().map_err(ConnectError::Config)?;
        let mut target = connection.shared.target.clone();
        target.path = settings.url.clone();
        let deadline = ConnectDeadline::new(settings.timeout, Instant::now().into_std());
        let mut redirected = 0;
        loop {
            let request = settings.request(&target)?.extended_connect()?;
            let exchange = OpenExchange { settings: &settings, target: &target, deadline: &deadline };
            match exchange.run(&connection, &request).await {
                Err(ConnectError::Rejected(response)) => {
                    target.path = follow(&connection, &target, response, &mut redirected)?;
                }
                done => return done,
            }
        }
    }
}

impl IntoFuture for Connect<Http2Open> {
    type Output = Result<WebSocket<Http2Stream>, ConnectError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.open().await.map(|(ws, _)| ws) })
    }
}

/// The path of a redirect within the origin; otherwise the rejection.
#[cfg(feature = "url-connect")]
fn follow(
    connection: &Http2Connection,
    target: &ConnectTarget,
    response: Box<Response>,
    redirected: &mut u8,
) -> Result<String, ConnectError> {
    let max = connection.shared.redirects;
    if max == 0 || !redirect::is_redirect(response.status().as_u16()) {
        return Err(ConnectError::Rejected(response));
    }
    let next = redirect::next(target, &response, true)?;
    let error = match next.is_same_origin(target) {
        false => RedirectError::OtherOrigin,
        true if *redirected == max => RedirectError::TooMany(max),
        true => {
            *redirected += 1;
            return Ok(next.path);
        }
    };
    let location = format!("{}://{}{}", next.scheme(), next.host_header(), next.path);
    Err(ConnectError::Redirect { location, error })
}

#[cfg(not(feature = "url-connect"))]
fn follow(
    _: &Http2Connection,
    _: &ConnectTarget,
    response: Box<Response>,
    _: &mut u8,
) -> Result<String, ConnectError> {
    Err(ConnectError::Rejected(response))
}

/// Names the cause of a response that h2 does not store.
fn explain(error: ConnectError) -> ConnectError {
    explain_error(error, |error| {
        let is_malformed =
            error.is_library() && error.is_reset() && error.reason() == Some(Reason::PROTOCOL_ERROR);
        is_malformed.then_some(
            "a malformed response, or one whose head exceeds Connect::response_limits of the connection",
        )
    })
}

/// One request on a stream of its own.
struct OpenExchange<'a> {
    settings: &'a ConnectSettings,
    target: &'a ConnectTarget,
    deadline: &'a ConnectDeadline,
}

impl OpenExchange<'_> {
    async fn run(
        &self,
        connection: &Http2Connection,
        request: &ExtendedConnect,
    ) -> Result<(WebSocket<Http2Stream>, Response), ConnectError> {
        let head = self.head(request)?;
        let peer = self.target.authority();
        let exchange = async {
            // A new handle does not wait: h2 queues the request while the server's limit of streams is reached.
            let mut requests = connection.requests.clone().ready().await?;
            let (response, send) = requests.send_request(head, false)?;
            Ok((response.await?, send))
        };
        let (response, send) =
            within(self.deadline, ConnectPhase::Handshake, &peer, exchange).await.map_err(explain)?;
        let (head, body) = response.into_parts();
        self.check_limits(&head.headers).map_err(|error| ConnectError::Handshake(error.into()))?;
        let fields = head.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        match request.read_response(head.status.as_u16(), fields) {
            Ok(_) if body.is_end_stream() => Err(ConnectError::Handshake(ClientError::Content)),
            Ok(established) => {
                let response = Response::from_http2(head).with_subprotocol(established.subprotocol());
                let (stream, config) =
                    (Http2Stream::new(send, body, connection.driver.clone()), self.settings.config.clone());
                let ws = WebSocket::from_negotiated(stream, established.negotiated(), config, &[]);
                Ok((ws.with_subprotocol(response.subprotocol()), response))
            }
            Err(ClientError::Status(_)) => {
                let body = self.body(body).await;
                Err(ConnectError::Rejected(Box::new(Response::from_http2(head).with_body(body))))
            }
            Err(error) => Err(ConnectError::Handshake(error)),
        }
    }

    /// The limits of a head, as if it were one of HTTP/1.1.
    fn check_limits(&self, headers: &HeaderMap) -> Result<(), HeadError> {
        let limits = &self.settings.limits;
        let line =
            |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + ": \r\n".len();
        let head = "HTTP/1.1 200 \r\n\r\n".len() + headers.iter().map(line).sum::<usize>();
        match headers.len() > limits.max_headers() {
            true => Err(HeadError::TooManyHeaders),
            false if head > limits.max_bytes() => Err(HeadError::TooLarge),
            false => Ok(()),
        }
    }

    fn head(&self, connect: &ExtendedConnect) -> Result<Request<()>, ConnectError> {
        let scheme = if self.target.secure { "https" } else { "http" };
        let uri = Uri::builder().scheme(scheme).authority(connect.authority()).path_and_query(connect.path());
        let uri = uri
            .build()
            .map_err(|_| ConnectError::Url { url: connect.path().to_owned(), error: UrlError::Malformed })?;
        let mut head = Request::new(());
        *head.method_mut() = Method::CONNECT;
        *head.uri_mut() = uri;
        *head.version_mut() = Version::HTTP_2;
        for (name, value) in connect.headers() {
            let name = HeaderName::try_from(name).map_err(|_| HandshakeMisuse::HeaderName)?;
            let mut value =
                HeaderValue::from_bytes(value.as_bytes()).map_err(|_| HandshakeMisuse::HeaderValue)?;
            // Never enters the tables of HPACK (RFC 7541 section 7.1.3).
            value.set_sensitive([AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION].contains(&name));
            head.headers_mut().append(name, value);
        }
        head.extensions_mut().insert(Protocol::from_static("websocket"));
        Ok(head)
    }

    /// The body of a rejection. A truncated body ends without an error: the status is sufficient.
    async fn body(&self, mut stream: RecvStream) -> Vec<u8> {
        let max = self.settings.body_max;
        let mut body = Vec::new();
        while body.len() < max {
            let silent = Instant::now() + RejectionBody::WAIT;
            let until = self.deadline.at.map_or(silent, |at| silent.min(at.into()));
            let Ok(Some(Ok(data))) = timeout_at(until, poll_fn(|cx| stream.poll_data(cx))).await else {
                break;
            };
            // An error means that the stream has ended, which the next read reports.
            let _ = stream.flow_control().release_capacity(data.len());
            body.extend_from_slice(&data[..data.len().min(max - body.len())]);
        }
        body
    }
}
