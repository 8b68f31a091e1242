//! A connection of the library without its transport: the logic that all drivers share.
//!
//! A driver, which knows no opcode or close code, fills [`Link::take_room`] and sends the output of [`Link::next_send`].

#[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "only connections on Tokio are split"))]
mod halves;
#[cfg(not(any(feature = "tokio", feature = "compio")))]
mod no_inbox;

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use sinews_proto::{CloseCode, Config, Expired, Kind, Misuse, Negotiated, Place, Role, Time};
use sinews_session::{Arrived, Cause, Chain, Closed, Fate, Prepared, Sent, Session, Tx};
use sinews_simd::Utf8Bytes;

use self::halves::Half;
#[cfg(feature = "tokio")]
pub(crate) use self::halves::{Pair, Side};
#[cfg(not(any(feature = "tokio", feature = "compio")))]
use self::no_inbox::Inbox;
use crate::error::Error;
use crate::message::{CloseFrame, Message, MessageRef};
use crate::resources::{self, BLOCK};
#[cfg(any(feature = "tokio", feature = "compio"))]
use crate::sender::{Inbox, Sender};

/// One connection: its session, received input that is not yet processed, and queued output.
#[derive(Debug)]
pub(crate) struct Link {
    session: Session,
    /// Received input: `block[at..]` is not yet processed. A pooled block during large receives, empty when idle.
    block: Vec<u8>,
    at: usize,
    /// The received input holds no further event.
    dry: bool,
    /// An event received during a send, for the next receive call.
    parked: Option<Arrived>,
    /// The send in flight, unless a driver has it.
    sending: Option<Box<Chain>>,
    /// The queue of the producers' messages.
    inbox: Option<Box<Inbox>>,
    /// Set if the link is one half of a split connection.
    half: Option<Box<Half>>,
    /// A driver has `sending`.
    lent: bool,
    end: End,
    /// Whether the messages that begin from now on are delivered in pieces.
    pieces: bool,
    /// The rest of a message in pieces is skipped, since its reader was dropped.
    skipping: bool,
    /// The received part of a message in pieces without a reader; or a whole borrowed message.
    gathered: Vec<u8>,
    subprotocol: Option<Box<str>>,
    /// A pong is queued. It is sent without waiting for a reply of the application.
    owes_pong: bool,
    /// Time of the first message queued to leave with the rest of a burst.
    queued_at: Option<Time>,
    /// A message was queued at a time that is not known exactly.
    has_sent: bool,
    /// Messages handed out since queued bytes were last sent.
    handed_out: u32,
    /// Messages sent since the last one was handed out.
    answers: u32,
    /// The transport accepts no bytes for now.
    stalled: bool,
    /// The deadline may have moved to an earlier time.
    recheck: bool,
    /// The driver's newest time: of the last receive, or of the begin of a wait.
    pub(crate) now: Time,
}

/// Constant properties of a connection, which both halves report without synchronization.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) subprotocol: Option<Box<str>>,
    pub(crate) role: Role,
    pub(crate) config: Config,
}

/// Progress of the connection towards its end.
#[derive(Debug, Default)]
struct End {
    closed: Option<Box<Closed>>,
    /// The transport's error, until it is reported.
    io: Option<io::Error>,
    /// The peer ended the transport.
    receiving: bool,
    /// The transport accepts no more bytes.
    sending: bool,
    /// The end of the sending side was sent.
    shut: bool,
    told: bool,
}

/// A borrowed message.
#[derive(Debug)]
pub(crate) struct Lent {
    kind: Kind,
    /// Its position; `None`: the message is in `gathered`.
    at: Option<Place>,
}

/// The destination of the next receive.
#[derive(Debug)]
pub(crate) enum Room {
    /// A block, behind its contents.
    Block(Vec<u8>),
    /// The memory of a large message, at most so many bytes.
    Message(Vec<u8>, usize),
}

/// The driver's next step with the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Receive and send.
    Go,
    /// End the sending side, once everything has left; and receive.
    Shut,
    /// Report that the connection ends, and continue.
    Tell,
    /// The connection has ended.
    Over,
}

