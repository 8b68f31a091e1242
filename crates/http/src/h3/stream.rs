//! A connection's streams.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use super::capsule::CapsuleReader;
use super::varint::{VARINT_MAX, VarintReader};

/// A QUIC stream's identifier: 62 bits, of which the lowest say the side that opens the stream, and its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuicStreamId(u64);

impl QuicStreamId {
    /// Creates an identifier; bits above the 62nd are ignored.
    #[must_use]
    pub const fn new(id: u64) -> Self {
        Self(id & VARINT_MAX)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether the client opens the stream.
    #[must_use]
    pub const fn is_by_client(self) -> bool {
        self.0 & 1 == 0
    }

    /// Whether the stream has one direction.
    #[must_use]
    pub const fn is_unidirectional(self) -> bool {
        self.0 & 2 != 0
    }

    /// Whether the stream carries a request.
    #[must_use]
    pub const fn is_request(self) -> bool {
        self.0 & 3 == 0
    }
}

/// Purpose of a stream that we receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamRole {
    /// A unidirectional stream whose type has not arrived.
    Untyped,
    Control,
    QpackEncoder,
    QpackDecoder,
    /// A request, or a WebTransport stream whose signal has not arrived.
    Message,
    /// A stream in a WebTransport session.
    Session,
}

/// Meaning of the next bytes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextBytes {
    /// The type of a unidirectional stream.
    StreamType,
    /// The type of a frame; `first`: the stream may be one of WebTransport instead.
    FrameType {
        first: bool,
    },
    FrameLength {
        frame_type: u64,
    },
    /// A field section.
    Section {
        left: u64,
    },
    Data {
        left: u64,
    },
    Settings {
        left: u64,
    },
    /// A payload of one integer.
    Number {
        frame_type: u64,
        left: u64,
    },
    /// Ignored bytes.
    Skip {
        left: u64,
    },
    /// A WebTransport stream's session.
    SessionId,
    /// The stream waits for a session, or the request for SETTINGS.
    Held,
    /// Bytes without frames.
    Raw,
}

/// Next part of a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessagePart {
    Head,
    Content,
    /// Nothing: trailers have arrived.
    Nothing,
}

/// State of an open stream.
#[derive(Debug)]
pub(super) struct H3Stream {
    pub(super) id: QuicStreamId,
    pub(super) role: StreamRole,
    pub(super) stage: NextBytes,
    pub(super) number: VarintReader,
    /// Part of a field section.
    pub(super) section: Vec<u8>,
    pub(super) awaits: MessagePart,
    /// Rest of the declared content.
    pub(super) content_left: Option<u64>,
    /// The request is a CONNECT, whose stream carries DATA only.
    pub(super) is_tunnel: bool,
    /// The response to HEAD has no content.
    pub(super) is_head: bool,
    /// The peer has ended its side.
    pub(super) remote_closed: bool,
    /// We have ended our side.
    pub(super) local_closed: bool,
    /// Our final head is sent.
    pub(super) head_sent: bool,
    /// State of a WebTransport session, or of a request for a session.
    pub(super) session: Option<Box<SessionState>>,
    /// A WebTransport stream's session.
    pub(super) session_id: QuicStreamId,
}

/// A WebTransport session.
#[derive(Debug, Default)]
pub(super) struct SessionState {
    pub(super) is_accepted: bool,
    pub(super) is_closed: bool,
    pub(super) is_closed_by_peer: bool,
    pub(super) capsules: CapsuleReader,
}

impl H3Stream {
    pub(super) fn new(id: QuicStreamId, role: StreamRole, stage: NextBytes) -> Self {
        Self {
            id,
            role,
            stage,
            number: VarintReader::default(),
            section: Vec::new(),
            awaits: MessagePart::Head,
            content_left: None,
            is_tunnel: false,
            is_head: false,
            remote_closed: false,
            local_closed: false,
            head_sent: false,
            session: None,
            session_id: QuicStreamId::new(0),
        }
    }

    /// Whether the head of a request, or the session of a stream of WebTransport, has not arrived.
    fn awaits_head(&self) -> bool {
        match self.role {
            StreamRole::Message => self.awaits == MessagePart::Head,
            StreamRole::Session => self.stage == NextBytes::SessionId,
            _ => false,
        }
    }
}

/// Streams that are listed as without a head before the list is cleaned; a smaller list keeps its memory.
const HEADS_MIN: usize = 4;

/// Open streams in identifier order.
#[derive(Debug, Default)]
pub(super) struct QuicStreams {
    open: Vec<H3Stream>,
    /// The peer's streams whose heads may not have arrived, and when they were opened, in this order.
    heads: VecDeque<(QuicStreamId, Duration)>,
    /// Bytes of partial field sections.
    pub(super) section_bytes: usize,
}

impl QuicStreams {
    fn find(&self, id: QuicStreamId) -> Result<usize, usize> {
        self.open.binary_search_by_key(&id, |stream| stream.id)
    }

    pub(super) fn get(&mut self, id: QuicStreamId) -> Option<&mut H3Stream> {
        let index = self.find(id).ok()?;
        self.open.get_mut(index)
    }

    pub(super) fn get_ref(&self, id: QuicStreamId) -> Option<&H3Stream> {
        self.open.get(self.find(id).ok()?)
    }

    pub(super) fn insert(&mut self, stream: H3Stream) {
        if let Err(index) = self.find(stream.id) {
            self.open.insert(index, stream);
        }
    }

    /// Adds a stream that begins with a head.
    pub(super) fn insert_at(&mut self, stream: H3Stream, now: Duration) {
        self.first_head();
        if self.heads.len() >= 2 * self.open.len() + HEADS_MIN {
            let mut heads = mem::take(&mut self.heads);
            heads.retain(|(id, _)| self.awaits_head(*id));
            self.heads = heads;
        }
        self.heads.push_back((stream.id, now));
        self.insert(stream);
    }

    fn awaits_head(&self, id: QuicStreamId) -> bool {
        self.get_ref(id).is_some_and(H3Stream::awaits_head)
    }

    /// Returns the first stream whose head has not arrived, and when it was opened.
    pub(super) fn first_head(&mut self) -> Option<(QuicStreamId, Duration)> {
        while let Some((id, opened)) = self.heads.front().copied() {
            if self.awaits_head(id) {
                return Some((id, opened));
            }
            self.heads.pop_front();
        }
        if self.heads.capacity() > HEADS_MIN {
            self.heads = VecDeque::new();
        }
        None
    }

    /// Removes a stream.
    pub(super) fn remove(&mut self, id: QuicStreamId) -> Option<H3Stream> {
        let stream = self.open.remove(self.find(id).ok()?);
        self.section_bytes -= stream.section.len();
        Some(stream)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &H3Stream> {
        self.open.iter()
    }

    /// Returns the memory in bytes.
    pub(super) fn memory(&self) -> usize {
        let sections: usize = self.open.iter().map(|stream| stream.section.capacity()).sum();
        let heads = self.heads.capacity() * size_of::<(QuicStreamId, Duration)>();
        self.open.capacity() * size_of::<H3Stream>() + heads + sections
    }

    /// Drops all streams of a connection that failed.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
