//! Raw deflate as RFC 7692 uses it: messages that end at a flush point, over a window that may outlive them.

use alloc::vec::Vec;

use zlib_rs::{Deflate, DeflateConfig, DeflateFlush, Inflate, InflateFlush, Method, Status, Strategy};

/// The peer's bytes are not the deflate stream of a whole message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadDeflate;

/// What one call of [`Inflater::inflate`] or [`Inflater::finish`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inflated {
    /// Input bytes used up.
    pub(crate) consumed: usize,
    /// Bytes appended to the output.
    pub(crate) produced: usize,
    /// There is at least one byte more than there was room for.
    ///
    /// A message that fills the room exactly is not full: this is what sets a message of the limit apart
    /// from one of the limit and a byte.
    pub(crate) full: bool,
}

/// Inflates the messages of one direction.
///
/// Output goes into a ring of one window first and is copied from there. The ring is initialised
/// memory, which the inflater wants, so that the message buffer grows by what was produced and never by
/// what might be; and it holds the window where we can read it, which is needed to carry it across a
/// block marked final (RFC 7692 section 7.2.3.4): zlib forgets the window with the stream.
pub(crate) struct Inflater {
    stream: Inflate,
    history: History,
    /// The byte that proved the output full; the first of the next call.
    held: Option<u8>,
    /// The current message has had input.
    begun: bool,
    /// A final block has ended the stream; input behind it starts another.
    ended: bool,
    /// Streams started inside the current message.
    restarts: u32,
}

impl Inflater {
    /// `window_bits` is what the peer agreed to compress with, 8 to 15.
    ///
    /// The inflater itself always works with the largest window, which is right for all smaller ones;
    /// the agreed one bounds only the memory for what is carried across final blocks.
    pub(crate) fn new(window_bits: u8) -> Self {
        Self {
            stream: Inflate::new(false, INFLATE_WINDOW_BITS),
            history: History::new(1 << window_bits.min(INFLATE_WINDOW_BITS)),
            held: None,
            begun: false,
            ended: false,
            restarts: 0,
        }
    }

