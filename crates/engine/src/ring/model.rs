//! Model test of the ring backend without a kernel. An in-memory kernel completes operations in any order
//! that a seed determines, an application issues any command at any time, and both check the contract of
//! the ring.
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

use self::app::Tester;
use self::dice::Dice;
use self::peers::Peers;
use self::pool::Pool;
use self::script::Script;
use super::accept::RESERVE;
use super::{Receive, Ring};
use crate::backend::Backend;
use crate::{Closed, Config, ConnId, Io};

type Tested = Ring<<Tester as crate::App>::Chain, Script>;

/// A loop as run by the engine, with a seeded clock.
struct World {
    dice: Dice,
    ring: Tested,
    io: Io,
    app: Tester,
    clock: std::time::Instant,
    /// Turns in which a connection did not receive its pending bytes.
    hungry: BTreeMap<u32, (usize, u32)>,
}

impl World {
    fn new(seed: u64) -> Self {
        let dice = Dice::new(seed);
        let incremental = dice.percent(75);
        let (size, count) = (dice.pick(&[3, 16, 64, 300, LARGE]), dice.pick(&[1, 2, 5]));
        let config = Config::default().receive_buffer(size).and_then(|config| config.ring_buffers(count));
        let config = config.expect("all settings are within their ranges");
        // A small table; or one so large that some connections are accepted without counting first.
        let places = dice.pick(&[1, 2, 7, RESERVE + 1, RESERVE + 3]);
        let listeners = 1 + dice.below(2);
        let pool = Pool::new(config.ring_buffers, config.ring_buffer(), incremental);
        let names = dice.pick(&[1, 3, 8]);
        let script = Script::new(
            Dice::new(seed ^ 1 << 40),
            Peers::new(places, config.ring_buffer() == LARGE),
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
            app: Tester::new(Dice::new(seed ^ 2 << 40)),
            dice,
            hungry: BTreeMap::new(),
        }
    }

    /// One turn, step by step as `Engine` does.
    fn turn(&mut self) {
        let Self { dice, ring, io, app, .. } = self;
        io.stats.turns.add(1);
        Backend::<Tester>::start(ring).expect("the script starts");
        let mail = !app.calm && dice.percent(15);
        let work = mail || io.has_commands() || ring.has_work(app, io);
        let timers = [io.until_next_timer(), Backend::<Tester>::until_next_work(ring, io)];
        let timeout = if work { Some(Duration::ZERO) } else { timers.into_iter().flatten().min() };
        Backend::<Tester>::wait(ring, timeout).expect("a script is entered");
        // Random progress of time, but a wait without an event lasts as long as requested.
        self.clock += Duration::from_micros(dice.below(2_000) as u64);
        if ring.kernel.slept {
            // A one-second wait for a chain without urgency is no progress.
            let waits = ring.acceptors.until_retry(io).or_else(|| io.until_next_timer());
            let forever = app.calm && waits.is_none() && !app.lives.is_empty();
            assert!(!forever, "sleeps forever: {:?}, {:?}", app.lives, ring.kernel.in_flight);
            self.clock += timeout.unwrap_or_default();
        }
        io.begin_turn();
        io.now = self.clock;
        ring.deliver(app, io);
        if mail {
            crate::App::mail(app, io, &mut Vec::new());
        }
        self.timers();
        let Self { dice, ring, io, app, .. } = self;
        io.close_all_if_stopping();
        ring.carry_out(app, io);
        if dice.percent(20) {
            Backend::<Tester>::flush(ring).expect("a script is entered");
        }
        self.check();
    }

