//! State of one thread: its connections, and its event handlers.

mod memory;
mod publish;
mod stop;
#[cfg(test)]
mod tests;
mod tls;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sinews_engine::{self as engine, Accepted, App, Append, ConnId, Io, Large};
use sinews_proto::Time;
use sinews_session::{Chain, Fate, Flow, Resources, Session};

use self::memory::Holders;
use self::publish::UnderWay;
use self::stop::Phase;
pub(crate) use self::stop::StopTimes;
use crate::appends::{Appends, Queue};
use crate::client::TrustedProxies;
use crate::date::Date;
use crate::http::{Handled, Http, HttpConfig, Rest, Service, Upgrade};
use crate::limits::{Gate, Limit, Refused};
use crate::listen::Expects;
use crate::mail::{Mail, Stop, StopLevel};
use crate::metrics::{Counters, Held};
use crate::proxy::{Announced, Behind, Preface};
use crate::router::Router;
use crate::tasks::Tasks;
use crate::tls::Tls;
use crate::topics::Topics;
use crate::websocket::{Lent, WebSocket};

/// State of one event loop.
pub(crate) struct Shard {
    router: Arc<Router>,
    http: Arc<HttpConfig>,
    stop_times: StopTimes,
    stop: Arc<StopLevel>,
    /// By the index of the connection.
    conns: Vec<Option<Conn>>,
    topics: Topics,
    tasks: Tasks,
    appends: Appends,
    /// Number of this thread.
    number: usize,
    /// A publication interrupted by the budget.
    under_way: Option<UnderWay>,
    /// Remaining deliveries of this turn.
    deliveries_left: usize,
    /// Connections with paused reads, until their publications are delivered.
    held_back: VecDeque<ConnId>,
    resources: Resources,
    counters: Arc<Counters>,
    holders: Holders,
    gate: Arc<Gate>,
    /// By the listener.
    expects: Arc<[Expects]>,
    proxies: Arc<TrustedProxies>,
    /// Plaintext of received TLS records.
    plaintext: Vec<u8>,
    /// Plaintext of a record to be sent.
    scratch: Vec<u8>,
    /// Number of connections that are being rejected with an answer.
    refusing: usize,
    date: Date,
    epoch: Instant,
    /// The turn's time on the loop's clock, and on that of the sessions.
    turn: (Instant, Time),
    phase: Phase,
    /// No connections are accepted.
    stopping: bool,
    /// How long keep-alive connections may still send one request after accepting has ended.
    patience: Option<Duration>,
    /// A successor process has taken over: connections accepted here may send one request, however late this thread
    /// sees it.
    handed_over: bool,
    /// The loop's timer for releasing unused memory is set.
    releasing: bool,
    /// Spare buffers freed and connections closed since free memory was last returned.
    freed: usize,
}

/// Parts of a shard, which is built on its own thread.
pub(crate) struct ShardParts {
    pub(crate) router: Arc<Router>,
    pub(crate) http: Arc<HttpConfig>,
    pub(crate) stop_times: StopTimes,
    pub(crate) stop: Arc<StopLevel>,
    pub(crate) topics: Topics,
    pub(crate) counters: Arc<Counters>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) tasks: Tasks,
    pub(crate) appends: Arc<Queue>,
    pub(crate) number: usize,
    pub(crate) expects: Arc<[Expects]>,
    pub(crate) proxies: Arc<TrustedProxies>,
}

struct Conn {
    id: ConnId,
    /// Memory as last counted.
    holds: Held,
    /// Reads are paused, since its publications are queued.
    held_back: bool,
    protocol: Protocol,
    /// TLS between the loop and the protocol.
    tls: Option<Box<Tls>>,
}

enum Protocol {
    Http(Box<Http>),
    WebSocket(Box<WebSocket>),
    Refused(Box<Refused>),
    /// The PROXY header is pending.
    Preface(Box<Preface>),
}

impl Protocol {
    /// Returns all queued output.
    #[inline]
    fn start_send(&mut self) -> Option<Box<Chain>> {
        match self {
            Self::WebSocket(websocket) => websocket.session.start_send(),
            Self::Http(http) => http.outbound.start(),
            Self::Refused(refused) => refused.outbound.start(),
            Self::Preface(_) => None,
        }
    }
}

