//! Pending control frames: one ping, one pong, one Close, each of fixed size.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::closing::{Sending, Signal};
use super::{Connection, PerThread};
use crate::frame::{self, CONTROL_MAX, Opcode, Outgoing};
use crate::{CloseCode, Framing, Misuse, Time};

/// Maximum reason of a Close frame: the payload minus the code.
pub(super) const REASON_MAX: usize = CONTROL_MAX - 2;

/// Pending control frames. Only the newest ping of the peer is answered (RFC 6455 section 5.5.3), so a
/// flood costs no memory.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub(super) ping: bool,
    pub(super) pong: Option<Box<[u8]>>,
    close: Option<Box<Close>>,
}

#[derive(Debug)]
struct Close {
    code: Option<CloseCode>,
    reason: Box<str>,
}

impl Pending {
    pub(super) fn set_close(&mut self, code: Option<CloseCode>, reason: Box<str>) {
        self.close = Some(Box::new(Close { code, reason }));
    }
}

impl Connection {
    /// Whether [`write_control`](Self::write_control) has frames to write.
    #[must_use]
    #[inline]
    pub fn wants_control(&self) -> bool {
        self.pending.ping || self.pending.pong.is_some() || self.sending == Sending::Closing
    }

    /// Appends the pending control frames: pong, ping, Close. A caller with a full queue may delay the
    /// call; then only the newest pong is kept.
    pub fn write_control(&mut self, shared: &mut PerThread, out: &mut Vec<u8>, now: Time) {
        if self.sending != Sending::Closed
            && let Some(payload) = self.pending.pong.take()
        {
            self.control(Opcode::Pong, &payload, shared, out);
        }
        if core::mem::take(&mut self.pending.ping) && self.sending == Sending::Open {
            let payload = self.keepalive.ping_payload();
            self.control(Opcode::Ping, &payload, shared, out);
        }
        if self.sending == Sending::Closing {
            let close = self.pending.close.take();
            let mut payload = Vec::new();
            if let Some((code, close)) = close.as_ref().and_then(|close| Some((close.code?, close))) {
                payload.extend_from_slice(&code.as_u16().to_be_bytes());
                payload.extend_from_slice(close.reason.as_bytes());
            }
            self.control(Opcode::Close, &payload, shared, out);
            self.signal(Signal::Written, now);
        }
    }

    /// Appends a ping of the application. Keepalive pings are independent of it.
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
        if self.sending != Sending::Open {
            return Err(Misuse::Closing);
        }
        self.control(opcode, payload, shared, out);
        Ok(())
    }

    fn control(&self, opcode: Opcode, payload: &[u8], shared: &mut PerThread, out: &mut Vec<u8>) {
        // A plain stream has no Close frame.
        if self.framing == Framing::WebSocket {
            let key = shared.mask_for(self.role);
            frame::write_frame(Outgoing { opcode, fin: true, compressed: false, key }, payload, out);
        }
    }
}
