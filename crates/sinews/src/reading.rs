//! A message that is read in pieces, or into the application's memory.

use std::task::{Context, Poll, ready};

use sinews_proto::{Kind, PayloadLocation};
use sinews_session::ReceivedEvent;

use crate::driver::Driver;
use crate::error::Error;
use crate::link::Link;
use crate::message::{Filled, MessageHead};

/// Most bytes of one write that become one fragment: the queued bytes stay near
/// [`high_water`](crate::Config::high_water).
pub(crate) const FRAGMENT_MAX: usize = 64 << 10;

/// Read position in a message: the last piece, and how much of it was taken.
#[derive(Debug)]
pub(crate) struct MessageCursor {
    pub(crate) kind: Kind,
    /// Where the piece is; `None`: in `buffered`. Not accessed once all of it was taken, since it may be freed then.
    at: Option<PayloadLocation>,
    buffered: Vec<u8>,
    read: usize,
    left: usize,
    /// It is the last piece.
    pub(crate) last: bool,
}

impl MessageCursor {
    /// Waits for the next message; `None`: the connection has ended.
    pub(crate) fn poll_begin(driver: &mut impl Driver, cx: &mut Context<'_>) -> Poll<Option<Self>> {
        driver.link().expect_pieces(true);
        while let Some(event) = ready!(driver.poll_event(cx)) {
            if let Some(reading) = Self::begin(driver.link(), event) {
                return Poll::Ready(Some(reading));
            }
        }
        Poll::Ready(None)
    }

    /// Waits until there are bytes to take; `false`: the message has ended.
    pub(crate) fn poll_bytes(
        &mut self,
        driver: &mut impl Driver,
        cx: &mut Context<'_>,
    ) -> Poll<Result<bool, Error>> {
        while self.left == 0 && !self.last {
            match ready!(driver.poll_event(cx)) {
                Some(event) => self.continue_with(driver.link(), event),
                None => return Poll::Ready(Err(driver.link().interrupted_error())),
            }
        }
        Poll::Ready(Ok(self.left > 0))
    }

    /// The beginning of a message, whole or in pieces; `None` for other events.
    fn begin(link: &mut Link, event: ReceivedEvent) -> Option<Self> {
        let (kind, at, last) = match event {
            ReceivedEvent::Message { kind, at } => (kind, at, true),
            ReceivedEvent::Fragment { kind, at, first: true, last } => (kind, at, last),
            ReceivedEvent::Fragment { kind, at, first: false, last } if !link.is_skipping() => {
                // A receive call of another kind, which was dropped, has taken the beginning.
                let buffered = link.take_gathered(at);
                let left = buffered.len();
                return Some(Self { kind, at: None, buffered, read: 0, left, last });
            }
            // The rest of a message whose reader was dropped.
            event => {
                link.discard_event(event);
                return None;
            }
        };
        let left = link.payload_at(at.clone()).len();
        Some(Self { kind, at: Some(at), buffered: Vec::new(), read: 0, left, last })
    }

    /// Continues with the next event, if it belongs to the message.
    fn continue_with(&mut self, link: &mut Link, event: ReceivedEvent) {
        if let ReceivedEvent::Fragment { at, last, .. } = event {
            (self.read, self.left, self.last) = (0, link.payload_at(at.clone()).len(), last);
            self.at = Some(at);
        }
    }

    /// Bytes of the piece that were not taken.
    #[cfg(feature = "tokio")]
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Whether all of the message was taken.
    pub(crate) fn is_finished(&self) -> bool {
        self.last && self.left == 0
    }

    /// Takes so many bytes of the piece, at most its remaining bytes.
    pub(crate) fn take<'a>(&'a mut self, link: &'a mut Link, count: usize) -> &'a mut [u8] {
        let start = self.read;
        let count = count.min(self.left);
        self.read += count;
        self.left -= count;
        match &self.at {
            _ if count == 0 => &mut [],
            Some(at) => &mut link.payload_at(at.clone())[start..start + count],
            None => &mut self.buffered[start..start + count],
        }
    }

