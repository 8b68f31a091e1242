//! A window's messages: what is sent when, and when the window is done.

use std::sync::atomic::Ordering;
use std::time::Instant;

use sinews_engine::{ConnId, Io};

use super::{LoadApp, slot};
use crate::load::schedule::SendSchedule;
use crate::plan::LoadMode;
use crate::tally::record;

impl LoadApp {
    pub(super) fn begin(&mut self, io: &mut Io) {
        let Some(&window) = self.thread_state.live.window.get() else { return };
        // The loop's time may lie before the window; messages due at that time do not count.
        self.thread_state.begin(window, Instant::now());
        if let Some(rate) = self.thread_state.plan.rate {
            let own = self.paced.len() as f64;
            let all = match self.thread_state.plan.is_fan_out() {
                true => self.thread_state.plan.fan_out.publishers,
                false => self.thread_state.plan.sockets(),
            };
            self.schedule = Some(SendSchedule::new(window.begin, rate * own / all as f64));
        }
        self.working = true;
        self.publish_burst(io);
        self.send_on(io, self.paced.clone());
        self.tick(io);
    }

    fn send_on(&mut self, io: &mut Io, sockets: Vec<(ConnId, usize)>) {
        for (id, index) in sockets {
            let Self { conns, thread_state, resources, .. } = self;
            if let Some(conn) = conns.get_mut(slot(id)).and_then(Option::as_mut).filter(|conn| conn.id == id)
            {
                conn.protocol.send(index, &mut conn.traffic, thread_state, resources);
            }
            self.settle(io, id);
        }
    }

    /// With --burst: publishes each publisher's next burst, once all deliveries of the last have arrived.
    pub(super) fn publish_burst(&mut self, io: &mut Io) {
        let thread_state = &self.thread_state;
        let delivers = thread_state.plan.bursts && thread_state.plan.is_fan_out();
        if !delivers
            || thread_state.stopped
            || thread_state.window().is_none()
            || !thread_state.all_delivered()
        {
            return;
        }
        for (id, index) in self.paced.clone() {
            self.publish_on(io, id, index);
        }
    }

    /// Publishes a burst of --in-flight messages.
    fn publish_on(&mut self, io: &mut Io, id: ConnId, index: usize) {
        let Self { conns, thread_state, resources, .. } = self;
        let Some(conn) = conns.get_mut(slot(id)).and_then(Option::as_mut) else { return };
        let now = thread_state.now;
        let tracker = &mut conn.traffic[index].tracker;
        (0..thread_state.plan.in_flight).for_each(|_| tracker.due(now, thread_state));
        conn.protocol.send(index, &mut conn.traffic, thread_state, resources);
        self.request_send(io, id);
    }

    /// Sends due messages in an open loop.
    pub(super) fn send_due(&mut self, io: &mut Io) {
        let until = self.thread_state.window().and_then(|window| window.until);
        while let Some(due) = self.schedule.as_mut().and_then(|schedule| schedule.take(self.thread_state.now))
        {
            if until.is_some_and(|until| due >= until) {
                return self.schedule = None;
            }
            if let Some(0) = self.thread_state.budget {
                return self.schedule = None;
            }
            let Some((id, index)) = self.next_paced() else { return self.schedule = None };
            self.thread_state.budget.iter_mut().for_each(|left| *left -= 1);
            let Self { conns, thread_state, resources, .. } = self;
            let Some(conn) = conns.get_mut(slot(id)).and_then(Option::as_mut) else { continue };
            conn.traffic[index].tracker.due(due, thread_state);
            if thread_state.measures(due) {
                record(&mut thread_state.tally.late, thread_state.now.saturating_duration_since(due));
            }
            conn.protocol.send(index, &mut conn.traffic, thread_state, resources);
            if conn.protocol.wants_send() {
                self.request_send(io, id);
            }
        }
    }

    /// Selects an open connection's next socket in rotation.
    fn next_paced(&mut self) -> Option<(ConnId, usize)> {
        while !self.paced.is_empty() {
            self.turn = (self.turn + 1) % self.paced.len();
            let socket = self.paced[self.turn];
            if self.conn(socket.0).is_some_and(|conn| !conn.closing) {
                return Some(socket);
            }
            self.paced.swap_remove(self.turn);
        }
        None
    }

