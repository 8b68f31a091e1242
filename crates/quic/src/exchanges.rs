//! An application's calls on a connection, and the queues behind them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::{Connection, ConnectionHandle, Dir, SendDatagramError, StreamId, WriteError};
use sinews_http::h3::{H3Code, H3Connection, H3SendError, PeerSettings, QuicStreamId, RequestTarget};

use crate::app::DatagramSend;
use crate::budget::DatagramBudget;
use crate::config::varint;
use crate::memory::{RetainedBytes, UnreadBytes};
use crate::window::ConnectionWindow;

/// An endpoint's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionKey(pub(crate) ConnectionHandle);

/// An application's calls on a connection.
pub struct Exchanges<'a> {
    pub(crate) quic: &'a mut Connection,
    pub(crate) http: &'a mut H3Connection,
    pub(crate) streams: &'a mut StreamQueues,
    pub(crate) key: ConnectionKey,
    pub(crate) now: Instant,
    /// The beginning of the connection.
    pub(crate) started: Instant,
    pub(crate) out: Vec<u8>,
}

impl Exchanges<'_> {
    /// The connection.
    #[must_use]
    pub const fn connection(&self) -> ConnectionKey {
        self.key
    }

    /// The event's time.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// The peer's SETTINGS, once they have arrived. A server announces here whether it accepts extended CONNECT.
    #[must_use]
    pub const fn peer_settings(&self) -> Option<PeerSettings> {
        self.http.peer_settings()
    }

    /// Sends a request head on a new stream. `ends`: it has no content. `None`: the server permits no further stream
    /// now; try again in [`handle_batch_end`](crate::Http3App::handle_batch_end).
    ///
    /// # Errors
    /// [`H3SendError::NotPermitted`].
    pub fn send_request<'f>(
        &mut self,
        target: &RequestTarget<'_>,
        fields: impl IntoIterator<Item = (&'f str, &'f str)>,
        ends: bool,
    ) -> Result<Option<QuicStreamId>, H3SendError> {
        let Some(stream) = self.quic.streams().open(Dir::Bi) else { return Ok(None) };
        match self.http.send_request(http_id(stream), target, fields, ends, &mut self.out) {
            Ok(()) => {
                let head = std::mem::take(&mut self.out);
                self.streams.send(self.quic, stream, head.into(), ends);
                Ok(Some(http_id(stream)))
            }
            Err(error) => {
                let _ = self.quic.send_stream(stream).reset(varint(H3Code::H3_REQUEST_CANCELLED.get()));
                let _ = self.quic.recv_stream(stream).stop(varint(H3Code::H3_REQUEST_CANCELLED.get()));
                Err(error)
            }
        }
    }

    /// Sends a response head. `ends`: it has no content.
    ///
    /// # Errors
    /// [`H3SendError`].
    pub fn send_head<'f>(
        &mut self,
        stream: QuicStreamId,
        status: u16,
        fields: impl IntoIterator<Item = (&'f str, &'f str)>,
        ends: bool,
    ) -> Result<(), H3SendError> {
        self.http.send_head(stream, status, fields, ends, &mut self.out)?;
        let head = std::mem::take(&mut self.out);
        self.streams.send(self.quic, quic_id(stream), head.into(), ends);
        Ok(())
    }

    /// Sends content, which is not copied if it is long. `ends`: the response ends after it.
    ///
    /// # Errors
    /// [`H3SendError`].
    pub fn send_data(&mut self, stream: QuicStreamId, data: Bytes, ends: bool) -> Result<(), H3SendError> {
        let header = self.http.start_data(stream, data.len(), ends)?;
        if data.len() <= COPIED_DATA_MAX {
            let frame = [header.as_bytes(), &data].concat();
            self.streams.send(self.quic, quic_id(stream), frame.into(), ends);
            return Ok(());
        }
        self.streams.send(self.quic, quic_id(stream), Bytes::copy_from_slice(header.as_bytes()), false);
        self.streams.send(self.quic, quic_id(stream), data, ends);
        Ok(())
    }

    /// Opens a stream in a WebTransport session. `None`: the client permits no further stream now.
    ///
    /// # Errors
    /// [`H3SendError`].
    pub fn open_session_stream(
        &mut self,
        session: QuicStreamId,
        is_unidirectional: bool,
    ) -> Result<Option<QuicStreamId>, H3SendError> {
        let dir = if is_unidirectional { Dir::Uni } else { Dir::Bi };
        let Some(stream) = self.quic.streams().open(dir) else { return Ok(None) };
        match self.http.open_session_stream(http_id(stream), session) {
            Ok(prefix) => {
                let prefix = Bytes::copy_from_slice(prefix.as_bytes());
                self.streams.send(self.quic, stream, prefix, false);
                Ok(Some(http_id(stream)))
            }
            Err(error) => {
                let _ = self.quic.send_stream(stream).reset(varint(H3Code::WEBTRANSPORT_SESSION_GONE.get()));
                Err(error)
            }
        }
    }

    /// Rejects a stream that the client has opened in a session, with an application code.
    pub fn reject_session_stream(&mut self, stream: QuicStreamId, code: u32) {
        let now = self.now.saturating_duration_since(self.started);
        let code = H3Code::from_session_code(code);
        if let Err(error) = self.http.reject_session_stream(stream, code, now) {
            self.close(error.code(), error.reason());
        }
    }

    /// Ends both sides of a session's stream early.
    pub fn reset_session_stream(&mut self, stream: QuicStreamId, code: H3Code) {
        self.http.reset(stream, code);
        // HTTP/3 forgets the stream once the client has ended its side.
        self.streams.forget(quic_id(stream));
        let _ = self.quic.send_stream(quic_id(stream)).reset(varint(code.get()));
    }

    /// Sends bytes on a session's stream, without frames. `ends`: our side of the stream ends after them.
    pub fn send_bytes(&mut self, stream: QuicStreamId, bytes: Bytes, ends: bool) {
        if ends {
            self.http.finish_session_stream(stream);
        }
        self.streams.send(self.quic, quic_id(stream), bytes, ends);
    }

    /// Sends a datagram in a session, which QUIC does not repeat. Few datagrams wait for the congestion window
    /// ([`QuicLimits::with_datagram_send_buffer`](crate::QuicLimits::with_datagram_send_buffer)), so that an
    /// application can replace a value that has not left.
    ///
    /// # Errors
    /// [`H3SendError`].
    pub fn send_datagram(
        &mut self,
        session: QuicStreamId,
        pieces: &[&[u8]],
    ) -> Result<DatagramSend, H3SendError> {
        let prefix = self.http.datagram_prefix(session)?;
        let len = prefix.as_bytes().len() + pieces.iter().map(|piece| piece.len()).sum::<usize>();
        if self.quic.datagrams().max_size().is_none_or(|max| len > max) {
            return Ok(DatagramSend::TooLarge);
        }
        let has_content = self.streams.retained.get() > 0;
        if !self.streams.datagram_budget.permits(len, has_content) {
            return Ok(DatagramSend::Blocked);
        }
        let mut datagram = Vec::with_capacity(len);
        datagram.extend_from_slice(prefix.as_bytes());
        pieces.iter().for_each(|piece| datagram.extend_from_slice(piece));
        Ok(match self.quic.datagrams().send(datagram.into(), false) {
            Ok(()) => {
                self.streams.datagram_budget.spend(len);
                DatagramSend::Sent
            }
            Err(SendDatagramError::Blocked(_)) => DatagramSend::Blocked,
            Err(_) => DatagramSend::TooLarge,
        })
    }

    /// The longest payload of a datagram of a session now; 0 without datagrams. It changes with the path.
    #[must_use]
    pub fn datagram_max(&mut self, session: QuicStreamId) -> usize {
        let Ok(prefix) = self.http.datagram_prefix(session) else { return 0 };
        let max = self.quic.datagrams().max_size();
        max.map_or(0, |max| max.saturating_sub(prefix.as_bytes().len()))
    }

    /// Stops reading a stream after the event: its window closes, and no other. The datagram that is being handled may still
    /// bring content.
    pub fn pause_reads(&mut self, stream: QuicStreamId) {
        if self.http.is_open(stream) {
            self.streams.paused.insert(quic_id(stream));
        }
    }

    /// Reads a stream again.
    pub fn resume_reads(&mut self, stream: QuicStreamId) {
        if self.streams.paused.remove(&quic_id(stream)) {
            self.streams.resumed.push(quic_id(stream));
        }
    }

    /// Stops or continues to read all streams.
    pub fn pause_all_reads(&mut self, paused: bool) {
        self.streams.all_paused = paused;
        if !paused {
            self.streams.resumed.extend(std::mem::take(&mut self.streams.waiting));
        }
    }

    /// Ends a WebTransport session with a code and a reason.
    ///
    /// # Errors
    /// [`H3SendError`].
    pub fn close_session(
        &mut self,
        session: QuicStreamId,
        code: u32,
        reason: &str,
    ) -> Result<(), H3SendError> {
        self.http.close_session(session, code, reason, &mut self.out)?;
        let capsule = std::mem::take(&mut self.out);
        self.streams.send(self.quic, quic_id(session), capsule.into(), true);
        Ok(())
    }

    /// Ends a stream early.
    pub fn reset(&mut self, stream: QuicStreamId, code: H3Code) {
        self.http.reset(stream, code);
    }

    /// Ends a stream early, also if the end of its complete response waits for a window.
    pub fn cancel(&mut self, stream: QuicStreamId, code: H3Code) {
        self.http.reset(stream, code);
        if self.is_blocked(stream) {
            self.streams.forget(quic_id(stream));
            let _ = self.quic.send_stream(quic_id(stream)).reset(varint(code.get()));
        }
    }

    /// Bytes that wait for the peer's windows, on all streams.
    #[must_use]
    pub const fn queued(&self) -> usize {
        self.streams.outgoing_bytes
    }

    /// Bytes that wait for the peer's windows, on a stream.
    #[must_use]
    pub fn queued_on(&self, stream: QuicStreamId) -> usize {
        let queue = self.streams.outgoing.get(&quic_id(stream));
        queue.map_or(0, |queue| queue.chunks.iter().map(Bytes::len).sum())
    }

    /// Whether bytes of a stream wait for a window of the peer. Send more after [`handle_writable`](crate::Http3App::handle_writable).
    #[must_use]
    pub fn is_blocked(&self, stream: QuicStreamId) -> bool {
        self.streams.outgoing.contains_key(&quic_id(stream))
    }

    /// The client's address, which changes as it migrates.
    #[must_use]
    pub fn remote_address(&self) -> SocketAddr {
        self.quic.remote_address()
    }

    /// Streams whose sent content the client has not acknowledged, or whose response is not complete; and how many
    /// frames with content were sent, which shows progress.
    #[must_use]
    pub fn unacknowledged(&mut self) -> (usize, u64) {
        // The control stream never ends.
        let streams = self.quic.streams().send_streams().saturating_sub(1);
        (streams, self.quic.stats().frame_tx.stream)
    }

    /// Returns when the first stream was opened whose head has not arrived. Bound the time of the heads by
    /// [`expire_heads`](Self::expire_heads).
    #[must_use]
    pub fn awaits_head_since(&mut self) -> Option<Instant> {
        self.http.awaits_head_since().map(|opened| self.started + opened)
    }

    /// Resets the streams that were opened by this time, and whose heads have not arrived.
    pub fn expire_heads(&mut self, opened_by: Instant) {
        let since_start = |at: Instant| at.saturating_duration_since(self.started);
        if let Err(error) = self.http.expire_heads(since_start(opened_by), since_start(self.now)) {
            self.close(error.code(), error.reason());
        }
    }

    /// Memory bytes for outgoing content that the peer has not acknowledged, with the [queue](Self::queued).
    #[must_use]
    pub fn retained(&self) -> usize {
        self.streams.retained.get()
    }

    /// The connection's memory bytes beside [outgoing content](Self::retained): its state, and unread input, of which
    /// the part in QUIC is an estimate.
    #[must_use]
    pub fn memory(&mut self) -> usize {
        let open = |dir| self.quic.streams().remote_open_streams(dir) as usize;
        let open = [Dir::Bi, Dir::Uni].map(open).iter().sum();
        let unread = self.streams.unread_bytes.limit(self.streams.window.most(open));
        let permitted =
            [Dir::Bi, Dir::Uni].map(|dir| self.quic.max_concurrent_streams(dir)).iter().sum::<u64>();
        BASE_MEMORY
            + permitted as usize * PERMITTED_STREAM_MEMORY
            + open * OPEN_STREAM_MEMORY
            + unread as usize
            + self.streams.queued_datagrams(self.quic)
            + self.http.memory()
            + self.streams.memory()
    }

    /// Requests that were reset without an event since the last call. For metrics.
    pub fn take_rejected(&mut self) -> u32 {
        self.http.take_rejected()
    }

    /// Tells the client to send no more requests, and rejects further requests after a round trip (RFC 9114 section 5.2). Open
    /// requests continue, and so do requests that cross the announcement.
    pub fn shut_down(&mut self) {
        if self.streams.end == EndState::Serving {
            self.http.shut_down();
            let round_trip = (2 * self.quic.rtt()).clamp(ANNOUNCEMENT_MIN, ANNOUNCEMENT_MAX);
            self.streams.end = EndState::Announced { reject_at: self.now + round_trip };
        }
    }

    /// Whether a shutdown is complete: no request is open, and further ones are rejected.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.http.is_drained()
    }

    /// Closes the connection after the event or call, without its streams. [`handle_end`](crate::Http3App::handle_end) follows.
    pub fn close(&mut self, code: H3Code, reason: &'static str) {
        self.streams.close.get_or_insert((code, reason));
    }
}

