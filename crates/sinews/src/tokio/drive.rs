//! A connection and its transport: the loop between them, one poll at a time.
//!
//! Everything that a poll leaves half done is kept here and not in a future, so that any future may be dropped.

use std::future::Future as _;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::BufMut as _;
use sinews_proto::{Kind, Time};
use sinews_session::Arrived;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::link::{Link, Next, Room};
use crate::resources;

/// A connection and its transport.
#[derive(Debug)]
pub(super) struct Drive<S> {
    pub(super) io: S,
    pub(super) link: Link,
    /// Wakes for the link's deadline, or to free spare memory; made when first needed.
    timer: Option<Pin<Box<Sleep>>>,
    /// When the timer rings, if it is set, and whom it wakes then.
    armed: Option<Time>,
    waker: Option<Waker>,
    /// Bytes that the transport has taken may be in a buffer of its own.
    pub(super) unflushed: bool,
    /// The transport takes nothing for now.
    blocked: bool,
    /// Calls that sent since the transport was last asked for what came, and when that was.
    sent: u32,
    asked: Time,
}

/// A caller that only sends looks this often for what came: pings, and a Close.
pub(super) const ASK_EVERY: Duration = Duration::from_millis(10);

/// Payload to come for which a receive of its own is worth it: less comes with what follows it.
const DIRECT_MIN: usize = 16 << 10;

/// Slices in one send; what is more follows in the next.
pub(super) const SLICES: usize = 16;

/// How often in a row what producers have queued is sent, before what came has its turn.
const COLLECTED_MAX: usize = 8;

impl<S: AsyncRead + AsyncWrite + Unpin> Drive<S> {
    pub(super) fn new(io: S, link: Link) -> Self {
        let asked = link.now;
        Self {
            io,
            link,
            timer: None,
            armed: None,
            waker: None,
            unflushed: false,
            blocked: false,
            sent: 0,
            asked,
        }
    }

    /// The next event, if it is a whole message in what came.
    #[inline]
    pub(super) fn poll_whole(&mut self, cx: &mut Context<'_>) -> Option<(Kind, Range<usize>)> {
        let whole = self.link.pull_whole()?;
        if self.link.is_overdue(now) {
            let _ = self.poll_send(cx);
        }
        Some(whole)
    }

    /// The next event; `None`: the connection is over.
    pub(super) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Arrived>> {
        loop {
            if let Some(event) = self.link.pull() {
                if self.link.is_urgent(&event, now) {
                    let _ = self.poll_send(cx);
                }
                return Poll::Ready(Some(event));
            }
            if !ready!(self.poll_more(cx)) {
                return Poll::Ready(None);
            }
        }
    }

