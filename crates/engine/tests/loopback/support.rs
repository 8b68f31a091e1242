//! An application that is a closure, checks the contract of its callbacks, and records its events.

use std::collections::{HashMap, HashSet, VecDeque};
use std::env::VarError;
use std::io::{IoSlice, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sinews_engine::{
    App, BackendChoice, CloseReason, ConnId, ConnectOptions, ConnectionOrigin, Engine, EngineConfig, Flow,
    Io, LargeBuffer, ListenOptions, Listener, Remote, SendChain, Stats,
};

/// Longer than any test takes on a busy machine; reached only if an event is lost.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Default settings of the tests, on the backend under test.
pub(crate) fn config() -> EngineConfig {
    EngineConfig::default().with_backend(backend())
}

/// The backend in `SINEWS_TEST_BACKEND`; without it, the best available.
fn backend() -> BackendChoice {
    match std::env::var("SINEWS_TEST_BACKEND").as_deref() {
        Err(VarError::NotPresent) => BackendChoice::Auto,
        Ok("poll") => BackendChoice::Poll,
        Ok("uring") => BackendChoice::Uring,
        other => panic!("SINEWS_TEST_BACKEND is {other:?}; expected poll or uring"),
    }
}

/// One callback.
#[derive(Debug)]
pub(crate) enum Event {
    Started,
    Connected(ConnId),
    Accepted(ConnId, ConnectionOrigin),
    Received(ConnId, Vec<u8>),
    Ended(ConnId),
    Progressed(ConnId, usize),
    Finished(ConnId, bool),
    Closed(ConnId, CloseReason),
    Timer(ConnId),
    AppTimer,
    Mail(Vec<u64>),
}

/// Kind of an event, for tests that act on one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Started,
    Connected,
    Accepted,
    Received,
    Ended,
    Progressed,
    Finished,
    Closed,
    Timer,
    AppTimer,
    Mail,
}

impl Event {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Started => Kind::Started,
            Self::Connected(..) => Kind::Connected,
            Self::Accepted(..) => Kind::Accepted,
            Self::Received(..) => Kind::Received,
            Self::Ended(..) => Kind::Ended,
            Self::Progressed(..) => Kind::Progressed,
            Self::Finished(..) => Kind::Finished,
            Self::Closed(..) => Kind::Closed,
            Self::Timer(..) => Kind::Timer,
            Self::AppTimer => Kind::AppTimer,
            Self::Mail(..) => Kind::Mail,
        }
    }

    pub(crate) fn conn(&self) -> Option<ConnId> {
        match self {
            Self::Connected(conn)
            | Self::Accepted(conn, _)
            | Self::Received(conn, _)
            | Self::Ended(conn)
            | Self::Progressed(conn, _)
            | Self::Finished(conn, _)
            | Self::Closed(conn, _)
            | Self::Timer(conn) => Some(*conn),
            Self::Started | Self::AppTimer | Self::Mail(_) => None,
        }
    }
}

/// Queued bytes, piece by piece.
#[derive(Default)]
pub(crate) struct Queues {
    queues: HashMap<ConnId, VecDeque<Vec<u8>>>,
    open: Vec<ConnId>,
    /// Requested and not connected.
    asked: HashSet<ConnId>,
}

impl Queues {
    pub(crate) fn push(&mut self, conn: ConnId, piece: impl Into<Vec<u8>>) {
        let piece = piece.into();
        if !piece.is_empty() {
            self.queues.entry(conn).or_default().push_back(piece);
        }
    }

    pub(crate) fn connect(&mut self, io: &mut Io, to: impl Into<Remote>, options: &ConnectOptions) -> ConnId {
        let conn = io.connect(to, options);
        assert!(self.asked.insert(conn), "an id names one connection");
        conn
    }

    /// Connections between accepted and closed, oldest first.
    pub(crate) fn open_connections(&self) -> &[ConnId] {
        &self.open
    }

    /// The only connection of a test.
    pub(crate) fn only(&self) -> ConnId {
        assert_eq!(self.open.len(), 1);
        self.open[0]
    }
}

/// Pieces sent together, the first possibly partly sent.
#[derive(Debug)]
pub(crate) struct Pieces {
    pieces: VecDeque<Vec<u8>>,
    gone: usize,
}

