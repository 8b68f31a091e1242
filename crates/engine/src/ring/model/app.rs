//! An application that issues random commands and checks the contract of the loop.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sinews_file::AppendFile;

use super::chain::{PieceChain, SharedBytes, assert_free};
use super::dice::Dice;
use super::peers::{StreamDirection, byte, serial_of, stream};
use crate::{
    App, Append, CloseReason, ConnId, ConnectOptions, ConnectionOrigin, Flow, Io, LargeBuffer, SendChain,
};

pub(super) struct TestApp {
    pub(super) dice: Dice,
    /// Issues no more random commands, and closes connections whose peer has ended.
    pub(super) calm: bool,
    pub(super) connections: BTreeMap<ConnId, ConnectionState>,
    /// By serial number of the peer.
    pub(super) done: BTreeMap<u32, (ConnectionState, CloseReason)>,
    gone: Vec<ConnId>,
    /// It has called `Io::stop`.
    pub(super) stopped: bool,
    /// Number of requested connections: each names its own port.
    tickets: u16,
    file: Arc<AppendFile>,
    /// Appends in flight: their bytes, and whether to sync them.
    pub(super) appends: BTreeMap<u64, (Vec<u8>, bool)>,
    /// Completed appends, with the number of written bytes and the result.
    pub(super) appended: BTreeMap<u64, (Vec<u8>, bool, u64, std::io::Result<()>)>,
}

/// Callbacks that the contract allows next on a connection, and its history.
#[derive(Debug, Default)]
pub(super) struct ConnectionState {
    pub(super) serial: u32,
    /// The requested port, until the connection is established.
    pub(super) connecting: Option<u16>,
    /// Bytes received.
    pub(super) got: usize,
    pub(super) paused: bool,
    pub(super) ended: bool,
    /// Total bytes to send, and the bytes of all chains so far.
    pub(super) queued: usize,
    chained: usize,
    /// Unsent bytes of the chain in flight.
    in_flight: Option<usize>,
    /// A chain was returned incomplete: only `closed` may follow.
    failed: bool,
    pub(super) shut: bool,
    pub(super) closing: bool,
    /// A buffer of the application is lent.
    lent: bool,
}

impl TestApp {
    pub(super) fn new(dice: Dice) -> Self {
        let (connections, done) = (BTreeMap::new(), BTreeMap::new());
        let (appends, appended) = (BTreeMap::new(), BTreeMap::new());
        Self {
            dice,
            calm: false,
            connections,
            done,
            gone: Vec::new(),
            stopped: false,
            tickets: 0,
            appends,
            appended,
            file: file(),
        }
    }

    fn state(&mut self, conn: ConnId) -> &mut ConnectionState {
        let state = self.connections.get_mut(&conn).expect("callbacks come between accepted and closed");
        assert!(!state.failed, "only closed follows a failure");
        state
    }

    /// Any command on any connection, including closed ones.
    pub(super) fn act(&mut self, io: &mut Io) {
        for _ in 0..if self.calm { 0 } else { self.dice.below(4) } {
            if self.dice.percent(6) && self.tickets < CALLS_MAX {
                self.connect(io);
            }
            if self.dice.percent(6) && self.appends.len() < APPENDS_MAX {
                self.append(io);
            }
            let (open, gone) = (self.connections.len(), self.gone.len());
            let choice = self.dice.below(open + gone.min(2));
            match self.connections.keys().nth(choice).copied() {
                Some(conn) => self.issue_random_command(io, conn),
                None if gone > 0 => self.issue_random_command(io, self.gone[self.dice.below(gone)]),
                None => {}
            }
        }
    }

    /// Appends several pieces, some empty, to its own file.
    fn append(&mut self, io: &mut Io) {
        let tag = (self.appends.len() + self.appended.len()) as u64;
        let sync = self.dice.percent(60);
        let piece = |_| Bytes::from(vec![tag as u8; self.dice.below(20) * self.dice.below(2)]);
        let pieces: Vec<Bytes> = (0..self.dice.below(8)).map(piece).collect();
        self.appends.insert(tag, (pieces.concat(), sync));
        assert!(io.append(Append::new(self.file.clone(), pieces, sync, tag)).is_ok(), "a ring appends");
    }

    pub(super) fn connect(&mut self, io: &mut Io) {
        self.tickets += 1;
        let conn = io.connect(SocketAddr::from(([127, 0, 0, 1], self.tickets)), &ConnectOptions::default());
        assert!(
            !self.connections.keys().any(|other| other.index() == conn.index()),
            "a slot has one connection"
        );
        self.connections
            .insert(conn, ConnectionState { connecting: Some(self.tickets), ..ConnectionState::default() });
    }

