//! Application callbacks of a WebSocket connection.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::task::Waker;
use std::time::{Duration, Instant};

use sinews_engine::ConnId;
use sinews_session::{Closed, Fragment, Payload, Prepared, Tx};

use crate::tasks::Tasks;
use crate::topics::backlog::{Backlog, Missed};
use crate::topics::{InvalidTopic, Joined, Position, Start, SubscriptionChange, Topics};
use crate::websocket::deliver;

/// Application side of one WebSocket connection. All callbacks run on the connection's thread, one at a time.
/// Everything they send in response to messages that arrived together leaves in one send.
///
/// `open` and `close` run once each.
pub trait Handler {
    /// Handles the open connection.
    fn open(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// Handles a message. The payload is borrowed: [`Payload::detach`] keeps it.
    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>);

    /// Handles a piece of a message, after [`Tx::deliver_fragments`]: for messages larger than memory. The limits
    /// still apply; raise them for streams: [`Config::max_message`](crate::Config::max_message) for the message,
    /// [`Config::max_frame`](crate::Config::max_frame) for each frame of it, and
    /// [`Config::max_fragments`](crate::Config::max_fragments) for the number of frames.
    fn fragment(&mut self, fragment: Fragment<'_>, cx: &mut Context<'_>) {
        let _ = (fragment, cx);
    }

    /// Handles a pong, solicited or not. `round_trip` is the round-trip time of the newest keepalive ping, if this
    /// pong answers it. Pings are answered without the handler.
    fn pong(&mut self, payload: &[u8], round_trip: Option<Duration>, cx: &mut Context<'_>) {
        let _ = (payload, round_trip, cx);
    }

    /// Handles a drained outbound queue: it has fallen below half of the high-water mark, after
    /// [`Sent::Backpressure`](crate::Sent::Backpressure).
    fn drain(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// Returns when to call [`expired`](Self::expired), for example at the expiry of a token or a lease. Evaluated
    /// after [`open`](Self::open) and [`woken`](Self::woken), and whenever a timer of the connection fires: at the
    /// latest at the previous deadline. So a handler whose deadline moves to an earlier time has to wake itself. After a call,
    /// only a deadline in the future leads to another call. Default: never.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Handles the [`deadline`](Self::deadline).
    fn expired(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// Handles a wakeup by the [waker](Context::waker) of this connection, from any thread. Wakeups are coalesced:
    /// one call per turn of the loop. Wakeups during the call lead to another call. A closing connection is still
    /// woken, a closed connection is not.
    fn woken(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// Handles dropped messages of topics: this connection was slower than its topics
    /// ([`SlowConsumer`](crate::SlowConsumer)). Runs after the running callback has returned. Publishing from here to
    /// a topic that this connection is too slow for leads to another call.
    fn dropped(&mut self, dropped: &Missed, cx: &mut Context<'_>) {
        let _ = (dropped, cx);
    }

    /// Handles the start or end of a subscription of this connection by name, with the current count: for topics with
    /// [`TopicRule::with_presence`](crate::TopicRule::with_presence). Runs after the running callback has returned.
    /// Subscriptions that end with the connection are reported before [`close`](Self::close).
    fn subscription(&mut self, change: &SubscriptionChange, cx: &mut Context<'_>) {
        let _ = (change, cx);
    }

    /// Handles the end of the connection: a Close of either side, an error, a timeout, or the end of the transport.
    /// Nothing can be sent any more, and the subscriptions have ended.
    fn close(&mut self, closed: &Closed, cx: &mut Context<'_>) {
        let _ = (closed, cx);
    }
}

/// Lets one route use handlers of several types.
impl<H: Handler + ?Sized> Handler for Box<H> {
    fn open(&mut self, cx: &mut Context<'_>) {
        (**self).open(cx);
    }

    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        (**self).message(payload, cx);
    }

    fn fragment(&mut self, fragment: Fragment<'_>, cx: &mut Context<'_>) {
        (**self).fragment(fragment, cx);
    }

    fn pong(&mut self, payload: &[u8], round_trip: Option<Duration>, cx: &mut Context<'_>) {
        (**self).pong(payload, round_trip, cx);
    }

    fn drain(&mut self, cx: &mut Context<'_>) {
        (**self).drain(cx);
    }

    fn deadline(&self) -> Option<Instant> {
        (**self).deadline()
    }

    fn expired(&mut self, cx: &mut Context<'_>) {
        (**self).expired(cx);
    }

    fn woken(&mut self, cx: &mut Context<'_>) {
        (**self).woken(cx);
    }

    fn dropped(&mut self, dropped: &Missed, cx: &mut Context<'_>) {
        (**self).dropped(dropped, cx);
    }

    fn subscription(&mut self, change: &SubscriptionChange, cx: &mut Context<'_>) {
        (**self).subscription(change, cx);
    }

    fn close(&mut self, closed: &Closed, cx: &mut Context<'_>) {
        (**self).close(closed, cx);
    }
}

/// Interface of a callback: everything of [`Tx`] on its own connection, and topics.
#[derive(Debug)]
pub struct Context<'a> {
    tx: Tx<'a>,
    topics: &'a mut Topics,
    /// Queued messages of topics, if the connection is slow.
    backlog: &'a mut Option<Box<Backlog>>,
    /// Reads are paused: the handler gets no messages.
    held: &'a mut bool,
    tasks: &'a Tasks,
    conn: ConnId,
    peer: SocketAddr,
}

impl<'a> Context<'a> {
    #[inline]
    pub(crate) fn new(
        tx: Tx<'a>,
        topics: &'a mut Topics,
        backlog: &'a mut Option<Box<Backlog>>,
        held: &'a mut bool,
        tasks: &'a Tasks,
        conn: ConnId,
        peer: SocketAddr,
    ) -> Self {
        Self { tx, topics, backlog, held, tasks, conn, peer }
    }

