//! Accepting, which no peer and no shortage may end.
//!
//! One operation per listener accepts one connection after the other into the ring's table. Near the end of
//! the table that would accept connections there is no place for, which the kernel then resets; so there it
//! is replaced by single ones, never more than places are free, and the rest waits in the backlog.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

use super::kernel::{Completion, Kernel};
use super::token::{Kind, Token};
use super::{Link, Ring};
use crate::shortage::{concerns_one_connection, remedy};
use crate::{Accepted, App, Chain, Config, ConnId, Io};

pub(super) struct Acceptors {
    listeners: Vec<Acceptor>,
    /// Accepted, and the peer's address still to be asked for.
    arrived: VecDeque<Arrival>,
    /// By place: whose address is being asked for.
    asked: Vec<Option<Arrival>>,
    free_places: Vec<usize>,
    /// Places of the ring's table, and how many are taken.
    files: usize,
    taken: usize,
    backoff: Duration,
    retry_at: Option<Instant>,
    /// The shortage has been logged. It lasts until accepting finds the backlog empty, so that a server at
    /// its limit logs one line and not one per connection that comes and goes.
    stalled: bool,
    /// Something was accepted since accepting was last looked at.
    busy: bool,
    begun: bool,
    closed: bool,
}

#[derive(Default)]
struct Acceptor {
    /// Operations in flight.
    armed: usize,
    mode: Mode,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Single,
    Multishot,
    /// Multishot, and to end.
    Cancelled,
}

#[derive(Clone, Copy)]
struct Arrival {
    listener: usize,
    file: u32,
}

impl Acceptors {
    pub(super) fn new<K: Kernel>(kernel: &K, listeners: usize, config: &Config) -> Self {
        let places = kernel.names();
        Self {
            listeners: (0..listeners).map(|_| Acceptor::default()).collect(),
            arrived: VecDeque::new(),
            asked: vec![None; places],
            free_places: (0..places).rev().collect(),
            files: kernel.files(),
            taken: 0,
            backoff: config.accept_backoff,
            retry_at: None,
            stalled: false,
            busy: false,
            begun: false,
            closed: false,
        }
    }

    /// Nothing accepts yet.
    pub(super) fn have_work(&self) -> bool {
        !self.begun
    }

    /// How long accepting still pauses.
    pub(super) fn until_retry(&self, io: &Io) -> Option<Duration> {
        let at = self.retry_at.filter(|_| io.accepting())?;
        Some(at.saturating_duration_since(io.now()))
    }

    /// Places of the table that are taken.
    #[cfg(test)]
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// Takes a place of the table for a socket of ours, unless all are taken or may be by what is accepted.
    pub(super) fn take_file(&mut self) -> bool {
        let free = self.free_files() > 0;
        self.taken += usize::from(free);
        free
    }

    /// A place of the table is free.
    pub(super) fn file_closed(&mut self) {
        self.taken = self.taken.saturating_sub(1);
        self.retry_at = None;
    }

    pub(super) fn accepted(&mut self, io: &Io, completion: &Completion) {
        let index = completion.token.index();
        let Some(acceptor) = self.listeners.get_mut(index) else { return };
        if !completion.more {
            acceptor.armed = acceptor.armed.saturating_sub(1);
        }
        match completion.outcome() {
            Ok(file) => {
                self.busy = true;
                self.taken += 1;
                self.arrived.push_back(Arrival { listener: index, file: file as u32 });
            }
            Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => {}
            Err(error) if concerns_one_connection(&error) => {}
            Err(error) => self.stall(&error, remedy(&error), io),
        }
    }

    /// Has every listener accept as far as there are places.
    pub(super) fn arm<K: Kernel>(&mut self, kernel: &mut K, io: &Io) {
        self.begun = true;
        self.retry_at.take_if(|at| *at <= io.now());
        if self.retry_at.is_some() {
            return;
        }
        let armed = self.listeners.iter().any(|acceptor| acceptor.armed > 0);
        if armed && !std::mem::take(&mut self.busy) && self.arrived.is_empty() {
            self.stalled = false;
        }
        let reserve = RESERVE * self.listeners.len();
        for index in 0..self.listeners.len() {
            let free = self.free_files();
            let acceptor = &mut self.listeners[index];
            let token = Token::numbered(Kind::Accept, index as u32);
            let plenty = free > reserve;
            match acceptor.mode {
                Mode::Multishot if acceptor.armed > 0 => {
                    if !plenty {
                        acceptor.mode = Mode::Cancelled;
                        kernel.cancel(token);
                    }
                }
                Mode::Cancelled if acceptor.armed > 0 => {}
                // Single ones that are still out are used up first.
                Mode::Single if plenty && acceptor.armed > 0 => {}
                _ if plenty && acceptor.armed == 0 => {
                    acceptor.mode = Mode::Multishot;
                    acceptor.armed = 1;
                    kernel.accept(token, index, true);
                }
                _ => {
                    acceptor.mode = Mode::Single;
                    let room = free.min(SINGLES.saturating_sub(acceptor.armed));
                    acceptor.armed += room;
                    (0..room).for_each(|_| kernel.accept(token, index, false));
                }
            }
        }
        if self.free_files() == 0 && self.taken >= self.files {
            let error = io::Error::other(format!("all {} places of the ring's table are taken", self.files));
            self.report(&error, TABLE_FULL, io);
        }
    }

