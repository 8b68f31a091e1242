//! The driver logic of both runtimes: the rules of when queued bytes leave, one poll at a time.
//!
//! A driver owns a [`Link`], a transport and a timer, and stores all partial progress of a poll, so that any future
//! may be dropped.

use std::ops::Range;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use sinews_proto::{CloseCode, Kind, Misuse, Time};
use sinews_session::{Closed, ReceivedEvent, Sent};

use crate::error::Error;
use crate::link::{BorrowedMessage, Link, NextStep, accepted};
use crate::message::Message;
use crate::resources;

/// Interval at which a caller that only sends checks for input: pings, and a Close.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// How often in a row messages of producers are sent before received input is processed.
const COLLECTED_MAX: usize = 8;

/// Limit of messages and receives that a close without waiting drops.
const DISCARDED_MAX: usize = 256;

/// Delay between the expiry of a timeout and its execution. The runtime polls its transports before the timer fires
/// again, so that input that the peer sent in time is read first.
const GRACE: Duration = Duration::from_millis(1);

/// State of a driver beside its link and its transport.
#[derive(Debug)]
pub(crate) struct DriverTiming {
    /// Calls that sent since the transport was last polled for input, and the time of that poll.
    sent: u32,
    polled_at: Time,
    /// When the timer fires, if it is set.
    armed: Option<Time>,
    /// A timeout has expired; it is executed when the timer fires again.
    grace: bool,
    /// Messages received in a row, since the last wait or [`Driver::poll_turn`].
    in_a_row: u32,
}

impl DriverTiming {
    pub(crate) fn new(now: Time) -> Self {
        Self { sent: 0, polled_at: now, armed: None, grace: false, in_a_row: 0 }
    }
}

/// A connection and its transport.
pub(crate) trait Driver {
    /// Messages received in a row before [`poll_turn`](Self::poll_turn).
    const TURN: u32;

