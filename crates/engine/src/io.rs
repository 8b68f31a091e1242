//! The commands of an application. They are recorded here and executed by the backend.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::connect::ConnectRequest;
use crate::cpu;
use crate::datagram::DatagramSockets;
use crate::slots::{ConnectionSlot, ReadState, Slots, WriteState};
use crate::stats::EngineCounters;
use crate::wheel::Wheel;
use crate::{Append, CloseReason, ConnId, ConnectOptions, DatagramSocket, Remote, Stats};

/// The loop as seen by its application: commands, the turn's time, counters.
///
/// Commands return at once and never fail. A command on a closed or closing connection is ignored.
#[derive(Debug)]
pub struct Io {
    pub(crate) now: Instant,
    /// The time since tick zero, computed once per turn.
    elapsed: Duration,
    pub(crate) slots: Slots,
    pub(crate) stats: Arc<EngineCounters>,
    /// Connections to send on or to shut down, each at most once.
    pub(crate) sends: Vec<ConnId>,
    /// Bytes for several connections, in order.
    pub(crate) broadcasts: Vec<Broadcast>,
    /// Broadcasts of an earlier turn are not complete.
    pub(crate) late_broadcasts: bool,
    /// Paused connections that resume, each at most once.
    pub(crate) resumes: Vec<ConnId>,
    /// Connections whose unsent bytes in the kernel are to be limited.
    pub(crate) unsent_limits: Vec<ConnId>,
    /// Connections to close, each once.
    pub(crate) closes: VecDeque<(ConnId, CloseReason)>,
    /// Connections to make, in request order.
    pub(crate) connects: VecDeque<ConnectRequest>,
    /// Appends that are not started, in order; and the number of all unfinished appends.
    pub(crate) appends: VecDeque<Append>,
    appending: usize,
    /// Whether the backend executes appends.
    pub(crate) appends_files: bool,
    accepting: bool,
    /// The loop continues without work.
    runs_until_stopped: bool,
    /// All connections are closed at the end of the turn.
    stopping: bool,
    /// A stop was requested, in this turn or an earlier one.
    stopped: bool,
    /// Connections that the kernel has accepted and that are not yet reported to the application.
    pending_accepts: usize,
    app_timer: Option<Instant>,
    batch_timer: Option<Instant>,
    datagram_timer: Option<Instant>,
    pub(crate) datagrams: DatagramSockets,
    /// End of the last turn, if it is timed, and the thread's CPU time at that point.
    turn_ended: Option<(Instant, Option<Duration>)>,
    /// When the thread's CPU time was last read, since tick zero.
    cpu_read: Duration,
    wheel: Wheel,
    /// Tick zero.
    epoch: Instant,
}

/// The same bytes for several connections.
#[derive(Debug)]
pub(crate) struct Broadcast {
    pub(crate) bytes: Bytes,
    pub(crate) conns: Vec<ConnId>,
}

/// Commands and queries of an application.
impl Io {
    /// Limit of [`limit_unsent`](Self::limit_unsent), in bytes: about TCP's initial congestion window, so a connection
    /// is not slower for it.
    pub const UNSENT_LIMIT: u32 = 16 << 10;

    /// The time, read once per turn, just after waiting.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Starts a connection. The returned id identifies it at once.
    /// [`App::connected`](crate::App::connected) reports success; [`App::closed`](crate::App::closed)
    /// reports failure or an earlier close. In either case `closed` follows exactly once, as for an
    /// accepted connection.
    ///
    /// Commands may be issued at once; they are executed when the connection is established. The
    /// application sets the timeout, by [`set_timer`](Self::set_timer) and [`close`](Self::close); the
    /// system's own limit is some two minutes. A turn starts 256 connections, and further connections wait
    /// for the next turn.
    pub fn connect(&mut self, to: impl Into<Remote>, options: &ConnectOptions) -> ConnId {
        let conn = self.slots.insert();
        if let Some(slot) = self.slots.get_mut(conn) {
            slot.connecting = true;
        }
        self.connects.push_back(ConnectRequest { conn, to: to.into(), options: options.clone() });
        conn
    }