/// Chain of a session in the form that the loop sends.
pub(crate) struct Outgoing(Box<Chain>);

impl engine::Chain for Outgoing {
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

impl Shard {
    pub(crate) fn new(parts: ShardParts) -> Self {
        let ShardParts {
            router,
            http,
            stop_times,
            stop,
            topics,
            counters,
            gate,
            expects,
            proxies,
            tasks,
            appends,
            number,
        } = parts;
        let epoch = Instant::now();
        Self {
            router,
            http,
            stop_times,
            stop,
            conns: Vec::new(),
            topics,
            tasks,
            appends: Appends::new(appends),
            number,
            under_way: None,
            deliveries_left: 0,
            held_back: VecDeque::new(),
            resources: Resources::new(),
            counters,
            holders: Holders::default(),
            gate,
            expects,
            proxies,
            plaintext: Vec::new(),
            scratch: Vec::new(),
            refusing: 0,
            date: Date::default(),
            epoch,
            turn: (epoch, Time::ZERO),
            phase: Phase::Serving,
            stopping: false,
            patience: None,
            handed_over: false,
            releasing: false,
            freed: 0,
        }
    }

    /// Returns the turn's time, computed once per turn.
    #[inline]
    fn time(&mut self, io: &Io) -> Time {
        if self.turn.0 != io.now() {
            self.turn = (io.now(), Time::ZERO + io.now().saturating_duration_since(self.epoch));
            self.deliveries_left = self.topics.config().deliveries_per_turn;
        }
        self.turn.1
    }

    fn find(&mut self, conn: ConnId) -> Option<&mut Conn> {
        self.conns.get_mut(conn.index())?.as_mut().filter(|found| found.id == conn)
    }

    fn found(&self, conn: ConnId) -> Option<&Conn> {
        self.conns.get(conn.index())?.as_ref().filter(|found| found.id == conn)
    }

    /// Returns the connection's protocol and the resources of its callbacks.
    fn lend(&mut self, conn: ConnId, now: Time) -> Option<(&mut Protocol, Lent<'_>)> {
        let found = self.conns.get_mut(conn.index())?.as_mut().filter(|found| found.id == conn)?;
        let Self { topics, resources, counters, gate, tasks, .. } = self;
        let lent = Lent { topics, resources, counters, gate, tasks, now, conn };
        Some((&mut found.protocol, lent))
    }

    /// Returns the HTTP state of the connection and the service that answers it.
    fn serve(&mut self, conn: ConnId, now: Time) -> Option<(&mut Http, Service<'_>)> {
        let found = self.conns.get_mut(conn.index())?.as_mut().filter(|found| found.id == conn)?;
        let Protocol::Http(http) = &mut found.protocol else { return None };
        let service = Service {
            router: &self.router,
            config: &self.http,
            topics: &mut self.topics,
            tasks: &self.tasks,
            resources: &mut self.resources,
            date: &mut self.date,
            counters: &self.counters,
            gate: &self.gate,
            proxies: &self.proxies,
            now,
            conn,
            stopping: self.stopping,
        };
        Some((http, service))
    }

    fn receive_http(&mut self, io: &mut Io, conn: ConnId, chunk: &mut [u8]) -> Flow {
        let now = self.time(io);
        let Some((http, mut service)) = self.serve(conn, now) else { return Flow::Continue };
        let handled = http.receive(chunk, &mut service);
        let flow = match handled {
            Handled::Waiting => http.flow(),
            Handled::Upgraded(upgrade, rest) => self.upgraded(io, conn, upgrade, rest, chunk),
        };
        self.settle(io, conn);
        flow
    }

    /// Handles a sent answer: resumes waiting requests.
    fn sent_http(&mut self, io: &mut Io, conn: ConnId) {
        let now = self.time(io);
        let Some((http, mut service)) = self.serve(conn, now) else { return };
        http.moved(now);
        http.send_pieces(&mut service);
        self.go_on_http(io, conn);
    }

