//! Sending: from messages to the chains that a driver sends, and the rules of when queued bytes leave.

use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use sinews_proto::{CloseCode, Kind, Misuse, Time};
use sinews_session::{Chain, Prepared, ReceivedEvent, Sent, Tx};

#[cfg(any(feature = "tokio", feature = "compio"))]
use super::state::SenderQueue;
use super::state::{Link, SenderMessage};
use crate::error::Error;
use crate::message::Message;
use crate::resources;
#[cfg(any(feature = "tokio", feature = "compio"))]
use crate::sender::Sender;

/// Longest time that a reply waits for the rest of its burst, checked when the connection is next used.
const BURST_MAX: std::time::Duration = std::time::Duration::from_millis(1);

/// In a burst, the clock is read for the first message after a reply, and then once for so many messages.
const CLOCK_EVERY: u32 = 8;

/// The result of a call that has waited for capacity: the queue accepts its message.
pub(crate) fn accepted(queued: Result<Sent, Error>) -> Result<(), Error> {
    debug_assert!(
        !matches!(queued, Ok(Sent::Dropped)),
        "a message was dropped although the queue had capacity"
    );
    queued.map(drop)
}

/// The result of `Sink::start_send`. A caller that has not waited for `poll_ready` learns that its message is dropped.
#[cfg(any(feature = "tokio", feature = "compio"))]
pub(crate) fn started(queued: Result<Sent, Error>) -> Result<(), Error> {
    match queued? {
        Sent::Dropped => Err(Misuse::QueueFull.into()),
        Sent::Queued | Sent::Backpressure => Ok(()),
    }
}

impl Link {
    /// Queues a message.
    #[inline(always)]
    pub(crate) fn queue(&mut self, message: Message) -> Result<Sent, Error> {
        match message {
            Message::Text(text) => self.queue_data(Kind::Text, text.into_bytes()),
            Message::Binary(bytes) => self.queue_data(Kind::Binary, bytes),
            control => self.queue_control(control),
        }
    }

    #[inline]
    fn queue_data(&mut self, kind: Kind, payload: Bytes) -> Result<Sent, Error> {
        self.send_with(|tx| tx.send_owned(kind, payload))
    }

    fn queue_control(&mut self, message: Message) -> Result<Sent, Error> {
        match message {
            Message::Ping(payload) => self.send_with(|tx| tx.send_ping(&payload)),
            Message::Pong(payload) => self.send_with(|tx| tx.send_pong(&payload)),
            Message::Close(Some(frame)) => self.close(frame.code(), frame.reason()).map(|()| Sent::Queued),
            _ => self.close(CloseCode::NORMAL, "").map(|()| Sent::Queued),
        }
    }

    /// Queues a message that is framed once for many connections.
    pub(crate) fn publish(&mut self, message: &Prepared) -> Result<Sent, Error> {
        self.send_with(|tx| tx.send_prepared(message))
    }

    /// Queues a borrowed message.
    pub(crate) fn queue_borrowed(&mut self, kind: Kind, payload: &[u8]) -> Result<Sent, Error> {
        self.send_with(|tx| tx.send(kind, payload))
    }

    /// Queues a message of several buffers.
    pub(crate) fn queue_pieces(&mut self, kind: Kind, pieces: &[Bytes]) -> Result<Sent, Error> {
        self.send_with(|tx| tx.send_pieces(kind, pieces))
    }