    fn issue_random_command(&mut self, io: &mut Io, conn: ConnId) {
        match self.dice.below(100) {
            0..40 => self.queue(io, conn, 1 + self.dice.below(200)),
            40..44 => io.send(conn),
            44..45 => io.limit_unsent(conn),
            45..65 => self.pause(io, conn),
            65..90 => self.resume(io, conn),
            90..93 => self.shutdown(io, conn),
            93..96 => self.close(io, conn),
            96..99 => io.set_app_timer(io.now() + Duration::from_millis(self.dice.below(60) as u64)),
            _ if self.dice.percent(5) => io.stop_accepting(),
            _ if self.dice.percent(5) => self.stop(io),
            _ => io.clear_app_timer(),
        }
    }

    pub(super) fn queue(&mut self, io: &mut Io, conn: ConnId, bytes: usize) {
        if let Some(state) = self.connections.get_mut(&conn).filter(|state| !state.shut && !state.closing) {
            state.queued += bytes;
        }
        io.send(conn);
    }

    fn pause(&mut self, io: &mut Io, conn: ConnId) {
        if let Some(state) = self.connections.get_mut(&conn) {
            state.paused = !state.ended;
        }
        io.pause(conn);
    }

    pub(super) fn resume(&mut self, io: &mut Io, conn: ConnId) {
        if let Some(state) = self.connections.get_mut(&conn) {
            state.paused = false;
        }
        io.resume(conn);
    }

    /// Answers, and pauses reads until the answer is sent.
    fn wait_for_send(&mut self, io: &mut Io, conn: ConnId) {
        if !self.state(conn).shut {
            self.queue(io, conn, 10);
            self.pause(io, conn);
        }
    }

    pub(super) fn close(&mut self, io: &mut Io, conn: ConnId) {
        self.connections.get_mut(&conn).into_iter().for_each(|state| state.closing = true);
        io.close(conn);
    }

    pub(super) fn stop(&mut self, io: &mut Io) {
        self.stopped = true;
        io.stop();
    }

    pub(super) fn shutdown(&mut self, io: &mut Io, conn: ConnId) {
        if let Some(state) = self.connections.get_mut(&conn) {
            state.shut = true;
        }
        io.shutdown(conn);
    }
}

impl App for TestApp {
    type Chain = PieceChain;
    type Mail = ();

    fn accepted(&mut self, io: &mut Io, conn: ConnId, from: ConnectionOrigin) {
        let SocketAddr::V4(peer) = from.peer else { panic!("{from:?} is not an IPv4 address") };
        assert_eq!(usize::from(peer.port()), from.listener);
        let serial = peer.ip().to_bits();
        let same = |state: &ConnectionState| state.serial == serial && state.connecting.is_none();
        let known = self.done.contains_key(&serial) || self.connections.values().any(same);
        assert!(!known, "a peer is accepted once");
        assert!(
            !self.connections.keys().any(|other| other.index() == conn.index()),
            "a slot has one connection"
        );
        self.connections.insert(conn, ConnectionState { serial, ..ConnectionState::default() });
        self.act(io);
    }

    fn connected(&mut self, io: &mut Io, conn: ConnId) {
        let state = self.state(conn);
        assert!(!state.closing, "connected after close");
        state.serial = serial_of(state.connecting.take().expect("connected once, and on request"));
        self.act(io);
    }

    fn received(&mut self, io: &mut Io, conn: ConnId, chunk: &mut [u8]) -> Flow {
        let state = self.state(conn);
        assert!(state.connecting.is_none(), "received in {state:?}");
        assert!(!state.lent && !state.paused && !state.ended && !state.closing, "received in {state:?}");
        assert!(!chunk.is_empty());
        assert_eq!(
            chunk,
            stream(state.serial, StreamDirection::In, state.got, state.got + chunk.len()),
            "in {state:?}"
        );
        state.got += chunk.len();
        // Modified in place, like unmasking: the loop must not read it again.
        chunk.fill(0xEE);
        self.act(io);
        if self.calm && self.dice.percent(30) {
            self.wait_for_send(io, conn);
        }
        if self.calm || !self.dice.percent(25) {
            return Flow::Continue;
        }
        self.state(conn).paused = true;
        Flow::Pause
    }

    fn awaits_large(&self, _: ConnId) -> bool {
        self.dice.percent(60)
    }

    fn lend_large(&mut self, conn: ConnId) -> Option<LargeBuffer> {
        let state = self.state(conn);
        assert!(!state.lent && !state.paused && !state.ended && !state.closing, "lent in {state:?}");
        if self.dice.percent(25) {
            return None;
        }
        let mut buffer = Vec::with_capacity(40_000);
        buffer.resize(self.dice.below(10), 0);
        let most = self.dice.pick(&[0, 1, 5_000, 39_000]);
        self.state(conn).lent = true;
        Some(LargeBuffer { buffer, limit: most })
    }

    fn received_large(&mut self, io: &mut Io, conn: ConnId, mut buffer: Vec<u8>, received: usize) -> Flow {
        assert_free(&(buffer.as_ptr() as usize..buffer.as_ptr() as usize + buffer.capacity()));
        let state = self.state(conn);
        assert!(std::mem::replace(&mut state.lent, false), "a buffer is returned once");
        if received == 0 {
            assert!(!state.paused && !state.closing, "received in {state:?}");
            return Flow::Continue;
        }
        let new = buffer.len() - received;
        self.received(io, conn, &mut buffer[new..])
    }

