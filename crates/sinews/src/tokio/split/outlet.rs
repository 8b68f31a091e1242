//! State shared by both halves: the sending side of the transport, and the reader while it is not in use.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker, ready};

use sinews_session::Chain;
use tokio::io::AsyncWrite;

use super::super::drive::{SLICES, now};
use crate::link::{Facts, Link, Pair, Side};

/// The sending side of a transport, used by the writer for messages and by the reader for control frames. A half that
/// finds it in use waits to be woken, and never for a lock.
#[derive(Debug)]
pub(super) struct Outlet<W> {
    out: Mutex<Out<W>>,
    pub(super) pair: Arc<Pair>,
    pub(super) facts: Facts,
    /// Wakes both halves: the transport stores only the last waker that it got.
    waker: Waker,
    /// Sides that found the transport in use.
    refused: [AtomicBool; 2],
    /// The writer's link, where the reader may use it too: a `Sender` exists, or the writer was dropped.
    data: Mutex<Option<Box<Link>>>,
    is_shared: AtomicBool,
}

/// The transport, and bytes that it has not taken yet.
#[derive(Debug)]
pub(super) struct Out<W> {
    io: W,
    /// The next bytes to send: messages of the writer, and behind them replies of the reader.
    chain: Option<Box<Chain>>,
    /// The chain belongs to the writer's link, and must be returned to it.
    is_lent: bool,
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

impl<W: AsyncWrite + Unpin> Outlet<W> {
    pub(super) fn new(
        io: W,
        chain: Option<Box<Chain>>,
        unflushed: bool,
        pair: Arc<Pair>,
        facts: Facts,
    ) -> Self {
        pair.set_waiting(chain.as_ref().map_or(0, |chain| chain.len()));
        let is_lent = chain.is_some();
        Self {
            out: Mutex::new(Out { io, chain, is_lent, left: 0, answers: 0, unflushed }),
            waker: Waker::from(pair.clone()),
            pair,
            facts,
            refused: Default::default(),
            data: Mutex::new(None),
            is_shared: AtomicBool::new(false),
        }
    }