/// Progress of a graceful end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EndState {
    #[default]
    Serving,
    /// GOAWAY without a limit is sent. Requests that cross it are served.
    Announced {
        reject_at: Instant,
    },
    Rejecting,
}

impl EndState {
    pub(crate) const fn reject_at(self) -> Option<Instant> {
        match self {
            Self::Announced { reject_at } => Some(reject_at),
            Self::Serving | Self::Rejecting => None,
        }
    }
}

/// Time to deliver an announcement, within which its loss may be repaired: two round trips within these bounds.
const ANNOUNCEMENT_MIN: Duration = Duration::from_millis(25);
const ANNOUNCEMENT_MAX: Duration = Duration::from_secs(1);

/// Content that is copied behind its frame header: a separate piece takes more.
const COPIED_DATA_MAX: usize = 1024;

/// An idle connection's memory without its streams: our state, quinn-proto's state, and keys.
const BASE_MEMORY: usize = 20 << 10;

/// Memory that quinn-proto takes for each stream that the client may open.
const PERMITTED_STREAM_MEMORY: usize = 48;

/// Memory that quinn-proto takes for an open stream.
const OPEN_STREAM_MEMORY: usize = 600;

/// Bytes between both layers.
#[derive(Default)]
pub(crate) struct StreamQueues {
    /// The unidirectional stream for HTTP/3's control frames.
    pub(crate) control: Option<StreamId>,
    /// Bytes for streams with closed windows.
    pub(crate) outgoing: BTreeMap<StreamId, OutgoingQueue>,
    pub(crate) outgoing_bytes: usize,
    pub(crate) max_queued: usize,
    /// Datagram bytes that may wait for the congestion window.
    pub(crate) datagram_buffer: usize,
    pub(crate) datagram_budget: DatagramBudget,
    /// Bytes that QUIC keeps until the client acknowledges them, at most, and their maximum.
    pub(crate) send_window: u64,
    pub(crate) max_send_window: u64,
    /// Bytes passed to QUIC since the window has grown.
    pub(crate) written: u64,
    /// Bytes that the client has not acknowledged.
    pub(crate) retained: RetainedBytes,
    /// Received bytes in QUIC.
    pub(crate) unread_bytes: UnreadBytes,
    /// Bytes that the client may send ahead.
    pub(crate) window: ConnectionWindow,
    /// The rest of a held stream's chunk.
    pub(crate) held: BTreeMap<StreamId, Bytes>,
    /// Streams that the application does not read.
    pub(crate) paused: BTreeSet<StreamId>,
    /// Streams that it reads again.
    pub(crate) resumed: Vec<StreamId>,
    /// The application reads no stream.
    pub(crate) all_paused: bool,
    /// Streams with content meanwhile.
    pub(crate) waiting: BTreeSet<StreamId>,
    /// Streams whose windows have opened.
    pub(crate) writable: Vec<StreamId>,
    /// Number of writes to streams whose bytes wait.
    pub(crate) turns: u64,
    pub(crate) end: EndState,
    /// The application closes the connection.
    pub(crate) close: Option<(H3Code, &'static str)>,
}

#[derive(Default)]
pub(crate) struct OutgoingQueue {
    chunks: VecDeque<Bytes>,
    /// The turn in which bytes were written last, or the first bytes came.
    turn: u64,
    ends: bool,
}

pub(crate) fn http_id(stream: StreamId) -> QuicStreamId {
    QuicStreamId::new(stream.into())
}

pub(crate) fn quic_id(stream: QuicStreamId) -> StreamId {
    StreamId::from(varint(stream.get()))
}

impl StreamQueues {
    /// Sends bytes as far as the windows permit, and queues the rest.
    pub(crate) fn send(&mut self, quic: &mut Connection, stream: StreamId, bytes: Bytes, ends: bool) {
        let bytes = if bytes.is_empty() { bytes } else { self.retained.track(bytes) };
        let bytes = match self.outgoing.contains_key(&stream) {
            true => bytes,
            // Mostly the windows are open, and no queue is needed.
            false => match self.send_at_once(quic, stream, bytes, ends) {
                Some(rest) => rest,
                None => return,
            },
        };
        self.turns += 1;
        let new = OutgoingQueue { turn: self.turns, ..OutgoingQueue::default() };
        let queue = self.outgoing.entry(stream).or_insert(new);
        self.outgoing_bytes += bytes.len();
        if !bytes.is_empty() {
            queue.chunks.push_back(bytes);
        }
        queue.ends |= ends;
        self.flush(quic, stream);
    }

