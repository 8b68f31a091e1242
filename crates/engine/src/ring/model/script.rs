//! An in-memory kernel: its operations, and the checks on its caller.

#![allow(unsafe_code)]

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::time::Duration;

use super::super::connect::Outgoing;
use super::super::kernel::{Completion, Kernel, Wait};
use super::super::token::{Kind, Token};
use super::chain::{give_all_back, give_back, lend};
use super::dice::Dice;
use super::peers::Peers;
use super::pool::Pool;
use crate::{Append, Chain, Large};

pub(super) struct Script {
    pub(super) dice: Dice,
    /// Submits and completes all operations at once, and invents no errors.
    pub(super) benign: bool,
    pub(super) peers: Peers,
    pub(super) pool: Pool,
    pub(super) names: Vec<[u8; 28]>,
    pub(super) listeners: usize,
    pub(super) listening: bool,
    /// Not submitted yet.
    pub(super) queue: VecDeque<Operation>,
    pub(super) in_flight: Vec<Operation>,
    /// Fired sends with a pending completion.
    pub(super) reports: Vec<Completion>,
    pub(super) queued: u64,
    pub(super) consumed: u64,
    pub(super) enters: u64,
    /// All operations so far.
    known: HashSet<Token>,
    /// Operations of closed connections.
    pub(super) gone: Vec<Token>,
    /// The next call takes no operations.
    pub(super) refuses: bool,
    /// The last call waited without an event.
    pub(super) slept: bool,
    /// Joining succeeds.
    pub(super) joins: bool,
    /// Appended bytes, and how many of them are synced, by tag.
    pub(super) disk: BTreeMap<u64, (Vec<u8>, usize)>,
}

/// An operation.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) token: Token,
    pub(super) file: Option<u32>,
    pub(super) what: What,
    /// It is cancelled, and this many attempts to complete otherwise are left.
    pub(super) cancelled: Option<u32>,
}

#[derive(Debug)]
pub(super) enum What {
    Accept {
        multishot: bool,
    },
    Name {
        listener: usize,
        place: usize,
    },
    /// The address for the slot, and the peer to connect to.
    Install {
        told: Range<usize>,
        ticket: u16,
    },
    Connect {
        lent: Range<usize>,
        ticket: u16,
    },
    Receive {
        multishot: bool,
    },
    Large {
        lent: Range<usize>,
    },
    Watch,
    Send {
        wait: Wait,
        lent: Lent,
    },
    Shutdown,
    Close,
    /// To the file with this tag, whose content the script keeps.
    Append {
        tag: u64,
        lent: Lent,
    },
    Sync {
        tag: u64,
    },
    Cancel(Token),
}

/// Slices of a chain, and their content when they were offered.
#[derive(Debug)]
pub(super) struct Lent {
    ranges: Vec<Range<usize>>,
    pub(super) bytes: Vec<u8>,
}

impl Lent {
    fn new(slices: &[IoSlice<'_>]) -> Self {
        let range = |slice: &IoSlice<'_>| slice.as_ptr() as usize..slice.as_ptr() as usize + slice.len();
        let ranges: Vec<_> = slices.iter().map(range).collect();
        ranges.iter().cloned().for_each(lend);
        Self { ranges, bytes: slices.iter().flat_map(|slice| slice.iter().copied()).collect() }
    }

    /// The kernel has read them for the last time.
    pub(super) fn give_back(&self) {
        let mut expected = self.bytes.as_slice();
        for range in &self.ranges {
            // SAFETY: a chain of this model asserts, before it changes or frees any bytes, that they are not
            // lent, and these are until below. They were read as a slice when they were lent.
            let now = unsafe { std::slice::from_raw_parts(range.start as *const u8, range.len()) };
            assert_eq!(now, &expected[..range.len()], "bytes in flight do not change");
            expected = &expected[range.len()..];
            give_back(range);
        }
    }
}

impl What {
    /// Operations of one socket that exclude each other share a lane.
    fn lane(&self) -> u8 {
        match self {
            Self::Connect { .. } | Self::Receive { .. } | Self::Large { .. } | Self::Watch => 0,
            Self::Send { .. } | Self::Shutdown => 1,
            Self::Name { .. } => 2,
            Self::Accept { .. } | Self::Install { .. } | Self::Close | Self::Cancel(_) => 3,
            Self::Append { .. } | Self::Sync { .. } => 4,
        }
    }
}

impl Script {
    pub(super) fn new(dice: Dice, peers: Peers, pool: Pool, names: usize, listeners: usize) -> Self {
        give_all_back();
        Self {
            dice,
            benign: false,
            peers,
            pool,
            names: vec![[0; 28]; names],
            listeners,
            listening: true,
            queue: VecDeque::new(),
            in_flight: Vec::new(),
            reports: Vec::new(),
            queued: 0,
            consumed: 0,
            enters: 0,
            known: HashSet::new(),
            gone: Vec::new(),
            refuses: false,
            slept: false,
            joins: true,
            disk: BTreeMap::new(),
        }
    }

