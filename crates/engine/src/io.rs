//! The commands an application gives. They are recorded here and carried out by the backend.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::connect::Connect;
use crate::cpu;
use crate::slots::{Receiving, Sending, Slot, Slots};
use crate::stats::Counters;
use crate::wheel::Wheel;
use crate::{Append, Closed, ConnId, ConnectOptions, Remote, Stats};

/// The loop as its application sees it: commands, the turn's time, counters.
///
/// Commands return at once and fail never. A command on a connection that has gone, or that is being
/// closed, is ignored.
#[derive(Debug)]
pub struct Io {
    pub(crate) now: Instant,
    pub(crate) slots: Slots,
    pub(crate) stats: Arc<Counters>,
    /// Connections with something to send or to shut down, each at most once.
    pub(crate) sends: Vec<ConnId>,
    /// Connections that were paused and may receive again, each at most once.
    pub(crate) resumes: Vec<ConnId>,
    /// Connections to close, each once.
    pub(crate) closes: VecDeque<(ConnId, Closed)>,
    /// Connections to make, in the order in which they were asked for.
    pub(crate) connects: VecDeque<Connect>,
    /// Appends that were handed over and are not with the kernel, in order; and all that are not done.
    pub(crate) appends: VecDeque<Append>,
    appending: usize,
    /// The backend carries them out.
    pub(crate) appends_files: bool,
    accepting: bool,
    /// It goes on with nothing to do.
    lasting: bool,
    /// Every connection is to be closed at the end of the turn.
    stopping: bool,
    /// That has been asked for, in this turn or an earlier one.
    stopped: bool,
    /// Connections that the kernel has accepted and the application has not been told of.
    arriving: usize,
    app_timer: Option<Instant>,
    /// When the last turn ended, if it is one of those that are timed, and the thread's processor time then.
    turn_ended: Option<(Instant, Option<Duration>)>,
    /// When the thread's processor time was read.
    cpu_read: Instant,
    wheel: Wheel,
    /// Tick zero.
    epoch: Instant,
}

/// What an application does.
impl Io {
    /// The time, read once per turn, just after waiting.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Makes a connection, which is named by the id from now on and told by
    /// [`App::connected`](crate::App::connected); or by [`App::closed`](crate::App::closed), if it cannot be
    /// made or is closed before. In either case one `closed` follows, as for one that was accepted.
    ///
    /// Commands may be given at once: what they ask for happens when it is connected. How long that may take is
    /// the application's to say, by [`set_timer`](Self::set_timer) and [`close`](Self::close); the system's own
    /// bound is some two minutes. A turn begins 256 connections, and further ones wait for the next.
    pub fn connect(&mut self, to: impl Into<Remote>, options: &ConnectOptions) -> ConnId {
        let conn = self.slots.insert();
        if let Some(slot) = self.slots.get_mut(conn) {
            slot.connecting = true;
        }
        self.connects.push_back(Connect { conn, to: to.into(), options: options.clone() });
        conn
    }

    /// There is something to send: at the end of the turn, or as soon as the send in flight is home,
    /// [`App::start_send`](crate::App::start_send) is asked for it. Calling it often in a turn costs one
    /// send all the same.
    pub fn send(&mut self, conn: ConnId) {
        let Some(slot) = self.slots.live_mut(conn) else { return };
        if slot.sending != Sending::Shut {
            slot.send_wanted = true;
            self.list_send(conn);
        }
    }

    /// Stops receiving, as [`Flow::Pause`](crate::Flow::Pause) does from within `received`. What the peer
    /// sends waits in the kernel; so do its end and its reset, unless something is sent meanwhile.
    pub fn pause(&mut self, conn: ConnId) {
        let Some(slot) = self.slots.live_mut(conn) else { return };
        if slot.receiving == Receiving::On {
            slot.receiving = Receiving::Paused;
        }
    }

    /// Receives again after a pause.
    pub fn resume(&mut self, conn: ConnId) {
        let Some(slot) = self.slots.live_mut(conn) else { return };
        if slot.receiving == Receiving::Paused {
            slot.receiving = Receiving::On;
            if !std::mem::replace(&mut slot.resume_listed, true) {
                self.resumes.push(conn);
            }
        }
    }

    /// Ends our sending side (FIN) after everything queued and in flight has left. Receiving goes on; when
    /// the peer has ended its side too, the connection is closed as [`Closed::Finished`].
    pub fn shutdown(&mut self, conn: ConnId) {
        let Some(slot) = self.slots.live_mut(conn) else { return };
        if slot.sending == Sending::Open {
            slot.sending = Sending::Closing;
            self.list_send(conn);
        }
    }

