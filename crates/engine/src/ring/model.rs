//! Model test for the ring backend without a kernel. An in-memory kernel completes operations in any order that a seed
//! determines, an application issues any command at any time, and both check the ring's contract.
//!
//! After a random phase the kernel and the application become benign, and all operations must complete.
//! `SINEWS_RING_SEEDS` sets the number of seeds.

mod app;
mod chain;
mod dice;
mod outcomes;
mod peers;
mod pool;
mod script;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use self::app::TestApp;
use self::dice::Dice;
use self::peers::Peers;
use self::pool::ModelPool;
use self::script::Script;
use super::accept::RESERVE;
use super::state::{ReceiveProgress, Ring};
use crate::backend::Backend;
use crate::{App as _, CloseReason, ConnId, EngineConfig, Io};

type TestedRing = Ring<<TestApp as crate::App>::Chain, Script>;

/// A loop as run by the engine, with a seeded clock.
struct RingModel {
    dice: Dice,
    ring: TestedRing,
    io: Io,
    app: TestApp,
    clock: std::time::Instant,
    /// Turns in which a connection did not receive its pending bytes.
    hungry: BTreeMap<u32, (usize, u32)>,
}

impl RingModel {
    fn new(seed: u64) -> Self {
        let dice = Dice::new(seed);
        let incremental = dice.percent(75);
        let (size, count) = (dice.pick(&[3, 16, 64, 300, LARGE]), dice.pick(&[1, 2, 5]));
        let config = EngineConfig::default()
            .with_receive_buffer(size)
            .and_then(|config| config.with_ring_buffers(count));
        let config = config.expect("all settings are within their ranges");
        // A small table; or one so large that some connections are accepted without counting first.
        let table_size = dice.pick(&[1, 2, 7, RESERVE + 1, RESERVE + 3]);
        let listeners = 1 + dice.below(2);
        let pool = ModelPool::new(config.ring_buffers, config.ring_buffer(), incremental);
        let names = dice.pick(&[1, 3, 8]);
        let script = Script::new(
            Dice::new(seed ^ 1 << 40),
            Peers::new(table_size, config.ring_buffer() == LARGE),
            pool,
            names,
            listeners,
        );
        let mut io = Io::new(true);
        io.appends_files = true;
        Self {
            ring: Ring::on(script, listeners, &config),
            clock: io.now(),
            io,
            app: TestApp::new(Dice::new(seed ^ 2 << 40)),
            dice,
            hungry: BTreeMap::new(),
        }
    }

    /// One turn, step by step as `Engine` does.
    fn turn(&mut self) {
        let Self { dice, ring, io, app, .. } = self;
        io.stats.turns.add(1);
        Backend::<TestApp>::start(ring).expect("the script starts");
        let mail = !app.calm && dice.percent(15);
        let work = mail || io.has_commands() || ring.has_work(app, io);
        let timers = [io.until_next_timer(), Backend::<TestApp>::until_next_work(ring, io)];
        let timeout = if work { Some(Duration::ZERO) } else { timers.into_iter().flatten().min() };
        Backend::<TestApp>::wait(ring, timeout).expect("a script is entered");
        // Random progress of time, but a wait without an event lasts as long as requested.
        self.clock += Duration::from_micros(dice.below(2_000) as u64);
        if ring.kernel.slept {
            // A one-second wait for a chain without urgency is no progress.
            let waits = ring.acceptors.until_retry(io).or_else(|| io.until_next_timer());
            let forever = app.calm && waits.is_none() && !app.connections.is_empty();
            assert!(!forever, "sleeps forever: {:?}, {:?}", app.connections, ring.kernel.in_flight);
            self.clock += timeout.unwrap_or_default();
        }
        io.begin_turn();
        io.set_now(self.clock);
        ring.deliver(app, io);
        if mail {
            crate::App::mail(app, io, &mut Vec::new());
        }
        self.timers();
        let Self { dice, ring, io, app, .. } = self;
        if dice.percent(20) {
            Backend::<TestApp>::wait(ring, Some(Duration::ZERO)).expect("a script is entered");
            ring.deliver(app, io);
        }
        app.end_turn(io);
        io.close_all_if_stopping();
        ring.execute_commands(app, io);
        if dice.percent(20) {
            Backend::<TestApp>::flush(ring).expect("a script is entered");
        }
        self.check();
    }

    fn timers(&mut self) {
        let Self { dice, io, app, .. } = self;
        let due: Vec<_> = app.connections.keys().copied().filter(|_| !app.calm && dice.percent(5)).collect();
        for conn in due {
            if io.slots.live_mut(conn).is_some() {
                crate::App::timer(app, io, conn);
            }
        }
        if io.take_app_due() {
            crate::App::app_timer(app, io);
        }
    }

