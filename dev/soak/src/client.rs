//! A blocking client that strictly checks all received bytes, and many ways to disconnect.

use std::io::{self, ErrorKind, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

pub(crate) use sinews_testkit::TIMEOUT as PATIENCE;
use sinews_testkit::{Frame, RawSocket, Reply, Rng};
use socket2::{Domain, SockRef, Socket, Type};

use crate::Fault;

/// Path for all connections.
pub(crate) const ECHO_PATH: &str = "/echo";

/// Opens a connection with a time limit on every read and write, and with this receive buffer if there is one.
pub(crate) fn connect(address: SocketAddr, receive_bytes: Option<usize>) -> Result<TcpStream, Fault> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    if let Some(bytes) = receive_bytes {
        // Set before the connect, which negotiates the window.
        socket.set_recv_buffer_size(bytes)?;
    }
    socket.connect_timeout(&address.into(), PATIENCE)?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Closes a connection by a reset, not a FIN.
pub(crate) fn reset(stream: &TcpStream) -> Result<(), Fault> {
    Ok(SockRef::from(stream).set_linger(Some(Duration::ZERO))?)
}

/// A WebSocket client, which validates all received bytes against the protocol.
pub(crate) struct Client(RawSocket<TcpStream>);

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
    /// Opens a WebSocket to the echo path, with this receive buffer if there is one.
    pub(crate) fn open(address: SocketAddr, receive_bytes: Option<usize>) -> Result<Self, Fault> {
        let stream = connect(address, receive_bytes)?;
        Ok(Self(RawSocket::open(stream, ECHO_PATH, "localhost", "")??))
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.0.stream
    }

    pub(crate) fn send(&mut self, frame: &Frame) -> Result<(), Fault> {
        Ok(self.0.send(frame)?)
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        Ok(self.0.stream.write_all(bytes)?)
    }

    /// Returns the server's next frame, or `None` at the stream's end. Pings are answered.
    pub(crate) fn next(&mut self) -> Result<Option<Reply>, Fault> {
        let deadline = Instant::now() + PATIENCE;
        // Pings could otherwise hide a lost answer.
        while Instant::now() < deadline {
            match self.0.receive() {
                Ok(Some(Reply::Ping(payload))) => self.send(&Frame::pong(payload))?,
                // The read has the same limit, so the deadline has passed.
                Err(error) if is_timeout(&error) => {}
                reply => return Ok(reply?),
            }
        }
        Err(format!("no answer within {} s", PATIENCE.as_secs()).into())
    }

    /// Expects a frame or the end.
    fn expect_that(&mut self, what: &str, is_so: impl Fn(Option<&Reply>) -> bool) -> Result<(), Fault> {
        let reply = self.next()?;
        if is_so(reply.as_ref()) {
            Ok(())
        } else {
            Err(format!("{} in place of {what}", brief(&reply)).into())
        }
    }

    pub(crate) fn expect(&mut self, expected: Reply) -> Result<(), Fault> {
        let expected = Some(expected);
        self.expect_that(&brief(&expected), |reply| reply == expected.as_ref())
    }

    pub(crate) fn expect_close(&mut self, code: u16) -> Result<(), Fault> {
        self.expect_that("a Close", |reply| reply.is_some_and(|reply| reply.close_code() == Some(code)))
    }

    pub(crate) fn expect_end(&mut self) -> Result<(), Fault> {
        self.expect_that("the end", |reply| reply.is_none())
    }

    /// Sends a ping: its pong proves that the server has handled all earlier bytes.
    pub(crate) fn sync(&mut self) -> Result<(), Fault> {
        self.send(&Frame::ping("sync"))?;
        self.expect(Reply::Pong(b"sync".to_vec()))
    }

    /// Disconnects, after all messages are complete.
    pub(crate) fn leave(mut self, how: Leave) -> Result<(), Fault> {
        match how {
            Leave::Close => {
                self.send(&Frame::close(1000, "done"))?;
                self.expect_close(1000)?;
                self.expect_end()
            }
            Leave::HalfClose => {
                self.stream().shutdown(Shutdown::Write)?;
                match self.next()? {
                    None => Ok(()),
                    Some(Reply::Close(..)) => self.expect_end(),
                    other => Err(format!("{} behind our end", brief(&other)).into()),
                }
            }
            Leave::Drop => Ok(()),
            Leave::Reset => reset(self.stream()),
        }
    }

    /// Sends until the server takes no more for a while, as it must while we do not read. Returns how many bytes the
    /// server and the kernel took.
    pub(crate) fn send_until_stalled(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        self.stream().set_write_timeout(Some(STALL))?;
        let mut sent = 0;
        while sent < bytes.len() {
            match self.0.stream.write(&bytes[sent..]) {
                Ok(count) => sent += count,
                Err(error) if is_timeout(&error) => break,
                Err(error) => return Err(error.into()),
            }
        }
        self.stream().set_write_timeout(Some(PATIENCE))?;
        Ok(sent)
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Describes a reply briefly: messages may be large.
fn brief(reply: &Option<Reply>) -> String {
    match reply {
        None => "the end".to_owned(),
        Some(Reply::Message(kind, payload)) => {
            let start = &payload[..payload.len().min(16)];
            format!("a message ({kind:?}, {} bytes, {})", payload.len(), start.escape_ascii())
        }
        Some(other) => format!("{other:?}"),
    }
}

/// Time without progress that counts as a stall. It is not a check: the scenario merely continues.
const STALL: Duration = Duration::from_millis(200);