    /// Handles a wakeup of an answer's future or of a handler.
    fn woken(&mut self, io: &mut Io, conn: ConnId) {
        let (now, epoch) = (self.time(io), self.epoch);
        let held_back = self.find(conn).is_some_and(|found| found.held_back);
        match self.lend(conn, now) {
            Some((Protocol::WebSocket(websocket), mut lent)) => {
                websocket.woken(&mut lent);
                if !held_back {
                    websocket.go_on(io, &mut lent);
                }
                if let Some(deadline) = websocket.deadline() {
                    arm_for_handler(websocket, io, conn, deadline, epoch);
                }
            }
            Some((Protocol::Http(_), _)) => return self.poll_http(io, conn),
            // The connection has closed.
            Some((Protocol::Refused(_) | Protocol::Preface(_), _)) | None => return,
        }
        self.settle(io, conn);
    }

    fn poll_http(&mut self, io: &mut Io, conn: ConnId) {
        let now = self.time(io);
        let Some((http, mut service)) = self.serve(conn, now) else { return };
        if http.poll_answer(&mut service) {
            self.go_on_http(io, conn);
        }
    }

    /// Handles waiting requests, unless reads are paused.
    fn go_on_http(&mut self, io: &mut Io, conn: ConnId) {
        let held_back = self.find(conn).is_some_and(|found| found.held_back);
        match self.lend(conn, Time::ZERO) {
            Some((Protocol::Http(http), _)) if http.paused && !http.is_busy() && !held_back => {
                self.resume_http(io, conn);
            }
            _ => self.settle(io, conn),
        }
    }

    /// Resumes waiting requests.
    fn resume_http(&mut self, io: &mut Io, conn: ConnId) {
        let now = self.time(io);
        let Some((http, mut service)) = self.serve(conn, now) else { return };
        let flow = match http.resume(&mut service) {
            Handled::Waiting => http.flow(),
            Handled::Upgraded(upgrade, rest) => self.upgraded(io, conn, upgrade, rest, &mut []),
        };
        if flow == Flow::Continue {
            io.resume(conn);
        }
        self.settle(io, conn);
    }

    fn upgraded(
        &mut self,
        io: &mut Io,
        conn: ConnId,
        upgrade: Upgrade,
        rest: Rest,
        chunk: &mut [u8],
    ) -> Flow {
        self.upgrade(io, conn, upgrade);
        match rest {
            Rest::Chunk(from) => self.receive_websocket(io, conn, &mut chunk[from..]),
            Rest::Kept(mut kept) => self.receive_websocket(io, conn, &mut kept),
        }
    }

    fn http_timer(&mut self, io: &mut Io, conn: ConnId) {
        let now = self.time(io);
        let Some((http, mut service)) = self.serve(conn, now) else { return };
        http.armed = NEVER;
        if http.deadline(service.config) > now {
            return self.settle(io, conn);
        }
        if http.time_out(&mut service) {
            io.close(conn);
            return self.settle(io, conn);
        }
        self.go_on_http(io, conn);
    }

    /// Turns the connection into a WebSocket; the answer is queued.
    fn upgrade(&mut self, io: &mut Io, conn: ConnId, upgrade: Upgrade) {
        let (now, epoch) = (self.time(io), self.epoch);
        let Some((protocol, mut lent)) = self.lend(conn, now) else { return };
        let Protocol::Http(http) = protocol else { return };
        let outbound = std::mem::take(&mut http.outbound);
        let session = Session::with_outbound(upgrade.negotiated, upgrade.config, now, outbound);
        lent.counters.handshakes.add(1);
        let mut websocket = Box::new(WebSocket::new(session, upgrade.handler, upgrade.pace, http.peer));
        websocket.open(&mut lent);
        io.clear_timer(conn);
        if let Some(deadline) = websocket.deadline() {
            arm_for_handler(&mut websocket, io, conn, deadline, epoch);
        }
        *protocol = Protocol::WebSocket(websocket);
        if self.stopping {
            self.close_websocket(conn, now);
        }
    }