    #[inline]
    fn send_with<T>(&mut self, send: impl FnOnce(&mut Tx<'_>) -> Result<T, Misuse>) -> Result<T, Error> {
        if self.lifecycle.send_ended {
            return Err(self.end_error());
        }
        let now = self.now;
        let sent = resources::with(|shared| {
            let sent = send(&mut self.session.tx(shared, now));
            self.session.after_tx(shared, now);
            sent
        });
        self.outbound.queued_at.get_or_insert(now);
        self.outbound.has_sent = true;
        let sent = match sent {
            Ok(sent) if self.session.is_open() => Ok(sent),
            sent => self.settle_end(sent),
        };
        self.debug_check();
        sent
    }

    /// The error of a rejected message: the connection is closing, or the call was not possible.
    #[cold]
    fn settle_end<T>(&mut self, sent: Result<T, Misuse>) -> Result<T, Error> {
        self.lifecycle.recheck = true;
        self.note_closed();
        if self.is_overflowed() {
            return Err(self.end_error());
        }
        sent.map_err(|misuse| match misuse {
            Misuse::Closing if self.lifecycle.closed.is_some() => self.end_error(),
            misuse => misuse.into(),
        })
    }

    /// Queues a piece of a message.
    pub(crate) fn queue_piece(&mut self, kind: Kind, piece: &[u8], last: bool) -> Result<Sent, Error> {
        self.send_with(|tx| tx.send_fragment(kind, piece, last))
    }

    /// Begins the closing handshake behind queued messages.
    pub(crate) fn close(&mut self, code: CloseCode, reason: &str) -> Result<(), Error> {
        if !self.lifecycle.send_ended {
            self.collect_last();
        }
        self.send_with(|tx| tx.close(code, reason))
    }

    /// A handle for a producer. The first call sets the capacity of the queue.
    #[cfg(any(feature = "tokio", feature = "compio"))]
    pub(crate) fn sender(&mut self, capacity: usize) -> Sender {
        let inbox = self.outbound.inbox.get_or_insert_with(|| Box::new(SenderQueue::new(capacity)));
        match &self.lifecycle.closed {
            Some(closed) => inbox.ended(closed),
            None if !self.session.is_open() || self.lifecycle.send_ended => inbox.close(),
            None => {}
        }
        inbox.sender()
    }

    /// Whether there are producers.
    #[inline]
    pub(crate) fn has_inbox(&self) -> bool {
        self.outbound.inbox.is_some()
    }

    /// Queues messages of producers while there is capacity. Returns whether more may be available; if not, the next
    /// message wakes the task.
    #[inline]
    pub(crate) fn collect(&mut self, cx: &mut Context<'_>) -> bool {
        if self.outbound.inbox.is_none() { false } else { self.collect_queued(cx) }
    }

    fn collect_queued(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(mut inbox) = self.outbound.inbox.take() else { return false };
        let more = loop {
            if !self.session.is_open() || self.lifecycle.send_ended {
                inbox.close();
                break false;
            }
            if self.session.is_mid_message() {
                break false;
            }
            if self.is_congested() {
                break true;
            }
            match inbox.poll_next(cx) {
                // The sender checked the message, and the connection is open and has capacity.
                Poll::Ready(message) => drop(self.queue_collected(message)),
                Poll::Pending => break false,
            }
        };
        self.outbound.inbox = Some(inbox);
        more
    }

    #[cfg(any(feature = "tokio", feature = "compio"))]
    fn queue_collected(&mut self, message: SenderMessage) -> Result<Sent, Error> {
        match message {
            SenderMessage::Own(message) => self.queue(message),
            SenderMessage::Published(message) => self.publish(&message),
        }
    }

    #[cfg(not(any(feature = "tokio", feature = "compio")))]
    #[allow(
        clippy::needless_pass_by_ref_mut,
        clippy::unused_self,
        reason = "same signature as with producers"
    )]
    fn queue_collected(&mut self, message: SenderMessage) -> Result<Sent, Error> {
        match message {}
    }

    /// Queues the producers' messages before our Close, up to [`Config::max_outbound`].
    fn collect_last(&mut self) {
        let Some(mut inbox) = self.outbound.inbox.take() else { return };
        let most = self.session.config().max_outbound();
        while self.session.is_open() && !self.session.is_mid_message() && self.session.buffered() < most {
            let Some(message) = inbox.next() else { break };
            let _ = self.queue_collected(message);
        }
        inbox.close();
        self.outbound.inbox = Some(inbox);
    }

    /// Whether messages of producers wait and may leave.
    #[inline]
    fn has_queued(&self) -> bool {
        self.outbound.inbox.as_ref().is_some_and(|inbox| !inbox.is_empty()) && !self.session.is_mid_message()
    }

    /// Whether further received input is unprocessed: a reply sent now can wait for the replies to the rest of a
    /// burst.
    #[inline]
    pub(crate) fn is_in_burst(&self) -> bool {
        self.inbound.pending_event.is_some()
            || !self.inbound.exhausted && self.session.holds_event(self.inbound.unread())
    }

    /// Whether a message sent now can wait for the rest of the replies to a burst. It cannot while an event is
    /// parked, since no receive call is running; nor while one message gets many replies for longer than
    /// [`BURST_MAX`].
    #[inline]
    pub(crate) fn is_answering(&mut self, now: impl FnOnce() -> Time) -> bool {
        if self.inbound.pending_event.is_some() || !self.is_in_burst() {
            return false;
        }
        self.outbound.answers += 1;
        self.outbound.answers == 1 || now().since(self.outbound.queued_at.unwrap_or(self.now)) <= BURST_MAX
    }

    /// Whether no further message should be queued before queued bytes have left.
    #[inline]
    pub(crate) fn is_congested(&self) -> bool {
        (self.session.is_congested() || self.outbound.fills_early && self.is_full())
            && !self.lifecycle.send_ended
    }

    /// Whether the overflow policy would apply to the next message.
    #[cold]
    fn is_full(&self) -> bool {
        self.session.buffered() >= self.config().max_outbound()
    }

    /// Whether a queued reply must leave before the application handles this event: the reply to a Close, the pong
    /// for a ping that ends a burst, or a reply that has waited for its burst long enough. The clock is not read for
    /// each message, since that would slow a fast application.
    #[inline]
    pub(crate) fn is_urgent(&mut self, event: &ReceivedEvent, now: impl FnOnce() -> Time) -> bool {
        *event == ReceivedEvent::Close || self.is_overdue(now)
    }

    /// The same for any event but a Close.
    #[inline]
    pub(crate) fn is_overdue(&mut self, now: impl FnOnce() -> Time) -> bool {
        if self.outbound.pong_queued && !self.is_in_burst() {
            return true;
        }
        let Some(queued) = self.outbound.queued_at else { return false };
        self.outbound.handed_out += 1;
        (self.outbound.handed_out == 1 || self.outbound.handed_out.is_multiple_of(CLOCK_EVERY))
            && now().since(queued) > BURST_MAX
    }

    /// Whether bytes wait to leave.
    #[inline]
    pub(crate) fn wants_send(&self) -> bool {
        !self.lifecycle.send_ended
            && (self.outbound.send_taken
                || self.outbound.sending.is_some()
                || self.session.wants_send()
                || self.has_queued())
    }

    /// The bytes to send next. Report progress through [`sent`](Self::sent).
    #[inline]
    pub(crate) fn next_send(&mut self) -> Option<&Chain> {
        if self.lifecycle.send_ended || !self.may_send() {
            return None;
        }
        if self.outbound.sending.is_none() {
            self.outbound.sending = self.session.start_send();
            (self.outbound.queued_at, self.outbound.handed_out) = (None, 0);
            self.outbound.pong_queued = false;
        }
        self.debug_check();
        self.outbound.sending.as_deref()
    }

    /// The bytes to send next, by value. Return them through [`return_send`](Self::return_send).
    #[inline]
    #[cfg(feature = "compio")]
    pub(crate) fn take_send(&mut self) -> Option<Box<Chain>> {
        self.next_send()?;
        self.outbound.send_taken = true;
        self.outbound.sending.take()
    }

    /// Takes a send back; [`sent`](Self::sent) reports its progress.
    #[inline]
    #[cfg(feature = "compio")]
    pub(crate) fn return_send(&mut self, chain: Box<Chain>) {
        self.outbound.send_taken = false;
        self.outbound.sending = Some(chain);
        self.debug_check();
    }

    /// Accounts so many bytes as sent.
    #[inline]
    pub(crate) fn sent(&mut self, count: usize) {
        let Some(chain) = &mut self.outbound.sending else { return };
        chain.advance(count);
        if !chain.is_empty() {
            return self.session.progressed(count, self.now);
        }
        if let Some(chain) = self.outbound.sending.take() {
            let now = self.now;
            // The buffer becomes spare memory.
            self.lifecycle.recheck |= chain.holds_large();
            resources::with(|shared| self.session.finish_send(chain, shared, now));
            // A timeout that starts when a message has left may expire before the current one.
            self.lifecycle.recheck |= self.outbound.stalled;
        }
        self.debug_check();
    }

    /// The transport accepts no more bytes for now.
    pub(crate) fn stalled(&mut self) {
        self.outbound.stalled = true;
        self.lifecycle.recheck = true;
        self.session.stalled(self.now);
    }

    /// Everything was sent.
    #[inline]
    pub(crate) fn unstalled(&mut self) {
        self.outbound.stalled = false;
    }

    /// Whether bytes have waited for the transport since an earlier call.
    #[inline]
    pub(crate) fn is_stalled(&self) -> bool {
        self.outbound.stalled
    }

    /// The transport accepts no more bytes. Data of the peer may still be read.
    pub(crate) fn send_failed(&mut self, error: io::Error) {
        self.lifecycle.send_ended = true;
        if self.lifecycle.io_error.is_none() {
            self.lifecycle.io_error = Some(error);
        }
        self.debug_check();
    }

    /// Whether queued bytes can still leave.
    pub(crate) fn check_sending(&self) -> Result<(), Error> {
        if self.lifecycle.send_ended { Err(self.end_error()) } else { Ok(()) }
    }

    /// Whether the end of the sending side was sent.
    pub(crate) fn is_shut(&self) -> bool {
        self.lifecycle.shut
    }

    /// Records that the end of the sending side was sent.
    pub(crate) fn shut(&mut self) {
        self.lifecycle.shut = true;
        self.debug_check();
    }
}
