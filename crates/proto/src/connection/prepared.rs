//! Frames that are written once for many connections.

use alloc::vec::Vec;

use super::event::Kind;
use super::per_thread::PerThread;
use crate::deflate::DeflateClass;
use crate::frame::{self, FrameFields};

/// Appends an unmasked frame for any number of clients: uncompressed, or compressed for all connections of
/// a class ([`Connection::prepared_class`](crate::Connection::prepared_class)).
pub fn write_prepared(
    kind: Kind,
    payload: &[u8],
    class: Option<DeflateClass>,
    shared: &mut PerThread,
    out: &mut Vec<u8>,
) {
    let mut frame = FrameFields { opcode: kind.opcode(), fin: true, compressed: false, key: None };
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
