//! The kernel itself, through the `io-uring` crate.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem::{self, ManuallyDrop};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd};
use std::thread::{self, ThreadId};
use std::time::Duration;

use io_uring::squeue::{Entry, Flags};
use io_uring::types::{CancelBuilder, Fd, Fixed};
use io_uring::{IoUring, cqueue, opcode};

use super::buffers::{Buffers, ENTRIES};
use super::calls::Way;
use super::connect::Outgoing;
use super::kernel::{Completion, Kernel, Wait};
use super::refusal::Refusal;
use super::setup;
use super::token::Token;
use super::wake::RingWaker;
use crate::{Append, Chain, Config, Large, Listener};

pub(crate) struct Uring {
    ring: ManuallyDrop<IoUring>,
    way: Way,
    memory: ManuallyDrop<Memory>,
    listeners: Vec<Listening>,
    waker: RingWaker,
    /// Operations for which the submission queue had no room, in order.
    overflow: VecDeque<Entry>,
    queued: u64,
    consumed: u64,
    /// Operations that owe a completion.
    in_flight: u64,
    enters: u64,
    files: usize,
    /// Who runs the ring: the kernel takes operations from one thread only.
    thread: Option<ThreadId>,
    /// The kernel refused to take anything for lack of something.
    refused: bool,
    /// An error that no visit can go on after, to be told by the next.
    failed: Option<i32>,
}

/// What a call is for, beside handing over.
#[derive(Clone, Copy)]
enum Visit {
    /// One completion at least, or the time.
    Wait(Option<Duration>),
    /// Whatever has happened.
    Look,
    /// Nothing else.
    Submit,
}

struct Listening {
    /// Until it is closed.
    socket: Option<TcpListener>,
    /// Bytes of its peers' addresses.
    name: usize,
}

/// What operations in flight point to.
struct Memory {
    buffers: Buffers,
    names: Box<[Name]>,
    #[expect(clippy::vec_box, reason = "the kernel holds their addresses while the vector grows")]
    messages: Vec<Box<Message>>,
    /// Messages in use since everything was last handed over.
    messages_used: usize,
}

/// A `sockaddr` of an internet address.
type Name = [u8; NAME];
const NAME: usize = 28;
const NAME_V4: usize = 16;
/// The family: a client's end seldom has more of a name.
const NAME_UNIX: usize = 2;

/// What a send of several slices points to; the kernel has copied it when it has taken the operation.
struct Message {
    header: libc::msghdr,
    slices: [libc::iovec; SLICES],
}

// SAFETY: the addresses in it are numbers to us; nothing here reads through them.
unsafe impl Send for Message {}

impl Uring {
    pub(super) fn new(config: &Config) -> Result<(Self, RingWaker), Refusal> {
        let memory = Memory {
            buffers: Buffers::new(config.ring_buffers, config.ring_buffer()),
            names: vec![[0; NAME]; config.accepts_per_turn.min(NAMES_MAX) as usize].into(),
            messages: Vec::new(),
            messages_used: 0,
        };
        // Behind the memory, so that it is dropped before it.
        let ring = setup::make()?;
        let submitter = ring.submitter();
        let refused = |what| move |error: io::Error| Refusal::new(what, &error);
        let files =
            setup::register_files(&ring, config).map_err(refused("registering the table of sockets"))?;
        let register = |flags| {
            // SAFETY: the page lies in a box of `memory` that is freed after the ring is closed, or never.
            unsafe {
                submitter.register_buf_ring_with_flags(memory.buffers.address(), ENTRIES as u16, GROUP, flags)
            }
        };
        register(if config.ring_incremental && setup::fills_in_order() { INCREMENTAL } else { 0 })
            .or_else(|_| register(0))
            .map_err(refused("registering receive buffers"))?;
        let waker = RingWaker::new(ring.as_raw_fd()).map_err(refused("making a way to wake the loop"))?;
        let uring = Self {
            way: Way::new(ring.as_raw_fd()),
            ring: ManuallyDrop::new(ring),
            memory: ManuallyDrop::new(memory),
            listeners: Vec::new(),
            waker: waker.clone(),
            overflow: VecDeque::new(),
            queued: 0,
            consumed: 0,
            in_flight: 0,
            enters: 0,
            files,
            thread: None,
            refused: false,
            failed: None,
        };
        Ok((uring, waker))
    }