    /// Connections that are not started yet, or were closed before.
    fn pending_connections(&self) -> usize {
        let links = &self.ring.links;
        let without = |conn: &&ConnId| links.get(conn.index()).is_none_or(Option::is_none);
        let unbegun: Vec<_> = self.app.connections.keys().filter(without).collect();
        let waits = |conn: &ConnId| self.io.connects.iter().any(|connect| connect.conn == *conn);
        let closes = |conn: &ConnId| self.io.closes.iter().any(|(closes, _)| closes == conn);
        assert!(
            unbegun.iter().all(|conn| waits(conn) || closes(conn)),
            "every pending connection is listed or closing"
        );
        unbegun.len()
    }

    /// Invariants between turns.
    fn check(&mut self) {
        let links = self.ring.links.iter().flatten().count();
        let begun = self.app.connections.len() - self.pending_connections();
        assert_eq!((links, self.io.connections()), (begun, self.app.connections.len()));
        let lists = [&self.ring.starved, &self.ring.unarmed, &self.ring.batch];
        assert!(lists.iter().all(|list| list.is_empty()), "a turn processes its lists");
        for link in self.ring.links.iter().flatten().filter(|link| link.deferred.is_some()) {
            let stops = matches!(link.receive, ReceiveProgress::Idle | ReceiveProgress::Cancelled);
            assert!(stops, "deferred input does not grow: {:?}", link.receive);
        }
        for state in
            self.app.connections.values().filter(|state| self.app.calm && !state.paused && !state.closing)
        {
            if state.connecting.is_some() {
                continue;
            }
            let peer = &self.ring.kernel.peers.all[state.serial as usize];
            let (got, turns) = self.hungry.entry(state.serial).or_default();
            let has_progress = state.got > std::mem::replace(got, state.got) || state.got == peer.arrived;
            *turns = if has_progress || peer.hurt { 0 } else { *turns + 1 };
            let most = HUNGER_TURNS * (1 + self.app.connections.len() as u32);
            assert!(*turns < most, "waits for bytes that have arrived: {state:?}, {peer:?}");
        }
    }

    /// From here on the kernel is benign, and the application closes all connections in order.
    fn end_faults(&mut self) {
        self.ring.kernel.benign = true;
        self.app.calm = true;
        let serial =
            |state: &app::ConnectionState| if state.connecting.is_some() { u32::MAX } else { state.serial };
        let open: Vec<_> = self.app.connections.iter().map(|(conn, state)| (*conn, serial(state))).collect();
        for (serial, peer) in self.ring.kernel.peers.all.iter_mut().enumerate() {
            // Connections that the application does not know yet.
            peer.unresponsive &= open.iter().any(|(_, known)| *known == serial as u32);
        }
        for &(conn, serial) in &open {
            self.app.resume(&mut self.io, conn);
            if self.app.connections[&conn].connecting.is_some() {
                // It ends with its peer, if it is reached.
                continue;
            }
            if self.dice.percent(50) {
                let bytes = self.dice.below(500);
                self.app.queue(&mut self.io, conn, bytes);
            }
            let (state, peer) =
                (&self.app.connections[&conn], &mut self.ring.kernel.peers.all[serial as usize]);
            // Some peers end after they have received all bytes.
            if peer.ends_after == usize::MAX {
                peer.ends_after = state.queued;
            }
            if peer.unresponsive {
                // Only cancelled operations complete.
                peer.lost = true;
                self.app.close(&mut self.io, conn);
            } else if state.ended && peer.failure.is_none() {
                self.app.shutdown(&mut self.io, conn);
            }
        }
        if let Some((_, serial)) = open.get(self.dice.below(2 * open.len())) {
            self.ring.kernel.peers.flood = Some(*serial).filter(|serial| *serial != u32::MAX);
        }
    }

    fn run(mut self) {
        for _ in 0..self.dice.below(120) {
            self.turn();
        }
        if self.dice.percent(20) {
            // Dropped with operations in flight: chains are freed only if the kernel completes them.
            self.ring.kernel.joins = self.dice.percent(50);
            return;
        }
        self.end_faults();
        for _ in 0..FLOOD_TURNS {
            self.turn();
        }
        self.ring.kernel.peers.end_flood();
        if self.dice.percent(20) {
            self.app.stop(&mut self.io);
        }
        self.turns_until("every connection closes", |world| {
            world.app.connections.is_empty()
                && (!world.io.accepting() || world.ring.kernel.peers.waiting == 0)
        });
        self.io.stop_accepting();
        self.turns_until("no operation stays in flight", |world| {
            let kernel = &world.ring.kernel;
            world.io.finished() && kernel.in_flight.is_empty() && kernel.queue.is_empty() && kernel.slept
        });
        self.at_rest();
    }

    fn turns_until(&mut self, kind: &str, done: impl Fn(&Self) -> bool) {
        for _ in 0..REST_TURNS {
            self.turn();
            if done(self) {
                return;
            }
        }
        panic!(
            "not within {REST_TURNS} turns: {kind}: {:?}, {:?}",
            self.app.connections, self.ring.kernel.in_flight
        );
    }

