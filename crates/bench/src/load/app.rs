//! The load of one thread: an application of the engine that connects, sends and compares.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sinews_engine::{Accepted, App, Chain, Closed, ConnId, ConnectOptions, Flow, Io};
use sinews_proto::Config;
use sinews_session::Resources;

use super::super::args::Mode;
use super::super::payload::mix;
use super::super::plan::Plan;
use super::super::process::{self, Processor};
use super::super::tally::{Failure, Live, Tally, record};
use super::super::target::Protocol;
use super::http::Http;
use super::lane::{Desk, Lane, Nanos, Window};
use super::pace::Pace;
use super::tcp::Tcp;
use super::tls::Tls;
use super::websocket::{self, WebSocket};
use super::wire::{Fault, Part, Wire};

/// A buffer chain of a session, as the engine accepts it.
#[derive(Debug)]
pub(crate) struct Outgoing(Box<sinews_session::Chain>);

impl Chain for Outgoing {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        self.0.slices(out)
    }

    fn advance(&mut self, bytes: usize) {
        self.0.advance(bytes);
    }
}

/// Orders of the watching thread to the load threads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    /// Start sending.
    Begin(Window),
    /// The window ends at this time at the latest.
    Stop(Instant),
    /// The time has expired: abandon unanswered messages, close connections and stop.
    End,
}

/// One connection.
struct Conn {
    id: ConnId,
    /// Time of the connection request.
    asked: Instant,
    part: Part,
    lane: Lane,
    wire: Wire,
    tls: Option<Box<Tls>>,
    /// The connection is reported as open.
    open: bool,
    /// The connection is closing: later events on it are not errors.
    leaving: bool,
}

pub(crate) struct Load {
    desk: Desk,
    config: Arc<Config>,
    resources: Resources,
    conns: Vec<Option<Conn>>,
    plain: Vec<u8>,
    /// Ordinals and due times of connections to open.
    to_open: std::iter::Peekable<std::vec::IntoIter<(usize, Instant)>>,
    /// Replacement connections: their ordinals, and unanswered messages of their predecessors.
    again: Vec<(usize, VecDeque<Nanos>)>,
    /// Connections that send at a fixed rate, in rotation.
    paced: Vec<ConnId>,
    turn: usize,
    pace: Option<Pace>,
    next_source: usize,
    ending: bool,
    /// CPU time of this thread at the start and end of the window.
    pub(crate) used: [Option<Processor>; 2],
}

impl Load {
    pub(crate) fn new(plan: Arc<Plan>, thread: usize, live: Arc<Live>, epoch: Instant) -> Self {
        let own = plan.ordinals(thread).count();
        let gap = plan.ramp_up.div_f64(plan.connections.max(1) as f64);
        let at = |ordinal: usize| epoch + gap.mul_f64(ordinal as f64);
        let to_open: Vec<_> = plan.ordinals(thread).map(|ordinal| (ordinal, at(ordinal))).collect();
        let share = |count: u64| {
            let (threads, thread) = (plan.threads as u64, thread as u64);
            count / threads + u64::from(thread < count % threads)
        };
        Self {
            desk: Desk::new(plan.clone(), live, epoch, plan.count.map(share)),
            config: websocket::config(),
            resources: Resources::with_masks(masks()),
            conns: Vec::with_capacity(own),
            plain: Vec::new(),
            to_open: to_open.into_iter().peekable(),
            again: Vec::new(),
            paced: Vec::new(),
            turn: 0,
            pace: None,
            next_source: thread,
            ending: false,
            used: [None; 2],
        }
    }

    pub(crate) fn into_tally(self) -> Tally {
        self.desk.tally
    }

    fn part(&self, ordinal: usize) -> Part {
        let fan_out = &self.desk.plan.fan_out;
        match self.desk.plan.is_fan_out() {
            false => Part::Echo,
            true if ordinal < fan_out.publishers => Part::Publisher(ordinal % fan_out.topics),
            true => Part::Subscriber((ordinal - fan_out.publishers) % fan_out.topics),
        }
    }

    fn open_again(&mut self, io: &mut Io) {
        if !self.ending {
            for (ordinal, waiting) in std::mem::take(&mut self.again) {
                self.open(io, ordinal, waiting);
            }
        }
    }

