//! Two ends, the link between them, and the clock.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use sinews_proto::{Config, Expired, Kind, Overflow, Time};
use sinews_session::{Cause, Chain, Closed, Flow, Resources, Session, TransportAction};

use super::app::{App, length, prepare};
use crate::agree::{self, Agreement};
use crate::input::Input;

pub(super) struct World {
    /// Client and server.
    ends: [End; 2],
    now: Time,
    /// Whether an end that closes with unread bytes resets the link, as TCP does.
    resets: bool,
}

struct End {
    session: Session,
    resources: Resources,
    app: App,
    config: Arc<Config>,
    in_flight: Option<Box<Chain>>,
    /// Entries of the vector that one send takes.
    entries: usize,
    /// Bytes in transit to the peer.
    pipe: VecDeque<u8>,
    room: usize,
    /// The sender has closed its side behind the bytes in the pipe.
    ended: bool,
    paused: bool,
    /// A receive that was in flight when reads were paused has completed.
    late: bool,
    heard_end: bool,
    gone: bool,
    closed: Option<Closed>,
}

impl End {
    fn read(name: &'static str, make: impl FnOnce(Arc<Config>) -> Session, input: &mut Input<'_>) -> Self {
        let config = Arc::new(read_config(input));
        let mut session = make(Arc::clone(&config));
        let flags = input.byte();
        session.deliver_fragments(flags & 3 == 3);
        let mut key = 0_u32;
        let masks = move || {
            key = key.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            key.to_be_bytes()
        };
        Self {
            session,
            resources: Resources::with_masks(masks),
            app: App::read(name, input),
            config,
            in_flight: None,
            entries: 1 + usize::from(flags >> 2 & 7),
            pipe: VecDeque::new(),
            room: [1 << 20, 4000, 300, 40][usize::from(flags >> 6)],
            ended: false,
            paused: false,
            late: false,
            heard_end: false,
            gone: false,
            closed: None,
        }
    }
}

fn read_config(input: &mut Input<'_>) -> Config {
    let flags = input.byte();
    let wait = |choice: u8, waits: [u64; 3]| {
        (choice > 0).then(|| Duration::from_millis(waits[usize::from(choice) - 1]))
    };
    let waits = input.byte();
    let overflow = [Overflow::Close, Overflow::DropNewest, Overflow::DropOldest][usize::from(flags & 3) % 3];
    Config::default()
        .with_overflow(overflow)
        .with_max_outbound([1 << 20, 5000, 700, 1][usize::from(flags >> 2 & 3)])
        .with_high_water([64 << 10, 3000, 300, 0][usize::from(flags >> 4 & 3)])
        .with_idle_timeout(wait(waits & 3, [400, 1000, 3000]))
        .with_ping_interval(wait(waits >> 2 & 3, [60, 300, 900]))
        .with_pong_timeout(Duration::from_millis([1000, 100][usize::from(waits >> 4 & 1)]))
        .with_write_timeout(Duration::from_millis([5000, 200][usize::from(waits >> 5 & 1)]))
        .with_close_timeout(Duration::from_millis([2000, 100][usize::from(waits >> 6 & 1)]))
}

impl World {
    pub(super) fn read(input: &mut Input<'_>) -> Self {
        let flags = input.byte();
        let deflate = (flags & 1 != 0).then(|| agree::read_config(input));
        let Agreement { client, server } = agree::agree(deflate.as_ref(), deflate.as_ref());
        let now = Time::from_millis(1000);
        let client = End::read("c", |config| Session::new(client, config, now), input);
        let server = End::read("s", |config| Session::new(server, config, now), input);
        Self { ends: [client, server], now, resets: flags & 2 != 0 }
    }

    /// Performs one decision.
    pub(super) fn step(&mut self, input: &mut Input<'_>) {
        let what = input.byte();
        let end = usize::from(what & 1);
        match what >> 1 & 15 {
            0..=4 => self.act(end, input),
            5..=7 => drop(self.push(end, amount(input))),
            8..=10 => drop(self.pull(end, amount(input), what & 32 != 0)),
            11 => drop(self.resume(end)),
            12 => self.publish(input),
            13 => self.pass(Duration::from_millis(1 << input.below(10)), what >> 5),
            14 if what >> 5 == 7 => self.break_link(),
            _ => {
                self.push(end, usize::MAX);
                self.pull(1 - end, usize::MAX, false);
            }
        }
    }