    /// Writes to a stream without a queue. Returns bytes that wait for a window.
    fn send_at_once(
        &mut self,
        quic: &mut Connection,
        stream: StreamId,
        mut bytes: Bytes,
        ends: bool,
    ) -> Option<Bytes> {
        let mut writer = quic.send_stream(stream);
        while !bytes.is_empty() {
            match writer.write_chunks(std::slice::from_mut(&mut bytes)) {
                Ok(written) => self.written += written.bytes as u64,
                Err(WriteError::Blocked) => return Some(bytes),
                // The peer has stopped the stream, or it exists no longer.
                Err(_) => return None,
            }
        }
        if ends {
            let _ = writer.finish();
        }
        None
    }

    /// Takes the streams whose windows have opened, the longest wait first. QUIC names the latest stream first, which
    /// may use up the connection's window each time.
    pub(crate) fn take_writable(&mut self) -> Vec<StreamId> {
        let mut streams = std::mem::take(&mut self.writable);
        streams.sort_by_key(|stream| self.outgoing.get(stream).map(|queue| queue.turn));
        streams
    }

    /// Writes queued bytes as far as the windows permit. Returns whether bytes were written, or none are left.
    pub(crate) fn flush(&mut self, quic: &mut Connection, stream: StreamId) -> bool {
        let Some(queue) = self.outgoing.get_mut(&stream) else { return true };
        let mut is_written = false;
        let mut writer = quic.send_stream(stream);
        let mut is_open = true;
        while is_open && !queue.chunks.is_empty() {
            match writer.write_chunks(queue.chunks.make_contiguous()) {
                Ok(written) => {
                    self.outgoing_bytes -= written.bytes;
                    self.written += written.bytes as u64;
                    is_written = true;
                    self.turns += 1;
                    queue.turn = self.turns;
                    queue.chunks.drain(..written.chunks);
                }
                Err(WriteError::Blocked) => return is_written,
                Err(_) => is_open = false,
            }
        }
        if queue.ends && is_open {
            let _ = writer.finish();
        }
        self.forget(stream);
        true
    }