    /// Moves the rest of the piece to memory of its own, since other calls may follow before it is read.
    fn buffer(&mut self, link: &mut Link) {
        if self.at.is_some() {
            let left = self.left;
            self.buffered = self.take(link, left).to_vec();
            (self.at, self.read, self.left) = (None, 0, left);
        }
    }
}

/// The application's memory that a message is received into.
pub(crate) trait ReceiveTarget {
    /// Bytes that fit into it.
    fn capacity(&mut self) -> usize;

    /// Copies bytes to an offset. They fit.
    fn put(&mut self, at: usize, bytes: &[u8]);

    /// The memory from an offset on, as far as a transport may receive there.
    fn behind(&mut self, at: usize) -> &mut [u8];

    /// Takes the result of a transport that received by itself: the number of bytes, and whether they end the
    /// message.
    fn take_piece(&mut self) -> Option<(usize, bool)> {
        None
    }
}

impl ReceiveTarget for [u8] {
    fn capacity(&mut self) -> usize {
        self.len()
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        let behind = self.get_mut(at..).unwrap_or_default();
        behind[..bytes.len()].copy_from_slice(bytes);
    }

    fn behind(&mut self, at: usize) -> &mut [u8] {
        self.get_mut(at..).unwrap_or_default()
    }
}

/// The next step of a receive into the application's memory.
pub(crate) enum ReadStep {
    Event(ReceivedEvent),
    /// A transport has received there: [`ReceiveTarget::take_piece`].
    #[cfg_attr(
        not(feature = "compio"),
        allow(dead_code, reason = "other transports borrow the memory for a poll")
    )]
    Piece,
}

/// A message that is received into the application's memory, by as many calls as it takes.
#[derive(Debug, Default)]
pub(crate) struct BufferFill {
    /// Bytes of the memory that hold payload.
    filled: usize,
    reading: Option<Box<MessageCursor>>,
}

