//! The plain echo on mio: a readiness server's minimum work, without any code of ours.
//!
//! It is a limit and not a product: it has no timers, no fairness between connections, no accept pause, no
//! shutdown.

use std::io::{self, Read, Write};
use std::thread;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

use crate::Error;

/// Serves on 127.0.0.1 until standard input is closed.
pub(crate) fn run(port: u16) -> Result<(), Error> {
    let mut server = Server::bind(port)?;
    let waker = Waker::new(server.poll.registry(), STOP)?;
    thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        waker.wake()
    });
    println!("{}", server.listener.local_addr()?);
    io::stdout().flush()?;
    server.serve()
}

struct Server {
    poll: Poll,
    listener: TcpListener,
    connections: Vec<Option<Connection>>,
    buffer: Box<[u8]>,
}

struct Connection {
    stream: TcpStream,
    /// Bytes that the kernel has not taken. While there are any, receiving is paused.
    pending: Vec<u8>,
}

impl Server {
    fn bind(port: u16) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut listener = TcpListener::bind(([127, 0, 0, 1], port).into())?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        Ok(Self { poll, listener, connections: Vec::new(), buffer: vec![0; BUFFER].into_boxed_slice() })
    }

    fn serve(&mut self) -> Result<(), Error> {
        let mut events = Events::with_capacity(1024);
        loop {
            match self.poll.poll(&mut events, None) {
                // A tracer such as strace interrupts the call.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                polled => polled?,
            }
            for event in &events {
                match event.token() {
                    STOP => return Ok(()),
                    LISTENER => self.accept()?,
                    Token(slot) => {
                        let Some(Some(connection)) = self.connections.get_mut(slot) else { continue };
                        if connection.turn(&mut self.buffer, event.is_read_closed()).is_err() {
                            self.connections[slot] = None;
                        }
                    }
                }
            }
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let mut stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            stream.set_nodelay(true)?;
            let free = self.connections.iter().position(Option::is_none);
            let slot = free.unwrap_or(self.connections.len());
            let both = Interest::READABLE | Interest::WRITABLE;
            self.poll.registry().register(&mut stream, Token(slot), both)?;
            self.connections.resize_with(self.connections.len().max(slot + 1), || None);
            self.connections[slot] = Some(Connection { stream, pending: Vec::new() });
        }
    }
}

impl Connection {
    /// Receives and sends until a call would block. An error closes the connection.
    fn turn(&mut self, buffer: &mut [u8], closed: bool) -> io::Result<()> {
        let outcome = self.flush().and_then(|()| {
            loop {
                let bytes = self.stream.read(buffer)?;
                if bytes == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let sent = match self.stream.write(&buffer[..bytes]) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                    other => other?,
                };
                if sent < bytes {
                    self.pending.extend_from_slice(&buffer[sent..bytes]);
                    return Ok(());
                }
                // A short receive has emptied the socket; more data triggers a new edge.
                if bytes < buffer.len() && !closed {
                    return Ok(());
                }
            }
        });
        match outcome {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            other => other,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.pending.is_empty() {
            let sent = self.stream.write(&self.pending)?;
            self.pending.drain(..sent);
        }
        Ok(())
    }
}

const STOP: Token = Token(usize::MAX - 1);
const LISTENER: Token = Token(usize::MAX - 2);

/// The engine's buffer size.
const BUFFER: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_reader_receives_every_byte() {
        let mut server = Server::bind(0).unwrap();
        let address = server.listener.local_addr().unwrap();
        let stop = Waker::new(server.poll.registry(), STOP).unwrap();
        let serving = thread::spawn(move || server.serve().unwrap());
        // More than both directions of the sockets hold, so the server has to buffer bytes and pause
        // receiving.
        let sent: Vec<u8> =
            (0..24 << 20).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let mut reader = std::net::TcpStream::connect(address).unwrap();
        let mut writer = reader.try_clone().unwrap();
        let copy = sent.clone();
        let writing = thread::spawn(move || {
            writer.write_all(&copy).unwrap();
            writer.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut back = Vec::new();
        reader.read_to_end(&mut back).unwrap();
        assert!(back == sent, "{} of {} bytes", back.len(), sent.len());
        writing.join().unwrap();
        stop.wake().unwrap();
        serving.join().unwrap();
    }
}