    /// Requests a send: at the end of the turn, or when the send in flight completes,
    /// [`App::start_send`](crate::App::start_send) is called. Repeated calls in a turn cost one send.
    pub fn send(&mut self, conn: ConnId) {
        let Some(slot) = self.slots.live_mut(conn) else { return };
        if slot.sending != WriteState::Shut {
            slot.send_wanted = true;
            self.list_send(conn);
        }
    }

    /// Sends the same bytes to several connections at the end of the turn, before other sends. The loop keeps no state
    /// for a connection whose kernel takes all bytes, and calls nothing. [`App::take_unsent`](crate::App::take_unsent)
    /// takes over any other connection's rest.
    ///
    /// Each connection must have nothing queued and no chain in flight, and must be in one broadcast of a
    /// turn, and [`can_broadcast`](Self::can_broadcast) must be true. A connection that is not ready for
    /// it is passed to `take_unsent` with all bytes, and closed if it has a chain in flight.
    pub fn broadcast(&mut self, bytes: Bytes, conns: Vec<ConnId>) {
        self.broadcasts.push(Broadcast { bytes, conns });
    }

    /// Whether the kernel has taken the broadcasts from earlier turns. It does at once, unless it is short of memory.
    pub fn can_broadcast(&self) -> bool {
        !self.late_broadcasts
    }

    /// Pauses reads, as [`Flow::Pause`](crate::Flow::Pause) does from within `received`. Bytes of the peer
    /// wait in the kernel; so do its end and its reset, unless bytes are sent meanwhile.
    pub fn pause(&mut self, conn: ConnId) {
        let Some(slot) = self.slots.live_mut(conn) else { return };
        if slot.receiving == ReadState::On {
            slot.receiving = ReadState::Paused;
        }
    }

    /// Resumes reads after a pause.
    pub fn resume(&mut self, conn: ConnId) {
        let Some(slot) = self.slots.live_mut(conn) else { return };
        if slot.receiving == ReadState::Paused {
            slot.receiving = ReadState::On;
            if !std::mem::replace(&mut slot.resume_listed, true) {
                self.resumes.push(conn);
            }
        }
    }

    /// Limits the bytes that the kernel takes from this connection before it can send them, to
    /// [`UNSENT_LIMIT`](Self::UNSENT_LIMIT) (`TCP_NOTSENT_LOWAT`). Bytes in the kernel are final: for an application
    /// that replaces queued values by newer ones, a slow peer is then late by what its connection carries, not by
    /// a send buffer of some MiB. The limit stays until the connection closes. It has no effect before the connection is
    /// established, on systems other than Linux, and on transports other than TCP.
    pub fn limit_unsent(&mut self, conn: ConnId) {
        if self.slots.live_mut(conn).is_some_and(|slot| !slot.connecting) {
            self.unsent_limits.push(conn);
        }
    }

    /// Shuts down the sending side (FIN) after all queued bytes are sent. Receiving continues. When the
    /// peer has shut down its side too, the connection is closed as [`CloseReason::Finished`].
    pub fn shutdown(&mut self, conn: ConnId) {
        let Some(slot) = self.slots.live_mut(conn) else { return };
        if slot.sending == WriteState::Open {
            slot.sending = WriteState::Closing;
            self.list_send(conn);
        }
    }

    /// Closes at once, in this turn: no more bytes are received; a chain in flight is returned incomplete
    /// through `finish_send`; then [`App::closed`](crate::App::closed) follows. The application drops bytes
    /// that are queued and not started. The kernel still sends the bytes that it has taken, unless bytes of
    /// the peer are unread, which resets the connection instead. To make sure that the last bytes arrive,
    /// [`shutdown`](Self::shutdown) and wait for the peer's end.
    pub fn close(&mut self, conn: ConnId) {
        self.close_for(conn, || CloseReason::Requested);
    }

    /// Sets or moves the connection's single timer. It never fires early, and late by at most 5 ms (the
    /// wheel counts in 4 ms, the poller in 1 ms) plus the length of a turn. Moving it later, the common
    /// case for an idle deadline, is one store.
    pub fn set_timer(&mut self, conn: ConnId, at: Instant) {
        if self.slots.live_mut(conn).is_some() {
            let due = ticks_up(at.saturating_duration_since(self.epoch));
            self.wheel.set(&mut self.slots, conn.index() as u32, due);
        }
    }