    fn act(&mut self, end: usize, input: &mut Input<'_>) {
        let what = input.byte();
        let End { session, resources, app, gone: false, .. } = &mut self.ends[end] else { return };
        app.act(&mut session.tx(resources, self.now), what, input);
        session.after_tx(resources, self.now);
        self.look(end);
    }

    /// Publishes one message to both ends.
    fn publish(&mut self, input: &mut Input<'_>) {
        let kind = if input.flag() { Kind::Text } else { Kind::Binary };
        let len = length(input);
        let content = self.ends[1].app.content(kind, len);
        let message = prepare(kind, content);
        for end in [0, 1] {
            let End { session, resources, app, gone: false, .. } = &mut self.ends[end] else { continue };
            app.send_prepared(&mut session.tx(resources, self.now), &message);
            session.after_tx(resources, self.now);
            self.look(end);
        }
    }

    /// Transfers at most `most` bytes from an end to the link. Returns whether anything happened.
    fn push(&mut self, end: usize, most: usize) -> bool {
        let peer_gone = self.ends[1 - end].gone;
        let this = &mut self.ends[end];
        if this.gone {
            return false;
        }
        let started = this.in_flight.is_none();
        let Some(mut chain) = this.in_flight.take().or_else(|| this.session.start_send()) else {
            return false;
        };
        assert!(!chain.is_empty(), "a send of nothing");
        let room = this.room.saturating_sub(this.pipe.len()).min(most);
        let mut slices = [IoSlice::new(&[]); 8];
        let filled = chain.slices(&mut slices[..this.entries]);
        let mut count = 0;
        for slice in &slices[..filled] {
            let taken = &slice[..slice.len().min(room - count)];
            this.pipe.extend(taken);
            count += taken.len();
        }
        if peer_gone {
            this.pipe.clear();
        }
        chain.advance(count);
        if count > 0 {
            this.session.progressed(count, self.now);
        }
        if chain.is_empty() {
            let drained = this.session.finish_send(chain, &mut this.resources, self.now);
            this.app.slowed &= !drained;
        } else {
            this.in_flight = Some(chain);
        }
        self.look(end);
        started || count > 0
    }

    /// Transfers at most `most` bytes from the link to an end, or the end of the stream. Returns whether
    /// anything happened.
    fn pull(&mut self, end: usize, most: usize, late: bool) -> bool {
        let [client, server] = &mut self.ends;
        let (this, peer) = if end == 0 { (client, server) } else { (server, client) };
        if this.gone || this.heard_end || this.paused && (!late || this.late) {
            return false;
        }
        let count = most.min(peer.pipe.len());
        let mut chunk: Vec<u8> = peer.pipe.drain(..count).collect();
        if chunk.is_empty() {
            if peer.ended && !this.paused && peer.pipe.is_empty() {
                this.session.receive_end(self.now);
                this.heard_end = true;
                self.look(end);
                return true;
            }
            return false;
        }
        let was_paused = this.paused;
        let flow = this.session.receive(&mut chunk, &mut this.resources, self.now, &mut this.app);
        this.paused = flow == Flow::Pause;
        this.late = was_paused;
        assert!(this.paused || !was_paused, "reads continue without a resume");
        self.look(end);
        true
    }

    fn resume(&mut self, end: usize) -> bool {
        let this = &mut self.ends[end];
        if this.gone || !this.session.wants_resume() {
            return false;
        }
        assert!(this.paused, "it never paused");
        let flow = this.session.resume(&mut this.resources, self.now, &mut this.app);
        (this.paused, this.late) = (flow == Flow::Pause, false);
        self.look(end);
        true
    }