    fn ended(&mut self, io: &mut Io, conn: ConnId) {
        let state = self.state(conn);
        assert!(!state.paused && !state.closing, "ended in {state:?}");
        assert!(!std::mem::replace(&mut state.ended, true), "one end");
        if self.calm {
            self.shutdown(io, conn);
        }
        self.act(io);
    }

    fn start_send(&mut self, conn: ConnId) -> Option<PieceChain> {
        let state = self.state(conn);
        assert!(state.connecting.is_none(), "sent in {state:?}");
        assert!(state.in_flight.is_none() && !state.closing, "one chain at a time: {state:?}");
        let (from, to) = (state.chained, state.queued);
        let bytes: Vec<u8> = (from..to).map(|at| byte(state.serial, StreamDirection::Out, at)).collect();
        state.chained = to;
        state.in_flight = (from < to).then_some(to - from);
        (from < to).then(|| PieceChain::cut(&bytes, &self.dice))
    }

    fn pending_sends(&self) -> usize {
        self.dice.below(2)
    }

    fn continues_turn(&self) -> bool {
        !self.calm && self.dice.percent(20)
    }

    /// Broadcasts to some connections without queued bytes.
    fn end_turn(&mut self, io: &mut Io) {
        let waits = self.calm || !io.can_broadcast();
        for (conn, state) in self.connections.iter_mut().filter(|_| !waits) {
            let is_busy = state.chained < state.queued || state.in_flight.is_some() || state.failed;
            let is_over = state.shut || state.closing || state.connecting.is_some();
            if is_busy || is_over || !self.dice.percent(20) {
                continue;
            }
            let (from, to) = (state.queued, state.queued + 1 + self.dice.below(200));
            let bytes: Vec<u8> = (from..to).map(|at| byte(state.serial, StreamDirection::Out, at)).collect();
            (state.queued, state.chained) = (to, to);
            io.broadcast(Bytes::from_owner(SharedBytes(bytes)), vec![*conn]);
        }
    }

    fn take_unsent(&mut self, io: &mut Io, conn: ConnId, rest: Bytes) -> Option<PieceChain> {
        let state = self.state(conn);
        assert!(state.in_flight.is_none() && !state.closing, "one chain at a time: {state:?}");
        state.in_flight = Some(rest.len());
        self.act(io);
        Some(PieceChain::cut(&rest, &self.dice))
    }

    fn progressed(&mut self, io: &mut Io, conn: ConnId, bytes: usize) {
        let left = self.state(conn).in_flight.as_mut().expect("a chain in flight");
        assert!((1..*left).contains(&bytes), "{bytes} of {left} are progress");
        *left -= bytes;
        self.act(io);
    }

    fn finish_send(&mut self, io: &mut Io, conn: ConnId, chain: PieceChain, complete: bool) {
        chain.assert_free();
        assert_eq!(chain.is_empty(), complete);
        let state = self.state(conn);
        let left = state.in_flight.take().expect("a chain is returned once");
        assert!(complete || chain.len() == left);
        state.failed = !complete;
        let waited = state.paused;
        if self.calm && waited {
            self.resume(io, conn);
        }
        self.act(io);
    }

    fn finish_may_wait(&self, _: ConnId) -> bool {
        self.dice.percent(70)
    }

    fn closed(&mut self, io: &mut Io, conn: ConnId, reason: CloseReason) {
        let state = self.connections.remove(&conn).expect("closed once, and after accepted");
        assert!(state.in_flight.is_none(), "the chain was returned first");
        assert!(state.closing || !matches!(reason, CloseReason::Requested), "closed on request only");
        assert_eq!(io.connections(), self.connections.len());
        self.gone.push(conn);
        if state.connecting.is_none() {
            self.done.insert(state.serial, (state, reason));
        } else {
            assert!(!matches!(reason, CloseReason::Finished), "only an established connection ends in order");
        }
        self.act(io);
    }

    fn appended(&mut self, io: &mut Io, append: Append, result: std::io::Result<()>) {
        let (bytes, sync) = self.appends.remove(&append.tag()).expect("an append is reported once");
        self.appended.insert(append.tag(), (bytes, sync, append.written(), result));
        self.act(io);
    }

    fn timer(&mut self, io: &mut Io, conn: ConnId) {
        self.state(conn);
        self.act(io);
    }

    fn app_timer(&mut self, io: &mut Io) {
        self.act(io);
    }

    fn mail(&mut self, io: &mut Io, _: &mut Vec<()>) {
        self.act(io);
    }
}

/// A placeholder file: the script keeps the written bytes.
fn file() -> Arc<AppendFile> {
    Arc::new(AppendFile::open(Path::new("/dev/null")).expect("/dev/null exists"))
}

/// Maximum appends in flight.
const APPENDS_MAX: usize = 4;

/// Maximum connections that it requests.
const CALLS_MAX: u16 = 40;