    fn open(&mut self, io: &mut Io, ordinal: usize, waiting: VecDeque<Nanos>) {
        let plan = self.desk.plan.clone();
        let part = self.part(ordinal);
        let mut options = ConnectOptions::default();
        if !plan.sources.is_empty() {
            self.next_source += 1;
            options = options.local((plan.sources[self.next_source % plan.sources.len()], 0).into());
        }
        let topic = match part {
            Part::Echo => 0,
            Part::Publisher(topic) | Part::Subscriber(topic) => topic,
        };
        let wire = match plan.target.protocol {
            Protocol::Tcp => Wire::Tcp(Tcp::default()),
            Protocol::Http => Wire::Http(Http::new()),
            Protocol::WebSocket => match plan.handshake(topic) {
                Some(request) => Wire::WebSocket(WebSocket::new(request, key())),
                None => return,
            },
        };
        let tls = plan.tls.as_ref().map(|config| Tls::new(config, &plan.target.name));
        let tls = match tls.transpose() {
            Ok(tls) => tls.map(Box::new),
            Err(error) => {
                self.desk.fail(Failure::Tls, 1, || error);
                return self.desk.live.settled.add(1);
            }
        };
        let id = io.connect(plan.target.remote.clone(), &options);
        io.set_timer(id, self.desk.now + plan.timeout);
        let conn = Conn {
            id,
            asked: self.desk.now,
            part,
            lane: Lane::new(ordinal, waiting),
            wire,
            tls,
            open: false,
            leaving: false,
        };
        if self.conns.len() <= id.index() {
            self.conns.resize_with(id.index() + 1, || None);
        }
        self.conns[id.index()] = Some(conn);
    }

    fn conn(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.conns.get_mut(id.index())?.as_mut().filter(|conn| conn.id == id)
    }

    /// Handles the state of a connection after any event on it.
    fn settle(&mut self, io: &mut Io, id: ConnId) {
        let Some(conn) = self.conns.get_mut(id.index()).and_then(Option::as_mut) else { return };
        if !conn.open && conn.wire.is_open() && conn.tls.as_ref().is_none_or(|tls| tls.is_open()) {
            conn.open = true;
            self.opened(io, id);
        }
        let Some(conn) = self.conns.get_mut(id.index()).and_then(Option::as_mut) else { return };
        if conn.wire.wants_send() || conn.tls.as_ref().is_some_and(|tls| tls.wants_send()) {
            io.send(id);
        } else if conn.wire.is_over() {
            conn.leaving = true;
            io.close(id);
        }
    }

    fn opened(&mut self, io: &mut Io, id: ConnId) {
        io.clear_timer(id);
        let Self { conns, desk, resources, paced, .. } = self;
        let Some(conn) = conns.get_mut(id.index()).and_then(Option::as_mut) else { return };
        let took = desk.now.saturating_duration_since(conn.asked);
        let storm = desk.plan.mode == Mode::Storm;
        if !storm || desk.measures_now() {
            record(&mut desk.tally.connect, took);
        }
        desk.live.open.add(1);
        desk.live.settled.add(1);
        match desk.plan.mode {
            Mode::Storm => {
                desk.live.messages.add(1);
                if desk.measures_now() && desk.budget != Some(0) {
                    desk.tally.messages += 1;
                    record(&mut desk.tally.latency, took);
                    desk.budget.iter_mut().for_each(|left| *left -= 1);
                }
                conn.leaving = true;
                if !conn.wire.close(desk, resources) {
                    io.close(id);
                }
            }
            Mode::Idle => {}
            Mode::Echo | Mode::FanOut => {
                if let (Part::Subscriber(topic), Some(text), Wire::WebSocket(websocket)) =
                    (conn.part, &desk.plan.fan_out.subscribe, &mut conn.wire)
                {
                    let text = text.replace("{topic}", &super::super::plan::FanOut::topic(topic));
                    websocket.subscribe(&text, desk, resources);
                }
                if !matches!(conn.part, Part::Subscriber(_)) {
                    paced.push(id);
                    conn.wire.send(conn.part, &mut conn.lane, desk, resources);
                }
            }
        }
    }

