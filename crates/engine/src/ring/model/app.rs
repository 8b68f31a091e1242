//! An application that does anything at any time, and holds the loop to its contract.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sinews_file::AppendFile;

use super::chain::{Pieces, assert_free};
use super::dice::Dice;
use super::peers::{Way, byte, serial_of, stream};
use crate::{Accepted, App, Append, Chain, Closed, ConnId, ConnectOptions, Flow, Io, Large};

pub(super) struct Tester {
    pub(super) dice: Dice,
    /// It does nothing on its own any more, and ends what its peers end.
    pub(super) calm: bool,
    pub(super) lives: BTreeMap<ConnId, Life>,
    /// By serial number of the peer.
    pub(super) done: BTreeMap<u32, (Life, Closed)>,
    gone: Vec<ConnId>,
    /// It has stopped the loop.
    pub(super) stopped: bool,
    /// Connections asked for so far: each names a port of its own.
    tickets: u16,
    file: Arc<AppendFile>,
    /// Appends under way: their bytes, and whether they are to be synced.
    pub(super) appends: BTreeMap<u64, (Vec<u8>, bool)>,
    /// The same, with how many bytes were written and how it went.
    pub(super) appended: BTreeMap<u64, (Vec<u8>, bool, u64, std::io::Result<()>)>,
}

/// What the contract allows next on a connection, and what has been.
#[derive(Debug, Default)]
pub(super) struct Life {
    pub(super) serial: u32,
    /// The port it was asked for with, while it is not connected.
    pub(super) connecting: Option<u16>,
    /// Bytes received.
    pub(super) got: usize,
    pub(super) paused: bool,
    pub(super) ended: bool,
    /// Bytes to be sent in all, and those that chains were made of.
    pub(super) queued: usize,
    chained: usize,
    /// Bytes of the chain in flight that have not left.
    in_flight: Option<usize>,
    /// A chain came home incomplete: only `closed` may follow.
    failed: bool,
    pub(super) shut: bool,
    pub(super) closing: bool,
    /// A buffer of ours is received into.
    lent: bool,
}

impl Tester {
    pub(super) fn new(dice: Dice) -> Self {
        let (lives, done) = (BTreeMap::new(), BTreeMap::new());
        let (appends, appended) = (BTreeMap::new(), BTreeMap::new());
        Self {
            dice,
            calm: false,
            lives,
            done,
            gone: Vec::new(),
            stopped: false,
            tickets: 0,
            appends,
            appended,
            file: file(),
        }
    }

    fn life(&mut self, conn: ConnId) -> &mut Life {
        let life = self.lives.get_mut(&conn).expect("callbacks come between accepted and closed only");
        assert!(!life.failed, "after a failure comes closed");
        life
    }

    /// Any command on any connection, also on one that has gone.
    pub(super) fn act(&mut self, io: &mut Io) {
        for _ in 0..if self.calm { 0 } else { self.dice.below(4) } {
            if self.dice.percent(6) && self.tickets < CALLS_MAX {
                self.connect(io);
            }
            if self.dice.percent(6) && self.appends.len() < APPENDS_MAX {
                self.append(io);
            }
            let (living, gone) = (self.lives.len(), self.gone.len());
            let choice = self.dice.below(living + gone.min(2));
            match self.lives.keys().nth(choice).copied() {
                Some(conn) => self.command(io, conn),
                None if gone > 0 => self.command(io, self.gone[self.dice.below(gone)]),
                None => {}
            }
        }
    }