    /// Doubles the window once the client has acknowledged as much as it holds: a client that acknowledges nothing takes
    /// little memory.
    pub(crate) fn grow_window(&mut self, quic: &mut Connection) {
        // QUIC keeps at most a window of what was written.
        if self.written >= 2 * self.send_window && self.send_window < self.max_send_window {
            self.send_window = (2 * self.send_window).min(self.max_send_window);
            self.written = 0;
            quic.set_send_window(self.send_window);
        }
    }

    /// Datagram bytes that wait for the congestion window.
    pub(crate) fn queued_datagrams(&self, quic: &mut Connection) -> usize {
        self.datagram_buffer.saturating_sub(quic.datagrams().send_buffer_space())
    }

    /// Number of streams whose bytes stay in QUIC.
    pub(crate) fn unread(&self) -> usize {
        self.paused.len() + self.held.len()
    }

    /// Notes that a stream's bytes have left QUIC.
    pub(crate) fn note_read(&mut self, bytes: usize) {
        self.window.note_read(bytes);
        self.unread_bytes.remove_read(bytes);
    }

    /// Bytes of the state of reads.
    fn memory(&self) -> usize {
        let held: usize = self.held.values().map(Bytes::len).sum();
        let streams = self.held.len() + self.paused.len() + self.waiting.len();
        held + streams * size_of::<StreamId>()
    }

    /// Drops the read state for a stream that HTTP/3 no longer knows.
    pub(crate) fn forget_reads(&mut self, stream: StreamId, http: &H3Connection) {
        if !http.is_open(http_id(stream)) {
            self.held.remove(&stream);
            self.paused.remove(&stream);
            self.waiting.remove(&stream);
        }
    }

    /// Drops a stream's queue.
    pub(crate) fn forget(&mut self, stream: StreamId) {
        if let Some(queue) = self.outgoing.remove(&stream) {
            self.outgoing_bytes -= queue.chunks.iter().map(Bytes::len).sum::<usize>();
        }
    }
}
