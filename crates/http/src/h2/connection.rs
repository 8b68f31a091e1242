//! The state of a connection.

use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use super::config::Config;
use super::error::{Error, ErrorCode};
use super::event::{Event, Notice};
use super::frame::{ACK, FrameHeader, FrameType, PREFACE, StreamId};
use super::hpack::TABLE_SIZE;
use super::hpack::decoder::Decoder;
use super::hpack::encoder::Encoder;
use super::receive::{Incoming, Stage};
use super::settings::{self, PeerLimits};
use super::stream::StreamTable;
use super::window::{FlowWindow, Unreported, WINDOW_DEFAULT, WINDOW_MAX};
use crate::budget::Budget;
use crate::fields::{FieldBuffer, RequestFields, ResponseFields};
use crate::version::Version;

/// One HTTP/2 connection.
#[derive(Debug)]
pub struct H2Connection {
    pub(super) config: Config,
    pub(super) is_client: bool,
    pub(super) incoming: Incoming,
    pub(super) decoder: Decoder,
    pub(super) encoder: Encoder,
    pub(super) streams: StreamTable,
    /// Bytes that the peer may send on all streams.
    pub(super) receive: FlowWindow,
    pub(super) unreported: Unreported,
    /// Bytes that the peer takes on all streams.
    pub(super) send: FlowWindow,
    pub(super) peer: PeerLimits,
    /// A new stream's window for the peer.
    pub(super) stream_window: u32,
    pub(super) settings_acknowledged: bool,
    pub(super) settings_received: bool,
    /// The client's largest stream identifier.
    pub(super) last_stream: u32,
    pub(super) drain: Drain,
    /// Last stream in the peer's GOAWAY; a graceful shutdown begins with the largest identifier.
    pub(super) peer_last_stream: Option<u32>,
    /// Frames that the machine owes by itself.
    pub(super) control: Vec<u8>,
    pub(super) resets: Budget,
    pub(super) control_frames: Budget,
    /// Requests rejected without an event, as malformed and as refused.
    pub(super) rejected: [u32; 2],
    pub(super) failed: Option<Error>,
}

/// Graceful shutdown (RFC 9113 section 6.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    Serving,
    /// GOAWAY without a limit is sent: streams that the peer opened before it arrived are served.
    Announced,
    /// GOAWAY with the last stream is sent. Later streams are ignored.
    Final(u32),
}

/// Content of the PING that measures a graceful shutdown's round trip.
pub(super) const DRAIN_PING: [u8; 8] = *b"draining";

impl H2Connection {
    /// Creates the server's side of a connection. SETTINGS are queued.
    #[must_use]
    pub fn server(config: Config) -> Self {
        Self::new(config, false)
    }

    pub(super) fn new(config: Config, is_client: bool) -> Self {
        let mut connection = Self {
            is_client,
            incoming: Incoming::new(is_client),
            decoder: Decoder::new(),
            encoder: Encoder::new(),
            streams: StreamTable::default(),
            receive: FlowWindow::new(config.connection_window),
            unreported: Unreported::default(),
            send: FlowWindow::new(WINDOW_DEFAULT),
            peer: PeerLimits::new(),
            // A smaller window binds the peer from its acknowledgement on.
            stream_window: config.stream_window.max(WINDOW_DEFAULT),
            settings_acknowledged: false,
            settings_received: false,
            last_stream: 0,
            drain: Drain::Serving,
            peer_last_stream: None,
            control: Vec::new(),
            resets: Budget::default(),
            control_frames: Budget::default(),
            rejected: [0; 2],
            failed: None,
            config,
        };
        connection.decoder.set_limit(TABLE_SIZE.max(config.header_table_size as usize));
        if is_client {
            connection.control.extend_from_slice(PREFACE);
        }
        settings::write_own(&config, is_client, &mut connection.control);
        if config.connection_window > WINDOW_DEFAULT {
            let increment = config.connection_window - WINDOW_DEFAULT;
            let header = FrameHeader::new(FrameType::WindowUpdate, 4, 0, 0);
            header.write(&increment.to_be_bytes(), &mut connection.control);
        }
        connection
    }

