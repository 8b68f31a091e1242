//! WebSockets and requests on the streams of one connection of HTTP/2.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use sinews_http::h2::{Config, ErrorCode, Event, FieldBuffer, H2Connection, RequestTarget, StreamId};
use sinews_proto::Role;
use sinews_testkit::{Frame, Reader, Reply, Rng};

use crate::Fault;
use crate::client::{self, data};
use crate::scenarios::{PATHS, World, message};

/// A connection and its streams.
struct Http2 {
    stream: TcpStream,
    machine: H2Connection,
    fields: FieldBuffer,
    started: Instant,
    streams: Vec<Stream>,
}

/// A WebSocket, or a request.
struct Stream {
    id: StreamId,
    status: Option<u16>,
    /// Bytes for the server, which its windows delay.
    unsent: Vec<u8>,
    reader: Option<Reader>,
    replies: VecDeque<Reply>,
    body: Vec<u8>,
    has_ended: bool,
    /// This client has reset the stream.
    is_reset: bool,
}

/// Opens WebSockets and requests at random, echoes messages on all at a time, and leaves in one of several ways.
pub(crate) fn run(world: &World, rng: &mut Rng) -> Result<(), Fault> {
    let mut http2 = Http2::connect(world)?;
    for _ in 0..=rng.below(12) {
        http2.websocket(world)?;
    }
    for _ in 0..=rng.below(4) {
        http2.echo(world, rng)?;
        let (path, status, part) = PATHS[rng.below(PATHS.len())];
        http2.get(path, status, part)?;
        if rng.below(3) == 0 {
            http2.reset_one(rng)?;
            http2.websocket(world)?;
        }
    }
    http2.leave(rng)
}

impl Http2 {
    fn connect(world: &World) -> Result<Self, Fault> {
        world.tally.connected(1);
        let mut http2 = Self {
            stream: client::connect(world.address)?,
            machine: H2Connection::client(Config::new()),
            fields: FieldBuffer::new(),
            started: Instant::now(),
            streams: Vec::new(),
        };
        while http2.machine.server_settings().is_none() {
            http2.exchange()?;
        }
        Ok(http2)
    }

    fn open(
        &mut self,
        target: &RequestTarget<'_>,
        fields: &[(&str, &str)],
        ends: bool,
    ) -> Result<usize, Fault> {
        let mut out = Vec::new();
        let id = self.machine.send_request(target, fields.iter().copied(), ends, &mut out)?;
        self.stream.write_all(&out)?;
        self.streams.push(Stream {
            id,
            status: None,
            unsent: Vec::new(),
            reader: (!ends).then(|| Reader::new(Role::Server, None)),
            replies: VecDeque::new(),
            body: Vec::new(),
            has_ended: false,
            is_reset: false,
        });
        Ok(self.streams.len() - 1)
    }

    fn websocket(&mut self, world: &World) -> Result<(), Fault> {
        world.tally.connected(1);
        let target = RequestTarget::connect("websocket", "localhost", "/echo").with_scheme("http");
        let index = self.open(&target, &[("sec-websocket-version", "13")], false)?;
        while self.streams[index].status.is_none() {
            self.exchange()?;
        }
        match self.streams[index].status {
            Some(200) => Ok(()),
            status => Err(format!("a handshake was answered with {status:?}").into()),
        }
    }

    fn get(&mut self, path: &str, status: u16, part: &str) -> Result<(), Fault> {
        let index = self.open(&RequestTarget::new("GET", "http", "localhost", path), &[], true)?;
        while !self.streams[index].has_ended {
            self.exchange()?;
        }
        let stream = self.streams.remove(index);
        let body = String::from_utf8_lossy(&stream.body);
        match stream.status == Some(status) && body.contains(part) {
            true => Ok(()),
            false => Err(format!("GET {path} answered {:?} {body}", stream.status).into()),
        }
    }

    fn sockets(&self) -> Vec<usize> {
        let is_socket = |stream: &Stream| stream.reader.is_some() && !stream.is_reset && !stream.has_ended;
        (0..self.streams.len()).filter(|index| is_socket(&self.streams[*index])).collect()
    }