/// Longest time that a reply waits for the rest of its burst, checked when the connection is next used.
const BURST_MAX: std::time::Duration = std::time::Duration::from_millis(1);

/// In a burst, the clock is read for the first message after a reply, and then once for so many messages.
const CLOCK_EVERY: u32 = 8;

/// A remainder of a block up to this size moves into memory of its own, so that a connection with a busy application
/// pins no block.
const REMAINDER_MAX: usize = 2 << 10;

/// Smallest message whose memory is handed over: below it a copy is cheaper than replacing the memory.
const HAND_OVER_MIN: usize = 16 << 10;

impl Link {
    /// A connection after a handshake, with the bytes received behind the handshake.
    pub(crate) fn new(negotiated: Negotiated, config: Arc<Config>, received: &[u8], now: Time) -> Self {
        Self::of(Session::new(negotiated, config, now), received, now)
    }

    fn of(session: Session, received: &[u8], now: Time) -> Self {
        Self {
            session,
            block: received.to_vec(),
            at: 0,
            dry: false,
            parked: None,
            sending: None,
            inbox: None,
            half: None,
            lent: false,
            end: End::default(),
            pieces: false,
            skipping: false,
            gathered: Vec::new(),
            subprotocol: None,
            owes_pong: false,
            queued_at: None,
            has_sent: false,
            handed_out: 0,
            answers: 0,
            stalled: false,
            recheck: true,
            now,
        }
    }

    pub(crate) fn set_subprotocol(&mut self, subprotocol: Option<&str>) {
        self.subprotocol = subprotocol.map(Box::from);
    }

    pub(crate) fn subprotocol(&self) -> Option<&str> {
        self.subprotocol.as_deref()
    }

    pub(crate) fn role(&self) -> Role {
        self.session.role()
    }

    pub(crate) fn config(&self) -> &Config {
        self.session.config()
    }

    pub(crate) fn facts(&self) -> Facts {
        Facts { subprotocol: self.subprotocol.clone(), role: self.role(), config: self.config().clone() }
    }
}

/// Receiving.
impl Link {
    /// The next event in the received input; `None`: receive more.
    #[inline]
    pub(crate) fn pull(&mut self) -> Option<Arrived> {
        self.sync();
        if let Some(parked) = self.parked.take() {
            return Some(parked);
        }
        if self.dry || self.is_congested() {
            return None;
        }
        let (start, now) = (self.at, self.now);
        let input = &mut self.block[start..];
        let pulled = resources::with(|shared| self.session.pull(input, shared, now));
        self.at += pulled.consumed;
        self.note_closed();
        let Some(event) = pulled.event else {
            self.dry = true;
            self.keep_tight();
            return None;
        };
        self.answers = 0;
        self.owes_pong |= matches!(event, Arrived::Ping(_));
        Some(event.behind(start))
    }

    /// The next event, if it is a whole message in the received input, as most are: its kind and its position.
    /// `None`: call [`pull`](Self::pull).
    #[inline]
    pub(crate) fn pull_whole(&mut self) -> Option<(Kind, Range<usize>)> {
        if self.dry || self.parked.is_some() || self.is_congested() {
            return None;
        }
        let (start, now) = (self.at, self.now);
        let input = &mut self.block[start..];
        let (kind, at) = self.session.pull_whole(input, now)?;
        self.at = start + at.end;
        self.dry = self.at == self.block.len();
        self.answers = 0;
        Some((kind, start + at.start..start + at.end))
    }

    /// Converts a message into an owned one.
    #[inline(always)]
    pub(crate) fn own_whole(&mut self, (kind, at): (Kind, Range<usize>)) -> Message {
        let message = message(kind, self.detach(Place::Input(at)));
        self.keep_tight();
        message
    }

    /// Called once the application has its message: returns the block to the pool, or moves a small remainder into
    /// memory of its size.
    #[inline]
    fn keep_tight(&mut self) {
        let left = self.block.len() - self.at;
        if self.block.capacity() == 0 || left > REMAINDER_MAX || left > 0 && self.block.capacity() != BLOCK {
            return;
        }
        let rest = self.block[self.at..].to_vec();
        resources::give_block(std::mem::replace(&mut self.block, rest));
        self.at = 0;
    }

