//! Receives header blocks: HEADERS and CONTINUATION.

use core::mem;
use core::time::Duration;

use super::config::Config;
use super::connection::H2Connection;
use super::error::{Error, ErrorCode};
use super::event::Notice;
use super::frame::{END_HEADERS, END_STREAM, FrameHeader, FrameType, PADDED, PRIORITY_FLAG, StreamId};
use super::receive::{Received, Stage};
use super::stream::{ClosedStream, StreamEntry};
use super::window::{FlowWindow, Unreported};
use crate::fields::{BlockError, FieldBuffer, Malformed, RequestShape, check_trailers};

impl H2Connection {
    /// Begins HEADERS or CONTINUATION.
    pub(super) fn begin_block(&mut self) -> Result<(), Error> {
        let frame = self.incoming.frame;
        if frame.frame_type == FrameType::Headers {
            if frame.stream.is_multiple_of(2) {
                return Err(Error::protocol("HEADERS on a stream that is not the client's"));
            }
            if self.is_client {
                self.require_known_stream("HEADERS on an idle stream")?;
            }
            self.incoming.block_head = frame;
            self.incoming.continuations = 0;
        } else {
            self.incoming.continuations += 1;
            if self.incoming.continuations > Config::CONTINUATIONS_MAX {
                return Err(Error::calm("too many CONTINUATION frames"));
            }
        }
        let max = self.config.head.max_bytes().saturating_mul(FieldBuffer::EXCESS_MAX);
        if self.incoming.block.len().saturating_add(frame.len as usize) > max {
            return Err(Error::calm("header block is too large"));
        }
        self.incoming.stage = Stage::Block { left: frame.len };
        Ok(())
    }

