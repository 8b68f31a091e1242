//! State shared by both halves: the sending side of the transport, and the reader while it is not in use.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker, ready};

use sinews_session::Chain;
use tokio::io::AsyncWrite;

use super::super::driver::{SLICES, now};
use crate::link::{ConnectionInfo, HalfSide, Link, Pair};

/// The sending side of a transport, used by the writer for messages and by the reader for control frames. A half that
/// finds it in use waits to be woken, and never for a lock.
#[derive(Debug)]
pub(super) struct WriteOutlet<W> {
    out: Mutex<OutletIo<W>>,
    pub(super) pair: Arc<Pair>,
    pub(super) info: ConnectionInfo,
    /// Wakes both halves: the transport stores only the last waker that it got.
    waker: Waker,
    /// Sides that found the transport in use.
    contended: [AtomicBool; 2],
    /// The writer's link, where the reader may use it too: a `Sender` exists, or the writer was dropped.
    data: Mutex<Option<Box<Link>>>,
    is_shared: AtomicBool,
}

/// The transport, and bytes that it has not taken yet.
#[derive(Debug)]
pub(super) struct OutletIo<W> {
    io: W,
    /// The next bytes to send: messages of the writer, and behind them replies of the reader.
    chain: Option<Box<Chain>>,
    /// The chain belongs to the writer's link, and must be returned to it.
    is_writer_chain: bool,
    /// Bytes of it that have left since the writer last checked.
    left: usize,
    /// Bytes of it that the reader has added.
    answers: usize,
    unflushed: bool,
}

/// Bytes that the reader may add while other bytes wait: some thirty pongs of maximum size. Further replies stay in
/// the reader, which keeps the newest pong.
const ANSWERS_MAX: usize = 4 << 10;

/// How often in a row messages of producers are sent, before the task yields.
const TURNS_MAX: usize = 8;

impl<W: AsyncWrite + Unpin> WriteOutlet<W> {
    pub(super) fn new(
        io: W,
        chain: Option<Box<Chain>>,
        unflushed: bool,
        pair: Arc<Pair>,
        info: ConnectionInfo,
    ) -> Self {
        pair.set_waiting(chain.as_ref().map_or(0, |chain| chain.len()));
        let is_writer_chain = chain.is_some();
        Self {
            out: Mutex::new(OutletIo { io, chain, is_writer_chain, left: 0, answers: 0, unflushed }),
            waker: Waker::from(pair.clone()),
            pair,
            info,
            contended: Default::default(),
            data: Mutex::new(None),
            is_shared: AtomicBool::new(false),
        }
    }

