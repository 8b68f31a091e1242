//! Passes handshakes from HTTP/1.1 WebSocket clients on as extended CONNECT requests: the part that HTTP/2 and HTTP/3
//! share.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use sha1_smol::Sha1;
use sinews_proto::http::{HeadLimits, HeadScanner, HeaderSlots, RequestHead};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

/// A client's error, or the server's.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// A client's handshake.
pub struct ProxiedHandshake {
    /// Path and query.
    pub target: String,
    /// Headers that are the same over all versions.
    pub headers: Vec<(&'static str, String)>,
    /// Bytes behind the handshake.
    pub behind: Bytes,
    key: Vec<u8>,
}

impl ProxiedHandshake {
    /// Reads a handshake.
    ///
    /// # Errors
    /// The head is invalid, or no handshake.
    pub async fn read(client: &mut TcpStream) -> Result<Self, Error> {
        let (head, behind) = read_head(client).await?;
        let (limits, mut slots) = (HeadLimits::new(), HeaderSlots::new());
        let head = RequestHead::parse(&head, &limits, &mut slots)?;
        let key = head.header("sec-websocket-key").next().ok_or("no Sec-WebSocket-Key")?.to_vec();
        let mut headers = Vec::new();
        for name in PASSED {
            for value in head.header(name) {
                headers.push((name, String::from_utf8(value.to_vec())?));
            }
        }
        Ok(Self { target: head.target().to_owned(), headers, behind, key })
    }

    /// Returns the HTTP/1.1 response: 101 for an accepted handshake (RFC 6455 section 4.2.2).
    pub fn response<'h>(&self, status: u16, headers: impl Iterator<Item = (&'h str, &'h [u8])>) -> Vec<u8> {
        let mut head = if (200..300).contains(&status) {
            let mut hash = Sha1::from(&self.key);
            hash.update(ACCEPT_SUFFIX);
            let accept = STANDARD.encode(hash.digest().bytes());
            format!(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Accept: {accept}\r\n"
            )
        } else {
            format!("HTTP/1.1 {status} \r\nConnection: close\r\n")
        }
        .into_bytes();
        for (name, value) in headers.filter(|(name, _)| PASSED.contains(name)) {
            head.extend_from_slice(name.as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value);
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        head
    }
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

/// Handshake headers that are the same over all versions (RFC 8441 section 5).
const PASSED: [&str; 4] =
    ["origin", "sec-websocket-extensions", "sec-websocket-protocol", "sec-websocket-version"];

/// RFC 6455 section 1.3.
const ACCEPT_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