    fn at_rest(&self) {
        let kernel = &self.ring.kernel;
        assert!(!self.io.has_commands());
        assert!(self.ring.completed.is_empty() && self.ring.readable.is_empty());
        assert!(!self.ring.has_work(&self.app, &self.io));
        assert!(self.ring.shared.is_empty() && self.io.broadcasts.is_empty());
        assert!(self.ring.fired.is_empty() && self.ring.links.iter().all(Option::is_none));
        assert_eq!((kernel.peers.open(), self.ring.acceptors.used_files()), (0, 0), "every socket is closed");
        kernel.pool.assert_at_rest();
        self.appends_at_rest();
        for (serial, (state, reason)) in &self.app.done {
            let peer = &kernel.peers.all[*serial as usize];
            assert!(state.got <= peer.handed && peer.taken <= state.queued, "{state:?}, {peer:?}");
            match reason {
                CloseReason::Finished => {
                    let whole = state.ended && (state.got, state.queued) == (peer.total, peer.taken);
                    assert!(whole, "an orderly end loses nothing: {state:?}, {peer:?}");
                }
                CloseReason::Requested => {}
                CloseReason::Stopped => assert!(self.app.stopped),
                CloseReason::Reset | CloseReason::Error(_) => {
                    assert!(peer.hurt, "{reason:?}: {state:?}, {peer:?}")
                }
            }
        }
    }
}

impl RingModel {
    /// The bytes of every append are in its file, once and in order, as many as reported; and synced, if
    /// reported.
    fn appends_at_rest(&self) {
        assert!(self.app.appends.is_empty() && self.ring.appends.is_empty(), "every append is reported");
        for (tag, (bytes, sync, written, result)) in &self.app.appended {
            let none = (Vec::new(), 0);
            let (content, synced) = self.ring.kernel.disk.get(tag).unwrap_or(&none);
            assert_eq!(content[..], bytes[..*written as usize], "append {tag}: {result:?}");
            if result.is_ok() {
                assert_eq!(content.len(), bytes.len(), "append {tag} is whole");
                assert!(!sync || *synced == bytes.len(), "append {tag} is synced");
            }
        }
    }
}

/// Size of a buffer after which the application lends its own.
const LARGE: usize = 20_000;
/// Turns per connection within which each connection receives some of its pending bytes, regardless of the
/// load.
const HUNGER_TURNS: u32 = 8;
/// Turns in which one peer takes every buffer it can.
const FLOOD_TURNS: usize = 60;
const REST_TURNS: usize = 3_000;

fn try_seed(seed: u64) {
    let run = catch_unwind(AssertUnwindSafe(|| RingModel::new(seed).run()));
    if let Err(panic) = run {
        let kind = panic.downcast_ref::<String>().map(String::as_str);
        let kind = kind.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
        panic!("seed {seed}: {kind}");
    }
}

#[test]
fn random_completion_orders_lose_no_bytes_and_terminate() {
    let seeds = std::env::var("SINEWS_RING_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    (1..=seeds.unwrap_or(2_000)).for_each(try_seed);
}

/// A world without faults, and its only connection.
fn model_without_faults(seed: u64) -> (RingModel, ConnId) {
    let mut world = RingModel::new(seed);
    world.end_faults();
    world.ring.kernel.peers.waiting = 1;
    world.turns_until("it is accepted", |world| !world.app.connections.is_empty());
    let conn = *world.app.connections.keys().next().expect("a connection was accepted");
    (world, conn)
}

#[test]
fn chain_longer_than_one_send_completes_without_other_events() {
    for seed in 1..=50 {
        let (mut world, conn) = model_without_faults(seed);
        world.ring.kernel.peers.all[0].ends_after = 2_000;
        world.app.queue(&mut world.io, conn, 2_000);
        world.turns_until("its peer has everything and ends", |world| world.app.connections.is_empty());
    }
}

#[test]
fn bytes_queued_behind_long_chain_are_sent_without_other_events() {
    for seed in 1..=50 {
        let (mut world, conn) = model_without_faults(seed);
        world.ring.kernel.peers.all[0].ends_after = 300;
        world.app.queue(&mut world.io, conn, 200);
        world.turn();
        world.app.queue(&mut world.io, conn, 100);
        world.turns_until("its peer has everything and ends", |world| world.app.connections.is_empty());
    }
}

#[test]
fn refused_submission_keeps_shutdown_waiting_for_chain() {
    for seed in 1..=50 {
        let (mut world, conn) = model_without_faults(seed);
        world.ring.kernel.peers.all[0].ends_after = usize::MAX - 1;
        world.app.queue(&mut world.io, conn, 20);
        world.turn();
        world.app.shutdown(&mut world.io, conn);
        world.ring.kernel.refuses = true;
        // Or the peer has ended first, and closing informs it.
        let result =
            |world: &RingModel| world.ring.kernel.peers.all[0].shut || world.app.connections.is_empty();
        world.turns_until("the shutdown reaches the peer", result);
    }
}