    /// Sends messages on all WebSockets, and expects them back in order on each.
    fn echo(&mut self, world: &World, rng: &mut Rng) -> Result<(), Fault> {
        let mut expected = Vec::new();
        for index in self.sockets() {
            for _ in 0..=rng.below(6) {
                let end = if rng.below(8) == 0 { LARGE } else { SMALL };
                let size = rng.below(end);
                let (kind, payload) = message(rng, size);
                let frame = data(kind, &payload).key(rng.key()).encode(Role::Client);
                self.streams[index].unsent.extend(frame);
                expected.push((index, Reply::Message(kind, payload)));
            }
        }
        for (index, message) in expected {
            let reply = loop {
                match self.streams[index].replies.pop_front() {
                    Some(reply) => break reply,
                    None => self.exchange()?,
                }
            };
            if reply != message {
                let got = client::brief(Some(&reply));
                return Err(format!("{got} in place of {}", client::brief(Some(&message))).into());
            }
            if let Reply::Message(_, payload) = &reply {
                world.tally.right(payload);
            }
        }
        Ok(())
    }

    /// Resets a WebSocket, maybe within a message.
    fn reset_one(&mut self, rng: &mut Rng) -> Result<(), Fault> {
        let sockets = self.sockets();
        let Some(&index) = sockets.get(rng.below(sockets.len().max(1))) else { return Ok(()) };
        let id = self.streams[index].id;
        let mut out = Vec::new();
        if rng.below(2) == 0 {
            let half = Frame::text("half a message").fin(false).key(rng.key()).encode(Role::Client);
            self.machine.send_data(id, &half, false, &mut out)?;
        }
        self.machine.reset(id, ErrorCode::CANCEL);
        self.machine.write_control(&mut out);
        self.streams[index].is_reset = true;
        Ok(self.stream.write_all(&out)?)
    }

    /// Closes all WebSockets in order, or only the connection.
    fn leave(mut self, rng: &mut Rng) -> Result<(), Fault> {
        match rng.below(3) {
            0 => client::reset(&self.stream),
            1 => Ok(()),
            _ => {
                for index in self.sockets() {
                    let close = Frame::close(1000, "").key(rng.key()).encode(Role::Client);
                    self.streams[index].unsent.extend(close);
                }
                for index in self.sockets() {
                    while !self.streams[index].has_ended {
                        self.exchange()?;
                    }
                    let reply = self.streams[index].replies.pop_front();
                    if reply.as_ref().and_then(Reply::close_code) != Some(1000) {
                        return Err(format!("{} in place of a Close", client::brief(reply.as_ref())).into());
                    }
                }
                Ok(())
            }
        }
    }

    /// Sends what the windows permit, and receives once.
    fn exchange(&mut self) -> Result<(), Fault> {
        let mut out = Vec::new();
        for stream in &mut self.streams {
            if !stream.unsent.is_empty() && !stream.is_reset {
                let sent = self.machine.send_data(stream.id, &stream.unsent, false, &mut out)?;
                stream.unsent.drain(..sent);
            }
        }
        self.machine.write_control(&mut out);
        self.stream.write_all(&out)?;
        let mut chunk = [0; 16 << 10];
        let count = self.stream.read(&mut chunk)?;
        if count == 0 {
            return Err("the server closed a connection with streams".into());
        }
        let mut input = &chunk[..count];
        let now = self.started.elapsed();
        while let Some(event) = self.machine.receive(&mut input, &mut self.fields, now)? {
            if let Some((stream, bytes)) = handle(event, &mut self.streams)? {
                self.machine.release(stream, bytes);
            }
        }
        Ok(())
    }
}

fn find(streams: &mut [Stream], id: StreamId) -> Option<&mut Stream> {
    streams.iter_mut().find(|stream| stream.id == id)
}

/// Applies an event. Returns consumed bytes of a stream.
fn handle(event: Event<'_>, streams: &mut [Stream]) -> Result<Option<(StreamId, usize)>, Fault> {
    match event {
        Event::Response { stream, head, ends } => {
            if let Some(found) = find(streams, stream) {
                (found.status, found.has_ended) = (Some(head.status()), ends);
            }
        }
        Event::Data { stream, data, ends } => {
            let Some(found) = find(streams, stream) else { return Ok(None) };
            match &mut found.reader {
                Some(reader) => {
                    found.replies.extend(reader.read(data).map_err(|fault| format!("{fault:?}"))?)
                }
                None => found.body.extend_from_slice(data),
            }
            found.has_ended |= ends;
            return Ok(Some((stream, data.len())));
        }
        Event::Reset { stream, code, .. }
            if find(streams, stream).is_some_and(|found| !found.is_reset && !found.has_ended) =>
        {
            return Err(format!("stream {} was reset with {code}", stream.get()).into());
        }
        Event::GoAway { code } => return Err(format!("the server ends the connection with {code}").into()),
        _ => {}
    }
    Ok(None)
}

const SMALL: usize = 2000;
/// More than the window of a stream.
const LARGE: usize = 200 << 10;