    fn push(&mut self, token: Token, file: Option<u32>, what: What) {
        if let Some(file) = file {
            let serial = self.peers.serial(file);
            let shut = self.peers.all[serial as usize].shut;
            assert!(!shut || what.lane() != 1, "no send follows a shutdown: {token:?}");
            for other in self.pending().filter(|other| other.file == Some(file)) {
                let close = matches!(other.what, What::Close) || matches!(what, What::Close);
                assert!(!close, "a socket is closed after all operations: {what:?}, {other:?}");
                assert_ne!(other.what.lane(), what.lane(), "one at a time: {what:?}, {other:?}");
            }
        }
        let shared = matches!(what, What::Accept { .. } | What::Cancel(_));
        assert!(shared || !self.pending().any(|other| other.token == token), "{token:?} is used twice");
        self.known.insert(token);
        self.queued += 1;
        self.queue.push_back(Operation { token, file, what, cancelled: None });
    }

    fn pending(&self) -> impl Iterator<Item = &Operation> {
        self.queue.iter().chain(&self.in_flight)
    }

    /// The kernel takes some of the queued operations, in order.
    fn hand_over(&mut self, out: &mut Vec<Completion>) {
        let all = self.queue.len();
        let refused = !self.benign && self.dice.percent(20);
        let count = match std::mem::take(&mut self.refuses) {
            true => 0,
            false if refused => self.dice.below(all + 1),
            false => all,
        };
        for mut operation in self.queue.drain(..count).collect::<Vec<_>>() {
            self.consumed += 1;
            match operation.what {
                What::Cancel(target) => {
                    for other in self.in_flight.iter_mut().filter(|other| other.token == target) {
                        other.cancelled = Some(self.dice.below(4) as u32);
                    }
                }
                What::Send { wait: Wait::No, .. } => self.take_fired(&operation),
                // Available bytes are received before the next operation is processed.
                What::Receive { .. } | What::Large { .. } if self.benign => {
                    while self.step(&mut operation, out) {}
                    self.keep(operation);
                }
                _ => self.in_flight.push(operation),
            }
        }
    }

    /// Puts back an operation that has not completed.
    fn keep(&mut self, operation: Operation) {
        if operation.cancelled != Some(ENDED) {
            self.in_flight.push(operation);
        }
    }

    fn complete_some(&mut self, out: &mut Vec<Completion>) {
        for _ in 0..self.dice.below(12) {
            if self.dice.percent(30) && !self.reports.is_empty() {
                let report = self.reports.swap_remove(self.dice.below(self.reports.len()));
                out.push(report);
            }
            if !self.in_flight.is_empty() {
                let mut operation = self.in_flight.swap_remove(self.dice.below(self.in_flight.len()));
                self.step(&mut operation, out);
                self.keep(operation);
            }
        }
        // Cancelled operations complete soon.
        for mut operation in std::mem::take(&mut self.in_flight) {
            if let Some(chances) = operation.cancelled {
                operation.cancelled = Some(chances.saturating_sub(1));
                if chances == 0 {
                    self.step(&mut operation, out);
                }
            }
            self.keep(operation);
        }
    }

