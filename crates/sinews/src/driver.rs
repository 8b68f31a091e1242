//! What the drivers of both runtimes do alike: the rules of when what is queued leaves, one poll at a time.
//!
//! A driver owns a [`Link`], a transport and a timer, and keeps everything that a poll leaves half done, so that any
//! future may be dropped.

use std::ops::Range;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use sinews_proto::{CloseCode, Kind, Misuse, Time};
use sinews_session::{Arrived, Closed, Sent};

use crate::error::Error;
use crate::link::{Lent, Link, Next};
use crate::message::Message;
use crate::resources;

/// A caller that only sends looks this often for what came: pings, and a Close.
pub(crate) const ASK_EVERY: Duration = Duration::from_millis(10);

/// How often in a row what producers have queued is sent, before what came has its turn.
const COLLECTED_MAX: usize = 8;

/// Messages and receives that are dropped by a close that does not wait.
const DISCARDED_MAX: usize = 256;

/// How long a timeout that has come waits until it is decided. The runtime looks at its transports before the timer rings
/// again, so that what the peer sent in time is read first.
const GRACE: Duration = Duration::from_millis(1);

/// What a driver keeps beside its link and its transport.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Calls that sent since the transport was last asked for what came, and when that was.
    sent: u32,
    asked: Time,
    /// When the timer rings, if it is set.
    armed: Option<Time>,
    /// A timeout has come and is decided when the timer rings again.
    grace: bool,
}

impl Pace {
    pub(crate) fn new(now: Time) -> Self {
        Self { sent: 0, asked: now, armed: None, grace: false }
    }
}

/// A connection and its transport.
pub(crate) trait Driver {
    fn link(&mut self) -> &mut Link;

    fn pace(&mut self) -> &mut Pace;

    /// The time of the runtime's clock.
    fn clock() -> Time;