impl BufferFill {
    /// Continues the receive of the last call; `None`: the connection has ended.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll<D: Driver>(
        &mut self,
        driver: &mut D,
        cx: &mut Context<'_>,
        target: &mut (impl ReceiveTarget + ?Sized),
    ) -> Poll<Option<Filled>> {
        self.poll_by(driver, cx, target, D::poll_event)
    }

    /// The same with a caller-supplied function for the next event.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll_by<D: Driver>(
        &mut self,
        driver: &mut D,
        cx: &mut Context<'_>,
        target: &mut (impl ReceiveTarget + ?Sized),
        mut poll_event: impl FnMut(&mut D, &mut Context<'_>) -> Poll<Option<ReceivedEvent>>,
    ) -> Poll<Option<Filled>> {
        self.poll_step(driver, cx, target, |driver, cx, _, _| {
            poll_event(driver, cx).map(|it| it.map(ReadStep::Event))
        })
    }

    /// The same for a transport that receives into the memory by itself; the result tells the offset, once it may.
    pub(crate) fn poll_step<D: Driver, T: ReceiveTarget + ?Sized>(
        &mut self,
        driver: &mut D,
        cx: &mut Context<'_>,
        target: &mut T,
        mut poll_step: impl FnMut(&mut D, &mut Context<'_>, &mut T, Option<usize>) -> Poll<Option<ReadStep>>,
    ) -> Poll<Option<Filled>> {
        driver.link().expect_pieces(true);
        loop {
            // After a dropped call the caller may pass another, smaller buffer: `filled` is bounded by its capacity.
            self.filled = self.filled.min(target.capacity());
            let room = target.capacity() - self.filled;
            if let Some(reading) = &mut self.reading {
                let piece = reading.take(driver.link(), room);
                let copied = piece.len();
                target.put(self.filled, piece);
                self.filled += copied;
                if reading.is_finished() {
                    return Poll::Ready(Some(self.finish(driver.link())));
                }
                if copied == room {
                    if reading.left == 0
                        && driver.link().may_end()
                        && let Some(event) = driver.arrived(cx)
                    {
                        reading.continue_with(driver.link(), event);
                        continue;
                    }
                    // A call without memory waits until the length is known.
                    if reading.left > 0 || target.capacity() > 0 {
                        return Poll::Ready(Some(self.finish(driver.link())));
                    }
                }
                let piece = target.take_piece();
                if let Some((count, last)) =
                    piece.or_else(|| driver.poll_piece(cx, target.behind(self.filled)))
                {
                    self.filled += count;
                    reading.last = last;
                    continue;
                }
            }
            let offered = self.reading.is_some().then_some(self.filled);
            match (ready!(poll_step(driver, cx, target, offered)), &mut self.reading) {
                (None, _) => return Poll::Ready(None),
                (Some(ReadStep::Piece), _) => {}
                (Some(ReadStep::Event(event)), Some(reading)) => reading.continue_with(driver.link(), event),
                (Some(ReadStep::Event(event)), None) => {
                    self.reading = MessageCursor::begin(driver.link(), event).map(Box::new);
                }
            }
        }
    }

    /// Waits until the next bytes of the message, or of the next message, are known; `None`: the connection has
    /// ended. `elsewhere` counts bytes behind `filled` that a transport has received by itself, and whether they end
    /// the message.
    pub(crate) fn poll_head<D: Driver>(
        &mut self,
        driver: &mut D,
        cx: &mut Context<'_>,
        mut elsewhere: impl FnMut(&mut D) -> Option<(usize, bool)>,
        mut poll_step: impl FnMut(&mut D, &mut Context<'_>) -> Poll<Option<ReadStep>>,
    ) -> Poll<Option<MessageHead>> {
        driver.link().expect_pieces(true);
        loop {
            if let Some(reading) = &mut self.reading {
                let (received, ended) = elsewhere(driver).unwrap_or_default();
                let (follow, ends) = driver.link().known_to_follow();
                let len = received.saturating_add(reading.left).saturating_add(follow);
                let last = reading.last || ended || ends;
                if len > 0 || last {
                    let len = len.saturating_add(self.filled);
                    // Sends, which may receive, can follow before the piece is read.
                    reading.buffer(driver.link());
                    return Poll::Ready(Some(MessageHead { kind: reading.kind, len, last }));
                }
            }
            match (ready!(poll_step(driver, cx)), &mut self.reading) {
                (None, _) => return Poll::Ready(None),
                (Some(ReadStep::Piece), _) => {}
                (Some(ReadStep::Event(event)), Some(reading)) => reading.continue_with(driver.link(), event),
                (Some(ReadStep::Event(event)), None) => {
                    self.reading = MessageCursor::begin(driver.link(), event).map(Box::new);
                }
            }
        }
    }

    fn finish(&mut self, link: &mut Link) -> Filled {
        let len = std::mem::take(&mut self.filled);
        let mut filled = Filled { kind: Kind::Binary, len, last: false };
        if let Some(mut reading) = self.reading.take() {
            filled.kind = reading.kind;
            filled.last = reading.is_finished();
            if !filled.last {
                reading.buffer(link);
                self.reading = Some(reading);
            }
        }
        filled
    }

    /// A finished message is not handed out from here on: the next call returns it.
    #[cfg(feature = "compio")]
    pub(crate) fn restore_rest(&mut self, rest: &[u8], filled: &Filled) {
        let begin = || MessageCursor {
            kind: filled.kind,
            at: None,
            buffered: Vec::new(),
            read: 0,
            left: 0,
            last: true,
        };
        let reading = self.reading.get_or_insert_with(|| Box::new(begin()));
        // `finish` has buffered a message that continues, and its other bytes are none.
        let buffered = &reading.buffered[reading.read..reading.read + reading.left];
        reading.buffered = [rest, buffered].concat();
        (reading.at, reading.read, reading.left) = (None, 0, reading.buffered.len());
    }

    /// A finished receive continues in other memory of the same capacity.
    #[cfg(feature = "compio")]
    pub(crate) fn resume(&mut self, filled: usize) {
        self.filled = filled;
    }

    /// A transport has received the end of the message, and no call has returned it.
    #[cfg(feature = "compio")]
    pub(crate) fn ended(&mut self) {
        if let Some(reading) = &mut self.reading {
            reading.last = true;
        }
    }

    /// A receiver into its own memory discards the rest of the message.
    #[inline]
    pub(crate) fn abandon(&mut self, link: &mut Link) {
        if let Some(reading) = self.reading.take() {
            self.filled = 0;
            if !reading.last {
                link.skip_rest();
            }
        }
    }
}