    fn receive_websocket(&mut self, io: &Io, conn: ConnId, chunk: &mut [u8]) -> Flow {
        let now = self.time(io);
        match self.lend(conn, now) {
            Some((Protocol::WebSocket(websocket), mut lent)) => websocket.receive(chunk, &mut lent),
            _ => Flow::Continue,
        }
    }

    /// Applies the state of a connection after an event, then delivers its publications.
    #[inline]
    fn settle(&mut self, io: &mut Io, conn: ConnId) {
        self.settle_one(io, conn);
        if self.topics.has_published() {
            self.publish_of(io, conn);
        }
        self.counters.sent(self.resources.traffic(), self.topics.counted());
        let has_some = self.resources.holds_spares() || self.freed >= FREED_MIN;
        if !self.releasing && has_some && matches!(self.phase, Phase::Serving) {
            self.releasing = true;
            io.set_app_timer(io.now() + RELEASE_INTERVAL);
        }
    }

    #[inline]
    fn settle_one(&mut self, io: &mut Io, conn: ConnId) {
        let now = self.time(io);
        let Some(found) = self.conns.get_mut(conn.index()).and_then(Option::as_mut) else { return };
        let holds = match &mut found.protocol {
            _ if found.id != conn => return,
            Protocol::WebSocket(websocket) => {
                let Self { topics, resources, counters, gate, tasks, .. } = self;
                let mut lent = Lent { topics, resources, counters, gate, tasks, now, conn };
                settle_websocket(websocket, io, &mut lent, self.epoch);
                let waiting = websocket.backlog.as_ref().map_or(0, |backlog| backlog.bytes());
                Held::new(websocket.session.buffered() + waiting, websocket.session.incomplete())
            }
            Protocol::Http(http) => {
                // Without further requests, the sent answer was the last.
                let may_ask = self.patience.is_some() || self.handed_over && http.is_new();
                if self.stopping && !may_ask && http.is_idle() {
                    http.end();
                }
                settle_http(http, io, conn, &self.http, self.epoch);
                Held::new(http.outbound.len(), http.incomplete())
            }
            Protocol::Refused(_) | Protocol::Preface(_) => return,
        };
        let holds = self.holders.counted(conn, found.settle_tls(holds));
        let before = std::mem::replace(&mut found.holds, holds);
        self.hold(io, conn, before, holds);
    }

    /// Returns freed memory to the system, if it is much: the allocator would keep it between used blocks. It locks
    /// the allocator, so another thread does it.
    fn give_back(&mut self) {
        if self.freed >= FREED_MIN && self.tasks.pool().start(engine::give_back_free_memory).is_ok() {
            self.freed = 0;
        }
    }

    /// Counts and reports an exceeded limit.
    fn limited(&self, limit: Limit) {
        self.counters.limited.add(limit);
        self.gate.report(limit);
    }

    /// Admits or rejects a client's connection.
    fn admit(
        &mut self,
        io: &mut Io,
        conn: ConnId,
        peer: SocketAddr,
        listener: usize,
        now: Time,
    ) -> (Protocol, Option<Box<Tls>>) {
        let in_http = |expects: &Expects| expects.tls.is_none() && expects.messages.is_none();
        let in_words = self.expects.get(listener).is_none_or(in_http);
        match self.gate.enter(peer.ip()) {
            Ok(()) => {
                let http = Protocol::Http(Box::new(Http::new(peer, now)));
                (http, self.begin_tls(io, conn, listener))
            }
            // A rejection over TLS would cost more than service.
            Err(limit) => (self.refuse(io, conn, limit, in_words), None),
        }
    }

    /// Starts messages on a listener without HTTP, where other connections start after a handshake.
    fn begin_messages(&mut self, io: &mut Io, conn: ConnId, listener: usize) {
        let Some(route) = self.expects.get(listener).and_then(|expects| expects.messages.clone()) else {
            return;
        };
        let Some(Conn { protocol: Protocol::Http(http), .. }) = self.find(conn) else { return };
        let peer = http.peer;
        match self.gate.handshake() {
            Ok(()) => self.upgrade(io, conn, route.upgrade(peer)),
            Err(limit) => {
                self.limited(limit);
                io.close(conn);
            }
        }
    }

