//! One thread's load: an engine application that connects, sends and compares.

mod closing;
mod http3;
mod window;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sinews_engine::{App, CloseReason, ConnId, ConnectOptions, DatagramSocket, Flow, Io};
use sinews_proto::Config;
use sinews_session::Resources;
use smallvec::SmallVec;

use super::super::plan::{FanOut, LoadMode, LoadPlan};
use super::super::process::{self, CpuTime};
use super::super::tally::{FailureKind, LiveCounters, LoadFigures, record};
use super::chain::SessionChain;
use super::connection::LoadConnection;
use super::failure::ConnectionFailure;
use super::protocol::LoadProtocol;
use super::quic::LoadEndpoints;
use super::random::masks;
use super::role::ConnectionRole;
use super::schedule::SendSchedule;
use super::tls::TlsLayer;
use super::tracker::{MessageTracker, Nanos, ThreadState};
use super::traffic::SocketTraffic;
use super::websocket;

/// The watching thread's orders to the load threads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LoadCommand {
    /// In a staged load: open connections with ordinals below `until`, `delay` later than the ramp-up time says.
    Open { until: usize, delay: Duration },
    /// Start sending.
    Begin,
    /// The window ends at this time at the latest.
    Stop(Instant),
    /// The time has expired: abandon unanswered messages, close connections and stop.
    Shutdown,
}

pub(crate) struct LoadApp {
    thread_state: ThreadState,
    config: Arc<Config>,
    resources: Resources,
    conns: Vec<Option<LoadConnection>>,
    /// With HTTP/3.
    quic: Option<LoadEndpoints>,
    plain: Vec<u8>,
    /// Connections to open: ordinals and due times.
    to_open: std::iter::Peekable<std::vec::IntoIter<(usize, Instant)>>,
    /// Replacement connections: their ordinals, and their predecessors' unanswered messages.
    replacements: Vec<(usize, VecDeque<Nanos>)>,
    /// Sockets that send at a fixed rate, in rotation: connections, and their sockets by number.
    paced: Vec<(ConnId, usize)>,
    turn: usize,
    schedule: Option<SendSchedule>,
    next_source: usize,
    /// Ordinals below this may be opened, this much later than planned.
    stage: (usize, Duration),
    /// Connections requested so far.
    requested: u64,
    ending: bool,
    /// A window lasts, or messages in it are unanswered.
    working: bool,
    /// This thread's CPU time at the start and end of the window.
    pub(crate) used: [Option<CpuTime>; 2],
}

impl LoadApp {
    pub(crate) fn new(
        plan: Arc<LoadPlan>,
        thread: usize,
        lives: Arc<[Arc<LiveCounters>]>,
        epoch: Instant,
    ) -> Self {
        let own = plan.ordinals(thread).count();
        let gap = plan.ramp_up.div_f64(plan.connections.max(1) as f64);
        let at = |ordinal: usize| epoch + gap.mul_f64(ordinal as f64);
        let to_open: Vec<_> = plan.ordinals(thread).map(|ordinal| (ordinal, at(ordinal))).collect();
        let share = |count: u64| {
            let (threads, thread) = (plan.threads as u64, thread as u64);
            count / threads + u64::from(thread < count % threads)
        };
        Self {
            thread_state: ThreadState::new(plan.clone(), lives, thread, epoch, plan.count.map(share)),
            config: websocket::config(),
            resources: Resources::with_masks(masks()),
            conns: Vec::with_capacity(own),
            quic: None,
            plain: Vec::new(),
            to_open: to_open.into_iter().peekable(),
            replacements: Vec::new(),
            paced: Vec::new(),
            turn: 0,
            schedule: None,
            next_source: thread,
            stage: (if plan.staged_handshakes.is_some() { 0 } else { usize::MAX }, Duration::ZERO),
            requested: 0,
            ending: false,
            working: false,
            used: [None; 2],
        }
    }

    pub(crate) fn into_tally(self) -> LoadFigures {
        self.thread_state.tally
    }