    /// Whether the task may go on. Pending: the task is woken at once.
    fn poll_turn(cx: &mut Context<'_>) -> Poll<()>;

    fn link(&mut self) -> &mut Link;

    fn timing(&mut self) -> &mut DriverTiming;

    /// The time of the runtime's clock.
    fn clock() -> Time;

    /// Gives the transport all bytes that the link has queued, and flushes it. The link reports errors.
    fn poll_queued(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Whether [`poll_send`](Self::poll_send) has work, apart from messages that producers may queue later.
    fn wants_send(&mut self) -> bool;

    /// Ends the sending side.
    fn poll_shut(&mut self, cx: &mut Context<'_>);

    /// Receives once. Ready: bytes or the end were received. `now` of the link is then current.
    fn poll_transport(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Receives payload of a message in pieces into the application's memory, at most as much as fits. Returns the
    /// number of bytes and whether they end the message; `None`: nothing was received this way.
    fn poll_piece(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Option<(usize, bool)>;

    /// Sets or resets the timer.
    fn set_timer(&mut self, at: Time);

    /// Ready: the timer fired.
    fn poll_timer_fired(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Sends all queued bytes. The link reports errors.
    #[inline]
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.wants_send() && !self.link().has_inbox() {
            return Poll::Ready(());
        }
        if self.link().is_stalled() {
            // The send time is now, not the time when the wait began.
            self.link().now = Self::clock();
        }
        let sent = self.poll_send_all(cx);
        if sent.is_ready() {
            self.link().unstalled();
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

    /// Receives once. Ready: bytes or the end were received.
    #[inline]
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let received = self.poll_transport(cx);
        self.note_polled();
        received
    }

    /// The transport was just polled for input.
    #[inline]
    fn note_polled(&mut self) {
        let now = self.link().now;
        let timing = self.timing();
        (timing.sent, timing.polled_at) = (0, now);
    }

    /// Whether a deadline that no input postpones had expired when the transport was last polled. The silence of the
    /// peer is [decided](Self::poll_timer) when there is nothing to read.
    #[inline]
    fn is_late(&mut self) -> bool {
        let DriverTiming { polled_at, armed, .. } = *self.timing();
        // The timer never fires after the deadline, and is cheaper to check.
        let is_early = armed.is_some_and(|armed| polled_at < armed) && !self.link().awaits_recheck();
        !is_early && self.link().is_due_at(polled_at) && self.link().awaits_in_spite_of_input() && {
            self.link().note_driven(polled_at);
            self.link().is_due_at(polled_at)
        }
    }

    /// Whether a caller that sends should check for input. A caller that also receives does not read the clock.
    #[inline]
    fn is_input_check_due(&mut self) -> bool {
        let timing = self.timing();
        timing.sent += 1;
        if timing.sent < 2 {
            return false;
        }
        let polled_at = timing.polled_at;
        self.note_sent();
        self.link().now.since(polled_at) > POLL_INTERVAL
    }

    /// Queued messages have left by now, as far as the idle timeout is concerned.
    fn note_sent(&mut self) {
        self.link().now = Self::clock();
        if self.link().has_sent() {
            self.link().note_sent();
        }
    }

    /// Ready: the deadline expired, and its actions are executed. The transport has nothing to read, or must not be
    /// read.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.link().has_sent() {
            self.note_sent();
        }
        loop {
            if self.link().take_recheck() {
                self.recheck();
            }
            if self.timing().armed.is_none() {
                return Poll::Pending;
            }
            ready!(self.poll_timer_fired(cx));
            self.timing().armed = None;
            self.link().now = Self::clock();
            self.link().sync();
            if self.is_decided() {
                self.link().timeout();
                return Poll::Ready(());
            }
            self.recheck();
        }
    }

    /// Whether the actions that are due may be executed. An action that ends the connection waits for [`GRACE`]
    /// first.
    fn is_decided(&mut self) -> bool {
        let now = self.link().now;
        let grace = std::mem::take(&mut self.timing().grace);
        if !grace && self.link().is_due() {
            self.link().note_driven(now);
        }
        if !self.link().is_due() {
            return false;
        }
        if grace || !self.link().awaits_peer() {
            return true;
        }
        self.timing().grace = true;
        self.timing().armed = Some(now + GRACE);
        self.set_timer(now + GRACE);
        false
    }

    /// Sets the timer, if it would fire too late: for the link's deadline, or to free spare memory.
    #[cold]
    fn recheck(&mut self) {
        if self.timing().grace {
            return;
        }
        let now = Self::clock();
        self.link().now = now;
        let next = [self.link().deadline(), resources::release(now)].into_iter().flatten().min();
        let armed = self.timing().armed;
        if let Some(next) = next.filter(|next| armed.is_none_or(|armed| *next < armed)) {
            self.timing().armed = Some(next);
            self.set_timer(next);
        }
    }

    /// The next event, if it is a whole message in the received input.
    #[inline]
    fn poll_whole(&mut self, cx: &mut Context<'_>) -> Option<(Kind, Range<usize>)> {
        let whole = self.link().pull_whole()?;
        if self.link().is_overdue(Self::clock) {
            let _ = self.poll_send(cx);
        }
        Some(whole)
    }

    /// The next event; `None`: the connection has ended.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<ReceivedEvent>> {
        loop {
            if let Some(event) = self.arrived(cx) {
                return Poll::Ready(Some(event));
            }
            if !ready!(self.poll_more(cx)) {
                return Poll::Ready(None);
            }
        }
    }

    /// The next event in the received input.
    #[inline]
    fn arrived(&mut self, cx: &mut Context<'_>) -> Option<ReceivedEvent> {
        let event = self.link().pull()?;
        if self.link().is_urgent(&event, Self::clock) {
            let _ = self.poll_send(cx);
        }
        Some(event)
    }

    /// Sends, and receives more. Returns whether more may have been received; if not, the connection has ended.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        loop {
            let blocked = self.poll_send(cx).is_pending();
            match self.link().next() {
                NextStep::Ended => {
                    // The peer need not wait until the application drops the connection.
                    self.poll_shut(cx);
                    return Poll::Ready(false);
                }
                NextStep::ReportEnd => return Poll::Ready(false),
                NextStep::ShutDown if !blocked => {
                    self.poll_shut(cx);
                    if self.link().is_shut() {
                        continue;
                    }
                }
                NextStep::ShutDown | NextStep::Continue => {}
            }
            // Also while many bytes are queued: a peer that waits in the same way would read nothing either.
            if self.link().receives() {
                // A peer that never stops sending does not delay deadlines.
                if self.is_late() {
                    self.link().timeout();
                    continue;
                }
                if self.poll_receive(cx).is_ready() {
                    return Poll::Ready(true);
                }
            }
            self.timing().in_a_row = 0;
            ready!(self.poll_timer(cx));
        }
    }

    /// Before another message: lets other tasks of the thread run after many messages without a wait. Pending: the task
    /// is woken at once.
    #[inline]
    fn poll_next_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let timing = self.timing();
        timing.in_a_row += 1;
        if timing.in_a_row <= Self::TURN {
            return Poll::Ready(());
        }
        timing.in_a_row = 0;
        Self::poll_turn(cx)
    }

