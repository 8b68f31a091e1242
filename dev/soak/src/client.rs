//! A blocking client with strict checks of all received bytes, and many ways to disconnect.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use sinews_proto::handshake::{ClientHandshake, ClientRequest, ClientStep};
use sinews_proto::{Kind, Role};
use sinews_testkit::{Frame, Reader, Reply, Rng};
use socket2::{Domain, SockRef, Socket, Type};

use crate::Fault;

/// Longer than any answer takes on a busy machine; reached only when data is lost.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Opens a connection with a time limit on every read and write.
pub(crate) fn connect(address: SocketAddr) -> Result<TcpStream, Fault> {
    patient(TcpStream::connect_timeout(&address, PATIENCE)?)
}

/// Opens a connection with a small receive buffer.
pub(crate) fn connect_narrow(address: SocketAddr) -> Result<TcpStream, Fault> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    // Set before the connect, which negotiates the window.
    socket.set_recv_buffer_size(NARROW_BYTES)?;
    socket.connect_timeout(&address.into(), PATIENCE)?;
    patient(socket.into())
}

fn patient(stream: TcpStream) -> Result<TcpStream, Fault> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Closes a connection by a reset instead of a FIN.
pub(crate) fn reset(stream: &TcpStream) -> Result<(), Fault> {
    Ok(SockRef::from(stream).set_linger(Some(Duration::ZERO))?)
}

/// Returns the client's side of a handshake, and its request bytes.
pub(crate) fn handshake(path: &str, rng: &mut Rng) -> Result<(ClientHandshake, Vec<u8>), Fault> {
    let request = ClientRequest::new("localhost", path)?;
    let mut key = [0; 16];
    key.copy_from_slice(&rng.bytes(16));
    let handshake = request.start(key);
    let mut bytes = Vec::new();
    handshake.write_request(&mut bytes);
    Ok((handshake, bytes))
}

/// A WebSocket client, which validates all received bytes against the protocol.
pub(crate) struct Client {
    stream: TcpStream,
    reader: Reader,
    replies: VecDeque<Reply>,
    chunk: Box<[u8]>,
}

/// How a client disconnects.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Leave {
    /// A Close, its answer, the end of the transport.
    Close,
    /// Shuts down its sending side, and reads the server's remaining bytes to the end.
    HalfClose,
    /// Closes the socket without a Close frame.
    Drop,
    /// A reset.
    Reset,
}

impl Leave {
    const ALL: [Self; 4] = [Self::Close, Self::HalfClose, Self::Drop, Self::Reset];

    pub(crate) fn any(rng: &mut Rng) -> Self {
        Self::ALL[rng.below(Self::ALL.len())]
    }
}

impl Client {
    pub(crate) fn open(address: SocketAddr, path: &str, rng: &mut Rng) -> Result<Self, Fault> {
        Self::upgrade(connect(address)?, path, rng)
    }