    pub(super) fn listen(&mut self, listeners: Vec<Listener>) {
        for Listener { socket, unix, inherited } in listeners {
            // A kernel need not wait on a socket that asks not to. Should this fail, accepting fails
            // with EAGAIN, pauses, and says so. What another process accepts from by readiness is left as it is: that
            // process would wait, and kernels that have rings as we need them do so too, whatever the socket asks.
            if !inherited && let Err(error) = socket.set_nonblocking(false) {
                tracing::error!(%error, "cannot make a listener wait");
            }
            // The kernel wants to be asked for no more than there is.
            let name = match socket.local_addr() {
                _ if unix => NAME_UNIX,
                Ok(SocketAddr::V4(_)) => NAME_V4,
                _ => NAME,
            };
            self.listeners.push(Listening { socket: Some(socket), name });
        }
    }

    /// Has the ring be woken by an event descriptor, where it takes no messages.
    fn watch_event(&mut self) {
        if let Some(event) = self.waker.event() {
            let poll = opcode::PollAdd::new(Fd(event.as_raw_fd()), libc::POLLIN as u32).multi(true);
            self.push(Token::WAKE, poll.build());
        }
    }

    fn push(&mut self, token: Token, entry: Entry) {
        self.queued += 1;
        self.in_flight += u64::from(token.reports());
        let entry = entry.user_data(token.bits());
        // SAFETY: what an entry points to is, by operation: a place in `memory` that is asked for once at a
        // time (names), copied when taken and used again after that (messages), the chain of a send, a socket to
        // connect or what is appended to a file, for which the callers of `send`, `install`, `connect` and `append`
        // vouch, or nothing. `memory` outlives the operations, see `Drop`.
        if !self.overflow.is_empty() || unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.overflow.push_back(entry);
        }
    }

    /// Moves what waits into the submission queue. Whether all of it fitted.
    fn fill(&mut self) -> bool {
        let mut queue = self.ring.submission();
        while let Some(entry) = self.overflow.front() {
            // SAFETY: as in `push`, where it came from.
            if unsafe { queue.push(entry) }.is_err() {
                return false;
            }
            self.overflow.pop_front();
        }
        true
    }

    /// One system call.
    fn call(&mut self, visit: Visit) -> io::Result<()> {
        self.enters += 1;
        let count = self.ring.submission().len() as u32;
        let result = match visit {
            Visit::Wait(timeout) => self.way.enter(count, 1, timeout),
            Visit::Look => self.way.enter(count, 0, None),
            Visit::Submit => self.way.submit(count),
        };
        self.consumed = self.queued - self.overflow.len() as u64 - self.ring.submission().len() as u64;
        self.refused = false;
        match result {
            Ok(()) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // Time has passed, or a signal came.
                Some(libc::ETIME | libc::EINTR) => Ok(()),
                Some(libc::EBUSY | libc::EAGAIN | libc::ENOMEM) => {
                    self.refused = true;
                    Ok(())
                }
                _ => Err(error),
            },
        }
    }

    /// Hands over everything queued, by as many calls as that takes; the last is the visit itself.
    fn visit(&mut self, visit: Visit, out: &mut Vec<Completion>) -> io::Result<()> {
        let result = self.try_visit(visit, out);
        // The kernel may say it only once, and not every caller can act on it.
        if let Err(error) = &result {
            self.failed = Some(error.raw_os_error().unwrap_or(libc::EIO));
        }
        result
    }

    fn try_visit(&mut self, visit: Visit, out: &mut Vec<Completion>) -> io::Result<()> {
        loop {
            let last = self.fill();
            let result = self.call(if last { visit } else { Visit::Submit });
            self.reap(out);
            // Completions for which the queue had no room: only with all of them seen does silence mean
            // that a send has left.
            while self.ring.submission().cq_overflow() {
                self.call(Visit::Look)?;
                self.reap(out);
            }
            result?;
            if last || self.refused {
                break;
            }
        }
        if self.consumed == self.queued {
            self.memory.messages_done();
        }
        Ok(())
    }

    fn reap(&mut self, out: &mut Vec<Completion>) {
        let mut unwatched = false;
        // Dropping the queue tells the kernel what we have seen: else it would not wait the next time.
        for entry in self.ring.completion() {
            let token = Token::from_bits(entry.user_data());
            let flags = entry.flags();
            let more = cqueue::more(flags);
            // The kernel ends what repeats when completions find no room.
            unwatched |= token == Token::WAKE && !more;
            self.in_flight -= u64::from(token.reports() && !more).min(self.in_flight);
            out.push(Completion {
                token,
                result: entry.result(),
                buffer: cqueue::buffer_select(flags),
                buffer_kept: cqueue::buffer_more(flags),
                more,
            });
        }
        if unwatched {
            self.watch_event();
        }
    }
}

