//! A connection and its transport: the loop between them, one poll at a time.
//!
//! All partial progress of a poll is stored here and not in a future, so that any future may be dropped.

use std::future::Future as _;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker, ready};

use bytes::BufMut as _;
use sinews_proto::Time;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::driver::{Driver, DriverTiming};
use crate::link::{Link, ReceiveBuffer};

/// A connection and its transport.
#[derive(Debug)]
pub(super) struct TokioDriver<S> {
    pub(super) io: S,
    pub(super) link: Link,
    timing: DriverTiming,
    /// Wakes for the link's deadline, or to free spare memory; created when first needed.
    timer: Option<Pin<Box<Sleep>>>,
    /// The waker that the timer has.
    waker: Option<Waker>,
    /// Bytes that the transport has taken may still be in its own buffer.
    pub(super) unflushed: bool,
}

/// Least remaining payload that justifies a separate receive: a shorter payload is received with the input behind it.
const DIRECT_MIN: usize = 16 << 10;

/// Slices in one send; further slices follow in the next.
pub(super) const SLICES: usize = 16;

impl<S> TokioDriver<S> {
    pub(super) fn new(io: S, link: Link) -> Self {
        let timing = DriverTiming::new(link.now);
        Self { io, link, timing, timer: None, waker: None, unflushed: false }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Driver for TokioDriver<S> {
    /// A task may use 128 units of budget in a turn: some 4,096 messages.
    const TURN: u32 = 32;

    fn poll_turn(cx: &mut Context<'_>) -> Poll<()> {
        pin!(tokio::task::coop::consume_budget()).poll(cx)
    }

    #[inline]
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    #[inline]
    fn timing(&mut self) -> &mut DriverTiming {
        &mut self.timing
    }

    #[inline]
    fn clock() -> Time {
        now()
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

    #[inline]
    fn wants_send(&mut self) -> bool {
        self.link.wants_send() || self.unflushed
    }

    fn poll_shut(&mut self, cx: &mut Context<'_>) {
        match Pin::new(&mut self.io).poll_shutdown(cx) {
            Poll::Ready(Ok(())) => self.link.shut(),
            Poll::Ready(Err(error)) => self.link.send_failed(error),
            Poll::Pending => {}
        }
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Option<(usize, bool)> {
        let most = self.link.awaits_piece().min(into.len());
        if most < DIRECT_MIN || !self.link.receives() || self.is_late() {
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
        self.note_polled();
        let last = self.link.piece_received(piece.filled_mut())?;
        Some((count, last))
    }

    #[inline]
    fn poll_transport(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut buffer = self.link.take_buffer();
        let received = match &mut buffer {
            ReceiveBuffer::Block(block) => {
                let free = block.capacity() - block.len();
                pin!(self.io.read_buf(&mut block.limit(free))).poll(cx)
            }
            ReceiveBuffer::Message(memory, most) => pin!(self.io.read_buf(&mut memory.limit(*most))).poll(cx),
        };
        let count = if let Poll::Ready(Ok(count)) = received { count } else { 0 };
        if received.is_ready() {
            self.link.now = now();
        }
        self.link.received(buffer, count);
        match ready!(received) {
            Ok(0) => self.link.ended(None),
            Ok(_) => {}
            Err(error) => self.link.ended(Some(error)),
        }
        Poll::Ready(())
    }

    fn set_timer(&mut self, at: Time) {
        let at = instant(at);
        self.waker = None;
        match &mut self.timer {
            Some(timer) => timer.as_mut().reset(at),
            None => self.timer = Some(Box::pin(tokio::time::sleep_until(at))),
        }
    }

    fn poll_timer_fired(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(timer) = &mut self.timer else { return Poll::Pending };
        let is_known = self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
        if is_known && !timer.is_elapsed() {
            return Poll::Pending;
        }
        if timer.as_mut().poll(cx).is_pending() {
            // In a task whose budget is used up, the timer has not registered the waker.
            self.waker = tokio::task::coop::has_budget_remaining().then(|| cx.waker().clone());
            return Poll::Pending;
        }
        self.waker = None;
        Poll::Ready(())
    }
}

/// The time of Tokio's clock, which a test can pause.
#[inline]
pub(super) fn now() -> Time {
    let since = Instant::now().saturating_duration_since(epoch());
    Time::from_micros(since.as_secs() * 1_000_000 + u64::from(since.subsec_micros()))
}

/// The same time on Tokio's clock.
pub(super) fn instant(time: Time) -> Instant {
    epoch() + time.since(Time::ZERO)
}

fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}
