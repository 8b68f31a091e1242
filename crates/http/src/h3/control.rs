//! Unidirectional streams, and control stream frames.

use alloc::boxed::Box;
use core::time::Duration;

use super::config::Config;
use super::connection::H3Connection;
use super::error::{Error, H3Code};
use super::event::{H3Notice, Received};
use super::frame::{
    CANCEL_PUSH, CONTROL_STREAM, DATA, DECODER_STREAM, ENCODER_STREAM, GOAWAY, HEADERS, MAX_PUSH_ID,
    PUSH_PROMISE, PUSH_STREAM, SESSION_STREAM, SETTINGS, take,
};
use super::settings::SettingsReader;
use super::stream::{NextBytes, QuicStreamId, StreamRole};

impl H3Connection {
    /// Decides on a unidirectional stream by its type (RFC 9114 section 6.2).
    pub(super) fn begin_unidirectional(
        &mut self,
        id: QuicStreamId,
        stream_type: u64,
        now: Duration,
    ) -> Result<(), Error> {
        let (role, stage) = match stream_type {
            CONTROL_STREAM => (StreamRole::Control, NextBytes::FrameType { first: true }),
            ENCODER_STREAM => (StreamRole::QpackEncoder, NextBytes::Raw),
            DECODER_STREAM => (StreamRole::QpackDecoder, NextBytes::Raw),
            PUSH_STREAM if self.is_server => {
                return Err(Error::new(H3Code::H3_STREAM_CREATION_ERROR, "client opens a push stream"));
            }
            PUSH_STREAM => return Err(Error::id("pushed response exceeds MAX_PUSH_ID, which was not sent")),
            SESSION_STREAM if self.config.webtransport() => (StreamRole::Session, NextBytes::SessionId),
            _ => {
                // RFC 9114 section 6.2: unknown types are no error.
                self.streams.remove(id);
                self.stop(id, H3Code::H3_STREAM_CREATION_ERROR);
                return self.charge_control_frame(now);
            }
        };
        let critical = match role {
            StreamRole::Control => self.critical.get_mut(0),
            StreamRole::QpackEncoder => self.critical.get_mut(1),
            StreamRole::QpackDecoder => self.critical.get_mut(2),
            _ => None,
        };
        if critical.is_some_and(|is_open| core::mem::replace(is_open, true)) {
            return Err(Error::new(H3Code::H3_STREAM_CREATION_ERROR, "second stream of a critical type"));
        }
        if let Some(stream) = self.streams.get(id) {
            (stream.role, stream.stage) = (role, stage);
        }
        Ok(())
    }

    /// Checks the type of a frame on the control stream.
    pub(super) fn check_control_frame(&mut self, frame_type: u64, now: Duration) -> Result<(), Error> {
        let has_settings = self.settings.is_some();
        match frame_type {
            SETTINGS if has_settings => Err(Error::unexpected("second SETTINGS")),
            SETTINGS => Ok(()),
            _ if !has_settings => {
                Err(Error::new(H3Code::H3_MISSING_SETTINGS, "control stream does not begin with SETTINGS"))
            }
            DATA | HEADERS | PUSH_PROMISE => {
                Err(Error::unexpected("frame of a message on the control stream"))
            }
            MAX_PUSH_ID if !self.is_server => Err(Error::unexpected("MAX_PUSH_ID of a server")),
            _ => self.charge_control_frame(now),
        }
    }

    pub(super) fn begin_settings(&mut self, id: QuicStreamId, len: u64) -> Result<(), Error> {
        if len > Config::SETTINGS_LEN_MAX {
            return Err(Error::load("SETTINGS are too long"));
        }
        self.reader = Some(Box::default());
        self.set_stage(id, NextBytes::Settings { left: len });
        Ok(())
    }

    fn set_stage(&mut self, id: QuicStreamId, stage: NextBytes) {
        if let Some(stream) = self.streams.get(id) {
            stream.stage = stage;
        }
    }

    /// Handles a piece of SETTINGS.
    pub(super) fn settings(&mut self, id: QuicStreamId, piece: &[u8], left: u64) -> Received<'static> {
        let reader: &mut SettingsReader = self.reader.get_or_insert_default();
        reader.receive(piece)?;
        if left > 0 {
            self.set_stage(id, NextBytes::Settings { left });
            return Ok(None);
        }
        if !reader.is_complete() {
            return Err(Error::frame("SETTINGS end inside of a setting"));
        }
        self.settings = Some(reader.settings);
        self.reader = None;
        self.set_stage(id, NextBytes::FrameType { first: false });
        self.resume_held();
        Ok(Some(H3Notice::Settings))
    }

    /// Handles a payload of one integer.
    pub(super) fn number(
        &mut self,
        id: QuicStreamId,
        frame_type: u64,
        input: &mut &[u8],
        left: u64,
        now: Duration,
    ) -> Received<'static> {
        let Some(stream) = self.streams.get(id) else { return Ok(None) };
        let mut piece = take(input, left);
        let left = left - piece.len() as u64;
        let number = stream.number.read(&mut piece);
        match number {
            Some(number) if left == 0 && piece.is_empty() => {
                stream.stage = NextBytes::FrameType { first: false };
                self.control_number(frame_type, number, now)
            }
            None if left > 0 => {
                stream.stage = NextBytes::Number { frame_type, left };
                Ok(None)
            }
            _ => Err(Error::frame("frame of one integer has another length")),
        }
    }

    fn control_number(&mut self, frame_type: u64, number: u64, _now: Duration) -> Received<'static> {
        match frame_type {
            GOAWAY => {
                // RFC 9114 section 7.2.6: a request from a server, a push from a client.
                if !self.is_server && !QuicStreamId::new(number).is_request() {
                    return Err(Error::id("GOAWAY names no request"));
                }
                if number > self.peer_go_away {
                    return Err(Error::id("identifier of GOAWAY grows"));
                }
                self.peer_go_away = number;
                Ok(Some(H3Notice::GoAway { id: number }))
            }
            MAX_PUSH_ID => {
                if self.max_push_id.is_some_and(|max| number < max) {
                    return Err(Error::id("MAX_PUSH_ID shrinks"));
                }
                self.max_push_id = Some(number);
                Ok(None)
            }
            CANCEL_PUSH => Err(Error::id("CANCEL_PUSH of a response that was not pushed")),
            _ => Ok(None),
        }
    }
}
