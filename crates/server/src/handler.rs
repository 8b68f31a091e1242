//! What an application does with a WebSocket connection.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use sinews_engine::ConnId;
use sinews_session::{Closed, Fragment, Payload, Prepared, Sent, Tx};

use crate::topics::{InvalidTopic, Topics};

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
    /// [`Sent::Backpressure`].
    fn drain(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// When [`expired`](Self::expired) is to be called: for what ends while nothing comes, such as a token or a lease.
    /// Asked behind [`open`](Self::open), and from then on whenever a timer of the connection rings: at the latest when
    /// the answer before has passed. After a call, only one that lies ahead makes another. Default: never.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// The [`deadline`](Self::deadline) has passed.
    fn expired(&mut self, cx: &mut Context<'_>) {
        let _ = cx;
    }

    /// The connection is over: by a Close of either side, a fault, a wait that ended, or the end of the
    /// transport. Nothing can be sent any more; its subscriptions are gone.
    fn close(&mut self, closed: &Closed, cx: &mut Context<'_>) {
        let _ = (closed, cx);
    }
}

/// What a callback may do: everything of [`Tx`] on its own connection, and topics.
#[derive(Debug)]
pub struct Context<'a> {
    tx: Tx<'a>,
    topics: &'a mut Topics,
    conn: ConnId,
    peer: SocketAddr,
}

impl<'a> Context<'a> {
    pub(crate) fn new(tx: Tx<'a>, topics: &'a mut Topics, conn: ConnId, peer: SocketAddr) -> Self {
        Self { tx, topics, conn, peer }
    }

    /// The peer's address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Subscribes this connection to a topic; twice is once.
    ///
    /// # Errors
    /// [`InvalidTopic`]: the name, or one subscription too many.
    pub fn subscribe(&mut self, topic: &str) -> Result<(), InvalidTopic> {
        self.topics.subscribe(topic, self.conn)
    }

    /// Ends a subscription. Answers whether there was one.
    pub fn unsubscribe(&mut self, topic: &str) -> bool {
        self.topics.unsubscribe(topic, self.conn)
    }

    /// Publishes to every subscriber, this connection included if it is one. What it sends afterwards
    /// comes behind. Answers how many subscribers there are.
    pub fn publish(&mut self, topic: &str, message: &Prepared) -> usize {
        if self.topics.is_subscribed(topic, self.conn) {
            // A Close that is under way leaves this one out.
            let _: Result<Sent, _> = self.tx.send_prepared(message);
            return 1 + self.topics.publish(topic, message, Some(self.conn));
        }
        self.topics.publish(topic, message, None)
    }

    /// Publishes to every other subscriber. Answers how many there are.
    pub fn publish_to_others(&mut self, topic: &str, message: &Prepared) -> usize {
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
    fn deref_mut(&mut self) -> &mut Tx<'a> {
        &mut self.tx
    }
}
