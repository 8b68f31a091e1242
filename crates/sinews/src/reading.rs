//! A message that is read piece by piece, or into memory of the application's.

use std::task::{Context, Poll, ready};

use sinews_proto::{Kind, Place};
use sinews_session::Arrived;

use crate::driver::Driver;
use crate::error::Error;
use crate::link::Link;
use crate::message::{Filled, MessageHead};

/// Most bytes of one write that become one fragment: what waits to be sent stays near
/// [`high_water`](crate::Config::high_water).
pub(crate) const FRAGMENT_MAX: usize = 64 << 10;

/// How far a message is read: the piece that came last, and how much of it was taken.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) kind: Kind,
    /// Where the piece is; `None`: in `kept`. Not looked at once all of it was taken, since it may be gone then.
    at: Option<Place>,
    kept: Vec<u8>,
    read: usize,
    left: usize,
    /// It is the last one.
    pub(crate) last: bool,
}

impl Reading {
    /// Waits for the next message; `None`: the connection is over.
    pub(crate) fn poll_begin(drive: &mut impl Driver, cx: &mut Context<'_>) -> Poll<Option<Self>> {
        drive.link().expect_pieces(true);
        while let Some(event) = ready!(drive.poll_event(cx)) {
            if let Some(reading) = Self::begin(drive.link(), event) {
                return Poll::Ready(Some(reading));
            }
        }
        Poll::Ready(None)
    }

    /// Waits until there is something to take; `false`: the message has ended.
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

    /// The beginning of a message, whole or in pieces; `None` for what is none.
    fn begin(link: &mut Link, event: Arrived) -> Option<Self> {
        let (kind, at, last) = match event {
            Arrived::Message { kind, at } => (kind, at, true),
            Arrived::Fragment { kind, at, first: true, last } => (kind, at, last),
            // The rest of one whose reader has left.
            event => {
                link.pass_over(event);
                return None;
            }
        };
        let left = link.lend(at.clone()).len();
        Some(Self { kind, at: Some(at), kept: Vec::new(), read: 0, left, last })
    }

    /// What came next, if it belongs to the message.
    fn go_on(&mut self, link: &mut Link, event: Arrived) {
        if let Arrived::Fragment { at, last, .. } = event {
            (self.read, self.left, self.last) = (0, link.lend(at.clone()).len(), last);
            self.at = Some(at);
        }
    }

    /// Bytes that were not taken of the piece.
    #[cfg(feature = "tokio")]
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Whether all of the message was taken.
    pub(crate) fn is_over(&self) -> bool {
        self.last && self.left == 0
    }

    /// Takes so many bytes of the piece, at most all that are left.
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

    /// Other calls may follow before the rest of the piece is wanted: it moves out of their way.
    fn keep(&mut self, link: &mut Link) {
        if self.at.is_some() {
            let left = self.left;
            self.kept = self.take(link, left).to_vec();
            (self.at, self.read, self.left) = (None, 0, left);
        }
    }
}

/// Memory of the application's that a message is received into.
pub(crate) trait Target {
    /// Bytes that fit into it.
    fn capacity(&mut self) -> usize;

    /// Puts bytes behind the first so many. They fit.
    fn put(&mut self, at: usize, bytes: &[u8]);

    /// What is behind the first so many bytes, as far as a transport may receive there.
    fn behind(&mut self, at: usize) -> &mut [u8];

    /// What a transport has received there by itself: how many bytes, and whether they end the message.
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

/// What is next for memory of the application's.
pub(crate) enum Step {
    Event(Arrived),
    /// A transport has received there: [`Target::take_piece`].
    #[cfg_attr(not(feature = "compio"), allow(dead_code, reason = "others are lent the memory for a poll"))]
    Piece,
}

/// A message that goes into memory of the application's, by as many calls as it takes.
#[derive(Debug, Default)]
pub(crate) struct Filling {
    /// Bytes of the memory that hold payload.
    filled: usize,
    reading: Option<Box<Reading>>,
}

impl Filling {
    /// Goes on where the last call stood; `None`: the connection is over.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll<D: Driver>(
        &mut self,
        drive: &mut D,
        cx: &mut Context<'_>,
        target: &mut (impl Target + ?Sized),
    ) -> Poll<Option<Filled>> {
        self.poll_by(drive, cx, target, D::poll_event)
    }

    /// The same for who has a way of its own to the next event.
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

    /// The same for a transport that receives into the memory by itself; it is told from where on, once that may be.
    pub(crate) fn poll_step<D: Driver, T: Target + ?Sized>(
        &mut self,
        drive: &mut D,
        cx: &mut Context<'_>,
        target: &mut T,
        mut poll_step: impl FnMut(&mut D, &mut Context<'_>, &mut T, Option<usize>) -> Poll<Option<Step>>,
    ) -> Poll<Option<Filled>> {
        drive.link().expect_pieces(true);
        loop {
            // After a dropped call another buffer may have come, and a smaller one: what is said to be there is.
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
                    // A call without memory waits for what there is to tell.
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

    /// Waits until something is known of what comes next of the message, or of the next one; `None`: the connection is
    /// over. `elsewhere` tells of bytes behind those filled that a transport has received by itself, and whether they
    /// end the message.
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

    /// What was finished is not handed out from here on: it comes with the next call.
    #[cfg(feature = "compio")]
    pub(crate) fn give_back(&mut self, rest: &[u8], filled: &Filled) {
        let begin =
            || Reading { kind: filled.kind, at: None, kept: Vec::new(), read: 0, left: 0, last: true };
        let reading = self.reading.get_or_insert_with(|| Box::new(begin()));
        let kept = reading.kept.get(reading.read..reading.read + reading.left).unwrap_or_default();
        reading.kept = [rest, kept].concat();
        (reading.at, reading.read, reading.left) = (None, 0, reading.kept.len());
    }

    /// What was finished goes on in other memory, which holds as much.
    #[cfg(feature = "compio")]
    pub(crate) fn resume(&mut self, filled: usize) {
        self.filled = filled;
    }

    /// A transport has received the end of the message, and nobody has looked.
    #[cfg(feature = "compio")]
    pub(crate) fn ended(&mut self) {
        if let Some(reading) = &mut self.reading {
            reading.last = true;
        }
    }

    /// Whoever received a message into memory of its own does not want the rest.
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
