//! The half that sends messages.

use std::fmt;
use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_sink::Sink;
use sinews_proto::{CloseCode, Kind, Misuse, Time};
use sinews_session::{Prepared, Sent};
use tokio::time::Sleep;

use super::outlet::{BorrowedDriver, SharedDriver, WriteOutlet};
use super::read::{ReadDriver, ReadHalf};
use super::transport::Split;
use crate::driver::{Driver as _, POLL_INTERVAL};
use crate::error::Error;
use crate::link::{HalfSide, Link, accepted, started};
use crate::message::Message;
use crate::methods;
use crate::sender::Sender;
use crate::tokio::driver::{instant, now};
use crate::tokio::pieces::{MessageWriter, SendPieces};

/// The sending half of a [`WebSocket`](crate::WebSocket). A message leaves at once; messages queued while another is
/// in flight leave with the next, in one write.
///
/// While the [`ReadHalf`] is not in use, sending also answers pings and the peer's Close, and executes the deadlines.
/// Messages queued when the `WriteHalf` is dropped leave while the reader waits for messages. Dropping it does not
/// close the connection.
pub struct WriteHalf<T: Split> {
    /// Its own link, unless the reader or a `Sender` uses the link too.
    link: Option<Box<Link>>,
    outlet: Arc<WriteOutlet<T::Write>>,
    shared_driver: Arc<SharedDriver<ReadDriver<T>>>,
    /// For the write timeout.
    deadline_timer: DeadlineTimer,
    /// When it last checked for input.
    polled_at: Time,
}

impl<T: Split> WriteHalf<T> {
    methods::accessors!(this => end: this.outlet.pair, info: this.outlet.info);

    pub(super) fn new(
        outlet: Arc<WriteOutlet<T::Write>>,
        shared_driver: Arc<SharedDriver<ReadDriver<T>>>,
        link: Link,
    ) -> Self {
        let polled_at = link.now;
        let shares = link.has_inbox();
        let mut half = Self {
            link: Some(Box::new(link)),
            outlet,
            shared_driver,
            deadline_timer: DeadlineTimer::default(),
            polled_at,
        };
        if shares {
            half.share();
        }
        half
    }

    /// Lets the reader send messages queued here.
    fn share(&mut self) {
        if let Some(link) = self.link.take() {
            self.outlet.share(link);
        }
    }

    /// Runs `work` with the link, owned or shared.
    fn with<R>(&mut self, work: impl FnOnce(&mut Link) -> R) -> R {
        match &mut self.link {
            Some(link) => work(link),
            None => work(self.outlet.data().as_mut().expect("the link is shared while both halves exist")),
        }
    }

    pub(super) fn is_of(&self, read: &ReadHalf<T>) -> bool {
        Arc::ptr_eq(&self.outlet, &read.outlet)
    }

    pub(super) fn into_parts(mut self) -> (Link, Arc<WriteOutlet<T::Write>>) {
        let link = self.link.take().or_else(|| self.outlet.data().take());
        (*link.expect("the link is shared while both halves exist"), self.outlet.clone())
    }

    /// Sends a message. It leaves at once, behind queued messages.
    ///
    /// Cancel-safe: a dropped future has queued the message whole or not at all.
    ///
    /// # Errors
    /// See [`Error`]; [`Error::Closed`] once the reader knows how the connection ended, [`Misuse::Closing`] once a
    /// Close is decided.
    pub async fn send(&mut self, message: impl Into<Message>) -> Result<(), Error> {
        let mut message = Some(message.into());
        poll_fn(|cx| self.poll_queue(cx, |link| message.take().map(|message| link.queue(message)))).await
    }

