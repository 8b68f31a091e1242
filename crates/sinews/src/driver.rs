//! What the drivers of both runtimes do alike: the rules of when what is queued leaves, one poll at a time.
//!
//! A driver owns a [`Link`], a transport and a timer, and keeps everything that a poll leaves half done, so that any
//! future may be dropped.

use std::task::{Context, Poll, ready};

use sinews_proto::{CloseCode, Misuse, Time};
use sinews_session::{Arrived, Closed};

use crate::error::Error;
use crate::link::{Lent, Link, Next};
use crate::message::Message;

/// A connection and its transport.
pub(crate) trait Driver {
    fn link(&mut self) -> &mut Link;

    /// The time of the runtime's clock.
    fn clock() -> Time;

    /// Sends what is queued, all of it. Failures are the link's to tell.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Whether [`poll_send`](Self::poll_send) has something to do.
    fn wants_send(&mut self) -> bool;

    /// Ends the sending side.
    fn poll_shut(&mut self, cx: &mut Context<'_>);

    /// Receives once. Ready: something came, if only the end.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Ready: the deadline came, and what was due is done.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Whether a caller that only sends should look for what came.
    fn is_aside_due(&mut self) -> bool;

    /// The next event; `None`: the connection is over.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Arrived>> {
        loop {
            if let Some(event) = self.link().pull() {
                if self.link().is_urgent(&event, Self::clock) {
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
            let congested = self.link().is_congested();
            let blocked = self.poll_send(cx).is_pending();
            match self.link().next() {
                Next::Over => {
                    // The peer need not wait for the application to let go of us.
                    self.poll_shut(cx);
                    return Poll::Ready(false);
                }
                Next::Shut if !blocked => self.poll_shut(cx),
                Next::Shut | Next::Go => {}
            }
            if congested && !self.link().is_congested() {
                // What came before may be looked at now.
                return Poll::Ready(true);
            }
            if !self.link().is_congested() && self.link().receives() && self.poll_receive(cx).is_ready() {
                return Poll::Ready(true);
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

    /// The next message; `None`: the connection is over, and [`Link::last_words`] says how.
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Message>> {
        while let Some(event) = ready!(self.poll_event(cx)) {
            if let Some(message) = self.link().own(event) {
                return Poll::Ready(Some(message));
            }
        }
        Poll::Ready(None)
    }

    /// The next data message, to be lent; `None` as for [`poll_message`](Self::poll_message).
    fn poll_borrow(&mut self, cx: &mut Context<'_>) -> Poll<Option<Lent>> {
        while let Some(event) = ready!(self.poll_event(cx)) {
            if let Some(lent) = self.link().borrow(event) {
                return Poll::Ready(Some(lent));
            }
        }
        Poll::Ready(None)
    }

    /// Queues a message once there is room, and sends it, or leaves it to the last answer of a burst.
    fn poll_answer(
        &mut self,
        cx: &mut Context<'_>,
        message: &mut Option<Message>,
    ) -> Poll<Result<(), Error>> {
        let burst = self.link().is_answering(Self::clock);
        if message.is_some() {
            ready!(self.poll_room(cx));
            if let Some(message) = message.take() {
                self.link().queue(message)?;
            }
        }
        if burst && !self.link().is_congested() {
            return Poll::Ready(Ok(()));
        }
        self.poll_out(cx)
    }

    /// Waits until there is room for a message.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.link().is_congested() {
            ready!(self.poll_progress(cx));
        }
        Poll::Ready(())
    }

    /// Sends all that is queued; keeps deadlines meanwhile, and looks for what came.
    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        while self.wants_send() {
            ready!(self.poll_progress(cx));
        }
        if self.is_aside_due() {
            self.poll_aside(cx);
            // A pong, or the answer to a Close.
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

    /// Begins the closing handshake, unless it has begun.
    fn begin_close(&mut self, code: CloseCode, reason: &str) -> Result<(), Error> {
        match self.link().close(code, reason) {
            Ok(()) | Err(Error::Closed(_) | Error::Misuse(Misuse::Closing)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Waits for the end; messages that still come are dropped.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<Closed, Error>> {
        while ready!(self.poll_event(cx)).is_some() {}
        let link = self.link();
        if let Some(error) = link.last_words() {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(link.closed().cloned().ok_or(Error::Misuse(Misuse::Closing)))
    }
}
