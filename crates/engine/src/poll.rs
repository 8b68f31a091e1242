//! The readiness backend: epoll or kqueue through mio, edge-triggered.
//!
//! A socket is registered once, for both directions. An edge marks the connection readable; it stays
//! readable until a receive returns less than the buffer size, which means that the kernel has no more
//! bytes. So a typical message costs one receive, without a second receive that finds no bytes. A complete
//! send costs one system call; only a short send waits for the edge of the other direction.

mod accept;
mod broadcast;
mod connect;

use std::io::{self, IoSlice, Read, Write};
use std::mem;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd};
use std::time::Duration;

use mio::event::Event;
use mio::net::TcpStream;
use mio::unix::SourceFd;
use mio::{Events, Interest, Token, Waker};
use socket2::SockRef;

use self::accept::PollAcceptors;
use crate::backend::Backend;
use crate::slots::{ReadState, WriteState};
use crate::{
    App, CloseReason, ConnId, DatagramSocket, EngineConfig, Flow, Io, LargeBuffer, Listener, SendChain,
};

pub(crate) struct Poll<C> {
    poll: mio::Poll,
    events: Events,
    acceptors: PollAcceptors,
    /// Kernel-side state of each connection, by slot.
    links: Vec<Option<PollLink<C>>>,
    /// The receive buffer, lent to the application chunk by chunk.
    buffer: Box<[u8]>,
    receives_per_turn: u32,
    /// Outgoing connections that are established, or have failed.
    connected: Vec<ConnId>,
    /// Connections that may have bytes to receive, each at most once.
    readable: Vec<ConnId>,
    /// Connections whose blocked chain may continue.
    writable: Vec<ConnId>,
    /// Empty between turns: swapped with a list while that list is processed, to keep its memory.
    batch: Vec<ConnId>,
}

/// State of a connection in this backend.
struct PollLink<C> {
    stream: TcpStream,
    /// The connection is not established yet.
    connecting: bool,
    /// Bytes may be available.
    readable: bool,
    /// The peer's end or an error is pending, so a short receive does not mean that no event is left.
    hangup: bool,
    /// The connection is on the readable list.
    queued: bool,
    /// Large receives: the application may want them in its own buffer.
    bulk: bool,
    /// The kernel took only part of the chain; the next writable edge is pending.
    blocked: bool,
    /// The chain in flight.
    chain: Option<C>,
}

impl<A: App> Backend<A> for Poll<A::Chain> {
    fn has_work(&self, _: &A, io: &Io) -> bool {
        !self.readable.is_empty() || !self.writable.is_empty() || self.acceptors.have_work(io)
    }

    fn until_next_work(&self, io: &Io) -> Option<Duration> {
        self.acceptors.until_retry(io)
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        match self.poll.poll(&mut self.events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                self.events.clear();
                Ok(())
            }
            result => result,
        }
    }

    fn deliver(&mut self, app: &mut A, io: &mut Io) {
        self.sort_events(io);
        self.report_connected(app, io);
        let mut batch = mem::replace(&mut self.readable, mem::take(&mut self.batch));
        for conn in batch.drain(..) {
            self.receive_turn(app, io, conn);
            // An answer to this connection alone is sent while it is in the cache. A broadcast waits for
            // the end of the turn, so that one send carries it with other messages of the turn.
            if io.sends == [conn] && app.pending_sends() == 0 {
                io.sends.clear();
                self.start_send(app, io, conn);
            }
        }
        self.batch = batch;
        self.accept_turn(app, io);
    }

    fn execute_commands(&mut self, app: &mut A, io: &mut Io) {
        self.connect_listed(io);
        self.close_listed(app, io);
        while let Some(conn) = io.resumes.pop() {
            self.resume(io, conn);
        }
        while let Some(conn) = io.unsent_limits.pop() {
            self.limit_unsent(io, conn);
        }
        self.broadcast_listed(app, io);
        // No connection is on both lists: the first contains chains in flight, the second connections
        // without a chain.
        let mut batch = mem::replace(&mut self.writable, mem::take(&mut self.batch));
        for conn in batch.drain(..) {
            self.continue_send(app, io, conn);
        }
        self.batch = batch;
        let mut batch = mem::replace(&mut io.sends, mem::take(&mut self.batch));
        for conn in batch.drain(..) {
            self.start_send(app, io, conn);
        }
        self.batch = batch;
        self.close_listed(app, io);
        if !io.accepting() {
            self.acceptors.close();
        }
    }

    fn watch_datagrams(&mut self, index: usize, socket: &DatagramSocket) -> io::Result<()> {
        let token = Token(FIRST_DATAGRAMS + index);
        self.poll.registry().register(&mut SourceFd(&socket.as_raw_fd()), token, Interest::READABLE)
    }

    fn unwatch_datagrams(&mut self, _: usize, socket: &DatagramSocket) {
        // Another process may have the socket too, which would keep it registered.
        if let Err(error) = self.poll.registry().deregister(&mut SourceFd(&socket.as_raw_fd())) {
            tracing::warn!(%error, "cannot deregister a datagram socket");
        }
    }
}