    /// Places that neither a connection has nor a single accept may fill.
    fn free_files(&self) -> usize {
        let singles = self.listeners.iter().filter(|acceptor| acceptor.mode == Mode::Single);
        let spoken_for: usize = singles.map(|acceptor| acceptor.armed).sum();
        self.files.saturating_sub(self.taken + spoken_for)
    }

    /// Asks for the addresses of those that have arrived, as far as there are places: what goes beyond
    /// `accepts_per_turn` has its turn later.
    pub(super) fn ask_names<K: Kernel>(&mut self, kernel: &mut K) {
        while !self.arrived.is_empty()
            && let Some(place) = self.free_places.pop()
        {
            let arrival = self.arrived.pop_front();
            self.asked[place] = arrival;
            if let Some(Arrival { listener, file }) = arrival {
                kernel.peer_name(Token::numbered(Kind::Name, place as u32), listener, file, place);
            }
        }
    }

    /// Connections that the application has not been told of.
    pub(super) fn arriving(&self) -> usize {
        self.arrived.len() + self.asked.len() - self.free_places.len()
    }

    /// Ends accepting and closes the listeners. Whom the kernel has accepted meanwhile is served like any other: it
    /// would be reset, and it has done nothing wrong.
    pub(super) fn close<K: Kernel>(&mut self, kernel: &mut K, completed: &mut Vec<Completion>) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        for (index, acceptor) in self.listeners.iter().enumerate() {
            if acceptor.armed > 0 {
                kernel.cancel(Token::numbered(Kind::Accept, index as u32));
            }
        }
        // The loop may end with this turn, and the port is to be free then.
        let mut seen = 0;
        for turn in 0..JOIN_TURNS {
            for completion in &completed[seen..] {
                if completion.token.kind() == Some(Kind::Accept) {
                    self.ended(completion);
                }
            }
            seen = completed.len();
            if turn < LAST_TURNS {
                self.accept_last(kernel);
            }
            if self.listeners.iter().all(|acceptor| acceptor.armed == 0)
                || kernel.enter(Some(JOIN_WAIT), completed).is_err()
            {
                break;
            }
        }
        completed[seen..]
            .iter()
            .filter(|it| it.token.kind() == Some(Kind::Accept))
            .for_each(|it| self.ended(it));
        completed.retain(|completion| completion.token.kind() != Some(Kind::Accept));
        kernel.close_listeners();
    }

    /// Accepts those who came while accepting ended. If another process has the listener too, the kernel may have
    /// woken us for them, and does not wake it as well.
    fn accept_last<K: Kernel>(&mut self, kernel: &mut K) {
        for index in 0..self.listeners.len() {
            let room = self.free_files().min(SINGLES);
            if room == 0 || self.listeners[index].armed > 0 || !kernel.has_waiting(index) {
                continue;
            }
            let token = Token::numbered(Kind::Accept, index as u32);
            self.listeners[index] = Acceptor { armed: room, mode: Mode::Single };
            (0..room).for_each(|_| kernel.accept(token, index, false));
            // Those that find nobody would wait.
            kernel.cancel(token);
        }
    }

    /// As [`accepted`](Self::accepted), when nobody accepts any more.
    fn ended(&mut self, completion: &Completion) {
        let index = completion.token.index();
        let Some(acceptor) = self.listeners.get_mut(index) else { return };
        if !completion.more {
            acceptor.armed = acceptor.armed.saturating_sub(1);
        }
        if let Ok(file) = completion.outcome() {
            self.taken += 1;
            self.arrived.push_back(Arrival { listener: index, file: file as u32 });
        }
    }

    /// Pauses accepting. Whatever the error is, trying again later is right: only the pause keeps the loop
    /// from spinning, and ending the server would help nobody.
    fn stall(&mut self, error: &io::Error, remedy: &'static str, io: &Io) {
        self.retry_at = Some(io.now() + self.backoff);
        self.report(error, remedy, io);
    }

    fn report(&mut self, error: &io::Error, remedy: &'static str, io: &Io) {
        if !std::mem::replace(&mut self.stalled, true) {
            io.stats.accept_stalls.add(1);
            let connections = io.connections();
            tracing::warn!(%error, connections, remedy, "cannot accept connections for now");
        }
    }
}