    /// Whether further received input is unprocessed: a reply sent now can wait for the replies to the rest of a
    /// burst.
    #[inline]
    pub(crate) fn is_amid_burst(&self) -> bool {
        self.parked.is_some() || !self.dry && self.session.holds_event(&self.block[self.at..])
    }

    /// Whether a message sent now can wait for the rest of the replies to a burst. It cannot while an event is
    /// parked, since no receive call is running; nor while one message gets many replies for longer than
    /// [`BURST_MAX`].
    #[inline]
    pub(crate) fn is_answering(&mut self, now: impl FnOnce() -> Time) -> bool {
        if self.parked.is_some() || !self.is_amid_burst() {
            return false;
        }
        self.answers += 1;
        self.answers == 1 || now().since(self.queued_at.unwrap_or(self.now)) <= BURST_MAX
    }

    /// Stores an event for the next receive call.
    pub(crate) fn park(&mut self, event: Arrived) {
        self.parked = Some(event);
    }

    /// Drops the parked event if it is handled already and no receive call has taken it: the next ping is behind it.
    pub(crate) fn pass_over_handled(&mut self) {
        if matches!(self.parked, Some(Arrived::Ping(_) | Arrived::Pong { .. })) {
            self.parked = None;
        }
    }

    /// Whether an event is parked for the next receive call.
    pub(crate) fn is_parked(&self) -> bool {
        self.parked.is_some()
    }

    /// Converts an event into an owned message. A piece yields none, unless it is the last of a message without a
    /// reader.
    #[inline(always)]
    pub(crate) fn own(&mut self, event: Arrived) -> Option<Message> {
        let message = match event {
            Arrived::Message { kind, at } => message(kind, self.detach(at)),
            Arrived::Fragment { kind, at, first, last } => {
                if !self.gather(first, at, last) {
                    return None;
                }
                message(kind, Bytes::from(std::mem::take(&mut self.gathered)))
            }
            Arrived::Ping(at) => Message::Ping(Bytes::copy_from_slice(&self.block[at])),
            Arrived::Pong { at, .. } => Message::Pong(Bytes::copy_from_slice(&self.block[at])),
            Arrived::Close => Message::Close(self.close_frame()),
        };
        self.keep_tight();
        Some(message)
    }

    /// The borrowed payload of a message, or of a piece of one.
    pub(crate) fn lend(&mut self, at: Place) -> &mut [u8] {
        match at {
            Place::Input(range) => &mut self.block[range],
            Place::Assembly => &mut self.session.assembled()[..],
        }
    }

    /// Borrows a data message where it lies; `None` for other events and for incomplete messages.
    pub(crate) fn borrow(&mut self, event: Arrived) -> Option<Lent> {
        match event {
            Arrived::Message { kind, at } => Some(Lent { kind, at: Some(at) }),
            Arrived::Fragment { kind, at, first, last } => {
                self.gather(first, at, last).then_some(Lent { kind, at: None })
            }
            Arrived::Ping(_) | Arrived::Pong { .. } | Arrived::Close => None,
        }
    }