    /// Closes a failed connection.
    fn fault(&mut self, io: &mut Io, id: ConnId, fault: Fault) {
        let ending = self.ending;
        let Self { conns, desk, .. } = self;
        let Some(conn) = conns.get_mut(id.index()).and_then(Option::as_mut) else { return };
        if let Some(failure) = fault.failure.filter(|_| !conn.leaving && !ending) {
            if matches!(failure, Failure::WrongBytes | Failure::Protocol) {
                conn.lane.answered_wrongly(desk);
            }
            desk.fail(failure, 1, || fault.text);
        }
        if !conn.open && !conn.leaving {
            desk.live.settled.add(1);
        }
        conn.leaving = true;
        io.close(id);
    }

    fn begin(&mut self, io: &mut Io, window: Window) {
        // The loop's time may lie before the window; messages due at that time do not count.
        self.desk.begin(window, Instant::now());
        if let Some(rate) = self.desk.plan.rate {
            let own = self.paced.len() as f64;
            let all = match self.desk.plan.is_fan_out() {
                true => self.desk.plan.fan_out.publishers,
                false => self.desk.plan.connections,
            };
            self.pace = Some(Pace::new(window.begin, rate * own / all as f64));
        }
        let ids = self.paced.clone();
        for id in ids {
            let Self { conns, desk, resources, .. } = self;
            if let Some(conn) =
                conns.get_mut(id.index()).and_then(Option::as_mut).filter(|conn| conn.id == id)
            {
                conn.wire.send(conn.part, &mut conn.lane, desk, resources);
            }
            self.settle(io, id);
        }
        self.tick(io);
    }

    fn stop(&mut self, io: &mut Io, at: Instant) {
        self.desk.end_window(at);
        self.tick(io);
    }

    /// Handles the timer tick.
    fn tick(&mut self, io: &mut Io) {
        self.desk.at(Instant::now());
        let now = self.desk.now;
        while let Some((ordinal, _)) = self.to_open.next_if(|(_, at)| *at <= now) {
            self.open(io, ordinal, VecDeque::new());
        }
        self.open_again(io);
        if let Some(window) = self.desk.window() {
            for (edge, used) in [Some(window.from), window.until].into_iter().zip(&mut self.used) {
                if used.is_none() && edge.is_some_and(|edge| now >= edge) {
                    *used = process::of_this_thread();
                }
            }
        }
        self.send_due(io);
        self.tell_if_done();
        self.set_clock(io);
    }

    /// Sends due messages in an open loop.
    fn send_due(&mut self, io: &mut Io) {
        let until = self.desk.window().and_then(|window| window.until);
        while let Some(due) = self.pace.as_mut().and_then(|pace| pace.take(self.desk.now)) {
            if until.is_some_and(|until| due >= until) {
                return self.pace = None;
            }
            if let Some(0) = self.desk.budget {
                return self.pace = None;
            }
            let Some(id) = self.next_paced() else { return self.pace = None };
            self.desk.budget.iter_mut().for_each(|left| *left -= 1);
            let Self { conns, desk, resources, .. } = self;
            let Some(conn) = conns.get_mut(id.index()).and_then(Option::as_mut) else { continue };
            conn.lane.due(due, desk);
            if desk.measures(due) {
                record(&mut desk.tally.late, desk.now.saturating_duration_since(due));
            }
            conn.wire.send(conn.part, &mut conn.lane, desk, resources);
            if conn.wire.wants_send() {
                io.send(id);
            }
        }
    }

    /// Selects the next open connection in rotation.
    fn next_paced(&mut self) -> Option<ConnId> {
        while !self.paced.is_empty() {
            self.turn = (self.turn + 1) % self.paced.len();
            let id = self.paced[self.turn];
            if self.conn(id).is_some_and(|conn| !conn.leaving) {
                return Some(id);
            }
            self.paced.swap_remove(self.turn);
        }
        None
    }

    /// Reports to the watching thread that all work is done.
    fn tell_if_done(&self) {
        let desk = &self.desk;
        let spent = desk.stopped || desk.budget == Some(0) || self.paced_have_gone();
        let done = desk.window().is_some() && spent && desk.outstanding == 0;
        desk.live.done.store(u64::from(done), Ordering::Release);
    }

    fn paced_have_gone(&self) -> bool {
        let sends = matches!(self.desk.plan.mode, Mode::Echo | Mode::FanOut);
        let lives = |id: &ConnId| {
            self.conns.get(id.index()).and_then(Option::as_ref).is_some_and(|conn| conn.id == *id)
        };
        sends && self.desk.live.open.get() == 0 && self.to_open.len() == 0 && !self.paced.iter().any(lives)
    }