    fn role(&self, ordinal: usize) -> ConnectionRole {
        let fan_out = &self.thread_state.plan.fan_out;
        match self.thread_state.plan.is_fan_out() {
            false => ConnectionRole::Echo,
            true if ordinal + fan_out.stalled >= self.thread_state.plan.sockets() => {
                ConnectionRole::Stalled(ordinal % fan_out.topics)
            }
            true if ordinal < fan_out.publishers => ConnectionRole::Publisher(ordinal % fan_out.topics),
            true => ConnectionRole::Subscriber((ordinal - fan_out.publishers) % fan_out.topics),
        }
    }

    fn open_replacements(&mut self, io: &mut Io) {
        if !self.ending {
            for (ordinal, waiting) in std::mem::take(&mut self.replacements) {
                self.open(io, ordinal, waiting);
            }
        }
    }

    /// Opens due connections, up to the limit for handshakes in progress.
    fn open_due(&mut self, io: &mut Io) {
        let (until, delay) = self.stage;
        let now = self.thread_state.now;
        while self.may_open()
            && let Some((ordinal, _)) =
                self.to_open.next_if(|(ordinal, at)| *ordinal < until && *at + delay <= now)
        {
            self.open(io, ordinal, VecDeque::new());
        }
    }

    /// Whether the limit for handshakes in progress admits another.
    fn may_open(&self) -> bool {
        let max = self.thread_state.plan.staged_handshakes.map_or(u64::MAX, |max| max as u64);
        self.requested - self.thread_state.live.settled.get() < max
    }

    /// When the next connection in this stage is due.
    fn next_opening(&mut self) -> Option<Instant> {
        let (until, delay) = self.stage;
        self.to_open.peek().filter(|(ordinal, _)| *ordinal < until).map(|(_, at)| *at + delay)
    }

    /// The messages for a connection's sockets. `waiting`: its predecessor's unanswered messages.
    fn traffic(&self, ordinal: usize, waiting: VecDeque<Nanos>) -> SmallVec<[SocketTraffic; 1]> {
        let of_each = self.thread_state.plan.sockets_per_connection;
        let first = ordinal * of_each;
        let mut traffic: SmallVec<[SocketTraffic; 1]> = (first..first + of_each)
            .map(|socket| SocketTraffic { role: self.role(socket), tracker: MessageTracker::new(socket) })
            .collect();
        if let Some(first) = traffic.first_mut() {
            first.tracker.take_over(waiting);
        }
        traffic
    }

    fn open(&mut self, io: &mut Io, ordinal: usize, waiting: VecDeque<Nanos>) {
        self.requested += 1;
        if self.quic.is_some() {
            return self.open_http3(io, ordinal, waiting);
        }
        let plan = self.thread_state.plan.clone();
        let mut options = ConnectOptions::default();
        if !plan.sources.is_empty() {
            self.next_source += 1;
            options = options.with_local((plan.sources[self.next_source % plan.sources.len()], 0).into());
        }
        let traffic = self.traffic(ordinal, waiting);
        let Some((target, protocol)) = LoadProtocol::from_plan(&plan, &traffic) else { return };
        let tls = plan.tls.as_ref().map(|config| TlsLayer::new(config, &target.name));
        let tls = match tls.transpose() {
            Ok(tls) => tls.map(Box::new),
            Err(error) => {
                self.thread_state.fail(FailureKind::Tls, 1, || error);
                return self.thread_state.live.settled.add(1);
            }
        };
        let id = io.connect(target.remote.clone(), &options);
        io.set_timer(id, self.thread_state.now + plan.timeout);
        self.insert(LoadConnection {
            id,
            requested_at: self.thread_state.now,
            ordinal,
            traffic,
            protocol,
            tls,
            quic: None,
            open: false,
            closing: false,
        });
    }

    fn insert(&mut self, conn: LoadConnection) {
        let slot = slot(conn.id);
        if self.conns.len() <= slot {
            self.conns.resize_with(slot + 1, || None);
        }
        self.conns[slot] = Some(conn);
    }

    /// Sends a connection's output at the end of the turn.
    fn request_send(&mut self, io: &mut Io, id: ConnId) {
        match &mut self.quic {
            Some(quic) => quic.changed.push(id),
            None => io.send(id),
        }
    }