    /// The message that [`borrow`](Self::borrow) returned.
    pub(crate) fn borrowed(&mut self, lent: Lent) -> MessageRef<'_> {
        let payload = match lent.at {
            Some(at) => self.lend(at),
            None => &mut self.gathered[..],
        };
        MessageRef::new(lent.kind, payload)
    }

    /// Stores a piece of a message without a reader; returns whether the message is now complete.
    /// [`Config::max_message`] bounds it, as any other message.
    #[cold]
    fn gather(&mut self, first: bool, at: Place, last: bool) -> bool {
        if self.skipping {
            self.skipping = !last;
            return false;
        }
        let mut gathered = std::mem::take(&mut self.gathered);
        if first {
            // A borrowed whole message may still be in the buffer.
            gathered.clear();
        }
        gathered.extend_from_slice(self.lend(at));
        self.gathered = gathered;
        last
    }

    /// Discards an event without a recipient: the rest of a message whose reader was dropped.
    pub(crate) fn pass_over(&mut self, event: Arrived) {
        if let Arrived::Fragment { last: true, .. } = event {
            self.skipping = false;
        }
    }

    /// Whether a message is being sent in pieces.
    pub(crate) fn is_mid_message(&self) -> bool {
        self.session.is_mid_message()
    }

    /// Sets how the messages that begin from now on are delivered.
    #[inline]
    pub(crate) fn expect_pieces(&mut self, pieces: bool) {
        if self.pieces != pieces {
            self.pieces = pieces;
            self.session.deliver_fragments(pieces);
        }
    }

    /// The reader of a message in pieces was dropped before its end.
    pub(crate) fn skip_rest(&mut self) {
        self.skipping = true;
    }

    /// The end of such a message was received without a call to [`pull`](Self::pull).
    #[cfg(feature = "compio")]
    pub(crate) fn skipped(&mut self) {
        self.skipping = false;
    }

    /// Payload bytes of a message in pieces that may be received into the application's memory: all earlier input has
    /// been processed.
    #[cfg(any(feature = "tokio", feature = "compio"))]
    pub(crate) fn awaits_piece(&self) -> usize {
        if self.at < self.block.len() || self.parked.is_some() {
            return 0;
        }
        usize::try_from(self.session.awaits_piece()).unwrap_or(usize::MAX)
    }

    /// Payload bytes of the message in pieces that are known to follow the last piece handed out, and whether they
    /// end the message.
    #[cfg(any(feature = "tokio", feature = "compio"))]
    pub(crate) fn known_to_follow(&mut self) -> (usize, bool) {
        let awaited = usize::try_from(self.session.awaits_piece()).unwrap_or(usize::MAX);
        let parked = match &self.parked {
            Some(Arrived::Fragment { at, last, first: false, .. }) => Some((at.clone(), *last)),
            _ => None,
        };
        let (parked, ends) = parked.map_or((0, false), |(at, last)| (self.lend(at).len(), last));
        (awaited.saturating_add(parked), ends || self.session.awaits_last_piece())
    }

    /// Whether the end of the message in pieces may have been received behind the piece handed out last.
    #[cfg(any(feature = "tokio", feature = "compio"))]
    pub(crate) fn may_end(&self) -> bool {
        self.parked.is_some() || !self.dry && self.session.may_end(&self.block[self.at..])
    }

    /// Accounts such bytes as received. Returns whether they end their message; `None`: the connection has ended.
    #[cfg(any(feature = "tokio", feature = "compio"))]
    pub(crate) fn piece_came(&mut self, piece: &mut [u8]) -> Option<bool> {
        let now = self.now;
        let handled = resources::with(|shared| self.session.receive_piece(piece, shared, now));
        self.dry = false;
        self.note_closed();
        handled.map(|(_, last)| last)
    }

    #[inline(always)]
    fn detach(&mut self, at: Place) -> Bytes {
        match at {
            Place::Input(range) if range.len() < BLOCK / 2 => Bytes::copy_from_slice(&self.block[range]),
            Place::Input(range) => self.detach_block(range),
            Place::Assembly => self.detach_assembly(),
        }
    }

    fn detach_assembly(&mut self) -> Bytes {
        let memory = self.session.assembled();
        if memory.len() >= HAND_OVER_MIN && memory.len() > memory.capacity() / 2 {
            return Bytes::from(std::mem::take(memory));
        }
        let bytes = Bytes::copy_from_slice(memory);
        resources::with(|shared| self.session.settle_assembly(shared));
        bytes
    }

    /// A message that fills most of a block takes the block; bytes behind it are copied.
    fn detach_block(&mut self, range: Range<usize>) -> Bytes {
        if self.block.capacity() != BLOCK {
            return Bytes::copy_from_slice(&self.block[range]);
        }
        let rest = self.block[self.at..].to_vec();
        self.at = 0;
        Bytes::from(std::mem::replace(&mut self.block, rest)).slice(range)
    }

    /// The destination of the next receive. Return it through [`came`](Self::came), also if no bytes were received.
    #[inline]
    pub(crate) fn take_room(&mut self) -> Room {
        self.take_message().unwrap_or_else(|| self.take_block())
    }

    /// The memory of a large message, if it is the destination.
    #[inline]
    pub(crate) fn take_message(&mut self) -> Option<Room> {
        if self.at != self.block.len() || !self.session.awaits_large() {
            return None;
        }
        let (memory, room) = resources::with(|shared| self.session.lend_assembly(shared))?;
        Some(Room::Message(memory, room))
    }

    /// A block to receive into, regardless of a large message.
    #[inline]
    pub(crate) fn take_block(&self) -> Room {
        let mut block = resources::take_block();
        block.extend_from_slice(&self.block[self.at..]);
        Room::Block(block)
    }

    /// Accounts so many bytes as received behind the contents of `room`.
    #[inline]
    pub(crate) fn came(&mut self, room: Room, count: usize) {
        match room {
            Room::Block(block) if count == 0 => resources::give_block(block),
            Room::Block(block) => {
                self.block = block;
                self.at = 0;
                self.dry = false;
            }
            Room::Message(memory, _) => {
                let now = self.now;
                let arrived =
                    resources::with(|shared| self.session.pull_appended(memory, count, shared, now));
                self.parked = arrived;
                self.dry = false;
                // The block becomes spare memory.
                self.recheck = true;
                self.note_closed();
            }
        }
    }

    /// The peer ended the transport, or the transport failed.
    pub(crate) fn ended(&mut self, error: Option<io::Error>) {
        self.session.receive_end(self.now);
        self.end.receiving = true;
        if self.end.io.is_none() {
            self.end.io = error;
        }
        self.note_closed();
    }
}

