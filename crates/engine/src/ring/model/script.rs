//! An in-memory kernel: its operations, and the checks on its caller.

#![allow(unsafe_code)]

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::time::Duration;

use super::super::kernel::{Completion, RingKernel, SendMode};
use super::super::outgoing::OutgoingSocket;
use super::super::token::{OpKind, Token};
use super::chain::{begin_kernel_access, end_all_kernel_access, end_kernel_access};
use super::dice::Dice;
use super::peers::Peers;
use super::pool::ModelPool;
use crate::{Append, DatagramSocket, LargeBuffer, SendChain};

pub(super) struct Script {
    pub(super) dice: Dice,
    /// Submits and completes all operations at once, and invents no errors.
    pub(super) benign: bool,
    pub(super) peers: Peers,
    pub(super) pool: ModelPool,
    pub(super) names: Vec<[u8; 28]>,
    pub(super) listeners: usize,
    pub(super) listening: bool,
    /// Not submitted yet.
    pub(super) queue: VecDeque<ModelOperation>,
    pub(super) in_flight: Vec<ModelOperation>,
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
pub(super) struct ModelOperation {
    pub(super) token: Token,
    pub(super) file: Option<u32>,
    pub(super) kind: OperationKind,
    /// It is cancelled, and this many attempts to complete otherwise are left.
    pub(super) cancelled: Option<u32>,
}

#[derive(Debug)]
pub(super) enum OperationKind {
    Accept {
        multishot: bool,
    },
    Name {
        listener: usize,
        slot: usize,
    },
    /// The address for the slot, and the peer to connect to.
    Install {
        result: Range<usize>,
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
        wait: SendMode,
        lent: SendMemory,
    },
    Shutdown,
    /// It completes when it is taken, and reports nothing.
    LimitUnsent,
    Close,
    /// To the file with this tag, whose content the script keeps.
    Append {
        tag: u64,
        lent: SendMemory,
    },
    Sync {
        tag: u64,
    },
    Cancel(Token),
}

/// Slices of a chain, and their content when they were offered.
#[derive(Debug)]
pub(super) struct SendMemory {
    ranges: Vec<Range<usize>>,
    pub(super) bytes: Vec<u8>,
}

impl SendMemory {
    fn new(slices: &[IoSlice<'_>]) -> Self {
        let range = |slice: &IoSlice<'_>| slice.as_ptr() as usize..slice.as_ptr() as usize + slice.len();
        let ranges: Vec<_> = slices.iter().map(range).collect();
        ranges.iter().cloned().for_each(begin_kernel_access);
        Self { ranges, bytes: slices.iter().flat_map(|slice| slice.iter().copied()).collect() }
    }

    /// The kernel has read them for the last time.
    pub(super) fn end_kernel_access(&self) {
        let mut expected = self.bytes.as_slice();
        for range in &self.ranges {
            // SAFETY: a chain of this model asserts, before it changes or frees any bytes, that they are not
            // lent, and these are until below. They were read as a slice when they were lent.
            let now = unsafe { std::slice::from_raw_parts(range.start as *const u8, range.len()) };
            assert_eq!(now, &expected[..range.len()], "bytes in flight do not change");
            expected = &expected[range.len()..];
            end_kernel_access(range);
        }
    }
}

impl OperationKind {
    /// Operations of one socket that exclude each other share a lane.
    fn lane(&self) -> u8 {
        match self {
            Self::Connect { .. } | Self::Receive { .. } | Self::Large { .. } | Self::Watch => 0,
            Self::Send { .. } | Self::Shutdown => 1,
            Self::Name { .. } => 2,
            Self::Accept { .. } | Self::Install { .. } | Self::Close | Self::Cancel(_) => 3,
            Self::Append { .. } | Self::Sync { .. } => 4,
            Self::LimitUnsent => 5,
        }
    }
}

impl Script {
    pub(super) fn new(dice: Dice, peers: Peers, pool: ModelPool, names: usize, listeners: usize) -> Self {
        end_all_kernel_access();
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

    fn push(&mut self, token: Token, file: Option<u32>, kind: OperationKind) {
        if let Some(file) = file {
            let serial = self.peers.serial(file);
            let shut = self.peers.all[serial as usize].shut;
            assert!(!shut || kind.lane() != 1, "no send follows a shutdown: {token:?}");
            // The kernel sets an option when it takes the operation, so it excludes no other operation.
            let sets_option = |kind: &OperationKind| matches!(kind, OperationKind::LimitUnsent);
            let others = self.pending().filter(|other| other.file == Some(file) && !sets_option(&other.kind));
            for other in others.filter(|_| !sets_option(&kind)) {
                let close =
                    matches!(other.kind, OperationKind::Close) || matches!(kind, OperationKind::Close);
                assert!(!close, "a socket is closed after all operations: {kind:?}, {other:?}");
                assert_ne!(other.kind.lane(), kind.lane(), "one at a time: {kind:?}, {other:?}");
            }
        }
        let shared = matches!(
            kind,
            OperationKind::Accept { .. } | OperationKind::Cancel(_) | OperationKind::LimitUnsent
        );
        assert!(shared || !self.pending().any(|other| other.token == token), "{token:?} is used twice");
        self.known.insert(token);
        self.queued += 1;
        self.queue.push_back(ModelOperation { token, file, kind, cancelled: None });
    }

    fn pending(&self) -> impl Iterator<Item = &ModelOperation> {
        self.queue.iter().chain(&self.in_flight)
    }

    /// The kernel takes some of the queued operations, in order.
    fn deliver_completions(&mut self, out: &mut Vec<Completion>) {
        let all = self.queue.len();
        let refused = !self.benign && self.dice.percent(20);
        let count = match std::mem::take(&mut self.refuses) {
            true => 0,
            false if refused => self.dice.below(all + 1),
            false => all,
        };
        for mut operation in self.queue.drain(..count).collect::<Vec<_>>() {
            self.consumed += 1;
            match operation.kind {
                OperationKind::Cancel(target) => {
                    for other in self.in_flight.iter_mut().filter(|other| other.token == target) {
                        other.cancelled = Some(self.dice.below(4) as u32);
                    }
                }
                OperationKind::LimitUnsent => {}
                OperationKind::Send { wait: SendMode::DontWait, .. } => self.take_fired(&operation),
                // Available bytes are received before the next operation is processed.
                OperationKind::Receive { .. } | OperationKind::Large { .. } if self.benign => {
                    while self.step(&mut operation, out) {}
                    self.keep(operation);
                }
                _ => self.in_flight.push(operation),
            }
        }
    }

    /// Puts back an operation that has not completed.
    fn keep(&mut self, operation: ModelOperation) {
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

impl RingKernel for Script {
    fn start(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn accept(&mut self, token: Token, listener: usize, multishot: bool) {
        assert!(self.listening && listener < self.listeners);
        self.push(token, None, OperationKind::Accept { multishot });
    }

    fn has_waiting(&self, listener: usize) -> bool {
        assert!(self.listening && listener < self.listeners);
        self.peers.waiting > 0
    }

    fn close_listeners(&mut self) {
        let accepting = self.pending().any(|one| matches!(one.kind, OperationKind::Accept { .. }));
        assert!(!accepting, "a listener is closed when its operations have ended");
        self.listening = false;
    }

    fn files(&self) -> usize {
        self.peers.table_size()
    }

    fn peer_name(&mut self, token: Token, listener: usize, file: u32, slot: usize) {
        assert!(listener < self.listeners && slot < self.names.len());
        self.push(token, Some(file), OperationKind::Name { listener, slot });
    }

    fn name(&self, slot: usize) -> &[u8] {
        &self.names[slot]
    }

    fn names(&self) -> usize {
        self.names.len()
    }

    unsafe fn install(&mut self, token: Token, outgoing: &mut OutgoingSocket) {
        let start = outgoing.descriptor() as usize;
        let result = start..start + size_of::<i32>();
        begin_kernel_access(result.clone());
        let ticket = outgoing.address().as_socket().map_or(0, |address| address.port());
        self.push(token, None, OperationKind::Install { result, ticket });
    }

    unsafe fn connect(&mut self, token: Token, file: u32, outgoing: &OutgoingSocket) {
        let start = outgoing.address().as_ptr() as usize;
        let lent = start..start + outgoing.address().len() as usize;
        begin_kernel_access(lent.clone());
        let ticket = outgoing.address().as_socket().map_or(0, |address| address.port());
        self.push(token, Some(file), OperationKind::Connect { lent, ticket });
    }

    fn receive(&mut self, token: Token, file: u32, multishot: bool) {
        self.push(token, Some(file), OperationKind::Receive { multishot });
    }

    unsafe fn receive_large(&mut self, token: Token, file: u32, large: &mut LargeBuffer) {
        assert!(large.spare_capacity() > 0);
        let to = large.buffer.spare_capacity_mut();
        let (start, spare_capacity) = (to.as_mut_ptr() as usize, large.spare_capacity());
        let lent = start..start + spare_capacity;
        begin_kernel_access(lent.clone());
        self.push(token, Some(file), OperationKind::Large { lent });
    }

    fn watch(&mut self, token: Token, file: u32) {
        self.push(token, Some(file), OperationKind::Watch);
    }

    unsafe fn send<C: SendChain>(&mut self, token: Token, file: u32, chain: &C, wait: SendMode) -> u32 {
        let mut slices = [IoSlice::new(&[]); 4];
        let most = 1 + self.dice.below(slices.len());
        let count = chain.slices(&mut slices[..most]);
        let lent = SendMemory::new(&slices[..count]);
        let offered = lent.bytes.len() as u32;
        self.push(token, Some(file), OperationKind::Send { wait, lent });
        offered
    }

    unsafe fn send_shared(&mut self, sends: impl Iterator<Item = (Token, u32)>, bytes: &[u8]) {
        for (token, file) in sends {
            let lent = SendMemory::new(&[IoSlice::new(bytes)]);
            self.push(token, Some(file), OperationKind::Send { wait: SendMode::DontWait, lent });
        }
    }

    fn watch_datagrams(&mut self, _: Token, _: &DatagramSocket) {
        unreachable!("the model has no datagrams");
    }

    fn limit_unsent(&mut self, file: u32) {
        self.push(Token::NOTHING, Some(file), OperationKind::LimitUnsent);
    }

    fn shutdown(&mut self, token: Token, file: u32) {
        self.push(token, Some(file), OperationKind::Shutdown);
    }

    fn close(&mut self, token: Token, file: u32) {
        self.push(token, Some(file), OperationKind::Close);
    }

    unsafe fn append(&mut self, token: Token, append: &Append) {
        let mut slices = [IoSlice::new(&[]); 3];
        let count = append.slices(&mut slices);
        assert!(count > 0, "a write has bytes");
        let of_its_file = |other: &ModelOperation| match other.kind {
            OperationKind::Append { tag, .. } | OperationKind::Sync { tag } => tag == append.tag(),
            _ => false,
        };
        assert!(!self.pending().any(of_its_file), "one operation of an append at a time");
        let lent = SendMemory::new(&slices[..count]);
        self.push(token, None, OperationKind::Append { tag: append.tag(), lent });
    }

    unsafe fn sync(&mut self, token: Token, append: &Append) {
        self.push(token, None, OperationKind::Sync { tag: append.tag() });
    }

    fn cancel(&mut self, target: Token) {
        assert!(self.known.contains(&target), "only queued operations are cancelled: {target:?}");
        self.push(Token::NOTHING, None, OperationKind::Cancel(target));
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
            self.peers.end_faults(FLOOD);
            self.deliver_completions(out);
            self.complete_all(out);
        } else {
            self.peers.cause_random_events(&self.dice);
            self.deliver_completions(out);
            self.complete_some(out);
            self.add_unexpected_completions(out);
        }
        out.append(&mut self.reports);
        self.slept = out.len() == before && timeout != Some(Duration::ZERO);
        for completion in &out[before..] {
            if completion.token.kind() == Some(OpKind::Close) {
                self.gone.push(completion.token);
            }
        }
        Ok(())
    }

    fn submit(&mut self, out: &mut Vec<Completion>) -> io::Result<()> {
        self.enters += 1;
        self.deliver_completions(out);
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
            end_all_kernel_access();
        }
        self.joins
    }
}

/// Bytes that one peer sends per call, more than all buffers hold.
const FLOOD: usize = 2_000;