    /// Runs `work` with the transport. If the other half uses the transport, this half is woken when it is free.
    fn with<R>(
        &self,
        side: HalfSide,
        cx: &Context<'_>,
        work: impl FnOnce(&mut OutletIo<W>) -> R,
    ) -> Option<R> {
        let mut out = match self.try_lock() {
            Some(out) => out,
            None => {
                self.pair.register(side, cx.waker());
                self.contended[side as usize].store(true, Ordering::SeqCst);
                // Either the lock is free here, or the other half sees this flag after its unlock.
                fence(Ordering::SeqCst);
                self.try_lock()?
            }
        };
        let was_idle = out.is_idle();
        let done = work(&mut out);
        self.pair.set_waiting(out.chain.as_ref().map_or(0, |chain| chain.len()));
        let is_done = !was_idle && out.is_idle();
        drop(out);
        fence(Ordering::SeqCst);
        let other = side.other();
        let contended = &self.contended[other as usize];
        if is_done || contended.load(Ordering::Relaxed) {
            contended.store(false, Ordering::SeqCst);
            self.pair.wake_side(other);
        }
        Some(done)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, OutletIo<W>>> {
        match self.out.try_lock() {
            Ok(out) => Some(out),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Sends the waiting bytes, and the bytes that `exchange` adds, and flushes. Pending: the side will be woken.
    pub(super) fn poll_send(
        &self,
        side: HalfSide,
        cx: &Context<'_>,
        mut exchange: impl FnMut(&mut OutletIo<W>, &mut Context<'_>),
    ) -> Poll<()> {
        let both = &mut Context::from_waker(&self.waker);
        let sent = self.with(side, cx, |out| {
            let (mut registered, mut turns) = (false, 0);
            loop {
                exchange(out, both);
                if self.pair.is_dropped() {
                    out.drop_unsent();
                }
                if out.is_idle() {
                    return Poll::Ready(());
                }
                if out.poll_all(&self.pair, both).is_ready() {
                    turns += 1;
                    if turns > TURNS_MAX {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                } else if std::mem::replace(&mut registered, true) {
                    // Reports the bytes that have left meanwhile.
                    exchange(out, both);
                    return Poll::Pending;
                } else {
                    // The transport may have become ready before it knew the waker: poll it once more.
                    self.pair.register(side, cx.waker());
                }
            }
        });
        sent.unwrap_or(Poll::Pending)
    }

    /// Sends bytes on behalf of the reader: its replies, bytes that the writer has left unsent, and, where the writer
    /// shares its link, the messages queued there.
    pub(super) fn poll_help(&self, cx: &Context<'_>) -> Poll<()> {
        self.poll_send(HalfSide::Read, cx, |out, both| {
            if self.is_shared()
                && let Some(link) = self.data().as_mut()
            {
                link.now = now();
                out.exchange(link, both);
            }
        })
    }

    /// Whether [`poll_help`](Self::poll_help) may have work.
    pub(super) fn wants_help(&self) -> bool {
        self.pair.is_waiting() || self.is_shared()
    }

    /// Adds replies of the reader. They are taken whole, or not at all.
    pub(super) fn poll_answer(&self, cx: &Context<'_>, bytes: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let added = self.with(HalfSide::Read, cx, |out| {
            if let Some(kind) = self.pair.failed() {
                return Poll::Ready(Err(kind.into()));
            }
            let count = bytes.iter().map(|bytes| bytes.len()).sum();
            if self.pair.closer() == Some(HalfSide::Write) {
                // Nothing follows the writer's Close.
                return Poll::Ready(Ok(count));
            }
            if out.add_answer(bytes, count) {
                return Poll::Ready(Ok(count));
            }
            self.pair.register(HalfSide::Read, cx.waker());
            self.contended[HalfSide::Read as usize].store(true, Ordering::SeqCst);
            Poll::Pending
        });
        added.unwrap_or(Poll::Pending)
    }

    /// Ends the sending side. All waiting bytes have left.
    pub(super) fn poll_shut(&self, side: HalfSide, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let both = &mut Context::from_waker(&self.waker);
        let shut = self.with(side, cx, |out| {
            self.pair.register(side, cx.waker());
            Pin::new(&mut out.io).poll_shutdown(both)
        });
        shut.unwrap_or(Poll::Pending)
    }

    /// From now on, the reader may use the writer's link too.
    pub(super) fn share(&self, link: Box<Link>) {
        *self.data() = Some(link);
        self.is_shared.store(true, Ordering::Release);
        self.pair.wake_side(HalfSide::Read);
    }

    /// Whether the writer's link is stored here.
    pub(super) fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::Acquire)
    }

    /// The writer's link, if it is stored here. It is locked while a message is queued or encoded. The transport is
    /// never used under this lock, except by a half that holds the transport already.
    pub(super) fn data(&self) -> MutexGuard<'_, Option<Box<Link>>> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn into_out(self) -> OutletIo<W> {
        self.out.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: AsyncWrite + Unpin> OutletIo<W> {
    fn is_idle(&self) -> bool {
        self.chain.as_ref().is_none_or(|chain| chain.is_empty()) && !self.unflushed
    }

    /// Returns bytes that have left to the link, and takes the next bytes.
    pub(super) fn exchange(&mut self, link: &mut Link, cx: &mut Context<'_>) {
        self.return_sent(link);
        if self.chain.is_none() {
            link.collect(cx);
            self.chain = link.take_queued_send();
            self.is_writer_chain = self.chain.is_some();
        }
        link.sync();
    }

    fn return_sent(&mut self, link: &mut Link) {
        let left = std::mem::take(&mut self.left);
        if self.is_writer_chain {
            link.send_progressed(left);
        }
        if let Some(chain) = self.chain.take_if(|chain| chain.is_empty()) {
            self.answers = 0;
            if std::mem::take(&mut self.is_writer_chain) {
                link.send_completed(chain);
            }
        }
    }

    fn add_answer(&mut self, bytes: &[IoSlice<'_>], count: usize) -> bool {
        let chain = self.chain.get_or_insert_default();
        if chain.is_empty() {
            self.answers = 0;
        } else if self.answers + count > ANSWERS_MAX {
            return false;
        }
        self.answers += count;
        chain.write(|arena| bytes.iter().for_each(|bytes| arena.extend_from_slice(bytes)));
        true
    }

    fn poll_all(&mut self, pair: &Pair, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(chain) = self.chain.as_mut().filter(|chain| !chain.is_empty()) {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let filled = chain.slices(&mut slices);
            let io = Pin::new(&mut self.io);
            let sent = match filled {
                1 => ready!(io.poll_write(cx, &slices[0])),
                _ => ready!(io.poll_write_vectored(cx, &slices[..filled])),
            };
            match sent {
                Ok(0) => return self.fail(pair, &io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    chain.advance(count);
                    self.left += count;
                    self.unflushed = true;
                    pair.add_left(count);
                }
                Err(error) => return self.fail(pair, &error),
            }
        }
        if self.unflushed {
            let flushed = ready!(Pin::new(&mut self.io).poll_flush(cx));
            self.unflushed = false;
            if let Err(error) = flushed {
                return self.fail(pair, &error);
            }
        }
        Poll::Ready(())
    }

    fn fail(&mut self, pair: &Pair, error: &io::Error) -> Poll<()> {
        self.drop_unsent();
        pair.fail(error);
        Poll::Ready(())
    }

    /// Drops the waiting bytes, which never leave.
    fn drop_unsent(&mut self) {
        (self.chain, self.is_writer_chain, self.unflushed) = (None, false, false);
    }

    /// The transport, the unsent part of the chain, and whether the transport is to be flushed.
    pub(super) fn settle(mut self, link: &mut Link) -> (W, Option<Box<Chain>>, bool) {
        self.return_sent(link);
        (self.io, self.chain, self.unflushed)
    }
}

/// Holds the reader while no call uses it: while its owner waits for a message, or does not ask for one, and after
/// the reader was dropped. The writer answers pings from here.
#[derive(Debug)]
pub(super) struct SharedDriver<D>(Mutex<SharedDriverState<D>>);

#[derive(Debug)]
struct SharedDriverState<D> {
    driver: Option<Box<D>>,
    /// The owner's waker of its last call that waits. It stays here, since a poll of the borrowed driver may replace
    /// the waker that the [`Pair`] has.
    owner: Option<Waker>,
    /// The owner asked for the driver while it was in use.
    is_wanted: bool,
    is_owner_dropped: bool,
}

/// The driver while the writer uses it.
#[derive(Debug)]
pub(super) struct BorrowedDriver<D> {
    pub(super) driver: Box<D>,
    /// The transport and the timer must have the owner's waker, if it has one.
    pub(super) owner: Option<Waker>,
    pub(super) is_owner_dropped: bool,
}

impl<D> SharedDriver<D> {
    pub(super) fn new(driver: D) -> Self {
        Self(Mutex::new(SharedDriverState {
            driver: Some(Box::new(driver)),
            owner: None,
            is_wanted: false,
            is_owner_dropped: false,
        }))
    }

    /// Takes it for the owner; `None`: the writer has it, and will wake the owner.
    pub(super) fn take(&self, cx: &Context<'_>) -> Option<Box<D>> {
        let mut state = self.state();
        if state.driver.is_none() {
            state.store_owner(cx);
            state.is_wanted = true;
        }
        state.driver.take()
    }

    /// Puts it back for an owner that waits.
    pub(super) fn put(&self, driver: Box<D>, cx: &Context<'_>) {
        let mut state = self.state();
        state.store_owner(cx);
        state.driver = Some(driver);
    }

    /// Takes it for the writer.
    pub(super) fn borrow(&self) -> Option<BorrowedDriver<D>> {
        let mut state = self.state();
        let driver = state.driver.take()?;
        let owner = state.owner.clone();
        Some(BorrowedDriver { driver, owner, is_owner_dropped: state.is_owner_dropped })
    }

    /// Puts back what [`borrow`](Self::borrow) took. Wakes an owner that waits for the driver, or, with `has_news`, in
    /// any case.
    pub(super) fn put_borrowed(&self, driver: Box<D>, has_news: bool) {
        let mut state = self.state();
        state.driver = Some(driver);
        let is_wanted = std::mem::take(&mut state.is_wanted);
        let owner = state.owner.clone().filter(|_| is_wanted || has_news);
        drop(state);
        if let Some(owner) = owner {
            owner.wake();
        }
    }

    /// Records that the owner was dropped.
    pub(super) fn owner_dropped(&self, driver: Option<Box<D>>) {
        let mut state = self.state();
        state.is_owner_dropped = true;
        let owner = state.owner.take();
        if driver.is_some() {
            state.driver = driver;
        }
        drop(state);
        drop(owner);
    }

    fn state(&self) -> MutexGuard<'_, SharedDriverState<D>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D> SharedDriverState<D> {
    fn store_owner(&mut self, cx: &Context<'_>) {
        if !self.owner.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            self.owner = Some(cx.waker().clone());
        }
    }
}