    /// Gives the transport everything that the link has queued, and flushes it. Failures are the link's to tell.
    fn poll_queued(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Whether [`poll_send`](Self::poll_send) has something to do, what producers may queue later aside.
    fn wants_send(&mut self) -> bool;

    /// Ends the sending side.
    fn poll_shut(&mut self, cx: &mut Context<'_>);

    /// Receives once. Ready: something came, if only the end. What came has the newest time.
    fn poll_transport(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Receives payload of a message in pieces where the application wants it, at most as much as fits. Answers how
    /// much came and whether it ends the message; `None`: nothing came that way.
    fn poll_piece(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Option<(usize, bool)>;

    /// Sets the timer, or sets it anew.
    fn set_timer(&mut self, at: Time);

    /// Ready: the time came for which the timer was set.
    fn poll_ring(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Sends what is queued, all of it. Failures are the link's to tell.
    #[inline]
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.wants_send() && !self.link().has_inbox() {
            return Poll::Ready(());
        }
        if self.link().is_stalled() {
            // What leaves now leaves now, and not when the wait began.
            self.link().now = Self::clock();
        }
        let sent = self.poll_send_all(cx);
        if sent.is_ready() {
            self.link().went_on();
        } else if !self.link().is_stalled() {
            self.link().now = Self::clock();
            self.link().stalled();
        }
        sent
    }

    fn poll_send_all(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..COLLECTED_MAX {
            let more = self.link().collect(cx);
            ready!(self.poll_queued(cx));
            if !more {
                return Poll::Ready(());
            }
        }
        cx.waker().wake_by_ref();
        Poll::Ready(())
    }

    /// Receives once. Ready: something came, if only the end.
    #[inline]
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let received = self.poll_transport(cx);
        self.note_asked();
        received
    }

    /// The transport was asked for what came, just now.
    #[inline]
    fn note_asked(&mut self) {
        let now = self.link().now;
        let pace = self.pace();
        (pace.sent, pace.asked) = (0, now);
    }

    /// Whether something was due when the transport was last asked that a peer puts off by no input. Its silence is
    /// [decided](Self::poll_timer) when there is nothing to read.
    #[inline]
    fn is_late(&mut self) -> bool {
        let Pace { asked, armed, .. } = *self.pace();
        // The timer never rings behind the deadline, and is looked at for less.
        let is_early = armed.is_some_and(|armed| asked < armed) && !self.link().awaits_recheck();
        !is_early && self.link().is_due_at(asked) && self.link().awaits_in_spite_of_input() && {
            self.link().note_driven(asked);
            self.link().is_due_at(asked)
        }
    }

    /// Whether a caller that sends should look for what came. One that also receives does not pay for the clock.
    #[inline]
    fn is_aside_due(&mut self) -> bool {
        let pace = self.pace();
        pace.sent += 1;
        if pace.sent < 2 {
            return false;
        }
        let asked = pace.asked;
        self.note_sent();
        self.link().now.since(asked) > ASK_EVERY
    }

    /// What was sent has left by now, as far as the idle timeout is concerned.
    fn note_sent(&mut self) {
        self.link().now = Self::clock();
        if self.link().has_sent() {
            self.link().note_sent();
        }
    }

    /// Ready: the deadline came, and what was due is done. The transport has nothing to read, or it must not be read.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.link().has_sent() {
            self.note_sent();
        }
        loop {
            if self.link().take_recheck() {
                self.recheck();
            }
            if self.pace().armed.is_none() {
                return Poll::Pending;
            }
            ready!(self.poll_ring(cx));
            self.pace().armed = None;
            self.link().now = Self::clock();
            self.link().sync();
            if self.is_decided() {
                self.link().timeout();
                return Poll::Ready(());
            }
            self.recheck();
        }
    }

    /// Whether what is due now may be done. What ends the connection waits for [`GRACE`] first.
    fn is_decided(&mut self) -> bool {
        let now = self.link().now;
        let grace = std::mem::take(&mut self.pace().grace);
        if !grace && self.link().is_due() {
            self.link().note_driven(now);
        }
        if !self.link().is_due() {
            return false;
        }
        if grace || !self.link().awaits_peer() {
            return true;
        }
        self.pace().grace = true;
        self.pace().armed = Some(now + GRACE);
        self.set_timer(now + GRACE);
        false
    }

    /// Sets the timer, if it would ring too late: for the link's deadline, or to free spare memory.
    #[cold]
    fn recheck(&mut self) {
        if self.pace().grace {
            return;
        }
        let now = Self::clock();
        self.link().now = now;
        let next = [self.link().deadline(), resources::release(now)].into_iter().flatten().min();
        let armed = self.pace().armed;
        if let Some(next) = next.filter(|next| armed.is_none_or(|armed| *next < armed)) {
            self.pace().armed = Some(next);
            self.set_timer(next);
        }
    }

    /// The next event, if it is a whole message in what came.
    #[inline]
    fn poll_whole(&mut self, cx: &mut Context<'_>) -> Option<(Kind, Range<usize>)> {
        let whole = self.link().pull_whole()?;
        if self.link().is_overdue(Self::clock) {
            let _ = self.poll_send(cx);
        }
        Some(whole)
    }

    /// The next event; `None`: the connection is over.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Arrived>> {
        loop {
            if let Some(event) = self.arrived(cx) {
                return Poll::Ready(Some(event));
            }
            if !ready!(self.poll_more(cx)) {
                return Poll::Ready(None);
            }
        }
    }

    /// The next event of what came.
    #[inline]
    fn arrived(&mut self, cx: &mut Context<'_>) -> Option<Arrived> {
        let event = self.link().pull()?;
        if self.link().is_urgent(&event, Self::clock) {
            let _ = self.poll_send(cx);
        }
        Some(event)
    }