    /// Sends, and receives what is next. Answers whether more may have come; if not, it is over.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        loop {
            let congested = self.link.is_congested();
            let blocked = self.poll_send(cx).is_pending();
            match self.link.next() {
                Next::Over => {
                    // The peer need not wait for the application to let go of us.
                    self.poll_shut(cx);
                    return Poll::Ready(false);
                }
                Next::Shut if !blocked => self.poll_shut(cx),
                Next::Shut | Next::Go => {}
            }
            if congested && !self.link.is_congested() {
                // What came before may be looked at now.
                return Poll::Ready(true);
            }
            if !self.link.is_congested() && self.link.receives() && self.poll_receive(cx).is_ready() {
                return Poll::Ready(true);
            }
            ready!(self.poll_timer(cx));
        }
    }

    /// Sends what is queued, all of it, and flushes it. Failures are the link's to tell.
    #[inline]
    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.link.wants_send() && !self.unflushed && !self.link.has_inbox() {
            return Poll::Ready(());
        }
        let sent = self.poll_send_all(cx);
        if sent.is_ready() {
            self.blocked = false;
        } else if !std::mem::replace(&mut self.blocked, true) {
            self.link.now = now();
            self.link.stalled();
        }
        sent
    }

    fn poll_send_all(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..COLLECTED_MAX {
            let more = self.link.collect(cx);
            ready!(self.poll_queued(cx));
            if !more {
                return Poll::Ready(());
            }
        }
        cx.waker().wake_by_ref();
        Poll::Ready(())
    }

    fn poll_queued(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(chain) = self.link.next_send() {
            let io = Pin::new(&mut self.io);
            let sent = match chain.as_slice() {
                Some(bytes) => ready!(io.poll_write(cx, bytes)),
                None => {
                    let mut slices = [IoSlice::new(&[]); SLICES];
                    match chain.slices(&mut slices) {
                        1 => ready!(io.poll_write(cx, &slices[0])),
                        filled => ready!(io.poll_write_vectored(cx, &slices[..filled])),
                    }
                }
            };
            match sent {
                Ok(0) => self.link.send_failed(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.unflushed = true;
                    self.link.sent(count);
                }
                Err(error) => self.link.send_failed(error),
            }
        }
        if self.unflushed {
            let flushed = ready!(Pin::new(&mut self.io).poll_flush(cx));
            self.unflushed = false;
            if let Err(error) = flushed {
                self.link.send_failed(error);
            }
        }
        Poll::Ready(())
    }

    /// Whether [`poll_send`](Self::poll_send) was not done with the last bytes.
    pub(super) fn unflushed(&self) -> bool {
        self.unflushed
    }

    fn poll_shut(&mut self, cx: &mut Context<'_>) {
        match Pin::new(&mut self.io).poll_shutdown(cx) {
            Poll::Ready(Ok(())) => self.link.shut(),
            Poll::Ready(Err(error)) => self.link.send_failed(error),
            Poll::Pending => {}
        }
    }

    /// Receives payload of a message in pieces where the application wants it, at most as much as fits. Answers how
    /// much came and whether it ends the message; `None`: nothing came that way.
    pub(super) fn poll_piece(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Option<(usize, bool)> {
        let most = self.link.awaits_piece().min(into.len());
        if most < DIRECT_MIN || self.link.is_congested() || !self.link.receives() {
            return None;
        }
        let mut piece = ReadBuf::new(&mut into[..most]);
        let received = Pin::new(&mut self.io).poll_read(cx, &mut piece);
        let count = piece.filled().len();
        match received {
            Poll::Ready(Ok(())) if count > 0 => {}
            Poll::Ready(end) => {
                self.link.ended(end.err());
                return None;
            }
            Poll::Pending => return None,
        }
        self.link.now = now();
        let last = self.link.piece_came(piece.filled_mut())?;
        Some((count, last))
    }

    /// Receives once. Ready: something came, if only the end.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.sent = 0;
        let mut room = self.link.take_room();
        let received = match &mut room {
            Room::Block(block) => {
                let free = block.capacity() - block.len();
                pin!(self.io.read_buf(&mut block.limit(free))).poll(cx)
            }
            Room::Message(memory, most) => pin!(self.io.read_buf(&mut memory.limit(*most))).poll(cx),
        };
        let count = if let Poll::Ready(Ok(count)) = received { count } else { 0 };
        if received.is_ready() {
            self.link.now = now();
        }
        self.asked = self.link.now;
        self.link.came(room, count);
        match ready!(received) {
            Ok(0) => self.link.ended(None),
            Ok(_) => {}
            Err(error) => self.link.ended(Some(error)),
        }
        Poll::Ready(())
    }

    /// For a caller that sends: handles what came without it, and keeps the first thing that is not ours to handle.
    pub(super) fn poll_aside(&mut self, cx: &mut Context<'_>) {
        self.link.pass_over_handled();
        while !self.link.is_parked() && !self.link.is_congested() && self.link.receives() {
            if let Some(event) = self.link.pull() {
                self.link.park(event);
            } else if self.poll_receive(cx).is_pending() {
                break;
            }
        }
    }

    /// Whether a caller that sends should look for what came. One that also receives does not pay for the clock.
    #[inline]
    pub(super) fn is_aside_due(&mut self) -> bool {
        self.sent += 1;
        if self.sent < 2 {
            return false;
        }
        self.link.now = now();
        self.link.now.since(self.asked) > ASK_EVERY
    }

    /// Ready: the deadline came, and what was due is done.
    pub(super) fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.link.take_recheck() {
                self.recheck();
            }
            let (Some(timer), Some(_)) = (&mut self.timer, self.armed) else { return Poll::Pending };
            let is_known = self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
            if is_known && !timer.is_elapsed() {
                return Poll::Pending;
            }
            if timer.as_mut().poll(cx).is_pending() {
                self.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            (self.armed, self.waker) = (None, None);
            self.link.now = now();
            if self.link.deadline().is_some_and(|deadline| deadline <= self.link.now) {
                self.link.timeout();
                return Poll::Ready(());
            }
            self.recheck();
        }
    }

    /// Sets the timer, if it would ring too late.
    #[cold]
    fn recheck(&mut self) {
        self.link.now = now();
        let release = resources::release(self.link.now);
        let next = [self.link.deadline(), release].into_iter().flatten().min();
        if let Some(next) = next.filter(|next| self.armed.is_none_or(|armed| *next < armed)) {
            self.arm(next);
        }
    }

    fn arm(&mut self, next: Time) {
        let at = instant(next);
        (self.armed, self.waker) = (Some(next), None);
        match &mut self.timer {
            Some(timer) => timer.as_mut().reset(at),
            None => self.timer = Some(Box::pin(tokio::time::sleep_until(at))),
        }
    }
}

/// The time of Tokio's clock, which a test can stop.
#[inline]
pub(super) fn now() -> Time {
    let since = Instant::now().saturating_duration_since(epoch());
    Time::from_micros(since.as_secs() * 1_000_000 + u64::from(since.subsec_micros()))
}

/// The same for Tokio.
pub(super) fn instant(time: Time) -> Instant {
    epoch() + time.since(Time::ZERO)
}

fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}