    fn set_clock(&mut self, io: &mut Io) {
        let tick = self.desk.now + TICK;
        let due = self.pace.as_ref().map(Pace::next);
        let open = self.to_open.peek().map(|(_, at)| *at);
        if !self.ending {
            io.set_app_timer([due, open].into_iter().flatten().fold(tick, Instant::min));
        }
    }

    fn end(&mut self, io: &mut Io) {
        self.ending = true;
        self.desk.stopped = true;
        self.pace = None;
        self.desk.at(Instant::now());
        let Self { conns, desk, resources, .. } = self;
        for conn in conns.iter_mut().flatten() {
            conn.lane.give_up(desk);
            conn.leaving = true;
            if conn.open && conn.wire.close(desk, resources) {
                io.send(conn.id);
            } else {
                io.close(conn.id);
            }
        }
        // Connections whose peer does not answer Close in time are abandoned.
        io.set_app_timer(desk.now + GOODBYE);
    }

    /// Handles a closed connection: counts the reason, and opens a replacement if needed.
    fn gone(&mut self, why: Closed, conn: Conn) {
        let Self { desk, again, ending, .. } = self;
        let Conn { mut lane, open, leaving, .. } = conn;
        if open {
            desk.live.open.set(desk.live.open.get().saturating_sub(1));
        }
        let unexpected = !leaving && !*ending;
        if unexpected {
            let text = match &why {
                Closed::Error(error) => error.to_string(),
                Closed::Reset => "reset".to_owned(),
                _ => "closed unexpectedly".to_owned(),
            };
            let failure = match &why {
                Closed::Error(error) if !open => match error.kind() {
                    std::io::ErrorKind::ConnectionRefused => Failure::Refused,
                    std::io::ErrorKind::TimedOut => Failure::ConnectTimeout,
                    _ => Failure::Unreachable,
                },
                Closed::Reset => Failure::Reset,
                Closed::Error(_) => Failure::Io,
                _ => Failure::Closed,
            };
            desk.fail(failure, 1, || text);
            if !open {
                desk.live.settled.add(1);
            }
        }
        let another = match desk.plan.mode {
            Mode::Storm => !desk.stopped && desk.budget.is_none_or(|left| left > 0),
            // A server may close a connection after any answer (RFC 9112 section 9.6).
            Mode::Echo => !unexpected && desk.plan.target.protocol == Protocol::Http,
            Mode::Idle | Mode::FanOut => false,
        };
        if another && !*ending {
            again.push((lane.ordinal, lane.leave()));
        } else {
            lane.give_up(desk);
        }
    }
}

impl App for Load {
    type Chain = Outgoing;
    type Mail = Order;

    fn started(&mut self, io: &mut Io) {
        io.run_until_stopped();
        self.tick(io);
    }

    fn accepted(&mut self, _: &mut Io, _: ConnId, _: Accepted) {}

    fn connected(&mut self, io: &mut Io, id: ConnId) {
        self.desk.at(Instant::now());
        let Self { conns, resources, .. } = self;
        let Some(conn) = conns.get_mut(id.index()).and_then(Option::as_mut) else { return };
        conn.wire.begin(resources);
        self.settle(io, id);
    }

    fn received(&mut self, io: &mut Io, id: ConnId, chunk: &mut [u8]) -> Flow {
        self.desk.at(Instant::now());
        let Self { conns, desk, resources, config, plain, .. } = self;
        let Some(conn) = conns.get_mut(id.index()).and_then(Option::as_mut) else { return Flow::Continue };
        let with = (resources, &*config);
        let result = match &mut conn.tls {
            None => conn.wire.receive(chunk, conn.part, &mut conn.lane, desk, with),
            Some(tls) => {
                plain.clear();
                match tls.receive(chunk, plain) {
                    Err(error) => Err(Fault::new(Failure::Tls, &error)),
                    Ok(()) if plain.is_empty() => Ok(()),
                    Ok(()) => conn.wire.receive(plain, conn.part, &mut conn.lane, desk, with),
                }
            }
        };
        match result {
            Ok(()) => self.settle(io, id),
            Err(fault) => self.fault(io, id, fault),
        }
        Flow::Continue
    }