    pub(crate) fn upgrade(mut stream: TcpStream, path: &str, rng: &mut Rng) -> Result<Self, Fault> {
        let (mut handshake, request) = handshake(path, rng)?;
        stream.write_all(&request)?;
        let mut chunk = vec![0; CHUNK_BYTES].into_boxed_slice();
        let mut answer = Vec::new();
        let done = loop {
            match stream.read(&mut chunk)? {
                0 => return Err("the connection ended during the handshake".into()),
                count => answer.extend_from_slice(&chunk[..count]),
            }
            if let ClientStep::Done(done) = handshake.read_response(&answer)? {
                break done;
            }
        };
        let mut reader = Reader::new(Role::Server, None);
        let replies = reader.read(&answer[done.consumed()..])?.into();
        Ok(Self { stream, reader, replies, chunk })
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(crate) fn send(&mut self, frame: &Frame) -> Result<(), Fault> {
        self.send_bytes(&frame.encode(Role::Client))
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        Ok(self.stream.write_all(bytes)?)
    }

    /// Returns the next frame of the server, or `None` at the end of the stream. Pings are answered.
    pub(crate) fn next(&mut self) -> Result<Option<Reply>, Fault> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            while let Some(reply) = self.replies.pop_front() {
                match reply {
                    Reply::Ping(payload) => self.send(&Frame::pong(payload))?,
                    reply => return Ok(Some(reply)),
                }
            }
            // Pings could otherwise hide a lost answer.
            if Instant::now() >= deadline {
                return Err(format!("no answer within {} s", PATIENCE.as_secs()).into());
            }
            match self.stream.read(&mut self.chunk) {
                Ok(0) => return Ok(None),
                Ok(count) => self.replies.extend(self.reader.read(&self.chunk[..count])?),
                // The read has the same limit, so the deadline has passed.
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(crate) fn expect(&mut self, expected: &Reply) -> Result<(), Fault> {
        match self.next()? {
            Some(reply) if reply == *expected => Ok(()),
            other => Err(format!("{} in place of {}", brief(other.as_ref()), brief(Some(expected))).into()),
        }
    }

    /// Sends a ping: its pong proves that the server has handled all earlier bytes.
    pub(crate) fn sync(&mut self) -> Result<(), Fault> {
        self.send(&Frame::ping("sync"))?;
        self.expect(&Reply::Pong(b"sync".to_vec()))
    }

    /// Disconnects, after all messages are complete.
    pub(crate) fn leave(mut self, how: Leave) -> Result<(), Fault> {
        match how {
            Leave::Close => {
                self.send(&Frame::close(1000, "done"))?;
                match self.next()? {
                    Some(Reply::Close(Some(1000), _)) => self.expect_end(),
                    other => Err(format!("{} in place of a Close", brief(other.as_ref())).into()),
                }
            }
            Leave::HalfClose => {
                self.stream.shutdown(Shutdown::Write)?;
                match self.next()? {
                    None => Ok(()),
                    Some(Reply::Close(..)) => self.expect_end(),
                    other => Err(format!("{} behind our end", brief(other.as_ref())).into()),
                }
            }
            Leave::Drop => Ok(()),
            Leave::Reset => reset(&self.stream),
        }
    }

    pub(crate) fn expect_end(&mut self) -> Result<(), Fault> {
        match self.next()? {
            None => Ok(()),
            other => Err(format!("{} in place of the end", brief(other.as_ref())).into()),
        }
    }

    /// Sends until the server takes no more for a while, as it must while we do not read. Returns the number
    /// of bytes that the server and the kernel took.
    pub(crate) fn send_until_stalled(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        self.stream.set_write_timeout(Some(STALL))?;
        let mut sent = 0;
        while sent < bytes.len() {
            match self.stream.write(&bytes[sent..]) {
                Ok(count) => sent += count,
                Err(error) if is_timeout(&error) => break,
                Err(error) => return Err(error.into()),
            }
        }
        self.stream.set_write_timeout(Some(PATIENCE))?;
        Ok(sent)
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

pub(crate) fn data(kind: Kind, payload: impl AsRef<[u8]>) -> Frame {
    match kind {
        Kind::Text => Frame::text(payload),
        Kind::Binary => Frame::binary(payload),
    }
}

/// Describes a reply briefly: messages may be large.
pub(crate) fn brief(reply: Option<&Reply>) -> String {
    match reply {
        None => "the end".to_owned(),
        Some(Reply::Message(kind, payload)) => {
            let start = &payload[..payload.len().min(16)];
            format!("a message ({kind:?}, {} bytes, {})", payload.len(), start.escape_ascii())
        }
        Some(other) => format!("{other:?}"),
    }
}

/// The kernel's minimum is used.
const NARROW_BYTES: usize = 2048;
const CHUNK_BYTES: usize = 64 << 10;
/// Time without progress that counts as a stall. It is not a check: the scenario merely continues.
const STALL: Duration = Duration::from_millis(200);
