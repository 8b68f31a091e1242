//! What an application does with a WebSocket connection.

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

/// One WebSocket connection's application. All callbacks run on the connection's thread, one at a time;
/// everything they send leaves in one send when what arrived together has been handled.
///
/// `open` and `close` are called once each.
pub trait Handler {
    /// The connection is open.
    fn open(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// A message has come. The payload is lent: [`Payload::detach`] keeps it.
    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>);

    /// A piece of a message, after [`Tx::deliver_fragments`]: for messages larger than memory. The limits still
    /// hold; raise them for streams: [`Config::max_message`](crate::Config::max_message) on the whole,
    /// [`Config::max_frame`](crate::Config::max_frame) on each frame of it, and
    /// [`Config::max_fragments`](crate::Config::max_fragments) on how many frames it has.
    fn fragment(&mut self, fragment: Fragment<'_>, cx: &mut Context<'_>) {
        let _ = (fragment, cx);
    }

    /// A pong has come: the answer to a ping, or unasked. `round_trip` tells how long our newest keepalive ping
    /// took, if this answers it. Pings are answered without the handler's help.
    fn pong(&mut self, payload: &[u8], round_trip: Option<Duration>, cx: &mut Context<'_>) {
        let _ = (payload, round_trip, cx);
    }

    /// What waits to be sent has fallen below half of the high-water mark, after
    /// [`Sent::Backpressure`](crate::Sent::Backpressure).
    fn drain(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// When [`expired`](Self::expired) is to be called: for what ends while nothing comes, such as a token or a lease.
    /// Asked behind [`open`](Self::open) and [`woken`](Self::woken), and whenever a timer of the connection rings: at the
    /// latest when the answer before has passed. So a handler whose deadline moves ahead of that wakes itself. After a
    /// call, only one that lies ahead makes another. Default: never.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// The [`deadline`](Self::deadline) has passed.
    fn expired(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// The [waker](Context::waker) of this connection was woken, by whatever thread: once in a turn of the loop, however
    /// often it was. Wakes that come from here on lead to another call. A connection that is closing is still told;
    /// one that is over is not.
    fn woken(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// Messages of topics were dropped, since this connection takes them more slowly than they come
    /// ([`SlowConsumer`](crate::SlowConsumer)). Told once the running callback has returned. What is published from
    /// here to a topic that this connection is too slow for comes back here.
    fn dropped(&mut self, dropped: &Missed, cx: &mut Context<'_>) {
        let _ = (dropped, cx);
    }

    /// A subscription of this connection by name has begun or ended, and how many there are now: for topics whose
    /// [`TopicRule::with_presence`](crate::TopicRule::with_presence) says so. Told once the running callback has returned;
    /// those that end with the connection come before [`close`](Self::close).
    fn subscription(&mut self, change: &SubscriptionChange, cx: &mut Context<'_>) {
        let _ = (change, cx);
    }

    /// The connection is over: by a Close of either side, a fault, a wait that ended, or the end of the
    /// transport. Nothing can be sent any more; its subscriptions are gone.
    fn close(&mut self, closed: &Closed, cx: &mut Context<'_>) {
        let _ = (closed, cx);
    }
}

/// Whoever handles the connections of one route need not be of one type.
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

/// What a callback may do: everything of [`Tx`] on its own connection, and topics.
#[derive(Debug)]
pub struct Context<'a> {
    tx: Tx<'a>,
    topics: &'a mut Topics,
    /// What waits for it, if it is slow.
    backlog: &'a mut Option<Box<Backlog>>,
    /// It is not given messages.
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

    /// The peer's address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// What calls [`Handler::woken`] on the thread of this connection, from any thread and as often as one likes: for
    /// what is done elsewhere and awaited here. No wake is lost, and one for a connection that has gone does nothing.
    /// Clones are the same waker ([`Waker::will_wake`]); a connection that never asks has none.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker::from(self.tasks.waker_of(self.conn))
    }

    /// Asks for no further message until [`release`](Self::release): for a handler that can do nothing with it yet, as
    /// while what it writes to is full. What has come by then waits with the connection, one chunk at most, and the
    /// rest with the peer. Nothing else is held up: [`Handler::woken`], [`Handler::drain`] and what is sent go on. The
    /// pongs of a peer wait with the rest, so one that is held for longer than
    /// [`Config::ping_interval`](crate::Config::ping_interval) and [`Config::pong_timeout`](crate::Config::pong_timeout)
    /// together is closed.
    pub fn hold(&mut self) {
        *self.held = true;
    }

    /// Goes on where [`hold`](Self::hold) has stopped, once [`Handler::woken`], [`Handler::drain`] or
    /// [`Handler::expired`] has returned; in another callback, with the next of these.
    pub fn release(&mut self) {
        *self.held = false;
    }

    /// Subscribes this connection to a topic, or to all that match a pattern ([`Topics`]); twice is once. What
    /// overlapping subscriptions match is delivered once.
    ///
    /// # Errors
    /// [`InvalidTopic`]: the name, or one subscription too many.
    pub fn subscribe(&mut self, topic: &str) -> Result<(), InvalidTopic> {
        self.topics.subscribe(topic, self.conn)
    }

    /// Subscribes to a topic that is kept ([`TopicRule::with_history`](crate::TopicRule::with_history)), from a message
    /// on that was published before: what is kept of it follows, then what is published, in order, nothing twice and
    /// nothing left out. It is read from the history as fast as the connection takes it, so that it costs no memory;
    /// what is forgotten before it was read is told ([`Handler::dropped`]). What the connection sends meanwhile may
    /// stand between.
    ///
    /// If it is subscribed already, it gets everything from there on once more.
    ///
    /// # Errors
    /// [`InvalidTopic::NotKept`], and as [`subscribe`](Self::subscribe).
    pub fn subscribe_from(&mut self, topic: &str, start: Start) -> Result<Joined, InvalidTopic> {
        self.topics.subscribe_from(topic, start, self.conn, self.backlog)
    }

    /// Subscribes to a topic that is kept without getting anything of it, by this name or by a pattern, until
    /// [`subscribe_from`](Self::subscribe_from) says from where on. For a handler that has older messages from
    /// elsewhere, from a disk for instance, and sends those first; or that had to leave out some
    /// ([`Missed::first`](crate::Missed::first)) and goes back to them. Subscribed already or not, it is so from now on.
    ///
    /// # Errors
    /// [`InvalidTopic::NotKept`], and as [`subscribe`](Self::subscribe).
    pub fn subscribe_later(&mut self, topic: &str) -> Result<(), InvalidTopic> {
        self.topics.subscribe_later(topic, self.conn, self.backlog)
    }

    /// Topics as such: what is kept of them, and where they stand.
    #[must_use]
    pub fn topics(&self) -> &Topics {
        self.topics
    }

    /// Ends a subscription. Answers whether there was one.
    pub fn unsubscribe(&mut self, topic: &str) -> bool {
        self.topics.unsubscribe(topic, self.conn)
    }

    /// Publishes to every subscriber, this connection included if it is one. What it sends afterwards
    /// comes behind, unless the topic is kept ([`History`](crate::History)). Answers how many subscriptions that reaches ([`Topics::publish`]).
    ///
    /// # Errors
    /// [`InvalidTopic`]: no name that may be published to, a pattern for instance.
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

    /// Publishes what is made of where it will stand in its topic to every subscriber
    /// ([`Topics::publish_with`]).
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

    /// Publishes to every other subscriber. Answers how many subscriptions that reaches.
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
    /// What is sent must not overtake what waits.
    #[inline]
    fn deref_mut(&mut self) -> &mut Tx<'a> {
        if let Some(backlog) = self.backlog {
            self.topics.make_way(backlog, &mut self.tx);
        }
        &mut self.tx
    }
}
