//! Application callbacks for a WebSocket connection.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::task::Waker;
use std::time::{Duration, Instant};

use sinews_engine::ConnId;
use sinews_proto::CloseCode;
use sinews_session::{Closed, Fragment, Payload, Prepared, Tx};

use crate::subscriber::{SubscriberState, TopicMessage};
use crate::tasks::Tasks;
use crate::topics::{
    DatagramQueue, DroppedMessages, InvalidTopic, KeyError, KeySubscription, KeyWrite, KeyWritten,
    KeysSubscribed, Member, Placement, Position, PresenceCount, PresenceError, PublishOptions, ReplayFrom,
    Subscribed, SubscriberId, Topics,
};

/// Application side for one WebSocket connection. All callbacks run on the connection's thread, one at a time.
/// Everything they send in response to messages that arrived together leaves in one send.
///
/// `open` and `close` run once each.
///
/// A panic in a handler, in a hook or in an [`Answer::later`](crate::Answer::later) future stops the server:
/// [`BoundServer::run`](crate::BoundServer::run) panics once the other threads have ended. A panic in
/// [`BlockingPool::run`](crate::BlockingPool::run) work panics in the future that awaits it.
pub trait Handler {
    /// Handles the open connection.
    fn open(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// Handles a message. The payload is borrowed: [`Payload::detach`] keeps it.
    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>);

    /// Handles a message piece, after [`Tx::deliver_fragments`]: for messages larger than memory. The limits still
    /// apply; raise them for streams: [`Config::max_message`](crate::Config::max_message) for the message,
    /// [`Config::max_frame`](crate::Config::max_frame) for each frame, and
    /// [`Config::max_fragments`](crate::Config::max_fragments) for the frame count.
    fn fragment(&mut self, fragment: Fragment<'_>, cx: &mut Context<'_>) {
        let _ = (fragment, cx);
    }

    /// Handles a pong, solicited or not. `round_trip` is the newest keepalive ping's round-trip time, if this pong
    /// answers it. Pings are answered without the handler.
    fn pong(&mut self, payload: &[u8], round_trip: Option<Duration>, cx: &mut Context<'_>) {
        let _ = (payload, round_trip, cx);
    }

    /// Handles a drained outbound queue: it has fallen below half the high-water mark, after
    /// [`Sent::Backpressure`](crate::Sent::Backpressure).
    fn drain(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// Returns when to call [`expired`](Self::expired), for example when a token or a lease expires. Evaluated after
    /// [`open`](Self::open) and [`woken`](Self::woken), and whenever a connection timer fires: at the latest at the
    /// previous deadline. So a handler whose deadline moves to an earlier time has to wake itself. After a call, only a
    /// deadline in the future leads to another call. Default: never.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Handles the [`deadline`](Self::deadline).
    fn expired(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// Handles a wakeup by this connection's [waker](Context::waker), from any thread. Wakeups are coalesced: one call
    /// per loop turn. Wakeups during the call lead to another call. A closing connection is still woken, a closed
    /// connection is not.
    fn woken(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// Returns the close code and the reason (at most 123 bytes) with which a server that stops closes the connection.
    /// Default: 1001 and `server stops`. A protocol may have a code after which its clients connect again at once.
    fn stop_code(&self) -> (CloseCode, &'static str) {
        (CloseCode::GOING_AWAY, "server stops")
    }

    /// Handles dropped topic messages: this connection was slower than its topics
    /// ([`SlowConsumer`](crate::SlowConsumer)). Runs after the running callback has returned. Sends from here go before
    /// the queued publications. A handler that sends a notice calls [`Context::report_later`] while the queue has no
    /// capacity for it. Publishing from here to a topic that this connection is too slow for leads to another call.
    fn dropped(&mut self, dropped: &DroppedMessages, cx: &mut Context<'_>) {
        let _ = (dropped, cx);
    }

    /// Handles a new outbound queue size in bytes, queued publications included. Called while the queue is at least 16
    /// KiB, which means that the peer reads more slowly than the server sends, and with 0 once it is smaller. For
    /// statistics: nothing can be sent from here.
    fn queued(&mut self, bytes: usize) {
        let _ = bytes;
    }

    /// Handles the peer's Close or violation, if the connection leaves the answer to the handler
    /// ([`Config::answers`](crate::Config::answers)): messages may be sent until the handler closes, now or when it is
    /// woken. Default: closes with the peer's code and reason, or those of the violation.
    fn ending(&mut self, closed: &Closed, cx: &mut Context<'_>) {
        // Neither fails: the connection is open, and a received reason is short enough.
        let _ = match closed.code() {
            Some(code) => cx.close(code, closed.reason()),
            None => cx.close_without_code(),
        };
    }

    /// Handles the connection's end: a Close from either side, an error, a timeout, or the transport's end. Nothing can
    /// be sent any more, and the subscriptions have ended.
    fn close(&mut self, closed: &Closed, cx: &mut Context<'_>) {
        let _ = (closed, cx);
    }
}

/// Lets one route use several handler types.
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

    fn stop_code(&self) -> (CloseCode, &'static str) {
        (**self).stop_code()
    }

    fn dropped(&mut self, dropped: &DroppedMessages, cx: &mut Context<'_>) {
        (**self).dropped(dropped, cx);
    }

    fn queued(&mut self, bytes: usize) {
        (**self).queued(bytes);
    }

    fn ending(&mut self, closed: &Closed, cx: &mut Context<'_>) {
        (**self).ending(closed, cx);
    }

    fn close(&mut self, closed: &Closed, cx: &mut Context<'_>) {
        (**self).close(closed, cx);
    }
}

/// Callback interface: everything in [`Tx`] for its own connection, and topics.
#[derive(Debug)]
pub struct Context<'a> {
    tx: Tx<'a>,
    topics: &'a mut Topics,
    tasks: &'a Tasks,
    subscriber: &'a mut SubscriberState,
    conn: ConnId,
}

impl<'a> Context<'a> {
    #[inline]
    pub(crate) fn new(
        tx: Tx<'a>,
        topics: &'a mut Topics,
        tasks: &'a Tasks,
        subscriber: &'a mut SubscriberState,
        conn: ConnId,
    ) -> Self {
        Self { tx, topics, tasks, subscriber, conn }
    }

