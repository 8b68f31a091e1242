//! The sending half: converts messages and fragments to frames.

use alloc::vec::Vec;

use super::closing::SendState;
use super::event::Kind;
use super::outgoing::OpenMessage;
use super::per_thread::PerThread;
use super::{Connection, ConnectionHalf};
use crate::deflate::DeflateClass;
use crate::frame::{self, FrameFields, Opcode};
use crate::{Misuse, Role, WireFormat};

impl Connection {
    /// Appends a whole message as one frame, compressed if that was negotiated and the message reaches the
    /// threshold.
    ///
    /// Text must be UTF-8. It is not validated here, since it comes from a `str` or from a message that was
    /// validated on receipt.
    ///
    /// # Errors
    /// [`Misuse::Closing`], [`Misuse::MessageOpen`], [`Misuse::SplitOff`]: no bytes were appended.
    #[inline]
    pub fn send(
        &mut self,
        kind: Kind,
        payload: &[u8],
        shared: &mut PerThread,
        out: &mut Vec<u8>,
    ) -> Result<(), Misuse> {
        self.may_start()?;
        if self.framing != WireFormat::WebSocket {
            self.send_unframed(kind, payload, out)?;
        } else if self.compresses(payload.len()) {
            self.send_deflated(kind.opcode(), payload, true, shared, out);
        } else {
            let key = shared.mask_for(self.role);
            let frame = FrameFields { opcode: kind.opcode(), fin: true, compressed: false, key };
            frame::write_frame(frame, payload, out);
        }
        Ok(())
    }

