//! Frames that are written once for many connections.

use alloc::vec::Vec;

use super::event::Kind;
use super::pending::REASON_MAX;
use super::per_thread::PerThread;
use crate::close::CloseCode;
use crate::deflate::DeflateClass;
use crate::error::Misuse;
use crate::frame::{self, FrameFields, Opcode};

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

/// Appends an unmasked Close for a client whose connection has no state, such as one beyond the limits of a server.
///
/// # Errors
/// [`Misuse::ReasonTooLong`] over 123 bytes. No bytes are appended then.
pub fn write_close(code: CloseCode, reason: &str, out: &mut Vec<u8>) -> Result<(), Misuse> {
    if reason.len() > REASON_MAX {
        return Err(Misuse::ReasonTooLong);
    }
    let mut payload = code.as_u16().to_be_bytes().to_vec();
    payload.extend_from_slice(reason.as_bytes());
    let frame = FrameFields { opcode: Opcode::Close, fin: true, compressed: false, key: None };
    frame::write_frame(frame, &payload, out);
    Ok(())
}