impl<C: Chain, K: Kernel> Ring<C, K> {
    /// The peer's address has come: from here on it is a connection.
    pub(super) fn named<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, completion: &Completion) {
        let place = completion.token.index();
        let Some(Arrival { listener, file }) = self.acceptors.asked.get_mut(place).and_then(Option::take)
        else {
            return;
        };
        self.acceptors.free_places.push(place);
        // A peer that has reset meanwhile has no address any more.
        let peer = completion.outcome().ok().and_then(|length| parse(self.kernel.name(place), length));
        let Some(peer) = peer.filter(|_| !io.stopped()) else {
            return self.kernel.close(Token::numbered(Kind::Discard, file), file);
        };
        let conn = io.slots.insert();
        if !self.place(conn, Link::new(file)) {
            io.slots.remove(conn);
            return self.kernel.close(Token::numbered(Kind::Discard, file), file);
        }
        self.unarmed.push(conn);
        io.stats.accepts.add(1);
        app.accepted(io, conn, Accepted { listener, peer });
    }
}

impl<C, K: Kernel> Ring<C, K> {
    /// Puts the link of a new connection in its place. `false`: the kernel has operations of one that the slots
    /// know nothing of.
    pub(super) fn place(&mut self, conn: ConnId, link: Link<C>) -> bool {
        if self.links.len() <= conn.index() {
            self.links.resize_with(conn.index() + 1, || None);
        }
        let place = &mut self.links[conn.index()];
        let free = place.is_none();
        if free {
            *place = Some(link);
        }
        free
    }
}

/// Reads a `sockaddr` of an internet address. Who comes through a Unix socket is nowhere.
fn parse(name: &[u8], length: usize) -> Option<SocketAddr> {
    let name = name.get(..length)?;
    let family = i32::from(u16::from_ne_bytes(*name.first_chunk()?));
    if family == libc::AF_UNIX {
        return Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
    }
    let port = u16::from_be_bytes(*name.get(2..)?.first_chunk()?);
    match family {
        libc::AF_INET => {
            let address: [u8; 4] = *name.get(4..)?.first_chunk()?;
            Some(SocketAddr::from((Ipv4Addr::from(address), port)))
        }
        libc::AF_INET6 => {
            let flow = u32::from_be_bytes(*name.get(4..)?.first_chunk()?);
            let address: [u8; 16] = *name.get(8..)?.first_chunk()?;
            let scope = u32::from_ne_bytes(*name.get(24..)?.first_chunk()?);
            Some(SocketAddrV6::new(Ipv6Addr::from(address), port, flow, scope).into())
        }
        _ => None,
    }
}

/// Free places of the table, for each listener, below which connections are accepted singly. One visit of the
/// kernel accepts at most what the backlogs hold, which Linux limits to 4096 by default.
pub(super) const RESERVE: usize = 4096;

/// Single accepts in flight for each listener.
const SINGLES: usize = 64;

pub(super) const TABLE_FULL: &str = "raise the process's descriptor limit, which bounds the table (ulimit -n, or \
                          LimitNOFILE= of systemd), or serve with more threads: each has a table of its own";

/// Visits to the kernel, and the length of each, until accepting has ended.
const JOIN_TURNS: u32 = 50;
const JOIN_WAIT: Duration = Duration::from_millis(20);

/// Visits to the kernel by which those who wait to be accepted are fetched when accepting ends: a bound for a flood.
const LAST_TURNS: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_the_kernel_writes_them() {
        let mut v4 = [0u8; 16];
        v4[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        v4[2..4].copy_from_slice(&4242u16.to_be_bytes());
        v4[4..8].copy_from_slice(&[127, 0, 0, 1]);
        assert_eq!(parse(&v4, 16), Some("127.0.0.1:4242".parse().unwrap()));
        let mut v6 = [0u8; 28];
        v6[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        v6[2..4].copy_from_slice(&80u16.to_be_bytes());
        v6[23] = 1;
        assert_eq!(parse(&v6, 28), Some("[::1]:80".parse().unwrap()));
        for length in 0..16 {
            assert!(parse(&v4, length).is_none() || length >= 8, "{length} bytes are no address");
        }
        assert_eq!(parse(&v6, 29), None, "longer than the place for it");
        assert_eq!(parse(&[0; 16], 16), None, "no internet address");
        assert_eq!(parse(&(libc::AF_UNIX as u16).to_ne_bytes(), 2), Some("0.0.0.0:0".parse().unwrap()));
    }
}