    /// Closes at once, in this turn: nothing more is received; a chain in flight comes home incomplete
    /// through `finish_send`; then [`App::closed`](crate::App::closed). What was queued and not started is
    /// the application's to drop. The kernel goes on sending what it has taken, unless bytes of the peer
    /// were left unread, which makes it reset the connection instead: to be sure that the last words
    /// arrive, [`shutdown`](Self::shutdown) and wait for the peer's end.
    pub fn close(&mut self, conn: ConnId) {
        self.close_for(conn, || Closed::Requested);
    }

    /// Sets the connection's one timer, or moves it. It fires never early, and late by at most 5 ms (the
    /// wheel counts in 4 ms, the poller in 1 ms) plus the length of a turn. Moving it later, the common case
    /// for an idle deadline, is one store.
    pub fn set_timer(&mut self, conn: ConnId, at: Instant) {
        if self.slots.live_mut(conn).is_some() {
            let due = ticks_up(at.saturating_duration_since(self.epoch));
            self.wheel.set(&mut self.slots, conn.index() as u32, due);
        }
    }

    /// Clears the connection's timer, also one that is due in this turn and has not been called yet.
    pub fn clear_timer(&mut self, conn: ConnId) {
        if self.slots.live_mut(conn).is_some() {
            self.wheel.clear(&mut self.slots, conn.index() as u32);
        }
    }

    /// Sets the loop's own timer, for instance the deadline of a graceful stop, or moves it.
    pub fn set_app_timer(&mut self, at: Instant) {
        self.app_timer = Some(at);
    }

    /// Clears the loop's own timer.
    pub fn clear_app_timer(&mut self) {
        self.app_timer = None;
    }

    /// Closes the listeners at the end of the turn. The loop goes on until the last connection has closed
    /// or [`stop`](Self::stop). Those that the kernel has accepted by then are still
    /// [`accepted`](crate::App::accepted). Connections that wait in its backlog are reset by it, unless another process
    /// has the listener too ([`Listener::from_fd`](crate::Listener::from_fd)).
    pub fn stop_accepting(&mut self) {
        self.accepting = false;
    }

    /// Has the loop go on without listeners and connections, until [`stop`](Self::stop): for an application that
    /// connects from time to time, or on request by mail. Without this a loop ends that has neither.
    pub fn run_until_stopped(&mut self) {
        self.lasting = true;
    }

    /// Stops the loop: every connection is closed at the end of the turn as [`Closed::Stopped`].
    pub fn stop(&mut self) {
        self.accepting = false;
        self.lasting = false;
        self.stopping = true;
        self.stopped = true;
    }

    /// Hands an append over; [`App::appended`](crate::App::appended) is told when it is done. The loop goes on until
    /// then, also when it is stopped. The application sees to it that there is one at a time for each file.
    ///
    /// # Errors
    ///
    /// This loop cannot wait for files, since it runs by readiness, in which files have no part: the append is given
    /// back, and may be carried out on a thread that may block.
    pub fn append(&mut self, append: Append) -> Result<(), Append> {
        if !self.appends_files {
            return Err(append);
        }
        self.appending += 1;
        self.appends.push_back(append);
        Ok(())
    }

    /// Whether the loop ends as soon as nothing is being appended: it was stopped, or has neither listeners nor connections
    /// any more. Who goes on appending keeps it.
    pub fn is_ending(&self) -> bool {
        let is_lasting = self.accepting || self.lasting || self.arriving > 0 || self.slots.len() > 0;
        self.stopped || !is_lasting
    }

    /// Connections between `accepted`, or [`connect`](Self::connect), and `closed`.
    pub fn connections(&self) -> usize {
        self.slots.len()
    }

    /// Counters since the loop was made.
    pub fn stats(&self) -> Stats {
        self.stats.read()
    }
}