    /// Handles input before the end of the PROXY header.
    fn receive_preface(&mut self, io: &mut Io, conn: ConnId, chunk: &mut [u8]) -> engine::Flow {
        let now = self.time(io);
        let Some(Conn { protocol: Protocol::Preface(preface), .. }) = self.find(conn) else {
            return engine::Flow::Continue;
        };
        let listener = preface.listener;
        let (peer, behind) = match preface.receive(chunk) {
            Announced::Client(peer, behind) => (peer, behind),
            Announced::Nothing => return engine::Flow::Continue,
            Announced::Malformed => {
                tracing::debug!("closed: PROXY header expected, other input received");
                io.close(conn);
                return engine::Flow::Continue;
            }
        };
        io.clear_timer(conn);
        let (protocol, tls) = self.admit(io, conn, peer, listener, now);
        if let Some(found) = self.find(conn) {
            (found.protocol, found.tls) = (protocol, tls);
        }
        self.begin_messages(io, conn, listener);
        self.settle(io, conn);
        match behind {
            Behind::Chunk(from) if from < chunk.len() => self.received(io, conn, &mut chunk[from..]),
            Behind::Kept(mut kept) if !kept.is_empty() => self.received(io, conn, &mut kept),
            _ => engine::Flow::Continue,
        }
    }

    /// Rejects a connection, with an answer unless too many are being rejected.
    fn refuse(&mut self, io: &mut Io, conn: ConnId, limit: Limit, in_words: bool) -> Protocol {
        self.limited(limit);
        self.refusing += 1;
        if !in_words || self.refusing > REFUSING_MAX {
            io.close(conn);
        } else {
            io.set_timer(conn, io.now() + REFUSING_TIME);
        }
        Protocol::Refused(Box::new(Refused::new(limit)))
    }

    /// Handles the first request bytes of a rejected connection.
    fn receive_refused(&mut self, io: &mut Io, conn: ConnId) {
        let now = self.time(io);
        let Some(found) = self.conns.get_mut(conn.index()).and_then(Option::as_mut) else { return };
        if let Protocol::Refused(refused) = &mut found.protocol {
            refused.answer(&mut self.resources, &mut self.date, now);
            io.send(conn);
            io.shutdown(conn);
        }
    }

    /// Handles plaintext of the client, or of its proxy.
    #[inline]
    fn receive_plain(&mut self, io: &mut Io, conn: ConnId, chunk: &mut [u8]) -> engine::Flow {
        let now = self.time(io);
        let flow = match self.lend(conn, now) {
            Some((Protocol::WebSocket(websocket), mut lent)) => {
                let flow = websocket.receive(chunk, &mut lent);
                self.settle(io, conn);
                flow
            }
            Some((Protocol::Http(_), _)) => self.receive_http(io, conn, chunk),
            Some((Protocol::Refused(_), _)) => {
                self.receive_refused(io, conn);
                Flow::Continue
            }
            Some((Protocol::Preface(_), _)) => return self.receive_preface(io, conn, chunk),
            None => Flow::Continue,
        };
        engine_flow(flow)
    }

    /// Handles the end of the client's stream.
    fn end_plain(&mut self, io: &mut Io, conn: ConnId) {
        let now = self.time(io);
        match self.lend(conn, now) {
            Some((Protocol::WebSocket(websocket), _)) => websocket.session.receive_end(now),
            Some((Protocol::Http(http), _)) => http.end(),
            Some((Protocol::Refused(_), _)) => io.shutdown(conn),
            Some((Protocol::Preface(_), _)) => io.close(conn),
            None => {}
        }
        self.settle(io, conn);
    }

    /// Handles the completion of a protocol's chain.
    #[inline]
    fn finish_plain(&mut self, io: &mut Io, conn: ConnId, chain: Outgoing) {
        let now = self.time(io);
        let held_back = self.find(conn).is_some_and(|found| found.held_back);
        match self.lend(conn, now) {
            Some((Protocol::WebSocket(websocket), mut lent)) => {
                if websocket.session.finish_send(chain.0, lent.resources, now) {
                    websocket.drain(&mut lent);
                }
                if !held_back {
                    websocket.go_on(io, &mut lent);
                }
                self.settle(io, conn);
            }
            Some((Protocol::Http(http), lent)) => {
                http.outbound.finish(chain.0, lent.resources);
                self.sent_http(io, conn);
            }
            Some((Protocol::Refused(refused), lent)) => refused.outbound.finish(chain.0, lent.resources),
            Some((Protocol::Preface(_), _)) | None => {}
        }
    }
}

impl App for Shard {
    type Chain = Outgoing;
    type Mail = Mail;

