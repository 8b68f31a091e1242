//! A message that is read in pieces, or into the application's memory.

use std::task::{Context, Poll, ready};

use sinews_proto::{Kind, Place};
use sinews_session::Arrived;

use crate::driver::Driver;
use crate::error::Error;
use crate::link::Link;
use crate::message::{Filled, MessageHead};

/// Most bytes of one write that become one fragment: the queued bytes stay near
/// [`high_water`](crate::Config::high_water).
pub(crate) const FRAGMENT_MAX: usize = 64 << 10;

/// Read position in a message: the last piece, and how much of it was taken.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) kind: Kind,
    /// Where the piece is; `None`: in `kept`. Not accessed once all of it was taken, since it may be freed then.
    at: Option<Place>,
    kept: Vec<u8>,
    read: usize,
    left: usize,
    /// It is the last piece.
    pub(crate) last: bool,
}

impl Reading {
    /// Waits for the next message; `None`: the connection has ended.
    pub(crate) fn poll_begin(drive: &mut impl Driver, cx: &mut Context<'_>) -> Poll<Option<Self>> {
        drive.link().expect_pieces(true);
        while let Some(event) = ready!(drive.poll_event(cx)) {
            if let Some(reading) = Self::begin(drive.link(), event) {
                return Poll::Ready(Some(reading));
            }
        }
        Poll::Ready(None)
    }

    /// Waits until there are bytes to take; `false`: the message has ended.
    pub(crate) fn poll_some(
        &mut self,
        drive: &mut impl Driver,
        cx: &mut Context<'_>,
    ) -> Poll<Result<bool, Error>> {
        while self.left == 0 && !self.last {
            match ready!(drive.poll_event(cx)) {
                Some(event) => self.go_on(drive.link(), event),
                None => return Poll::Ready(Err(drive.link().broken_off())),
            }
        }
        Poll::Ready(Ok(self.left > 0))
    }

    /// The beginning of a message, whole or in pieces; `None` for other events.
    fn begin(link: &mut Link, event: Arrived) -> Option<Self> {
        let (kind, at, last) = match event {
            Arrived::Message { kind, at } => (kind, at, true),
            Arrived::Fragment { kind, at, first: true, last } => (kind, at, last),
            // The rest of a message whose reader was dropped.
            event => {
                link.pass_over(event);
                return None;
            }
        };
        let left = link.lend(at.clone()).len();
        Some(Self { kind, at: Some(at), kept: Vec::new(), read: 0, left, last })
    }

    /// Continues with the next event, if it belongs to the message.
    fn go_on(&mut self, link: &mut Link, event: Arrived) {
        if let Arrived::Fragment { at, last, .. } = event {
            (self.read, self.left, self.last) = (0, link.lend(at.clone()).len(), last);
            self.at = Some(at);
        }
    }

    /// Bytes of the piece that were not taken.
    #[cfg(feature = "tokio")]
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Whether all of the message was taken.
    pub(crate) fn is_over(&self) -> bool {
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
            Some(at) => &mut link.lend(at.clone())[start..start + count],
            None => &mut self.kept[start..start + count],
        }
    }

    /// Moves the rest of the piece to memory of its own, since other calls may follow before it is read.
    fn keep(&mut self, link: &mut Link) {
        if self.at.is_some() {
            let left = self.left;
            self.kept = self.take(link, left).to_vec();
            (self.at, self.read, self.left) = (None, 0, left);
        }
    }
}

/// The application's memory that a message is received into.
pub(crate) trait Target {
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

impl Target for [u8] {
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
pub(crate) enum Step {
    Event(Arrived),
    /// A transport has received there: [`Target::take_piece`].
    #[cfg_attr(
        not(feature = "compio"),
        allow(dead_code, reason = "other transports borrow the memory for a poll")
    )]
    Piece,
}

/// A message that is received into the application's memory, by as many calls as it takes.
#[derive(Debug, Default)]
pub(crate) struct Filling {
    /// Bytes of the memory that hold payload.
    filled: usize,
    reading: Option<Box<Reading>>,
}