    /// Handles received bytes up to the next event, and advances `input` past them. `None`: the whole `input` is
    /// consumed. At most a partial header block is buffered. `now` is a monotonic time since any origin; it refills the
    /// [allowances](super::Allowance).
    ///
    /// # Errors
    /// [`Error`] ends the connection: send the queued GOAWAY by [`write_control`](Self::write_control), then close. No
    /// stream exists any longer.
    pub fn receive<'e, 'i: 'e>(
        &mut self,
        input: &mut &'i [u8],
        fields: &'e mut FieldBuffer,
        now: Duration,
    ) -> Result<Option<Event<'e>>, Error> {
        if let Some(error) = self.failed {
            *input = &[];
            return Err(error);
        }
        let notice = match self.take_refused() {
            Some(stream) => {
                Ok(Some(Notice::Reset { stream, code: ErrorCode::REFUSED_STREAM, violation: None }))
            }
            None => self.advance(input, fields, now),
        };
        let notice = match notice {
            Ok(notice) if self.failed.is_none() => notice,
            Ok(_) => None,
            Err(error) => {
                self.fail(error);
                None
            }
        };
        if let Some(error) = self.failed {
            *input = &[];
            return Err(error);
        }
        Ok(notice.map(|notice| match notice {
            Notice::Request { stream, shape, ends } => {
                Event::Request { stream, head: RequestFields::new(fields, shape, Version::Http2), ends }
            }
            Notice::Response { stream, shape, ends } => {
                Event::Response { stream, head: ResponseFields::new(fields, shape), ends }
            }
            Notice::HeadTooLarge { stream, ends } => Event::HeadTooLarge { stream, ends },
            Notice::Data { stream, data, ends } => Event::Data { stream, data, ends },
            Notice::Trailers { stream } => Event::Trailers { stream, fields: fields.fields_from(0) },
            Notice::Reset { stream, code, violation } => Event::Reset { stream, code, violation },
            Notice::WindowOpened { stream } => Event::WindowOpened { stream },
            Notice::Pong { data } => Event::Pong { data },
            Notice::GoAway { code } => Event::GoAway { code },
        }))
    }

    /// The error that ended the connection.
    #[must_use]
    pub const fn error(&self) -> Option<Error> {
        self.failed
    }

    /// Open streams.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Whether the stream is open.
    #[must_use]
    pub fn is_open(&self, stream: StreamId) -> bool {
        self.streams.get_ref(stream.get()).is_some()
    }

    /// Whether the peer has acknowledged our SETTINGS. A driver closes a connection without it after a timeout by
    /// [`shut_down_now`](Self::shut_down_now) with [`ErrorCode::SETTINGS_TIMEOUT`].
    #[must_use]
    pub const fn settings_acknowledged(&self) -> bool {
        self.settings_acknowledged
    }

    /// The number of the preface or header block that has arrived in part. A driver bounds the time of the rest: it begins
    /// anew with another number.
    #[must_use]
    pub const fn partial_block(&self) -> Option<u32> {
        let is_partial =
            self.incoming.block_head.stream != 0 || matches!(self.incoming.stage, Stage::Preface(_));
        if is_partial { Some(self.incoming.blocks) } else { None }
    }

    /// Returns how many requests were reset without an event since the last call: malformed ones, and those beyond the
    /// stream maximum. For metrics.
    pub fn take_rejected(&mut self) -> [u32; 2] {
        mem::take(&mut self.rejected)
    }

    /// Whether frames are queued.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        !self.control.is_empty()
    }

    /// Moves queued frames to `out`.
    pub fn write_control(&mut self, out: &mut Vec<u8>) {
        if self.control.is_empty() {
            return;
        }
        out.extend_from_slice(&self.control);
        self.control.clear();
        if self.control.capacity() > CONTROL_KEPT_MAX {
            self.control = Vec::new();
        }
    }

    /// Memory bytes beside the connection's own size: tables, streams, a partial header block, queued frames.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.decoder.memory()
            + self.encoder.memory()
            + self.streams.memory()
            + self.incoming.memory()
            + self.control.capacity()
    }

    /// Queues a PING, whose answer is [`Event::Pong`]: a connection keepalive.
    pub fn ping(&mut self, data: [u8; 8]) {
        if self.failed.is_none() {
            self.queue(FrameHeader::new(FrameType::Ping, 8, 0, 0), &data);
        }
    }

    /// Begins a graceful shutdown: announces it, and refuses new streams after a round trip (RFC 9113 section 6.8). Open
    /// streams continue. A client opens the streams, and announces the end at once.
    pub fn shut_down(&mut self) {
        if self.is_client {
            return self.shut_down_now(ErrorCode::NO_ERROR);
        }
        if self.drain == Drain::Serving && self.failed.is_none() {
            self.drain = Drain::Announced;
            self.queue_go_away(WINDOW_MAX, ErrorCode::NO_ERROR);
            self.queue(FrameHeader::new(FrameType::Ping, 8, 0, 0), &DRAIN_PING);
        }
    }

    /// Refuses new streams at once, with a reason. Open streams continue.
    pub fn shut_down_now(&mut self, code: ErrorCode) {
        if !matches!(self.drain, Drain::Final(_)) && self.failed.is_none() {
            self.drain = Drain::Final(self.last_stream);
            self.queue_go_away(self.last_stream, code);
        }
    }

    /// Whether a shutdown is complete: no stream is open, and none will be.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        matches!(self.drain, Drain::Final(_)) && self.streams.len() == 0
    }

    /// Ends the connection with GOAWAY.
    pub(super) fn fail(&mut self, error: Error) {
        if self.failed.is_none() {
            self.queue_go_away(self.last_stream, error.code());
            self.failed = Some(error);
            self.streams.clear();
            self.incoming = Incoming::new(self.is_client);
        }
    }

    fn queue_go_away(&mut self, last_stream: u32, code: ErrorCode) {
        let last_stream = match self.drain {
            // The server has opened none.
            _ if self.is_client => 0,
            Drain::Final(last) => last_stream.min(last),
            Drain::Serving | Drain::Announced => last_stream,
        };
        let mut payload = [0; 8];
        payload[..4].copy_from_slice(&last_stream.to_be_bytes());
        payload[4..].copy_from_slice(&code.get().to_be_bytes());
        // Each connection sends three at most.
        FrameHeader::new(FrameType::GoAway, 8, 0, 0).write(&payload, &mut self.control);
    }

    /// Queues a frame; a full queue ends the connection.
    pub(super) fn queue(&mut self, header: FrameHeader, payload: &[u8]) {
        let len = header.bytes().len() + payload.len();
        if self.control.len() + len > self.config.max_control_queue() {
            return self.fail(Error::calm("peer does not read answers: control queue is full"));
        }
        header.write(payload, &mut self.control);
    }

    pub(super) fn queue_reset(&mut self, stream: u32, code: ErrorCode) {
        self.queue(FrameHeader::new(FrameType::RstStream, 4, 0, stream), &code.get().to_be_bytes());
    }

    pub(super) fn queue_window_update(&mut self, stream: u32, increment: u32) {
        self.queue(FrameHeader::new(FrameType::WindowUpdate, 4, 0, stream), &increment.to_be_bytes());
    }

    pub(super) fn queue_settings_ack(&mut self) {
        self.queue(FrameHeader::new(FrameType::Settings, 0, ACK, 0), &[]);
    }

    /// Counts a frame without content.
    pub(super) fn charge_control_frame(&mut self, now: Duration) -> Result<(), Error> {
        if self.control_frames.charge(self.config.abuse.control_frames, now) {
            return Ok(());
        }
        Err(Error::calm("flood of frames without content"))
    }

    /// Counts a stream that ends in a reset.
    pub(super) fn charge_reset(&mut self, now: Duration) -> Result<(), Error> {
        if self.resets.charge(self.config.abuse.resets, now) {
            return Ok(());
        }
        Err(Error::calm("too many streams are reset"))
    }

    /// Applies our settings, which the peer has acknowledged (RFC 9113 section 6.5.3).
    pub(super) fn acknowledge_settings(&mut self) -> Result<(), Error> {
        if mem::replace(&mut self.settings_acknowledged, true) {
            return Err(Error::protocol("acknowledgement of no SETTINGS"));
        }
        self.decoder.set_limit(self.config.header_table_size as usize);
        let by = i64::from(self.config.stream_window) - i64::from(self.stream_window);
        self.stream_window = self.config.stream_window;
        for stream in self.streams.iter_mut() {
            // A reduction cannot overflow.
            let _ = stream.receive.shift(by);
        }
        Ok(())
    }
}

/// The queue capacity that a connection keeps: some acknowledgements.
const CONTROL_KEPT_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h2::stream::StreamEntry;

    #[test]
    fn state_of_connections_and_streams_is_small() {
        assert!(size_of::<H2Connection>() <= 640, "{} bytes", size_of::<H2Connection>());
        assert!(size_of::<StreamEntry>() <= 48, "{} bytes", size_of::<StreamEntry>());
        // Beside it, SETTINGS until they are sent.
        let mut connection = H2Connection::server(Config::new());
        assert!(connection.memory() <= 64, "{} bytes", connection.memory());
        connection.write_control(&mut Vec::new());
        assert!(!connection.wants_write());
    }
}