    /// Sends borrowed text, copied once, behind its frame header; otherwise as [`send`](Self::send).
    ///
    /// Cancel-safe, as [`send`](Self::send) is.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn send_text(&mut self, text: &str) -> Result<(), Error> {
        self.send_borrowed(Kind::Text, text.as_bytes()).await
    }

    /// Sends a borrowed binary message, copied once, behind its frame header; otherwise as [`send`](Self::send).
    ///
    /// Cancel-safe, as [`send`](Self::send) is.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn send_binary(&mut self, payload: &[u8]) -> Result<(), Error> {
        self.send_borrowed(Kind::Binary, payload).await
    }

    async fn send_borrowed(&mut self, kind: Kind, payload: &[u8]) -> Result<(), Error> {
        let mut payload = Some(payload);
        let mut queue = |link: &mut Link| payload.take().map(|payload| link.queue_borrowed(kind, payload));
        poll_fn(|cx| self.poll_queue(cx, &mut queue)).await
    }

    /// Sends one message from several buffers, as [`WebSocket::send_vectored`](crate::WebSocket::send_vectored).
    ///
    /// Cancel-safe, as [`send`](Self::send) is.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn send_vectored(&mut self, kind: Kind, pieces: &[Bytes]) -> Result<(), Error> {
        let mut pieces = Some(pieces);
        let mut queue = |link: &mut Link| pieces.take().map(|pieces| link.queue_pieces(kind, pieces));
        poll_fn(|cx| self.poll_queue(cx, &mut queue)).await
    }

    /// Queues once, when there is capacity, and sends.
    fn poll_queue(
        &mut self,
        cx: &mut Context<'_>,
        queue: impl FnOnce(&mut Link) -> Option<Result<Sent, Error>>,
    ) -> Poll<Result<(), Error>> {
        if let Some(queued) = ready!(self.poll_with_capacity(cx, queue)) {
            accepted(queued)?;
        }
        self.poll_out(cx)
    }

    /// Queues a message, without sending it: it leaves with the next [`flush`](Self::flush) or [`send`](Self::send).
    /// Waits only while more than [`Config::high_water`](crate::Config::high_water) bytes are queued.
    ///
    /// Cancel-safe, as [`send`](Self::send) is.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn feed(&mut self, message: impl Into<Message>) -> Result<(), Error> {
        let mut message = Some(message.into());
        poll_fn(|cx| {
            let queue = |link: &mut Link| message.take().map(|message| link.queue(message));
            self.poll_with_capacity(cx, queue).map(|queued| queued.map_or(Ok(()), accepted))
        })
        .await
    }

    /// Queues a message without waiting. If [`Config::max_outbound`](crate::Config::max_outbound) bytes are queued
    /// already, [`Config::overflow`](crate::Config::overflow) applies.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn try_send(&mut self, message: impl Into<Message>) -> Result<Sent, Error> {
        self.queue(message.into())
    }

    /// Queues a message that is framed once for many connections, as
    /// [`WebSocket::publish`](crate::WebSocket::publish).
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn publish(&mut self, message: &Prepared) -> Result<Sent, Error> {
        self.queue_by(|link| link.publish(message))
    }

    /// Sends a message in chunks, as [`WebSocket::writer`](crate::WebSocket::writer).
    pub fn writer(&mut self, kind: Kind) -> MessageWriter<'_, Self> {
        MessageWriter::new(self, kind)
    }

    /// Whether a message of a [`writer`](Self::writer) has begun and not ended, as
    /// [`WebSocket::is_mid_message`](crate::WebSocket::is_mid_message).
    #[must_use]
    pub fn is_mid_message(&self) -> bool {
        match &self.link {
            Some(link) => link.is_mid_message(),
            None => self.outlet.data().as_ref().is_some_and(|link| link.is_mid_message()),
        }
    }

    /// Sends everything that is queued.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn flush(&mut self) -> Result<(), Error> {
        poll_fn(|cx| self.poll_out(cx)).await
    }

    /// Begins the closing handshake behind queued messages (RFC 6455 section 7.1.2), and waits until the Close has
    /// left. The [`ReadHalf`] receives the reply, and waits for it at most
    /// [`Config::close_timeout`](crate::Config::close_timeout). If a Close is decided already, the call does nothing.
    ///
    /// Cancel-safe: call [`flush`](Self::flush).
    ///
    /// # Errors
    /// [`Error::Misuse`] for a reason over 123 bytes; [`Error::Io`].
    pub async fn close(&mut self, code: CloseCode, reason: &str) -> Result<(), Error> {
        ignore_closing(self.start_close(code, reason))?;
        ignore_closing(self.flush().await)
    }

    /// Closes the connection without waiting for the peer, as [`WebSocket::close_now`](crate::WebSocket::close_now):
    /// sends queued messages and a Close frame, ends the sending side, and drops received messages. Drop both halves
    /// afterwards: the [`ReadHalf`], even one that is awaited, returns `None` from now on.
    ///
    /// Cancel-safe: call it again.
    ///
    /// # Errors
    /// As [`WebSocket::close_now`](crate::WebSocket::close_now).
    pub async fn close_now(&mut self, code: CloseCode, reason: &str) -> Result<(), Error> {
        ignore_closing(self.start_close(code, reason))?;
        let wait = self.config().close_timeout();
        let left = tokio::time::timeout(wait, poll_fn(|cx| self.poll_close_now(cx))).await;
        self.with(|link| link.end_unanswered(code, reason));
        left.unwrap_or_else(|_| Err(Error::Io(std::io::ErrorKind::TimedOut.into())))
    }

    fn poll_close_now(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        ready!(self.poll_unless_closing(cx))?;
        // A Close of the reader may still be queued there.
        self.with_reader(cx, |driver, cx| {
            let _ = driver.poll_send(cx);
        });
        ready!(self.poll_unless_closing(cx))?;
        if !self.with(|link| link.is_shut()) {
            ready!(self.outlet.poll_shut(HalfSide::Write, cx))?;
            self.with(Link::shut);
        }
        self.with_reader(cx, |driver, cx| driver.discard_received(cx));
        Poll::Ready(Ok(()))
    }

    /// Sends all that is queued, or its rest once a Close is decided.
    fn poll_unless_closing(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(match ready!(self.poll_out(cx)) {
            Err(Error::Closed(closed)) if closed.is_orderly() => Ok(()),
            Err(Error::Misuse(Misuse::Closing)) => Ok(()),
            sent => sent,
        })
    }

    /// Runs `work` with the reader's connection, unless its owner has it.
    fn with_reader(&self, cx: &Context<'_>, work: impl FnOnce(&mut ReadDriver<T>, &mut Context<'_>)) {
        let Some(mut borrowed) = self.shared_driver.borrow() else { return };
        borrowed.driver.link.now = now();
        borrowed.driver.link.sync();
        let waker = borrowed.owner.as_ref().unwrap_or_else(|| cx.waker());
        work(&mut borrowed.driver, &mut Context::from_waker(waker));
        self.shared_driver.put_borrowed(borrowed.driver, false);
    }

    /// Begins the closing handshake behind queued messages, without waiting: the Close leaves with the next
    /// [`flush`](Self::flush). The [`ReadHalf`] sees the end.
    ///
    /// # Errors
    /// [`Error::Misuse`] for a reason over 123 bytes, or if a Close is decided already.
    pub fn start_close(&mut self, code: CloseCode, reason: &str) -> Result<(), Error> {
        self.with(|link| {
            link.now = now();
            link.sync();
            link.close(code, reason)
        })
    }

    /// A handle by which any task may send on this connection, as [`WebSocket::sender`](crate::WebSocket::sender).
    /// Its messages leave while either half is awaited. From the first call on, the halves share a lock, which is
    /// held while a message is encoded.
    pub fn sender(&mut self) -> Sender {
        self.sender_with_capacity(Sender::CAPACITY)
    }

    /// As [`sender`](Self::sender), with capacity for `capacity` messages, at least one. The first call for a
    /// connection sets it.
    pub fn sender_with_capacity(&mut self, capacity: usize) -> Sender {
        self.share();
        let sender = self.with(|link| link.sender(capacity));
        self.outlet.pair.wake_side(HalfSide::Read);
        sender
    }

    fn queue(&mut self, message: Message) -> Result<Sent, Error> {
        self.queue_by(|link| link.queue(message))
    }

    fn queue_by<R>(&mut self, queue: impl FnOnce(&mut Link) -> R) -> R {
        self.with(|link| {
            link.now = now();
            link.sync();
            queue(link)
        })
    }

    /// Waits until there is capacity for a message, and queues it before the reader queues one of a [`Sender`].
    fn poll_with_capacity<R>(&mut self, cx: &mut Context<'_>, queue: impl FnOnce(&mut Link) -> R) -> Poll<R> {
        let mut queue = Some(queue);
        loop {
            let queued =
                self.queue_by(|link| queue.take_if(|_| !link.is_congested()).map(|queue| queue(link)));
            if let Some(queued) = queued {
                return Poll::Ready(queued);
            }
            ready!(self.poll_progress(cx));
        }
    }

    /// Waits until there is capacity for a message.
    fn poll_capacity(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.with(|link| {
            link.sync();
            link.is_congested()
        }) {
            ready!(self.poll_progress(cx));
        }
        Poll::Ready(())
    }

    /// Sends all that is queued.
    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let sent = loop {
            match self.poll_progress(cx) {
                Poll::Ready(true) => break Poll::Ready(()),
                Poll::Ready(false) => {}
                Poll::Pending => break Poll::Pending,
            }
        };
        self.check_input(cx);
        ready!(sent);
        Poll::Ready(self.with(|link| {
            link.sync();
            link.check_sending()
        }))
    }

    /// Sends; executes the write timeout meanwhile. Returns whether all has left; if not, a timeout has expired.
    fn poll_progress(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let (link, outlet) = (&mut self.link, &self.outlet);
        let sent = outlet.poll_send(HalfSide::Write, cx, |out, both| match link {
            Some(link) => {
                link.now = now();
                out.exchange(link, both);
            }
            None => {
                if let Some(link) = outlet.data().as_mut() {
                    link.now = now();
                    out.exchange(link, both);
                }
            }
        });
        if sent.is_ready() {
            return Poll::Ready(true);
        }
        loop {
            let Some(next) = self.with(|link| link.deadline()) else { return Poll::Pending };
            ready!(self.deadline_timer.poll(cx, next));
            let due = self.with(|link| {
                link.now = now();
                let due = link.deadline().is_some_and(|deadline| deadline <= link.now);
                link.timeout();
                due
            });
            if due {
                return Poll::Ready(false);
            }
        }
    }

    /// Handles input now and then while no task reads.
    fn check_input(&mut self, cx: &mut Context<'_>) {
        let now = now();
        if now.since(self.polled_at) <= POLL_INTERVAL {
            return;
        }
        self.polled_at = now;
        let Some(borrowed) = self.shared_driver.borrow() else { return };
        let BorrowedDriver { mut driver, owner, is_owner_dropped } = borrowed;
        driver.link.now = now;
        driver.link.sync();
        if is_owner_dropped {
            drop_messages::<T>(&mut driver, cx);
        } else {
            // The transport and the timer must have the reader's waker. A reader that has not waited yet polls both
            // itself, once it does.
            let cx = &mut Context::from_waker(owner.as_ref().unwrap_or_else(|| cx.waker()));
            driver.poll_input(cx);
            let _ = driver.poll_send(cx);
            // The awaited message may be behind the received bytes.
            if !driver.link.has_pending_event() {
                let _ = driver.poll_timer(cx);
            }
        }
        let has_news = driver.link.has_pending_event() || driver.link.closed().is_some();
        self.shared_driver.put_borrowed(driver, has_news);
    }
}

