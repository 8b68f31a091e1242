//! Pending control frames: one ping, one pong, one Close, each of fixed size.

use alloc::boxed::Box;

use crate::CloseCode;
use crate::frame::CONTROL_MAX;

/// Maximum reason of a Close frame: the payload minus the code.
pub(super) const REASON_MAX: usize = CONTROL_MAX - 2;

/// Pending control frames. Only the newest ping of the peer is answered (RFC 6455 section 5.5.3), so a
/// flood costs no memory.
///
/// Boxed, since most connections have none.
#[derive(Debug, Default)]
pub(super) struct PendingControl(Option<Box<PendingFrames>>);

/// At least one of these frames is pending.
#[derive(Debug, Default)]
pub(super) struct PendingFrames {
    pub(super) ping: bool,
    pub(super) pong: Option<Box<[u8]>>,
    pub(super) close: Option<PendingClose>,
}

#[derive(Debug)]
pub(super) struct PendingClose {
    pub(super) code: Option<CloseCode>,
    pub(super) reason: Box<str>,
}

impl PendingControl {
    #[inline]
    pub(super) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Takes all pending frames.
    pub(super) fn take(&mut self) -> PendingFrames {
        self.0.take().map_or_else(PendingFrames::default, |frames| *frames)
    }

    pub(super) fn set_ping(&mut self) {
        self.0.get_or_insert_default().ping = true;
    }

    pub(super) fn set_pong(&mut self, payload: &[u8]) {
        self.0.get_or_insert_default().pong = Some(Box::from(payload));
    }

    pub(super) fn clear_pong(&mut self) {
        if let Some(frames) = &mut self.0 {
            frames.pong = None;
            if !frames.ping && frames.close.is_none() {
                self.0 = None;
            }
        }
    }

    pub(super) fn close(&self) -> Option<(CloseCode, &str)> {
        let close = self.0.as_ref()?.close.as_ref()?;
        Some((close.code?, &close.reason))
    }

    pub(super) fn set_close(&mut self, code: Option<CloseCode>, reason: Box<str>) {
        self.0.get_or_insert_default().close = Some(PendingClose { code, reason });
    }
}
