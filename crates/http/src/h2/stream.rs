//! A connection's streams.

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

/// Open streams in identifier order, and recently closed ones.
#[derive(Debug, Default)]
pub(super) struct StreamTable {
    open: Vec<StreamEntry>,
    /// Streams that we reset. Other streams never evict them: a proxy may send the rest of a body long after our reset.
    reset: VecDeque<u32>,
    /// The largest identifier that `reset` has evicted: any stream up to it may have been one of them.
    reset_evicted: u32,
    /// Streams that ended otherwise.
    ended: VecDeque<u32>,
}

/// Relation of a stream identifier to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClosedStream {
    /// We reset the stream, or may have reset it long ago: frames that crossed the reset are ignored.
    ByOurReset,
    /// Both sides ended it, or the peer reset it.
    Ended,
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

    /// Returns the largest open stream identifier.
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
        let closed = if by_our_reset { &mut self.reset } else { &mut self.ended };
        if closed.len() >= Config::CLOSED_STREAMS_MAX
            && let Some(evicted) = closed.pop_front()
            && by_our_reset
        {
            self.reset_evicted = self.reset_evicted.max(evicted);
        }
        closed.push_back(id);
    }

    /// Returns how a stream that is not open was closed.
    pub(super) fn closed(&self, id: u32) -> ClosedStream {
        if self.ended.contains(&id) {
            ClosedStream::Ended
        } else if id <= self.reset_evicted || self.reset.contains(&id) {
            ClosedStream::ByOurReset
        } else {
            ClosedStream::Unknown
        }
    }

    /// Returns the memory in bytes.
    pub(super) fn memory(&self) -> usize {
        let closed = self.reset.capacity() + self.ended.capacity();
        self.open.capacity() * size_of::<StreamEntry>() + closed * size_of::<u32>()
    }

    /// Drops all streams of a connection that failed.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