    fn request_close(&mut self, io: &mut Io, id: ConnId) {
        match &mut self.quic {
            Some(quic) => quic.closing.push(id),
            None => io.close(id),
        }
    }

    fn conn(&mut self, id: ConnId) -> Option<&mut LoadConnection> {
        self.conns.get_mut(slot(id))?.as_mut().filter(|conn| conn.id == id)
    }

    /// Handles a connection's state after any event on it.
    fn settle(&mut self, io: &mut Io, id: ConnId) {
        let Some(conn) = self.conns.get_mut(slot(id)).and_then(Option::as_mut) else { return };
        if !conn.open && conn.protocol.is_open() && conn.tls.as_ref().is_none_or(|tls| tls.is_open()) {
            conn.open = true;
            self.opened(io, id);
        }
        let Some(conn) = self.conns.get_mut(slot(id)).and_then(Option::as_mut) else { return };
        if conn.protocol.wants_send() || conn.tls.as_ref().is_some_and(|tls| tls.wants_send()) {
            self.request_send(io, id);
        } else if conn.protocol.is_over() {
            conn.closing = true;
            self.request_close(io, id);
        }
    }

    fn opened(&mut self, io: &mut Io, id: ConnId) {
        io.clear_timer(id);
        let Self { conns, thread_state, resources, paced, .. } = self;
        let Some(conn) = conns.get_mut(slot(id)).and_then(Option::as_mut) else { return };
        let took = thread_state.now.saturating_duration_since(conn.requested_at);
        let storm = thread_state.plan.mode == LoadMode::Storm;
        if !storm || thread_state.measures_now() {
            record(&mut thread_state.tally.connect, took);
        }
        thread_state.live.open.add(1);
        thread_state.live.settled.add(1);
        match thread_state.plan.mode {
            LoadMode::Storm => {
                thread_state.live.messages.add(1);
                if thread_state.measures_now() && thread_state.budget != Some(0) {
                    thread_state.tally.messages += 1;
                    record(&mut thread_state.tally.latency, took);
                    thread_state.budget.iter_mut().for_each(|left| *left -= 1);
                }
                conn.closing = true;
                if !conn.protocol.close(thread_state, resources) {
                    self.request_close(io, id);
                }
            }
            LoadMode::Idle => {}
            LoadMode::Echo | LoadMode::FanOut => {
                for index in 0..conn.traffic.len() {
                    let role = conn.traffic[index].role;
                    let FanOut { login, subscribe, .. } = &thread_state.plan.fan_out;
                    if let Some(login) = login {
                        conn.protocol.send_first(index, login, thread_state, resources);
                    }
                    if let (Some(topic), Some(text)) = (role.subscribed(), subscribe) {
                        let text = text.replace("{topic}", &FanOut::topic(topic));
                        conn.protocol.send_first(index, &text, thread_state, resources);
                    }
                    if role.subscribed().is_none() {
                        paced.push((id, index));
                        conn.protocol.send(index, &mut conn.traffic, thread_state, resources);
                    }
                    // The server may disconnect a subscriber that does not read.
                    conn.closing |= conn.is_stalled();
                }
            }
        }
    }

    /// Closes a failed connection.
    fn fault(&mut self, io: &mut Io, id: ConnId, fault: ConnectionFailure) {
        let ending = self.ending;
        let Self { conns, thread_state, .. } = self;
        let Some(conn) = conns.get_mut(slot(id)).and_then(Option::as_mut) else { return };
        if let Some(failure) = fault.failure.filter(|_| !conn.closing && !ending) {
            if matches!(failure, FailureKind::WrongBytes | FailureKind::Protocol) {
                conn.traffic[fault.socket].tracker.answered_wrongly(thread_state);
            }
            thread_state.fail(failure, 1, || fault.text);
        }
        if !conn.open && !conn.closing {
            thread_state.live.settled.add(1);
        }
        conn.closing = true;
        self.request_close(io, id);
    }

    /// Whether this load polls without sleeping while it [works](Self::is_working).
    pub(crate) fn polls(&self) -> bool {
        self.thread_state.plan.busy_poll
    }

    /// Whether a window lasts, or messages in it are unanswered, or connections are to be opened.
    pub(crate) fn is_working(&self) -> bool {
        self.working || self.ending
    }