impl Kernel for Uring {
    fn start(&mut self) -> io::Result<()> {
        match self.thread {
            Some(thread) if thread == thread::current().id() => return Ok(()),
            Some(_) => {
                return Err(io::Error::other(
                    "an engine with a ring stays with the thread of its first turn",
                ));
            }
            None => {}
        }
        // From here on operations are taken from this thread only.
        self.ring.submitter().register_enable_rings()?;
        self.thread = Some(thread::current().id());
        self.way.register();
        // Only the end of a sending side is carried out by threads of the kernel, and it does not wait; but
        // for thousands at once the kernel would start more of them. If it cannot be told, they come and go.
        let _ = self.ring.submitter().register_iowq_max_workers(&mut [KERNEL_THREADS; 2]);
        self.watch_event();
        Ok(())
    }

    fn accept(&mut self, token: Token, listener: usize, multishot: bool) {
        let Some(socket) = self.listeners.get(listener).and_then(|found| found.socket.as_ref()) else {
            return;
        };
        let fd = Fd(socket.as_raw_fd());
        let entry = if multishot {
            opcode::AcceptMulti::new(fd).allocate_file_index(true).build()
        } else {
            let place = io_uring::types::DestinationSlot::auto_target();
            opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut())
                .file_index(Some(place))
                .build()
        };
        self.push(token, entry);
    }

    fn has_waiting(&self, listener: usize) -> bool {
        let Some(socket) = self.listeners.get(listener).and_then(|found| found.socket.as_ref()) else {
            return false;
        };
        let mut asked = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, borrowed for the call, which does not wait.
        unsafe { libc::poll(&mut asked, 1, 0) == 1 }
    }

    fn close_listeners(&mut self) {
        self.listeners.iter_mut().for_each(|listener| listener.socket = None);
    }

    fn peer_name(&mut self, token: Token, listener: usize, file: u32, place: usize) {
        let listener = self.listeners.get(listener);
        let (Some(listener), Some(name)) = (listener, self.memory.names.get_mut(place)) else { return };
        let entry = setup::peer_name(opcode::SetSockOpt::new, Fixed(file), &mut name[..listener.name]);
        self.push(token, entry);
    }

    fn name(&self, place: usize) -> &[u8] {
        self.memory.names.get(place).map_or(&[], |name| name)
    }

    fn names(&self) -> usize {
        self.memory.names.len()
    }

    fn files(&self) -> usize {
        self.files
    }

    unsafe fn install(&mut self, token: Token, outgoing: &mut Outgoing) {
        let entry = opcode::FilesUpdate::new(outgoing.descriptor(), 1).offset(ANY_PLACE).build();
        self.push(token, entry);
    }

    unsafe fn connect(&mut self, token: Token, file: u32, outgoing: &Outgoing) {
        let address = outgoing.address();
        self.push(token, opcode::Connect::new(Fixed(file), address.as_ptr().cast(), address.len()).build());
    }

    fn receive(&mut self, token: Token, file: u32, multishot: bool) {
        let file = Fixed(file);
        let entry = if multishot {
            opcode::RecvMulti::new(file, GROUP).build()
        } else {
            let once = opcode::Recv::new(file, std::ptr::null_mut(), 0).buf_group(GROUP);
            once.build().flags(Flags::BUFFER_SELECT)
        };
        self.push(token, entry);
    }

    unsafe fn receive_large(&mut self, token: Token, file: u32, large: &mut Large) {
        let room = u32::try_from(large.room()).unwrap_or(u32::MAX);
        let to = large.buffer.spare_capacity_mut().as_mut_ptr().cast();
        self.push(token, opcode::Recv::new(Fixed(file), to, room).build());
    }

    fn watch(&mut self, token: Token, file: u32) {
        // The peer's end, which has come, is reported too and whatever is asked for: once, if all is.
        self.push(token, opcode::PollAdd::new(Fixed(file), libc::POLLERR as u32).multi(true).build());
    }

    unsafe fn send<C: Chain>(&mut self, token: Token, file: u32, chain: &C, wait: Wait) -> u32 {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let count = chain.slices(&mut slices).min(SLICES);
        let (slices, offered) = of_one_send(&slices[..count]);
        let (flags, silent) = match wait {
            Wait::No => (libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_WAITALL, Flags::SKIP_SUCCESS),
            Wait::Yes => (libc::MSG_NOSIGNAL, Flags::empty()),
        };
        let entry = match slices {
            _ if offered == 0 => return 0,
            [one] => opcode::Send::new(Fixed(file), one.as_ptr(), offered).flags(flags).build(),
            several => {
                let message = self.memory.message(several);
                opcode::SendMsg::new(Fixed(file), message).flags(flags as u32).build()
            }
        };
        self.push(token, entry.flags(silent));
        offered
    }

    fn shutdown(&mut self, token: Token, file: u32) {
        self.push(token, opcode::Shutdown::new(Fixed(file), libc::SHUT_WR).build());
    }

    fn close(&mut self, token: Token, file: u32) {
        self.push(token, opcode::Close::new(Fixed(file)).build());
    }

    unsafe fn append(&mut self, token: Token, append: &Append) {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let count = append.slices(&mut slices).min(SLICES);
        let (slices, _) = of_one_send(&slices[..count]);
        let (slices, count) = self.memory.slices(slices);
        // The file was opened to be appended to, so where to is not asked for.
        self.push(token, opcode::Writev::new(Fd(append.file().as_fd().as_raw_fd()), slices, count).build());
    }

    unsafe fn sync(&mut self, token: Token, append: &Append) {
        let only_data = io_uring::types::FsyncFlags::DATASYNC;
        self.push(token, opcode::Fsync::new(Fd(append.file().as_fd().as_raw_fd())).flags(only_data).build());
    }

    fn cancel(&mut self, target: Token) {
        let all = CancelBuilder::user_data(target.bits()).all();
        let entry = opcode::AsyncCancel2::new(all).build().flags(Flags::SKIP_SUCCESS);
        self.push(Token::NOTHING, entry);
    }

    fn queued(&self) -> u64 {
        self.queued
    }

    fn consumed(&self) -> u64 {
        self.consumed
    }

    fn enter(&mut self, timeout: Option<Duration>, out: &mut Vec<Completion>) -> io::Result<()> {
        if let Some(code) = self.failed.take() {
            return Err(io::Error::from_raw_os_error(code));
        }
        if mem::take(&mut self.refused) {
            // What it lacked may be there in a moment.
            thread::sleep(REFUSED_PAUSE);
        }
        let look = timeout.is_some_and(|timeout| timeout.is_zero());
        self.visit(if look { Visit::Look } else { Visit::Wait(timeout) }, out)
    }

    fn submit(&mut self, out: &mut Vec<Completion>) -> io::Result<()> {
        self.visit(Visit::Submit, out)
    }

    fn enters(&self) -> u64 {
        self.enters
    }

    fn chunk(&mut self, completion: &Completion) -> &mut [u8] {
        self.memory.buffers.chunk(completion)
    }

    fn release(&mut self, completion: &Completion) {
        self.memory.buffers.release(completion);
    }

    fn join(&mut self) -> bool {
        let Some(thread) = self.thread else { return self.queued == 0 };
        if thread != thread::current().id() {
            return false;
        }
        let mut ignored = Vec::new();
        self.push(Token::NOTHING, opcode::AsyncCancel2::new(CancelBuilder::any().all()).build());
        for _ in 0..JOIN_TURNS {
            if self.enter(Some(JOIN_WAIT), &mut ignored).is_err() {
                return false;
            }
            ignored.clear();
            if self.in_flight == 0 && self.consumed == self.queued {
                return true;
            }
        }
        false
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.waker.ring_gone();
        let joined = self.join();
        if self.thread == Some(thread::current().id()) {
            self.way.unregister();
        }
        // SAFETY: dropped here and nowhere else.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
        if joined {
            // SAFETY: dropped here and nowhere else, and nothing in flight points to it.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        } else {
            tracing::warn!(
                "a ring was dropped with operations in flight; its buffers are left to the kernel"
            );
        }
    }
}