    fn started(&mut self, _: &mut Io) {
        self.appends.begin(self.number);
    }

    fn appended(&mut self, io: &mut Io, append: Append, result: std::io::Result<()>) {
        self.appends.appended(io, &append, result);
    }

    fn accepted(&mut self, io: &mut Io, conn: ConnId, from: Accepted) {
        let now = self.time(io);
        let (protocol, tls) = if self.expects.get(from.listener).is_some_and(|expects| expects.proxy) {
            io.set_timer(conn, io.now() + self.http.head_timeout);
            (Protocol::Preface(Box::new(Preface::new(from.peer, from.listener))), None)
        } else {
            self.admit(io, conn, from.peer, from.listener, now)
        };
        if self.conns.len() <= conn.index() {
            self.conns.resize_with(conn.index() + 1, || None);
        }
        self.conns[conn.index()] =
            Some(Conn { id: conn, holds: Held::default(), held_back: false, protocol, tls });
        self.counters.accepted.add(1);
        self.begin_messages(io, conn, from.listener);
        self.settle(io, conn);
    }

    fn received(&mut self, io: &mut Io, conn: ConnId, chunk: &mut [u8]) -> engine::Flow {
        if self.speaks_tls(conn) {
            return self.receive_tls(io, conn, chunk);
        }
        self.receive_plain(io, conn, chunk)
    }

    fn awaits_large(&self, conn: ConnId) -> bool {
        self.found(conn).is_some_and(|found| match &found.protocol {
            Protocol::WebSocket(websocket) => found.tls.is_none() && websocket.session.awaits_large(),
            Protocol::Http(_) | Protocol::Refused(_) | Protocol::Preface(_) => false,
        })
    }

    fn lend_large(&mut self, conn: ConnId) -> Option<Large> {
        if self.speaks_tls(conn) {
            return None;
        }
        let Some((Protocol::WebSocket(websocket), lent)) = self.lend(conn, Time::ZERO) else { return None };
        let (buffer, most) = websocket.session.lend_assembly(lent.resources)?;
        self.hold_lent(conn);
        Some(Large { buffer, most })
    }

    fn received_large(
        &mut self,
        io: &mut Io,
        conn: ConnId,
        buffer: Vec<u8>,
        received: usize,
    ) -> engine::Flow {
        let now = self.time(io);
        let Some((Protocol::WebSocket(websocket), mut lent)) = self.lend(conn, now) else {
            return engine::Flow::Continue;
        };
        let flow = websocket.receive_appended(buffer, received, &mut lent);
        self.settle(io, conn);
        engine_flow(flow)
    }

    fn ended(&mut self, io: &mut Io, conn: ConnId) {
        if self.speaks_tls(conn) {
            return self.ended_tls(io, conn);
        }
        self.end_plain(io, conn);
    }

    fn start_send(&mut self, conn: ConnId) -> Option<Outgoing> {
        if self.speaks_tls(conn) {
            return self.start_send_tls(conn);
        }
        self.lend(conn, Time::ZERO)?.0.start_send().map(Outgoing)
    }

    fn progressed(&mut self, io: &mut Io, conn: ConnId, bytes: usize) {
        let now = self.time(io);
        let bytes = self.progressed_tls(conn, bytes);
        match self.lend(conn, now) {
            Some((Protocol::WebSocket(websocket), _)) => websocket.session.progressed(bytes, now),
            Some((Protocol::Http(http), _)) => {
                http.outbound.progressed(bytes);
                http.moved(now);
            }
            Some((Protocol::Refused(_) | Protocol::Preface(_), _)) | None => {}
        }
        self.settle_one(io, conn);
    }