    /// Advances the clock. A timer may fire late, and early as well.
    fn pass(&mut self, time: Duration, how: u8) {
        self.now = self.now + time;
        for end in [0, 1] {
            let this = &mut self.ends[end];
            let due = this.session.deadline().is_some_and(|deadline| deadline <= self.now);
            if this.gone || how & 3 == 3 || !due && how & 4 == 0 {
                continue;
            }
            let open = this.session.is_open();
            for wait in 0.. {
                this.session.handle_timeout(&mut this.resources, self.now);
                if this.session.deadline().is_none_or(|deadline| deadline > self.now) {
                    break;
                }
                assert!(wait < WAITS, "a wait is due again and again");
            }
            self.look(end);
            let this = &mut self.ends[end];
            if let (true, false, Some(closed)) = (open, this.session.is_open(), &this.closed) {
                let (code, expired) = match closed.cause() {
                    Cause::Expired(Expired::Idle) => (1001, Expired::Idle),
                    Cause::Expired(Expired::Pong) => (1011, Expired::Pong),
                    _ => continue,
                };
                this.app.intent.get_or_insert_with(|| (code, expired.reason().to_owned()));
            }
        }
    }

    /// Both ends find the transport broken.
    fn break_link(&mut self) {
        for end in [0, 1] {
            let this = &mut self.ends[end];
            if this.gone {
                continue;
            }
            this.pipe.clear();
            if let Some(chain) = this.in_flight.take() {
                this.session.finish_send(chain, &mut this.resources, self.now);
            }
            if !this.heard_end {
                this.session.receive_end(self.now);
                this.heard_end = true;
            }
            self.look(end);
            self.leave(end);
        }
    }

    /// Checks the values that a driver reads after each call, and the invariants at that point.
    fn look(&mut self, end: usize) {
        self.compare(end);
        let this = &mut self.ends[end];
        // One message may always overshoot. With `DropOldest` the newest published message is also queued:
        // one in flight, and one that waits.
        let overshoot = match this.config.overflow() {
            Overflow::DropOldest => 3,
            _ => 1,
        };
        let limit = (this.config.max_outbound() + overshoot * this.app.longest).max(this.config.high_water());
        let control = this.app.ping_bytes + 4 * 139;
        let waits = this.session.buffered();
        assert!(waits <= limit + control, "{waits} bytes wait, {limit} at most");
        if let Some(closed) = this.session.take_closed() {
            assert!(this.closed.is_none(), "told twice: {:?}, {closed:?}", this.closed);
            this.closed = Some(closed);
            self.judge(end);
        }
        let this = &mut self.ends[end];
        match this.session.transport_action() {
            TransportAction::Drop if !this.gone => self.leave(end),
            TransportAction::Finish => this.ended |= this.in_flight.is_none() && !this.session.wants_send(),
            _ => {}
        }
    }

    /// Compares the received messages of an end with the sent messages of its peer.
    fn compare(&mut self, end: usize) {
        let heard = std::mem::take(&mut self.ends[end].app.heard);
        let sent = &mut self.ends[1 - end].app.sent;
        for message in heard {
            loop {
                let Some(next) = sent.pop_front() else { panic!("heard and never sent: {message:?}") };
                if (next.kind, &next.content) == (message.kind, &message.content) {
                    break;
                }
                assert!(next.droppable, "heard {message:?} instead of {next:?}");
            }
        }
    }

    /// Checks that the end of a connection matches the intents of both ends.
    fn judge(&self, end: usize) {
        let (this, peer) = (&self.ends[end], &self.ends[1 - end]);
        let Some(closed) = &this.closed else { return };
        let (code, reason) = (closed.code().map(|code| code.as_u16()), closed.reason());
        match closed.cause() {
            Cause::Peer | Cause::Local => {
                let local = closed.cause() == Cause::Local;
                assert_eq!(local, this.app.intent.is_some(), "initiator of the close: {closed:?}");
                let echo = this.app.intent.as_ref().map(|(code, _)| (*code, String::new()));
                let Some((expected, text)) = peer.app.intent.clone().or(echo) else {
                    panic!("unrequested close: {closed:?}")
                };
                assert_eq!((code, reason), (Some(expected), &*text), "the Close of the peer");
                let missing = peer.app.sent.iter().find(|message| !message.droppable);
                assert!(missing.is_none(), "a Close overtook {missing:?}");
            }
            Cause::Overflow => assert!(this.app.overflowed, "nothing overflowed"),
            Cause::Expired(_) | Cause::Ended => {}
            other => panic!("between two sound ends: {other:?}"),
        }
    }

