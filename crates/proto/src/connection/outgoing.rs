//! State of sending: the message that is being sent in fragments, and the compressor.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::event::Kind;
use super::per_thread::PerThread;
use crate::Role;
use crate::deflate::{DeflateClass, DeflateSetup, Deflater};

/// A message whose last fragment has not been sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenMessage {
    pub(super) kind: Kind,
    pub(super) compressed: bool,
}

/// Compression of local messages.
pub(super) struct SendCompression {
    pub(super) class: DeflateClass,
    /// The local window persists across messages.
    pub(super) takeover: bool,
    /// Shorter messages are sent uncompressed.
    pub(super) threshold: usize,
    /// The application has disabled compression for now.
    pub(super) is_disabled: bool,
    pub(super) context: Option<Box<Deflater>>,
}

impl core::fmt::Debug for SendCompression {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Deflate").field("class", &self.class).finish_non_exhaustive()
    }
}

impl SendCompression {
    pub(super) fn new(setup: DeflateSetup, role: Role) -> Self {
        let params = setup.params;
        let (no_takeover, window_bits) = match role {
            Role::Server => (params.server_no_context_takeover, params.server_max_window_bits),
            Role::Client => (params.client_no_context_takeover, params.client_max_window_bits),
        };
        let class = DeflateClass { level: setup.level, window_bits };
        Self { class, takeover: !no_takeover, threshold: setup.threshold, is_disabled: false, context: None }
    }

    pub(super) fn write(&mut self, payload: &[u8], last: bool, shared: &mut PerThread, out: &mut Vec<u8>) {
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

/// Boxed so that a connection without compression pays only a pointer.
const _: () = assert!(size_of::<Option<Box<SendCompression>>>() == 8);
