//! Raw deflate for RFC 7692: messages end at a flush point, and the window may persist across messages.

use alloc::vec::Vec;

use zlib_rs::{Deflate, DeflateConfig, DeflateFlush, Inflate, InflateFlush, Method, Status, Strategy};

use super::outcome::{BadDeflate, Inflated};

/// Inflates the messages of one direction.
///
/// Output goes into a ring of one window first and is copied from there. The ring is initialized memory,
/// which the inflater requires, so that the message buffer grows by the produced bytes and never by an
/// estimate. The ring also retains the window, which must be carried across a block marked final (RFC 7692
/// section 7.2.3.4): zlib drops the window with the stream.
pub(crate) struct Inflater {
    stream: Inflate,
    history: WindowRing,
    /// The byte that proved the output full; the first byte of the next call.
    pending_byte: Option<u8>,
    /// The current message has received input.
    has_input: bool,
    /// A final block has ended the stream; later input starts another stream.
    ended: bool,
    /// Number of streams started inside the current message.
    restarts: u32,
}

impl Inflater {
    /// `window_bits` is the negotiated window of the peer's compressor, 8 to 15.
    ///
    /// The inflater itself always uses the largest window, which is correct for all smaller windows; the
    /// negotiated window bounds only the memory that is carried across final blocks.
    pub(crate) fn new(window_bits: u8) -> Self {
        Self {
            stream: Inflate::new(false, INFLATE_WINDOW_BITS),
            history: WindowRing::new(1 << window_bits.min(INFLATE_WINDOW_BITS)),
            pending_byte: None,
            has_input: false,
            ended: false,
            restarts: 0,
        }
    }

    /// Appends at most `room` bytes to `out`; stops at the end of the input or capacity.
    ///
    /// If the result is full, the rest of the input may be passed again with more capacity.
    pub(crate) fn inflate(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        room: usize,
    ) -> Result<Inflated, BadDeflate> {
        let mut done = Inflated::default();
        self.has_input |= !input.is_empty();
        if let Some(byte) = self.pending_byte {
            if room == 0 {
                done.full = true;
                return Ok(done);
            }
            self.pending_byte = None;
            out.push(byte);
            done.produced = 1;
        }
        loop {
            let rest = &input[done.consumed..];
            if self.ended {
                if rest.is_empty() {
                    return Ok(done);
                }
                self.restart()?;
            }
            // Without capacity one byte is still requested: only an actual byte proves that the message is
            // too long.
            let room_left = room - done.produced;
            let step = self.step(rest, room_left.max(1))?;
            done.consumed += step.consumed;
            let fresh = self.history.advance(step.produced);
            if step.produced > room_left {
                self.pending_byte = fresh.first().copied();
                done.full = true;
                return Ok(done);
            }
            out.extend_from_slice(fresh);
            done.produced += step.produced;
            let used_up = step.consumed == rest.len();
            if used_up && step.drained || step.consumed + step.produced == 0 && !self.ended {
                return Ok(done);
            }
        }
    }