    /// Appends one message composed of several pieces.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_pieces<P: AsRef<[u8]>>(
        &mut self,
        kind: Kind,
        pieces: &[P],
        shared: &mut PerThread,
        out: &mut Vec<u8>,
    ) -> Result<(), Misuse> {
        self.may_start()?;
        let len = pieces.iter().map(|piece| piece.as_ref().len()).sum();
        let is_body = self.framing == WireFormat::Body;
        if is_body || self.framing == WireFormat::WebSocket && self.compresses(len) {
            let mut whole = Vec::with_capacity(len);
            pieces.iter().for_each(|piece| whole.extend_from_slice(piece.as_ref()));
            if is_body {
                return self.send_unframed(kind, &whole, out);
            }
            self.send_deflated(kind.opcode(), &whole, true, shared, out);
            return Ok(());
        }
        out.reserve(frame::HEAD_MAX + len);
        let key = match self.framing {
            WireFormat::Prefixed | WireFormat::Tagged | WireFormat::Body => {
                self.send_prefix(kind, len as u64, out)?;
                None
            }
            WireFormat::WebSocket => {
                let key = shared.mask_for(self.role);
                let frame = FrameFields { opcode: kind.opcode(), fin: true, compressed: false, key };
                frame::write_head(frame, len as u64, out);
                key
            }
        };
        let mut phase = 0;
        for piece in pieces.iter().map(AsRef::as_ref) {
            match key {
                Some(key) => sinews_simd::extend_masked(out, piece, key, phase),
                None => out.extend_from_slice(piece),
            }
            phase += piece.len();
        }
        Ok(())
    }

    /// Whether a message of `len` bytes would be compressed.
    #[must_use]
    #[inline]
    pub fn compresses(&self, len: usize) -> bool {
        self.deflate().is_some_and(|deflate| len >= deflate.threshold && !deflate.is_disabled)
    }

    /// Enables or disables compression for later messages, if it was negotiated. A message that is being sent in fragments
    /// stays as it began.
    pub fn set_compression(&mut self, enabled: bool) {
        if let Some(deflate) = self.deflate_mut() {
            deflate.is_disabled = !enabled;
        }
    }

    /// Appends only the head of an uncompressed message with `len` bytes; the caller sends the payload after it by
    /// reference. Servers only, since a client must mask its payload.
    ///
    /// # Errors
    /// [`Misuse::MustMask`] from a client; [`Misuse::Closing`], [`Misuse::MessageOpen`].
    pub fn send_head(&mut self, kind: Kind, len: u64, out: &mut Vec<u8>) -> Result<(), Misuse> {
        self.may_start()?;
        if self.role == Role::Client {
            return Err(Misuse::MustMask);
        }
        if self.framing != WireFormat::WebSocket {
            return self.send_prefix(kind, len, out);
        }
        frame::write_head(
            FrameFields { opcode: kind.opcode(), fin: true, compressed: false, key: None },
            len,
            out,
        );
        Ok(())
    }

    /// Appends a fragment of a message of unknown length, `last` with its end (RFC 6455 section 5.4). The
    /// first fragment decides whether the message is compressed: it is if that was negotiated, for any
    /// length.
    ///
    /// # Errors
    /// [`Misuse::MessageOpen`] if `kind` differs from the earlier fragments; [`Misuse::Closing`],
    /// [`Misuse::SplitOff`].
    pub fn send_fragment(
        &mut self,
        kind: Kind,
        piece: &[u8],
        last: bool,
        shared: &mut PerThread,
        out: &mut Vec<u8>,
    ) -> Result<(), Misuse> {
        self.may_send()?;
        if self.framing != WireFormat::WebSocket {
            return Err(Misuse::Prefixed);
        }
        let (opcode, compressed) = match self.open_message {
            Some(open) if open.kind != kind => return Err(Misuse::MessageOpen),
            Some(open) => (Opcode::Continuation, open.compressed),
            None => (kind.opcode(), self.deflate().is_some_and(|deflate| !deflate.is_disabled)),
        };
        self.open_message = (!last).then_some(OpenMessage { kind, compressed });
        if compressed {
            self.send_deflated(opcode, piece, last, shared, out);
        } else {
            let key = shared.mask_for(self.role);
            frame::write_frame(FrameFields { opcode, fin: last, compressed: false, key }, piece, out);
        }
        Ok(())
    }

    /// Checks that a frame prepared by [`write_prepared`](super::write_prepared) may be sent now, and updates the compressor: a
    /// compressed frame of another compressor invalidates the window for references.
    ///
    /// # Errors
    /// [`Misuse::MustMask`] from a client; [`Misuse::Closing`], [`Misuse::MessageOpen`].
    #[inline]
    pub fn send_prepared(&mut self, compressed: bool) -> Result<(), Misuse> {
        self.may_start()?;
        if self.role == Role::Client {
            return Err(Misuse::MustMask);
        }
        if self.framing != WireFormat::WebSocket {
            return Err(Misuse::Prefixed);
        }
        if compressed && let Some(context) = self.deflate_mut().and_then(|deflate| deflate.context.as_mut()) {
            context.reset();
        }
        Ok(())
    }

    /// The compressed-frame class that this connection accepts for a message with `len` bytes; `None`: the uncompressed
    /// frame.
    #[must_use]
    #[inline]
    pub fn prepared_class(&self, len: usize) -> Option<DeflateClass> {
        self.deflate()
            .filter(|deflate| len >= deflate.threshold && !deflate.is_disabled)
            .map(|deflate| deflate.class)
    }

    /// Appends a message to a plain stream or a streaming response.
    fn send_unframed(&mut self, kind: Kind, payload: &[u8], out: &mut Vec<u8>) -> Result<(), Misuse> {
        if let Some(body) = &mut self.body {
            body.message(kind, payload, out);
            return Ok(());
        }
        out.reserve(5 + payload.len());
        self.send_prefix(kind, payload.len() as u64, out)?;
        out.extend_from_slice(payload);
        Ok(())
    }

    /// Appends the length before a message, after its kind if the stream has kinds. A streaming response takes no message without its payload.
    fn send_prefix(&self, kind: Kind, len: u64, out: &mut Vec<u8>) -> Result<(), Misuse> {
        let written = match self.framing {
            WireFormat::Tagged => frame::write_tagged(kind.opcode(), len, out),
            WireFormat::Prefixed => frame::write_prefix(len, out),
            WireFormat::WebSocket | WireFormat::Body => false,
        };
        if written { Ok(()) } else { Err(Misuse::Prefixed) }
    }

    fn may_start(&self) -> Result<(), Misuse> {
        self.may_send()?;
        if self.open_message.is_some() { Err(Misuse::MessageOpen) } else { Ok(()) }
    }

    fn may_send(&self) -> Result<(), Misuse> {
        if self.sending != SendState::Open {
            Err(Misuse::Closing)
        } else if self.part == ConnectionHalf::Control {
            Err(Misuse::SplitOff)
        } else {
            Ok(())
        }
    }

    #[inline(never)]
    fn send_deflated(
        &mut self,
        opcode: Opcode,
        payload: &[u8],
        last: bool,
        shared: &mut PerThread,
        out: &mut Vec<u8>,
    ) {
        let Some(deflate) = self.compression.as_mut().and_then(|compression| compression.deflate.as_mut())
        else {
            return;
        };
        let mut body = core::mem::take(&mut shared.scratch);
        deflate.write(payload, last, shared, &mut body);
        let first = opcode != Opcode::Continuation;
        // A window with takeover contains the message already; the peer's must contain it too.
        let pays = deflate.takeover || !(first && last) || body.len() < payload.len();
        let key = shared.mask_for(self.role);
        let frame = FrameFields { opcode, fin: last, compressed: first && pays, key };
        frame::write_frame(frame, if pays { &body } else { payload }, out);
        shared.keep_scratch(body);
    }
}
