//! The kernel as the ring backend sees it: operations go in, completions come out.
//!
//! The backend's states are driven through this trait alone, so that a kernel made of a few vectors can
//! complete operations in every order a test can think of.

#![allow(unsafe_code)]

use std::io;
use std::time::Duration;

use super::connect::Outgoing;
use super::token::Token;
use crate::{Append, Chain, Large};

/// Accepts operations, completes them, and owns the buffers it receives into.
///
/// Operations are only queued; [`enter`](Self::enter) hands them over, in order. Each completes exactly once
/// with a completion that has no [`more`](Completion::more), but for sends fired with [`Wait::No`], which
/// complete in silence when the kernel took everything.
pub(crate) trait Kernel {
    /// Called by the thread that runs the loop, before everything else and as often as it likes.
    fn start(&mut self) -> io::Result<()>;

    /// Accepts one connection from a listener, or (`multishot`) one after the other.
    fn accept(&mut self, token: Token, listener: usize, multishot: bool);

    /// Whether somebody waits to be accepted from a listener.
    fn has_waiting(&self, listener: usize) -> bool;

    /// Closes the listeners. Their operations have ended by now; addresses of those who came are still asked for.
    fn close_listeners(&mut self);

    /// Places in the table of sockets.
    fn files(&self) -> usize;

    /// Asks for the peer's address of `file`, which came from `listener`, into place `place` of
    /// [`name`](Self::name).
    fn peer_name(&mut self, token: Token, listener: usize, file: u32, place: usize);

    /// The address that was asked for, as the kernel writes it: a `sockaddr`.
    fn name(&self, place: usize) -> &[u8];

    /// How many places there are for names.
    fn names(&self) -> usize;

    /// Moves a socket into the table, where its own descriptor is not needed any more, and tells the place in
    /// `outgoing`.
    ///
    /// # Safety
    ///
    /// Until this operation is home, `outgoing` must neither move nor change nor be freed.
    unsafe fn install(&mut self, token: Token, outgoing: &mut Outgoing);

    /// Connects `file` to the address in `outgoing`.
    ///
    /// # Safety
    ///
    /// As for [`install`](Self::install).
    unsafe fn connect(&mut self, token: Token, file: u32, outgoing: &Outgoing);

    /// Receives whatever comes into the kernel's buffers: one chunk, or (`multishot`) chunk after chunk.
    fn receive(&mut self, token: Token, file: u32, multishot: bool);

    /// Receives once into the spare capacity of `large`, at most as much as it has room for.
    ///
    /// # Safety
    ///
    /// Until this operation is home, what the buffer has allocated must neither move nor be freed.
    unsafe fn receive_large(&mut self, token: Token, file: u32, large: &mut Large);

    /// Reports events of `file` as poll(2) does, its errors among them.
    fn watch(&mut self, token: Token, file: u32);

    /// Sends the first slices of what has not left of `chain`, and answers how many bytes it offers.
    ///
    /// # Safety
    ///
    /// Until this operation is home, the chain must neither move nor change nor be dropped. With
    /// [`Wait::No`] and no completion it is home when [`consumed`](Self::consumed) has passed the number
    /// that [`queued`](Self::queued) gave after this call.
    unsafe fn send<C: Chain>(&mut self, token: Token, file: u32, chain: &C, wait: Wait) -> u32;

    /// Ends the sending side of `file`.
    fn shutdown(&mut self, token: Token, file: u32);

    /// Closes `file`.
    fn close(&mut self, token: Token, file: u32);

    /// Writes the first slices of what is left of `append` to the end of its file.
    ///
    /// # Safety
    ///
    /// Until this operation is home, the append must not be dropped, nor its file closed.
    unsafe fn append(&mut self, token: Token, append: &Append);

    /// Waits until the disk has what was written to the file of `append`.
    ///
    /// # Safety
    ///
    /// As for [`append`](Self::append).
    unsafe fn sync(&mut self, token: Token, append: &Append);

    /// Cancels an operation, which completes all the same. Finding nothing to cancel is no error.
    fn cancel(&mut self, target: Token);

    /// Operations queued so far.
    fn queued(&self) -> u64;

    /// Operations handed over so far: the first so many of those queued.
    fn consumed(&self) -> u64;

    /// Hands over what is queued and waits for a completion, at most `timeout` (`None`: without end). Adds
    /// everything that has completed to `out`.
    fn enter(&mut self, timeout: Option<Duration>, out: &mut Vec<Completion>) -> io::Result<()>;

    /// Hands over what is queued and adds what has completed by that to `out`, and does not look for more.
    fn submit(&mut self, out: &mut Vec<Completion>) -> io::Result<()>;

    /// System calls made to enter the kernel so far.
    fn enters(&self) -> u64;

    /// The bytes of a receive, lent until the next call. Empty when the completion carries none.
    fn chunk(&mut self, completion: &Completion) -> &mut [u8];

    /// The chunk has been handled: called once for each receive's completion, in their order.
    fn release(&mut self, completion: &Completion);

    /// Cancels everything and waits, a bounded time, until nothing is in flight. `false`: something still
    /// is, and the memory it uses must outlive this process's interest in it.
    fn join(&mut self) -> bool;
}

/// What a send does when the kernel has no room for all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// It completes at once with what fitted, or as refused; if all of it fitted, it does not report.
    No,
    /// It waits until something fits.
    Yes,
}

/// An operation's outcome, or one of several.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(super) token: Token,
    /// As system calls return it: negated, an error number.
    pub(super) result: i32,
    /// Which of the kernel's buffers holds what was received.
    pub(super) buffer: Option<u16>,
    /// The buffer has room for more, and the kernel keeps it.
    pub(super) buffer_kept: bool,
    /// The operation goes on: further completions follow.
    pub(super) more: bool,
}

impl Completion {
    pub(super) fn outcome(&self) -> io::Result<usize> {
        usize::try_from(self.result).map_err(|_| io::Error::from_raw_os_error(-self.result))
    }
}
