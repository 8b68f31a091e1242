//! The side of the client.

use alloc::vec::Vec;
use core::time::Duration;

use super::config::Config;
use super::connection::{Drain, H2Connection};
use super::error::{ErrorCode, SendMisuse};
use super::event::Notice;
use super::frame::StreamId;
use super::receive::Received;
use super::send::begin_headers;
use super::settings::ServerSettings;
use super::stream::StreamEntry;
use super::window::{FlowWindow, Unreported, WINDOW_MAX};
use crate::fields::{FieldBuffer, Malformed, RequestTarget, ResponseShape};

impl H2Connection {
    /// Creates the client's side of a connection. The preface and SETTINGS are queued, which disable pushed responses.
    #[must_use]
    pub fn client(config: Config) -> Self {
        Self::new(config, true)
    }

    /// The settings of the server; `None` until they arrive. A server announces here whether it accepts extended CONNECT.
    #[must_use]
    pub const fn server_settings(&self) -> Option<ServerSettings> {
        if self.settings_received { Some(self.peer.as_server()) } else { None }
    }

    /// Appends the head of a request, and returns its stream. `ends`: it has no content. Names are converted to lower case.
    /// Fields that are invalid or that HTTP/2 does not have, such as `Connection`, are omitted.
    ///
    /// # Errors
    /// [`SendMisuse::NotPermitted`]; nothing is appended.
    pub fn send_request<'f>(
        &mut self,
        target: &RequestTarget<'_>,
        fields: impl IntoIterator<Item = (&'f str, &'f str)>,
        ends: bool,
        out: &mut Vec<u8>,
    ) -> Result<StreamId, SendMisuse> {
        let peer = self.peer.as_server();
        let id = if self.last_stream == 0 { 1 } else { self.last_stream + 2 };
        let is_permitted = self.is_client
            && self.failed.is_none()
            && self.drain == Drain::Serving
            && self.peer_last_stream.is_none()
            && id <= WINDOW_MAX
            && self.streams.len() < peer.max_streams as usize
            && (target.protocol().is_none() || peer.extended_connect);
        if !is_permitted {
            return Err(SendMisuse::NotPermitted);
        }
        self.last_stream = id;
        self.streams.open(StreamEntry {
            id,
            receive: FlowWindow::new(self.stream_window),
            unreported: Unreported::default(),
            send: FlowWindow::new(self.peer.initial_window),
            content_left: None,
            is_tunnel: target.is_method("CONNECT"),
            remote_closed: false,
            local_closed: false,
            head_sent: true,
            head_received: false,
            is_head: target.is_method("HEAD"),
            blocked: false,
        });
        self.write_control(out);
        let start = begin_headers(out);
        self.encoder.begin(out);
        target.for_each_field(|name, value| self.encoder.field(name, value, out));
        self.write_fields(fields, out);
        let stream = StreamId::new(id);
        self.end_headers(start, stream, ends, out);
        Ok(stream)
    }

    /// Handles the head of a response.
    pub(super) fn response(
        &mut self,
        id: u32,
        ends: bool,
        fields: &FieldBuffer,
        now: Duration,
    ) -> Received<'static> {
        let shape = ResponseShape::from_fields(fields);
        let Some(stream) = self.streams.get(id) else { return Ok(None) };
        // RFC 9110 section 9.3.6: an accepted CONNECT's Content-Length is ignored.
        let is_tunnel = |shape: ResponseShape| stream.is_tunnel && (200..300).contains(&shape.status);
        let has_content =
            |shape: ResponseShape| !stream.is_head && !matches!(shape.status, 204 | 304) && !is_tunnel(shape);
        let (code, rule) = match shape {
            _ if fields.is_too_large() => {
                (ErrorCode::ENHANCE_YOUR_CALM, "head exceeds SETTINGS_MAX_HEADER_LIST_SIZE")
            }
            Err(Malformed(rule)) => (ErrorCode::PROTOCOL_ERROR, rule),
            Ok(shape) if shape.is_interim() && ends => {
                (ErrorCode::PROTOCOL_ERROR, "interim response ends the stream")
            }
            Ok(shape)
                if ends && has_content(shape) && shape.content_length.is_some_and(|length| length > 0) =>
            {
                (ErrorCode::PROTOCOL_ERROR, "Content-Length without content")
            }
            Ok(shape) => {
                if !shape.is_interim() {
                    stream.content_left = shape.content_length.filter(|_| has_content(shape));
                    stream.head_received = true;
                    stream.is_tunnel = is_tunnel(shape);
                }
                if ends {
                    self.end_remote(id);
                }
                return Ok(Some(Notice::Response { stream: StreamId::new(id), shape, ends }));
            }
        };
        self.reset_for_violation(id, code, rule, now)
    }

    /// Removes a stream that the server refused by GOAWAY.
    pub(super) fn take_refused(&mut self) -> Option<StreamId> {
        let served = self.peer_last_stream.filter(|_| self.is_client)?;
        let last = self.streams.last().filter(|last| *last > served)?;
        self.streams.close(last, true);
        Some(StreamId::new(last))
    }
}