    fn complete_all(&mut self, out: &mut Vec<Completion>) {
        for mut operation in std::mem::take(&mut self.in_flight) {
            while self.step(&mut operation, out) {}
            self.keep(operation);
        }
    }
}

/// The kernel writes into lent memory.
pub(super) fn write(to: &Range<usize>, bytes: &[u8]) {
    assert!(bytes.len() <= to.len());
    // SAFETY: the spare capacity of a buffer that, as the caller of `receive_large` vouches, neither moves nor
    // is freed before this operation is home.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.start as *mut u8, bytes.len()) };
}

/// Number of attempts that marks a completed operation.
pub(super) const ENDED: u32 = u32::MAX;

impl Kernel for Script {
    fn start(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn accept(&mut self, token: Token, listener: usize, multishot: bool) {
        assert!(self.listening && listener < self.listeners);
        self.push(token, None, What::Accept { multishot });
    }

    fn has_waiting(&self, listener: usize) -> bool {
        assert!(self.listening && listener < self.listeners);
        self.peers.waiting > 0
    }

    fn close_listeners(&mut self) {
        let accepting = self.pending().any(|one| matches!(one.what, What::Accept { .. }));
        assert!(!accepting, "a listener is closed when its operations have ended");
        self.listening = false;
    }

    fn files(&self) -> usize {
        self.peers.places()
    }

    fn peer_name(&mut self, token: Token, listener: usize, file: u32, place: usize) {
        assert!(listener < self.listeners && place < self.names.len());
        self.push(token, Some(file), What::Name { listener, place });
    }

    fn name(&self, place: usize) -> &[u8] {
        &self.names[place]
    }

    fn names(&self) -> usize {
        self.names.len()
    }

    unsafe fn install(&mut self, token: Token, outgoing: &mut Outgoing) {
        let start = outgoing.descriptor() as usize;
        let told = start..start + size_of::<i32>();
        lend(told.clone());
        let ticket = outgoing.address().as_socket().map_or(0, |address| address.port());
        self.push(token, None, What::Install { told, ticket });
    }

    unsafe fn connect(&mut self, token: Token, file: u32, outgoing: &Outgoing) {
        let start = outgoing.address().as_ptr() as usize;
        let lent = start..start + outgoing.address().len() as usize;
        lend(lent.clone());
        let ticket = outgoing.address().as_socket().map_or(0, |address| address.port());
        self.push(token, Some(file), What::Connect { lent, ticket });
    }

    fn receive(&mut self, token: Token, file: u32, multishot: bool) {
        self.push(token, Some(file), What::Receive { multishot });
    }

    unsafe fn receive_large(&mut self, token: Token, file: u32, large: &mut Large) {
        assert!(large.room() > 0);
        let to = large.buffer.spare_capacity_mut();
        let (start, room) = (to.as_mut_ptr() as usize, large.room());
        let lent = start..start + room;
        lend(lent.clone());
        self.push(token, Some(file), What::Large { lent });
    }

    fn watch(&mut self, token: Token, file: u32) {
        self.push(token, Some(file), What::Watch);
    }

    unsafe fn send<C: Chain>(&mut self, token: Token, file: u32, chain: &C, wait: Wait) -> u32 {
        let mut slices = [IoSlice::new(&[]); 4];
        let most = 1 + self.dice.below(slices.len());
        let count = chain.slices(&mut slices[..most]);
        let lent = Lent::new(&slices[..count]);
        let offered = lent.bytes.len() as u32;
        self.push(token, Some(file), What::Send { wait, lent });
        offered
    }

    fn shutdown(&mut self, token: Token, file: u32) {
        self.push(token, Some(file), What::Shutdown);
    }

    fn close(&mut self, token: Token, file: u32) {
        self.push(token, Some(file), What::Close);
    }

    unsafe fn append(&mut self, token: Token, append: &Append) {
        let mut slices = [IoSlice::new(&[]); 3];
        let count = append.slices(&mut slices);
        assert!(count > 0, "a write has bytes");
        let of_its_file = |other: &Operation| match other.what {
            What::Append { tag, .. } | What::Sync { tag } => tag == append.tag(),
            _ => false,
        };
        assert!(!self.pending().any(of_its_file), "one operation of an append at a time");
        let lent = Lent::new(&slices[..count]);
        self.push(token, None, What::Append { tag: append.tag(), lent });
    }

    unsafe fn sync(&mut self, token: Token, append: &Append) {
        self.push(token, None, What::Sync { tag: append.tag() });
    }

    fn cancel(&mut self, target: Token) {
        assert!(self.known.contains(&target), "only queued operations are cancelled: {target:?}");
        self.push(Token::NOTHING, None, What::Cancel(target));
    }

    fn queued(&self) -> u64 {
        self.queued
    }

    fn consumed(&self) -> u64 {
        self.consumed
    }

    fn enter(&mut self, timeout: Option<Duration>, out: &mut Vec<Completion>) -> io::Result<()> {
        self.enters += 1;
        let before = out.len();
        if self.benign {
            self.peers.calm(FLOOD);
            self.hand_over(out);
            self.complete_all(out);
        } else {
            self.peers.stir(&self.dice);
            self.hand_over(out);
            self.complete_some(out);
            self.stray(out);
        }
        out.append(&mut self.reports);
        self.slept = out.len() == before && timeout != Some(Duration::ZERO);
        for completion in &out[before..] {
            if completion.token.kind() == Some(Kind::Close) {
                self.gone.push(completion.token);
            }
        }
        Ok(())
    }

    fn submit(&mut self, out: &mut Vec<Completion>) -> io::Result<()> {
        self.enters += 1;
        self.hand_over(out);
        out.append(&mut self.reports);
        Ok(())
    }

    fn enters(&self) -> u64 {
        self.enters
    }

    fn chunk(&mut self, completion: &Completion) -> &mut [u8] {
        self.pool.chunk(completion)
    }

    fn release(&mut self, completion: &Completion) {
        self.pool.release(completion);
    }

    fn join(&mut self) -> bool {
        // Memory of unfinished operations stays lent: freeing it would be detected.
        if self.joins {
            give_all_back();
        }
        self.joins
    }
}

/// Bytes that one peer sends per call, more than all buffers hold.
const FLOOD: usize = 2_000;