    /// Something in pieces, some of them empty, to a file of its own.
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
        assert!(!self.lives.keys().any(|other| other.index() == conn.index()), "a slot has one connection");
        self.lives.insert(conn, Life { connecting: Some(self.tickets), ..Life::default() });
    }

    fn command(&mut self, io: &mut Io, conn: ConnId) {
        match self.dice.below(100) {
            0..40 => self.queue(io, conn, 1 + self.dice.below(200)),
            40..45 => io.send(conn),
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
        if let Some(life) = self.lives.get_mut(&conn).filter(|life| !life.shut && !life.closing) {
            life.queued += bytes;
        }
        io.send(conn);
    }

    fn pause(&mut self, io: &mut Io, conn: ConnId) {
        if let Some(life) = self.lives.get_mut(&conn) {
            life.paused = !life.ended;
        }
        io.pause(conn);
    }

    pub(super) fn resume(&mut self, io: &mut Io, conn: ConnId) {
        if let Some(life) = self.lives.get_mut(&conn) {
            life.paused = false;
        }
        io.resume(conn);
    }

    /// Answers, and receives no more until the answer has left.
    fn wait_for_send(&mut self, io: &mut Io, conn: ConnId) {
        if !self.life(conn).shut {
            self.queue(io, conn, 10);
            self.pause(io, conn);
        }
    }

    pub(super) fn close(&mut self, io: &mut Io, conn: ConnId) {
        self.lives.get_mut(&conn).into_iter().for_each(|life| life.closing = true);
        io.close(conn);
    }

    pub(super) fn stop(&mut self, io: &mut Io) {
        self.stopped = true;
        io.stop();
    }

    pub(super) fn shutdown(&mut self, io: &mut Io, conn: ConnId) {
        if let Some(life) = self.lives.get_mut(&conn) {
            life.shut = true;
        }
        io.shutdown(conn);
    }
}

impl App for Tester {
    type Chain = Pieces;
    type Mail = ();

    fn accepted(&mut self, io: &mut Io, conn: ConnId, from: Accepted) {
        let SocketAddr::V4(peer) = from.peer else { panic!("{from:?} is nobody's address") };
        assert_eq!(usize::from(peer.port()), from.listener);
        let serial = peer.ip().to_bits();
        let same = |life: &Life| life.serial == serial && life.connecting.is_none();
        let known = self.done.contains_key(&serial) || self.lives.values().any(same);
        assert!(!known, "a peer is accepted once");
        assert!(!self.lives.keys().any(|other| other.index() == conn.index()), "a slot has one connection");
        self.lives.insert(conn, Life { serial, ..Life::default() });
        self.act(io);
    }

    fn connected(&mut self, io: &mut Io, conn: ConnId) {
        let life = self.life(conn);
        assert!(!life.closing, "it was closed before");
        life.serial = serial_of(life.connecting.take().expect("connected once, and only what was asked for"));
        self.act(io);
    }

    fn received(&mut self, io: &mut Io, conn: ConnId, chunk: &mut [u8]) -> Flow {
        let life = self.life(conn);
        assert!(life.connecting.is_none(), "received in {life:?}");
        assert!(!life.lent && !life.paused && !life.ended && !life.closing, "received in {life:?}");
        assert!(!chunk.is_empty());
        assert_eq!(chunk, stream(life.serial, Way::In, life.got, life.got + chunk.len()), "in {life:?}");
        life.got += chunk.len();
        // In place, as an application would unmask: nobody may see it again.
        chunk.fill(0xEE);
        self.act(io);
        if self.calm && self.dice.percent(30) {
            self.wait_for_send(io, conn);
        }
        if self.calm || !self.dice.percent(25) {
            return Flow::Continue;
        }
        self.life(conn).paused = true;
        Flow::Pause
    }

    fn awaits_large(&self, _: ConnId) -> bool {
        self.dice.percent(60)
    }

    fn lend_large(&mut self, conn: ConnId) -> Option<Large> {
        let life = self.life(conn);
        assert!(!life.lent && !life.paused && !life.ended && !life.closing, "lent in {life:?}");
        if self.dice.percent(25) {
            return None;
        }
        let mut buffer = Vec::with_capacity(40_000);
        buffer.resize(self.dice.below(10), 0);
        let most = self.dice.pick(&[0, 1, 5_000, 39_000]);
        self.life(conn).lent = true;
        Some(Large { buffer, most })
    }