impl<C: SendChain> Poll<C> {
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.poll.registry().as_fd()
    }

    pub(crate) fn new(config: &EngineConfig, listeners: Vec<Listener>) -> io::Result<(Self, Waker)> {
        let poll = mio::Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let acceptors = PollAcceptors::new(config, listeners, poll.registry())?;
        let poll = Self {
            poll,
            events: Events::with_capacity(EVENTS_PER_TURN),
            acceptors,
            links: Vec::new(),
            buffer: vec![0; config.loop_buffer()].into_boxed_slice(),
            receives_per_turn: config.receives_per_turn,
            connected: Vec::new(),
            readable: Vec::new(),
            writable: Vec::new(),
            batch: Vec::new(),
        };
        Ok((poll, waker))
    }

    /// Turns events into marks and lists. No callback runs here, so all events refer to open connections.
    fn sort_events(&mut self, io: &mut Io) {
        let first = self.acceptors.first_free_token();
        for event in &self.events {
            let Token(token) = event.token();
            if event.token() == WAKER {
                io.stats.wakes.add(1);
            } else if token < first {
                self.acceptors.mark_ready(token);
            } else if let Some(conn) = io.slots.id_at(token - first)
                && let Some(Some(link)) = self.links.get_mut(token - first)
            {
                if link.connecting && (event.is_writable() || event.is_write_closed() || event.is_error()) {
                    self.connected.push(conn);
                }
                if link.mark_writable(event) {
                    self.writable.push(conn);
                }
                if link.mark_readable(event, io, conn) {
                    self.readable.push(conn);
                }
            } else if let Some(index) = token.checked_sub(FIRST_DATAGRAMS) {
                io.datagrams.mark_ready(index);
            }
        }
    }

    /// Receives until no bytes are left, the application pauses or closes, or other connections must be
    /// served.
    fn receive_turn<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, conn: ConnId) {
        if let Some(link) = self.link(io, conn) {
            link.queued = false;
        }
        for _ in 0..self.receives_per_turn {
            if !io.receives(conn) {
                return;
            }
            match self.receive(app, io, conn) {
                AfterReceive::Done => return,
                AfterReceive::Yield => break,
                AfterReceive::More => {}
            }
        }
        self.queue_if_readable(io, conn);
    }

    /// Receives once.
    fn receive<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, conn: ConnId) -> AfterReceive {
        let Some(Some(link)) = self.links.get_mut(conn.index()) else { return AfterReceive::Done };
        let mut large = if link.bulk { app.lend_large(conn) } else { None };
        let requested = large.as_ref().map_or(self.buffer.len(), LargeBuffer::spare_capacity);
        io.stats.receives.add(1);
        let outcome = match &mut large {
            None => link.stream.read(&mut self.buffer),
            Some(_) if requested == 0 => Err(io::ErrorKind::Interrupted.into()),
            Some(large) => large.receive(&link.stream, requested),
        };
        let bytes = *outcome.as_ref().unwrap_or(&0);
        link.readable = bytes == requested || bytes > 0 && link.hangup;
        link.bulk = bytes == requested && bytes > 0 || large.is_some() && requested > 0;
        io.stats.received_bytes.add(bytes as u64);
        let next = if large.is_some() { AfterReceive::Yield } else { AfterReceive::More };
        let flow = match large {
            Some(LargeBuffer { buffer, .. }) => app.received_large(io, conn, buffer, bytes),
            None if bytes > 0 => app.received(io, conn, &mut self.buffer[..bytes]),
            None => Flow::Continue,
        };
        if flow == Flow::Pause {
            io.pause(conn);
        }
        if self.handle_receive_result(app, io, conn, outcome) { next } else { AfterReceive::Done }
    }

    /// Acts on the result of a receive. Returns whether more bytes may be available.
    fn handle_receive_result<A: App<Chain = C>>(
        &mut self,
        app: &mut A,
        io: &mut Io,
        conn: ConnId,
        outcome: io::Result<usize>,
    ) -> bool {
        let Some(Some(link)) = self.links.get_mut(conn.index()) else { return false };
        match outcome {
            Ok(0) => {
                io.receive_ended(conn);
                app.ended(io, conn);
                io.close_if_finished(conn);
                false
            }
            Ok(_) => link.readable,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                link.readable = true;
                true
            }
            Err(error) => {
                io.close_for(conn, || error.into());
                false
            }
        }
    }

    fn resume(&mut self, io: &mut Io, conn: ConnId) {
        if let Some(slot) = io.slots.live_mut(conn) {
            slot.resume_listed = false;
            // An edge during the pause has left its mark, so no edge is lost.
            self.queue_if_readable(io, conn);
        }
    }

    #[cfg_attr(not(target_os = "linux"), allow(unused_variables, clippy::unused_self))]
    fn limit_unsent(&mut self, io: &Io, conn: ConnId) {
        #[cfg(target_os = "linux")]
        if let Some(link) = self.link(io, conn)
            && let Err(error) = SockRef::from(&link.stream).set_tcp_notsent_lowat(Io::UNSENT_LIMIT)
        {
            tracing::debug!(%error, "cannot limit the unsent bytes of a connection");
        }
    }

    fn queue_if_readable(&mut self, io: &Io, conn: ConnId) {
        if io.receives(conn)
            && let Some(link) = self.link(io, conn)
            && link.readable
            && !mem::replace(&mut link.queued, true)
        {
            self.readable.push(conn);
        }
    }

    /// Asks the application for all queued bytes, and sends them.
    fn start_send<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, conn: ConnId) {
        let Some(slot) = io.slots.live_mut(conn) else { return };
        slot.send_listed = false;
        if slot.in_flight {
            // The rest of a broadcast; its end lists the connection again.
            return;
        }
        slot.send_wanted = false;
        let Some(chain) = app.start_send(conn) else { return self.shutdown_if_requested(io, conn) };
        slot.in_flight = true;
        if let Some(link) = self.link(io, conn) {
            link.chain = Some(chain);
            self.continue_send(app, io, conn);
        }
    }

    /// Sends the chain in flight: one system call.
    fn continue_send<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, conn: ConnId) {
        if io.slots.live_mut(conn).is_none() {
            return;
        }
        let Some(Some(link)) = self.links.get_mut(conn.index()) else { return };
        let Some(mut chain) = link.chain.take() else { return };
        let outcome =
            if chain.is_empty() { Ok(SentBytes::default()) } else { send(&mut link.stream, &chain, io) };
        match outcome {
            Ok(sent) => {
                chain.advance(sent.bytes);
                if chain.is_empty() {
                    app.finish_send(io, conn, chain, true);
                    return io.send_finished(conn);
                }
                link.blocked = sent.short;
                link.chain = Some(chain);
                if !sent.short {
                    self.writable.push(conn);
                }
                app.progressed(io, conn, sent.bytes);
            }
            Err(error) => {
                link.chain = Some(chain);
                match error.kind() {
                    io::ErrorKind::WouldBlock => link.blocked = true,
                    io::ErrorKind::Interrupted => self.writable.push(conn),
                    _ => io.close_for(conn, || error.into()),
                }
            }
        }
    }

    /// Shuts down the sending side if requested, after all bytes are sent.
    fn shutdown_if_requested(&mut self, io: &mut Io, conn: ConnId) {
        let Some(slot) = io.slots.live_mut(conn) else { return };
        if slot.sending != WriteState::Closing {
            return;
        }
        slot.sending = WriteState::Shut;
        let Some(link) = self.link(io, conn) else { return };
        match link.stream.shutdown(std::net::Shutdown::Write) {
            Ok(()) => io.close_if_finished(conn),
            Err(error) => io.close_for(conn, || error.into()),
        }
    }

    /// Closes all listed connections, including those that the `closed` callbacks list.
    fn close_listed<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io) {
        while let Some((conn, reason)) = io.closes.pop_front() {
            if let Some(link) = self.links.get_mut(conn.index()).and_then(Option::take) {
                // Closing the descriptor removes it from the poller.
                drop(link.stream);
                if let Some(chain) = link.chain {
                    app.finish_send(io, conn, chain, false);
                }
            }
            io.remove(conn);
            self.acceptors.retry_now();
            app.closed(io, conn, reason);
        }
    }

    /// The link of an open connection.
    fn link(&mut self, io: &Io, conn: ConnId) -> Option<&mut PollLink<C>> {
        io.slots.get(conn)?;
        self.links.get_mut(conn.index())?.as_mut()
    }
}