    /// Returns the peer's address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns a waker that calls [`Handler::woken`] on the thread of this connection. It may be used from any thread
    /// and any number of times, to signal work that completes elsewhere. No wakeup is lost; waking a closed
    /// connection does nothing. Clones are the same waker ([`Waker::will_wake`]). A connection that never calls this
    /// has no waker.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker::from(self.tasks.waker_of(self.conn))
    }

    /// Pauses reads: the handler gets no further message until [`release`](Self::release), for example while its own
    /// destination is full. Input that has already arrived is buffered with the connection, at most one chunk; the
    /// rest stays with the peer. [`Handler::woken`], [`Handler::drain`] and sends go on. Pongs of the peer are not
    /// read either, so a connection that is paused for longer than
    /// [`Config::ping_interval`](crate::Config::ping_interval) and
    /// [`Config::pong_timeout`](crate::Config::pong_timeout) together is closed.
    pub fn hold(&mut self) {
        *self.held = true;
    }

    /// Resumes reads after [`hold`](Self::hold), once [`Handler::woken`], [`Handler::drain`] or [`Handler::expired`]
    /// has returned. Called in another callback, it takes effect with the next of these.
    pub fn release(&mut self) {
        *self.held = false;
    }

    /// Subscribes this connection to a topic, or to all topics that match a pattern ([`Topics`]). Repeated
    /// subscriptions count once. A message that matches several subscriptions is delivered once.
    ///
    /// # Errors
    /// [`InvalidTopic`]: the name is invalid, or the subscription limit is reached.
    pub fn subscribe(&mut self, topic: &str) -> Result<(), InvalidTopic> {
        self.topics.subscribe(topic, self.conn)
    }

    /// Subscribes to a topic with history ([`TopicRule::with_history`](crate::TopicRule::with_history)), starting at
    /// an earlier message. The retained messages follow, then new ones, in order, without duplicates or gaps. The
    /// history is read as fast as the connection takes it, so replay costs no memory. Messages that expire before
    /// they are read are reported ([`Handler::dropped`]). Other messages to this connection may come in between.
    ///
    /// An existing subscription is replayed from that position again.
    ///
    /// # Errors
    /// [`InvalidTopic::NotKept`], and as [`subscribe`](Self::subscribe).
    pub fn subscribe_from(&mut self, topic: &str, start: Start) -> Result<Joined, InvalidTopic> {
        self.topics.subscribe_from(topic, start, self.conn, self.backlog)
    }

    /// Subscribes to a topic with history, by this name or by a pattern, but delivers nothing until
    /// [`subscribe_from`](Self::subscribe_from) sets the start. For a handler that sends older messages from another
    /// source first, such as a disk, or that goes back to dropped messages ([`Missed::first`](crate::Missed::first)).
    /// An existing subscription is suspended alike.
    ///
    /// # Errors
    /// [`InvalidTopic::NotKept`], and as [`subscribe`](Self::subscribe).
    pub fn subscribe_later(&mut self, topic: &str) -> Result<(), InvalidTopic> {
        self.topics.subscribe_later(topic, self.conn, self.backlog)
    }

    /// Returns the topics: retained messages and positions.
    #[must_use]
    pub fn topics(&self) -> &Topics {
        self.topics
    }

    /// Ends a subscription. Returns whether it existed.
    pub fn unsubscribe(&mut self, topic: &str) -> bool {
        self.topics.unsubscribe(topic, self.conn)
    }

    /// Publishes to every subscriber, this connection included if it is subscribed. Later sends of this connection
    /// come after the message, unless the topic has history ([`History`](crate::History)). Returns the number of
    /// subscriptions that match ([`Topics::publish`]).
    ///
    /// # Errors
    /// [`InvalidTopic`]: the name cannot be published to, for example a pattern.
    pub fn publish(&mut self, topic: &str, message: &Prepared) -> Result<usize, InvalidTopic> {
        let place = self.topics.resolve(topic)?;
        let own = place.map_or(0, |place| self.topics.reaches(place, self.conn));
        let Some(here) = place.filter(|_| own > 0 && !self.topics.keeps(place, topic)) else {
            return Ok(self.topics.publish_to(place, topic, message, None));
        };
        let rule = self.topics.rule(here);
        deliver(&mut self.tx, self.backlog, self.topics, (here, rule), (message, 0));
        Ok(own + self.topics.publish_to(place, topic, message, Some(self.conn)))
    }

    /// Publishes a message built from its position in the topic to every subscriber ([`Topics::publish_with`]).
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub fn publish_with(
        &mut self,
        topic: &str,
        make: impl FnOnce(Option<Position>) -> Prepared,
    ) -> Result<usize, InvalidTopic> {
        let place = self.topics.resolve(topic)?;
        if self.topics.keeps(place, topic) {
            return Ok(self.topics.publish_made(place, topic, make, None));
        }
        self.publish(topic, &make(None))
    }

    /// Publishes to every other subscriber. Returns the number of subscriptions that match.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub fn publish_to_others(&mut self, topic: &str, message: &Prepared) -> Result<usize, InvalidTopic> {
        self.topics.publish(topic, message, Some(self.conn))
    }
}

impl<'a> Deref for Context<'a> {
    type Target = Tx<'a>;

    fn deref(&self) -> &Tx<'a> {
        &self.tx
    }
}

impl<'a> DerefMut for Context<'a> {
    /// Flushes queued messages first, so that sends do not overtake them.
    #[inline]
    fn deref_mut(&mut self) -> &mut Tx<'a> {
        if let Some(backlog) = self.backlog {
            self.topics.make_way(backlog, &mut self.tx);
        }
        &mut self.tx
    }
}
