//! The load: one thread, many connections, a closed loop.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::Error;
use crate::connect::{STALL_LIMIT, connect, shake_hands};
use crate::load::Batch;
use crate::round::{Done, Work};

/// The connections of one load to one target.
#[derive(Debug)]
pub(crate) struct Client {
    poll: Poll,
    events: Events,
    connections: Vec<Connection>,
    batch: Batch,
    buffer: Box<[u8]>,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    /// Bytes of the request that the kernel has taken.
    sent: usize,
    /// Bytes of the reply that have arrived.
    received: usize,
}

impl Client {
    /// Connects and runs one batch on every connection. Performs a WebSocket handshake if `websocket`
    /// contains the request path. Verifies the content of the reply if it is known.
    pub(crate) fn connect(
        address: SocketAddr,
        connections: usize,
        websocket: Option<&str>,
        batch: Batch,
    ) -> Result<Self, Error> {
        let poll = Poll::new()?;
        let mut streams = Vec::with_capacity(connections);
        for index in 0..connections {
            let mut stream = connect(address)?;
            if let Some(path) = websocket {
                shake_hands(&mut stream, path, index as u64, None)?;
            }
            stream.set_nonblocking(true)?;
            let mut stream = TcpStream::from_std(stream);
            let both = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(&mut stream, Token(index), both)?;
            streams.push(Connection { stream, sent: 0, received: 0 });
        }
        let buffer = vec![0; RECEIVE_BYTES].into_boxed_slice();
        let events = Events::with_capacity(connections.max(16));
        let mut client = Self { poll, events, connections: streams, batch, buffer };
        let first = if client.batch.exact { Self::work::<true> } else { Self::work::<false> };
        first(&mut client, Duration::ZERO)?;
        Ok(client)
    }

    fn work<const CHECK: bool>(&mut self, window: Duration) -> Result<Done, Error> {
        let start = Instant::now();
        let (mut progress, mut batches) = (start, 0);
        for connection in &mut self.connections {
            connection.start(&self.batch)?;
        }
        let mut active = self.connections.len();
        while active > 0 {
            // Polls without sleeping: a wakeup of this thread would be charged to the server, which sends.
            self.poll.poll(&mut self.events, Some(Duration::ZERO))?;
            let now = Instant::now();
            for event in &self.events {
                let connection = &mut self.connections[event.token().0];
                if event.is_writable() {
                    connection.write(&self.batch)?;
                }
                if event.is_readable() && connection.read::<CHECK>(&self.batch, &mut self.buffer)? {
                    batches += 1;
                    if now.duration_since(start) < window {
                        connection.start(&self.batch)?;
                    } else {
                        active -= 1;
                    }
                }
            }
            if !self.events.is_empty() {
                progress = now;
            } else if now.duration_since(progress) > STALL_LIMIT {
                return Err(format!("no byte for {STALL_LIMIT:?}, {active} connections wait").into());
            }
        }
        Ok(Done { units: batches * self.batch.messages, elapsed: start.elapsed() })
    }
}

impl Work for Client {
    /// Sends batches until the time has passed and every message in flight is answered. Verifies the length
    /// of each reply.
    fn run(&mut self, window: Duration) -> Result<Done, Error> {
        // Discards the pings that arrived during long turns of other servers. The next message serves as the
        // answer.
        for connection in &mut self.connections {
            connection.discard(&mut self.buffer)?;
        }
        self.work::<false>(window)
    }
}

impl Connection {
    fn start(&mut self, batch: &Batch) -> io::Result<()> {
        (self.sent, self.received) = (0, 0);
        self.write(batch)
    }

    /// Writes the rest of the request until the kernel takes no more.
    fn write(&mut self, batch: &Batch) -> io::Result<()> {
        while self.sent < batch.request.len() {
            match self.stream.write(&batch.request[self.sent..]) {
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn discard(&mut self, buffer: &mut [u8]) -> Result<(), Error> {
        loop {
            match self.stream.read(buffer) {
                Ok(0) => return Err("the target closed a connection".into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives the available bytes. Returns whether the reply is complete.
    fn read<const CHECK: bool>(&mut self, batch: &Batch, buffer: &mut [u8]) -> Result<bool, Error> {
        loop {
            let bytes = match self.stream.read(buffer) {
                Ok(0) => return Err("the target closed a connection".into()),
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error.into()),
            };
            let expected = &batch.reply[self.received..];
            if bytes > expected.len() {
                return Err("the target sent more bytes than expected".into());
            }
            if CHECK && buffer[..bytes] != expected[..bytes] {
                return Err("the echo differs from the sent bytes".into());
            }
            self.received += bytes;
            if self.received == batch.reply.len() {
                return Ok(true);
            }
            // A short receive has emptied the socket; more data triggers a new edge.
            if bytes < buffer.len() {
                return Ok(false);
            }
        }
    }
}

/// Fits into the caches; the servers use the same size.
const RECEIVE_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// A server for one connection that replies with `reply` to each four bytes, or closes if it is empty.
    fn server(reply: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            while stream.read_exact(&mut [0; 4]).is_ok() && !reply.is_empty() {
                stream.write_all(reply).unwrap();
            }
        });
        address
    }

    fn connect(reply: &'static [u8]) -> Result<Client, Error> {
        let batch = Batch { request: b"ping".to_vec(), reply: b"ping".to_vec(), messages: 2, exact: true };
        Client::connect(server(reply), 1, None, batch)
    }

    #[test]
    fn a_right_echo_is_counted() {
        let mut client = connect(b"ping").unwrap();
        assert_eq!(client.run(Duration::ZERO).unwrap().units, 2);
        let more = client.run(Duration::from_millis(20)).unwrap();
        assert!(more.units >= 2 && more.units.is_multiple_of(2) && more.elapsed >= Duration::from_millis(20));
    }

    #[test]
    fn a_wrong_echo_is_an_error() {
        assert!(connect(b"pong").unwrap_err().to_string().contains("differs"));
        assert!(connect(b"pings").unwrap_err().to_string().contains("more"));
        assert!(connect(b"").unwrap_err().to_string().contains("closed"));
    }
}