impl SendChain for Pieces {
    fn len(&self) -> usize {
        self.pieces.iter().map(Vec::len).sum::<usize>() - self.gone
    }

    fn slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        let mut skip = self.gone;
        let mut count = 0;
        for (slot, piece) in out.iter_mut().zip(&self.pieces) {
            *slot = IoSlice::new(&piece[skip..]);
            skip = 0;
            count += 1;
        }
        count
    }

    fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.len(), "advance past the end of the chain");
        self.gone += bytes;
        while self.pieces.front().is_some_and(|piece| piece.len() <= self.gone) {
            self.gone -= self.pieces.pop_front().unwrap().len();
        }
    }
}

/// The callbacks that the contract allows next on a connection.
#[derive(Default)]
struct ConnectionState {
    paused: bool,
    ended: bool,
    in_flight: bool,
    failed: bool,
    lent: bool,
}

pub(crate) type Rule = Box<dyn FnMut(&mut Io, &mut Queues, &Event) -> Flow>;

pub(crate) struct Probe {
    pub(crate) events: Vec<Event>,
    pub(crate) queues: Queues,
    rule: Rule,
    connections: HashMap<ConnId, ConnectionState>,
    /// Maximum bytes per lent buffer; 0 to lend none.
    lends: usize,
    /// Sum over all connections.
    pub(crate) received_large: usize,
}

impl Probe {
    pub(crate) fn new(rule: impl FnMut(&mut Io, &mut Queues, &Event) -> Flow + 'static) -> Self {
        Self {
            events: Vec::new(),
            queues: Queues::default(),
            rule: Box::new(rule),
            connections: HashMap::new(),
            lends: 0,
            received_large: 0,
        }
    }

    /// The same, with bulk received into lent buffers.
    pub(crate) fn with_large_buffers(mut self, most: usize) -> Self {
        self.lends = most;
        self
    }

    /// Echoes received bytes, and ends when the peer does.
    pub(crate) fn echo() -> Self {
        Self::new(|io, queues, event| {
            echo(io, queues, event);
            Flow::Continue
        })
    }

    /// Reads all bytes and sends none.
    pub(crate) fn echo_nothing() -> Self {
        Self::new(|_, _, _| Flow::Continue)
    }

    pub(crate) fn count(&self, kind: Kind) -> usize {
        self.events.iter().filter(|event| event.kind() == kind).count()
    }

    pub(crate) fn received(&self, conn: ConnId) -> Vec<u8> {
        let chunks = self.events.iter().filter_map(|event| match event {
            Event::Received(from, chunk) if *from == conn => Some(chunk.as_slice()),
            _ => None,
        });
        chunks.collect::<Vec<_>>().concat()
    }

    pub(crate) fn accepted(&self) -> Vec<ConnId> {
        let accepted = self.events.iter().filter(|event| event.kind() == Kind::Accepted);
        accepted.filter_map(Event::conn).collect()
    }

    pub(crate) fn close_reason(&self, conn: ConnId) -> Option<&CloseReason> {
        self.events.iter().find_map(|event| match event {
            Event::Closed(closed, reason) if *closed == conn => Some(reason),
            _ => None,
        })
    }

    /// Connections between accepted and closed.
    pub(crate) fn open_connections(&self) -> usize {
        self.connections.len()
    }

    fn state(&mut self, conn: ConnId) -> &mut ConnectionState {
        self.connections.get_mut(&conn).expect("callbacks come between accepted and closed")
    }

    fn record_event(&mut self, io: &mut Io, event: Event) -> Flow {
        let flow = (self.rule)(io, &mut self.queues, &event);
        self.events.push(event);
        flow
    }
}

pub(crate) fn echo(io: &mut Io, queues: &mut Queues, event: &Event) {
    match event {
        Event::Received(conn, chunk) => {
            queues.push(*conn, chunk.as_slice());
            io.send(*conn);
        }
        Event::Ended(conn) => io.shutdown(*conn),
        _ => {}
    }
}

impl App for Probe {
    type Chain = Pieces;
    type Mail = u64;

    fn accepted(&mut self, io: &mut Io, conn: ConnId, from: ConnectionOrigin) {
        let before = self.connections.insert(conn, ConnectionState::default());
        assert!(before.is_none(), "an id names one connection");
        assert!(!self.connections.keys().any(|other| *other != conn && other.index() == conn.index()));
        self.queues.open.push(conn);
        self.record_event(io, Event::Accepted(conn, from));
    }