    /// Clears the connection's timer, also if it has expired in this turn and its callback is still
    /// pending.
    pub fn clear_timer(&mut self, conn: ConnId) {
        if self.slots.live_mut(conn).is_some() {
            self.wheel.clear(&mut self.slots, conn.index() as u32);
        }
    }

    /// Sets or moves the loop's own timer, for instance the deadline of a graceful stop.
    pub fn set_app_timer(&mut self, at: Instant) {
        self.app_timer = Some(at);
    }

    /// Clears the loop's own timer.
    pub fn clear_app_timer(&mut self) {
        self.app_timer = None;
    }

    /// Sets or moves a second timer of the loop, for work that is collected over several turns
    /// ([`App::batch_timer`](crate::App::batch_timer)).
    pub fn set_batch_timer(&mut self, at: Instant) {
        self.batch_timer = Some(at);
    }

    /// Sets or moves the loop's third timer, for the deadlines of a protocol over datagrams
    /// ([`App::datagram_timer`](crate::App::datagram_timer)).
    pub fn set_datagram_timer(&mut self, at: Instant) {
        self.datagram_timer = Some(at);
    }

    /// Clears the third timer.
    pub fn clear_datagram_timer(&mut self) {
        self.datagram_timer = None;
    }

    /// A datagram socket on the loop, for sends. `None` within [`App::datagrams`](crate::App::datagrams) of that
    /// socket, and after [`close_datagrams`](Self::close_datagrams).
    #[must_use]
    pub fn datagram_socket(&self, index: usize) -> Option<&DatagramSocket> {
        self.datagrams.get(index)
    }

    /// Opens the datagram socket of an index that was [reserved](crate::Engine::reserve_datagrams).
    pub fn open_datagrams(&mut self, index: usize, socket: DatagramSocket) {
        self.datagrams.open(index, socket);
    }

    /// Closes the datagram sockets at the end of the turn. Until then the loop continues, even without listeners and
    /// connections.
    pub fn close_datagrams(&mut self) {
        self.datagrams.close();
    }

    /// Closes the listeners at the end of the turn. The loop continues until the last connection has closed
    /// or [`stop`](Self::stop). Connections that the kernel has accepted by then are still
    /// [`accepted`](crate::App::accepted). The kernel resets the connections in its backlog, unless another
    /// process has the listener too ([`Listener::from_fd`](crate::Listener::from_fd)).
    pub fn stop_accepting(&mut self) {
        self.accepting = false;
    }

    /// Keeps the loop running without listeners and connections, until [`stop`](Self::stop): for an
    /// application that connects from time to time, or on request by mail. By default such a loop ends.
    pub fn run_until_stopped(&mut self) {
        self.runs_until_stopped = true;
    }

    /// Stops the loop: every connection is closed at the end of the turn as [`CloseReason::Stopped`].
    pub fn stop(&mut self) {
        self.accepting = false;
        self.runs_until_stopped = false;
        self.stopping = true;
        self.stopped = true;
        self.datagrams.close();
    }

    /// Starts an append; [`App::appended`](crate::App::appended) reports its completion. The loop continues
    /// until then, even if it is stopped. The application must not start another append to the same file
    /// until then.
    ///
    /// # Errors
    ///
    /// The readiness backend cannot wait for files. The append is returned, and may be executed on a thread
    /// that may block.
    pub fn append(&mut self, append: Append) -> Result<(), Append> {
        if !self.appends_files {
            return Err(append);
        }
        self.appending += 1;
        self.appends.push_back(append);
        Ok(())
    }

    /// Whether the loop ends as soon as no append is in flight: it was stopped, or has neither listeners
    /// nor connections. Further appends keep it running.
    pub fn is_ending(&self) -> bool {
        let has_work =
            self.accepting || self.runs_until_stopped || self.pending_accepts > 0 || self.slots.len() > 0;
        let has_work = has_work || self.datagrams.is_open();
        self.stopped || !has_work
    }

    /// Connections between `accepted`, or [`connect`](Self::connect), and `closed`.
    pub fn connections(&self) -> usize {
        self.slots.len()
    }

    /// Counters since the creation of the loop.
    pub fn stats(&self) -> Stats {
        self.stats.read()
    }
}

