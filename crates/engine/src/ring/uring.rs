//! The kernel interface on the `io-uring` crate.

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

use super::buffers::ENTRIES;
use super::kernel::{Completion, RingKernel, SendMode};
use super::memory::{NAME, NAME_UNIX, NAME_V4, RingMemory, SLICES, fitting_slices};
use super::outgoing::OutgoingSocket;
use super::setup;
use super::token::Token;
use super::unavailable::RingUnavailable;
use super::wake::RingWaker;
use crate::calls::RingDescriptor;
use crate::{Append, DatagramSocket, EngineConfig, LargeBuffer, Listener, SendChain};

pub(crate) struct Uring {
    ring: ManuallyDrop<IoUring>,
    descriptor: RingDescriptor,
    memory: ManuallyDrop<RingMemory>,
    listeners: Vec<RingListener>,
    waker: RingWaker,
    /// Operations that did not fit the submission queue, in order.
    overflow: VecDeque<Entry>,
    queued: u64,
    consumed: u64,
    /// Operations whose completion is pending.
    in_flight: u64,
    enters: u64,
    files: usize,
    /// The thread that runs the ring: the kernel accepts operations from one thread only.
    thread: Option<ThreadId>,
    /// The kernel rejected the submission for lack of resources.
    is_rejected: bool,
    /// A fatal error for the next call to report.
    failed: Option<i32>,
}

/// The purpose of a system call, in addition to submission.
#[derive(Clone, Copy)]
enum EnterMode {
    /// Wait for at least one completion, or the timeout.
    Wait(Option<Duration>),
    /// Collect available completions.
    Collect,
    /// Submit only.
    Submit,
}

struct RingListener {
    /// `None` after closing.
    socket: Option<TcpListener>,
    /// Length of the peers' addresses in bytes.
    name: usize,
}

impl Uring {
    pub(super) fn new(config: &EngineConfig) -> Result<(Self, RingWaker), RingUnavailable> {
        let memory = RingMemory::new(config);
        // Declared after the memory, so that it is dropped first.
        let ring = setup::create_ring()?;
        let submitter = ring.submitter();
        let unavailable = |what| move |error: io::Error| RingUnavailable::new(what, &error);
        let files =
            setup::register_files(&ring, config).map_err(unavailable("registering the file table"))?;
        let register = |flags| {
            // SAFETY: the page lies in a box of `memory` that is freed after the ring is closed, or never.
            unsafe {
                submitter.register_buf_ring_with_flags(memory.buffers.address(), ENTRIES as u16, GROUP, flags)
            }
        };
        register(if config.ring_incremental && setup::fills_in_order() { INCREMENTAL } else { 0 })
            .or_else(|_| register(0))
            .map_err(unavailable("registering receive buffers"))?;
        let waker =
            RingWaker::new(ring.as_raw_fd()).map_err(unavailable("creating the waker of the loop"))?;
        let uring = Self {
            descriptor: RingDescriptor::new(ring.as_raw_fd()),
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
            is_rejected: false,
            failed: None,
        };
        Ok((uring, waker))
    }

    pub(super) fn listen(&mut self, listeners: Vec<Listener>) {
        for Listener { socket, unix, inherited } in listeners {
            // A kernel need not wait on a non-blocking socket. If this call fails, accepting fails with
            // EAGAIN, pauses, and logs it. A listener shared with another process is left unchanged: that
            // process accepts by readiness and would block. Kernels with the required ring features wait
            // for any socket.
            if !inherited && let Err(error) = socket.set_nonblocking(false) {
                tracing::error!(%error, "cannot set a listener to blocking mode");
            }
            // The kernel requires the exact length.
            let name = match socket.local_addr() {
                _ if unix => NAME_UNIX,
                Ok(SocketAddr::V4(_)) => NAME_V4,
                _ => NAME,
            };
            self.listeners.push(RingListener { socket: Some(socket), name });
        }
    }