    /// Reports to the watching thread that all work is done.
    pub(super) fn report_done(&mut self) {
        let thread_state = &self.thread_state;
        let spent = thread_state.stopped && !self.has_due()
            || thread_state.budget == Some(0)
            || self.all_senders_closed();
        let answered =
            thread_state.outstanding == 0 && (!thread_state.plan.bursts || thread_state.all_delivered());
        let done = thread_state.window().is_some() && spent && answered;
        thread_state.live.done.store(done, Ordering::Release);
        self.working &= !done;
    }

    /// Whether the window's messages are still to be sent at their fixed rate: a late thread may see the window's end
    /// before it has sent them.
    fn has_due(&self) -> bool {
        let until = self.thread_state.window().and_then(|window| window.until);
        self.schedule.as_ref().is_some_and(|schedule| until.is_none_or(|until| schedule.next() < until))
    }

    /// Whether every connection has closed for good: none is open, opening or to be opened.
    fn all_senders_closed(&self) -> bool {
        matches!(self.thread_state.plan.mode, LoadMode::Echo | LoadMode::FanOut)
            && self.to_open.len() == 0
            && self.replacements.is_empty()
            && self.conns.iter().all(Option::is_none)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::time::Duration;

    use sinews_engine::{BackendChoice, Engine, EngineConfig};

    use super::*;
    use crate::args::{BenchArgs, load_plan};
    use crate::load::app::LoadCommand;
    use crate::tally::{LiveCounters, RunWindow};

    /// A server without a thread: accepts, and answers each request with `Connection: close`.
    struct ClosingServer {
        listener: TcpListener,
        conns: Vec<TcpStream>,
    }

    impl ClosingServer {
        fn answer(&mut self) {
            while let Ok((stream, _)) = self.listener.accept() {
                stream.set_nonblocking(true).unwrap();
                self.conns.push(stream);
            }
            self.conns.retain_mut(|stream| match stream.read(&mut [0; 1024]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => true,
                _ => {
                    let _ =
                        stream.write_all(b"HTTP/1.1 200 \r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
                    false
                }
            });
        }
    }

    #[test]
    fn window_continues_while_messages_are_due() {
        const MESSAGES: usize = 10;
        let url = "tcp://127.0.0.1:1";
        let args = BenchArgs::parse([url, "-c", "1", "--rate", "1000"]).unwrap();
        let plan = Arc::new(load_plan(url, &args.load).unwrap());
        let (live, epoch) = (Arc::new(LiveCounters::default()), Instant::now());
        let mut load = LoadApp::new(plan, 0, [live.clone()].into(), epoch);
        let until = epoch + Duration::from_millis(MESSAGES as u64);
        load.thread_state.begin(RunWindow { begin: epoch, from: epoch, until: Some(until) }, epoch);
        load.schedule = Some(SendSchedule::new(epoch, 1000.0));
        // The thread was late, and receives an answer first.
        load.thread_state.at(until + Duration::from_millis(1));
        for sent in 0..=MESSAGES {
            load.report_done();
            assert_eq!(live.is_done(), sent == MESSAGES, "{sent} of {MESSAGES} messages are sent");
            load.schedule.as_mut().unwrap().take(until);
        }
    }

    #[test]
    fn window_continues_while_all_connections_are_replaced() {
        const COUNT: u64 = 3;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let mut server = ClosingServer { listener, conns: Vec::new() };
        let args = BenchArgs::parse([&*url, "-c", "1", "-n", &COUNT.to_string()]).unwrap();
        let plan = Arc::new(load_plan(&url, &args.load).unwrap());
        let (live, epoch) = (Arc::new(LiveCounters::default()), Instant::now());
        let mut load = LoadApp::new(plan, 0, [live.clone()].into(), epoch);
        let config = EngineConfig::default().with_backend(BackendChoice::Poll);
        let mut engine = Engine::new(config, Vec::new()).unwrap();
        live.window.set(RunWindow { begin: epoch, from: epoch, until: None }).unwrap();
        engine.post().send(LoadCommand::Begin).unwrap();
        while !live.is_done() {
            engine.turn(&mut load, Some(Duration::from_millis(1))).unwrap();
            server.answer();
            // As a timer tick between any two turns does.
            load.report_done();
        }
        assert_eq!(live.messages.get(), COUNT);
    }
}