    fn ended(&mut self, io: &mut Io, id: ConnId) {
        let quiet = self.conn(id).is_some_and(|conn| {
            matches!(conn.wire, Wire::Http(_)) && conn.open && (conn.lane.is_idle() || conn.wire.is_over())
        });
        let fault = if quiet {
            Fault::expected()
        } else {
            Fault::new(Failure::Closed, "the server closed the connection")
        };
        self.fault(io, id, fault);
    }

    fn start_send(&mut self, id: ConnId) -> Option<Outgoing> {
        let Self { conns, desk, resources, .. } = self;
        let conn = conns.get_mut(id.index())?.as_mut()?;
        let Some(tls) = &mut conn.tls else { return conn.wire.start_send().map(Outgoing) };
        if tls.is_open()
            && let Some(mut chain) = conn.wire.start_send()
        {
            tls.seal(&mut chain);
            conn.wire.finish_send(chain, desk, resources);
        }
        tls.start_send(resources).map(Outgoing)
    }

    fn progressed(&mut self, _: &mut Io, id: ConnId, bytes: usize) {
        let Self { conns, desk, .. } = self;
        let Some(conn) = conns.get_mut(id.index()).and_then(Option::as_mut) else { return };
        match &mut conn.tls {
            None => conn.wire.progressed(bytes, desk),
            Some(tls) => tls.progressed(bytes),
        }
    }

    fn finish_send(&mut self, io: &mut Io, id: ConnId, chain: Outgoing, complete: bool) {
        let Self { conns, desk, resources, .. } = self;
        let Some(conn) = conns.get_mut(id.index()).and_then(Option::as_mut) else { return };
        match &mut conn.tls {
            None => conn.wire.finish_send(chain.0, desk, resources),
            Some(tls) => tls.finish_send(chain.0, resources),
        }
        if complete {
            self.settle(io, id);
        }
    }

    fn finish_may_wait(&self, id: ConnId) -> bool {
        let conn = self.conns.get(id.index()).and_then(Option::as_ref);
        conn.is_some_and(|conn| {
            conn.tls.is_none() && conn.open && !conn.leaving && conn.wire.finish_may_wait()
        })
    }

    fn closed(&mut self, io: &mut Io, id: ConnId, why: Closed) {
        self.desk.at(Instant::now());
        let Some(conn) = self.conns.get_mut(id.index()).and_then(Option::take) else { return };
        let failed = !conn.open;
        self.gone(why, conn);
        // Failed connections are retried with the next tick, successful connections are replaced immediately.
        if !failed {
            self.open_again(io);
        }
        if self.ending && io.connections() == 0 {
            io.stop();
        }
    }

    fn timer(&mut self, io: &mut Io, id: ConnId) {
        let opening = self.conn(id).is_some_and(|conn| !conn.open);
        if opening {
            let fault = Fault::new(Failure::ConnectTimeout, "connection or handshake timed out");
            self.fault(io, id, fault);
        }
    }

    fn app_timer(&mut self, io: &mut Io) {
        if self.ending {
            return io.stop();
        }
        self.tick(io);
    }

    fn mail(&mut self, io: &mut Io, mail: &mut Vec<Order>) {
        for order in mail.drain(..) {
            match order {
                Order::Begin(window) => self.begin(io, window),
                Order::Stop(at) => self.stop(io, at),
                Order::End => self.end(io),
            }
        }
        if self.ending && io.connections() == 0 {
            io.stop();
        }
    }
}

/// Returns 16 random bytes for a handshake. Without randomness, there are no mask keys either.
fn key() -> [u8; 16] {
    let mut key = [0; 16];
    let _ = getrandom::fill(&mut key);
    key
}

/// Returns a generator of mask keys for this thread. Browsers need unpredictable keys (RFC 6455 section 10.3), a load
/// generator does not. One random seed replaces a system call per 64 keys.
fn masks() -> impl FnMut() -> [u8; 4] + Send + 'static {
    let [seed @ .., _, _, _, _, _, _, _, _] = key();
    let mut state = u64::from_le_bytes(seed);
    move || {
        state = mix(state);
        (state as u32).to_le_bytes()
    }
}

/// Interval of the timer tick.
const TICK: Duration = Duration::from_millis(10);

/// Timeout of the server's answer to Close.
const GOODBYE: Duration = Duration::from_secs(1);