    fn stop(&mut self, io: &mut Io, at: Instant) {
        self.thread_state.end_window(at);
        self.tick(io);
    }

    /// Handles the timer tick.
    fn tick(&mut self, io: &mut Io) {
        self.thread_state.at(Instant::now());
        let now = self.thread_state.now;
        self.open_due(io);
        self.open_replacements(io);
        if let Some(window) = self.thread_state.window() {
            for (edge, used) in [Some(window.from), window.until].into_iter().zip(&mut self.used) {
                if used.is_none() && edge.is_some_and(|edge| now >= edge) {
                    *used = process::this_thread();
                }
            }
        }
        self.expire_openings(io);
        // The last delivery may have arrived at another thread.
        self.publish_burst(io);
        self.send_due(io);
        self.report_done();
        self.set_clock(io);
    }

    fn set_clock(&mut self, io: &mut Io) {
        let opening = self.next_opening();
        let staged = self.thread_state.plan.staged_handshakes.is_some();
        let is_idle = !self.working && (self.thread_state.window().is_some() || staged && opening.is_none());
        let tick = self.thread_state.now + if is_idle { IDLE_TICK } else { TICK };
        let due = self.schedule.as_ref().map(SendSchedule::next);
        let open = opening.filter(|_| self.may_open());
        if !self.ending {
            io.set_app_timer([due, open].into_iter().flatten().fold(tick, Instant::min));
        }
    }
}

impl App for LoadApp {
    type Chain = SessionChain;
    type Mail = LoadCommand;

    fn started(&mut self, io: &mut Io) {
        io.run_until_stopped();
        self.tick(io);
    }

    fn connected(&mut self, io: &mut Io, id: ConnId) {
        self.thread_state.at(Instant::now());
        let Self { conns, resources, .. } = self;
        let Some(conn) = conns.get_mut(slot(id)).and_then(Option::as_mut) else { return };
        conn.protocol.begin(resources);
        self.settle(io, id);
    }

    fn received(&mut self, io: &mut Io, id: ConnId, chunk: &mut [u8]) -> Flow {
        self.thread_state.at(Instant::now());
        let Self { conns, thread_state, resources, config, plain, .. } = self;
        let Some(conn) = conns.get_mut(slot(id)).and_then(Option::as_mut) else { return Flow::Continue };
        let result = match &mut conn.tls {
            None => conn.protocol.receive(chunk, &mut conn.traffic, thread_state, resources, config),
            Some(tls) => {
                plain.clear();
                match tls.receive(chunk, plain) {
                    Err(error) => Err(ConnectionFailure::new(FailureKind::Tls, &error)),
                    Ok(()) if plain.is_empty() => Ok(()),
                    Ok(()) if thread_state.plan.http2 && !tls.is_http2() => {
                        Err(ConnectionFailure::new(FailureKind::Tls, "the server did not select h2 by ALPN"))
                    }
                    Ok(()) => {
                        conn.protocol.receive(plain, &mut conn.traffic, thread_state, resources, config)
                    }
                }
            }
        };
        match result {
            Ok(()) => self.settle(io, id),
            Err(fault) => self.fault(io, id, fault),
        }
        self.publish_burst(io);
        if self.working && self.thread_state.is_spent() {
            self.report_done();
        }
        if self.thread_state.plan.fan_out.stalled > 0
            && self.conn(id).is_some_and(|conn| conn.open && conn.is_stalled())
        {
            return Flow::Pause;
        }
        Flow::Continue
    }

    fn ended(&mut self, io: &mut Io, id: ConnId) {
        let quiet = self.conn(id).is_some_and(|conn| {
            matches!(conn.protocol, LoadProtocol::Http(_))
                && conn.open
                && (conn.traffic.iter().all(|traffic| traffic.tracker.is_idle()) || conn.protocol.is_over())
        });
        let fault = if quiet {
            ConnectionFailure::expected()
        } else {
            ConnectionFailure::new(FailureKind::Closed, "the server closed the connection")
        };
        self.fault(io, id, fault);
    }

