//! Accepting, which continues after errors of peers and shortages.
//!
//! One multishot operation per listener accepts connections into the ring's file table. Near the end of the
//! table it could accept connections without a free slot, which the kernel resets. There it is replaced by
//! single accepts, never more than the free slots, and further connections wait in the backlog.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

use super::kernel::{Completion, RingKernel};
use super::token::{OpKind, Token};
use crate::shortage::{is_connection_error, remedy};
use crate::{EngineConfig, Io};

pub(super) struct RingAcceptors {
    listeners: Vec<RingAcceptor>,
    /// Accepted connections whose peer address is not requested yet.
    arrived: VecDeque<Arrival>,
    /// Connections whose peer address is requested, by name slot.
    requested: Vec<Option<Arrival>>,
    free_name_slots: Vec<usize>,
    /// Capacity of the ring's file table, and number of used slots.
    files: usize,
    used_files: usize,
    backoff: Duration,
    retry_at: Option<Instant>,
    /// The shortage has been logged. It lasts until accepting finds the backlog empty, so that a server at
    /// its limit logs one line instead of one per connection.
    stalled: bool,
    /// A connection was accepted since the last check.
    busy: bool,
    is_started: bool,
    closed: bool,
}

#[derive(Default)]
struct RingAcceptor {
    /// Accept operations in flight.
    armed: usize,
    mode: AcceptMode,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AcceptMode {
    #[default]
    Single,
    Multishot,
    /// A multishot accept that is being cancelled.
    Cancelled,
}

/// An accepted connection whose peer address is not known yet.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    pub(super) listener: usize,
    pub(super) file: u32,
}

impl RingAcceptors {
    pub(super) fn new<K: RingKernel>(kernel: &K, listeners: usize, config: &EngineConfig) -> Self {
        let name_slots = kernel.names();
        Self {
            listeners: (0..listeners).map(|_| RingAcceptor::default()).collect(),
            arrived: VecDeque::new(),
            requested: vec![None; name_slots],
            free_name_slots: (0..name_slots).rev().collect(),
            files: kernel.files(),
            used_files: 0,
            backoff: config.accept_backoff,
            retry_at: None,
            stalled: false,
            busy: false,
            is_started: false,
            closed: false,
        }
    }

    /// Whether accepting has not started yet.
    pub(super) fn have_work(&self) -> bool {
        !self.is_started
    }

    /// Remaining pause of accepting.
    pub(super) fn until_retry(&self, io: &Io) -> Option<Duration> {
        let at = self.retry_at.filter(|_| io.accepting())?;
        Some(at.saturating_duration_since(io.now()))
    }

    /// Used slots of the file table.
    #[cfg(test)]
    pub(super) fn used_files(&self) -> usize {
        self.used_files
    }

    /// Reserves a table slot for an outgoing socket, unless all slots are used or reserved for accepts.
    pub(super) fn take_file(&mut self) -> bool {
        let free = self.free_files() > 0;
        self.used_files += usize::from(free);
        free
    }

