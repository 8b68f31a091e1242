//! The binary messages of docs/book/src/server/streams.md, over WebSocket and over plain TCP.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use sinews::{Config, Kind, blocking};

use super::{Ack, Way};

/// Where a server is.
#[derive(Clone, Debug)]
pub(in super::super) struct Place {
    /// Of WebSocket, without a path.
    pub(in super::super) url: String,
    pub(in super::super) tcp: SocketAddr,
}

impl Place {
    /// Of WebSocket and HTTP.
    pub(in super::super) fn address(&self) -> Result<SocketAddr, String> {
        let authority = self
            .url
            .strip_prefix("ws://")
            .ok_or_else(|| format!("{}: expected ws://HOST:PORT: this is measured without TLS", self.url))?;
        let mut addresses = std::net::ToSocketAddrs::to_socket_addrs(authority)
            .map_err(|error| format!("{authority}: {error}"))?;
        addresses.next().ok_or_else(|| format!("{authority}: no address"))
    }
}

/// One connection, to one stream.
#[expect(clippy::large_enum_variant, reason = "there is one for each thread")]
pub(in super::super) enum Wire {
    Tcp { socket: TcpStream, answer: Vec<u8> },
    WebSocket(blocking::WebSocket<TcpStream>),
}

/// All partitions of a stream.
pub(in super::super) const ALL: u16 = u16::MAX;

/// Bytes before the body of each message.
const HEAD: usize = 8;
/// And before each message on plain TCP.
const LENGTH: usize = 4;

/// A message that is sent as often as is wanted: with its length in front, which WebSocket does not need.
#[derive(Clone, Debug)]
pub(in super::super) struct Message(Bytes);

/// What the server answers.
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
    /// Any message to the first partition.
    pub(in super::super) fn new(op: u8, flags: u8, body: impl FnOnce(&mut BytesMut)) -> Self {
        Self::to(0, op, flags, body)
    }

    /// Any message to that partition, or to [`ALL`].
    pub(in super::super) fn to(partition: u16, op: u8, flags: u8, body: impl FnOnce(&mut BytesMut)) -> Self {
        let mut message = BytesMut::new();
        message.put_u32_le(0);
        message.put_slice(&[op, flags]);
        // An id that is the same for all, since one is on its way at a time.
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

    /// Says something and waits for the answer, of which it gives the body.
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

    /// The body of the next message, which must be of this kind.
    fn hear(&mut self, expected: u8) -> Result<&[u8], String> {
        let (op, body) = self.next()?;
        if op == expected { Ok(body) } else { Err(format!("expected an answer {expected} in place of {op}")) }
    }

    /// The next message: its kind and its body. An error that the server tells is one.
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
                Some(Ok(_)) => return Err("an answer in text".to_owned()),
                Some(Err(error)) => return Err(format!("no answer: {error}")),
                None => return Err("the server has closed the connection".to_owned()),
            },
        };
        let (Some(op), Some(body)) = (message.first(), message.get(HEAD..)) else {
            return Err("an answer without a head".to_owned());
        };
        if *op == 255 {
            let text = String::from_utf8_lossy(body.get(2..).unwrap_or_default());
            return Err(format!("the server says: {text}"));
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

/// How long a server has for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes of an answer, at most: a fetched batch, which is as large as what was published.
const ANSWER_MAX: usize = 64 << 20;
