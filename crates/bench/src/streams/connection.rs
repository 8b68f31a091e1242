//! The binary messages from docs/book/src/server/streams.md, over WebSocket and plain TCP.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use sinews::{Config, Kind, blocking};

use super::transport::{ProducerAck, StreamTransport};

/// A server's addresses.
#[derive(Clone, Debug)]
pub(crate) struct ServerAddresses {
    /// WebSocket URL, without a path.
    pub(crate) url: String,
    pub(crate) tcp: SocketAddr,
}

impl ServerAddresses {
    /// Address for WebSocket and HTTP.
    pub(crate) fn address(&self) -> Result<SocketAddr, String> {
        let authority = self
            .url
            .strip_prefix("ws://")
            .ok_or_else(|| format!("{}: expected ws://HOST:PORT without TLS", self.url))?;
        let mut addresses = std::net::ToSocketAddrs::to_socket_addrs(authority)
            .map_err(|error| format!("{authority}: {error}"))?;
        addresses.next().ok_or_else(|| format!("{authority}: name has no address"))
    }
}

/// One connection to one stream.
#[expect(clippy::large_enum_variant, reason = "one per thread")]
pub(crate) enum StreamConnection {
    Tcp { socket: TcpStream, answer: Vec<u8> },
    WebSocket(blocking::WebSocket<TcpStream>),
}

/// All partitions in a stream.
pub(crate) const ALL: u16 = u16::MAX;

/// Bytes before each message's body.
const HEAD: usize = 8;
/// Each message's length prefix on plain TCP.
const LENGTH: usize = 4;

/// A reusable message, with its length prefix; WebSocket omits the prefix.
#[derive(Clone, Debug)]
pub(crate) struct EncodedMessage(Bytes);

/// The server's answers.
pub(crate) mod op {
    pub(crate) const WELCOME: u8 = 128;
    pub(crate) const PUBLISHED: u8 = 129;
    pub(crate) const SUBSCRIBED: u8 = 130;
    pub(crate) const BATCHES: u8 = 131;
    pub(crate) const COMMITTED: u8 = 132;
    pub(crate) const UNSUBSCRIBED: u8 = 133;
    pub(crate) const PONG: u8 = 134;
    pub(crate) const ASSIGNED: u8 = 140;
}

impl EncodedMessage {
    /// Builds a message to the first partition.
    pub(crate) fn new(op: u8, flags: u8, body: impl FnOnce(&mut BytesMut)) -> Self {
        Self::to(0, op, flags, body)
    }

    /// Builds a message to a partition, or to [`ALL`].
    pub(crate) fn to(partition: u16, op: u8, flags: u8, body: impl FnOnce(&mut BytesMut)) -> Self {
        let mut message = BytesMut::new();
        message.put_u32_le(0);
        message.put_slice(&[op, flags]);
        // The id is constant: one message is in flight at a time.
        message.put_u16_le(partition);
        message.put_u32_le(1);
        body(&mut message);
        let length = (message.len() - LENGTH) as u32;
        message[..LENGTH].copy_from_slice(&length.to_le_bytes());
        Self(message.freeze())
    }

    fn hello(stream: &str) -> Self {
        Self::new(0, 0, |body| {
            body.put_slice(&[1, stream.len() as u8]);
            body.put_slice(stream.as_bytes());
        })
    }

    pub(crate) fn publish(ack: ProducerAck, records: &[u8]) -> Self {
        Self::new(1, if ack == ProducerAck::Memory { 1 } else { 2 }, |body| body.put_slice(records))
    }

    pub(crate) fn fetch(offset: u64, most: u32) -> Self {
        Self::new(3, 0, |body| {
            body.put_u64_le(offset);
            body.put_u32_le(most);
        })
    }
}