    /// Ends HEADERS or CONTINUATION, whose last piece is not in the buffer yet.
    pub(super) fn end_block_frame<'i>(
        &mut self,
        piece: &'i [u8],
        fields: &mut FieldBuffer,
        now: Duration,
    ) -> Received<'i> {
        let frame = self.incoming.frame;
        self.incoming.stage = Stage::Header(0);
        let is_headers = frame.frame_type == FrameType::Headers;
        if is_headers && frame.has(END_HEADERS) && piece.len() == frame.len as usize {
            let [start, end] = fragment(frame, piece)?;
            return self.end_block(&piece[start..end], fields, now);
        }
        self.incoming.block.extend_from_slice(piece);
        if is_headers {
            let [start, end] = fragment(frame, &self.incoming.block)?;
            self.incoming.block.truncate(end);
            self.incoming.block.drain(..start);
        }
        if !frame.has(END_HEADERS) {
            return Ok(None);
        }
        let block = mem::take(&mut self.incoming.block);
        self.end_block(&block, fields, now)
    }

    /// Decodes a header block, also of a stream that is refused or closed: it changes the state of the decoder.
    fn end_block(&mut self, block: &[u8], fields: &mut FieldBuffer, now: Duration) -> Received<'static> {
        let head = mem::replace(&mut self.incoming.block_head, FrameHeader::EMPTY);
        self.incoming.blocks = self.incoming.blocks.wrapping_add(1);
        let (id, ends) = (head.stream, head.has(END_STREAM));
        fields.set_limits(self.config.head);
        self.decoder.decode(block, fields).map_err(|error| match error {
            BlockError::Invalid(reason) => Error::new(ErrorCode::COMPRESSION_ERROR, reason),
            BlockError::Flood => Error::calm("header list is too large"),
        })?;
        if let Some(stream) = self.streams.get(id) {
            return match stream.head_received {
                true => self.trailers(id, ends, fields, now),
                false => self.response(id, ends, fields, now),
            };
        }
        if self.is_refused_by_go_away(id) {
            self.last_stream = self.last_stream.max(id);
            return self.charge_control_frame(now).map(|()| None);
        }
        if id <= self.last_stream {
            self.charge_control_frame(now)?;
            return match self.streams.closed(id) {
                ClosedStream::ByOurReset => Ok(None),
                ClosedStream::Ended => {
                    Err(Error::new(ErrorCode::STREAM_CLOSED, "HEADERS on a closed stream"))
                }
                ClosedStream::Unknown => Err(Error::protocol("identifier of a new stream does not grow")),
            };
        }
        self.last_stream = id;
        if self.streams.len() >= self.config.max_streams as usize {
            let reason = "stream exceeds SETTINGS_MAX_CONCURRENT_STREAMS";
            return self.reset_for_violation(id, ErrorCode::REFUSED_STREAM, reason, now);
        }
        if fields.is_too_large() {
            self.open(id, ends, None, false);
            return Ok(Some(Notice::HeadTooLarge { stream: StreamId::new(id), ends }));
        }
        let shape = RequestShape::from_fields(fields, self.config.extended_connect).and_then(|shape| {
            let lacks_content = ends && shape.content_length.is_some_and(|length| length > 0);
            if lacks_content { Err(Malformed("Content-Length without content")) } else { Ok(shape) }
        });
        match shape {
            Ok(shape) => {
                self.open(id, ends, shape.content_length, shape.has_method(fields, b"CONNECT"));
                Ok(Some(Notice::Request { stream: StreamId::new(id), shape, ends }))
            }
            Err(Malformed(rule)) => self.reset_for_violation(id, ErrorCode::PROTOCOL_ERROR, rule, now),
        }
    }

    fn trailers(&mut self, id: u32, ends: bool, fields: &FieldBuffer, now: Duration) -> Received<'static> {
        let Some(stream) = self.streams.get(id) else { return Ok(None) };
        let (code, rule) = if stream.remote_closed {
            (ErrorCode::STREAM_CLOSED, "HEADERS after the end of the stream")
        } else if stream.is_tunnel {
            (ErrorCode::PROTOCOL_ERROR, "HEADERS on a stream of CONNECT")
        } else if !ends {
            (ErrorCode::PROTOCOL_ERROR, "trailers do not end the stream")
        } else if stream.content_left.is_some_and(|left| left > 0) {
            (ErrorCode::PROTOCOL_ERROR, "Content-Length differs from the length of DATA")
        } else if fields.is_too_large() {
            (ErrorCode::ENHANCE_YOUR_CALM, "trailers exceed SETTINGS_MAX_HEADER_LIST_SIZE")
        } else if let Err(Malformed(rule)) = check_trailers(fields) {
            (ErrorCode::PROTOCOL_ERROR, rule)
        } else {
            self.end_remote(id);
            return Ok(Some(Notice::Trailers { stream: StreamId::new(id) }));
        };
        self.reset_for_violation(id, code, rule, now)
    }

    fn open(&mut self, id: u32, ends: bool, content_left: Option<u64>, is_tunnel: bool) {
        self.streams.open(StreamEntry {
            id,
            receive: FlowWindow::new(self.stream_window),
            unreported: Unreported::default(),
            send: FlowWindow::new(self.peer.initial_window),
            content_left,
            is_tunnel,
            remote_closed: ends,
            local_closed: false,
            head_sent: false,
            head_received: true,
            is_head: false,
            blocked: false,
        });
    }
}

/// Returns start and end of the part of a header block in the payload of HEADERS.
fn fragment(frame: FrameHeader, payload: &[u8]) -> Result<[usize; 2], Error> {
    let mut start = 0;
    let mut padding = 0;
    if frame.has(PADDED) {
        padding = usize::from(*payload.first().ok_or(Error::frame_size("padded HEADERS without a padding"))?);
        start = 1;
    }
    if frame.has(PRIORITY_FLAG) {
        start += 5;
    }
    if start > payload.len() {
        return Err(Error::frame_size("HEADERS is shorter than its fields"));
    }
    if padding > payload.len() - start {
        return Err(Error::protocol("padding of HEADERS exceeds the payload"));
    }
    Ok([start, payload.len() - padding])
}