    /// Runs `work` with the transport. If the other half uses the transport, this half is woken when it is free.
    fn with<R>(&self, side: Side, cx: &Context<'_>, work: impl FnOnce(&mut Out<W>) -> R) -> Option<R> {
        let mut out = match self.try_lock() {
            Some(out) => out,
            None => {
                self.pair.register(side, cx.waker());
                self.refused[side as usize].store(true, Ordering::SeqCst);
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
        let refused = &self.refused[other as usize];
        if is_done || refused.load(Ordering::Relaxed) {
            refused.store(false, Ordering::SeqCst);
            self.pair.wake_side(other);
        }
        Some(done)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Out<W>>> {
        match self.out.try_lock() {
            Ok(out) => Some(out),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Sends the waiting bytes, and the bytes that `exchange` adds, and flushes. Pending: the side will be woken.
    pub(super) fn poll_send(
        &self,
        side: Side,
        cx: &Context<'_>,
        mut exchange: impl FnMut(&mut Out<W>, &mut Context<'_>),
    ) -> Poll<()> {
        let both = &mut Context::from_waker(&self.waker);
        let sent = self.with(side, cx, |out| {
            let (mut registered, mut turns) = (false, 0);
            loop {
                exchange(out, both);
                if self.pair.is_dropped() {
                    out.forget();
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
        self.poll_send(Side::Read, cx, |out, both| {
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
        let added = self.with(Side::Read, cx, |out| {
            if let Some(kind) = self.pair.failed() {
                return Poll::Ready(Err(kind.into()));
            }
            let count = bytes.iter().map(|bytes| bytes.len()).sum();
            if self.pair.closer() == Some(Side::Write) {
                // Nothing follows the writer's Close.
                return Poll::Ready(Ok(count));
            }
            if out.add_answer(bytes, count) {
                return Poll::Ready(Ok(count));
            }
            self.pair.register(Side::Read, cx.waker());
            self.refused[Side::Read as usize].store(true, Ordering::SeqCst);
            Poll::Pending
        });
        added.unwrap_or(Poll::Pending)
    }

    /// Ends the sending side. All waiting bytes have left.
    pub(super) fn poll_shut(&self, side: Side, cx: &Context<'_>) -> Poll<io::Result<()>> {
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
        self.pair.wake_side(Side::Read);
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

    pub(super) fn into_out(self) -> Out<W> {
        self.out.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: AsyncWrite + Unpin> Out<W> {
    fn is_idle(&self) -> bool {
        self.chain.as_ref().is_none_or(|chain| chain.is_empty()) && !self.unflushed
    }

    /// Returns bytes that have left to the link, and takes the next bytes.
    pub(super) fn exchange(&mut self, link: &mut Link, cx: &mut Context<'_>) {
        self.bring_home(link);
        if self.chain.is_none() {
            link.collect(cx);
            self.chain = link.lend_send();
            self.is_lent = self.chain.is_some();
        }
        link.sync();
    }

    fn bring_home(&mut self, link: &mut Link) {
        let left = std::mem::take(&mut self.left);
        if self.is_lent {
            link.send_went_on(left);
        }
        if let Some(chain) = self.chain.take_if(|chain| chain.is_empty()) {
            self.answers = 0;
            if std::mem::take(&mut self.is_lent) {
                link.send_home(chain);
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
        self.forget();
        pair.fail(error);
        Poll::Ready(())
    }

    /// Drops the waiting bytes, which never leave.
    fn forget(&mut self) {
        (self.chain, self.is_lent, self.unflushed) = (None, false, false);
    }

    /// The transport, the unsent part of the chain, and whether the transport is to be flushed.
    pub(super) fn settle(mut self, link: &mut Link) -> (W, Option<Box<Chain>>, bool) {
        self.bring_home(link);
        (self.io, self.chain, self.unflushed)
    }
}

/// Holds the reader while no call uses it: while its owner waits for a message, or does not ask for one, and after
/// the reader was dropped. The writer answers pings from here.
#[derive(Debug)]
pub(super) struct Handover<D>(Mutex<Place<D>>);

#[derive(Debug)]
struct Place<D> {
    drive: Option<Box<D>>,
    /// The owner asked for it while it was in use.
    is_wanted: bool,
    /// The owner was dropped.
    is_left: bool,
}

impl<D> Handover<D> {
    pub(super) fn new(drive: D) -> Self {
        Self(Mutex::new(Place { drive: Some(Box::new(drive)), is_wanted: false, is_left: false }))
    }

    /// Takes it for the owner; `None`: the writer has it, and will wake the owner.
    pub(super) fn take(&self, pair: &Pair, cx: &Context<'_>) -> Option<Box<D>> {
        let mut place = self.place();
        if place.drive.is_none() {
            pair.register(Side::Read, cx.waker());
            place.is_wanted = true;
        }
        place.drive.take()
    }

    /// Takes it for the writer, and returns whether its owner was dropped.
    pub(super) fn borrow(&self) -> Option<(Box<D>, bool)> {
        let mut place = self.place();
        let drive = place.drive.take()?;
        Some((drive, place.is_left))
    }

    /// Puts it back. Returns whether its owner waits for it.
    pub(super) fn put(&self, drive: Box<D>) -> bool {
        let mut place = self.place();
        place.drive = Some(drive);
        std::mem::take(&mut place.is_wanted)
    }

    /// Records that the owner was dropped.
    pub(super) fn leave(&self, drive: Option<Box<D>>) {
        let mut place = self.place();
        place.is_left = true;
        if drive.is_some() {
            place.drive = drive;
        }
    }

    fn place(&self) -> MutexGuard<'_, Place<D>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
