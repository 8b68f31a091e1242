//! Requests on one connection's streams: the part that HTTP/2 and HTTP/3 share.
//!
//! ```text
//!   events ─▶ RequestStreams ─┬▶ StreamExchange: Upload ─▶ Pending ─▶ Sending ─▶ the framing
//!                             └▶ OpenedSocket: Session and Handler, of the worker ─▶ the framing
//! ```
//!
//! While a connection's queued answers exceed `max_queued_answers`, complete requests wait before `Pending`.

mod requests;
mod sockets;
mod waiting;

use std::net::SocketAddr;

use bytes::Bytes;
use sinews_engine::ConnId;
use sinews_http::h2::StreamId;
use sinews_http::h3::QuicStreamId;
use sinews_proto::Time;

pub(crate) use self::requests::RequestStreams;
pub(crate) use self::sockets::{SentFrame, SocketTable};
pub(crate) use self::waiting::WaitingRequests;
use crate::exchange::{PendingAnswer, RetainedRequest};
use crate::framing::write_deadline;
use crate::http::HttpConfig;
use crate::request::ResponseBody;
use crate::socket::AcceptedUpgrade;
use crate::timer::NEVER;

/// A stream on an HTTP/2 or HTTP/3 connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKey {
    Http2(StreamId),
    Http3(QuicStreamId),
}

impl StreamKey {
    /// Whether the client has opened the stream.
    pub(crate) const fn is_by_client(self) -> bool {
        match self {
            Self::Http2(_) => true,
            Self::Http3(stream) => stream.is_by_client(),
        }
    }
}

impl From<StreamId> for StreamKey {
    fn from(stream: StreamId) -> Self {
        Self::Http2(stream)
    }
}

impl From<QuicStreamId> for StreamKey {
    fn from(stream: QuicStreamId) -> Self {
        Self::Http3(stream)
    }
}

/// Reason to reset a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamReset {
    /// The client need not send the rest of its request.
    Unneeded,
    Cancelled,
    /// The request was not executed: the client may repeat it.
    Refused,
    Internal,
}

/// A connection's exchanges.
pub(crate) struct ExchangeTable<I> {
    pub(super) conn: ConnId,
    pub(crate) peer: SocketAddr,
    /// In stream order.
    pub(super) exchanges: Vec<StreamExchange<I>>,
    /// The exchange that sends next.
    pub(super) next: usize,
    /// A socket whose answer is queued.
    pub(super) opened: Option<Box<OpenedSocket>>,
    pub(super) has_request: bool,
    /// A complete request, or an answer that is ready, waits for the queued answers to leave.
    pub(crate) has_waiting: bool,
    /// A socket has the connection's slot among the limits.
    pub(crate) is_slot_taken: bool,
    /// When the last exchange or socket ended.
    pub(super) idle_since: Time,
}

/// A socket that the worker creates.
pub(crate) struct OpenedSocket {
    pub(crate) stream: StreamKey,
    pub(crate) upgrade: AcceptedUpgrade,
    /// The peer sends no bytes.
    pub(crate) ends: bool,
    pub(crate) slot: SocketSlot,
}

/// A socket's slot among the connections that limits permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketSlot {
    /// Its connection's slot, which one socket has at a time: such a connection counts as an HTTP/1.1 connection.
    Connection,
    Own,
    /// None: the socket only tells the client that it is beyond a limit.
    Rejected,
}

/// A stream's request, and its answer.
pub(super) struct StreamExchange<I> {
    pub(super) stream: I,
    /// The method is HEAD.
    pub(super) is_head: bool,
    /// The whole request has arrived.
    pub(super) is_received: bool,
    pub(super) started: Time,
    /// When bytes were last received or sent.
    pub(super) progress: Time,
    pub(super) stage: StreamStage,
}

pub(super) enum StreamStage {
    /// The request is being answered.
    Answering,
    Upload(Box<StreamUpload>),
    /// The request is complete, and waits for the queued answers to leave.
    Waiting(Box<StreamUpload>),
    Pending(Box<PendingAnswer>),
    Sending(OutgoingBody),
}

/// The rest of an answer's body.
pub(super) struct OutgoingBody {
    pub(super) body: ResponseBody,
    /// Bytes that the answer alone has in memory, until its end.
    len: usize,
}

/// A request with its received body part.
pub(crate) struct StreamUpload {
    pub(super) request: Box<RetainedRequest>,
    pub(super) body: Vec<u8>,
    /// Body bytes that are not returned to the stream's window.
    pub(super) held: usize,
}

impl<I: Copy + Ord> ExchangeTable<I> {
    pub(super) const fn new(conn: ConnId, peer: SocketAddr, now: Time) -> Self {
        Self {
            conn,
            peer,
            exchanges: Vec::new(),
            next: 0,
            opened: None,
            has_request: false,
            has_waiting: false,
            is_slot_taken: false,
            idle_since: now,
        }
    }