    /// Ends the message after all its input: feeds the tail that the sender has removed (RFC 7692 section
    /// 7.2.2).
    ///
    /// If the result is full, the message continues; call it again with more capacity.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>, room: usize) -> Result<Inflated, BadDeflate> {
        let mut done = Inflated::default();
        if self.pending_byte.is_some() {
            done = self.inflate(&[], out, room)?;
            if done.full {
                return Ok(done);
            }
        }
        // Even the empty message has at least one octet (RFC 7692 section 7.2.3.6).
        if !self.has_input {
            return Err(BadDeflate);
        }
        // A final block that ends with the data needs no tail, although a careful sender adds an empty
        // stored block after it (RFC 7692 section 7.2.3.4).
        if !self.ended {
            self.feed_tail()?;
        }
        self.has_input = false;
        self.restarts = 0;
        Ok(done)
    }

    /// Returns the last bytes of output, as many as the window holds.
    pub(crate) fn window(&self) -> Vec<u8> {
        self.history.parts().concat()
    }

    /// Continues after the window of a peer, on a context that was [reset](Self::reset).
    pub(crate) fn resume(&mut self, window: &[u8]) {
        // A raw stream takes each dictionary; otherwise the next message fails.
        let _ = self.stream.set_dictionary(window);
        let mut rest = window;
        while !rest.is_empty() {
            let space = self.history.space(rest.len());
            let (now, later) = rest.split_at(space.len());
            space.copy_from_slice(now);
            self.history.advance(now.len());
            rest = later;
        }
    }

    /// Resets message and window; usable after any error.
    pub(crate) fn reset(&mut self) {
        self.stream.reset(false);
        self.history.clear();
        self.pending_byte = None;
        self.has_input = false;
        self.ended = false;
        self.restarts = 0;
    }

    /// Calls zlib once, with output to the ring.
    fn step(&mut self, input: &[u8], limit: usize) -> Result<ZlibProgress, BadDeflate> {
        let (total_in, total_out) = (self.stream.total_in(), self.stream.total_out());
        let space = self.history.space(limit);
        let space_len = space.len();
        let status = self.stream.decompress(input, space, InflateFlush::NoFlush).map_err(|_| BadDeflate)?;
        self.ended = status == Status::StreamEnd;
        // Both are at most the length of a slice.
        let consumed = (self.stream.total_in() - total_in) as usize;
        let produced = (self.stream.total_out() - total_out) as usize;
        Ok(ZlibProgress { consumed, produced, drained: produced < space_len || self.ended })
    }

    /// Starts a new stream after a final block, with the previous window.
    fn restart(&mut self) -> Result<(), BadDeflate> {
        self.restarts += 1;
        if self.restarts > FINAL_BLOCKS_MAX {
            return Err(BadDeflate);
        }
        self.stream.reset(false);
        self.ended = false;
        for part in self.history.parts() {
            if !part.is_empty() {
                self.stream.set_dictionary(part).map_err(|_| BadDeflate)?;
            }
        }
        Ok(())
    }

    /// Feeds the removed tail, and checks that the stream is then between two blocks.
    ///
    /// zlib stops at the end of a block, so it consumes the tail and leaves the byte after it if the tail has ended a
    /// block. Inside a stored block the tail would be output; inside any other block it would be codes, and at most two
    /// octets of them precede output or the end of the block. Data truncated inside the code table of a block, such
    /// that the tail completes table and block to the octet, is accepted: the RFC's procedure makes it a message, and
    /// it harms only its sender.
    fn feed_tail(&mut self) -> Result<(), BadDeflate> {
        let [a, b, c, d] = TAIL;
        let total_in = self.stream.total_in();
        let total_out = self.stream.total_out();
        let status = self
            .stream
            .decompress(&[a, b, c, d, 0xff], &mut [0], InflateFlush::Block)
            .map_err(|_| BadDeflate)?;
        let consumed = self.stream.total_in() - total_in;
        if status == Status::Ok && consumed == 4 && self.stream.total_out() == total_out {
            Ok(())
        } else {
            Err(BadDeflate)
        }
    }
}

/// The result of one call of zlib.
struct ZlibProgress {
    consumed: usize,
    produced: usize,
    /// No output is left without more input.
    drained: bool,
}

/// The last bytes of output, as many as the window holds. Starts small, doubles with the output.
struct WindowRing {
    ring: Vec<u8>,
    size_max: usize,
    next: usize,
    wrapped: bool,
}

impl WindowRing {
    const fn new(window: usize) -> Self {
        Self {
            ring: Vec::new(),
            size_max: if window > HISTORY_STEP { window } else { HISTORY_STEP },
            next: 0,
            wrapped: false,
        }
    }

    /// The space for the next bytes; never empty unless `limit` is zero.
    fn space(&mut self, limit: usize) -> &mut [u8] {
        if self.next == self.ring.len() {
            if self.next < self.size_max {
                let size = (self.next * 2).clamp(HISTORY_STEP, self.size_max);
                self.ring.resize(size, 0);
            } else {
                self.next = 0;
                self.wrapped = true;
            }
        }
        let free = self.ring.len() - self.next;
        &mut self.ring[self.next..][..free.min(limit)]
    }