impl StreamConnection {
    pub(crate) fn open(
        transport: StreamTransport,
        addresses: &ServerAddresses,
        stream: &str,
    ) -> Result<Self, String> {
        let mut connection = match transport {
            StreamTransport::Tcp => {
                let socket = connect(&addresses.tcp)?;
                Self::Tcp { socket, answer: Vec::new() }
            }
            StreamTransport::WebSocket => Self::WebSocket(websocket(addresses, stream)?),
        };
        if let Self::Tcp { socket, .. } = &mut connection {
            socket.write_all(&EncodedMessage::hello(stream).0).map_err(|error| format!("hello: {error}"))?;
        }
        connection.receive(op::WELCOME).map(|_| ())?;
        Ok(connection)
    }

    /// Sends a message, waits for the answer and returns its body.
    pub(crate) fn request(&mut self, message: &EncodedMessage, answer: u8) -> Result<&[u8], String> {
        self.send(message)?;
        self.receive(answer)
    }

    pub(crate) fn send(&mut self, message: &EncodedMessage) -> Result<(), String> {
        match self {
            Self::Tcp { socket, .. } => {
                socket.write_all(&message.0).map_err(|error| format!("sending: {error}"))?;
            }
            Self::WebSocket(websocket) => {
                let message = message.0.slice(LENGTH..);
                websocket.send(message).map_err(|error| format!("sending: {error}"))?;
            }
        }
        Ok(())
    }

    /// Returns the next message's body, which must have the given kind.
    fn receive(&mut self, expected: u8) -> Result<&[u8], String> {
        let (op, body) = self.next()?;
        if op == expected { Ok(body) } else { Err(format!("expected answer {expected}, got {op}")) }
    }

    /// Returns the next message's kind and body. An error message from the server is returned as an error.
    pub(crate) fn next(&mut self) -> Result<(u8, &[u8]), String> {
        let message = match self {
            Self::Tcp { socket, answer } => {
                let mut length = [0; LENGTH];
                let read = socket.read_exact(&mut length).and_then(|()| {
                    let length = u32::from_le_bytes(length) as usize;
                    if length > ANSWER_MAX {
                        return Err(std::io::Error::other(format!("an answer of {length} bytes")));
                    }
                    answer.resize(length, 0);
                    socket.read_exact(answer)
                });
                read.map_err(|error| format!("no answer: {error}"))?;
                answer.as_slice()
            }
            Self::WebSocket(websocket) => match websocket.next_borrowed() {
                Some(Ok(message)) if message.kind() == Kind::Binary => message.into_payload(),
                Some(Ok(_)) => return Err("server sent a text message instead of a binary one".to_owned()),
                Some(Err(error)) => return Err(format!("no answer: {error}")),
                None => return Err("the server has closed the connection".to_owned()),
            },
        };
        let (Some(op), Some(body)) = (message.first(), message.get(HEAD..)) else {
            return Err("answer is shorter than its header".to_owned());
        };
        if *op == 255 {
            let text = String::from_utf8_lossy(body.get(2..).unwrap_or_default());
            return Err(format!("server error: {text}"));
        }
        Ok((*op, body))
    }
}

pub(crate) fn connect(address: &SocketAddr) -> Result<TcpStream, String> {
    let failed = |error: std::io::Error| format!("{address}: {error}");
    let socket = TcpStream::connect_timeout(address, ANSWER_TIMEOUT).map_err(failed)?;
    socket.set_nodelay(true).map_err(failed)?;
    socket.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(failed)?;
    socket.set_write_timeout(Some(ANSWER_TIMEOUT)).map_err(failed)?;
    Ok(socket)
}

fn websocket(addresses: &ServerAddresses, stream: &str) -> Result<blocking::WebSocket<TcpStream>, String> {
    let address = addresses.address()?;
    let max = ANSWER_MAX as u64;
    let config = Config::default().with_max_message(max).with_max_frame(max);
    let url = format!("{}/streams/{stream}", addresses.url);
    let opened =
        blocking::connect(url).subprotocol("sinews.stream.v1").config(config).over(connect(&address)?).open();
    opened.map(|(websocket, _)| websocket).map_err(|error| format!("{}: {error}", addresses.url))
}

/// Answer timeout.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum bytes in an answer: a fetched batch is as large as the published batch.
const ANSWER_MAX: usize = 64 << 20;