    fn started(&mut self, io: &mut Io) {
        assert!(self.events.is_empty());
        self.record_event(io, Event::Started);
    }

    fn connected(&mut self, io: &mut Io, conn: ConnId) {
        assert!(self.queues.asked.remove(&conn), "connected once, and on request");
        self.connections.insert(conn, ConnectionState::default());
        self.queues.open.push(conn);
        self.record_event(io, Event::Connected(conn));
    }

    fn received(&mut self, io: &mut Io, conn: ConnId, chunk: &mut [u8]) -> Flow {
        let state = self.state(conn);
        assert!(!state.paused && !state.ended, "no chunk is received in a pause or after the end");
        assert!(!chunk.is_empty() && !state.lent, "while a buffer is lent, no other chunk is received");
        let flow = self.record_event(io, Event::Received(conn, chunk.to_vec()));
        // Modified in place, like unmasking: the loop must not read it again.
        chunk.fill(0xEE);
        self.state(conn).paused = flow == Flow::Pause;
        flow
    }

    fn awaits_large(&self, _: ConnId) -> bool {
        self.lends > 0
    }

    fn lend_large(&mut self, conn: ConnId) -> Option<LargeBuffer> {
        let most = self.lends;
        let state = self.state(conn);
        assert!(!state.paused && !state.ended && !std::mem::replace(&mut state.lent, most > 0));
        let mut buffer = HELD_BEFORE.to_vec();
        buffer.reserve(most);
        (most > 0).then_some(LargeBuffer { buffer, limit: most })
    }

    fn received_large(&mut self, io: &mut Io, conn: ConnId, buffer: Vec<u8>, received: usize) -> Flow {
        let state = self.state(conn);
        assert!(!state.paused && !state.ended && std::mem::replace(&mut state.lent, false));
        let chunk = buffer.strip_prefix(HELD_BEFORE).expect("the earlier content is unchanged");
        assert!(chunk.len() == received && received <= self.lends);
        if received == 0 {
            return Flow::Continue;
        }
        self.received_large += received;
        let flow = self.record_event(io, Event::Received(conn, chunk.to_vec()));
        self.state(conn).paused = flow == Flow::Pause;
        flow
    }

    fn ended(&mut self, io: &mut Io, conn: ConnId) {
        let state = self.state(conn);
        assert!(!state.lent, "the buffer is returned before the end");
        assert!(!state.paused && !std::mem::replace(&mut state.ended, true), "one end, and not in a pause");
        self.record_event(io, Event::Ended(conn));
    }

    fn start_send(&mut self, conn: ConnId) -> Option<Pieces> {
        let state = self.state(conn);
        assert!(!state.in_flight && !state.failed, "one chain at a time, none after a failure");
        let pieces = self.queues.queues.remove(&conn).filter(|pieces| !pieces.is_empty())?;
        self.state(conn).in_flight = true;
        Some(Pieces { pieces, gone: 0 })
    }

    fn progressed(&mut self, io: &mut Io, conn: ConnId, bytes: usize) {
        assert!(self.state(conn).in_flight && bytes > 0);
        self.record_event(io, Event::Progressed(conn, bytes));
    }

    fn take_unsent(&mut self, _: &mut Io, conn: ConnId, rest: Bytes) -> Option<Pieces> {
        let in_flight = &mut self.state(conn).in_flight;
        assert!(!std::mem::replace(in_flight, true), "one chain at a time");
        Some(Pieces { pieces: VecDeque::from([rest.to_vec()]), gone: 0 })
    }

    fn finish_send(&mut self, io: &mut Io, conn: ConnId, chain: Pieces, complete: bool) {
        assert_eq!(chain.is_empty(), complete);
        let state = self.state(conn);
        assert!(std::mem::replace(&mut state.in_flight, false), "a chain is returned once");
        state.failed |= !complete;
        self.record_event(io, Event::Finished(conn, complete));
    }

    fn closed(&mut self, io: &mut Io, conn: ConnId, reason: CloseReason) {
        if !self.queues.asked.remove(&conn) {
            let state = self.connections.remove(&conn).expect("closed once, and after accepted or connect");
            assert!(!state.in_flight, "the chain was returned first");
        }
        assert_eq!(io.connections(), self.connections.len() + self.queues.asked.len());
        self.queues.queues.remove(&conn);
        self.queues.open.retain(|open| *open != conn);
        self.record_event(io, Event::Closed(conn, reason));
    }

