//! Frame and stream types.

/// Frame types (RFC 9114 section 7.2).
pub(super) const DATA: u64 = 0;
pub(super) const HEADERS: u64 = 1;
pub(super) const CANCEL_PUSH: u64 = 3;
pub(super) const SETTINGS: u64 = 4;
pub(super) const PUSH_PROMISE: u64 = 5;
pub(super) const GOAWAY: u64 = 7;
pub(super) const MAX_PUSH_ID: u64 = 13;
/// The signal of a bidirectional stream of WebTransport.
pub(super) const SESSION_SIGNAL: u64 = 0x41;

/// Stream types (RFC 9114 section 6.2, RFC 9204 section 4.2).
pub(super) const CONTROL_STREAM: u64 = 0;
pub(super) const PUSH_STREAM: u64 = 1;
pub(super) const ENCODER_STREAM: u64 = 2;
pub(super) const DECODER_STREAM: u64 = 3;
/// A unidirectional WebTransport stream.
pub(super) const SESSION_STREAM: u64 = 0x54;

/// Cuts up to `max` bytes off the input.
pub(super) fn take<'i>(input: &mut &'i [u8], max: u64) -> &'i [u8] {
    let len = usize::try_from(max).unwrap_or(usize::MAX).min(input.len());
    let (piece, rest) = input.split_at(len);
    *input = rest;
    piece
}