    /// Releases a table slot.
    pub(super) fn file_closed(&mut self) {
        self.used_files = self.used_files.saturating_sub(1);
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
                self.used_files += 1;
                self.arrived.push_back(Arrival { listener: index, file: file as u32 });
            }
            Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => {}
            Err(error) if is_connection_error(&error) => {}
            Err(error) => self.stall(&error, remedy(&error), io),
        }
    }

    /// Arms the accepts of all listeners as far as the table has free slots.
    pub(super) fn arm<K: RingKernel>(&mut self, kernel: &mut K, io: &Io) {
        self.is_started = true;
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
            let token = Token::numbered(OpKind::Accept, index as u32);
            let is_plenty = free > reserve;
            match acceptor.mode {
                AcceptMode::Multishot if acceptor.armed > 0 => {
                    if !is_plenty {
                        acceptor.mode = AcceptMode::Cancelled;
                        kernel.cancel(token);
                    }
                }
                AcceptMode::Cancelled if acceptor.armed > 0 => {}
                // Outstanding single accepts are used up first.
                AcceptMode::Single if is_plenty && acceptor.armed > 0 => {}
                _ if is_plenty && acceptor.armed == 0 => {
                    acceptor.mode = AcceptMode::Multishot;
                    acceptor.armed = 1;
                    kernel.accept(token, index, true);
                }
                _ => {
                    acceptor.mode = AcceptMode::Single;
                    let count = free.min(SINGLES.saturating_sub(acceptor.armed));
                    acceptor.armed += count;
                    (0..count).for_each(|_| kernel.accept(token, index, false));
                }
            }
        }
        if self.free_files() == 0 && self.used_files >= self.files {
            let error =
                io::Error::other(format!("all {} slots of the ring's file table are in use", self.files));
            self.report(&error, TABLE_FULL, io);
        }
    }

    /// Table slots that are neither used nor reserved for single accepts.
    fn free_files(&self) -> usize {
        let singles = self.listeners.iter().filter(|acceptor| acceptor.mode == AcceptMode::Single);
        let reserved: usize = singles.map(|acceptor| acceptor.armed).sum();
        self.files.saturating_sub(self.used_files + reserved)
    }

    /// Requests the peer addresses of accepted connections as far as name slots are free. Connections
    /// beyond `accepts_per_turn` wait for a later turn.
    pub(super) fn request_peer_names<K: RingKernel>(&mut self, kernel: &mut K) {
        while !self.arrived.is_empty()
            && let Some(name_slot) = self.free_name_slots.pop()
        {
            let arrival = self.arrived.pop_front();
            self.requested[name_slot] = arrival;
            if let Some(Arrival { listener, file }) = arrival {
                kernel.peer_name(Token::numbered(OpKind::Name, name_slot as u32), listener, file, name_slot);
            }
        }
    }

    /// Removes the connection whose peer address the kernel has written into `name_slot`, and frees the slot.
    pub(super) fn take_requested(&mut self, name_slot: usize) -> Option<Arrival> {
        let arrival = self.requested.get_mut(name_slot).and_then(Option::take)?;
        self.free_name_slots.push(name_slot);
        Some(arrival)
    }

    /// Connections that are not yet reported to the application.
    pub(super) fn pending_accepts(&self) -> usize {
        self.arrived.len() + self.requested.len() - self.free_name_slots.len()
    }

    /// Ends accepting and closes the listeners. Connections that the kernel has accepted meanwhile are
    /// served like any other connection instead of being reset.
    pub(super) fn close<K: RingKernel>(&mut self, kernel: &mut K, completed: &mut Vec<Completion>) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        for (index, acceptor) in self.listeners.iter().enumerate() {
            if acceptor.armed > 0 {
                kernel.cancel(Token::numbered(OpKind::Accept, index as u32));
            }
        }
        // The loop may end with this turn, and the port must be free then.
        let mut seen = 0;
        for turn in 0..JOIN_TURNS {
            for completion in &completed[seen..] {
                if completion.token.kind() == Some(OpKind::Accept) {
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
            .filter(|it| it.token.kind() == Some(OpKind::Accept))
            .for_each(|it| self.ended(it));
        completed.retain(|completion| completion.token.kind() != Some(OpKind::Accept));
        kernel.close_listeners();
    }

    /// Accepts the connections that arrived while accepting ended. If another process has the listener too,
    /// the kernel may have notified this process only.
    fn accept_last<K: RingKernel>(&mut self, kernel: &mut K) {
        for index in 0..self.listeners.len() {
            let count = self.free_files().min(SINGLES);
            if count == 0 || self.listeners[index].armed > 0 || !kernel.has_waiting(index) {
                continue;
            }
            let token = Token::numbered(OpKind::Accept, index as u32);
            self.listeners[index] = RingAcceptor { armed: count, mode: AcceptMode::Single };
            (0..count).for_each(|_| kernel.accept(token, index, false));
            // Accepts without a pending connection would wait.
            kernel.cancel(token);
        }
    }

    /// Like [`accepted`](Self::accepted), after the end of accepting.
    fn ended(&mut self, completion: &Completion) {
        let index = completion.token.index();
        let Some(acceptor) = self.listeners.get_mut(index) else { return };
        if !completion.more {
            acceptor.armed = acceptor.armed.saturating_sub(1);
        }
        if let Ok(file) = completion.outcome() {
            self.used_files += 1;
            self.arrived.push_back(Arrival { listener: index, file: file as u32 });
        }
    }

    /// Pauses accepting. A later retry is right for any error: the pause keeps the loop from spinning, and
    /// the server stays available.
    fn stall(&mut self, error: &io::Error, remedy: &'static str, io: &Io) {
        self.retry_at = Some(io.now() + self.backoff);
        self.report(error, remedy, io);
    }

    fn report(&mut self, error: &io::Error, remedy: &'static str, io: &Io) {
        if !std::mem::replace(&mut self.stalled, true) {
            io.stats.accept_stalls.add(1);
            let connections = io.connections();
            tracing::warn!(%error, connections, remedy, "cannot accept connections; retrying");
        }
    }
}

/// Parses a `sockaddr` for an IP address. A Unix socket's peers have none.
pub(super) fn parse_peer(name: &[u8], length: usize) -> Option<SocketAddr> {
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

/// Free table slots per listener below which connections are accepted singly. One system call accepts at
/// most the content of the backlogs, which Linux limits to 4096 by default.
pub(super) const RESERVE: usize = 4096;

/// Single accepts in flight per listener.
const SINGLES: usize = 64;

pub(super) const TABLE_FULL: &str = "raise the process's descriptor limit, which bounds the table (ulimit -n, or \
                          LimitNOFILE= of systemd), or serve with more threads: each has a table of its own";

/// Maximum system calls until accepting has ended, and the timeout of each.
const JOIN_TURNS: u32 = 50;
const JOIN_WAIT: Duration = Duration::from_millis(20);

/// Maximum system calls to fetch the backlog when accepting ends: a bound for a flood.
const LAST_TURNS: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_addresses_are_parsed() {
        let mut v4 = [0u8; 16];
        v4[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        v4[2..4].copy_from_slice(&4242u16.to_be_bytes());
        v4[4..8].copy_from_slice(&[127, 0, 0, 1]);
        assert_eq!(parse_peer(&v4, 16), Some("127.0.0.1:4242".parse().unwrap()));
        let mut v6 = [0u8; 28];
        v6[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        v6[2..4].copy_from_slice(&80u16.to_be_bytes());
        v6[23] = 1;
        assert_eq!(parse_peer(&v6, 28), Some("[::1]:80".parse().unwrap()));
        for length in 0..16 {
            assert!(parse_peer(&v4, length).is_none() || length >= 8, "{length} bytes are not an address");
        }
        assert_eq!(parse_peer(&v6, 29), None, "longer than the buffer");
        assert_eq!(parse_peer(&[0; 16], 16), None, "not an IP address");
        assert_eq!(parse_peer(&(libc::AF_UNIX as u16).to_ne_bytes(), 2), Some("0.0.0.0:0".parse().unwrap()));
    }
}