/// What the engine and its backends do.
impl Io {
    pub(crate) fn new(accepting: bool) -> Self {
        let now = Instant::now();
        Self {
            now,
            slots: Slots::default(),
            stats: Arc::default(),
            sends: Vec::new(),
            resumes: Vec::new(),
            closes: VecDeque::new(),
            connects: VecDeque::new(),
            appends: VecDeque::new(),
            appending: 0,
            appends_files: false,
            accepting,
            lasting: false,
            stopping: false,
            stopped: false,
            arriving: 0,
            app_timer: None,
            turn_ended: None,
            cpu_read: now,
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

    /// An append is about to be told.
    #[cfg(target_os = "linux")]
    pub(crate) fn append_done(&mut self) {
        self.appending -= 1;
    }

    pub(crate) fn set_arriving(&mut self, connections: usize) {
        self.arriving = connections;
    }

    /// Nothing can happen any more.
    pub(crate) fn finished(&self) -> bool {
        let arrived = self.arriving == 0 || self.stopped;
        !self.accepting && !self.lasting && self.slots.len() == 0 && arrived && self.appending == 0
    }

    /// Commands were recorded after the backend had carried them out: the next turn must not wait.
    pub(crate) fn has_commands(&self) -> bool {
        let none = self.sends.is_empty() && self.resumes.is_empty() && self.closes.is_empty();
        self.stopping || !none || !self.connects.is_empty() || !self.appends.is_empty()
    }

    /// How long the loop may sleep for its timers.
    pub(crate) fn until_next_timer(&self) -> Option<Duration> {
        let wheel = self.wheel.next_tick().map(|tick| {
            let at = Duration::from_millis(tick.saturating_mul(GRANULE_MS));
            at.saturating_sub(self.now.saturating_duration_since(self.epoch))
        });
        let app = self.app_timer.map(|at| at.saturating_duration_since(self.now));
        match (wheel, app) {
            (Some(wheel), Some(app)) => Some(wheel.min(app)),
            (one, other) => one.or(other),
        }
    }

    /// The turn is over and the loop is about to wait. Every sixteenth is timed: reading the clock once more in
    /// each would cost a loop that sleeps between single messages some per cent.
    pub(crate) fn end_turn(&mut self) {
        let turns = self.stats.turns.get();
        self.stats.turns.add(1);
        if turns % TURNS_TIMED == TURNS_TIMED - 1 {
            let ended = Instant::now();
            self.stats.turn_timed(ended.saturating_duration_since(self.now));
            self.turn_ended = Some((ended, cpu::of_this_thread()));
        }
    }

    /// The application is about to begin.
    pub(crate) fn begin(&mut self) {
        self.now = Instant::now();
        self.read_cpu(None);
    }

    pub(crate) fn begin_turn(&mut self) {
        self.now = Instant::now();
        let ended = self.turn_ended.take();
        if ended.is_some() || self.now.saturating_duration_since(self.cpu_read) >= CPU_INTERVAL {
            self.read_cpu(ended);
        }
        let now = ticks_down(self.now.saturating_duration_since(self.epoch));
        self.wheel.advance(&mut self.slots, now);
    }

    /// Reads the thread's processor time, and so what of the wait behind a timed turn was work.
    fn read_cpu(&mut self, ended: Option<(Instant, Option<Duration>)>) {
        self.cpu_read = self.now;
        let cpu = cpu::of_this_thread();
        if let Some(cpu) = cpu {
            self.stats.set_cpu(cpu);
        }
        if let Some((ended, before)) = ended {
            let worked = cpu.zip(before).map(|(cpu, before)| cpu.saturating_sub(before));
            self.stats.wait_timed(self.now.saturating_duration_since(ended), worked.unwrap_or_default());
        }
    }

    /// The next connection whose timer is due.
    pub(crate) fn take_due(&mut self) -> Option<ConnId> {
        loop {
            let index = self.wheel.pop_due(&mut self.slots)?;
            let conn = self.slots.id_at(index as usize)?;
            if self.slots.live_mut(conn).is_some() {
                return Some(conn);
            }
        }
    }

    pub(crate) fn take_app_due(&mut self) -> bool {
        self.app_timer.take_if(|at| *at <= self.now).is_some()
    }

    /// When the loop is stopping, everybody closes.
    pub(crate) fn close_all_if_stopping(&mut self) {
        if self.stopping {
            self.stopping = false;
            let all: Vec<ConnId> = self.slots.ids().collect();
            for conn in all {
                self.close_for(conn, || Closed::Stopped);
            }
        }
    }

    /// Records the first reason to close; later ones are ignored.
    pub(crate) fn close_for(&mut self, conn: ConnId, why: impl FnOnce() -> Closed) {
        if let Some(slot) = self.slots.live_mut(conn) {
            slot.closing = true;
            self.closes.push_back((conn, why()));
        }
    }

    /// Has the backend look at the sending side of a connection, unless a send in flight will anyway.
    pub(crate) fn list_send(&mut self, conn: ConnId) {
        let Some(slot) = self.slots.live_mut(conn).filter(|slot| !slot.connecting) else { return };
        if !slot.in_flight && !std::mem::replace(&mut slot.send_listed, true) {
            self.sends.push(conn);
        }
    }

    /// It is connected: what was asked for meanwhile comes next.
    pub(crate) fn connected(&mut self, conn: ConnId) {
        self.stats.connects.add(1);
        let Some(slot) = self.slots.get_mut(conn) else { return };
        slot.connecting = false;
        if slot.send_wanted || slot.sending == Sending::Closing {
            self.list_send(conn);
        }
    }

    /// The chain has left: what was asked for meanwhile comes next, in the next turn.
    pub(crate) fn send_finished(&mut self, conn: ConnId) {
        let Some(slot) = self.slots.get_mut(conn) else { return };
        slot.in_flight = false;
        if slot.send_wanted || slot.sending == Sending::Closing {
            self.list_send(conn);
        }
    }

    /// Whether chunks may be handed over.
    pub(crate) fn receives(&self, conn: ConnId) -> bool {
        let receives = |slot: &Slot| slot.receiving == Receiving::On && !slot.closing && !slot.connecting;
        self.slots.get(conn).is_some_and(receives)
    }

    /// The peer's end has been received.
    pub(crate) fn receive_ended(&mut self, conn: ConnId) {
        if let Some(slot) = self.slots.get_mut(conn) {
            slot.receiving = Receiving::Ended;
        }
    }

    /// Both directions have ended: there is nothing left to do on this connection.
    pub(crate) fn close_if_finished(&mut self, conn: ConnId) {
        let both = |slot: &Slot| slot.receiving == Receiving::Ended && slot.sending == Sending::Shut;
        if self.slots.get(conn).is_some_and(both) {
            self.close_for(conn, || Closed::Finished);
        }
    }

    /// The slot is vacated; `closed` comes next.
    pub(crate) fn remove(&mut self, conn: ConnId) {
        self.wheel.clear(&mut self.slots, conn.index() as u32);
        self.slots.remove(conn);
        self.stats.closes.add(1);
    }
}

/// How old the thread's processor time may become in a loop that turns. Reading it is a system call of its own, too much for
/// every turn; a hundred a second cost 0.003 % of one.
const CPU_INTERVAL: Duration = Duration::from_millis(10);

/// One turn in so many is timed.
const TURNS_TIMED: u64 = 16;

/// The precision of timers. Deadlines of network peers are seconds; a coarser tick lets timers that are set
/// one by one fire together, and 4 ms is far below what a peer could notice.
const GRANULE_MS: u64 = 4;
const TICKS_PER_SECOND: u64 = 1_000 / GRANULE_MS;
const GRANULE_NS: u32 = GRANULE_MS as u32 * 1_000_000;

/// The first tick that is not before this time: a timer is never early.
fn ticks_up(time: Duration) -> u64 {
    let whole = time.as_secs().saturating_mul(TICKS_PER_SECOND);
    whole.saturating_add(u64::from(time.subsec_nanos().div_ceil(GRANULE_NS)))
}

/// The last tick that is not after this time.
fn ticks_down(time: Duration) -> u64 {
    let whole = time.as_secs().saturating_mul(TICKS_PER_SECOND);
    whole.saturating_add(u64::from(time.subsec_nanos() / GRANULE_NS))
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
        assert_eq!(ticks_up(Duration::MAX), u64::MAX, "a deadline without end saturates");
    }

    #[test]
    fn the_first_reason_to_close_wins() {
        let mut io = Io::new(true);
        let conn = io.slots.insert();
        io.close_for(conn, || Closed::Reset);
        io.close(conn);
        assert_eq!(io.closes.len(), 1);
        assert!(matches!(io.closes[0], (_, Closed::Reset)));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn every_command_on_a_connection_waits_for_its_chain_in_flight() {
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
            assert!(!slot.waits_for_send(), "nothing has been asked for");
            want(&mut io, conn);
            assert!(io.slots.get(conn).unwrap().waits_for_send());
        }
    }

    #[test]
    fn one_turn_in_sixteen_is_timed_and_so_is_the_wait_behind_it() {
        let mut io = Io::new(true);
        for _ in 0..TURNS_TIMED * 3 {
            io.end_turn();
            io.begin_turn();
        }
        let stats = io.stats();
        assert_eq!((stats.turns, stats.timed_turns.iter().sum::<u64>()), (TURNS_TIMED * 3, 3));
        // A turn of two seconds, and a call of three behind it, of which one was work.
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
    fn lists_hold_a_connection_once() {
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
