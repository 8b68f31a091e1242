//! Runs one case against a server: whole, cut at every byte, byte by byte, and with another request behind
//! it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use sinews_conformance::http::{Answer, Case, read};

/// A server under test, and its cases' mode.
pub(crate) struct Server {
    address: SocketAddr,
    /// Connection for marker requests. The server has one thread, and serves its connections in turn: once it
    /// answers a marker, it has processed all earlier bytes on other connections.
    marker: TcpStream,
    pub(crate) connections: usize,
}

/// Time limit for an answer, which takes microseconds: long enough for any machine, and for a 408 to arrive first.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Concurrent connections.
const BATCH: usize = 128;

/// Maximum length at which a request is cut at every byte.
const CUT_ALL: usize = 700;

/// Cuts in longer requests.
const CUTS: usize = 64;

const MARKER: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";

/// A request that proves that the connection is still open, and closes it.
const LAST: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

/// A request that must not be read.
const SMUGGLED: &[u8] = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

/// The interim response to a client with `Expect: 100-continue`.
const LEAVE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

impl Server {
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Self> {
        Ok(Self { address, marker: connect(address)?, connections: 1 })
    }

    /// Runs the case in all ways.
    pub(crate) fn run(&mut self, case: &Case) -> Result<(), String> {
        let wire = &case.wire[..];
        self.whole(wire, case, 1).map_err(|why| format!("whole: {why}"))?;
        let len = wire.len();
        let cuts: Vec<usize> = if len <= CUT_ALL {
            (1..len).collect()
        } else {
            (1..=CUTS).map(|part| part * (len - 1) / CUTS).collect()
        };
        for batch in cuts.chunks(BATCH) {
            self.cut(wire, case, batch)?;
        }
        if len <= CUT_ALL {
            self.byte_by_byte(wire, case).map_err(|why| format!("byte by byte: {why}"))?;
        }
        let behind = match case.ends {
            _ if case.answers.is_empty() => return Ok(()),
            true => self.whole(&[wire, SMUGGLED].concat(), case, 1),
            false => self.whole(&wire.repeat(2), case, 2),
        };
        behind.map_err(|why| format!("with another behind: {why}"))
    }

    fn whole(&mut self, wire: &[u8], case: &Case, times: usize) -> Result<(), String> {
        let mut stream = self.open()?;
        send(&mut stream, wire);
        self.finish(stream, Vec::new(), case, times)
    }

    /// Sends the part before its cut on each connection; when the server has processed all parts, the rest.
    fn cut(&mut self, wire: &[u8], case: &Case, cuts: &[usize]) -> Result<(), String> {
        let mut streams = Vec::new();
        for &cut in cuts {
            let mut stream = self.open()?;
            send(&mut stream, &wire[..cut]);
            streams.push((cut, stream));
        }
        self.wait_until_seen()?;
        for (cut, mut stream) in streams {
            let context = |why: String| format!("cut at {cut}: {why}");
            let early = self.early(&mut stream, wire, cut, case).map_err(context)?;
            send(&mut stream, &wire[cut..]);
            self.finish(stream, early, case, 1).map_err(context)?;
        }
        Ok(())
    }

    /// Checks the answer to an incomplete request: none, unless the server rejects it or waits for its body.
    fn early(&self, stream: &mut TcpStream, wire: &[u8], cut: usize, case: &Case) -> Result<Vec<u8>, String> {
        let head = wire.windows(4).position(|window| window == b"\r\n\r\n").map_or(wire.len(), |at| at + 4);
        let is_sound = case.answers.first().is_none_or(|first| first.status < 400);
        let early = available(stream).map_err(|error| error.to_string())?;
        if cut < head && is_sound && !early.is_empty() {
            return Err(format!("answered before its head was whole: {}", shown(&early)));
        }
        let echoes = !case.ends && case.echo().is_some_and(|body| !body.is_empty());
        let waits = asks_for_leave(wire) && echoes;
        if cut == head && waits && early != LEAVE {
            return Err(format!("{} in place of 100 (Continue)", shown(&early)));
        }
        Ok(early)
    }