    fn timer(&mut self, io: &mut Io, conn: ConnId) {
        assert!(self.connections.contains_key(&conn) || self.queues.asked.contains(&conn));
        self.record_event(io, Event::Timer(conn));
    }

    fn app_timer(&mut self, io: &mut Io) {
        self.record_event(io, Event::AppTimer);
    }

    fn mail(&mut self, io: &mut Io, mail: &mut Vec<u64>) {
        assert!(!mail.is_empty());
        let mail = std::mem::take(mail);
        for number in &mail {
            // Convention of these tests: this mail resumes all connections.
            if *number == RESUME_ALL {
                for (conn, state) in &mut self.connections {
                    state.paused = false;
                    io.resume(*conn);
                }
            }
        }
        self.record_event(io, Event::Mail(mail));
    }
}

/// Content of a lent buffer before the receive.
const HELD_BEFORE: &[u8] = b"before";

pub(crate) const RESUME_ALL: u64 = u64::MAX;

/// An engine, its application, and its address. Clients live in the same thread where possible: their
/// written bytes are in the kernel at once, so the tests do not depend on scheduling.
pub(crate) struct Host {
    pub(crate) engine: Engine<Probe>,
    pub(crate) app: Probe,
    pub(crate) address: SocketAddr,
}

impl Host {
    pub(crate) fn new(app: Probe) -> Self {
        Self::with(config(), ListenOptions::default(), app)
    }

    pub(crate) fn with(config: EngineConfig, options: ListenOptions, app: Probe) -> Self {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into(), &options).unwrap();
        let address = listener.local_addr().unwrap();
        Self { engine: Engine::new(config, vec![listener]).unwrap(), app, address }
    }

    /// A host without listeners.
    pub(crate) fn connecting(app: Probe) -> Self {
        let address = ([127, 0, 0, 1], 0).into();
        Self { engine: Engine::new(config(), Vec::new()).unwrap(), app, address }
    }

    /// Turns until `done`; panics after a timeout.
    pub(crate) fn until(&mut self, done: impl Fn(&Probe) -> bool) {
        self.until_with(|_| (), done);
    }

    /// As [`until`](Self::until), with an action before each turn.
    pub(crate) fn until_with(&mut self, mut act: impl FnMut(&Engine<Probe>), done: impl Fn(&Probe) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(&self.app) {
            act(&self.engine);
            assert!(
                Instant::now() < deadline,
                "still waiting after {} events, {:?}",
                self.app.events.len(),
                self.engine.stats()
            );
            self.engine.turn(&mut self.app, Some(Duration::from_millis(100))).unwrap();
        }
    }

    /// A client, and the id of its connection in the loop.
    pub(crate) fn connect(&mut self) -> (TcpStream, ConnId) {
        let before = self.app.count(Kind::Accepted);
        let stream = client(self.address);
        self.until(|app| app.count(Kind::Accepted) == before + 1);
        (stream, *self.app.accepted().last().unwrap())
    }

    /// Turns that do not wait, until several in a row have no events (a ring accepts in three): all pending
    /// events are delivered.
    pub(crate) fn settle(&mut self) {
        let work = |stats: Stats| (stats.receives, stats.sends, stats.accepts, stats.closes, stats.wakes);
        let mut idle = 0;
        while idle < 5 {
            let (before, events) = (work(self.engine.stats()), self.app.events.len());
            self.engine.turn(&mut self.app, Some(Duration::ZERO)).unwrap();
            let same = work(self.engine.stats()) == before && self.app.events.len() == events;
            idle = if same { idle + 1 } else { 0 };
        }
    }
}

/// A client that fails instead of waiting forever.
pub(crate) fn client(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

pub(crate) fn read_exactly(stream: &mut TcpStream, bytes: usize) -> Vec<u8> {
    let mut read = vec![0; bytes];
    stream.read_exact(&mut read).unwrap();
    read
}

/// Bytes that encode their position.
pub(crate) fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u8).collect()
}

/// Closes the connection by a reset instead of in order.
pub(crate) fn reset(stream: TcpStream) {
    let socket = socket2::Socket::from(stream);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
}