    /// The driver closes the transport of an end.
    fn leave(&mut self, end: usize) {
        let [client, server] = &mut self.ends;
        let (this, peer) = if end == 0 { (client, server) } else { (server, client) };
        assert!(this.closed.is_some(), "dropped without a word");
        this.gone = true;
        this.in_flight = None;
        if self.resets && !peer.pipe.is_empty() {
            this.pipe.clear();
        }
        this.ended = true;
        peer.pipe.clear();
    }

    /// Runs the link without faults, with a stopped clock, until no more progress is possible.
    pub(super) fn settle(&mut self) {
        for end in &mut self.ends {
            end.room = usize::MAX;
        }
        for _ in 0..ROUNDS_MAX {
            let mut moved = false;
            for end in [0, 1] {
                moved |= self.push(end, usize::MAX);
                moved |= self.resume(end);
                moved |= self.pull(end, usize::MAX, false);
            }
            if !moved {
                return;
            }
        }
        panic!("the link never comes to rest");
    }

    /// Checks that open sessions still work, and close on request.
    pub(super) fn finish(&mut self) {
        let open = self.ends.iter().all(|end| end.session.is_open() && !end.gone);
        if open {
            self.complete();
            let this = &mut self.ends[0];
            this.app.close_with(&mut this.session.tx(&mut this.resources, self.now), 1000, "bye");
            this.session.after_tx(&mut this.resources, self.now);
            self.settle();
        }
        for end in &self.ends {
            assert!(end.gone, "an end waits for ever: {:?}", end.session.transport_action());
            assert!(end.closed.is_some(), "an end was not told");
        }
        if open {
            let causes = [0, 1].map(|end| self.ends[end].closed.as_ref().map(Closed::cause));
            assert_eq!(causes, [Some(Cause::Local), Some(Cause::Peer)]);
        }
    }

    /// Completes open messages, and waits for their delivery.
    fn complete(&mut self) {
        for end in &mut self.ends {
            end.app.fall_silent();
        }
        for end in [0, 1] {
            for _ in 0..3 {
                let this = &mut self.ends[end];
                let Some((kind, _)) = this.app.open else { break };
                this.app.send_fragment(&mut this.session.tx(&mut this.resources, self.now), kind, 0, true);
                this.session.after_tx(&mut this.resources, self.now);
                self.settle();
            }
        }
        for (end, name) in self.ends.iter().zip(["client", "server"]) {
            assert!(end.session.is_open() && end.closed.is_none(), "{name}: closed for no reason");
            assert!(end.app.open.is_none(), "{name}: a message cannot be ended");
            assert_eq!(end.session.buffered(), 0, "{name}: bytes are left");
            assert!(!end.paused, "{name}: reading is paused for ever");
            assert!(!end.app.slowed, "{name}: told to slow down and never to go on");
            let missing = end.app.sent.iter().find(|message| !message.droppable);
            assert!(missing.is_none(), "{name}: never arrived: {missing:?}");
        }
    }
}

/// Returns mostly few bytes, sometimes many.
fn amount(input: &mut Input<'_>) -> usize {
    match input.byte() {
        few @ 0..=99 => usize::from(few),
        some @ 100..=199 => usize::from(some - 99) * 97,
        _ => usize::MAX,
    }
}

/// A late timer may find several expired timeouts, each once.
const WAITS: usize = 4;

/// Rounds that are more than enough for a working link to deliver all messages and their answers.
const ROUNDS_MAX: usize = 10_000;

impl std::fmt::Debug for super::app::Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let head = self.content[..self.content.len().min(24)].escape_ascii();
        write!(f, "{:?} \"{head}\" ({} bytes)", self.kind, self.content.len())
    }
}
