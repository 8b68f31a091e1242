//! The sending half: converts messages and fragments to frames.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::closing::Sending;
use super::parts::Part;
use super::{Connection, Kind, PerThread};
use crate::deflate::{DeflateClass, DeflateSetup, Deflater};
use crate::frame::{self, Opcode, Outgoing};
use crate::{Framing, Misuse, Role};

/// A message whose last fragment has not been sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenMessage {
    kind: Kind,
    compressed: bool,
}

/// Compression of local messages.
pub(super) struct Deflate {
    class: DeflateClass,
    /// The local window persists across messages.
    takeover: bool,
    /// Shorter messages are sent uncompressed.
    threshold: usize,
    context: Option<Box<Deflater>>,
}

impl core::fmt::Debug for Deflate {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Deflate").field("class", &self.class).finish_non_exhaustive()
    }
}

impl Deflate {
    pub(super) fn new(setup: DeflateSetup, role: Role) -> Self {
        let params = setup.params;
        let (no_takeover, window_bits) = match role {
            Role::Server => (params.server_no_context_takeover, params.server_max_window_bits),
            Role::Client => (params.client_no_context_takeover, params.client_max_window_bits),
        };
        let class = DeflateClass { level: setup.level, window_bits };
        Self { class, takeover: !no_takeover, threshold: setup.threshold, context: None }
    }

    fn write(&mut self, payload: &[u8], last: bool, shared: &mut PerThread, out: &mut Vec<u8>) {
        let class = self.class;
        let context = self.context.get_or_insert_with(|| match self.takeover {
            true => Box::new(Deflater::new(class.level, class.window_bits)),
            false => shared.contexts.take_deflater(class),
        });
        context.deflate(payload, out, last);
        if last
            && !self.takeover
            && let Some(context) = self.context.take()
        {
            shared.contexts.put_deflater(class, context);
        }
    }
}

impl Kind {
    const fn opcode(self) -> Opcode {
        match self {
            Self::Text => Opcode::Text,
            Self::Binary => Opcode::Binary,
        }
    }
}

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
        if self.framing == Framing::Prefixed {
            out.reserve(4 + payload.len());
            self.send_prefix(payload.len() as u64, out)?;
            out.extend_from_slice(payload);
        } else if self.compresses(payload.len()) {
            self.send_deflated(kind.opcode(), payload, true, shared, out);
        } else {
            let key = shared.mask_for(self.role);
            let frame = Outgoing { opcode: kind.opcode(), fin: true, compressed: false, key };
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
        if self.framing == Framing::WebSocket && self.compresses(len) {
            let mut whole = Vec::with_capacity(len);
            pieces.iter().for_each(|piece| whole.extend_from_slice(piece.as_ref()));
            self.send_deflated(kind.opcode(), &whole, true, shared, out);
            return Ok(());
        }
        out.reserve(frame::HEAD_MAX + len);
        let key = match self.framing {
            Framing::Prefixed => {
                self.send_prefix(len as u64, out)?;
                None
            }
            Framing::WebSocket => {
                let key = shared.mask_for(self.role);
                let frame = Outgoing { opcode: kind.opcode(), fin: true, compressed: false, key };
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
        self.deflate.as_ref().is_some_and(|deflate| len >= deflate.threshold)
    }

    /// Appends only the head of an uncompressed message of `len` bytes; the caller sends the payload after
    /// it by reference. Servers only, since a client must mask its payload.
    ///
    /// # Errors
    /// [`Misuse::MustMask`] from a client; [`Misuse::Closing`], [`Misuse::MessageOpen`].
    pub fn send_head(&mut self, kind: Kind, len: u64, out: &mut Vec<u8>) -> Result<(), Misuse> {
        self.may_start()?;
        if self.role == Role::Client {
            return Err(Misuse::MustMask);
        }
        if self.framing == Framing::Prefixed {
            return self.send_prefix(len, out);
        }
        frame::write_head(
            Outgoing { opcode: kind.opcode(), fin: true, compressed: false, key: None },
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
        if self.framing == Framing::Prefixed {
            return Err(Misuse::Prefixed);
        }
        let (opcode, compressed) = match self.open_message {
            Some(open) if open.kind != kind => return Err(Misuse::MessageOpen),
            Some(open) => (Opcode::Continuation, open.compressed),
            None => (kind.opcode(), self.deflate.is_some()),
        };
        self.open_message = (!last).then_some(OpenMessage { kind, compressed });
        if compressed {
            self.send_deflated(opcode, piece, last, shared, out);
        } else {
            let key = shared.mask_for(self.role);
            frame::write_frame(Outgoing { opcode, fin: last, compressed: false, key }, piece, out);
        }
        Ok(())
    }

    /// Checks that a frame prepared by [`write_prepared`] may be sent now, and updates the compressor: a
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
        if self.framing == Framing::Prefixed {
            return Err(Misuse::Prefixed);
        }
        if compressed
            && let Some(context) = self.deflate.as_mut().and_then(|deflate| deflate.context.as_mut())
        {
            context.reset();
        }
        Ok(())
    }

    /// The class of compressed frames that this connection accepts for a message of `len` bytes; `None`:
    /// the uncompressed frame.
    #[must_use]
    #[inline]
    pub fn prepared_class(&self, len: usize) -> Option<DeflateClass> {
        self.deflate.as_ref().filter(|deflate| len >= deflate.threshold).map(|deflate| deflate.class)
    }

    fn send_prefix(&self, len: u64, out: &mut Vec<u8>) -> Result<(), Misuse> {
        if frame::write_prefix(len, out) { Ok(()) } else { Err(Misuse::Prefixed) }
    }

    fn may_start(&self) -> Result<(), Misuse> {
        self.may_send()?;
        if self.open_message.is_some() { Err(Misuse::MessageOpen) } else { Ok(()) }
    }

    fn may_send(&self) -> Result<(), Misuse> {
        if self.sending != Sending::Open {
            Err(Misuse::Closing)
        } else if self.part == Part::Control {
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
        let Some(deflate) = &mut self.deflate else { return };
        let mut body = core::mem::take(&mut shared.scratch);
        deflate.write(payload, last, shared, &mut body);
        let first = opcode != Opcode::Continuation;
        // A window with takeover contains the message already; the peer's must contain it too.
        let pays = deflate.takeover || !(first && last) || body.len() < payload.len();
        let key = shared.mask_for(self.role);
        let frame = Outgoing { opcode, fin: last, compressed: first && pays, key };
        frame::write_frame(frame, if pays { &body } else { payload }, out);
        shared.keep_scratch(body);
    }
}

/// Appends an unmasked frame for any number of clients: uncompressed, or compressed for all connections of
/// a class ([`Connection::prepared_class`]).
pub fn write_prepared(
    kind: Kind,
    payload: &[u8],
    class: Option<DeflateClass>,
    shared: &mut PerThread,
    out: &mut Vec<u8>,
) {
    let mut frame = Outgoing { opcode: kind.opcode(), fin: true, compressed: false, key: None };
    let Some(class) = class else {
        return frame::write_frame(frame, payload, out);
    };
    let mut context = shared.contexts.take_deflater(class);
    let mut body = core::mem::take(&mut shared.scratch);
    context.deflate(payload, &mut body, true);
    shared.contexts.put_deflater(class, context);
    frame.compressed = body.len() < payload.len();
    frame::write_frame(frame, if frame.compressed { &body } else { payload }, out);
    shared.keep_scratch(body);
}

/// Boxed so that a connection without compression pays only a pointer.
const _: () = assert!(size_of::<Option<Box<Deflate>>>() == 8);
