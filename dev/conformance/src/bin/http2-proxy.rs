//! Passes WebSocket clients of HTTP/1.1 on to a server of HTTP/2: each handshake becomes an extended CONNECT (RFC 8441) on
//! one connection that all clients share, and the bytes of the WebSocket pass unchanged. Suites that speak HTTP/1.1 only
//! test a server over HTTP/2 this way. `http2-proxy SERVER` prints its address.
//!
//! It uses the crate `h2`, in clear text: an implementation other than the server's.
#![forbid(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use h2::client::{SendRequest, handshake};
use h2::ext::Protocol;
use h2::{Ping, Reason, RecvStream, SendStream};
use http::{HeaderMap, Method, Request, Response};
use sha1::{Digest as _, Sha1};
use sinews_proto::http::{HeadLimits, HeadScanner, HeaderSlots, RequestHead};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;

type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Error> {
    let server = std::env::args().nth(1).ok_or("usage: http2-proxy SERVER")?.parse()?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(serve(server))
}

async fn serve(server: SocketAddr) -> Result<(), Error> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on {}", listener.local_addr()?);
    let shared = Arc::new(SharedConnection { server, requests: Mutex::new(None) });
    loop {
        let (client, _) = listener.accept().await?;
        client.set_nodelay(true)?;
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            if let Err(error) = pass(client, &shared).await {
                println!("{error}");
            }
        });
    }
}

/// The connection of all clients, which is made again once the server has ended it.
struct SharedConnection {
    server: SocketAddr,
    requests: Mutex<Option<SendRequest<Bytes>>>,
}

impl SharedConnection {
    async fn requests(&self) -> Result<SendRequest<Bytes>, Error> {
        let mut current = self.requests.lock().await;
        if let Some(requests) = current.take()
            && let Ok(requests) = requests.ready().await
        {
            return Ok(current.insert(requests).clone());
        }
        let stream = TcpStream::connect(self.server).await?;
        stream.set_nodelay(true)?;
        let (requests, mut connection) = handshake(stream).await?;
        let mut pings = connection.ping_pong().ok_or("the connection is new")?;
        tokio::spawn(async move {
            // Each stream reports the end of the connection.
            let _ = connection.await;
        });
        // The setting is in the first frame of the server.
        pings.ping(Ping::opaque()).await?;
        if !requests.is_extended_connect_protocol_enabled() {
            return Err("the server offers no WebSockets over HTTP/2".into());
        }
        Ok(current.insert(requests).clone())
    }
}

/// Passes one client on.
async fn pass(mut client: TcpStream, shared: &SharedConnection) -> Result<(), Error> {
    let (head, behind) = read_head(&mut client).await?;
    let (limits, mut slots) = (HeadLimits::new(), HeaderSlots::new());
    let head = RequestHead::parse(&head, &limits, &mut slots)?;
    let key = head.header("sec-websocket-key").next().ok_or("no Sec-WebSocket-Key")?.to_vec();
    let mut request = Request::new(());
    *request.method_mut() = Method::CONNECT;
    *request.uri_mut() = format!("http://{}{}", shared.server, head.target()).parse()?;
    request.extensions_mut().insert(Protocol::from_static("websocket"));
    for name in PASSED {
        for value in head.header(name) {
            request.headers_mut().append(name, value.try_into()?);
        }
    }
    let mut requests = shared.requests().await?.ready().await?;
    let (response, send) = requests.send_request(request, false)?;
    let response = response.await?;
    client.write_all(&response_head(&response, &key)).await?;
    let (read, write) = client.into_split();
    let (upward, downward) =
        tokio::join!(pass_up(read, behind, send), pass_down(response.into_body(), write));
    upward.and(downward)
}

/// Reads a head, and returns the bytes behind it.
async fn read_head(client: &mut TcpStream) -> Result<(Vec<u8>, Bytes), Error> {
    let (mut received, mut scanner, limits) = (Vec::new(), HeadScanner::new(), HeadLimits::new());
    loop {
        if let Some(end) = scanner.scan(&received, &limits)? {
            let behind = Bytes::from(received.split_off(end));
            return Ok((received, behind));
        }
        if client.read_buf(&mut received).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
    }
}

/// The response of HTTP/1.1: 101 for an accepted handshake (RFC 6455 section 4.2.2).
fn response_head(response: &Response<RecvStream>, key: &[u8]) -> Vec<u8> {
    let mut head = if response.status().is_success() {
        let accept = Sha1::new().chain_update(key).chain_update(ACCEPT_SUFFIX).finalize();
        let accept = STANDARD.encode(accept);
        format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\n"
        )
    } else {
        format!("HTTP/1.1 {}\r\nConnection: close\r\n", response.status())
    }
    .into_bytes();
    for (name, value) in response.headers().iter().filter(|(name, _)| PASSED.contains(&name.as_str())) {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head
}

/// Passes the bytes of the client on. The end of its side is the end of the stream.
async fn pass_up(
    mut client: OwnedReadHalf,
    first: Bytes,
    mut stream: SendStream<Bytes>,
) -> Result<(), Error> {
    let mut data = first;
    loop {
        while !data.is_empty() {
            stream.reserve_capacity(data.len());
            let capacity = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
            // The server has ended the stream: it needs no more input.
            let Some(Ok(capacity)) = capacity else { return Ok(()) };
            if stream.send_data(data.split_to(capacity.min(data.len())), false).is_err() {
                return Ok(());
            }
        }
        let mut chunk = vec![0; CHUNK];
        let ended = std::future::poll_fn(|cx| stream.poll_reset(cx));
        let count = tokio::select! {
            count = client.read(&mut chunk) => count,
            _ = ended => return Ok(()),
        };
        match count {
            Ok(0) => {
                let _ = stream.send_data(Bytes::new(), true);
                return Ok(());
            }
            Ok(count) => {
                chunk.truncate(count);
                data = chunk.into();
            }
            // A reset of TCP is one of the stream (RFC 8441 section 5).
            Err(_) => {
                stream.send_reset(Reason::CANCEL);
                return Ok(());
            }
        }
    }
}

/// Passes the bytes of the server on. The end of the stream is the end of its side.
async fn pass_down(mut stream: RecvStream, mut client: OwnedWriteHalf) -> Result<(), Error> {
    while let Some(data) = stream.data().await {
        // A reset stream is a reset of TCP: dropping the client's socket ends it.
        let Ok(data) = data else { return Ok(()) };
        stream.flow_control().release_capacity(data.len())?;
        if client.write_all(&data).await.is_err() {
            return Ok(());
        }
    }
    let _: Option<HeaderMap> = stream.trailers().await.unwrap_or_default();
    let _ = client.shutdown().await;
    Ok(())
}

/// Headers of a handshake that are the same over both versions (RFC 8441 section 5).
const PASSED: [&str; 4] =
    ["origin", "sec-websocket-extensions", "sec-websocket-protocol", "sec-websocket-version"];

/// RFC 6455 section 1.3.
const ACCEPT_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

const CHUNK: usize = 64 << 10;