impl<T: Split> SendPieces for WriteHalf<T> {
    fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
        kind: Kind,
        part: &[u8],
        last: bool,
    ) -> Poll<Result<(), Error>> {
        self.poll_with_capacity(cx, |link| link.queue_piece(kind, part, last)).map(accepted)
    }

    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.poll_out(cx)
    }
}

/// A timer for a deadline that mostly moves later unnoticed.
#[derive(Default)]
struct DeadlineTimer {
    /// Created when first needed.
    timer: Option<Pin<Box<Sleep>>>,
    /// When it fires, if it is set.
    armed: Option<Time>,
}

impl DeadlineTimer {
    /// Ready: the deadline has expired, unless it has moved later.
    fn poll(&mut self, cx: &mut Context<'_>, next: Time) -> Poll<()> {
        if self.armed.is_none_or(|armed| next < armed) {
            self.armed = Some(next);
            match &mut self.timer {
                Some(timer) => timer.as_mut().reset(instant(next)),
                None => self.timer = Some(Box::pin(tokio::time::sleep_until(instant(next)))),
            }
        }
        let Some(timer) = &mut self.timer else { return Poll::Pending };
        ready!(timer.as_mut().poll(cx));
        self.armed = None;
        Poll::Ready(())
    }
}

/// Messages that are dropped in a row, before the task continues to send.
const DROPPED_MAX: usize = 64;

