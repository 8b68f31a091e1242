//! Receiving compressed messages (RFC 7692 section 7.2.2).

use alloc::vec::Vec;
use core::ops::Range;

use super::Connection;
use super::event::{Event, PayloadLocation};
use super::frames::FrameResult;
use super::incoming::{
    PartialFrame, ReceiveStage, check_text, clear_delivered, finish_text, output_capacity, piece_event,
};
use super::per_thread::PerThread;
use crate::PeerMisbehaved;

impl Connection {
    /// Inflates an unmasked piece into the assembly.
    pub(super) fn inflate_piece(
        &mut self,
        mut frame: PartialFrame,
        input: &mut [u8],
        piece: Range<usize>,
        assembly: &mut Vec<u8>,
        shared: &mut PerThread,
    ) -> FrameResult {
        let inflate = self.compression.as_mut().and_then(|compression| compression.inflate.as_mut());
        let (Some(open), Some(inflate)) = (&mut self.message, inflate) else {
            return Err(PeerMisbehaved::NothingToContinue);
        };
        clear_delivered(open, assembly);
        let before = assembly.len();
        let room = output_capacity(open, assembly, self.config.max_message);
        let context = inflate.context(shared);
        let inflated =
            context.inflate(&input[piece.clone()], assembly, room).map_err(|_| PeerMisbehaved::BadDeflate)?;
        if inflated.full && open.delivered + assembly.len() as u64 >= self.config.max_message {
            return Err(PeerMisbehaved::MessageTooBig);
        }
        check_text(open, &assembly[before..])?;
        let used = inflated.consumed;
        frame.advance(used);
        // Unused bytes are masked again.
        sinews_simd::mask(&mut input[piece.start + used..piece.end], frame.key, 0);
        self.stage = match (frame.remaining == 0 && !inflated.full, frame.fin) {
            (false, _) => ReceiveStage::Payload(frame),
            (true, false) => ReceiveStage::Head,
            (true, true) => ReceiveStage::Flush,
        };
        open.more_output = inflated.full;
        let event = (open.pieces && !assembly.is_empty()).then(|| piece_event(open, false));
        Ok((used, event))
    }

    /// Whether inflating stopped for lack of capacity, so that output can follow without input.
    pub(super) fn has_more_output(&self) -> bool {
        self.message.as_ref().is_some_and(|open| open.more_output)
    }

    /// The end of a compressed message: output of the tail 00 00 FF FF (RFC 7692 section 7.2.2).
    pub(super) fn flush(
        &mut self,
        assembly: &mut Vec<u8>,
        shared: &mut PerThread,
    ) -> Result<Option<Event>, PeerMisbehaved> {
        let inflate = self.compression.as_mut().and_then(|compression| compression.inflate.as_mut());
        let (Some(open), Some(inflate)) = (&mut self.message, inflate) else {
            return Err(PeerMisbehaved::NothingToContinue);
        };
        clear_delivered(open, assembly);
        let before = assembly.len();
        let room = output_capacity(open, assembly, self.config.max_message);
        let context = inflate.context(shared);
        let inflated = context.finish(assembly, room).map_err(|_| PeerMisbehaved::BadDeflate)?;
        if inflated.full && open.delivered + assembly.len() as u64 >= self.config.max_message {
            return Err(PeerMisbehaved::MessageTooBig);
        }
        check_text(open, &assembly[before..])?;
        if inflated.full {
            return Ok(open.pieces.then(|| piece_event(open, false)));
        }
        finish_text(open)?;
        inflate.finish(shared);
        let event = if open.pieces {
            piece_event(open, true)
        } else {
            Event::Message { kind: open.kind, at: PayloadLocation::Assembly }
        };
        self.message = None;
        self.stage = ReceiveStage::Head;
        Ok(Some(event))
    }
}