    fn finish_send(&mut self, io: &mut Io, conn: ConnId, chain: Outgoing, _complete: bool) {
        if self.speaks_tls(conn) {
            return self.finish_send_tls(io, conn, chain);
        }
        self.finish_plain(io, conn, chain);
    }

    fn finish_may_wait(&self, conn: ConnId) -> bool {
        !self.stopping
            && self.found(conn).is_some_and(|found| match &found.protocol {
                _ if found.tls.as_ref().is_some_and(|tls| tls.has_more()) => false,
                Protocol::WebSocket(websocket) => {
                    websocket.backlog.is_none() && websocket.session.finish_may_wait()
                }
                Protocol::Http(http) => http.finish_may_wait(),
                Protocol::Refused(_) | Protocol::Preface(_) => false,
            })
    }

    fn closed(&mut self, io: &mut Io, conn: ConnId, why: engine::Closed) {
        let now = self.time(io);
        if let Some((Protocol::WebSocket(websocket), mut lent)) = self.lend(conn, now) {
            websocket.session.receive_end(now);
            if let Some(closed) = websocket.session.take_closed() {
                websocket.close(&closed, &mut lent);
            }
        }
        if let Some(gone) = self.conns.get_mut(conn.index()).and_then(Option::take) {
            self.release(conn, gone.holds);
            self.counters.closed.add((&why).into());
            self.freed += 1;
            self.tasks.forget(conn);
            match &gone.protocol {
                Protocol::Http(http) => self.gate.leave(http.peer.ip()),
                Protocol::WebSocket(websocket) => self.gate.leave(websocket.peer().ip()),
                Protocol::Refused(_) => self.refusing -= 1,
                Protocol::Preface(_) => {}
            }
        }
        // The handler may have published in `close`.
        self.settle(io, conn);
    }

    fn timer(&mut self, io: &mut Io, conn: ConnId) {
        let (now, epoch) = (self.time(io), self.epoch);
        let held_back = self.find(conn).is_some_and(|found| found.held_back);
        match self.lend(conn, now) {
            Some((Protocol::WebSocket(websocket), mut lent)) => {
                websocket.armed = NEVER;
                if let Some(deadline) = websocket.session.deadline().filter(|deadline| *deadline <= now) {
                    if now.since(deadline) > HELD_UP_MIN {
                        // The thread was delayed, so input may still be in the socket.
                        websocket.session.note_unread(now);
                    }
                    websocket.session.handle_timeout(lent.resources, now);
                }
                if websocket.deadline().is_some_and(|deadline| deadline <= io.now()) {
                    websocket.expire(&mut lent);
                    if !held_back {
                        websocket.go_on(io, &mut lent);
                    }
                }
                // A deadline in the past would fire forever.
                if let Some(deadline) = websocket.deadline().filter(|deadline| *deadline > io.now()) {
                    arm_for_handler(websocket, io, conn, deadline, epoch);
                }
            }
            Some((Protocol::Http(_), _)) => return self.http_timer(io, conn),
            Some((Protocol::Refused(_) | Protocol::Preface(_), _)) => io.close(conn),
            None => {}
        }
        self.settle(io, conn);
    }

    fn app_timer(&mut self, io: &mut Io) {
        if !matches!(self.phase, Phase::Serving) {
            return self.step_of_stop(io);
        }
        let spares = self.resources.spares();
        self.releasing = self.resources.release_idle();
        self.freed += spares - self.resources.spares();
        self.give_back();
        if self.releasing || self.freed >= FREED_MIN {
            self.releasing = true;
            io.set_app_timer(io.now() + RELEASE_INTERVAL);
        }
    }