/// For a dropped reader: answers pings and a Close, executes deadlines, and drops messages.
fn drop_messages<T: Split>(driver: &mut ReadDriver<T>, cx: &mut Context<'_>) {
    for _ in 0..DROPPED_MAX {
        if !matches!(driver.poll_event(cx), Poll::Ready(Some(_))) {
            break;
        }
    }
}

/// Ignores the error of a Close that is decided already.
fn ignore_closing(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(Error::Closed(_) | Error::Misuse(Misuse::Closing)) => Ok(()),
        result => result,
    }
}

/// The reader sends queued messages.
impl<T: Split> Drop for WriteHalf<T> {
    fn drop(&mut self) {
        self.share();
    }
}

impl<T: Split> Sink<Message> for WriteHalf<T> {
    type Error = Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        ready!(self.poll_capacity(cx));
        Poll::Ready(self.with(|link| link.check_sending()))
    }

    fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), Error> {
        started(self.queue(message))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.poll_out(cx)
    }

    /// As [`close`](WriteHalf::close) with 1000.
    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        ignore_closing(self.start_close(CloseCode::NORMAL, ""))?;
        self.poll_out(cx).map(ignore_closing)
    }
}

impl<T: Split> Unpin for WriteHalf<T> {}

impl<T: Split> fmt::Debug for WriteHalf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteHalf").field("closed", &self.closed()).finish_non_exhaustive()
    }
}