/// The first slices, as far as they fit one send, and how many bytes these are.
fn of_one_send<'s, 'a>(slices: &'s [IoSlice<'a>]) -> (&'s [IoSlice<'a>], u32) {
    let mut offered = 0;
    for (place, slice) in slices.iter().enumerate() {
        let with = offered + slice.len() as u64;
        if with > OFFERED_MAX {
            // A single one that is longer is cut.
            return if place == 0 {
                (&slices[..1], OFFERED_MAX as u32)
            } else {
                (&slices[..place], offered as u32)
            };
        }
        offered = with;
    }
    (slices, offered as u32)
}

impl Memory {
    /// The next free message, pointing to `slices`.
    fn message(&mut self, slices: &[IoSlice<'_>]) -> *const libc::msghdr {
        if self.messages_used == self.messages.len() {
            self.messages.push(Message::new());
        }
        let message = &mut *self.messages[self.messages_used];
        self.messages_used += 1;
        for (to, from) in message.slices.iter_mut().zip(slices) {
            *to = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
        }
        message.header.msg_iov = message.slices.as_mut_ptr();
        message.header.msg_iovlen = slices.len() as _;
        &raw const message.header
    }

    /// The same, for what takes slices alone.
    fn slices(&mut self, slices: &[IoSlice<'_>]) -> (*const libc::iovec, u32) {
        self.message(slices);
        let message = &*self.messages[self.messages_used - 1];
        (message.slices.as_ptr(), slices.len() as u32)
    }

    /// The kernel has taken everything: messages may be used again. A rare flood does not hold its memory.
    fn messages_done(&mut self) {
        self.messages_used = 0;
        self.messages.truncate(MESSAGES_KEPT);
    }
}

impl Message {
    fn new() -> Box<Self> {
        // SAFETY: both are plain structures of the kernel, for which zeros are valid: null and empty.
        Box::new(unsafe { mem::zeroed() })
    }
}

/// Threads that the kernel may start for a loop, of each of its two kinds.
const KERNEL_THREADS: u32 = 2;

/// The one group of buffers.
const GROUP: u16 = 0;

/// `IOU_PBUF_RING_INC`.
const INCREMENTAL: u16 = 2;

/// `IORING_FILE_INDEX_ALLOC`: the kernel chooses a free place of the table.
const ANY_PLACE: i32 = -1;

/// Addresses asked for at a time.
const NAMES_MAX: u32 = 1024;

/// Slices of a chain offered to one send; a longer chain goes on in the next turn.
const SLICES: usize = 64;

/// Bytes offered to one send; what goes beyond that comes with the next one.
const OFFERED_MAX: u64 = 1 << 30;

/// Messages kept between turns, a KiB each.
const MESSAGES_KEPT: usize = 64;

const REFUSED_PAUSE: Duration = Duration::from_millis(1);

/// How long dropping waits for the kernel: 2 seconds.
const JOIN_TURNS: u32 = 100;
const JOIN_WAIT: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    /// Enters until the ring has been woken; fails when that does not happen.
    fn is_woken(uring: &mut Uring) {
        let mut out = Vec::new();
        for _ in 0..100 {
            uring.enter(Some(Duration::from_millis(100)), &mut out).unwrap();
            if out.iter().any(|completion| completion.token == Token::WAKE && completion.result >= 0) {
                return;
            }
        }
        panic!("nobody woke it: {out:?}");
    }

    #[test]
    fn an_event_wakes_where_messages_are_not_taken_and_is_watched_again() {
        let Ok((mut uring, _)) = Uring::new(&Config::default()) else {
            return println!("skipped: there is no ring here");
        };
        uring.waker = RingWaker::by_event().unwrap();
        let waker = uring.waker.clone();
        uring.start().unwrap();
        for _ in 0..3 {
            waker.wake().unwrap();
            is_woken(&mut uring);
        }
        // The kernel ends the poll, as it does when completions find no room.
        uring.cancel(Token::WAKE);
        let mut out = Vec::new();
        while !out.iter().any(|completion: &Completion| completion.token == Token::WAKE && !completion.more) {
            uring.enter(Some(Duration::from_millis(100)), &mut out).unwrap();
        }
        waker.wake().unwrap();
        is_woken(&mut uring);
    }

    #[test]
    fn a_ring_stays_with_the_thread_of_its_first_turn() {
        let Ok((mut uring, _)) = Uring::new(&Config::default()) else {
            return println!("skipped: there is no ring here");
        };
        uring.start().unwrap();
        thread::scope(|scope| {
            let error = scope.spawn(|| uring.start().unwrap_err()).join().unwrap();
            assert!(error.to_string().contains("thread"), "{error}");
        });
        uring.start().unwrap();
    }
}