/// Sending.
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
    pub(crate) fn queue_lent(&mut self, kind: Kind, payload: &[u8]) -> Result<Sent, Error> {
        self.send_with(|tx| tx.send(kind, payload))
    }

    /// Queues a message of several buffers.
    pub(crate) fn queue_pieces(&mut self, kind: Kind, pieces: &[Bytes]) -> Result<Sent, Error> {
        self.send_with(|tx| tx.send_pieces(kind, pieces))
    }

    #[inline]
    fn send_with<T>(&mut self, send: impl FnOnce(&mut Tx<'_>) -> Result<T, Misuse>) -> Result<T, Error> {
        if self.end.sending {
            return Err(self.over());
        }
        let now = self.now;
        let sent = resources::with(|shared| {
            let sent = send(&mut self.session.tx(shared, now));
            self.session.after_tx(shared, now);
            sent
        });
        self.queued_at.get_or_insert(now);
        self.has_sent = true;
        match sent {
            Ok(sent) if self.session.is_open() => Ok(sent),
            sent => self.settle_end(sent),
        }
    }

    /// The error of a rejected message: the connection is closing, or the call was not possible.
    #[cold]
    fn settle_end<T>(&mut self, sent: Result<T, Misuse>) -> Result<T, Error> {
        self.recheck = true;
        self.note_closed();
        if self.is_overflown() {
            return Err(self.over());
        }
        sent.map_err(|misuse| match misuse {
            Misuse::Closing if self.end.closed.is_some() => self.over(),
            misuse => misuse.into(),
        })
    }

    /// Queues a piece of a message.
    pub(crate) fn queue_piece(&mut self, kind: Kind, piece: &[u8], last: bool) -> Result<Sent, Error> {
        self.send_with(|tx| tx.send_fragment(kind, piece, last))
    }

    /// Begins the closing handshake behind queued messages.
    pub(crate) fn close(&mut self, code: CloseCode, reason: &str) -> Result<(), Error> {
        if !self.end.sending {
            self.collect_last();
        }
        self.send_with(|tx| tx.close(code, reason))
    }

    /// Ends the connection without the peer's Close, unless it has ended. Bytes that have not left are dropped.
    pub(crate) fn end_unanswered(&mut self, code: CloseCode, reason: &str) {
        resources::with(|shared| self.session.end_unanswered(code, reason, shared));
        self.note_closed();
    }

    /// A handle for a producer. The first call sets the capacity of the queue.
    #[cfg(any(feature = "tokio", feature = "compio"))]
    pub(crate) fn sender(&mut self, capacity: usize) -> Sender {
        let inbox = self.inbox.get_or_insert_with(|| Box::new(Inbox::new(capacity)));
        match &self.end.closed {
            Some(closed) => inbox.ended(closed),
            None if !self.session.is_open() || self.end.sending => inbox.close(),
            None => {}
        }
        inbox.sender()
    }

    /// Whether there are producers.
    #[inline]
    pub(crate) fn has_inbox(&self) -> bool {
        self.inbox.is_some()
    }

    /// Queues messages of producers while there is capacity. Returns whether more may be available; if not, the next
    /// message wakes the task.
    #[inline]
    pub(crate) fn collect(&mut self, cx: &mut Context<'_>) -> bool {
        if self.inbox.is_none() { false } else { self.collect_queued(cx) }
    }

    fn collect_queued(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(mut inbox) = self.inbox.take() else { return false };
        let more = loop {
            if !self.session.is_open() || self.end.sending {
                inbox.close();
                break false;
            }
            if self.session.is_mid_message() {
                break false;
            }
            if self.session.is_congested() {
                break true;
            }
            match inbox.poll_next(cx) {
                // The sender checked the message, and the connection is open.
                Poll::Ready(message) => drop(self.queue(message)),
                Poll::Pending => break false,
            }
        };
        self.inbox = Some(inbox);
        more
    }

    /// Queues the producers' messages before our Close, up to [`Config::max_outbound`].
    fn collect_last(&mut self) {
        let Some(mut inbox) = self.inbox.take() else { return };
        let most = self.session.config().max_outbound();
        while self.session.is_open() && !self.session.is_mid_message() && self.session.buffered() < most {
            let Some(message) = inbox.next() else { break };
            let _ = self.queue(message);
        }
        inbox.close();
        self.inbox = Some(inbox);
    }

    /// Whether messages of producers wait and may leave.
    #[inline]
    fn holds_queued(&self) -> bool {
        self.inbox.as_ref().is_some_and(|inbox| !inbox.is_empty()) && !self.session.is_mid_message()
    }

    /// Whether no further message should be queued before queued bytes have left.
    #[inline]
    pub(crate) fn is_congested(&self) -> bool {
        self.session.is_congested() && !self.end.sending
    }

    /// Whether a queued reply must leave before the application handles this event: the reply to a Close, the pong
    /// for a ping that ends a burst, or a reply that has waited for its burst long enough. The clock is not read for
    /// each message, since that would slow a fast application.
    #[inline]
    pub(crate) fn is_urgent(&mut self, event: &Arrived, now: impl FnOnce() -> Time) -> bool {
        *event == Arrived::Close || self.is_overdue(now)
    }

    /// The same for any event but a Close.
    #[inline]
    pub(crate) fn is_overdue(&mut self, now: impl FnOnce() -> Time) -> bool {
        if self.owes_pong && !self.is_amid_burst() {
            return true;
        }
        let Some(queued) = self.queued_at else { return false };
        self.handed_out += 1;
        (self.handed_out == 1 || self.handed_out.is_multiple_of(CLOCK_EVERY))
            && now().since(queued) > BURST_MAX
    }

    /// Whether bytes wait to leave.
    #[inline]
    pub(crate) fn wants_send(&self) -> bool {
        !self.end.sending
            && (self.lent || self.sending.is_some() || self.session.wants_send() || self.holds_queued())
    }

    /// The bytes to send next. Report progress through [`sent`](Self::sent).
    #[inline]
    pub(crate) fn next_send(&mut self) -> Option<&Chain> {
        if self.end.sending || !self.may_send() {
            return None;
        }
        if self.sending.is_none() {
            self.sending = self.session.start_send();
            (self.queued_at, self.handed_out) = (None, 0);
            self.owes_pong = false;
        }
        self.sending.as_deref()
    }

    /// The bytes to send next, by value. Return them through [`give_send`](Self::give_send).
    #[inline]
    #[cfg(feature = "compio")]
    pub(crate) fn take_send(&mut self) -> Option<Box<Chain>> {
        self.next_send()?;
        self.lent = true;
        self.sending.take()
    }

    /// Takes a send back; [`sent`](Self::sent) reports its progress.
    #[inline]
    #[cfg(feature = "compio")]
    pub(crate) fn give_send(&mut self, chain: Box<Chain>) {
        self.lent = false;
        self.sending = Some(chain);
    }

    /// Accounts so many bytes as sent.
    #[inline]
    pub(crate) fn sent(&mut self, count: usize) {
        let Some(chain) = &mut self.sending else { return };
        chain.advance(count);
        if !chain.is_empty() {
            return self.session.progressed(count, self.now);
        }
        if let Some(chain) = self.sending.take() {
            let now = self.now;
            // The buffer becomes spare memory.
            self.recheck |= chain.holds_large();
            resources::with(|shared| self.session.finish_send(chain, shared, now));
            // A timeout that starts when a message has left may expire before the current one.
            self.recheck |= self.stalled;
        }
    }

    /// The transport accepts no more bytes for now.
    pub(crate) fn stalled(&mut self) {
        self.stalled = true;
        self.recheck = true;
        self.session.stalled(self.now);
    }

    /// Everything was sent.
    #[inline]
    pub(crate) fn went_on(&mut self) {
        self.stalled = false;
    }

    /// Whether bytes have waited for the transport since an earlier call.
    #[inline]
    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// The transport accepts no more bytes. Data of the peer may still be read.
    pub(crate) fn send_failed(&mut self, error: io::Error) {
        self.end.sending = true;
        if self.end.io.is_none() {
            self.end.io = Some(error);
        }
    }

    /// Whether queued bytes can still leave.
    pub(crate) fn check_sending(&self) -> Result<(), Error> {
        if self.end.sending { Err(self.over()) } else { Ok(()) }
    }

    /// Whether the end of the sending side was sent.
    pub(crate) fn is_shut(&self) -> bool {
        self.end.shut
    }

    /// Records that the end of the sending side was sent.
    pub(crate) fn shut(&mut self) {
        self.end.shut = true;
    }
}