/// The next step after a receive.
enum AfterReceive {
    /// No more bytes, or reads are paused.
    Done,
    More,
    /// More bytes, after other connections: this connection received a lot.
    Yield,
}

impl<C> PollLink<C> {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            connecting: false,
            readable: false,
            hangup: false,
            queued: false,
            bulk: false,
            blocked: false,
            chain: None,
        }
    }

    /// Whether the event unblocks a chain: the kernel has capacity, or an error for the send to find.
    fn mark_writable(&mut self, event: &Event) -> bool {
        (event.is_writable() || event.is_write_closed() || event.is_error()) && mem::take(&mut self.blocked)
    }

    /// Whether the connection must be queued for receiving.
    fn mark_readable(&mut self, event: &Event, io: &mut Io, conn: ConnId) -> bool {
        if !(event.is_readable() || event.is_read_closed() || event.is_error()) {
            return false;
        }
        self.readable = true;
        self.hangup |= event.is_read_closed() || event.is_error();
        if io.slots.get(conn).is_some_and(|slot| slot.receiving == ReadState::Ended) {
            // After the peer's end a receive reports no error any more, so a reset is queried explicitly.
            if event.is_error() {
                let error = self.stream.take_error().ok().flatten();
                io.close_for(conn, || error.map_or(CloseReason::Reset, CloseReason::from));
            }
            return false;
        }
        io.receives(conn) && !mem::replace(&mut self.queued, true)
    }
}