    fn timers(&mut self) {
        let Self { dice, io, app, .. } = self;
        let due: Vec<_> = app.lives.keys().copied().filter(|_| !app.calm && dice.percent(5)).collect();
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
    fn unbegun(&self) -> usize {
        let links = &self.ring.links;
        let without = |conn: &&ConnId| links.get(conn.index()).is_none_or(Option::is_none);
        let unbegun: Vec<_> = self.app.lives.keys().filter(without).collect();
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
        let begun = self.app.lives.len() - self.unbegun();
        assert_eq!((links, self.io.connections()), (begun, self.app.lives.len()));
        let lists = [&self.ring.starved, &self.ring.unarmed, &self.ring.batch];
        assert!(lists.iter().all(|list| list.is_empty()), "a turn processes its lists");
        for link in self.ring.links.iter().flatten().filter(|link| link.held.is_some()) {
            let stops = matches!(link.receive, Receive::Home | Receive::Cancelled);
            assert!(stops, "deferred input does not grow: {:?}", link.receive);
        }
        for life in self.app.lives.values().filter(|life| self.app.calm && !life.paused && !life.closing) {
            if life.connecting.is_some() {
                continue;
            }
            let peer = &self.ring.kernel.peers.all[life.serial as usize];
            let (got, turns) = self.hungry.entry(life.serial).or_default();
            let fed = life.got > std::mem::replace(got, life.got) || life.got == peer.arrived;
            *turns = if fed || peer.hurt { 0 } else { *turns + 1 };
            let most = HUNGER_TURNS * (1 + self.app.lives.len() as u32);
            assert!(*turns < most, "waits for bytes that have arrived: {life:?}, {peer:?}");
        }
    }

    /// From here on the kernel is benign, and the application closes all connections in order.
    fn calm(&mut self) {
        self.ring.kernel.benign = true;
        self.app.calm = true;
        let serial = |life: &app::Life| if life.connecting.is_some() { u32::MAX } else { life.serial };
        let living: Vec<_> = self.app.lives.iter().map(|(conn, life)| (*conn, serial(life))).collect();
        for (serial, peer) in self.ring.kernel.peers.all.iter_mut().enumerate() {
            // Connections that the application does not know yet.
            peer.deaf &= living.iter().any(|(_, known)| *known == serial as u32);
        }
        for &(conn, serial) in &living {
            self.app.resume(&mut self.io, conn);
            if self.app.lives[&conn].connecting.is_some() {
                // It ends with its peer, if it is reached.
                continue;
            }
            if self.dice.percent(50) {
                let bytes = self.dice.below(500);
                self.app.queue(&mut self.io, conn, bytes);
            }
            let (life, peer) = (&self.app.lives[&conn], &mut self.ring.kernel.peers.all[serial as usize]);
            // Some peers end after they have received all bytes.
            if peer.ends_after == usize::MAX {
                peer.ends_after = life.queued;
            }
            if peer.deaf {
                // Only cancelled operations complete.
                peer.lost = true;
                self.app.close(&mut self.io, conn);
            } else if life.ended && peer.failure.is_none() {
                self.app.shutdown(&mut self.io, conn);
            }
        }
        if let Some((_, serial)) = living.get(self.dice.below(2 * living.len())) {
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
        self.calm();
        for _ in 0..FLOOD_TURNS {
            self.turn();
        }
        self.ring.kernel.peers.end_flood();
        if self.dice.percent(20) {
            self.app.stop(&mut self.io);
        }
        self.turns_until("every connection closes", |world| {
            world.app.lives.is_empty() && (!world.io.accepting() || world.ring.kernel.peers.waiting == 0)
        });
        self.io.stop_accepting();
        self.turns_until("no operation stays in flight", |world| {
            let kernel = &world.ring.kernel;
            world.io.finished() && kernel.in_flight.is_empty() && kernel.queue.is_empty() && kernel.slept
        });
        self.at_rest();
    }

    fn turns_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        for _ in 0..REST_TURNS {
            self.turn();
            if done(self) {
                return;
            }
        }
        panic!(
            "not within {REST_TURNS} turns: {what}: {:?}, {:?}",
            self.app.lives, self.ring.kernel.in_flight
        );
    }

    fn at_rest(&self) {
        let kernel = &self.ring.kernel;
        assert!(!self.io.has_commands());
        assert!(self.ring.completed.is_empty() && self.ring.readable.is_empty());
        assert!(!self.ring.has_work(&self.app, &self.io));
        assert!(self.ring.fired.is_empty() && self.ring.links.iter().all(Option::is_none));
        assert_eq!((kernel.peers.open(), self.ring.acceptors.taken()), (0, 0), "every socket is closed");
        kernel.pool.assert_at_rest();
        self.appends_at_rest();
        for (serial, (life, why)) in &self.app.done {
            let peer = &kernel.peers.all[*serial as usize];
            assert!(life.got <= peer.handed && peer.taken <= life.queued, "{life:?}, {peer:?}");
            match why {
                Closed::Finished => {
                    let whole = life.ended && (life.got, life.queued) == (peer.total, peer.taken);
                    assert!(whole, "an orderly end loses nothing: {life:?}, {peer:?}");
                }
                Closed::Requested => {}
                Closed::Stopped => assert!(self.app.stopped),
                Closed::Reset | Closed::Error(_) => assert!(peer.hurt, "{why:?}: {life:?}, {peer:?}"),
            }
        }
    }
}

impl World {
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
    let run = catch_unwind(AssertUnwindSafe(|| World::new(seed).run()));
    if let Err(panic) = run {
        let what = panic.downcast_ref::<String>().map(String::as_str);
        let what = what.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
        panic!("seed {seed}: {what}");
    }
}

#[test]
fn random_completion_orders_lose_no_bytes_and_terminate() {
    let seeds = std::env::var("SINEWS_RING_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    (1..=seeds.unwrap_or(2_000)).for_each(try_seed);
}

/// A world without faults, and its only connection.
fn quiet(seed: u64) -> (World, ConnId) {
    let mut world = World::new(seed);
    world.calm();
    world.ring.kernel.peers.waiting = 1;
    world.turns_until("it is accepted", |world| !world.app.lives.is_empty());
    let conn = *world.app.lives.keys().next().expect("a connection was accepted");
    (world, conn)
}

#[test]
fn chain_longer_than_one_send_completes_without_other_events() {
    for seed in 1..=50 {
        let (mut world, conn) = quiet(seed);
        world.ring.kernel.peers.all[0].ends_after = 2_000;
        world.app.queue(&mut world.io, conn, 2_000);
        world.turns_until("its peer has everything and ends", |world| world.app.lives.is_empty());
    }
}

#[test]
fn bytes_queued_behind_long_chain_are_sent_without_other_events() {
    for seed in 1..=50 {
        let (mut world, conn) = quiet(seed);
        world.ring.kernel.peers.all[0].ends_after = 300;
        world.app.queue(&mut world.io, conn, 200);
        world.turn();
        world.app.queue(&mut world.io, conn, 100);
        world.turns_until("its peer has everything and ends", |world| world.app.lives.is_empty());
    }
}

#[test]
fn refused_submission_keeps_shutdown_waiting_for_chain() {
    for seed in 1..=50 {
        let (mut world, conn) = quiet(seed);
        world.ring.kernel.peers.all[0].ends_after = usize::MAX - 1;
        world.app.queue(&mut world.io, conn, 20);
        world.turn();
        world.app.shutdown(&mut world.io, conn);
        world.ring.kernel.refuses = true;
        // Or the peer has ended first, and closing informs it.
        let told = |world: &World| world.ring.kernel.peers.all[0].shut || world.app.lives.is_empty();
        world.turns_until("the shutdown reaches the peer", told);
    }
}