/// Internal state changes for the engine and its backends.
impl Io {
    pub(crate) fn new(accepting: bool) -> Self {
        let now = Instant::now();
        Self {
            now,
            elapsed: Duration::ZERO,
            slots: Slots::default(),
            stats: Arc::default(),
            sends: Vec::new(),
            broadcasts: Vec::new(),
            late_broadcasts: false,
            resumes: Vec::new(),
            unsent_limits: Vec::new(),
            closes: VecDeque::new(),
            connects: VecDeque::new(),
            appends: VecDeque::new(),
            appending: 0,
            appends_files: false,
            accepting,
            runs_until_stopped: false,
            stopping: false,
            stopped: false,
            pending_accepts: 0,
            app_timer: None,
            batch_timer: None,
            datagram_timer: None,
            datagrams: DatagramSockets::default(),
            turn_ended: None,
            cpu_read: Duration::ZERO,
            wheel: Wheel::new(),
            epoch: now,
        }
    }

    pub(crate) fn accepting(&self) -> bool {
        self.accepting
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stopped
    }

    /// Counts an append as completed, before its callback.
    #[cfg(target_os = "linux")]
    pub(crate) fn append_done(&mut self) {
        self.appending -= 1;
    }

    pub(crate) fn set_pending_accepts(&mut self, connections: usize) {
        self.pending_accepts = connections;
    }

    /// Whether no further event can happen.
    pub(crate) fn finished(&self) -> bool {
        let arrived = self.pending_accepts == 0 || self.stopped;
        let is_empty = self.slots.len() == 0 && !self.datagrams.is_open();
        !self.accepting && !self.runs_until_stopped && is_empty && arrived && self.appending == 0
    }

    /// Whether commands were recorded after the backend had executed its list: the next turn must not wait.
    pub(crate) fn has_commands(&self) -> bool {
        let none = self.sends.is_empty() && self.resumes.is_empty() && self.closes.is_empty();
        let waits = !self.connects.is_empty() || !self.appends.is_empty() || !self.broadcasts.is_empty();
        self.stopping || !none || waits || !self.unsent_limits.is_empty() || self.datagrams.have_work()
    }

    /// The maximum sleep for the timers.
    pub(crate) fn until_next_timer(&self) -> Option<Duration> {
        let wheel = self.wheel.next_tick().map(|tick| {
            let at = Duration::from_millis(tick.saturating_mul(TICK_MS));
            at.saturating_sub(self.elapsed)
        });
        let mut own = [self.app_timer, self.batch_timer].into_iter().flatten().min();
        if let Some(at) = self.datagram_timer {
            own = Some(own.map_or(at, |own| own.min(at)));
        }
        let app = own.map(|at| at.saturating_duration_since(self.now));
        match (wheel, app) {
            (Some(wheel), Some(app)) => Some(wheel.min(app)),
            (one, other) => one.or(other),
        }
    }

    /// Ends the turn before the loop waits. One of [`TURNS_TIMED`] turns is timed: an additional clock read in each
    /// turn would cost a loop that sleeps between single messages a few percent.
    pub(crate) fn end_turn(&mut self) {
        let turns = self.stats.turns.get();
        self.stats.turns.add(1);
        if turns % TURNS_TIMED == TURNS_TIMED - 1 {
            let ended = Instant::now();
            self.stats.turn_timed(ended.saturating_duration_since(self.now));
            self.turn_ended = Some((ended, cpu::this_thread()));
        }
    }

    /// Starts the application.
    pub(crate) fn begin(&mut self) {
        self.set_now(Instant::now());
        self.read_cpu(None);
    }

    pub(crate) fn set_now(&mut self, now: Instant) {
        self.now = now;
        self.elapsed = now.saturating_duration_since(self.epoch);
    }

    pub(crate) fn begin_turn(&mut self) {
        self.set_now(Instant::now());
        let ended = self.turn_ended.take();
        if ended.is_some() || self.elapsed.saturating_sub(self.cpu_read) >= CPU_INTERVAL {
            self.read_cpu(ended);
        }
        self.wheel.advance(&mut self.slots, ticks_down(self.elapsed));
    }