    fn start_send(&mut self, id: ConnId) -> Option<SessionChain> {
        let Self { conns, thread_state, resources, .. } = self;
        let conn = conns.get_mut(slot(id))?.as_mut()?;
        let Some(tls) = &mut conn.tls else {
            return conn.protocol.start_send(thread_state, resources).map(SessionChain);
        };
        if tls.is_open()
            && let Some(mut chain) = conn.protocol.start_send(thread_state, resources)
        {
            tls.seal(&mut chain);
            conn.protocol.finish_send(chain, thread_state, resources);
        }
        tls.start_send(resources).map(SessionChain)
    }

    fn progressed(&mut self, _: &mut Io, id: ConnId, bytes: usize) {
        let Self { conns, thread_state, .. } = self;
        let Some(conn) = conns.get_mut(slot(id)).and_then(Option::as_mut) else { return };
        match &mut conn.tls {
            None => conn.protocol.progressed(bytes, thread_state),
            Some(tls) => tls.progressed(bytes),
        }
    }

    fn finish_send(&mut self, io: &mut Io, id: ConnId, chain: SessionChain, complete: bool) {
        let Self { conns, thread_state, resources, .. } = self;
        let Some(conn) = conns.get_mut(slot(id)).and_then(Option::as_mut) else { return };
        match &mut conn.tls {
            None => conn.protocol.finish_send(chain.0, thread_state, resources),
            Some(tls) => tls.finish_send(chain.0, resources),
        }
        if complete {
            self.settle(io, id);
        }
    }

    fn finish_may_wait(&self, id: ConnId) -> bool {
        let conn = self.conns.get(slot(id)).and_then(Option::as_ref);
        conn.is_some_and(|conn| {
            conn.tls.is_none() && conn.open && !conn.closing && conn.protocol.finish_may_wait()
        })
    }

    fn closed(&mut self, io: &mut Io, id: ConnId, why: CloseReason) {
        self.thread_state.at(Instant::now());
        let Some(conn) = self.conns.get_mut(slot(id)).and_then(Option::take) else { return };
        let failed = !conn.open;
        let (failure, text) = closing::failure_of(&why, conn.open);
        self.handle_closed(failure, text, conn);
        // Failed connections are retried with the next tick, successful connections are replaced immediately.
        if !failed {
            self.open_replacements(io);
        }
        self.stop_if_over(io);
    }

    fn timer(&mut self, io: &mut Io, id: ConnId) {
        let opening = self.conn(id).is_some_and(|conn| !conn.open);
        if opening {
            let fault =
                ConnectionFailure::new(FailureKind::ConnectTimeout, "connection or handshake timed out");
            self.fault(io, id, fault);
        }
    }

    fn app_timer(&mut self, io: &mut Io) {
        if self.ending {
            return io.stop();
        }
        self.tick(io);
    }

    fn mail(&mut self, io: &mut Io, mail: &mut Vec<LoadCommand>) {
        for command in mail.drain(..) {
            match command {
                LoadCommand::Open { until, delay } => {
                    self.stage = (until, delay);
                    self.tick(io);
                }
                LoadCommand::Begin => self.begin(io),
                LoadCommand::Stop(at) => self.stop(io, at),
                LoadCommand::Shutdown => self.end(io),
            }
        }
        self.stop_if_over(io);
    }

    fn datagrams(&mut self, io: &mut Io, index: usize, socket: &mut DatagramSocket) -> bool {
        self.receive_datagrams(io, index, socket)
    }

    fn datagram_timer(&mut self, io: &mut Io) {
        self.expire_http3(io);
    }

    fn end_turn(&mut self, io: &mut Io) {
        if self.quic.is_some() {
            self.flush_http3(io);
        }
    }
}

/// A connection's index. HTTP/3 connections have their own slots, and a load has connections of one kind.
fn slot(id: ConnId) -> usize {
    id.stream_slot().unwrap_or_else(|| id.index())
}

/// Timer tick interval.
const TICK: Duration = Duration::from_millis(10);

/// The same outside the window.
const IDLE_TICK: Duration = Duration::from_secs(1);

/// Wait before another attempt at a send whose buffer was full.
const RETRY: Duration = Duration::from_micros(100);