    pub(super) fn position(&self, stream: I) -> Option<usize> {
        self.exchanges.binary_search_by_key(&stream, |exchange| exchange.stream).ok()
    }

    /// Adds an exchange. Its stream is mostly the latest: QUIC may deliver stream beginnings in another order.
    pub(super) fn open(&mut self, stream: I, is_head: bool, is_received: bool, now: Time) {
        self.has_request = true;
        let stage = StreamStage::Answering;
        let at = self.exchanges.partition_point(|exchange| exchange.stream < stream);
        let exchange = StreamExchange { stream, is_head, is_received, started: now, progress: now, stage };
        self.exchanges.insert(at, exchange);
    }

    /// Removes an exchange that has ended.
    pub(super) fn remove(&mut self, at: usize, now: Time) {
        self.exchanges.remove(at);
        self.idle_since = now;
    }

    /// Drops all requests and answers on a connection that closes.
    pub(crate) fn drop_answers(&mut self) {
        (self.exchanges, self.has_waiting) = (Vec::new(), false);
    }

    /// Returns the memory, in bytes, for bodies that are being sent. A client with closed windows holds them.
    pub(super) fn outgoing(&self) -> usize {
        let bodies = self.exchanges.iter().map(|exchange| match &exchange.stage {
            StreamStage::Sending(outgoing) => outgoing.memory(),
            _ => 0,
        });
        bodies.sum()
    }

    /// Returns how many answers by the pool's threads are not polled yet.
    fn blocking(&self) -> usize {
        self.exchanges.iter().filter(|exchange| exchange.is_blocking()).count()
    }

    /// Returns the bytes in requests that wait.
    fn waiting(&self) -> usize {
        let waiting = self.exchanges.iter().map(|exchange| match &exchange.stage {
            StreamStage::Waiting(request) => request.request.len() + request.body.capacity(),
            _ => 0,
        });
        waiting.sum()
    }

    /// Returns the bytes in incomplete requests.
    pub(super) fn incomplete(&self) -> usize {
        let uploads = self.exchanges.iter().map(|exchange| match &exchange.stage {
            StreamStage::Upload(upload) | StreamStage::Waiting(upload) => {
                upload.request.len() + upload.body.capacity()
            }
            _ => 0,
        });
        uploads.sum()
    }

    /// Returns the first exchange deadline. `stopping`: since when the server stops. `shared`: when the output last
    /// progressed that a stream's body waits for, beside its own.
    pub(super) fn deadline(
        &self,
        config: &HttpConfig,
        stopping: Option<Time>,
        shared: impl Fn(I) -> Time,
    ) -> Time {
        let deadlines = self.exchanges.iter().map(|exchange| exchange.deadline(config, stopping, &shared));
        deadlines.fold(NEVER, Time::min)
    }

    /// Returns the deadline for a connection without exchanges and sockets.
    pub(super) fn idle_deadline(&self, config: &HttpConfig) -> Time {
        self.idle_since + if self.has_request { config.keep_alive_timeout } else { config.head_timeout }
    }
}

impl<I: Copy> StreamExchange<I> {
    fn deadline(&self, config: &HttpConfig, stopping: Option<Time>, shared: impl Fn(I) -> Time) -> Time {
        match &self.stage {
            // A waiting request ends with the answers before it, which have deadlines.
            StreamStage::Answering | StreamStage::Waiting(_) => NEVER,
            StreamStage::Pending(pending) => pending.since + config.response_timeout,
            StreamStage::Sending(_) => {
                write_deadline(self.progress.max(shared(self.stream)), stopping, config)
            }
            StreamStage::Upload(upload) => {
                let whole = config.upload_deadline(self.started, upload.body.len());
                // A peer whose window is closed by this side cannot send.
                if upload.held > 0 { whole } else { whole.min(self.progress + config.body_idle_timeout) }
            }
        }
    }
}

impl OutgoingBody {
    fn new(body: ResponseBody) -> Self {
        let (is_unique, len) = match &body {
            ResponseBody::Bytes(bytes) => (bytes.is_unique(), bytes.len()),
            ResponseBody::File(_) | ResponseBody::Source(_) => (false, 0),
        };
        Self { body, len: if is_unique { len } else { 0 } }
    }

    /// A body that is sent completely.
    pub(super) const fn empty() -> Self {
        Self { body: ResponseBody::Bytes(Bytes::new()), len: 0 }
    }

    /// Returns the memory that the answer holds, in bytes: all its own bytes until its end, and what a source refers
    /// to. 0 for a file, and for bytes that others hold too.
    pub(super) fn memory(&self) -> usize {
        match &self.body {
            ResponseBody::Source(part) => part.memory(),
            ResponseBody::Bytes(_) | ResponseBody::File(_) => self.len,
        }
    }

    /// Returns whether body pieces hold more memory than their bytes.
    pub(super) fn has_large_pieces(&self) -> bool {
        self.memory() > 0
    }
}

/// DATA frame payload: each peer accepts it (RFC 9113 section 4.2).
pub(super) const PIECE: usize = 16 << 10;