    /// Reads the thread's CPU time, and derives the CPU share of the wait behind a timed turn.
    fn read_cpu(&mut self, ended: Option<(Instant, Option<Duration>)>) {
        self.cpu_read = self.elapsed;
        let cpu = cpu::this_thread();
        if let Some(cpu) = cpu {
            self.stats.set_cpu(cpu);
        }
        if let Some((ended, before)) = ended {
            let worked = cpu.zip(before).map(|(cpu, before)| cpu.saturating_sub(before));
            self.stats.wait_timed(self.now.saturating_duration_since(ended), worked.unwrap_or_default());
        }
    }

    /// The next connection whose timer has expired.
    pub(crate) fn take_due(&mut self) -> Option<ConnId> {
        loop {
            let index = self.wheel.pop_due(&mut self.slots)?;
            let conn = self.slots.id_at(index as usize)?;
            if self.slots.live_mut(conn).is_some() {
                return Some(conn);
            }
        }
    }

    pub(crate) fn take_batch_due(&mut self) -> bool {
        self.batch_timer.take_if(|at| *at <= self.now).is_some()
    }

    pub(crate) fn take_datagram_due(&mut self) -> bool {
        self.datagram_timer.take_if(|at| *at <= self.now).is_some()
    }

    pub(crate) fn take_app_due(&mut self) -> bool {
        self.app_timer.take_if(|at| *at <= self.now).is_some()
    }

    /// Closes all connections if the loop is stopping.
    pub(crate) fn close_all_if_stopping(&mut self) {
        if self.stopping {
            self.stopping = false;
            let all: Vec<ConnId> = self.slots.ids().collect();
            for conn in all {
                self.close_for(conn, || CloseReason::Stopped);
            }
        }
    }

    /// Records the first reason to close; later reasons are ignored.
    pub(crate) fn close_for(&mut self, conn: ConnId, reason: impl FnOnce() -> CloseReason) {
        if let Some(slot) = self.slots.live_mut(conn) {
            slot.closing = true;
            self.closes.push_back((conn, reason()));
        }
    }

    /// Lists a connection for the backend's send step, unless a send in flight covers it.
    pub(crate) fn list_send(&mut self, conn: ConnId) {
        let Some(slot) = self.slots.live_mut(conn).filter(|slot| !slot.connecting) else { return };
        if !slot.in_flight && !std::mem::replace(&mut slot.send_listed, true) {
            self.sends.push(conn);
        }
    }

    /// Marks a connection as established and lists its pending commands.
    pub(crate) fn connected(&mut self, conn: ConnId) {
        self.stats.connects.add(1);
        let Some(slot) = self.slots.get_mut(conn) else { return };
        slot.connecting = false;
        if slot.send_wanted || slot.sending == WriteState::Closing {
            self.list_send(conn);
        }
    }

    /// Marks a send as completed and lists pending commands for the next turn.
    pub(crate) fn send_finished(&mut self, conn: ConnId) {
        let Some(slot) = self.slots.get_mut(conn) else { return };
        slot.in_flight = false;
        if slot.send_wanted || slot.sending == WriteState::Closing {
            self.list_send(conn);
        }
    }

    /// Whether chunks may be delivered.
    pub(crate) fn receives(&self, conn: ConnId) -> bool {
        let receives =
            |slot: &ConnectionSlot| slot.receiving == ReadState::On && !slot.closing && !slot.connecting;
        self.slots.get(conn).is_some_and(receives)
    }

    /// The peer's end has been received.
    pub(crate) fn receive_ended(&mut self, conn: ConnId) {
        if let Some(slot) = self.slots.get_mut(conn) {
            slot.receiving = ReadState::Ended;
        }
    }

    /// Closes the connection if both directions have ended.
    pub(crate) fn close_if_finished(&mut self, conn: ConnId) {
        let both =
            |slot: &ConnectionSlot| slot.receiving == ReadState::Ended && slot.sending == WriteState::Shut;
        if self.slots.get(conn).is_some_and(both) {
            self.close_for(conn, || CloseReason::Finished);
        }
    }

    /// Vacates the slot before `closed`.
    pub(crate) fn remove(&mut self, conn: ConnId) {
        self.wheel.clear(&mut self.slots, conn.index() as u32);
        self.slots.remove(conn);
        self.stats.closes.add(1);
    }
}

