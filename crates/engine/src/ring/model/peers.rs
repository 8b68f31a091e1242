//! The peers, and the file table.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::dice::Dice;

thread_local! {
    /// Serial number of the peer for each port that the application connects to. An application only learns
    /// that it is connected, so both use this map.
    static CALLED: RefCell<BTreeMap<u16, u32>> = const { RefCell::new(BTreeMap::new()) };
}

/// The serial number of the peer for a connection to this port.
pub(super) fn serial_of(ticket: u16) -> u32 {
    CALLED.with_borrow(|called| called[&ticket])
}

/// The direction of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamDirection {
    In,
    Out,
}

/// The byte at an offset of a stream, which encodes its position.
pub(super) fn byte(serial: u32, way: StreamDirection, at: usize) -> u8 {
    let position = u64::from(serial) << 33 | u64::from(way == StreamDirection::Out) << 32 | at as u64;
    let mixed = (position ^ position >> 15).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40) as u8
}

pub(super) fn stream(serial: u32, way: StreamDirection, from: usize, to: usize) -> Vec<u8> {
    (from..to).map(|at| byte(serial, way, at)).collect()
}

/// The remote end of a connection.
#[derive(Debug)]
pub(super) struct ModelPeer {
    /// Bytes it sends in total, those that have arrived, and those the kernel has delivered.
    pub(super) total: usize,
    pub(super) arrived: usize,
    pub(super) handed: usize,
    /// It ends after it has received this many bytes.
    pub(super) ends_after: usize,
    /// Its end has been reported.
    pub(super) ended: bool,
    /// It reads nothing: a waiting send never completes.
    pub(super) unresponsive: bool,
    /// It is gone, which only one operation reported.
    pub(super) lost: bool,
    /// An error for every operation from now on.
    pub(super) failure: Option<i32>,
    /// An error has been reported.
    pub(super) hurt: bool,
    /// Bytes that it has received.
    pub(super) taken: usize,
    /// The local side has shut down.
    pub(super) shut: bool,
}

impl ModelPeer {
    fn new(dice: &Dice, odd: bool, large: bool) -> Self {
        let most = if large { dice.pick(&[0, 400, 90_000]) } else { dice.pick(&[0, 3, 40, 400]) };
        let ends_after = if dice.percent(50) { 0 } else { usize::MAX };
        Self {
            total: dice.below(most + 1),
            arrived: 0,
            handed: 0,
            ends_after,
            ended: false,
            unresponsive: odd && dice.percent(10),
            lost: false,
            failure: None,
            hurt: false,
            taken: 0,
            shut: false,
        }
    }

    /// No more bytes follow, and the receiver can know.
    pub(super) fn ends(&mut self) -> bool {
        self.ended |= !self.lost && self.handed == self.total && self.taken >= self.ends_after;
        self.ended
    }
}

pub(super) struct Peers {
    /// By serial number, from 0.
    pub(super) all: Vec<ModelPeer>,
    /// The peer in each slot of the table.
    table: Vec<Option<u32>>,
    /// Connections in the backlog.
    pub(super) waiting: usize,
    /// A peer that sends at full speed.
    pub(super) flood: Option<u32>,
    /// Some peers send many bytes.
    large: bool,
}

impl Peers {
    pub(super) fn new(table_size: usize, large: bool) -> Self {
        CALLED.with_borrow_mut(BTreeMap::clear);
        Self { all: Vec::new(), table: vec![None; table_size], waiting: 0, flood: None, large }
    }

    pub(super) fn table_size(&self) -> usize {
        self.table.len()
    }

    pub(super) fn accept(&mut self, dice: &Dice, odd: bool) -> u32 {
        self.waiting -= 1;
        let free = self.table.iter().position(Option::is_none);
        let file = free.expect("accepts do not exceed the table");
        self.table[file] = Some(self.all.len() as u32);
        self.all.push(ModelPeer::new(dice, odd, self.large));
        file as u32
    }

    /// Creates a socket for a peer that the application connects to.
    pub(super) fn install(&mut self, dice: &Dice, odd: bool, ticket: u16) -> Option<u32> {
        let file = self.table.iter().position(Option::is_none)?;
        let serial = self.all.len() as u32;
        CALLED.with_borrow_mut(|called| called.insert(ticket, serial));
        self.table[file] = Some(serial);
        self.all.push(ModelPeer::new(dice, odd, self.large));
        Some(file as u32)
    }

    pub(super) fn close(&mut self, file: u32) {
        self.table[file as usize] = None;
    }

    /// The serial number of the socket's peer.
    pub(super) fn serial(&self, file: u32) -> u32 {
        self.table[file as usize].expect("no operation on a closed socket")
    }

    pub(super) fn at(&mut self, file: u32) -> (u32, &mut ModelPeer) {
        let serial = self.serial(file);
        (serial, &mut self.all[serial as usize])
    }

    pub(super) fn open(&self) -> usize {
        self.table.iter().flatten().count()
    }

    /// Random events at the peers.
    pub(super) fn cause_random_events(&mut self, dice: &Dice) {
        if dice.percent(25) {
            self.waiting = (self.waiting + dice.below(4)).min(BACKLOG);
        }
        for serial in self.table.iter().flatten() {
            let peer = &mut self.all[*serial as usize];
            if dice.percent(50) {
                peer.arrived += dice.below(peer.total - peer.arrived + 1);
            }
            if dice.percent(1) {
                peer.failure = Some(dice.pick(&[libc::ECONNRESET, libc::ETIMEDOUT, libc::EPIPE]));
            }
        }
    }

    /// Drops the bytes that it has not sent yet.
    pub(super) fn end_flood(&mut self) {
        if let Some(serial) = self.flood.take() {
            let peer = &mut self.all[serial as usize];
            peer.total = peer.total.min(peer.handed + 100);
            peer.arrived = peer.total;
        }
    }

    /// All bytes arrive, and one peer floods.
    pub(super) fn end_faults(&mut self, burst: usize) {
        for (serial, peer) in self.all.iter_mut().enumerate() {
            if self.flood == Some(serial as u32) && !peer.ended && !peer.lost {
                peer.total += burst;
            }
            peer.arrived = peer.total;
            if peer.ends_after == usize::MAX {
                peer.ends_after = 0;
            }
        }
    }
}

const BACKLOG: usize = 12;