impl Filling {
    /// Continues the receive of the last call; `None`: the connection has ended.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll<D: Driver>(
        &mut self,
        drive: &mut D,
        cx: &mut Context<'_>,
        target: &mut (impl Target + ?Sized),
    ) -> Poll<Option<Filled>> {
        self.poll_by(drive, cx, target, D::poll_event)
    }

    /// The same with a caller-supplied function for the next event.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll_by<D: Driver>(
        &mut self,
        drive: &mut D,
        cx: &mut Context<'_>,
        target: &mut (impl Target + ?Sized),
        mut poll_event: impl FnMut(&mut D, &mut Context<'_>) -> Poll<Option<Arrived>>,
    ) -> Poll<Option<Filled>> {
        self.poll_step(drive, cx, target, |drive, cx, _, _| {
            poll_event(drive, cx).map(|it| it.map(Step::Event))
        })
    }

    /// The same for a transport that receives into the memory by itself; the result tells the offset, once it may.
    pub(crate) fn poll_step<D: Driver, T: Target + ?Sized>(
        &mut self,
        drive: &mut D,
        cx: &mut Context<'_>,
        target: &mut T,
        mut poll_step: impl FnMut(&mut D, &mut Context<'_>, &mut T, Option<usize>) -> Poll<Option<Step>>,
    ) -> Poll<Option<Filled>> {
        drive.link().expect_pieces(true);
        loop {
            // After a dropped call the caller may pass another, smaller buffer: `filled` is bounded by its capacity.
            self.filled = self.filled.min(target.capacity());
            let room = target.capacity() - self.filled;
            if let Some(reading) = &mut self.reading {
                let piece = reading.take(drive.link(), room);
                let copied = piece.len();
                target.put(self.filled, piece);
                self.filled += copied;
                if reading.is_over() {
                    return Poll::Ready(Some(self.finish(drive.link())));
                }
                if copied == room {
                    if reading.left == 0
                        && drive.link().may_end()
                        && let Some(event) = drive.arrived(cx)
                    {
                        reading.go_on(drive.link(), event);
                        continue;
                    }
                    // A call without memory waits until the length is known.
                    if reading.left > 0 || target.capacity() > 0 {
                        return Poll::Ready(Some(self.finish(drive.link())));
                    }
                }
                let piece = target.take_piece();
                if let Some((count, last)) =
                    piece.or_else(|| drive.poll_piece(cx, target.behind(self.filled)))
                {
                    self.filled += count;
                    reading.last = last;
                    continue;
                }
            }
            let offered = self.reading.is_some().then_some(self.filled);
            match (ready!(poll_step(drive, cx, target, offered)), &mut self.reading) {
                (None, _) => return Poll::Ready(None),
                (Some(Step::Piece), _) => {}
                (Some(Step::Event(event)), Some(reading)) => reading.go_on(drive.link(), event),
                (Some(Step::Event(event)), None) => {
                    self.reading = Reading::begin(drive.link(), event).map(Box::new);
                }
            }
        }
    }

    /// Waits until the next bytes of the message, or of the next message, are known; `None`: the connection has
    /// ended. `elsewhere` counts bytes behind `filled` that a transport has received by itself, and whether they end
    /// the message.
    pub(crate) fn poll_head<D: Driver>(
        &mut self,
        drive: &mut D,
        cx: &mut Context<'_>,
        mut elsewhere: impl FnMut(&mut D) -> Option<(usize, bool)>,
        mut poll_step: impl FnMut(&mut D, &mut Context<'_>) -> Poll<Option<Step>>,
    ) -> Poll<Option<MessageHead>> {
        drive.link().expect_pieces(true);
        loop {
            if let Some(reading) = &self.reading {
                let (received, ended) = elsewhere(drive).unwrap_or_default();
                let (follow, ends) = drive.link().known_to_follow();
                let len = received.saturating_add(reading.left).saturating_add(follow);
                let last = reading.last || ended || ends;
                if len > 0 || last {
                    let len = len.saturating_add(self.filled);
                    return Poll::Ready(Some(MessageHead { kind: reading.kind, len, last }));
                }
            }
            match (ready!(poll_step(drive, cx)), &mut self.reading) {
                (None, _) => return Poll::Ready(None),
                (Some(Step::Piece), _) => {}
                (Some(Step::Event(event)), Some(reading)) => reading.go_on(drive.link(), event),
                (Some(Step::Event(event)), None) => {
                    self.reading = Reading::begin(drive.link(), event).map(Box::new);
                }
            }
        }
    }

    fn finish(&mut self, link: &mut Link) -> Filled {
        let len = std::mem::take(&mut self.filled);
        let mut filled = Filled { kind: Kind::Binary, len, last: false };
        if let Some(mut reading) = self.reading.take() {
            filled.kind = reading.kind;
            filled.last = reading.is_over();
            if !filled.last {
                reading.keep(link);
                self.reading = Some(reading);
            }
        }
        filled
    }

    /// A finished message is not handed out from here on: the next call returns it.
    #[cfg(feature = "compio")]
    pub(crate) fn give_back(&mut self, rest: &[u8], filled: &Filled) {
        let begin =
            || Reading { kind: filled.kind, at: None, kept: Vec::new(), read: 0, left: 0, last: true };
        let reading = self.reading.get_or_insert_with(|| Box::new(begin()));
        let kept = reading.kept.get(reading.read..reading.read + reading.left).unwrap_or_default();
        reading.kept = [rest, kept].concat();
        (reading.at, reading.read, reading.left) = (None, 0, reading.kept.len());
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
    pub(crate) fn leave(&mut self, link: &mut Link) {
        if let Some(reading) = self.reading.take() {
            self.filled = 0;
            if !reading.last {
                link.skip_rest();
            }
        }
    }
}
