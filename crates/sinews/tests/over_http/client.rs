//! A client's side of the handshake, for servers under test.

use std::sync::Arc;

use sinews::{Config, WebSocket};
use sinews_proto::handshake::{ClientError, ClientRequest, ClientStep};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A handshake by hand.
pub(crate) const REQUEST: &str = "GET / HTTP/1.1\r\nHost: example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

/// A client's WebSocket, and the head of the response.
pub(crate) async fn connect(
    mut stream: TcpStream,
    request: ClientRequest,
) -> Result<(WebSocket<TcpStream>, Option<String>, String), ClientError> {
    let mut handshake = request.start([7; 16]);
    let mut bytes = Vec::new();
    handshake.write_request(&mut bytes);
    stream.write_all(&bytes).await.expect("sent");
    let mut received = Vec::new();
    loop {
        stream.read_buf(&mut received).await.expect("received");
        if let ClientStep::Done(done) = handshake.read_response(&received)? {
            let (head, rest) = received.split_at(done.consumed());
            let head = String::from_utf8_lossy(head).into_owned();
            let config = Arc::new(Config::default().with_max_frame(64 << 20).with_max_message(64 << 20));
            let websocket = WebSocket::from_negotiated(stream, done.negotiated(), config, rest);
            return Ok((websocket, done.subprotocol().map(str::to_owned), head));
        }
    }
}
