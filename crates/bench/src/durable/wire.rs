//! The binary messages of docs/book/src/server/streams.md, over WebSocket and plain TCP.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use sinews::{Config, Kind, blocking};

use super::{Ack, Way};

/// Addresses of a server.
#[derive(Clone, Debug)]
pub(in super::super) struct Place {
    /// WebSocket URL, without a path.
    pub(in super::super) url: String,
    pub(in super::super) tcp: SocketAddr,
}

impl Place {
    /// Address of WebSocket and HTTP.
    pub(in super::super) fn address(&self) -> Result<SocketAddr, String> {
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
pub(in super::super) enum Wire {
    Tcp { socket: TcpStream, answer: Vec<u8> },
    WebSocket(blocking::WebSocket<TcpStream>),
}

/// All partitions of a stream.
pub(in super::super) const ALL: u16 = u16::MAX;

/// Bytes before the body of each message.
const HEAD: usize = 8;
/// Length prefix of each message on plain TCP.
const LENGTH: usize = 4;

/// A reusable message, with its length prefix; WebSocket omits the prefix.
#[derive(Clone, Debug)]
pub(in super::super) struct Message(Bytes);

/// Answers of the server.
pub(in super::super) mod op {
    pub(in super::super::super) const WELCOME: u8 = 128;
    pub(in super::super::super) const PUBLISHED: u8 = 129;
    pub(in super::super::super) const SUBSCRIBED: u8 = 130;
    pub(in super::super::super) const BATCHES: u8 = 131;
    pub(in super::super::super) const COMMITTED: u8 = 132;
    pub(in super::super::super) const UNSUBSCRIBED: u8 = 133;
    pub(in super::super::super) const PONG: u8 = 134;
    pub(in super::super::super) const ASSIGNED: u8 = 140;
}

impl Message {
    /// Builds a message to the first partition.
    pub(in super::super) fn new(op: u8, flags: u8, body: impl FnOnce(&mut BytesMut)) -> Self {
        Self::to(0, op, flags, body)
    }

    /// Builds a message to a partition, or to [`ALL`].
    pub(in super::super) fn to(partition: u16, op: u8, flags: u8, body: impl FnOnce(&mut BytesMut)) -> Self {
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

    pub(in super::super) fn publish(ack: Ack, records: &[u8]) -> Self {
        Self::new(1, if ack == Ack::Memory { 1 } else { 2 }, |body| body.put_slice(records))
    }

    pub(in super::super) fn fetch(offset: u64, most: u32) -> Self {
        Self::new(3, 0, |body| {
            body.put_u64_le(offset);
            body.put_u32_le(most);
        })
    }
}

impl Wire {
    pub(in super::super) fn open(way: Way, place: &Place, stream: &str) -> Result<Self, String> {
        let mut wire = match way {
            Way::Tcp => {
                let socket = connect(&place.tcp)?;
                Self::Tcp { socket, answer: Vec::new() }
            }
            Way::WebSocket => Self::WebSocket(websocket(place, stream)?),
        };
        if let Self::Tcp { socket, .. } = &mut wire {
            socket.write_all(&Message::hello(stream).0).map_err(|error| format!("hello: {error}"))?;
        }
        wire.hear(op::WELCOME).map(|_| ())?;
        Ok(wire)
    }

    /// Sends a message, waits for the answer and returns its body.
    pub(in super::super) fn call(&mut self, message: &Message, answer: u8) -> Result<&[u8], String> {
        self.say(message)?;
        self.hear(answer)
    }

    pub(in super::super) fn say(&mut self, message: &Message) -> Result<(), String> {
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

    /// Returns the body of the next message, which must be of the given kind.
    fn hear(&mut self, expected: u8) -> Result<&[u8], String> {
        let (op, body) = self.next()?;
        if op == expected { Ok(body) } else { Err(format!("expected answer {expected}, got {op}")) }
    }

    /// Returns the kind and body of the next message. An error message of the server is returned as an error.
    pub(in super::super) fn next(&mut self) -> Result<(u8, &[u8]), String> {
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

pub(in super::super) fn connect(address: &SocketAddr) -> Result<TcpStream, String> {
    let failed = |error: std::io::Error| format!("{address}: {error}");
    let socket = TcpStream::connect_timeout(address, PATIENCE).map_err(failed)?;
    socket.set_nodelay(true).map_err(failed)?;
    socket.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    socket.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    Ok(socket)
}

fn websocket(place: &Place, stream: &str) -> Result<blocking::WebSocket<TcpStream>, String> {
    let address = place.address()?;
    let max = ANSWER_MAX as u64;
    let config = Config::default().with_max_message(max).with_max_frame(max);
    let url = format!("{}/streams/{stream}", place.url);
    let opened =
        blocking::connect(url).subprotocol("sinews.stream.v1").config(config).over(connect(&address)?).open();
    opened.map(|(websocket, _)| websocket).map_err(|error| format!("{}: {error}", place.url))
}

/// Timeout of an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Maximum size of an answer in bytes: a fetched batch is as large as the published batch.
const ANSWER_MAX: usize = 64 << 20;
