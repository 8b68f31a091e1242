//! Passes HTTP/1.1 WebSocket clients on to an HTTP/2 server: each handshake becomes an extended CONNECT (RFC 8441) on
//! one connection that all clients share, and the WebSocket's bytes pass unchanged. Suites that speak HTTP/1.1 only
//! test a server over HTTP/2 this way. `http2-proxy SERVER` prints its address.
//!
//! It uses the crate `h2`, in clear text: an implementation other than the server's.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use h2::client::{SendRequest, handshake};
use h2::ext::Protocol;
use h2::{Ping, Reason, RecvStream, SendStream};
use http::{HeaderMap, Method, Request};
use sinews_conformance::proxy::{Error, ProxiedHandshake};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;

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

/// The connection for all clients, which is made again once the server has ended it.
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
            // Each stream reports the connection's end.
            let _ = connection.await;
        });
        // The setting is in the server's first frame.
        pings.ping(Ping::opaque()).await?;
        if !requests.is_extended_connect_protocol_enabled() {
            return Err("the server offers no WebSockets over HTTP/2".into());
        }
        Ok(current.insert(requests).clone())
    }
}

/// Passes one client on.
async fn pass(mut client: TcpStream, shared: &SharedConnection) -> Result<(), Error> {
    let handshake = ProxiedHandshake::read(&mut client).await?;
    let mut request = Request::new(());
    *request.method_mut() = Method::CONNECT;
    *request.uri_mut() = format!("http://{}{}", shared.server, handshake.target).parse()?;
    request.extensions_mut().insert(Protocol::from_static("websocket"));
    for (name, value) in &handshake.headers {
        request.headers_mut().append(*name, value.as_str().try_into()?);
    }
    let mut requests = shared.requests().await?.ready().await?;
    let (response, send) = requests.send_request(request, false)?;
    let response = response.await?;
    let headers = response.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    client.write_all(&handshake.response(response.status().as_u16(), headers)).await?;
    let (read, write) = client.into_split();
    let (upward, downward) =
        tokio::join!(pass_up(read, handshake.behind, send), pass_down(response.into_body(), write));
    upward.and(downward)
}

/// Passes the client's bytes on. The end of its side ends the stream.
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
            // A TCP reset resets the stream (RFC 8441 section 5).
            Err(_) => {
                stream.send_reset(Reason::CANCEL);
                return Ok(());
            }
        }
    }
}

/// Passes the server's bytes on. The stream's end ends the server's side.
async fn pass_down(mut stream: RecvStream, mut client: OwnedWriteHalf) -> Result<(), Error> {
    while let Some(data) = stream.data().await {
        // A stream reset is a TCP reset: dropping the client's socket ends it.
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

const CHUNK: usize = 64 << 10;
