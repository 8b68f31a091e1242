//! WebSockets and requests on the streams of one connection of HTTP/2 or HTTP/3.

use std::collections::VecDeque;

use sinews_http::h2::RequestTarget;
use sinews_proto::Role;
use sinews_testkit::{Frame, Reader, Reply, Rng};

use crate::Fault;
use crate::client::{self, data};
use crate::scenarios::{PATHS, World, message};

/// A WebSocket, or a request.
pub(crate) struct Stream {
    pub(crate) id: u64,
    pub(crate) status: Option<u16>,
    /// Bytes for the server, which its windows delay.
    pub(crate) unsent: Vec<u8>,
    pub(crate) reader: Option<Reader>,
    pub(crate) replies: VecDeque<Reply>,
    pub(crate) body: Vec<u8>,
    pub(crate) has_ended: bool,
    /// This client has reset the stream.
    pub(crate) is_reset: bool,
}

/// A connection with streams.
pub(crate) trait StreamConnection {
    /// `http`, or `https` over TLS.
    const SCHEME: &'static str;

    /// Sends the head of a request, and returns the identifier of its stream.
    fn request(
        &mut self,
        target: &RequestTarget<'_>,
        fields: &[(&str, &str)],
        ends: bool,
    ) -> Result<u64, Fault>;

    fn streams(&mut self) -> &mut Vec<Stream>;

    /// Sends what the windows permit, and receives once.
    fn exchange(&mut self) -> Result<(), Fault>;

    /// Resets a stream, after these bytes.
    fn reset(&mut self, id: u64, before: &[u8]) -> Result<(), Fault>;

    /// Ends the connection without an end of its streams.
    fn abandon(self, rng: &mut Rng) -> Result<(), Fault>;
}

/// Opens WebSockets and requests at random, echoes messages on all at a time, and leaves in one of several ways.
pub(crate) fn run<C: StreamConnection>(mut connection: C, world: &World, rng: &mut Rng) -> Result<(), Fault> {
    for _ in 0..=rng.below(12) {
        websocket(&mut connection, world)?;
    }
    for _ in 0..=rng.below(4) {
        echo(&mut connection, world, rng)?;
        let (path, status, part) = PATHS[rng.below(PATHS.len())];
        get(&mut connection, path, status, part)?;
        if rng.below(3) == 0 {
            reset_one(&mut connection, rng)?;
            websocket(&mut connection, world)?;
        }
    }
    leave(connection, rng)
}

fn open<C: StreamConnection>(
    connection: &mut C,
    target: &RequestTarget<'_>,
    fields: &[(&str, &str)],
    ends: bool,
) -> Result<usize, Fault> {
    let id = connection.request(&target.with_scheme(C::SCHEME), fields, ends)?;
    let streams = connection.streams();
    streams.push(Stream {
        id,
        status: None,
        unsent: Vec::new(),
        reader: (!ends).then(|| Reader::new(Role::Server, None)),
        replies: VecDeque::new(),
        body: Vec::new(),
        has_ended: false,
        is_reset: false,
    });
    Ok(streams.len() - 1)
}

fn websocket<C: StreamConnection>(connection: &mut C, world: &World) -> Result<(), Fault> {
    world.tally.connected(1);
    let target = RequestTarget::connect("websocket", "localhost", "/echo");
    let index = open(connection, &target, &[("sec-websocket-version", "13")], false)?;
    while connection.streams()[index].status.is_none() {
        connection.exchange()?;
    }
    match connection.streams()[index].status {
        Some(200) => Ok(()),
        status => Err(format!("a handshake was answered with {status:?}").into()),
    }
}

fn get<C: StreamConnection>(connection: &mut C, path: &str, status: u16, part: &str) -> Result<(), Fault> {
    let target = RequestTarget::new("GET", C::SCHEME, "localhost", path);
    let index = open(connection, &target, &[], true)?;
    while !connection.streams()[index].has_ended {
        connection.exchange()?;
    }
    let stream = connection.streams().remove(index);
    let body = String::from_utf8_lossy(&stream.body);
    match stream.status == Some(status) && body.contains(part) {
        true => Ok(()),
        false => Err(format!("GET {path} answered {:?} {body}", stream.status).into()),
    }
}

fn sockets<C: StreamConnection>(connection: &mut C) -> Vec<usize> {
    let is_socket = |stream: &Stream| stream.reader.is_some() && !stream.is_reset && !stream.has_ended;
    let streams = connection.streams();
    (0..streams.len()).filter(|index| is_socket(&streams[*index])).collect()
}

/// Sends messages on all WebSockets, and expects them back in order on each.
fn echo<C: StreamConnection>(connection: &mut C, world: &World, rng: &mut Rng) -> Result<(), Fault> {
    let mut expected = Vec::new();
    for index in sockets(connection) {
        for _ in 0..=rng.below(6) {
            let end = if rng.below(8) == 0 { LARGE } else { SMALL };
            let size = rng.below(end);
            let (kind, payload) = message(rng, size);
            let frame = data(kind, &payload).key(rng.key()).encode(Role::Client);
            connection.streams()[index].unsent.extend(frame);
            expected.push((index, Reply::Message(kind, payload)));
        }
    }
    for (index, message) in expected {
        let reply = loop {
            match connection.streams()[index].replies.pop_front() {
                Some(reply) => break reply,
                None => connection.exchange()?,
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
fn reset_one<C: StreamConnection>(connection: &mut C, rng: &mut Rng) -> Result<(), Fault> {
    let sockets = sockets(connection);
    let Some(&index) = sockets.get(rng.below(sockets.len().max(1))) else { return Ok(()) };
    let half = match rng.below(2) {
        0 => Frame::text("half a message").fin(false).key(rng.key()).encode(Role::Client),
        _ => Vec::new(),
    };
    let stream = &mut connection.streams()[index];
    stream.is_reset = true;
    let id = stream.id;
    connection.reset(id, &half)
}

/// Closes all WebSockets in order, or only the connection.
fn leave<C: StreamConnection>(mut connection: C, rng: &mut Rng) -> Result<(), Fault> {
    if rng.below(3) < 2 {
        return connection.abandon(rng);
    }
    for index in sockets(&mut connection) {
        let close = Frame::close(1000, "").key(rng.key()).encode(Role::Client);
        connection.streams()[index].unsent.extend(close);
    }
    for index in sockets(&mut connection) {
        while !connection.streams()[index].has_ended {
            connection.exchange()?;
        }
        let reply = connection.streams()[index].replies.pop_front();
        if reply.as_ref().and_then(Reply::close_code) != Some(1000) {
            return Err(format!("{} in place of a Close", client::brief(reply.as_ref())).into());
        }
    }
    Ok(())
}

pub(crate) fn find(streams: &mut [Stream], id: u64) -> Option<&mut Stream> {
    streams.iter_mut().find(|stream| stream.id == id)
}

impl Stream {
    /// Handles content.
    pub(crate) fn receive(&mut self, data: &[u8]) -> Result<(), Fault> {
        match &mut self.reader {
            Some(reader) => self.replies.extend(reader.read(data).map_err(|fault| format!("{fault:?}"))?),
            None => self.body.extend_from_slice(data),
        }
        Ok(())
    }
}

const SMALL: usize = 2000;
/// More than the window of a stream.
const LARGE: usize = 200 << 10;