    /// For a caller that sends: handles input, and parks the first event that is for the application.
    fn poll_input(&mut self, cx: &mut Context<'_>) {
        self.link().drop_handled_event();
        while !self.link().has_pending_event() && self.link().receives() {
            if let Some(event) = self.link().pull() {
                self.link().store_event(event);
            } else if self.poll_receive(cx).is_pending() {
                break;
            }
        }
    }

    /// The next message, in the form returned to the application, so that it is not moved again; `None`: the
    /// connection has ended.
    #[inline]
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Message, Error>>> {
        ready!(self.poll_next_turn(cx));
        self.link().expect_pieces(false);
        loop {
            if let Some((kind, at)) = self.poll_whole(cx) {
                return Poll::Ready(Some(Ok(self.link().detach_whole_message(kind, at))));
            }
            if let Some(event) = self.arrived(cx) {
                if let Some(message) = self.link().detach_message(event) {
                    return Poll::Ready(Some(Ok(message)));
                }
            } else if !ready!(self.poll_more(cx)) {
                return Poll::Ready(self.link().take_end_error().map(Err));
            }
        }
    }

    /// The next data message, borrowed; `None`: the connection has ended, and [`Link::take_end_error`] returns the
    /// reason.
    fn poll_borrow(&mut self, cx: &mut Context<'_>) -> Poll<Option<BorrowedMessage>> {
        ready!(self.poll_next_turn(cx));
        self.link().expect_pieces(false);
        while let Some(event) = ready!(self.poll_event(cx)) {
            if let Some(borrowed) = self.link().borrow(event) {
                return Poll::Ready(Some(borrowed));
            }
        }
        Poll::Ready(None)
    }

    /// Queues once, when there is capacity, and sends, or leaves it to the last reply of a burst.
    #[inline]
    fn poll_queue(
        &mut self,
        cx: &mut Context<'_>,
        queue: impl FnOnce(&mut Link) -> Option<Result<Sent, Error>>,
    ) -> Poll<Result<(), Error>> {
        let burst = self.link().is_answering(Self::clock);
        if self.link().is_congested() {
            ready!(self.poll_capacity(cx));
        }
        if let Some(queued) = queue(self.link()) {
            accepted(queued)?;
            if burst && !self.link().is_congested() {
                return Poll::Ready(Ok(()));
            }
        }
        self.poll_out(cx)
    }

    /// Queues a piece of a message, once there is capacity.
    fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
        kind: Kind,
        part: &[u8],
        last: bool,
    ) -> Poll<Result<(), Error>> {
        ready!(self.poll_capacity(cx));
        Poll::Ready(accepted(self.link().queue_piece(kind, part, last)))
    }

    /// Waits until there is capacity for a message.
    fn poll_capacity(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.link().is_congested() {
            ready!(self.poll_progress(cx));
        }
        Poll::Ready(())
    }

    /// Sends all that is queued; executes deadlines meanwhile, and checks for input.
    #[inline]
    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        while self.wants_send() {
            ready!(self.poll_progress(cx));
        }
        if self.is_input_check_due() {
            self.poll_input(cx);
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
        self.poll_input(cx);
        self.poll_timer(cx)
    }

    /// Begins the closing handshake behind queued messages.
    fn start_close(&mut self, code: CloseCode, reason: &str) -> Result<(), Error> {
        self.link().now = Self::clock();
        self.link().close(code, reason)
    }

    /// The same, unless the closing handshake has begun.
    fn begin_close(&mut self, code: CloseCode, reason: &str) -> Result<(), Error> {
        match self.start_close(code, reason) {
            Ok(()) | Err(Error::Closed(_) | Error::Misuse(Misuse::Closing)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Sends all queued bytes and ends the sending side, without waiting for the peer's reply.
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

    /// Drops received input. A socket that is closed with unread input is reset, and a reset may overtake the Close.
    fn discard_received(&mut self, cx: &mut Context<'_>) {
        for _ in 0..DISCARDED_MAX {
            if let Some(event) = self.link().pull() {
                self.link().discard_event(event);
            } else if !self.link().receives() || self.poll_receive(cx).is_pending() {
                break;
            }
        }
    }

    /// Waits for the end; drops messages that still arrive.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<Closed, Error>> {
        self.link().suppress_end_error();
        while ready!(self.poll_borrow(cx)).is_some() {}
        Poll::Ready(self.link().outcome())
    }
}