/// Maximum age of the thread's CPU time in a running loop. Reading it costs a system call, too much for
/// every turn; a hundred reads per second cost 0.003 % of a CPU.
const CPU_INTERVAL: Duration = Duration::from_millis(10);

/// One of this many turns is timed. The two reads of the CPU time are system calls: 3 % more for a loop that sleeps before each message.
const TURNS_TIMED: u64 = 64;

/// Timer precision. Network peers' deadlines are seconds; a coarser tick lets timers that are set individually fire
/// together, and a peer cannot notice 4 ms.
const TICK_MS: u64 = 4;
const TICKS_PER_SECOND: u64 = 1_000 / TICK_MS;
const TICK_NS: u32 = TICK_MS as u32 * 1_000_000;

/// The first tick that is not before `time`: a timer is never early.
fn ticks_up(time: Duration) -> u64 {
    let whole = time.as_secs().saturating_mul(TICKS_PER_SECOND);
    whole.saturating_add(u64::from(time.subsec_nanos().div_ceil(TICK_NS)))
}

/// The last tick that is not after `time`.
fn ticks_down(time: Duration) -> u64 {
    let whole = time.as_secs().saturating_mul(TICKS_PER_SECOND);
    whole.saturating_add(u64::from(time.subsec_nanos() / TICK_NS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_never_early() {
        for (nanos, down, up) in [
            (0, 0, 0),
            (1, 0, 1),
            (3_999_999, 0, 1),
            (4_000_000, 1, 1),
            (4_000_001, 1, 2),
            (999_999_999, 249, 250),
        ] {
            let time = Duration::from_nanos(nanos);
            assert_eq!((ticks_down(time), ticks_up(time)), (down, up), "{nanos} ns");
        }
        assert_eq!(ticks_up(Duration::from_secs(2)), 500);
        assert_eq!(ticks_up(Duration::MAX), u64::MAX, "an infinite deadline saturates");
    }

    #[test]
    fn first_reason_to_close_wins() {
        let mut io = Io::new(true);
        let conn = io.slots.insert();
        io.close_for(conn, || CloseReason::Reset);
        io.close(conn);
        assert_eq!(io.closes.len(), 1);
        assert!(matches!(io.closes[0], (_, CloseReason::Reset)));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn commands_wait_for_chain_in_flight() {
        let wants: [fn(&mut Io, ConnId); 4] = [
            |io, conn| io.send(conn),
            |io, conn| io.shutdown(conn),
            |io, conn| io.pause(conn),
            |io, conn| io.close(conn),
        ];
        for want in wants {
            let mut io = Io::new(true);
            let conn = io.slots.insert();
            let slot = io.slots.get_mut(conn).unwrap();
            slot.in_flight = true;
            assert!(!slot.waits_for_send(), "no command is pending");
            want(&mut io, conn);
            assert!(io.slots.get(conn).unwrap().waits_for_send());
        }
    }

    #[test]
    fn one_turn_in_sixteen_and_its_wait_are_timed() {
        let mut io = Io::new(true);
        for _ in 0..TURNS_TIMED * 3 {
            io.end_turn();
            io.begin_turn();
        }
        let stats = io.stats();
        assert_eq!((stats.turns, stats.timed_turns.iter().sum::<u64>()), (TURNS_TIMED * 3, 3));
        // A two-second turn, followed by a three-second wait with one second of CPU time.
        let before = io.stats();
        io.stats.turn_timed(Duration::from_secs(2));
        io.stats.wait_timed(Duration::from_secs(3), Duration::from_secs(1));
        let after = io.stats();
        assert_eq!(after.timed_took - before.timed_took, Duration::from_secs(2));
        assert_eq!(after.timed_busy - before.timed_busy, Duration::from_secs(3));
        assert_eq!(after.timed_waiting - before.timed_waiting, Duration::from_secs(2));
        assert_eq!(after.timed_turns[Stats::TURN_BOUNDS.len()], 1, "longer than every bound");
    }

    #[test]
    fn command_lists_contain_a_connection_once() {
        let mut io = Io::new(true);
        let conn = io.slots.insert();
        for _ in 0..3 {
            io.send(conn);
            io.pause(conn);
            io.resume(conn);
            io.shutdown(conn);
        }
        assert_eq!((io.sends.len(), io.resumes.len()), (1, 1));
    }
}
