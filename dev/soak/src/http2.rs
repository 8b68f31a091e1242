//! WebSockets and requests on the streams of one connection of HTTP/2.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use sinews_http::h2::{Config, ErrorCode, Event, FieldBuffer, H2Connection, RequestTarget, StreamId};
use sinews_testkit::Rng;

use crate::Fault;
use crate::client;
use crate::scenarios::World;
use crate::streams::{self, Stream, StreamConnection, find};

/// A connection and its streams.
struct Http2 {
    stream: TcpStream,
    machine: H2Connection,
    fields: FieldBuffer,
    started: Instant,
    streams: Vec<Stream>,
    /// Identifiers of all streams so far.
    ids: Vec<StreamId>,
}

/// Runs WebSockets and requests on a connection.
pub(crate) fn run(world: &World, rng: &mut Rng) -> Result<(), Fault> {
    streams::run(Http2::connect(world)?, world, rng)
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
            ids: Vec::new(),
        };
        while http2.machine.server_settings().is_none() {
            http2.exchange()?;
        }
        Ok(http2)
    }
}

impl StreamConnection for Http2 {
    const SCHEME: &'static str = "http";

    fn request(
        &mut self,
        target: &RequestTarget<'_>,
        fields: &[(&str, &str)],
        ends: bool,
    ) -> Result<u64, Fault> {
        let mut out = Vec::new();
        let id = self.machine.send_request(target, fields.iter().copied(), ends, &mut out)?;
        self.stream.write_all(&out)?;
        self.ids.push(id);
        Ok(id.get().into())
    }

    fn streams(&mut self) -> &mut Vec<Stream> {
        &mut self.streams
    }

    fn reset(&mut self, id: u64, before: &[u8]) -> Result<(), Fault> {
        let mut out = Vec::new();
        let Some(id) = stream_id(&self.ids, id) else { return Ok(()) };
        if !before.is_empty() {
            self.machine.send_data(id, before, false, &mut out)?;
        }
        self.machine.reset(id, ErrorCode::CANCEL);
        self.machine.write_control(&mut out);
        Ok(self.stream.write_all(&out)?)
    }

    fn abandon(self, rng: &mut Rng) -> Result<(), Fault> {
        if rng.below(2) == 0 { client::reset(&self.stream) } else { Ok(()) }
    }

    fn exchange(&mut self) -> Result<(), Fault> {
        let mut out = Vec::new();
        for stream in &mut self.streams {
            if !stream.unsent.is_empty()
                && !stream.is_reset
                && let Some(id) = stream_id(&self.ids, stream.id)
            {
                let sent = self.machine.send_data(id, &stream.unsent, false, &mut out)?;
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

fn stream_id(ids: &[StreamId], id: u64) -> Option<StreamId> {
    ids.iter().copied().find(|known| u64::from(known.get()) == id)
}

/// Applies an event. Returns consumed bytes of a stream.
fn handle(event: Event<'_>, streams: &mut [Stream]) -> Result<Option<(StreamId, usize)>, Fault> {
    match event {
        Event::Response { stream, head, ends } => {
            if let Some(found) = find(streams, stream.get().into()) {
                (found.status, found.has_ended) = (Some(head.status()), ends);
            }
        }
        Event::Data { stream, data, ends } => {
            let Some(found) = find(streams, stream.get().into()) else { return Ok(None) };
            found.receive(data)?;
            found.has_ended |= ends;
            return Ok(Some((stream, data.len())));
        }
        Event::Reset { stream, code, .. }
            if find(streams, stream.get().into())
                .is_some_and(|found| !found.is_reset && !found.has_ended) =>
        {
            return Err(format!("stream {} was reset with {code}", stream.get()).into());
        }
        Event::GoAway { code } => return Err(format!("the server ends the connection with {code}").into()),
        _ => {}
    }
    Ok(None)
}