    /// Sends, and receives what is next. Answers whether more may have come; if not, it is over.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        loop {
            let congested = self.link().is_congested();
            let blocked = self.poll_send(cx).is_pending();
            match self.link().next() {
                Next::Over => {
                    // The peer need not wait for the application to let go of us.
                    self.poll_shut(cx);
                    return Poll::Ready(false);
                }
                Next::Tell => return Poll::Ready(false),
                Next::Shut if !blocked => self.poll_shut(cx),
                Next::Shut | Next::Go => {}
            }
            if congested && !self.link().is_congested() {
                // What came before may be looked at now.
                return Poll::Ready(true);
            }
            if !self.link().is_congested() && self.link().receives() {
                // A peer that never stops talking keeps nothing from being due.
                if self.is_late() {
                    self.link().timeout();
                    continue;
                }
                if self.poll_receive(cx).is_ready() {
                    return Poll::Ready(true);
                }
            }
            ready!(self.poll_timer(cx));
        }
    }

    /// For a caller that sends: handles what came without it, and keeps the first thing that is not ours to handle.
    fn poll_aside(&mut self, cx: &mut Context<'_>) {
        self.link().pass_over_handled();
        while !self.link().is_parked() && !self.link().is_congested() && self.link().receives() {
            if let Some(event) = self.link().pull() {
                self.link().park(event);
            } else if self.poll_receive(cx).is_pending() {
                break;
            }
        }
    }

    /// The next message, in the form that an application gets, so that it is not moved again; `None`: the connection is
    /// over.
    #[inline]
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Message, Error>>> {
        self.link().expect_pieces(false);
        loop {
            if let Some(whole) = self.poll_whole(cx) {
                return Poll::Ready(Some(Ok(self.link().own_whole(whole))));
            }
            if let Some(event) = self.arrived(cx) {
                if let Some(message) = self.link().own(event) {
                    return Poll::Ready(Some(Ok(message)));
                }
            } else if !ready!(self.poll_more(cx)) {
                return Poll::Ready(self.link().last_words().map(Err));
            }
        }
    }

    /// The next data message, to be lent; `None`: the connection is over, and [`Link::last_words`] says how.
    fn poll_borrow(&mut self, cx: &mut Context<'_>) -> Poll<Option<Lent>> {
        self.link().expect_pieces(false);
        while let Some(event) = ready!(self.poll_event(cx)) {
            if let Some(lent) = self.link().borrow(event) {
                return Poll::Ready(Some(lent));
            }
        }
        Poll::Ready(None)
    }

    /// Queues once, when there is room, and sends, or leaves it to the last answer of a burst.
    #[inline]
    fn poll_queue(
        &mut self,
        cx: &mut Context<'_>,
        queue: impl FnOnce(&mut Link) -> Option<Result<Sent, Error>>,
    ) -> Poll<Result<(), Error>> {
        let burst = self.link().is_answering(Self::clock);
        if self.link().is_congested() {
            ready!(self.poll_room(cx));
        }
        if let Some(queued) = queue(self.link()) {
            queued?;
            if burst && !self.link().is_congested() {
                return Poll::Ready(Ok(()));
            }
        }
        self.poll_out(cx)
    }

    /// Queues a piece of a message, once there is room.
    fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
        (kind, part, last): (Kind, &[u8], bool),
    ) -> Poll<Result<(), Error>> {
        ready!(self.poll_room(cx));
        Poll::Ready(self.link().queue_piece(kind, part, last).map(drop))
    }

    /// Waits until there is room for a message.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.link().is_congested() {
            ready!(self.poll_progress(cx));
        }
        Poll::Ready(())
    }

    /// Sends all that is queued; keeps deadlines meanwhile, and looks for what came.
    #[inline]
    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        while self.wants_send() {
            ready!(self.poll_progress(cx));
        }
        if self.is_aside_due() {
            self.poll_aside(cx);
            if self.is_late() {
                self.link().timeout();
            }
            while self.poll_timer(cx).is_ready() {}
            // A pong, a ping, or the answer to a Close.
            let _ = self.poll_send(cx);
        }
        Poll::Ready(self.link().check_sending())
    }

    fn poll_progress(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.poll_send(cx).is_ready() {
            return Poll::Ready(());
        }
        self.poll_aside(cx);
        self.poll_timer(cx)
    }

    /// Begins the closing handshake behind what is queued.
    fn start_close(&mut self, code: CloseCode, reason: &str) -> Result<(), Error> {
        self.link().now = Self::clock();
        self.link().close(code, reason)
    }

    /// The same, unless it has begun.
    fn begin_close(&mut self, code: CloseCode, reason: &str) -> Result<(), Error> {
        match self.start_close(code, reason) {
            Ok(()) | Err(Error::Closed(_) | Error::Misuse(Misuse::Closing)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Sends what is queued and ends the sending side, without waiting for what the peer says to it.
    fn poll_close_now(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        ready!(self.poll_send(cx));
        if !self.link().is_shut() && self.link().check_sending().is_ok() {
            self.poll_shut(cx);
            if !self.link().is_shut() && self.link().check_sending().is_ok() {
                return Poll::Pending;
            }
        }
        self.discard_received(cx);
        Poll::Ready(self.link().check_sending())
    }

    /// Drops what has come. Input that is unread when a socket is closed makes a reset of it, which may overtake the Close.
    fn discard_received(&mut self, cx: &mut Context<'_>) {
        for _ in 0..DISCARDED_MAX {
            let done = |link: &mut Link| !link.receives() || link.is_congested();
            if self.link().pull().is_none() && (done(self.link()) || self.poll_receive(cx).is_pending()) {
                break;
            }
        }
    }

    /// Waits for the end; messages that still come are dropped.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<Closed, Error>> {
        self.link().hold_words();
        while ready!(self.poll_borrow(cx)).is_some() {}
        Poll::Ready(self.link().outcome())
    }
}
