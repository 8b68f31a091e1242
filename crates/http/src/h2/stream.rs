//! Streams of a connection.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::config::Config;
use super::window::{FlowWindow, Unreported};

/// State of an open stream.
#[derive(Debug)]
pub(super) struct StreamEntry {
    pub(super) id: u32,
    /// Bytes that the peer may send.
    pub(super) receive: FlowWindow,
    pub(super) unreported: Unreported,
    /// Bytes that the peer takes.
    pub(super) send: FlowWindow,
    /// Rest of the declared content.
    pub(super) content_left: Option<u64>,
    /// The method is CONNECT: the stream carries DATA only (RFC 9113 section 8.5).
    pub(super) is_tunnel: bool,
    /// The peer has ended its side.
    pub(super) remote_closed: bool,
    /// We have ended our side.
    pub(super) local_closed: bool,
    /// Our final head is sent.
    pub(super) head_sent: bool,
    /// The final head of the peer has arrived.
    pub(super) head_received: bool,
    /// The method is HEAD: the response has no content, whatever its head says.
    pub(super) is_head: bool,
    /// A send was cut short by a window: the application waits for its opening.
    pub(super) blocked: bool,
}

/// Open streams in the order of their identifiers, and recently closed ones.
#[derive(Debug, Default)]
pub(super) struct StreamTable {
    open: Vec<StreamEntry>,
    /// Twice the identifier, plus one if we reset the stream.
    closed: VecDeque<u32>,
}

/// Relation of a stream identifier to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClosedStream {
    /// We reset the stream: frames that crossed the reset are ignored.
    ByOurReset,
    /// Both sides ended it, or the peer reset it.
    ByPeer,
    /// It was closed long ago, or never opened.
    Unknown,
}

impl StreamTable {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn get(&mut self, id: u32) -> Option<&mut StreamEntry> {
        let index = self.open.binary_search_by_key(&id, |stream| stream.id).ok()?;
        self.open.get_mut(index)
    }

    pub(super) fn get_ref(&self, id: u32) -> Option<&StreamEntry> {
        let index = self.open.binary_search_by_key(&id, |stream| stream.id).ok()?;
        self.open.get(index)
    }

    /// Adds a stream, whose identifier is the largest.
    pub(super) fn open(&mut self, stream: StreamEntry) {
        self.open.push(stream);
    }

    /// Returns the largest identifier of an open stream.
    pub(super) fn last(&self) -> Option<u32> {
        self.open.last().map(|stream| stream.id)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut StreamEntry> {
        self.open.iter_mut()
    }

    /// Removes a stream. Returns whether it was open.
    pub(super) fn close(&mut self, id: u32, by_our_reset: bool) -> bool {
        let found = self.open.binary_search_by_key(&id, |stream| stream.id);
        let Ok(index) = found else { return false };
        self.open.remove(index);
        self.remember(id, by_our_reset);
        true
    }

    /// Remembers a stream that is closed without ever having been open, or just now.
    pub(super) fn remember(&mut self, id: u32, by_our_reset: bool) {
        if self.closed.len() >= Config::CLOSED_STREAMS_MAX {
            self.closed.pop_front();
        }
        self.closed.push_back(id << 1 | u32::from(by_our_reset));
    }

    /// Returns how a stream that is not open was closed.
    pub(super) fn closed(&self, id: u32) -> ClosedStream {
        match self.closed.iter().rev().find(|closed| *closed >> 1 == id) {
            Some(closed) if closed & 1 == 1 => ClosedStream::ByOurReset,
            Some(_) => ClosedStream::ByPeer,
            None => ClosedStream::Unknown,
        }
    }

    /// Returns the bytes of memory.
    pub(super) fn memory(&self) -> usize {
        self.open.capacity() * size_of::<StreamEntry>() + self.closed.capacity() * size_of::<u32>()
    }

    /// Drops all streams of a connection that failed.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
