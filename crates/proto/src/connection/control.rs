//! Sending control frames.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Connection;
use super::closing::{CloseSignal, SendState};
use super::pending::PendingFrames;
use super::per_thread::PerThread;
use crate::frame::{self, CONTROL_MAX, FrameFields, Opcode};
use crate::{Misuse, Time, WireFormat};

impl Connection {
    /// Whether [`write_control`](Self::write_control) has frames to write.
    #[must_use]
    #[inline]
    pub fn wants_control(&self) -> bool {
        // A Close that was written may be kept.
        self.pending.is_some() && self.sending != SendState::Closed || self.sending == SendState::Closing
    }

    /// Appends the pending control frames: pong, ping, Close. A caller with a full queue may delay the
    /// call; then only the newest pong is kept.
    pub fn write_control(&mut self, shared: &mut PerThread, out: &mut Vec<u8>, now: Time) {
        if self.sending == SendState::Closed {
            return;
        }
        let PendingFrames { ping, pong, close } = self.pending.take();
        if let Some(payload) = pong {
            self.control(Opcode::Pong, &payload, shared, out);
        }
        if ping && self.sending == SendState::Open {
            let payload = self.keepalive.ping_payload();
            self.control(Opcode::Ping, &payload, shared, out);
        }
        if self.sending == SendState::Closing {
            if let Some(body) = &mut self.body {
                let (code, reason) =
                    close.map_or_else(|| (None, Box::default()), |close| (close.code, close.reason));
                body.close(code, &reason, out);
                return self.signal(CloseSignal::Written, now);
            }
            let mut payload = Vec::new();
            if let Some((code, close)) = close.as_ref().and_then(|close| Some((close.code?, close))) {
                payload.extend_from_slice(&code.as_u16().to_be_bytes());
                payload.extend_from_slice(close.reason.as_bytes());
            }
            self.control(Opcode::Close, &payload, shared, out);
            if let Some(close) = close.filter(|_| self.framing == WireFormat::Tagged) {
                self.pending.set_close(close.code, close.reason);
            }
            self.signal(CloseSignal::Written, now);
        }
    }

    /// Appends an application ping. Keepalive pings are independent of it.
    ///
    /// # Errors
    /// [`Misuse::PingTooLong`] over 125 bytes, [`Misuse::Closing`] after a local Close is pending or
    /// written.
    pub fn send_ping(
        &mut self,
        payload: &[u8],
        shared: &mut PerThread,
        out: &mut Vec<u8>,
    ) -> Result<(), Misuse> {
        self.application_control(Opcode::Ping, payload, shared, out)
    }

    /// Appends an unsolicited pong: a heartbeat in one direction (RFC 6455 section 5.5.3).
    ///
    /// # Errors
    /// As [`send_ping`](Self::send_ping).
    pub fn send_pong(
        &mut self,
        payload: &[u8],
        shared: &mut PerThread,
        out: &mut Vec<u8>,
    ) -> Result<(), Misuse> {
        self.application_control(Opcode::Pong, payload, shared, out)
    }

    fn application_control(
        &self,
        opcode: Opcode,
        payload: &[u8],
        shared: &mut PerThread,
        out: &mut Vec<u8>,
    ) -> Result<(), Misuse> {
        if payload.len() > CONTROL_MAX {
            return Err(Misuse::PingTooLong);
        }
        if self.sending != SendState::Open {
            return Err(Misuse::Closing);
        }
        self.control(opcode, payload, shared, out);
        Ok(())
    }

    fn control(&self, opcode: Opcode, payload: &[u8], shared: &mut PerThread, out: &mut Vec<u8>) {
        if let (Some(body), Opcode::Ping) = (&self.body, opcode) {
            body.keepalive(out);
        }
        if self.framing == WireFormat::Tagged
            && opcode == Opcode::Close
            && frame::write_tagged(opcode, payload.len() as u64, out)
        {
            out.extend_from_slice(payload);
        }
        // Other streams have no control frames.
        if self.framing == WireFormat::WebSocket {
            let key = shared.mask_for(self.role);
            frame::write_frame(FrameFields { opcode, fin: true, compressed: false, key }, payload, out);
        }
    }
}
