//! Sends heads and content.

use alloc::vec::Vec;

use super::connection::H2Connection;
use super::error::{ErrorCode, SendMisuse};
use super::frame::{END_HEADERS, END_STREAM, FRAME_HEADER_LEN, FrameHeader, FrameType, StreamId};
use crate::fields::{for_each_field, status_digits};

/// The header of a DATA frame, taken out of the windows: the payload must follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataFrame {
    header: FrameHeader,
}

impl DataFrame {
    /// The bytes of the header.
    #[must_use]
    pub const fn header(&self) -> [u8; FRAME_HEADER_LEN] {
        self.header.bytes()
    }

    /// Length of the payload that must follow, which may be 0.
    #[must_use]
    pub const fn payload_len(&self) -> usize {
        self.header.len as usize
    }

    /// Whether the frame ends the stream.
    #[must_use]
    pub const fn ends(&self) -> bool {
        self.header.has(END_STREAM)
    }
}

impl H2Connection {
    /// Appends the head of a response: an interim response with a status of 100 to 199, or the final one. `ends`: it has no
    /// content. Names are converted to lower case. Fields that are invalid or that HTTP/2 does not have, such as
    /// `Connection`, are omitted.
    ///
    /// # Errors
    /// [`SendMisuse`]; nothing is appended.
    pub fn send_head<'f>(
        &mut self,
        stream: StreamId,
        status: u16,
        fields: impl IntoIterator<Item = (&'f str, &'f str)>,
        ends: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), SendMisuse> {
        let is_interim = status < 200;
        // HTTP/2 has no 101 (RFC 9113 section 8.6).
        if !(100..1000).contains(&status) || status == 101 || is_interim && ends {
            return Err(SendMisuse::Status(status));
        }
        let entry = self.streams.get(stream.get()).ok_or(SendMisuse::Closed(stream))?;
        if entry.head_sent || entry.local_closed {
            return Err(SendMisuse::OutOfOrder(stream));
        }
        entry.head_sent = !is_interim;
        self.write_control(out);
        let start = begin_headers(out);
        self.encoder.begin(out);
        self.encoder.field(b":status", &status_digits(status), out);
        self.write_fields(fields, out);
        self.end_headers(start, stream, ends, out);
        Ok(())
    }

    /// Appends a message's trailer fields, which end the stream.
    ///
    /// # Errors
    /// [`SendMisuse`]; nothing is appended.
    pub fn send_trailers<'f>(
        &mut self,
        stream: StreamId,
        fields: impl IntoIterator<Item = (&'f str, &'f str)>,
        out: &mut Vec<u8>,
    ) -> Result<(), SendMisuse> {
        let entry = self.streams.get(stream.get()).ok_or(SendMisuse::Closed(stream))?;
        if !entry.head_sent || entry.local_closed {
            return Err(SendMisuse::OutOfOrder(stream));
        }
        self.write_control(out);
        let start = begin_headers(out);
        self.encoder.begin(out);
        self.write_fields(fields, out);
        self.end_headers(start, stream, true, out);
        Ok(())
    }

    /// Takes one DATA frame for up to `len` bytes out of the windows. Append its header and as many bytes as it says; a
    /// longer payload takes several calls. `ends`: the stream ends after these `len` bytes.
    ///
    /// `None`: the windows are closed. [`Event::WindowOpened`](super::Event::WindowOpened) reports their opening.
    ///
    /// # Errors
    /// [`SendMisuse`].
    pub fn start_data(
        &mut self,
        stream: StreamId,
        len: usize,
        ends: bool,
    ) -> Result<Option<DataFrame>, SendMisuse> {
        let entry = self.streams.get(stream.get()).ok_or(SendMisuse::Closed(stream))?;
        if !entry.head_sent || entry.local_closed {
            return Err(SendMisuse::OutOfOrder(stream));
        }
        let windows = entry.send.available().min(self.send.available());
        let wanted = u32::try_from(len).unwrap_or(u32::MAX);
        entry.blocked = windows < wanted;
        let payload = wanted.min(windows).min(self.peer.max_frame_size);
        let ends = ends && payload as usize == len;
        if payload == 0 && !ends {
            return Ok(None);
        }
        entry.send.charge(payload);
        self.send.charge(payload);
        // The peer answers DATA with a WINDOW_UPDATE for the stream and one for the connection.
        self.control_frames.refund(2);
        let flags = if ends { END_STREAM } else { 0 };
        if ends {
            self.end_local(stream);
        }
        let header = FrameHeader::new(FrameType::Data, payload, flags, stream.get());
        Ok(Some(DataFrame { header }))
    }

    /// Appends DATA frames with as many bytes of `data` as the windows permit. Returns their number: the caller keeps the
    /// rest until [`Event::WindowOpened`](super::Event::WindowOpened). `ends`: the stream ends after `data`.
    ///
    /// # Errors
    /// [`SendMisuse`]; nothing is appended.
    pub fn send_data(
        &mut self,
        stream: StreamId,
        data: &[u8],
        ends: bool,
        out: &mut Vec<u8>,
    ) -> Result<usize, SendMisuse> {
        self.write_control(out);
        let mut sent = 0;
        while let Some(frame) = self.start_data(stream, data.len() - sent, ends)? {
            out.extend_from_slice(&frame.header());
            out.extend_from_slice(&data[sent..sent + frame.payload_len()]);
            sent += frame.payload_len();
            if sent == data.len() {
                break;
            }
        }
        Ok(sent)
    }

    /// Returns the bytes that may be sent on a stream now; 0 for a closed stream.
    #[must_use]
    pub fn window(&self, stream: StreamId) -> usize {
        let entry = self.streams.get_ref(stream.get());
        entry.map_or(0, |entry| entry.send.available().min(self.send.available()) as usize)
    }

    /// Returns the bytes that a stream's window permits, whatever the connection's window does; 0 for a closed stream.
    #[must_use]
    pub fn stream_window(&self, stream: StreamId) -> usize {
        self.streams.get_ref(stream.get()).map_or(0, |entry| entry.send.available() as usize)
    }

    /// Returns consumed bytes of [`Event::Data`](super::Event::Data) to the window of their stream. A stream whose bytes
    /// are not returned is paused, and no other stream.
    pub fn release(&mut self, stream: StreamId, bytes: usize) {
        let Some(entry) = self.streams.get(stream.get()).filter(|entry| !entry.remote_closed) else { return };
        let unreleased = entry.receive.taken(self.stream_window, entry.unreported);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(unreleased);
        if let Some(increment) = entry.unreported.add(bytes, self.stream_window) {
            let _ = entry.receive.credit(increment);
            self.queue_window_update(stream.get(), increment);
        }
    }

    /// Ends a stream early. [`ErrorCode::NO_ERROR`] after a complete response tells the client not to send the rest of its
    /// request (RFC 9113 section 8.1). Without an open stream it has no effect.
    pub fn reset(&mut self, stream: StreamId, code: ErrorCode) {
        if self.streams.close(stream.get(), true) {
            self.queue_reset(stream.get(), code);
        }
    }

    pub(super) fn write_fields<'f>(
        &mut self,
        fields: impl IntoIterator<Item = (&'f str, &'f str)>,
        out: &mut Vec<u8>,
    ) {
        for_each_field(fields, |name, value| self.encoder.field(name, value, out));
    }

    /// Completes the HEADERS frame that begins at `start`; a block that is longer than a frame continues in others.
    pub(super) fn end_headers(&mut self, start: usize, stream: StreamId, ends: bool, out: &mut Vec<u8>) {
        let max = self.peer.max_frame_size as usize;
        let flags = if ends { END_STREAM } else { 0 };
        let block_start = start + FRAME_HEADER_LEN;
        let len = out.len() - block_start;
        let header = |frame_type, len: usize, flags| {
            FrameHeader::new(frame_type, len as u32, flags, stream.get()).bytes()
        };
        if len <= max {
            let bytes = header(FrameType::Headers, len, flags | END_HEADERS);
            out[start..block_start].copy_from_slice(&bytes);
        } else {
            let block = out.split_off(block_start);
            out.truncate(start);
            let mut frame_type = FrameType::Headers;
            let mut first_flags = flags;
            let pieces = block.len().div_ceil(max);
            for (index, piece) in block.chunks(max).enumerate() {
                let last = if index + 1 == pieces { END_HEADERS } else { 0 };
                out.extend_from_slice(&header(frame_type, piece.len(), first_flags | last));
                out.extend_from_slice(piece);
                (frame_type, first_flags) = (FrameType::Continuation, 0);
            }
        }
        if ends {
            self.end_local(stream);
        }
    }

    /// We have ended our side of a stream.
    fn end_local(&mut self, stream: StreamId) {
        if let Some(entry) = self.streams.get(stream.get()) {
            entry.local_closed = true;
            if entry.remote_closed {
                self.streams.close(stream.get(), false);
            }
        }
    }
}

/// Appends space for a frame header. Returns its position.
pub(super) fn begin_headers(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_HEADER_LEN]);
    start
}
