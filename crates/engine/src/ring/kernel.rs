//! The kernel interface of the ring backend: operations in, completions out.
//!
//! The backend's states use this trait only, so that an in-memory kernel can complete operations in any
//! order in tests.

#![allow(unsafe_code)]

use std::io;
use std::time::Duration;

use super::outgoing::OutgoingSocket;
use super::token::Token;
use crate::{Append, DatagramSocket, LargeBuffer, SendChain};

/// Accepts operations, completes them, and owns the receive buffers.
///
/// Operations are queued; [`enter`](Self::enter) submits them, in order. Each operation completes exactly
/// once with a completion without [`more`](Completion::more), except sends fired with [`SendMode::DontWait`], which
/// complete silently if the kernel took all bytes.
pub(crate) trait RingKernel {
    /// Called on the thread that runs the loop, before all other calls. Repeated calls have no effect.
    fn start(&mut self) -> io::Result<()>;

    /// Accepts one connection from a listener, or (`multishot`) connections until cancelled.
    fn accept(&mut self, token: Token, listener: usize, multishot: bool);

    /// Whether a connection waits in the backlog of a listener.
    fn has_waiting(&self, listener: usize) -> bool;

    /// Closes the listeners. Their operations have ended; addresses of accepted connections may still be
    /// requested.
    fn close_listeners(&mut self);

    /// Capacity of the file table.
    fn files(&self) -> usize;

    /// Requests the peer's address of `file`, accepted from `listener`, into slot `name_slot` for [`name`](Self::name).
    fn peer_name(&mut self, token: Token, listener: usize, file: u32, name_slot: usize);

    /// The requested address in the kernel's format: a `sockaddr`.
    fn name(&self, name_slot: usize) -> &[u8];

    /// Number of name slots.
    fn names(&self) -> usize;

    /// Moves a socket into the table, where it needs no descriptor of its own, and stores its slot in
    /// `outgoing`.
    ///
    /// # Safety
    ///
    /// Until this operation completes, `outgoing` must not be moved, changed or freed.
    unsafe fn install(&mut self, token: Token, outgoing: &mut OutgoingSocket);

    /// Connects `file` to the address in `outgoing`.
    ///
    /// # Safety
    ///
    /// As for [`install`](Self::install).
    unsafe fn connect(&mut self, token: Token, file: u32, outgoing: &OutgoingSocket);

    /// Receives into the kernel's buffers: one chunk, or (`multishot`) chunks until cancelled.
    fn receive(&mut self, token: Token, file: u32, multishot: bool);

    /// Receives once into the spare capacity of `large`, at most its limit.
    ///
    /// # Safety
    ///
    /// Until this operation completes, the allocation of the buffer must not be moved or freed.
    unsafe fn receive_large(&mut self, token: Token, file: u32, large: &mut LargeBuffer);

    /// Reports poll(2) events of `file`, including errors.
    fn watch(&mut self, token: Token, file: u32);

    /// Reports when a datagram socket becomes readable, until cancelled.
    fn watch_datagrams(&mut self, token: Token, socket: &DatagramSocket);

    /// Sends the first unsent slices of `chain`, and returns the number of offered bytes.
    ///
    /// # Safety
    ///
    /// Until this operation completes, the chain must not be moved, changed or dropped. With [`SendMode::DontWait`]
    /// and without a completion, it is complete when [`consumed`](Self::consumed) has passed the number
    /// that [`queued`](Self::queued) returned after this call.
    unsafe fn send<C: SendChain>(&mut self, token: Token, file: u32, chain: &C, mode: SendMode) -> u32;

    /// Sends the same `bytes`, at most 1 GiB, on several files, each as [`send`](Self::send) with
    /// [`SendMode::DontWait`] does.
    ///
    /// # Safety
    ///
    /// As for [`send`](Self::send): until these operations complete, the bytes must not be freed.
    unsafe fn send_shared(&mut self, sends: impl Iterator<Item = (Token, u32)>, bytes: &[u8]);

    /// Limits the unsent bytes of `file` to [`Io::UNSENT_LIMIT`](crate::Io::UNSENT_LIMIT). Errors have no effect.
    fn limit_unsent(&mut self, file: u32);

    /// Shuts down the sending side of `file`.
    fn shutdown(&mut self, token: Token, file: u32);

    /// Closes `file`.
    fn close(&mut self, token: Token, file: u32);

    /// Writes the first unwritten slices of `append` to the end of its file.
    ///
    /// # Safety
    ///
    /// Until this operation completes, the append must not be dropped, nor its file closed.
    unsafe fn append(&mut self, token: Token, append: &Append);

    /// Waits until the written bytes of the file of `append` are on disk.
    ///
    /// # Safety
    ///
    /// As for [`append`](Self::append).
    unsafe fn sync(&mut self, token: Token, append: &Append);

    /// Cancels an operation, which still completes. A missing target is not an error.
    fn cancel(&mut self, target: Token);

    /// Number of operations queued so far.
    fn queued(&self) -> u64;

    /// Number of operations submitted so far, in queue order.
    fn consumed(&self) -> u64;

    /// Submits queued operations and waits for a completion, at most `timeout` (`None`: without limit).
    /// Adds all completions to `out`.
    fn enter(&mut self, timeout: Option<Duration>, out: &mut Vec<Completion>) -> io::Result<()>;

    /// Submits queued operations and adds the completions of this call to `out`, without a further check.
    fn submit(&mut self, out: &mut Vec<Completion>) -> io::Result<()>;

    /// System calls that entered the kernel so far.
    fn enters(&self) -> u64;

    /// The bytes of a receive, borrowed until the next call. Empty for a completion without bytes.
    fn chunk(&mut self, completion: &Completion) -> &mut [u8];

    /// Marks the chunk as handled: called once for each receive completion, in order.
    fn release(&mut self, completion: &Completion);

    /// Cancels all operations and waits, a bounded time, until none is in flight. `false`: an operation is
    /// still in flight, and its memory must be leaked.
    fn join(&mut self) -> bool;
}

/// Behavior of a send when the kernel's buffer cannot take all bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendMode {
    /// Completes at once, with the number of taken bytes or an error. If all bytes were taken, it does not
    /// complete.
    DontWait,
    /// Waits until some bytes are taken.
    Wait,
}

/// An operation's result, or one of several results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(super) token: Token,
    /// The return value of a system call: negative values are error numbers.
    pub(super) result: i32,
    /// The kernel's buffer that contains the received bytes.
    pub(super) buffer: Option<u16>,
    /// The buffer has capacity left, and the kernel keeps it.
    pub(super) buffer_kept: bool,
    /// The operation continues: further completions follow.
    pub(super) more: bool,
}

impl Completion {
    pub(super) fn outcome(&self) -> io::Result<usize> {
        usize::try_from(self.result).map_err(|_| io::Error::from_raw_os_error(-self.result))
    }
}