    /// Polls the event descriptor that wakes the ring, on kernels without messages to rings.
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
        // SAFETY: what an entry points to is, by operation: a constant (the limit of unsent bytes), a place in `memory` that is asked for once at a
        // time (names), copied when taken and used again after that (messages), the chain of a send, a socket to
        // connect or what is appended to a file, for which the callers of `send`, `install`, `connect` and `append`
        // vouch, or nothing. `memory` outlives the operations, see `Drop`.
        if !self.overflow.is_empty() || unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.overflow.push_back(entry);
        }
    }

    /// Moves pending operations into the submission queue. Returns whether all of them fit.
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

    /// Makes one system call.
    fn call(&mut self, mode: EnterMode) -> io::Result<()> {
        self.enters += 1;
        let count = self.ring.submission().len() as u32;
        let result = match mode {
            EnterMode::Wait(timeout) => self.descriptor.enter(count, 1, timeout),
            EnterMode::Collect => self.descriptor.enter(count, 0, None),
            EnterMode::Submit => self.descriptor.submit(count),
        };
        self.consumed = self.queued - self.overflow.len() as u64 - self.ring.submission().len() as u64;
        self.is_rejected = false;
        match result {
            Ok(()) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // The timeout expired, or a signal interrupted the call.
                Some(libc::ETIME | libc::EINTR) => Ok(()),
                Some(libc::EBUSY | libc::EAGAIN | libc::ENOMEM) => {
                    self.is_rejected = true;
                    Ok(())
                }
                _ => Err(error),
            },
        }
    }

    /// Submits all queued operations, by as many calls as needed; the last call serves the purpose.
    fn submit_and_reap(&mut self, mode: EnterMode, out: &mut Vec<Completion>) -> io::Result<()> {
        let result = self.try_submit_and_reap(mode, out);
        // The kernel may report it only once, and not every caller can act on it.
        if let Err(error) = &result {
            self.failed = Some(error.raw_os_error().unwrap_or(libc::EIO));
        }
        result
    }

    fn try_submit_and_reap(&mut self, mode: EnterMode, out: &mut Vec<Completion>) -> io::Result<()> {
        loop {
            let last = self.fill();
            let result = self.call(if last { mode } else { EnterMode::Submit });
            self.reap(out);
            // Completions that overflowed the queue: a missing completion means a successful send only
            // after all of them are collected.
            while self.ring.submission().cq_overflow() {
                self.call(EnterMode::Collect)?;
                self.reap(out);
            }
            result?;
            if last || self.is_rejected {
                break;
            }
        }
        if self.consumed == self.queued {
            self.memory.reset_messages();
        }
        Ok(())
    }

    fn reap(&mut self, out: &mut Vec<Completion>) {
        let mut unwatched = false;
        // Dropping the queue publishes the new head: otherwise the kernel would not wait the next time.
        for entry in self.ring.completion() {
            let token = Token::from_bits(entry.user_data());
            let flags = entry.flags();
            let more = cqueue::more(flags);
            // The kernel ends multishot operations when the completion queue overflows.
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

impl RingKernel for Uring {
    fn start(&mut self) -> io::Result<()> {
        match self.thread {
            Some(thread) if thread == thread::current().id() => return Ok(()),
            Some(_) => {
                return Err(io::Error::other("a ring engine must run on the thread of its first turn"));
            }
            None => {}
        }
        // From here on the kernel accepts operations from this thread only.
        self.ring.submitter().register_enable_rings()?;
        self.thread = Some(thread::current().id());
        self.descriptor.register();
        // Only shutdowns run on threads of the kernel, and they do not wait; but for thousands at once the
        // kernel would start more threads. If the limit cannot be set, they start and exit on demand.
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
            let slot = io_uring::types::DestinationSlot::auto_target();
            opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut()).file_index(Some(slot)).build()
        };
        self.push(token, entry);
    }

    fn has_waiting(&self, listener: usize) -> bool {
        let Some(socket) = self.listeners.get(listener).and_then(|found| found.socket.as_ref()) else {
            return false;
        };
        let mut request = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, borrowed for the call, which does not wait.
        unsafe { libc::poll(&mut request, 1, 0) == 1 }
    }

    fn close_listeners(&mut self) {
        self.listeners.iter_mut().for_each(|listener| listener.socket = None);
    }

    fn peer_name(&mut self, token: Token, listener: usize, file: u32, name_slot: usize) {
        let listener = self.listeners.get(listener);
        let (Some(listener), Some(name)) = (listener, self.memory.names.get_mut(name_slot)) else { return };
        let entry = setup::peer_name(opcode::SetSockOpt::new, Fixed(file), &mut name[..listener.name]);
        self.push(token, entry);
    }

    fn name(&self, name_slot: usize) -> &[u8] {
        self.memory.names.get(name_slot).map_or(&[], |name| name)
    }

    fn names(&self) -> usize {
        self.memory.names.len()
    }

    fn files(&self) -> usize {
        self.files
    }

    unsafe fn install(&mut self, token: Token, outgoing: &mut OutgoingSocket) {
        let entry = opcode::FilesUpdate::new(outgoing.descriptor(), 1).offset(ANY_SLOT).build();
        self.push(token, entry);
    }

    unsafe fn connect(&mut self, token: Token, file: u32, outgoing: &OutgoingSocket) {
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

    unsafe fn receive_large(&mut self, token: Token, file: u32, large: &mut LargeBuffer) {
        let spare_capacity = u32::try_from(large.spare_capacity()).unwrap_or(u32::MAX);
        let to = large.buffer.spare_capacity_mut().as_mut_ptr().cast();
        self.push(token, opcode::Recv::new(Fixed(file), to, spare_capacity).build());
    }

    fn watch(&mut self, token: Token, file: u32) {
        // The peer's end, which has been received, is reported too, regardless of the mask: a multishot
        // poll reports it once.
        self.push(token, opcode::PollAdd::new(Fixed(file), libc::POLLERR as u32).multi(true).build());
    }

    fn watch_datagrams(&mut self, token: Token, socket: &DatagramSocket) {
        let poll = opcode::PollAdd::new(Fd(socket.as_raw_fd()), libc::POLLIN as u32);
        self.push(token, poll.multi(true).build());
    }

    unsafe fn send<C: SendChain>(&mut self, token: Token, file: u32, chain: &C, wait: SendMode) -> u32 {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let count = chain.slices(&mut slices).min(SLICES);
        let (slices, offered) = fitting_slices(&slices[..count]);
        let (flags, silent) = match wait {
            SendMode::DontWait => (AT_ONCE, Flags::SKIP_SUCCESS),
            SendMode::Wait => (libc::MSG_NOSIGNAL, Flags::empty()),
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

    unsafe fn send_shared(&mut self, sends: impl Iterator<Item = (Token, u32)>, bytes: &[u8]) {
        // The queue is opened once.
        let mut queue = self.ring.submission();
        for (token, file) in sends {
            let entry = opcode::Send::new(Fixed(file), bytes.as_ptr(), bytes.len() as u32).flags(AT_ONCE);
            let entry = entry.build().flags(Flags::SKIP_SUCCESS).user_data(token.bits());
            self.queued += 1;
            // SAFETY: the caller vouches for the bytes.
            if !self.overflow.is_empty() || unsafe { queue.push(&entry) }.is_err() {
                self.overflow.push_back(entry);
            }
        }
    }

    fn limit_unsent(&mut self, file: u32) {
        self.push(Token::NOTHING, setup::unsent_limit(file).flags(Flags::SKIP_SUCCESS));
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
        let (slices, _) = fitting_slices(&slices[..count]);
        let (slices, count) = self.memory.slices(slices);
        // The file was opened in append mode, so no offset is needed.
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
        if mem::take(&mut self.is_rejected) {
            // The missing resource may be available soon.
            thread::sleep(REJECTED_PAUSE);
        }
        let collect = timeout.is_some_and(|timeout| timeout.is_zero());
        self.submit_and_reap(if collect { EnterMode::Collect } else { EnterMode::Wait(timeout) }, out)
    }

    fn submit(&mut self, out: &mut Vec<Completion>) -> io::Result<()> {
        self.submit_and_reap(EnterMode::Submit, out)
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
        self.waker.ring_closed();
        let joined = self.join();
        if self.thread == Some(thread::current().id()) {
            self.descriptor.unregister();
        }
        // SAFETY: dropped here and nowhere else.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
        if joined {
            // SAFETY: dropped here and nowhere else, and nothing in flight points to it.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        } else {
            tracing::warn!("ring dropped with operations in flight; its buffers are leaked");
        }
    }
}

/// Maximum kernel threads per loop, for each kind.
const KERNEL_THREADS: u32 = 2;

/// The only buffer group.
const GROUP: u16 = 0;

/// A send that takes all bytes, or reports at once why it does not.
const AT_ONCE: i32 = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_WAITALL;

/// `IOU_PBUF_RING_INC`.
const INCREMENTAL: u16 = 2;

/// `IORING_FILE_INDEX_ALLOC`: the kernel chooses a free table slot.
const ANY_SLOT: i32 = -1;

const REJECTED_PAUSE: Duration = Duration::from_millis(1);

/// Maximum wait for the kernel on drop: 2 seconds.
const JOIN_TURNS: u32 = 100;
const JOIN_WAIT: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    /// Enters until the ring is woken; panics if no wake-up arrives.
    fn is_woken(uring: &mut Uring) {
        let mut out = Vec::new();
        for _ in 0..100 {
            uring.enter(Some(Duration::from_millis(100)), &mut out).unwrap();
            if out.iter().any(|completion| completion.token == Token::WAKE && completion.result >= 0) {
                return;
            }
        }
        panic!("no wake-up arrived: {out:?}");
    }

    #[test]
    fn event_descriptor_wakes_ring_and_is_polled_again() {
        let Ok((mut uring, _)) = Uring::new(&EngineConfig::default()) else {
            return println!("skipped: io_uring is not available");
        };
        uring.waker = RingWaker::by_event().unwrap();
        let waker = uring.waker.clone();
        uring.start().unwrap();
        for _ in 0..3 {
            waker.wake().unwrap();
            is_woken(&mut uring);
        }
        // The kernel ends the poll, as it does when the completion queue overflows.
        uring.cancel(Token::WAKE);
        let mut out = Vec::new();
        while !out.iter().any(|completion: &Completion| completion.token == Token::WAKE && !completion.more) {
            uring.enter(Some(Duration::from_millis(100)), &mut out).unwrap();
        }
        waker.wake().unwrap();
        is_woken(&mut uring);
    }

    #[test]
    fn ring_rejects_turns_on_another_thread() {
        let Ok((mut uring, _)) = Uring::new(&EngineConfig::default()) else {
            return println!("skipped: io_uring is not available");
        };
        uring.start().unwrap();
        thread::scope(|scope| {
            let error = scope.spawn(|| uring.start().unwrap_err()).join().unwrap();
            assert!(error.to_string().contains("thread"), "{error}");
        });
        uring.start().unwrap();
    }
}