    fn mail(&mut self, io: &mut Io, mail: &mut Vec<Mail>) {
        for mail in mail.drain(..) {
            match mail {
                Mail::Publish(published) => self.topics.publish_here(published),
                Mail::Shed => self.shed(io),
            }
        }
        self.topics.mail_is_read();
        if let Some(conn) = self.topics.next_changed() {
            // A closed connection gets no call.
            self.settle(io, conn);
            self.topics.take_changes(conn);
        }
        self.go_on(io);
        self.appends.take_new(io);
        for conn in self.tasks.take_woken() {
            self.woken(io, conn);
        }
        match self.stop.read() {
            Stop::No => {}
            Stop::HandedOver => self.begin_to_leave(io),
            Stop::InOrder => self.announce_stop(io),
            Stop::Now => io.stop(),
        }
    }
}

/// Maximum number of connections of one thread that are being rejected with an answer; further connections are closed
/// without one. They are beyond the limit, so they must be few.
const REFUSING_MAX: usize = 256;

/// Time for a rejected connection to send its request and to read the rejection.
const REFUSING_TIME: Duration = Duration::from_secs(2);

/// Minimum delay of a timer that indicates a stalled thread, or a stopped process.
const HELD_UP_MIN: Duration = Duration::from_millis(100);

/// Minimum number of freed buffers or closed connections to return memory for: a buffer has up to 64 KiB, and under
/// low load they are mostly fewer.
const FREED_MIN: usize = 64;

/// How long unused memory of messages is kept: it is returned after one to two intervals.
const RELEASE_INTERVAL: Duration = Duration::from_secs(2);

#[inline]
fn settle_websocket(websocket: &mut WebSocket, io: &mut Io, lent: &mut Lent<'_>, epoch: Instant) {
    if websocket.backlog.is_some() {
        websocket.work_off(lent);
    }
    if lent.topics.has_changes() {
        websocket.tell_changes(lent);
    }
    if let Some(closed) = websocket.session.take_closed() {
        websocket.close(&closed, lent);
    }
    if websocket.session.wants_send() {
        io.send(lent.conn);
    }
    match websocket.session.fate() {
        Fate::Open | Fate::AwaitEnd => {}
        // Repeated calls have no effect.
        Fate::Finish => io.shutdown(lent.conn),
        Fate::Drop => io.close(lent.conn),
    }
    if let Some(deadline) = websocket.session.deadline() {
        arm(io, lent.conn, &mut websocket.armed, deadline, epoch);
    }
}

/// Sets the loop's timer no later than the handler's deadline.
fn arm_for_handler(websocket: &mut WebSocket, io: &mut Io, conn: ConnId, deadline: Instant, epoch: Instant) {
    let deadline = Time::ZERO + deadline.saturating_duration_since(epoch);
    arm(io, conn, &mut websocket.armed, deadline, epoch);
}

fn settle_http(http: &mut Http, io: &mut Io, conn: ConnId, config: &HttpConfig, epoch: Instant) {
    if http.outbound.wants_send() {
        io.send(conn);
    }
    if http.is_over() {
        // Repeated calls have no effect.
        io.shutdown(conn);
    }
    let deadline = http.deadline(config);
    arm(io, conn, &mut http.armed, deadline, epoch);
}

/// Deadline of a timer that is not set. Not an `Option`: each connection has one.
pub(crate) const NEVER: Time = Time::from_micros(u64::MAX);

/// Sets the loop's timer only to an earlier time. Deadlines mostly move later, and are checked when the timer fires.
#[inline]
fn arm(io: &mut Io, conn: ConnId, armed: &mut Time, deadline: Time, epoch: Instant) {
    if deadline < *armed {
        *armed = deadline;
        io.set_timer(conn, epoch + deadline.since(Time::ZERO));
    }
}

const fn engine_flow(flow: Flow) -> engine::Flow {
    match flow {
        Flow::Continue => engine::Flow::Continue,
        Flow::Pause => engine::Flow::Pause,
    }
}

#[cfg(test)]
mod sizes {
    use super::*;
    use crate::websocket::WebSocket;

    /// The engine's part, 80 bytes and the chain in flight, has its own test in the engine; `tests/memory.rs`
    /// measures the total.
    #[test]
    fn idle_websocket_state_is_small() {
        let engine = 80 + size_of::<Outgoing>();
        let server = size_of::<Option<Conn>>() + size_of::<WebSocket>();
        assert!(engine + server <= 512, "{engine} and {server} bytes");
    }

    #[test]
    fn http_connection_state_is_small() {
        let http = size_of::<Option<Conn>>() + size_of::<Http>();
        assert!(http <= 256, "{http} bytes");
    }
}
