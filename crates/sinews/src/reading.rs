//! A message that is read piece by piece.

use sinews_proto::{Kind, Place};
use sinews_session::Arrived;

use crate::link::Link;

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
    /// The beginning of a message, whole or in pieces; `None` for what is none.
    pub(crate) fn begin(link: &mut Link, event: Arrived) -> Option<Self> {
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
    pub(crate) fn go_on(&mut self, link: &mut Link, event: Arrived) {
        if let Arrived::Fragment { at, last, .. } = event {
            (self.read, self.left, self.last) = (0, link.lend(at.clone()).len(), last);
            self.at = Some(at);
        }
    }

    /// Bytes that were not taken of the piece.
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
    pub(crate) fn keep(&mut self, link: &mut Link) {
        if self.at.is_some() {
            let left = self.left;
            self.kept = self.take(link, left).to_vec();
            (self.at, self.read, self.left) = (None, 0, left);
        }
    }
}