    /// Returns the peer's address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.subscriber.peer()
    }

    /// Returns a waker that calls [`Handler::woken`] on this connection's thread. It may be used from any thread and
    /// any number of times, to signal work that completes elsewhere. No wakeup is lost; waking a closed connection does
    /// nothing. Clones are the same waker ([`Waker::will_wake`]). A connection that never calls this has no waker.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker::from(self.tasks.waker_of(self.conn))
    }

    /// Pauses reads: the handler gets no further message until [`resume_reads`](Self::resume_reads), for example while
    /// its own destination is full. Input that has already arrived is buffered with the connection, at most one chunk;
    /// the rest stays with the peer. [`Handler::woken`], [`Handler::drain`] and sends go on. The peer's pongs are not
    /// read either, so a connection that is paused for longer than
    /// [`Config::ping_interval`](crate::Config::ping_interval) and
    /// [`Config::pong_timeout`](crate::Config::pong_timeout) together is closed.
    pub fn pause_reads(&mut self) {
        self.subscriber.reads_paused = true;
    }

    /// Resumes reads after [`pause_reads`](Self::pause_reads), once [`Handler::woken`], [`Handler::drain`] or
    /// [`Handler::expired`] has returned. Called in another callback, it takes effect with the next of these.
    pub fn resume_reads(&mut self) {
        self.subscriber.reads_paused = false;
    }

    /// Sends later publications to a topic, or to all topics that match a pattern, to this connection as datagrams, for
    /// values where only the newest counts: QUIC does not repeat a lost datagram, and while the network is busy, a
    /// newer publication replaces the topic's earlier one. The connection gets them once it
    /// [subscribes](Self::subscribe). A publication that is longer than a datagram (about 1,200 bytes, depending on the
    /// path), retained messages, keys and presence use the stream.
    ///
    /// Returns `false`, without an effect, unless the connection is a WebTransport session
    /// ([`Request::has_datagrams`](crate::Request::has_datagrams)), and beyond 64 topics and patterns.
    pub fn deliver_datagrams(&mut self, topic: &str) -> bool {
        let has_datagrams = self.subscriber.has_datagrams;
        has_datagrams && {
            let backlog = self.subscriber.backlog.get_or_insert_default();
            backlog.datagrams.get_or_insert_with(|| Box::new(DatagramQueue::new())).add_topic(topic)
        }
    }

    /// Subscribes this connection to a topic, or to all topics that match a pattern ([`Topics`]). Repeated
    /// subscriptions count once. A message that matches several subscriptions is delivered once.
    ///
    /// # Errors
    /// [`InvalidTopic`]: the name is invalid, or the subscription limit is reached.
    pub fn subscribe(&mut self, topic: &str) -> Result<(), InvalidTopic> {
        self.topics.subscribe(topic, self.conn)
    }

    /// Subscribes to a topic without history, to publications with later versions than this one
    /// ([`PublishOptions::version`]) and to those without a version: for a handler that sends this version's message
    /// itself, which may still be on its way to the subscribers. An existing subscription is unchanged.
    ///
    /// # Errors
    /// As [`subscribe`](Self::subscribe), and [`InvalidTopic::Wildcard`] for a pattern.
    pub fn subscribe_after(&mut self, topic: &str, version: u64) -> Result<(), InvalidTopic> {
        self.topics.subscribe_after(topic, version, self.conn)
    }

    /// Subscribes to a topic with history ([`TopicRule::with_history`](crate::TopicRule::with_history)), starting at
    /// an earlier message. The retained messages follow, then new ones, in order, without duplicates or gaps. The
    /// history is read as fast as the connection takes it, so replay costs no memory. Messages that expire before
    /// they are read are reported ([`Handler::dropped`]). Other messages to this connection may come in between.
    ///
    /// An existing subscription is replayed from that position again.
    ///
    /// # Errors
    /// [`InvalidTopic::NoHistory`], and as [`subscribe`](Self::subscribe).
    pub fn subscribe_from(&mut self, topic: &str, start: ReplayFrom) -> Result<Subscribed, InvalidTopic> {
        self.topics.subscribe_from(topic, start, self.conn, &mut self.subscriber.backlog)
    }

    /// Subscribes to a topic with history, by this name or by a pattern, but delivers nothing until
    /// [`subscribe_from`](Self::subscribe_from) sets the start. For a handler that sends older messages from another
    /// source first, such as a disk, or that goes back to dropped messages
    /// ([`DroppedMessages::first_sequence`](crate::DroppedMessages::first_sequence)). An existing subscription is
    /// suspended alike.
    ///
    /// # Errors
    /// [`InvalidTopic::NoHistory`], and as [`subscribe`](Self::subscribe).
    pub fn subscribe_paused(&mut self, topic: &str) -> Result<(), InvalidTopic> {
        self.topics.subscribe_paused(topic, self.conn, &mut self.subscriber.backlog)
    }

    /// Takes back a dropped-message report, for a handler whose notice does not fit in the queue ([`Tx::has_capacity`],
    /// [`Sent::Dropped`](crate::Sent::Dropped)). [`Handler::dropped`] gets the messages again when the queue has
    /// capacity, in sum with later drops on the topic.
    pub fn report_later(&mut self, dropped: &DroppedMessages) {
        self.subscriber.backlog.get_or_insert_default().postpone(dropped.clone());
    }

    /// Returns the topics: retained messages and positions.
    #[must_use]
    pub fn topics(&self) -> &Topics {
        self.topics
    }

    /// Returns this connection as a subscriber, for others' publications that exclude it ([`PublishOptions::except`]).
    #[must_use]
    pub fn subscriber_id(&self) -> SubscriberId {
        self.topics.subscriber_id(self.conn)
    }

    /// Ends a subscription. Returns whether it existed.
    pub fn unsubscribe(&mut self, topic: &str) -> bool {
        self.topics.unsubscribe(topic, self.conn)
    }

    /// Makes this connection present in a topic, as a member's connection. Joining is independent of subscriptions. The
    /// connection leaves with [`leave`](Self::leave), or when it ends. A second join replaces the first: the member's
    /// info, or the member.
    ///
    /// Returns the numbers with this connection included.
    ///
    /// # Errors
    /// [`PresenceError`]: the topic, the id or the info is invalid, or a limit is reached.
    pub fn join(&mut self, topic: &str, member: Member) -> Result<PresenceCount, PresenceError> {
        self.topics.join(topic, Some(member), self.conn)
    }

    /// Makes this connection present in a topic without a member: it is counted and not listed. Costs less memory.
    /// Otherwise as [`join`](Self::join).
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn join_anonymous(&mut self, topic: &str) -> Result<PresenceCount, PresenceError> {
        self.topics.join(topic, None, self.conn)
    }

    /// Ends this connection's presence in a topic. Returns whether it was present.
    pub fn leave(&mut self, topic: &str) -> bool {
        self.topics.leave(topic, self.conn)
    }

    /// Returns the topics that this connection is present in, each with its member's id, if it has joined with one. In
    /// [`Handler::close`], the connection has left all topics.
    pub fn joined(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.topics.joined(self.conn)
    }

    /// Sends a topic's presence updates to this connection, as the server's encoder writes them
    /// ([`Server::presence`](crate::Server::presence)), until [`unwatch_presence`](Self::unwatch_presence) or its end.
    /// The topic counts as one more subscription.
    ///
    /// Returns the numbers now; [`Topics::members`] lists the members. An update whose version is not larger is older.
    ///
    /// # Errors
    /// [`PresenceError::NoEncoder`], and as [`subscribe`](Self::subscribe).
    pub fn watch_presence(&mut self, topic: &str) -> Result<PresenceCount, PresenceError> {
        self.topics.watch_presence(topic, self.conn)
    }

    /// As [`watch_presence`](Self::watch_presence), and returns all the topic's members with the counts at the same
    /// time. Messages with a version ([`PresenceMessage::leading_to`](crate::PresenceMessage::leading_to)) follow for
    /// later versions only, so each change is either in the list or in a message. The lock for all presence is held
    /// while the members are listed.
    ///
    /// # Errors
    /// As [`watch_presence`](Self::watch_presence).
    pub fn watch_members(&mut self, topic: &str) -> Result<(PresenceCount, Vec<Member>), PresenceError> {
        self.topics.watch_members(topic, self.conn)
    }

    /// Ends a topic's presence updates. Returns whether the connection was watching.
    pub fn unwatch_presence(&mut self, topic: &str) -> bool {
        self.topics.unwatch_presence(topic, self.conn)
    }

    /// Sets or removes a topic's key ([`Topics::write_key`]).
    ///
    /// # Errors
    /// [`KeyError`]: a name is invalid, the condition is not met, or a limit is reached. Then nothing has changed.
    pub fn write_key(&mut self, topic: &str, write: &KeyWrite) -> Result<KeyWritten, KeyError> {
        self.topics.write_key(topic, write)
    }

    /// Sends a topic's keys to this connection, as the server's encoder writes them
    /// ([`Server::keyed_topics`](crate::Server::keyed_topics)): a snapshot with all keys at one time, then the changes
    /// after it, until [`unsubscribe_keys`](Self::unsubscribe_keys) or its end. A second subscription replaces the
    /// first.
    ///
    /// A connection that is slower than the changes is never closed for that, and nothing is queued for it: it receives
    /// each changed key's last value when it is ready. So it may miss values, and never the last one.
    ///
    /// # Errors
    /// [`KeyError`]: a name, the filter or the interval is invalid, or the connection has
    /// [`Topics::SUBSCRIPTIONS_MAX`](crate::Topics::SUBSCRIPTIONS_MAX) subscriptions to keys.
    pub fn subscribe_keys(
        &mut self,
        topic: &str,
        options: &KeySubscription,
    ) -> Result<KeysSubscribed, KeyError> {
        self.topics.subscribe_keys(topic, options, self.conn, &mut self.subscriber.backlog)
    }

    /// Ends a subscription to a topic's keys. Returns whether it existed.
    pub fn unsubscribe_keys(&mut self, topic: &str) -> bool {
        self.topics.unsubscribe_keys(topic, self.conn, &mut self.subscriber.backlog)
    }

    /// Publishes to every subscriber, this connection included if it is subscribed. This connection's later sends come
    /// after the message, unless the topic has history ([`HistoryPolicy`](crate::HistoryPolicy)) or the options are not
    /// the default ones. Returns how many subscriptions match ([`Topics::publish`]). To publish to the others only,
    /// except [this subscriber](Self::subscriber_id).
    ///
    /// # Errors
    /// [`InvalidTopic`]: the name cannot be published to, for example a pattern.
    pub fn publish(
        &mut self,
        topic: &str,
        message: &Prepared,
        options: PublishOptions,
    ) -> Result<usize, InvalidTopic> {
        self.publish_with(topic, |_| message.clone(), options)
    }

    /// Publishes a message built from its position in the topic ([`Topics::publish_with`]). Otherwise as
    /// [`publish`](Self::publish).
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub fn publish_with(
        &mut self,
        topic: &str,
        make: impl FnOnce(Option<Position>) -> Prepared,
        options: PublishOptions,
    ) -> Result<usize, InvalidTopic> {
        let resolved = self.topics.resolve(topic)?;
        let is_to_all = options.except.is_none() && options.placement == Placement::Append;
        let own = match resolved.filter(|_| is_to_all) {
            Some(resolved) => self.topics.matching_subscriptions(resolved, self.conn),
            None => 0,
        };
        let Some(here) = resolved.filter(|_| own > 0 && !self.topics.has_history(resolved, topic)) else {
            return Ok(self.topics.publish_resolved(resolved, topic, make, options));
        };
        let message = make(None);
        let rule = self.topics.rule(here);
        let delivered = TopicMessage { topic: here, rule, message: &message, sequence: 0 };
        self.subscriber.deliver(&mut self.tx, self.topics, delivered);
        let others = options.except(self.subscriber_id());
        Ok(own + self.topics.publish_resolved(resolved, topic, |_| message, others))
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
        if let Some(backlog) = &mut self.subscriber.backlog {
            self.topics.flush_before_send(backlog, &mut self.tx);
        }
        &mut self.tx
    }
}