    fn byte_by_byte(&mut self, wire: &[u8], case: &Case) -> Result<(), String> {
        let mut stream = self.open()?;
        for byte in wire {
            send(&mut stream, &[*byte]);
            self.ask_marker()?;
        }
        self.finish(stream, Vec::new(), case, 1)
    }

    /// Reads the expected answers, and no further bytes.
    fn finish(
        &mut self,
        mut stream: TcpStream,
        mut received: Vec<u8>,
        case: &Case,
        times: usize,
    ) -> Result<(), String> {
        if case.answers.is_empty() {
            self.wait_until_seen()?;
            let early = available(&mut stream).map_err(|error| error.to_string())?;
            return if early.is_empty() { Ok(()) } else { Err(format!("answered: {}", shown(&early))) };
        }
        let leave = asks_for_leave(&case.wire);
        for round in 0..times {
            for (place, expected) in case.answers.iter().enumerate() {
                let last = case.ends && round + 1 == times && place + 1 == case.answers.len();
                take(&mut stream, &mut received, expected, last, leave)?;
            }
        }
        if !case.ends {
            send(&mut stream, LAST);
            let alive = take_any(&mut stream, &mut received)?;
            if alive != 200 {
                return Err(format!("{alive} for the request behind"));
            }
        }
        stream.read_to_end(&mut received).map_err(|error| format!("no end: {error}"))?;
        if received.is_empty() { Ok(()) } else { Err(format!("unexpected bytes: {}", shown(&received))) }
    }

    fn open(&mut self) -> Result<TcpStream, String> {
        self.connections += 1;
        connect(self.address).map_err(|error| format!("connect: {error}"))
    }

    /// Waits until the server has processed all sent bytes: the first answer may be from the same event-loop turn.
    fn wait_until_seen(&mut self) -> Result<(), String> {
        self.ask_marker()?;
        self.ask_marker()
    }

    fn ask_marker(&mut self) -> Result<(), String> {
        send(&mut self.marker, MARKER);
        let mut received = Vec::new();
        take_any(&mut self.marker, &mut received).map(|_| ()).map_err(|why| format!("beside the case: {why}"))
    }
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    Ok(stream)
}

/// Sends bytes and ignores errors: a server that has rejected the beginning may have closed the connection;
/// its answer is still to be read.
fn send(stream: &mut TcpStream, bytes: &[u8]) {
    let _ = stream.write_all(bytes);
}

fn asks_for_leave(wire: &[u8]) -> bool {
    wire.windows(12).any(|window| window.eq_ignore_ascii_case(b"100-continue"))
}

/// Takes one answer from the received bytes and checks it; a 100 (Continue) may precede it.
fn take(
    stream: &mut TcpStream,
    received: &mut Vec<u8>,
    expected: &Answer,
    last: bool,
    leave: bool,
) -> Result<(), String> {
    loop {
        if leave && expected.status != 100 && received.starts_with(LEAVE) {
            received.drain(..LEAVE.len());
        }
        if let Some((found, len)) = read(received, expected.of_head)? {
            received.drain(..len);
            return found.check(expected, last);
        }
        more(stream, received)?;
    }
}

/// Returns the next answer's status.
fn take_any(stream: &mut TcpStream, received: &mut Vec<u8>) -> Result<u16, String> {
    loop {
        if let Some((found, len)) = read(received, false)? {
            received.drain(..len);
            return Ok(found.status());
        }
        more(stream, received)?;
    }
}

fn more(stream: &mut TcpStream, received: &mut Vec<u8>) -> Result<(), String> {
    let mut chunk = [0; 4096];
    match stream.read(&mut chunk) {
        Ok(0) => Err(format!("the connection ended behind {}", shown(received))),
        Ok(len) => {
            received.extend_from_slice(&chunk[..len]);
            Ok(())
        }
        Err(error) => Err(format!("{error} behind {}", shown(received))),
    }
}

/// Returns the available bytes, without waiting.
fn available(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    stream.set_nonblocking(true)?;
    let mut chunk = [0; 4096];
    let found = match stream.read(&mut chunk) {
        Ok(len) => chunk[..len].to_vec(),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Vec::new(),
        Err(error) => return Err(error),
    };
    stream.set_nonblocking(false)?;
    Ok(found)
}

fn shown(bytes: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(bytes).chars().take(120).collect();
    format!("{text:?}")
}