/// State and deadlines.
impl Link {
    /// The next step with the transport.
    #[inline]
    pub(crate) fn next(&self) -> Next {
        if self.session.is_open() && !self.end.receiving {
            return Next::Go;
        }
        self.next_in_closing()
    }

    #[cold]
    fn next_in_closing(&self) -> Next {
        match self.session.fate() {
            Fate::Drop => Next::Over,
            // A peer that is too slow for the queued bytes is too slow to wait for.
            _ if !self.end.told && self.is_overflown() => Next::Tell,
            _ if (self.end.receiving || self.is_given_up()) && !self.wants_send() => Next::Over,
            Fate::Finish if !self.end.shut && !self.end.sending => Next::Shut,
            Fate::Open | Fate::AwaitEnd | Fate::Finish => Next::Go,
        }
    }

    /// Whether waiting for the peer is pointless.
    fn is_given_up(&self) -> bool {
        self.closed().is_some_and(|closed| matches!(closed.cause(), Cause::Expired(_)))
    }

    /// Whether input may still arrive.
    pub(crate) fn receives(&self) -> bool {
        !self.end.receiving
    }

    /// Whether the [`deadline`](Self::deadline), or the time to free spare memory, may have moved earlier since the
    /// last call.
    #[inline]
    pub(crate) fn take_recheck(&mut self) -> bool {
        std::mem::take(&mut self.recheck)
    }