    /// Records `len` bytes written to the space, and returns them.
    fn advance(&mut self, len: usize) -> &[u8] {
        let from = self.next;
        self.next += len;
        &self.ring[from..self.next]
    }

    /// All retained bytes, oldest first.
    fn parts(&self) -> [&[u8]; 2] {
        let (newer, older) = self.ring.split_at(self.next);
        if self.wrapped { [older, newer] } else { [&[], newer] }
    }

    const fn clear(&mut self) {
        self.next = 0;
        self.wrapped = false;
    }
}

/// Compresses the messages of one direction.
pub(crate) struct Deflater {
    stream: Deflate,
}

impl Deflater {
    /// `level` is 1 to 9; `window_bits` is the negotiated value, 9 to 15, as zlib cannot produce a raw
    /// stream with less.
    pub(crate) fn new(level: u8, window_bits: u8) -> Self {
        Self {
            stream: Deflate::new_with_config(DeflateConfig {
                level: i32::from(level),
                method: Method::Deflated,
                window_bits: -i32::from(window_bits),
                mem_level: MEM_LEVEL,
                strategy: Strategy::Default,
            }),
        }
    }

    /// Appends a whole message (`last`), or a part of it, in compressed form.
    ///
    /// Each part ends at a flush point, so that the peer can inflate all earlier input. The last part loses
    /// its tail 00 00 FF FF (RFC 7692 section 7.2.1).
    pub(crate) fn deflate(&mut self, input: &[u8], out: &mut Vec<u8>, last: bool) {
        if input.is_empty() {
            // A flush without input yields no bytes. The octet begins an empty stored block, whose rest is
            // the tail that the receiver appends (RFC 7692 section 7.2.3.6).
            if last {
                out.push(0);
            }
            return;
        }
        let mut rest = input;
        loop {
            let start = out.len();
            let space = deflate_bound(rest.len()).min(OUT_STEP_MAX);
            out.resize(start + space, 0);
            let (total_in, total_out) = (self.stream.total_in(), self.stream.total_out());
            // Errors occur for a finished stream, or without output space; neither applies.
            self.stream
                .compress(rest, &mut out[start..], DeflateFlush::SyncFlush)
                .expect("a stream that is never finished takes input");
            // Both are at most the length of a slice.
            let consumed = (self.stream.total_in() - total_in) as usize;
            let produced = (self.stream.total_out() - total_out) as usize;
            out.truncate(start + produced);
            rest = &rest[consumed..];
            if rest.is_empty() && produced < space {
                break;
            }
        }
        if last {
            debug_assert!(out.ends_with(&TAIL), "a flush ends with an empty stored block");
            out.truncate(out.len() - TAIL.len());
        }
    }

    /// Resets the window, as `no_context_takeover` requires between messages.
    pub(crate) fn reset(&mut self) {
        self.stream.reset();
    }
}

/// Capacity for a flush with `len` bytes in one call: nine bits per byte is the fixed codes' worst case, and the flush
/// itself takes a few bytes more. An underestimate costs another call, never the result.
const fn deflate_bound(len: usize) -> usize {
    len.saturating_add(len / 8).saturating_add(16)
}

/// The end of a flush, which RFC 7692 section 7.2.1 removes: an empty stored block without its header.
const TAIL: [u8; 4] = [0x00, 0x00, 0xff, 0xff];

/// zlib-rs allocates the largest window in any case.
const INFLATE_WINDOW_BITS: u8 = 15;

/// Initial size of the ring, and minimum output step.
const HISTORY_STEP: usize = 4 * 1024;

/// Maximum final blocks in one message, excluding the last. Each costs the copy of a whole window, so
/// without a limit two bytes of input would cost as much as inflating thousands.
const FINAL_BLOCKS_MAX: u32 = 1024;

/// Maximum symbols in a block, and the memory for them: 28 KiB instead of 112 KiB for zlib's default, with sizes within
/// half a percent, and faster on small messages.
const MEM_LEVEL: i32 = 6;

/// Maximum step of output preparation, since preparation fills with zeros.
const OUT_STEP_MAX: usize = 16 * 1024;