    fn received_large(&mut self, io: &mut Io, conn: ConnId, mut buffer: Vec<u8>, received: usize) -> Flow {
        assert_free(&(buffer.as_ptr() as usize..buffer.as_ptr() as usize + buffer.capacity()));
        let life = self.life(conn);
        assert!(std::mem::replace(&mut life.lent, false), "a buffer comes back once");
        if received == 0 {
            assert!(!life.paused && !life.closing, "received in {life:?}");
            return Flow::Continue;
        }
        let new = buffer.len() - received;
        self.received(io, conn, &mut buffer[new..])
    }

    fn ended(&mut self, io: &mut Io, conn: ConnId) {
        let life = self.life(conn);
        assert!(!life.paused && !life.closing, "ended in {life:?}");
        assert!(!std::mem::replace(&mut life.ended, true), "one end");
        if self.calm {
            self.shutdown(io, conn);
        }
        self.act(io);
    }

    fn start_send(&mut self, conn: ConnId) -> Option<Pieces> {
        let life = self.life(conn);
        assert!(life.connecting.is_none(), "sent in {life:?}");
        assert!(life.in_flight.is_none() && !life.closing, "one chain at a time: {life:?}");
        let (from, to) = (life.chained, life.queued);
        let bytes: Vec<u8> = (from..to).map(|at| byte(life.serial, Way::Out, at)).collect();
        life.chained = to;
        life.in_flight = (from < to).then_some(to - from);
        (from < to).then(|| Pieces::cut(&bytes, &self.dice))
    }

    fn progressed(&mut self, io: &mut Io, conn: ConnId, bytes: usize) {
        let left = self.life(conn).in_flight.as_mut().expect("a chain in flight");
        assert!((1..*left).contains(&bytes), "{bytes} of {left} are progress");
        *left -= bytes;
        self.act(io);
    }

    fn finish_send(&mut self, io: &mut Io, conn: ConnId, chain: Pieces, complete: bool) {
        chain.assert_free();
        assert_eq!(chain.is_empty(), complete);
        let life = self.life(conn);
        let left = life.in_flight.take().expect("a chain comes home once");
        assert!(complete || chain.len() == left);
        life.failed = !complete;
        let waited = life.paused;
        if self.calm && waited {
            self.resume(io, conn);
        }
        self.act(io);
    }

    fn finish_may_wait(&self, _: ConnId) -> bool {
        self.dice.percent(70)
    }

    fn closed(&mut self, io: &mut Io, conn: ConnId, why: Closed) {
        let life = self.lives.remove(&conn).expect("closed once, and after accepted");
        assert!(life.in_flight.is_none(), "the chain has come home first");
        assert!(life.closing || !matches!(why, Closed::Requested), "nobody asked for it");
        assert_eq!(io.connections(), self.lives.len());
        self.gone.push(conn);
        if life.connecting.is_none() {
            self.done.insert(life.serial, (life, why));
        } else {
            assert!(!matches!(why, Closed::Finished), "what was not connected does not end in order");
        }
        self.act(io);
    }

    fn appended(&mut self, io: &mut Io, append: Append, result: std::io::Result<()>) {
        let (bytes, sync) = self.appends.remove(&append.tag()).expect("it is told once");
        self.appended.insert(append.tag(), (bytes, sync, append.written(), result));
        self.act(io);
    }

    fn timer(&mut self, io: &mut Io, conn: ConnId) {
        self.life(conn);
        self.act(io);
    }

    fn app_timer(&mut self, io: &mut Io) {
        self.act(io);
    }

    fn mail(&mut self, io: &mut Io, _: &mut Vec<()>) {
        self.act(io);
    }
}

/// A file that only stands for others: the script keeps what is written.
fn file() -> Arc<AppendFile> {
    Arc::new(AppendFile::open(Path::new("/dev/null")).expect("there is one everywhere"))
}

/// Appends that are under way at once.
const APPENDS_MAX: usize = 4;

/// Connections that it asks for in all.
const CALLS_MAX: u16 = 40;