    /// The result of [`take_recheck`](Self::take_recheck), without resetting it.
    #[inline]
    pub(crate) fn awaits_recheck(&self) -> bool {
        self.recheck
    }

    /// When to call [`timeout`](Self::timeout). It may move later unnoticed.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.session.deadline()
    }

    /// Whether a message was queued since [`note_sent`](Self::note_sent).
    #[inline]
    pub(crate) fn has_sent(&self) -> bool {
        self.has_sent
    }

    /// Queued messages have left by now: the idle timeout starts here.
    #[inline]
    pub(crate) fn note_sent(&mut self) {
        self.has_sent = false;
        self.session.note_sent(self.now);
    }

    /// The caller drives the connection from `since` on. All earlier input is read.
    pub(crate) fn note_driven(&mut self, since: Time) {
        if self.is_parked() {
            // The peer has sent messages that the caller has not asked for.
            self.session.note_unread(self.now);
        }
        self.session.note_driven(since);
    }

    /// Whether the deadline ends the connection, rather than sending a ping.
    pub(crate) fn awaits_peer(&self) -> bool {
        self.session.awaits().is_some()
    }

    /// Whether no input postpones the deadline.
    pub(crate) fn awaits_in_spite_of_input(&self) -> bool {
        matches!(self.session.awaits(), Some(Expired::Write | Expired::Close))
    }

    /// Whether the deadline has expired.
    pub(crate) fn is_due(&self) -> bool {
        self.is_due_at(self.now)
    }

    /// Whether the deadline expires at or before `now`.
    #[inline]
    pub(crate) fn is_due_at(&self, then: Time) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= then)
    }

    /// Executes the actions that are due.
    pub(crate) fn timeout(&mut self) {
        if self.is_due() {
            let now = self.now;
            self.recheck = true;
            resources::with(|shared| self.session.handle_timeout(shared, now));
            self.note_closed();
            // Queued bytes will not leave any more.
            self.end.sending |= self.session.fate() == Fate::Drop;
        }
    }

    /// How the connection ended, if it has ended.
    pub(crate) fn closed(&self) -> Option<&Closed> {
        self.end.closed.as_deref()
    }

    /// The result for a receive call after the end: an error once, then `None`.
    pub(crate) fn last_words(&mut self) -> Option<Error> {
        if std::mem::replace(&mut self.end.told, true) {
            return None;
        }
        let closed = self.end.closed.as_deref()?;
        match closed.cause() {
            Cause::Peer | Cause::Local => None,
            Cause::Ended => Some(self.end.io.take().map_or_else(|| Error::Closed(closed.clone()), Error::Io)),
            _ => Some(Error::Closed(closed.clone())),
        }
    }

    /// Suppresses the error for receive calls: the caller of a close waits for the end itself.
    pub(crate) fn hold_words(&mut self) {
        self.end.told |= self.is_overflown();
    }

    /// How the connection ended, for the caller that closed it.
    pub(crate) fn outcome(&mut self) -> Result<Closed, Error> {
        if let Some(error) = self.last_words() {
            return Err(error);
        }
        match self.closed() {
            Some(closed) if self.is_overflown() => Err(Error::Closed(closed.clone())),
            Some(closed) => Ok(closed.clone()),
            None => Err(Error::Misuse(Misuse::Closing)),
        }
    }

    fn is_overflown(&self) -> bool {
        self.closed().is_some_and(|closed| closed.cause() == Cause::Overflow)
    }

    /// Whether the end was reported to receive calls.
    pub(crate) fn is_told(&self) -> bool {
        self.end.told
    }

    /// The error for a message without an end.
    pub(crate) fn broken_off(&mut self) -> Error {
        self.last_words().unwrap_or_else(|| self.over())
    }

    /// The error for a send that is not possible.
    pub(crate) fn over(&self) -> Error {
        match (self.end.closed.as_deref(), &self.end.io) {
            (_, Some(error)) => Error::Io(error.kind().into()),
            (Some(closed), None) => Error::Closed(closed.clone()),
            (None, None) => Error::Misuse(Misuse::Closing),
        }
    }

    #[inline]
    fn note_closed(&mut self) {
        if let Some(closed) = self.session.take_closed() {
            self.recheck = true;
            if let Some(inbox) = &mut self.inbox {
                inbox.ended(&closed);
            }
            self.end.closed = Some(Box::new(closed));
            self.tell_pair();
        }
    }

    fn close_frame(&self) -> Option<CloseFrame> {
        let closed = self.closed()?;
        Some(CloseFrame::new(closed.code()?, closed.reason()))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        resources::give_block(std::mem::take(&mut self.block));
    }
}

/// The text was checked on receipt, so that this check cannot fail.
#[inline(always)]
fn message(kind: Kind, payload: Bytes) -> Message {
    match kind {
        Kind::Binary => Message::Binary(payload),
        Kind::Text => Message::Text(Utf8Bytes::try_from(payload).unwrap_or_default()),
    }
}