/// The part of a chain that the kernel took.
#[derive(Default)]
struct SentBytes {
    bytes: usize,
    /// The kernel took less than it was offered: its buffer is full.
    short: bool,
}

/// One send: `send` for a single slice, `sendmsg` for several.
fn send<C: SendChain>(stream: &mut TcpStream, chain: &C, io: &Io) -> io::Result<SentBytes> {
    let mut slices = [IoSlice::new(&[]); SLICES];
    let count = chain.slices(&mut slices);
    let slices = &slices[..count.min(SLICES)];
    let offered: usize = slices.iter().map(|slice| slice.len()).sum();
    if offered == 0 {
        // A chain that has a length and yields no bytes would wait forever.
        return Err(io::Error::new(io::ErrorKind::WriteZero, "chain with unsent bytes returned no slices"));
    }
    io.stats.sends.add(1);
    let bytes = match slices {
        [one] => stream.write(one)?,
        several => SockRef::from(&*stream).send_vectored_with_flags(several, NO_SIGNAL)?,
    };
    io.stats.sent_bytes.add(bytes as u64);
    Ok(SentBytes { bytes, short: bytes < offered })
}

const WAKER: Token = Token(0);

/// Token of the first datagram socket: beyond the connection tokens, whose number is below 2^31.
const FIRST_DATAGRAMS: usize = 1 << (usize::BITS - 1);

/// Events per poll; further events follow in the next turn.
const EVENTS_PER_TURN: usize = 1024;

/// Slices of a chain per send; a longer chain continues in the next turn. Sixteen bytes each, on the stack.
const SLICES: usize = 64;

/// A send to a closed peer is an error, not a signal.
#[cfg(not(target_vendor = "apple"))]
const NO_SIGNAL: i32 = libc::MSG_NOSIGNAL;
#[cfg(target_vendor = "apple")]
const NO_SIGNAL: i32 = 0;

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::slots::ConnectionSlot;
    use crate::{Engine, ListenOptions};

    #[test]
    fn connection_state_is_small() {
        type Chain = io::Cursor<Vec<u8>>;
        // A slab adds at most a word; lists contain a connection's id a few times.
        let slot = size_of::<ConnectionSlot>() + size_of::<usize>();
        let link = size_of::<Option<PollLink<Chain>>>() - size_of::<Chain>();
        assert!(slot + link <= 80, "{slot} + {link} bytes in addition to the chain");
    }

    struct EmptyApp;

    impl App for EmptyApp {
        type Chain = io::Cursor<Vec<u8>>;
        type Mail = ();
        fn received(&mut self, _: &mut Io, _: ConnId, _: &mut [u8]) -> Flow {
            Flow::Continue
        }
        fn ended(&mut self, _: &mut Io, _: ConnId) {}
    }

    /// The socket of the only connection, as accepted.
    fn accepted(nodelay: bool) -> TcpStream {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = Listener::bind(address, &ListenOptions::default().with_nodelay(nodelay)).unwrap();
        let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut poll = Poll::new(&EngineConfig::default(), vec![listener]).unwrap().0;
        let mut io = Io::new(true);
        while io.connections() == 0 {
            Backend::<EmptyApp>::wait(&mut poll, None).unwrap();
            Backend::<EmptyApp>::deliver(&mut poll, &mut EmptyApp, &mut io);
        }
        poll.links.remove(0).unwrap().stream
    }

    #[test]
    fn accepted_sockets_inherit_nodelay_from_the_listener() {
        assert!(accepted(true).nodelay().unwrap());
        assert!(!accepted(false).nodelay().unwrap());
    }

    #[test]
    fn engine_can_move_to_another_thread() {
        fn sendable<T: Send>() {}
        fn shareable<T: Send + Sync>() {}
        sendable::<Engine<EmptyApp>>();
        shareable::<crate::Post<()>>();
    }
}