    /// Appends at most `room` bytes to `out`; stops when the input is used up or the room is.
    ///
    /// If the result is full, the rest of the input may be given again with more room.
    pub(crate) fn inflate(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        room: usize,
    ) -> Result<Inflated, BadDeflate> {
        let mut done = Inflated::default();
        self.begun |= !input.is_empty();
        if let Some(byte) = self.held {
            if room == 0 {
                done.full = true;
                return Ok(done);
            }
            self.held = None;
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
            // Without room one byte is asked for all the same: only a byte that comes shows that the
            // message is too long.
            let room_left = room - done.produced;
            let step = self.step(rest, room_left.max(1))?;
            done.consumed += step.consumed;
            let fresh = self.history.advance(step.produced);
            if step.produced > room_left {
                self.held = fresh.first().copied();
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

    /// Ends the message: feeds the tail that the sender has removed (RFC 7692 section 7.2.2), all input
    /// having been consumed.
    ///
    /// If the result is full, the message goes on and this is to be called again with more room.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>, room: usize) -> Result<Inflated, BadDeflate> {
        let mut done = Inflated::default();
        if self.held.is_some() {
            done = self.inflate(&[], out, room)?;
            if done.full {
                return Ok(done);
            }
        }
        // Not even the empty message is sent as nothing (RFC 7692 section 7.2.3.6).
        if !self.begun {
            return Err(BadDeflate);
        }
        // A final block that ends with the data needs no tail, though a careful sender leaves an empty
        // stored block behind it (RFC 7692 section 7.2.3.4).
        if !self.ended {
            self.feed_tail()?;
        }
        self.begun = false;
        self.restarts = 0;
        Ok(done)
    }

    /// Forgets message and window; usable after any error.
    pub(crate) fn reset(&mut self) {
        self.stream.reset(false);
        self.history.clear();
        self.held = None;
        self.begun = false;
        self.ended = false;
        self.restarts = 0;
    }

    /// One call of zlib, into the ring.
    fn step(&mut self, input: &[u8], limit: usize) -> Result<Step, BadDeflate> {
        let (total_in, total_out) = (self.stream.total_in(), self.stream.total_out());
        let space = self.history.space(limit);
        let space_len = space.len();
        let status = self.stream.decompress(input, space, InflateFlush::NoFlush).map_err(|_| BadDeflate)?;
        self.ended = status == Status::StreamEnd;
        // Both are at most the length of a slice.
        let consumed = (self.stream.total_in() - total_in) as usize;
        let produced = (self.stream.total_out() - total_out) as usize;
        Ok(Step { consumed, produced, drained: produced < space_len || self.ended })
    }

    /// Starts the stream behind a final block, with the window as it was before.
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

    /// Feeds the removed tail, and sees to it that the stream then stands between two blocks.
    ///
    /// zlib is told to stop at the end of a block, so the tail is used up and the byte behind it left
    /// alone if the tail has ended one. Inside a stored block the tail would be output; inside any other
    /// it would be codes, and at most two octets of them before they are output or the end of the block.
    /// Data cut inside the table of a block's codes, such that the tail completes table and block to the
    /// octet, does pass: it is what the procedure of the RFC makes a message of, and harms its sender only.
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

/// What one call of zlib did.
struct Step {
    consumed: usize,
    produced: usize,
    /// No more output can come without more input.
    drained: bool,
}

/// The last bytes of output, as many as the window holds. Starts small, doubles as output comes.
struct History {
    ring: Vec<u8>,
    size_max: usize,
    next: usize,
    wrapped: bool,
}

impl History {
    const fn new(window: usize) -> Self {
        Self {
            ring: Vec::new(),
            size_max: if window > HISTORY_STEP { window } else { HISTORY_STEP },
            next: 0,
            wrapped: false,
        }
    }

    /// Where the next bytes go; never empty unless `limit` is zero.
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

    /// Takes note of `len` bytes written to the space, and shows them.
    fn advance(&mut self, len: usize) -> &[u8] {
        let from = self.next;
        self.next += len;
        &self.ring[from..self.next]
    }

    /// All that is kept, oldest first.
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
    /// `level` is 1 to 9; `window_bits` is what was agreed, 9 to 15, as zlib cannot produce a raw
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

    /// Appends the compressed form of a whole message (`last`), or of one part of it.
    ///
    /// Each part ends at a flush point, so that the peer can inflate all that was given so far. The last
    /// part loses its tail 00 00 FF FF (RFC 7692 section 7.2.1).
    pub(crate) fn deflate(&mut self, input: &[u8], out: &mut Vec<u8>, last: bool) {
        if input.is_empty() {
            // A flush without input yields nothing. The octet begins an empty stored block, whose rest
            // is the tail that the receiver appends (RFC 7692 section 7.2.3.6).
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
            // Errors are for a stream that was ended, or has no output; ours is neither.
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

    /// Forgets the window, as `no_context_takeover` wants it between messages.
    pub(crate) fn reset(&mut self) {
        self.stream.reset();
    }
}

/// Room for a flush of `len` bytes in one go: nine bits a byte is the worst of the fixed codes, and the
/// flush itself takes a few bytes more. Being wrong costs another round, never the result.
const fn deflate_bound(len: usize) -> usize {
    len.saturating_add(len / 8).saturating_add(16)
}

/// What a flush ends with, and RFC 7692 section 7.2.1 takes away: an empty stored block without its header.
const TAIL: [u8; 4] = [0x00, 0x00, 0xff, 0xff];

/// zlib-rs allocates the largest window whatever it is told, so it is told so.
const INFLATE_WINDOW_BITS: u8 = 15;

/// The first size of the ring, and the least step of output.
const HISTORY_STEP: usize = 4 * 1024;

/// Blocks marked final in one message, apart from the last. Each makes us copy a whole window, so
/// without a limit two bytes of input would cost as much as inflating thousands.
const FINAL_BLOCKS_MAX: u32 = 1024;

/// Sets how many symbols a block has at most, and the memory for them: 28 KiB instead of the 112 KiB of
/// zlib's own default, for the same sizes within half a percent, and faster on small messages.
const MEM_LEVEL: i32 = 6;

/// Output is made ready in steps of at most this, as making ready means to fill with zeros.
const OUT_STEP_MAX: usize = 16 * 1024;
